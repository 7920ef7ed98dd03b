// ship.h: what lander.h and lander_continuous.h share: the moon, the ship, its flight, its legs, and the picture.
//
// The including header defines ENV_ACTION before the include, and throttle_of after it.
//
// Lengths in m, angles in rad (positive to the left), time in s. The pad's centre is (0, 0), and y points up.
#define ENV_OBS OBS_F32(8)
#define ENV_OBS_LOW -2.5f, -2.5f, -10.0f, -10.0f, -6.2831855f, -10.0f, 0.0f, 0.0f
#define ENV_OBS_HIGH 2.5f, 2.5f, 10.0f, 10.0f, 6.2831855f, 10.0f, 1.0f, 1.0f
#define ENV_MAX_STEPS 1000
#define ENV_PARAMS(X)                                                                                                  \
    X(float, gravity, 10.0f, "m/s^2")                                                                                  \
    X(float, mass, 5.0f, "kg")                                                                                         \
    X(float, inertia, 0.9f, "kg m^2, about the centre of mass")                                                        \
    X(float, main_thrust, 87.0f, "N, of the main engine")                                                              \
    X(float, side_thrust, 12.0f, "N, of a side engine")                                                                \
    X(float, side_height, 0.46666667f, "m, of the side engines above the centre of mass")                              \
    X(float, noise, 1.0f, "of the engines: at 1 the main thrust varies by half, the side thrust by a quarter")         \
    X(float, wind, 0.0f, "N, the strongest wind")                                                                      \
    X(float, turbulence, 0.0f, "N m, the strongest torque of the wind")                                                \
    X(float, stiffness, 400.0f, "N/m, of a leg")                                                                       \
    X(float, damping, 20.0f, "N s/m, of a leg")                                                                        \
    X(float, friction, 0.5f, "of a foot on the ground")                                                                \
    X(float, roughness, 1.0f, "of the ground: 0 is flat, at 1 hills are up to 3.3 m high or deep")                     \
    X(float, start_speed, 4.0f, "m/s, vx and vy start uniform in +- this")
#define ENV_LIMITS(X)                                                                                                  \
    X("gravity", 0, 20)                                                                                                \
    X("mass", 1, 100)                                                                                                  \
    X("inertia", 0.2, 100)                                                                                             \
    X("main_thrust", 0, 1000)                                                                                          \
    X("side_thrust", 0, 200)                                                                                           \
    X("side_height", -1, 1)                                                                                            \
    X("noise", 0, 2)                                                                                                   \
    X("wind", 0, 100)                                                                                                  \
    X("turbulence", 0, 10)                                                                                             \
    X("stiffness", 50, 2000)                                                                                           \
    X("damping", 0, 100)                                                                                               \
    X("friction", 0, 2)                                                                                                \
    X("roughness", 0, 1.5)                                                                                             \
    X("start_speed", 0, 20)
#define ENV_PRESETS(X)                                                                                                 \
    X("windy", "wind=15 turbulence=1.5", "Gymnasium's wind")                                                           \
    X("exact", "noise=0", "engines without noise")                                                                     \
    X("moon", "gravity=1.62 main_thrust=20 side_thrust=4", "the real moon's gravity, and engines to match")
#define ENV_STATS(X)                                                                                                   \
    X(sum, landed, "1 if the ship came to rest on its legs")                                                           \
    X(sum, on_pad, "1 if that was between the flags")                                                                  \
    X(sum, crashed, "1 if the hull touched the ground, or the ship was lost")                                          \
    X(sum, burnt, "steps of the main engine at full thrust")                                                           \
    X(last, miss, "m from the pad's centre at the end")
#include "core/env.h"

enum { GROUND_POINTS = 11, HULL_POINTS = 6, SUB_STEPS = 4, REST_STEPS = 25 };
#define DT 0.02f           // of a step
#define HALF_WIDTH 10.0f   // of the world, and the ground
#define UNIT_Y 6.6666667f  // of the observed height
#define PIECE 2.0f         // of the ground, from point to point
#define PAD_EDGE 2.0f
#define REST_Y 0.6f  // of a ship that stands on the pad: its observed height is 0
#define REACH 1.0f   // from the ship's centre to its farthest point, and a little more
#define FOOT_X 0.7f
#define FOOT_Y -0.65f
#define HULL_BOTTOM -0.33333334f
#define HULL_TOP 0.56666667f
#define HULL_SIDE 0.56666667f
#define HULL_SLANT 0.17647059f  // what each side leans in, above the middle

