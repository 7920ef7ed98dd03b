// matmul.h: products of small matrices, for ppo.c.
//
// A product is computed in tiles of TILE rows by one or two vectors: its sums stay in registers, and each number that
// is loaded is used several times. Every entry is one sum in the order of its terms, whatever the tile: results do not
// depend on how rows are divided over calls and threads.
#ifndef SHOAL_MATMUL_H
#define SHOAL_MATMUL_H

#include <string.h>

#include "simd.h"

// TILE rows of two vectors, with the vectors that are multiplied, use all registers of the CPU
enum { TILE = LANES == 16 ? 12 : 6 };
enum { PANEL = 2 * LANES, ROUND = 16 };  // widths of all matrices are rounded up to ROUND

// The buffers of a model lie in one piece of memory. Under AddressSanitizer each is followed by bytes that no code may
// touch.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
enum { GUARD = 16 };  // floats
static void guard(void *end, int64_t bytes) { __asan_poison_memory_region(end, (size_t)bytes); }
#else
enum { GUARD = 0 };
INLINE void guard(void *end, int64_t bytes) { (void)end, (void)bytes; }
#endif

INLINE int64_t rounded(int64_t width) { return (width + ROUND - 1) / ROUND * ROUND; }

// Floats between the rows of a matrix: an odd number of cache lines, so that a column is spread over the whole cache.
INLINE int64_t stride_of(int64_t width) { return rounded(width) | ROUND; }

enum { FROM_ZERO, FROM_ROW, FROM_OUT };  // what a product is added to

// A matrix whose entry (i, k) is at[i * row + k * column].
typedef struct {
    const float *at;
    int64_t row, column;
} Strided;

// `rows` rows of a product, `vectors` vectors wide: out = start + a b. b has `depth` rows of contiguous vectors.
INLINE void tile(int rows, int vectors, int64_t depth, Strided a, const float *b, int64_t b_row, int from,
                 const float *start, float *out, int64_t out_row) {
    Lanes sums[TILE][2];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vectors; j++) {
            sums[i][j] = from == FROM_ZERO  ? (Lanes){0}
                         : from == FROM_ROW ? load(start + j * LANES)
                                            : load(out + i * out_row + j * LANES);
        }
    }
    for (int64_t k = 0; k < depth; k++) {
        Lanes line[2];
        for (int j = 0; j < vectors; j++) line[j] = load(b + k * b_row + j * LANES);
        for (int i = 0; i < rows; i++) {
            float x = a.at[i * a.row + k * a.column];
            for (int j = 0; j < vectors; j++) sums[i][j] += x * line[j];
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vectors; j++) store(out + i * out_row + j * LANES, sums[i][j]);
    }
}

#define TILE_CASE(n)                                                                                                   \
    case n:                                                                                                            \
        tile(n, vectors, depth, a, b, b_row, from, start, out, out_row);                                               \
        break;

// All rows of a product, `vectors` vectors wide.
INLINE void tiles(int vectors, int64_t rows, int64_t depth, Strided a, const float *b, int64_t b_row, int from,
                  const float *start, float *out, int64_t out_row) {
    int64_t i = 0;
    for (; i + TILE <= rows; i += TILE, a.at += TILE * a.row, out += TILE * out_row) {
        tile(TILE, vectors, depth, a, b, b_row, from, start, out, out_row);
    }
    switch (rows - i) {
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
        TILE_CASE(5)
#if defined(__AVX512F__)
        TILE_CASE(6)
        TILE_CASE(7)
        TILE_CASE(8)
        TILE_CASE(9)
        TILE_CASE(10)
        TILE_CASE(11)
#endif
    }
}
#undef TILE_CASE

// A panel of columns of a product: all rows, one or two vectors wide.
#define PRODUCT(NAME, FROM)                                                                                            \
    static __attribute__((noinline)) void NAME##_two(int64_t rows, int64_t depth, Strided a, const float *b,           \
                                                     int64_t b_row, const float *start, float *out, int64_t out_row) { \
        tiles(2, rows, depth, a, b, b_row, FROM, start, out, out_row);                                                 \
    }                                                                                                                  \
    static __attribute__((noinline)) void NAME##_one(int64_t rows, int64_t depth, Strided a, const float *b,           \
                                                     int64_t b_row, const float *start, float *out, int64_t out_row) { \
        tiles(1, rows, depth, a, b, b_row, FROM, start, out, out_row);                                                 \
    }
PRODUCT(from_zero, FROM_ZERO)
PRODUCT(from_row, FROM_ROW)
PRODUCT(from_out, FROM_OUT)
#undef PRODUCT

typedef void (*Product)(int64_t, int64_t, Strided, const float *, int64_t, const float *, float *, int64_t);
static const Product PRODUCTS[3][2] = {
    {from_zero_one, from_zero_two}, {from_row_one, from_row_two}, {from_out_one, from_out_two}};

// out (rows, columns) = start + a (rows, depth) b, with b packed by `pack`. columns is a multiple of ROUND.
static void multiply_packed(int64_t rows, int64_t columns, int64_t depth, Strided a, const float *b, int from,
                            const float *start, float *out, int64_t out_row) {
    for (int64_t j = 0; j < columns;) {
        int two = columns - j >= PANEL, width = two ? PANEL : LANES;
        PRODUCTS[from][two](rows, depth, a, b + j * depth, width, start ? start + j : 0, out + j, out_row);
        j += width;
    }
}

// The same with a plain b (depth, columns) whose rows are b_row floats apart.
static void multiply_rows(int64_t rows, int64_t columns, int64_t depth, Strided a, const float *b, int64_t b_row,
                          int from, float *out, int64_t out_row) {
    for (int64_t j = 0; j < columns;) {
        int two = columns - j >= PANEL, width = two ? PANEL : LANES;
        PRODUCTS[from][two](rows, depth, a, b + j, b_row, 0, out + j, out_row);
        j += width;
    }
}

// Packs row k of b (depth, columns): the columns of each panel are contiguous, panel after panel. Columns from `count`
// on are zeros. packed holds depth * columns floats.
static void pack_row(int64_t k, int64_t depth, int64_t columns, int64_t count, const float *row, int64_t step,
                     float *packed) {
    for (int64_t j = 0; j < columns;) {
        int width = columns - j >= PANEL ? PANEL : LANES;
        float *to = packed + j * depth + k * width;
        for (int c = 0; c < width; c++) to[c] = j + c < count ? row[(j + c) * step] : 0.0f;
        j += width;
    }
}

#endif
