// stochastic.h: a corridor whose cells look alike, so that the best policy must act at random.
//
// The short corridor with switched actions of Sutton and Barto (2018, example 13.1), with more cells. The agent starts
// in the first cell and wants to leave the last one to the right; every step costs 1. In the second cell the actions
// are switched: left goes right and right goes left. In the first cell left has no effect. All cells look the same. So
// a policy that always acts the same never leaves, and the best one goes right with a probability p: of 8 cells p =
// 0.785, with a return of -23.95 on average; random play returns -72, p = 0.95 -49.9. Of the 3 cells of the book
// (preset book) p = 2 - sqrt(2), about 0.59, returns -11.66 and random play -12. Evaluate it with sampled actions:
// greedy ones return -max_steps. A policy with memory can count its steps and return -cells.
//
// obs: always 1.
// action: 0 left, 1 right.
// reward: -1 for every step.
#define ENV_OBS OBS_F32(1)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_MAX_STEPS 500
#define ENV_CONSTS(X) X(cells, 8, "cells of the corridor")
#define ENV_LIMITS(X) X("cells", 2, 64)
#define ENV_PRESETS(X) X("book", "cells=3", "the corridor of the book: p = 0.586 returns -11.66")
#define ENV_STATS(X)                                                                                                   \
    X(mean, right, "share of actions that chose right; 0.785 is best of 8 cells")                                      \
    X(sum, left_it, "1 if the corridor was left before the time limit")
#define ENV_STATE(X) X(int32_t, at)
#include "core/env.h"
ENV_REQUIRE(cells >= 2 && cells <= 64, "cells must be 2 to 64");
enum { switched = 1 };

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p, (void)rng;
    s->at = 0;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng;
    int32_t right = (*a == 1) ^ (s->at == switched);
    s->at = i_max(s->at + 2 * right - 1, 0);
    out->reward = -1.0f;
    out->terminated = s->at >= cells;
    out->stats.right = (float)(*a == 1);
    out->stats.left_it = (float)(s->at >= cells);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)s, (void)p, (void)agent;
    obs[0] = 1.0f;
}

// The cells with the way that "right" goes in each, the goal behind the last, and the agent.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, -0.25f, -0.4f, (float)cells + 1.25f, 1.8f, 0x0e1726);
    draw_rect(d, -0.08f, -0.08f, (float)cells + 1.16f, 1.16f, 0x4a5b78);
    for (int32_t k = 0; k <= cells; k++) {
        float x = (float)k, way = k == switched ? -1.0f : 1.0f, tip = x + 0.5f + 0.12f * way;
        draw_rect(d, x + 0.02f, 0.0f, 0.96f, 1.0f, k == cells ? 0x7bd389 : k == switched ? 0x6b2f42 : 0x24334d);
        if (k == cells) continue;
        draw_line(d, x + 0.5f - 0.25f * way, 1.4f, tip, 1.4f, 0.08f, 0xf2a65a);
        draw_triangle(d, tip, 1.22f, tip, 1.58f, tip + 0.24f * way, 1.4f, 0xf2a65a);
    }
    draw_text_centered(d, (float)cells + 0.5f, 0.5f, 0.26f, "goal", 0x0e1726);
    draw_circle(d, (float)i_clamp(s->at, 0, cells) + 0.5f, 0.5f, 0.36f, 0xffffff);
    draw_circle(d, (float)i_clamp(s->at, 0, cells) + 0.5f, 0.5f, 0.29f, 0x37c2b3);
}
