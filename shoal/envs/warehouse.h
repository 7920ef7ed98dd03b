// warehouse.h: robots carry shelves that are asked for to the packers, and bring them back.
//
// After RWARE, the Multi-Robot Warehouse of "Shared Experience Actor-Critic for Multi-Agent Reinforcement Learning"
// (Christianos et al. 2020): its floor plan, moves and requests; the defaults are its tiny warehouse with four robots.
// Shelves stand in blocks two wide, with aisles around them. A robot drives under shelves while it carries nothing, and
// only over free floor while it carries one. `requests` shelves are wanted at any time. A robot that reaches a goal
// with a wanted shelf has delivered it: another shelf, drawn among those not wanted, is wanted instead. The robot must
// put the shelf down before it can fetch the next, on any free cell of the blocks.
//
// In a step robots act one after another, and another one is the first in every step; a cell has room for one robot.
// (RWARE moves all at once: there a row of robots can move on together in any order.)
//
// obs: the cells around the robot, row by row, turned so that it faces up, 8 numbers each: another robot, and whether
// it faces up, right, down or left; a shelf, on the floor or carried; a wanted one; beyond the walls. Then the own
// column and row, from 0 to 1; whether it carries a shelf, and a wanted one; its facing (north, east, south, west);
// whether it may put a shelf down here. Then compasses, as cells ahead and to the right, divided by the length of the
// hall: whether a wanted shelf stands on the floor, and the way to the nearest; to the nearest goal; to the nearest
// free place for a shelf. RWARE has no compasses; without them a robot must search.
// action: 0 wait, 1 ahead, 2 turn left, 3 turn right, 4 load or unload.
// reward: 1 to the robot that delivers. With shaping above 0 also `shaping` for loading a wanted shelf and for putting
// down one that is not wanted, and less `shaping` for the opposite.
// At random a robot delivers 0.03 shelves in 500 steps. Scripted ones that plan the shortest way deliver 13.7 each.
#define ENV_OBS OBS_F32(8 * (2 * sensor + 1) * (2 * sensor + 1) + 16)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(5)
#define ENV_AGENTS robots
#define ENV_MAX_STEPS 500
#define ENV_HAS_CHECK
#define ENV_CONSTS(X)                                                                                                  \
    X(robots, 4, "robots in the warehouse")                                                                            \
    X(columns, 3, "blocks of shelves side by side; odd: the middle one of the last row is left out for the goals")     \
    X(rows, 1, "blocks of shelves behind each other")                                                                  \
    X(height, 8, "shelves per side of a block, which is two wide")                                                     \
    X(requests, 4, "shelves that are wanted at any time")                                                              \
    X(sensor, 1, "cells that a robot sees to each side")
#define ENV_PARAMS(X) X(float, shaping, 0.0f, "reward for loading wanted shelves and putting down others; see above")
#define ENV_LIMITS(X)                                                                                                  \
    X("robots", 1, 32)                                                                                                 \
    X("columns", 1, 9) X("rows", 1, 6) X("height", 1, 16) X("requests", 1, 64) X("sensor", 1, 3) X("shaping", 0, 10)
#define ENV_STATS(X)                                                                                                   \
    X(sum, delivered, "shelves delivered, all robots together")                                                        \
    X(sum, loads, "shelves loaded, all robots together")                                                               \
    X(mean, carrying, "share of the robots that carry a shelf")                                                        \
    X(sum, blocked, "moves that a robot, a shelf or a wall prevented")
#include "core/env.h"

enum { wide = 3 * columns + 1, tall = (height + 1) * rows + 2, cells = wide * tall };
enum { shelves = 2 * height * (rows * columns - 1), longest = wide > tall ? wide : tall };
enum { WAIT, AHEAD, TURN_LEFT, TURN_RIGHT, LOAD };
enum { SHELF = 1, WANTED = 2, AISLE = 4 };  // bits of a cell; the first two also of what a robot carries
ENV_REQUIRE(columns % 2 == 1, "columns must be odd");
ENV_REQUIRE(requests + robots < shelves, "there must be more shelves than requests and robots together");

typedef struct {
    uint8_t map[cells];
    uint8_t x[robots], y[robots], facing[robots], load[robots];
    uint8_t first;  // who acts first
} State;

ENV_FN int32_t is_aisle(int32_t x, int32_t y) {
    int32_t is_middle = x == wide / 2 - 1 || x == wide / 2;
    return x % 3 == 0 || y % (height + 1) == 0 || y == tall - 1 || (is_middle && y > (height + 1) * (rows - 1));
}
ENV_FN int32_t is_goal(int32_t x, int32_t y) { return y == tall - 1 && (x == wide / 2 - 1 || x == wide / 2); }
ENV_FN int32_t is_inside(int32_t x, int32_t y) { return x >= 0 && x < wide && y >= 0 && y < tall; }
ENV_FN int32_t way_x(int32_t facing) { return facing == 1 ? 1 : facing == 3 ? -1 : 0; }
ENV_FN int32_t way_y(int32_t facing) { return facing == 2 ? 1 : facing == 0 ? -1 : 0; }

