// harvest.h: a commons of apples that grow back only where apples are left.
//
// Agents roam a field of small orchards and eat apples. A bare spot of an orchard grows an apple with a probability
// that rises with the number of apples within a distance of 2: none of them, none ever. An orchard that is eaten bare
// is gone for the rest of the episode, so everybody loses if everybody takes what is there. After the Harvest game of
// "A multi-agent reinforcement learning model of common-pool resource appropriation" (Perolat, Leibo et al. 2017), with
// regrowth as in Melting Pot's commons_harvest. With zap=1 an agent can zap others out of the field for a while: three
// parallel beams, each of which ends at the first agent that it hits.
//
// In a step agents act one after another, and another one is the first in every step; a cell has room for one. Then
// apples grow, but not under an agent.
//
// obs: the cells around the agent as three bytes each, 255 or 0: apple, another agent, beyond the field. The agent
// faces the top of the picture. All bytes are 0 while it is zapped out.
// action: 0 stay, 1 ahead, 2 back, 3 to the left, 4 to the right, 5 turn left, 6 turn right, 7 zap. Walking onto an
// apple eats it.
// reward: 1 for an apple, less zap_cost for a zap and hit_cost for being hit. `share` divides it: each agent gets
// (1 - share) of its own and share of the mean over all agents. With share=0 what one leaves another takes.
// Random play eats 59 apples per agent. Scripted agents that go for every apple in sight eat 31, as the field is bare
// soon; those that leave apples with fewer than four others near them eat 217.
#define ENV_OBS OBS_U8(view, view, 3)
#define ENV_ACTION ACT_DISCRETE(8)
#define ENV_AGENTS agents
#define ENV_MAX_STEPS 1000
#define ENV_HAS_CHECK
#define ENV_CONSTS(X)                                                                                                  \
    X(agents, 4, "agents per field")                                                                                   \
    X(patches, 3, "orchards per side of the field; each takes 7 x 7 cells, 13 of them grow apples")                    \
    X(view, 7, "cells per side of what an agent sees; odd")
#define ENV_PARAMS(X)                                                                                                  \
    X(float, grow_1, 0.001f, "probability per step that an apple grows with one apple near")                           \
    X(float, grow_2, 0.005f, "the same with two apples near")                                                          \
    X(float, grow_3, 0.025f, "the same with three or more")                                                            \
    X(float, share, 0.0f, "how much of the reward is the mean over all agents")                                        \
    X(int, zap, 0, "1: agents can zap each other")                                                                     \
    X(int, zap_range, 5, "cells that a beam reaches")                                                                  \
    X(int, zap_time, 25, "steps for which an agent that was hit is out")                                               \
    X(float, zap_cost, 0.0f, "reward lost by a zap")                                                                   \
    X(float, hit_cost, 0.0f, "reward lost by being hit")
#define ENV_LIMITS(X)                                                                                                  \
    X("agents", 1, 16)                                                                                                 \
    X("patches", 1, 4)                                                                                                 \
    X("view", 3, 15)                                                                                                   \
    X("grow_*", 0, 1)                                                                                                  \
    X("share", 0, 1)                                                                                                   \
    X("zap", 0, 1) X("zap_range", 1, 30) X("zap_time", 1, 1000) X("zap_cost", 0, 1000) X("hit_cost", 0, 1000)
#define ENV_STATS(X)                                                                                                   \
    X(sum, apples, "apples eaten, all agents together")                                                                \
    X(mean, stock, "share of the spots that hold an apple, mean over the steps")                                       \
    X(last, alive, "orchards with an apple left at the end")                                                           \
    X(last, equality, "1 - Gini coefficient of the apples that the agents ate")                                        \
    X(sum, zaps, "zaps, all agents together")                                                                          \
    X(sum, hits, "agents hit")
#include "core/env.h"

