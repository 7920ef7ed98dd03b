// connect4.h: two agents drop stones into seven columns; four in a line win.
//
// The board has seven columns of six cells. Agents take turns; a stone falls to the lowest free cell of its column.
// Four of one's own in a row, a column or a diagonal win; a full board is a draw. With perfect play the agent that
// begins wins, and only if it begins in the centre (Allis 1988, Allen 1988). Who begins is drawn for every game.
//
// **Turns.** A step is one move. Both agents have a row in it, and the mask of the one that is not on turn allows only
// action 0, which has no effect. A choice of one has log-probability 0 and entropy 0: that row adds nothing to the
// policy's gradient. It teaches the critic the value of the board after one's own move, so that GAE judges a move and
// the reply to it by separate differences of values; a loss is the reward of the loser's waiting row. `alive` cannot
// say "waits": it means out until the next game, without reward or memory. If both chose in one step, the second would
// not see the first one's move. With gamma = 1 waiting costs nothing.
// Either seat can be played by a scripted robot (`robot_0`, `robot_1`): random; one_ply, which wins if it can, blocks
// if it must and is random otherwise; search4, a search of four moves that counts the cells that would make four.
// one_ply wins 96 % of its games against random, search4 98 % against one_ply. A robot replies within the learner's
// step: the learner waits only for its first move, if the robot begins.
//
// obs: 42 cells with 1 for an own stone, 42 with 1 for one of the other agent, column by column from the left, each
// from the bottom; then 1 if the agent is on turn. Unless threats=0, 42 more: 1 where an own stone would make four, -1
// where only one of the other agent would; also cells that no stone can fall to yet. Unless tactics=0, six for each
// column: 1 if an own stone there would make four, if one of the other agent would, if in the cell above the other
// agent's would, if an own one would; and if an own stone there would leave two cells that make four in the next move,
// if one of the other agent would.
// action: the column, from the left. The mask forbids full columns; for one of those the next free column to the right
// is taken, and after the last the first.
// reward: 1 for a win, -1 for a loss, at the end of the game. Of random games the agent that begins wins 56 %.
#define ENV_OBS OBS_F32(85 + 42 * threats + 42 * tactics)
#define ENV_OBS_LOW (threats ? -1.0f : 0.0f)
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(7)
#define ENV_AGENTS 2
#define ENV_HAS_MASK
#define ENV_HAS_CHECK
#define ENV_CONSTS(X)                                                                                                  \
    X(threats, 1, "1: cells that would make four are observed too")                                                    \
    X(tactics, 1, "1: what a stone in each column would win, lose or threaten is observed too")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, first, 0, "the agent that begins")                                                                          \
    X(int, opening_plies, 0, "random moves that every game starts with; none of them makes four")                      \
    X(int, robot_0, 0, "who plays the agent")                                                                          \
    X(int, robot_1, 0, "who plays the agent")
#define ENV_LIMITS(X) X("threats", 0, 1) X("tactics", 0, 1) X("opening_plies", 0, 30)
#define ENV_CHOICES(X)                                                                                                 \
    X("first", "random agent_0 agent_1")                                                                               \
    X("robot_*", "learner random one_ply search4")
#define ENV_PRESETS(X) X("plain", "threats=0 tactics=0", "only the stones are observed: harder to learn")
#define ENV_STATS(X)                                                                                                   \
    X(sum, wins_0, "1 if agent 0 won")                                                                                 \
    X(sum, wins_1, "1 if agent 1 won")                                                                                 \
    X(sum, draws, "1 if nobody won")                                                                                   \
    X(sum, wins_first, "1 if the agent that began won")                                                                \
    X(sum, plies, "moves of both agents, without the opening's")
#define ENV_VERSION 1  // tactics are observed
#include "core/env.h"
ENV_REQUIRE(threats == 0 || threats == 1, "threats must be 0 or 1");
ENV_REQUIRE(tactics == 0 || tactics == 1, "tactics must be 0 or 1");
enum {
    columns_wide = 7,
    rows_high = 6,
    stride = 7,
    num_cells = 42
};  // a column is 7 bits, and the highest is always 0
enum { ONE_PLY = 2, SEARCH, LAST_ROBOT = SEARCH };
#include "board/squares.h"
#include "board/turns.h"
enum { WIN = 100, MOST = 1000 };      // values of the search: at least WIN for a win
#define BOTTOM 0x0000040810204081ULL  // the lowest cell of every column
#define BOARD (BOTTOM * 63ULL)        // all cells

