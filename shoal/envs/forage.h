// forage.h: live off plants that feed you well only if they were left to ripen.
//
// Agents roam a field of rocks and plants and see only what is near. Each burns `hunger` per step and is out when its
// energy is gone. Eating the plant it stands on adds meal * ripeness^2, up to a store of 1, and the plant starts again
// bare: half ripe is a quarter of a meal, so the field feeds everyone only if everyone is patient. Within a step an
// agent eats, then moves. Two are never on one cell, and agents take turns at moving first.
//
// obs: the cells around the agent, each as four bytes: 255 for rock and beyond the field; the plant's ripeness (2 bare,
// 252 ripe, 0 no plant); 255 for another agent; the agent's own energy, the same in all cells.
// action: 0 stay, 1 up, 2 down, 3 left, 4 right; and 1 to eat. The mask forbids moves onto rock or another agent, and
// eating where there is no plant; such actions do nothing.
// reward: the energy eaten, less `death` when it runs out. No return exceeds max_steps * hunger + 1 - start = 2.76, all
// that can be burnt and stored. Random play returns -0.1 and most agents die. Eating every plant at once, however
// young, returns -0.4. Going to the nearest one that is 60 % ripe, to eat it when below 0.7 energy, returns 2.5.
#define ENV_OBS OBS_U8(view, view, 4)
#define ENV_ACTION ACT_MULTI(5, 2)
#define ENV_AGENTS agents
#define ENV_MAX_STEPS 256
#define ENV_HAS_MASK
#define ENV_HAS_CHECK
#define ENV_CONSTS(X)                                                                                                  \
    X(agents, 4, "agents per field")                                                                                   \
    X(side, 16, "cells per side of the field")                                                                         \
    X(view, 7, "cells per side of what an agent sees; odd")                                                            \
    X(plants, 24, "plants per field")
#define ENV_PARAMS(X)                                                                                                  \
    X(float, hunger, 0.01f, "energy burnt per step")                                                                   \
    X(float, meal, 0.5f, "energy in a ripe plant")                                                                     \
    X(float, ripen, 200.0f, "steps from bare to ripe")                                                                 \
    X(float, start, 0.8f, "energy at the start")                                                                       \
    X(float, death, 1.0f, "reward lost by dying")                                                                      \
    X(float, rocks, 0.06f, "share of the cells that are rock")
#define ENV_STATS(X)                                                                                                   \
    X(sum, eaten, "energy eaten, all agents together")                                                                 \
    X(sum, meals, "plants eaten, all agents together")                                                                 \
    X(sum, deaths, "agents that died")                                                                                 \
    X(mean, ripeness, "ripeness of a plant, mean over plants and steps")
#include "core/env.h"

enum { border = view / 2, wide = side + 2 * border };  // the map is the field in a frame of rock: no view leaves it
ENV_REQUIRE(view >= 3 && view % 2 == 1, "view must be odd and at least 3");
ENV_REQUIRE(agents > 0 && plants > 0 && agents + plants <= side * side, "the field must hold all agents and plants");

// A cell is one byte: 0 bare ground, 1 to 126 a plant's ripeness, 127 rock; and 128 more where an agent stands.
enum { RIPE = 126, ROCK = 127, GROUND = 127, AGENT = 128 };

typedef struct {
    uint8_t map[wide * wide];
    float energy[agents];  // 0: dead, and off the map
    int32_t at[agents];
    float ripeness[plants];
    int32_t plant_at[plants];
    int32_t first;  // who moves first
} State;

