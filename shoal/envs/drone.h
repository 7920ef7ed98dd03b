// drone.h: fly quadrotors through waypoints, four rotors each.
//
// Each drone is a rigid body in 3-D with four rotors on the arms of an X. Thrusts lag behind what is asked of them, and
// turn the drone through the arms' length and through the drag of the rotors; the air brakes flight and spin. The
// figures are about those of the AscTec Hummingbird, as the RotorS simulator (Furrer et al. 2016) has them; all rotors
// together lift twice the weight. A drone's waypoint is done when it is within `goal_radius`; the next one, which it
// knows already, takes its place, and another is drawn. A drone is out when it leaves the hall or, with `collide`, when
// it touches another one. The episode ends with the last drone, or after 20 s. Position, velocity, attitude (a
// quaternion) and spin are integrated by a step of classical Runge-Kutta.
//
// obs: in the drone's own frame (x ahead, y left, z up along the rotors): way to the waypoint and to the next one (/ 5
// m), velocity (/ 5 m/s), the direction of up, spin (/ 10 rad/s); thrusts of the rotors (0 to 1); direction of the
// nearest other drone, longer the nearer it is (0 beyond 2 m, 1 at 0 m), and its velocity relative to this one's,
// scaled by the same; height (/ hall_height). There is no compass: waypoints are not near walls.
// action: thrust of the rotors front left, rear left, rear right, front right: -1 none, 1 all of it; 0 hovers.
// reward: 1 for a waypoint, 0.1 for every metre closer, -1 for being out. Random play returns -1.1. A scripted pilot
// (proportional-derivative control) returns 12.3, and 18.9 with collide=0.
#define ENV_OBS OBS_F32(26)
#define ENV_OBS_LOW -10.0f
#define ENV_OBS_HIGH 10.0f
#define ENV_ACTION ACT_BOX(4)
#define ENV_AGENTS drones
#define ENV_MAX_STEPS 1000
#define ENV_CONSTS(X) X(drones, 4, "drones in the hall")
#define ENV_PARAMS(X)                                                                                                  \
    X(float, gravity, 9.81f, "m/s^2")                                                                                  \
    X(float, mass, 0.716f, "kg")                                                                                       \
    X(float, arm, 0.17f, "m, from the centre to a rotor")                                                              \
    X(float, inertia_xy, 0.007f, "kg m^2, about the axes ahead and to the left")                                       \
    X(float, inertia_z, 0.012f, "kg m^2, about the axis of the rotors")                                                \
    X(float, thrust_ratio, 2.0f, "the most thrust of all rotors, over the weight on earth")                            \
    X(float, rotor_drag, 0.016f, "N m of torque about the axis for each N of thrust")                                  \
    X(float, lag, 0.05f, "s, time constant of the rotors")                                                             \
    X(float, drag, 0.1f, "N s/m, of the air on flight")                                                                \
    X(float, spin_drag, 0.002f, "N m s, of the air on spin")                                                           \
    X(float, hall, 5.0f, "m, from the centre of the hall to its walls")                                                \
    X(float, hall_height, 6.0f, "m")                                                                                   \
    X(float, goal_radius, 0.3f, "m, a waypoint is done within it; 0: never")                                           \
    X(float, size, 0.25f, "m, radius of a drone, for collisions")                                                      \
    X(float, start_tilt, 0.2f, "rad, a drone starts tilted by up to this, about a random axis")                        \
    X(int, collide, 1, "1: drones that touch are out; 0: they fly through each other")
#define ENV_LIMITS(X)                                                                                                  \
    X("drones", 1, 16)                                                                                                 \
    X("gravity", 0, 30)                                                                                                \
    X("mass", 0.05, 10)                                                                                                \
    X("arm", 0.02, 1)                                                                                                  \
    X("inertia_*", 0.0005, 1)                                                                                          \
    X("thrust_ratio", 0, 8)                                                                                            \
    X("rotor_drag", 0, 0.2)                                                                                            \
    X("lag", 0.001, 1)                                                                                                 \
    X("drag", 0, 2)                                                                                                    \
    X("spin_drag", 0, 0.01)                                                                                            \
    X("hall", 2, 50)                                                                                                   \
    X("hall_height", 3, 50)                                                                                            \
    X("goal_radius", 0, 5)                                                                                             \
    X("size", 0, 1)                                                                                                    \
    X("start_tilt", 0, 3.1415927)                                                                                      \
    X("collide", 0, 1)
