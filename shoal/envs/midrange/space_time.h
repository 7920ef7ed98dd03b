// space_time.h: the space-time graph of one side: where missiles and aircraft can be within the next 30 s.
//
// Threat: where a missile that the enemy fires now can be; it turns with full rudder, then flies straight. Escapes: the
// own aircraft turns left or right with full rudder and full throttle until it flies away from the enemy within 18
// degrees, then straight. Course: the own aircraft with its present rudder and throttle. Incoming: enemy missiles in
// flight, guided at an aircraft on one of these paths.
//
// A turn and a straight line with constant thrust have an exact solution, so that they need no steps of time and no
// tables. With v' = thrust - drag v^2 and w = sqrt(thrust / drag), after t seconds and s meters:
//   s = (drag w t + ln(((1 + v/w) + (1 - v/w) e^(-2 drag w t)) / 2)) / drag,   v(s)^2 = w^2 + (v^2 - w^2) e^(-2 drag
//   s), t = (ln((w + v(s)) / (w + v)) + drag s) / (drag w),   and in a turn the heading changes by s / radius.
// Guided missiles are stepped, with mode fast's guidance. A side knows the nominal physics only, not a game's noise,
// and with sensors it knows its track of the enemy only.

// ---- space-time graph ----

enum { GRAPH_SECONDS = 30, GRAPH_POINTS = GRAPH_SECONDS + 1, GRAPH_TURNS = 13, GRAPH_INCOMING = 2 };
#define GRAPH_STEP 0.2f         // s, for guided missiles: with longer steps they lose range
#define GRAPH_AWAY 0.31415927f  // rad from directly away at which an escape ends its turn

typedef struct {
    float x, y, t, v;  // m, m, s from now, m/s
} GraphPoint;

typedef struct {
    float x, y, heading, v;  // m, m, rad, m/s
} Pose;

// A body that turns with full rudder by `turn` radians (left is positive), then flies straight.
typedef struct {
    Pose from;
    Airframe frame;
    float turn, burn;  // rad, s of thrust
} Maneuver;

// Every curve of the graph, a point per second. A curve that ends early repeats its last point; that of
// a missile that does not fly has speed 0.
typedef struct {
    GraphPoint threat[GRAPH_TURNS][GRAPH_POINTS];  // turned by -90 to 90 degrees, in steps of 15
    GraphPoint escape[2][GRAPH_POINTS];            // left, right
    GraphPoint course[1][GRAPH_POINTS];
    GraphPoint incoming[GRAPH_INCOMING][GRAPH_POINTS];  // the nearest ones, guided at the present course
} Graph;

ENV_FN float wrap_angle(float angle) { return angle - 2.0f * M_PI_F * m_floor(angle * (0.5f / M_PI_F) + 0.5f); }

ENV_FN Pose pose_of(const Body *b) {
    Pose pose = {b->x, b->y, m_atan2(b->dy, b->dx), b->speed};
    return pose;
}
ENV_FN Pose pose_of_track(Track track) {
    float v = m_sqrt(track.vx * track.vx + track.vy * track.vy);
    Pose pose = {track.x, track.y, m_atan2(track.vy, track.vx), m_max(v, 1.0f)};
    return pose;
}

// Meters flown after t seconds with constant thrust and drag; *v becomes the speed then.
ENV_FN float graph_run(float *v, float thrust, float drag, float t) {
    if (thrust < 1e-3f) {
        float slowed = 1.0f + drag * *v * t;
        *v /= slowed;
        return m_log(slowed) / drag;
    }
    float top = m_sqrt(thrust / drag), rate = drag * top, share = *v / top;
    float rise = 1.0f + share, fall = (1.0f - share) * m_exp(-2.0f * rate * t);
    *v = top * (rise - fall) / (rise + fall);
    return (rate * t + m_log(0.5f * (rise + fall))) / drag;
}

// Seconds that s meters take with constant thrust and drag; *v becomes the speed then.
ENV_FN float graph_time(float *v, float thrust, float drag, float s) {
    float was = *v, top = m_sqrt(m_max(thrust, 1e-3f) / drag);
    *v = m_sqrt(m_max(top * top + (was * was - top * top) * m_exp(-2.0f * drag * s), 1.0f));
    return (m_log((top + *v) / (top + was)) + drag * s) / (drag * top);
}

