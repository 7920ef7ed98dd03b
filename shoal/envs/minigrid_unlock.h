// minigrid_unlock.h: MiniGrid's Unlock: fetch the key and open the locked door between two rooms.
//
// The door is anywhere in the wall between the rooms and of any color; its key is in the left room, like the agent,
// which does not face door or key at the start. Rules and view of MiniGrid 3.2
// (github.com/Farama-Foundation/Minigrid); the default is MiniGrid-Unlock-v0.
//
// obs: 148 bytes: MiniGrid's image of the 7 x 7 cells ahead, (7, 7, 3), then where the agent faces; with one_hot=1 one
// bit per kind of cell, as minigrid_empty.h describes. Walls and shut doors hide what is behind them.
// action: 0 turn left, 1 turn right, 2 forward, 3 pick up, 4 drop, 5 toggle, 6 done (does nothing).
// reward: 1 - 0.9 * steps / max_steps for opening the door, which ends the episode; else 0. The best
// return is 0.971 on average, for one who sees the whole grid; random play returns 0.02.
#define ENV_MAX_STEPS (8 * room_size * room_size)
#define ENV_CONSTS(X) X(room_size, 6, "cells per side of a room, walls included") GRID_CONSTS(X)
#define ENV_LIMITS(X) X("room_size", 4, 32) X("one_hot", 0, 1)
#define ENV_STATS(X)                                                                                                   \
    X(sum, solved, "1 if the door was opened")                                                                         \
    X(last, has_key, "1 if the key is carried at the end")
#define GRID_WIDTH (2 * room_size - 1)
#define GRID_HEIGHT room_size
#include "minigrid/world.h"

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    const int32_t wall = room_size - 1;
    clear_world(s);
    build_room(s, 0, 0, room_size, room_size);
    build_room(s, wall, 0, room_size, room_size);
    int32_t door_y = 1 + rng_int(rng, room_size - 2), color = rng_int(rng, 6);
    *cell_at(s, wall, door_y) = (uint8_t)(LOCKED | color << 4);
    put_object(s, KEY | color << 4, 0, 0, room_size, room_size, rng);
    for (int32_t tries = 0; tries < 1000; tries++) {
        put_agent(s, 0, 0, room_size, room_size, rng);
        int32_t ahead = kind_of(look_ahead(s));
        if (ahead == EMPTY || ahead == WALL) break;
    }
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    int32_t solved = kind_of(act(s, *a)) == LOCKED && kind_of(look_ahead(s)) == DOOR;
    out->reward = solved ? success(s, p) : 0.0f;
    out->terminated = solved;
    out->stats.solved = (float)solved;
    out->stats.has_key = (float)(kind_of(s->carried) == KEY);
}