ENV_FN int32_t robot_at(const State *s, int32_t x, int32_t y, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        if (s->x[i] == x && s->y[i] == y) return i;
    }
    return -1;
}

// One of the shelves that nobody wants is wanted from now on; not the one that robot `except` carries.
ENV_FN void request(State *s, int32_t except, Rng *rng) {
    int32_t count = 0;
    for (int32_t k = 0; k < cells; k++) count += s->map[k] == SHELF;
    for (int32_t i = 0; i < robots; i++) count += s->load[i] == SHELF && i != except;
    int32_t pick = rng_int(rng, i_max(count, 1));
    for (int32_t k = 0; k < cells; k++) {
        if (s->map[k] == SHELF && pick-- == 0) s->map[k] = SHELF | WANTED;
    }
    for (int32_t i = 0; i < robots; i++) {
        if (s->load[i] == SHELF && i != except && pick-- == 0) s->load[i] = SHELF | WANTED;
    }
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    for (int32_t k = 0; k < cells; k++) s->map[k] = is_aisle(k % wide, k / wide) ? AISLE : SHELF;
    for (int32_t i = 0; i < robots; i++) {
        int32_t at = rng_int(rng, cells);
        while (robot_at(s, at % wide, at / wide, i) >= 0) at = (at + 1) % cells;  // the next free cell
        s->x[i] = (uint8_t)(at % wide);
        s->y[i] = (uint8_t)(at / wide);
        s->facing[i] = (uint8_t)rng_int(rng, 4);
        s->load[i] = 0;
    }
    for (int32_t k = 0; k < requests; k++) request(s, -1, rng);
    s->first = 0;
}

ENV_FN void move(State *s, int32_t i, Step *out) {
    int32_t x = s->x[i] + way_x(s->facing[i]), y = s->y[i] + way_y(s->facing[i]);
    int32_t is_free = is_inside(x, y) && robot_at(s, x, y, robots) < 0;
    if (!is_free || (s->load[i] && (s->map[y * wide + x] & SHELF))) {
        out->stats.blocked += 1.0f;
        return;
    }
    s->x[i] = (uint8_t)x;
    s->y[i] = (uint8_t)y;
}

ENV_FN void load(State *s, const Params *p, int32_t i, Step *out) {
    uint8_t *cell = &s->map[s->y[i] * wide + s->x[i]];
    int32_t is_loading = !s->load[i];
    if (is_loading ? !(*cell & SHELF) : *cell != 0) return;
    int32_t is_wanted = (is_loading ? *cell : s->load[i]) == (SHELF | WANTED);
    out->rewards[i] += is_wanted == is_loading ? p->shaping : -p->shaping;
    out->stats.loads += (float)is_loading;
    uint8_t shelf = *cell;
    *cell = s->load[i];
    s->load[i] = shelf;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    for (int32_t k = 0; k < robots; k++) {
        int32_t i = (s->first + k) % robots;
        if (a[i] == AHEAD) move(s, i, out);
        if (a[i] == TURN_LEFT) s->facing[i] = (s->facing[i] + 3) & 3;
        if (a[i] == TURN_RIGHT) s->facing[i] = (s->facing[i] + 1) & 3;
        if (a[i] == LOAD) load(s, p, i, out);
    }
    s->first = (uint8_t)((s->first + 1) % robots);
    int32_t carrying = 0;
    for (int32_t i = 0; i < robots; i++) {
        carrying += s->load[i] != 0;
        if (s->load[i] != (SHELF | WANTED) || !is_goal(s->x[i], s->y[i])) continue;
        s->load[i] = SHELF;
        request(s, i, rng);
        out->rewards[i] += 1.0f;
        out->stats.delivered += 1.0f;
    }
    out->stats.carrying = (float)carrying / (float)robots;
}

// Writes the way to a cell: ahead of the robot and to its right.
ENV_FN void compass(const State *s, int32_t i, int32_t at, Obs *obs) {
    const float scale = 1.0f / (float)longest;
    int32_t dx = at % wide - s->x[i], dy = at / wide - s->y[i], ax = way_x(s->facing[i]), ay = way_y(s->facing[i]);
    obs[0] = (float)(dx * ax + dy * ay) * scale;
    obs[1] = (float)(dy * ax - dx * ay) * scale;
}

