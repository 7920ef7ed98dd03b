// overcooked.h: two cooks in a narrow kitchen fill pots with onions, dish up the soup and serve it.
//
// The five kitchens of "On the Utility of Learning about Humans for Human-AI Coordination" (Carroll et al. 2019) with
// the rules and numbers of its Overcooked-AI package, version 1.1.0. tests/test_overcooked.py replays games of that
// package here and compares every state, reward and shaped reward.
//
// A cook holds one thing. Interacting with the cell in front of it: takes an onion or a dish from its box; puts a thing
// on a free counter or takes one from it; adds an onion to a pot that is not cooking and holds fewer than three; starts
// the cooking of a pot with empty hands (cook_start=auto: the third onion starts it); takes a soup
// that is done out of the pot with a dish; serves a soup. A pot may be started with one or two onions: that soup is
// worth nothing. Within a step cook 0 interacts, then cook 1; then both move; then pots cook. Moving into something
// only turns the cook; if both want one cell, or each other's, nobody moves.
//
// obs: 93 numbers, as seen by one cook. For itself and then the other its column (9, one-hot), row (5), facing (north,
// south, east, west) and what it holds (onion, dish, soup, soup of fewer than three onions); what is in front of it
// (floor, free counter, onion, dish, soup on a counter, onion box, dish box, serving place, pot); of two pots the way
// (columns / 8, rows / 4), whether they hold 1, 2, 3 onions, cook, the share of the time left, are done; the way to the
// nearest onion box, dish box and serving place; of the nearest onion, dish and soup on a counter whether there is one,
// and the way; which of the four neighbours are floor; the layout (5). A compact vector suits small networks; the
// package's 26 planes also show the farther things on counters, and whether fewer than 40 steps are left.
// action: 0 north, 1 south, 2 east, 3 west, 4 stay, 5 interact, as in the package.
// reward: both cooks get `reward_delivery` for a soup that either of them serves: the return is the game's score. With
// shaping=1 each also gets the package's shaped rewards for what it does itself (an onion into a pot, a useful dish, a
// soup out of the pot); a schedule such as --env.shaping "linear(1, 0)" anneals them.
// In cramped_room random play scores 0.1 points in 400 steps, two scripted cooks 157, learned ones 240.
#define ENV_OBS OBS_F32(93)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(6)
#define ENV_AGENTS 2
#define ENV_MAX_STEPS 400
#define ENV_HAS_CHECK
#define ENV_PARAMS(X)                                                                                                  \
    X(int, layout, 0, "the kitchen")                                                                                   \
    X(int, cook_start, 0, "what starts a pot: a cook with empty hands, or the third onion")                            \
    X(int, cook_time, 20, "steps that a soup cooks")                                                                   \
    X(int, random_start, 0, "1: cooks start on random cells of the floor")                                             \
    X(float, shaping, 0.0f, "factor of the three shaped rewards")                                                      \
    X(float, reward_delivery, 20.0f, "points for serving a soup of three onions, to both cooks")                       \
    X(float, reward_placement, 3.0f, "shaped: for an onion put into a pot")                                            \
    X(float, reward_dish, 3.0f, "shaped: for a dish from the box, if pots need it and no dish lies on a counter")      \
    X(float, reward_soup, 5.0f, "shaped: for a soup taken out of a pot")
#define ENV_LIMITS(X) X("cook_time", 1, 1000) X("random_start", 0, 1) X("shaping", 0, 100) X("reward_*", -1000, 1000)
#define ENV_CHOICES(X)                                                                                                 \
    X("layout", "cramped_room asymmetric_advantages coordination_ring forced_coordination counter_circuit")            \
    X("cook_start", "interact auto")
#define ENV_STATS(X)                                                                                                   \
    X(sum, points, "points for soups served, without shaped rewards")                                                  \
    X(sum, soups, "soups served")                                                                                      \
    X(sum, onions, "onions put into pots")                                                                             \
    X(sum, dropped, "things put on counters")                                                                          \
    X(sum, bumps, "steps in which the cooks blocked each other")
