// breakout.h: keep a ball in play with a paddle and break two walls of bricks with it.
//
// After Atari's arcade game (1976), in a field like that of PufferLib's Breakout: 576 x 330 px, 6 rows of 18 bricks of
// 32 x 12 px, a paddle of 62 x 8 px, 60 frames/s; the ball is 10 x 10 px. It is served upwards from the paddle and
// speeds up four times: at its 4th and 12th return, and when it first breaks an orange and a red brick. When it touches
// the top of the field, the paddle halves until the next serve. Where the ball meets the paddle sets the angle at which
// it leaves, at most 45 degrees from straight up, so it never flies level. A cleared wall is followed by the next when
// the ball is back at the paddle; the episode ends with the last wall or the last ball.
//
// obs: paddle x, its width (1, halved 0.5), ball x and y, ball velocity x and y (1 is 660 px/s), balls left, score,
// bricks left, returns of this ball up to 12, then 1 for every brick that stands, row by row from the top.
// action: 0 stay, 1 left, 2 right. reward: the points of the bricks broken, by row from the top 7, 7, 4, 4, 1, 1.
// A wall is worth 432 points, so an episode 864; random play earns about 7.
#define ENV_OBS OBS_F32(118)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(3)
#define ENV_HAS_CHECK
#define ENV_MAX_STEPS 10000
#define ENV_PARAMS(X)                                                                                                  \
    X(int, frame_skip, 4, "frames per step, 1 to 60")                                                                  \
    X(int, balls, 5, "balls per episode")                                                                              \
    X(int, walls, 2, "walls per episode")                                                                              \
    X(int, shrink, 1, "1: the paddle halves when the ball touches the top; 0: it keeps its width")                     \
    X(float, paddle_width, 62.0f, "px")                                                                                \
    X(float, paddle_speed, 600.0f, "px/s")                                                                             \
    X(float, ball_speed, 256.0f, "px/s at the serve; no ball is faster than 660")                                      \
    X(float, speed_up, 64.0f, "px/s gained at each of the four speed-ups")                                             \
    X(float, max_angle, 0.78539816f, "rad from straight up off the paddle's ends, up to 1.2")
#define ENV_STATS(X)                                                                                                   \
    X(sum, score, "points")                                                                                            \
    X(sum, bricks, "bricks broken")                                                                                    \
    X(sum, returns, "times that the paddle met the ball")
#include "core/env.h"

enum { ROWS = 6, COLUMNS = 18, BRICKS = ROWS * COLUMNS, ROWS_ABOVE = 4 };  // room for four rows above the wall

// px, and y points down. A ball moves by less than a brick's height in a frame, so it cannot jump one.
#define WIDTH 576.0f
#define HEIGHT 330.0f
#define BRICK_WIDTH 32.0f
#define BRICK_HEIGHT 12.0f
#define WALL_BOTTOM 120.0f
#define PADDLE_TOP 312.0f
#define PADDLE_HEIGHT 8.0f
#define BALL 5.0f  // half its side
#define MAX_MOVE 11.0f
#define FRAME (1.0f / 60.0f)  // s

typedef struct {
    float paddle;                                // centre
    float x, y;                                  // centre of the ball
    float dx, dy;                                // its direction, a unit vector
    int32_t hits;                                // its returns
    int32_t balls;                               // left, with the one in play
    int32_t walls;                               // raised in this episode
    int32_t points;                              // in this episode
    uint8_t bricks;                              // that stand
    uint8_t broke_orange, broke_red, is_halved;  // since the serve
    uint32_t rows[ROWS];                         // bit c: the brick in column c stands
} State;

ENV_FN float half_paddle(const State *s, const Params *p) {
    return (s->is_halved ? 0.25f : 0.5f) * m_clamp(p->paddle_width, 1.0f, WIDTH);
}

// px per frame.
ENV_FN float ball_move(const State *s, const Params *p) {
    int32_t speed_ups = (s->hits >= 4) + (s->hits >= 12) + s->broke_orange + s->broke_red;
    return m_clamp((p->ball_speed + p->speed_up * (float)speed_ups) * FRAME, 0.0f, MAX_MOVE);
}

// Sends the ball up at a fraction (-1 to 1) of the largest angle.
ENV_FN void send_ball(State *s, const Params *p, float part) {
    float angle = part * m_clamp(p->max_angle, 0.0f, 1.2f);
    s->dx = m_sin(angle);
    s->dy = -m_cos(angle);
}

