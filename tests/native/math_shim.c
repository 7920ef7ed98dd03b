// Exposes core/math.h and the RNG over arrays, for tests/test_math.py.
#define ENV_OBS OBS_F32(1)
#define ENV_ACTION ACT_DISCRETE(1)
#include "core/env.h"

#define EACH(NAME)                                                                                                     \
    void each_##NAME(const float *x, float *y, int64_t n) {                                                            \
        for (int64_t i = 0; i < n; i++) y[i] = m_##NAME(x[i]);                                                         \
    }
#define EACH2(NAME)                                                                                                    \
    void each_##NAME(const float *a, const float *b, float *y, int64_t n) {                                            \
        for (int64_t i = 0; i < n; i++) y[i] = m_##NAME(a[i], b[i]);                                                   \
    }
EACH(sin)
EACH(cos)
EACH(tan)
EACH(exp)
EACH(log)
EACH(sqrt)
EACH(floor)
EACH(abs)
EACH2(atan2)
EACH2(pow)

void draw_u32(uint64_t seed, uint32_t *y, int64_t n) {
    Rng r = rng_seed(seed);
    for (int64_t i = 0; i < n; i++) y[i] = rng_u32(&r);
}
void draw_uniform(uint64_t seed, float *y, int64_t n) {
    Rng r = rng_seed(seed);
    for (int64_t i = 0; i < n; i++) y[i] = rng_uniform(&r, -1.0f, 3.0f);
}
void draw_int(uint64_t seed, int32_t bound, int32_t *y, int64_t n) {
    Rng r = rng_seed(seed);
    for (int64_t i = 0; i < n; i++) y[i] = rng_int(&r, bound);
}
void draw_normal(uint64_t seed, float *y, int64_t n) {
    Rng r = rng_seed(seed);
    for (int64_t i = 0; i < n; i++) y[i] = rng_normal(&r);
}
