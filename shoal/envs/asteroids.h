// asteroids.h: fly a ship among drifting rocks and shoot them to pieces.
//
// After Atari's arcade game (1979): a field of 800 x 600 px whose edges are joined, 15 steps per second. The ship
// turns, thrusts, glides on with little drag, and has four shots in the air at most. A large rock splits into two of
// medium size, those into two small ones, each with a random course, smaller ones faster. A ship that meets a rock is
// lost and the rock splits; the next ship appears in the centre and cannot be hurt for two seconds. When all rocks are
// gone, the next wave comes from the edges: 4 large ones, then 6, then 8. Hits are exact: paths within a step are
// straight, and what comes closer than the sum of the radii has met. Not in it: saucers and hyperspace.
//
// obs: the ship's velocity ahead and to its right / 400 px/s; shots left / 4; 1 if the gun is loaded; steps that it
// cannot be hurt / 30; rocks / 32; of the 8 nearest rocks, nearest first: 1; its place ahead and to the right of the
// ship / 500 px; its velocity relative to the ship's, ahead and to the right / 300 px/s; its radius / 40 px; the
// direction, ahead and to the right, of where it will be after the time that a shot needs to its place; of each shot:
// 1, its place as above. What there is not is zeros.
// action: turn + 3 * thrust + 6 * shoot. turn: 0 none, 1 left, 2 right; thrust and shoot: 0 or 1.
// reward: hundredths of the arcade's points: 0.2 for a large rock, 0.5 for a medium one, 1 for a small one; nothing for
// a rock that the ship ran into. A large rock is worth 5.2 in all, the first wave 20.8.
// Random play returns 13.8. Turning to where the nearest rock will be and shooting (tests/asteroids_twin.py)
// returns 99.
#define ENV_OBS OBS_F32(82)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(12)
#define ENV_MAX_STEPS 2000
#define ENV_HAS_CHECK
#define ENV_PARAMS(X)                                                                                                  \
    X(int, lives, 3, "ships")                                                                                          \
    X(int, rocks, 4, "large rocks of the first wave; each later one has two more, up to 8")                            \
    X(int, turn, 7, "1/256 of a turn per step")                                                                        \
    X(int, reload, 4, "steps between shots")                                                                           \
    X(float, thrust, 300.0f, "px/s^2")                                                                                 \
    X(float, drag, 0.03f, "share of the speed lost in a step")                                                         \
    X(float, rock_speed, 1.0f, "factor of the rocks' speeds: 40 to 90, 60 to 140, 80 to 200 px/s by size")             \
    X(float, death, 0.0f, "reward lost with a ship")
#define ENV_LIMITS(X)                                                                                                  \
    X("lives", 1, 100)                                                                                                 \
    X("rocks", 1, 8)                                                                                                   \
    X("turn", 1, 64)                                                                                                   \
    X("reload", 1, 1000) X("thrust", 0, 3000) X("drag", 0, 1) X("rock_speed", 0, 4) X("death", 0, 10000)
#define ENV_STATS(X)                                                                                                   \
    X(sum, score, "points of the arcade")                                                                              \
    X(sum, hits, "rocks shot")                                                                                         \
    X(sum, shots, "shots fired")                                                                                       \
    X(sum, deaths, "ships lost")                                                                                       \
    X(sum, waves, "waves cleared")
#include "core/env.h"

enum { ROCKS = 32, SHOTS = 4, SEEN = 8, SHOT_STEPS = 14, SAFE_STEPS = 30, MOST = 8 };
enum { LARGE = 1, MEDIUM, SMALL };
#define WIDTH 800.0f
#define HEIGHT 600.0f
#define STEP (1.0f / 15.0f)  // s
#define SHIP 10.0f           // radius, px
#define SHOT_SPEED 500.0f    // px/s
#define MAX_SPEED 400.0f
#define CLEAR 160.0f  // no rock of a new wave is nearer to the ship, px

typedef struct {
    float x, y, vx, vy;  // px, px/s; y points down
    int32_t kind;        // of a rock its size, of a shot the steps left; 0: none
} Body;

