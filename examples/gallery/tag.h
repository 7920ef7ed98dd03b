// tag.h: a chaser catches a runner who is slower but turns faster, on a field with a pond.
//
// Two agents with continuous actions. Agent 0 chases, agent 1 runs; one policy can play both, because an observation
// says whose it is. The field is closed, and the chaser is faster: good chasers catch good runners in nearly every
// episode, a random chaser catches a random runner in a third of them.
//
// obs: 1 for the chaser or -1 for the runner; the own velocity; the direction to the other (x, y) and the distance; the
// velocity of the other; the own place; the direction to the pond. action: the push (x, y), from -1 to 1.
// reward: the chaser loses 0.01 in every step and wins 1 by catching; the runner gets the opposite.
#define ENV_AGENTS 2
#define ENV_OBS OBS_F32(12)
#define ENV_OBS_LOW -4.0f
#define ENV_OBS_HIGH 4.0f
#define ENV_ACTION ACT_BOX(2)
#define ENV_MAX_STEPS 200
#define ENV_PARAMS(X)                                                                                                  \
    X(float, chaser_push, 0.012f, "how much a full push changes the chaser's velocity")                                \
    X(float, runner_push, 0.014f, "the same for the runner")                                                           \
    X(float, chaser_speed, 0.07f, "top speed of the chaser, in a step")                                                \
    X(float, runner_speed, 0.05f, "top speed of the runner")                                                           \
    X(float, reach, 0.12f, "the distance at which the runner is caught")                                               \
    X(float, pond, 0.3f, "radius of the pond, around which both must go")
#define ENV_LIMITS(X) X("*_push", 0, 1) X("*_speed", 0, 1) X("reach", 0, 1) X("pond", 0, 0.9)
#define ENV_STATS(X) X(sum, caught, "1 if the runner was caught") X(mean, distance, "between the two, mean of steps")
#include "core/env.h"

enum { CHASER, RUNNER };

typedef struct {
    float x, y, vx, vy;
} Body;

typedef struct {
    Body bodies[2];
} State;

ENV_FN float length_of(float x, float y) { return m_sqrt(x * x + y * y); }

ENV_FN float distance_of(const State *s) {
    return length_of(s->bodies[0].x - s->bodies[1].x, s->bodies[0].y - s->bodies[1].y);
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    for (int k = 0; k < 2; k++) {
        Body *body = &s->bodies[k];
        float side = k == CHASER ? -1.0f : 1.0f;  // they start on opposite sides of the pond
        body->x = side * rng_uniform(rng, p->pond + 0.05f, 1.0f);
        body->y = rng_uniform(rng, -1.0f, 1.0f);
        body->vx = body->vy = 0.0f;
    }
}

// Pushes a body, limits its speed, and keeps it on the field and out of the pond.
ENV_FN void move_body(Body *body, const float *push, float strength, float top, float pond) {
    body->vx += strength * push[0];
    body->vy += strength * push[1];
    float speed = length_of(body->vx, body->vy), slower = speed > top ? top / speed : 1.0f;
    body->vx *= slower;
    body->vy *= slower;
    float x = body->x + body->vx, y = body->y + body->vy;
    float from_pond = length_of(x, y);
    if (from_pond < pond) {  // to the nearest point of the shore
        float grow = from_pond > 1e-6f ? pond / from_pond : 0.0f;
        x = grow > 0.0f ? x * grow : pond;
        y *= grow;
    }
    body->x = m_clamp(x, -1.0f, 1.0f);
    body->y = m_clamp(y, -1.0f, 1.0f);
    if (body->x != x) body->vx = 0.0f;  // a wall stops the part of the velocity that points into it
    if (body->y != y) body->vy = 0.0f;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    move_body(&s->bodies[CHASER], a, p->chaser_push, p->chaser_speed, p->pond);
    move_body(&s->bodies[RUNNER], a + 2, p->runner_push, p->runner_speed, p->pond);
    float distance = distance_of(s);
    int caught = distance < p->reach;
    out->rewards[CHASER] = caught ? 1.0f : -0.01f;
    out->rewards[RUNNER] = -out->rewards[CHASER];
    out->terminations[CHASER] = out->terminations[RUNNER] = caught;
    out->stats.caught = (float)caught;
    out->stats.distance = distance;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    const Body *own = &s->bodies[agent], *other = &s->bodies[1 - agent];
    float scale = 1.0f / m_max(m_max(p->chaser_speed, p->runner_speed), 1e-3f);  // velocities from -1 to 1
    float from_pond = m_max(length_of(own->x, own->y), 1e-3f);
    obs[0] = agent == CHASER ? 1.0f : -1.0f;
    obs[1] = m_clamp(own->vx * scale, -1.0f, 1.0f);
    obs[2] = m_clamp(own->vy * scale, -1.0f, 1.0f);
    obs[3] = other->x - own->x;
    obs[4] = other->y - own->y;
    obs[5] = distance_of(s);
    obs[6] = m_clamp(other->vx * scale, -1.0f, 1.0f);
    obs[7] = m_clamp(other->vy * scale, -1.0f, 1.0f);
    obs[8] = own->x;
    obs[9] = own->y;
    obs[10] = -own->x / from_pond;
    obs[11] = -own->y / from_pond;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    ENV_DATA float arrow[] = {1.3f, 0.0f, -0.8f, 0.8f, -0.4f, 0.0f, -0.8f, -0.8f};
    draw_view(d, -1.15f, 1.15f, 1.15f, -1.15f, 0x0e1726);
    draw_rect(d, -1.1f, -1.1f, 2.2f, 2.2f, 0x1d3b2a);
    draw_circle(d, 0.0f, 0.0f, p->pond, 0x1f4e79);
    for (int k = 0; k < 2; k++) {
        const Body *body = &s->bodies[k];
        float angle = m_atan2(body->vy, body->vx);
        draw_shape(d, arrow, 4, body->x, body->y, angle, 0.06f, k == CHASER ? 0xe4572e : 0xf2e86d);
    }
    draw_text_centered(d, 0.0f, 1.0f, 0.07f, distance_of(s) < 0.3f ? "close!" : "", 0xffffff);
}
