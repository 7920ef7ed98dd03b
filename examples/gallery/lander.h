// lander.h: land a small ship on the pad of a rocky moon, with little fuel and some wind.
//
// The ground and the place of the pad are new in every episode. The ship has a main engine and two nozzles that turn
// it. Touching the pad slowly and upright is a landing; touching anything else, or touching too fast or tilted, is a
// crash. A landing returns about 1.5 to 2, a crash about -1.
//
// obs: the way to the pad (x, y), the velocity (x, y), sine and cosine of the tilt, the spin, the height above the
// ground below the ship, the fuel that is left, the wind. action: two choices: main engine off or on; turn left, not,
// or right. reward: how much closer, slower and more upright the ship became (a potential, so that circling earns
// nothing), minus the fuel that was burnt; 1 for a landing, -1 for a crash or for leaving the field.
#define ENV_OBS OBS_F32(10)
#define ENV_OBS_LOW -4.0f
#define ENV_OBS_HIGH 4.0f
#define ENV_ACTION ACT_MULTI(2, 3)
#define ENV_MAX_STEPS 300
#define ENV_PARAMS(X)                                                                                                  \
    X(float, gravity, 0.0008f, "what the vertical velocity loses in a step")                                           \
    X(float, thrust, 0.0020f, "what the main engine adds to the velocity in a step")                                   \
    X(float, turn, 0.0040f, "what a nozzle adds to the spin in a step, rad")                                           \
    X(float, wind, 0.0001f, "strongest wind: what it adds to the horizontal velocity in a step")                       \
    X(float, fuel, 120.0f, "steps that the main engine can burn")                                                      \
    X(float, rough, 0.25f, "height of the highest rocks")                                                              \
    X(float, max_speed, 0.02f, "the fastest landing, in a step")                                                       \
    X(float, max_tilt, 0.25f, "the most tilted landing, rad")
#define ENV_LIMITS(X) X("gravity", 0, 0.1) X("thrust", 0, 0.1) X("fuel", 1, 10000) X("rough", 0, 0.6)
#define ENV_PRESETS(X)                                                                                                 \
    X("calm", "wind=0 rough=0.1", "no wind and low rocks")                                                             \
    X("storm", "wind=0.0003 rough=0.4", "strong wind and high rocks")
#define ENV_STATS(X)                                                                                                   \
    X(sum, landed, "1 for a landing")                                                                                  \
    X(sum, crashed, "1 for a crash")                                                                                   \
    X(last, fuel_left, "share of the fuel that was left")
#define ENV_HAS_CHECK
#include "core/env.h"

// The ground is a line through GROUND_POINTS points that are GROUND_STEP apart, from x = -1 to 1. The pad is
// PAD_PIECES of its pieces, and level.
enum { GROUND_POINTS = 17, PAD_PIECES = 2 };
#define GROUND_STEP (2.0f / (float)(GROUND_POINTS - 1))

typedef struct {
    float x, y, vx, vy;  // the middle of the ship
    float tilt, spin;    // rad, positive to the left; rad in a step
    float fuel, wind;
    float potential;  // of the last step: the reward is what was gained since
    int32_t pad;      // the point of the ground at which the pad starts
    int32_t burns;    // what the engines do, for the picture: 1 main, 2 turns left, 4 turns right
    float ground[GROUND_POINTS];
} State;

// ---- the ship, in units of its height, pointing up ----

ENV_DATA float hull[] = {0.0f,  1.0f,   0.35f, 0.45f,  0.45f, -0.4f,  0.25f,
                         -0.6f, -0.25f, -0.6f, -0.45f, -0.4f, -0.35f, 0.45f};
ENV_DATA float window[] = {0.0f, 0.62f, 0.16f, 0.36f, 0.0f, 0.12f, -0.16f, 0.36f};
ENV_DATA float flame[] = {-0.2f, -0.65f, 0.2f, -0.65f, 0.1f, -1.0f, 0.0f, -1.5f, -0.1f, -1.0f};
ENV_DATA float nozzle[] = {0.4f, 0.4f, 0.75f, 0.5f, 0.75f, 0.3f};
#define SHIP_SIZE 0.07f

