// minigrid_multiroom.h: MiniGrid's MultiRoom: open one door after the other to the green square in the last room.
//
// A chain of rooms of random sizes, each joined to the next by a shut door of another color than the one before. The
// agent starts in the first room, the goal is in the last. Rules and view of MiniGrid 3.2
// (github.com/Farama-Foundation/Minigrid). Presets are the ids of MiniGrid; the default is MiniGrid-MultiRoom-N6-v0,
// in which random play does not find the goal: learn with fewer rooms too, for example rooms drawn for each episode.
// If a chain of that many rooms does not fit in 1,000 attempts, the longest one found is used.
//
// obs: 148 bytes: MiniGrid's image of the 7 x 7 cells ahead, (7, 7, 3), then where the agent faces; with one_hot=1 one
// bit per kind of cell, as minigrid_empty.h describes. Walls and shut doors hide what is behind them.
// action: 0 turn left, 1 turn right, 2 forward, 3 pick up, 4 drop, 5 toggle, 6 done (does nothing).
// reward: 1 - 0.9 * steps / max_steps on the goal, which ends the episode; else 0.
// The best return is 0.651 on average (47 steps), for one who sees the whole grid. A scripted player that draws a map
// of what it sees finds every goal and returns 0.58; random play finds none.
#define ENV_MAX_STEPS 120
#define ENV_CONSTS(X) X(size, 25, "cells per side of the map") GRID_CONSTS(X)
#define ENV_PARAMS(X)                                                                                                  \
    X(int, rooms, 6, "rooms in the chain")                                                                             \
    X(int, max_room_size, 10, "cells per side of a room, walls included, at most; at least 4")
#define ENV_LIMITS(X) X("size", 10, 64) X("one_hot", 0, 1) X("rooms", 1, 16) X("max_room_size", 4, 32)
#define ENV_PRESETS(X)                                                                                                 \
    X("n2-s4", "rooms=2 max_room_size=4 max_steps=40", "MiniGrid-MultiRoom-N2-S4-v0")                                  \
    X("n4-s5", "rooms=4 max_room_size=5 max_steps=80", "MiniGrid-MultiRoom-N4-S5-v1")                                  \
    X("n6-s5", "max_room_size=5", "MiniGrid-MultiRoom-N4-S5-v0, which has six rooms")                                  \
    X("n6", "", "MiniGrid-MultiRoom-N6-v0")
#define ENV_STATS(X)                                                                                                   \
    X(sum, solved, "1 if the goal was reached")                                                                        \
    X(sum, opened, "doors opened, one that was shut again counts again")
#define GRID_WIDTH size
#define GRID_HEIGHT size
#include "minigrid/world.h"

enum { most_rooms = 16, smallest_room = 4, attempts = 1000 };

typedef struct {
    int8_t left, top, wide, high;
    int8_t door_x, door_y;  // its entry, in a wall that it shares with the room before
} Room;

// Whether a room is on the map and apart from all rooms but the last, with which it shares a wall. The comparisons are
// MiniGrid's, which leave the map's last row free, and a gap on two of the four sides.
ENV_FN int32_t has_space(const Room *rooms, int32_t count, const Room *room) {
    int32_t fits =
        room->left >= 0 && room->top >= 0 && room->left + room->wide <= width && room->top + room->high < height;
    for (int32_t k = 0; k < count - 1; k++) {
        const Room *other = &rooms[k];
        fits &= room->left + room->wide < other->left || other->left + other->wide <= room->left ||
                room->top + room->high < other->top || other->top + other->high <= room->top;
    }
    return fits;
}

// A room of random size whose entry is in `wall` (0 right, 1 bottom, 2 left, 3 top) at a random place.
ENV_FN Room room_behind(int32_t wall, int32_t door_x, int32_t door_y, int32_t sizes, Rng *rng) {
    int32_t wide = smallest_room + rng_int(rng, sizes), high = smallest_room + rng_int(rng, sizes);
    int32_t along = wall & 1 ? wide : high, shift = along - 2 - rng_int(rng, along - 2);
    Room room;
    room.wide = (int8_t)wide;
    room.high = (int8_t)high;
    room.left = (int8_t)(wall == 0 ? door_x - wide + 1 : wall == 2 ? door_x : door_x - shift);
    room.top = (int8_t)(wall == 1 ? door_y - high + 1 : wall == 3 ? door_y : door_y - shift);
    room.door_x = (int8_t)door_x;
    room.door_y = (int8_t)door_y;
    return room;
}

// A chain of at most `wanted` rooms. It ends where eight attempts at the next room fail. Returns its length.
ENV_FN int32_t chain_rooms(Room *rooms, int32_t wanted, int32_t sizes, Rng *rng) {
    int32_t corner_x = rng_int(rng, width - 2), corner_y = rng_int(rng, width - 2), entry = 2, count = 1;
    rooms[0] = room_behind(entry, corner_x, corner_y, sizes, rng);
    rooms[0].top = (int8_t)corner_y;  // the first room has no entry, but no exit on its left either
    if (!has_space(rooms, 0, &rooms[0])) return 0;
    for (int32_t tries = 0; count < wanted && tries < 8; tries++) {
        const Room *last = &rooms[count - 1];
        int32_t exit = (entry + 1 + rng_int(rng, 3)) & 3;
        int32_t along = 1 + rng_int(rng, (exit & 1 ? last->wide : last->high) - 2);
        int32_t door_x = last->left + (exit == 0 ? last->wide - 1 : exit == 2 ? 0 : along);
        int32_t door_y = last->top + (exit == 1 ? last->high - 1 : exit == 3 ? 0 : along);
        Room next = room_behind(exit ^ 2, door_x, door_y, sizes, rng);
        if (!has_space(rooms, count, &next)) continue;
        rooms[count++] = next;
        entry = exit ^ 2;
        tries = -1;
    }
    return count;
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    Room rooms[most_rooms], chain[most_rooms];
    int32_t wanted = i_clamp(p->rooms, 1, most_rooms), count = 0;
    int32_t sizes = i_clamp(p->max_room_size, smallest_room, 32) - smallest_room + 1;
    for (int32_t attempt = 0; attempt < attempts && count < wanted; attempt++) {
        int32_t length = chain_rooms(chain, wanted, sizes, rng);
        if (length <= count) continue;
        for (int32_t k = 0; k < length; k++) rooms[k] = chain[k];
        count = length;
    }
    if (count == 0) {  // no room of that size fits where it was tried
        rooms[count].left = rooms[count].top = 0;
        rooms[count].wide = rooms[count].high = smallest_room;
        count++;
    }
    clear_world(s);
    int32_t color = rng_int(rng, 6);
    for (int32_t k = 0; k < count; k++) {
        const Room *room = &rooms[k];
        build_room(s, room->left, room->top, room->wide, room->high);
        if (k == 0) continue;
        *cell_at(s, room->door_x, room->door_y) = (uint8_t)(CLOSED | color << 4);
        color = (color + 1 + rng_int(rng, 5)) % 6;
    }
    const Room *first = &rooms[0], *last = &rooms[count - 1];
    put_agent(s, first->left, first->top, first->wide, first->high, rng);
    put_object(s, GREEN_GOAL, last->left, last->top, last->wide, last->high, rng);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    int32_t ahead = act(s, *a), solved = ahead == GREEN_GOAL && *a == FORWARD;
    out->reward = solved ? success(s, p) : 0.0f;
    out->terminated = solved;
    out->stats.solved = (float)solved;
    out->stats.opened = (float)(*a == TOGGLE && kind_of(ahead) == CLOSED);
}
