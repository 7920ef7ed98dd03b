// board.h: what the five MinAtar games share: a board of 10 x 10 cells, sticky actions, planes, pictures.
//
// A game's header defines ENV_OBS, ENV_PARAMS, ENV_LIMITS and ENV_STATS, includes this file, and then has rules of its
// own. x counts from the left, y from the top. An observation has a byte, 0 or 1, for every cell and channel, the
// channels of a cell side by side.
#ifndef SHOAL_MINATAR_BOARD_H
#define SHOAL_MINATAR_BOARD_H

#define ENV_OBS_LOW 0
#define ENV_OBS_HIGH 1
#define ENV_ACTION ACT_DISCRETE(6)
#define ENV_HAS_CHECK
#define ENV_MAX_STEPS 10000
#include "core/env.h"

enum { SIDE = 10, EDGE = SIDE - 1, CHANNELS = OBS_SIZE / (SIDE * SIDE) };
enum { STAY, LEFT, UP, RIGHT, DOWN, FIRE };  // actions

ENV_FN int32_t is_inside(int32_t x) { return x >= 0 && x <= EDGE; }

// Whether a counter of a restored state is far from overflow.
ENV_FN int32_t is_small(int32_t n) { return n > -(1 << 30) && n < 1 << 30; }

// With probability `sticky` the action that was played last is played again. Every step draws one number.
ENV_FN int32_t stick(uint8_t *last, float sticky, int32_t action, Rng *rng) {
    *last = rng_uniform(rng, 0.0f, 1.0f) < sticky ? *last : (uint8_t)action;
    return *last;
}

ENV_FN void clear_planes(Obs *obs) {
    for (int32_t k = 0; k < OBS_SIZE; k++) obs[k] = 0;
}
ENV_FN void mark(Obs *obs, int32_t x, int32_t y, int32_t channel) { obs[(y * SIDE + x) * CHANNELS + channel] = 1; }
// The trail of something shows where it comes from; one that has just entered the board has none.
ENV_FN void mark_trail(Obs *obs, int32_t x, int32_t y, int32_t channel) {
    if (is_inside(x)) mark(obs, x, y, channel);
}

// ---- pictures: one unit per cell, a line of text below the board ----

#define BACKGROUND 0x0e1726
#define FRAME_COLOR 0x24334d
#define TEAL 0x37c2b3
#define ORANGE 0xf2a65a
#define RED 0xe2556d
#define GREY 0x4a5b78
#define WHITE 0xffffff

ENV_FN void draw_board(Draw *d, uint32_t ground) {
    draw_view(d, -0.3f, -0.3f, 10.3f, 11.3f, BACKGROUND);
    draw_rect(d, -0.1f, -0.1f, 10.2f, 10.2f, FRAME_COLOR);
    draw_rect(d, 0.0f, 0.0f, 10.0f, 10.0f, ground);
}
ENV_FN void draw_score(Draw *d, float x, const char *label, int32_t value) {
    draw_value(d, x, 10.7f, 0.55f, label, value, WHITE);
}

#endif
