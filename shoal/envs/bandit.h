// bandit.h: pull one of several arms, find out which pays best, and lose little on the way.
//
// The multi-armed bandit (Robbins 1952). An episode has `pulls` pulls; what the arms pay is drawn anew for each episode
// and stays hidden. A policy must explore, and exploit what it has found: the regret is what the best arm would have
// paid above the arms that were pulled, in expectation. Kinds of arms: `bernoulli`: an arm pays 1 with a probability
// that is uniform in 0 .. 1. The best of n pays n / (n + 1) on average, a random one 0.5. `gaussian`: an arm pays a
// normal number with deviation 1 around a mean that is normal with deviation 1. `one_good`: one arm pays 1 with
// probability 0.9, all others with 0.1. `drifting`: as bernoulli, but after every pull each probability takes a step of
// `drift` up or down, and turns back at 0 and 1. `fixed`: arm k of n, from 1, pays 1 with probability k / (n + 1) in
// every episode: a policy without memory learns it.
//
// obs: the share of the pulls that are left; the reward of the last pull; with tallies=1 then the mean reward of each
// arm so far and, for each arm, 1 / (1 + its pulls), so that a policy needs no memory; with tallies=0 instead 1 for the
// arm that was pulled last.
// action: an arm.
// reward: what it pays. The episode ends after the last pull. Of bernoulli arms (10 arms, 100 pulls), random play earns
// 50, Thompson sampling 76.6, and the best arm alone 90.9.
#define ENV_OBS OBS_F32(2 + (1 + tallies) * arms)
#define ENV_ACTION ACT_DISCRETE(arms)
#define ENV_HAS_CHECK
#define ENV_CONSTS(X)                                                                                                  \
    X(arms, 10, "arms to choose from")                                                                                 \
    X(tallies, 1, "1: what each arm has paid is observed; 0: only the last pull, which asks for memory")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, kind, 0, "how arms pay")                                                                                    \
    X(int, pulls, 100, "pulls per episode")                                                                            \
    X(float, drift, 0.05f, "step of a probability after each pull, kind drifting only")
#define ENV_LIMITS(X) X("arms", 2, 64) X("tallies", 0, 1) X("pulls", 1, 100000) X("drift", 0, 1)
#define ENV_CHOICES(X) X("kind", "bernoulli gaussian one_good drifting fixed")
#define ENV_PRESETS(X) X("memory", "tallies=0", "only the last pull is observed: for policies with memory")
#define ENV_STATS(X)                                                                                                   \
    X(sum, regret, "expected pay of the best arm less that of the arms pulled, summed over the episode")               \
    X(mean, best, "share of pulls of the arm that paid best at that time")                                             \
    X(sum, paid, "what the pulled arms were expected to pay")
#include "core/env.h"
ENV_REQUIRE(arms >= 2 && arms <= 64, "arms must be 2 to 64");
ENV_REQUIRE(tallies == 0 || tallies == 1, "tallies must be 0 or 1");
enum { BERNOULLI, GAUSSIAN, ONE_GOOD, DRIFTING, FIXED };

typedef struct {
    float means[arms];     // what each arm is expected to pay
    float earned[arms];    // what it has paid
    int32_t pulled[arms];  // how often it was pulled
    float last_reward;
    int32_t last, done;  // the arm that was pulled last, or -1; pulls so far
} State;

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    int32_t good = rng_int(rng, arms);
    for (int32_t k = 0; k < arms; k++) {
        float uniform = rng_uniform(rng, 0.0f, 1.0f), normal = rng_normal(rng);
        float fixed = (float)(k + 1) / (float)(arms + 1), one_good = k == good ? 0.9f : 0.1f;
        s->means[k] = p->kind == GAUSSIAN   ? normal
                      : p->kind == ONE_GOOD ? one_good
                      : p->kind == FIXED    ? fixed
                                            : uniform;
        s->earned[k] = 0.0f;
        s->pulled[k] = 0;
    }
    s->last_reward = 0.0f;
    s->last = -1;
    s->done = 0;
}

ENV_FN float best_mean(const State *s) {
    float best = s->means[0];
    for (int32_t k = 1; k < arms; k++) best = m_max(best, s->means[k]);
    return best;
}

