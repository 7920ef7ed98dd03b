// chain.h: a chain of states where the large reward lies behind many unrewarded steps, and a small one is always at
// hand.
//
// The five-state chain of Strens (2000), a test of exploration. Action 0 goes one state ahead and pays nothing, but in
// the last state it stays and pays `large`. Action 1 goes back to the first state and pays `small`. With probability
// `slip` an action has the effect of the other one. The best policy always goes ahead; one that looks for the next
// reward goes back for ever. With the default numbers always going ahead earns 3664 in 1,000 steps in expectation (3677
// in the paper), always going back 1603, random play 1311.
//
// obs: one number for each state, 1 for the one that the agent is in.
// action: 0 ahead, 1 back.
// reward: as above. The episode ends by its time limit only.
#define ENV_OBS OBS_F32(states)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_MAX_STEPS 1000
#define ENV_CONSTS(X) X(states, 5, "states in a row")
#define ENV_PARAMS(X)                                                                                                  \
    X(float, slip, 0.2f, "probability that an action has the effect of the other one")                                 \
    X(float, small, 2.0f, "reward for going back")                                                                     \
    X(float, large, 10.0f, "reward for going ahead in the last state")
#define ENV_LIMITS(X) X("states", 2, 256) X("slip", 0, 1) X("small", -1000, 1000) X("large", -1000, 1000)
#define ENV_PRESETS(X)                                                                                                 \
    X("deep", "states=20 slip=0 small=0.01 large=1 max_steps=100", "19 right choices in a row before the first reward")
#define ENV_STATS(X)                                                                                                   \
    X(last, farthest, "the farthest state that was reached, from 0")                                                   \
    X(sum, larges, "how often the large reward was earned")                                                            \
    X(mean, ahead, "share of actions that chose to go ahead")
#define ENV_STATE(X) X(int32_t, at) X(int32_t, farthest)
#include "core/env.h"
ENV_REQUIRE(states >= 2 && states <= 256, "states must be 2 to 256");

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p, (void)rng;
    s->at = s->farthest = 0;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t slips = rng_uniform(rng, 0.0f, 1.0f) < p->slip, goes = (*a == 0) ^ slips;
    int32_t wins = goes & (s->at >= states - 1);
    out->reward = goes ? (wins ? p->large : 0.0f) : p->small;
    s->at = goes ? i_min(s->at + 1, states - 1) : 0;
    s->farthest = i_max(s->farthest, s->at);
    out->stats.farthest = (float)s->farthest;
    out->stats.larges = (float)wins;
    out->stats.ahead = (float)(*a == 0);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    for (int32_t k = 0; k < states; k++) obs[k] = (float)(s->at == k);
}

// The states as discs in a row, arrows ahead between them, the way back above them, and the rewards at both ends.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    const float last = (float)(states - 1), size = 0.2f * (float)i_max(states, 5), text = 0.3f * size;
    draw_view(d, -0.8f, -1.5f * size - 0.2f, last + 0.8f, 1.3f * size + 0.2f, 0x0e1726);
    draw_line(d, 0.0f, -0.75f * size, last, -0.75f * size, 0.04f * size, 0x4a5b78);
    draw_line(d, 0.0f, -0.75f * size, 0.0f, 0.0f, 0.04f * size, 0x4a5b78);
    draw_triangle(d, -0.12f * size, -0.55f * size, 0.12f * size, -0.55f * size, 0.0f, -0.4f * size, 0x4a5b78);
    for (int32_t k = 0; k < states; k++) {
        float x = (float)k;
        if (k) draw_line(d, x, -0.75f * size, x, 0.0f, 0.04f * size, 0x4a5b78);
        if (k) draw_line(d, x - 1.0f, 0.0f, x - 0.4f, 0.0f, 0.06f, 0x7bd389);
        if (k) draw_triangle(d, x - 0.52f, -0.12f, x - 0.52f, 0.12f, x - 0.36f, 0.0f, 0x7bd389);
    }
    for (int32_t k = 0; k < states; k++) {
        draw_circle(d, (float)k, 0.0f, 0.34f, k == states - 1 ? 0xf2a65a : k <= s->farthest ? 0x3d5378 : 0x24334d);
        if (k == s->at) draw_circle(d, (float)k, 0.0f, 0.24f, 0xffffff);
        if (k == s->at) draw_circle(d, (float)k, 0.0f, 0.18f, 0x37c2b3);
    }
    draw_text(d, -0.6f, 0.8f * size, text, "small", 0xb8c4d9);
    draw_text(d, last + 0.6f - draw_text_width(text, "large"), 0.8f * size, text, "large", 0xf2a65a);
    draw_text_centered(d, 0.5f * last, -1.1f * size, text, "back", 0xb8c4d9);
}
