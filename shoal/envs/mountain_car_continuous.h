// mountain_car_continuous.h: mountain_car with a throttle, where effort costs and the flag pays.
//
// Gymnasium's MountainCarContinuous-v0: the valley of mountain_car.h, a slightly stronger engine, a flag a little
// lower, and 999 steps of time. Solved at a mean return of 90. Doing nothing returns 0, which is what a learner finds
// first: it must reach the flag by chance before it sees that there is something to gain. Random play returns -33.
//
// obs: position (-1.2 to 0.6; the bottom is at -0.52) and velocity. action: throttle, -1 full left to 1 full right.
// reward: -0.1 throttle^2 for every step, and 100 at the flag.
#define ENV_ACTION ACT_BOX(1)
#define ENV_MAX_STEPS 999
#define FORCE 0.0015f
#define GOAL 0.45f
#define ENV_STATE(X) X(float, position) X(float, velocity) X(float, throttle)
#include "mountain_car/hill.h"

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    float throttle = m_clamp(*a, -1.0f, 1.0f);
    int reached = drive(s, p, throttle, out);
    out->reward = (reached ? 100.0f : 0.0f) - 0.1f * throttle * throttle;
}
