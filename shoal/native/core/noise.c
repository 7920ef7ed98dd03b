// noise.c: random numbers for sampling actions, for ActionHead.draw (nn/distributions.py).
#include "clock.h"
#include "simd.h"

// Number `i` of the stream `seed`: SplitMix64 (Steele et al. 2014), whose numbers can be computed in any order.
INLINE uint64_t random_bits(uint64_t seed, uint64_t i) {
    uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// Fills out with Gumbel noise, -log(-log(u)): the largest of logits plus noise is a sample of their softmax.
SHOAL_API void shoal_gumbel(uint64_t seed, int64_t count, float *out) {
    float uniform[LANES];
    for (int64_t first = 0; first < count; first += LANES) {
        for (int k = 0; k < LANES; k++) {  // 23 bits: with 24 the largest rounds to 1, and its noise is 265
            uint32_t bits = (uint32_t)(random_bits(seed, (uint64_t)(first + k)) >> 41);
            uniform[k] = ((float)bits + 0.5f) * 0x1p-23f;
        }
        Lanes noise = -log_of(-log_of(load(uniform)));
        if (count - first >= LANES) {
            store(out + first, noise);
        } else {
            for (int64_t k = 0; k < count - first; k++) out[first + k] = noise[k];
        }
    }
}
