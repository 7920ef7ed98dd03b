// game.h: the rules of midrange. midrange.h, midrange_full.h and midrange_continuous.h choose ENV_ACTION and include
// it.
//
// flight.h moves bodies, sensors.h says who sees whom, ranges.h how far missiles reach, robots.h plays, observe.h
// shows.
#define ENV_OBS OBS_F32(49)
#define ENV_AGENTS 2
#define ENV_HAS_CHECK
#define ENV_CONSTS(X)                                                                                                  \
    X(channels, 2, "missiles that a side can have in flight; 1: the original's rule")                                  \
    X(space_time, 0, "1: the 10 features of the space-time graph are observed; 0: they are 0")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, mode, 0, "fast: our integrator and guidance; faithful: the original's formulas")                            \
    X(float, time_scale, 0.5f, "s per decision; it does not change the physics")                                       \
    X(float, sub_step, 0.0f, "s per physics step; 0: 0.1 in mode fast, 1/60 in mode faithful")                         \
    X(float, time_limit, 240.0f, "s, then the game is a draw; 0: no limit")                                            \
    X(float, max_range, 0.0f, "km, beyond it the game is a draw; 0: no limit")                                         \
    X(int, ammo, 6, "missiles of each side")                                                                           \
    X(float, cooldown, 1.0f, "s between two launches of a side")                                                       \
    X(int, refire, 0, "1: a spent missile returns to the rail; a launch without a free channel ends the oldest one")   \
    X(float, rudder_slew, 0.0f, "1/s, how fast the rudder moves; 0: at once")                                          \
    X(float, throttle_slew, 0.0f, "1/s, how fast the throttle moves; 0: at once")                                      \
    X(float, noise, 0.0f, "the physics of a game differ by up to this share, for both sides alike; 0.1: 10 %")         \
    X(float, start_min, 30.0f, "km between the aircraft at the start, at least")                                       \
    X(float, start_max, 40.0f, "km between the aircraft at the start, at most; at least start_min")                    \
    X(float, start_angle, 0.5f, "rad, by which a nose may point past the enemy at the start, at most")                 \
    X(float, start_speed, 300.0f, "m/s")                                                                               \
    X(float, reward_win, 1.0f, "reward of the side that survives alone")                                               \
    X(float, reward_lose, -1.0f, "reward of the side that alone is shot down")                                         \
    X(float, reward_draw, -0.1f, "reward of both sides if the game ends otherwise")                                    \
    X(float, reward_shot, -0.01f, "reward of a launch")                                                                \
    X(float, reward_alive, 0.0f, "reward of each second")                                                              \
    X(float, shape_bearing, 0.0f, "potential of pointing at the enemy, times cos(bearing); the original's is 0.05")    \
    X(float, shape_range, 0.0f, "potential of being close, times 1 - range / 50 km")                                   \
    X(float, shape_gamma, 1.0f, "discount of the potential: that of the learner keeps the best policy the same")       \
    X(int, sensors, 0, "1: radar, lock, mid-course support, notch and late warning; 0: all is seen")                   \
    X(float, radar_range, 85.0f, "km")                                                                                 \
    X(float, radar_angle, 60.0f, "degrees to each side of the nose, of radars and seekers")                            \
    X(float, active_range, 15.0f, "km from its target at which a missile's own seeker takes over and is noticed")      \
    X(float, notch, 50.0f, "m/s, a target that approaches or recedes slower than this is not seen")                    \
    X(float, memory, 5.0f, "s for which a lost target's course is extrapolated")                                       \
    X(float, aircraft_thrust, 14.7f, "m/s^2 at full throttle")                                                         \
    X(float, aircraft_glide, 5.0f, "best lift-to-drag ratio")                                                          \
    X(float, aircraft_fall, 400.0f, "m/s, speed at which drag equals weight")                                          \
    X(float, aircraft_radius, 1000.0f, "m, turn radius at full rudder")                                                \
    X(float, missile_thrust, 147.0f, "m/s^2 while it burns")                                                           \
    X(float, missile_glide, 2.0f, "best lift-to-drag ratio")                                                           \
    X(float, missile_fall, 400.0f, "m/s, speed at which drag equals weight")                                           \
    X(float, missile_radius, 1000.0f, "m, turn radius at full rudder")                                                 \
    X(float, missile_burn, 10.0f, "s of thrust")                                                                       \
    X(float, missile_min_speed, 200.0f, "m/s, a missile that has burned out is spent below it")                        \
    X(float, missile_max_age, 90.0f, "s after launch at which a missile is spent")                                     \
    X(float, missile_gain, 4.0f, "navigation constant of proportional navigation, in mode fast")                       \
    X(float, kill_radius, 100.0f, "m")                                                                                 \
    X(int, draw_side, 0, "the side whose space-time graph the picture shows")                                          \
    X(float, draw_yaw, 25.0f, "degrees by which the graph is seen from the right of the aircraft's tail")              \
    X(int, robot_0, 0, "who plays the side")                                                                           \
    X(int, robot_1, 0, "who plays the side")
