// unlike.h: two hunters chase a hare along a line. Hunters and hare have different observations and actions.
//
// obs of a hunter: 1, own place, the hare's place, the other hunter's place, the step / 20. obs of the hare: -1, own
// place, the place of the nearest hunter. Its rows are padded with zeros. action of a hunter: 0 stay, 1 left, 2 right,
// 3 leap left, 4 leap right. Of the hare: 0 stay, 1 left, 2 right. reward: a hunter gets 1 on the hare's place, less a
// tenth of its distance; the hare gets the opposite of their sum.
#define ENV_OBS OBS_F32(5)
#define ENV_ACTION ACT_DISCRETE(5)
#define ENV_AGENTS 3
#define ENV_GROUPS(X) X("hunters", 0, 1) X("hare", 2, 2, 3, 3)
#define ENV_MAX_STEPS 20
#define ENV_STATS(X) X(sum, catches, "steps in which a hunter is on the hare's place")
#define ENV_HAS_CHECK
#define ENV_NO_DRAW
#include "core/env.h"

enum { HARE = 2, SIDE = 9 };

typedef struct {
    int place[3], step;
} State;

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    for (int i = 0; i < 3; i++) s->place[i] = rng_int(rng, SIDE);
    s->step = 0;
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    for (int i = 0; i < 3; i++) {
        if (s->place[i] < 0 || s->place[i] >= SIDE) return 0;
    }
    return 1;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng;
    const int hare_moves[3] = {0, -1, 1}, hunter_moves[5] = {0, -1, 1, -2, 2};
    for (int i = 0; i < 3; i++) {
        int to = s->place[i] + (i == HARE ? hare_moves[a[i]] : hunter_moves[a[i]]);
        s->place[i] = to < 0 ? 0 : to >= SIDE ? SIDE - 1 : to;
    }
    s->step++;
    for (int i = 0; i < HARE; i++) {
        float distance = m_abs((float)(s->place[i] - s->place[HARE]));
        out->rewards[i] = (distance < 0.5f ? 1.0f : 0.0f) - 0.1f * distance;
        out->rewards[HARE] -= out->rewards[i];
        out->stats.catches += distance < 0.5f ? 1.0f : 0.0f;
    }
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p;
    float hare = (float)s->place[HARE], first = (float)s->place[0], second = (float)s->place[1];
    obs[0] = agent == HARE ? -1.0f : 1.0f;
    obs[1] = (float)s->place[agent];
    if (agent == HARE) {
        obs[2] = m_abs(first - hare) < m_abs(second - hare) ? first : second;
        return;
    }
    obs[2] = hare;
    obs[3] = agent == 0 ? second : first;
    obs[4] = (float)s->step / 20.0f;
}
