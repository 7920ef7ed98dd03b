// chain.h: five places in a row, whose worth is known. Right of the last one is the goal: 1, and the game is over. Left of
// the first one is nothing to go to, but each try earns 0.09, forever: a time limit only cuts the game off.
//
// obs: one number for each place, 1 where you are. action: 0 left, 1 right.
#define ENV_OBS OBS_F32(5)
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_MAX_STEPS 10
#define ENV_STATE(X) X(int32_t, at)
#include "core/env.h"

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    s->at = (int32_t)(rng_u32(rng) % 5u);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p;
    (void)rng;
    int goal = (s->at == 4) & (*a == 1), edge = (s->at == 0) & (*a == 0);
    out->reward = goal ? 1.0f : edge ? 0.09f : 0.0f;
    out->terminated = goal;
    s->at = i_clamp(s->at + (*a == 1) - (*a == 0), 0, 4);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p;
    (void)agent;
    for (int k = 0; k < 5; k++) obs[k] = (float)(s->at == k);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, -1.0f, 1.0f, 5.0f, -1.0f, 0x0e1726);
    draw_circle(d, (float)s->at, 0.0f, 0.4f, 0x37c2b3);
}
