// snake.h: many snakes on one board eat, grow, and must not run into anything.
//
// The game of the Blockade arcade machine (1976), played by several agents at once. All snakes move by a cell in every
// step. Food makes a snake longer by one. A snake dies that meets a wall or a body, its own included; if two heads come
// to one cell, both die. The cell that a tail leaves is free within the step. A dead snake is taken off the board, or
// becomes food (`remains`). A snake starts as one cell and grows to `start_length`. Food that was eaten appears
// elsewhere: in each step one random cell is tried, and it takes if the cell is empty.
//
// obs: the cells around the head, turned so that the snake faces up, each as five bytes: 1 for a wall, food, the own
// body, the body of another, the head of another.
// action: 0 straight on, 1 turn left, 2 turn right.
// reward: 1 for food, -`death` for dying.
// Random play returns -0.13 per agent. Going to the nearest food in sight and never into anything (tests/snake_twin.py)
// returns 26 in at most 500 steps.
#define ENV_OBS OBS_U8(view, view, 5)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(3)
#define ENV_AGENTS agents
#define ENV_MAX_STEPS 500
#define ENV_HAS_CHECK
#define ENV_CONSTS(X)                                                                                                  \
    X(agents, 8, "snakes on the board")                                                                                \
    X(side, 24, "cells per side of the board")                                                                         \
    X(view, 9, "cells per side of what a snake sees; odd")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, food, 24, "food on the board; at most half of its cells")                                                   \
    X(int, start_length, 3, "cells that a snake grows to without food")                                                \
    X(int, remains, 0, "what a dead snake leaves")                                                                     \
    X(float, death, 1.0f, "reward lost by dying")
#define ENV_LIMITS(X)                                                                                                  \
    X("agents", 1, 32)                                                                                                 \
    X("side", 6, 64) X("view", 3, 31) X("food", 0, 1000) X("start_length", 2, 100) X("death", 0, 1000)
#define ENV_CHOICES(X) X("remains", "nothing food")
#define ENV_STATS(X)                                                                                                   \
    X(sum, eaten, "food eaten, all snakes together")                                                                   \
    X(sum, deaths_by_wall, "snakes that met a wall")                                                                   \
    X(sum, deaths_by_self, "snakes that met their own body")                                                           \
    X(sum, deaths_by_other, "snakes that met another one")                                                             \
    X(last, longest, "cells of the longest snake, dead or alive")
#include "core/env.h"

enum { border = view / 2, wide = side + 2 * border, num_cells = wide * wide };  // the board in a frame of wall
ENV_REQUIRE(view % 2 == 1, "view must be odd");
ENV_REQUIRE(agents * 2 <= side * side, "the board must hold all snakes");

// A cell is one byte. A part of a body has its snake and the way to the next part, towards the head.
enum { EMPTY, FOOD, WALL, BODY = 128 };
enum { STRAIGHT, TURN_LEFT, TURN_RIGHT };

typedef struct {
    uint8_t map[num_cells];
    uint8_t is_alive[agents];
    uint8_t heading[agents];  // 0 up, 1 right, 2 down, 3 left
    int32_t head[agents], tail[agents];
    int32_t length[agents];  // of a dead one: before it died
    int32_t growth[agents];  // cells still to grow
    int32_t food;            // on the board
} State;