enum { side = 7 * patches, border = view / 2, spots = 13 * patches * patches };
enum { STAY, AHEAD, BACK, LEFT, RIGHT, TURN_LEFT, TURN_RIGHT, ZAP };
ENV_REQUIRE(view % 2 == 1, "view must be odd");
ENV_REQUIRE(agents <= side * side - spots, "the field must have room for all agents beside the orchards");

typedef struct {
    uint32_t apples[side];  // a bit for each column
    int32_t eaten[agents];
    int32_t out[agents];                           // steps until an agent is back; 0: it is in the field
    uint8_t x[agents], y[agents], facing[agents];  // north, east, south, west
    uint8_t first;                                 // who acts first
} State;

// Whether a cell is within a distance of 2 of the centre of its orchard, as a bit for each column of row y.
ENV_FN uint32_t spots_of(int32_t y) {
    const uint32_t rows[] = {0, 0x08, 0x1c, 0x3e, 0x1c, 0x08, 0};
    uint32_t all = 0;
    for (int32_t k = 0; k < patches; k++) all |= rows[y % 7] << (7 * k);
    return all;
}

ENV_FN int32_t way_x(int32_t facing) { return facing == 1 ? 1 : facing == 3 ? -1 : 0; }
ENV_FN int32_t way_y(int32_t facing) { return facing == 2 ? 1 : facing == 0 ? -1 : 0; }
ENV_FN int32_t is_field(int32_t x, int32_t y) { return x >= 0 && x < side && y >= 0 && y < side; }

// The agent in a cell, or -1.
ENV_FN int32_t agent_at(const State *s, int32_t x, int32_t y) {
    for (int32_t i = 0; i < agents; i++) {
        if (s->out[i] == 0 && s->x[i] == x && s->y[i] == y) return i;
    }
    return -1;
}

// Puts an agent on a random free cell outside of the orchards; where all draws fail, on the first one.
ENV_FN void place(State *s, int32_t i, Rng *rng) {
    for (int32_t k = 0; k < 16; k++) {
        int32_t at = rng_int(rng, side * side), x = at % side, y = at / side;
        if (agent_at(s, x, y) >= 0 || (spots_of(y) >> x & 1)) continue;
        s->x[i] = (uint8_t)x;
        s->y[i] = (uint8_t)y;
        s->facing[i] = (uint8_t)rng_int(rng, 4);
        s->out[i] = 0;
        return;
    }
    for (int32_t at = 0; at < side * side && s->out[i] != 0; at++) {
        if (agent_at(s, at % side, at / side) >= 0 || (spots_of(at / side) >> (at % side) & 1)) continue;
        s->x[i] = (uint8_t)(at % side);
        s->y[i] = (uint8_t)(at / side);
        s->facing[i] = 0;
        s->out[i] = 0;
    }
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    for (int32_t y = 0; y < side; y++) s->apples[y] = spots_of(y);
    for (int32_t i = 0; i < agents; i++) {
        s->out[i] = 1;
        s->eaten[i] = 0;
        s->x[i] = s->y[i] = s->facing[i] = 0;
    }
    for (int32_t i = 0; i < agents; i++) place(s, i, rng);
    s->first = 0;
}

// Three parallel beams. Each hits the first agent in its way.
ENV_FN void zap(State *s, const Params *p, int32_t i, float *gained, Step *out) {
    int32_t dx = way_x(s->facing[i]), dy = way_y(s->facing[i]), x = s->x[i], y = s->y[i];
    for (int32_t beam = -1; beam <= 1; beam++) {
        for (int32_t far = 1; far <= p->zap_range; far++) {
            int32_t to_x = x + far * dx - beam * dy, to_y = y + far * dy + beam * dx;
            if (!is_field(to_x, to_y)) break;
            int32_t hit = agent_at(s, to_x, to_y);
            if (hit < 0) continue;
            s->out[hit] = i_max(p->zap_time, 1) + 1;  // this step does not count
            gained[hit] -= p->hit_cost;
            out->stats.hits += 1.0f;
            break;
        }
    }
    gained[i] -= p->zap_cost;
    out->stats.zaps += 1.0f;
}