typedef struct {
    uint64_t stones[2];  // of each agent: bit stride * column + row, row 0 at the bottom
    uint64_t last;       // the last stone, for the picture; 0: none
    int32_t turn;        // the agent on turn
    int32_t first;       // the agent that began
} State;

ENV_FN uint64_t column_cells(int32_t column) { return 63ULL << (stride * column); }
ENV_FN uint64_t all_stones(const State *s) { return s->stones[0] | s->stones[1]; }
// The cells that a stone can fall to. Adding 1 to a column carries to its lowest free cell; of a full one, off the
// board.
ENV_FN uint64_t free_cells(uint64_t all) { return (all + BOTTOM) & BOARD; }

// The stones that are part of four in a line. The empty bit above each column keeps lines from crossing its edge.
ENV_FN uint64_t lines_of_four(uint64_t stones) {
    const int32_t directions[] = {1, stride - 1, stride, stride + 1};
    uint64_t found = 0;
    for (int32_t k = 0; k < 4; k++) {
        int32_t d = directions[k];
        uint64_t pairs = stones & (stones >> d), starts = pairs & (pairs >> (2 * d));
        found |= starts | (starts << d) | (starts << (2 * d)) | (starts << (3 * d));
    }
    return found;
}

// The cells where a stone would make four, also those that are taken or off the board.
ENV_FN uint64_t line_ends(uint64_t own) {
    uint64_t found = (own << 1) & (own << 2) & (own << 3);
    for (int32_t d = stride - 1; d <= stride + 1; d++) {
        uint64_t above = (own << d) & (own << (2 * d)), below = (own >> d) & (own >> (2 * d));
        found |= above & ((own << (3 * d)) | (own >> d));
        found |= below & ((own >> (3 * d)) | (own << d));
    }
    return found;
}

// The free cells, reachable now or later, where a stone would make four.
ENV_FN uint64_t fours(uint64_t own, uint64_t all) { return line_ends(own) & BOARD & ~all; }

// ---- scripted robots ----

// From the centre outwards: 3, 2, 4, 1, 5, 0, 6.
ENV_FN int32_t nth_column(int32_t k) { return 3 + (k & 1 ? -(k + 1) / 2 : k / 2); }

// A board of the search: the stones of the one on turn, all stones, and the `line_ends` of both agents, of which a move
// changes one. `free` has the moves to try, `next` the place of the next one among the columns. The value for the one
// on turn is sought within alpha and beta.
typedef struct {
    uint64_t own, all, ends, other_ends, free;
    int32_t next, alpha, beta;
} Board;

// The last move of the search: its value is the cells that would make four then, own ones less the others.
ENV_FN int32_t last_move(const Board *b) {
    int32_t alpha = b->alpha;
    for (int32_t k = 0; k < columns_wide && alpha < b->beta; k++) {
        uint64_t cell = b->free & column_cells(nth_column(k)), open = BOARD & ~(b->all | cell);
        if (!cell) continue;
        int32_t value = count_bits(line_ends(b->own | cell) & open) - count_bits(b->other_ends & open);
        alpha = i_max(alpha, i_min(value, b->beta));
    }
    return alpha;
}

// Whether the value of a board is known when `moves` are left: then alpha is that value. A win counts WIN and the moves
// that are left then. If the other agent threatens four, every move but the one in its way loses to the next move.
ENV_FN int32_t is_known(Board *b, int32_t moves) {
    uint64_t threats = moves > 1 ? b->free & b->other_ends : 0;
    int32_t wins = (b->free & b->ends) != 0;
    if (wins || !b->free) {
        b->alpha = i_clamp(wins ? WIN + moves : 0, b->alpha, b->beta);
        return 1;
    }
    if (moves == 1) b->alpha = last_move(b);
    if (threats && b->free != threats) b->alpha = i_clamp(1 - WIN - moves, b->alpha, b->beta);
    if (threats) b->free = threats;
    return moves == 1;
}

