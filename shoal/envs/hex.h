// hex.h: two agents fill the cells of a board of hexagons; whoever connects two opposite sides of it wins.
//
// A rhombus of 11 x 11 cells (`side`), by Piet Hein (1942) and John Nash (1948). Agents take turns and place a stone on
// a free cell. The agent that begins wants to connect the top with the bottom by a chain of its stones, the other one
// the left side with the right. Exactly one of them can: there is no draw. Since beginning helps, the second agent may
// take over the first stone instead of placing one (the swap rule, unless swap=0): the stone becomes its own and is
// mirrored at the long diagonal, so that it means for the new owner what it meant for the old one. Who begins is drawn
// for every game.
//
// **Views.** Each agent sees the board as if it had to connect top and bottom: the board of the second one is mirrored
// at the diagonal, and its actions are too. One policy can so play both seats. A cell has the neighbours left and
// right, above, above right, below, below left.
//
// **Turns.** A step is one move. Both agents have a row in it, and the mask of the one that is not on turn allows only
// action side * side, which has no effect. connect4.h says why a waiting row does not disturb learning. Either seat can
// be played by a scripted robot (`robot_0`, `robot_1`): random; ways, which plays on the shortest ways to connect, own
// ones and the other's; path, which does so too but counts own bridges (two stones with two free cells between them) as
// connected, and mends one that the other agent has entered. Both swap a stone that is not close to its goals. ways
// wins all games against random, path 84 % against ways. A robot replies within the learner's step: the learner waits
// only for its first move, if the robot begins.
//
// obs: side * side cells with 1 for an own stone, as many with 1 for one of the other agent, row by row from the top
// left; then 1 if the agent is on turn, and 1 if it may swap. Unless links=0, two times side * side more: own stones
// that are connected with the top (1) or the bottom (-1), and stones of the other agent that are connected with the
// left side (1) or the right one (-1).
// action: a cell, row by row from the top left, or side * side to swap. For a move that the mask forbids the next free
// cell is taken, and after the last the first.
// reward: 1 for a win, -1 for a loss, at the end of the game.
#define ENV_OBS OBS_F32(side * side * (2 + 2 * links) + 2)
#define ENV_OBS_LOW (links ? -1.0f : 0.0f)
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(side *side + 1)
#define ENV_AGENTS 2
#define ENV_HAS_MASK
#define ENV_HAS_CHECK
#define ENV_CONSTS(X)                                                                                                  \
    X(side, 11, "cells per side")                                                                                      \
    X(links, 1, "1: which stones are connected with a side is observed too; 0: only the stones")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, swap, 1, "1: the second agent may take over the first stone; 0: no swap rule")                              \
    X(int, first, 0, "the agent that begins")                                                                          \
    X(int, opening_plies, 0, "random moves that every game starts with; none of them wins")                            \
    X(int, robot_0, 0, "who plays the agent")                                                                          \
    X(int, robot_1, 0, "who plays the agent")
#define ENV_LIMITS(X) X("side", 3, 19) X("links", 0, 1) X("swap", 0, 1) X("opening_plies", 0, 40)
#define ENV_CHOICES(X)                                                                                                 \
    X("first", "random agent_0 agent_1")                                                                               \
    X("robot_*", "learner random ways path")
#define ENV_PRESETS(X)                                                                                                 \
    X("small", "side=7", "7 x 7: shorter games")                                                                       \
    X("plain", "links=0", "only the stones are observed: harder to learn")
#define ENV_STATS(X)                                                                                                   \
    X(sum, wins_0, "1 if agent 0 won")                                                                                 \
    X(sum, wins_1, "1 if agent 1 won")                                                                                 \
    X(sum, wins_first, "1 if the agent that began won")                                                                \
    X(sum, swaps, "1 if the second agent swapped")                                                                     \
    X(sum, plies, "moves of both agents, without the opening's")
#include "core/env.h"
ENV_REQUIRE(side >= 3 && side <= 19, "side must be 3 to 19");
ENV_REQUIRE(links == 0 || links == 1, "links must be 0 or 1");
#include "board/bits.h"
enum { SWAP = num_points, most_layers = 24 };
enum { WAYS = 2, PATH, LAST_ROBOT = PATH };
#include "board/turns.h"

typedef struct {
    Set stones[2][2];  // [view][own or the other's]: the board as each agent sees it
    Set linked[2][2]
              [2];    // [view][own or the other's][side]: stones connected with top and bottom, or with left and right
    int32_t last;     // cell of the last stone in the view of its owner; -1: none
    int32_t plies;    // stones placed and swaps, with the opening
    int32_t swapped;  // 1 if the first stone was taken over
    int32_t turn, first;  // the agent on turn, and the one that began
} State;

