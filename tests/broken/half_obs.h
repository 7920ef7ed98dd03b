// half_obs.h: leaves an element of obs unset.
#define ENV_OBS OBS_F32(2)
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_MAX_STEPS 50
#include "core/env.h"
typedef struct {
    float position, velocity;
} State;
ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    s->position = rng_uniform(rng, -1.0f, 1.0f);
    s->velocity = 0.0f;
}
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng;
    s->velocity = 0.5f * s->velocity + (*a ? 0.1f : -0.1f);
    s->position += s->velocity;
    out->reward = s->position;
}
ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    obs[0] = s->position;
}
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, -9.0f, -1.0f, 9.0f, 1.0f, 0);
    draw_circle(d, s->position, 0.0f, 0.5f, 0xffffff);
}
