// chase.h: three predators chase a prey that is faster than they are.
//
// Four agents move in a square arena: 0, 1 and 2 are the predators, 3 is the prey. Every reward depends on what the
// other agents do. Policies that draw the same random numbers all move alike, so that no distance changes and nothing
// is learned: a game to test agents that have a policy each (benchmarks/chase.py). The same game as
// examples/chase/chase.h, without its groups: an example is one file to read.
//
// obs: 1 for the prey and 0 for a predator; own position (x, y) and last velocity (x, y); then where three others are,
// relative to the agent (x, y each): for a predator the prey and then the other predators, for the prey the predators.
// action: velocity (x, y), as a share of the agent's top speed.
// reward: each predator gets 1 in a step in which any of them touches the prey, less `shaping` times its own distance
// to the prey. The prey gets the opposite: -1 for a touch, and `shaping` times the mean distance.
#define ENV_OBS OBS_F32(11)
#define ENV_OBS_LOW -2.0f
#define ENV_OBS_HIGH 2.0f
#define ENV_ACTION ACT_BOX(2)
#define ENV_AGENTS 4
#define ENV_MAX_STEPS 50
#define ENV_PARAMS(X)                                                                                                  \
    X(float, predator_speed, 0.08f, "top speed of a predator along each axis, units a step")                           \
    X(float, prey_speed, 0.09f, "top speed of the prey along each axis, units a step")                                 \
    X(float, reach, 0.12f, "distance between centres at which a predator touches the prey")                            \
    X(float, shaping, 0.1f, "reward for a unit of distance")
#define ENV_STATS(X)                                                                                                   \
    X(sum, touches, "steps in which a predator touches the prey")                                                      \
    X(mean, distance, "distance from a predator to the prey, mean over predators and steps")
#include "core/env.h"

enum { PREY = 3, COUNT = 4 };

typedef struct {
    float x[COUNT], y[COUNT];
    float vx[COUNT], vy[COUNT];  // as shares of the top speed
} State;

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    for (int i = 0; i < COUNT; i++) {
        s->x[i] = rng_uniform(rng, -1.0f, 1.0f);
        s->y[i] = rng_uniform(rng, -1.0f, 1.0f);
        s->vx[i] = s->vy[i] = 0.0f;
    }
}

ENV_FN float distance_to_prey(const State *s, int i) {
    float dx = s->x[i] - s->x[PREY], dy = s->y[i] - s->y[PREY];
    return m_sqrt(dx * dx + dy * dy);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    for (int i = 0; i < COUNT; i++) {
        float speed = i == PREY ? p->prey_speed : p->predator_speed;
        s->vx[i] = a[2 * i];
        s->vy[i] = a[2 * i + 1];
        s->x[i] = m_clamp(s->x[i] + speed * s->vx[i], -1.0f, 1.0f);
        s->y[i] = m_clamp(s->y[i] + speed * s->vy[i], -1.0f, 1.0f);
    }
    float total = 0.0f;
    int touches = 0;
    for (int i = 0; i < PREY; i++) {
        float distance = distance_to_prey(s, i);
        total += distance;
        touches |= distance < p->reach;
        out->rewards[i] = -p->shaping * distance;
    }
    float mean = total / (float)PREY, touch = (float)touches;
    for (int i = 0; i < PREY; i++) out->rewards[i] += touch;
    out->rewards[PREY] = p->shaping * mean - touch;
    out->stats.touches = touch;
    out->stats.distance = mean;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p;
    obs[0] = (float)(agent == PREY);
    obs[1] = s->x[agent];
    obs[2] = s->y[agent];
    obs[3] = s->vx[agent];
    obs[4] = s->vy[agent];
    int at = 5;
    for (int k = 0; k < COUNT; k++) {
        int other = (PREY + k) % COUNT;  // the prey first
        if (other == agent) continue;
        obs[at++] = s->x[other] - s->x[agent];
        obs[at++] = s->y[other] - s->y[agent];
    }
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    draw_view(d, -1.2f, 1.2f, 1.2f, -1.2f, 0x0e1726);
    draw_rect(d, -1.1f, -1.1f, 2.2f, 2.2f, 0x16233a);
    for (int i = 0; i < COUNT; i++) draw_circle(d, s->x[i], s->y[i], 0.5f * p->reach, i == PREY ? 0x7bd389 : 0xe2556d);
}
