// words.h: 64 bits as a set, for the board games.
#ifndef SHOAL_BOARD_WORDS_H
#define SHOAL_BOARD_WORDS_H

ENV_FN int32_t count_bits(uint64_t x) {
    x -= (x >> 1) & 0x5555555555555555ULL;
    x = (x & 0x3333333333333333ULL) + ((x >> 2) & 0x3333333333333333ULL);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
    return (int32_t)((x * 0x0101010101010101ULL) >> 56);
}
ENV_FN float as_float(uint32_t bit) { return m_from_bits((int32_t)((0u - bit) & 0x3f800000u)); }

#endif
