// go.h: two agents place stones on the points of a grid; whoever owns more of the board in the end wins.
//
// A board of 9 x 9 points (`side`). Stones of one agent that are neighbours along lines form a chain; the free points
// beside it are its liberties. A move places a stone; chains of the other agent without a liberty are then taken off. A
// stone may not be placed where its own chain would have no liberty (no suicide), nor where the board would become one
// that has been before in this game, whoever is on turn (positional superko). An agent may always pass. Two passes in a
// row end the game, and so do 2 * side * side moves. Area scoring: a point counts for the owner of its stone, a free
// point for the agent whose stones alone can be reached from it over free points; stones are never removed as dead. The
// agent that does not begin (white) gets `komi` points. These are the Tromp-Taylor rules without suicide and with a
// limit of moves. Who begins, with black, is drawn for every game.
//
// **Turns.** A step is one move. Both agents have a row in it, and the mask of the one that is not on turn allows only
// a pass, which has no effect. connect4.h says why a waiting row does not disturb learning. Either seat can be played
// by a scripted robot (`robot_0`, `robot_1`): random, which fills none of its own eyes; tactics, which takes off as
// many stones as it can, else saves an own chain that has one liberty, else leaves a chain of the other agent one
// liberty, else places a stone two points from an own one, not at the edge, else anywhere. But for taking stones it
// makes no move after which its own chain has one liberty. Robots pass if no move is left, and tactics if it is ahead
// when the other one has passed. tactics wins 99 % of its games against random. A robot replies within the learner's
// step: the learner waits only for its first move, if the robot begins.
//
// obs: side * side points with 1 for an own stone, as many with 1 for one of the other agent, row by row from the top
// left; then 1 if the agent is on turn, 1 if the last move was a pass, komi / (side * side) (negative for black), and
// the share of the moves that have been made. Unless features=0, two times side * side more: 1 for stones whose chain
// has one liberty; 1 for free points where the agent on turn may not place a stone.
// action: a point, row by row from the top left, or side * side to pass. For a point that the mask forbids the next
// allowed point is taken, and after the last the first; a pass if none is allowed.
// reward: 1 for a win, -1 for a loss, at the end of the game; 0 for a draw, which an integer komi allows.
#define ENV_OBS OBS_F32(side * side * (2 + 2 * features) + 4)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(side *side + 1)
#define ENV_AGENTS 2
#define ENV_HAS_MASK
#define ENV_HAS_CHECK
#define ENV_CONSTS(X)                                                                                                  \
    X(side, 9, "points per side")                                                                                      \
    X(features, 1, "1: chains with one liberty and forbidden points are observed too; 0: only the stones")
#define ENV_PARAMS(X)                                                                                                  \
    X(float, komi, 7.5f, "points that white, who moves second, gets")                                                  \
    X(int, first, 0, "the agent that begins")                                                                          \
    X(int, opening_plies, 0, "random moves that every game starts with")                                               \
    X(int, robot_0, 0, "who plays the agent")                                                                          \
    X(int, robot_1, 0, "who plays the agent")
#define ENV_LIMITS(X) X("side", 3, 19) X("features", 0, 1) X("komi", -9, 9) X("opening_plies", 0, 40)
#define ENV_CHOICES(X)                                                                                                 \
    X("first", "random agent_0 agent_1")                                                                               \
    X("robot_*", "learner random tactics")
#define ENV_PRESETS(X)                                                                                                 \
    X("small", "side=5 komi=0.5", "5 x 5: black owns the whole board with perfect play")                               \
    X("plain", "features=0", "only the stones are observed: harder to learn")
#define ENV_STATS(X)                                                                                                   \
    X(sum, wins_0, "1 if agent 0 won")                                                                                 \
    X(sum, wins_1, "1 if agent 1 won")                                                                                 \
    X(sum, draws, "1 if nobody won")                                                                                   \
    X(sum, wins_first, "1 if the agent that began won")                                                                \
    X(sum, lead_0, "points of agent 0 less those of agent 1 at the end, komi included")                                \
    X(sum, captures, "stones taken off the board, without the opening's")                                              \
    X(sum, plies, "moves of both agents, without the opening's and passes")                                            \
    X(sum, passes, "passes of both agents")                                                                            \
    X(sum, cut_off, "1 if the limit of moves ended the game")
