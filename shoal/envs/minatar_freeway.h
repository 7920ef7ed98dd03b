// minatar_freeway.h: lead a chicken over eight lanes of cars, as often as 2,500 frames allow.
//
// MinAtar's Freeway (Young & Tian 2019, arXiv 1903.03176), from its published description; what that leaves open was
// checked against the package `minatar` 1.0.15, by what it shows. The chicken starts below the lanes, in the fifth
// column, and moves at most once in three frames. A car of speed k (1 to 5) moves by one cell every k + 1 frames (k in
// the published text) and comes back on the other side. All cars start in the first column. A car that meets the
// chicken sends it back to the start. On the other side of the road it is sent back too, and all cars get new random
// speeds and directions.
//
// obs: 10 x 10 cells with 7 channels: chicken, car, and the trails behind the cars, a channel for each speed from 1
// (the fastest) to 5. action: 0 stay, 1 left, 2 up, 3 right, 4 down, 5 fire; only up and down do something here. With
// probability `sticky` the last action is repeated. reward: 1 for each crossing. The episode ends with the frame after
// `frames`: this is a rule of the game (it terminates). Random play earns 0.1, a script that looks one lane ahead 65,
// Pgx's PPO after 20M frames 63.
#define ENV_OBS OBS_U8(10, 10, 7)
#define ENV_PARAMS(X)                                                                                                  \
    X(float, sticky, 0.1f, "probability that the last action is repeated")                                             \
    X(int, frames, 2500, "frames of an episode")                                                                       \
    X(int, chicken_interval, 3, "frames from one move of the chicken to the next")                                     \
    X(int, slowest, 5, "speeds are drawn from 1 (the fastest) to this")
#define ENV_LIMITS(X)                                                                                                  \
    X("sticky", 0, 1)                                                                                                  \
    X("frames", 1, 1000000)                                                                                            \
    X("chicken_interval", 1, 100)                                                                                      \
    X("slowest", 1, 5)
#define ENV_STATS(X)                                                                                                   \
    X(sum, crossings, "times that the chicken reached the other side")                                                 \
    X(sum, hits, "times that a car sent it back")
#include "minatar/board.h"

enum { CHICKEN, CAR, TRAIL };  // channels; that of speed k is TRAIL + k - 1
enum { LANES = 8, SPEEDS = 5, COLUMN = 4 };

typedef struct {
    int32_t y, wait;      // the chicken; frames until it may move
    int32_t left;         // frames left
    int32_t points;       // in this episode
    int8_t x[LANES];      // the car of lane k is in the board's row k + 1
    int8_t speed[LANES];  // positive to the right
    int8_t timer[LANES];  // frames until the car moves
    uint8_t last;         // the action that was played
} State;

ENV_FN void draw_speeds(State *s, const Params *p, Rng *rng) {
    for (int32_t k = 0; k < LANES; k++) {
        int32_t speed = 1 + rng_int(rng, i_clamp(p->slowest, 1, SPEEDS));
        s->speed[k] = (int8_t)(rng_int(rng, 2) ? speed : -speed);
        s->timer[k] = (int8_t)speed;
    }
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->y = EDGE;
    s->wait = p->chicken_interval;
    s->left = p->frames;
    s->points = s->last = 0;
    for (int32_t k = 0; k < LANES; k++) s->x[k] = 0;
    draw_speeds(s, p, rng);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t action = stick(&s->last, p->sticky, *a, rng);
    if (s->wait <= 0 && (action == UP || action == DOWN)) {
        s->y = i_clamp(s->y + (action == DOWN) - (action == UP), 0, EDGE);
        s->wait = p->chicken_interval;
    }
    if (s->y == 0) {
        s->y = EDGE;
        s->points++;
        out->reward = 1.0f;
        draw_speeds(s, p, rng);
    }
    int32_t hit = 0;
    for (int32_t k = 0; k < LANES; k++) {
        int32_t here = s->y == k + 1, speed = s->speed[k], x = s->x[k];
        hit |= here & (x == COLUMN);  // the chicken walked into it
        if (s->timer[k] <= 0) {
            x += speed > 0 ? 1 : -1;
            x = x < 0 ? EDGE : x > EDGE ? 0 : x;
            s->x[k] = (int8_t)x;
            s->timer[k] = (int8_t)(speed > 0 ? speed : -speed);
            hit |= here & (x == COLUMN);
        } else {
            s->timer[k]--;
        }
    }
    s->y = hit ? EDGE : s->y;
    s->wait -= s->wait > 0;
    out->terminated = s->left <= 0;
    s->left--;
    out->stats.crossings = out->reward;
    out->stats.hits = (float)hit;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    clear_planes(obs);
    mark(obs, COLUMN, s->y, CHICKEN);
    for (int32_t k = 0; k < LANES; k++) {
        int32_t x = s->x[k], speed = s->speed[k];
        int32_t behind = speed > 0 ? (x == 0 ? EDGE : x - 1) : (x == EDGE ? 0 : x + 1);
        mark(obs, x, k + 1, CAR);
        mark(obs, behind, k + 1, TRAIL - 1 + (speed > 0 ? speed : -speed));
    }
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    for (int32_t k = 0; k < LANES; k++) {
        int32_t speed = s->speed[k];
        if (!is_inside(s->x[k]) || speed == 0 || speed < -SPEEDS || speed > SPEEDS) return 0;
    }
    return is_inside(s->y) && is_small(s->wait) && is_small(s->left) && is_small(s->points);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    const uint32_t colors[] = {RED, ORANGE, 0xd8c24a, 0x7bd389, TEAL};  // from the fastest to the slowest
    draw_board(d, 0x1a2233);
    draw_rect(d, 0.0f, 0.0f, 10.0f, 1.0f, 0x24433a);
    draw_rect(d, 0.0f, 9.0f, 10.0f, 1.0f, 0x24433a);
    for (int32_t k = 2; k <= LANES; k++) {
        for (int32_t x = 0; x < SIDE; x++) draw_rect(d, (float)x + 0.3f, (float)k - 0.02f, 0.4f, 0.04f, GREY);
    }
    for (int32_t k = 0; k < LANES; k++) {
        int32_t speed = s->speed[k];
        float x = (float)s->x[k], y = (float)(k + 1), front = speed > 0 ? 0.62f : 0.18f;
        draw_rect(d, x + 0.15f, y + 0.12f, 0.2f, 0.76f, BACKGROUND);  // wheels
        draw_rect(d, x + 0.65f, y + 0.12f, 0.2f, 0.76f, BACKGROUND);
        draw_rect(d, x + 0.02f, y + 0.2f, 0.96f, 0.6f, colors[(speed > 0 ? speed : -speed) - 1]);
        draw_rect(d, x + front, y + 0.26f, 0.2f, 0.48f, 0xcfe3f2);  // the windscreen
    }
    float x = (float)COLUMN + 0.5f, y = (float)s->y + 0.5f;
    draw_circle(d, x, y + 0.12f, 0.3f, WHITE);
    draw_circle(d, x, y - 0.22f, 0.19f, WHITE);
    draw_circle(d, x, y - 0.42f, 0.08f, RED);
    draw_triangle(d, x + 0.14f, y - 0.28f, x + 0.14f, y - 0.12f, x + 0.36f, y - 0.2f, ORANGE);
    draw_score(d, 0.0f, "CROSSED ", s->points);
    draw_score(d, 6.0f, "LEFT ", i_max(s->left, 0));
}