typedef struct {
    Body ship;
    Body rocks[ROCKS], shots[SHOTS];
    int32_t count;    // rocks: the first ones of the array
    int32_t heading;  // 1/256 of a turn, from the right, clockwise
    int32_t reload;   // steps until the gun is loaded
    int32_t safe;     // steps that the ship cannot be hurt
    int32_t lives, wave, score;
} State;

ENV_FN float radius_of(int32_t size) { return size == LARGE ? 40.0f : size == MEDIUM ? 20.0f : 10.0f; }
ENV_FN float angle_of(int32_t heading) { return (float)heading * (2.0f * M_PI_F / 256.0f); }
ENV_FN float wrap(float x, float size) { return x < 0.0f ? x + size : x >= size ? x - size : x; }
// The shorter way between two places, across the edges or not.
ENV_FN float nearest(float d, float size) { return d > 0.5f * size ? d - size : d < -0.5f * size ? d + size : d; }

ENV_FN void move(Body *b) {
    b->x = wrap(b->x + b->vx * STEP, WIDTH);
    b->y = wrap(b->y + b->vy * STEP, HEIGHT);
}

// The part of the step (0 to 1) at which two bodies are nearest to each other; 2 if they do not meet.
ENV_FN float meeting(const Body *a, const Body *b, float reach) {
    float x = nearest(a->x - b->x, WIDTH), y = nearest(a->y - b->y, HEIGHT);
    float dx = (a->vx - b->vx) * STEP, dy = (a->vy - b->vy) * STEP, length = dx * dx + dy * dy;
    if (m_abs(x) > reach + m_abs(dx) + 1.0f || m_abs(y) > reach + m_abs(dy) + 1.0f) return 2.0f;  // far away: most are
    float t = length > 0.0f ? m_clamp(-(x * dx + y * dy) / length, 0.0f, 1.0f) : 0.0f;
    x += t * dx;
    y += t * dy;
    return x * x + y * y < reach * reach ? t : 2.0f;
}

ENV_FN void send_rock(Body *rock, const Params *p, int32_t size, float x, float y, Rng *rng) {
    float angle = angle_of(rng_int(rng, 256));
    float slowest = 20.0f + 20.0f * (float)size, fastest = size == LARGE ? 90.0f : size == MEDIUM ? 140.0f : 200.0f;
    float speed = rng_uniform(rng, slowest, fastest) * m_clamp(p->rock_speed, 0.0f, 4.0f);
    rock->x = x;
    rock->y = y;
    rock->vx = speed * m_cos(angle);
    rock->vy = speed * m_sin(angle);
    rock->kind = size;
}

// Two smaller rocks take the place of one; the last rock takes the place of a small one.
ENV_FN void split_rock(State *s, const Params *p, int32_t k, Rng *rng) {
    Body rock = s->rocks[k];
    if (rock.kind == SMALL) {
        s->rocks[k] = s->rocks[--s->count];
        return;
    }
    send_rock(&s->rocks[k], p, rock.kind + 1, rock.x, rock.y, rng);
    if (s->count < ROCKS) send_rock(&s->rocks[s->count++], p, rock.kind + 1, rock.x, rock.y, rng);
}

// Large rocks on the field's edges, away from the ship.
ENV_FN void send_wave(State *s, const Params *p, Rng *rng) {
    s->count = i_min(i_clamp(p->rocks, 1, MOST) + 2 * i_min(s->wave, MOST), MOST);
    for (int32_t k = 0; k < s->count; k++) {
        int32_t is_side = rng_int(rng, 2);
        float place = rng_uniform(rng, 0.0f, 1.0f), x = is_side ? 0.0f : place * WIDTH,
              y = is_side ? place * HEIGHT : 0.0f;
        float dx = nearest(x - s->ship.x, WIDTH), dy = nearest(y - s->ship.y, HEIGHT);
        if (dx * dx + dy * dy < CLEAR * CLEAR) {
            x = wrap(x + 0.5f * WIDTH, WIDTH);
            y = wrap(y + 0.5f * HEIGHT, HEIGHT);
        }
        send_rock(&s->rocks[k], p, LARGE, x, y, rng);
    }
}

