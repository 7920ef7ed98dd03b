// memory.h: recall at the end of a corridor the cue that was shown at its start.
//
// The first observation shows one of `cues` cues, each as likely. Then `delay` steps show only the corridor, and
// one step asks: its action must name the cue, and the episode ends. Earlier actions change nothing, and no observation
// but the first depends on the cue. So the mean return is the share of cues recalled: 1 with a memory, and without one
// never more than chance, 1 / cues.
//
// obs: the cue, one-hot, in the first step only; 1 in the corridor; 1 when asked. action: the number of a cue.
// reward: 1 for the right answer, else 0.
#define ENV_OBS OBS_F32(cues + 2)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(cues)
#define ENV_CONSTS(X) X(cues, 4, "cues, and answers to choose from")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, delay, 8, "steps in the corridor between the cue and the question")                                         \
    X(int, jitter, 0, "up to this many steps more, drawn for each episode")
#define ENV_STATS(X) X(sum, recalled, "1 if the answer was right")
#define ENV_STATE(X) X(int32_t, cue) X(int32_t, age) X(int32_t, question)
#include "core/env.h"

ENV_REQUIRE(cues >= 1, "there must be a cue");
enum { LONGEST = 1 << 20 };

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->cue = rng_int(rng, cues);
    s->age = 0;
    s->question = 1 + i_clamp(p->delay, 0, LONGEST) + rng_int(rng, 1 + i_clamp(p->jitter, 0, LONGEST));
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng;
    int asked = s->age >= s->question;
    out->reward = (float)(asked & (*a == s->cue));
    out->terminated = asked;
    out->stats.recalled = out->reward;
    s->age++;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    for (int k = 0; k < cues; k++) obs[k] = (float)((s->age == 0) & (s->cue == k));
    obs[cues] = (float)((s->age > 0) & (s->age < s->question));
    obs[cues + 1] = (float)(s->age == s->question);
}

ENV_FN uint32_t cue_color(int cue) {
    const uint32_t colors[] = {0x37c2b3, 0xf2a65a, 0xe2556d, 0x7bd389};
    return colors[cue & 3];
}

// The corridor from left to right; above its start the cue while it shows, above its end the answers when asked.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    const float start = 1.0f, end = 11.0f, floor_y = 3.2f, sign_y = 1.0f;
    float pace = (end - start) / (float)s->question, x = start + pace * (float)i_min(s->age, s->question);
    draw_view(d, 0.0f, 0.0f, 12.0f, 4.2f, 0x0e1726);
    draw_rect(d, start - 0.5f, floor_y - 0.5f, end - start + 1.0f, 1.0f, 0x16233a);
    for (int k = 0; k <= s->question && s->question <= 100; k++) {
        draw_circle(d, start + pace * (float)k, floor_y, 0.06f, 0x4a5b78);
    }
    int shown = s->age == 0, asked = s->age == s->question;
    draw_rect(d, start - 0.5f, sign_y - 0.5f, 1.0f, 1.0f, shown ? 0x4a5b78 : 0x24334d);
    if (shown) draw_circle(d, start, sign_y, 0.4f, cue_color(s->cue));
    float gap = m_min(1.1f, 8.5f / (float)cues), radius = 0.36f * gap;
    for (int k = 0; k < cues; k++) {
        float at = end + 0.5f - gap * ((float)(cues - k) - 0.5f);
        if (asked && k == s->cue) draw_circle(d, at, sign_y, radius + 0.08f, 0xffffff);
        draw_circle(d, at, sign_y, radius, asked ? cue_color(k) : 0x24334d);
        draw_value(d, at - (k < 10 ? 0.12f : 0.26f) * gap, sign_y, 0.33f * gap, "", k, 0x0e1726);
    }
    if (!shown && !asked) draw_circle(d, start, sign_y, 0.12f, cue_color(s->cue));  // for the viewer alone
    draw_circle(d, x, floor_y, 0.34f, 0xffffff);
    draw_circle(d, x, floor_y, 0.26f, 0x37c2b3);
}
