// minatar_seaquest.h: dive, shoot fish and submarines, pick up divers, and surface before the oxygen ends.
//
// MinAtar's Seaquest (Young & Tian 2019, arXiv 1903.03176), from its published description; what that leaves open was
// checked against the package `minatar` 1.0.15, by what it shows. An enemy enters every `enemy_interval` frames from a
// random side in one of eight rows, unless something in that row comes from the other side; one in three is a
// submarine, which shoots every shot_interval + 1 frames, the others are fish. A diver enters every `diver_interval`
// frames. Enemies move every move_interval + 1 frames, divers every 6, bullets every frame. Oxygen lasts for `oxygen`
// frames below the surface. Whoever surfaces with divers on board gets new oxygen: with six of them (the most) for a
// reward, else for one diver. With `ramping`, each time the enemy interval shrinks by one, down to 1, and every second
// time the move interval too, down to 2. One thing differs from the published text, as it does in the package:
// surfacing with six leaves -1 divers, so that the next one found does not count, and below zero surfacing costs
// nothing.
//
// obs: 10 x 10 cells with 10 channels: front and back of the player's submarine, own bullet, trail (behind enemies and
// divers), bullet of an enemy, fish, enemy submarine, oxygen and divers (two bars in the last row), diver.
// action: 0 stay, 1 left, 2 up, 3 right, 4 down, 5 fire; after a shot the gun cools for `cooldown` frames. With
// probability `sticky` the last action is repeated.
// reward: 1 for each enemy shot; for surfacing with six divers, 1 for each cell of the oxygen bar. The episode ends
// when an enemy or a bullet meets the front, without oxygen, or by surfacing with no diver. Random play earns 0.1, a
// script that shoots ahead and collects divers 28, Pgx's PPO after 20M frames 54.
#define ENV_OBS OBS_U8(10, 10, 10)
#define ENV_PARAMS(X)                                                                                                  \
    X(float, sticky, 0.1f, "probability that the last action is repeated")                                             \
    X(int, ramping, 1, "1: surfacing makes enemies faster and more; 0: they stay as they are")                         \
    X(int, oxygen, 200, "frames below the surface")                                                                    \
    X(int, enemy_interval, 20, "frames from one enemy to the next, at the start")                                      \
    X(int, diver_interval, 30, "frames from one diver to the next")                                                    \
    X(int, move_interval, 5, "frames between two moves of an enemy, at the start")                                     \
    X(int, shot_interval, 10, "frames between two shots of an enemy submarine")                                        \
    X(int, cooldown, 5, "frames from one own shot to the next")                                                        \
    X(float, submarines, 0.33333334f, "share of submarines among enemies")
#define ENV_LIMITS(X)                                                                                                  \
    X("sticky", 0, 1)                                                                                                  \
    X("ramping", 0, 1)                                                                                                 \
    X("oxygen", 10, 100000)                                                                                            \
    X("*_interval", 1, 100)                                                                                            \
    X("cooldown", 1, 100)                                                                                              \
    X("submarines", 0, 1)
#define ENV_STATS(X)                                                                                                   \
    X(sum, shot, "enemies shot")                                                                                       \
    X(sum, found, "divers picked up")                                                                                  \
    X(sum, surfaced, "times surfaced with divers")                                                                     \
    X(sum, rescued, "times surfaced with six divers")
#include "minatar/board.h"

enum { FRONT, BACK, BULLET, TRAIL, ENEMY_BULLET, FISH, SUBMARINE, OXYGEN, DIVERS, DIVER };  // channels
// Enemies that do not fit do not enter. With the default params at most 31 are there: one a frame, 30 frames each.
enum { MOST = 32, MOST_BULLETS = 16, MOST_DIVERS = 32, CREW = 6, DEEPEST = 8, DIVER_INTERVAL = 5, FASTEST = 2 };

typedef struct {
    int8_t x, y, dx;
    int8_t wait;  // frames until it moves
} Mover;

