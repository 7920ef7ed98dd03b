// drive.h: many cars share the streets of a small town; each has its own goals.
//
// The town is a grid of two-way streets, 40 m apart and 8 m wide, with crossings and no traffic lights. A car has a
// goal in the middle of some lane; near it, in whatever direction it drives, it gets the next one. Cars that touch, or
// whose centre leaves the street, are taken away and start again in a random lane. Driving on the
// left of a street costs a little. A step is 0.2 s.
//
// A car is a point with a heading and a speed, as in the simple kinematic models of highway-env (Leurent 2018) and
// Nocturne (Vinitsky et al. 2022): a pedal changes the speed, the wheel bends the path by a curvature, so a car that
// stands does not turn. Two discs, 1.2 m in front of and behind the centre, stand for its body.
//
// obs: in the frame of the street direction nearest to the car's heading, lengths ahead and to the left. The speed, as
// a share of the top speed; the sine of the heading in that frame; the place across the street, as a share of 20 m and,
// up to its edge, of 4 m; the place along it from the nearest crossing, in the same two ways; whether streets go on
// ahead, to the left and to the right of that crossing; the way to the goal, as a share of 80 m and, up to that, of
// 20 m. Then for the four nearest cars within 40 m, nearest first: 1, the way as a share of 40 m and, up to that, of
// 8 m, their heading (ahead, left), and their speed.
// action: wheel + 5 * pedal. wheel: 0 full left, 1 left, 2 straight, 3 right, 4 full right; pedal: 0 brake, 1 none,
// 2 gas.
// reward: 1 for a goal, less crash_cost for a crash, less wrong_side_cost in a step on the wrong side of the street;
// with shaping above 0 also `shaping` for each metre closer to the goal, along the streets. A crash brings a car back
// from its way: what `shaping` paid for it is lost.
// At random a car loses 3.0 in 400 steps. A scripted driver that keeps its lane and gives way returns 3.0.
#define ENV_OBS OBS_F32(13 + 8 * 4)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(15)
#define ENV_AGENTS cars
#define ENV_MAX_STEPS 400
#define ENV_HAS_CHECK
#define ENV_CONSTS(X)                                                                                                  \
    X(cars, 8, "cars in the town")                                                                                     \
    X(streets, 3, "streets in each direction")
#define ENV_PARAMS(X)                                                                                                  \
    X(float, top_speed, 12.0f, "m/s")                                                                                  \
    X(float, gas, 3.0f, "acceleration, m/s^2")                                                                         \
    X(float, brake, 3.0f, "deceleration, m/s^2; there is no reverse gear")                                             \
    X(float, turn, 0.3f, "curvature of the path with the wheel full to a side, 1/m; a fifth of it at half way")        \
    X(float, reach, 5.0f, "distance at which a goal is reached, m")                                                    \
    X(float, crash_cost, 0.5f, "reward lost by touching a car or leaving the street")                                  \
    X(float, wrong_side_cost, 0.02f, "reward lost in a step on the wrong side of the street")                          \
    X(float, shaping, 0.0f, "reward for each metre closer to the goal")
#define ENV_LIMITS(X)                                                                                                  \
    X("cars", 1, 32)                                                                                                   \
    X("streets", 2, 8)                                                                                                 \
    X("top_speed", 0.1, 50)                                                                                            \
    X("gas", 0, 20) X("brake", 0, 50) X("turn", 0, 1) X("reach", 0.1, 20) X("*_cost", 0, 100) X("shaping", 0, 1)
#define ENV_STATS(X)                                                                                                   \
    X(sum, goals, "goals reached, all cars together")                                                                  \
    X(sum, collisions, "cars that touched another")                                                                    \
    X(sum, left_street, "cars that left the street")                                                                   \
    X(mean, speed, "m/s, mean over cars and steps")                                                                    \
    X(mean, wrong_side, "share of the cars that drive on the wrong side")
#include "core/env.h"

enum { lanes = 4 * streets * (streets - 1), SEEN = 4 };  // a lane: one direction of a street between two crossings
#define BLOCK 40.0f
#define HALF 4.0f  // half the width of a street
#define STEP 0.2f
ENV_REQUIRE((int)cars <= (int)lanes, "there must be a lane for every car");

typedef struct {
    float x[cars], y[cars];                  // m; street k is at 40 k
    float heading_x[cars], heading_y[cars];  // of length 1
    float speed[cars];
    int32_t goal[cars];  // the lane whose middle it is
} State;

// The frame of a street direction: the unit vector ahead. Left is (-y, x).
typedef struct {
    float x, y;
} Way;

