// delayed.h: the first action of an episode decides its last reward; all rewards between are noise.
//
// A test of credit assignment over time, in the manner of the umbrella task of bsuite (Osband et al. 2020). The first
// observation shows one of `cues` cues, and the first action should name it. Then `delay` steps pass in which actions
// have no effect and each step pays `noise` or -`noise`, as likely. The last of them pays 1 if the first action was
// right, else 0. A policy that assigns credit to the last action before a reward learns nothing. The cue and the choice
// stay in sight, so no memory is needed.
//
// obs: the cue, one-hot; the chosen cue, one-hot, zeros before the choice; the share of steps left; two random bits
// that mean nothing.
// action: the number of a cue; it counts in the first step only.
// reward: as above. The best return is 1 on average, that of random play 1 / cues.
#define ENV_OBS OBS_F32(2 * cues + 3)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(cues)
#define ENV_CONSTS(X) X(cues, 4, "cues, and actions to choose from")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, delay, 30, "steps from the choice to its reward")                                                           \
    X(float, noise, 0.1f, "size of the random rewards between")
#define ENV_LIMITS(X) X("cues", 2, 64) X("delay", 1, 100000) X("noise", 0, 100)
#define ENV_PRESETS(X)                                                                                                 \
    X("long", "delay=200", "200 steps from the choice to its reward")                                                  \
    X("loud", "noise=1", "each random reward is as large as the one that counts")
#define ENV_STATS(X) X(sum, right, "1 if the first action named the cue")
#define ENV_STATE(X) X(int32_t, cue) X(int32_t, chosen) X(int32_t, age) X(int32_t, bits)
#include "core/env.h"
ENV_REQUIRE(cues >= 2 && cues <= 64, "cues must be 2 to 64");

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    s->cue = rng_int(rng, cues);
    s->chosen = -1;
    s->age = 0;
    s->bits = (int32_t)(rng_u32(rng) >> 30);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    uint32_t drawn = rng_u32(rng);
    int32_t ends = s->age >= p->delay;
    s->chosen = s->age == 0 ? *a : s->chosen;
    int32_t right = ends & (s->chosen == s->cue);
    float noise = drawn & 4u ? p->noise : -p->noise;
    out->reward = ends ? (float)right : s->age == 0 ? 0.0f : noise;
    out->terminated = ends;
    out->stats.right = (float)right;
    s->age++;
    s->bits = (int32_t)(drawn & 3u);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    for (int32_t k = 0; k < cues; k++) obs[k] = (float)(s->cue == k);
    for (int32_t k = 0; k < cues; k++) obs[cues + k] = (float)(s->chosen == k);
    obs[2 * cues] = m_clamp(1.0f - (float)s->age / (float)i_max(p->delay + 1, 1), 0.0f, 1.0f);
    obs[2 * cues + 1] = (float)(s->bits & 1);
    obs[2 * cues + 2] = (float)((s->bits >> 1) & 1);
}

ENV_FN uint32_t cue_color(int32_t cue) {
    const uint32_t colors[] = {0x37c2b3, 0xf2a65a, 0xe2556d, 0x7bd389, 0x4f8fe8, 0xc58af9, 0xf2e05a, 0xf4f1e8};
    return colors[cue & 7];
}

// From left to right: the cue, the choice, and the way to the reward, which shows whether the choice was right.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    const float start = 4.6f, end = 11.0f, y = 2.0f;
    int32_t delay = i_max(p->delay, 1), done = i_clamp(s->age, 0, delay), is_right = s->chosen == s->cue;
    draw_view(d, 0.0f, 0.0f, 12.5f, 4.0f, 0x0e1726);
    draw_text_centered(d, 1.2f, 3.4f, 0.4f, "cue", 0xb8c4d9);
    draw_text_centered(d, 3.4f, 3.4f, 0.4f, "choice", 0xb8c4d9);
    draw_text_centered(d, end, 3.4f, 0.4f, "reward", 0xb8c4d9);
    draw_circle(d, 1.2f, y, 0.7f, cue_color(s->cue));
    draw_circle(d, 3.4f, y, 0.7f, 0x24334d);
    if (s->chosen >= 0) draw_circle(d, 3.4f, y, 0.62f, cue_color(s->chosen));
    draw_value(d, 1.05f, y, 0.45f, "", s->cue, 0x0e1726);
    if (s->chosen >= 0) draw_value(d, 3.25f, y, 0.45f, "", s->chosen, 0x0e1726);
    draw_line(d, start, y, end, y, 0.12f, 0x24334d);
    float at = start + (end - start) * (float)done / (float)delay;
    draw_line(d, start, y, at, y, 0.12f, 0x4a5b78);
    draw_circle(d, end, y, 0.7f, s->chosen < 0 ? 0x24334d : is_right ? 0x7bd389 : 0x5a2635);
    if (s->chosen >= 0) draw_text_centered(d, end, y, 0.6f, is_right ? "1" : "0", 0x0e1726);
    draw_circle(d, at, y, 0.24f, 0xffffff);
}