ENV_FN void place_ship(State *s) {
    s->ship.x = 0.5f * WIDTH;
    s->ship.y = 0.5f * HEIGHT;
    s->ship.vx = s->ship.vy = 0.0f;
    s->ship.kind = 0;
    s->heading = 192;  // up
    s->safe = SAFE_STEPS;
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    Body none = {0.0f, 0.0f, 0.0f, 0.0f, 0};
    for (int32_t k = 0; k < ROCKS; k++) s->rocks[k] = none;
    for (int32_t k = 0; k < SHOTS; k++) s->shots[k] = none;
    s->lives = i_clamp(p->lives, 1, 100);
    s->reload = s->wave = s->score = 0;
    place_ship(s);
    send_wave(s, p, rng);
}

ENV_FN void shoot(State *s, const Params *p, float ahead_x, float ahead_y, Step *out) {
    int32_t free = 0;
    while (free < SHOTS && s->shots[free].kind > 0) free++;
    if (free == SHOTS || s->reload > 0) return;
    Body *shot = &s->shots[free];
    shot->x = wrap(s->ship.x + SHIP * ahead_x, WIDTH);
    shot->y = wrap(s->ship.y + SHIP * ahead_y, HEIGHT);
    shot->vx = s->ship.vx + SHOT_SPEED * ahead_x;
    shot->vy = s->ship.vy + SHOT_SPEED * ahead_y;
    shot->kind = SHOT_STEPS;
    s->reload = i_clamp(p->reload, 1, 1000);
    out->stats.shots = 1.0f;
}

// The rock that a body meets first in this step; -1 if it meets none.
ENV_FN int32_t first_rock(const State *s, const Body *b, float radius) {
    float first = 2.0f;
    int32_t found = -1;
    for (int32_t k = 0; k < s->count; k++) {
        float t = meeting(b, &s->rocks[k], radius + radius_of(s->rocks[k].kind));
        found = t < first ? k : found;
        first = t < first ? t : first;
    }
    return found;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t way = *a % 3, points = 0;
    s->heading = (s->heading + ((way == 2) - (way == 1)) * i_clamp(p->turn, 1, 64)) & 255;
    float ahead_x = m_cos(angle_of(s->heading)), ahead_y = m_sin(angle_of(s->heading));
    float push = *a / 3 % 2 ? m_clamp(p->thrust, 0.0f, 3000.0f) * STEP : 0.0f,
          keep = 1.0f - m_clamp(p->drag, 0.0f, 1.0f);
    s->ship.vx = (s->ship.vx + push * ahead_x) * keep;
    s->ship.vy = (s->ship.vy + push * ahead_y) * keep;
    float speed = m_sqrt(s->ship.vx * s->ship.vx + s->ship.vy * s->ship.vy);
    float slow = speed > MAX_SPEED ? MAX_SPEED / speed : 1.0f;
    s->ship.vx *= slow;
    s->ship.vy *= slow;
    s->reload = i_max(s->reload - 1, 0);
    s->safe = i_max(s->safe - 1, 0);
    if (*a >= 6) shoot(s, p, ahead_x, ahead_y, out);

    for (int32_t k = 0; k < SHOTS; k++) {
        if (s->shots[k].kind <= 0) continue;
        int32_t rock = first_rock(s, &s->shots[k], 0.0f);
        if (rock >= 0) {
            int32_t size = s->rocks[rock].kind;
            points += size == LARGE ? 20 : size == MEDIUM ? 50 : 100;
            out->stats.hits += 1.0f;
            s->shots[k].kind = 0;
            split_rock(s, p, rock, rng);
        }
    }
    int32_t rock = s->safe ? -1 : first_rock(s, &s->ship, SHIP), dies = rock >= 0;
    if (dies) split_rock(s, p, rock, rng);

    move(&s->ship);
    for (int32_t k = 0; k < SHOTS; k++) {
        if (s->shots[k].kind <= 0) continue;
        move(&s->shots[k]);
        s->shots[k].kind--;
    }
    for (int32_t k = 0; k < s->count; k++) move(&s->rocks[k]);
    if (dies) {
        s->lives--;
        place_ship(s);
    }
    int32_t is_clear = s->count == 0;
    if (is_clear) {
        s->wave++;
        send_wave(s, p, rng);
    }
    s->score += points;
    out->reward = (float)points * 0.01f - (dies ? p->death : 0.0f);
    out->terminated = s->lives <= 0;
    out->stats.score = (float)points;
    out->stats.deaths = (float)dies;
    out->stats.waves = (float)is_clear;
}

