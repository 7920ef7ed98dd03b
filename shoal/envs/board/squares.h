// squares.h: sets of squares that fit into one word, for connect4.h, othello.h and breakthrough.h.
//
// A header includes it after core/env.h.
#ifndef SHOAL_BOARD_SQUARES_H
#define SHOAL_BOARD_SQUARES_H

#include "words.h"

ENV_FN uint64_t lowest(uint64_t squares) { return squares & (~squares + 1); }

// One of some squares at random; 0 if there is none.
ENV_FN uint64_t pick(uint64_t squares, Rng *rng) {
    int32_t skip = rng_int(rng, count_bits(squares));
    while (skip-- > 0) squares &= squares - 1;
    return lowest(squares);
}

// ---- boards of 8 x 8: bit 8 * row + column, from the top left ----

#define NOT_LEFT 0xfefefefefefefefeULL  // all squares but those of the leftmost column
#define NOT_RIGHT 0x7f7f7f7f7f7f7f7fULL

// In two loops over 32 bits, which compilers turn into SIMD code.
ENV_FN void write_squares(uint64_t squares, float *obs) {
    uint32_t low = (uint32_t)squares, high = (uint32_t)(squares >> 32);
    for (int32_t k = 0; k < 32; k++) obs[k] = as_float((low >> k) & 1u);
    for (int32_t k = 0; k < 32; k++) obs[32 + k] = as_float((high >> k) & 1u);
}

// A byte for each square. A row's eight bits become eight bytes at once: a loop over bits is 20 times slower.
ENV_FN void write_mask(uint64_t squares, uint8_t *mask) {
    for (int32_t row = 0; row < 8; row++) {
        uint64_t spread = (((squares >> (8 * row)) & 255ULL) * 0x0101010101010101ULL) & 0x8040201008040201ULL;
        uint64_t bytes = ((spread + 0x7f7f7f7f7f7f7f7fULL) >> 7) & 0x0101010101010101ULL;
        memcpy(mask + 8 * row, &bytes, 8);
    }
}

#endif
