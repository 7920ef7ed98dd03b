// midrange_continuous.h: midrange with a continuous rudder, throttle and trigger.
//
// The game of midrange.h, which describes it; only the action differs.
//
// obs: the 49 floats of midrange.
// action: rudder (-1 full right to 1 full left), throttle (0 to 1), trigger (0 to 1: it fires above 0.5).
// reward: that of midrange.
#define ENV_ACTION ACT_BOX(3)
#define ENV_ACTION_LOW -1.0f, 0.0f, 0.0f
#define ENV_ACTION_HIGH 1.0f, 1.0f, 1.0f
#define ENV_VERSION 0
#include "midrange/game.h"
