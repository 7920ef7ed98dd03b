// lander_continuous.h: lander with throttles: how much of each engine.
//
// The game of lander.h, which describes it; only the action differs, as in Gymnasium's LunarLanderContinuous-v3. Solved
// at a mean return of 200. Random play returns -187.
//
// obs: the 8 floats of lander.
// action: main engine (off up to 0; above, from half to full thrust), side engines (below -0.5 the one that pushes to
// the left, above 0.5 the one to the right, from half to full thrust; off between).
// reward: that of lander; engines cost in proportion to their thrust.
#define ENV_ACTION ACT_BOX(2)
#include "lander/ship.h"

ENV_FN Throttle throttle_of(const Action *a) {
    Throttle t;
    t.main = a[0] > 0.0f ? 0.5f + 0.5f * m_min(a[0], 1.0f) : 0.0f;
    t.side = m_abs(a[1]) > 0.5f ? m_clamp(a[1], -1.0f, 1.0f) : 0.0f;
    return t;
}
