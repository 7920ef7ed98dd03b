// acrobot.h: swing a two-link arm over a line, with a motor at its elbow only.
//
// The acrobot of Sutton (1996, "Generalization in Reinforcement Learning") as Gymnasium's Acrobot-v1 integrates it:
// one step of classical Runge-Kutta, angles wrapped to [-pi, pi], velocities clipped. `dynamics` chooses the equations
// of motion: those of the book (Sutton & Barto), or those of the paper, which lack one term. The arm hangs down at the
// start. The episode ends when its tip is higher than `goal` above the shoulder. Solved at a mean return of -100.
// Random play returns -499: it almost never gets there in 500 steps.
//
// obs: cos and sin of the first link's angle (0 hangs down), cos and sin of the second link's angle to the first, and
// both angular velocities (rad/s). action: torque on the elbow: 0 clockwise, 1 none, 2 counter-clockwise.
// reward: -1 for every step, 0 for the one that ends the episode.
#define ENV_OBS OBS_F32(6)
#define ENV_OBS_LOW -1.0f, -1.0f, -1.0f, -1.0f, -12.566371f, -28.274334f
#define ENV_OBS_HIGH 1.0f, 1.0f, 1.0f, 1.0f, 12.566371f, 28.274334f
#define ENV_ACTION ACT_DISCRETE(3)
#define ENV_MAX_STEPS 500
#define ENV_PARAMS(X)                                                                                                  \
    X(float, gravity, 9.8f, "m/s^2")                                                                                   \
    X(float, length_1, 1.0f, "m, the link from shoulder to elbow")                                                     \
    X(float, length_2, 1.0f, "m, the link from elbow to tip; it counts for the height of the tip only")                \
    X(float, mass_1, 1.0f, "kg, of the first link")                                                                    \
    X(float, mass_2, 1.0f, "kg, of the second link")                                                                   \
    X(float, center_1, 0.5f, "m from the shoulder to the first link's centre of mass")                                 \
    X(float, center_2, 0.5f, "m from the elbow to the second link's centre of mass")                                   \
    X(float, inertia, 1.0f, "kg m^2, of each link about its centre of mass")                                           \
    X(float, torque, 1.0f, "N m, magnitude of the motor's torque")                                                     \
    X(float, torque_noise, 0.0f, "N m, a uniform draw in +- this is added to the torque in every step")                \
    X(float, max_speed_1, 12.566371f, "rad/s, the first angular velocity is clipped to it (4 pi)")                     \
    X(float, max_speed_2, 28.274334f, "rad/s, the second angular velocity is clipped to it (9 pi)")                    \
    X(float, dt, 0.2f, "s per step")                                                                                   \
    X(float, goal, 1.0f, "m above the shoulder, the episode ends when the tip is higher")                              \
    X(float, start, 0.1f, "each state variable starts uniform in +- this")                                             \
    X(int, dynamics, 0, "the equations of motion")
#define ENV_LIMITS(X)                                                                                                  \
    X("gravity", 0, 100)                                                                                               \
    X("length_*", 0.01, 100)                                                                                           \
    X("mass_*", 0.01, 100)                                                                                             \
    X("center_*", 0, 100)                                                                                              \
    X("inertia", 0.01, 100)                                                                                            \
    X("torque*", 0, 1000)                                                                                              \
    X("max_speed_1", 0, 12.566371)                                                                                     \
    X("max_speed_2", 0, 28.274334)                                                                                     \
    X("dt", 0, 1)                                                                                                      \
    X("start", 0, 3.1415927)
#define ENV_CHOICES(X) X("dynamics", "book nips")
#define ENV_STATS(X)                                                                                                   \
    X(sum, swung_up, "1 if the tip got above the goal")                                                                \
    X(mean, height, "m, of the tip above the shoulder, mean over the episode")
#define ENV_STATE(X) X(float, theta_1) X(float, theta_2) X(float, speed_1) X(float, speed_2) X(float, torque)
#include "core/env.h"

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->theta_1 = rng_uniform(rng, -p->start, p->start);
    s->theta_2 = rng_uniform(rng, -p->start, p->start);
    s->speed_1 = rng_uniform(rng, -p->start, p->start);
    s->speed_2 = rng_uniform(rng, -p->start, p->start);
    s->torque = 0.0f;
}

ENV_FN float wrapped(float angle) { return angle - 6.28318530717959f * m_floor((angle + M_PI_F) * 0.159154943091895f); }

ENV_FN float tip_height(const State *s, const Params *p) {
    return -p->length_1 * m_cos(s->theta_1) - p->length_2 * m_cos(s->theta_1 + s->theta_2);
}