typedef struct {
    float ahead_x, ahead_y;  // where the ship points
} View;

// A place or velocity relative to the ship: ahead of it and to its right.
ENV_FN void turn_to(View v, float x, float y, float scale, Obs *out) {
    out[0] = m_clamp((x * v.ahead_x + y * v.ahead_y) * scale, -1.0f, 1.0f);
    out[1] = m_clamp((y * v.ahead_x - x * v.ahead_y) * scale, -1.0f, 1.0f);
}
ENV_FN void see_place(View v, const State *s, const Body *b, Obs *out) {
    turn_to(v, nearest(b->x - s->ship.x, WIDTH), nearest(b->y - s->ship.y, HEIGHT), 1.0f / 500.0f, out);
}
ENV_FN void see_rock(View v, const State *s, const Body *b, Obs *out) {
    float x = nearest(b->x - s->ship.x, WIDTH), y = nearest(b->y - s->ship.y, HEIGHT);
    float vx = b->vx - s->ship.vx, vy = b->vy - s->ship.vy, flight = m_sqrt(x * x + y * y) / SHOT_SPEED;
    float aim_x = x + vx * flight, aim_y = y + vy * flight;
    out[0] = 1.0f;
    turn_to(v, x, y, 1.0f / 500.0f, &out[1]);
    turn_to(v, vx, vy, 1.0f / 300.0f, &out[3]);
    out[5] = radius_of(b->kind) / 40.0f;
    turn_to(v, aim_x, aim_y, 1.0f / m_max(m_sqrt(aim_x * aim_x + aim_y * aim_y), 1.0f), &out[6]);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    View v = {m_cos(angle_of(s->heading)), m_sin(angle_of(s->heading))};
    float far[ROCKS];
    int32_t flying = 0;
    for (int32_t k = 0; k < OBS_SIZE; k++) obs[k] = 0.0f;
    for (int32_t k = 0; k < s->count; k++) {
        float x = nearest(s->rocks[k].x - s->ship.x, WIDTH), y = nearest(s->rocks[k].y - s->ship.y, HEIGHT);
        far[k] = x * x + y * y;
    }
    turn_to(v, s->ship.vx, s->ship.vy, 1.0f / MAX_SPEED, obs);
    Obs *at = obs + 6;
    for (int32_t j = 0; j < i_min(SEEN, s->count); j++, at += 8) {
        int32_t best = 0;
        for (int32_t k = 1; k < s->count; k++) best = far[k] < far[best] ? k : best;
        far[best] = M_INF;
        see_rock(v, s, &s->rocks[best], at);
    }
    at = obs + 6 + 8 * SEEN;
    for (int32_t k = 0; k < SHOTS; k++, at += 3) {
        if (s->shots[k].kind <= 0) continue;
        flying++;
        at[0] = 1.0f;
        see_place(v, s, &s->shots[k], &at[1]);
    }
    obs[2] = 1.0f - (float)flying / (float)SHOTS;
    obs[3] = (float)(s->reload <= 1);
    obs[4] = (float)s->safe / (float)SAFE_STEPS;
    obs[5] = (float)s->count / (float)ROCKS;
}