ENV_FN void raise_wall(State *s) {
    for (int32_t row = 0; row < ROWS; row++) s->rows[row] = (1u << COLUMNS) - 1;
    s->bricks = BRICKS;
    s->walls++;
}

ENV_FN void serve(State *s, const Params *p, Rng *rng) {
    if (s->bricks == 0) raise_wall(s);
    s->hits = 0;
    s->broke_orange = s->broke_red = s->is_halved = 0;
    s->x = m_clamp(s->paddle, BALL, WIDTH - BALL);
    s->y = PADDLE_TOP - BALL;
    send_ball(s, p, rng_uniform(rng, -1.0f, 1.0f));
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->paddle = 0.5f * WIDTH;
    s->balls = i_max(p->balls, 1);
    s->walls = s->points = 0;
    raise_wall(s);
    serve(s, p, rng);
}

// Rounded down, both are the same for |y| < 1,548. A GPU takes longer for floats, a CPU for integers.
ENV_FN int32_t row_of(float y) {
#ifdef __CUDACC__
    return (int32_t)y / (int32_t)BRICK_HEIGHT - ROWS_ABOVE;
#else
    return (int32_t)(y / BRICK_HEIGHT) - ROWS_ABOVE;
#endif
}
ENV_FN int32_t column_of(float x) { return (int32_t)(x / BRICK_WIDTH); }

// The bricks of a row; of a row without bricks, 0. A GPU keeps State in registers if no index is a variable.
ENV_FN uint32_t bricks_of(const State *s, int32_t row) {
#ifdef __CUDACC__
    uint32_t bricks = 0;
    for (int32_t k = 0; k < ROWS; k++) bricks |= s->rows[k] & (0u - (uint32_t)(k == row));
    return bricks;
#else
    return row >= 0 && row < ROWS ? s->rows[row] : 0;
#endif
}
ENV_FN void remove_bricks(State *s, int32_t row, uint32_t broken) {
#ifdef __CUDACC__
    for (int32_t k = 0; k < ROWS; k++) s->rows[k] ^= broken & (0u - (uint32_t)(k == row));
#else
    s->rows[row] ^= broken;
#endif
}

// Breaks the brick that a ball at (x, y) would enter, if there is one. A ball is smaller than a brick, so it is in two
// rows and two columns at most; of several bricks it breaks the one nearest to its centre.
ENV_FN int32_t break_brick(State *s, float x, float y, Step *out) {
    int32_t row = row_of(y), other_row = row_of(y - BALL) + row_of(y + BALL) - row;
    int32_t column = column_of(x), other_column = column_of(x - BALL) + column_of(x + BALL) - column;
    for (int32_t k = 0; k < 2; k++) {
        int32_t at = k == 0 ? row : other_row;
        uint32_t bricks = bricks_of(s, at), near = bricks & (1u << column), beside = bricks & (1u << other_column);
        if (!(near | beside)) continue;
        int32_t points = 7 - at / 2 * 3;
        remove_bricks(s, at, near ? near : beside);
        s->bricks--;
        s->points += points;
        s->broke_red |= points == 7;
        s->broke_orange |= points == 4;
        out->reward += (float)points;
        out->stats.bricks += 1.0f;
        return 1;
    }
    return 0;
}

