// pendulum.h: swing a pendulum up and hold it there, with too weak a motor.
//
// Gymnasium's Pendulum-v1: semi-implicit Euler, torque clipped to its limit, no terminal state. The return of a
// 200-step episode is about -1700 to 0; -200 is good.
//
// obs: cos and sin of the angle (0 is upright) and the angular velocity. action: torque in N m.
// reward: -(angle^2 + 0.1 velocity^2 + 0.001 torque^2), the angle in [-pi, pi).
#define ENV_OBS OBS_F32(3)
#define ENV_OBS_LOW -1.0f, -1.0f, -8.0f
#define ENV_OBS_HIGH 1.0f, 1.0f, 8.0f
#define ENV_ACTION ACT_BOX(1)
#define ENV_ACTION_LOW -2.0f
#define ENV_ACTION_HIGH 2.0f
#define ENV_MAX_STEPS 200
#define ENV_PARAMS(X)                                                                                                  \
    X(float, gravity, 10.0f, "m/s^2")                                                                                  \
    X(float, mass, 1.0f, "kg")                                                                                         \
    X(float, length, 1.0f, "m")                                                                                        \
    X(float, dt, 0.05f, "s per step")                                                                                  \
    X(float, max_speed, 8.0f, "rad/s, velocity is clipped to it")                                                      \
    X(float, max_torque, 2.0f, "N m, torque is clipped to it")
#define ENV_STATS(X) X(mean, upright, "share of steps within 0.2 rad of upright")
#define ENV_STATE(X) X(float, theta) X(float, theta_dot) X(float, torque)
#include "core/env.h"

ENV_FN float wrapped(float angle) { return angle - 6.28318530717959f * m_floor((angle + M_PI_F) * 0.159154943091895f); }

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    s->theta = rng_uniform(rng, -M_PI_F, M_PI_F);
    s->theta_dot = rng_uniform(rng, -1.0f, 1.0f);
    s->torque = 0.0f;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    float torque = m_clamp(*a, -p->max_torque, p->max_torque), angle = wrapped(s->theta);
    out->reward = -(angle * angle + 0.1f * s->theta_dot * s->theta_dot + 0.001f * torque * torque);
    out->stats.upright = (float)(m_abs(angle) < 0.2f);

    float gravity_acc = 3.0f * p->gravity / (2.0f * p->length) * m_sin(s->theta);
    float torque_acc = 3.0f / (p->mass * p->length * p->length) * torque;
    float speed = s->theta_dot + (gravity_acc + torque_acc) * p->dt;
    s->theta_dot = m_clamp(speed, -p->max_speed, p->max_speed);
    s->theta = s->theta + s->theta_dot * p->dt;
    s->torque = torque;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    obs[0] = m_cos(s->theta);
    obs[1] = m_sin(s->theta);
    obs[2] = s->theta_dot;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    float tip_x = m_sin(s->theta), tip_y = m_cos(s->theta);
    draw_view(d, -1.4f, 1.4f, 1.4f, -1.4f, 0x0e1726);
    draw_circle(d, 0.0f, 0.0f, 1.0f, 0x16233a);
    draw_line(d, 0.0f, 0.0f, tip_x, tip_y, 0.16f, 0xf2a65a);
    draw_circle(d, 0.0f, 0.0f, 0.05f, 0xffffff);
    draw_rect(d, 0.0f, -1.32f, 0.6f * s->torque, 0.08f, s->torque > 0.0f ? 0x37c2b3 : 0xe2556d);
}
