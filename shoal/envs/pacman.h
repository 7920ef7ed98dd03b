// pacman.h: eat all pellets of a maze and keep away from four ghosts, or chase them after a power pellet.
//
// Namco's arcade game (1980) on a smaller maze of 19 x 21 cells, in steps of one cell; ten steps are about a second of
// the arcade. The ghosts' behaviour is that of the arcade (J. Pittman, The Pac-Man Dossier, 2009): they do not turn
// back, and at each cell take the way whose next cell is nearest to a target, up before left before down before right.
// In *chase*, the red ghost targets the player; the pink one the cell four ahead of it; the cyan one the cell as far
// beyond the one two ahead as the red ghost is before it; the orange one the player if it is more than 8 cells away,
// else its corner. In *scatter* each targets its corner. The modes alternate, scatter first: four times, the last two
// of 5/7 of the length, and then chase for good. A power pellet makes the ghosts *frightened* for a while: they turn
// back, wander at random, are slow, and can be eaten; the clock of the modes stands still meanwhile. An eaten ghost
// runs to its house, stays for ten steps and comes out as a normal one. Ghosts turn back whenever the mode changes, and
// are slow in the tunnel. The player moves first, then the ghosts; whoever shares a cell has met. After a death all
// start from their places again; the pellets stay eaten. Not in it: fruit, and levels that differ.
//
// obs: x (19, one-hot) and y (21, one-hot) of the player; 4 directions: 1 if open; its heading (4); the pellets in the
// 13 x 13 cells around it; of each power pellet 1 if it is there, and where, relative (x / 19, y / 21); of each ghost
// where it is, relative, and 1 for each of: dangerous, frightened, eaten, at home, and its heading (4); the share of
// the pellets left that lie above, right, below, left; frightened steps left / fright_steps; 1 in scatter mode; lives
// left / lives; pellets left / 156.
// action: 0 up, 1 right, 2 down, 3 left. Where that way is closed, the player goes on as before, or stops at a wall.
// reward: a tenth of the arcade's points: 1 for a pellet, 5 for a power pellet, 20, 40, 80, 160 for the ghosts eaten by
// one power pellet. A level has 172 points in pellets and at most 1,200 in ghosts. The episode ends with the last life
// or the last of `levels`.
// Random play returns 69. Going to the nearest pellet or frightened ghost around dangerous ones (tests/pacman_twin.py)
// returns 588: it clears nearly every maze and eats nine ghosts.
#define ENV_OBS OBS_F32(277)
#define ENV_OBS_LOW -1.0f
#define ENV_OBS_HIGH 1.0f
#define ENV_ACTION ACT_DISCRETE(4)
#define ENV_MAX_STEPS 3000
#define ENV_HAS_CHECK
#define ENV_PARAMS(X)                                                                                                  \
    X(int, lives, 3, "deaths until the end")                                                                           \
    X(int, levels, 1, "mazes to clear")                                                                                \
    X(int, ghost_speed, 15, "sixteenths of a cell per step; the player moves 16")                                      \
    X(int, slow_speed, 8, "of a frightened ghost, and in the tunnel")                                                  \
    X(int, fright_steps, 60, "steps for which ghosts are frightened")                                                  \
    X(int, scatter_steps, 70, "steps of a scatter mode")                                                               \
    X(int, chase_steps, 200, "steps of a chase mode")                                                                  \
    X(int, release_steps, 40, "steps between the ghosts that leave the house")                                         \
    X(float, death, 0.0f, "reward lost with a life")
#define ENV_LIMITS(X)                                                                                                  \
    X("lives", 1, 100)                                                                                                 \
    X("levels", 1, 1000)                                                                                               \
    X("*_speed", 0, 32)                                                                                                \
    X("death", 0, 10000)                                                                                               \
    X("fright_steps", 1, 10000) X("scatter_steps", 1, 10000) X("chase_steps", 1, 10000) X("release_steps", 1, 10000)
