// tag.h: three predators hunt a prey that is faster than they are, among pillars.
//
// The predator-prey task of "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments" (Lowe et al.
// 2017, simple_tag) with its accelerations, speeds and sizes, in an arena with walls. A prey that is touched is caught:
// it starts again, at the one of four random places that is farthest from the predators. Predators get through each
// other, nobody gets through a pillar. The prey outruns each of them: they must drive it into a corner. There are two
// groups, `predators` and `prey`. Each learns a policy of its own, or robots play a side (--opponents prey=flee):
// random; chase, straight towards the nearest of the other group; flee, to where the nearest of the other group is
// farthest.
//
// obs: 1 for a prey and 0 for a predator; own velocity, as a share of the top speed; own place (x, y); the way to every
// pillar; then the way to each of the other group and its velocity, and the same for each of the own group.
// action: 0 nothing, 1 to the left, 2 to the right, 3 down, 4 up. tag_continuous has a push (x, y) instead.
// reward: 1 to every predator for every catch, -1 to the prey that is caught. With shaping above 0 predators lose, and
// prey win, `shaping` times their distance to the nearest of the other group.
// In 200 steps three predators at random catch a fleeing prey 0.005 times, chasing ones 2.8 times; learned ones 5.6.
#define ENV_OBS OBS_F32(5 + 2 * pillars + 4 * (predators + prey - 1))
#define ENV_OBS_LOW -2.0f
#define ENV_OBS_HIGH 2.0f
#ifndef ENV_ACTION
#define ENV_ACTION ACT_DISCRETE(5)
#endif
#define ENV_AGENTS (predators + prey)
#define ENV_GROUPS(X) X("predators", 0, predators - 1) X("prey", predators, predators + prey - 1)
#define ENV_MAX_STEPS 200
#define ENV_CONSTS(X)                                                                                                  \
    X(predators, 3, "predators: the first agents")                                                                     \
    X(prey, 1, "prey: the last agents")                                                                                \
    X(pillars, 2, "round obstacles at random places")
#define ENV_PARAMS(X)                                                                                                  \
    X(float, predator_speed, 1.0f, "top speed of a predator; the arena is 2 wide, and a step takes 0.1")               \
    X(float, prey_speed, 1.3f, "top speed of a prey")                                                                  \
    X(float, predator_push, 3.0f, "acceleration of a predator")                                                        \
    X(float, prey_push, 4.0f, "acceleration of a prey")                                                                \
    X(float, damping, 0.25f, "share of the velocity that is lost in a step")                                           \
    X(float, predator_size, 0.075f, "radius of a predator")                                                            \
    X(float, prey_size, 0.05f, "radius of a prey")                                                                     \
    X(float, pillar_size, 0.2f, "radius of a pillar")                                                                  \
    X(float, shaping, 0.0f, "reward for distance: predators lose it, prey win it")                                     \
    X(int, robot_0, 0, "who plays the agent")                                                                          \
    X(int, robot_1, 0, "who plays the agent")                                                                          \
    X(int, robot_2, 0, "who plays the agent")                                                                          \
    X(int, robot_3, 0, "who plays the agent")                                                                          \
    X(int, robot_4, 0, "who plays the agent")                                                                          \
    X(int, robot_5, 0, "who plays the agent")                                                                          \
    X(int, robot_6, 0, "who plays the agent")                                                                          \
    X(int, robot_7, 0, "who plays the agent")
#define ENV_LIMITS(X)                                                                                                  \
    X("predators", 1, 7)                                                                                               \
    X("prey", 1, 7)                                                                                                    \
    X("pillars", 0, 6)                                                                                                 \
    X("*_speed", 0.01, 5)                                                                                              \
    X("*_push", 0, 50)                                                                                                 \
    X("damping", 0, 1)                                                                                                 \
    X("predator_size", 0, 0.5) X("prey_size", 0, 0.5) X("pillar_size", 0, 0.4) X("shaping", 0, 10)
#define ENV_CHOICES(X) X("robot_*", "learner random chase flee")
#define ENV_STATS(X)                                                                                                   \
    X(sum, catches, "prey caught")                                                                                     \
    X(mean, distance, "from a prey to the nearest predator, mean over prey and steps")
#include "core/env.h"

enum { count = predators + prey, NONE = 0, LEFT, RIGHT, DOWN, UP };
enum { LEARNER, RANDOM, CHASE, FLEE };
ENV_REQUIRE(predators + prey <= 8, "at most 8 agents");

typedef struct {
    float x[count], y[count], vx[count], vy[count];
    float pillar_x[pillars + 1], pillar_y[pillars + 1];  // one more: C has no empty arrays
} State;

ENV_FN int32_t is_prey(int32_t i) { return i >= predators; }

ENV_FN float square_to(const State *s, int32_t i, float x, float y) {
    float dx = s->x[i] - x, dy = s->y[i] - y;
    return dx * dx + dy * dy;
}

