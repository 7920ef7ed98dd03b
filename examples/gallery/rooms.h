// rooms.h: walk through one of three rooms to the door, around walls and pits.
//
// The rooms are text in the header (ENV_DATA). A pit costs 0.1 and puts you back to the start. The shortest ways take
// 12, 10 and 12 steps.
//
// obs: where you are and where the door is (x, y of each, from -1 to 1), then the eight cells around you: 1 for a wall,
// -1 for a pit. action: 0 up, 1 down, 2 left, 3 right. reward: 1 at the door, -0.1 in a pit, -0.01 in other steps.
#define ENV_OBS OBS_F32(12)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(4)
#define ENV_MAX_STEPS 100
#define ENV_PARAMS(X)                                                                                                  \
    X(int, room, -1, "which room to play; -1 for a random one")                                                        \
    X(float, slip, 0.0f, "probability that a step goes in a random direction")
#define ENV_LIMITS(X) X("room", -1, 2) X("slip", 0, 1)
#define ENV_STATS(X) X(sum, reached, "1 if the door was reached") X(sum, falls, "falls into a pit")
#define ENV_HAS_CHECK
#include "core/env.h"

enum { ROOMS = 3, SIDE = 9 };

// '#' wall, 'o' pit, 'S' start, 'D' door. C++ counts the zero at the end of a string: hence SIDE + 1.
ENV_DATA char rooms[ROOMS][SIDE][SIDE + 1] = {
    {"#########", "#S..#...#", "#.#.#.#.#", "#.#...#.#", "#.#####.#", "#.......#", "#.##o##.#", "#...o..D#",
     "#########"},
    {"#########", "#..o....#", "#.##.##.#", "#.#S..#.#", "#.#.#.#.#", "#.#.#...#", "#.###.#o#", "#D....#.#",
     "#########"},
    {"#########", "#D......#", "#.#.#.#.#", "#.o.....#", "#.###.#.#", "#...o...#", "#.#.#.#.#", "#.....oS#",
     "#########"},
};

typedef struct {
    int32_t room, x, y;
} State;

ENV_FN char cell_at(const State *s, int32_t x, int32_t y) { return rooms[s->room][y][x]; }

// Where a room has a mark, as y * SIDE + x.
ENV_FN int32_t find_mark(int32_t room, char mark) {
    int32_t found = 0;
    for (int32_t k = 0; k < SIDE * SIDE; k++) {
        if (rooms[room][k / SIDE][k % SIDE] == mark) found = k;
    }
    return found;
}

ENV_FN void go_to_start(State *s) {
    int32_t start = find_mark(s->room, 'S');
    s->x = start % SIDE;
    s->y = start / SIDE;
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    int32_t drawn = rng_int(rng, ROOMS);
    s->room = p->room < 0 ? drawn : i_min(p->room, ROOMS - 1);
    go_to_start(s);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t drawn = rng_int(rng, 4), direction = rng_uniform(rng, 0.0f, 1.0f) < p->slip ? drawn : *a;
    int32_t x = s->x + (direction == 3) - (direction == 2), y = s->y + (direction == 1) - (direction == 0);
    if (cell_at(s, x, y) != '#') {
        s->x = x;
        s->y = y;
    }
    char cell = cell_at(s, s->x, s->y);
    int reached = cell == 'D', fell = cell == 'o';
    if (fell) go_to_start(s);
    out->reward = reached ? 1.0f : fell ? -0.1f : -0.01f;
    out->terminated = reached;
    out->stats.reached = (float)reached;
    out->stats.falls = (float)fell;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    int32_t door = find_mark(s->room, 'D'), at = 4;
    obs[0] = 0.25f * (float)(s->x - 4);
    obs[1] = 0.25f * (float)(s->y - 4);
    obs[2] = 0.25f * (float)(door % SIDE - 4);
    obs[3] = 0.25f * (float)(door / SIDE - 4);
    for (int32_t k = 0; k < 9; k++) {
        if (k == 4) continue;  // the cell that you are on
        char cell = cell_at(s, s->x + k % 3 - 1, s->y + k / 3 - 1);
        obs[at++] = cell == '#' ? 1.0f : cell == 'o' ? -1.0f : 0.0f;
    }
}

// Whether a State from a file is safe: the frame of a room is wall, so that x and y are never on it.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    return s->room >= 0 && s->room < ROOMS && s->x > 0 && s->x < SIDE - 1 && s->y > 0 && s->y < SIDE - 1;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, 0.0f, 0.0f, (float)SIDE, (float)SIDE, 0x0e1726);
    for (int32_t k = 0; k < SIDE * SIDE; k++) {
        float x = (float)(k % SIDE), y = (float)(k / SIDE);
        char cell = cell_at(s, k % SIDE, k / SIDE);
        if (cell == '#') draw_rect(d, x, y, 1.0f, 1.0f, 0x33476b);
        if (cell == 'o') draw_circle(d, x + 0.5f, y + 0.5f, 0.38f, 0x5b1f2e);
        if (cell == 'D') draw_rect(d, x + 0.2f, y + 0.1f, 0.6f, 0.8f, 0xf2a65a);
    }
    draw_circle(d, (float)s->x + 0.5f, (float)s->y + 0.5f, 0.34f, 0x37c2b3);
}
