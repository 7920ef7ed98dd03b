// vacuum.h: robot vacuums live off a charger, and may push one another off it.
//
// Robots move one after another on a grid. A robot that enters another's cell hits it: the victim loses energy, may be
// stunned, and is pushed on by one cell if the cell behind it is free (then the attacker moves in; else both stay).
// Whoever is in reach of a charger when its turn ends is charged; whoever has no energy left is out and off the grid.
// A kill earns no reward: the question is whether a strong robot learns to hunt the weak ones to have the charger for
// itself. After a study of multi-robot energy survival; `preset` names its settings.
//
// A robot's turn has `speed` sub-moves: pay for the try, then bump into the wall, hit, or move. The last one ends the
// turn: decay before the move, and after it docking, charging, the cost of surviving, dust, the cap. In a step all
// robots take their turns (semantics=joint: all have observed before the first moves) or one robot makes one sub-move
// (semantics=turn: all observe again before each; the mask shows who is on turn, and max_steps counts sub-moves). Any
// seat can be played by a scripted robot (`robot_0` to `robot_7`), which sees the current grid on its turn.
//
// obs: x and y, energy; for each other robot dx, dy and energy (all 0 if it is out); dx and dy to each charger; whether
// up, down, left and right are free. With layout=walls: x, y, energy, whether up, down, left and right is wall, others,
// chargers. Places are divided by side - 1, energies by the highest start energy. Then, with timers: own stun and dock,
// those of the others (turns / 10), steps taken / max_steps; with see_dust: the dust of every cell / 10.
// action: 0 up, 1 down, 2 left, 3 right, 4 stay. With moves=2 two of them, first + 5 * second, for robots of speed 2. A
// robot with more sub-moves than choices repeats the last one.
// mask: a robot that is stunned, scripted or not on turn may only stay; other actions have no effect.
// reward: reward_energy * (change of its energy in the step) + reward_charge for each charge + reward_dust * dust taken
// + reward_death if it is out, in the step in which that happens, whoever's turn it is. One strong robot among three
// weak ones (the defaults): random play returns -57 and -98. A strong one that stays on the charger returns 9940.
#define ENV_OBS OBS_F32(7 + 3 * (robots - 1) + 2 * chargers + timers * (2 * robots + 1) + see_dust * side * side)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH M_INF  // energy without a cap
#define ENV_ACTION ACT_DISCRETE(moves == 1 ? 5 : moves == 2 ? 25 : 125)
#define ENV_AGENTS robots
#define ENV_MAX_STEPS 500
#define ENV_HAS_MASK
#define ENV_HAS_CHECK
#define ENV_CONSTS(X)                                                                                                  \
    X(side, 5, "cells per side of the grid")                                                                           \
    X(robots, 4, "robots; all are agents, whoever plays them")                                                         \
    X(chargers, 1, "chargers")                                                                                         \
    X(moves, 1, "sub-moves that an action chooses")                                                                    \
    X(timers, 0, "1: stun, docking and the time are observed")                                                         \
    X(dust, 0, "1: dust grows on the cells")                                                                           \
    X(see_dust, 0, "1: the dust of every cell is observed")