// Moves a pose along an arc of s meters that turns by `turn` radians.
ENV_FN void graph_arc(float *x, float *y, float *heading, float turn, float s) {
    float half = 0.5f * turn, middle = *heading + half;
    float chord = m_abs(half) < 1e-3f ? s : s * m_sin(half) / half;
    *x += chord * m_cos(middle);
    *y += chord * m_sin(middle);
    *heading += turn;
}

// Where the body is after t seconds.
ENV_FN GraphPoint graph_at(const Maneuver *m, float t) {
    GraphPoint point = {m->from.x, m->from.y, t, m->from.v};
    const float thrust = m->frame.thrust, turn_drag = m->frame.drag + m->frame.induced;
    float heading = m->from.heading, length = m_abs(m->turn) / m->frame.turn, left = t, burn = m->burn;
    if (length > 0.0f) {
        float v = point.v, needed = graph_time(&v, thrust, turn_drag, length);
        if (needed >= t) {
            float s = graph_run(&point.v, thrust, turn_drag, t);
            graph_arc(&point.x, &point.y, &heading, m->turn > 0.0f ? s * m->frame.turn : -s * m->frame.turn, s);
            return point;
        }
        point.v = v;
        graph_arc(&point.x, &point.y, &heading, m->turn, length);
        left -= needed;
        burn = m_max(burn - needed, 0.0f);
    }
    float s = graph_run(&point.v, thrust, m->frame.drag, m_min(left, burn));
    if (left > burn) s += graph_run(&point.v, 0.0f, m->frame.drag, left - burn);
    point.x += s * m_cos(heading);
    point.y += s * m_sin(heading);
    return point;
}

// ---- the threat ----

// A missile that is fired now, 20 m ahead of the launcher, and turns.
ENV_FN Maneuver graph_launch(const Params *p, Pose launcher, float turn) {
    Maneuver m = {launcher, default_missile(p), turn, m_max(p->missile_burn, 0.0f)};
    m.from.x += 20.0f * m_cos(launcher.heading);
    m.from.y += 20.0f * m_sin(launcher.heading);
    return m;
}

// How far a missile that is fired now gets in t seconds, at `bearing` from the launcher's nose. A missile that has
// turned by an angle is at a smaller bearing, so the angle is searched for.
ENV_FN float graph_front(const Params *p, float speed, float bearing, float t) {
    const Pose launcher = {0.0f, 0.0f, 0.0f, speed};
    float wanted = m_abs(bearing), turn = wanted, distance = 0.0f;
    for (int32_t k = 0; k < 3; k++) {
        Maneuver m = graph_launch(p, launcher, turn);
        GraphPoint point = graph_at(&m, t);
        distance = m_sqrt(point.x * point.x + point.y * point.y);
        turn = m_clamp(turn + wanted - m_atan2(point.y, point.x), 0.0f, M_PI_F);
    }
    return distance;
}

// Meters from a point to the front of the threat, along the line from the launcher. Below 0: the missile gets farther.
ENV_FN float graph_margin(const Params *p, Pose launcher, GraphPoint point) {
    float dx = point.x - launcher.x, dy = point.y - launcher.y;
    float bearing = wrap_angle(m_atan2(dy, dx) - launcher.heading);
    return m_sqrt(dx * dx + dy * dy) - graph_front(p, launcher.v, bearing, point.t);
}

// ---- the own aircraft ----

// An escape to one side: 1 left, -1 right. Where directly away is changes in the turn, hence the correction.
ENV_FN Maneuver graph_escape(const Params *p, Pose own, Pose enemy, float side) {
    Maneuver m = {own, default_aircraft(p), 0.0f, 1e9f};
    float off = wrap_angle(m_atan2(own.y - enemy.y, own.x - enemy.x) - own.heading);
    if (m_abs(off) <= GRAPH_AWAY) return m;
    float turn = side * off - GRAPH_AWAY, x = own.x, y = own.y, heading = own.heading;
    turn = turn < 0.0f ? turn + 2.0f * M_PI_F : turn;
    graph_arc(&x, &y, &heading, side * turn, turn / m.frame.turn);
    float later = wrap_angle(m_atan2(y - enemy.y, x - enemy.x) - own.heading);
    m.turn = side * m_max(turn + side * wrap_angle(later - off), 0.0f);
    return m;
}

