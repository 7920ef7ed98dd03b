// game2048.h: slide numbered tiles over a board of 4 x 4; equal ones that meet become their sum.
//
// Cirulli's game (2014). A move slides all tiles as far as they go to one side. Two equal tiles that meet become one of
// twice the value; the pair nearest to that side merges first, and a merged tile merges no more in that move. If a tile
// moved, a new one appears on a random empty cell: a 2, or a 4 with probability `four_share`. A game starts with two
// tiles and ends when no move changes the board.
//
// obs: for every cell, row by row from the top left, 16 bytes: byte k is 1 if the cell holds 2^(k+1); the last also
// stands for 131072, the largest tile that a game can reach. An empty cell is 16 zeros.
// action: 0 up, 1 right, 2 down, 3 left. The mask forbids moves that change nothing; such an action has no effect.
// reward: the sum of the tiles that were made by merging, which is the game's own score. A game that ends soon after
// its first 2048 scores about 20,000. Random play scores 1,080. Expectimax of depth 1 that keeps large tiles in a
// corner, along a snake-shaped order (tests/game2048_twin.py), scores 25,000.
#define ENV_OBS OBS_U8(256)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(4)
#define ENV_HAS_MASK
#define ENV_HAS_CHECK
#define ENV_MAX_STEPS 20000
#define ENV_PARAMS(X) X(float, four_share, 0.1f, "probability that a new tile is a 4")
#define ENV_LIMITS(X) X("four_share", 0, 1)
#define ENV_STATS(X)                                                                                                   \
    X(sum, score, "sum of the merged tiles")                                                                           \
    X(last, largest, "the largest tile at the end")                                                                    \
    X(sum, made_2048, "1 if a tile of 2048 was made")                                                                  \
    X(sum, wasted, "actions that changed nothing")
#include "core/env.h"

enum { SIDE = 4, CELLS = 16, KINDS = 16, LARGEST = 17 };
enum { UP, RIGHT, DOWN, LEFT };

typedef struct {
    uint8_t tiles[CELLS];  // k: a tile of 2^k; 0: empty
    int32_t newest;        // the cell where a tile appeared last
    int32_t score;
    int32_t legal;  // bit a: action a changes the board
} State;

ENV_FN int32_t largest_of(const State *s) {
    int32_t largest = 0;
    for (int32_t k = 0; k < CELLS; k++) largest = i_max(largest, s->tiles[k]);
    return largest;
}

ENV_FN void add_tile(State *s, const Params *p, Rng *rng) {
    int32_t empty = 0;
    for (int32_t k = 0; k < CELLS; k++) empty += s->tiles[k] == 0;
    if (empty == 0) return;
    int32_t skip = rng_int(rng, empty);
    int32_t is_four = rng_uniform(rng, 0.0f, 1.0f) < p->four_share;
    for (int32_t k = 0; k < CELLS; k++) {
        if (s->tiles[k] != 0 || skip-- != 0) continue;
        s->tiles[k] = (uint8_t)(1 + is_four);
        s->newest = k;
    }
}

// A line is four tiles in a word, the one nearest to the side of the move lowest. Selects instead of branches: which
// tiles merge cannot be predicted.
ENV_FN uint32_t close_gap(uint32_t line, int32_t bits) {  // if the cell at `bits` is empty, those behind it move up
    uint32_t near = line & ((1u << bits) - 1), closed = near | (line >> 8 & ~((1u << bits) - 1));
    return line >> bits & 255 ? line : closed;
}

ENV_FN uint32_t slide_line(uint32_t line, int32_t *points) {
    line = close_gap(close_gap(close_gap(line, 16), 8), 0);
    line = close_gap(close_gap(line, 16), 8);
    line = close_gap(line, 16);
    for (int32_t bits = 0; bits < 24; bits += 8) {
        uint32_t tile = line >> bits & 255, next = line >> (bits + 8) & 255;
        uint32_t merged = (line & ((2u << (bits + 7)) - 1)) + (1u << bits);  // up to this tile, which is doubled
        int32_t is_pair = (tile != 0) & (tile == next) & (tile < LARGEST);
        merged |= line >> 8 & ~((2u << (bits + 7)) - 1);
        *points += is_pair ? 2 << (tile & 31) : 0;
        line = is_pair ? merged : line;
    }
    return line;
}

ENV_FN int32_t can_slide(int32_t ahead, int32_t tile) {  // a tile behind the cell `ahead`
    return tile != 0 && (ahead == 0 || (ahead == tile && tile < LARGEST));
}