#define ENV_STATS(X)                                                                                                   \
    X(sum, score, "points of the arcade")                                                                              \
    X(sum, pellets, "pellets eaten, power pellets included")                                                           \
    X(sum, ghosts, "ghosts eaten")                                                                                     \
    X(sum, deaths, "lives lost")                                                                                       \
    X(sum, cleared, "mazes cleared")
#include "core/env.h"

enum { WIDTH = 19, HEIGHT = 21, PELLETS = 156, GHOSTS = 4, WINDOW = 13, TUNNEL = 9, CELL = 16 };
enum { START_X = 9, START_Y = 15, DOOR_X = 9, DOOR_Y = 7, HOME_Y = 9, HOME_STEPS = 10, LAST_PHASE = 7 };
enum { UP, RIGHT, DOWN, LEFT };
enum { RED, PINK, CYAN, ORANGE };
enum { ROAMS, FLEES, EATEN, HOME };

// # wall, - the door, h the house, . a pellet, o a power pellet.
ENV_DATA char maze[HEIGHT][WIDTH + 1] = {
    "###################", "#o.......#.......o#", "#.##.###.#.###.##.#", "#.................#", "#.##.#.#####.#.##.#",
    "#....#...#...#....#", "####.###.#.###.####", "####.#       #.####", "####.# ##-## #.####", "    .  #hhh#  .    ",
    "####.# ##### #.####", "####.#       #.####", "#......#####......#", "#.##.#...#...#.##.#", "#.##.###.#.###.##.#",
    "#o....... .......o#", "#.##.#.#####.#.##.#", "#.##.#...#...#.##.#", "#.##.###.#.###.##.#", "#.................#",
    "###################"};
ENV_DATA int32_t power_x[4] = {1, 17, 1, 17};
ENV_DATA int32_t power_y[4] = {1, 1, 15, 15};
ENV_DATA int32_t corner_x[GHOSTS] = {17, 1, 17, 1};  // of the red, pink, cyan and orange ghost
ENV_DATA int32_t corner_y[GHOSTS] = {-1, -1, 21, 21};
ENV_DATA int32_t home_x[GHOSTS] = {9, 9, 8, 10};

typedef struct {
    int32_t x, y, heading, mode;
    int32_t wait;      // steps until it leaves the house
    int32_t progress;  // sixteenths of the next cell
} Ghost;

typedef struct {
    uint32_t pellets[HEIGHT];  // bit x
    int32_t x, y, heading;
    Ghost ghosts[GHOSTS];
    int32_t phase, phase_steps;  // even phases are scatter; steps of this one so far
    int32_t fright;              // steps left
    int32_t combo;               // ghosts eaten since the power pellet
    int32_t left;                // pellets
    int32_t lives, level, score;
} State;

ENV_FN int32_t step_x(int32_t heading) { return (heading == RIGHT) - (heading == LEFT); }
ENV_FN int32_t step_y(int32_t heading) { return (heading == DOWN) - (heading == UP); }
ENV_FN int32_t wrap(int32_t x) { return x < 0 ? x + WIDTH : x >= WIDTH ? x - WIDTH : x; }
ENV_FN int32_t is_open(int32_t x, int32_t y) {
    char cell = maze[y][x];
    return cell == '.' || cell == ' ' || cell == 'o';
}
ENV_FN int32_t is_way(int32_t x, int32_t y, int32_t heading) {
    return is_open(wrap(x + step_x(heading)), y + step_y(heading));
}
ENV_FN int32_t has_pellet(const State *s, int32_t x, int32_t y) { return (int32_t)(s->pellets[y] >> x & 1); }

ENV_FN void fill_maze(State *s) {
    for (int32_t y = 0; y < HEIGHT; y++) {
        s->pellets[y] = 0;
        for (int32_t x = 0; x < WIDTH; x++) s->pellets[y] |= (uint32_t)(maze[y][x] == '.' || maze[y][x] == 'o') << x;
    }
    s->left = PELLETS;
}