// Where the aircraft is after t seconds with its present rudder and throttle.
ENV_FN GraphPoint graph_course(const Params *p, Pose own, float rudder, float throttle, float t) {
    const Airframe frame = default_aircraft(p);
    GraphPoint point = {own.x, own.y, t, own.v};
    float heading = own.heading;
    float s = graph_run(&point.v, frame.thrust * throttle, frame.drag + frame.induced * rudder * rudder, t);
    graph_arc(&point.x, &point.y, &heading, rudder * s * frame.turn, s);
    return point;
}

// What an escape gains on a missile that the enemy fires now: the margin at its end, m.
ENV_FN float graph_escape_margin(const Params *p, Pose own, Pose enemy, float side) {
    Maneuver m = graph_escape(p, own, enemy, side);
    return graph_margin(p, enemy, graph_at(&m, (float)GRAPH_SECONDS));
}

// ---- incoming missiles ----

// The enemy missile in flight that is the nearest (rank 0) or second nearest (1) of those that a side notices, or -1.
ENV_FN int32_t graph_incoming(const State *s, const Params *p, int32_t side, int32_t rank) {
    int32_t nearest = -1, second = -1;
    float least = M_INF, next = M_INF;
    for (int32_t k = first_missile(1 - side); k < first_missile(1 - side) + channels; k++) {
        if (!is_noticed(s, p, k)) continue;
        float range = range_between(&s->body[k], &s->body[side]);
        if (range < least) {
            next = least;
            second = nearest;
            least = range;
            nearest = k;
        } else if (range < next) {
            next = range;
            second = k;
        }
    }
    return rank == 0 ? nearest : second;
}

// A chase is one missile after one plan of the own aircraft: the present course, the escapes to the left and right of
// that missile. All chases are flown side by side, so that a CPU computes eight of them at once; a GPU's thread flies
// them one after another, in registers.
#ifdef __CUDACC__
enum { GRAPH_LANES = 1 };
#else
enum { GRAPH_LANES = 8 };
#endif
enum { GRAPH_PLANS = 3, GRAPH_CHASES = GRAPH_INCOMING * GRAPH_PLANS };

// A body as arrays, one element per chase: compilers vectorize loops over such arrays.
typedef struct {
    float x[GRAPH_LANES], y[GRAPH_LANES], dx[GRAPH_LANES], dy[GRAPH_LANES], speed[GRAPH_LANES];
} Flock;

ENV_FN Body flock_get(const Flock *f, int32_t lane) {
    Body b = {f->x[lane], f->y[lane], f->dx[lane], f->dy[lane], f->speed[lane], 0.0f};
    return b;
}
ENV_FN void flock_set(Flock *f, int32_t lane, const Body *b) {
    f->x[lane] = b->x;
    f->y[lane] = b->y;
    f->dx[lane] = b->dx;
    f->dy[lane] = b->dy;
    f->speed[lane] = b->speed;
}

typedef struct {
    Flock missile, own;
    float age[GRAPH_LANES];     // s, of the missile
    float rudder[GRAPH_LANES];  // of the aircraft
    float throttle[GRAPH_LANES];
    float length[GRAPH_LANES];  // m for which it keeps that rudder, then it flies straight
    float least[GRAPH_LANES];   // the least squared distance so far
    int32_t flies[GRAPH_LANES];
    GraphPoint last[GRAPH_LANES];  // where the missile is, or was when the chase ended
} Chases;

ENV_FN GraphPoint chase_point(const Chases *c, int32_t lane, float t) {
    GraphPoint point = {c->missile.x[lane], c->missile.y[lane], t, c->missile.speed[lane]};
    return point;
}