ENV_FN void act(State *s, const Params *p, int32_t i, int32_t action, float *gained, Step *out) {
    int32_t turn = action == TURN_LEFT ? 3 : action == TURN_RIGHT ? 1 : 0;
    int32_t way = action == AHEAD ? 0 : action == RIGHT ? 1 : action == BACK ? 2 : 3;
    s->facing[i] = (uint8_t)((s->facing[i] + turn) % 4);
    if (action == ZAP && p->zap) zap(s, p, i, gained, out);
    if (action < AHEAD || action > RIGHT) return;
    int32_t toward = (s->facing[i] + way) % 4, x = s->x[i] + way_x(toward), y = s->y[i] + way_y(toward);
    if (!is_field(x, y) || agent_at(s, x, y) >= 0) return;
    s->x[i] = (uint8_t)x;
    s->y[i] = (uint8_t)y;
    if (!(s->apples[y] >> x & 1)) return;
    s->apples[y] &= ~(1u << x);
    s->eaten[i]++;
    gained[i] += 1.0f;
    out->stats.apples += 1.0f;
}

ENV_FN uint32_t row_of(const uint32_t *rows, int32_t y) { return y >= 0 && y < side ? rows[y] : 0; }

// Counts the apples near each cell of a row at once, up to three: the counters are bits.
ENV_FN void grow(State *s, const Params *p, Rng *rng) {
    uint32_t before[side];
    for (int32_t y = 0; y < side; y++) before[y] = s->apples[y];
    for (int32_t y = 0; y < side; y++) {
        uint32_t bare = spots_of(y) & ~before[y], one = 0, two = 0, three = 0;
        if (bare == 0) continue;
        uint32_t rows[5];
        for (int32_t k = 0; k < 5; k++) rows[k] = row_of(before, y + k - 2);
        const uint32_t near[12] = {rows[0],      rows[4],      rows[1],      rows[1] << 1, rows[1] >> 1, rows[3],
                                   rows[3] << 1, rows[3] >> 1, rows[2] << 1, rows[2] >> 1, rows[2] << 2, rows[2] >> 2};
        for (int32_t k = 0; k < 12; k++) {
            three |= two & near[k];
            two |= one & near[k];
            one |= near[k];
        }
        bare &= one;
        for (int32_t x = 0; bare >> x != 0 && x < side; x++) {
            if (!(bare >> x & 1)) continue;
            float chance = three >> x & 1 ? p->grow_3 : two >> x & 1 ? p->grow_2 : p->grow_1;
            if (rng_uniform(rng, 0.0f, 1.0f) < chance && agent_at(s, x, y) < 0) s->apples[y] |= 1u << x;
        }
    }
}

ENV_FN int32_t count_bits(uint32_t bits) {
    int32_t count = 0;
    for (; bits != 0; bits &= bits - 1) count++;
    return count;
}

