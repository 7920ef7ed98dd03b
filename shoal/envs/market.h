// market.h: quote a bid and an ask around a price that wanders, and do not end up with a large position.
//
// Market making as in Avellaneda & Stoikov (2008), with their numbers. You offer to buy one unit at `bid` below the mid
// price and to sell one at `ask` above it. Market orders arrive at random, and fewer of them reach deeper into the
// order book: in a step a quote at an offset is filled with the chance 1 - exp(-arrivals * exp(-depth * offset) * dt).
// A narrow quote is filled often and earns little. Then the mid price moves, by chance alone, and takes the value of
// the position with it. A cost for the position stands for aversion to risk; 1 is that of their gamma = 0.5 (gamma *
// volatility^2 / 2). At the limit of the position the quote that would exceed it is not filled.
//
// The best policy leans its quotes against the position. tests/market_twin.py finds it by backward induction: it
// returns 56.4 on average, their closed formula 44.9, quotes of 0.75 on both sides 36.9, random quotes 22.3.
//
// obs: position / limit, share of the time that is left, the last move of the price in standard deviations (clipped to
// 5), whether the bid, the ask was filled in the last step. action: offsets of bid and ask from the mid price; -1 is 0,
// 1 is max_offset. reward: what the fills earned (their offsets), plus position * move of the price, less
// penalty * position^2 * dt. An episode ends after `steps`; what is left is valued at the mid price.
#define ENV_OBS OBS_F32(5)
#define ENV_OBS_LOW -1.0f, 0.0f, -5.0f, 0.0f, 0.0f
#define ENV_OBS_HIGH 1.0f, 1.0f, 5.0f, 1.0f, 1.0f
#define ENV_ACTION ACT_BOX(2)
#define ENV_PARAMS(X)                                                                                                  \
    X(int, steps, 200, "steps of an episode")                                                                          \
    X(float, dt, 0.005f, "time per step")                                                                              \
    X(float, volatility, 2.0f, "standard deviation of the price after time 1")                                         \
    X(float, arrivals, 140.0f, "market orders per time on each side, for a quote at the mid price")                    \
    X(float, depth, 1.5f, "how fast they get fewer with the offset, 1 / price")                                        \
    X(float, penalty, 1.0f, "cost per time of a position of 1; it grows with its square")                              \
    X(float, max_offset, 2.0f, "offset of the widest quote, price")                                                    \
    X(int, limit, 10, "largest position, long or short")
#define ENV_LIMITS(X)                                                                                                  \
    X("steps", 1, 1000000)                                                                                             \
    X("dt", 1e-6, 100)                                                                                                 \
    X("volatility", 0, 1000)                                                                                           \
    X("arrivals", 0, 1000000)                                                                                          \
    X("depth", 0, 1000)                                                                                                \
    X("penalty", 0, 1000000)                                                                                           \
    X("max_offset", 0, 1000)                                                                                           \
    X("limit", 1, 1000)
#define ENV_STATS(X)                                                                                                   \
    X(sum, profit, "change of cash and position at the mid price, without the penalty")                                \
    X(sum, earned, "offsets of all fills: the profit without moves of the price")                                      \
    X(sum, fills, "units bought and sold")                                                                             \
    X(mean, position, "mean size of the position, long or short")                                                      \
    X(mean, spread, "mean of bid + ask offset")
#define ENV_STATE(X)                                                                                                   \
    X(int32_t, step)                                                                                                   \
    X(float, position)                                                                                                 \
    X(float, price) X(float, move) X(float, bid) X(float, ask) X(float, bought) X(float, sold) X(float, profit)
#include "core/env.h"

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p, (void)rng;
    s->step = 0;
    s->position = s->price = s->move = s->bid = s->ask = s->bought = s->sold = s->profit = 0.0f;
}

ENV_FN float offset_of(const Params *p, float action) {
    return 0.5f * (m_clamp(action, -1.0f, 1.0f) + 1.0f) * p->max_offset;
}

