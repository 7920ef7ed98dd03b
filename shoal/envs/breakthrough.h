// breakthrough.h: two agents race their pieces across a board of 8 x 8; the first piece on the far row wins.
//
// By Dan Troyka (2000). Each agent begins with two rows of pieces. A piece moves one square ahead, straight or
// diagonally, to a free square; diagonally it may also take a piece of the other agent. An agent wins with a piece on
// the row that is farthest from it, or when the other one has no piece left. There is always a move, and no draw. Who
// begins is drawn for every game.
//
// **Views.** Each agent sees its own pieces at the bottom, moving up: the board of agent 1 is mirrored, top to bottom,
// and so are its actions. One policy can so play both seats.
//
// **Turns.** A step is one move. Both agents have a row in it, and the mask of the one that is not on turn allows only
// action 0, which has no effect. connect4.h says why a waiting row does not disturb learning. Either seat can be played
// by a scripted robot (`robot_0`, `robot_1`): random; one_ply, which wins if it can, else takes a piece that would win
// next, else takes a piece if it cannot be retaken, else moves where it cannot be taken, and is random otherwise;
// search2, which looks at its moves and all replies, and counts pieces, how far they have come, and safe moves. one_ply
// wins 97 % of its games against random, search2 97 % against one_ply. A robot replies within the learner's step: the
// learner waits only for its first move, if the robot begins.
//
// obs: 64 squares with 1 for an own piece, 64 with 1 for one of the other agent, row by row from the top left; then 1
// if the agent is on turn. Unless attacks=0, 64 more: 1 for pieces of the other agent that an own one could take, -1
// for own pieces that could be taken.
// action: 64 * direction + square of the piece; direction 0 is up left, 1 up, 2 up right. For a move that the mask
// forbids the next allowed one is taken, and after the last the first.
// reward: 1 for a win, -1 for a loss, at the end of the game.
#define ENV_OBS OBS_F32(129 + 64 * attacks)
#define ENV_OBS_LOW (attacks ? -1.0f : 0.0f)
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(192)
#define ENV_AGENTS 2
#define ENV_HAS_MASK
#define ENV_HAS_CHECK
#define ENV_CONSTS(X) X(attacks, 1, "1: pieces that could be taken are observed too; 0: only the pieces")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, first, 0, "the agent that begins")                                                                          \
    X(int, opening_plies, 0, "random moves that every game starts with; none of them wins")                            \
    X(int, robot_0, 0, "who plays the agent")                                                                          \
    X(int, robot_1, 0, "who plays the agent")
#define ENV_LIMITS(X) X("attacks", 0, 1) X("opening_plies", 0, 40)
#define ENV_CHOICES(X)                                                                                                 \
    X("first", "random agent_0 agent_1")                                                                               \
    X("robot_*", "learner random one_ply search2")
#define ENV_PRESETS(X) X("plain", "attacks=0", "only the pieces are observed: harder to learn")
#define ENV_STATS(X)                                                                                                   \
    X(sum, wins_0, "1 if agent 0 won")                                                                                 \
    X(sum, wins_1, "1 if agent 1 won")                                                                                 \
    X(sum, wins_first, "1 if the agent that began won")                                                                \
    X(sum, wiped_out, "1 if the loser had no piece left")                                                              \
    X(sum, captures, "pieces taken by both agents, without the opening's")                                             \
    X(sum, plies, "moves of both agents, without the opening's")
#include "core/env.h"
ENV_REQUIRE(attacks == 0 || attacks == 1, "attacks must be 0 or 1");
enum { side = 8, num_squares = 64, num_moves = 192, MOST = 1000000, WIN = 10000 };
enum { ONE_PLY = 2, SEARCH, LAST_ROBOT = SEARCH };
#include "board/squares.h"
#include "board/turns.h"
#define HOME_ROW 0xff00000000000000ULL
#define FAR_ROW 0xffULL  // where a piece wins
#define LAST_BUT_ONE 0xff00ULL

typedef struct {
    uint64_t pieces[2];  // of each agent, as agent 0 sees the board: bit side * row + column, from the top left
    uint64_t last;       // where the last move began and ended, for the picture; 0: none
    int32_t turn;        // the agent on turn
    int32_t first;       // the agent that began
} State;