#include "core/env.h"

enum { wide = 9, high = 5, cells = wide * high, kitchens = 5 };
enum { NORTH, SOUTH, EAST, WEST, STAY, INTERACT };
enum { NOTHING, ONION, DISH, SOUP_1, SOUP_2, SOUP_3, THINGS };  // SOUP_n: a dish of soup with n onions

// X counter, O onions, D dishes, P pot, S serving place, 1 and 2 where the cooks start, ~ outside.
ENV_DATA char kitchen[kitchens][cells + 1] = {
    "XXPXX~~~~O  2O~~~~X1  X~~~~XDXSX~~~~~~~~~~~~~", "XXXXXXXXXO XSXOX SX   P 1 XX2  P   XXXXDXDXXX",
    "XXXPX~~~~X 1 P~~~~D2X X~~~~O   X~~~~XOSXX~~~~", "XXXPX~~~~O X1P~~~~O2X X~~~~D X X~~~~XXXSX~~~~",
    "XXXPPXXX~X  2   X~D XXXX S~X  1   X~XXXOOXXX~"};
// Cells of the two pots (0: there is none), onion boxes, dish boxes and serving places: the same one twice if single.
ENV_DATA uint8_t places[kitchens][4][2] = {{{2, 0}, {9, 13}, {28, 28}, {30, 30}},
                                           {{22, 31}, {9, 14}, {39, 41}, {12, 17}},
                                           {{3, 13}, {27, 37}, {18, 18}, {38, 38}},
                                           {{3, 13}, {9, 18}, {27, 27}, {39, 39}},
                                           {{3, 4}, {39, 40}, {18, 18}, {25, 25}}};

typedef struct {
    int32_t tick[2];        // steps that a pot has cooked; -1: it has not been started
    uint8_t onions[2];      // in the pots
    uint8_t things[cells];  // on counters
    uint8_t at[2], facing[2], held[2];
    uint8_t layout;
} State;

ENV_FN int32_t is_floor(int32_t layout, int32_t at) { return kitchen[layout][at] <= '2'; }

ENV_FN int32_t ahead(int32_t at, int32_t way) {
    return at + (way == SOUTH ? wide : way == NORTH ? -wide : way == EAST ? 1 : way == WEST ? -1 : 0);
}

ENV_FN int32_t is_done(const State *s, const Params *p, int32_t pot) { return s->tick[pot] >= p->cook_time; }

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->layout = (uint8_t)i_clamp(p->layout, 0, kitchens - 1);
    uint8_t floor[cells];
    int32_t count = 0;
    for (int32_t k = 0; k < cells; k++) {
        char tile = kitchen[s->layout][k];
        s->things[k] = NOTHING;
        floor[count] = (uint8_t)k;
        count += tile <= '2';
        if (tile == '1') s->at[0] = (uint8_t)k;
        if (tile == '2') s->at[1] = (uint8_t)k;
    }
    if (p->random_start) {
        int32_t first = rng_int(rng, count), second = rng_int(rng, count - 1);
        s->at[0] = floor[first];
        s->at[1] = floor[second + (second >= first)];
    }
    for (int32_t k = 0; k < 2; k++) {
        s->facing[k] = NORTH;
        s->held[k] = NOTHING;
        s->onions[k] = 0;
        s->tick[k] = -1;
    }
}

// A dish from the box is useful if there are more pots to empty than dishes in hands, and none on a counter. As in the
// package, a full pot that nobody has started does not count, and pots are those of before the step.
ENV_FN int32_t needs_dish(const State *s, int32_t needy_pots) {
    int32_t on_counters = 0, in_hands = (s->held[0] == DISH) + (s->held[1] == DISH);
    for (int32_t k = 0; k < cells; k++) on_counters += s->things[k] == DISH;
    return on_counters == 0 && in_hands < needy_pots;
}