ENV_FN int32_t ahead(int32_t heading) {
    int32_t forth = heading < 2 ? 1 : -1;
    return heading & 1 ? forth : -forth * wide;
}
ENV_FN uint8_t body_of(int32_t snake, int32_t heading) { return (uint8_t)(BODY | snake << 2 | heading); }
ENV_FN int32_t owner(int32_t cell) { return (cell & 127) >> 2; }
ENV_FN int32_t on_map(int32_t cell) { return (cell / side + border) * wide + cell % side + border; }

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    uint16_t cells[side * side];
    for (int32_t k = 0; k < num_cells; k++) s->map[k] = WALL;
    for (int32_t k = 0; k < side * side; k++) {
        cells[k] = (uint16_t)k;
        s->map[on_map(k)] = EMPTY;
    }
    s->food = i_clamp(p->food, 0, side * side / 2);
    for (int32_t k = 0; k < agents + s->food; k++) {  // each on a random cell of its own
        int32_t pick = k + rng_int(rng, side * side - k), at = on_map(cells[pick]);
        cells[pick] = cells[k];
        if (k >= agents) {
            s->map[at] = FOOD;
            continue;
        }
        s->heading[k] = (uint8_t)rng_int(rng, 4);
        s->map[at] = body_of(k, s->heading[k]);
        s->head[k] = s->tail[k] = at;
        s->is_alive[k] = s->length[k] = 1;
        s->growth[k] = i_clamp(p->start_length, 2, 100) - 1;
    }
}

// Takes a dead snake off the board.
ENV_FN void clear_body(State *s, const Params *p, int32_t snake) {
    int32_t count = 0;
    uint8_t left = p->remains ? (uint8_t)FOOD : (uint8_t)EMPTY;
    for (int32_t k = 0; k < num_cells; k++) {
        int32_t is_part = s->map[k] >= BODY && owner(s->map[k]) == snake;
        s->map[k] = is_part ? left : s->map[k];
        count += is_part;
    }
    s->food += p->remains ? count : 0;
    s->is_alive[snake] = 0;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t target[agents], grows[agents], dies[agents];
    for (int32_t i = 0; i < agents; i++) {  // tails leave, unless the snake grows
        target[i] = grows[i] = 0;
        if (!s->is_alive[i]) continue;
        s->heading[i] = (uint8_t)((s->heading[i] + (a[i] == TURN_RIGHT) + 3 * (a[i] == TURN_LEFT)) & 3);
        target[i] = s->head[i] + ahead(s->heading[i]);
        s->map[s->head[i]] = body_of(i, s->heading[i]);
        s->growth[i] += s->map[target[i]] == FOOD;
        grows[i] = s->growth[i] > 0;
        if (grows[i]) {
            s->growth[i]--;
        } else if (s->map[s->tail[i]] >= BODY) {
            int32_t left = s->tail[i];
            s->tail[i] += ahead(s->map[left] & 3);
            s->map[left] = EMPTY;
        }
    }
    for (int32_t i = 0; i < agents; i++) {
        dies[i] = 0;
        if (!s->is_alive[i]) continue;
        int32_t cell = s->map[target[i]], is_met = 0;
        for (int32_t j = 0; j < agents; j++) is_met |= j != i && target[j] == target[i];
        dies[i] = is_met || cell >= WALL;
        if (!dies[i]) continue;
        out->rewards[i] = -p->death;
        out->terminations[i] = 1;
        out->stats.deaths_by_wall += (float)(cell == WALL);
        out->stats.deaths_by_self += (float)(cell >= BODY && owner(cell) == i);
        out->stats.deaths_by_other += (float)(cell >= BODY ? owner(cell) != i : cell != WALL);
    }
    for (int32_t i = 0; i < agents; i++) {
        if (dies[i]) clear_body(s, p, i);
    }
    for (int32_t i = 0; i < agents; i++) {
        if (!s->is_alive[i]) continue;
        if (s->map[target[i]] == FOOD) {
            out->rewards[i] = 1.0f;
            out->stats.eaten += 1.0f;
            s->food--;
        }
        s->head[i] = target[i];
        s->map[target[i]] = body_of(i, s->heading[i]);
        s->length[i] += grows[i];
    }
    for (int32_t i = 0; i < agents; i++) out->stats.longest = m_max(out->stats.longest, (float)s->length[i]);
    int32_t at = on_map(rng_int(rng, side * side));
    if (s->food < i_min(p->food, side * side / 2) && s->map[at] == EMPTY) {
        s->map[at] = FOOD;
        s->food++;
    }
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p;
    int32_t forward = ahead(s->heading[agent]), right = ahead((s->heading[agent] + 1) & 3);
    for (int32_t k = 0; k < OBS_SIZE; k++) obs[k] = 0;
    for (int32_t y = 0; y < view; y++) {
        int32_t at = s->head[agent] + (border - y) * forward - border * right;
        for (int32_t x = 0; x < view; x++, at += right) {
            int32_t cell = s->map[at], other = owner(cell);
            if (cell == EMPTY) continue;
            int32_t kind = cell == WALL ? 0 : cell == FOOD ? 1 : other == agent ? 2 : s->head[other] == at ? 4 : 3;
            obs[5 * (view * y + x) + kind] = 1;
        }
    }
}