// Moves of the agent that moves up, by direction: the squares from which they start.
typedef struct {
    uint64_t from[3];
} Moves;

ENV_FN int32_t index_of(uint64_t square) { return count_bits(square - 1); }

// The board upside down: the order of its rows.
ENV_FN uint64_t mirrored(uint64_t x) {
    x = ((x >> 8) & 0x00ff00ff00ff00ffULL) | ((x & 0x00ff00ff00ff00ffULL) << 8);
    x = ((x >> 16) & 0x0000ffff0000ffffULL) | ((x & 0x0000ffff0000ffffULL) << 16);
    return (x >> 32) | (x << 32);
}
ENV_FN uint64_t seen_by(uint64_t pieces, int32_t agent) { return agent ? mirrored(pieces) : pieces; }

ENV_FN uint64_t ahead(uint64_t from, int32_t direction) {
    return direction == 1 ? from >> 8 : direction == 0 ? (from & NOT_LEFT) >> 9 : (from & NOT_RIGHT) >> 7;
}
ENV_FN Moves moves_of(uint64_t own, uint64_t other) {
    Moves moves;
    moves.from[0] = own & NOT_LEFT & (~own << 9);
    moves.from[1] = own & (~(own | other) << 8);
    moves.from[2] = own & NOT_RIGHT & (~own << 7);
    return moves;
}
// Squares that pieces could take on, moving up or moving down.
ENV_FN uint64_t reach_up(uint64_t pieces) { return ahead(pieces, 0) | ahead(pieces, 2); }
ENV_FN uint64_t reach_down(uint64_t pieces) { return ((pieces & NOT_LEFT) << 7) | ((pieces & NOT_RIGHT) << 9); }
ENV_FN int32_t count_moves(Moves moves) {
    return count_bits(moves.from[0]) + count_bits(moves.from[1]) + count_bits(moves.from[2]);
}

// ---- scripted robots: `own` moves up ----

// Those moves that end on some squares.
ENV_FN Moves moves_onto(Moves moves, uint64_t squares) {
    moves.from[0] &= squares << 9;
    moves.from[1] &= squares << 8;
    moves.from[2] &= squares << 7;
    return moves;
}
// Moves after which the piece cannot be taken.
ENV_FN int32_t count_safe(uint64_t own, uint64_t other) {
    return count_moves(moves_onto(moves_of(own, other), ~reach_down(other)));
}
// What pieces are worth that move up: 20 each, more at home, and more the closer they are to the far row.
ENV_FN int32_t worth(uint64_t pieces) {
    return 20 * count_bits(pieces) + 4 * count_bits(pieces & HOME_ROW) + count_bits(pieces & (HOME_ROW >> 24)) +
           4 * count_bits(pieces & (HOME_ROW >> 32)) + 12 * count_bits(pieces & (HOME_ROW >> 40)) +
           24 * count_bits(pieces & LAST_BUT_ONE);
}
// The value of a board for the one on turn, who may take a piece that is not guarded.
ENV_FN int32_t value_of(uint64_t own, uint64_t other) {
    if (own & LAST_BUT_ONE) return WIN;
    uint64_t to_move = mirrored(other), to_wait = mirrored(own), hangs = other & reach_up(own) & ~reach_down(other);
    return worth(own) - worth(to_move) + 2 * (count_safe(own, other) - count_safe(to_move, to_wait)) + (hangs ? 15 : 0);
}
// The lowest value that the other agent's best reply leaves, or less than `enough` if it is below that.
ENV_FN int32_t value_after(uint64_t own, uint64_t other, int32_t enough) {
    if (own & FAR_ROW || !other) return 2 * WIN;
    uint64_t replies_own = mirrored(other), replies_other = mirrored(own);
    if (replies_own & LAST_BUT_ONE) return -2 * WIN;
    Moves replies = moves_of(replies_own, replies_other);
    int32_t lowest_value = MOST;
    for (int32_t direction = 0; direction < 3; direction++) {
        for (uint64_t rest = replies.from[direction]; rest && lowest_value >= enough; rest &= rest - 1) {
            uint64_t from = lowest(rest), to = ahead(from, direction);
            uint64_t left = replies_other & ~to;
            int32_t value = left ? value_of(mirrored(left), mirrored((replies_own ^ from) | to)) : -2 * WIN;
            lowest_value = i_min(lowest_value, value);
        }
    }
    return lowest_value;
}
ENV_FN Moves best_moves(uint64_t own, uint64_t other) {
    Moves moves = moves_of(own, other), best = {{0, 0, 0}};
    int32_t highest = -MOST;
    for (int32_t direction = 0; direction < 3; direction++) {
        for (uint64_t rest = moves.from[direction]; rest; rest &= rest - 1) {
            uint64_t from = lowest(rest), to = ahead(from, direction);
            int32_t value = value_after((own ^ from) | to, other & ~to, highest);
            if (value > highest) best.from[0] = best.from[1] = best.from[2] = 0;
            if (value >= highest) best.from[direction] |= from;
            highest = i_max(highest, value);
        }
    }
    return best;
}

