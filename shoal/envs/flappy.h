// flappy.h: fly a bird through gaps between pipes; a flap lifts it, gravity pulls it down.
//
// After Flappy Bird (Nguyen 2013), with the sizes of its usual clones: 288 x 404 px of sky, 30 frames/s, a bird of
// 34 x 24 px at 57 px from the left, pipes of 52 px every 144 px that come closer by 4 px a frame, gaps of 100 px. A
// flap sets the bird's speed to 9 px upwards; otherwise it gains 1 px per frame downwards, up to 10. The sky's top
// stops the bird. The upper edge of a gap is uniform between 81 and 223 px; the next gap can always be reached.
//
// obs: height of the bird (-1 bottom, 1 top), its speed (1 is 10 px per frame upwards), px until the pipes ahead are
// passed / 200, how far their gap's middle is above the bird's middle / 200 px, the same of the next two pairs, and two
// params: size of the gaps / 200 px, pace / 10 px per frame. All are clipped to -1 .. 1. action: 0 glide, 1 flap.
// reward: 1 for each pair of pipes passed. The episode ends when the bird meets a pipe or the ground.
// 99 pairs are in the 3,600 frames of an episode. Random play passes none, a script that flaps as late as the lower
// pipe allows 53: it does not look at the gap after the next.
#define ENV_OBS OBS_F32(8)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_MAX_STEPS 3600
#define ENV_PARAMS(X)                                                                                                  \
    X(float, gap, 100.0f, "px between an upper and a lower pipe")                                                      \
    X(float, spacing, 144.0f, "px from one pair of pipes to the next")                                                 \
    X(float, pace, 4.0f, "px per frame that the pipes come closer")                                                    \
    X(float, gravity, 1.0f, "px per frame^2")                                                                          \
    X(float, flap, 9.0f, "px per frame upwards after a flap")                                                          \
    X(float, fastest, 10.0f, "px per frame downwards, at most")
#define ENV_LIMITS(X)                                                                                                  \
    X("gap", 30, 240)                                                                                                  \
    X("spacing", 90, 1000)                                                                                             \
    X("pace", 0.1, 40)                                                                                                 \
    X("gravity", 0, 20)                                                                                                \
    X("flap", 0, 40)                                                                                                   \
    X("fastest", 0, 40)
#define ENV_STATS(X)                                                                                                   \
    X(sum, passed, "pairs of pipes passed")                                                                            \
    X(sum, flaps, "flaps")                                                                                             \
    X(sum, crashes, "1 if it met a pipe")
// gap_0: upper edge of the gap ahead; gap_1 and gap_2 follow, gap_back was passed last. ahead: px from the bird's left
// side to the right side of the pipes ahead.
#define ENV_STATE(X)                                                                                                   \
    X(float, y)                                                                                                        \
    X(float, speed)                                                                                                    \
    X(float, ahead)                                                                                                    \
    X(float, gap_back)                                                                                                 \
    X(float, gap_0)                                                                                                    \
    X(float, gap_1)                                                                                                    \
    X(float, gap_2)                                                                                                    \
    X(int32_t, passed)                                                                                                 \
    X(int32_t, flapped)
#include "core/env.h"

// px; y is the bird's top and points down.
#define WIDTH 288.0f
#define HEIGHT 404.0f
#define BIRD_X 57.0f
#define BIRD_WIDTH 34.0f
#define BIRD_HEIGHT 24.0f
#define PIPE_WIDTH 52.0f