// All go to their places: at the start, after a death and in a new maze.
ENV_FN void take_places(State *s, const Params *p) {
    s->x = START_X;
    s->y = START_Y;
    s->heading = LEFT;
    s->phase = s->phase_steps = s->fright = s->combo = 0;
    for (int32_t k = 0; k < GHOSTS; k++) {
        Ghost *g = &s->ghosts[k];
        g->x = home_x[k];
        g->y = k == RED ? DOOR_Y : HOME_Y;
        g->heading = LEFT;
        g->mode = k == RED ? ROAMS : HOME;
        g->wait = k == RED ? 0 : HOME_STEPS + (k - 1) * i_clamp(p->release_steps, 1, 10000);
        g->progress = 0;
    }
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)rng;
    fill_maze(s);
    take_places(s, p);
    s->lives = i_clamp(p->lives, 1, 100);
    s->level = s->score = 0;
}

ENV_FN void turn_back(State *s) {
    for (int32_t k = 0; k < GHOSTS; k++) s->ghosts[k].heading ^= s->ghosts[k].mode <= FLEES ? 2 : 0;
}

ENV_FN void eat(State *s, const Params *p, int32_t *points, Step *out) {
    if (!has_pellet(s, s->x, s->y)) return;
    s->pellets[s->y] ^= 1u << s->x;
    s->left--;
    out->stats.pellets += 1.0f;
    *points += 10;
    if (maze[s->y][s->x] != 'o') return;
    *points += 40;
    s->fright = i_clamp(p->fright_steps, 1, 10000);
    s->combo = 0;
    turn_back(s);
    for (int32_t k = 0; k < GHOSTS; k++) {
        if (s->ghosts[k].mode == ROAMS) s->ghosts[k].mode = FLEES;
    }
}

// What happens where the player and a ghost share a cell. Returns whether the player dies.
ENV_FN int32_t meet(State *s, Ghost *g, int32_t *points, Step *out) {
    if (g->x != s->x || g->y != s->y) return 0;
    if (g->mode == FLEES) {
        g->mode = EATEN;
        *points += 200 << i_min(s->combo, 3);
        s->combo++;
        out->stats.ghosts += 1.0f;
    }
    return g->mode == ROAMS;
}

ENV_FN int32_t choose_way(const State *s, int32_t k, Rng *rng) {
    const Ghost *g = &s->ghosts[k], *red = &s->ghosts[RED];
    int32_t back = g->heading ^ 2, target_x = corner_x[k], target_y = corner_y[k];
    if (g->mode == FLEES) {
        int32_t way = rng_int(rng, 4);
        for (int32_t j = 0; j < 4 && (way == back || !is_way(g->x, g->y, way)); j++) way = (way + 1) & 3;
        return is_way(g->x, g->y, way) ? way : back;
    }
    int32_t dx = s->x - g->x, dy = s->y - g->y, ahead = k == PINK ? 4 : k == CYAN ? 2 : 0;
    if (g->mode == EATEN) {
        target_x = DOOR_X;
        target_y = DOOR_Y;
    } else if ((s->phase & 1) && (k != ORANGE || dx * dx + dy * dy > 64)) {
        target_x = s->x + ahead * step_x(s->heading);
        target_y = s->y + ahead * step_y(s->heading);
        target_x += k == CYAN ? target_x - red->x : 0;
        target_y += k == CYAN ? target_y - red->y : 0;
    }
    int32_t best = 1 << 30, chosen = back;
    for (int32_t j = 4; j > 0; j--) {  // up, left, down, right
        int32_t way = j & 3, x = wrap(g->x + step_x(way)), y = g->y + step_y(way);
        int32_t distance = (x - target_x) * (x - target_x) + (y - target_y) * (y - target_y);
        if (way == back || !is_open(x, y) || distance >= best) continue;
        best = distance;
        chosen = way;
    }
    return chosen;
}