#define ENV_STATS(X)                                                                                                   \
    X(sum, waypoints, "waypoints done, mean over drones")                                                              \
    X(sum, crashed, "share of the drones that hit the hall")                                                           \
    X(sum, collided, "share of the drones that hit another one")                                                       \
    X(mean, speed, "m/s, mean over drones and steps")                                                                  \
    X(mean, tilt, "rad from level, mean over drones and steps")
#include "core/env.h"

#define DT 0.02f     // s per step
#define MARGIN 1.0f  // m from a waypoint to the walls, the floor and the ceiling
#define NEAR 2.0f    // m, another drone is seen within it

// What moves: position, velocity, attitude (w, x, y, z, turns the drone's frame into the hall's), spin in its frame.
enum { AT = 0, SPEED = 3, TURN = 6, SPIN = 10, BODY = 13, PLACE_TRIES = 8 };

typedef struct {
    float body[BODY];
    float thrust[4];    // N, of each rotor
    float goals[2][3];  // the waypoint, and the next one
    int32_t count;      // waypoints done
    int32_t is_out;
} Drone;

typedef struct {
    Drone drone[drones];
} State;

// ---- vectors ----

ENV_FN float dot3(const float *a, const float *b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

ENV_FN float distance3(const float *a, const float *b) {
    float x = a[0] - b[0], y = a[1] - b[1], z = a[2] - b[2];
    return m_sqrt(x * x + y * y + z * z);
}

// The rows of the rotation matrix of a quaternion: a row is an axis of the hall in the drone's frame.
ENV_FN void axes_of(const float *q, float axes[3][3]) {
    float w = q[0], x = q[1], y = q[2], z = q[3];
    axes[0][0] = 1.0f - 2.0f * (y * y + z * z);
    axes[0][1] = 2.0f * (x * y - w * z);
    axes[0][2] = 2.0f * (x * z + w * y);
    axes[1][0] = 2.0f * (x * y + w * z);
    axes[1][1] = 1.0f - 2.0f * (x * x + z * z);
    axes[1][2] = 2.0f * (y * z - w * x);
    axes[2][0] = 2.0f * (x * z - w * y);
    axes[2][1] = 2.0f * (y * z + w * x);
    axes[2][2] = 1.0f - 2.0f * (x * x + y * y);
}

// A vector of the hall in the drone's frame, scaled and bounded.
ENV_FN void observe3(float axes[3][3], const float *v, float scale, Obs *obs) {
    for (int32_t k = 0; k < 3; k++) {
        float part = axes[0][k] * v[0] + axes[1][k] * v[1] + axes[2][k] * v[2];
        obs[k] = m_clamp(scale * part, -10.0f, 10.0f);
    }
}

// ---- the flight ----

// The most thrust of one rotor, N.
ENV_FN float most_thrust(const Params *p) { return 0.25f * p->thrust_ratio * p->mass * 9.81f; }

// What acts on a body in a step, divided by its mass or its inertia.
typedef struct {
    float gravity, push, brake;  // m/s^2, m/s^2 along its axis, 1/s
    float torque[3];             // rad/s^2, about its axes
    float twist;                 // how the spin about one level axis and the vertical turns the other
    float brake_xy, brake_z;     // 1/s, of its spin
} Forces;

ENV_FN void rate_of(const float *y, const Forces *f, float *rate) {
    const float *q = y + TURN, *v = y + SPEED, *w = y + SPIN;
    rate[0] = v[0];
    rate[1] = v[1];
    rate[2] = v[2];
    rate[3] = 2.0f * (q[1] * q[3] + q[0] * q[2]) * f->push - f->brake * v[0];
    rate[4] = 2.0f * (q[2] * q[3] - q[0] * q[1]) * f->push - f->brake * v[1];
    rate[5] = (1.0f - 2.0f * (q[1] * q[1] + q[2] * q[2])) * f->push - f->brake * v[2] - f->gravity;
    rate[6] = 0.5f * (-q[1] * w[0] - q[2] * w[1] - q[3] * w[2]);
    rate[7] = 0.5f * (q[0] * w[0] + q[2] * w[2] - q[3] * w[1]);
    rate[8] = 0.5f * (q[0] * w[1] + q[3] * w[0] - q[1] * w[2]);
    rate[9] = 0.5f * (q[0] * w[2] + q[1] * w[1] - q[2] * w[0]);
    // Euler's equations, inertia * w' = torque - w x (inertia * w), of a body that is round about its axis
    rate[10] = f->torque[0] - f->twist * w[1] * w[2] - f->brake_xy * w[0];
    rate[11] = f->torque[1] + f->twist * w[0] * w[2] - f->brake_xy * w[1];
    rate[12] = f->torque[2] - f->brake_z * w[2];
}

ENV_FN void fly(Drone *d, const Params *p, const Action *a, float follow) {
    float *y = d->body, *t = d->thrust, lever = 0.70710678f * p->arm, most = most_thrust(p);
    for (int32_t k = 0; k < 4; k++) t[k] += follow * (0.5f * most * (m_clamp(a[k], -1.0f, 1.0f) + 1.0f) - t[k]);
    Forces f;
    f.gravity = p->gravity;
    f.push = (t[0] + t[1] + t[2] + t[3]) / p->mass;
    f.brake = p->drag / p->mass;
    f.torque[0] = lever * (t[0] + t[1] - t[2] - t[3]) / p->inertia_xy;
    f.torque[1] = lever * (t[1] + t[2] - t[0] - t[3]) / p->inertia_xy;
    f.torque[2] = p->rotor_drag * (t[0] - t[1] + t[2] - t[3]) / p->inertia_z;
    f.twist = p->inertia_z / p->inertia_xy - 1.0f;
    f.brake_xy = p->spin_drag / p->inertia_xy;
    f.brake_z = p->spin_drag / p->inertia_z;

    float rates[4][BODY], from[BODY];
    rate_of(y, &f, rates[0]);
    for (int32_t stage = 1; stage < 4; stage++) {
        float dt = stage < 3 ? 0.5f * DT : DT;
        for (int32_t k = 0; k < BODY; k++) from[k] = y[k] + dt * rates[stage - 1][k];
        rate_of(from, &f, rates[stage]);
    }
    for (int32_t k = 0; k < BODY; k++) {
        y[k] += DT / 6.0f * (rates[0][k] + 2.0f * rates[1][k] + 2.0f * rates[2][k] + rates[3][k]);
    }
    float *q = y + TURN, norm = m_sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
    float shrink = 1.0f / m_max(norm, 1e-6f);
    for (int32_t k = 0; k < 4; k++) q[k] *= shrink;
    for (int32_t k = 0; k < 3; k++) {
        y[SPEED + k] = m_clamp(y[SPEED + k], -50.0f, 50.0f);
        y[SPIN + k] = m_clamp(y[SPIN + k], -50.0f, 50.0f);
    }
}

// ---- the game ----

ENV_FN void draw_place(const Params *p, Rng *rng, float *place) {
    place[0] = rng_uniform(rng, MARGIN - p->hall, p->hall - MARGIN);
    place[1] = rng_uniform(rng, MARGIN - p->hall, p->hall - MARGIN);
    place[2] = rng_uniform(rng, MARGIN, p->hall_height - MARGIN);
}

// A start that is clear of those before it, if one is found in a few tries.
ENV_FN void start_drone(State *s, const Params *p, int32_t i, Rng *rng) {
    Drone *d = &s->drone[i];
    for (int32_t k = 0; k < BODY; k++) d->body[k] = 0.0f;
    for (int32_t tries = 0, is_clear = 0; tries < PLACE_TRIES && !is_clear; tries++) {
        draw_place(p, rng, d->body + AT);
        is_clear = 1;
        for (int32_t k = 0; k < i; k++) is_clear &= distance3(d->body + AT, s->drone[k].body + AT) > 4.0f * p->size;
    }
    float yaw = 0.5f * rng_uniform(rng, -M_PI_F, M_PI_F), axis = rng_uniform(rng, -M_PI_F, M_PI_F);
    float tilt = 0.5f * rng_uniform(rng, 0.0f, p->start_tilt), c = m_cos(tilt), n = m_sin(tilt);
    float *q = d->body + TURN;  // a turn about the vertical, then a tilt about a level axis
    q[0] = c * m_cos(yaw);
    q[1] = n * m_cos(axis - yaw);
    q[2] = n * m_sin(axis - yaw);
    q[3] = c * m_sin(yaw);
    float hover = m_min(0.25f * p->mass * p->gravity, most_thrust(p));
    for (int32_t k = 0; k < 4; k++) d->thrust[k] = hover;
    draw_place(p, rng, d->goals[0]);
    draw_place(p, rng, d->goals[1]);
    d->count = d->is_out = 0;
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    for (int32_t i = 0; i < drones; i++) start_drone(s, p, i, rng);
}

ENV_FN int left_hall(const Drone *d, const Params *p) {
    const float *at = d->body + AT;
    int is_inside = (m_abs(at[0]) < p->hall) & (m_abs(at[1]) < p->hall) & (at[2] > 0.0f) & (at[2] < p->hall_height);
    return !is_inside;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    const float share = 1.0f / (float)drones, follow = 1.0f - m_exp(-DT / p->lag);
    int32_t was_out[drones];
    for (int32_t i = 0; i < drones; i++) {
        Drone *d = &s->drone[i];
        was_out[i] = d->is_out;
        if (d->is_out) continue;
        float before = distance3(d->body + AT, d->goals[0]);
        fly(d, p, a + 4 * i, follow);
        float after = distance3(d->body + AT, d->goals[0]);
        int is_done = after < p->goal_radius, is_lost = left_hall(d, p);
        out->rewards[i] = 0.1f * (before - after) + (float)is_done - (float)is_lost;
        out->stats.waypoints += share * (float)is_done;
        out->stats.crashed += share * (float)is_lost;
        out->stats.speed += share * m_sqrt(dot3(d->body + SPEED, d->body + SPEED));
        float up = 1.0f - 2.0f * (d->body[TURN + 1] * d->body[TURN + 1] + d->body[TURN + 2] * d->body[TURN + 2]);
        out->stats.tilt += share * m_atan2(m_sqrt(m_max(1.0f - up * up, 0.0f)), up);
        d->is_out = is_lost;
        if (is_done) {
            d->count++;
            for (int32_t k = 0; k < 3; k++) d->goals[0][k] = d->goals[1][k];
            draw_place(p, rng, d->goals[1]);
        }
    }
    // all have moved: those that touch are out together
    int32_t hits[drones];
    for (int32_t i = 0; i < drones; i++) hits[i] = 0;
    for (int32_t i = 0; p->collide && i < drones; i++) {
        for (int32_t k = 0; k < i; k++) {
            if (s->drone[i].is_out | s->drone[k].is_out) continue;
            if (distance3(s->drone[i].body + AT, s->drone[k].body + AT) < 2.0f * p->size) hits[i] = hits[k] = 1;
        }
    }
    for (int32_t i = 0; i < drones; i++) {
        out->rewards[i] -= (float)hits[i];
        out->stats.collided += share * (float)hits[i];
        s->drone[i].is_out |= hits[i];
        out->terminations[i] = s->drone[i].is_out & !was_out[i];
    }
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    const Drone *d = &s->drone[agent];
    float axes[3][3], way[3], nearest = NEAR, most = m_max(most_thrust(p), 1e-6f);
    const float *at = d->body + AT, *speed = d->body + SPEED;
    const Drone *other = d;
    axes_of(d->body + TURN, axes);
    for (int32_t goal = 0; goal < 2; goal++) {
        for (int32_t k = 0; k < 3; k++) way[k] = d->goals[goal][k] - at[k];
        observe3(axes, way, 0.2f, obs + 3 * goal);
    }
    observe3(axes, speed, 0.2f, obs + 6);
    for (int32_t k = 0; k < 3; k++) {
        obs[9 + k] = m_clamp(axes[2][k], -1.0f, 1.0f);
        obs[12 + k] = m_clamp(0.1f * d->body[SPIN + k], -10.0f, 10.0f);
    }
    for (int32_t k = 0; k < 4; k++) obs[15 + k] = m_clamp(d->thrust[k] / most, 0.0f, 1.0f);
    for (int32_t i = 0; i < drones; i++) {
        float distance = distance3(at, s->drone[i].body + AT);
        int is_nearer = (i != agent) & !s->drone[i].is_out & (distance < nearest);
        nearest = is_nearer ? distance : nearest;
        other = is_nearer ? &s->drone[i] : other;
    }
    float near = 1.0f - nearest / NEAR;  // 0: none is near, and `other` is this one
    for (int32_t k = 0; k < 3; k++) way[k] = other->body[AT + k] - at[k];
    observe3(axes, way, near / m_max(nearest, 1e-3f), obs + 19);
    for (int32_t k = 0; k < 3; k++) way[k] = other->body[SPEED + k] - speed[k];
    observe3(axes, way, 0.2f * near, obs + 22);
    obs[25] = m_clamp(at[2] / p->hall_height, -10.0f, 10.0f);
}

#include "drone/picture.h"
