// pegs.h: peg solitaire on a triangle of 15 holes: jump pegs over pegs until one is left.
//
// A peg jumps in a straight line over its neighbour into an empty hole, and the neighbour is taken from the board. The
// episode ends when no jump is possible. Random jumps leave about 4 pegs; every start can be solved, with one peg left.
//
// obs: for each hole 1 if it holds a peg, then the share of pegs that are left. action: one of 36 jumps (the table
// below). mask: the jumps that are possible now; others change nothing. reward: 1/13 for a jump, and 1 for the last
// of 13.
#define ENV_OBS OBS_F32(16)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(36)
#define ENV_MAX_STEPS 50
#define ENV_PARAMS(X) X(int, empty, -1, "the hole that is empty at first; -1 for a random one")
#define ENV_LIMITS(X) X("empty", -1, 14)
#define ENV_STATS(X)                                                                                                   \
    X(last, left, "pegs that are left")                                                                                \
    X(sum, solved, "1 if one peg was left")                                                                            \
    X(sum, refused, "jumps that were not possible")
#define ENV_HAS_MASK
#define ENV_HAS_CHECK
#include "core/env.h"

enum { HOLES = 15, JUMPS = 36 };

// Holes are numbered from the top, row by row:
//
//              0
//            1   2
//          3   4   5
//        6   7   8   9
//      10  11  12  13  14
typedef struct {
    uint8_t from, over, to;
} Jump;

ENV_DATA Jump jumps[JUMPS] = {
    {0, 1, 3},    {0, 2, 5},    {1, 3, 6},  {1, 4, 8},    {2, 4, 7},  {2, 5, 9},     // down
    {3, 1, 0},    {3, 4, 5},    {3, 6, 10}, {3, 7, 12},   {4, 7, 11}, {4, 8, 13},    //
    {5, 2, 0},    {5, 4, 3},    {5, 8, 12}, {5, 9, 14},   {6, 3, 1},  {6, 7, 8},     //
    {7, 4, 2},    {7, 8, 9},    {8, 4, 1},  {8, 7, 6},    {9, 5, 2},  {9, 8, 7},     //
    {10, 6, 3},   {10, 11, 12}, {11, 7, 4}, {11, 12, 13}, {12, 7, 3}, {12, 8, 5},    // up
    {12, 11, 10}, {12, 13, 14}, {13, 8, 4}, {13, 12, 11}, {14, 9, 5}, {14, 13, 12},  // along the last row
};

typedef struct {
    int32_t pegs;  // one bit for each hole
    int32_t last;  // the last jump, or -1: for the picture
} State;

ENV_FN int has_peg(const State *s, int hole) { return s->pegs >> hole & 1; }

ENV_FN int is_possible(const State *s, int jump) {
    const Jump *j = &jumps[jump];
    return has_peg(s, j->from) && has_peg(s, j->over) && !has_peg(s, j->to);
}

ENV_FN int count_pegs(const State *s) {
    int count = 0;
    for (int hole = 0; hole < HOLES; hole++) count += has_peg(s, hole);
    return count;
}

ENV_FN int count_jumps(const State *s) {
    int count = 0;
    for (int jump = 0; jump < JUMPS; jump++) count += is_possible(s, jump);
    return count;
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    int32_t drawn = rng_int(rng, HOLES);
    int32_t empty = p->empty < 0 ? drawn : i_min(p->empty, HOLES - 1);
    s->pegs = ((1 << HOLES) - 1) & ~(1 << empty);
    s->last = -1;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng;
    int possible = is_possible(s, *a);
    if (possible) {
        const Jump *j = &jumps[*a];
        s->pegs &= ~(1 << j->from | 1 << j->over);
        s->pegs |= 1 << j->to;
        s->last = *a;
    }
    int left = count_pegs(s), solved = left == 1;
    out->reward = (float)possible / 13.0f + (float)solved;
    out->terminated = count_jumps(s) == 0;
    out->stats.left = (float)left;
    out->stats.solved = (float)solved;
    out->stats.refused = (float)!possible;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    for (int hole = 0; hole < HOLES; hole++) obs[hole] = (float)has_peg(s, hole);
    obs[HOLES] = (float)count_pegs(s) / (float)HOLES;
}

// A mask must allow at least one choice, also after the end of an episode, when no jump is possible.
ENV_FN void env_mask(const State *s, const Params *p, int agent, uint8_t *mask) {
    (void)p, (void)agent;
    int is_over = count_jumps(s) == 0;
    for (int jump = 0; jump < JUMPS; jump++) mask[jump] = (uint8_t)(is_over || is_possible(s, jump));
}

// `last` is used as an index when a picture is drawn.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    return s->pegs >= 0 && s->pegs < 1 << HOLES && s->last >= -1 && s->last < JUMPS;
}

// Where a hole is in the picture.
ENV_FN float hole_y(int hole) { return (float)((hole > 0) + (hole > 2) + (hole > 5) + (hole > 9)); }
ENV_FN float hole_x(int hole) {
    float row = hole_y(hole);
    return (float)hole - 0.5f * row * (row + 1.0f) - 0.5f * row;
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, -3.2f, -1.4f, 3.2f, 5.2f, 0x0e1726);
    draw_triangle(d, 0.0f, -1.1f, -3.0f, 4.7f, 3.0f, 4.7f, 0x8a5a2b);
    for (int hole = 0; hole < HOLES; hole++) {
        draw_circle(d, hole_x(hole), hole_y(hole), 0.3f, has_peg(s, hole) ? 0xf2e86d : 0x4d3016);
    }
    if (s->last >= 0) {
        const Jump *j = &jumps[s->last];
        float x0 = hole_x(j->from), y0 = hole_y(j->from), x1 = hole_x(j->to), y1 = hole_y(j->to);
        float angle = m_atan2(y1 - y0, x1 - x0);
        ENV_DATA float head[] = {0.0f, 0.0f, -0.35f, 0.18f, -0.35f, -0.18f};
        draw_line(d, x0, y0, x0 + 0.85f * (x1 - x0), y0 + 0.85f * (y1 - y0), 0.08f, 0xe4572e);
        draw_shape(d, head, 3, x1, y1, angle, 1.0f, 0xe4572e);
    }
    draw_value(d, -3.0f, -1.1f, 0.3f, "pegs ", count_pegs(s), 0xffffff);
    draw_value(d, 1.0f, -1.1f, 0.3f, "jumps ", count_jumps(s), 0x8fa3c7);
}
