// hill.h: what mountain_car.h and mountain_car_continuous.h share: the hill, the car on it, and their picture.
//
// The including header defines ENV_ACTION, ENV_MAX_STEPS, ENV_STATE, and FORCE and GOAL (the defaults of two params);
// after the include, env_step.
#define ENV_OBS OBS_F32(2)
#define ENV_OBS_LOW -1.2f, -0.07f
#define ENV_OBS_HIGH 0.6f, 0.07f
#define ENV_PARAMS(X)                                                                                                  \
    X(float, force, FORCE, "what full throttle adds to the velocity in a step")                                        \
    X(float, gravity, 0.0025f, "what the steepest slope takes from the velocity in a step")                            \
    X(float, max_speed, 0.07f, "the velocity is clipped to it")                                                        \
    X(float, goal, GOAL, "position of the flag")                                                                       \
    X(float, goal_velocity, 0.0f, "the least velocity at the flag that counts")                                        \
    X(float, start_low, -0.6f, "the car starts at rest, uniform between start_low ...")                                \
    X(float, start_high, -0.4f, "... and start_high")
#define ENV_LIMITS(X)                                                                                                  \
    X("force", 0, 1)                                                                                                   \
    X("gravity", 0, 1)                                                                                                 \
    X("max_speed", 0, 0.07f)                                                                                           \
    X("goal", -1.2, 0.6)                                                                                               \
    X("goal_velocity", -0.07, 0.07)                                                                                    \
    X("start_*", -1.2, 0.6)
#define ENV_STATS(X)                                                                                                   \
    X(sum, reached, "1 if the flag was reached")                                                                       \
    X(mean, speed, "|velocity|, mean over the episode")                                                                \
    X(mean, throttle, "|throttle|, mean over the episode")
#include "core/env.h"

#define LEFT_END -1.2f
#define RIGHT_END 0.6f

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->position = rng_uniform(rng, p->start_low, p->start_high);
    s->velocity = 0.0f;
    s->throttle = 0.0f;
}

// Moves the car by a step; the wall at the left end stops it. Returns whether it is at the flag.
ENV_FN int drive(State *s, const Params *p, float throttle, Step *out) {
    float velocity = s->velocity + throttle * p->force - p->gravity * m_cos(3.0f * s->position);
    velocity = m_clamp(velocity, -p->max_speed, p->max_speed);
    float position = m_clamp(s->position + velocity, LEFT_END, RIGHT_END);
    velocity = (position == LEFT_END) & (velocity < 0.0f) ? 0.0f : velocity;
    int reached = (position >= p->goal) & (velocity >= p->goal_velocity);
    s->position = position;
    s->velocity = velocity;
    s->throttle = throttle;
    out->terminated = reached;
    out->stats.reached = (float)reached;
    out->stats.speed = m_abs(velocity);
    out->stats.throttle = m_abs(throttle);
    return reached;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    obs[0] = s->position;
    obs[1] = s->velocity;
}

// ---- the picture ----

ENV_FN float hill_height(float x) { return 0.45f * m_sin(3.0f * x) + 0.55f; }

ENV_FN void draw_hill(Draw *d) {
    enum { PIECES = 60 };
    float outline[2 * (PIECES + 3)];
    for (int k = 0; k <= PIECES; k++) {
        float x = LEFT_END + (RIGHT_END - LEFT_END) * (float)k / (float)PIECES;
        outline[2 * k] = x;
        outline[2 * k + 1] = hill_height(x);
    }
    outline[2 * PIECES + 2] = RIGHT_END;
    outline[2 * PIECES + 3] = -0.05f;
    outline[2 * PIECES + 4] = LEFT_END;
    outline[2 * PIECES + 5] = -0.05f;
    draw_polygon(d, outline, PIECES + 3, 0x24334d);
    for (int k = 0; k < PIECES; k++) {
        draw_line(d, outline[2 * k], outline[2 * k + 1], outline[2 * k + 2], outline[2 * k + 3], 0.012f, 0x4a5b78);
    }
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    const float body[] = {-0.075f, 0.025f, 0.075f, 0.025f, 0.07f,   0.055f, 0.035f,  0.06f,
                          0.02f,   0.085f, -0.04f, 0.085f, -0.055f, 0.06f,  -0.072f, 0.055f};
    const float flame[] = {-0.08f, 0.03f, -0.08f, 0.05f, -0.13f, 0.04f};
    float x = s->position, y = hill_height(x), slope = 1.35f * m_cos(3.0f * x), angle = m_atan2(slope, 1.0f);
    float c = m_cos(angle), n = m_sin(angle), top = hill_height(p->goal) + 0.22f;
    draw_view(d, LEFT_END, 1.3f, RIGHT_END, -0.05f, 0x0e1726);
    draw_hill(d);
    draw_line(d, p->goal, hill_height(p->goal), p->goal, top, 0.012f, 0xffffff);
    draw_triangle(d, p->goal, top, p->goal + 0.09f, top - 0.035f, p->goal, top - 0.07f, 0x7bd389);
    if (s->throttle != 0.0f) {  // what pushes the car: a flame behind it
        float length = m_clamp(s->throttle, -1.0f, 1.0f), placed[6];
        for (int k = 0; k < 3; k++) {
            float along = (length > 0.0f ? 1.0f : -1.0f) * (k == 2 ? -0.08f - 0.05f * m_abs(length) : flame[2 * k]);
            placed[2 * k] = x + c * along - n * flame[2 * k + 1];
            placed[2 * k + 1] = y + n * along + c * flame[2 * k + 1];
        }
        draw_polygon(d, placed, 3, 0xe2556d);
    }
    draw_shape(d, body, 8, x, y, angle, 1.0f, 0xf2a65a);
    for (int side = -1; side <= 1; side += 2) {
        float along = 0.045f * (float)side;
        draw_circle(d, x + c * along - n * 0.022f, y + n * along + c * 0.022f, 0.024f, 0xffffff);
        draw_circle(d, x + c * along - n * 0.022f, y + n * along + c * 0.022f, 0.012f, 0x0e1726);
    }
}