// The upper edge of a new gap: a fifth of the sky is kept free above and below.
ENV_FN float draw_gap(const Params *p, Rng *rng) {
    float lowest = m_max(0.8f * HEIGHT - p->gap, 0.2f * HEIGHT);
    return rng_uniform(rng, 0.2f * HEIGHT, lowest);
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->y = 0.5f * (HEIGHT - BIRD_HEIGHT);
    s->speed = 0.0f;
    s->ahead = WIDTH + PIPE_WIDTH - BIRD_X;
    s->gap_0 = draw_gap(p, rng);
    s->gap_1 = draw_gap(p, rng);
    s->gap_2 = draw_gap(p, rng);
    s->gap_back = s->gap_0;
    s->passed = s->flapped = 0;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t flaps = *a == 1;
    float next_gap = draw_gap(p, rng), gravity_speed = m_min(s->speed + p->gravity, p->fastest);
    s->speed = flaps ? -p->flap : gravity_speed;
    float y = s->y + s->speed;
    s->speed = y < 0.0f ? 0.0f : s->speed;
    s->y = m_clamp(y, 0.0f, HEIGHT - BIRD_HEIGHT);
    s->ahead -= p->pace;

    int32_t passed = s->ahead <= 0.0f;
    s->gap_back = passed ? s->gap_0 : s->gap_back;
    s->gap_0 = passed ? s->gap_1 : s->gap_0;
    s->gap_1 = passed ? s->gap_2 : s->gap_1;
    s->gap_2 = passed ? next_gap : s->gap_2;
    s->ahead = passed ? s->ahead + p->spacing : s->ahead;
    s->passed += passed;
    s->flapped = flaps;

    int32_t between = s->ahead < PIPE_WIDTH + BIRD_WIDTH;
    int32_t outside = (s->y < s->gap_0) | (s->y + BIRD_HEIGHT > s->gap_0 + p->gap);
    int32_t on_ground = y >= HEIGHT - BIRD_HEIGHT;
    out->reward = (float)passed;
    out->terminated = (between & outside) | on_ground;
    out->stats.passed = (float)passed;
    out->stats.flaps = (float)flaps;
    out->stats.crashes = (float)(between & outside);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    float middle = s->y + 0.5f * BIRD_HEIGHT, half_gap = 0.5f * p->gap;
    obs[0] = m_clamp(1.0f - 2.0f * s->y / (HEIGHT - BIRD_HEIGHT), -1.0f, 1.0f);
    obs[1] = m_clamp(-0.1f * s->speed, -1.0f, 1.0f);
    obs[2] = m_clamp(s->ahead / 200.0f, -1.0f, 1.0f);
    obs[3] = m_clamp((middle - s->gap_0 - half_gap) / 200.0f, -1.0f, 1.0f);
    obs[4] = m_clamp((middle - s->gap_1 - half_gap) / 200.0f, -1.0f, 1.0f);
    obs[5] = m_clamp((middle - s->gap_2 - half_gap) / 200.0f, -1.0f, 1.0f);
    obs[6] = m_clamp(p->gap / 200.0f, 0.0f, 1.0f);
    obs[7] = m_clamp(p->pace / 10.0f, 0.0f, 1.0f);
}

ENV_FN void draw_pipe(Draw *d, float x, float top, float height, float lip) {
    draw_rect(d, x + 3.0f, top, PIPE_WIDTH - 6.0f, height, 0x5aa469);
    draw_rect(d, x + 8.0f, top, 8.0f, height, 0x86c98f);
    draw_rect(d, x, lip, PIPE_WIDTH, 16.0f, 0x468453);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    draw_view(d, 0.0f, 0.0f, WIDTH, 460.0f, 0x7ec8e3);
    for (int32_t k = 0; k < 5; k++) draw_circle(d, 20.0f + 66.0f * (float)k, 400.0f, 42.0f, 0xa7dbea);
    float right = BIRD_X + s->ahead;
    for (int32_t k = -1; k < 3; k++) {
        float x = right - PIPE_WIDTH + (float)k * p->spacing;
        float top = k < 0 ? s->gap_back : k == 0 ? s->gap_0 : k == 1 ? s->gap_1 : s->gap_2;
        if ((k < 0 && s->passed == 0) || x > WIDTH) continue;
        draw_pipe(d, x, 0.0f, top, top - 16.0f);
        draw_pipe(d, x, top + p->gap, HEIGHT - top - p->gap, top + p->gap);
    }
    draw_rect(d, 0.0f, HEIGHT, WIDTH, 56.0f, 0xded895);
    draw_rect(d, 0.0f, HEIGHT, WIDTH, 10.0f, 0x7bb661);
    float x = BIRD_X + 0.5f * BIRD_WIDTH, y = s->y + 0.5f * BIRD_HEIGHT;
    float lift = s->flapped ? 7.0f : -6.0f, beak = 1.2f * s->speed;
    draw_circle(d, x - 3.0f, y, 12.0f, 0xf7d308);
    draw_circle(d, x + 5.0f, y, 10.5f, 0xf7d308);
    draw_triangle(d, x - 16.0f, y + lift, x + 2.0f, y - 3.0f, x - 2.0f, y + 6.0f, 0xffffff);
    draw_circle(d, x + 9.0f, y - 4.0f, 4.0f, 0xffffff);
    draw_circle(d, x + 10.5f, y - 4.0f, 1.8f, 0x0e1726);
    draw_triangle(d, x + 12.0f, y - 1.0f, x + 11.0f, y + 7.0f, x + 21.0f, y + 3.0f + 0.3f * beak, 0xe86b3a);
    draw_value(d, 10.0f, 440.0f, 22.0f, "", s->passed, 0x5a4a1f);
}