// The hull's corners around the centre of mass; its sides lean in above the middle. The same outline as Gymnasium's.
ENV_DATA float hull[2 * HULL_POINTS] = {-0.46666667f, HULL_TOP,    -HULL_SIDE, 0.0f, -HULL_SIDE,  HULL_BOTTOM,
                                        HULL_SIDE,    HULL_BOTTOM, HULL_SIDE,  0.0f, 0.46666667f, HULL_TOP};

typedef struct {
    float x, y, vx, vy;  // of the centre of mass
    float angle, spin;
    float slip[2];       // how far the ground bends each foot aside, m
    uint8_t touches[2];  // whether a foot is on the ground
    uint8_t is_still;    // for so many steps
    float potential;     // of the last step: the reward is what was gained since
    float main, side;    // power of the engines in the last step, for the picture
    int32_t wind_at, turbulence_at;
    float ground[GROUND_POINTS];  // heights, from left to right
} State;

typedef struct {
    float main;  // 0 to 1
    float side;  // -1 to 1: to the left or to the right
} Throttle;
ENV_FN Throttle throttle_of(const Action *a);  // of the including header

// ---- the ground ----

ENV_FN float ground_x(int32_t point) { return PIECE * (float)point - HALF_WIDTH; }

// The piece of the ground below x. Any x is safe, not a number too: m_clamp makes the low bound of it.
ENV_FN int32_t piece_at(float x) {
    float piece = (m_clamp(x, -HALF_WIDTH, HALF_WIDTH) + HALF_WIDTH) * (1.0f / PIECE);
    return i_clamp((int32_t)piece, 0, GROUND_POINTS - 2);
}

ENV_FN float slope_of(const State *s, int32_t piece) { return (s->ground[piece + 1] - s->ground[piece]) / PIECE; }

ENV_FN float height_at(const State *s, float x) {
    int32_t piece = piece_at(x);
    return s->ground[piece] + (x - ground_x(piece)) * slope_of(s, piece);
}

// Hills smoothed over three points. The four pieces in the middle are drawn level, so that the two of the pad are.
ENV_FN void make_ground(State *s, const Params *p, Rng *rng) {
    float raw[GROUND_POINTS + 2];
    for (int32_t k = 0; k < GROUND_POINTS + 2; k++) {
        float height = p->roughness * rng_uniform(rng, -0.5f * UNIT_Y, 0.5f * UNIT_Y);
        raw[k] = k >= 4 && k <= 8 ? 0.0f : height;
    }
    for (int32_t k = 0; k < GROUND_POINTS; k++) s->ground[k] = (raw[k] + raw[k + 1] + raw[k + 2]) * (1.0f / 3.0f);
}

// ---- the flight ----

// tanh(sin(2 k t) + sin(pi k t)) with k = 0.01: Gymnasium's wind, which never repeats.
ENV_FN float gust(int32_t at) {
    float t = 0.01f * (float)at, twice = m_exp(2.0f * (m_sin(2.0f * t) + m_sin(M_PI_F * t)));
    return (twice - 1.0f) / (twice + 1.0f);
}

// Adds the impulses of the engines and of the wind in a step to the velocity and the spin.
ENV_FN void push_ship(State *s, const Params *p, Throttle throttle, Rng *rng) {
    float noise_0 = p->noise * rng_uniform(rng, -1.0f, 1.0f), noise_1 = p->noise * rng_uniform(rng, -1.0f, 1.0f);
    float c = m_cos(s->angle), n = m_sin(s->angle), is_side = throttle.side == 0.0f ? 0.0f : m_abs(throttle.side);
    // the main engine acts on the centre of mass, a side engine on a point above it: it pushes and turns
    float main = p->main_thrust * throttle.main, side = p->side_thrust;
    float across = side * (throttle.side + 0.25f * noise_1 * is_side);
    float up = main * (1.0f + 0.5f * noise_0) + side * is_side * noise_0 * (1.0f / 12.0f);
    float right = main * 0.25f * noise_1 + across, torque = -p->side_height * across;
    float force_x = c * right - n * up, force_y = n * right + c * up;
    if ((p->wind > 0.0f || p->turbulence > 0.0f) && !s->touches[0] && !s->touches[1]) {
        force_x += p->wind * gust(s->wind_at++);
        torque += p->turbulence * gust(s->turbulence_at++);
    }
    s->vx += DT * force_x / p->mass;
    s->vy += DT * force_y / p->mass;
    s->spin += DT * torque / p->inertia;
}

