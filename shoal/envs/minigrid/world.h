// world.h: the grid of MiniGrid, its seven actions and the agent's view. Each minigrid_*.h lays out a grid and says
// what ends an episode.
//
// After MiniGrid 3.2 (Chevalier-Boisvert et al. 2023, github.com/Farama-Foundation/Minigrid, Apache-2.0).
// tests/test_minigrid.py replays our states and actions in that package.
//
// A header defines GRID_WIDTH and GRID_HEIGHT, puts GRID_CONSTS(X) into its ENV_CONSTS, and defines GRID_SEE_THROUGH if
// walls hide nothing. picture.h draws.
#define GRID_CONSTS(X) X(one_hot, 0, "1: the view as one-hot planes, without colors; 0: the bytes of MiniGrid")
#define ENV_OBS OBS_U8(one_hot ? view_cells * PLANES + 4 : view_cells * 3 + 1)
#define ENV_OBS_LOW 0.0f
#define ENV_OBS_HIGH (one_hot ? 1.0f : (float)GOAL)
#define ENV_ACTION ACT_DISCRETE(7)
#define ENV_HAS_CHECK

enum { LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE };
enum { RED, GREEN, BLUE, PURPLE, YELLOW, GREY };

// A cell is one byte: the object in the low four bits, its color above. The numbers are MiniGrid's; CLOSED and LOCKED
// are its door in the states 1 and 2, and its floor, box, lava and agent do not occur.
enum { UNSEEN, EMPTY, WALL, DOOR = 4, KEY, BALL, GOAL = 8, CLOSED = 11, LOCKED = 12 };
enum { view_side = 7, view_cells = view_side * view_side, own_cell = view_side / 2 * view_side + view_side - 1 };
enum { PLANES = 8 };  // of one_hot: empty, wall, door open, closed, locked, key, ball, goal
#include "core/env.h"

ENV_REQUIRE(one_hot == 0 || one_hot == 1, "one_hot must be 0 or 1");

enum { width = GRID_WIDTH, height = GRID_HEIGHT };
enum { GREY_WALL = WALL | GREY << 4, GREEN_GOAL = GOAL | GREEN << 4 };

typedef struct {
    uint8_t cells[width * height];  // row by row
    uint8_t x, y;                   // of the agent
    uint8_t facing;                 // 0 right, 1 down, 2 left, 3 up
    uint8_t carried;                // as a cell; EMPTY: nothing
    int32_t steps;                  // of this episode
} State;

ENV_FN int32_t kind_of(int32_t cell) { return cell & 15; }
ENV_FN int32_t color_of(int32_t cell) { return cell >> 4; }
ENV_FN int32_t toward_x(int32_t facing) { return (facing == 0) - (facing == 2); }
ENV_FN int32_t toward_y(int32_t facing) { return (facing == 1) - (facing == 3); }
ENV_FN uint8_t *cell_at(State *s, int32_t x, int32_t y) { return &s->cells[y * width + x]; }

// What is at (x, y); a wall beyond the grid.
ENV_FN int32_t look_at(const State *s, int32_t x, int32_t y) {
    int32_t inside = (uint32_t)x < (uint32_t)width && (uint32_t)y < (uint32_t)height;
    return inside ? s->cells[inside ? y * width + x : 0] : (int32_t)GREY_WALL;
}

ENV_FN int32_t look_ahead(const State *s) { return look_at(s, s->x + toward_x(s->facing), s->y + toward_y(s->facing)); }

// ---- layouts ----

ENV_FN void fill_rect(State *s, int32_t left, int32_t top, int32_t wide, int32_t high, int32_t cell) {
    for (int32_t y = top; y < top + high; y++) {
        for (int32_t x = left; x < left + wide; x++) *cell_at(s, x, y) = (uint8_t)cell;
    }
}

// A room: walls around empty cells.
ENV_FN void build_room(State *s, int32_t left, int32_t top, int32_t wide, int32_t high) {
    fill_rect(s, left, top, wide, high, GREY_WALL);
    fill_rect(s, left + 1, top + 1, wide - 2, high - 2, EMPTY);
}

ENV_FN void clear_world(State *s) {
    fill_rect(s, 0, 0, width, height, EMPTY);
    s->x = s->y = s->facing = 0;
    s->carried = EMPTY;
    s->steps = 0;
}

