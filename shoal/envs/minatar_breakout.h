// minatar_breakout.h: keep a ball in play with a paddle of one cell and break three rows of bricks, again and again.
//
// MinAtar's Breakout (Young & Tian 2019, arXiv 1903.03176), from its published description; what that leaves open was
// checked against the package `minatar` 1.0.15, by what it shows. The ball moves along diagonals, one cell a frame. A
// wall or a brick reflects it; a brick that it breaks turns it back up or down. It cannot break a second brick before
// it has been in a free cell. Off the paddle it goes back the way it came from if it would have landed on the paddle's
// cell, and on in its direction if it stood above the paddle. When it comes down to the paddle and no brick is left,
// three new rows appear. There is no ramp: `ramping`, as in the other games of the suite, is missing here.
//
// obs: 10 x 10 cells with 4 channels: paddle, ball, trail (where the ball was), brick.
// action: 0 stay, 1 left, 2 up, 3 right, 4 down, 5 fire; up, down and fire do nothing here. With probability `sticky`
// the last action is repeated. reward: 1 for each brick. The episode ends when the ball passes the paddle.
// Random play earns 0.5, a script that goes to where the ball will come down 15, Pgx's PPO after 20M frames 50.
#define ENV_OBS OBS_U8(10, 10, 4)
#define ENV_PARAMS(X) X(float, sticky, 0.1f, "probability that the last action is repeated")
#define ENV_LIMITS(X) X("sticky", 0, 1)
#define ENV_STATS(X)                                                                                                   \
    X(sum, bricks, "bricks broken")                                                                                    \
    X(sum, returns, "times that the paddle met the ball")                                                              \
    X(last, walls, "walls raised")
#include "minatar/board.h"

enum { PADDLE, BALL, TRAIL, BRICK };  // channels
enum { ROWS = 3, FULL_ROW = (1 << SIDE) - 1 };

typedef struct {
    int32_t x, y, dx, dy;  // the ball and its direction
    int32_t trail_x, trail_y;
    int32_t paddle;
    int32_t points, walls;  // in this episode
    uint16_t bricks[ROWS];  // of the board's rows 1 to 3; bit x: the brick of that column stands
    uint8_t hit;            // it broke a brick and has not been free since
    uint8_t last;           // the action that was played
} State;

ENV_FN void raise_wall(State *s) {
    for (int32_t row = 0; row < ROWS; row++) s->bricks[row] = FULL_ROW;
    s->walls++;
}

ENV_FN int32_t has_brick(const State *s, int32_t x, int32_t y) {
    return y >= 1 && y <= ROWS ? s->bricks[y - 1] >> x & 1 : 0;
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    int32_t left = rng_int(rng, 2) == 0;
    s->x = s->trail_x = left ? 0 : EDGE;
    s->y = s->trail_y = ROWS;
    s->dx = left ? 1 : -1;
    s->dy = 1;
    s->paddle = 4;
    s->points = s->walls = 0;
    s->hit = s->last = 0;
    raise_wall(s);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t action = stick(&s->last, p->sticky, *a, rng);
    s->paddle = i_clamp(s->paddle + (action == RIGHT) - (action == LEFT), 0, EDGE);
    s->trail_x = s->x;
    s->trail_y = s->y;

    int32_t x = s->x + s->dx, y = s->y + s->dy, in_brick = 0;
    if (!is_inside(x)) {
        x = s->x;
        s->dx = -s->dx;
    }
    if (y < 0) {
        y = 0;
        s->dy = 1;
    } else if (has_brick(s, x, y)) {
        in_brick = 1;
        if (!s->hit) {
            s->bricks[y - 1] ^= (uint16_t)(1 << x);
            s->points++;
            out->reward = 1.0f;
            y = s->y;
            s->dy = -s->dy;
        }
    } else if (y >= EDGE) {
        if (!(s->bricks[0] | s->bricks[1] | s->bricks[2])) raise_wall(s);
        if (s->paddle == s->x || s->paddle == x) {
            s->dx = s->paddle == s->x ? s->dx : -s->dx;
            s->dy = -1;
            y = s->y;
            out->stats.returns = 1.0f;
        } else {
            out->terminated = 1;
        }
    }
    s->hit = (uint8_t)in_brick;
    s->x = x;
    s->y = y;
    out->stats.bricks = out->reward;
    out->stats.walls = (float)s->walls;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    clear_planes(obs);
    mark(obs, s->paddle, EDGE, PADDLE);
    mark(obs, s->x, s->y, BALL);
    mark(obs, s->trail_x, s->trail_y, TRAIL);
    for (int32_t k = 0; k < ROWS * SIDE; k++) {
        obs[(SIDE + k) * CHANNELS + BRICK] = s->bricks[k / SIDE] >> (k % SIDE) & 1;
    }
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    return is_inside(s->x) && is_inside(s->y) && is_inside(s->trail_x) && is_inside(s->trail_y) &&
           is_inside(s->paddle) && (s->dx == 1 || s->dx == -1) && (s->dy == 1 || s->dy == -1) &&
           (s->bricks[0] | s->bricks[1] | s->bricks[2]) <= FULL_ROW && is_small(s->points) && is_small(s->walls);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    const uint32_t colors[] = {RED, ORANGE, TEAL};
    draw_board(d, 0x101b2e);
    for (int32_t k = 0; k < ROWS * SIDE; k++) {
        float x = (float)(k % SIDE), y = (float)(k / SIDE + 1);
        if (has_brick(s, k % SIDE, k / SIDE + 1)) draw_rect(d, x + 0.05f, y + 0.15f, 0.9f, 0.7f, colors[k / SIDE]);
    }
    draw_circle(d, (float)s->trail_x + 0.5f, (float)s->trail_y + 0.5f, 0.15f, GREY);
    draw_circle(d, (float)s->x + 0.5f, (float)s->y + 0.5f, 0.3f, WHITE);
    draw_rect(d, (float)s->paddle + 0.02f, 9.3f, 0.96f, 0.4f, WHITE);
    draw_score(d, 0.0f, "SCORE ", s->points);
}
