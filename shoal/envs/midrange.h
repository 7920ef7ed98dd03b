// midrange.h: air combat beyond visual range, one against one, with missiles that run out of energy.
//
// Two aircraft on an unbounded plane, each with missiles that need half a minute to arrive. A missile burns for 10 s
// and then only loses speed, most of all in turns, so that whoever turns away in time outruns it, and whoever fires too
// early has wasted it. A missile that kills a target that turns away at once was fired from within the no-escape range:
// 17 km head-on, 12 km from behind. After midrangeRL: aircraft and missiles are the same point-mass model. `mode=fast`
// integrates speed and heading in steps of 0.1 s, guides by the analytic rate of the line of sight, and tests the
// closest approach within a step; its ranges do not depend on the step. `mode=faithful` has the original's formulas:
// 60 steps/s, semi-implicit Euler, a finite difference for guidance, a point test.
//
// A step is one decision of both sides: `time_scale` seconds, whatever the physics step. A game ends with a death (both
// may die), when both sides are out of missiles and none flies, after `time_limit` or beyond `max_range`. The clock is
// a rule of the game, shown in the observation and scored: it terminates; max_steps truncates. `sensors=1` adds radar,
// lock, mid-course support and late warning; `noise=0.1` varies the physics of each game by 10 %, for both sides alike.
// Either seat can be played by a scripted robot (`robot_0`, `robot_1`): drone (flies straight), shooter (fires near
// 25 km and runs), weaver, random, pursuit, crank (fires at 20 km, then keeps the enemy 50 degrees off), nez (fires
// within the no-escape range) and mix (another of them in each game). Presets difficulty-0 to difficulty-5 put them
// into seat 1.
//
// obs: 49 floats in the aircraft's own frame (left is positive), the same for both sides. Own 7: speed / 500 m/s,
// rudder, throttle, missiles left / 6, s until it can fire again, missiles in flight / channels, time left (1 to 0).
// Enemy 8: range / 50 km, sin and cos of its bearing, sin and cos of its heading relative to ours, speed / 500 m/s,
// range rate / 1500 m/s, visible (1; with sensors it falls to 0 while the track is remembered; then all 8 are 0). The 2
// nearest incoming missiles, 7 each: flies, range / 30 km, sin and cos of its bearing, speed / 1500 m/s, closing speed
// / 2000 m/s, time to impact / 40 s (at most 1). The 2 own missiles nearest to the enemy, 5 each: flies, range to it
// / 30 km, speed / 1500 m/s, burning, time to go / 40 s (at most 1). Space-time graph 10 (0 unless space_time=1).
// action: rudder (0 right, 1 straight, 2 left), fire (0 or 1). The throttle is open. midrange_full adds 5 rudder
// positions and the throttle, midrange_continuous has floats.
// reward: reward_win, reward_lose or reward_draw at the end, reward_shot for every missile, reward_alive per second,
// and the change of a potential of bearing and range (off by default).
#define ENV_ACTION ACT_MULTI(3, 2)
#define ENV_VERSION 0
#include "midrange/game.h"
