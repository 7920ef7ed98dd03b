// tetris.h: fit falling pieces of four cells together; full rows vanish.
//
// The rules of the Tetris guideline, as far as one player at one speed needs them. The field has 10 columns and 20
// rows, and two rows above them where pieces appear. Pieces come from a bag: each of the seven kinds once in every
// seven. Rotations and their wall kicks are those of the Super Rotation System; a piece may not leave the top. A piece
// falls by a row every `gravity` steps and locks where it can fall no further; a hard drop locks it at once. Hold puts
// a piece aside, or swaps it with the one there, once for each piece. The game is over if a piece locks wholly above
// the 20 rows, or if there is no room for the next.
//
// obs: 200 cells row by row from the top, 1 where a locked cell is; the height of each column / 22; cells of the
// falling piece in each column / 4; its kind (7, one-hot: I J L O S T Z) and rotation (4, one-hot); its place x and y,
// and how far it can drop, / 22; the held kind (7; none: zeros) and 1 if hold is allowed; steps since it last fell /
// gravity; of a hard drop now, the rows that it would fill / 4 and the empty cells that it would cover, up to 16, / 16;
// the next pieces (7 each).
// action: 0 nothing, 1 left, 2 right, 3 rotate right, 4 rotate left, 5 soft drop (falls a row, or locks), 6 hard drop,
// 7 hold. An action that is not possible does nothing.
// reward: hundredths of the guideline's points: 1, 3, 5, 8 for 1 to 4 rows at once, 0.01 for each row of a soft drop,
// 0.02 for each of a hard drop.
// Random play returns 2.6. A player of Dellacherie's kind (tests/tetris_twin.py) survives all 2,000 steps and returns
// 382: 187 rows, mostly one at a time.
#define ENV_OBS OBS_F32(245 + 7 * preview)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(8)
#define ENV_MAX_STEPS 2000
#define ENV_HAS_CHECK
#define ENV_CONSTS(X) X(preview, 3, "next pieces that are observed")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, gravity, 6, "steps per row of falling")                                                                     \
    X(int, hold, 1, "1: a piece can be put aside; 0: hold does nothing")
#define ENV_LIMITS(X) X("gravity", 1, 1000) X("hold", 0, 1) X("preview", 0, 7)
#define ENV_STATS(X)                                                                                                   \
    X(sum, score, "points of the guideline")                                                                           \
    X(sum, rows, "rows cleared")                                                                                       \
    X(sum, tetrises, "four rows at once")                                                                              \
    X(sum, pieces, "pieces locked")                                                                                    \
    X(last, height, "rows of the highest column at the end")
#include "core/env.h"
ENV_REQUIRE(preview >= 0 && preview <= 7, "preview must be 0 to 7");

// The field in a frame of solid cells, so that a piece and its kicks never leave the array. A row is 16 bits, of which
// 4 to 13 are the columns.
enum { COLUMNS = 10, ROWS = 22, HIDDEN = 2, FRAME = 4, WALL = 0xc00f, FULL = 0xffff };
enum { I, J, L, O, S, T, Z, KINDS, NONE = KINDS };
enum { STAY, LEFT, RIGHT, TURN_RIGHT, TURN_LEFT, SOFT, HARD, HOLD };

typedef struct {
    uint16_t field[ROWS + 2 * FRAME];
    uint32_t kinds[ROWS];              // what locked in each column, 3 bits for each: for the picture
    int32_t piece, turn, x, y;         // kind, quarter turns to the right, place of its box's top left cell
    int32_t held, may_hold;            // a kind or NONE
    int32_t timer;                     // steps since it fell
    int32_t queued, queue[2 * KINDS];  // at least seven
    int32_t score;
} State;

// Cells of a piece in a box of 4 x 4: bit 4 * row + column, for four turns.
ENV_DATA uint32_t shapes[KINDS][4] = {{0x00f0, 0x4444, 0x0f00, 0x2222}, {0x0071, 0x0226, 0x0470, 0x0322},
                                      {0x0074, 0x0622, 0x0170, 0x0223}, {0x0066, 0x0066, 0x0066, 0x0066},
                                      {0x0036, 0x0462, 0x0360, 0x0231}, {0x0072, 0x0262, 0x0270, 0x0232},
                                      {0x0063, 0x0264, 0x0630, 0x0132}};