// The derivative of a state: its velocities become the angles of `rate`, its accelerations the velocities.
ENV_FN State rate_of(State s, const Params *p) {
    float m1 = p->mass_1, m2 = p->mass_2, l1 = p->length_1, c1 = p->center_1, c2 = p->center_2;
    float sin_2 = m_sin(s.theta_2), cos_2 = m_cos(s.theta_2);
    float d1 = m1 * c1 * c1 + m2 * (l1 * l1 + c2 * c2 + 2.0f * l1 * c2 * cos_2) + 2.0f * p->inertia;
    float d2 = m2 * (c2 * c2 + l1 * c2 * cos_2) + p->inertia;
    float pull_2 = m2 * c2 * p->gravity * m_sin(s.theta_1 + s.theta_2);
    float pull_1 = (m1 * c1 + m2 * l1) * p->gravity * m_sin(s.theta_1) + pull_2;
    float swing = m2 * l1 * c2 * sin_2;
    float phi_1 = pull_1 - swing * s.speed_2 * s.speed_2 - 2.0f * swing * s.speed_2 * s.speed_1;
    float book_term = p->dynamics == 0 ? swing * s.speed_1 * s.speed_1 : 0.0f;
    float effective = m2 * c2 * c2 + p->inertia - d2 * d2 / d1;

    State rate;
    rate.theta_1 = s.speed_1;
    rate.theta_2 = s.speed_2;
    rate.speed_2 = (s.torque + d2 / d1 * phi_1 - book_term - pull_2) / effective;
    rate.speed_1 = -(d2 * rate.speed_2 + phi_1) / d1;
    rate.torque = 0.0f;
    return rate;
}

ENV_FN State moved(const State *s, const State *rate, float dt) {
    State next;
    next.theta_1 = s->theta_1 + dt * rate->theta_1;
    next.theta_2 = s->theta_2 + dt * rate->theta_2;
    next.speed_1 = s->speed_1 + dt * rate->speed_1;
    next.speed_2 = s->speed_2 + dt * rate->speed_2;
    next.torque = s->torque;
    return next;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    State from = *s;
    from.torque = p->torque * (float)(*a - 1) + rng_uniform(rng, -p->torque_noise, p->torque_noise);

    State k1 = rate_of(from, p);
    State k2 = rate_of(moved(&from, &k1, 0.5f * p->dt), p);
    State k3 = rate_of(moved(&from, &k2, 0.5f * p->dt), p);
    State k4 = rate_of(moved(&from, &k3, p->dt), p);
    float sixth = p->dt * (1.0f / 6.0f);
    float theta_1 = from.theta_1 + sixth * (k1.theta_1 + 2.0f * k2.theta_1 + 2.0f * k3.theta_1 + k4.theta_1);
    float theta_2 = from.theta_2 + sixth * (k1.theta_2 + 2.0f * k2.theta_2 + 2.0f * k3.theta_2 + k4.theta_2);
    float speed_1 = from.speed_1 + sixth * (k1.speed_1 + 2.0f * k2.speed_1 + 2.0f * k3.speed_1 + k4.speed_1);
    float speed_2 = from.speed_2 + sixth * (k1.speed_2 + 2.0f * k2.speed_2 + 2.0f * k3.speed_2 + k4.speed_2);
    s->theta_1 = wrapped(theta_1);
    s->theta_2 = wrapped(theta_2);
    s->speed_1 = m_clamp(speed_1, -p->max_speed_1, p->max_speed_1);
    s->speed_2 = m_clamp(speed_2, -p->max_speed_2, p->max_speed_2);
    s->torque = from.torque;

    float height = tip_height(s, p);
    int swung_up = height > p->goal;
    out->reward = swung_up ? 0.0f : -1.0f;
    out->terminated = swung_up;
    out->stats.swung_up = (float)swung_up;
    out->stats.height = height;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    obs[0] = m_cos(s->theta_1);
    obs[1] = m_sin(s->theta_1);
    obs[2] = m_cos(s->theta_2);
    obs[3] = m_sin(s->theta_2);
    obs[4] = s->speed_1;
    obs[5] = s->speed_2;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    float reach = 1.15f * (p->length_1 + p->length_2), thick = 0.07f * reach;
    float elbow_x = p->length_1 * m_sin(s->theta_1), elbow_y = -p->length_1 * m_cos(s->theta_1);
    float tip_x = elbow_x + p->length_2 * m_sin(s->theta_1 + s->theta_2), tip_y = tip_height(s, p);
    draw_view(d, -reach, reach, reach, -reach, 0x0e1726);
    draw_circle(d, 0.0f, 0.0f, p->length_1 + p->length_2, 0x16233a);
    for (int k = -10; k < 10; k++) {  // the goal: a dashed line
        float x = 0.1f * reach * (float)k;
        draw_line(d, x + 0.025f * reach, p->goal, x + 0.075f * reach, p->goal, 0.012f * reach, 0x7bd389);
    }
    draw_line(d, 0.0f, 0.0f, elbow_x, elbow_y, thick, 0x37c2b3);
    draw_line(d, elbow_x, elbow_y, tip_x, tip_y, thick, 0xf2a65a);
    draw_circle(d, 0.0f, 0.0f, 0.35f * thick, 0xffffff);
    draw_circle(d, elbow_x, elbow_y, 0.6f * thick, s->torque == 0.0f ? 0x4a5b78 : 0xe2556d);
    draw_circle(d, elbow_x, elbow_y, 0.3f * thick, 0xffffff);
    draw_rect(d, 0.0f, -0.97f * reach, 0.3f * reach * m_clamp(s->torque, -2.0f, 2.0f), 0.03f * reach,
              s->torque > 0.0f ? 0x37c2b3 : 0xe2556d);
}
