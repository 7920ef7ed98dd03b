// minigrid_fourrooms.h: MiniGrid's FourRooms: find the green square in one of four rooms.
//
// Each wall between two rooms has one gap at a random place. Agent and goal are on random empty cells. Rules and view
// of MiniGrid 3.2 (github.com/Farama-Foundation/Minigrid); the default is MiniGrid-FourRooms-v0, whose 100 steps are
// few: what the agent has not seen yet it must search, and what it has seen it must remember.
//
// obs: 148 bytes: MiniGrid's image of the 7 x 7 cells ahead, (7, 7, 3), then where the agent faces; with one_hot=1 one
// bit per kind of cell, as minigrid_empty.h describes. Walls hide what is behind them.
// action: 0 turn left, 1 turn right, 2 forward, 3 pick up, 4 drop, 5 toggle, 6 done (does nothing).
// reward: 1 - 0.9 * steps / max_steps on the goal, which ends the episode; else 0.
// The best return is 0.859 on average, for one who sees the whole grid. A scripted player that draws a map of what it
// sees finds every goal and returns 0.71; random play returns 0.02.
#define ENV_MAX_STEPS 100
#define ENV_CONSTS(X) X(size, 19, "cells per side, walls included") GRID_CONSTS(X)
#define ENV_LIMITS(X) X("size", 5, 64) X("one_hot", 0, 1)
#define ENV_STATS(X) X(sum, solved, "1 if the goal was reached")
#define GRID_WIDTH size
#define GRID_HEIGHT size
#include "minigrid/world.h"

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    const int32_t middle = size / 2;
    clear_world(s);
    build_room(s, 0, 0, width, height);
    fill_rect(s, middle, 0, 1, 2 * middle, GREY_WALL);
    fill_rect(s, 0, middle, 2 * middle, 1, GREY_WALL);
    for (int32_t half = 0; half < 2; half++) {
        *cell_at(s, middle, half * middle + 1 + rng_int(rng, middle - 1)) = EMPTY;
        *cell_at(s, half * middle + 1 + rng_int(rng, middle - 1), middle) = EMPTY;
    }
    put_agent(s, 0, 0, width, height, rng);
    put_object(s, GREEN_GOAL, 0, 0, width, height, rng);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    int32_t solved = act(s, *a) == GREEN_GOAL && *a == FORWARD;
    out->reward = solved ? success(s, p) : 0.0f;
    out->terminated = solved;
    out->stats.solved = (float)solved;
}
