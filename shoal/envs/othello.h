// othello.h: two agents place discs that turn the other's over; whoever has more in the end wins.
//
// A board of 8 x 8, also known as Reversi. A disc must be placed so that it encloses a straight line of the other
// agent's discs, in any of eight directions, between itself and an own disc; all discs so enclosed are turned over. An
// agent that has no such move passes. The game is over once neither has one, at the latest when the board is full. Who
// begins, with black, is drawn for every game.
//
// **Turns.** A step is one move. Both agents have a row in it, and the mask of the one that is not on turn allows only
// action 64, which has no effect. connect4.h says why a waiting row does not disturb learning. Either seat can be
// played by a scripted robot (`robot_0`, `robot_1`): random; greedy, which turns over as many discs as it can; corners,
// which takes the move after which its squares are worth most, less those of the other agent, by a table in which
// corners are worth much and the squares beside them cost. greedy wins 60 % of its games against random, corners 85 %
// against greedy. A robot replies within the learner's step: the learner waits only for its first move, if the robot
// begins.
//
// obs: 64 squares with 1 for an own disc, 64 with 1 for one of the other agent, row by row from the top left; then 1 if
// the agent is on turn. With moves=1, 128 more: 1 where the agent could place a disc if it were on turn, and 1 where
// the other agent could.
// action: a square, row by row from the top left, or 64 to pass. The mask allows a pass only where there is no other
// move; for an action that it forbids the next allowed square is taken, and after the last the first.
// reward: 1 for a win, -1 for a loss, at the end of the game; 0 if both have as many discs.
#define ENV_OBS OBS_F32(129 + 128 * moves)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(65)
#define ENV_AGENTS 2
#define ENV_HAS_MASK
#define ENV_HAS_CHECK
#define ENV_CONSTS(X) X(moves, 0, "1: the moves of both agents are observed too")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, first, 0, "the agent that begins")                                                                          \
    X(int, opening_plies, 0, "random moves that every game starts with")                                               \
    X(int, robot_0, 0, "who plays the agent")                                                                          \
    X(int, robot_1, 0, "who plays the agent")
#define ENV_LIMITS(X) X("moves", 0, 1) X("opening_plies", 0, 40)
#define ENV_CHOICES(X)                                                                                                 \
    X("first", "random agent_0 agent_1")                                                                               \
    X("robot_*", "learner random greedy corners")
#define ENV_STATS(X)                                                                                                   \
    X(sum, wins_0, "1 if agent 0 won")                                                                                 \
    X(sum, wins_1, "1 if agent 1 won")                                                                                 \
    X(sum, draws, "1 if both had as many discs")                                                                       \
    X(sum, wins_first, "1 if the agent that began won")                                                                \
    X(sum, lead_0, "discs of agent 0 less those of agent 1 at the end")                                                \
    X(sum, plies, "moves of both agents, without the opening's and passes")                                            \
    X(sum, passes, "passes of both agents, without the opening's")
#include "core/env.h"
ENV_REQUIRE(moves == 0 || moves == 1, "moves must be 0 or 1");
enum { side = 8, num_squares = 64, PASS = 64 };
enum { GREEDY = 2, CORNERS, LAST_ROBOT = CORNERS };
#include "board/squares.h"
#include "board/turns.h"

typedef struct {
    uint64_t discs[2];  // of each agent: bit side * row + column, from the top left
    uint64_t legal;     // where the agent on turn may place a disc
    uint64_t last;      // the last disc that was placed, for the picture; 0: none
    int32_t turn;       // the agent on turn
    int32_t first;      // the agent that began: black
} State;

// All squares one to the right (towards higher bits) or to the left, and 7, 8 or 9 on or back: one row and a diagonal.
// `inner` holds the squares that may be entered.
ENV_FN uint64_t run_up(uint64_t from, uint64_t through, int32_t by, uint64_t inner) {
    uint64_t found = (from << by) & inner & through;
    for (int32_t k = 0; k < side - 3; k++) found |= (found << by) & inner & through;
    return found;
}
ENV_FN uint64_t run_down(uint64_t from, uint64_t through, int32_t by, uint64_t inner) {
    uint64_t found = (from >> by) & inner & through;
    for (int32_t k = 0; k < side - 3; k++) found |= (found >> by) & inner & through;
    return found;
}
// What may be entered by a step of 1, 7, 8 or 9 towards higher bits, and towards lower bits: steps that leave the board
// at one edge would enter it at the other.
ENV_FN uint64_t inner_up(int32_t by) { return by == 8 ? ~0ULL : by == 7 ? NOT_RIGHT : NOT_LEFT; }
ENV_FN uint64_t inner_down(int32_t by) { return by == 8 ? ~0ULL : by == 7 ? NOT_LEFT : NOT_RIGHT; }
ENV_FN int32_t nth_step(int32_t k) { return k ? 6 + k : 1; }  // 1, 7, 8, 9