#define FOUR(X, kind, name, a, b, c, d, ...)                                                                           \
    X(kind, name##_##a, __VA_ARGS__)                                                                                   \
    X(kind, name##_##b, __VA_ARGS__)                                                                                   \
    X(kind, name##_##c, __VA_ARGS__)                                                                                   \
    X(kind, name##_##d, __VA_ARGS__)
#define EACH_ROBOT(X, type, name, first, others, help)                                                                 \
    X(type, name##_0, first, help)                                                                                     \
    X(type, name##_1, others, help)                                                                                    \
    X(type, name##_2, others, help)                                                                                    \
    X(type, name##_3, others, help)                                                                                    \
    FOUR(X, type, name, 4, 5, 6, 7, others, help)
#define ENV_PARAMS(X)                                                                                                  \
    X(float, e_move, 1.0f, "energy that a move costs")                                                                 \
    X(int, e_move_always, 1, "1: e_move is due once every turn, moving or not; 0: for every try to move")              \
    X(float, e_charge, 20.0f, "energy that a charger gives per turn, divided by the robots in its reach")              \
    X(float, e_boundary, 50.0f, "energy lost by bumping into the wall")                                                \
    X(float, e_decay, 0.0f, "energy lost every turn, before the last sub-move")                                        \
    X(int, cap, 0, "the most energy a robot can hold: the highest start energy of all, its own, or no limit")          \
    X(int, charger_range, 0, "how far a charger reaches, in cells, diagonals too")                                     \
    X(int, exclusive, 0, "1: nobody is charged who is not alone in the charger's reach")                               \
    X(float, reward_energy, 0.05f, "reward for each unit of energy gained")                                            \
    X(float, reward_charge, 20.0f, "reward for being charged")                                                         \
    X(float, reward_death, -100.0f, "reward for being out")                                                            \
    X(float, reward_dust, 0.05f, "reward for each unit of dust")                                                       \
    X(int, before_cap, 0, "1: energy counts for the reward before the cap, so that a full robot's charging pays")      \
    X(int, start, 0, "where robots start; thief: the last one on the first charger, the others anywhere")              \
    X(int, order, 0, "in which robots take their turns; shuffled: anew in every round")                                \
    X(int, semantics, 0, "what a step is: joint, all robots' turns; turn, one sub-move of one robot")                  \
    X(int, layout, 0, "of the observation; walls: wall flags, before the others, not free flags at the end")           \
    X(int, alliance, 0, "allies, as the sum of 2^robot: no damage, no push; a touch shares their energy out")          \
    FOUR(X, int, charger_y, 0, 1, 2, 3, -1,                                                                            \
         "row of a charger; -1: in the centre if it is the only one, else in a corner")                                \
    FOUR(X, int, charger_x, 0, 1, 2, 3, -1, "column of a charger")                                                     \
    EACH_ROBOT(X, float, energy, 1000.0f, 100.0f, "a robot's energy at the start")                                     \
    EACH_ROBOT(X, float, attack, 20.0f, 20.0f, "energy that its hit takes")                                            \
    EACH_ROBOT(X, int, speed, 1, 1, "sub-moves in its turn")                                                           \
    EACH_ROBOT(X, int, stun, 0, 0, "turns for which its hit stuns")                                                    \
    EACH_ROBOT(X, int, dock, 0, 0, "turns in a charger's reach before it is charged; a hit or leaving starts anew")    \
    EACH_ROBOT(X, int, robot, 0, 0, "who plays it")
#define ENV_LIMITS(X)                                                                                                  \
    X("side", 2, 16)                                                                                                   \
    X("robots", 1, 8)                                                                                                  \
    X("chargers", 1, 4)                                                                                                \
    X("moves", 1, 3)                                                                                                   \
    X("timers", 0, 1)                                                                                                  \
    X("dust", 0, 1)                                                                                                    \
    X("see_dust", 0, 1)                                                                                                \
    X("e_*", 0, 1e6)                                                                                                   \
    X("e_move_always", 0, 1)                                                                                           \
    X("charger_range", 0, 16)                                                                                          \
    X("exclusive", 0, 1)                                                                                               \
    X("before_cap", 0, 1)                                                                                              \
    X("alliance", 0, 255)                                                                                              \
    X("charger_[yx]_*", -1, side - 1)                                                                                  \
    X("energy_*", 0.5, 1e6)                                                                                            \
    X("attack_*", 0, 1e6)                                                                                              \
    X("speed_*", 1, 8)                                                                                                 \
    X("stun_*", 0, 100)                                                                                                \
    X("dock_*", 0, 100)
#define ENV_CHOICES(X)                                                                                                 \
    X("cap", "global own none")                                                                                        \
    X("start", "corner random thief")                                                                                  \
    X("order", "fixed shuffled")                                                                                       \
    X("semantics", "joint turn")                                                                                       \
    X("layout", "classic walls")                                                                                       \
    X("robot_*", "learner stay random safe-random seek flee opportunistic hunt")
#define ENV_PRESETS(X)                                                                                                 \
    X("classic-1v3", "", "one strong robot among three weak ones, and one charger")                                    \
    X("massacre",                                                                                                      \
      "side=3 chargers=4 energy_1=20 energy_2=20 energy_3=20 attack_0=10 attack_1=10 attack_2=10 attack_3=10",         \
      "a strong robot and three that two hits kill, each on a charger")                                                \
    X("duel-stun",                                                                                                     \
      "robots=2 moves=2 timers=1 energy_0=100 speed_0=2 attack_0=30 attack_1=2 stun_0=5 stun_1=1 "                     \
      "e_move_always=0 e_charge=8 e_decay=0.5 charger_range=1 exclusive=1 reward_charge=0 before_cap=1",               \
      "a fast robot that stuns against a slow one, where only one can charge")                                         \
    X("share-or-kill",                                                                                                 \
      "robots=2 energy_0=100 attack_0=100 attack_1=100 e_move_always=0 e_charge=8 e_decay=5 "                          \
      "charger_range=1 reward_charge=0 before_cap=1 start=random",                                                     \
      "a charger that starves two who share it and feeds one, and hits that kill")                                     \
    X("alliance", "robots=3 alliance=6 energy_0=200 attack_0=30", "two weak allies against a strong robot")            \
    X("dust", "dust=1 see_dust=1 energy_0=100 reward_charge=0", "cleaning pays, and charging keeps alive")
#define ENV_STATS(X)                                                                                                   \
    FOUR(X, sum, kills, 0, 1, 2, 3, "robots that it killed")                                                           \
    FOUR(X, sum, kills, 4, 5, 6, 7, "robots that it killed")                                                           \
    X(sum, hits_on_charger, "hits on robots in reach of a charger")                                                    \
    X(sum, hits_off_charger, "hits on robots elsewhere")                                                               \
    X(sum, deaths_by_robot, "robots killed")                                                                           \
    X(sum, deaths_by_wall, "robots that died of the wall")                                                             \
    X(sum, deaths_by_hunger, "robots that died of moving, decay and time")                                             \
    X(sum, charges, "charges, all robots together")                                                                    \
    X(mean, occupancy, "robots in reach of a charger after a step")                                                    \
    X(sum, dust_taken, "dust, all robots together")                                                                    \
    X(last, pursuit, "share of robot 0's moves that hit its nearest opponent or brought it nearer to that one")
#include "core/env.h"
ENV_REQUIRE(side >= 2 && side <= 16, "side must be in 2 .. 16");
ENV_REQUIRE(robots >= 1 && robots <= 8 && (robots <= 4 || side >= 3), "robots must be in 1 .. 8, and fit on the grid");
ENV_REQUIRE(chargers >= 1 && chargers <= 4, "chargers must be in 1 .. 4");
ENV_REQUIRE(moves >= 1 && moves <= 3, "moves must be in 1 .. 3");
ENV_REQUIRE(dust || !see_dust, "see_dust needs dust");
enum { UP, DOWN, LEFT, RIGHT, STAY, NUM_MOVES };
enum { CAP_GLOBAL, CAP_OWN, CAP_NONE };
enum { START_CORNER, START_RANDOM, START_THIEF };
enum { LEARNER, STAYS, RANDOM, SAFE_RANDOM, SEEKS, FLEES, OPPORTUNISTIC, HUNTS };
enum { wide = side + 2, WALL = 255, NOBODY = -1, LONGEST = 100 };  // the map is the grid in a frame of wall

typedef struct {
    float energy[robots];  // 0: out, and off the map
    float top;             // the highest start energy
    float dirt[dust ? side * side : 1];
    int32_t t;                    // steps taken
    int32_t tries, nearer;        // of robot 0 to move, and those that were pursuit
    uint8_t map[wide * wide];     // 0: free; a robot's number + 1; WALL
    int8_t y[robots], x[robots];  // a robot that is out keeps its last place, for its last observation
    int8_t stun[robots];          // turns to sit out
    int8_t dock[robots];          // turns spent docking
    int8_t charger_y[chargers], charger_x[chargers];
    int8_t order[robots];
    int8_t turn, sub;  // who is on turn: order[turn], which is never out; and for which of its sub-moves
} State;

// A robot's own value of a param: its eight lie side by side in Params, as ENV_PARAMS lists them.
ENV_FN float float_of(const Params *p, const float *first, int32_t robot) {
    float value;
    memcpy(&value, (const char *)p + ((const char *)first - (const char *)p) + 4 * robot, 4);
    return value;
}
ENV_FN int32_t int_of(const Params *p, const int *first, int32_t robot) {
    int32_t value;
    memcpy(&value, (const char *)p + ((const char *)first - (const char *)p) + 4 * robot, 4);
    return value;
}
ENV_FN int32_t speed_of(const Params *p, int32_t i) { return i_clamp(int_of(p, &p->speed_0, i), 1, 8); }
ENV_FN float start_energy(const Params *p, int32_t i) { return m_clamp(float_of(p, &p->energy_0, i), 0.5f, 1e6f); }
ENV_FN float cost(float energy) { return m_max(energy, 0.0f); }

// 1 or 0 without a branch: compilers turn (float)(a == b) into one, which a CPU cannot predict here.
ENV_FN float as_float(int32_t claim) { return m_from_bits(-claim & 0x3f800000); }
ENV_FN int32_t i_abs(int32_t x) { return x < 0 ? -x : x; }
ENV_FN int32_t step_y(int32_t move) { return (move == DOWN) - (move == UP); }
ENV_FN int32_t step_x(int32_t move) { return (move == RIGHT) - (move == LEFT); }
ENV_FN int32_t ahead(int32_t move) { return wide * step_y(move) + step_x(move); }
ENV_FN int32_t place(int32_t y, int32_t x) { return (y + 1) * wide + x + 1; }
ENV_FN int32_t at(const State *s, int32_t i) { return place(s->y[i], s->x[i]); }
ENV_FN int32_t is_out(const State *s, int32_t i) { return s->energy[i] <= 0.0f; }
ENV_FN int32_t are_allies(const Params *p, int32_t i, int32_t j) { return (p->alliance >> i) & (p->alliance >> j) & 1; }

ENV_FN void put(State *s, int32_t i, int32_t y, int32_t x) {
    s->y[i] = (int8_t)y;
    s->x[i] = (int8_t)x;
    s->map[place(y, x)] = (uint8_t)(i + 1);
}

// The charger that robot i can reach (of several, the first), or NOBODY.
ENV_FN int32_t charger_of(const State *s, const Params *p, int32_t i) {
    for (int32_t c = 0; c < chargers; c++) {
        int32_t dy = i_abs(s->y[i] - s->charger_y[c]), dx = i_abs(s->x[i] - s->charger_x[c]);
        if (i_max(dy, dx) <= i_max(p->charger_range, 0)) return c;
    }
    return NOBODY;
}

// ---- scripted robots ----

ENV_FN int32_t distance(int32_t dy, int32_t dx) { return i_abs(dy) + i_abs(dx); }

// Along the longer axis first; along the row if both are equal.
ENV_FN int32_t toward(int32_t dy, int32_t dx) {
    if (i_abs(dy) > i_abs(dx)) return dy < 0 ? UP : DOWN;
    return dx < 0 ? LEFT : dx > 0 ? RIGHT : STAY;
}

// The nearest robot that is not an ally (of several, the lowest number), or NOBODY.
ENV_FN int32_t nearest_opponent(const State *s, const Params *p, int32_t i) {
    const int32_t none = 1 << 20;
    int32_t least = none;
    for (int32_t j = 0; j < robots; j++) {
        int32_t key = 8 * distance(s->y[j] - s->y[i], s->x[j] - s->x[i]) + j;
        least = i_min(least, (j == i) | is_out(s, j) | are_allies(p, i, j) ? none : key);
    }
    return least == none ? NOBODY : least % 8;
}

ENV_FN int32_t seek(const State *s, const Params *p, int32_t i) {
    if (charger_of(s, p, i) != NOBODY) return STAY;
    int32_t dy = 0, dx = 0, best = 4 * side;
    for (int32_t c = 0; c < chargers; c++) {
        int32_t to_y = s->charger_y[c] - s->y[i], to_x = s->charger_x[c] - s->x[i];
        if (distance(to_y, to_x) >= best) continue;
        best = distance(to_y, to_x);
        dy = to_y;
        dx = to_x;
    }
    return toward(dy, dx);
}

// Onto the free cell that is farthest from robot j, or stay if none is farther.
ENV_FN int32_t flee(const State *s, int32_t i, int32_t j) {
    int32_t dy = s->y[i] - s->y[j], dx = s->x[i] - s->x[j], choice = STAY, best = distance(dy, dx);
    for (int32_t move = UP; move < STAY; move++) {
        int32_t far = distance(dy + step_y(move), dx + step_x(move));
        if (s->map[at(s, i) + ahead(move)] || far <= best) continue;
        choice = move;
        best = far;
    }
    return choice;
}

ENV_FN int32_t scripted_move(const State *s, const Params *p, int32_t i, int32_t who, Rng *rng) {
    if (who == RANDOM) return rng_int(rng, NUM_MOVES);
    if (who == SAFE_RANDOM) {  // every move but those into the wall, and staying
        int32_t choices[NUM_MOVES], count = 0;
        for (int32_t move = UP; move <= STAY; move++) {
            choices[count] = move;
            count += s->map[at(s, i) + ahead(move)] != WALL;
        }
        return choices[rng_int(rng, count)];
    }
    if (who == SEEKS) return seek(s, p, i);
    if (who < FLEES || who > HUNTS) return STAY;
    int32_t j = nearest_opponent(s, p, i);
    if (j == NOBODY) return who == OPPORTUNISTIC ? seek(s, p, i) : STAY;
    int32_t dy = s->y[j] - s->y[i], dx = s->x[j] - s->x[i];
    if (who == HUNTS) return toward(dy, dx);
    return who == FLEES || distance(dy, dx) <= 2 ? flee(s, i, j) : seek(s, p, i);
}

// ---- the game ----

ENV_FN void shuffle(State *s, Rng *rng) {
    for (int32_t k = robots - 1; k > 0; k--) {
        int32_t pick = rng_int(rng, k + 1);
        int8_t other = s->order[pick];
        s->order[pick] = s->order[k];
        s->order[k] = other;
    }
}

// Four corners, then the middles of the four edges.
ENV_FN void put_at_start(State *s, int32_t i) {
    const int32_t last = side - 1, mid = side / 2;
    int32_t y = i < 4 ? (i & 2 ? last : 0) : i == 4 ? 0 : i == 7 ? last : mid;
    int32_t x = i < 4 ? (i & 1 ? last : 0) : i == 5 ? 0 : i == 6 ? last : mid;
    put(s, i, y, x);
}

ENV_FN void put_anywhere(State *s, int32_t i, int32_t num_free, Rng *rng) {
    int32_t skip = rng_int(rng, num_free), cell = 0;
    while (s->map[place(cell / side, cell % side)] || skip-- > 0) cell++;
    put(s, i, cell / side, cell % side);
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    for (int32_t y = -1; y <= side; y++) {
        for (int32_t x = -1; x <= side; x++) {
            s->map[place(y, x)] = y < 0 || x < 0 || y == side || x == side ? WALL : 0;
        }
    }
    for (int32_t c = 0; c < chargers; c++) {
        int32_t y = int_of(p, &p->charger_y_0, c), x = int_of(p, &p->charger_x_0, c);
        int32_t corner_y = c & 2 ? side - 1 : 0, corner_x = c & 1 ? side - 1 : 0;
        s->charger_y[c] = (int8_t)(y < 0 ? (chargers == 1 ? side / 2 : corner_y) : i_min(y, side - 1));
        s->charger_x[c] = (int8_t)(x < 0 ? (chargers == 1 ? side / 2 : corner_x) : i_min(x, side - 1));
    }
    s->top = 0.0f;
    for (int32_t i = 0; i < robots; i++) {
        s->energy[i] = start_energy(p, i);
        s->top = m_max(s->top, s->energy[i]);
        s->stun[i] = s->dock[i] = 0;
        s->order[i] = (int8_t)i;
    }
    int32_t taken = 0;
    if (p->start == START_THIEF) put(s, robots - 1, s->charger_y[0], s->charger_x[0]), taken++;
    for (int32_t i = 0; i < robots; i++) {
        if (p->start == START_THIEF && i == robots - 1) continue;
        if (p->start == START_THIEF || p->start == START_RANDOM) {
            put_anywhere(s, i, side * side - taken++, rng);
        } else {
            put_at_start(s, i);
        }
    }
    for (int32_t k = 0; k < (dust ? side * side : 1); k++) s->dirt[k] = 0.0f;
    if (p->order) shuffle(s, rng);
    s->t = s->tries = s->nearer = 0;
    s->turn = s->sub = 0;
}

ENV_FN void remove_robot(State *s, const Params *p, int32_t i, Step *out) {
    s->energy[i] = 0.0f;
    s->map[at(s, i)] = 0;
    out->rewards[i] += p->reward_death;
    out->terminations[i] = 1;
}

ENV_FN void count_kill(Stats *stats, int32_t i) {
    float *kills[] = {&stats->kills_0, &stats->kills_1, &stats->kills_2, &stats->kills_3,
                      &stats->kills_4, &stats->kills_5, &stats->kills_6, &stats->kills_7};
    *kills[i] += 1.0f;
}

// Robot i runs into robot j.
ENV_FN void hit(State *s, const Params *p, int32_t i, int32_t j, int32_t move, Step *out) {
    if (are_allies(p, i, j)) {
        if (is_out(s, i)) return;
        s->energy[i] = s->energy[j] = 0.5f * (s->energy[i] + s->energy[j]);
        return;
    }
    if (charger_of(s, p, j) == NOBODY) {
        out->stats.hits_off_charger += 1.0f;
    } else {
        out->stats.hits_on_charger += 1.0f;
    }
    s->energy[j] -= cost(float_of(p, &p->attack_0, i));
    s->stun[j] = (int8_t)i_max(s->stun[j], i_clamp(int_of(p, &p->stun_0, i), 0, LONGEST));
    s->dock[j] = 0;
    if (!s->map[at(s, j) + ahead(move)]) {
        s->map[at(s, i)] = 0;
        put(s, j, s->y[j] + step_y(move), s->x[j] + step_x(move));
        put(s, i, s->y[i] + step_y(move), s->x[i] + step_x(move));
    }
    if (is_out(s, j)) {
        remove_robot(s, p, j, out);
        count_kill(&out->stats, i);
        out->stats.deaths_by_robot += 1.0f;
    }
}

// Robot i stays, goes on, or is kept from it. Returns whether it ran into the wall. One branch, for the rarest case.
ENV_FN int32_t go(State *s, const Params *p, int32_t i, int32_t move, Step *out) {
    int32_t here = at(s, i), there = s->map[here + ahead(move)], is_free = there == 0, is_wall = there == WALL;
    s->map[here] = 0;
    put(s, i, s->y[i] + is_free * step_y(move), s->x[i] + is_free * step_x(move));
    s->energy[i] -= as_float(is_wall) * cost(p->e_boundary);
    if (!is_free && !is_wall && there != i + 1) hit(s, p, i, there - 1, move, out);
    return is_wall;
}

// The same for robot 0, and counts whether the move was pursuit.
ENV_FN int32_t go_and_count(State *s, const Params *p, int32_t move, Step *out) {
    int32_t prey = nearest_opponent(s, p, 0);
    if (prey == NOBODY) return go(s, p, 0, move, out);
    int32_t far = distance(s->y[prey] - s->y[0], s->x[prey] - s->x[0]);
    int32_t hits = s->map[at(s, 0) + ahead(move)] == prey + 1, bumped = go(s, p, 0, move, out);
    s->tries += move != STAY;
    s->nearer += hits | (distance(s->y[prey] - s->y[0], s->x[prey] - s->x[0]) < far);
    return bumped;
}

ENV_FN void charge(State *s, const Params *p, int32_t i, Step *out) {
    int32_t c = charger_of(s, p, i), inside = 0;
    if (c == NOBODY) {
        s->dock[i] = 0;
        return;
    }
    if (s->dock[i] < i_clamp(int_of(p, &p->dock_0, i), 0, LONGEST)) {
        s->dock[i]++;
        return;
    }
    for (int32_t j = 0; j < robots; j++) {
        int32_t dy = i_abs(s->y[j] - s->charger_y[c]), dx = i_abs(s->x[j] - s->charger_x[c]);
        inside += !is_out(s, j) && i_max(dy, dx) <= i_max(p->charger_range, 0);
    }
    if (p->exclusive && inside > 1) return;
    s->energy[i] += cost(p->e_charge) / (float)inside;
    out->rewards[i] += p->reward_charge;
    out->stats.charges += 1.0f;
}

// One sub-move of robot i, and after its last one the end of its turn. The reward compares its energy with `before`.
ENV_FN void sub_move(State *s, const Params *p, int32_t i, int32_t move, int32_t is_last, float *before, Step *out) {
    move = s->stun[i] > 0 ? STAY : move;
    s->energy[i] -= as_float(is_last) * cost(p->e_decay);
    s->energy[i] -= as_float((move != STAY) & !p->e_move_always) * cost(p->e_move);
    int32_t hungry = is_out(s, i), bumped = i == 0 ? go_and_count(s, p, move, out) : go(s, p, i, move, out);
    if (!is_out(s, i) && is_last) {
        charge(s, p, i, out);
        if (p->e_move_always) s->energy[i] -= cost(p->e_move);
        hungry = is_out(s, i);
    }
    if (is_out(s, i)) {
        remove_robot(s, p, i, out);
        out->stats.deaths_by_wall += (float)(bumped && !hungry);
        out->stats.deaths_by_hunger += (float)(!bumped || hungry);
        return;
    }
    if (!is_last) return;
    if (dust) {
        float *here = &s->dirt[dust ? s->y[i] * side + s->x[i] : 0];
        out->rewards[i] += p->reward_dust * *here;
        out->stats.dust_taken += *here;
        *here = 0.0f;
    }
    float most = p->cap == CAP_OWN ? start_energy(p, i) : s->top;
    if (p->cap != CAP_NONE && s->energy[i] > most) {
        if (p->before_cap) *before -= s->energy[i] - most;
        s->energy[i] = most;
    }
    s->stun[i] = (int8_t)i_max(s->stun[i] - 1, 0);
}

// dD = r (D + 0.5) (1 - D / most), slower and less on chargers.
ENV_FN void grow_dust(State *s) {
    for (int32_t k = 0; k < (dust ? side * side : 0); k++) {
        int32_t has_charger = 0;
        for (int32_t c = 0; c < chargers; c++) has_charger |= k == s->charger_y[c] * side + s->charger_x[c];
        float rate = has_charger ? 0.25f : 0.5f, most = has_charger ? 3.0f : 10.0f;
        s->dirt[k] += rate * (s->dirt[k] + 0.5f) * (1.0f - s->dirt[k] / most);
    }
}

// Whose sub-move is next. Returns whether a round is over.
ENV_FN int32_t pass_turn(State *s, const Params *p, Rng *rng) {
    int32_t i = s->order[s->turn], is_over = 0, left = 0;
    s->sub++;
    if (!is_out(s, i) && s->sub < speed_of(p, i)) return 0;
    s->sub = 0;
    for (int32_t k = 0; k < robots; k++) left += !is_out(s, k);
    if (left == 0) return 1;
    do {
        if (++s->turn == robots) {
            is_over = 1;
            s->turn = 0;
            grow_dust(s);
            if (p->order) shuffle(s, rng);
        }
    } while (is_out(s, s->order[s->turn]));
    return is_over;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    float before[robots];
    int32_t is_over;
    for (int32_t i = 0; i < robots; i++) before[i] = s->energy[i];
    do {
        int32_t i = s->order[s->turn], who = int_of(p, &p->robot_0, i), move;
        if (who != LEARNER) {
            move = scripted_move(s, p, i, who, rng);
        } else {
            int32_t which = p->semantics ? 0 : i_min(s->sub, moves - 1);
            move = a[i] / (which == 0 ? 1 : which == 1 ? 5 : 25) % 5;
        }
        sub_move(s, p, i, move, s->sub == speed_of(p, i) - 1, &before[i], out);
        is_over = pass_turn(s, p, rng);
    } while (!p->semantics && !is_over);
    s->t++;
    for (int32_t i = 0; i < robots; i++) {
        out->rewards[i] += p->reward_energy * (s->energy[i] - before[i]);
        out->stats.occupancy += (float)(!is_out(s, i) && charger_of(s, p, i) != NOBODY);
    }
    out->stats.pursuit = (float)s->nearer / (float)i_max(s->tries, 1);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    enum { own = 3, others = 3 * (robots - 1), places = 2 * chargers, flags = 4 };
    const float cell = 1.0f / (float)(side - 1), share = 1.0f / s->top;
    int32_t y = s->y[agent], x = s->x[agent], here = at(s, agent), shown = p->layout ? WALL : 0;
    Obs *around = p->layout ? obs + own : obs + own + others + places;
    Obs *other = p->layout ? obs + own + flags : obs + own, *charger = other + others;
    obs[0] = cell * (float)x;
    obs[1] = cell * (float)y;
    obs[2] = share * s->energy[agent];
    for (int32_t move = UP; move < STAY; move++) around[move] = as_float(s->map[here + ahead(move)] == shown);
    for (int32_t j = 0; j < robots; j++) {
        if (j == agent) continue;
        int32_t is_there = !is_out(s, j);
        other[0] = cell * (float)(is_there * (s->x[j] - x));
        other[1] = cell * (float)(is_there * (s->y[j] - y));
        other[2] = share * s->energy[j];
        other += 3;
    }
    for (int32_t c = 0; c < chargers; c++) {
        charger[2 * c] = cell * (float)(s->charger_x[c] - x);
        charger[2 * c + 1] = cell * (float)(s->charger_y[c] - y);
    }
    Obs *out = obs + own + flags + others + places;
    if (timers) {
        *out++ = 0.1f * (float)s->stun[agent];
        *out++ = 0.1f * (float)s->dock[agent];
        for (int32_t j = 0; j < robots; j++) {
            if (j == agent) continue;
            *out++ = is_out(s, j) ? 0.0f : 0.1f * (float)s->stun[j];
            *out++ = is_out(s, j) ? 0.0f : 0.1f * (float)s->dock[j];
        }
        *out++ = p->max_steps > 0 ? (float)s->t / (float)p->max_steps : 0.0f;
    }
    for (int32_t k = 0; k < (see_dust ? side * side : 0); k++) *out++ = 0.1f * s->dirt[k];
}

ENV_FN void env_mask(const State *s, const Params *p, int agent, uint8_t *mask) {
    int32_t waits = p->semantics && s->order[s->turn] != agent;
    int32_t acts = !waits && s->stun[agent] == 0 && int_of(p, &p->robot_0, agent) == LEARNER;
    for (int32_t k = 0; k < MASK_SIZE; k++) mask[k] = (uint8_t)acts;
    mask[MASK_SIZE - 1] = 1;  // staying in all sub-moves
}

// Robots are on the grid, the map's frame is wall and shows no robot that does not exist, and each robot has one turn.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    int32_t turns = 0;
    for (int32_t k = 0; k < wide * wide; k++) {
        int32_t y = k / wide - 1, x = k % wide - 1, is_frame = y < 0 || x < 0 || y == side || x == side;
        if (is_frame ? s->map[k] != WALL : s->map[k] > robots) return 0;
    }
    for (int32_t i = 0; i < robots; i++) {
        if (s->y[i] < 0 || s->y[i] >= side || s->x[i] < 0 || s->x[i] >= side) return 0;
        if (s->order[i] < 0 || s->order[i] >= robots) return 0;
        turns |= 1 << s->order[i];
    }
    return turns == (1 << robots) - 1 && s->turn >= 0 && s->turn < robots && s->sub >= 0 && s->sub <= 8;
}

ENV_FN uint32_t robot_color(int32_t i) {
    const uint32_t colors[] = {0xe2556d, 0x37c2b3, 0xf2a65a, 0x7bd389, 0x6aa5ff, 0xc58bf2, 0xf2e25a, 0xb8c4d9};
    return colors[i & 7];
}

// The grid, and below it every robot's energy. A bar is full at the robot's start energy.
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    const float size = (float)side, line = 0.13f * size, text = 0.34f * line;
    draw_view(d, -0.2f, -0.2f, size + 0.2f, size + 0.2f + line * (robots > 4 ? 1.7f : 1.0f), 0x0e1726);
    draw_rect(d, -0.06f, -0.06f, size + 0.12f, size + 0.12f, 0x24334d);
    for (int32_t k = 0; k < side * side; k++) {
        int32_t y = k / side, x = k % side, is_near = 0;
        for (int32_t c = 0; c < chargers; c++) {
            int32_t far = i_max(i_abs(y - s->charger_y[c]), i_abs(x - s->charger_x[c]));
            is_near |= far <= i_max(p->charger_range, 0);
        }
        draw_rect(d, (float)x + 0.03f, (float)y + 0.03f, 0.94f, 0.94f, is_near ? 0x1d4048 : 0x16233a);
        float dirt = dust ? m_clamp(0.1f * s->dirt[dust ? k : 0], 0.0f, 1.0f) : 0.0f;
        for (int32_t grain = 0; dirt > 0.0f && grain < 5; grain++) {  // five grains that grow
            float across = 0.2f + 0.6f * (float)((3 * grain + k) % 5) / 4.0f, down = 0.2f + 0.15f * (float)grain;
            draw_circle(d, (float)x + across, (float)y + down, 0.02f + 0.05f * dirt, 0x8a7a66);
        }
    }
    for (int32_t c = 0; c < chargers; c++) {  // a bolt
        float x = (float)s->charger_x[c] + 0.5f, y = (float)s->charger_y[c] + 0.5f;
        draw_rect(d, x - 0.47f, y - 0.47f, 0.94f, 0.94f, 0x2a6f6b);
        draw_line(d, x + 0.1f, y - 0.34f, x - 0.12f, y + 0.04f, 0.09f, 0xf2e25a);
        draw_line(d, x - 0.12f, y + 0.04f, x + 0.12f, y - 0.04f, 0.09f, 0xf2e25a);
        draw_line(d, x + 0.12f, y - 0.04f, x - 0.1f, y + 0.34f, 0.09f, 0xf2e25a);
    }
    for (int32_t i = 0; i < robots; i++) {
        float x = (float)s->x[i] + 0.5f, y = (float)s->y[i] + 0.5f;
        float left = 0.25f * size * (float)(i % 4) + 0.5f * text, row = size + line * (i < 4 ? 0.6f : 1.3f);
        float share = m_clamp(s->energy[i] / start_energy(p, i), 0.0f, 1.0f);
        draw_circle(d, left, row, 0.5f * text, is_out(s, i) ? 0x4a5b78 : robot_color(i));
        draw_value(d, left + 0.8f * text, row, text, "", (int32_t)m_min(s->energy[i] + 0.5f, 1e9f), 0xffffff);
        if (is_out(s, i)) {
            if (s->map[at(s, i)]) continue;
            draw_line(d, x - 0.16f, y - 0.16f, x + 0.16f, y + 0.16f, 0.06f, robot_color(i));
            draw_line(d, x - 0.16f, y + 0.16f, x + 0.16f, y - 0.16f, 0.06f, robot_color(i));
            continue;
        }
        draw_circle(d, x, y, 0.4f, s->stun[i] > 0 ? 0xffffff : 0x0e1726);
        draw_circle(d, x, y, 0.34f, robot_color(i));
        draw_circle(d, x, y, 0.22f, 0x0e1726);
        draw_value(d, x - 0.09f, y + 0.01f, 0.26f, "", i, 0xffffff);
        draw_rect(d, x - 0.36f, y - 0.48f, 0.72f, 0.1f, 0x4a5b78);
        draw_rect(d, x - 0.36f, y - 0.48f, 0.72f * share, 0.1f, share > 0.3f ? 0x7bd389 : 0xe2556d);
    }
}
