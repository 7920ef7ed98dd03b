// maze.h: find the way through a maze that is new in every episode.
//
// A depth-first walk joins the rooms of a grid into one tree of corridors; then a share `loops` of the walls that still
// separate two rooms is removed. You start in a random room, and the goal is in one of the farther half of the rooms.
// Walking into a wall wastes the step. Optimal play returns 1 - step_cost * (path - 1), 0.87 on average; random play
// finds the goal in one episode of 50. No path is longer than half the time limit, so every maze can be solved.
//
// obs: one pixel per cell, red the goal, green you, blue a wall. action: 0 up, 1 down, 2 left, 3 right.
// reward: 1 for reaching the goal, -step_cost for every step that does not.
#define ENV_OBS OBS_U8(side, side, 3)
#define ENV_ACTION ACT_DISCRETE(4)
#define ENV_HAS_CHECK
#define ENV_KEEPS_STATE
#define ENV_OBS_FIELD pixels
#define ENV_MAX_STEPS ((side - 1) * (side - 1))
#define ENV_CONSTS(X) X(side, 15, "cells per side, outer walls included; odd")
#define ENV_PARAMS(X)                                                                                                  \
    X(float, loops, 0.1f, "share of the walls left between rooms that is knocked out")                                 \
    X(float, far, 0.5f, "the goal is farther from the start than this share of the rooms")                             \
    X(float, step_cost, 0.005f, "reward lost by a step that does not reach the goal")
#define ENV_STATS(X)                                                                                                   \
    X(sum, reached, "1 if the goal was reached")                                                                       \
    X(last, path, "steps on the shortest path from start to goal")                                                     \
    X(last, visited, "cells walked on")
#include "core/env.h"

enum { FLOOR, WALL, SEEN };                         // a cell: SEEN is floor that was walked on
enum { rooms = (side - 1) / 2, ring = rooms + 2 };  // room (0, 0) is cell (1, 1), the next is cell (1, 3)
ENV_REQUIRE(side >= 5 && side % 2 == 1 && side < 180, "side must be odd, at least 5 and below 180");

typedef struct {
    uint8_t pixels[side * side * 3];  // the observation, kept up to date: a copy is fast
    uint8_t cells[side * side];
    int32_t at, goal, path, visited;
} State;

// From a cell to the next one: up, down, left, right; way ^ 1 is the way back.
ENV_FN int32_t ahead(int32_t way, int32_t width) { return (2 * (way & 1) - 1) * (way < 2 ? width : 1); }

ENV_FN int32_t room_cell(int32_t room) { return (2 * (room / rooms) + 1) * side + 2 * (room % rooms) + 1; }

// Joins all rooms into a tree: walk to a random new neighbour; where there is none, walk back.
ENV_FN void carve(uint8_t *cells, Rng *rng) {
    enum { NEW = 4, OUTSIDE };     // else: the way by which a room was entered
    uint8_t entered[ring * ring];  // the rooms with one ring of outside around them
    for (int32_t k = 0; k < side * side; k++) cells[k] = WALL;
    for (int32_t k = 0; k < ring * ring; k++) entered[k] = OUTSIDE;
    for (int32_t k = 0; k < rooms * rooms; k++) entered[(k / rooms + 1) * ring + k % rooms + 1] = NEW;
    int32_t first = rng_int(rng, rooms * rooms), cell = room_cell(first);
    int32_t room = (first / rooms + 1) * ring + first % rooms + 1;
    entered[room] = OUTSIDE;
    cells[cell] = FLOOR;
    for (int32_t left = rooms * rooms - 1; left > 0;) {
        uint32_t ways = 0;  // a bit for each that leads to a new room
        int32_t count = 0;
        for (int32_t way = 0; way < 4; way++) {
            int32_t is_new = entered[room + ahead(way, ring)] == NEW;
            ways |= (uint32_t)is_new << way;
            count += is_new;
        }
        int32_t way = entered[room] ^ 1;
        if (count) {
            for (int32_t skip = rng_int(rng, count); skip > 0; skip--) ways &= ways - 1;
            way = (int32_t)((ways & 1) ? 0 : (ways & 2) ? 1 : (ways & 4) ? 2 : 3);
        }
        room += ahead(way, ring);
        cells[cell + ahead(way, side)] = cells[cell + 2 * ahead(way, side)] = FLOOR;
        cell += 2 * ahead(way, side);
        if (count) entered[room] = (uint8_t)way;
        left -= count > 0;
    }
}