// Where a turn is tried: x to the right and y down, by the turn before and the direction (right, left).
ENV_DATA int8_t kicks[2][8][4][2] = {{{{-1, 0}, {-1, -1}, {0, 2}, {-1, 2}},
                                      {{1, 0}, {1, -1}, {0, 2}, {1, 2}},
                                      {{1, 0}, {1, 1}, {0, -2}, {1, -2}},
                                      {{1, 0}, {1, 1}, {0, -2}, {1, -2}},
                                      {{1, 0}, {1, -1}, {0, 2}, {1, 2}},
                                      {{-1, 0}, {-1, -1}, {0, 2}, {-1, 2}},
                                      {{-1, 0}, {-1, 1}, {0, -2}, {-1, -2}},
                                      {{-1, 0}, {-1, 1}, {0, -2}, {-1, -2}}},
                                     {{{-2, 0}, {1, 0}, {-2, 1}, {1, -2}},
                                      {{-1, 0}, {2, 0}, {-1, -2}, {2, 1}},
                                      {{-1, 0}, {2, 0}, {-1, -2}, {2, 1}},
                                      {{2, 0}, {-1, 0}, {2, -1}, {-1, 2}},
                                      {{2, 0}, {-1, 0}, {2, -1}, {-1, 2}},
                                      {{1, 0}, {-2, 0}, {1, 2}, {-2, -1}},
                                      {{1, 0}, {-2, 0}, {1, 2}, {-2, -1}},
                                      {{-2, 0}, {1, 0}, {-2, 1}, {1, -2}}}};

ENV_FN uint32_t row_of(uint32_t shape, int32_t row, int32_t x) { return (shape >> 4 * row & 15) << (x + FRAME); }

ENV_FN int32_t fits(const State *s, int32_t turn, int32_t x, int32_t y) {
    uint32_t shape = shapes[s->piece][turn], hit = 0;
    for (int32_t k = 0; k < 4; k++) hit |= row_of(shape, k, x) & (s->field[y + FRAME + k] | 0xffff0000u);
    return hit == 0;
}

ENV_FN void appear(State *s, int32_t piece) {
    s->piece = piece;
    s->turn = s->y = s->timer = 0;
    s->x = 3;
}

ENV_FN void add_bag(State *s, Rng *rng) {
    int32_t *bag = &s->queue[s->queued];
    for (int32_t k = 0; k < KINDS; k++) bag[k] = k;
    for (int32_t k = 0; k < KINDS - 1; k++) {
        int32_t pick = k + rng_int(rng, KINDS - k), kind = bag[pick];
        bag[pick] = bag[k];
        bag[k] = kind;
    }
    s->queued += KINDS;
}

// The next piece of the queue, in which at least seven stay.
ENV_FN int32_t draw_piece(State *s, Rng *rng) {
    if (s->queued <= KINDS) add_bag(s, rng);
    int32_t piece = s->queue[0];
    s->queued--;
    for (int32_t k = 0; k < 2 * KINDS - 1; k++) s->queue[k] = s->queue[k + 1];
    return piece;
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    for (int32_t k = 0; k < ROWS + 2 * FRAME; k++) s->field[k] = k >= FRAME && k < ROWS + FRAME ? WALL : FULL;
    for (int32_t k = 0; k < ROWS; k++) s->kinds[k] = 0;
    for (int32_t k = 0; k < 2 * KINDS; k++) s->queue[k] = 0;
    s->queued = s->score = 0;
    s->held = NONE;
    s->may_hold = 1;
    add_bag(s, rng);
    appear(s, draw_piece(s, rng));
}

// Takes full rows out. Returns how many.
ENV_FN int32_t clear_rows(State *s) {
    int32_t to = ROWS - 1;
    for (int32_t row = ROWS - 1; row >= 0; row--) {
        if (s->field[row + FRAME] == FULL) continue;
        s->field[to + FRAME] = s->field[row + FRAME];
        s->kinds[to--] = s->kinds[row];
    }
    for (int32_t row = 0; row <= to; row++) {
        s->field[row + FRAME] = WALL;
        s->kinds[row] = 0;
    }
    return to + 1;
}

// The piece becomes part of the field, and the next one appears. Returns the points.
ENV_FN int32_t lock_piece(State *s, Step *out, Rng *rng) {
    const int32_t points[] = {0, 100, 300, 500, 800};
    int32_t is_seen = 0;
    for (int32_t k = 0; k < 4; k++) {
        uint32_t cells = row_of(shapes[s->piece][s->turn], k, s->x);
        int32_t row = s->y + k;
        if (cells == 0 || row < 0 || row >= ROWS) continue;
        is_seen |= row >= HIDDEN;
        s->field[row + FRAME] |= (uint16_t)cells;
        for (int32_t c = 0; c < COLUMNS; c++) {
            if (cells >> (c + FRAME) & 1)
                s->kinds[row] = (s->kinds[row] & ~(7u << 3 * c)) | (uint32_t)s->piece << 3 * c;
        }
    }
    int32_t rows = i_clamp(clear_rows(s), 0, 4);
    s->may_hold = 1;
    appear(s, draw_piece(s, rng));
    out->stats.rows = (float)rows;
    out->stats.tetrises = (float)(rows == 4);
    out->stats.pieces = 1.0f;
    out->terminated = !is_seen || !fits(s, 0, s->x, s->y);
    return points[rows];
}