// A random empty cell of a rectangle, each as likely, but not the agent's; -1 if there is none.
ENV_FN int32_t pick_empty(const State *s, int32_t left, int32_t top, int32_t wide, int32_t high, Rng *rng) {
    int32_t count = 0, agent = s->y * width + s->x;
    for (int32_t y = top; y < top + high; y++) {
        for (int32_t at = y * width + left; at < y * width + left + wide; at++) {
            count += s->cells[at] == EMPTY && at != agent;
        }
    }
    int32_t left_over = rng_int(rng, i_max(count, 1));
    for (int32_t y = top; y < top + high; y++) {
        for (int32_t at = y * width + left; at < y * width + left + wide; at++) {
            if (s->cells[at] == EMPTY && at != agent && left_over-- == 0) return at;
        }
    }
    return -1;
}

ENV_FN void put_agent(State *s, int32_t left, int32_t top, int32_t wide, int32_t high, Rng *rng) {
    s->x = s->y = 0;
    int32_t at = i_max(pick_empty(s, left, top, wide, high, rng), 0);
    s->x = (uint8_t)(at % width);
    s->y = (uint8_t)(at / width);
    s->facing = (uint8_t)rng_int(rng, 4);
}

ENV_FN void put_object(State *s, int32_t cell, int32_t left, int32_t top, int32_t wide, int32_t high, Rng *rng) {
    int32_t at = pick_empty(s, left, top, wide, high, rng);
    if (at >= 0) s->cells[at] = (uint8_t)cell;
}

// ---- actions ----

// A locked door opens to a key of its color. Others open and close.
ENV_FN int32_t toggled(int32_t cell, int32_t carried) {
    int32_t fits = carried == (KEY | color_of(cell) << 4), color = cell & ~15;
    int32_t opens = kind_of(cell) == CLOSED || (kind_of(cell) == LOCKED && fits);
    return opens ? color | DOOR : kind_of(cell) == DOOR ? color | CLOSED : cell;
}

// Does an action. Returns what was in front of the agent before.
ENV_FN int32_t act(State *s, int32_t action) {
    int32_t ahead = look_ahead(s), kind = kind_of(ahead);
    int32_t x = s->x + toward_x(s->facing), y = s->y + toward_y(s->facing);
    int32_t turn = action == LEFT ? 3 : action == RIGHT ? 1 : 0;
    s->steps++;
    s->facing = (uint8_t)((s->facing + turn) & 3);
    if (action == FORWARD && (kind == EMPTY || kind == DOOR || kind == GOAL)) {
        s->x = (uint8_t)x;
        s->y = (uint8_t)y;
    } else if (action == PICKUP && (kind == KEY || kind == BALL) && s->carried == EMPTY) {
        s->carried = (uint8_t)ahead;
        *cell_at(s, x, y) = EMPTY;
    } else if (action == DROP && ahead == EMPTY && s->carried != EMPTY) {
        *cell_at(s, x, y) = s->carried;
        s->carried = EMPTY;
    } else if (action == TOGGLE && (kind == DOOR || kind == CLOSED || kind == LOCKED)) {
        *cell_at(s, x, y) = (uint8_t)toggled(ahead, s->carried);
    }
    return ahead;
}

// MiniGrid's reward of success: 1, less 0.9 times the share of the time limit that was used. Without a limit, 1.
ENV_FN float success(const State *s, const Params *p) {
    return p->max_steps > 0 ? 1.0f - 0.9f * ((float)s->steps / (float)p->max_steps) : 1.0f;
}

// ---- the view ----

// Sight in one row of the view, whose bits are columns: it spreads from seen cells through clear ones. Three doublings
// carry it over seven columns.
ENV_FN uint32_t spread_right(uint32_t seen, uint32_t clear) {
    uint32_t pass = clear << 1;
    seen |= pass & (seen << 1);
    pass &= pass << 1;
    seen |= pass & (seen << 2);
    pass &= pass << 2;
    return (seen | (pass & (seen << 4))) & 0x7f;
}
ENV_FN uint32_t spread_left(uint32_t seen, uint32_t clear) {
    uint32_t pass = clear >> 1;
    seen |= pass & (seen >> 1);
    pass &= pass >> 1;
    seen |= pass & (seen >> 2);
    pass &= pass >> 2;
    return seen | (pass & (seen >> 4));
}