// Puts the agent into a random room. Breadth-first search then finds the rooms in order of distance: the goal is one of
// the later ones.
ENV_FN void place(State *s, const Params *p, Rng *rng) {
    enum { COUNT = rooms * rooms };
    int16_t found[COUNT], distance[COUNT];  // in this order
    uint8_t is_found[side * side];
    memset(is_found, 0, sizeof is_found);
    s->at = room_cell(rng_int(rng, COUNT));
    int32_t nearer = i_clamp((int32_t)((float)COUNT * m_clamp(p->far, 0.0f, 1.0f)), 1, COUNT - 1);
    int32_t rank = nearer + rng_int(rng, COUNT - nearer), last = 0;  // of the goal, and of the room found last
    found[0] = (int16_t)s->at;
    distance[0] = 0;
    is_found[s->at] = 1;
    for (int32_t k = 0; last < rank; k++) {
        for (int32_t way = 0; way < 4; way++) {
            int32_t step = ahead(way, side), next = found[k] + 2 * step;
            if (s->cells[found[k] + step] == WALL || is_found[next]) continue;
            is_found[next] = 1;
            found[++last] = (int16_t)next;
            distance[last] = (int16_t)(distance[k] + 2);
        }
    }
    s->goal = found[rank];
    s->path = distance[rank];
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    carve(s->cells, rng);
    for (int32_t y = 1; y < side - 1; y++) {
        for (int32_t x = 1 + y % 2; x < side - 1; x += 2) {  // the cells between two rooms
            uint8_t *cell = &s->cells[y * side + x];
            if (*cell == WALL && rng_uniform(rng, 0.0f, 1.0f) < p->loops) *cell = FLOOR;
        }
    }
    place(s, p, rng);
    for (int32_t k = 0; k < side * side; k++) {
        s->pixels[3 * k] = s->pixels[3 * k + 1] = 0;
        s->pixels[3 * k + 2] = s->cells[k] == WALL ? 255 : 0;
    }
    s->pixels[3 * s->goal] = s->pixels[3 * s->at + 1] = 255;
    s->cells[s->at] = SEEN;
    s->visited = 1;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    int32_t next = s->at + ahead(*a & 3, side);
    next = s->cells[next] == WALL ? s->at : next;
    s->visited += s->cells[next] == FLOOR;
    s->cells[next] = SEEN;
    s->pixels[3 * s->at + 1] = 0;
    s->pixels[3 * next + 1] = 255;
    s->at = next;
    int32_t reached = next == s->goal;
    out->reward = reached ? 1.0f : -p->step_cost;
    out->terminated = reached;
    out->stats.reached = (float)reached;
    out->stats.path = (float)s->path;
    out->stats.visited = (float)s->visited;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    memcpy(obs, s->pixels, sizeof s->pixels);
}

ENV_FN int32_t is_inside(int32_t cell) {
    return cell > 0 && cell < side * side && cell / side > 0 && cell / side < side - 1 && cell % side > 0 &&
           cell % side < side - 1;
}

// The outer walls must stand, so that the agent cannot leave the maze.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    for (int32_t k = 0; k < side * side; k++) {
        if (!is_inside(k) && s->cells[k] != WALL) return 0;
    }
    return is_inside(s->at) && is_inside(s->goal);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, 0.0f, 0.0f, (float)side, (float)side, 0x0e1726);
    for (int32_t y = 0; y < side; y++) {
        for (int32_t x = 0, run; x < side; x += i_max(run, 1)) {  // a run of walls is one shape
            const uint8_t *cell = &s->cells[y * side + x];
            for (run = 0; x + run < side && cell[run] == WALL;) run++;
            if (run) draw_rect(d, (float)x, (float)y, (float)run, 1.05f, 0x24334d);  // no gap below
            if (*cell == SEEN) draw_circle(d, (float)x + 0.5f, (float)y + 0.5f, 0.1f, 0x37c2b3);
        }
    }
    float goal_x = (float)(s->goal % side), goal_y = (float)(s->goal / side);
    draw_rect(d, goal_x + 0.1f, goal_y + 0.1f, 0.8f, 0.8f, 0xf2a65a);
    draw_rect(d, goal_x + 0.3f, goal_y + 0.3f, 0.4f, 0.4f, 0x0e1726);
    draw_circle(d, (float)(s->at % side) + 0.5f, (float)(s->at / side) + 0.5f, 0.38f, 0x37c2b3);
}