// All moves of the highest value in four moves. It tries one move in each turn of one loop, not by recursion: on a GPU
// the threads of a warp search different boards, and so stay together.
enum { SEARCHED = 4 };
ENV_FN uint64_t best_cells(uint64_t own, uint64_t all) {
    Board boards[SEARCHED - 1] = {{own, all, line_ends(own), line_ends(own ^ all), free_cells(all), 0, -MOST, MOST}};
    uint64_t wins = boards[0].free & boards[0].ends, best = 0;
    int32_t depth = 0;
    while (!wins) {
        Board *b = &boards[depth];
        uint64_t cell;
        int32_t value;
        if (b->next < columns_wide && b->alpha < b->beta) {
            cell = b->free & column_cells(nth_column(b->next++));
            if (!cell) continue;
            // the value of a first move that is not below the highest has to be exact: all such moves are wanted
            int32_t low = depth == 0 ? -MOST : -b->beta, high = depth == 0 ? 1 - b->alpha : -b->alpha;
            uint64_t stones = b->all | cell, ends = line_ends(b->own | cell);
            Board after = {b->own ^ b->all, stones, b->other_ends, ends, free_cells(stones), 0, low, high};
            if (!is_known(&after, SEARCHED - 1 - depth)) {
                boards[++depth] = after;
                continue;
            }
            value = -after.alpha;
        } else {  // all moves were tried: alpha is the value
            if (depth == 0) break;
            value = -b->alpha;
            b = &boards[--depth];
            cell = b->free & column_cells(nth_column(b->next - 1));
        }
        if (depth == 0 && value > b->alpha) best = 0;
        if (depth == 0 && value >= b->alpha) best |= cell;
        b->alpha = i_max(b->alpha, value);
    }
    return wins ? wins : best;
}

ENV_FN uint64_t scripted_cell(uint64_t own, uint64_t all, int32_t who, Rng *rng) {
    uint64_t free = free_cells(all);
    if (who == SEARCH) return pick(best_cells(own, all), rng);
    if (who == RANDOM) return pick(free, rng);
    uint64_t wins = free & fours(own, all), blocks = free & fours(own ^ all, all);
    return pick(wins ? wins : blocks ? blocks : free, rng);
}

// ---- the game ----

// Where a stone in a column falls to; if it is full, the next one that is not. 0 if the board is full.
ENV_FN uint64_t chosen_cell(uint64_t all, int32_t column) {
    uint64_t free = free_cells(all), cell = 0;
    for (int32_t k = 0; k < columns_wide && !cell; k++) cell = free & column_cells((column + k) % columns_wide);
    return cell;
}

ENV_FN void drop(State *s, uint64_t cell) {
    s->stones[s->turn & 1] |= cell;
    s->last = cell;
    s->turn ^= 1;
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    s->stones[0] = s->stones[1] = s->last = 0;
    s->first = s->turn = first_agent(p, rng);
    for (int32_t k = 0; k < i_clamp(p->opening_plies, 0, 30); k++) {
        uint64_t all = all_stones(s), cells = free_cells(all) & ~fours(s->stones[s->turn], all);
        if (!cells) break;  // every move would make four
        drop(s, pick(cells, rng));
    }
}

ENV_FN void end_game(const State *s, int32_t winner, Step *out) {
    end_turns(winner, s->first, out);
    out->stats.draws = (float)(winner < 0);
}

// The agent on turn moves, and then a robot if it is the other agent. Of two robots, one moves.
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t is_over, replies;
    do {
        int32_t agent = s->turn & 1, who = robot_of(p, agent);
        uint64_t all = all_stones(s);
        drop(s, who == LEARNER ? chosen_cell(all, a[agent]) : scripted_cell(s->stones[agent], all, who, rng));
        int32_t wins = lines_of_four(s->stones[agent]) != 0;
        out->stats.plies += 1.0f;
        is_over = wins || !free_cells(all_stones(s));
        if (is_over) end_game(s, wins ? agent : -1, out);
        replies = who == LEARNER && robot_of(p, s->turn) != LEARNER;
    } while (replies && !is_over);
}

// 49 bits with a gap above each column to 42 numbers without gaps.
ENV_FN uint64_t without_gaps(uint64_t cells) {
    uint64_t packed = 0;
    for (int32_t c = 0; c < columns_wide; c++) packed |= ((cells >> (stride * c)) & 63ULL) << (rows_high * c);
    return packed;
}

// In two loops over 32 bits, which compilers turn into SIMD code.
ENV_FN void write_cells(uint64_t cells, Obs *obs) {
    uint64_t packed = without_gaps(cells);
    uint32_t low = (uint32_t)packed, high = (uint32_t)(packed >> 32);
    for (int32_t k = 0; k < 32; k++) obs[k] = as_float((low >> k) & 1u);
    for (int32_t k = 0; k < num_cells - 32; k++) obs[32 + k] = as_float((high >> k) & 1u);
}
ENV_FN void subtract_cells(uint64_t cells, Obs *obs) {
    uint64_t packed = without_gaps(cells);
    uint32_t low = (uint32_t)packed, high = (uint32_t)(packed >> 32);
    for (int32_t k = 0; k < 32; k++) obs[k] -= as_float((low >> k) & 1u);
    for (int32_t k = 0; k < num_cells - 32; k++) obs[32 + k] -= as_float((high >> k) & 1u);
}

