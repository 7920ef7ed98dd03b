// tag_continuous.h: tag with continuous pushes.
//
// The game of tag.h, which describes it; only the action differs.
//
// obs: that of tag.
// action: the push (x, y), each from -1 to 1; a push longer than 1 counts as one of length 1.
// reward: that of tag.
#define ENV_ACTION ACT_BOX(2)
#include "tag.h"
