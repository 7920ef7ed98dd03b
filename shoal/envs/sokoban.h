// sokoban.h: push every box onto a target, in a warehouse that is new in every episode and can always be solved.
//
// The game of Hiroyuki Imabayashi (1982), with the rewards, board and time limit by which it is a benchmark of planning
// (Racaniere et al. 2017, Weber et al. 2017; Boxoban levels, Guez et al. 2018). The keeper pushes one box at a time and
// never pulls, so that a box in a corner stays there. A level is made backwards: a random walk digs the floor, boxes
// stand on the targets, and the keeper pulls them away `pulls` times. Undoing that solves the level; it takes `plan`
// steps (a stat), never more than max_steps. Presets: small is 7 x 7 with 2 boxes, boxoban 10 x 10 with 4.
//
// obs: four bytes per cell, each 0 or 1: wall, target, box, keeper. A box on a target has both. With centered=1 the
// view moves with the keeper, which is in its middle, and reaches all cells from everywhere: a plain network learns
// sooner. action: 0 up, 1 down, 2 left, 3 right: a step, or a push. Where neither is possible nothing moves. reward:
// reward_box for a push onto a target and -reward_box for one off a target, reward_solved when all boxes are on
// targets, which ends the episode, and -step_cost in every step. Random play returns -11.6, and solves no level of
// 1,000. In small levels the shortest solution takes 11.6 steps on average and returns 10.8; random play returns -10.6
// there.
#define VIEW (centered ? 2 * side - 5 : side)  // cells per side of what is observed
#define ENV_OBS OBS_U8(VIEW, VIEW, 4)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(4)
#define ENV_MAX_STEPS 120
#define ENV_HAS_CHECK
#define ENV_CONSTS(X)                                                                                                  \
    X(side, 10, "cells per side, outer walls included")                                                                \
    X(centered, 0, "1: the keeper is always in the middle of what is observed; 0: the warehouse as it is")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, boxes, 4, "boxes, and targets; at most a fourth of the cells within the outer walls")                       \
    X(int, pulls, 30, "pulls by which a level is made, at most")                                                       \
    X(int, hardness, 3, "steps of the plan for each box, at least, if 40 attempts find such a level")                  \
    X(float, floor, 0.6f, "share of the cells within the outer walls that is floor, at least")                         \
    X(float, step_cost, 0.1f, "reward lost by a step")                                                                 \
    X(float, reward_box, 1.0f, "reward of a box pushed onto a target")                                                 \
    X(float, reward_solved, 10.0f, "reward of the last box")
#define ENV_LIMITS(X)                                                                                                  \
    X("side", 6, 10) X("centered", 0, 1) X("boxes", 1, 16) X("pulls", 1, 1000) X("hardness", 0, 100) X("floor", 0, 1)
#define ENV_PRESETS(X)                                                                                                 \
    X("small", "side=7 boxes=2", "7 x 7 cells, 2 boxes")                                                               \
    X("boxoban", "", "10 x 10 cells, 4 boxes, as the levels of Boxoban")
#define ENV_STATS(X)                                                                                                   \
    X(sum, solved, "1 if all boxes were on targets")                                                                   \
    X(last, placed, "share of the boxes on targets at the end")                                                        \
    X(sum, pushes, "boxes pushed by a cell")                                                                           \
    X(last, plan, "steps of the solution by which the level was made")
#include "core/env.h"

// A board is the 8 x 8 cells within the outer walls as bits, row by row; smaller warehouses have walls there too.
typedef uint64_t Board;
enum { inner = side - 2, cells = inner * inner, view = VIEW, attempts = 40 };
ENV_REQUIRE(side >= 6 && side <= 10, "side must be 6 to 10");

typedef struct {
    Board walls, targets, boxes;
    int32_t keeper;  // its bit
    int32_t plan;
} State;

// All cells moved by one: 0 up, 1 down, 2 left, 3 right. What leaves the board is gone.
ENV_FN Board moved(Board board, int32_t way) {
    Board left = (board >> 1) & 0x7f7f7f7f7f7f7f7full, right = (board << 1) & 0xfefefefefefefefeull;
    return way == 0 ? board >> 8 : way == 1 ? board << 8 : way == 2 ? left : right;
}
ENV_FN Board bit(int32_t cell) { return 1ull << cell; }
ENV_FN int32_t count_of(Board board) {
    board -= (board >> 1) & 0x5555555555555555ull;
    board = (board & 0x3333333333333333ull) + ((board >> 2) & 0x3333333333333333ull);
    board = (board + (board >> 4)) & 0x0f0f0f0f0f0f0f0full;
    return (int32_t)((board * 0x0101010101010101ull) >> 56);
}
// The number of the lowest bit; the board is not empty.
ENV_FN int32_t first_of(Board board) { return count_of((board & (0 - board)) - 1); }
// The k-th lowest bit of a board.
ENV_FN int32_t nth_of(Board board, int32_t k) {
    for (; k > 0; k--) board &= board - 1;
    return first_of(board);
}
ENV_FN Board inside(void) { return (0xffull >> (8 - inner)) * (0x0101010101010101ull >> 8 * (8 - inner)); }