typedef struct {
    int32_t x, y, faces;  // the player's front; -1 left, 1 right
    int32_t oxygen, divers;
    int32_t enemy_timer, diver_timer, cooldown;
    int32_t enemy_interval, move_interval, ramps;
    int32_t points;  // in this episode
    uint8_t is_up;   // it has not been below since it surfaced
    uint8_t last;    // the action that was played
    uint8_t num_bullets, num_enemy_bullets, num_fish, num_submarines, num_divers;
    Mover bullets[MOST_BULLETS], enemy_bullets[MOST], fish[MOST], submarines[MOST], lost[MOST_DIVERS];
    int8_t shot_timers[MOST];  // of the submarines
} State;

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)rng;
    const Mover nothing = {0, 0, 0, 0};
    s->x = 5;
    s->y = 0;
    s->faces = -1;
    s->oxygen = p->oxygen;
    s->divers = s->cooldown = s->ramps = s->points = 0;
    s->enemy_timer = s->enemy_interval = p->enemy_interval;
    s->diver_timer = p->diver_interval;
    s->move_interval = p->move_interval;
    s->is_up = 1;
    s->last = 0;
    s->num_bullets = s->num_enemy_bullets = s->num_fish = s->num_submarines = s->num_divers = 0;
    for (int32_t k = 0; k < MOST; k++) {
        s->enemy_bullets[k] = s->fish[k] = s->submarines[k] = nothing;
        s->shot_timers[k] = 0;
    }
    for (int32_t k = 0; k < MOST_BULLETS; k++) s->bullets[k] = nothing;
    for (int32_t k = 0; k < MOST_DIVERS; k++) s->lost[k] = nothing;
}

ENV_FN Mover at_edge(int32_t right, int32_t y, int32_t wait) {
    Mover new_one = {(int8_t)(right ? 0 : EDGE), (int8_t)y, (int8_t)(right ? 1 : -1), (int8_t)wait};
    return new_one;
}

ENV_FN int32_t comes_the_other_way(const Mover *them, int32_t count, const Mover *m) {
    int32_t any = 0;
    for (int32_t k = 0; k < count; k++) any |= (them[k].y == m->y) & (them[k].dx != m->dx);
    return any;
}

ENV_FN int32_t wait_of_enemies(const State *s) { return i_clamp(s->move_interval, 0, 100); }

ENV_FN void enter_enemy(State *s, const Params *p, Rng *rng) {
    int32_t right = rng_int(rng, 2), is_submarine = rng_uniform(rng, 0.0f, 1.0f) < p->submarines;
    Mover enemy = at_edge(right, 1 + rng_int(rng, DEEPEST), wait_of_enemies(s));
    if (comes_the_other_way(s->fish, s->num_fish, &enemy)) return;
    if (comes_the_other_way(s->submarines, s->num_submarines, &enemy)) return;
    if (is_submarine && s->num_submarines < MOST) {
        s->shot_timers[s->num_submarines] = (int8_t)i_clamp(p->shot_interval, 0, 100);
        s->submarines[s->num_submarines++] = enemy;
    }
    if (!is_submarine && s->num_fish < MOST) s->fish[s->num_fish++] = enemy;
}

ENV_FN void enter_diver(State *s, Rng *rng) {
    int32_t right = rng_int(rng, 2), y = 1 + rng_int(rng, DEEPEST);
    if (s->num_divers < MOST_DIVERS) s->lost[s->num_divers++] = at_edge(right, y, DIVER_INTERVAL);
}

ENV_FN int32_t is_player(const State *s, const Mover *m) { return m->x == s->x && m->y == s->y; }

// Removes the first of them that is in the cell of m. Returns whether there was one. The order of the others is kept.
ENV_FN int32_t remove_at(Mover *them, uint8_t *count, int8_t *timers, const Mover *m) {
    int32_t kept = 0, found = 0;
    for (int32_t k = 0; k < *count; k++) {
        int32_t goes = !found && them[k].x == m->x && them[k].y == m->y;
        found |= goes;
        them[kept] = them[k];
        if (timers) timers[kept] = timers[k];
        kept += !goes;
    }
    *count = (uint8_t)kept;
    return found;
}

