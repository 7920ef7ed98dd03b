// connect4_solver.c: the exact value of Connect Four positions. It shares no code with envs/connect4.h.
//
// Negamax with alpha-beta and null windows, which never tries moves that lose at once, tries moves that make most
// threats first, and remembers bounds in a table. The methods are those of Pascal Pons's blog on solving Connect Four
// and of John Tromp's Fhourstones.
//
// A board is two words: the stones of the one on turn and all stones, bit 7 * column + row, row 0 at the bottom.
// A score is 0 for a draw; n > 0 if the one on turn wins with the n-th of his stones counted from his last, so that
// faster wins score higher; -n if he loses so. The highest is 18: nobody has four before his fourth stone.
#include <stdint.h>
#include <stdlib.h>

#if defined(__GNUC__)
#define EXPORT __attribute__((visibility("default")))
#else
#define EXPORT
#endif

enum { CELLS = 42, COLUMNS = 7, LOWEST = -18, HIGHEST = 18, FEW = 14 };
static const uint64_t BOTTOM = 0x40810204081ULL, BOARD = 63 * 0x40810204081ULL;

// A word is, from its lowest bit, a bound (8 bits), the key of a board (49) and its number of stones (6). An upper
// bound u is u - LOWEST + 1, a lower bound b is b - LOWEST + 1 + SPAN. A bucket has a word for the board with the
// fewest stones and one for the newest.
enum { SPAN = HIGHEST - LOWEST + 1 };
static const uint64_t KEYS = (1ULL << 49) - 1;
typedef struct {
    uint64_t *table;
    uint64_t mask;  // buckets - 1
    uint64_t nodes;
} Solver;

static int count_bits(uint64_t x) { return __builtin_popcountll(x); }
static uint64_t column_of(int column) { return 63ULL << (7 * column); }
static uint64_t playable(uint64_t all) { return (all + BOTTOM) & BOARD; }

// Free cells that complete four of `own`.
static uint64_t winning_cells(uint64_t own, uint64_t all) {
    uint64_t found = (own << 1) & (own << 2) & (own << 3);
    for (int d = 6; d <= 8; d++) {
        uint64_t pair = (own << d) & (own << 2 * d);
        found |= pair & ((own << 3 * d) | (own >> d));
        pair = (own >> d) & (own >> 2 * d);
        found |= pair & ((own << d) | (own >> 3 * d));
    }
    return found & BOARD & ~all;
}

// The playable cells after which the other does not win at once; 0 if there is none.
static uint64_t safe_moves(uint64_t own, uint64_t all) {
    uint64_t moves = playable(all), threats = winning_cells(own ^ all, all), forced = moves & threats;
    if (forced) {
        if (forced & (forced - 1)) return 0;
        moves = forced;
    }
    return moves & ~(threats >> 1);  // not under a cell where the other wins
}

static uint64_t mirrored(uint64_t cells) {
    uint64_t out = 0;
    for (int c = 0; c < COLUMNS; c++) out |= ((cells >> (7 * c)) & 127) << (7 * (COLUMNS - 1 - c));
    return out;
}

// Each column's stones from the bottom, 1 for those of the one on turn, with a 1 above them. Boards of few stones share
// the key of their mirror image.
static uint64_t key_of(uint64_t own, uint64_t all, int stones) {
    uint64_t key = own + all + BOTTOM;
    if (stones > FEW) return key;
    uint64_t other = mirrored(own) + mirrored(all) + BOTTOM;
    return key < other ? key : other;
}

static uint64_t hash_of(uint64_t key) { return (key * 0x9E3779B97F4A7C15ULL) >> 24; }

// Threads may share the table: a word is read and written as a whole, and holds the key that it belongs to.
static int lookup(const Solver *s, uint64_t key) {
    const uint64_t *bucket = s->table + 2 * (hash_of(key) & s->mask);
    for (int k = 0; k < 2; k++) {
        uint64_t word = __atomic_load_n(&bucket[k], __ATOMIC_RELAXED);
        if (((word >> 8) & KEYS) == key) return (int)(word & 255);
    }
    return 0;
}

