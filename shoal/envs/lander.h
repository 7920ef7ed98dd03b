// lander.h: land a ship between two flags on the moon.
//
// In the spirit of Gymnasium's LunarLander-v3, whose sizes, engines, observations and rewards it has. The physics is
// our own: the ship is one rigid body with two springy legs, not three bodies with joints as in Box2D. The ground is
// new in every episode; the pad in its middle is level. The engines are noisy. A leg is a spring and a damper that
// pushes the ship off the ground, with Coulomb friction at the foot: a touchdown at up to about 5 m/s is absorbed. The
// episode ends when the hull touches the ground or the ship leaves the world (a crash), and when it has stood still on
// both legs for half a second, on the pad or not (a landing). Solved at a mean return of 200. Random play returns -167.
//
// obs: position relative to the pad (x / 10 m, y / 6.7 m), velocity (0.2 s/m vx, 0.13 s/m vy), angle (rad, positive to
// the left), 0.4 s * spin, whether the left and the right leg touch the ground.
// action: 0 nothing, 1 engine to the left (pushes and turns left), 2 main engine, 3 engine to the right.
// reward: the gain in a potential: -100 * (distance + speed + |angle|, as observed) + 10 for each leg on the ground;
// less 0.3 for a step of the main engine and 0.03 for one of a side engine. A crash is -100, a landing 100.
#define ENV_ACTION ACT_DISCRETE(4)
#include "lander/ship.h"

ENV_FN Throttle throttle_of(const Action *a) {
    Throttle t;
    t.main = (float)(*a == 2);
    t.side = (float)((*a == 3) - (*a == 1));
    return t;
}