ENV_FN Set shift(Set a, int32_t by) { return by > 0 ? set_up(a, by) : set_down(a, -by); }

// Bits from a cell to its neighbours, in a circle: right, below, below left, left, above, above right.
ENV_FN int32_t step_to(int32_t k) {
    int32_t half = k % 3 == 0 ? 1 : k % 3 == 1 ? stride : stride - 1;
    return k % 6 < 3 ? half : -half;
}
ENV_FN Set beside(Set a) {
    Set found = set_none();
    for (int32_t k = 0; k < 6; k++) found = set_or(found, shift(a, step_to(k)));
    return found;
}
#include "board/reach.h"

ENV_FN Set free_cells(const State *s, int32_t view) {
    return set_less(whole_board(), set_or(s->stones[view][0], s->stones[view][1]));
}
ENV_FN int32_t mirrored(int32_t cell) { return cell % side * side + cell / side; }

// Whether a cell is at one of the two sides that a player connects: own ones (top, bottom) or the other's (left,
// right).
ENV_FN int32_t is_at(int32_t cell, int32_t whose, int32_t which) {
    return (whose ? cell % side : cell / side) == (which ? side - 1 : 0);
}
ENV_FN Set side_cells(int32_t whose, int32_t which) {
    Set row = set_none(), cells;
    row.w[0] = whose ? 1 : (1ULL << side) - 1;
    cells = row;
    for (int32_t k = 1; k < side; k++) cells = whose ? set_or(set_up(cells, stride), row) : cells;
    if (which && whose) cells = set_up(cells, side - 1);
    for (int32_t k = 1; k < side && which && !whose; k++) cells = set_up(cells, stride);
    return cells;
}

// ---- moves ----

ENV_FN void add_stone(State *s, int32_t view, int32_t whose, int32_t cell) {
    Set stone = set_of(bit_of(cell)), *own = &s->stones[view][whose];
    *own = set_or(*own, stone);
    for (int32_t which = 0; which < 2; which++) {
        Set *linked = &s->linked[view][whose][which];
        if (is_at(cell, whose, which) || set_meets(beside(stone), *linked))
            *linked = set_or(*linked, reach(stone, *own));
    }
}
ENV_FN int32_t has_won(const State *s, int32_t agent) {
    return set_meets(s->linked[agent][0][0], s->linked[agent][0][1]);
}
ENV_FN int32_t may_swap(const State *s, const Params *p) { return p->swap == 1 && s->plies == 1; }

ENV_FN void clear_board(State *s) {
    for (int32_t k = 0; k < 4; k++) {
        s->stones[k / 2][k % 2] = s->linked[k / 2][k % 2][0] = s->linked[k / 2][k % 2][1] = set_none();
    }
}
// The agent on turn places a stone on a cell of its view. To swap is to place one where the other has its only one.
ENV_FN void place(State *s, int32_t move) {
    int32_t agent = s->turn & 1, cell = move == SWAP ? s->last : move;
    if (move == SWAP) clear_board(s);
    add_stone(s, agent, 0, cell);
    add_stone(s, agent ^ 1, 1, mirrored(cell));
    s->last = cell;
    s->plies++;
    s->swapped |= move == SWAP;
    s->turn ^= 1;
}

// ---- scripted robots: everything in the view of the agent on turn ----

// The free cells at a side and, with bridges, those from which a bridge leads to it.
ENV_FN Set near_side(Set edge, Set empty, int32_t bridges) {
    Set one = set_none(), two = set_none(), free_edge = set_and(edge, empty);
    for (int32_t k = 0; k < 6; k++) {
        Set there = shift(free_edge, step_to(k));
        two = set_or(two, set_and(one, there));
        one = set_or(one, there);
    }
    return set_and(bridges ? set_or(edge, two) : edge, empty);
}
// The free cells beside stones and, with bridges, those at the other end of a bridge of two free cells.
ENV_FN Set near_stones(Set stones, Set empty, int32_t bridges) {
    Set found = beside(stones);
    for (int32_t k = 0; k < 6 && bridges; k++) {
        int32_t by = step_to(k), next = step_to(k + 1);
        found = set_or(found, set_and(shift(stones, by + next), set_and(shift(empty, by), shift(empty, next))));
    }
    return set_and(found, empty);
}