ENV_FN void turn_piece(State *s, int32_t is_left) {
    int32_t turn = (s->turn + (is_left ? 3 : 1)) & 3;
    if (fits(s, turn, s->x, s->y)) {
        s->turn = turn;
        return;
    }
    for (int32_t k = 0; s->piece != O && k < 4; k++) {
        const int8_t *kick = kicks[s->piece == I][2 * s->turn + is_left][k];
        if (!fits(s, turn, s->x + kick[0], s->y + kick[1])) continue;
        s->turn = turn;
        s->x += kick[0];
        s->y += kick[1];
        return;
    }
}

ENV_FN int32_t drop_of(const State *s) {  // rows that the piece can fall
    int32_t rows = 0;
    while (rows < ROWS && fits(s, s->turn, s->x, s->y + rows + 1)) rows++;
    return rows;
}

ENV_FN int32_t highest(const State *s) {
    int32_t row = 0;
    while (row < ROWS && s->field[row + FRAME] == WALL) row++;
    return ROWS - row;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t points = 0, aside = (*a == RIGHT) - (*a == LEFT);
    if (aside && fits(s, s->turn, s->x + aside, s->y)) s->x += aside;
    if (*a == TURN_RIGHT || *a == TURN_LEFT) turn_piece(s, *a == TURN_LEFT);
    if (*a == HOLD && s->may_hold && p->hold) {
        int32_t held = s->held;
        s->held = s->piece;
        appear(s, held == NONE ? draw_piece(s, rng) : held);
        s->may_hold = 0;
        out->terminated = !fits(s, 0, s->x, s->y);
    }
    if (*a == HARD) {
        int32_t rows = drop_of(s);
        s->y += rows;
        points = 2 * rows + lock_piece(s, out, rng);
    } else if (!out->terminated && (++s->timer >= p->gravity || *a == SOFT)) {
        s->timer = 0;
        if (fits(s, s->turn, s->x, s->y + 1)) {
            s->y++;
            points = *a == SOFT;
        } else {
            points = lock_piece(s, out, rng);
        }
    }
    s->score += points;
    out->reward = (float)points * 0.01f;
    out->stats.score = (float)points;
    out->stats.height = (float)highest(s);
}

// What a hard drop would do: the rows that it would fill, and the empty cells that it would cover. tops[c] is the row
// of the highest cell of column c.
ENV_FN void foresee(const State *s, const int32_t *tops, int32_t drop, int32_t *filled, int32_t *covered) {
    uint32_t shape = shapes[s->piece][s->turn], below = 0;
    for (int32_t k = 3; k >= 0; k--) {
        uint32_t cells = shape >> 4 * k & 15, lowest = cells & ~below;
        int32_t row = s->y + drop + k;
        below |= cells;
        *filled += cells != 0 && (s->field[row + FRAME] | row_of(shape, k, s->x)) == FULL;
        for (int32_t j = 0; j < 4; j++) {
            int32_t c = s->x + j;
            if (lowest >> j & 1 && c >= 0 && c < COLUMNS) *covered += i_max(tops[c] - 1 - row, 0);
        }
    }
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    for (int32_t row = 0; row < ROWS - HIDDEN; row++) {
        uint32_t cells = (uint32_t)s->field[row + HIDDEN + FRAME] >> FRAME;
        for (int32_t c = 0; c < COLUMNS; c++) obs[row * COLUMNS + c] = (float)(cells >> c & 1);
    }
    Obs *at = obs + 200;
    uint32_t seen = 0, shape = shapes[s->piece][s->turn];
    int32_t tops[COLUMNS], drop = drop_of(s), filled = 0, covered = 0;
    for (int32_t c = 0; c < OBS_SIZE - 200; c++) at[c] = 0.0f;
    for (int32_t c = 0; c < COLUMNS; c++) tops[c] = ROWS;
    for (int32_t row = 0; row < ROWS && seen != 0x3ff; row++) {
        uint32_t cells = (uint32_t)s->field[row + FRAME] >> FRAME & 0x3ff, fresh = cells & ~seen;
        seen |= cells;
        for (int32_t c = 0; fresh; c++, fresh >>= 1) tops[c] = fresh & 1 ? row : tops[c];
    }
    for (int32_t c = 0; c < COLUMNS; c++) at[c] = (float)(ROWS - tops[c]) / (float)ROWS;
    for (int32_t k = 0; k < 16; k++) {
        int32_t c = s->x + k % 4;
        if (shape >> k & 1 && c >= 0 && c < COLUMNS) at[COLUMNS + c] += 0.25f;
    }
    foresee(s, tops, drop, &filled, &covered);
    at += 2 * COLUMNS;
    at[s->piece] = 1.0f;
    at[KINDS + s->turn] = 1.0f;
    at += KINDS + 4;
    at[0] = (float)(s->x + 2) / (float)ROWS;
    at[1] = (float)(s->y + 2) / (float)ROWS;
    at[2] = (float)drop / (float)ROWS;
    if (s->held != NONE) at[3 + s->held] = 1.0f;
    at[10] = (float)(s->may_hold && p->hold);
    at[11] = m_min((float)s->timer / (float)i_max(p->gravity, 1), 1.0f);
    at[12] = 0.25f * (float)filled;
    at[13] = (float)i_min(covered, 16) / 16.0f;
    for (int32_t k = 0; k < preview; k++) at[14 + KINDS * k + s->queue[k]] = 1.0f;
}