// The 7 x 7 cells ahead, as the agent sees them, column by column: view[7 * column + row]. Column 3 is straight ahead,
// row 6 is the agent's, row 0 the farthest. Its own cell shows what it carries. Walls and doors that are not open hide
// what is behind them: row by row, sight spreads through clear cells to the right and ahead, then to the left and
// ahead.
ENV_FN void look_around(const State *s, uint8_t *view) {
    int32_t ahead_x = toward_x(s->facing), ahead_y = toward_y(s->facing);
    uint32_t clear[view_side];
    for (int32_t row = 0; row < view_side; row++) clear[row] = 0;
    for (int32_t column = 0; column < view_side; column++) {
        int32_t x = s->x - ahead_y * (column - view_side / 2), y = s->y + ahead_x * (column - view_side / 2);
        for (int32_t row = 0; row < view_side; row++) {
            int32_t far = view_side - 1 - row, cell = look_at(s, x + ahead_x * far, y + ahead_y * far);
            view[column * view_side + row] = (uint8_t)cell;
            uint32_t hides = (uint32_t)(kind_of(cell) == WALL) | (uint32_t)(kind_of(cell) >= CLOSED);
            clear[row] |= (hides ^ 1u) << column;
        }
    }
#ifndef GRID_SEE_THROUGH
    uint32_t seen = 1u << view_side / 2;
    for (int32_t row = view_side - 1; row >= 0; row--) {
        seen = spread_right(seen, clear[row]);
        uint32_t from = seen & clear[row] & 0x3f, next = from | from << 1;  // the last column spreads nothing rightward
        seen = spread_left(seen, clear[row]);
        from = seen & clear[row] & 0x7e;
        next |= from | from >> 1;
        for (int32_t column = 0; column < view_side; column++) {
            if (!(seen >> column & 1)) view[column * view_side + row] = UNSEEN;
        }
        seen = next;
    }
#endif
    view[own_cell] = s->carried;
}

ENV_FN void show_bytes(const uint8_t *view, int32_t facing, Obs *obs) {
    for (int32_t k = 0; k < view_cells; k++) {
        int32_t kind = kind_of(view[k]), is_shut = kind >= CLOSED;
        obs[3 * k] = (uint8_t)(is_shut ? (int32_t)DOOR : kind);
        obs[3 * k + 1] = (uint8_t)color_of(view[k]);
        obs[3 * k + 2] = (uint8_t)(is_shut ? kind - CLOSED + 1 : 0);
    }
    obs[view_cells * 3] = (uint8_t)facing;
}

// The plane of a kind in one_hot; 8: none.
ENV_DATA uint8_t planes[] = {8, 0, 1, 8, 2, 5, 6, 8, 7, 8, 8, 3, 4, 8, 8, 8};

ENV_FN void show_planes(const uint8_t *view, int32_t facing, Obs *obs) {
    for (int32_t k = 0; k < view_cells; k++) {
        int32_t plane = planes[kind_of(view[k])];
        uint64_t bytes = plane < PLANES ? 1ull << 8 * plane : 0;
        memcpy(&obs[PLANES * k], &bytes, PLANES);
    }
    for (int32_t k = 0; k < 4; k++) obs[view_cells * PLANES + k] = facing == k;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    uint8_t view[view_cells];
    look_around(s, view);
    if (one_hot) {
        show_planes(view, s->facing, obs);
    } else {
        show_bytes(view, s->facing, obs);
    }
}

ENV_FN int32_t is_object(int32_t cell) {
    int32_t kind = kind_of(cell), is_plain = cell == EMPTY || cell == GREY_WALL || cell == GREEN_GOAL;
    int32_t has_color = kind == DOOR || kind == KEY || kind == BALL || kind == CLOSED || kind == LOCKED;
    return is_plain || (has_color && color_of(cell) <= GREY);
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    for (int32_t k = 0; k < width * height; k++) {
        if (!is_object(s->cells[k])) return 0;
    }
    int32_t kind = kind_of(s->carried);
    return s->x < width && s->y < height && s->facing < 4 && is_object(s->carried) && s->steps >= 0 &&
           s->steps < 1 << 30 && (kind == EMPTY || kind == KEY || kind == BALL);
}

#include "picture.h"
