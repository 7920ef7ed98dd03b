// pong.h: table tennis against a scripted opponent, first to 21.
//
// After Atari's arcade game (1972): a court of 640 x 480 px, paddles 64 px high, a ball of 12 x 12 px. You play on the
// right. Where the ball meets a paddle sets the angle at which it leaves, and every return makes it faster. The
// opponent follows the ball, more slowly than you can, and aims off by an amount that is drawn anew for every ball
// that comes to it. The flight within a step is solved exactly, so a step of 4 frames is one move, not four.
//
// obs: ball x and y, ball velocity x and y (1 is the top speed), your y, the opponent's y, your score and the
// opponent's. action: 0 stay, 1 up, 2 down. reward: 1 for a point won, -1 for a point lost. The return lies in
// [-21, 21]; random play loses with about -20, and 20 is good.
#define ENV_OBS OBS_F32(8)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(3)
#define ENV_MAX_STEPS 10000
#define ENV_PARAMS(X)                                                                                                  \
    X(int, frame_skip, 4, "frames per step, 1 to 60; there are 60 in a second")                                        \
    X(int, win_score, 21, "points to win")                                                                             \
    X(float, paddle_height, 64.0f, "px")                                                                               \
    X(float, paddle_speed, 480.0f, "px/s")                                                                             \
    X(float, foe_speed, 270.0f, "px/s")                                                                                \
    X(float, foe_error, 42.0f, "px, the opponent aims off by up to this; it misses from 38 on")                        \
    X(float, serve_speed, 360.0f, "px/s")                                                                              \
    X(float, speed_up, 30.0f, "px/s, gained at every return")                                                          \
    X(float, max_speed, 720.0f, "px/s; no ball flies more than 400 px in a step")                                      \
    X(float, spread, 0.75f, "sine of the angle off a paddle's end, up to 0.9")
#define ENV_STATS(X)                                                                                                   \
    X(sum, won, "points won")                                                                                          \
    X(sum, lost, "points lost")                                                                                        \
    X(sum, returns, "balls that you returned")
#define ENV_STATE(X)                                                                                                   \
    X(float, x)           /* px, the ball's centre; y points down */                                                   \
    X(float, y)                                                                                                        \
    X(float, vx)          /* px/s */                                                                                   \
    X(float, vy)                                                                                                       \
    X(float, speed)       /* px/s */                                                                                   \
    X(float, own)         /* px, the paddles' centres */                                                               \
    X(float, foe)                                                                                                      \
    X(float, foe_slip)    /* px, how far the opponent aims off this ball */                                            \
    X(int32_t, own_score)                                                                                              \
    X(int32_t, foe_score)
#include "core/env.h"

#define WIDTH 640.0f
#define HEIGHT 480.0f
#define BALL 6.0f  // half its side
#define PADDLE_WIDTH 10.0f
#define LEFT 30.0f  // where the ball's centre is when it meets a paddle
#define RIGHT 610.0f

ENV_FN float step_time(const Params *p) { return (float)i_clamp(p->frame_skip, 1, 60) * (1.0f / 60.0f); }
ENV_FN float top_speed(const Params *p) { return m_clamp(p->max_speed, 1.0f, 400.0f / step_time(p)); }
ENV_FN float half_paddle(const Params *p) { return 0.5f * m_clamp(p->paddle_height, 1.0f, HEIGHT); }
ENV_FN float within(float y, float half) { return m_clamp(y, half, HEIGHT - half); }

// Sends the ball off to a side (-1 left, 1 right), at a part (-1 to 1) of the largest angle.
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

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    float dt = step_time(p), half = half_paddle(p), foe_reach = p->foe_speed * dt;
    float own_v = (float)((*a == 2) - (*a == 1)) * p->paddle_speed;
    float foe_aim = s->vx < 0.0f ? s->y + s->foe_slip : 0.5f * HEIGHT;
    float foe_v = m_clamp(foe_aim - s->foe, -foe_reach, foe_reach) / dt;

    // The ball flies for a time t, until it is level with a paddle or the step ends.
    int32_t to_own = s->vx > 0.0f;
    float until = ((to_own ? RIGHT : LEFT) - s->x) / s->vx;
    float t = m_clamp(until, 0.0f, dt);
    float y = s->y + s->vy * t, inside = within(y, BALL);
    float vy = y == inside ? s->vy : -s->vy;
    y = inside + (inside - y);

    float part = (y - within(to_own ? s->own + own_v * t : s->foe + foe_v * t, half)) / (half + BALL);
    int32_t arrives = until <= dt, is_met = arrives & (m_abs(part) <= 1.0f), is_missed = arrives & !is_met;

    // Off the paddle, or a serve from the middle: either way it sets off anew.
    float draw = rng_uniform(rng, -1.0f, 1.0f), slip = rng_uniform(rng, -1.0f, 1.0f) * p->foe_error;
    float side = is_met ? (to_own ? -1.0f : 1.0f) : (draw < 0.0f ? -1.0f : 1.0f);
    State sent = *s;
    send_ball(&sent, p, side, is_met ? part : 2.0f * m_abs(draw) - 1.0f, is_met ? s->speed + p->speed_up : p->serve_speed);
    s->vx = arrives ? sent.vx : s->vx;
    s->vy = arrives ? sent.vy : vy;
    s->speed = arrives ? sent.speed : s->speed;
    s->foe_slip = arrives ? slip : s->foe_slip;
    
    float from_x = s->x + sent.vx * t;
    (void)from_x;
    (void)out;
}