// The points that can touch the ground: both feet and the top.
enum { CONTACTS = 3, FEET = 2 };
ENV_DATA float contacts[2 * CONTACTS] = {-0.6f, -1.0f, 0.6f, -1.0f, 0.0f, 1.0f};

// A point of the ship in the world.
ENV_FN void place_point(const State *s, const float *point, float *x, float *y) {
    float c = SHIP_SIZE * m_cos(s->tilt), n = SHIP_SIZE * m_sin(s->tilt);
    *x = s->x + c * point[0] - n * point[1];
    *y = s->y + n * point[0] + c * point[1];
}

// ---- the ground ----

ENV_FN float ground_x(int32_t point) { return -1.0f + GROUND_STEP * (float)point; }

ENV_FN float pad_x(const State *s) { return ground_x(s->pad) + 0.5f * GROUND_STEP * (float)PAD_PIECES; }
ENV_FN float pad_y(const State *s) { return s->ground[s->pad]; }

// The piece of the ground below x.
ENV_FN int32_t piece_at(float x) {
    float piece = m_floor((m_clamp(x, -1.0f, 1.0f) + 1.0f) / GROUND_STEP);
    return i_clamp((int32_t)piece, 0, GROUND_POINTS - 2);
}

ENV_FN float height_at(const State *s, float x) {
    int32_t piece = piece_at(x);
    float share = m_clamp((x - ground_x(piece)) / GROUND_STEP, 0.0f, 1.0f);
    return s->ground[piece] + share * (s->ground[piece + 1] - s->ground[piece]);
}

ENV_FN void make_ground(State *s, const Params *p, Rng *rng) {
    for (int32_t k = 0; k < GROUND_POINTS; k++) s->ground[k] = rng_uniform(rng, 0.02f, 0.02f + p->rough);
    s->pad = 2 + rng_int(rng, GROUND_POINTS - PAD_PIECES - 4);
    float level = rng_uniform(rng, 0.05f, 0.1f + 0.3f * p->rough);
    for (int32_t k = 0; k <= PAD_PIECES; k++) s->ground[s->pad + k] = level;
    // no cliff beside the pad: the feet would touch it
    s->ground[s->pad - 1] = m_min(s->ground[s->pad - 1], level + 0.05f);
    s->ground[s->pad + PAD_PIECES + 1] = m_min(s->ground[s->pad + PAD_PIECES + 1], level + 0.05f);
}

// ---- the game ----

// What the reward is the change of: it grows as the ship comes closer to the pad, slower and more upright.
ENV_FN float potential_of(const State *s) {
    float dx = s->x - pad_x(s), dy = s->y - pad_y(s) - SHIP_SIZE;
    float distance = m_sqrt(dx * dx + dy * dy), speed = m_sqrt(s->vx * s->vx + s->vy * s->vy);
    return -distance - 10.0f * speed - 0.3f * m_min(m_abs(s->tilt), 3.0f);
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    make_ground(s, p, rng);
    s->x = rng_uniform(rng, -0.6f, 0.6f);
    s->y = rng_uniform(rng, 1.1f, 1.3f);
    s->vx = rng_uniform(rng, -0.008f, 0.008f);
    s->vy = rng_uniform(rng, -0.004f, 0.0f);
    s->tilt = rng_uniform(rng, -0.2f, 0.2f);
    s->spin = rng_uniform(rng, -0.01f, 0.01f);
    s->fuel = p->fuel;
    s->wind = rng_uniform(rng, -p->wind, p->wind);
    s->burns = 0;
    s->potential = potential_of(s);
}

