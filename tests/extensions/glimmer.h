// glimmer.h: a light shines for one step on the left or on the right of a dark image; go to its side when asked.
//
// obs: 8 x 8 pixels; the light is in the first image of a game, a bright bottom row in the last one asks for the answer.
// action: 0 left, 1 right. reward: 1 for the right side in the last step.
#define ENV_OBS OBS_U8(8, 8, 1)
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_MAX_STEPS 100
#define ENV_PARAMS(X) X(int, wait, 2, "steps between the light and the question")
#define ENV_STATE(X) X(int32_t, side) X(int32_t, time)
#include "core/env.h"

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    s->side = (int32_t)(rng_u32(rng) % 2u);
    s->time = 0;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    int asked = s->time == p->wait;
    out->reward = asked && *a == s->side ? 1.0f : 0.0f;
    out->terminated = asked;
    s->time++;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    for (int k = 0; k < 64; k++) obs[k] = 0;
    if (s->time == 0) obs[3 * 8 + (s->side ? 6 : 1)] = 255;
    if (s->time == p->wait)
        for (int k = 56; k < 64; k++) obs[k] = 255;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    draw_view(d, 0.0f, 8.0f, 8.0f, 0.0f, 0x0e1726);
    if (s->time == 0) draw_circle(d, s->side ? 6.5f : 1.5f, 4.5f, 0.5f, 0xffd166);
    if (s->time == p->wait) draw_rect(d, 0.0f, 0.0f, 8.0f, 1.0f, 0x37c2b3);
}