ENV_FN int32_t steps_to(const State *s, int32_t i, int32_t at) {
    int32_t dx = at % wide - s->x[i], dy = at / wide - s->y[i];
    return (dx < 0 ? -dx : dx) + (dy < 0 ? -dy : dy);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p;
    enum { view = 2 * sensor + 1 };
    int32_t x = s->x[agent], y = s->y[agent], facing = s->facing[agent], ax = way_x(facing), ay = way_y(facing);
    for (int32_t k = 0; k < OBS_SIZE; k++) obs[k] = 0.0f;
    for (int32_t k = 0; k < view * view; k++) {
        int32_t ahead = sensor - k / view, right = k % view - sensor;
        int32_t to_x = x + ahead * ax - right * ay, to_y = y + ahead * ay + right * ax;
        int32_t inside = is_inside(to_x, to_y), cell = inside ? s->map[to_y * wide + to_x] : 0;
        obs[8 * k + 5] = (float)(cell & SHELF);
        obs[8 * k + 6] = (float)((cell & WANTED) != 0);
        obs[8 * k + 7] = (float)!inside;
    }
    for (int32_t i = 0; i < robots; i++) {
        int32_t dx = s->x[i] - x, dy = s->y[i] - y;
        int32_t row = sensor - (dx * ax + dy * ay), column = sensor + (dy * ax - dx * ay);
        if (i == agent || row < 0 || row >= view || column < 0 || column >= view) continue;
        Obs *cell = &obs[8 * (row * view + column)];
        cell[0] = cell[1 + ((s->facing[i] - facing) & 3)] = 1.0f;
        if (s->load[i]) cell[5] = 1.0f;
        if (s->load[i] & WANTED) cell[6] = 1.0f;
    }
    obs += 8 * view * view;
    obs[0] = (float)x * (1.0f / (float)(wide - 1));
    obs[1] = (float)y * (1.0f / (float)(tall - 1));
    obs[2] = (float)(s->load[agent] != 0);
    obs[3] = (float)((s->load[agent] & WANTED) != 0);
    obs[4 + facing] = 1.0f;
    obs[8] = (float)(s->map[y * wide + x] == 0);
    int32_t wanted = -1, place = -1, wanted_steps = 10000, place_steps = 10000;
    for (int32_t at = 0; at < cells; at++) {
        int32_t is_wanted = s->map[at] == (SHELF | WANTED), is_place = s->map[at] == 0;
        if (!is_wanted && !is_place) continue;
        int32_t steps = steps_to(s, agent, at);
        if (is_wanted && steps < wanted_steps) wanted = at, wanted_steps = steps;
        if (is_place && steps < place_steps) place = at, place_steps = steps;
    }
    obs[9] = (float)(wanted >= 0);
    if (wanted >= 0) compass(s, agent, wanted, &obs[10]);
    int32_t goal = (tall - 1) * wide + wide / 2 - 1;
    compass(s, agent, goal + (x >= wide / 2), &obs[12]);
    if (place >= 0) compass(s, agent, place, &obs[14]);
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    for (int32_t k = 0; k < cells; k++) {
        int32_t is_open = is_aisle(k % wide, k / wide), is_shelf = (s->map[k] & ~WANTED) == SHELF;
        if (is_open ? s->map[k] != AISLE : s->map[k] != 0 && !is_shelf) return 0;
    }
    for (int32_t i = 0; i < robots; i++) {
        if (s->x[i] >= wide || s->y[i] >= tall || s->facing[i] > 3) return 0;
        if (s->load[i] != 0 && (s->load[i] & ~WANTED) != SHELF) return 0;
        if (robot_at(s, s->x[i], s->y[i], i) >= 0 || (s->load[i] && (s->map[s->y[i] * wide + s->x[i]] & SHELF)))
            return 0;
    }
    return s->first < robots;
}

ENV_FN void draw_shelf(Draw *d, float x, float y, float size, int32_t shelf) {
    float half = 0.5f * size;
    draw_rect(d, x - half, y - half, size, size, shelf & WANTED ? 0xe8524a : 0x6d7f9c);
    draw_line(d, x - 0.8f * half, y, x + 0.8f * half, y, 0.06f, 0x0e1726);
    draw_line(d, x, y - 0.8f * half, x, y + 0.8f * half, 0.06f, 0x0e1726);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    ENV_DATA float arrow[] = {0.0f, -1.0f, 0.7f, 0.6f, -0.7f, 0.6f};
    draw_view(d, -0.2f, -0.2f, (float)wide + 0.2f, (float)tall + 0.2f, 0x0e1726);
    for (int32_t k = 0; k < cells; k++) {
        float x = (float)(k % wide), y = (float)(k / wide);
        draw_rect(d, x + 0.02f, y + 0.02f, 0.96f, 0.96f, s->map[k] == AISLE ? 0x1a2740 : 0x24334d);
        if (is_goal(k % wide, k / wide)) {
            draw_rect(d, x + 0.02f, y + 0.02f, 0.96f, 0.96f, 0x2f8f5b);
            draw_text_centered(d, x + 0.5f, y + 0.5f, 0.4f, "GO", 0xffffff);
        }
        if (s->map[k] & SHELF) draw_shelf(d, x + 0.5f, y + 0.5f, 0.8f, s->map[k]);
    }
    for (int32_t i = 0; i < robots; i++) {
        float x = (float)s->x[i] + 0.5f, y = (float)s->y[i] + 0.5f;
        draw_circle(d, x, y, 0.42f, 0xf2a65a);
        if (s->load[i]) draw_shelf(d, x, y, 0.62f, s->load[i]);
        draw_shape(d, arrow, 3, x, y, 1.5707963f * (float)s->facing[i], 0.2f, 0xffffff);
    }
}