ENV_FN void drift_arms(State *s, float by, Rng *rng) {
    uint32_t bits = 0;
    for (int32_t k = 0; k < arms; k++) {
        if (k % 32 == 0) bits = rng_u32(rng);
        float mean = s->means[k] + ((bits >> (k % 32)) & 1u ? by : -by);
        s->means[k] = mean < 0.0f ? -mean : mean > 1.0f ? 2.0f - mean : mean;
    }
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    float mean = s->means[*a], best = best_mean(s), normal = mean + rng_normal(rng);
    float reward = p->kind == GAUSSIAN ? normal : (float)(rng_uniform(rng, 0.0f, 1.0f) < mean);
    s->earned[*a] += reward;
    s->pulled[*a]++;
    s->last_reward = reward;
    s->last = *a;
    s->done++;
    out->reward = reward;
    out->terminated = s->done >= p->pulls;
    out->stats.regret = best - mean;
    out->stats.best = (float)(mean == best);
    out->stats.paid = mean;
    if (p->kind == DRIFTING) drift_arms(s, p->drift, rng);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    obs[0] = 1.0f - (float)s->done / (float)i_max(p->pulls, 1);
    obs[1] = s->last_reward;
    for (int32_t k = 0; k < arms && tallies; k++) {
        obs[2 + k] = s->earned[k] / (float)i_max(s->pulled[k], 1);
        obs[2 + arms + k] = 1.0f / (float)(1 + s->pulled[k]);
    }
    for (int32_t k = 0; k < arms && !tallies; k++) obs[2 + k] = (float)(s->last == k);
}

// The counts are of an episode that can be.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    int32_t total = 0;
    if (s->done < 0 || s->done > 100000 || s->last < -1 || s->last >= arms) return 0;
    for (int32_t k = 0; k < arms; k++) {
        if (s->pulled[k] < 0 || s->pulled[k] > s->done || !(m_abs(s->means[k]) <= 100.0f)) return 0;
        if (!(m_abs(s->earned[k]) <= 1e7f)) return 0;
        total += s->pulled[k];
    }
    return total == s->done && m_abs(s->last_reward) <= 200.0f;
}

// A column for each arm: the bar is what it is expected to pay, orange for the best, and the line what it has paid on
// average. Below it its share of the pulls. Above the last one a dot, green if it has paid.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    const float width = (float)arms, low = p->kind == GAUSSIAN ? -3.0f : 0.0f, high = p->kind == GAUSSIAN ? 3.0f : 1.0f;
    const float height = 0.6f * width, scale = height / (high - low), size = width / 10.0f;
    float best = best_mean(s), zero = height * high / (high - low);
    draw_view(d, -0.4f, -1.1f * size, width + 0.4f, height + 2.4f * size, 0x0e1726);
    for (int32_t k = 0; k < arms; k++) {
        float x = (float)k, mean = m_clamp(s->means[k], low, high) * scale, average = 0.0f;
        draw_rect(d, x + 0.04f, 0.0f, 0.92f, height, k == s->last ? 0x2f4263 : 0x16233a);
        draw_rect(d, x + 0.2f, m_min(zero, zero - mean), 0.6f, m_abs(mean), s->means[k] == best ? 0xf2a65a : 0x5b6f92);
        if (s->pulled[k]) average = m_clamp(s->earned[k] / (float)s->pulled[k], low, high) * scale;
        if (s->pulled[k]) draw_rect(d, x + 0.08f, zero - average - 0.04f * size, 0.84f, 0.08f * size, 0x37c2b3);
        float share = (float)s->pulled[k] / (float)i_max(s->done, 1);
        draw_rect(d, x + 0.2f, height + 0.15f * size, 0.6f, 0.9f * size * share, 0x37c2b3);
        if (s->last == k)
            draw_circle(d, x + 0.5f, -0.45f * size, 0.2f * size, s->last_reward > 0.5f ? 0x7bd389 : 0xe2556d);
    }
    draw_value(d, 0.0f, height + 1.75f * size, 0.55f * size, "pull ", s->done, 0xffffff);
    draw_value(d, 0.4f * width, height + 1.75f * size, 0.55f * size, "of ", p->pulls, 0xb8c4d9);
}
