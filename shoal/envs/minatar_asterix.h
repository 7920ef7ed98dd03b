// minatar_asterix.h: collect gold and avoid enemies that cross the board from both sides, faster and faster.
//
// MinAtar's Asterix (Young & Tian 2019, arXiv 1903.03176), from its published description; what that leaves open was
// checked against the package `minatar` 1.0.15, by what it shows. Eight rows lie between the first and the last.
// Something enters every `spawn_interval` frames, in a random row that is empty, from the left or from the right; one
// in three is gold, the others are enemies. All of them move by one cell every `move_interval` frames and leave on the
// other side. With `ramping`, every ramp_interval + 2 frames the spawn interval shrinks by one, and every second time
// the move interval too, down to one frame each.
//
// obs: 10 x 10 cells with 4 channels: player, enemy, trail (behind enemies and gold), gold.
// action: 0 stay, 1 left, 2 up, 3 right, 4 down, 5 fire (does nothing here). The player keeps to the eight rows. With
// probability `sticky` the last action is repeated.
// reward: 1 for each piece of gold. The episode ends when the player and an enemy meet. Random play earns 0.5, a
// script that goes to the nearest gold by safe cells 29, Pgx's PPO after 20M frames 22.
#define ENV_OBS OBS_U8(10, 10, 4)
#define ENV_PARAMS(X)                                                                                                  \
    X(float, sticky, 0.1f, "probability that the last action is repeated")                                             \
    X(int, ramping, 1, "1: it gets faster; 0: it keeps its speed")                                                     \
    X(int, spawn_interval, 10, "frames from one entry to the next, at the start")                                      \
    X(int, move_interval, 5, "frames from one move of enemies and gold to the next, at the start")                     \
    X(int, ramp_interval, 100, "frames between speed-ups, less two")                                                   \
    X(float, gold, 0.33333334f, "share of gold among what enters")
#define ENV_LIMITS(X)                                                                                                  \
    X("sticky", 0, 1)                                                                                                  \
    X("ramping", 0, 1)                                                                                                 \
    X("*_interval", 1, 100000)                                                                                         \
    X("gold", 0, 1)
#define ENV_STATS(X)                                                                                                   \
    X(sum, collected, "pieces of gold")                                                                                \
    X(last, ramps, "speed-ups")
#include "minatar/board.h"

enum { PLAYER, ENEMY, TRAIL, GOLD };  // channels
enum { ROWS = 8 };                    // row k is the board's row k + 1

typedef struct {
    int32_t x, y;                           // the player; y counts from the first of the eight rows
    int32_t spawn_timer, move_timer;        // frames left
    int32_t spawn_interval, move_interval;  // now
    int32_t ramp_timer, ramps;
    int32_t points;             // in this episode
    int8_t at[ROWS];            // x of what is in a row
    uint8_t full, right, gold;  // bit k: row k has something; it moves to the right; it is gold
    uint8_t last;               // the action that was played
} State;

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)rng;
    s->x = 5;
    s->y = 4;
    s->spawn_timer = s->spawn_interval = p->spawn_interval;
    s->move_timer = s->move_interval = p->move_interval;
    s->ramp_timer = p->ramp_interval;
    s->ramps = s->points = 0;
    for (int32_t k = 0; k < ROWS; k++) s->at[k] = 0;
    s->full = s->right = s->gold = s->last = 0;
}

// Puts gold or an enemy at one end of a random empty row.
ENV_FN void enter(State *s, const Params *p, Rng *rng) {
    int32_t rows[ROWS], count = 0;
    for (int32_t k = 0; k < ROWS; k++) {
        if (!(s->full >> k & 1)) rows[count++] = k;
    }
    if (count == 0) return;
    int32_t row = rows[rng_int(rng, count)], right = rng_int(rng, 2), gold = rng_uniform(rng, 0.0f, 1.0f) < p->gold;
    s->at[row] = (int8_t)(right ? 0 : EDGE);
    s->full |= (uint8_t)(1 << row);
    s->right = (uint8_t)((s->right & ~(1 << row)) | right << row);
    s->gold = (uint8_t)((s->gold & ~(1 << row)) | gold << row);
}

ENV_FN void meet(State *s, Step *out) {
    if (!(s->full >> s->y & 1) || s->at[s->y] != s->x) return;
    if (s->gold >> s->y & 1) {
        s->full ^= (uint8_t)(1 << s->y);
        s->points++;
        out->reward += 1.0f;
    } else {
        out->terminated = 1;
    }
}