// The nearest to a place among the group that agent i does not belong to.
ENV_FN int32_t nearest_other(const State *s, int32_t i, float x, float y) {
    int32_t first = is_prey(i) ? 0 : predators, last = is_prey(i) ? (int32_t)predators : (int32_t)count,
            nearest = first;
    for (int32_t k = first + 1; k < last; k++) {
        if (square_to(s, k, x, y) < square_to(s, nearest, x, y)) nearest = k;
    }
    return nearest;
}

// Puts an agent back into the arena and out of pillars; the part of its velocity that points into them is lost.
ENV_FN void settle(State *s, const Params *p, int32_t i) {
    float reach = p->pillar_size + (is_prey(i) ? p->prey_size : p->predator_size);
    for (int32_t k = 0; k < pillars; k++) {
        float dx = s->x[i] - s->pillar_x[k], dy = s->y[i] - s->pillar_y[k], square = dx * dx + dy * dy;
        if (square >= reach * reach) continue;
        float distance = m_sqrt(square), nx = 1.0f, ny = 0.0f;
        if (distance > 1e-6f) nx = dx / distance, ny = dy / distance;
        s->x[i] = s->pillar_x[k] + nx * reach;
        s->y[i] = s->pillar_y[k] + ny * reach;
        float inward = m_min(s->vx[i] * nx + s->vy[i] * ny, 0.0f);
        s->vx[i] -= inward * nx;
        s->vy[i] -= inward * ny;
    }
    float x = m_clamp(s->x[i], -1.0f, 1.0f), y = m_clamp(s->y[i], -1.0f, 1.0f);
    s->vx[i] = x != s->x[i] ? 0.0f : s->vx[i];
    s->vy[i] = y != s->y[i] ? 0.0f : s->vy[i];
    s->x[i] = x;
    s->y[i] = y;
}

// Puts a prey on the one of four random places that is farthest from the predators.
ENV_FN void place_prey(State *s, const Params *p, int32_t i, Rng *rng) {
    float best = -1.0f, best_x = 0.0f, best_y = 0.0f;
    for (int32_t k = 0; k < 4; k++) {
        float x = rng_uniform(rng, -1.0f, 1.0f), y = rng_uniform(rng, -1.0f, 1.0f);
        float square = square_to(s, nearest_other(s, i, x, y), x, y);
        if (square > best) best = square, best_x = x, best_y = y;
    }
    s->x[i] = best_x;
    s->y[i] = best_y;
    s->vx[i] = s->vy[i] = 0.0f;
    settle(s, p, i);
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->pillar_x[pillars] = s->pillar_y[pillars] = 0.0f;
    for (int32_t k = 0; k < pillars; k++) {
        s->pillar_x[k] = rng_uniform(rng, -0.7f, 0.7f);
        s->pillar_y[k] = rng_uniform(rng, -0.7f, 0.7f);
    }
    for (int32_t i = 0; i < count; i++) {
        s->x[i] = rng_uniform(rng, -1.0f, 1.0f);
        s->y[i] = rng_uniform(rng, -1.0f, 1.0f);
        s->vx[i] = s->vy[i] = 0.0f;
        settle(s, p, i);
    }
    for (int32_t i = predators; i < count; i++) place_prey(s, p, i, rng);
}

ENV_FN int32_t robot_of(const Params *p, int32_t i) {
    const int32_t robots[] = {p->robot_0, p->robot_1, p->robot_2, p->robot_3,
                              p->robot_4, p->robot_5, p->robot_6, p->robot_7};
    return robots[i];
}

// What a robot does: it tries every move for some steps, and takes the best.
ENV_FN int32_t scripted_move(const State *s, int32_t i, int32_t robot) {
    const float ahead = robot == FLEE ? 0.4f : 0.1f;
    float best = -M_INF;
    int32_t best_move = NONE;
    for (int32_t move = NONE; move <= UP; move++) {
        float x = m_clamp(s->x[i] + ahead * (float)((move == RIGHT) - (move == LEFT)), -1.0f, 1.0f);
        float y = m_clamp(s->y[i] + ahead * (float)((move == UP) - (move == DOWN)), -1.0f, 1.0f);
        float square = square_to(s, nearest_other(s, i, x, y), x, y);
        float value = robot == FLEE ? square : -square;
        if (value > best) best = value, best_move = move;
    }
    return best_move;
}