// Where `own` may place a disc: at the far end of a line of the other's discs.
ENV_FN uint64_t legal_squares(uint64_t own, uint64_t other) {
    uint64_t found = 0;
    for (int32_t k = 0; k < 4; k++) {
        int32_t by = nth_step(k);
        found |= (run_up(own, other, by, inner_up(by)) << by) & inner_up(by);
        found |= (run_down(own, other, by, inner_down(by)) >> by) & inner_down(by);
    }
    return found & ~(own | other);
}

// The discs that one placed on a square turns over.
ENV_FN uint64_t turned_over(uint64_t square, uint64_t own, uint64_t other) {
    uint64_t found = 0;
    for (int32_t k = 0; k < 4; k++) {
        int32_t by = nth_step(k);
        uint64_t up = run_up(square, other, by, inner_up(by)), down = run_down(square, other, by, inner_down(by));
        if ((up << by) & inner_up(by) & own) found |= up;
        if ((down >> by) & inner_down(by) & own) found |= down;
    }
    return found;
}

// ---- scripted robots ----

// What discs are worth by their squares. The top left quarter of the table, which the others mirror:
//     100 -20  10   5
//     -20 -50  -2  -2
//      10  -2  -1  -1
//       5  -2  -1  -1
ENV_FN int32_t worth(uint64_t discs) {
    return 100 * count_bits(discs & 0x8100000000000081ULL) - 20 * count_bits(discs & 0x4281000000008142ULL) +
           10 * count_bits(discs & 0x2400810000810024ULL) + 5 * count_bits(discs & 0x1800008181000018ULL) -
           50 * count_bits(discs & 0x0042000000004200ULL) - 2 * count_bits(discs & 0x003c424242423c00ULL) -
           count_bits(discs & 0x00003c3c3c3c0000ULL);
}

// The legal squares that a robot likes best.
ENV_FN uint64_t best_squares(uint64_t own, uint64_t other, uint64_t legal, int32_t who) {
    uint64_t best = 0;
    int32_t highest = -100000;
    for (uint64_t rest = legal; rest; rest &= rest - 1) {
        uint64_t square = lowest(rest), flips = turned_over(square, own, other);
        int32_t value = who == GREEDY ? count_bits(flips) : worth(own | square | flips) - worth(other & ~flips);
        if (value > highest) best = 0;
        if (value >= highest) best |= square;
        highest = i_max(highest, value);
    }
    return best;
}

ENV_FN uint64_t scripted_square(const State *s, int32_t who, Rng *rng) {
    if (who == RANDOM) return pick(s->legal, rng);
    return pick(best_squares(s->discs[s->turn & 1], s->discs[~s->turn & 1], s->legal, who), rng);
}

// ---- the game ----

// The square of an action; if no disc may be placed there, the next square that allows one. 0: a pass, if none does.
ENV_FN uint64_t chosen_square(uint64_t legal, int32_t action) {
    uint64_t after = action < PASS ? legal & (~0ULL << action) : 0, squares = after ? after : legal;
    return lowest(squares);
}

// The agent on turn places a disc or, for 0, passes.
ENV_FN void place(State *s, uint64_t square) {
    int32_t agent = s->turn & 1, other = agent ^ 1;
    uint64_t flips = square ? turned_over(square, s->discs[agent], s->discs[other]) : 0;
    s->discs[agent] |= square | flips;
    s->discs[other] &= ~flips;
    if (square) s->last = square;
    s->turn = other;
    s->legal = legal_squares(s->discs[other], s->discs[agent]);
}

// Whether neither agent has a move. Right after a pass this is never so: the one that did not pass had a move.
ENV_FN int32_t is_game_over(const State *s) {
    return !s->legal && !legal_squares(s->discs[~s->turn & 1], s->discs[s->turn & 1]);
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->first = s->turn = first_agent(p, rng);
    s->discs[s->first] = 0x0000000810000000ULL;  // d5, e4 in the game's notation
    s->discs[s->first ^ 1] = 0x0000001008000000ULL;
    s->legal = legal_squares(s->discs[s->first], s->discs[s->first ^ 1]);
    s->last = 0;
    for (int32_t k = 0; k < i_clamp(p->opening_plies, 0, 40); k++) {
        State next = *s;
        place(&next, pick(s->legal, rng));
        if (is_game_over(&next)) break;
        *s = next;
    }
}