// A ghost's part of a step. Returns whether the player dies.
ENV_FN int32_t move_ghost(State *s, const Params *p, int32_t k, int32_t *points, Step *out, Rng *rng) {
    Ghost *g = &s->ghosts[k];
    if (g->mode == HOME) {
        if (--g->wait > 0) return 0;
        g->mode = ROAMS;
        g->x = DOOR_X;
        g->y = DOOR_Y;
        g->heading = LEFT;
        g->progress = g->wait = 0;
        return meet(s, g, points, out);
    }
    int32_t is_slow = g->mode == FLEES || (g->y == TUNNEL && (g->x < 4 || g->x >= WIDTH - 4));
    g->progress += g->mode == EATEN ? 2 * CELL : i_clamp(is_slow ? p->slow_speed : p->ghost_speed, 0, 2 * CELL);
    while (g->progress >= CELL) {
        g->progress -= CELL;
        g->heading = choose_way(s, k, rng);
        g->x = wrap(g->x + step_x(g->heading));
        g->y += step_y(g->heading);
        if (g->mode == EATEN && g->x == DOOR_X && g->y == DOOR_Y) {
            g->mode = HOME;
            g->x = home_x[k];
            g->y = HOME_Y;
            g->wait = HOME_STEPS;
            g->progress = 0;
        } else if (meet(s, g, points, out)) {
            return 1;
        }
    }
    return 0;
}

ENV_FN void pass_time(State *s, const Params *p) {
    if (s->fright > 0) {
        if (--s->fright > 0) return;
        for (int32_t k = 0; k < GHOSTS; k++) {
            if (s->ghosts[k].mode == FLEES) s->ghosts[k].mode = ROAMS;
        }
        return;
    }
    if (s->phase >= LAST_PHASE) return;
    int32_t scatter = i_clamp(p->scatter_steps, 1, 10000), chase = i_clamp(p->chase_steps, 1, 10000);
    int32_t steps = s->phase & 1 ? chase : s->phase < 4 ? scatter : scatter * 5 / 7;
    if (++s->phase_steps < steps) return;
    s->phase++;
    s->phase_steps = 0;
    turn_back(s);
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t points = 0, dies = 0;
    if (is_way(s->x, s->y, *a)) s->heading = *a;
    if (is_way(s->x, s->y, s->heading)) {
        s->x = wrap(s->x + step_x(s->heading));
        s->y += step_y(s->heading);
    }
    eat(s, p, &points, out);
    for (int32_t k = 0; k < GHOSTS; k++) dies |= s->ghosts[k].mode != HOME && meet(s, &s->ghosts[k], &points, out);
    for (int32_t k = 0; k < GHOSTS && !dies && s->left > 0; k++) dies = move_ghost(s, p, k, &points, out, rng);
    pass_time(s, p);
    s->score += points;
    out->reward = (float)points * 0.1f;
    if (dies) {
        s->lives--;
        out->reward -= p->death;
        out->stats.deaths = 1.0f;
    }
    int32_t is_clear = s->left <= 0;
    s->level += is_clear;
    out->stats.cleared = (float)is_clear;
    out->stats.score = (float)points;
    out->terminated = s->lives <= 0 || s->level >= p->levels;
    if (out->terminated) return;
    if (is_clear) fill_maze(s);
    if (dies || is_clear) take_places(s, p);
}