ENV_FN int32_t is_board(int32_t at) {
    return at >= 0 && at < num_cells && at / wide >= border && at / wide < border + side && at % wide >= border &&
           at % wide < border + side;
}

// The frame is wall and the rest is not, so that no head or tail leaves the map.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    for (int32_t k = 0; k < num_cells; k++) {
        int32_t cell = s->map[k];
        if (!is_board(k) ? cell != WALL : cell == WALL || (cell > WALL && cell < BODY)) return 0;
        if (cell >= BODY && owner(cell) >= agents) return 0;
    }
    for (int32_t i = 0; i < agents; i++) {
        if (!is_board(s->head[i]) || s->heading[i] > 3 || s->is_alive[i] > 1) return 0;
        if (s->tail[i] < 0 || s->tail[i] >= num_cells) return 0;
        if (s->length[i] < 1 || s->length[i] > 1 << 20 || s->growth[i] < 0 || s->growth[i] > 1 << 20) return 0;
    }
    return s->food >= 0 && s->food <= num_cells;
}

ENV_DATA uint32_t snake_colors[8] = {0x37c2b3, 0xf2a65a, 0xe2556d, 0x7bd389, 0x4a7bd3, 0xa56fd3, 0xf2d35a, 0xd38bb0};

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, -0.6f, -0.6f, (float)side + 0.6f, (float)side + 0.6f, 0x4a5b78);
    draw_rect(d, 0.0f, 0.0f, (float)side, (float)side, 0x0e1726);
    for (int32_t k = 0; k < side * side; k++) {
        int32_t cell = s->map[on_map(k)], snake = owner(cell), at = on_map(k);
        float x = (float)(k % side) + 0.5f, y = (float)(k / side) + 0.5f;
        if (cell == FOOD) draw_circle(d, x, y, 0.25f, 0xff7a7a);
        if (cell < BODY) continue;
        int32_t step = at == s->head[snake] ? 0 : ahead(cell & 3);  // a body is drawn from each part to the next
        float dx = step == 1 ? 1.0f : step == -1 ? -1.0f : 0.0f, dy = step > 1 ? 1.0f : step < -1 ? -1.0f : 0.0f;
        draw_line(d, x, y, x + dx, y + dy, 0.72f, snake_colors[snake & 7]);
    }
    for (int32_t i = 0; i < agents; i++) {
        if (!s->is_alive[i]) continue;
        float x = (float)(s->head[i] % wide - border) + 0.5f, y = (float)(s->head[i] / wide - border) + 0.5f;
        float up = s->heading[i] == 0 ? -1.0f : s->heading[i] == 2 ? 1.0f : 0.0f;
        float right = s->heading[i] == 3 ? -1.0f : s->heading[i] == 1 ? 1.0f : 0.0f;
        draw_circle(d, x, y, 0.46f, snake_colors[i & 7]);
        for (float eye = -0.2f; eye < 0.3f; eye += 0.4f) {
            draw_circle(d, x + 0.12f * right + eye * up, y + 0.12f * up + eye * right, 0.13f, 0xffffff);
            draw_circle(d, x + 0.18f * right + eye * up, y + 0.18f * up + eye * right, 0.07f, 0x0e1726);
        }
    }
}
