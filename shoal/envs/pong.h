// pong.h: table tennis against a scripted opponent, first to 21.
//
// After Atari's arcade game (1972): a court of 640 x 480 px, paddles of 10 x 64 px, a ball of 12 x 12 px. You play on
// the right. Where the ball meets a paddle sets the angle at which it leaves, and every return makes it faster. The
// opponent follows the ball at half your speed and aims off by an amount that is drawn for every ball. Flight is
// solved exactly to the moment that the ball is level with a paddle, so a step of 4 frames is one move, not four.
//
// obs: ball x and y, ball velocity x and y (1 is the top speed), your y, the opponent's y, your score, the opponent's.
// action: 0 stay, 1 up, 2 down. reward: 1 for a point won, -1 for a point lost, so the return lies in [-21, 21]:
// random play earns about -18, following the ball 19.
#define ENV_OBS OBS_F32(8)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(3)
#define ENV_MAX_STEPS 10000
#define ENV_PARAMS(X)                                                                                                  \
    X(int, frame_skip, 4, "frames per step, 1 to 60")                                                                  \
    X(int, win_score, 21, "points to win")                                                                             \
    X(float, paddle_height, 64.0f, "px")                                                                               \
    X(float, paddle_speed, 480.0f, "px/s")                                                                             \
    X(float, foe_speed, 240.0f, "px/s, of the opponent")                                                               \
    X(float, foe_error, 42.0f, "px, the opponent aims off by up to this; it reaches 38 px from its centre")            \
    X(float, serve_speed, 360.0f, "px/s")                                                                              \
    X(float, speed_up, 48.0f, "px/s gained at every return")                                                           \
    X(float, max_speed, 720.0f, "px/s; no ball flies more than 250 px in a step")                                      \
    X(float, spread, 0.75f, "sine of the angle off a paddle's end, up to 0.9")
#define ENV_STATS(X)                                                                                                   \
    X(sum, won, "points won")                                                                                          \
    X(sum, lost, "points lost")                                                                                        \
    X(sum, returns, "balls that you returned")
// px, px/s, y down, at the centres; foe_slip is how far the opponent aims off this ball.
#define ENV_STATE(X)                                                                                                   \
    X(float, x)                                                                                                        \
    X(float, y)                                                                                                        \
    X(float, vx)                                                                                                       \
    X(float, vy)                                                                                                       \
    X(float, speed)                                                                                                    \
    X(float, own)                                                                                                      \
    X(float, foe)                                                                                                      \
    X(float, foe_slip)                                                                                                 \
    X(int32_t, own_score)                                                                                              \
    X(int32_t, foe_score)
#include "core/env.h"

#define WIDTH 640.0f
#define HEIGHT 480.0f
#define BALL 6.0f  // half its side
#define PADDLE_WIDTH 10.0f
#define LEFT 30.0f  // the ball's centre when it is level with the opponent's paddle
#define RIGHT 610.0f

ENV_FN float step_time(const Params *p) { return (float)i_clamp(p->frame_skip, 1, 60) * (1.0f / 60.0f); }
ENV_FN float top_speed(const Params *p) { return m_clamp(p->max_speed, 1.0f, 250.0f / step_time(p)); }
ENV_FN float half_paddle(const Params *p) { return 0.5f * m_clamp(p->paddle_height, 1.0f, HEIGHT); }
ENV_FN float within(float y, float half) { return m_clamp(y, half, HEIGHT - half); }

// Sends the ball to a side (-1 left, 1 right), at a fraction (-1 to 1) of the largest angle.
ENV_FN void send_ball(State *s, const Params *p, float side, float part, float speed) {
    s->speed = m_clamp(speed, 1.0f, top_speed(p));
    s->vy = part * m_clamp(p->spread, 0.0f, 0.9f) * s->speed;
    s->vx = side * m_sqrt(s->speed * s->speed - s->vy * s->vy);
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    float side = rng_int(rng, 2) ? 1.0f : -1.0f;
    send_ball(s, p, side, rng_uniform(rng, -1.0f, 1.0f), p->serve_speed);
    s->foe_slip = rng_uniform(rng, -1.0f, 1.0f) * p->foe_error;
    s->x = 0.5f * WIDTH;
    s->y = s->own = s->foe = 0.5f * HEIGHT;
    s->own_score = s->foe_score = 0;
}