#include "core/env.h"
ENV_REQUIRE(side >= 3 && side <= 19, "side must be 3 to 19");
ENV_REQUIRE(features == 0 || features == 1, "features must be 0 or 1");
#include "board/bits.h"
enum { PASS = num_points, max_plies = 2 * num_points, filter_words = 32 };
enum { TACTICS = 2, LAST_ROBOT = TACTICS };
#include "board/turns.h"

typedef struct {
    Set stones[2];  // of each agent
    Set empty;
    Set atari;      // the stones of chains with one liberty
    Set placed[2];  // points where each agent has placed a stone in this game: only there a board can come back
    Set legal;      // where the agent on turn may place a stone
    uint64_t hash;  // of the stones on the board: the keys of all, by exclusive or
    uint64_t filter[filter_words];  // a bit for each board of the game, by its hash; most boards that are new have none
    uint64_t boards[max_plies + 1];   // the hash of every board of the game
    int32_t num_boards, plies, last;  // plies: with passes and the opening; last: point of the last move, PASS, or -1
    int32_t turn, first;              // the agent on turn, and the one that began: black
} State;

// The points beside those of a set; some lie outside of the board.
ENV_FN Set beside(Set a) {
    return set_or(set_or(set_up(a, 1), set_down(a, 1)), set_or(set_up(a, stride), set_down(a, stride)));
}

#include "board/reach.h"

// ---- superko ----

ENV_FN uint64_t key_of(int32_t agent, int32_t bit) {
    return rng_mix((uint64_t)(2 * bit + agent + 1) * 0x9E3779B97F4A7C15ULL);
}
ENV_FN uint64_t keys_of(int32_t agent, Set stones) {
    uint64_t hash = 0;
    for (; set_any(stones); stones = set_less(stones, first_of(stones))) hash ^= key_of(agent, first_bit(stones));
    return hash;
}
ENV_FN int32_t filter_word(uint64_t hash) { return (int32_t)(hash >> 6) & (filter_words - 1); }
ENV_FN int32_t was_before(const State *s, uint64_t hash) {
    if (!((s->filter[filter_word(hash)] >> (hash & 63)) & 1u)) return 0;
    int32_t found = 0;
    for (int32_t k = 0; k < s->num_boards; k++) found |= s->boards[k] == hash;
    return found;
}
ENV_FN void note_board(State *s) {
    s->filter[filter_word(s->hash)] |= 1ULL << (s->hash & 63);
    if (s->num_boards <= max_plies) s->boards[s->num_boards++] = s->hash;
}

// ---- moves ----

// The stones that a stone of the agent on turn would take off.
ENV_FN Set taken_by(const State *s, Set stone) {
    Set other = s->stones[~s->turn & 1];
    return reach(set_and(beside(stone), set_and(other, s->atari)), other);
}

// A stone needs a free point beside it, an own chain with another liberty, or a chain to take off.
ENV_FN Set legal_points(const State *s) {
    int32_t agent = s->turn & 1;
    Set helps = set_or(set_less(s->stones[agent], s->atari), set_and(s->stones[agent ^ 1], s->atari));
    Set legal = set_and(beside(set_or(s->empty, helps)), s->empty);
    for (Set again = set_and(legal, s->placed[agent]); set_any(again);) {
        Set stone = first_of(again), taken = taken_by(s, stone);
        uint64_t hash = s->hash ^ key_of(agent, first_bit(stone));
        if (set_any(taken)) hash ^= keys_of(agent ^ 1, taken);
        if (was_before(s, hash)) legal = set_less(legal, stone);
        again = set_less(again, stone);
    }
    return legal;
}

// Notes for every chain with a stone in `from` whether it has one liberty.
ENV_FN void count_liberties(State *s, Set from, int32_t agent) {
    while (set_any(from)) {
        Set chain = reach(first_of(from), s->stones[agent]);
        int32_t one = is_single(set_and(beside(chain), s->empty));
        s->atari = one ? set_or(s->atari, chain) : set_less(s->atari, chain);
        from = set_less(from, chain);
    }
}