ENV_FN void chase_begin(const State *s, const Params *p, int32_t side, int32_t number, Chases *c, int32_t lane) {
    int32_t plan = number % GRAPH_PLANS, k = -1;
    if (number < GRAPH_CHASES) k = graph_incoming(s, p, side, number / GRAPH_PLANS);
    c->flies[lane] = k >= 0;
    flock_set(&c->missile, lane, &s->body[k >= 0 ? k : side]);
    flock_set(&c->own, lane, &s->body[side]);
    c->age[lane] = k >= 0 ? s->age[k] : 0.0f;
    c->least[lane] = M_INF;
    c->last[lane] = chase_point(c, lane, 0.0f);
    if (k < 0) c->last[lane].v = 0.0f;
    c->rudder[lane] = s->body[side].rudder;
    c->throttle[lane] = s->throttle[side];
    c->length[lane] = M_INF;
    if (k < 0 || plan == 0) return;
    const Maneuver m = graph_escape(p, pose_of(&s->body[side]), pose_of(&s->body[k]), plan == 1 ? 1.0f : -1.0f);
    c->rudder[lane] = m.turn > 0.0f ? 1.0f : -1.0f;
    c->throttle[lane] = 1.0f;
    c->length[lane] = m_abs(m.turn) / m.frame.turn;
}

// One step of all lanes, to t seconds from now. Returns whether any missile still flies. A chase ends with a hit, when
// the missile is spent, and when its engine is off and it falls behind: it has passed its target, or will not reach it.
ENV_FN int32_t chase_step(const Params *p, Airframe fighter, Airframe missile, float t, Chases *c) {
    const float kill = p->kill_radius * p->kill_radius, burn = p->missile_burn, gain = p->missile_gain;
    float near[GRAPH_LANES], opening[GRAPH_LANES];
    int32_t any = 0;
    for (int32_t lane = 0; lane < GRAPH_LANES; lane++) {
        Body b = flock_get(&c->missile, lane), own = flock_get(&c->own, lane);
        float x = own.x - b.x, y = own.y - b.y, way = own.speed * GRAPH_STEP;
        float vx = own.speed * own.dx - b.speed * b.dx, vy = own.speed * own.dy - b.speed * b.dy;
        b.rudder = pursue(x, y, vx, vy, b.speed, &missile, gain);
        own.rudder = c->rudder[lane] * m_clamp(c->length[lane] / way, 0.0f, 1.0f);
        fly_fast(&own, &fighter, c->throttle[lane], GRAPH_STEP);
        fly_fast(&b, &missile, burning(burn, c->age[lane], 1.0f / GRAPH_STEP), GRAPH_STEP);
        near[lane] = closest(x, y, own.x - b.x, own.y - b.y);
        opening[lane] = x * vx + y * vy;
        c->length[lane] -= way;
        c->age[lane] += GRAPH_STEP;
        flock_set(&c->missile, lane, &b);
        flock_set(&c->own, lane, &own);
    }
    for (int32_t lane = 0; lane < GRAPH_LANES; lane++) {
        if (!c->flies[lane]) continue;
        c->least[lane] = m_min(c->least[lane], near[lane]);
        c->last[lane] = chase_point(c, lane, t);
        int32_t is_behind = (opening[lane] > 0.0f) & (c->age[lane] > burn);
        int32_t is_over = (c->least[lane] < kill) | is_behind | is_spent(p, c->missile.speed[lane], c->age[lane]);
        c->flies[lane] = !is_over;
        any |= !is_over;
    }
    return any;
}

// How near each missile comes to each plan within 30 s: miss[rank * GRAPH_PLANS + plan], M_INF without a missile. Also,
// unless paths is 0, the paths of the missiles after the present course, a point per second.
ENV_FN void graph_chase(const State *s, const Params *p, int32_t side, float *miss, GraphPoint (*paths)[GRAPH_POINTS]) {
    const Airframe fighter = default_aircraft(p), missile = default_missile(p);
    const int32_t every = (int32_t)(1.0f / GRAPH_STEP + 0.5f);
    for (int32_t first = 0; first < GRAPH_CHASES; first += GRAPH_LANES) {
        Chases c;
        int32_t any = 0, count = i_min(GRAPH_LANES, GRAPH_CHASES - first);
        for (int32_t lane = 0; lane < GRAPH_LANES; lane++) {
            chase_begin(s, p, side, first + lane, &c, lane);
            any |= c.flies[lane];
        }
        for (int32_t step = 0; step <= GRAPH_SECONDS * every; step++) {
            if (paths && step % every == 0) {
                for (int32_t lane = 0; lane < count; lane++) {
                    int32_t chase = first + lane;
                    if (chase % GRAPH_PLANS == 0) paths[chase / GRAPH_PLANS][step / every] = c.last[lane];
                }
            }
            if (step == GRAPH_SECONDS * every || (!any && !paths)) break;
            if (any) any = chase_step(p, fighter, missile, GRAPH_STEP * (float)(step + 1), &c);
        }
        for (int32_t lane = 0; lane < count; lane++) miss[first + lane] = m_sqrt(c.least[lane]);
    }
}