ENV_FN int32_t move_bullets(State *s) {
    int32_t kept = 0, shot = 0;
    for (int32_t k = 0; k < s->num_bullets; k++) {
        Mover b = s->bullets[k];
        b.x = (int8_t)(b.x + b.dx);
        if (!is_inside(b.x)) continue;
        int32_t hit =
            remove_at(s->fish, &s->num_fish, 0, &b) || remove_at(s->submarines, &s->num_submarines, s->shot_timers, &b);
        shot += hit;
        if (!hit) s->bullets[kept++] = b;
    }
    s->num_bullets = (uint8_t)kept;
    return shot;
}

// A diver is picked up where it is, or where it moves to. Returns how many were.
ENV_FN int32_t move_divers(State *s) {
    int32_t kept = 0, found = 0;
    for (int32_t k = 0; k < s->num_divers; k++) {
        Mover m = s->lost[k];
        int32_t was_here = is_player(s, &m), moves = m.wait <= 0 && !(was_here && s->divers < CREW);
        m.wait = (int8_t)(m.wait <= 0 ? DIVER_INTERVAL : m.wait - 1);
        if (moves) m.x = (int8_t)(m.x + m.dx);
        if (!is_inside(m.x)) continue;
        if ((was_here || is_player(s, &m)) && s->divers < CREW) {
            s->divers++;
            found++;
        } else {
            s->lost[kept++] = m;
        }
    }
    s->num_divers = (uint8_t)kept;
    return found;
}

// Moves fish (timers = 0) or submarines, which shoot then. One that moves into a bullet is shot. Returns how many were;
// `died` is set if one was or is where the player is.
ENV_FN int32_t move_enemies(State *s, const Params *p, Mover *them, uint8_t *count, int8_t *timers, int32_t *died) {
    int32_t kept = 0, shot = 0;
    for (int32_t k = 0; k < *count; k++) {
        Mover m = them[k];
        int32_t timer = timers ? timers[k] : 1, moves = m.wait <= 0;
        *died |= is_player(s, &m);
        m.wait = (int8_t)(moves ? wait_of_enemies(s) : m.wait - 1);
        if (moves) {
            m.x = (int8_t)(m.x + m.dx);
            if (!is_inside(m.x)) continue;
            if (is_player(s, &m)) {
                *died = 1;
            } else if (remove_at(s->bullets, &s->num_bullets, 0, &m)) {
                shot++;
                continue;
            }
        }
        if (timer <= 0 && s->num_enemy_bullets < MOST) s->enemy_bullets[s->num_enemy_bullets++] = m;
        if (timers) timers[kept] = (int8_t)(timer <= 0 ? i_clamp(p->shot_interval, 0, 100) : timer - 1);
        them[kept++] = m;
    }
    *count = (uint8_t)kept;
    return shot;
}

ENV_FN int32_t move_enemy_bullets(State *s) {
    int32_t kept = 0, died = 0;
    for (int32_t k = 0; k < s->num_enemy_bullets; k++) {
        Mover m = s->enemy_bullets[k];
        died |= is_player(s, &m);
        m.x = (int8_t)(m.x + m.dx);
        if (!is_inside(m.x)) continue;
        died |= is_player(s, &m);
        s->enemy_bullets[kept++] = m;
    }
    s->num_enemy_bullets = (uint8_t)kept;
    return died;
}

ENV_FN int32_t oxygen_cells(const State *s, const Params *p) {
    return i_clamp((int32_t)((int64_t)s->oxygen * SIDE / i_max(p->oxygen, 1)), 0, SIDE);
}