// What cook i does to the cell in front of it.
ENV_FN void interact(State *s, const Params *p, int32_t i, int32_t needy_pots, Step *out) {
    int32_t at = ahead(s->at[i], s->facing[i]);
    char tile = kitchen[s->layout][at];
    uint8_t *held = &s->held[i];
    if (tile == 'X' && (*held == NOTHING) != (s->things[at] == NOTHING)) {
        out->stats.dropped += *held != NOTHING ? 1.0f : 0.0f;
        uint8_t thing = s->things[at];
        s->things[at] = *held;
        *held = thing;
    } else if (tile == 'O' && *held == NOTHING) {
        *held = ONION;
    } else if (tile == 'D' && *held == NOTHING) {
        if (needs_dish(s, needy_pots)) out->rewards[i] += p->shaping * p->reward_dish;
        *held = DISH;
    } else if (tile == 'S' && *held >= SOUP_1) {
        float points = *held == SOUP_3 ? p->reward_delivery : 0.0f;
        out->stats.points += points;
        out->stats.soups += 1.0f;
        *held = NOTHING;
    } else if (tile == 'P') {
        int32_t pot = at == places[s->layout][0][1];
        int32_t is_idle = s->tick[pot] < 0;
        if (*held == NOTHING && is_idle && s->onions[pot] > 0 && p->cook_start == 0) {
            s->tick[pot] = 0;
        } else if (*held == ONION && is_idle && s->onions[pot] < 3) {
            s->onions[pot]++;
            *held = NOTHING;
            out->rewards[i] += p->shaping * p->reward_placement;
            out->stats.onions += 1.0f;
        } else if (*held == DISH && !is_idle && is_done(s, p, pot)) {
            *held = (uint8_t)(SOUP_1 - 1 + s->onions[pot]);
            s->onions[pot] = 0;
            s->tick[pot] = -1;
            out->rewards[i] += p->shaping * p->reward_soup;
        }
    }
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    int32_t needy_pots = 0, to[2];
    for (int32_t k = 0; k < 2; k++) needy_pots += s->tick[k] >= 0 || s->onions[k] == 1 || s->onions[k] == 2;
    for (int32_t i = 0; i < 2; i++) {
        if (a[i] == INTERACT) interact(s, p, i, needy_pots, out);
    }
    for (int32_t i = 0; i < 2; i++) {
        to[i] = s->at[i];
        if (a[i] >= STAY) continue;
        s->facing[i] = (uint8_t)a[i];
        int32_t next = ahead(to[i], a[i]);
        to[i] = is_floor(s->layout, next) ? next : to[i];
    }
    int32_t is_blocked = to[0] == to[1] || (to[0] == s->at[1] && to[1] == s->at[0]);
    for (int32_t i = 0; i < 2; i++) s->at[i] = is_blocked ? s->at[i] : (uint8_t)to[i];
    for (int32_t k = 0; k < 2; k++) {
        if (p->cook_start == 1 && s->onions[k] == 3 && s->tick[k] < 0) s->tick[k] = 0;
        s->tick[k] += s->tick[k] >= 0 && !is_done(s, p, k);
    }
    for (int32_t i = 0; i < 2; i++) out->rewards[i] += out->stats.points;
    out->stats.bumps = (float)is_blocked;
}

// Writes the way from one cell to another.
ENV_FN void way_to(int32_t from, int32_t to, Obs *obs) {
    obs[0] = (float)(to % wide - from % wide) * 0.125f;
    obs[1] = (float)(to / wide - from / wide) * 0.25f;
}

ENV_FN int32_t steps_to(int32_t from, int32_t to) {
    int32_t x = to % wide - from % wide, y = to / wide - from / wide;
    return (x < 0 ? -x : x) + (y < 0 ? -y : y);
}