ENV_FN float equality(const State *s) {
    int32_t total = 0, gaps = 0;
    for (int32_t i = 0; i < agents; i++) {
        total += s->eaten[i];
        for (int32_t j = 0; j < i; j++) gaps += i_max(s->eaten[i] - s->eaten[j], s->eaten[j] - s->eaten[i]);
    }
    return total > 0 ? 1.0f - (float)gaps / ((float)agents * (float)total) : 1.0f;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    float gained[agents], total = 0.0f;
    for (int32_t i = 0; i < agents; i++) gained[i] = 0.0f;
    for (int32_t k = 0; k < agents; k++) {
        int32_t i = (s->first + k) % agents;
        if (s->out[i] == 0) act(s, p, i, a[i], gained, out);
    }
    s->first = (uint8_t)((s->first + 1) % agents);
    for (int32_t i = 0; i < agents; i++) {
        total += gained[i];
        if (s->out[i] == 1) place(s, i, rng);
        s->out[i] -= s->out[i] > 0;
    }
    grow(s, p, rng);
    for (int32_t i = 0; i < agents; i++) {
        out->rewards[i] = (1.0f - p->share) * gained[i] + p->share * (total / (float)agents);
    }
    int32_t stock = 0, alive = 0;
    for (int32_t k = 0; k < patches; k++) {  // a row of orchards at a time
        uint32_t any = 0;
        for (int32_t y = 7 * k; y < 7 * k + 7; y++) {
            any |= s->apples[y];
            stock += count_bits(s->apples[y]);
        }
        for (int32_t n = 0; n < patches; n++) alive += (any >> (7 * n) & 127) != 0;
    }
    out->stats.stock = (float)stock / (float)spots;
    out->stats.alive = (float)alive;
    out->stats.equality = equality(s);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p;
    int32_t facing = s->facing[agent], ax = way_x(facing), ay = way_y(facing);
    for (int32_t k = 0; k < OBS_SIZE; k++) obs[k] = 0;
    if (s->out[agent] > 0) return;
    for (int32_t k = 0; k < view * view; k++) {
        int32_t ahead = border - k / view, right = k % view - border;
        int32_t x = s->x[agent] + ahead * ax - right * ay, y = s->y[agent] + ahead * ay + right * ax;
        int32_t inside = is_field(x, y);
        obs[3 * k] = inside && (s->apples[y] >> x & 1) ? 255 : 0;
        obs[3 * k + 2] = inside ? 0 : 255;
    }
    for (int32_t i = 0; i < agents; i++) {
        int32_t dx = s->x[i] - s->x[agent], dy = s->y[i] - s->y[agent];
        int32_t row = border - (dx * ax + dy * ay), column = border + (dy * ax - dx * ay);
        if (i == agent || s->out[i] > 0 || row < 0 || row >= view || column < 0 || column >= view) continue;
        obs[3 * (row * view + column) + 1] = 255;
    }
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    for (int32_t y = 0; y < side; y++) {
        if (s->apples[y] & ~spots_of(y)) return 0;
    }
    for (int32_t i = 0; i < agents; i++) {
        if (s->x[i] >= side || s->y[i] >= side || s->facing[i] > 3 || s->out[i] < 0 || s->out[i] > 1001) return 0;
        if (s->eaten[i] < 0 || s->eaten[i] > 1 << 24) return 0;
    }
    return s->first < agents;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    ENV_DATA float arrow[] = {0.0f, -1.0f, 0.75f, 0.8f, 0.0f, 0.4f, -0.75f, 0.8f};
    const uint32_t colors[] = {0x2f7de1, 0xf2a65a, 0xb46bd6, 0xffffff};
    draw_view(d, -0.5f, -0.5f, (float)side + 0.5f, (float)side + 0.5f, 0x24334d);
    draw_rect(d, 0.0f, 0.0f, (float)side, (float)side, 0x2c5e3a);
    for (int32_t k = 0; k < side * side; k++) {
        float x = (float)(k % side), y = (float)(k / side);
        if (!(spots_of(k / side) >> (k % side) & 1)) continue;
        draw_rect(d, x, y, 1.0f, 1.0f, 0x3f7a4b);
        if (!(s->apples[k / side] >> (k % side) & 1)) continue;
        draw_circle(d, x + 0.5f, y + 0.55f, 0.32f, 0xd9443f);
        draw_line(d, x + 0.5f, y + 0.3f, x + 0.58f, y + 0.14f, 0.08f, 0x5e3a1e);
    }
    for (int32_t i = 0; i < agents; i++) {
        if (s->out[i] > 0) continue;
        float x = (float)s->x[i] + 0.5f, y = (float)s->y[i] + 0.5f;
        draw_circle(d, x, y, 0.46f, 0x0e1726);
        draw_shape(d, arrow, 4, x, y, 1.5707963f * (float)s->facing[i], 0.42f, colors[i & 3]);
    }
}