#define ENV_LIMITS(X)                                                                                                  \
    X("channels", 1, 6)                                                                                                \
    X("time_scale", 0.01, 5)                                                                                           \
    X("sub_step", 0, 0.5)                                                                                              \
    X("time_limit", 0, 1e5)                                                                                            \
    X("max_range", 0, 1e4)                                                                                             \
    X("ammo", 0, 100)                                                                                                  \
    X("cooldown", 0, 1e4)                                                                                              \
    X("refire", 0, 1)                                                                                                  \
    X("*_slew", 0, 1e3)                                                                                                \
    X("space_time", 0, 1)                                                                                              \
    X("noise", 0, 0.5)                                                                                                 \
    X("start_m*", 0.2, 200)                                                                                            \
    X("start_angle", 0, 3.15)                                                                                          \
    X("start_speed", 50, 1000)                                                                                         \
    X("shape_gamma", 0, 1)                                                                                             \
    X("draw_side", 0, 1)                                                                                               \
    X("draw_yaw", -180, 180)                                                                                           \
    X("sensors", 0, 1)                                                                                                 \
    X("radar_range", 0, 1e4)                                                                                           \
    X("radar_angle", 0, 180)                                                                                           \
    X("active_range", 0, 1e4)                                                                                          \
    X("notch", 0, 1e3)                                                                                                 \
    X("memory", 0, 1e3)                                                                                                \
    X("*_thrust", 0, 1000)                                                                                             \
    X("*_glide", 0.1, 100)                                                                                             \
    X("*_fall", 50, 5000)                                                                                              \
    X("*_radius", 10, 1e5)                                                                                             \
    X("missile_burn", 0, 1e3)                                                                                          \
    X("missile_min_speed", 0, 1e3)                                                                                     \
    X("missile_max_age", 0, 1e4)                                                                                       \
    X("missile_gain", 0, 100)
#define ENV_CHOICES(X)                                                                                                 \
    X("mode", "fast faithful")                                                                                         \
    X("robot_*", "learner drone shooter weaver random pursuit crank nez mix")
#define ENV_PRESETS(X)                                                                                                 \
    X("difficulty-0", "robot_1=drone", "side 1 flies straight and never fires")                                        \
    X("difficulty-1", "robot_1=shooter", "side 1 fires near 25 km, then turns back")                                   \
    X("difficulty-2", "robot_1=weaver", "side 1 weaves, evades and counter-attacks")                                   \
    X("difficulty-3", "robot_1=pursuit", "side 1 pursues and fires within 15 km")                                      \
    X("difficulty-4", "robot_1=crank", "side 1 fires at 20 km and keeps its enemy 50 degrees off")                     \
    X("difficulty-5", "robot_1=nez", "side 1 fires within the no-escape range and runs in time")                       \
    X("sensors", "sensors=1", "radar, lock, mid-course support, notch and late warning")                               \
    X("faithful", "channels=6 mode=faithful time_scale=0.1 cooldown=0.5 start_min=30 start_max=30 start_angle=0",      \
      "the original's formulas, head-on start and unlimited missiles in flight")
#define ENV_CURVES(X)                                                                                                  \
    X(threat, 13, 31, "an enemy missile fired now that turns by -90 to 90 degrees, in steps of 15")                    \
    X(escape, 2, 31, "away from the enemy, by the left and by the right")                                              \
    X(course, 1, 31, "with the present rudder and throttle")                                                           \
    X(incoming, 2, 31, "the nearest missiles, guided at the present course")
#define ENV_STATS(X)                                                                                                   \
    X(sum, wins_0, "1 if side 0 won")                                                                                  \
    X(sum, wins_1, "1 if side 1 won")                                                                                  \
    X(sum, draws, "1 if nobody won")                                                                                   \
    X(sum, mutual_kills, "1 if both were shot down")                                                                   \
    X(sum, shots_0, "missiles that side 0 fired")                                                                      \
    X(sum, shots_1, "missiles that side 1 fired")                                                                      \
    X(sum, seconds, "length of the game, s")                                                                           \
    X(mean, range, "mean range between the aircraft, km")