ENV_FN int32_t count_bits(uint32_t row) {
    row -= row >> 1 & 0x55555555u;
    row = (row & 0x33333333u) + (row >> 2 & 0x33333333u);
    return (int32_t)(((row + (row >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    Obs *at = obs + WIDTH + HEIGHT;
    for (int32_t k = 0; k < OBS_SIZE; k++) obs[k] = 0.0f;
    obs[s->x] = obs[WIDTH + s->y] = at[4 + s->heading] = 1.0f;
    for (int32_t k = 0; k < 4; k++) at[k] = (float)is_way(s->x, s->y, k);
    at += 8;
    for (int32_t k = 0; k < WINDOW; k++) {
        int32_t y = s->y + k - WINDOW / 2;
        uint32_t row = y >= 0 && y < HEIGHT ? s->pellets[y] << WINDOW >> (s->x + WINDOW - WINDOW / 2) : 0;
        for (int32_t j = 0; j < WINDOW; j++) at[WINDOW * k + j] = (float)(row >> j & 1);
    }
    at += WINDOW * WINDOW;
    for (int32_t k = 0; k < 4; k++, at += 3) {
        if (!has_pellet(s, power_x[k], power_y[k])) continue;
        at[0] = 1.0f;
        at[1] = (float)(power_x[k] - s->x) / (float)WIDTH;
        at[2] = (float)(power_y[k] - s->y) / (float)HEIGHT;
    }
    for (int32_t k = 0; k < GHOSTS; k++, at += 10) {
        const Ghost *g = &s->ghosts[k];
        at[0] = (float)(g->x - s->x) / (float)WIDTH;
        at[1] = (float)(g->y - s->y) / (float)HEIGHT;
        at[2 + g->mode] = at[6 + g->heading] = 1.0f;
    }
    int32_t above = 0, below = 0, left = 0, right = 0;
    for (int32_t y = 0; y < HEIGHT; y++) {
        uint32_t row = s->pellets[y];
        above += y < s->y ? count_bits(row) : 0;
        below += y > s->y ? count_bits(row) : 0;
        left += count_bits(row & ((1u << s->x) - 1));
        right += count_bits(row >> s->x >> 1);
    }
    float all = (float)i_max(s->left, 1);
    at[0] = (float)above / all;
    at[1] = (float)right / all;
    at[2] = (float)below / all;
    at[3] = (float)left / all;
    at[4] = m_min((float)s->fright / (float)i_max(p->fright_steps, 1), 1.0f);
    at[5] = (float)(!(s->phase & 1));
    at[6] = m_min((float)s->lives / (float)i_max(p->lives, 1), 1.0f);
    at[7] = (float)s->left / (float)PELLETS;
}

ENV_FN int32_t is_street(int32_t x, int32_t y) { return x >= 0 && x < WIDTH && y >= 0 && y < HEIGHT && is_open(x, y); }

// Everybody is on a street of the maze, whose edge is wall; ghosts at home are in the house.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    int32_t is_safe = is_street(s->x, s->y) && s->heading >= 0 && s->heading < 4, count = 0;
    for (int32_t k = 0; k < GHOSTS; k++) {
        const Ghost *g = &s->ghosts[k];
        is_safe &= g->mode >= ROAMS && g->mode <= HOME && g->heading >= 0 && g->heading < 4;
        is_safe &= g->mode == HOME ? g->x >= 8 && g->x <= 10 && g->y == HOME_Y : is_street(g->x, g->y);
        is_safe &= g->wait >= 0 && g->wait < 100000 && g->progress >= 0 && g->progress < CELL;
    }
    for (int32_t y = 0; y < HEIGHT; y++) {
        for (int32_t x = 0; x < 32; x++) {
            int32_t pellet = (int32_t)(s->pellets[y] >> x & 1);
            is_safe &= !pellet || (x < WIDTH && (maze[y][x] == '.' || maze[y][x] == 'o'));
            count += pellet;
        }
    }
    is_safe &= s->left == count && s->combo >= 0 && s->combo < 1000000 && s->fright >= 0 && s->fright <= 10000;
    is_safe &= s->phase >= 0 && s->phase <= LAST_PHASE && s->phase_steps >= 0 && s->phase_steps <= 10000;
    return is_safe && s->lives >= 0 && s->lives <= 100 && s->level >= 0 && s->level < 1000000 && s->score >= 0 &&
           s->score < 1 << 30;
}

ENV_DATA uint32_t ghost_colors[GHOSTS] = {0xff3b30, 0xffb8de, 0x3ee6e6, 0xffb347};

ENV_FN void draw_ghost(const State *s, int32_t k, Draw *d) {
    const Ghost *g = &s->ghosts[k];
    float x = (float)g->x + 0.5f, y = (float)g->y + 0.5f;
    uint32_t body = g->mode == FLEES ? (s->fright < 15 && s->fright % 4 < 2 ? 0xdfe6ff : 0x2a4bff) : ghost_colors[k];
    if (g->mode != EATEN) {
        draw_circle(d, x, y - 0.05f, 0.42f, body);
        draw_rect(d, x - 0.42f, y - 0.05f, 0.84f, 0.35f, body);
        for (int32_t j = -1; j <= 1; j++) draw_circle(d, x + 0.28f * (float)j, y + 0.3f, 0.14f, body);
    }
    for (float side = -0.17f; side < 0.2f; side += 0.34f) {
        float look_x = x + side + 0.05f * (float)step_x(g->heading),
              look_y = y - 0.1f + 0.05f * (float)step_y(g->heading);
        draw_circle(d, x + side, y - 0.1f, 0.13f, 0xffffff);
        draw_circle(d, look_x, look_y, 0.07f, 0x10206a);
    }
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, -0.2f, -1.4f, 19.2f, 22.2f, 0x05070f);
    draw_value(d, 0.2f, -0.7f, 0.8f, "SCORE ", s->score, 0xffffff);
    for (int32_t k = 0; k < WIDTH * HEIGHT; k++) {  // walls are lines between the centres of their cells
        int32_t x = k % WIDTH, y = k / WIDTH;
        float cx = (float)x + 0.5f, cy = (float)y + 0.5f;
        if (maze[y][x] == '-') draw_line(d, cx - 0.4f, cy, cx + 0.4f, cy, 0.15f, 0xffb8de);
        if (has_pellet(s, x, y)) draw_circle(d, cx, cy, maze[y][x] == 'o' ? 0.32f : 0.1f, 0xffd9b0);
        if (maze[y][x] != '#') continue;
        draw_circle(d, cx, cy, 0.18f, 0x2a45d8);
        if (x + 1 < WIDTH && maze[y][x + 1] == '#') draw_line(d, cx, cy, cx + 1.0f, cy, 0.36f, 0x2a45d8);
        if (y + 1 < HEIGHT && maze[y + 1][x] == '#') draw_line(d, cx, cy, cx, cy + 1.0f, 0.36f, 0x2a45d8);
        if (x + 1 < WIDTH && y + 1 < HEIGHT && maze[y][x + 1] == '#' && maze[y + 1][x] == '#' &&
            maze[y + 1][x + 1] == '#') {
            draw_rect(d, cx, cy, 1.0f, 1.0f, 0x2a45d8);
        }
    }
    float x = (float)s->x + 0.5f, y = (float)s->y + 0.5f, dx = (float)step_x(s->heading),
          dy = (float)step_y(s->heading);
    draw_circle(d, x, y, 0.44f, 0xffe14d);
    draw_triangle(d, x - 0.1f * dx, y - 0.1f * dy, x + 0.5f * dx - 0.32f * dy, y + 0.5f * dy + 0.32f * dx,
                  x + 0.5f * dx + 0.32f * dy, y + 0.5f * dy - 0.32f * dx, 0x05070f);
    for (int32_t k = 0; k < GHOSTS; k++) draw_ghost(s, k, d);
    for (int32_t k = 0; k < i_min(s->lives - 1, 8); k++) draw_circle(d, 0.8f + (float)k, 21.6f, 0.35f, 0xffe14d);
}