// Engines, gravity and wind. Returns the share of the fuel that was burnt.
ENV_FN float move_ship(State *s, const Params *p, const Action *a) {
    int main_on = a[0] == 1 && s->fuel >= 1.0f;
    int turn = (a[1] == 0) - (a[1] == 2);  // 1 to the left
    s->burns = main_on | (turn > 0 ? 2 : 0) | (turn < 0 ? 4 : 0);
    s->spin = m_clamp(0.95f * s->spin + p->turn * (float)turn, -0.2f, 0.2f);
    s->tilt = m_clamp(s->tilt + s->spin, -M_PI_F, M_PI_F);
    float push = main_on ? p->thrust : 0.0f;
    s->vx = m_clamp(s->vx - push * m_sin(s->tilt) + s->wind, -0.1f, 0.1f);
    s->vy = m_clamp(s->vy + push * m_cos(s->tilt) - p->gravity, -0.1f, 0.1f);
    s->x += s->vx;
    s->y += s->vy;
    s->fuel -= (float)main_on;
    return (float)main_on / m_max(p->fuel, 1.0f);
}

// How many feet touch the pad, and whether anything touches the ground.
ENV_FN int touch_ground(const State *s, int *feet_on_pad) {
    int touches = 0;
    *feet_on_pad = 0;
    for (int k = 0; k < CONTACTS; k++) {
        float x, y;
        place_point(s, contacts + 2 * k, &x, &y);
        if (y > height_at(s, x)) continue;
        touches++;
        *feet_on_pad += k < FEET && piece_at(x) >= s->pad && piece_at(x) < s->pad + PAD_PIECES;
    }
    return touches;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    float burnt = move_ship(s, p, a);
    float speed = m_sqrt(s->vx * s->vx + s->vy * s->vy);
    int feet_on_pad, touches = touch_ground(s, &feet_on_pad);
    int is_gentle = speed <= p->max_speed && m_abs(s->tilt) <= p->max_tilt;
    int landed = touches > 0 && feet_on_pad == touches && is_gentle;
    int left = m_abs(s->x) > 1.0f || s->y > 1.6f;
    int crashed = (touches > 0 || left) && !landed;

    float potential = potential_of(s);
    out->reward = potential - s->potential - 0.2f * burnt + (float)landed - (float)crashed;
    s->potential = potential;
    out->terminated = landed || crashed;
    out->stats.landed = (float)landed;
    out->stats.crashed = (float)crashed;
    out->stats.fuel_left = s->fuel / m_max(p->fuel, 1.0f);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    obs[0] = m_clamp(pad_x(s) - s->x, -4.0f, 4.0f);
    obs[1] = m_clamp(pad_y(s) - s->y, -4.0f, 4.0f);
    obs[2] = 40.0f * s->vx;  // at most 0.1 in a step
    obs[3] = 40.0f * s->vy;
    obs[4] = m_sin(s->tilt);
    obs[5] = m_cos(s->tilt);
    obs[6] = 10.0f * s->spin;
    obs[7] = m_clamp(s->y - height_at(s, s->x), -4.0f, 4.0f);
    obs[8] = m_clamp(s->fuel / m_max(p->fuel, 1.0f), 0.0f, 1.0f);
    obs[9] = m_clamp(1e4f * s->wind, -4.0f, 4.0f);
}

// The pad is an index. Every other number may have any value: height_at and place_point clamp theirs.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    return s->pad >= 1 && s->pad < GROUND_POINTS - PAD_PIECES;
}

// ---- the picture ----

ENV_FN void draw_sky(Draw *d) {
    draw_view(d, -1.0f, 1.5f, 1.0f, -0.05f, 0x0b1020);
    for (int k = 0; k < 40; k++) {  // stars at fixed places
        uint64_t place = rng_mix((uint64_t)k + 1);
        float x = -1.0f + 2.0f * (float)(place & 1023) / 1023.0f,
              y = 0.4f + 1.1f * (float)(place >> 10 & 1023) / 1023.0f;
        draw_circle(d, x, y, k % 7 ? 0.003f : 0.006f, 0x8fa3c7);
    }
}

