// simd.h: vectors of floats, their exp, log, tanh and sigmoid, for the learners in C (ppo.c).
#ifndef SHOAL_SIMD_H
#define SHOAL_SIMD_H

#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

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

INLINE Lanes tanh_of(Lanes x) {  // a quotient of polynomials, and exactly 1 from 9 on: 1 - tanh^2 is a slope
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
    Lanes y = choose(x > 9.0f, all(1.0f), z * p / q);
    return choose(x < -9.0f, all(-1.0f), y);
}

#endif
