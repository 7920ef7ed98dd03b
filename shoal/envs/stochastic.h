// stochastic.h: a corridor whose cells look alike, so that the best policy must act at random.
//
// The short corridor with switched actions of Sutton and Barto (2018, example 13.1). The agent starts in the first of
// three cells and wants to leave the last one to the right; every step costs 1. In the second cell the actions are
// switched: left goes right and right goes left. In the first cell left has no effect. All cells look the same. So a
// policy that always acts the same never leaves, and one that goes right with probability p needs 2 (2 - p) / (p (1 -
// p)) steps on average. The best is p = 2 - sqrt(2), about 0.59, with a return of -11.66; p = 0.5 returns -12, and a
// policy that is random in one step of ten only (p = 0.05 or 0.95) -82 or -44. Evaluate it with sampled actions. A
// policy with memory can count its steps and return -3.
//
// obs: always 1.
// action: 0 left, 1 right.
// reward: -1 for every step.
#define ENV_OBS OBS_F32(1)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_MAX_STEPS 200
#define ENV_STATS(X)                                                                                                   \
    X(mean, right, "share of actions that chose right; 0.586 is best")                                                 \
    X(sum, left_it, "1 if the corridor was left before the time limit")
#define ENV_STATE(X) X(int32_t, at)
#include "core/env.h"
enum { cells = 3, switched = 1 };

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

// The three cells with the way that "right" goes in each, the goal behind the last, and the agent.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, -0.25f, -0.45f, 4.25f, 1.75f, 0x0e1726);
    draw_rect(d, -0.08f, -0.08f, 4.16f, 1.16f, 0x4a5b78);
    for (int32_t k = 0; k <= cells; k++) {
        float x = (float)k, way = k == switched ? -1.0f : 1.0f;
        draw_rect(d, x + 0.02f, 0.0f, 0.96f, 1.0f, k == cells ? 0x7bd389 : k == switched ? 0x4d2b3a : 0x24334d);
        if (k == cells) continue;
        draw_line(d, x + 0.5f - 0.25f * way, 1.35f, x + 0.5f + 0.15f * way, 1.35f, 0.06f, 0xf2a65a);
        draw_triangle(d, x + 0.5f + 0.15f * way, 1.22f, x + 0.5f + 0.15f * way, 1.48f, x + 0.5f + 0.35f * way, 1.35f,
                      0xf2a65a);
    }
    draw_text_centered(d, 3.5f, 0.5f, 0.24f, "goal", 0x0e1726);
    draw_circle(d, (float)i_clamp(s->at, 0, cells) + 0.5f, 0.5f, 0.3f, 0xffffff);
    draw_circle(d, (float)i_clamp(s->at, 0, cells) + 0.5f, 0.5f, 0.24f, 0x37c2b3);
}
