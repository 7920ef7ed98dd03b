// midrange_full.h: midrange with five rudder positions and a throttle.
//
// The game of midrange.h, which describes it; only the action differs.
//
// obs: the 49 floats of midrange.
// action: rudder (0 full right, 1 half right, 2 straight, 3 half left, 4 full left), throttle (0 closed, 1 half, 2
// open), fire (0 or 1).
// reward: that of midrange.
#define ENV_ACTION ACT_MULTI(5, 3, 2)
#define ENV_VERSION 0
#include "midrange/game.h"