ENV_FN int32_t ahead(int32_t move) {
    const int32_t steps[] = {0, -wide, wide, -1, 1};
    return move >= 0 && move < 5 ? steps[move] : 0;
}
ENV_FN int32_t is_free(const State *s, int32_t at) { return s->map[at] < ROCK; }
ENV_FN int32_t has_plant(const State *s, int32_t at) { return s->map[at] % AGENT > 0; }  // for cells with an agent
ENV_FN int32_t shade(float ripeness) { return 1 + (int32_t)((float)(RIPE - 1) * ripeness); }

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    int32_t field[side * side];
    for (int32_t k = 0; k < wide * wide; k++) s->map[k] = ROCK;
    for (int32_t k = 0; k < side * side; k++) {
        field[k] = (k / side + border) * wide + k % side + border;
        s->map[field[k]] = 0;
    }
    int32_t rocks = (int32_t)(m_clamp(p->rocks, 0.0f, 1.0f) * (float)(side * side));
    int32_t things = i_min(agents + plants + rocks, side * side);
    for (int32_t k = 0; k < things; k++) {  // each on a random free cell
        int32_t pick = k + rng_int(rng, side * side - k), at = field[pick];
        field[pick] = field[k];
        if (k < agents) {
            s->map[at] = AGENT;
            s->at[k] = at;
            s->energy[k] = m_clamp(p->start, 0.01f, 1.0f);
        } else if (k < agents + plants) {
            float ripeness = rng_uniform(rng, 0.0f, 1.0f);
            s->map[at] = (uint8_t)shade(ripeness);
            s->plant_at[k - agents] = at;
            s->ripeness[k - agents] = ripeness;
        } else {
            s->map[at] = ROCK;
        }
    }
    s->first = 0;
}

// Agent i eats the plant it stands on. Returns the energy it gains.
ENV_FN float eat(State *s, const Params *p, int32_t i) {
    int32_t k = 0;
    while (k < plants - 1 && s->plant_at[k] != s->at[i]) k++;
    float before = s->energy[i], ripeness = s->ripeness[k];
    s->energy[i] = m_min(before + m_max(p->meal, 0.0f) * ripeness * ripeness, 1.0f);
    s->ripeness[k] = 0.0f;
    return s->energy[i] - before;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    int32_t left[agents];  // the cell that an agent left: it stays reserved until all have moved
    for (int32_t k = 0; k < agents; k++) {
        int32_t i = (s->first + k) % agents, to = s->at[i] + ahead(a[2 * i]);
        left[i] = 0;  // the map's corner, where nobody is
        if (s->energy[i] <= 0.0f) continue;
        if (a[2 * i + 1] == 1 && has_plant(s, s->at[i])) {
            out->rewards[i] = eat(s, p, i);
            out->stats.eaten += out->rewards[i];
            out->stats.meals += 1.0f;
        }
        if (!is_free(s, to)) continue;
        left[i] = s->at[i];
        s->at[i] = to;
        s->map[to] |= AGENT;
    }
    s->first = (s->first + 1) % agents;

    for (int32_t i = 0; i < agents; i++) {
        s->map[left[i]] &= GROUND;
        if (s->energy[i] <= 0.0f) continue;
        s->energy[i] = m_clamp(s->energy[i] - p->hunger, 0.0f, 1.0f);
        if (s->energy[i] > 0.0f) continue;
        s->map[s->at[i]] &= GROUND;
        out->rewards[i] -= p->death;
        out->terminations[i] = 1;
        out->stats.deaths += 1.0f;
    }

    float growth = 1.0f / m_max(p->ripen, 1.0f);
    int32_t shades[plants], total = 0;
    for (int32_t k = 0; k < plants; k++) {
        s->ripeness[k] = m_min(s->ripeness[k] + growth, 1.0f);
        shades[k] = shade(s->ripeness[k]);
        total += shades[k];
    }
    for (int32_t k = 0; k < plants; k++) {
        uint8_t *cell = &s->map[s->plant_at[k]];
        *cell = (uint8_t)((*cell & AGENT) | shades[k]);
    }
    out->stats.ripeness = (float)total / (float)(RIPE * plants);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p;
    const uint8_t *from = &s->map[s->at[agent] - border * wide - border];
    uint8_t seen[view * view];
    for (int32_t y = 0; y < view; y++) memcpy(&seen[y * view], &from[y * wide], view);
    seen[border * view + border] &= GROUND;  // an agent does not see itself
    uint32_t own = (uint32_t)(int32_t)(255.0f * s->energy[agent]) << 24;
    for (int32_t k = 0; k < view * view; k++) {  // the four bytes as one word, lowest first: this becomes SIMD code
        uint32_t ground = seen[k] & GROUND, word = ground == ROCK ? 255 : 2 * ground << 8;
        word |= own | (seen[k] & AGENT ? 255u << 16 : 0);
        memcpy(&obs[4 * k], &word, 4);
    }
}