#include "core/env.h"
ENV_REQUIRE(channels >= 1 && channels <= 6, "channels must be in 1 .. 6");
enum { FAST, FAITHFUL };
enum { LEARNER, DRONE, SHOOTER, WEAVER, RANDOM, PURSUIT, CRANK, NEZ, MIX };
enum { shots = 2 * channels, bodies = 2 + shots };  // 0 and 1: the aircraft; then the missiles of side 0, of side 1
enum { kinds = 2 };                                 // of airframes: aircraft and missiles

// Where a point mass is. x and y span the plane; angles grow to the left.
typedef struct {
    float x, y;    // m
    float dx, dy;  // direction of flight, a unit vector
    float speed;   // m/s
    float rudder;  // -1 full right to 1 full left
} Body;

#include "trail.h"

// What a body knows of its target.
typedef struct {
    float x, y, vx, vy;  // m, m/s
    float age;           // s since it was seen; 0: now
} Track;

typedef struct {
    Body body[bodies];
    int32_t flies[bodies];
    float age[bodies];      // s since launch, of a missile
    float sight[bodies];    // rad, the line of sight to the target one step ago: mode faithful
    float throttle[2];      // 0 to 1
    float cooldown[2];      // s until a side can fire again
    int32_t ammo[2];        // missiles on the rails
    int32_t t;              // decisions taken
    int32_t mixed[2];       // the robot that `mix` plays in this game
    float scale[kinds][4];  // this game's factors of thrust, glide, fall and radius
    Track track[bodies];    // with sensors only
    Trail trail;            // for the picture
} State;

ENV_FN int32_t side_of(int32_t k) { return k < 2 ? k : (k - 2) / channels; }
ENV_FN int32_t first_missile(int32_t side) { return 2 + side * channels; }

#include "flight.h"
#include "sensors.h"
#include "ranges.h"

// ---- space-time graph ----
#include "space_time.h"

#include "observe.h"
#include "robots.h"

// ---- start ----

ENV_FN void put_aircraft(State *s, const Params *p, int32_t side, float x, float y, float heading, Rng *rng) {
    Body *own = &s->body[side];
    own->x = x;
    own->y = y;
    own->dx = m_cos(heading);
    own->dy = m_sin(heading);
    own->speed = m_clamp(p->start_speed, 50.0f, 1000.0f);
    own->rudder = 0.0f;
    s->flies[side] = 1;
    s->throttle[side] = 1.0f;
    s->cooldown[side] = 0.0f;
    s->ammo[side] = i_clamp(p->ammo, 0, 100);
    s->mixed[side] = DRONE + rng_int(rng, MIX - DRONE);
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    memset(s, 0, sizeof *s);
    float least = 1000.0f * m_clamp(p->start_min, 0.2f, 200.0f), most = 1000.0f * m_clamp(p->start_max, 0.2f, 200.0f);
    float half = 0.5f * rng_uniform(rng, least, m_max(most, least));
    float line = rng_uniform(rng, -M_PI_F, M_PI_F);  // from side 0 to side 1
    float off = m_clamp(p->start_angle, 0.0f, 3.15f);
    float x = half * m_cos(line), y = half * m_sin(line);
    float nose_0 = rng_uniform(rng, -off, off), nose_1 = rng_uniform(rng, -off, off);
    put_aircraft(s, p, 0, -x, -y, line + nose_0, rng);
    put_aircraft(s, p, 1, x, y, line + M_PI_F + nose_1, rng);
    float spread = m_clamp(p->noise, 0.0f, 0.5f);
    for (int32_t kind = 0; kind < kinds; kind++) {
        for (int32_t k = 0; k < 4; k++) s->scale[kind][k] = 1.0f + spread * rng_uniform(rng, -1.0f, 1.0f);
    }
    for (int32_t k = 0; k < bodies; k++) s->track[k].age = 1e9f;
    if (p->sensors) sense(s, p, 0.0f);
}

// ---- a decision ----