// The force of the ground on a foot: a spring and a damper along the ground's normal, which push and never pull, and
// along the ground a spring (the foot bends aside by `slip`) and a damper up to the limit of Coulomb friction.
ENV_FN void press_foot(State *s, const Params *p, int32_t foot, float dt, float *force_x, float *force_y,
                       float *torque) {
    float c = m_cos(s->angle), n = m_sin(s->angle), side = foot ? FOOT_X : -FOOT_X;
    float arm_x = c * side - n * FOOT_Y, arm_y = n * side + c * FOOT_Y;
    float slope = slope_of(s, piece_at(s->x + arm_x)), normal_y = 1.0f / m_sqrt(1.0f + slope * slope);
    float normal_x = -slope * normal_y, depth = (height_at(s, s->x + arm_x) - s->y - arm_y) * normal_y;
    s->touches[foot] = depth > 0.0f;
    if (!(depth > 0.0f)) {
        s->slip[foot] = 0.0f;
        return;
    }
    float vx = s->vx - s->spin * arm_y, vy = s->vy + s->spin * arm_x;
    float away = vx * normal_x + vy * normal_y, along = vx * normal_y - vy * normal_x;
    float press = m_max(p->stiffness * depth - p->damping * away, 0.0f), limit = p->friction * press;
    float slip = s->slip[foot] + dt * along;
    float drag = m_clamp(-p->stiffness * slip - p->damping * along, -limit, limit);
    s->slip[foot] = m_clamp(slip, -limit / p->stiffness, limit / p->stiffness);
    float x = press * normal_x + drag * normal_y, y = press * normal_y - drag * normal_x;
    *force_x += x;
    *force_y += y;
    *torque += arm_x * y - arm_y * x;
}

// Whether the hull and the ground meet: a corner of one is inside the other.
ENV_FN int hull_touches(const State *s) {
    float c = m_cos(s->angle), n = m_sin(s->angle);
    int touches = 0;
    for (int32_t k = 0; k < HULL_POINTS; k++) {
        float x = s->x + c * hull[2 * k] - n * hull[2 * k + 1], y = s->y + n * hull[2 * k] + c * hull[2 * k + 1];
        touches |= y < height_at(s, x);
    }
    int32_t first = piece_at(s->x - REACH);
    for (int32_t k = first; k <= i_min(first + 2, GROUND_POINTS - 1); k++) {
        float dx = ground_x(k) - s->x, dy = s->ground[k] - s->y, x = m_abs(c * dx + n * dy), y = c * dy - n * dx;
        touches |= (y > HULL_BOTTOM) & (y < HULL_TOP) & (x < HULL_SIDE - HULL_SLANT * m_max(y, 0.0f));
    }
    return touches;
}

// Whether the ship stays clear of the ground for a step.
ENV_FN int is_clear(const State *s) {
    int32_t first = piece_at(s->x - 2.0f * REACH);
    float highest = s->ground[first], margin = REACH + DT * (m_abs(s->vx) + m_abs(s->vy)) + 0.01f;
    for (int32_t k = 1; k < 4; k++) highest = m_max(highest, s->ground[i_min(first + k, GROUND_POINTS - 1)]);
    return s->y - margin > highest;
}

