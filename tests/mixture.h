// mixture.h: two agents steer along a line and choose a word. An action has a number and two choices.
//
// obs: own place, the other's place, the other's last word, the goal. action: velocity, then a gear of 2 and a word
// of 3. reward: less the distance to the goal, and 1 if the word is the other agent's gear.
#define ENV_OBS OBS_F32(4)
#define ENV_ACTION ACT_MIX(1, 2, 3)
#define ENV_ACTION_LOW -2.0f
#define ENV_ACTION_HIGH 2.0f
#define ENV_AGENTS 2
#define ENV_MAX_STEPS 12
#define ENV_STATS(X) X(sum, matches, "words that are the other agent's gear")
#define ENV_NO_DRAW
#include "core/env.h"

typedef struct {
    float place[2], word[2], goal;
} State;

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    for (int i = 0; i < 2; i++) s->place[i] = rng_uniform(rng, -1.0f, 1.0f), s->word[i] = 0.0f;
    s->goal = rng_uniform(rng, -1.0f, 1.0f);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng;
    for (int i = 0; i < 2; i++) {
        int gear = (int)a[3 * i + 1], other_gear = (int)a[3 * (1 - i) + 1], word = (int)a[3 * i + 2];
        s->place[i] = m_clamp(s->place[i] + 0.1f * (float)(1 + gear) * a[3 * i], -1.0f, 1.0f);
        s->word[i] = (float)word;
        float match = word == other_gear ? 1.0f : 0.0f;
        out->rewards[i] = match - m_abs(s->place[i] - s->goal);
        out->stats.matches += match;
    }
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p;
    obs[0] = s->place[agent];
    obs[1] = s->place[1 - agent];
    obs[2] = s->word[1 - agent];
    obs[3] = s->goal;
}
