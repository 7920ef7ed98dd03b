// minigrid_memory.h: MiniGrid's Memory: look at an object, walk down a hallway, and turn to where there is one like it.
//
// The start room shows a key or a ball. At the end of the hallway a key and a ball lie to the left and the right, in
// random order; next to the one like the first the agent has won, next to the other it has lost. The agent starts
// anywhere between, facing the far end, so that it must turn back to look before it goes: without a memory it wins half
// of the episodes. Rules and view of MiniGrid 3.2 (github.com/Farama-Foundation/Minigrid). Presets are the ids of
// MiniGrid; the default is MiniGrid-MemoryS13-v0.
//
// obs: 148 bytes: MiniGrid's image of the 7 x 7 cells ahead, (7, 7, 3), then where the agent faces; with one_hot=1 one
// bit per kind of cell, as minigrid_empty.h describes. Walls hide what is behind them.
// action: 0 turn left, 1 turn right, 2 forward, 3 to 6 do nothing here.
// reward: 1 - 0.9 * steps / max_steps next to the right object; 0 next to the wrong one and in all other steps.
// The best return is 0.992 on average, for one who knows the first object from the start; random play returns 0.24, and
// walking straight to either object half of the best.
#define ENV_MAX_STEPS (5 * size * size)
#define ENV_CONSTS(X) X(size, 13, "cells per side, walls included; odd") GRID_CONSTS(X)
#define ENV_PARAMS(X) X(int, random_length, 0, "1: the hallway ends anywhere; 0: at the right wall")
#define ENV_LIMITS(X) X("size", 7, 63) X("one_hot", 0, 1) X("random_length", 0, 1)
#define ENV_PRESETS(X)                                                                                                 \
    X("s7", "size=7", "MiniGrid-MemoryS7-v0")                                                                          \
    X("s13", "", "MiniGrid-MemoryS13-v0")                                                                              \
    X("s13-random", "random_length=1", "MiniGrid-MemoryS13Random-v0")                                                  \
    X("s17-random", "size=17 random_length=1", "MiniGrid-MemoryS17Random-v0")
#define ENV_STATS(X)                                                                                                   \
    X(sum, solved, "1 if the right object was chosen")                                                                 \
    X(sum, chosen, "1 if either object was chosen")
#define GRID_WIDTH size
#define GRID_HEIGHT size
#include "minigrid/world.h"

ENV_REQUIRE(size % 2 == 1, "size must be odd");
enum { middle = size / 2, GREEN_KEY = KEY | GREEN << 4, GREEN_BALL = BALL | GREEN << 4 };

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    clear_world(s);
    build_room(s, 0, 0, width, height);
    int32_t end = 4 + rng_int(rng, size - 6);
    end = p->random_length ? end : size - 3;
    for (int32_t side = -1; side <= 1; side += 2) {
        fill_rect(s, 1, middle + 2 * side, 4, 1, GREY_WALL);    // the start room
        fill_rect(s, 4, middle + side, end - 4, 1, GREY_WALL);  // the hallway
    }
    fill_rect(s, end, 0, 1, middle, GREY_WALL);
    fill_rect(s, end, middle + 1, 1, height - middle - 1, GREY_WALL);
    fill_rect(s, end + 2, 0, 1, height, GREY_WALL);
    s->x = (uint8_t)(1 + rng_int(rng, end));
    s->y = middle;
    uint32_t coins = rng_u32(rng);
    *cell_at(s, 1, middle - 1) = coins >> 31 ? GREEN_KEY : GREEN_BALL;
    *cell_at(s, end + 1, middle - 2) = coins >> 30 & 1 ? GREEN_KEY : GREEN_BALL;
    *cell_at(s, end + 1, middle + 2) = coins >> 30 & 1 ? GREEN_BALL : GREEN_KEY;
}

// The object that the agent stands next to at the end of the hallway; a wall elsewhere.
ENV_FN int32_t choice_of(const State *s) {
    int32_t side = s->y - middle, beyond = look_at(s, s->x, s->y + side);
    int32_t is_choice = (side == 1 || side == -1) && (beyond == GREEN_KEY || beyond == GREEN_BALL);
    return is_choice ? beyond : (int32_t)GREY_WALL;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    act(s, *a == FORWARD || *a == LEFT || *a == RIGHT ? *a : (int32_t)DONE);
    int32_t choice = choice_of(s), solved = choice == s->cells[(middle - 1) * width + 1];
    solved &= choice != GREY_WALL;
    out->reward = solved ? success(s, p) : 0.0f;
    out->terminated = choice != GREY_WALL;
    out->stats.solved = (float)solved;
    out->stats.chosen = (float)out->terminated;
}
