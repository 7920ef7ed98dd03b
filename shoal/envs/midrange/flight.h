// flight.h: the point mass that aircraft and missiles are, guidance, and when a missile hits or is spent.

#define GRAVITY 9.8f  // m/s^2

// What is constant in a flight. Acceleration along the path: thrust * power - (drag + induced * rudder^2) * speed^2.
typedef struct {
    float thrust;   // m/s^2
    float drag;     // 1/m, without lift
    float induced;  // 1/m, added at full rudder
    float turn;     // 1/m, curvature of the path at full rudder
} Airframe;

ENV_FN float step_time(const Params *p) {
    float own = p->mode == FAITHFUL ? 1.0f / 60.0f : 0.1f;
    return p->sub_step > 0.0f ? m_clamp(p->sub_step, 0.002f, 0.5f) : own;
}
ENV_FN int32_t steps_per_decision(const Params *p) {
    return i_max((int32_t)(m_clamp(p->time_scale, 0.01f, 5.0f) / step_time(p) + 0.5f), 1);
}
ENV_FN float decision_time(const Params *p) { return (float)steps_per_decision(p) * step_time(p); }

// drag = g / fall^2, because drag equals weight at the speed `fall`. With induced drag k * lift^2 the best
// lift-to-drag ratio is 1 / (2 sqrt(drag * k)), so k = 1 / (4 * drag * glide^2).
ENV_FN Airframe airframe(float thrust, float glide, float fall, float radius) {
    Airframe f;
    float speed = m_max(fall, 1.0f), ratio = m_max(glide, 0.01f);
    f.thrust = thrust;
    f.drag = GRAVITY / (speed * speed);
    f.turn = 1.0f / m_max(radius, 1.0f);
    f.induced = f.turn * f.turn / (4.0f * f.drag * ratio * ratio);
    return f;
}
ENV_FN Airframe default_aircraft(const Params *p) {
    return airframe(p->aircraft_thrust, p->aircraft_glide, p->aircraft_fall, p->aircraft_radius);
}
ENV_FN Airframe default_missile(const Params *p) {
    return airframe(p->missile_thrust, p->missile_glide, p->missile_fall, p->missile_radius);
}
// The airframe of this game: 0 aircraft, 1 missiles.
ENV_FN Airframe airframe_of(const State *s, const Params *p, int32_t kind) {
    const float *scale = s->scale[kind];
    float thrust = kind ? p->missile_thrust : p->aircraft_thrust, glide = kind ? p->missile_glide : p->aircraft_glide;
    float fall = kind ? p->missile_fall : p->aircraft_fall, radius = kind ? p->missile_radius : p->aircraft_radius;
    return airframe(scale[0] * thrust, scale[1] * glide, scale[2] * fall, scale[3] * radius);
}

// One physics step of a body in mode faithful: integrates the velocity vector (semi-implicit Euler).
ENV_FN void fly_faithful(Body *b, const Airframe *f, float power, float h) {
    float v = b->speed, u = b->rudder;
    float forward = f->thrust * power - (f->drag + f->induced * u * u) * v * v;
    float along = v + forward * h, across = u * v * v * f->turn * h;
    float vx = along * b->dx - across * b->dy, vy = along * b->dy + across * b->dx;
    b->speed = m_max(m_sqrt(vx * vx + vy * vy), 1.0f);
    b->dx = vx / b->speed;
    b->dy = vy / b->speed;
    b->x += vx * h;
    b->y += vy * h;
}

// One physics step of a body in mode fast: integrates speed and heading, and moves along the heading in the middle of
// the step.
ENV_FN void fly_fast(Body *b, const Airframe *f, float power, float h) {
    float v = b->speed, u = b->rudder;
    float forward = f->thrust * power - (f->drag + f->induced * u * u) * v * v;
    float after = m_max(v + forward * h, 1.0f), way = 0.5f * (v + after) * h;
    float half = m_clamp(0.5f * u * v * f->turn * h, -0.75f, 0.75f);  // rad, of this step's turn
    float c = m_cos_poly(half), s = m_sin_poly(half);
    float mid_x = b->dx * c - b->dy * s, mid_y = b->dy * c + b->dx * s;
    b->x += way * mid_x;
    b->y += way * mid_y;
    float end_x = mid_x * c - mid_y * s, end_y = mid_y * c + mid_x * s;
    // rounding would let the length drift: one step of Newton's method for 1 / sqrt(length^2)
    float unit = 1.5f - 0.5f * (end_x * end_x + end_y * end_y);
    b->dx = unit * end_x;
    b->dy = unit * end_y;
    b->speed = after;
}

ENV_FN void fly(Body *b, const Airframe *f, float power, float h, int32_t mode) {
    if (mode == FAITHFUL) {
        fly_faithful(b, f, power, h);
    } else {
        fly_fast(b, f, power, h);
    }
}

// The power of a missile's engine in the step from `age`: 1, 0, or the share of the step in which it burns out.
ENV_FN float burning(float burn, float age, float steps_per_second) {
    return m_clamp((burn - age) * steps_per_second, 0.0f, 1.0f);
}

// The original also removes missiles that are slow while they burn: then a launch below 200 m/s is lost at once.
ENV_FN int32_t is_spent(const Params *p, float speed, float age) {
    return ((age >= p->missile_burn) & (speed < p->missile_min_speed)) | (age > p->missile_max_age);
}

// The least squared distance of two points that move straight from (x0, y0) to (x1, y1) of each other.
ENV_FN float closest(float x0, float y0, float x1, float y1) {
    float dx = x1 - x0, dy = y1 - y0;
    float part = m_clamp(-(x0 * dx + y0 * dy) / (dx * dx + dy * dy + 1e-12f), 0.0f, 1.0f);
    float x = x0 + part * dx, y = y0 + part * dy;
    return x * x + y * y;
}

ENV_FN float line_of_sight(const Body *from, const Body *to) { return m_atan2(to->y - from->y, to->x - from->x); }

// Proportional navigation: turn at `gain` times the rate of the line of sight, (r x v) / r^2. x, y, vx, vy: of the
// target, relative.
ENV_FN float pursue(float x, float y, float vx, float vy, float speed, const Airframe *f, float gain) {
    float rudder = gain * (x * vy - y * vx) / ((x * x + y * y) * speed * f->turn + 1e-6f);
    return m_clamp(rudder, -1.0f, 1.0f);
}

// The original's guidance: a gain of 200 / pi on the change of the line of sight since the last step.
ENV_FN float pursue_by_difference(float before, float now, float h) {
    float change = now - before;
    change = change > M_PI_F ? change - 2.0f * M_PI_F : change < -M_PI_F ? change + 2.0f * M_PI_F : change;
    return m_clamp((200.0f / M_PI_F) * change / h, -1.0f, 1.0f);
}