// Moves the paddle, then the ball along x, then along y. A brick in its way turns the ball back along that axis alone.
ENV_FN void advance(State *s, const Params *p, float paddle_move, float move, Step *out) {
    float half = half_paddle(s, p), top = PADDLE_TOP - BALL;
    s->paddle = m_clamp(s->paddle + paddle_move, half, WIDTH - half);

    float x = s->x + s->dx * move, y = s->y + s->dy * move, inside = m_clamp(x, BALL, WIDTH - BALL);
    s->dx = x == inside ? s->dx : -s->dx;
    x = inside + (inside - x);

    if (y < BALL) {
        s->dy = -s->dy;
        s->is_halved = p->shrink != 0;
        y = BALL + (BALL - y);
    } else if (y < WALL_BOTTOM + BALL + MAX_MOVE) {
        if (break_brick(s, x, s->y, out)) {
            s->dx = -s->dx;
            x = s->x;
        }
        if (break_brick(s, x, y, out)) {
            s->dy = -s->dy;
            y = s->y;
        }
    } else if (y > top) {
        float meet = m_clamp(x - s->dx / s->dy * (y - top), BALL, WIDTH - BALL);  // where it is level with the paddle
        float part = (meet - s->paddle) / (half + BALL);
        if (s->y <= top && m_abs(part) <= 1.0f) {
            send_ball(s, p, part);
            s->hits++;
            out->stats.returns += 1.0f;
            if (s->bricks == 0) raise_wall(s);
            x = meet;
            y = top;
        }
    }
    s->x = x;
    s->y = y;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    float paddle_move = (float)((*a == 2) - (*a == 1)) * p->paddle_speed * FRAME;
    int32_t left = i_clamp(p->frame_skip, 1, 60);
    do {
        // Frame by frame, unless the ball is far from bricks and paddle: then all remaining frames at once.
        float move = ball_move(s, p), y = s->y + s->dy * move * (float)left;
        int32_t is_free = (m_min(s->y, y) > WALL_BOTTOM + BALL + MAX_MOVE) & (y <= PADDLE_TOP - BALL);
        int32_t frames = is_free ? left : 1;
        advance(s, p, paddle_move * (float)frames, move * (float)frames, out);
        if (s->y > HEIGHT - BALL) {
            s->y = HEIGHT - BALL;
            s->balls--;
            if (s->balls > 0) serve(s, p, rng);
        }
        out->terminated = s->balls == 0 || (s->bricks == 0 && s->walls >= p->walls);
        left -= frames;
    } while (left > 0 && !out->terminated);
    out->stats.score = out->reward;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    float speed = ball_move(s, p) / MAX_MOVE;
    obs[0] = s->paddle * (2.0f / WIDTH) - 1.0f;
    obs[1] = s->is_halved ? 0.5f : 1.0f;
    obs[2] = s->x * (2.0f / WIDTH) - 1.0f;
    obs[3] = s->y * (2.0f / HEIGHT) - 1.0f;
    obs[4] = s->dx * speed;
    obs[5] = s->dy * speed;
    obs[6] = (float)s->balls / (float)i_max(p->balls, 1);
    obs[7] = (float)s->points / (432.0f * (float)i_max(p->walls, 1));
    obs[8] = (float)s->bricks / (float)BRICKS;
    obs[9] = (float)i_min(s->hits, 12) / 12.0f;
    for (int32_t row = 0; row < ROWS; row++) {
        for (int32_t c = 0; c < COLUMNS; c++) {
            obs[10 + row * COLUMNS + c] = s->rows[row] & (1u << c) ? 1.0f : 0.0f;
        }
    }
}

// The ball's position is used as an index: it must be finite and near the field.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    return m_abs(s->x) <= 4.0f * WIDTH && m_abs(s->y) <= 4.0f * HEIGHT && m_abs(s->paddle) <= 4.0f * WIDTH &&
           m_abs(s->dx) <= 1.01f && m_abs(s->dy) <= 1.01f;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    float half = half_paddle(s, p);
    draw_view(d, -8.0f, -8.0f, WIDTH + 8.0f, HEIGHT, 0x0e1726);
    draw_rect(d, -8.0f, -8.0f, WIDTH + 16.0f, 8.0f, 0x4a5b78);
    draw_rect(d, -8.0f, -8.0f, 8.0f, HEIGHT + 8.0f, 0x4a5b78);
    draw_rect(d, WIDTH, -8.0f, 8.0f, HEIGHT + 8.0f, 0x4a5b78);
    for (int32_t k = 0; k < BRICKS; k++) {
        int32_t row = k / COLUMNS, column = k % COLUMNS;
        uint32_t color = row < 2 ? 0xe2556d : row < 4 ? 0xf2a65a : 0x37c2b3;
        float x = (float)column * BRICK_WIDTH, y = (float)(row + ROWS_ABOVE) * BRICK_HEIGHT;
        if (s->rows[row] & (1u << column)) {
            draw_rect(d, x + 1.0f, y + 1.0f, BRICK_WIDTH - 2.0f, BRICK_HEIGHT - 2.0f, color);
        }
    }
    draw_value(d, 8.0f, 20.0f, 18.0f, "SCORE ", s->points, 0xffffff);
    for (int32_t k = 0; k < i_min(s->balls - 1, 8); k++) {
        draw_rect(d, WIDTH - 20.0f - 16.0f * (float)k, 15.0f, 2.0f * BALL, 2.0f * BALL, 0x4a5b78);
    }
    draw_rect(d, s->paddle - half, PADDLE_TOP, 2.0f * half, PADDLE_HEIGHT, 0xffffff);
    draw_rect(d, s->x - BALL, s->y - BALL, 2.0f * BALL, 2.0f * BALL, 0xffffff);
}