// ---- levels ----

ENV_FN Board random_cell(Board from, Rng *rng) { return bit(nth_of(from, rng_int(rng, count_of(from)))); }

// A walk that keeps its way for some cells. It digs what it passes, and half of the time a block of 2 x 2.
ENV_FN Board dig(int32_t wanted, Rng *rng) {
    Board at = random_cell(inside(), rng), dug = at;
    int32_t way = rng_int(rng, 4);
    for (int32_t k = 0; k < 1000 && count_of(dug) < wanted; k++) {
        uint32_t dice = rng_u32(rng);
        Board next = moved(at, way) & inside();
        if (!next || (dice & 3) == 0) way = (int32_t)(dice >> 2 & 3);
        at = next ? next : at;
        Board block = at | moved(at, 3);
        dug |= at | (dice >> 4 & 1 ? (block | moved(block, 1)) & inside() : 0);
    }
    return dug;
}

// Where the keeper can walk from `from`, through `open` cells.
ENV_FN Board reach(Board from, Board open) {
    for (Board before = 0; before != from;) {
        before = from;
        for (int32_t way = 0; way < 4; way++) from |= moved(from, way) & open;
    }
    return from;
}

// Steps from one cell to another, which can be reached.
ENV_FN int32_t distance(Board from, Board to, Board open) {
    int32_t steps = 0;
    for (; !(from & to) && steps < 64; steps++) {
        from |= (moved(from, 0) | moved(from, 1) | moved(from, 2) | moved(from, 3)) & open;
    }
    return steps;
}

// Pulls boxes off their targets. A pull takes the keeper from beside a box one step away from it, and the box follows;
// played backwards it is a push. Most pulls go on with the box and the way of the last one. Keeps the last position in
// which most boxes are off targets.
ENV_FN void pull_apart(State *s, const Params *p, Rng *rng) {
    Board boxes = s->boxes, keeper = bit(s->keeper), last = 0;
    int32_t longest = p->max_steps > 0 ? p->max_steps : 1 << 30, plan = 0, most = 0, last_way = 0;
    for (int32_t pull = 0; pull < p->pulls; pull++) {
        Board open = ~(s->walls | boxes), near = reach(keeper, open), ways[4];
        int32_t total = 0;
        for (int32_t way = 0; way < 4; way++) {  // boxes with the keeper on this side of them and a free cell beyond
            ways[way] = boxes & moved(near & moved(open, way ^ 1), way ^ 1);
            total += count_of(ways[way]);
        }
        if (total == 0) break;
        int32_t goes_on = (rng_u32(rng) & 3) > 0, pick = rng_int(rng, total), way = 0;
        while (pick >= count_of(ways[way])) pick -= count_of(ways[way++]);
        Board box = bit(nth_of(ways[way], pick));
        if (goes_on && (ways[last_way] & last)) {
            way = last_way;
            box = last;
        }
        Board beside = moved(box, way);
        plan += 1 + (pull > 0 ? distance(keeper, beside, open) : 0);  // the first walk comes after the last push
        if (plan > longest) break;
        boxes = (boxes & ~box) | beside;
        keeper = moved(beside, way);
        last = beside;
        last_way = way;
        int32_t off = count_of(boxes & ~s->targets);
        if (off < most) continue;
        most = off;
        s->boxes = boxes;
        s->keeper = first_of(keeper);
        s->plan = plan;
    }
}

// The keeper starts anywhere from where it can walk to the first box.
ENV_FN void walk_away(State *s, const Params *p, Rng *rng) {
    Board open = ~(s->walls | s->boxes), from = random_cell(reach(bit(s->keeper), open), rng);
    int32_t plan = s->plan + distance(from, bit(s->keeper), open);
    if (p->max_steps > 0 && plan > p->max_steps) return;
    s->keeper = first_of(from);
    s->plan = plan;
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    int32_t boxes = i_clamp(p->boxes, 1, cells / 4), best = 0;
    int32_t wanted = i_max((int32_t)(m_clamp(p->floor, 0.0f, 1.0f) * (float)cells), 2 * boxes + 4);
    int32_t enough = boxes * i_clamp(p->hardness, 0, 100);
    for (int32_t attempt = 0; attempt < attempts && best <= enough; attempt++) {
        State level;
        Board dug = dig(wanted, rng), targets = 0;
        for (int32_t k = 0; k < boxes; k++) targets |= random_cell(dug & ~targets, rng);
        level.walls = ~dug;
        level.targets = level.boxes = targets;
        level.keeper = first_of(random_cell(dug & ~targets, rng));
        level.plan = 0;
        pull_apart(&level, p, rng);
        walk_away(&level, p, rng);
        int32_t off = count_of(level.boxes & ~targets), score = off == boxes ? 1 + level.plan : off - boxes;
        if (score <= best && attempt > 0) continue;
        best = score;
        *s = level;
    }
}