// The frame is solid and the piece is inside it, so that no kick leaves the array; kinds are kinds.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    int32_t is_safe = s->piece >= 0 && s->piece < KINDS && s->turn >= 0 && s->turn < 4 && s->held >= 0 &&
                      s->held <= NONE && s->queued >= KINDS && s->queued < 2 * KINDS && s->x >= -2 && s->x <= 8 &&
                      s->y >= -2 && s->y <= 20 && s->timer >= 0 && s->timer < 1000000 && s->score >= 0 &&
                      s->score < 1 << 30 && s->may_hold >= 0 && s->may_hold <= 1;
    for (int32_t k = 0; k < ROWS + 2 * FRAME; k++) {
        int32_t is_inside = k >= FRAME && k < ROWS + FRAME;
        is_safe &= is_inside ? (s->field[k] & WALL) == WALL && s->field[k] != FULL : s->field[k] == FULL;
    }
    for (int32_t k = 0; k < 2 * KINDS; k++) is_safe &= s->queue[k] >= 0 && s->queue[k] < KINDS;
    return is_safe;
}

ENV_DATA uint32_t kind_colors[8] = {0x37c2b3, 0x4a7bd3, 0xf2a65a, 0xf2d35a, 0x7bd389, 0xa56fd3, 0xe2556d, 0x4a5b78};

ENV_FN void draw_cell(Draw *d, float x, float y, float size, uint32_t color) {
    draw_rect(d, x + 0.04f * size, y + 0.04f * size, 0.92f * size, 0.92f * size, color);
}

ENV_FN void draw_kind(Draw *d, int32_t kind, int32_t turn, float x, float y, float size, uint32_t color) {
    for (int32_t k = 0; k < 16; k++) {
        float at = y + size * (float)(k / 4);
        if (shapes[kind][turn] >> k & 1) draw_cell(d, x + size * (float)(k % 4), at, size, color);
    }
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, -4.5f, -0.5f, 14.5f, 22.5f, 0x0e1726);
    draw_rect(d, -0.2f, 2.0f, 10.4f, 20.2f, 0x4a5b78);
    draw_rect(d, 0.0f, 2.0f, 10.0f, 20.0f, 0x16233a);
    draw_text(d, -4.2f, 2.6f, 0.7f, "HOLD", 0xffffff);
    if (s->held != NONE) draw_kind(d, s->held, 0, -4.0f, 3.6f, 0.8f, kind_colors[s->may_hold ? s->held : NONE]);
    draw_text(d, 10.6f, 2.6f, 0.7f, "NEXT", 0xffffff);
    for (int32_t k = 0; k < preview; k++) {
        draw_kind(d, s->queue[k], 0, 10.8f, 3.6f + 2.4f * (float)k, 0.8f, kind_colors[s->queue[k]]);
    }
    draw_text(d, -4.2f, 7.6f, 0.7f, "SCORE", 0xffffff);
    draw_value(d, -4.2f, 8.6f, 0.7f, "", s->score, 0xffffff);
    for (int32_t k = 0; k < ROWS * COLUMNS; k++) {
        int32_t row = k / COLUMNS, c = k % COLUMNS;
        uint32_t kind = s->kinds[row] >> 3 * c & 7;
        if (s->field[row + FRAME] >> (c + FRAME) & 1) draw_cell(d, (float)c, (float)row, 1.0f, kind_colors[kind]);
    }
    draw_kind(d, s->piece, s->turn, (float)s->x, (float)(s->y + drop_of(s)), 1.0f, 0x2c3d5c);
    draw_kind(d, s->piece, s->turn, (float)s->x, (float)s->y, 1.0f, kind_colors[s->piece]);
}