ENV_FN Moves careful_moves(uint64_t own, uint64_t other) {
    Moves moves = moves_of(own, other), found = moves_onto(moves, FAR_ROW);
    uint64_t safe = ~reach_down(other);
    if (!count_moves(found)) found = moves_onto(moves, other & 0x00ff000000000000ULL);
    if (!count_moves(found)) found = moves_onto(moves, other & safe);
    if (!count_moves(found)) found = moves_onto(moves, safe);
    return count_moves(found) ? found : moves;
}

// The n-th of some moves as an action; 0 if there is none.
ENV_FN int32_t nth_move(Moves moves, int32_t n) {
    for (int32_t direction = 0; direction < 3; direction++) {
        uint64_t from = moves.from[direction];
        int32_t here = count_bits(from);
        if (n < here) {
            while (n-- > 0) from &= from - 1;
            return num_squares * direction + index_of(lowest(from));
        }
        n -= here;
    }
    return 0;
}
ENV_FN int32_t scripted_move(uint64_t own, uint64_t other, int32_t who, Rng *rng) {
    Moves moves = who == RANDOM    ? moves_of(own, other)
                  : who == ONE_PLY ? careful_moves(own, other)
                                   : best_moves(own, other);
    return nth_move(moves, rng_int(rng, count_moves(moves)));
}

// ---- the game ----

// The move of an action; if it is not allowed, the next one that is.
ENV_FN int32_t chosen_move(Moves moves, int32_t action) {
    int32_t before = 0;
    for (int32_t direction = 0; direction < 3; direction++) {
        int32_t first = i_clamp(action - num_squares * direction, 0, num_squares);
        before += count_bits(moves.from[direction] & (first == num_squares ? ~0ULL : (1ULL << first) - 1));
    }
    return nth_move(moves, before < count_moves(moves) ? before : 0);
}

// The agent on turn moves. Returns whether it takes a piece.
ENV_FN int32_t move_piece(State *s, int32_t move) {
    int32_t agent = s->turn & 1;
    uint64_t from = 1ULL << (move % num_squares), to = ahead(from, move / num_squares);
    uint64_t own = seen_by(s->pieces[agent], agent), other = seen_by(s->pieces[agent ^ 1], agent);
    s->pieces[agent] = seen_by((own & ~from) | to, agent);
    s->pieces[agent ^ 1] = seen_by(other & ~to, agent);
    s->last = seen_by(from | to, agent);
    s->turn ^= 1;
    return (other & to) != 0;
}
ENV_FN int32_t has_won(const State *s, int32_t agent) {
    return (seen_by(s->pieces[agent], agent) & FAR_ROW) != 0 || !s->pieces[agent ^ 1];
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->pieces[0] = 0xffff000000000000ULL;
    s->pieces[1] = 0x000000000000ffffULL;
    s->last = 0;
    s->first = s->turn = first_agent(p, rng);
    for (int32_t k = 0; k < i_clamp(p->opening_plies, 0, 40); k++) {
        State next = *s;
        int32_t agent = s->turn;
        uint64_t own = seen_by(s->pieces[agent], agent), other = seen_by(s->pieces[agent ^ 1], agent);
        move_piece(&next, scripted_move(own, other, RANDOM, rng));
        if (has_won(&next, agent)) break;
        *s = next;
    }
}

ENV_FN void end_game(const State *s, int32_t winner, Step *out) {
    end_turns(winner, s->first, out);
    out->stats.wiped_out = (float)!s->pieces[winner ^ 1];
}