// Returns the reward.
ENV_FN int32_t surface(State *s, const Params *p, Step *out) {
    int32_t reward = s->divers == CREW ? oxygen_cells(s, p) : 0;
    out->stats.surfaced = 1.0f;
    out->stats.rescued = s->divers == CREW ? 1.0f : 0.0f;
    s->divers = s->divers == CREW ? -1 : s->divers - 1;
    s->oxygen = p->oxygen;
    s->is_up = 1;
    if (p->ramping && (s->enemy_interval > 1 || s->move_interval > FASTEST)) {
        s->move_interval -= s->move_interval > FASTEST && (s->ramps & 1);
        s->enemy_interval -= s->enemy_interval > 1;
        s->ramps++;
    }
    return reward;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t action = stick(&s->last, p->sticky, *a, rng), died = 0;
    if (s->enemy_timer <= 0) {
        enter_enemy(s, p, rng);
        s->enemy_timer = s->enemy_interval;
    }
    if (s->diver_timer <= 0) {
        enter_diver(s, rng);
        s->diver_timer = p->diver_interval;
    }
    if (action == FIRE && s->cooldown == 0 && s->num_bullets < MOST_BULLETS) {
        Mover bullet = {(int8_t)s->x, (int8_t)s->y, (int8_t)s->faces, 0};
        s->bullets[s->num_bullets++] = bullet;
        s->cooldown = p->cooldown;
    }
    s->faces = action == RIGHT ? 1 : action == LEFT ? -1 : s->faces;
    s->x = i_clamp(s->x + (action == RIGHT) - (action == LEFT), 0, EDGE);
    s->y = i_clamp(s->y + (action == DOWN) - (action == UP), 0, DEEPEST);

    int32_t shot = move_bullets(s);
    out->stats.found = (float)move_divers(s);
    shot += move_enemies(s, p, s->submarines, &s->num_submarines, s->shot_timers, &died);
    died |= move_enemy_bullets(s);
    shot += move_enemies(s, p, s->fish, &s->num_fish, 0, &died);
    s->enemy_timer -= s->enemy_timer > 0;
    s->diver_timer -= s->diver_timer > 0;
    s->cooldown -= s->cooldown > 0;

    int32_t reward = shot;
    if (s->y > 0) {
        s->oxygen--;
        s->is_up = 0;
        died |= s->oxygen < 0;
    } else if (!s->is_up) {
        if (s->divers == 0) {
            died = 1;
        } else {
            reward += surface(s, p, out);
        }
    }
    s->points += reward;
    out->reward = (float)reward;
    out->terminated = died;
    out->stats.shot = (float)shot;
}

ENV_FN void mark_movers(Obs *obs, const Mover *them, int32_t count, int32_t channel, int32_t has_trail) {
    for (int32_t k = 0; k < count; k++) {
        mark(obs, them[k].x, them[k].y, channel);
        if (has_trail) mark_trail(obs, them[k].x - them[k].dx, them[k].y, TRAIL);
    }
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    clear_planes(obs);
    mark(obs, s->x, s->y, FRONT);
    mark_trail(obs, s->x - s->faces, s->y, BACK);
    for (int32_t k = 0; k < oxygen_cells(s, p); k++) mark(obs, k, EDGE, OXYGEN);
    for (int32_t k = 0; k < s->divers; k++) mark(obs, EDGE - 1 - k, EDGE, DIVERS);
    mark_movers(obs, s->bullets, s->num_bullets, BULLET, 0);
    mark_movers(obs, s->enemy_bullets, s->num_enemy_bullets, ENEMY_BULLET, 0);
    mark_movers(obs, s->fish, s->num_fish, FISH, 1);
    mark_movers(obs, s->submarines, s->num_submarines, SUBMARINE, 1);
    mark_movers(obs, s->lost, s->num_divers, DIVER, 1);
}

ENV_FN int32_t are_inside(const Mover *them, int32_t count, int32_t most) {
    if (count > most) return 0;
    for (int32_t k = 0; k < count; k++) {
        if (!is_inside(them[k].x) || !is_inside(them[k].y) || (them[k].dx != 1 && them[k].dx != -1)) return 0;
    }
    return 1;
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    return are_inside(s->bullets, s->num_bullets, MOST_BULLETS) &&
           are_inside(s->enemy_bullets, s->num_enemy_bullets, MOST) && are_inside(s->fish, s->num_fish, MOST) &&
           are_inside(s->submarines, s->num_submarines, MOST) && are_inside(s->lost, s->num_divers, MOST_DIVERS) &&
           is_inside(s->x) && s->y >= 0 && s->y <= DEEPEST && (s->faces == 1 || s->faces == -1) && s->divers <= CREW &&
           is_small(s->divers) && is_small(s->oxygen) && is_small(s->points) && is_small(s->enemy_timer) &&
           is_small(s->diver_timer) && is_small(s->cooldown) && is_small(s->enemy_interval) &&
           is_small(s->move_interval) && is_small(s->ramps);
}

