// robots.h: scripted players. They see what a learner sees, and fly with the rudder of midrange_continuous.

typedef struct {
    float rudder, throttle;
    int32_t fire;
} Command;

// What a robot decides by.
typedef struct {
    Sight enemy;
    int32_t in_flight;  // own missiles
    int32_t is_threatened;
    Sight threat;  // the nearest incoming missile that it notices
    float impact;  // s until that missile arrives
} Scene;

#define COS_10 0.984808f
#define COS_20 0.939693f
#define COS_30 0.866025f

ENV_FN Scene scene_of(const State *s, const Params *p, int32_t side) {
    Scene scene;
    const Body *own = &s->body[side];
    scene.enemy = look(own, track_of(s, p, side));
    scene.in_flight = nearest_missiles(s, p, side, own, 0).count;
    int32_t missile = nearest_missiles(s, p, 1 - side, own, 1).at[0];
    scene.is_threatened = missile >= 0;
    scene.threat = scene.enemy;
    scene.impact = 1e9f;
    if (scene.is_threatened) {
        scene.threat = look(own, truth(&s->body[missile]));
        if (scene.threat.closing > 1.0f) scene.impact = scene.threat.range / scene.threat.closing;
    }
    return scene;
}

// How far behind an aircraft at `speed` a missile can be and still catch it. It coasts until it is no faster than its
// target: (ln(v / u) - 1 + u / v) / drag for speeds v and u; the burn ahead of it adds to both.
ENV_FN float missile_reach(const Params *p, const Airframe *f, const Body *missile, float age, float speed) {
    float burn = m_max(p->missile_burn - age, 0.0f), u = m_max(speed, p->missile_min_speed);
    float v = missile->speed + burn * 0.67f * f->thrust;  // drag takes about a third of the thrust
    float gained = burn * (0.5f * (missile->speed + v) - u);
    if (v <= u) return gained;
    return gained + (m_log(v / u) - 1.0f + u / v) / f->drag;
}

// Finds the nearest of the incoming missiles that could still catch a side that turned away now. Returns whether there
// is one. One that closes at less than 100 m/s is left behind.
ENV_FN int32_t find_catcher(const State *s, const Params *p, int32_t side, Sight *catcher) {
    Airframe f = airframe_of(s, p, 1);
    int32_t found = 0;
    for (int32_t k = first_missile(1 - side); k < first_missile(1 - side) + channels; k++) {
        if (!is_noticed(s, p, k)) continue;
        Sight missile = look(&s->body[side], truth(&s->body[k]));
        float reach = missile_reach(p, &f, &s->body[k], s->age[k], s->body[side].speed);
        reach += 2500.0f * (1.0f + missile.ahead);                                // the aircraft first has to turn
        if (missile.range > 0.92f * reach || missile.closing < 100.0f) continue;  // so has the missile, at a cost
        if (found && missile.range > catcher->range) continue;
        *catcher = missile;
        found = 1;
    }
    return found;
}

// From how far a missile of this side would hit an enemy that turned away now, in m.
ENV_FN float no_escape_now(const State *s, const Params *p, int32_t side) {
    Track enemy = track_of(s, p, side);
    float speed = m_sqrt(enemy.vx * enemy.vx + enemy.vy * enemy.vy);
    return no_escape_range(s->body[side].speed, speed, aspect_from(&s->body[side], enemy));
}

// The rudder that turns the nose to a direction, given by cos and sin of its bearing.
ENV_FN float turn_to(float ahead, float left) {
    if (ahead < 0.5f) return left < 0.0f ? -1.0f : 1.0f;
    return m_clamp(4.0f * left, -1.0f, 1.0f);
}
// The rudder that keeps something this angle off the nose, on the side where it is. c and s: cos and sin of the angle.
ENV_FN float keep_off(Sight what, float c, float s) {
    float side = what.left < 0.0f ? 1.0f : -1.0f;  // it is on the right: turn to its left
    return turn_to(what.ahead * c - side * what.left * s, what.left * c + side * what.ahead * s);
}
ENV_FN float run_from(Sight what) { return turn_to(-what.ahead, -what.left); }
ENV_FN float crank(Sight what) { return keep_off(what, 0.642788f, 0.766044f); }  // 50 degrees
ENV_FN float beam(Sight what) { return keep_off(what, 0.0f, 1.0f); }

ENV_FN Command robot_command(const State *s, const Params *p, int32_t side, int32_t robot, Rng *rng) {
    Command c = {0.0f, 1.0f, 0};
    if (robot == MIX) robot = s->mixed[side];
    if (robot == RANDOM) {
        c.rudder = (float)(rng_int(rng, 3) - 1);
        c.fire = rng_uniform(rng, 0.0f, 1.0f) < 0.05f;
        return c;
    }
    if (robot < SHOOTER || robot > NEZ) return c;  // a drone
    Scene now = scene_of(s, p, side);
    float range = now.enemy.range, ahead = now.enemy.ahead;
    if (robot == SHOOTER) {
        c.fire = range < 25000.0f && ahead > COS_30 && now.in_flight == 0;
        c.rudder = now.in_flight || range < 22000.0f ? run_from(now.enemy) : turn_to(ahead, now.enemy.left);
    } else if (robot == WEAVER) {
        float seconds = (float)s->t * decision_time(p);
        float angle = 0.7f * m_sin(seconds * (2.0f * M_PI_F / 12.0f));  // 40 degrees, every 12 s
        float cosine = m_cos(angle), sine = m_sin(angle);
        c.fire = range < 16000.0f && ahead > COS_30 && now.in_flight == 0;
        c.rudder = turn_to(ahead * cosine - now.enemy.left * sine, now.enemy.left * cosine + ahead * sine);
        if (now.is_threatened && now.threat.range < 12000.0f) c.rudder = run_from(now.threat);
    } else if (robot == PURSUIT) {
        c.fire = range > 2000.0f && range < 15000.0f && ahead > COS_10 && now.in_flight == 0;
        c.rudder = now.impact < 10.0f ? beam(now.threat) : turn_to(ahead, now.enemy.left);
    } else if (robot == CRANK) {
        c.fire = range < 20000.0f && ahead > COS_30;
        c.rudder = now.in_flight ? crank(now.enemy) : turn_to(ahead, now.enemy.left);
        if (now.is_threatened && now.threat.range < 12000.0f) c.rudder = run_from(now.threat);
    } else {
        c.fire = ahead > COS_20 && range < 1.1f * no_escape_now(s, p, side);
        c.rudder = now.in_flight ? crank(now.enemy) : turn_to(ahead, now.enemy.left);
        if (find_catcher(s, p, side, &now.threat)) c.rudder = run_from(now.threat);
    }
    return c;
}