// The free cells on shortest ways between the two sides of a player, counted in stones that are still to be placed.
// `length` is set to that count.
ENV_FN Set shortest_ways(const State *s, int32_t whose, int32_t bridges, int32_t *length) {
    int32_t view = s->turn & 1, count = 0;
    Set empty = free_cells(s, view), stones = s->stones[view][whose], layers[most_layers], ways = set_none();
    Set seen = s->linked[view][whose][1],
        next = set_or(near_side(side_cells(whose, 1), empty, bridges), near_stones(seen, empty, bridges));
    Set goal =
        set_or(near_side(side_cells(whose, 0), empty, bridges), near_stones(s->linked[view][whose][0], empty, bridges));
    while (set_any(next) && count < most_layers) {  // from the far side: layer k needs k + 1 stones
        Set chains = reach(beside(next), stones);
        layers[count++] = next;
        if (set_meets(next, goal)) break;
        seen = set_or(seen, set_or(next, chains));
        next = set_less(near_stones(set_or(next, chains), empty, bridges), seen);
    }
    *length = count;
    for (Set here = goal; count > 0; count--) {  // and back
        Set on = set_and(here, layers[count - 1]);
        ways = set_or(ways, on);
        here = near_stones(set_or(on, reach(beside(on), stones)), empty, bridges);
    }
    return ways;
}

// Cells that mend a bridge which the last stone has entered.
ENV_FN Set mends(const State *s) {
    int32_t view = s->turn & 1, cell = mirrored(s->last);
    Set own = s->stones[view][0], empty = free_cells(s, view), last = set_of(bit_of(cell)), found = set_none();
    for (int32_t k = 0; k < 12; k++) {
        int32_t by = step_to(k), next = step_to(k < 6 ? k + 1 : k + 5);
        Set from = set_and(shift(last, -by), own), to = set_and(shift(from, by + next), own);
        if (set_any(to)) found = set_or(found, set_and(shift(from, next), empty));
    }
    for (int32_t which = 0; which < 2; which++) {
        Set edge = side_cells(0, which),
            at = set_less(set_and(beside(last), own), set_or(edge, s->linked[view][0][which]));
        if (set_meets(last, edge)) found = set_or(found, set_and(beside(at), set_and(edge, empty)));
    }
    return found;
}

// A cell, or SWAP.
ENV_FN int32_t scripted_move(const State *s, const Params *p, int32_t who, Rng *rng) {
    Set cells = free_cells(s, s->turn & 1);
    if (who != RANDOM) {
        int32_t row = s->last / side, own_length, other_length;
        if (may_swap(s, p) && row > 1 && row < side - 2) return SWAP;
        Set ways = shortest_ways(s, 0, who == PATH, &own_length), blocks = shortest_ways(s, 1, 0, &other_length);
        Set both = set_and(ways, blocks), found = who == PATH && s->last >= 0 ? mends(s) : set_none();
        Set better = own_length <= other_length ? ways : blocks, liked = set_any(both) ? both : better;
        if (own_length > 1 && set_any(found)) liked = found;
        cells = own_length == 1 ? ways : set_any(liked) ? liked : cells;
    }
    return point_of(first_bit(pick(cells, rng)));
}

// ---- the game ----

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    clear_board(s);
    s->first = s->turn = first_agent(p, rng);
    s->last = -1;
    s->plies = s->swapped = 0;
    for (int32_t k = 0; k < i_clamp(p->opening_plies, 0, 40); k++) {
        State next = *s;
        place(&next, scripted_move(s, p, RANDOM, rng));
        if (has_won(&next, s->turn)) break;
        *s = next;
    }
}

// The agent on turn moves, and then a robot if it is the other agent. Of two robots, one moves.
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t is_over, replies;
    do {
        int32_t agent = s->turn & 1, who = robot_of(p, agent), move = a[agent];
        if (who != LEARNER) move = scripted_move(s, p, who, rng);
        if (move != SWAP || !may_swap(s, p)) {
            move = point_of(first_bit(next_of(free_cells(s, agent), move == SWAP ? 0 : move)));
        }
        place(s, move);
        out->stats.swaps += (float)(move == SWAP);
        out->stats.plies += 1.0f;
        is_over = has_won(s, agent);
        if (is_over) end_turns(agent, s->first, out);
        replies = who == LEARNER && robot_of(p, s->turn) != LEARNER;
    } while (replies && !is_over);
}

// 1 for cells of one set, -1 for those of another, 0 for cells of both.
ENV_FN void write_links(Set plus, Set minus, Obs *obs) {
    write_floats(plus, obs);
    if (set_any(minus)) subtract_floats(minus, obs);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    int32_t view = agent & 1;
    write_floats(s->stones[view][0], obs);
    write_floats(s->stones[view][1], obs + num_points);
    obs += 2 * num_points;
    obs[0] = as_float((uint32_t)(s->turn == agent));
    obs[1] = as_float((uint32_t)(s->turn == agent && may_swap(s, p)));
    if (links) {
        write_links(s->linked[view][0][0], s->linked[view][0][1], obs + 2);
        write_links(s->linked[view][1][0], s->linked[view][1][1], obs + 2 + num_points);
    }
}