// What the cell in front of a cook is, as one of nine.
ENV_FN int32_t sight(const State *s, int32_t at) {
    switch (kitchen[s->layout][at]) {
        case 'X':
            return 1 + i_min(s->things[at], SOUP_1);
        case 'O':
            return 5;
        case 'D':
            return 6;
        case 'S':
            return 7;
        case 'P':
            return 8;
        default:
            return 0;
    }
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    int32_t from = s->at[agent], layout = s->layout;
    const uint8_t (*spots)[2] = places[layout];
    for (int32_t k = 0; k < OBS_SIZE; k++) obs[k] = 0.0f;
    for (int32_t k = 0; k < 2; k++, obs += 22) {
        int32_t i = k ? 1 - agent : agent, held = s->held[i];
        obs[s->at[i] % wide] = obs[9 + s->at[i] / wide] = obs[14 + s->facing[i]] = 1.0f;
        if (held != NOTHING) obs[held == ONION ? 18 : held == DISH ? 19 : held == SOUP_3 ? 20 : 21] = 1.0f;
    }
    obs[sight(s, ahead(from, s->facing[agent]))] = 1.0f;
    obs += 9;
    for (int32_t k = 0; k < 2; k++, obs += 8) {
        if (spots[0][k] == 0) continue;
        way_to(from, spots[0][k], obs);
        for (int32_t n = 1; n <= 3; n++) obs[1 + n] = (float)(s->onions[k] >= n);
        if (s->tick[k] < 0) continue;
        obs[5] = (float)!is_done(s, p, k);
        obs[6] = (float)i_max(p->cook_time - s->tick[k], 0) / (float)i_max(p->cook_time, 1);
        obs[7] = (float)is_done(s, p, k);
    }
    for (int32_t kind = 1; kind < 4; kind++, obs += 2) {
        const uint8_t *spot = spots[kind];
        way_to(from, spot[steps_to(from, spot[1]) < steps_to(from, spot[0])], obs);
    }
    int32_t nearest[3] = {1000, 1000, 1000};
    for (int32_t at = 0; at < cells; at++) {
        if (s->things[at] == NOTHING) continue;
        int32_t kind = i_min(s->things[at], SOUP_1) - 1, steps = steps_to(from, at);
        if (steps >= nearest[kind]) continue;
        nearest[kind] = steps;
        obs[3 * kind] = 1.0f;
        way_to(from, at, &obs[3 * kind + 1]);
    }
    obs += 9;
    for (int32_t way = 0; way < 4; way++) obs[way] = (float)is_floor(layout, ahead(from, way));
    obs[4 + layout] = 1.0f;
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    if (s->layout >= kitchens || s->at[0] == s->at[1]) return 0;
    for (int32_t k = 0; k < 2; k++) {
        if (s->at[k] >= cells || !is_floor(s->layout, s->at[k]) || s->facing[k] > WEST || s->held[k] >= THINGS)
            return 0;
        if (s->onions[k] > 3 || s->tick[k] < -1 || s->tick[k] > 1000 || (s->tick[k] >= 0 && s->onions[k] == 0))
            return 0;
        if (places[s->layout][0][k] == 0 && s->onions[k] != 0) return 0;
    }
    for (int32_t k = 0; k < cells; k++) {
        if (s->things[k] >= THINGS || (s->things[k] != NOTHING && kitchen[s->layout][k] != 'X')) return 0;
    }
    return 1;
}

ENV_FN void draw_thing(Draw *d, float x, float y, float size, int32_t thing) {
    if (thing == NOTHING) return;
    if (thing == ONION) {
        draw_circle(d, x, y + 0.05f * size, 0.5f * size, 0xe8b84b);
        draw_triangle(d, x - 0.2f * size, y - 0.3f * size, x + 0.2f * size, y - 0.3f * size, x, y - 0.8f * size,
                      0x7bd389);
        return;
    }
    draw_circle(d, x, y, 0.6f * size, 0xffffff);
    draw_circle(d, x, y, 0.45f * size, thing == DISH ? 0xd5dde8 : thing == SOUP_3 ? 0xe89b2f : 0x9a7b45);
}

