// mountain_car.h: drive a car with too weak an engine up a hill, by swinging back first.
//
// The task of Moore (1990, thesis) as Gymnasium's MountainCar-v0 has it: the valley is sin(3 x), the car starts near
// its bottom, the wall at the left end stops it, and the episode ends at the flag on the right. Solved at a mean
// return of -110. Random play returns -200: it never gets there in 200 steps.
//
// obs: position (-1.2 to 0.6; the bottom is at -0.52) and velocity. action: 0 push left, 1 none, 2 push right.
// reward: -1 for every step.
#define ENV_ACTION ACT_DISCRETE(3)
#define ENV_MAX_STEPS 200
#define FORCE 0.001f
#define GOAL 0.5f
#define ENV_STATE(X) X(float, position) X(float, velocity) X(float, throttle)
#include "mountain_car/hill.h"

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    drive(s, p, (float)(*a - 1), out);
    out->reward = -1.0f;
}