ENV_FN float chance_of(const Params *p, float offset) {
    return 1.0f - m_exp(-p->arrivals * m_exp(-p->depth * offset) * p->dt);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    float limit = (float)p->limit, buys = rng_uniform(rng, 0.0f, 1.0f), sells = rng_uniform(rng, 0.0f, 1.0f);
    s->bid = offset_of(p, a[0]);
    s->ask = offset_of(p, a[1]);
    s->bought = (buys < chance_of(p, s->bid)) & (s->position < limit) ? 1.0f : 0.0f;
    s->sold = (sells < chance_of(p, s->ask)) & (s->position > -limit) ? 1.0f : 0.0f;
    s->position = s->position + s->bought - s->sold;
    s->move = rng_normal(rng);
    float moved = s->move * p->volatility * m_sqrt(p->dt), earned = s->bought * s->bid + s->sold * s->ask;
    float profit = earned + s->position * moved;
    s->price = s->price + moved;
    s->profit = s->profit + profit;
    s->step = s->step + 1;
    out->reward = profit - p->penalty * s->position * s->position * p->dt;
    out->terminated = s->step >= p->steps;
    out->stats.profit = profit;
    out->stats.earned = earned;
    out->stats.fills = s->bought + s->sold;
    out->stats.position = m_abs(s->position);
    out->stats.spread = s->bid + s->ask;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    float left = 1.0f - (float)s->step / (float)i_max(p->steps, 1);
    obs[0] = m_clamp(s->position / (float)i_max(p->limit, 1), -1.0f, 1.0f);
    obs[1] = m_clamp(left, 0.0f, 1.0f);
    obs[2] = m_clamp(s->move, -5.0f, 5.0f);
    obs[3] = s->bought;
    obs[4] = s->sold;
}

// A ladder of prices around the mid: the bid below, the ask above, thick when it was just filled; right the
// position as a bar from its limit short to its limit long.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    float scale = 3.4f / m_max(p->max_offset, 1e-6f), bid = s->bid * scale, ask = s->ask * scale;
    float share = m_clamp(s->position / (float)i_max(p->limit, 1), -1.0f, 1.0f);
    float done = m_clamp((float)s->step / (float)i_max(p->steps, 1), 0.0f, 1.0f);
    draw_view(d, -5.0f, 5.0f, 5.0f, -5.0f, 0x0e1726);
    for (int32_t k = -8; k <= 8; k++) {  // what waits in the book at that price, as the arrivals fall with depth
        float y = 0.425f * (float)k, offset = m_abs((float)k) * p->max_offset / 8.0f;
        float length = 2.9f * (1.0f - 0.8f * m_exp(-p->depth * offset));
        if (k) draw_rect(d, -4.5f, y - 0.15f, length, 0.3f, k > 0 ? 0x4a2430 : 0x1f4034);
    }
    draw_line(d, -4.6f, 0.0f, 1.2f, 0.0f, 0.05f, 0xd7e3f0);
    draw_line(d, -4.6f, ask, 1.2f, ask, s->sold > 0.0f ? 0.22f : 0.1f, 0xe2556d);
    draw_line(d, -4.6f, -bid, 1.2f, -bid, s->bought > 0.0f ? 0.22f : 0.1f, 0x7bd389);
    draw_text(d, 1.4f, ask, 0.35f, "ask", 0xe2556d);
    draw_text(d, 1.4f, 0.0f, 0.35f, "mid", 0xd7e3f0);
    draw_text(d, 1.4f, -bid, 0.35f, "bid", 0x7bd389);
    draw_rect(d, 3.2f, -3.4f, 0.9f, 6.8f, 0x16233a);
    draw_rect(d, 3.2f, m_min(3.4f * share, 0.0f), 0.9f, m_abs(3.4f * share), share < 0.0f ? 0xe2556d : 0x7bd389);
    draw_line(d, 3.1f, 0.0f, 4.2f, 0.0f, 0.05f, 0xd7e3f0);
    draw_rect(d, -4.6f, -4.9f, 9.2f, 0.15f, 0x24334d);
    draw_rect(d, -4.6f, -4.9f, 9.2f * done, 0.15f, 0x58a6ff);
    draw_value(d, -4.5f, 4.4f, 0.5f, "profit ", (int32_t)m_clamp(s->profit, -1e6f, 1e6f), 0xffd84a);
    draw_value(d, 1.0f, 4.4f, 0.5f, "holds ", (int32_t)m_clamp(s->position, -1e6f, 1e6f), 0xd7e3f0);
    draw_value(d, -4.5f, -4.3f, 0.4f, "price ", 100 + (int32_t)m_clamp(m_floor(s->price), -1e6f, 1e6f), 0xd7e3f0);
}