ENV_FN int32_t is_sane(const Body *b) {
    return m_abs(b->x) <= 2.0f * WIDTH && m_abs(b->y) <= 2.0f * HEIGHT && m_abs(b->vx) <= 2000.0f &&
           m_abs(b->vy) <= 2000.0f;
}

// The rocks are as many as there is room for; places and speeds are finite, and sizes those of rocks.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    int32_t is_safe = is_sane(&s->ship) && s->heading >= 0 && s->heading < 256 && s->reload >= 0 && s->reload <= 1000;
    for (int32_t k = 0; k < ROCKS; k++) {
        is_safe &= is_sane(&s->rocks[k]) && s->rocks[k].kind >= (k < s->count) && s->rocks[k].kind <= SMALL;
    }
    for (int32_t k = 0; k < SHOTS; k++) {
        is_safe &= is_sane(&s->shots[k]) && s->shots[k].kind >= 0 && s->shots[k].kind <= SHOT_STEPS;
    }
    is_safe &=
        s->count >= 0 && s->count <= ROCKS && s->safe >= 0 && s->safe <= SAFE_STEPS && s->lives >= 0 && s->lives <= 100;
    return is_safe && s->wave >= 0 && s->wave < 1000000 && s->score >= 0 && s->score < 1 << 30;
}

ENV_DATA float rock_shape[24] = {1.0f,  0.1f,  0.75f,  0.65f,  0.3f,  0.6f,   0.05f, 1.0f,  -0.5f, 0.8f,  -0.6f, 0.35f,
                                 -1.0f, 0.15f, -0.85f, -0.45f, -0.4f, -0.55f, -0.2f, -1.0f, 0.4f,  -0.8f, 0.9f,  -0.5f};
ENV_DATA float ship_shape[8] = {1.5f, 0.0f, -1.0f, 0.9f, -0.5f, 0.0f, -1.0f, -0.9f};
ENV_DATA float flame_shape[6] = {-0.6f, 0.35f, -1.6f, 0.0f, -0.6f, -0.35f};

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, 0.0f, 0.0f, WIDTH, HEIGHT, 0x080c16);
    for (int32_t k = 0; k < 4 * s->count; k++) {  // also beyond the edges, where a rock reaches over them
        const Body *b = &s->rocks[k / 4];
        float x = b->x - (k & 1 && b->x > 0.5f * WIDTH ? WIDTH : 0.0f), r = radius_of(b->kind);
        float y = b->y - (k & 2 && b->y > 0.5f * HEIGHT ? HEIGHT : 0.0f);
        x += k & 1 && b->x <= 0.5f * WIDTH ? WIDTH : 0.0f;
        y += k & 2 && b->y <= 0.5f * HEIGHT ? HEIGHT : 0.0f;
        if (x < -r || y < -r || x > WIDTH + r || y > HEIGHT + r) continue;
        draw_shape(d, rock_shape, 12, x, y, (float)(k / 4), 1.1f * r, 0xb8c4d8);
        draw_shape(d, rock_shape, 12, x, y, (float)(k / 4), 1.1f * r - 3.0f, 0x2a3448);
    }
    for (int32_t k = 0; k < SHOTS; k++) {
        if (s->shots[k].kind > 0) draw_circle(d, s->shots[k].x, s->shots[k].y, 3.0f, 0xffe14d);
    }
    float angle = angle_of(s->heading);
    draw_shape(d, flame_shape, 3, s->ship.x, s->ship.y, angle, 1.0f + 0.03f * m_abs(s->ship.vx + s->ship.vy), 0xf2a65a);
    draw_shape(d, ship_shape, 4, s->ship.x, s->ship.y, angle, 1.2f * SHIP, s->safe & 4 ? 0x4a7bd3 : 0x7bf2e3);
    draw_value(d, 16.0f, 26.0f, 24.0f, "", s->score, 0xffffff);
    for (int32_t k = 0; k < i_min(s->lives - 1, 8); k++) {
        draw_shape(d, ship_shape, 4, 28.0f + 24.0f * (float)k, 60.0f, -0.5f * M_PI_F, 9.0f, 0xffffff);
    }
}