// Gravity moves the ship exactly as it moves a body in a vacuum; the forces of the legs are added before (symplectic
// Euler), in short steps where there may be any. Returns whether the hull touched the ground.
ENV_FN int move_ship(State *s, const Params *p) {
    int32_t count = is_clear(s) ? 1 : SUB_STEPS;
    float dt = DT / (float)count;
    s->touches[0] = s->touches[1] = 0;
    for (int32_t k = 0; k < count; k++) {
        float force_x = 0.0f, force_y = 0.0f, torque = 0.0f;
        if (count > 1) {
            press_foot(s, p, 0, dt, &force_x, &force_y, &torque);
            press_foot(s, p, 1, dt, &force_x, &force_y, &torque);
        }
        s->vx += dt * force_x / p->mass;
        s->vy += dt * force_y / p->mass;
        s->spin += dt * torque / p->inertia;
        s->x += dt * s->vx;
        s->y += dt * (s->vy - 0.5f * dt * p->gravity);
        s->angle += dt * s->spin;
        s->vy -= dt * p->gravity;
        if (count > 1 && hull_touches(s)) return 1;
    }
    if (count == 1) s->slip[0] = s->slip[1] = 0.0f;
    return 0;
}

// ---- the game ----

// It grows as the ship comes closer to the pad, slower, more upright, and with each foot on the ground.
ENV_FN float potential_of(const State *s) {
    float x = s->x / HALF_WIDTH, y = (s->y - REST_Y) / UNIT_Y;
    float vx = s->vx * (HALF_WIDTH * DT), vy = s->vy * (UNIT_Y * DT);
    return -100.0f * (m_sqrt(x * x + y * y) + m_sqrt(vx * vx + vy * vy) + m_abs(s->angle)) +
           10.0f * (float)(s->touches[0] + s->touches[1]);
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    make_ground(s, p, rng);
    s->x = 0.0f;
    s->y = 1.5f * UNIT_Y;
    s->vx = rng_uniform(rng, -p->start_speed, p->start_speed);
    s->vy = rng_uniform(rng, -p->start_speed, p->start_speed);
    s->angle = s->spin = s->slip[0] = s->slip[1] = s->main = s->side = 0.0f;
    s->touches[0] = s->touches[1] = s->is_still = 0;
    s->wind_at = rng_int(rng, 20000) - 10000;
    s->turbulence_at = rng_int(rng, 20000) - 10000;
    s->potential = potential_of(s);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    Throttle throttle = throttle_of(a);
    s->main = throttle.main;
    s->side = throttle.side;
    push_ship(s, p, throttle, rng);
    int crashed = move_ship(s, p) | (m_abs(s->x) >= HALF_WIDTH) | (m_abs(s->y) >= 2.5f * UNIT_Y);
    s->vx = m_clamp(s->vx, -50.0f, 50.0f);  // faster than any flight in this world
    s->vy = m_clamp(s->vy, -75.0f, 75.0f);
    s->spin = m_clamp(s->spin, -25.0f, 25.0f);

    float speed = m_abs(s->vx) + m_abs(s->vy) + m_abs(s->spin);
    int is_still = s->touches[0] & s->touches[1] & (speed < 0.05f);
    s->is_still = (uint8_t)(is_still ? i_min(s->is_still + 1, REST_STEPS) : 0);
    int landed = !crashed && s->is_still == REST_STEPS;

    float potential = potential_of(s);
    float flown = potential - s->potential - 0.3f * s->main - 0.03f * m_abs(s->side);
    s->potential = potential;
    out->reward = crashed ? -100.0f : landed ? 100.0f : flown;
    out->terminated = crashed | landed;
    out->stats.landed = (float)landed;
    out->stats.on_pad = (float)(landed && m_abs(s->x) < PAD_EDGE);
    out->stats.crashed = (float)crashed;
    out->stats.burnt = s->main;
    out->stats.miss = m_sqrt(s->x * s->x + (s->y - REST_Y) * (s->y - REST_Y));
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    obs[0] = m_clamp(s->x / HALF_WIDTH, -2.5f, 2.5f);
    obs[1] = m_clamp((s->y - REST_Y) / UNIT_Y, -2.5f, 2.5f);
    obs[2] = m_clamp(s->vx * (HALF_WIDTH * DT), -10.0f, 10.0f);
    obs[3] = m_clamp(s->vy * (UNIT_Y * DT), -10.0f, 10.0f);
    obs[4] = m_clamp(s->angle, -6.2831853f, 6.2831853f);
    obs[5] = m_clamp(20.0f * DT * s->spin, -10.0f, 10.0f);
    obs[6] = (float)(s->touches[0] != 0);
    obs[7] = (float)(s->touches[1] != 0);
}

