// bits.h: sets of points of a square board, one bit each, for go.h and hex.h.
//
// A header includes it after core/env.h and has the const `side`. A row takes side + 1 bits: the last one is a gap, so
// that a shift by one point never reaches the next row. Shifted sets can have bits in gaps and beyond the board: cut
// them with a set of points. Points are numbered row by row from the top left, without gaps.
#ifndef SHOAL_BOARD_BITS_H
#define SHOAL_BOARD_BITS_H

#include "words.h"

enum { stride = side + 1, num_points = side * side, set_words = (stride * side + 62) / 64 };

typedef struct {
    uint64_t w[set_words];
} Set;

ENV_FN int32_t bit_of(int32_t point) { return point + point / side; }
ENV_FN int32_t point_of(int32_t bit) { return bit - bit / stride; }

ENV_FN Set set_none(void) {
    Set r;
    for (int32_t k = 0; k < set_words; k++) r.w[k] = 0;
    return r;
}
ENV_FN Set set_of(int32_t bit) {
    Set r;
    for (int32_t k = 0; k < set_words; k++) r.w[k] = (bit >> 6) == k ? 1ULL << (bit & 63) : 0;
    return r;
}
ENV_FN Set set_or(Set a, Set b) {
    for (int32_t k = 0; k < set_words; k++) a.w[k] |= b.w[k];
    return a;
}
ENV_FN Set set_and(Set a, Set b) {
    for (int32_t k = 0; k < set_words; k++) a.w[k] &= b.w[k];
    return a;
}
ENV_FN Set set_less(Set a, Set b) {
    for (int32_t k = 0; k < set_words; k++) a.w[k] &= ~b.w[k];
    return a;
}
ENV_FN int32_t set_any(Set a) {
    uint64_t any = 0;
    for (int32_t k = 0; k < set_words; k++) any |= a.w[k];
    return any != 0;
}
ENV_FN int32_t set_equal(Set a, Set b) {
    uint64_t differ = 0;
    for (int32_t k = 0; k < set_words; k++) differ |= a.w[k] ^ b.w[k];
    return differ == 0;
}
ENV_FN int32_t set_meets(Set a, Set b) { return set_any(set_and(a, b)); }
ENV_FN int32_t set_has(const Set *a, int32_t bit) { return (int32_t)((a->w[bit >> 6] >> (bit & 63)) & 1u); }
ENV_FN int32_t set_count(Set a) {
    int32_t count = 0;
    for (int32_t k = 0; k < set_words; k++) count += count_bits(a.w[k]);
    return count;
}
// All points `by` bits further on, or back; by < 64.
ENV_FN Set set_up(Set a, int32_t by) {
    Set r;
    for (int32_t k = 0; k < set_words; k++) r.w[k] = (a.w[k] << by) | (k ? a.w[k - 1] >> (64 - by) : 0);
    return r;
}
ENV_FN Set set_down(Set a, int32_t by) {
    Set r;
    for (int32_t k = 0; k < set_words; k++) r.w[k] = (a.w[k] >> by) | (k + 1 < set_words ? a.w[k + 1] << (64 - by) : 0);
    return r;
}

// The bit of the first point, or -1.
ENV_FN int32_t first_bit(Set a) {
    for (int32_t k = 0; k < set_words; k++) {
        if (a.w[k]) return 64 * k + count_bits((a.w[k] & (~a.w[k] + 1)) - 1);
    }
    return -1;
}
ENV_FN Set first_of(Set a) {
    uint64_t open = ~0ULL;  // all ones until a word has a point
    for (int32_t k = 0; k < set_words; k++) {
        uint64_t word = a.w[k];
        a.w[k] = word & (~word + 1) & open;
        open = word ? 0 : open;
    }
    return a;
}
// Whether the set has exactly one point.
ENV_FN int32_t is_single(Set a) { return set_any(a) && set_equal(a, first_of(a)); }

ENV_FN Set whole_board(void) {
    Set row, all;
    row = all = set_none();
    row.w[0] = (1ULL << side) - 1;
    for (int32_t y = 0; y < side; y++) all = set_or(set_up(all, stride), row);
    return all;
}

