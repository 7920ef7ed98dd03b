// simd.h: vectors of floats, their exp, tanh and sigmoid, and matrix products, for the learners in C (ppo.c).
//
// A matrix product is computed in tiles of TILE rows by one or two vectors: its sums stay in registers, and each number
// that is loaded is used several times. Every entry of a product is one sum in the order of its terms, whatever the
// tile: results do not depend on how rows are divided over calls and threads.
#ifndef SHOAL_SIMD_H
#define SHOAL_SIMD_H

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

// TILE rows of two vectors, with the vectors that are multiplied, use all registers of the CPU
#if defined(__AVX512F__)
enum { LANES = 16, TILE = 12 };
#elif defined(__AVX2__)
enum { LANES = 8, TILE = 6 };
#else
enum { LANES = 4, TILE = 6 };
#endif
enum { PANEL = 2 * LANES, ROUND = 16 };  // widths of all matrices are rounded up to ROUND
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE int64_t rounded(int64_t width) { return (width + ROUND - 1) / ROUND * ROUND; }

// Floats between the rows of a matrix: an odd number of cache lines, so that a column is spread over the whole cache.
INLINE int64_t stride_of(int64_t width) { return rounded(width) | ROUND; }

INLINE Lanes load(const float *at) { return *(const Lanes *)at; }
INLINE void store(float *at, Lanes x) { *(Lanes *)at = x; }
INLINE Lanes all(float x) { return x - (Lanes){0}; }
INLINE Lanes choose(Ints mask, Lanes yes, Lanes no) { return (Lanes)(((Ints)yes & mask) | ((Ints)no & ~mask)); }

// ---- functions ----
// Within a few units in the last place. NaN stays NaN.

INLINE Lanes exp_of(Lanes x) {
    x = choose(x > 88.0f, all(88.0f), x);
    x = choose(x < -87.0f, all(-87.0f), x);
    Lanes shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
    Lanes n = shifted - 12582912.0f;
    Lanes r = x - n * 0.693359375f - n * -2.12194440e-4f;
    Lanes y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    return y * (Lanes)((((Ints)shifted - 0x4b400000) + 127) << 23);
}

INLINE Lanes log_of(Lanes x) {                                   // of positive numbers
    Ints bits = (Ints)x, is_low = (bits & 0x7fffff) < 0x3504f3;  // below the square root of 2
    Ints exponent = (bits >> 23) - 127 + (~is_low & 1);
    Lanes m = (Lanes)((bits & 0x7fffff) | ((127 << 23) - (~is_low & (1 << 23)))) - 1.0f;
    Lanes e = __builtin_convertvector(exponent, Lanes), s = m * m;
    Lanes y = m * 7.0376836292e-2f - 1.1514610310e-1f;
    y = y * m + 1.1676998740e-1f;
    y = y * m - 1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f;
    y = y * m - 1.6668057665e-1f;
    y = y * m + 2.0000714765e-1f;
    y = y * m - 2.4999993993e-1f;
    y = y * m + 3.3333331174e-1f;
    y = y * m * s + e * -2.12194440e-4f - 0.5f * s;
    y = m + y + e * 0.693359375f;
    return choose(x == x, y, x);
}

INLINE float sum_of(Lanes x) {
    float sum = 0.0f;
    for (int c = 0; c < LANES; c++) sum += x[c];
    return sum;
}

INLINE Lanes sigmoid_of(Lanes x) { return 1.0f / (1.0f + exp_of(-x)); }

INLINE Lanes tanh_of(Lanes x) {  // a quotient of polynomials up to where it rounds to 1
    Lanes z = choose(x > 7.9053111f, all(7.9053111f), x);
    z = choose(z < -7.9053111f, all(-7.9053111f), z);
    Lanes s = z * z;
    Lanes p = s * -2.76076847742355e-16f + 2.00018790482477e-13f;
    p = p * s + -8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = p * s + 4.89352455891786e-03f;
    Lanes q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
    q = q * s + 2.26843463243900e-03f;
    q = q * s + 4.89352518554385e-03f;
    return z * p / q;
}

// ---- matrix products ----

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