ENV_FN void env_mask(const State *s, const Params *p, int agent, uint8_t *mask) {
    (void)p;
    int32_t at = s->at[agent];
    mask[0] = mask[5] = 1;
    for (int32_t move = 1; move < 5; move++) mask[move] = (uint8_t)is_free(s, at + ahead(move));
    mask[6] = (uint8_t)has_plant(s, at);
}

ENV_FN int32_t is_field(int32_t at) {
    return at >= 0 && at < wide * wide && at / wide >= border && at / wide < border + side && at % wide >= border &&
           at % wide < border + side;
}

// The frame is rock, so that nobody walks off the map; everything else stands on the field.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    for (int32_t k = 0; k < wide * wide; k++) {
        if (!is_field(k) && s->map[k] != ROCK) return 0;
    }
    for (int32_t i = 0; i < agents; i++) {
        if (!is_field(s->at[i]) || !(s->energy[i] >= 0.0f && s->energy[i] <= 1.0f)) return 0;
    }
    for (int32_t k = 0; k < plants; k++) {
        if (!is_field(s->plant_at[k]) || !(s->ripeness[k] >= 0.0f && s->ripeness[k] <= 1.0f)) return 0;
    }
    return s->first >= 0 && s->first < agents;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    const uint32_t colors[] = {0x37c2b3, 0xf2a65a, 0xe2556d, 0xffffff};
    const float edge = (float)side + 0.25f;
    draw_view(d, -0.5f, -0.5f, edge + 0.25f, edge + 0.25f, 0x0e1726);
    for (int32_t i = 0; i < agents; i++) {  // what each one sees
        float x = (float)(s->at[i] % wide - 2 * border), y = (float)(s->at[i] / wide - 2 * border);
        if (s->energy[i] > 0.0f) draw_rect(d, x, y, (float)view, (float)view, 0x16233a);
    }
    draw_line(d, -0.25f, -0.25f, edge, -0.25f, 0.5f, 0x24334d);
    draw_line(d, -0.25f, edge, edge, edge, 0.5f, 0x24334d);
    draw_line(d, -0.25f, -0.25f, -0.25f, edge, 0.5f, 0x24334d);
    draw_line(d, edge, -0.25f, edge, edge, 0.5f, 0x24334d);
    for (int32_t k = 0; k < side * side; k++) {
        float x = (float)(k % side), y = (float)(k / side);
        if (s->map[(k / side + border) * wide + k % side + border] != ROCK) continue;
        draw_rect(d, x + 0.06f, y + 0.06f, 0.88f, 0.88f, 0x24334d);
        draw_rect(d, x + 0.06f, y + 0.06f, 0.88f, 0.5f, 0x4a5b78);
    }
    for (int32_t k = 0; k < plants; k++) {
        float x = (float)(s->plant_at[k] % wide - border) + 0.5f, y = (float)(s->plant_at[k] / wide - border) + 0.5f;
        draw_circle(d, x, y, 0.42f, 0x24334d);
        draw_circle(d, x, y, 0.08f + 0.34f * s->ripeness[k], 0x7bd389);
    }
    for (int32_t i = 0; i < agents; i++) {
        float x = (float)(s->at[i] % wide - border), y = (float)(s->at[i] / wide - border);
        if (s->energy[i] <= 0.0f) continue;
        draw_circle(d, x + 0.5f, y + 0.5f, 0.36f, 0x0e1726);
        draw_circle(d, x + 0.5f, y + 0.5f, 0.3f, colors[i & 3]);
        draw_rect(d, x + 0.05f, y - 0.1f, 0.9f, 0.14f, 0x4a5b78);
        draw_rect(d, x + 0.05f, y - 0.1f, 0.9f * s->energy[i], 0.14f, s->energy[i] > 0.3f ? 0x7bd389 : 0xe2556d);
    }
}
