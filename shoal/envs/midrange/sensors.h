// sensors.h: what aircraft and missiles know of their targets.
//
// Without sensors everybody knows everything. With sensors an aircraft's radar, and a missile's seeker within
// active_range, see a target in front of them that does not fly across the line of sight (the notch). A missile further
// away relies on its aircraft's radar. A target that is lost is extrapolated for `memory` seconds; after that a missile
// flies straight on.

// Where something is, as seen from an aircraft or a missile.
typedef struct {
    float range;        // m
    float ahead, left;  // cos and sin of the bearing
    float closing;      // m/s, positive if it comes nearer
} Sight;

ENV_FN Sight look(const Body *from, Track to) {
    Sight sight;
    float x = to.x - from->x, y = to.y - from->y;
    float vx = to.vx - from->speed * from->dx, vy = to.vy - from->speed * from->dy;
    sight.range = m_sqrt(x * x + y * y);
    float per_metre = 1.0f / m_max(sight.range, 1e-3f);
    sight.ahead = (from->dx * x + from->dy * y) * per_metre;
    sight.left = (from->dx * y - from->dy * x) * per_metre;
    sight.closing = -(x * vx + y * vy) * per_metre;
    return sight;
}

ENV_FN Track truth(const Body *b) {
    Track t;
    t.x = b->x;
    t.y = b->y;
    t.vx = b->speed * b->dx;
    t.vy = b->speed * b->dy;
    t.age = 0.0f;
    return t;
}

// What body k knows of its target.
ENV_FN Track track_of(const State *s, const Params *p, int32_t k) {
    if (p->sensors) return s->track[k];
    return truth(&s->body[1 - side_of(k)]);
}

ENV_FN int32_t is_remembered(const Params *p, float age) { return !p->sensors || age <= p->memory; }

ENV_FN float range_between(const Body *a, const Body *b) {
    float x = b->x - a->x, y = b->y - a->y;
    return m_sqrt(x * x + y * y);
}

// Whether a missile's own seeker is on. Only then its target notices it.
ENV_FN int32_t is_active(const State *s, const Params *p, int32_t k) {
    return range_between(&s->body[k], &s->body[1 - side_of(k)]) <= 1000.0f * p->active_range;
}

// Whether the side that a missile flies at can observe it.
ENV_FN int32_t is_noticed(const State *s, const Params *p, int32_t k) {
    return s->flies[k] && (!p->sensors || is_active(s, p, k));
}

ENV_FN int32_t is_seen(const Body *from, const Body *target, const Params *p, float farthest) {
    Sight sight = look(from, truth(target));
    float x = target->x - from->x, y = target->y - from->y;
    float radial = target->speed * (target->dx * x + target->dy * y) / m_max(sight.range, 1e-3f);
    float edge = m_cos(m_clamp(p->radar_angle, 0.0f, 180.0f) * (M_PI_F / 180.0f));
    return sight.range <= farthest && sight.ahead >= edge && m_abs(radial) >= p->notch;
}

ENV_FN void extrapolate(Track *t, float h) {
    t->x += t->vx * h;
    t->y += t->vy * h;
    t->age += h;
}

// Updates all tracks after a physics step.
ENV_FN void sense(State *s, const Params *p, float h) {
    for (int32_t k = 0; k < bodies; k++) {
        if (!s->flies[k]) continue;
        int32_t side = side_of(k);
        const Body *target = &s->body[1 - side];
        int32_t is_own = k < 2 || is_active(s, p, k);
        if (is_own && is_seen(&s->body[k], target, p, k < 2 ? 1000.0f * p->radar_range : M_INF)) {
            s->track[k] = truth(target);
        } else if (!is_own && is_remembered(p, s->track[side].age)) {
            s->track[k] = s->track[side];
        } else {
            extrapolate(&s->track[k], h);
        }
    }
}

// The two missiles of a side that are nearest to a body.
typedef struct {
    int32_t at[2];  // -1 where there is none
    int32_t count;  // of all that count
} Nearest;

// With `noticed`, those count that the enemy can observe; else all that fly.
ENV_FN Nearest nearest_missiles(const State *s, const Params *p, int32_t side, const Body *to, int32_t noticed) {
    Nearest n = {{-1, -1}, 0};
    float best[2] = {M_INF, M_INF};
    for (int32_t k = first_missile(side); k < first_missile(side) + channels; k++) {
        if (noticed ? !is_noticed(s, p, k) : !s->flies[k]) continue;
        float x = s->body[k].x - to->x, y = s->body[k].y - to->y, far = x * x + y * y;
        n.count++;
        if (far < best[0]) {
            best[1] = best[0];
            n.at[1] = n.at[0];
            best[0] = far;
            n.at[0] = k;
        } else if (far < best[1]) {
            best[1] = far;
            n.at[1] = k;
        }
    }
    return n;
}