ENV_FN Way way_of(float x, float y) {
    int32_t is_along_x = m_abs(x) >= m_abs(y);
    Way way = {is_along_x ? (x < 0.0f ? -1.0f : 1.0f) : 0.0f, is_along_x ? 0.0f : (y < 0.0f ? -1.0f : 1.0f)};
    return way;
}
ENV_FN float ahead_of(Way way, float x, float y) { return x * way.x + y * way.y; }
ENV_FN float left_of(Way way, float x, float y) { return y * way.x - x * way.y; }

// A lane's direction (0 east, 1 north, 2 west, 3 south), and the point `along` metres after the crossing in the west or
// south of it, in the middle of its right half.
ENV_FN Way lane_way(int32_t lane) {
    int32_t direction = lane & 3;
    Way way = {direction == 0   ? 1.0f
               : direction == 2 ? -1.0f
                                : 0.0f,
               direction == 1   ? 1.0f
               : direction == 3 ? -1.0f
                                : 0.0f};
    return way;
}
ENV_FN void lane_point(int32_t lane, float along, float *x, float *y) {
    Way way = lane_way(lane);
    float street = BLOCK * (float)(lane / 4 % streets), place = BLOCK * (float)(lane / (4 * streets)) + along;
    *x = way.x != 0.0f ? place : street + 0.5f * HALF * way.y;
    *y = way.x != 0.0f ? street - 0.5f * HALF * way.x : place;
}

// The place relative to the nearest street across an axis.
ENV_FN float from_street(float place) {
    int32_t k = i_clamp((int32_t)m_floor(place * (1.0f / BLOCK) + 0.5f), 0, streets - 1);
    return place - BLOCK * (float)k;
}

ENV_FN int32_t is_on_street(float x, float y) {
    const float last = BLOCK * (float)(streets - 1) + HALF;
    int32_t is_in_town = x >= -HALF && x <= last && y >= -HALF && y <= last;
    return is_in_town && (m_abs(from_street(x)) <= HALF || m_abs(from_street(y)) <= HALF);
}

// On the left half of the street, and not on a crossing.
ENV_FN int32_t is_on_wrong_side(const State *s, int32_t i) {
    Way way = way_of(s->heading_x[i], s->heading_y[i]);
    float x = from_street(s->x[i]), y = from_street(s->y[i]);
    return left_of(way, x, y) > 0.0f && m_abs(ahead_of(way, x, y)) > HALF + 1.0f;
}

// Puts a car into a random lane, at least 12 m from the others if one of eight draws allows it.
ENV_FN void place(State *s, int32_t i, Rng *rng) {
    int32_t lane = 0;
    for (int32_t k = 0; k < 8; k++) {
        lane = rng_int(rng, lanes);
        lane_point(lane, rng_uniform(rng, 10.0f, 30.0f), &s->x[i], &s->y[i]);
        int32_t is_free = 1;
        for (int32_t j = 0; j < cars; j++) {
            float dx = s->x[j] - s->x[i], dy = s->y[j] - s->y[i];
            is_free &= j == i || dx * dx + dy * dy > 144.0f;
        }
        if (is_free) break;
    }
    Way way = lane_way(lane);
    s->heading_x[i] = way.x;
    s->heading_y[i] = way.y;
    s->speed[i] = 0.0f;
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    for (int32_t i = 0; i < cars; i++) s->x[i] = s->y[i] = -1000.0f;  // out of the way of those placed before
    for (int32_t i = 0; i < cars; i++) {
        place(s, i, rng);
        s->goal[i] = rng_int(rng, lanes);
    }
}

ENV_FN float top_speed(const Params *p) { return m_clamp(p->top_speed, 0.1f, 50.0f); }

ENV_FN void move_car(State *s, const Params *p, int32_t i, int32_t action) {
    int32_t wheel = action % 5, pedal = action / 5;
    float bend = wheel == 0 ? 1.0f : wheel == 1 ? 0.2f : wheel == 3 ? -0.2f : wheel == 4 ? -1.0f : 0.0f;
    float change = pedal == 2 ? p->gas : pedal == 0 ? -p->brake : 0.0f;
    s->speed[i] = m_clamp(s->speed[i] + change * STEP, 0.0f, top_speed(p));
    // The heading turns by 2 atan(t): close to the angle 2 t, without sines.
    float t = 0.5f * s->speed[i] * STEP * m_clamp(p->turn, 0.0f, 1.0f) * bend, d = 1.0f + t * t;
    float c = (1.0f - t * t) / d, r = 2.0f * t / d;
    float x = s->heading_x[i] * c - s->heading_y[i] * r, y = s->heading_x[i] * r + s->heading_y[i] * c;
    float length = m_sqrt(x * x + y * y);
    s->heading_x[i] = x / length;
    s->heading_y[i] = y / length;
    s->x[i] += s->speed[i] * STEP * s->heading_x[i];
    s->y[i] += s->speed[i] * STEP * s->heading_y[i];
}

