// bandit.h: pull the arm that pays best under the light that is on.
//
// The smallest env that can be learned: an episode is one step. Each light has one best arm. Always pulling it returns
// 0.8 on average; a random arm returns 0.35.
//
// obs: four lights, one of which is 1. action: the arm to pull. reward: what it pays, with noise.
#define ENV_OBS OBS_F32(4)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(4)
#define ENV_PARAMS(X) X(float, noise, 0.1f, "standard deviation of what an arm pays")
#define ENV_STATS(X) X(last, best, "1 if the best arm was pulled")
#define ENV_STATE(X) X(int32_t, light)
#include "core/env.h"

// One table with one index, of 32-bit numbers: SIMD code can read it.
ENV_DATA float pays[16] = {0.8f, 0.3f, 0.2f, 0.1f, 0.2f, 0.8f, 0.1f, 0.3f,
                           0.3f, 0.1f, 0.8f, 0.2f, 0.1f, 0.2f, 0.3f, 0.8f};

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    s->light = rng_int(rng, 4);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    out->reward = pays[4 * (s->light & 3) + *a] + p->noise * rng_normal(rng);
    out->terminated = 1;
    out->stats.best = (float)(*a == s->light);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    for (int k = 0; k < 4; k++) obs[k] = (float)(k == s->light);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, 0.0f, 0.0f, 4.0f, 2.0f, 0x0e1726);
    for (int k = 0; k < 4; k++) draw_circle(d, (float)k + 0.5f, 1.0f, 0.35f, k == s->light ? 0xf2a65a : 0x24334d);
}