ENV_FN void end_game(const State *s, Step *out) {
    int32_t lead = count_bits(s->discs[0]) - count_bits(s->discs[1]);
    end_turns(lead > 0 ? 0 : lead < 0 ? 1 : -1, s->first, out);
    out->stats.draws = (float)(lead == 0);
    out->stats.lead_0 = (float)lead;
}

// The agent on turn moves, and then a robot if it is the other agent. Of two robots, one moves.
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t is_over, replies;
    do {
        int32_t agent = s->turn & 1, who = robot_of(p, agent);
        uint64_t square = who == LEARNER ? chosen_square(s->legal, a[agent]) : scripted_square(s, who, rng);
        place(s, square);
        out->stats.plies += (float)(square != 0);
        out->stats.passes += (float)(square == 0);
        is_over = is_game_over(s);
        if (is_over) end_game(s, out);
        replies = who == LEARNER && robot_of(p, s->turn) != LEARNER;
    } while (replies && !is_over);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p;
    uint64_t own = s->discs[agent & 1], other = s->discs[~agent & 1];
    write_squares(own, obs);
    write_squares(other, obs + num_squares);
    obs[2 * num_squares] = as_float((uint32_t)(s->turn == agent));
    if (moves) {
        write_squares(legal_squares(own, other), obs + 2 * num_squares + 1);
        write_squares(legal_squares(other, own), obs + 3 * num_squares + 1);
    }
}

// Robots have the masks of learners: who plays an agent may change between the start of a game and its first step.
ENV_FN void env_mask(const State *s, const Params *p, int agent, uint8_t *mask) {
    (void)p;
    uint64_t legal = s->turn == agent ? s->legal : 0;
    write_mask(legal, mask);
    mask[PASS] = (uint8_t)(legal == 0);
}

// Every square has one disc at most, and the legal moves are those of the agent on turn.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    if (s->turn < 0 || s->turn > 1 || s->first < 0 || s->first > 1 || (s->discs[0] & s->discs[1])) return 0;
    return s->legal == legal_squares(s->discs[s->turn], s->discs[s->turn ^ 1]);
}

// The board; small rings show where the one on turn may place a disc, a red dot is on the last one. Below it: the discs
// of black and white, with a bar under the one on turn.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    const uint32_t black = 0x14181f, white = 0xf4f1e8, green = 0x2e7d4f;
    uint64_t dark = s->discs[s->first & 1], light = s->discs[~s->first & 1];
    draw_view(d, -0.35f, -0.35f, 8.35f, 9.35f, 0x0e1726);
    draw_rect(d, -0.1f, -0.1f, 8.2f, 8.2f, 0x1d5535);
    for (int32_t k = 0; k < num_squares; k++) {
        uint64_t square = 1ULL << k;
        float x = (float)(k % side) + 0.5f, y = (float)(k / side) + 0.5f;
        draw_rect(d, x - 0.48f, y - 0.48f, 0.96f, 0.96f, green);
        if ((dark | light) & square) draw_circle(d, x, y, 0.4f, dark & square ? black : white);
        if (s->last == square) draw_circle(d, x, y, 0.08f, 0xe2556d);
        if (s->legal & square) {
            draw_circle(d, x, y, 0.14f, s->turn == s->first ? black : white);
            draw_circle(d, x, y, 0.09f, green);
        }
    }
    for (int32_t k = 0; k < 2; k++) {
        int32_t agent = k ^ (s->first & 1);  // black, then white
        float x = 0.7f + 4.2f * (float)k;
        draw_circle(d, x, 8.75f, 0.3f, 0x4a5b78);
        draw_circle(d, x, 8.75f, 0.26f, k ? white : black);
        draw_value(d, x + 0.5f, 8.75f, 0.4f, "", count_bits(k ? light : dark), 0xffffff);
        draw_value(d, x + 1.4f, 8.75f, 0.3f, "agent ", agent, 0xb8c4d9);
        if (s->turn == agent && !is_game_over(s)) draw_rect(d, x - 0.3f, 9.15f, 3.4f, 0.06f, 0xf2a65a);
    }
}