// The agent on turn places a stone or, for none, passes. Returns how many stones it takes off.
ENV_FN int32_t place(State *s, Set stone) {
    int32_t agent = s->turn & 1, other = agent ^ 1, count = 0, bit = first_bit(stone);
    s->last = bit < 0 ? PASS : point_of(bit);
    if (bit >= 0) {
        Set taken = taken_by(s, stone);
        s->hash ^= key_of(agent, bit);
        s->stones[agent] = set_or(s->stones[agent], stone);
        s->placed[agent] = set_or(s->placed[agent], stone);
        s->empty = set_less(s->empty, stone);
        Set changed = set_and(beside(stone), set_less(s->stones[other], taken));  // chains that lose a liberty
        if (set_any(taken)) {
            count = set_count(taken);
            s->hash ^= keys_of(other, taken);
            s->stones[other] = set_less(s->stones[other], taken);
            s->atari = set_less(s->atari, taken);
            s->empty = set_or(s->empty, taken);
            count_liberties(s, set_and(beside(taken), set_and(s->stones[agent], s->atari)), agent);
        }
        count_liberties(s, stone, agent);
        count_liberties(s, changed, other);
        note_board(s);
    }
    s->turn = other;
    s->plies++;
    s->legal = legal_points(s);
    return count;
}

// Area of agent 0 less that of agent 1, without komi.
ENV_FN int32_t area_lead(const State *s) {
    Set reach_0 = reach(beside(s->stones[0]), s->empty), reach_1 = reach(beside(s->stones[1]), s->empty);
    return set_count(s->stones[0]) + set_count(set_less(reach_0, reach_1)) - set_count(s->stones[1]) -
           set_count(set_less(reach_1, reach_0));
}
ENV_FN float lead_of_0(const State *s, const Params *p) {
    return (float)area_lead(s) + (s->first == 0 ? -p->komi : p->komi);
}

// ---- scripted robots ----

// The points that are not at the edge.
ENV_FN Set inner_points(void) {
    Set all = whole_board();
    return set_and(set_and(set_up(all, 1), set_down(all, 1)), set_and(set_up(all, stride), set_down(all, stride)));
}

// Free points all of whose neighbours are own stones, with at most one stone of the other agent diagonally beside them,
// and none at the edge.
ENV_FN Set own_eyes(const State *s) {
    Set other = s->stones[~s->turn & 1], one = set_none(), two = set_none();
    for (int32_t k = 0; k < 4; k++) {
        Set there = set_up(other, stride + (k & 1 ? 1 : -1));
        if (k & 2) there = set_down(other, stride + (k & 1 ? 1 : -1));
        two = set_or(two, set_and(one, there));
        one = set_or(one, there);
    }
    Set eyes = set_less(set_less(s->empty, beside(s->empty)), beside(other));
    return set_less(eyes, set_or(two, set_less(one, inner_points())));
}

// The liberties that the chain of a new stone would have, if it takes nothing off.
ENV_FN Set new_liberties(const State *s, Set stone) {
    Set chain = reach(stone, set_or(s->stones[s->turn & 1], stone));
    return set_less(set_and(beside(chain), s->empty), stone);
}
// Of some points, those where the new chain would have two liberties or more.
ENV_FN Set safe_points(const State *s, Set points) {
    Set found = set_none();
    for (; set_any(points); points = set_less(points, first_of(points))) {
        Set stone = first_of(points), liberties = new_liberties(s, stone);
        if (set_any(liberties) && !is_single(liberties)) found = set_or(found, stone);
    }
    return found;
}
// The points that take off most stones; none if none takes any.
ENV_FN Set best_captures(const State *s) {
    Set best = set_none(), points = set_and(s->legal, beside(set_and(s->stones[~s->turn & 1], s->atari)));
    int32_t most = 0;
    for (; set_any(points); points = set_less(points, first_of(points))) {
        Set stone = first_of(points);
        int32_t count = set_count(taken_by(s, stone));
        if (count > most) best = set_none();
        if (count >= most) best = set_or(best, stone);
        most = i_max(most, count);
    }
    return best;
}
// The liberties of the other agent's chains that have two.
ENV_FN Set threats(const State *s) {
    Set found = set_none(), other = s->stones[~s->turn & 1], rest = set_less(other, s->atari);
    while (set_any(rest)) {
        Set chain = reach(first_of(rest), other), liberties = set_and(beside(chain), s->empty);
        if (is_single(set_less(liberties, first_of(liberties)))) found = set_or(found, liberties);
        rest = set_less(rest, chain);
    }
    return found;
}

