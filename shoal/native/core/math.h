// math.h: float math that gives the same bits on every machine.
//
// libm differs between systems and CUDA's differs from both. These functions are built only from
// IEEE + - * / sqrt and integer operations, so a build without FMA contraction and fast-math gives
// identical bits from gcc, clang and NVRTC. They have no branches, so compilers vectorize them.
// Accuracy against libm is measured in tests/test_math.py: at most 3 ulp over the ranges below.
#ifndef SHOAL_MATH_H
#define SHOAL_MATH_H

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#include <string.h>
#endif

#ifdef __CUDACC__
#define MATH_FN static __host__ __device__ __forceinline__
#else
#define MATH_FN static inline __attribute__((always_inline))
#endif

#define M_PI_F 3.14159265358979f
#ifdef __CUDACC_RTC__
#define M_INF __int_as_float(0x7f800000)
#else
#define M_INF __builtin_inff()
#endif

MATH_FN int32_t m_bits(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

MATH_FN float m_from_bits(int32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

MATH_FN float m_abs(float x) { return m_from_bits(m_bits(x) & 0x7fffffff); }
MATH_FN float m_min(float a, float b) { return a < b ? a : b; }
MATH_FN float m_max(float a, float b) { return a > b ? a : b; }
MATH_FN float m_clamp(float x, float lo, float hi) { return m_min(m_max(x, lo), hi); }
MATH_FN int32_t i_min(int32_t a, int32_t b) { return a < b ? a : b; }
MATH_FN int32_t i_max(int32_t a, int32_t b) { return a > b ? a : b; }
MATH_FN int32_t i_clamp(int32_t x, int32_t lo, int32_t hi) { return i_min(i_max(x, lo), hi); }

// IEEE 754 defines its rounding: the hardware instruction gives the same bits everywhere.
MATH_FN float m_sqrt(float x) {
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(x);
#else
    return __builtin_sqrtf(x);
#endif
}

// Adding and subtracting 2^23 rounds a positive float below 2^23 to an integer; floats above are integers already.
MATH_FN float m_floor(float x) {
    float rounded = (m_abs(x) + 8388608.0f) - 8388608.0f;
    rounded = m_from_bits(m_bits(rounded) | (m_bits(x) & (int32_t)0x80000000));
    rounded = rounded > x ? rounded - 1.0f : rounded;
    return m_abs(x) < 8388608.0f ? rounded : x;
}

// Adding 1.5 * 2^23 leaves the nearest integer of a float in its low bits (|x| < 2^22), without a branch or a
// conversion; subtracting it again gives that integer as a float.
#define M_ROUNDER 12582912.0f

// x - k * pi/2, with pi/2 in three parts so that k * part is exact (Cody & Waite 1980).
MATH_FN float m_reduce(float x, float k) {
    return ((x - k * 1.5703125f) - k * 4.837512969970703125e-4f) - k * 7.549789954891882e-8f;
}

// Minimax polynomials of Cephes (Moshier 1992), for |r| <= pi/4.
MATH_FN float m_sin_poly(float r) {
    float z = r * r;
    return ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * r + r;
}
MATH_FN float m_cos_poly(float r) {
    float z = r * r;
    float high = (2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f;
    return high * z * z - 0.5f * z + 1.0f;
}

// sin(x + quarter * pi/2): the quadrant picks the polynomial and the sign.
MATH_FN float m_sin_shifted(float x, int32_t quarter) {
    float shifted = x * 0.636619772367581f + M_ROUNDER;
    int32_t n = m_bits(shifted) + quarter;
    float r = m_reduce(x, shifted - M_ROUNDER);
    int32_t odd = -(n & 1);
    int32_t bits = (m_bits(m_cos_poly(r)) & odd) | (m_bits(m_sin_poly(r)) & ~odd);
    return m_from_bits(bits ^ (int32_t)((uint32_t)(n & 2) << 30));
}

// |x| <= 8192 rad.
MATH_FN float m_sin(float x) { return m_sin_shifted(x, 0); }
MATH_FN float m_cos(float x) { return m_sin_shifted(x, 1); }
MATH_FN float m_tan(float x) { return m_sin(x) / m_cos(x); }

// Angle of (x, y) from the x axis, in [-pi, pi]; signed zeros as in C. For finite x and y, at most one of them
// infinite.
MATH_FN float m_atan2(float y, float x) {
    float ax = m_abs(x), ay = m_abs(y);
    float lo = m_min(ax, ay), hi = m_max(ax, ay);
    // atan(a) = pi/4 + atan((a - 1) / (a + 1)) reduces a = lo/hi to below tan(pi/8)
    int32_t far = lo > 0.4142135623731f * hi;
    float num = far ? lo - hi : lo;
    float den = far ? lo + hi : hi;
    float a = num / (den > 0.0f ? den : 1.0f);
    float z = a * a;
    float poly = ((8.05374449538e-2f * z - 1.38776856032e-1f) * z + 1.99777106478e-1f) * z;
    float angle = (poly - 3.33329491539e-1f) * z * a + a;
    angle = far ? angle + 0.785398163397448f : angle;
    angle = ay > ax ? 1.570796326794897f - angle : angle;
    angle = m_bits(x) < 0 ? M_PI_F - angle : angle;
    return m_bits(y) < 0 ? -angle : angle;
}

// 2^n for -126 <= n <= 127.
MATH_FN float m_exp2i(int32_t n) { return m_from_bits((n + 127) << 23); }

MATH_FN float m_exp(float x) {
    float c = m_clamp(x, -104.0f, 89.0f);
    float k = (c * 1.442695040888963f + M_ROUNDER) - M_ROUNDER;
    int32_t n = (int32_t)k;
    float r = (c - k * 0.693359375f) + k * 2.12194440054690583e-4f;
    float p = ((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r;
    p = (((p + 4.1665795894e-2f) * r + 1.6666665459e-1f) * r + 5.0000001201e-1f) * r * r + r + 1.0f;
    int32_t half = n / 2;  // two factors keep results below 2^-126 exact
    float y = p * m_exp2i(half) * m_exp2i(n - half);
    return x == x ? y : x;
}

MATH_FN float m_log(float x) {
    int32_t tiny = x < 1.17549435e-38f;  // subnormal: scale it up by 2^23 first
    int32_t bits = m_bits(tiny ? x * 8388608.0f : x);
    int32_t e = ((bits >> 23) & 0xff) - 126 - (tiny ? 23 : 0);
    float m = m_from_bits((bits & 0x007fffff) | 0x3f000000);  // [0.5, 1)
    int32_t low = m < 0.707106781186548f;
    float k = (float)(low ? e - 1 : e);
    m = (low ? m + m : m) - 1.0f;
    float z = m * m;
    float p = ((7.0376836292e-2f * m - 1.1514610310e-1f) * m + 1.1676998740e-1f) * m;
    p = ((p - 1.2420140846e-1f) * m + 1.4249322787e-1f) * m - 1.6668057665e-1f;
    p = ((p * m + 2.0000714765e-1f) * m - 2.4999993993e-1f) * m + 3.3333331174e-1f;
    float y = p * m * z - 2.12194440054690583e-4f * k - 0.5f * z;
    y = (m + y) + 0.693359375f * k;
    y = x == 0.0f ? -M_INF : y;
    y = x < 0.0f ? m_from_bits(0x7fc00000) : y;
    return x < M_INF ? y : x;  // inf and NaN are returned unchanged
}

// x^y by log and exp in double: the result is exact to the last bit or two of a float.
MATH_FN float m_pow(float x, float y) {
    float ax = m_abs(x);
    int32_t tiny = ax < 1.17549435e-38f;
    int32_t bits = m_bits(tiny ? ax * 8388608.0f : ax);
    int32_t e = ((bits >> 23) & 0xff) - 126 - (tiny ? 23 : 0);
    float half = m_from_bits((bits & 0x007fffff) | 0x3f000000);
    int32_t low = half < 0.707106781186548f;
    double m = low ? 2.0 * (double)half : (double)half;
    double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 1.0 / 17.0;  // this and the next block look alike: two series in Horner form
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    p = p * z + 1.0;
    double log_x = (double)(low ? e - 1 : e) * 0.693147180559945309 + 2.0 * s * p;

    double t = (double)y * log_x;
    t = t < 200.0 ? t : 200.0;
    t = t > -200.0 ? t : -200.0;
    int32_t n = (int32_t)(t * 1.442695040888963407 + (t >= 0.0 ? 0.5 : -0.5));
    double r = t - (double)n * 0.693147180559945309;
    double q = 1.0 / 3628800.0;
    q = q * r + 1.0 / 362880.0;
    q = q * r + 1.0 / 40320.0;
    q = q * r + 1.0 / 5040.0;
    q = q * r + 1.0 / 720.0;
    q = q * r + 1.0 / 120.0;
    q = q * r + 1.0 / 24.0;
    q = q * r + 1.0 / 6.0;
    q = q * r + 0.5;
    q = q * r + 1.0;
    q = q * r + 1.0;
    int64_t scale_bits = (int64_t)(n + 1023) << 52;
    double scale;
    memcpy(&scale, &scale_bits, sizeof scale);
    double wide = q * scale;
    float value = wide > 3.4028235677973366e38 ? M_INF : (float)wide;

    float y_half = y * 0.5f;
    int32_t is_int = m_floor(y) == y, is_odd = is_int & (m_floor(y_half) != y_half);
    float zero_base = y < 0.0f ? M_INF : 0.0f;
    float inf_base = y < 0.0f ? 0.0f : M_INF;
    value = ax == 0.0f ? zero_base : value;
    value = ax == M_INF ? inf_base : value;
    float of_negative = is_odd ? -value : (is_int | (ax == 0.0f)) ? value : m_from_bits(0x7fc00000);
    value = m_bits(x) < 0 ? of_negative : value;
    value = ((x != x) | (y != y)) ? x + y : value;
    return ((y == 0.0f) | (x == 1.0f)) ? 1.0f : value;
}

#endif