ENV_FN Command command_of(const Action *a) {
    Command c;
    if ((int)ACTION_KIND == (int)SHOAL_BOX) {
        c.rudder = (float)a[0];
        c.throttle = (float)a[1];
        c.fire = (float)a[ACTION_SIZE - 1] > 0.5f;
    } else if (ACTION_SIZE == 3) {
        c.rudder = 0.5f * (float)a[0] - 1.0f;
        c.throttle = 0.5f * (float)a[1];
        c.fire = a[ACTION_SIZE - 1] != 0;
    } else {
        c.rudder = (float)a[0] - 1.0f;
        c.throttle = 1.0f;
        c.fire = a[ACTION_SIZE - 1] != 0;
    }
    return c;
}

// The channel that a launch would use, or -1. With `refire` it may be that of the oldest missile in flight.
ENV_FN int32_t channel_for(const State *s, const Params *p, int32_t side) {
    int32_t best = -1;
    for (int32_t k = first_missile(side); k < first_missile(side) + channels; k++) {
        if (!s->flies[k]) return k;
        if (p->refire && (best < 0 || s->age[k] > s->age[best])) best = k;
    }
    return best;
}

// After a missile is spent.
ENV_FN void reload(State *s, const Params *p, int32_t side) {
    if (p->refire) s->ammo[side] = i_min(s->ammo[side] + 1, 100);
}

// Fires if the side can: 20 m ahead, with the velocity of the aircraft. Returns whether it did.
ENV_FN int32_t launch(State *s, const Params *p, int32_t side) {
    int32_t k = channel_for(s, p, side);
    int32_t has_lock = !p->sensors || s->track[side].age == 0.0f;
    if (k < 0 || !has_lock || s->cooldown[side] > 0.001f) return 0;  // rounding
    if (s->flies[k]) reload(s, p, side);
    if (s->ammo[side] <= 0) return 0;
    s->body[k] = s->body[side];
    s->body[k].x += 20.0f * s->body[side].dx;
    s->body[k].y += 20.0f * s->body[side].dy;
    s->body[k].rudder = 0.0f;
    s->flies[k] = 1;
    s->age[k] = 0.0f;
    s->sight[k] = line_of_sight(&s->body[k], &s->body[1 - side]);
    s->track[k] = s->track[side];
    s->ammo[side]--;
    s->cooldown[side] = m_max(p->cooldown, 0.0f);
    return 1;
}

ENV_FN float approach(float now, float wanted, float most) { return now + m_clamp(wanted - now, -most, most); }

// The missiles during a decision: one array for each field, so that a CPU flies all of them at a time.
typedef struct {
    float x[shots], y[shots], dx[shots], dy[shots], speed[shots], rudder[shots], age[shots], sight[shots];
    float to_x[shots], to_y[shots];  // from a missile to its target
    float miss[shots];               // the least squared distance to the target in the last step
    int32_t flies[shots];
} Missiles;

ENV_FN void take_missiles(const State *s, Missiles *m) {
    for (int32_t k = 0; k < shots; k++) {
        const Body *b = &s->body[2 + k];
        m->x[k] = b->x;
        m->y[k] = b->y;
        m->dx[k] = b->dx;
        m->dy[k] = b->dy;
        m->speed[k] = b->speed;
        m->rudder[k] = b->rudder;
        m->age[k] = s->age[2 + k];
        m->sight[k] = s->sight[2 + k];
        m->flies[k] = s->flies[2 + k];
        m->to_x[k] = s->body[k < channels].x - b->x;
        m->to_y[k] = s->body[k < channels].y - b->y;
    }
}
ENV_FN void return_missiles(State *s, const Missiles *m) {
    for (int32_t k = 0; k < shots; k++) {
        Body *b = &s->body[2 + k];
        b->x = m->x[k];
        b->y = m->y[k];
        b->dx = m->dx[k];
        b->dy = m->dy[k];
        b->speed = m->speed[k];
        b->rudder = m->rudder[k];
        s->age[2 + k] = m->age[k];
        s->sight[2 + k] = m->sight[k];
        s->flies[2 + k] = m->flies[k];
    }
}

