// squared.h: walk a grid from its centre to the corner that lights up.
//
// The tutorial env: docs/add-an-env.md builds it line by line. Optimal play takes the L1 distance to the corner and
// earns a return of 1; walking into a wall wastes the step.
//
// obs: where you are (x, y) and where the target is (x, y), each in [-1, 1].
// action: 0 stay, 1 up, 2 down, 3 left, 4 right. reward: 1 for reaching the target, -1 / max_steps for every step
// that does not, so that dawdling until the time limit returns -1.
#define ENV_OBS OBS_F32(4)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(5)
#define ENV_MAX_STEPS 64
#define ENV_PARAMS(X) X(int, size, 5, "cells from the centre to an edge")
#define ENV_STATS(X) X(sum, reached, "1 if the target was reached")
#define ENV_STATE(X) X(int32_t, x) X(int32_t, y) X(int32_t, target_x) X(int32_t, target_y)
#include "core/env.h"

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    uint32_t corner = rng_u32(rng);
    s->x = s->y = 0;
    s->target_x = corner & 1 ? p->size : -p->size;
    s->target_y = corner & 2 ? p->size : -p->size;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    s->x = i_clamp(s->x + (*a == 4) - (*a == 3), -p->size, p->size);
    s->y = i_clamp(s->y + (*a == 1) - (*a == 2), -p->size, p->size);
    int reached = (s->x == s->target_x) & (s->y == s->target_y);
    float step_cost = 1.0f / (float)i_max(p->max_steps, 1);
    out->reward = reached ? 1.0f : -step_cost;
    out->terminated = reached;
    out->stats.reached = (float)reached;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    float scale = 1.0f / (float)i_max(p->size, 1);
    obs[0] = (float)s->x * scale;
    obs[1] = (float)s->y * scale;
    obs[2] = (float)s->target_x * scale;
    obs[3] = (float)s->target_y * scale;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    float edge = (float)p->size + 0.5f;
    draw_view(d, -edge, edge, edge, -edge, 0x0e1726);
    for (int k = -p->size; k <= p->size; k++) {
        float at = (float)k + 0.5f;
        draw_line(d, at, -edge, at, edge, 0.03f, 0x24334d);
        draw_line(d, -edge, at, edge, at, 0.03f, 0x24334d);
    }
    draw_rect(d, (float)s->target_x - 0.4f, (float)s->target_y - 0.4f, 0.8f, 0.8f, 0xf2a65a);
    draw_circle(d, (float)s->x, (float)s->y, 0.38f, 0x37c2b3);
}