ENV_FN void draw_ground(const State *s, Draw *d) {
    float outline[2 * (GROUND_POINTS + 2)];
    for (int32_t k = 0; k < GROUND_POINTS; k++) {
        outline[2 * k] = ground_x(k);
        outline[2 * k + 1] = s->ground[k];
    }
    outline[2 * GROUND_POINTS] = 1.0f;
    outline[2 * GROUND_POINTS + 1] = -0.05f;
    outline[2 * GROUND_POINTS + 2] = -1.0f;
    outline[2 * GROUND_POINTS + 3] = -0.05f;
    draw_polygon(d, outline, GROUND_POINTS + 2, 0x4b4f5c);
    draw_rect(d, ground_x(s->pad), pad_y(s) - 0.015f, GROUND_STEP * (float)PAD_PIECES, 0.015f, 0xf2a65a);
    for (int side = 0; side < 2; side++) {  // a flag at each end of the pad
        float x = ground_x(s->pad + side * PAD_PIECES), y = pad_y(s);
        draw_line(d, x, y, x, y + 0.07f, 0.006f, 0xd8dee9);
        draw_triangle(d, x, y + 0.07f, x + 0.035f, y + 0.055f, x, y + 0.04f, 0xe4572e);
    }
}

ENV_FN void draw_foot(const State *s, Draw *d, const float *foot) {
    const float hip[] = {0.6f * foot[0], -0.45f}, toe[] = {1.25f * foot[0], foot[1]};
    float hip_x, hip_y, x, y, toe_x, toe_y;
    place_point(s, hip, &hip_x, &hip_y);
    place_point(s, foot, &x, &y);
    place_point(s, toe, &toe_x, &toe_y);
    draw_line(d, hip_x, hip_y, x, y, 0.009f, 0x9aa5b8);
    draw_line(d, x, y, toe_x, toe_y, 0.009f, 0x9aa5b8);
}

ENV_FN void draw_ship(const State *s, Draw *d) {
    if (s->burns & 1) draw_shape(d, flame, 5, s->x, s->y, s->tilt, SHIP_SIZE, 0xf2a65a);
    draw_foot(s, d, contacts);
    draw_foot(s, d, contacts + 2);
    if (s->burns & 2) draw_shape(d, nozzle, 3, s->x, s->y, s->tilt, SHIP_SIZE, 0xf2e86d);
    if (s->burns & 4) {
        float other_side[6];
        for (int k = 0; k < 6; k++) other_side[k] = k % 2 ? nozzle[k] : -nozzle[k];
        draw_shape(d, other_side, 3, s->x, s->y, s->tilt, SHIP_SIZE, 0xf2e86d);
    }
    draw_shape(d, hull, 7, s->x, s->y, s->tilt, SHIP_SIZE, 0xd8dee9);
    draw_shape(d, window, 4, s->x, s->y, s->tilt, SHIP_SIZE, 0x37c2b3);
}

ENV_FN void draw_gauges(const State *s, const Params *p, Draw *d) {
    float share = m_clamp(s->fuel / m_max(p->fuel, 1.0f), 0.0f, 1.0f);
    draw_text(d, -0.95f, 1.43f, 0.05f, "fuel", 0x8fa3c7);
    draw_rect(d, -0.75f, 1.41f, 0.4f, 0.04f, 0x24334d);
    draw_rect(d, -0.75f, 1.41f, 0.4f * share, 0.04f, share < 0.25f ? 0xe4572e : 0x37c2b3);
    float speed = m_sqrt(s->vx * s->vx + s->vy * s->vy);
    uint32_t color = speed <= p->max_speed ? 0x37c2b3 : 0xe4572e;
    draw_value(d, -0.25f, 1.43f, 0.05f, "speed ", (int32_t)m_min(1000.0f * speed, 9999.0f), color);
    draw_text(d, 0.35f, 1.43f, 0.05f, "wind", 0x8fa3c7);
    float length = 2000.0f * m_clamp(s->wind, -1e-4f, 1e-4f), way = s->wind < 0.0f ? -1.0f : 1.0f;
    float x = 0.77f + 0.5f * length, y = 1.43f;
    draw_line(d, 0.77f - 0.5f * length, y, x, y, 0.01f, 0x8fa3c7);
    draw_triangle(d, x + 0.03f * way, y, x, y + 0.02f, x, y - 0.02f, 0x8fa3c7);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    draw_sky(d);
    draw_ground(s, d);
    draw_ship(s, d);
    draw_gauges(s, p, d);
}