ENV_FN int32_t do_touch(const State *s, int32_t i, int32_t j) {
    float dx = s->x[j] - s->x[i], dy = s->y[j] - s->y[i];
    if (dx * dx + dy * dy > 25.0f) return 0;
    for (int32_t k = 0; k < 4; k++) {
        float own = k & 1 ? 1.2f : -1.2f, other = k & 2 ? 1.2f : -1.2f;
        float gap_x = dx + other * s->heading_x[j] - own * s->heading_x[i];
        float gap_y = dy + other * s->heading_y[j] - own * s->heading_y[i];
        if (gap_x * gap_x + gap_y * gap_y < 4.0f) return 1;  // the discs have a radius of 1 m
    }
    return 0;
}

ENV_FN float way_to_goal(const State *s, int32_t i) {
    float x, y;
    lane_point(s->goal[i], 0.5f * BLOCK, &x, &y);
    return m_abs(x - s->x[i]) + m_abs(y - s->y[i]);
}

ENV_FN int32_t is_at_goal(const State *s, const Params *p, int32_t i) {
    float x, y;
    lane_point(s->goal[i], 0.5f * BLOCK, &x, &y);
    float dx = x - s->x[i], dy = y - s->y[i];
    return dx * dx + dy * dy < p->reach * p->reach;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t has_crashed[cars];
    float before[cars], total_speed = 0.0f, wrong = 0.0f;
    for (int32_t i = 0; i < cars; i++) {
        before[i] = way_to_goal(s, i);
        move_car(s, p, i, a[i]);
        has_crashed[i] = !is_on_street(s->x[i], s->y[i]);
        out->stats.left_street += (float)has_crashed[i];
        total_speed += s->speed[i];
    }
    for (int32_t i = 0; i < cars; i++) {
        int32_t touches = 0;
        for (int32_t j = 0; j < cars; j++) touches |= j != i && do_touch(s, i, j);
        out->stats.collisions += (float)touches;
        has_crashed[i] |= touches;
    }
    for (int32_t i = 0; i < cars; i++) {
        int32_t is_wrong = is_on_wrong_side(s, i), is_there = !has_crashed[i] && is_at_goal(s, p, i);
        if (has_crashed[i]) place(s, i, rng);
        out->rewards[i] = p->shaping * (before[i] - way_to_goal(s, i));  // a new start elsewhere counts, too
        out->rewards[i] -= is_wrong ? p->wrong_side_cost : 0.0f;
        out->rewards[i] -= has_crashed[i] ? p->crash_cost : 0.0f;
        out->rewards[i] += (float)is_there;
        if (is_there) s->goal[i] = (s->goal[i] + 1 + rng_int(rng, lanes - 1)) % lanes;
        out->stats.goals += (float)is_there;
        wrong += (float)is_wrong;
    }
    out->stats.speed = total_speed / (float)cars;
    out->stats.wrong_side = wrong / (float)cars;
}

// Writes a length twice: for far, and with more detail for near.
ENV_FN void two_scales(float length, float far, float near, Obs *obs) {
    obs[0] = m_clamp(length / far, -1.0f, 1.0f);
    obs[1] = m_clamp(length / near, -1.0f, 1.0f);
}

