// unmarked.h: a function without ENV_FN, which only a CPU can call.
#define ENV_OBS OBS_F32(1)
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_MAX_STEPS 50
#define ENV_STATE(X) X(float, position)
#define ENV_NO_DRAW
#include "core/env.h"
void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    s->position = rng_uniform(rng, -1.0f, 1.0f);
}
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng;
    s->position = 0.5f * s->position + (*a ? 0.1f : -0.1f);
    out->reward = s->position;
}
ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    obs[0] = s->position;
}