ENV_FN void move_all(State *s) {
    for (int32_t k = 0; k < ROWS; k++) {
        int32_t x = s->at[k] + (s->right >> k & 1 ? 1 : -1), is_in = is_inside(x);
        s->at[k] = (int8_t)(is_in ? x : s->at[k]);
        s->full &= (uint8_t)~(!is_in << k);
    }
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t action = stick(&s->last, p->sticky, *a, rng);
    if (s->spawn_timer <= 0) {
        enter(s, p, rng);
        s->spawn_timer = s->spawn_interval;
    }
    s->x = i_clamp(s->x + (action == RIGHT) - (action == LEFT), 0, EDGE);
    s->y = i_clamp(s->y + (action == DOWN) - (action == UP), 0, ROWS - 1);
    meet(s, out);
    if (s->move_timer <= 0) {
        move_all(s);
        meet(s, out);
        s->move_timer = s->move_interval;
    }
    s->spawn_timer--;
    s->move_timer--;
    if (p->ramping && (s->spawn_interval > 1 || s->move_interval > 1)) {
        if (s->ramp_timer < 0) {
            s->spawn_interval = i_max(s->spawn_interval - 1, 1);
            s->move_interval = i_max(s->move_interval - (s->ramps & 1), 1);
            s->ramps++;
            s->ramp_timer = p->ramp_interval;
        } else {
            s->ramp_timer--;
        }
    }
    out->stats.collected = out->reward;
    out->stats.ramps = (float)s->ramps;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    clear_planes(obs);
    mark(obs, s->x, s->y + 1, PLAYER);
    for (int32_t k = 0; k < ROWS; k++) {
        if (!(s->full >> k & 1)) continue;
        mark(obs, s->at[k], k + 1, s->gold >> k & 1 ? GOLD : ENEMY);
        mark_trail(obs, s->at[k] - (s->right >> k & 1 ? 1 : -1), k + 1, TRAIL);
    }
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    for (int32_t k = 0; k < ROWS; k++) {
        if (!is_inside(s->at[k])) return 0;
    }
    return is_inside(s->x) && s->y >= 0 && s->y < ROWS && is_small(s->spawn_timer) && is_small(s->move_timer) &&
           is_small(s->spawn_interval) && is_small(s->move_interval) && is_small(s->ramp_timer) && is_small(s->ramps) &&
           is_small(s->points);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_board(d, 0x101b2e);
    for (int32_t k = 0; k <= ROWS; k++) {
        draw_line(d, 0.0f, (float)(k + 1), 10.0f, (float)(k + 1), 0.03f, FRAME_COLOR);
    }
    for (int32_t k = 0; k < ROWS; k++) {
        float x = (float)s->at[k] + 0.5f, y = (float)k + 1.5f, back = s->right >> k & 1 ? -1.0f : 1.0f;
        if (!(s->full >> k & 1)) continue;
        draw_line(d, x, y, x + 0.9f * back, y, 0.12f, s->gold >> k & 1 ? 0x6b5630 : 0x6b2f40);
        if (s->gold >> k & 1) {
            draw_rect(d, x - 0.3f, y - 0.05f, 0.6f, 0.3f, ORANGE);  // a pot
            draw_circle(d, x, y - 0.08f, 0.22f, 0xffd75e);
        } else {
            draw_circle(d, x, y, 0.34f, RED);
            draw_circle(d, x - back * 0.05f - 0.12f, y - 0.08f, 0.08f, WHITE);
            draw_circle(d, x - back * 0.05f + 0.12f, y - 0.08f, 0.08f, WHITE);
        }
    }
    float x = (float)s->x + 0.5f, y = (float)s->y + 1.5f;
    draw_circle(d, x, y + 0.05f, 0.32f, TEAL);
    draw_triangle(d, x - 0.4f, y - 0.42f, x - 0.1f, y - 0.05f, x - 0.32f, y + 0.02f, WHITE);  // wings of a helmet
    draw_triangle(d, x + 0.4f, y - 0.42f, x + 0.1f, y - 0.05f, x + 0.32f, y + 0.02f, WHITE);
    draw_score(d, 0.0f, "GOLD ", s->points);
    draw_score(d, 6.0f, "LEVEL ", s->ramps);
}