// The agent on turn moves, and then a robot if it is the other agent. Of two robots, one moves.
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t is_over, replies;
    do {
        int32_t agent = s->turn & 1, who = robot_of(p, agent), move;
        uint64_t own = seen_by(s->pieces[agent], agent), other = seen_by(s->pieces[agent ^ 1], agent);
        if (who == LEARNER)
            move = chosen_move(moves_of(own, other), a[agent]);
        else
            move = scripted_move(own, other, who, rng);
        out->stats.captures += (float)move_piece(s, move);
        out->stats.plies += 1.0f;
        is_over = has_won(s, agent);
        if (is_over) end_game(s, agent, out);
        replies = who == LEARNER && robot_of(p, s->turn) != LEARNER;
    } while (replies && !is_over);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p;
    uint64_t own = seen_by(s->pieces[agent & 1], agent), other = seen_by(s->pieces[~agent & 1], agent);
    write_squares(own, obs);
    write_squares(other, obs + num_squares);
    obs[2 * num_squares] = as_float((uint32_t)(s->turn == agent));
    if (attacks) {
        obs += 2 * num_squares + 1;
        write_squares(other & reach_up(own), obs);
        for (uint64_t rest = own & reach_down(other); rest; rest &= rest - 1) obs[index_of(lowest(rest))] = -1.0f;
    }
}

// Robots have the masks of learners: who plays an agent may change between the start of a game and its first step.
ENV_FN void env_mask(const State *s, const Params *p, int agent, uint8_t *mask) {
    (void)p;
    Moves moves = moves_of(seen_by(s->pieces[agent & 1], agent), seen_by(s->pieces[~agent & 1], agent));
    int32_t acts = s->turn == agent && count_moves(moves) > 0;
    for (int32_t k = 0; k < 3; k++) write_mask(acts ? moves.from[k] : 0, mask + num_squares * k);
    if (!acts) mask[0] = 1;
}

// Every square has one piece at most.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    return s->turn >= 0 && s->turn <= 1 && s->first >= 0 && s->first <= 1 && !(s->pieces[0] & s->pieces[1]);
}

ENV_FN void draw_pawn(Draw *d, float x, float y, uint32_t rim, uint32_t color) {
    for (int32_t k = 0; k < 2; k++) {
        float grow = k ? 0.0f : 0.045f;
        uint32_t paint = k ? color : rim;
        draw_circle(d, x, y - 0.17f, 0.15f + grow, paint);
        draw_triangle(d, x, y - 0.25f - grow, x + 0.24f + grow, y + 0.28f, x - 0.24f - grow, y + 0.28f, paint);
        draw_rect(d, x - 0.28f - grow, y + 0.22f - grow, 0.56f + 2.0f * grow, 0.12f + 2.0f * grow, paint);
    }
}

// The board as agent 0 sees it; the squares of the last move are lit. Below it: who is on turn, or who has won.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    const uint32_t light = 0xf4f1e8, dark = 0x232a38;
    int32_t is_over = has_won(s, 0) || has_won(s, 1), shown = is_over ? has_won(s, 1) : s->turn & 1;
    draw_view(d, -0.3f, -0.3f, 8.3f, 9.2f, 0x0e1726);
    draw_rect(d, -0.1f, -0.1f, 8.2f, 8.2f, 0x5a3d28);
    for (int32_t k = 0; k < num_squares; k++) {
        float x = (float)(k % side), y = (float)(k / side);
        uint64_t square = 1ULL << k;
        uint32_t wood = (k / side + k) % 2 ? 0xa87b51 : 0xdcc09a;
        draw_rect(d, x, y, 1.0f, 1.0f, s->last & square ? 0xf2a65a : wood);
        if (s->pieces[0] & square) draw_pawn(d, x + 0.5f, y + 0.5f, 0x6b6557, light);
        if (s->pieces[1] & square) draw_pawn(d, x + 0.5f, y + 0.5f, 0x000000, dark);
    }
    draw_circle(d, 0.5f, 8.65f, 0.28f, 0x4a5b78);
    draw_circle(d, 0.5f, 8.65f, 0.24f, shown ? dark : light);
    draw_value(d, 1.0f, 8.65f, 0.42f, "agent ", shown, 0xffffff);
    draw_text(d, 4.0f, 8.65f, 0.42f, is_over ? "wins" : "to move", 0xffffff);
}