// ---- the picture ----

ENV_FN void draw_sky(Draw *d) {
    draw_view(d, -HALF_WIDTH, 1.55f * UNIT_Y, HALF_WIDTH, -0.5f * UNIT_Y, 0x0b1020);
    for (int32_t k = 0; k < 48; k++) {  // stars at fixed places
        uint64_t place = rng_mix((uint64_t)k + 1);
        float x = 20.0f * (float)(place & 1023) / 1023.0f - 10.0f,
              y = 13.0f * (float)(place >> 10 & 1023) / 1023.0f - 2.0f;
        draw_circle(d, x, y, k % 7 ? 0.03f : 0.05f, 0x8fa3c7);
    }
}

ENV_FN void draw_ground(const State *s, Draw *d) {
    float outline[2 * (GROUND_POINTS + 2)];
    for (int32_t k = 0; k < GROUND_POINTS; k++) {
        outline[2 * k] = ground_x(k);
        outline[2 * k + 1] = s->ground[k];
    }
    outline[2 * GROUND_POINTS] = HALF_WIDTH;
    outline[2 * GROUND_POINTS + 2] = -HALF_WIDTH;
    outline[2 * GROUND_POINTS + 1] = outline[2 * GROUND_POINTS + 3] = -UNIT_Y;
    draw_polygon(d, outline, GROUND_POINTS + 2, 0x4b4f5c);
    draw_rect(d, -PAD_EDGE, -0.12f, 2.0f * PAD_EDGE, 0.12f, 0xf2a65a);
    for (int32_t side = -1; side <= 1; side += 2) {
        float x = PAD_EDGE * (float)side;
        draw_line(d, x, 0.0f, x, 1.4f, 0.06f, 0xd8dee9);
        draw_triangle(d, x, 1.4f, x + 0.7f, 1.15f, x, 0.9f, 0xf2e86d);
    }
}

// A leg from the hull to its foot; a foot on the ground is drawn where the ground is, for the leg is pressed in.
ENV_FN void draw_leg(const State *s, Draw *d, float side) {
    float c = m_cos(s->angle), n = m_sin(s->angle), hip_x = 0.5f * side, hip_y = HULL_BOTTOM + 0.1f;
    float x = s->x + c * FOOT_X * side - n * FOOT_Y, y = s->y + n * FOOT_X * side + c * FOOT_Y;
    y = m_max(y, height_at(s, x));
    uint32_t color = s->touches[side > 0.0f] ? 0x7bd389 : 0x9aa5b8;
    draw_line(d, s->x + c * hip_x - n * hip_y, s->y + n * hip_x + c * hip_y, x, y, 0.12f, color);
    draw_line(d, x - 0.14f * c, y - 0.14f * n, x + 0.14f * c, y + 0.14f * n, 0.1f, color);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    float length = 0.5f + 0.9f * s->main, top = 0.46666667f, way = s->side > 0.0f ? -1.0f : 1.0f;
    const float flame[] = {-0.22f, HULL_BOTTOM,
                           0.22f,  HULL_BOTTOM,
                           0.12f,  HULL_BOTTOM - 0.5f * length,
                           0.0f,   HULL_BOTTOM - length,
                           -0.12f, HULL_BOTTOM - 0.5f * length};
    const float jet[] = {0.5f * way, top - 0.08f, 0.5f * way, top + 0.08f, 1.0f * way, top};
    const float window[] = {-0.24f, 0.36f, -0.28f, 0.1f, 0.28f, 0.1f, 0.24f, 0.36f};
    draw_sky(d);
    if (s->main > 0.0f) draw_shape(d, flame, 5, s->x, s->y, s->angle, 1.0f, 0xf2a65a);
    draw_ground(s, d);
    if (s->side != 0.0f) draw_shape(d, jet, 3, s->x, s->y, s->angle, 1.0f, 0xf2e86d);
    draw_leg(s, d, -1.0f);
    draw_leg(s, d, 1.0f);
    draw_shape(d, hull, HULL_POINTS, s->x, s->y, s->angle, 1.0f, 0x8f7be0);
    draw_shape(d, window, 4, s->x, s->y, s->angle, 1.0f, 0x37c2b3);
}
