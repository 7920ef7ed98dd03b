// minigrid_empty.h: MiniGrid's Empty: walk to the green square in the opposite corner of a room.
//
// The smallest task of MiniGrid 3.2 (github.com/Farama-Foundation/Minigrid), with its rules and its view. The agent
// starts in the top left corner, facing right; with random_start anywhere but on the goal, as in Empty-Random. Presets
// are the ids of MiniGrid; the default is MiniGrid-Empty-8x8-v0.
//
// obs: the 7 x 7 cells ahead, column by column from left to right, each from far to near, as MiniGrid's bytes: object
// (0 unseen, 1 empty, 2 wall, 4 door, 5 key, 6 ball, 8 goal), color (0 red, 1 green, 2 blue, 3 purple, 4 yellow,
// 5 grey), state (of a door: 0 open, 1 closed, 2 locked). obs[:147] as (7, 7, 3) is MiniGrid's image. The agent is in
// the middle of the near row; its cell shows what it carries. The last byte is where it faces: 0 right, 1 down, 2 left,
// 3 up. With one_hot=1 each cell is 8 bytes instead, 0 or 1: empty, wall, door open, closed, locked, key, ball, goal
// (unseen: none); then the four directions. Walls hide nothing in this task.
// action: 0 turn left, 1 turn right, 2 forward, 3 pick up, 4 drop, 5 toggle, 6 done (does nothing).
// reward: 1 - 0.9 * steps / max_steps on the goal, which ends the episode; else 0.
// The best return is 0.961 (11 steps); random play returns 0.09.
#define ENV_MAX_STEPS (4 * size * size)
#define ENV_CONSTS(X) X(size, 8, "cells per side, walls included") GRID_CONSTS(X)
#define ENV_PARAMS(X) X(int, random_start, 0, "1: start anywhere, facing any way; 0: top left, facing right")
#define ENV_LIMITS(X) X("size", 5, 64) X("one_hot", 0, 1) X("random_start", 0, 1)
#define ENV_PRESETS(X)                                                                                                 \
    X("5x5", "size=5", "MiniGrid-Empty-5x5-v0")                                                                        \
    X("random-5x5", "size=5 random_start=1", "MiniGrid-Empty-Random-5x5-v0")                                           \
    X("8x8", "", "MiniGrid-Empty-8x8-v0")                                                                              \
    X("16x16", "size=16", "MiniGrid-Empty-16x16-v0")
#define ENV_STATS(X) X(sum, solved, "1 if the goal was reached")
#define GRID_WIDTH size
#define GRID_HEIGHT size
#define GRID_SEE_THROUGH
#include "minigrid/world.h"

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    clear_world(s);
    build_room(s, 0, 0, width, height);
    *cell_at(s, width - 2, height - 2) = GREEN_GOAL;
    s->x = s->y = 1;
    if (p->random_start) put_agent(s, 1, 1, width - 2, height - 2, rng);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    int32_t solved = act(s, *a) == GREEN_GOAL && *a == FORWARD;
    out->reward = solved ? success(s, p) : 0.0f;
    out->terminated = solved;
    out->stats.solved = (float)solved;
}