// Robots have the masks of learners: who plays an agent may change between the start of a game and its first step.
ENV_FN void env_mask(const State *s, const Params *p, int agent, uint8_t *mask) {
    write_bytes(s->turn == agent ? free_cells(s, agent & 1) : set_none(), mask);
    mask[SWAP] = (uint8_t)(s->turn != agent || may_swap(s, p));
}

// Both views show the same stones, one at most on a cell, and the links are those of the stones.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    if (s->turn < 0 || s->turn > 1 || s->first < 0 || s->first > 1 || (s->swapped & ~1)) return 0;
    if (s->last < -1 || s->last >= num_points || s->plies < 0 || s->plies > num_points + 1) return 0;
    if ((s->plies > 0) != (s->last >= 0)) return 0;
    Set stones = set_or(s->stones[0][0], s->stones[0][1]);
    if (!set_equal(stones, set_and(stones, whole_board())) || set_meets(s->stones[0][0], s->stones[0][1])) return 0;
    if (set_count(stones) != s->plies - s->swapped) return 0;
    State right = *s;
    clear_board(&right);
    for (int32_t cell = 0; cell < num_points; cell++) {
        for (int32_t whose = 0; whose < 2; whose++) {
            if (!set_has(&s->stones[0][whose], bit_of(cell))) continue;
            add_stone(&right, 0, whose, cell);
            add_stone(&right, 1, whose ^ 1, mirrored(cell));
        }
    }
    int32_t equal = has_won(s, 0) + has_won(s, 1) < 2;
    for (int32_t k = 0; k < 4; k++) {
        equal &= set_equal(s->stones[k / 2][k % 2], right.stones[k / 2][k % 2]);
        for (int32_t n = 0; n < 2; n++) equal &= set_equal(s->linked[k / 2][k % 2][n], right.linked[k / 2][k % 2][n]);
    }
    return equal;
}

ENV_FN void draw_hexagon(Draw *d, float x, float y, float size, uint32_t color) {
    const float wide = 0.5f * size, high = 0.57735f * size, half = 0.288675f * size;
    const float points[] = {x, y - high, x + wide, y - half, x + wide, y + half,
                            x, y + high, x - wide, y + half, x - wide, y - half};
    draw_polygon(d, points, 6, color);
}

// The board as the agent that began sees it: red connects top and bottom, blue left and right. A dot marks the last
// stone.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    const uint32_t red = 0xe2556d, blue = 0x4f8fe8;
    const float width = 1.5f * (float)side, height = 0.866025f * (float)side, size = (float)side / 11.0f;
    int32_t view = s->first & 1, is_over = has_won(s, 0) || has_won(s, 1);
    int32_t last = s->last < 0 ? -1 : (s->turn & 1) != view ? s->last : mirrored(s->last);
    draw_view(d, -0.9f, -0.9f, width + 0.4f, height + 0.6f + 1.1f * size, 0x0e1726);
    for (int32_t pass = 0; pass < 2; pass++) {  // the coloured frame, then the cells
        for (int32_t cell = 0; cell < num_points; cell++) {
            int32_t row = cell / side, column = cell % side, bit = bit_of(cell);
            float x = (float)column + 0.5f * (float)row + 0.5f, y = 0.866025f * (float)row + 0.5f;
            if (!pass) {
                if (column == 0) draw_hexagon(d, x - 0.2f, y, 1.1f, blue);
                if (column == side - 1) draw_hexagon(d, x + 0.2f, y, 1.1f, blue);
                if (row == 0) draw_hexagon(d, x, y - 0.2f, 1.1f, red);
                if (row == side - 1) draw_hexagon(d, x, y + 0.2f, 1.1f, red);
                continue;
            }
            int32_t is_red = set_has(&s->stones[view][0], bit), is_blue = set_has(&s->stones[view][1], bit);
            draw_hexagon(d, x, y, 1.0f, 0x0e1726);
            draw_hexagon(d, x, y, 0.94f, 0x2a3a55);
            if (is_red || is_blue) draw_circle(d, x, y, 0.4f, is_red ? red : blue);
            if (cell == last) draw_circle(d, x, y, 0.13f, 0xffffff);
        }
    }
    int32_t shown = is_over ? has_won(s, 1) : s->turn & 1;
    float y = height + 0.45f + 0.6f * size;
    draw_circle(d, 0.2f, y, 0.35f * size, shown == view ? red : blue);
    draw_value(d, 0.2f + 0.7f * size, y, 0.55f * size, "agent ", shown, 0xffffff);
    draw_text(d, 0.2f + 4.9f * size, y, 0.55f * size, is_over ? "wins" : "to move", 0xffffff);
    if (s->swapped) draw_text(d, 0.2f + 9.0f * size, y, 0.4f * size, "swapped", 0xb8c4d9);
}