// One of the points at random; none if there is none.
ENV_FN Set pick(Set a, Rng *rng) {
    int32_t skip = rng_int(rng, set_count(a));
    for (int32_t k = 0; k < set_words; k++) {
        int32_t here = count_bits(a.w[k]);
        if (skip >= 0 && skip < here) {
            for (int32_t n = 0; n < skip; n++) a.w[k] &= a.w[k] - 1;
            a.w[k] &= ~a.w[k] + 1;
        } else {
            a.w[k] = 0;
        }
        skip -= here;
    }
    return a;
}

// The point of a number if the set has it; else the next one that it has, and after the last the first.
ENV_FN Set next_of(Set a, int32_t point) {
    int32_t bit = bit_of(point);
    Set after = a;
    for (int32_t k = 0; k < set_words; k++) {
        after.w[k] &= k > (bit >> 6) ? ~0ULL : k < (bit >> 6) ? 0 : ~0ULL << (bit & 63);
    }
    return first_of(set_any(after) ? after : a);
}

ENV_FN uint64_t row_of(const Set *a, int32_t y) {
    int32_t word = (stride * y) >> 6, by = (stride * y) & 63;
    uint64_t bits = a->w[word] >> by;
    if (by + side > 64) bits |= a->w[word + 1] << (64 - by);
    return bits & ((1ULL << side) - 1);
}

// The points without gaps, 32 in a word.
typedef struct {
    uint32_t w[(num_points + 31) / 32 + 1];
} Packed;
ENV_FN Packed without_gaps(Set a) {
    Packed packed;
    uint64_t held = 0;
    int32_t count = 0, at = 0;
    for (int32_t y = 0; y < side; y++) {
        held |= row_of(&a, y) << count;
        count += side;
        if (count >= 32) {
            packed.w[at++] = (uint32_t)held;
            held >>= 32;
            count -= 32;
        }
    }
    packed.w[at] = (uint32_t)held;
    return packed;
}

// One float for each point, in loops over 32 bits, which compilers turn into SIMD code.
ENV_FN void write_floats(Set a, Obs *obs) {
    Packed packed = without_gaps(a);
    for (int32_t at = 0; at < num_points / 32; at++) {
        uint32_t bits = packed.w[at];
        for (int32_t k = 0; k < 32; k++) obs[32 * at + k] = as_float((bits >> k) & 1u);
    }
    uint32_t rest = packed.w[num_points / 32];
    for (int32_t k = 0; k < num_points % 32; k++) obs[num_points - num_points % 32 + k] = as_float((rest >> k) & 1u);
}

ENV_FN void subtract_floats(Set a, Obs *obs) {
    Packed packed = without_gaps(a);
    for (int32_t at = 0; at < num_points / 32; at++) {
        uint32_t bits = packed.w[at];
        for (int32_t k = 0; k < 32; k++) obs[32 * at + k] -= as_float((bits >> k) & 1u);
    }
    uint32_t rest = packed.w[num_points / 32];
    for (int32_t k = 0; k < num_points % 32; k++) obs[num_points - num_points % 32 + k] -= as_float((rest >> k) & 1u);
}

// One byte for each point, eight at a time: a loop over bits is many times slower.
ENV_FN void write_bytes(Set a, uint8_t *bytes) {
    Packed packed = without_gaps(a);
    for (int32_t at = 0; at < num_points / 8; at++) {
        uint64_t here = (packed.w[at / 4] >> (at % 4 * 8)) & 255u;
        uint64_t spread = (here * 0x0101010101010101ULL) & 0x8040201008040201ULL;
        uint64_t eight = ((spread + 0x7f7f7f7f7f7f7f7fULL) >> 7) & 0x0101010101010101ULL;
        memcpy(bytes + 8 * at, &eight, 8);
    }
    for (int32_t k = num_points - num_points % 8; k < num_points; k++)
        bytes[k] = (uint8_t)((packed.w[k / 32] >> (k % 32)) & 1u);
}

#endif