// Sets the rudders of all missiles.
ENV_FN void guide(const State *s, const Params *p, const Airframe *f, Missiles *m, float h) {
    float x[shots], y[shots], vx[shots], vy[shots];  // of the target, relative
    const Track first = truth(&s->body[0]), second = truth(&s->body[1]);
    for (int32_t k = 0; k < shots; k++) {
        x[k] = m->to_x[k];
        y[k] = m->to_y[k];
        vx[k] = k < channels ? second.vx : first.vx;
        vy[k] = k < channels ? second.vy : first.vy;
    }
    for (int32_t k = 0; k < shots && p->sensors; k++) {
        x[k] = s->track[2 + k].x - m->x[k];
        y[k] = s->track[2 + k].y - m->y[k];
        vx[k] = s->track[2 + k].vx;
        vy[k] = s->track[2 + k].vy;
    }
    if (p->mode == FAITHFUL) {
        for (int32_t k = 0; k < shots; k++) {
            float now = m_atan2(y[k], x[k]);
            m->rudder[k] = pursue_by_difference(m->sight[k], now, h);
            m->sight[k] = now;
        }
    } else {
        for (int32_t k = 0; k < shots; k++) {
            float closing_x = vx[k] - m->speed[k] * m->dx[k], closing_y = vy[k] - m->speed[k] * m->dy[k];
            m->rudder[k] = pursue(x[k], y[k], closing_x, closing_y, m->speed[k], f, p->missile_gain);
        }
    }
    for (int32_t k = 0; k < shots && p->sensors; k++) {  // a missile that has lost its target flies straight
        if (!is_remembered(p, s->track[2 + k].age)) m->rudder[k] = 0.0f;
    }
}

ENV_FN void fly_missiles(const State *s, const Params *p, const Airframe *f, Missiles *m, float h) {
    const float per_step = 1.0f / h, burn = p->missile_burn;
    float x[shots], y[shots];  // of the target
    const Body first = s->body[0], second = s->body[1];
    for (int32_t k = 0; k < shots; k++) {
        x[k] = k < channels ? second.x : first.x;
        y[k] = k < channels ? second.y : first.y;
    }
    if (p->mode == FAITHFUL) {
        for (int32_t k = 0; k < shots; k++) {
            Body b = {m->x[k], m->y[k], m->dx[k], m->dy[k], m->speed[k], m->rudder[k]};
            fly_faithful(&b, f, burning(burn, m->age[k], per_step), h);
            m->x[k] = b.x;
            m->y[k] = b.y;
            m->dx[k] = b.dx;
            m->dy[k] = b.dy;
            m->speed[k] = b.speed;
            m->age[k] += h;
            m->to_x[k] = x[k] - b.x;
            m->to_y[k] = y[k] - b.y;
            m->miss[k] = m->to_x[k] * m->to_x[k] + m->to_y[k] * m->to_y[k];
        }
        return;
    }
    for (int32_t k = 0; k < shots; k++) {
        Body b = {m->x[k], m->y[k], m->dx[k], m->dy[k], m->speed[k], m->rudder[k]};
        fly_fast(&b, f, burning(burn, m->age[k], per_step), h);
        float to_x = x[k] - b.x, to_y = y[k] - b.y;
        m->miss[k] = closest(m->to_x[k], m->to_y[k], to_x, to_y);
        m->x[k] = b.x;
        m->y[k] = b.y;
        m->dx[k] = b.dx;
        m->dy[k] = b.dy;
        m->speed[k] = b.speed;
        m->age[k] += h;
        m->to_x[k] = to_x;
        m->to_y[k] = to_y;
    }
}

// One physics step: guide, fly, then collect all hits before any counts, so that both sides can die. Missiles that do
// not fly are computed too, and not looked at.
ENV_FN void sub_step(State *s, const Params *p, const Airframe *frames, const Command *commands, Missiles *m, float h) {
    int32_t in_flight = 0;
    for (int32_t k = 0; k < shots; k++) in_flight |= m->flies[k];
    if (in_flight) guide(s, p, &frames[1], m, h);
    for (int32_t side = 0; side < 2; side++) {
        float rudder_step = p->rudder_slew > 0.0f ? p->rudder_slew * h : 2.0f;
        float throttle_step = p->throttle_slew > 0.0f ? p->throttle_slew * h : 2.0f;
        s->body[side].rudder = approach(s->body[side].rudder, commands[side].rudder, rudder_step);
        s->throttle[side] = approach(s->throttle[side], commands[side].throttle, throttle_step);
        s->cooldown[side] = m_max(s->cooldown[side] - h, 0.0f);
        fly(&s->body[side], &frames[0], s->throttle[side], h, p->mode);
    }
    if (in_flight) {
        fly_missiles(s, p, &frames[1], m, h);
        const float kill = p->kill_radius * p->kill_radius;
        int32_t any = 0;  // all are tested at a time; to go through them one by one is rarely needed
        for (int32_t k = 0; k < shots; k++) {
            any |= m->flies[k] & ((m->miss[k] < kill) | is_spent(p, m->speed[k], m->age[k]));
        }
        for (int32_t k = 0; k < shots && any; k++) {
            int32_t hits = m->flies[k] & (m->miss[k] < kill), side = k < channels ? 0 : 1;
            int32_t ends = m->flies[k] & !hits & is_spent(p, m->speed[k], m->age[k]);
            m->flies[k] &= !(hits | ends);
            s->flies[1 - side] &= !hits;
            if (ends) reload(s, p, side);
        }
    }
    if (p->sensors) {
        return_missiles(s, m);
        sense(s, p, h);
    }
}