// What tactics likes best.
ENV_FN Set tactical_points(const State *s, Set points) {
    Set own = s->stones[s->turn & 1], found = best_captures(s);
    Set apart = set_and(set_less(points, beside(own)), inner_points());
    if (!set_any(found)) found = safe_points(s, set_and(s->legal, beside(set_and(own, s->atari))));
    if (!set_any(found)) found = safe_points(s, set_and(points, threats(s)));
    if (!set_any(found)) found = safe_points(s, set_and(apart, beside(set_and(beside(own), s->empty))));
    if (!set_any(found)) found = safe_points(s, apart);
    return set_any(found) ? found : safe_points(s, points);
}

ENV_FN Set scripted_stone(const State *s, const Params *p, int32_t who, Rng *rng) {
    Set points = set_less(s->legal, own_eyes(s));
    if (who == TACTICS) {
        float lead = s->last == PASS ? lead_of_0(s, p) : 0.0f;
        int32_t may_end = s->last == PASS && (s->turn == 0 ? lead > 0.0f : lead < 0.0f);
        points = may_end ? set_none() : tactical_points(s, points);
    }
    return pick(points, rng);
}

// ---- the game ----

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    memset(s, 0, sizeof *s);
    s->first = s->turn = first_agent(p, rng);
    s->empty = s->legal = whole_board();
    s->last = -1;
    note_board(s);
    for (int32_t k = 0; k < i_min(p->opening_plies, max_plies - 2); k++) {
        Set stone = scripted_stone(s, p, RANDOM, rng);
        if (!set_any(stone)) break;
        place(s, stone);
    }
}

ENV_FN void end_game(const State *s, const Params *p, Step *out) {
    float lead = lead_of_0(s, p);
    end_turns(lead > 0.0f ? 0 : lead < 0.0f ? 1 : -1, s->first, out);
    out->stats.draws = (float)(lead == 0.0f);
    out->stats.lead_0 = lead;
}

// The agent on turn moves, and then a robot if it is the other agent. Of two robots, one moves.
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t is_over, replies;
    do {
        int32_t agent = s->turn & 1, who = robot_of(p, agent), had_pass = s->last == PASS;
        Set stone = set_none();
        if (who != LEARNER) stone = scripted_stone(s, p, who, rng);
        if (who == LEARNER && a[agent] < PASS) stone = next_of(s->legal, a[agent]);
        out->stats.captures += (float)place(s, stone);
        int32_t is_pass = s->last == PASS, ends = is_pass && had_pass;
        out->stats.plies += (float)!is_pass;
        out->stats.passes += (float)is_pass;
        is_over = ends || s->plies >= max_plies;
        if (is_over) end_game(s, p, out);
        out->stats.cut_off = (float)(is_over && !ends);
        replies = who == LEARNER && robot_of(p, s->turn) != LEARNER;
    } while (replies && !is_over);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    const float points = (float)num_points;
    write_floats(s->stones[agent & 1], obs);
    write_floats(s->stones[~agent & 1], obs + num_points);
    obs += 2 * num_points;
    obs[0] = as_float((uint32_t)(s->turn == agent));
    obs[1] = as_float((uint32_t)(s->last == PASS));
    obs[2] = (s->first == agent ? -p->komi : p->komi) / points;
    obs[3] = (float)s->plies / (float)max_plies;
    if (features) {
        write_floats(s->atari, obs + 4);
        write_floats(set_less(s->empty, s->legal), obs + 4 + num_points);
    }
}

// Robots have the masks of learners: who plays an agent may change between the start of a game and its first step.
ENV_FN void env_mask(const State *s, const Params *p, int agent, uint8_t *mask) {
    (void)p;
    write_bytes(s->turn == agent ? s->legal : set_none(), mask);
    mask[PASS] = 1;
}