ENV_FN void move_agent(State *s, const Params *p, int32_t i, float push_x, float push_y) {
    const float step = 0.1f;
    float push = is_prey(i) ? p->prey_push : p->predator_push, top = is_prey(i) ? p->prey_speed : p->predator_speed;
    float vx = s->vx[i] * (1.0f - p->damping) + push * push_x * step;
    float vy = s->vy[i] * (1.0f - p->damping) + push * push_y * step;
    float speed = m_sqrt(vx * vx + vy * vy), slower = speed > top ? top / speed : 1.0f;
    s->vx[i] = vx * slower;
    s->vy[i] = vy * slower;
    s->x[i] += s->vx[i] * step;
    s->y[i] += s->vy[i] * step;
    settle(s, p, i);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    float push_x[count], push_y[count], reach = p->predator_size + p->prey_size;
    for (int32_t i = 0; i < count; i++) {
        int32_t robot = robot_of(p, i), move = robot == RANDOM ? rng_int(rng, 5) : NONE;
        if (robot >= CHASE) move = scripted_move(s, i, robot);
        if ((int)ACTION_KIND == (int)SHOAL_DISCRETE && robot == LEARNER) move = (int32_t)a[i];
        push_x[i] = (float)((move == RIGHT) - (move == LEFT));
        push_y[i] = (float)((move == UP) - (move == DOWN));
        if ((int)ACTION_KIND == (int)SHOAL_BOX && robot == LEARNER) {
            float x = (float)a[ACTION_SIZE * i], y = (float)a[ACTION_SIZE * i + ACTION_SIZE - 1];
            float length = m_max(m_sqrt(x * x + y * y), 1.0f);  // a diagonal push is no stronger
            push_x[i] = x / length;
            push_y[i] = y / length;
        }
    }
    for (int32_t i = 0; i < count; i++) move_agent(s, p, i, push_x[i], push_y[i]);
    float total = 0.0f, caught = 0.0f;
    for (int32_t i = 0; i < count; i++) {
        float square = square_to(s, nearest_other(s, i, s->x[i], s->y[i]), s->x[i], s->y[i]);
        float distance = m_sqrt(square);
        int32_t is_caught = is_prey(i) && square < reach * reach;
        out->rewards[i] = (is_prey(i) ? p->shaping : -p->shaping) * distance - (float)is_caught;
        total += is_prey(i) ? distance : 0.0f;
        caught += (float)is_caught;
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t is_caught =
            is_prey(i) && square_to(s, nearest_other(s, i, s->x[i], s->y[i]), s->x[i], s->y[i]) < reach * reach;
        if (!is_prey(i)) out->rewards[i] += caught;
        if (is_caught) place_prey(s, p, i, rng);
    }
    out->stats.catches = caught;
    out->stats.distance = total / (float)prey;
}

// The way to another agent, and its velocity.
ENV_FN void see(const State *s, const Params *p, int32_t i, int32_t other, Obs *obs) {
    float top = is_prey(other) ? p->prey_speed : p->predator_speed;
    obs[0] = s->x[other] - s->x[i];
    obs[1] = s->y[other] - s->y[i];
    obs[2] = m_clamp(s->vx[other] / top, -1.0f, 1.0f);
    obs[3] = m_clamp(s->vy[other] / top, -1.0f, 1.0f);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    float top = is_prey(agent) ? p->prey_speed : p->predator_speed;
    obs[0] = (float)is_prey(agent);
    obs[1] = m_clamp(s->vx[agent] / top, -1.0f, 1.0f);
    obs[2] = m_clamp(s->vy[agent] / top, -1.0f, 1.0f);
    obs[3] = s->x[agent];
    obs[4] = s->y[agent];
    obs += 5;
    for (int32_t k = 0; k < pillars; k++, obs += 2) {
        obs[0] = s->pillar_x[k] - s->x[agent];
        obs[1] = s->pillar_y[k] - s->y[agent];
    }
    for (int32_t own = 0; own < 2; own++) {
        for (int32_t k = 0; k < count; k++) {
            if (k == agent || (is_prey(k) == is_prey(agent)) != own) continue;
            see(s, p, agent, k, obs);
            obs += 4;
        }
    }
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    draw_view(d, -1.15f, 1.15f, 1.15f, -1.15f, 0x0e1726);
    draw_rect(d, -1.08f, -1.08f, 2.16f, 2.16f, 0x1d3b2a);
    for (int32_t k = 0; k < pillars; k++) {
        draw_circle(d, s->pillar_x[k], s->pillar_y[k], p->pillar_size, 0x4a5b78);
        draw_circle(d, s->pillar_x[k], s->pillar_y[k], 0.8f * p->pillar_size, 0x6d7f9c);
    }
    for (int32_t i = 0; i < count; i++) {
        float size = m_max(is_prey(i) ? p->prey_size : p->predator_size, 0.02f), x = s->x[i], y = s->y[i];
        float speed = m_max(m_sqrt(s->vx[i] * s->vx[i] + s->vy[i] * s->vy[i]), 1e-6f);
        float dx = s->vx[i] / speed, dy = s->vy[i] / speed;
        draw_line(d, x, y, x - 1.8f * size * dx, y - 1.8f * size * dy, 0.5f * size, is_prey(i) ? 0x4d8f5f : 0x8f3a48);
        draw_circle(d, x, y, size, is_prey(i) ? 0x7bd389 : 0xe2556d);
        for (int32_t eye = -1; eye <= 1; eye += 2) {
            float ex = x + size * (0.45f * dx - 0.35f * (float)eye * dy),
                  ey = y + size * (0.45f * dy + 0.35f * (float)eye * dx);
            draw_circle(d, ex, ey, 0.26f * size, 0xffffff);
            draw_circle(d, ex + 0.08f * size * dx, ey + 0.08f * size * dy, 0.13f * size, 0x0e1726);
        }
    }
}
