// cartpole.h: push a cart left or right to keep its pole upright.
//
// The dynamics of Barto, Sutton & Anderson (1983) as Gymnasium's CartPole-v1 integrates them: explicit
// Euler, a reward of 1 for every step, the last included. Solved at a mean return of 475.
//
// obs: cart position (m) and velocity, pole angle (rad) and velocity. action: 0 left, 1 right.
#define ENV_OBS OBS_F32(4)
#define ENV_OBS_LOW -4.8f, -M_INF, -0.41887903f, -M_INF
#define ENV_OBS_HIGH 4.8f, M_INF, 0.41887903f, M_INF
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_MAX_STEPS 500
#define ENV_PARAMS(X)                                                                                                  \
    X(float, gravity, 9.8f, "m/s^2")                                                                                   \
    X(float, mass_cart, 1.0f, "kg")                                                                                    \
    X(float, mass_pole, 0.1f, "kg")                                                                                    \
    X(float, half_pole, 0.5f, "m, half the pole's length")                                                             \
    X(float, force, 10.0f, "N, magnitude of a push")                                                                   \
    X(float, dt, 0.02f, "s per step")                                                                                  \
    X(float, x_limit, 2.4f, "m, the episode ends beyond it")                                                           \
    X(float, tilt_limit, 0.20943951f, "rad, the episode ends beyond it (12 degrees)")                                  \
    X(float, start, 0.05f, "each state variable starts uniform in +- this")
#define ENV_STATS(X) X(mean, tilt, "|pole angle|, rad, mean over the episode")
#define ENV_STATE(X) X(float, x) X(float, x_dot) X(float, theta) X(float, theta_dot)
#include "core/env.h"

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->x = rng_uniform(rng, -p->start, p->start);
    s->x_dot = rng_uniform(rng, -p->start, p->start);
    s->theta = rng_uniform(rng, -p->start, p->start);
    s->theta_dot = rng_uniform(rng, -p->start, p->start);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    float force = *a ? p->force : -p->force;
    float sin_t = m_sin(s->theta), cos_t = m_cos(s->theta);
    float mass = p->mass_cart + p->mass_pole, pole = p->mass_pole * p->half_pole;

    float push = (force + pole * s->theta_dot * s->theta_dot * sin_t) / mass;
    float theta_acc =
        (p->gravity * sin_t - cos_t * push) / (p->half_pole * (4.0f / 3.0f - p->mass_pole * cos_t * cos_t / mass));
    float x_acc = push - pole * theta_acc * cos_t / mass;

    s->x += p->dt * s->x_dot;
    s->x_dot += p->dt * x_acc;
    s->theta += p->dt * s->theta_dot;
    s->theta_dot += p->dt * theta_acc;

    out->reward = 1.0f;
    out->terminated = (m_abs(s->x) > p->x_limit) | (m_abs(s->theta) > p->tilt_limit);
    out->stats.tilt = m_abs(s->theta);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    obs[0] = s->x;
    obs[1] = s->x_dot;
    obs[2] = s->theta;
    obs[3] = s->theta_dot;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    float tip_x = s->x + 2.0f * p->half_pole * m_sin(s->theta), tip_y = 2.0f * p->half_pole * m_cos(s->theta);
    draw_view(d, -2.6f, 1.5f, 2.6f, -0.5f, 0x0e1726);
    draw_line(d, -p->x_limit, -0.12f, p->x_limit, -0.12f, 0.02f, 0x4a5b78);
    draw_rect(d, s->x - 0.25f, -0.12f, 0.5f, 0.24f, 0x37c2b3);
    draw_line(d, s->x, 0.0f, tip_x, tip_y, 0.07f, 0xf2a65a);
    draw_circle(d, s->x, 0.0f, 0.045f, 0xffffff);
}