// Every point has one stone at most, and what follows from the stones and the boards before is right.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    if (s->turn < 0 || s->turn > 1 || s->first < 0 || s->first > 1 || s->last < -1 || s->last > PASS) return 0;
    if (s->plies < 0 || s->plies > max_plies || s->num_boards < 1 || s->num_boards > s->plies + 1) return 0;
    if (set_meets(s->stones[0], s->stones[1])) return 0;
    Set board = whole_board(), stones = set_or(s->stones[0], s->stones[1]);
    if (!set_equal(s->empty, set_less(board, stones)) || !set_equal(set_and(stones, board), stones)) return 0;
    State right = *s;
    right.atari = set_none();
    count_liberties(&right, s->stones[0], 0);
    count_liberties(&right, s->stones[1], 1);
    return set_equal(s->atari, right.atari) && set_equal(s->legal, legal_points(s));
}

// The wooden board; a ring marks the last stone. Below it: who has black and white with their area, komi left out, and
// a bar under the one on turn.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    const uint32_t black = 0x14181f, white = 0xf4f1e8, ink = 0x4b3414;
    const float far = (float)side - 0.5f, low = (float)side + 0.35f, size = (float)side / 9.0f;
    draw_view(d, -0.35f, -0.35f, (float)side + 0.35f, (float)side + 0.9f * size + 0.25f, 0x0e1726);
    draw_rect(d, -0.05f, -0.05f, (float)side + 0.1f, (float)side + 0.1f, 0x8a6330);
    draw_rect(d, 0.0f, 0.0f, (float)side, (float)side, 0xdcb35c);
    for (int32_t k = 0; k < side; k++) {
        float at = (float)k + 0.5f;
        draw_line(d, 0.5f, at, far, at, 0.04f, ink);
        draw_line(d, at, 0.5f, at, far, 0.04f, ink);
    }
    const int32_t edge = side >= 13 ? 3 : 2, middle = side / 2;
    for (int32_t k = 0; k < 9 && side >= 7 && side % 2 == 1; k++) {
        int32_t x = k % 3 == 0 ? edge : k % 3 == 1 ? middle : side - 1 - edge;
        int32_t y = k / 3 == 0 ? edge : k / 3 == 1 ? middle : side - 1 - edge;
        if (side >= 13 || (k % 3 != 1) == (k / 3 != 1)) draw_circle(d, (float)x + 0.5f, (float)y + 0.5f, 0.1f, ink);
    }
    for (int32_t k = 0; k < num_points; k++) {
        float x = (float)(k % side) + 0.5f, y = (float)(k / side) + 0.5f;
        int32_t bit = bit_of(k), is_dark = set_has(&s->stones[s->first & 1], bit);
        if (set_has(&s->empty, bit)) continue;
        draw_circle(d, x, y, 0.47f, is_dark ? 0x000000 : 0x9a917c);
        draw_circle(d, x, y, 0.44f, is_dark ? black : white);
        if (s->last == k) draw_circle(d, x, y, 0.22f, 0xe2556d);
        if (s->last == k) draw_circle(d, x, y, 0.15f, is_dark ? black : white);
    }
    for (int32_t k = 0; k < 2; k++) {
        int32_t agent = k ^ (s->first & 1);  // black, then white
        float x = 0.35f * size + 0.5f * (float)(side * k);
        draw_circle(d, x, low + 0.2f * size, 0.27f * size, 0x4a5b78);
        draw_circle(d, x, low + 0.2f * size, 0.23f * size, k ? white : black);
        draw_value(d, x + 0.45f * size, low + 0.2f * size, 0.36f * size, "", set_count(s->stones[agent]), 0xffffff);
        draw_value(d, x + 1.3f * size, low + 0.2f * size, 0.28f * size, "agent ", agent, 0xb8c4d9);
        if (s->last == PASS && s->turn != agent)
            draw_text(d, x + 3.0f * size, low + 0.2f * size, 0.28f * size, "pass", 0xf2a65a);
        if (s->turn == agent) draw_rect(d, x - 0.25f * size, low + 0.56f * size, 4.0f * size, 0.05f * size, 0xf2a65a);
    }
}
