// negative_byte.h: writes numbers below 0 into an observation of bytes.
#define ENV_OBS OBS_U8(1)
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_MAX_STEPS 50
#define ENV_STATE(X) X(float, position)
#define ENV_NO_DRAW
#include "core/env.h"
ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p, (void)rng;
    s->position = 0.0f;
}
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng;
    s->position = m_clamp(s->position + (*a ? 1.0f : -1.0f), -1.0f, 1.0f);
    out->reward = s->position;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    // -1.0f is 255 in one build and 0 in another
    obs[0] = (uint8_t)s->position;
}