// ---- what a side observes, and every curve ----

// Far for a learner: no ratio of the range to a missile's reach is above 4, no margin outside -20 .. 20 km, no miss
// above 5 km. A missile that does not fly misses by as much.
#define GRAPH_RATIO 4.0f
#define GRAPH_MARGIN 20000.0f
#define GRAPH_MISS 5000.0f

// The range over the own no-escape range, the enemy's, the own range against a target that flies straight, the enemy's;
// the margins of the escapes to the left and to the right / 20 km; the misses / 5 km of the two nearest missiles
// against the present course; their misses against the better escape. Without a track of the enemy the first 6 are 0.
ENV_FN void stg_features(const State *s, const Params *p, int side, float *out10) {
    const Body *own = &s->body[side];
    const Track track = track_of(s, p, side), self = truth(own);
    const Pose here = pose_of(own), there = pose_of_track(track);
    const Body enemy = {track.x, track.y, m_cos(there.heading), m_sin(there.heading), there.v, 0.0f};
    for (int32_t k = 0; k < 6; k++) out10[k] = 0.0f;
    if (is_remembered(p, track.age)) {
        float range = range_between(own, &enemy);
        float theirs = aspect_from(own, track), ours = aspect_from(&enemy, self);
        out10[0] = m_min(range / no_escape_range(here.v, there.v, theirs), GRAPH_RATIO);
        out10[1] = m_min(range / no_escape_range(there.v, here.v, ours), GRAPH_RATIO);
        out10[2] = m_min(range / straight_range(here.v, there.v, theirs), GRAPH_RATIO);
        out10[3] = m_min(range / straight_range(there.v, here.v, ours), GRAPH_RATIO);
        for (int32_t k = 0; k < 2; k++) {
            float margin = graph_escape_margin(p, here, there, k == 0 ? 1.0f : -1.0f);
            out10[4 + k] = m_clamp(margin / GRAPH_MARGIN, -1.0f, 1.0f);
        }
    }
    float miss[GRAPH_CHASES];
    graph_chase(s, p, side, miss, 0);
    for (int32_t rank = 0; rank < GRAPH_INCOMING; rank++) {
        const float *missile = miss + rank * GRAPH_PLANS;
        out10[6 + rank] = m_min(missile[0] / GRAPH_MISS, 1.0f);
        out10[8 + rank] = m_min(m_max(missile[1], missile[2]) / GRAPH_MISS, 1.0f);
    }
}

ENV_FN void graph_fill(const State *s, const Params *p, int32_t side, Graph *graph) {
    const Body *own = &s->body[side];
    const Pose here = pose_of(own), there = pose_of_track(track_of(s, p, side));
    for (int32_t k = 0; k < GRAPH_POINTS; k++) {
        float t = (float)k;
        for (int32_t turn = 0; turn < GRAPH_TURNS; turn++) {
            const Maneuver missile = graph_launch(p, there, (M_PI_F / 12.0f) * (float)(turn - GRAPH_TURNS / 2));
            graph->threat[turn][k] = graph_at(&missile, t);
        }
        for (int32_t way = 0; way < 2; way++) {
            const Maneuver escape = graph_escape(p, here, there, way == 0 ? 1.0f : -1.0f);
            graph->escape[way][k] = graph_at(&escape, t);
        }
        graph->course[0][k] = graph_course(p, here, own->rudder, s->throttle[side], t);
    }
    float miss[GRAPH_CHASES];
    graph_chase(s, p, side, miss, graph->incoming);
}

ENV_REQUIRE(sizeof(Graph) == 18 * 31 * sizeof(GraphPoint), "ENV_CURVES lists the curves of Graph");

ENV_FN void env_curves(const State *s, const Params *p, int agent, float *out) {
    Graph graph;
    graph_fill(s, p, agent, &graph);
    memcpy(out, &graph, sizeof graph);
}