// Whether a street goes on from the crossing nearest to a car.
ENV_FN float goes_on(const State *s, int32_t i, float dx, float dy) {
    const float last = BLOCK * (float)(streets - 1) + 1.0f;
    float x = s->x[i] - from_street(s->x[i]) + BLOCK * dx, y = s->y[i] - from_street(s->y[i]) + BLOCK * dy;
    return (float)(x >= -1.0f && x <= last && y >= -1.0f && y <= last);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    float x = s->x[agent], y = s->y[agent], top = 1.0f / top_speed(p), street_x = from_street(x),
          street_y = from_street(y);
    Way way = way_of(s->heading_x[agent], s->heading_y[agent]);
    obs[0] = m_min(s->speed[agent] * top, 1.0f);
    obs[1] = m_clamp(left_of(way, s->heading_x[agent], s->heading_y[agent]), -1.0f, 1.0f);
    two_scales(left_of(way, street_x, street_y), 20.0f, HALF, &obs[2]);
    two_scales(ahead_of(way, street_x, street_y), 20.0f, HALF, &obs[4]);
    obs[6] = goes_on(s, agent, way.x, way.y);
    obs[7] = goes_on(s, agent, -way.y, way.x);
    obs[8] = goes_on(s, agent, way.y, -way.x);
    float goal_x, goal_y;
    lane_point(s->goal[agent], 0.5f * BLOCK, &goal_x, &goal_y);
    two_scales(ahead_of(way, goal_x - x, goal_y - y), 80.0f, 20.0f, &obs[9]);
    two_scales(left_of(way, goal_x - x, goal_y - y), 80.0f, 20.0f, &obs[11]);
    obs += 13;
    uint32_t is_shown = 1u << agent;
    for (int32_t k = 0; k < SEEN; k++, obs += 8) {
        int32_t nearest = -1;
        float least = 1600.0f;
        for (int32_t j = 0; j < cars; j++) {
            float dx = s->x[j] - x, dy = s->y[j] - y, square = dx * dx + dy * dy;
            if ((is_shown >> j & 1) || square >= least) continue;
            nearest = j;
            least = square;
        }
        for (int32_t n = 0; n < 8; n++) obs[n] = 0.0f;
        if (nearest < 0) continue;
        is_shown |= 1u << nearest;
        float dx = s->x[nearest] - x, dy = s->y[nearest] - y;
        obs[0] = 1.0f;
        two_scales(ahead_of(way, dx, dy), 40.0f, 8.0f, &obs[1]);
        two_scales(left_of(way, dx, dy), 40.0f, 8.0f, &obs[3]);
        obs[5] = m_clamp(ahead_of(way, s->heading_x[nearest], s->heading_y[nearest]), -1.0f, 1.0f);
        obs[6] = m_clamp(left_of(way, s->heading_x[nearest], s->heading_y[nearest]), -1.0f, 1.0f);
        obs[7] = m_min(s->speed[nearest] * top, 1.0f);
    }
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    for (int32_t i = 0; i < cars; i++) {
        if (s->goal[i] < 0 || s->goal[i] >= lanes) return 0;
        if (!(m_abs(s->x[i]) < 1e4f && m_abs(s->y[i]) < 1e4f && s->speed[i] >= 0.0f && s->speed[i] <= 50.0f)) return 0;
        if (!(m_abs(s->heading_x[i]) <= 1.01f && m_abs(s->heading_y[i]) <= 1.01f)) return 0;
    }
    return 1;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    ENV_DATA float body[] = {2.2f, -0.8f, 2.2f, 0.8f, 1.9f, 1.0f, -2.1f, 1.0f, -2.1f, -1.0f, 1.9f, -1.0f};
    ENV_DATA float glass[] = {0.9f, -0.8f, 0.9f, 0.8f, 0.2f, 0.7f, 0.2f, -0.7f};
    const uint32_t colors[] = {0xe2556d, 0xf2a65a, 0x37c2b3, 0x2f7de1, 0xb46bd6, 0xf2e86d, 0xffffff, 0x7bd389};
    const float last = BLOCK * (float)(streets - 1), edge = HALF + 3.0f;
    draw_view(d, -edge, last + edge, last + edge, -edge, 0x2c5e3a);
    for (int32_t k = 0; k < streets; k++) {
        float at = BLOCK * (float)k;
        draw_rect(d, -HALF, at - HALF, last + 2.0f * HALF, 2.0f * HALF, 0x3a3f4a);
        draw_rect(d, at - HALF, -HALF, 2.0f * HALF, last + 2.0f * HALF, 0x3a3f4a);
    }
    for (int32_t k = 0; k < streets * (streets - 1); k++) {
        float at = BLOCK * (float)(k % streets), from = BLOCK * (float)(k / streets);
        for (float along = HALF + 2.0f; along < BLOCK - HALF - 3.0f; along += 5.0f) {
            draw_line(d, from + along, at, from + along + 2.0f, at, 0.3f, 0xe6e6e6);
            draw_line(d, at, from + along, at, from + along + 2.0f, 0.3f, 0xe6e6e6);
        }
    }
    for (int32_t i = 0; i < cars; i++) {
        float x, y;
        lane_point(s->goal[i], 0.5f * BLOCK, &x, &y);
        draw_circle(d, x, y, 1.5f, colors[i & 7]);
        draw_circle(d, x, y, 0.9f, 0x3a3f4a);
    }
    for (int32_t i = 0; i < cars; i++) {
        float angle = m_atan2(s->heading_y[i], s->heading_x[i]);
        draw_shape(d, body, 6, s->x[i], s->y[i], angle, 1.0f, colors[i & 7]);
        draw_shape(d, glass, 4, s->x[i], s->y[i], angle, 1.0f, 0x16233a);
    }
}
