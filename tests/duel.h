// duel.h: the higher number wins. A tiny game of two or more players for the tests of leagues (tests/test_league.py).
//
// Games last 1 to `longest` steps, drawn at their start. With early=1 player k leaves k steps before the end.
//
// obs: steps so far, a number that wanders at random, own last action, the sum of all last actions, and the scripted
// player of each seat when the game began.
// action: 0, 1 or 2. The mask forbids 1 in every third step.
// reward: own action less the mean of the others' actions.
#define ENV_OBS OBS_F32(4 + players)
#define ENV_ACTION ACT_DISCRETE(3)
#define ENV_AGENTS players
#define ENV_HAS_MASK
#define ENV_CONSTS(X) X(players, 2, "players")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, longest, 7, "most steps of a game")                                                                         \
    X(int, early, 0, "1: players leave before the end, one after the other")                                           \
    X(int, robot_0, 0, "who plays it")                                                                                 \
    X(int, robot_1, 0, "who plays it")                                                                                 \
    X(int, robot_2, 0, "who plays it")                                                                                 \
    X(int, robot_3, 0, "who plays it")
#define ENV_LIMITS(X)                                                                                                  \
    X("players", 1, 4)                                                                                                 \
    X("longest", 1, 1000)                                                                                              \
    X("early", 0, 1)
#define ENV_CHOICES(X) X("robot_*", "learner low high")
#include "core/env.h"

typedef struct {
    int32_t tick, length;
    float wander;
    int32_t last[players], robot[players];
} State;

ENV_FN int32_t robot_of(const Params *p, int k) {
    const int32_t robots[] = {p->robot_0, p->robot_1, p->robot_2, p->robot_3};
    return robots[k];
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->tick = 0;
    s->length = 1 + rng_int(rng, p->longest);
    s->wander = rng_uniform(rng, -1.0f, 1.0f);
    for (int k = 0; k < players; k++) {
        s->last[k] = 0;
        s->robot[k] = robot_of(p, k);
    }
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    float sum = 0.0f;
    for (int k = 0; k < players; k++) {
        s->last[k] = s->robot[k] == 0 ? (int32_t)a[k] : s->robot[k] == 1 ? 0 : 2;
        sum += (float)s->last[k];
    }
    s->tick++;
    s->wander = m_clamp(s->wander + rng_uniform(rng, -0.5f, 0.5f), -1.0f, 1.0f);
    for (int k = 0; k < players; k++) {
        float own = (float)s->last[k];
        out->rewards[k] = own - (sum - own) / (float)(players > 1 ? players - 1 : 1);
        out->terminations[k] = s->tick >= s->length - (p->early ? k : 0);
    }
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p;
    float sum = 0.0f;
    for (int k = 0; k < players; k++) sum += (float)s->last[k];
    obs[0] = (float)s->tick;
    obs[1] = s->wander;
    obs[2] = (float)s->last[agent];
    obs[3] = sum;
    for (int k = 0; k < players; k++) obs[4 + k] = (float)s->robot[k];
}

ENV_FN void env_mask(const State *s, const Params *p, int agent, uint8_t *mask) {
    (void)p, (void)agent;
    mask[0] = mask[2] = 1;
    mask[1] = (uint8_t)(s->tick % 3 != 2);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, 0.0f, 0.0f, (float)players, 3.0f, 0x0e1726);
    for (int k = 0; k < players; k++) draw_rect(d, (float)k, 0.0f, 0.8f, (float)s->last[k] + 0.1f, 0xe2556d);
}