// Whether a stone of an agent leaves two cells where its next one makes four.
ENV_FN int32_t makes_two(uint64_t own, uint64_t all, uint64_t cell) {
    uint64_t wins = free_cells(all | cell) & line_ends(own | cell);
    return (wins & (wins - 1)) != 0;
}

ENV_FN void write_tactics(uint64_t own, uint64_t other, Obs *obs) {
    uint64_t all = own | other, free = free_cells(all), gains = line_ends(own), dangers = line_ends(other);
    for (int32_t c = 0; c < columns_wide; c++) {
        uint64_t cell = free & column_cells(c), above = (cell << 1) & BOARD;
        obs[6 * c] = as_float((cell & gains) != 0);
        obs[6 * c + 1] = as_float((cell & dangers) != 0);
        obs[6 * c + 2] = as_float((above & dangers) != 0);
        obs[6 * c + 3] = as_float((above & gains) != 0);
        obs[6 * c + 4] = as_float((uint32_t)(cell && makes_two(own, all, cell)));
        obs[6 * c + 5] = as_float((uint32_t)(cell && makes_two(other, all, cell)));
    }
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p;
    uint64_t own = s->stones[agent & 1], other = s->stones[~agent & 1], all = own | other;
    if (tactics) write_tactics(own, other, obs + 85 + 42 * threats);
    write_cells(own, obs);
    write_cells(other, obs + num_cells);
    obs[2 * num_cells] = as_float((uint32_t)(s->turn == agent));
    if (threats) {
        uint64_t gains = fours(own, all), dangers = fours(other, all) & ~gains;
        write_cells(gains, obs + 2 * num_cells + 1);
        if (dangers) subtract_cells(dangers, obs + 2 * num_cells + 1);
    }
}

// Robots have the masks of learners: who plays an agent may change between the start of a game and its first step.
ENV_FN void env_mask(const State *s, const Params *p, int agent, uint8_t *mask) {
    (void)p;
    uint64_t free = free_cells(all_stones(s));
    int32_t acts = s->turn == agent && free != 0;
    for (int32_t k = 0; k < columns_wide; k++) mask[k] = (uint8_t)(acts ? (free & column_cells(k)) != 0 : k == 0);
}

// Every cell has one stone at most, and no stone hangs in the air.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    uint64_t all = all_stones(s);
    if ((s->stones[0] & s->stones[1]) || (all & ~BOARD) || (all & (all + BOTTOM))) return 0;
    return s->turn >= 0 && s->turn <= 1 && s->first >= 0 && s->first <= 1;
}

ENV_FN uint32_t stone_color(int32_t agent) { return agent ? 0xf2c14e : 0xe2556d; }

// The board; four in a line have a white rim, the last stone has a dot. Below it: who is on turn, or who has won.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    uint64_t all = all_stones(s), rims = lines_of_four(s->stones[0]) | lines_of_four(s->stones[1]);
    int32_t is_over = rims != 0 || !free_cells(all), shown = rims ? ~s->turn & 1 : s->turn & 1;
    draw_view(d, -0.3f, 6.3f, 7.3f, -1.1f, 0x0e1726);
    draw_rect(d, -0.12f, -0.12f, 7.24f, 6.24f, 0x1c4587);
    draw_rect(d, 0.0f, 0.0f, 7.0f, 6.0f, 0x2f6fd0);
    for (int32_t k = 0; k < columns_wide * rows_high; k++) {
        int32_t column = k / rows_high, row = k % rows_high;
        uint64_t cell = 1ULL << (stride * column + row);
        float x = (float)column + 0.5f, y = (float)row + 0.5f;
        draw_circle(d, x, y, 0.44f, rims & cell ? 0xffffff : 0x1c4587);
        draw_circle(d, x, y, 0.38f, !(all & cell) ? 0x0e1726 : stone_color((s->stones[1] & cell) != 0));
        if (s->last == cell) draw_circle(d, x, y, 0.1f, 0x0e1726);
    }
    int32_t is_drawn = is_over && !rims;
    if (!is_drawn) draw_circle(d, 0.85f, -0.62f, 0.24f, stone_color(shown));
    if (!is_drawn) draw_value(d, 1.25f, -0.62f, 0.42f, "agent ", shown, 0xffffff);
    if (is_drawn) draw_text_centered(d, 3.5f, -0.62f, 0.42f, "draw", 0xffffff);
    if (!is_drawn) draw_text(d, 4.1f, -0.62f, 0.42f, rims ? "wins" : "to move", 0xffffff);
}
