// minigrid_doorkey.h: MiniGrid's DoorKey: fetch a key, unlock the door, walk to the green square behind it.
//
// A wall splits a room, and the only door in it is locked. Key and agent are on the left of it, the goal is in the
// corner on the right. Rules and view of MiniGrid 3.2 (github.com/Farama-Foundation/Minigrid). Presets are the ids of
// MiniGrid; the default is MiniGrid-DoorKey-8x8-v0.
//
// obs: 148 bytes: MiniGrid's image of the 7 x 7 cells ahead, (7, 7, 3), then where the agent faces; with one_hot=1 one
// bit per kind of cell, as minigrid_empty.h describes. Walls and shut doors hide what is behind them.
// action: 0 turn left, 1 turn right, 2 forward, 3 pick up, 4 drop, 5 toggle, 6 done (does nothing).
// reward: 1 - 0.9 * steps / max_steps on the goal, which ends the episode; else 0.
// The best return is 0.976 on average, for one who sees the whole grid; random play returns 0.01.
#define ENV_MAX_STEPS (10 * size * size)
#define ENV_CONSTS(X) X(size, 8, "cells per side, walls included") GRID_CONSTS(X)
#define ENV_LIMITS(X) X("size", 5, 64) X("one_hot", 0, 1)
#define ENV_PRESETS(X)                                                                                                 \
    X("5x5", "size=5", "MiniGrid-DoorKey-5x5-v0")                                                                      \
    X("8x8", "", "MiniGrid-DoorKey-8x8-v0")                                                                            \
    X("16x16", "size=16", "MiniGrid-DoorKey-16x16-v0")
#define ENV_STATS(X)                                                                                                   \
    X(sum, solved, "1 if the goal was reached")                                                                        \
    X(last, has_key, "1 if the key is carried at the end")                                                             \
    X(sum, unlocked, "1 if the door was unlocked")
#define GRID_WIDTH size
#define GRID_HEIGHT size
#include "minigrid/world.h"

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    clear_world(s);
    build_room(s, 0, 0, width, height);
    *cell_at(s, width - 2, height - 2) = GREEN_GOAL;
    int32_t split = 2 + rng_int(rng, width - 4), door_y = 1 + rng_int(rng, height - 3);
    fill_rect(s, split, 0, 1, height, GREY_WALL);
    put_agent(s, 0, 0, split, height, rng);
    *cell_at(s, split, door_y) = LOCKED | YELLOW << 4;
    put_object(s, KEY | YELLOW << 4, 0, 0, split, height, rng);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    int32_t ahead = act(s, *a), solved = ahead == GREEN_GOAL && *a == FORWARD;
    out->reward = solved ? success(s, p) : 0.0f;
    out->terminated = solved;
    out->stats.solved = (float)solved;
    out->stats.has_key = (float)(kind_of(s->carried) == KEY);
    out->stats.unlocked = (float)(kind_of(ahead) == LOCKED && kind_of(look_ahead(s)) == DOOR);
}