// ---- play ----

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    Board next = moved(bit(s->keeper), *a & 3), beyond = moved(next, *a & 3);
    Board box = next & s->boxes, free = beyond & ~(s->walls | s->boxes);
    int32_t moves = (next & ~s->walls) && (!box || free), pushes = moves && box;
    int32_t before = count_of(s->boxes & s->targets);
    if (pushes) s->boxes ^= next | beyond;
    if (moves) s->keeper = first_of(next);
    int32_t placed = count_of(s->boxes & s->targets), solved = s->boxes == s->targets;
    out->reward = p->reward_box * (float)(placed - before) - p->step_cost + (solved ? p->reward_solved : 0.0f);
    out->terminated = solved;
    out->stats.solved = (float)solved;
    out->stats.placed = (float)placed / (float)i_max(count_of(s->targets), 1);
    out->stats.pushes = (float)pushes;
    out->stats.plan = (float)s->plan;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    int32_t left = centered ? s->keeper % 8 - (inner - 1) : -1, top = centered ? s->keeper / 8 - (inner - 1) : -1;
    for (int32_t row = 0; row < view; row++) {
        int32_t y = top + row, is_row = y >= 0 && y < 8,
                shift = 8 * (is_row ? y : 0);  // of the 8 cells of a board's row
        uint32_t cells_there = is_row ? 0xffu : 0u;
        uint32_t walls = ~(cells_there << -left) | ((uint32_t)(s->walls >> shift) & cells_there) << -left;
        uint32_t targets = ((uint32_t)(s->targets >> shift) & cells_there) << -left;
        uint32_t boxes = ((uint32_t)(s->boxes >> shift) & cells_there) << -left;
        uint32_t keeper = ((uint32_t)(bit(s->keeper) >> shift) & cells_there) << -left;
        for (int32_t x = 0; x < view; x++) {
            uint32_t cell =
                (walls >> x & 1) | (targets >> x & 1) << 8 | (boxes >> x & 1) << 16 | (keeper >> x & 1) << 24;
            memcpy(&obs[4 * (row * view + x)], &cell, 4);
        }
    }
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    if (s->keeper < 0 || s->keeper > 63 || (s->walls | inside()) != ~0ull) return 0;
    return !(s->walls & (s->targets | s->boxes | bit(s->keeper))) && !(s->boxes & bit(s->keeper)) && s->targets &&
           count_of(s->boxes) == count_of(s->targets);
}

ENV_FN void draw_box(Draw *d, float x, float y, int32_t placed) {
    uint32_t wood = placed ? 0x7bd389 : 0xd9974a, dark = placed ? 0x3f8a55 : 0x8a5a22;
    draw_rect(d, x + 0.1f, y + 0.1f, 0.8f, 0.8f, dark);
    draw_rect(d, x + 0.16f, y + 0.16f, 0.68f, 0.68f, wood);
    draw_line(d, x + 0.22f, y + 0.22f, x + 0.78f, y + 0.78f, 0.08f, dark);
    draw_line(d, x + 0.78f, y + 0.22f, x + 0.22f, y + 0.78f, 0.08f, dark);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, 0.0f, 0.0f, (float)side, (float)side, 0x24334d);
    for (int32_t k = 0; k < 64; k++) {
        float x = (float)(k % 8 + 1), y = (float)(k / 8 + 1);
        if (!(inside() & ~s->walls & bit(k))) continue;
        draw_rect(d, x, y, 1.02f, 1.02f, 0x0e1726);  // no gap between neighbours
    }
    for (int32_t y = 0; y < side; y++) {  // bricks
        for (int32_t x = 0; x < side; x++) {
            int32_t is_inner = x > 0 && y > 0 && x < side - 1 && y < side - 1;
            if (is_inner && !(s->walls & bit(8 * (y - 1) + x - 1))) continue;
            draw_rect(d, (float)x + 0.04f, (float)y + 0.05f, 0.92f, 0.4f, 0x3b4d6b);
            draw_rect(d, (float)x + 0.04f, (float)y + 0.53f, 0.44f, 0.4f, 0x3b4d6b);
            draw_rect(d, (float)x + 0.52f, (float)y + 0.53f, 0.44f, 0.4f, 0x3b4d6b);
        }
    }
    for (int32_t k = 0; k < 64; k++) {
        float x = (float)(k % 8 + 1), y = (float)(k / 8 + 1);
        if (s->targets & bit(k)) {
            draw_circle(d, x + 0.5f, y + 0.5f, 0.2f, 0xe2556d);
            draw_circle(d, x + 0.5f, y + 0.5f, 0.1f, 0x0e1726);
        }
        if (s->boxes & bit(k)) draw_box(d, x, y, (s->targets & bit(k)) != 0);
        if (k != s->keeper) continue;
        draw_circle(d, x + 0.5f, y + 0.62f, 0.3f, 0x2f7de1);
        draw_circle(d, x + 0.5f, y + 0.34f, 0.2f, 0xf2c9a0);
        draw_rect(d, x + 0.28f, y + 0.14f, 0.44f, 0.13f, 0xe2556d);
    }
}