// ---- picture ----

ENV_FN void draw_submarine(Draw *d, float x, float y, float faces, uint32_t color) {
    draw_line(d, x - 0.22f, y + 0.1f, x + 0.22f, y + 0.1f, 0.42f, color);
    draw_rect(d, x - 0.12f, y - 0.42f, 0.26f, 0.4f, color);
    draw_line(d, x, y - 0.4f, x + 0.14f * faces, y - 0.4f, 0.07f, color);  // the periscope looks ahead
    draw_circle(d, x + 0.2f * faces, y + 0.08f, 0.09f, 0xcfe3f2);
}

ENV_FN void draw_fish(Draw *d, float x, float y, float faces, uint32_t color) {
    const float body[] = {0.42f, 0.0f,   0.1f,   0.24f, -0.2f,  0.05f, -0.42f,
                          0.22f, -0.42f, -0.22f, -0.2f, -0.05f, 0.1f,  -0.24f};
    float placed[14];
    for (int32_t k = 0; k < 7; k++) {
        placed[2 * k] = x + faces * body[2 * k];
        placed[2 * k + 1] = y + body[2 * k + 1];
    }
    draw_polygon(d, placed, 7, color);
    draw_circle(d, x + 0.16f * faces, y - 0.06f, 0.05f, BACKGROUND);
}

ENV_FN void draw_diver(Draw *d, float x, float y, float faces) {
    draw_circle(d, x + 0.24f * faces, y - 0.05f, 0.13f, 0xf0c8a0);
    draw_line(d, x + 0.1f * faces, y + 0.02f, x - 0.35f * faces, y + 0.08f, 0.14f, 0xffd75e);
    draw_line(d, x, y + 0.02f, x + 0.1f * faces, y + 0.25f, 0.08f, 0xffd75e);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    draw_board(d, 0x123a5c);
    draw_rect(d, 0.0f, 0.0f, 10.0f, 0.55f, 0x6fa8d0);
    draw_rect(d, 0.0f, 0.55f, 10.0f, 0.06f, WHITE);
    draw_rect(d, 0.0f, 9.0f, 10.0f, 1.0f, 0x0e1726);
    for (int32_t k = 0; k < oxygen_cells(s, p); k++) draw_rect(d, (float)k, 9.62f, 0.94f, 0.3f, 0x6fa8d0);
    for (int32_t k = 0; k < s->divers; k++) draw_diver(d, (float)(EDGE - 1 - k) + 0.5f, 9.3f, 1.0f);
    for (int32_t k = 0; k < s->num_divers; k++) {
        draw_diver(d, (float)s->lost[k].x + 0.5f, (float)s->lost[k].y + 0.5f, (float)s->lost[k].dx);
    }
    for (int32_t k = 0; k < s->num_fish; k++) {
        draw_fish(d, (float)s->fish[k].x + 0.5f, (float)s->fish[k].y + 0.5f, (float)s->fish[k].dx, 0x7bd389);
    }
    for (int32_t k = 0; k < s->num_submarines; k++) {
        const Mover *m = &s->submarines[k];
        draw_submarine(d, (float)m->x + 0.5f, (float)m->y + 0.5f, (float)m->dx, RED);
    }
    for (int32_t k = 0; k < s->num_bullets; k++) {
        draw_rect(d, (float)s->bullets[k].x + 0.2f, (float)s->bullets[k].y + 0.52f, 0.6f, 0.12f, WHITE);
    }
    for (int32_t k = 0; k < s->num_enemy_bullets; k++) {
        draw_rect(d, (float)s->enemy_bullets[k].x + 0.2f, (float)s->enemy_bullets[k].y + 0.52f, 0.6f, 0.12f, ORANGE);
    }
    float faces = (float)s->faces, x = (float)s->x + 0.5f, y = (float)s->y + 0.5f;
    draw_line(d, x - faces * 1.1f, y + 0.1f, x, y + 0.1f, 0.34f, TEAL);  // its back is one cell behind
    draw_submarine(d, x, y, faces, TEAL);
    draw_score(d, 0.0f, "SCORE ", s->points);
}