// The potential of a side's place, for shaping.
ENV_FN float potential(const State *s, const Params *p, int32_t side) {
    Sight enemy = look(&s->body[side], track_of(s, p, side));
    return p->shape_bearing * enemy.ahead + p->shape_range * (1.0f - enemy.range * (1.0f / 50000.0f));
}

// Whether the game is over without a death.
ENV_FN int32_t is_over(const State *s, const Params *p, float range) {
    int32_t in_flight = 0;
    for (int32_t k = 2; k < bodies; k++) in_flight |= s->flies[k];
    int32_t is_empty = !in_flight && s->ammo[0] <= 0 && s->ammo[1] <= 0;
    float decision = decision_time(p), now = (float)s->t * decision;
    int32_t is_late = p->time_limit > 0.0f && now > p->time_limit - 0.5f * decision;
    int32_t is_far = p->max_range > 0.0f && range > 1000.0f * p->max_range;
    return is_empty | is_late | is_far;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    const int32_t robots[2] = {p->robot_0, p->robot_1}, shapes = p->shape_bearing != 0.0f || p->shape_range != 0.0f;
    const Airframe frames[kinds] = {airframe_of(s, p, 0), airframe_of(s, p, 1)};
    Command commands[2];
    float before[2] = {0.0f, 0.0f};
    for (int32_t side = 0; side < 2; side++) {
        commands[side] =
            robots[side] == LEARNER ? command_of(a + side * ACTION_SIZE) : robot_command(s, p, side, robots[side], rng);
        if (shapes) before[side] = potential(s, p, side);
    }
    int32_t fired[2] = {0, 0};
    for (int32_t side = 0; side < 2; side++) {
        if (commands[side].fire) fired[side] = launch(s, p, side);
    }
    float h = step_time(p);
    int32_t steps = steps_per_decision(p), taken = 0;
    Missiles missiles;
    take_missiles(s, &missiles);
    for (; taken < steps && s->flies[0] && s->flies[1]; taken++) sub_step(s, p, frames, commands, &missiles, h);
    return_missiles(s, &missiles);
    s->t++;
    trail_keep(&s->trail, s->body, (float)s->t * decision_time(p));

    int32_t dead_0 = !s->flies[0], dead_1 = !s->flies[1];
    float dx = s->body[1].x - s->body[0].x, dy = s->body[1].y - s->body[0].y, range = m_sqrt(dx * dx + dy * dy);
    int32_t ends = dead_0 | dead_1 | is_over(s, p, range), is_draw = ends & (dead_0 == dead_1);
    float seconds = (float)taken * h;
    for (int32_t side = 0; side < 2; side++) {
        int32_t lost = side == 0 ? dead_0 : dead_1;
        float reward = p->reward_alive * seconds + (fired[side] ? p->reward_shot : 0.0f);
        if (ends) reward += is_draw ? p->reward_draw : lost ? p->reward_lose : p->reward_win;
        if (shapes) reward += (ends ? 0.0f : p->shape_gamma * potential(s, p, side)) - before[side];
        out->rewards[side] = reward;
        out->terminations[side] = ends;
    }
    out->stats.wins_0 = (float)(dead_1 & !dead_0);
    out->stats.wins_1 = (float)(dead_0 & !dead_1);
    out->stats.draws = (float)is_draw;
    out->stats.mutual_kills = (float)(dead_0 & dead_1);
    out->stats.shots_0 = (float)fired[0];
    out->stats.shots_1 = (float)fired[1];
    out->stats.seconds = seconds;
    out->stats.range = 0.001f * range;
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    return s->t >= 0 && s->t < (1 << 30) && s->ammo[0] >= 0 && s->ammo[0] <= 100 && s->ammo[1] >= 0 &&
           s->ammo[1] <= 100;
}

// ---- drawing ----
#include "picture.h"