static void store(Solver *s, uint64_t key, int bound, int stones) {
    uint64_t *bucket = s->table + 2 * (hash_of(key) & s->mask), old = __atomic_load_n(bucket, __ATOMIC_RELAXED);
    int is_newest = old && ((old >> 8) & KEYS) != key && stones > (int)(old >> 57);
    __atomic_store_n(&bucket[is_newest], (uint64_t)stones << 57 | key << 8 | (uint64_t)bound, __ATOMIC_RELAXED);
}

// The score if it is within alpha and beta, otherwise a bound on the same side. The one on turn cannot win at once.
static int negamax(Solver *s, uint64_t own, uint64_t all, int stones, int alpha, int beta) {
    static const int order[COLUMNS] = {3, 2, 4, 1, 5, 0, 6};
    s->nodes++;
    uint64_t moves = safe_moves(own, all);
    if (!moves) return -(CELLS - stones) / 2;
    if (stones >= CELLS - 2) return 0;
    int least = -(CELLS - 2 - stones) / 2, most = (CELLS - 1 - stones) / 2;
    uint64_t key = key_of(own, all, stones);
    int known = lookup(s, key);
    if (known > SPAN) {
        int bound = known - SPAN - 1 + LOWEST;
        least = bound > least ? bound : least;
    } else if (known) {
        int bound = known - 1 + LOWEST;
        most = bound < most ? bound : most;
    }
    if (least >= beta) return least;
    if (most <= alpha) return most;
    alpha = least > alpha ? least : alpha;
    beta = most < beta ? most : beta;
    if (alpha >= beta) return alpha;

    uint64_t cells[COLUMNS];
    int scores[COLUMNS], count = 0;
    for (int k = 0; k < COLUMNS; k++) {  // insertion sort: the most threats first, of equal ones the most central
        uint64_t cell = moves & column_of(order[k]);
        if (!cell) continue;
        int score = count_bits(winning_cells(own | cell, all | cell)), at = count++;
        for (; at > 0 && scores[at - 1] < score; at--) cells[at] = cells[at - 1], scores[at] = scores[at - 1];
        cells[at] = cell, scores[at] = score;
    }
    for (int k = 0; k < count; k++) {
        int score = -negamax(s, own ^ all, all | cells[k], stones + 1, -beta, -alpha);
        if (score >= beta) {
            store(s, key, score - LOWEST + 1 + SPAN, stones);
            return score;
        }
        if (score > alpha) alpha = score;
    }
    store(s, key, alpha - LOWEST + 1, stones);
    return alpha;
}

// The score, clamped to low .. high: exact if it lies within. The game must not be over.
EXPORT int solver_score(Solver *shared, uint64_t own, uint64_t all, int low, int high) {
    Solver local = *shared, *s = &local;  // for each thread its own count
    int stones = count_bits(all), wins_at_once = (playable(all) & winning_cells(own, all)) != 0;
    int least = wins_at_once ? (CELLS + 1 - stones) / 2 : -(CELLS - stones) / 2;
    int most = wins_at_once || stones == CELLS ? least : (CELLS - 1 - stones) / 2;
    least = least > low ? least : low, least = least < high ? least : high;
    most = most < high ? most : high, most = most > low ? most : low;
    s->nodes = 0;
    while (least < most) {  // null windows, near 0 first
        int middle = least + (most - least) / 2;
        if (middle <= 0 && least / 2 < middle) middle = least / 2;
        if (middle >= 0 && most / 2 > middle) middle = most / 2;
        int score = negamax(s, own, all, stones, middle, middle + 1);
        if (score <= middle) {
            most = score > least ? score : least;
        } else {
            least = score < most ? score : most;
        }
    }
    __atomic_fetch_add(&shared->nodes, s->nodes, __ATOMIC_RELAXED);
    return least;
}

EXPORT Solver *solver_new(int log2_buckets) {
    Solver *s = (Solver *)calloc(1, sizeof *s);
    if (!s) return 0;
    s->mask = (1ULL << log2_buckets) - 1;
    s->table = (uint64_t *)calloc((size_t)2 << log2_buckets, 8);
    if (s->table) return s;
    free(s);
    return 0;
}

EXPORT uint64_t solver_nodes(const Solver *s) { return s->nodes; }

EXPORT void solver_free(Solver *s) {
    free(s->table);
    free(s);
}