// At most 250 px, so that the ball turns at the top or the bottom of the court once at most.
ENV_FN void fly(State *s, float time) {
    float y = s->y + s->vy * time, inside = within(y, BALL);
    s->x += s->vx * time;
    s->vy = y == inside ? s->vy : -s->vy;
    s->y = inside + (inside - y);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    float dt = step_time(p), half = half_paddle(p), foe_reach = p->foe_speed * dt;
    float own_v = (float)((*a == 2) - (*a == 1)) * p->paddle_speed;
    float foe_aim = s->vx < 0.0f ? s->y + s->foe_slip : 0.5f * HEIGHT;
    float foe_v = m_clamp(foe_aim - s->foe, -foe_reach, foe_reach) / dt;

    // The ball flies until it is level with the paddle ahead, or for the whole step.
    int32_t is_mine = s->vx > 0.0f;
    float until = ((is_mine ? RIGHT : LEFT) - s->x) / s->vx, t = m_clamp(until, 0.0f, dt);
    fly(s, t);
    float part = (s->y - within(is_mine ? s->own + own_v * t : s->foe + foe_v * t, half)) / (half + BALL);
    int32_t arrives = until <= dt, is_met = arrives & (m_abs(part) <= 1.0f);
    int32_t won = arrives & !is_met & !is_mine, lost = arrives & !is_met & is_mine;
    s->own = within(s->own + own_v * dt, half);
    s->foe = within(s->foe + foe_v * dt, half);
    s->own_score += won;
    s->foe_score += lost;

    // If it got there, it is returned, or served from the middle. Every step draws, so that all envs do the same work.
    float draw = rng_uniform(rng, -1.0f, 1.0f), slip = rng_uniform(rng, -1.0f, 1.0f);
    float back = is_mine ? -1.0f : 1.0f, either = draw < 0.0f ? -1.0f : 1.0f;
    State next = *s;
    next.x = is_met ? s->x : 0.5f * WIDTH;
    next.y = is_met ? s->y : 0.5f * HEIGHT;
    next.foe_slip = slip * p->foe_error;
    send_ball(&next, p, is_met ? back : either, is_met ? part : 2.0f * m_abs(draw) - 1.0f,
              is_met ? s->speed + p->speed_up : p->serve_speed);
    fly(&next, dt - t);
    if (arrives) *s = next;

    out->reward = (float)(won - lost);
    out->terminated = (s->own_score >= p->win_score) | (s->foe_score >= p->win_score);
    out->stats.won = (float)won;
    out->stats.lost = (float)lost;
    out->stats.returns = (float)(is_met & is_mine);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    float top = top_speed(p), win = (float)i_max(p->win_score, 1);
    obs[0] = s->x * (2.0f / WIDTH) - 1.0f;
    obs[1] = s->y * (2.0f / HEIGHT) - 1.0f;
    obs[2] = s->vx / top;
    obs[3] = s->vy / top;
    obs[4] = s->own * (2.0f / HEIGHT) - 1.0f;
    obs[5] = s->foe * (2.0f / HEIGHT) - 1.0f;
    obs[6] = (float)s->own_score / win;
    obs[7] = (float)s->foe_score / win;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    float half = half_paddle(p), middle = 0.5f * WIDTH;
    draw_view(d, 0.0f, -8.0f, WIDTH, HEIGHT + 8.0f, 0x0e1726);
    draw_rect(d, 0.0f, -8.0f, WIDTH, 8.0f, 0x4a5b78);
    draw_rect(d, 0.0f, HEIGHT, WIDTH, 8.0f, 0x4a5b78);
    for (int32_t k = 0; k < 12; k++) draw_rect(d, middle - 2.0f, 10.0f + 40.0f * (float)k, 4.0f, 20.0f, 0x4a5b78);
    draw_value(d, middle - (s->foe_score > 9 ? 110.0f : 70.0f), 48.0f, 48.0f, "", s->foe_score, 0xe2556d);
    draw_value(d, middle + 34.0f, 48.0f, 48.0f, "", s->own_score, 0x37c2b3);
    draw_rect(d, LEFT - BALL - PADDLE_WIDTH, s->foe - half, PADDLE_WIDTH, 2.0f * half, 0xe2556d);
    draw_rect(d, RIGHT + BALL, s->own - half, PADDLE_WIDTH, 2.0f * half, 0x37c2b3);
    draw_rect(d, s->x - BALL, s->y - BALL, 2.0f * BALL, 2.0f * BALL, 0xffffff);
}