ENV_FN int32_t legal_moves(const State *s) {
    int32_t moves = 0;
    for (int32_t k = 0; k < SIDE; k++) {
        for (int32_t j = 0; j < SIDE - 1; j++) {
            int32_t left = s->tiles[SIDE * k + j], right = s->tiles[SIDE * k + j + 1];
            int32_t upper = s->tiles[SIDE * j + k], lower = s->tiles[SIDE * (j + 1) + k];
            moves |= can_slide(left, right) << LEFT | can_slide(right, left) << RIGHT;
            moves |= can_slide(upper, lower) << UP | can_slide(lower, upper) << DOWN;
        }
    }
    return moves;
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    for (int32_t k = 0; k < CELLS; k++) s->tiles[k] = 0;
    s->score = 0;
    add_tile(s, p, rng);
    add_tile(s, p, rng);
    s->legal = legal_moves(s);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t before = largest_of(s), moved = 0, points = 0;
    int32_t is_vertical = *a == UP || *a == DOWN, is_far = *a == RIGHT || *a == DOWN;
    int32_t stride = is_vertical ? SIDE : 1;
    for (int32_t k = 0; k < SIDE; k++) {
        int32_t first = k * (is_vertical ? 1 : SIDE) + (is_far ? (SIDE - 1) * stride : 0);
        int32_t step = is_far ? -stride : stride;
        uint32_t line = 0;
        for (int32_t j = 0; j < SIDE; j++) line |= (uint32_t)s->tiles[first + j * step] << 8 * j;
        uint32_t slid = slide_line(line, &points);
        for (int32_t j = 0; j < SIDE; j++) s->tiles[first + j * step] = (uint8_t)(slid >> 8 * j);
        moved |= slid != line;
    }
    if (moved) add_tile(s, p, rng);
    s->score += points;
    int32_t largest = largest_of(s);
    out->reward = (float)points;
    s->legal = legal_moves(s);
    out->terminated = s->legal == 0;
    out->stats.score = (float)points;
    out->stats.largest = (float)(1 << largest);
    out->stats.made_2048 = (float)(before < 11 && largest >= 11);
    out->stats.wasted = (float)(moved == 0);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    for (int32_t k = 0; k < CELLS * KINDS; k++) obs[k] = 0;
    for (int32_t k = 0; k < CELLS; k++) {
        if (s->tiles[k]) obs[KINDS * k + i_min(s->tiles[k], KINDS) - 1] = 1;
    }
}

ENV_FN void env_mask(const State *s, const Params *p, int agent, uint8_t *mask) {
    (void)p, (void)agent;
    int32_t moves = s->legal ? s->legal : 15;  // a game that is over has a mask too, and it allows something
    for (int32_t k = 0; k < 4; k++) mask[k] = (uint8_t)(moves >> k & 1);
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    int32_t is_safe = s->score >= 0 && s->score < 1 << 24;
    for (int32_t k = 0; k < CELLS; k++) is_safe &= s->tiles[k] <= LARGEST;
    return is_safe && s->legal >= 0 && s->legal < 16 && s->newest >= 0 && s->newest < CELLS;
}

ENV_DATA uint32_t tile_colors[12] = {0x24334d, 0xeee4da, 0xede0c8, 0xf2b179, 0xf59563, 0xf67c5f,
                                     0xf65e3b, 0xedcf72, 0xedcc61, 0xedc850, 0xedc53f, 0xedc22e};

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, -0.2f, -0.8f, 4.2f, 4.2f, 0x0e1726);
    draw_value(d, 0.05f, -0.4f, 0.4f, "SCORE ", s->score, 0xffffff);
    for (int32_t k = 0; k < CELLS; k++) {
        int32_t tile = s->tiles[k];
        float x = (float)(k % SIDE), y = (float)(k / SIDE);
        if (k == s->newest) draw_rect(d, x + 0.01f, y + 0.01f, 0.98f, 0.98f, 0x37c2b3);
        draw_rect(d, x + 0.05f, y + 0.05f, 0.9f, 0.9f, tile < 12 ? tile_colors[tile] : 0x3c3a32);
        if (tile == 0) continue;
        int32_t digits = tile < 4 ? 1 : tile < 7 ? 2 : tile < 10 ? 3 : tile < 14 ? 4 : tile < 17 ? 5 : 6;
        float height = digits < 3 ? 0.46f : 1.15f / (float)digits;
        float wide = height * (float)(6 * digits - 1) / 7.0f;
        draw_value(d, x + 0.5f - 0.5f * wide, y + 0.5f, height, "", 1 << tile, tile < 3 ? 0x776e65 : 0xffffff);
    }
}
