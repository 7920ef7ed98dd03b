// ranges.h: how far missiles reach. A launch is on boresight; the target flies straight, or turns away at once.
//
// missile_range finds a range by flying missiles. range_tables.h holds its results for the default physics.

// The rudder of a target that turns away from a missile at (-x, -y) of it, and flies straight once its tail points
// there to within 18 degrees.
ENV_FN float turn_away(const Body *target, float x, float y) {
    float ahead = target->dx * x + target->dy * y, left = target->dx * y - target->dy * x;
    if (ahead > 0.951057f * m_sqrt(x * x + y * y)) return 0.0f;
    return left < 0.0f ? -1.0f : 1.0f;
}

// Whether a missile hits a target that is `range` m away when it is fired. `aspect`: rad, 0 if the target flies at the
// shooter, pi if it flies away.
ENV_FN int32_t hits_from(const Params *p, float range, float shooter_speed, float target_speed, float aspect,
                         int32_t escapes) {
    const Airframe aircraft = default_aircraft(p), frame = default_missile(p);
    const float h = step_time(p), kill = p->kill_radius * p->kill_radius;
    Body missile = {20.0f, 0.0f, 1.0f, 0.0f, shooter_speed, 0.0f};
    Body target = {range, 0.0f, -m_cos(aspect), m_sin(aspect), target_speed, 0.0f};
    float sight = 0.0f, age = 0.0f;
    while (!is_spent(p, missile.speed, age)) {
        float x0 = target.x - missile.x, y0 = target.y - missile.y;
        float vx = target.speed * target.dx - missile.speed * missile.dx;
        float vy = target.speed * target.dy - missile.speed * missile.dy;
        float before = sight;
        sight = m_atan2(y0, x0);
        missile.rudder = p->mode == FAITHFUL ? pursue_by_difference(before, sight, h)
                                             : pursue(x0, y0, vx, vy, missile.speed, &frame, p->missile_gain);
        target.rudder = escapes ? turn_away(&target, x0, y0) : 0.0f;
        fly(&target, &aircraft, 1.0f, h, p->mode);
        fly(&missile, &frame, burning(p->missile_burn, age, 1.0f / h), h, p->mode);
        age += h;
        float x1 = target.x - missile.x, y1 = target.y - missile.y;
        if ((p->mode == FAITHFUL ? x1 * x1 + y1 * y1 : closest(x0, y0, x1, y1)) < kill) return 1;
    }
    return 0;
}

// The longest range, in m, from which a missile hits; by bisection, to 1 m.
ENV_FN float missile_range(const Params *p, float shooter_speed, float target_speed, float aspect, int32_t escapes) {
    float hits = 0.0f, misses = 131072.0f;
    for (int32_t k = 0; k < 17; k++) {
        float middle = 0.5f * (hits + misses);
        if (hits_from(p, middle, shooter_speed, target_speed, aspect, escapes)) {
            hits = middle;
        } else {
            misses = middle;
        }
    }
    return hits;
}

// The tables: speeds of shooter and target from 200 to 500 m/s, aspects from 0 to pi.
enum { range_speeds = 8, range_aspects = 13 };
#include "range_tables.h"

ENV_FN float speed_of_row(int32_t row) { return 200.0f + (300.0f / 7.0f) * (float)row; }
ENV_FN float aspect_of_column(int32_t column) { return (M_PI_F / 12.0f) * (float)column; }

// A place between two entries of a table.
typedef struct {
    int32_t low;
    float part;
} Between;

ENV_FN Between between(float place, int32_t entries) {
    Between b;
    float inside = m_clamp(place, 0.0f, (float)(entries - 1));
    b.low = i_min((int32_t)inside, entries - 2);
    b.part = inside - (float)b.low;
    return b;
}

// A table's value between its entries, by linear interpolation in all three directions.
ENV_FN float look_up(const float *table, float shooter_speed, float target_speed, float aspect) {
    Between s = between((shooter_speed - 200.0f) * (7.0f / 300.0f), range_speeds);
    Between t = between((target_speed - 200.0f) * (7.0f / 300.0f), range_speeds);
    Between a = between(aspect * (12.0f / M_PI_F), range_aspects);
    float sum = 0.0f;
    for (int32_t corner = 0; corner < 8; corner++) {
        int32_t i = corner & 1, j = (corner >> 1) & 1, k = corner >> 2;
        float weight = (i ? s.part : 1.0f - s.part) * (j ? t.part : 1.0f - t.part) * (k ? a.part : 1.0f - a.part);
        sum += weight * table[((s.low + i) * range_speeds + t.low + j) * range_aspects + a.low + k];
    }
    return sum;
}

// From how far a missile hits a target that turns away when it is fired, or that flies straight on, in m.
ENV_FN float no_escape_range(float shooter_speed, float target_speed, float aspect) {
    return look_up(no_escape_table, shooter_speed, target_speed, aspect);
}
ENV_FN float straight_range(float shooter_speed, float target_speed, float aspect) {
    return look_up(straight_table, shooter_speed, target_speed, aspect);
}

// The aspect that a target with this track shows to a body: rad, 0 if it flies at the body.
ENV_FN float aspect_from(const Body *from, Track target) {
    float x = from->x - target.x, y = from->y - target.y;
    return m_abs(m_atan2(target.vx * y - target.vy * x, target.vx * x + target.vy * y));
}