ENV_FN void draw_pot(const State *s, const Params *p, Draw *d, int32_t pot) {
    int32_t at = places[s->layout][0][pot];
    float x = (float)(at % wide) + 0.5f, y = (float)(at / wide) + 0.5f;
    draw_circle(d, x, y, 0.42f, 0x1b2230);
    draw_circle(d, x, y, 0.34f, s->tick[pot] < 0 ? 0x3a465c : is_done(s, p, pot) ? 0xe89b2f : 0x9a6a2f);
    for (int32_t k = 0; k < s->onions[pot]; k++) {
        const float dx[] = {-0.15f, 0.15f, 0.0f}, dy[] = {-0.08f, -0.08f, 0.15f};
        draw_circle(d, x + dx[k % 3], y + dy[k % 3], 0.1f, 0xe8b84b);
    }
    if (s->tick[pot] < 0 || is_done(s, p, pot)) return;
    float share = (float)s->tick[pot] / (float)i_max(p->cook_time, 1);
    draw_rect(d, x - 0.4f, y + 0.38f, 0.8f, 0.1f, 0x1b2230);
    draw_rect(d, x - 0.4f, y + 0.38f, 0.8f * share, 0.1f, 0x7bd389);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    int32_t columns = s->layout == 1 ? 9 : s->layout == 4 ? 8 : 5, rows = s->layout == 0 ? 4 : 5;
    draw_view(d, 0.0f, 0.0f, (float)columns, (float)rows, 0xc9b79c);
    for (int32_t k = 0; k < cells; k++) {
        float x = (float)(k % wide), y = (float)(k / wide);
        char tile = kitchen[s->layout][k];
        if (tile <= '2' || tile == '~') continue;
        draw_rect(d, x, y, 1.0f, 1.0f, 0x8a5a34);
        draw_rect(d, x + 0.04f, y + 0.04f, 0.92f, 0.86f, tile == 'S' ? 0x9aa7b8 : 0xb07a48);
        if (tile == 'O') {
            draw_rect(d, x + 0.15f, y + 0.2f, 0.7f, 0.6f, 0x5e3a1e);
            for (int32_t n = 0; n < 3; n++) draw_thing(d, x + 0.3f + 0.2f * (float)n, y + 0.5f, 0.3f, ONION);
        }
        if (tile == 'D') {
            for (int32_t n = 0; n < 3; n++) draw_thing(d, x + 0.5f, y + 0.6f - 0.1f * (float)n, 0.5f, DISH);
        }
        if (tile == 'S') draw_text_centered(d, x + 0.5f, y + 0.47f, 0.18f, "SERVE", 0xffffff);
        draw_thing(d, x + 0.5f, y + 0.45f, 0.5f, s->things[k]);
    }
    for (int32_t k = 0; k < 2; k++) {
        if (places[s->layout][0][k]) draw_pot(s, p, d, k);
    }
    for (int32_t i = 0; i < 2; i++) {
        float x = (float)(s->at[i] % wide) + 0.5f, y = (float)(s->at[i] / wide) + 0.5f;
        int32_t next = ahead(s->at[i], s->facing[i]);
        float dx = (float)(next % wide) + 0.5f - x, dy = (float)(next / wide) + 0.5f - y;
        draw_circle(d, x, y, 0.38f, i ? 0x2f7de1 : 0xd9443f);
        draw_circle(d, x, y, 0.24f, 0xffffff);  // the hat
        draw_circle(d, x + 0.3f * dx, y + 0.3f * dy, 0.1f, 0xf2c79b);
        draw_thing(d, x + 0.36f * dx, y + 0.36f * dy, 0.36f, s->held[i]);
    }
}
