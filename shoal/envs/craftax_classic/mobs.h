// mobs.h: how zombies, cows, skeletons and arrows move, and where mobs appear.

ENV_FN int32_t is_open(const State *s, int32_t row, int32_t col) {
    if (!is_inside(row, col) || (row == s->row && col == s->col)) return 0;
    uint8_t cell = s->map[at(row, col)];
    return !(cell & MOB) && !is_solid(cell) && cell != LAVA;
}

// The way from a mob towards the player along the longer axis; `tie` chooses where both are as long. 0: it is there.
ENV_FN int32_t way_to_player(const State *s, const Mob *mob, int32_t tie) {
    int32_t rows = s->row - mob->row, cols = s->col - mob->col;
    int32_t tall = rows < 0 ? -rows : rows, wide = cols < 0 ? -cols : cols;
    if (tall == 0 && wide == 0) return 0;
    int32_t along_col = wide > tall || (wide == tall && tie);
    return along_col ? (cols > 0 ? RIGHT : LEFT) : (rows > 0 ? DOWN : UP);
}

// A mob steps `way` if it can; it vanishes if it was too far away.
ENV_FN void move_mob(State *s, const Params *p, Mob *mob, int32_t way) {
    int32_t row = mob->row + row_step(way), col = mob->col + col_step(way);
    int32_t near = distance(mob->row, mob->col, s->row, s->col) < p->mob_distance;
    int32_t steps = is_open(s, row, col);
    if (mob->alive) s->map[at(mob->row, mob->col)] &= BLOCK;
    if (steps) {
        mob->row = (int8_t)row;
        mob->col = (int8_t)col;
    }
    mob->alive = mob->alive && near;
    if (mob->alive) s->map[at(mob->row, mob->col)] |= MOB;
}

// What a mob's move draws: one number, of which the parts are used.
ENV_FN int32_t any_way(uint32_t dice) { return LEFT + (int32_t)(dice & 3); }
ENV_FN int32_t tie_of(uint32_t dice) { return (int32_t)(dice >> 2 & 1); }
ENV_FN float chance_of(uint32_t dice) { return (float)(int32_t)(dice >> 8) * (1.0f / 16777216.0f); }

ENV_FN void move_zombie(State *s, const Params *p, Mob *mob) {
    uint32_t dice = rng_u32(&s->dice);
    int32_t away = distance(mob->row, mob->col, s->row, s->col);
    int32_t way = away < 10 && chance_of(dice) < 0.75f ? way_to_player(s, mob, tie_of(dice)) : any_way(dice);
    int32_t attacks = away == 1 && mob->cooldown <= 0 && mob->alive;
    mob->cooldown = (int8_t)(attacks ? 5 : i_max(mob->cooldown - 1, 0));
    if (attacks) {
        s->health = (int8_t)(s->health - (s->asleep ? 7 : 2));
        achieve(s, WAKE_UP, s->asleep);
        s->asleep = 0;
        way = 0;
    }
    move_mob(s, p, mob, way);
}

ENV_FN void shoot(State *s, const Mob *mob, int32_t way) {
    for (int32_t k = FIRST_ARROW; k < MOBS; k++) {
        if (s->mobs[k].alive) continue;
        s->mobs[k].alive = 1;
        s->mobs[k].row = mob->row;
        s->mobs[k].col = mob->col;
        s->mobs[k].way = (int8_t)way;
        return;
    }
}

// It keeps its distance: it shoots from 4 or 5 cells, or when it cannot get away.
ENV_FN void move_skeleton(State *s, const Params *p, Mob *mob) {
    const int8_t back[] = {0, RIGHT, LEFT, DOWN, UP};
    uint32_t dice = rng_u32(&s->dice);
    int32_t away = distance(mob->row, mob->col, s->row, s->col), towards = way_to_player(s, mob, tie_of(dice));
    int32_t way = any_way(dice);
    if (chance_of(dice) > 0.85f) way = away >= 10 ? towards : away <= 3 ? back[towards] : way;
    int32_t cornered = away <= 3 && !is_open(s, mob->row + row_step(way), mob->col + col_step(way));
    int32_t attacks = (away == 4 || away == 5 || cornered) && mob->cooldown <= 0 && mob->alive;
    mob->cooldown = (int8_t)(attacks ? 4 : i_max(mob->cooldown - 1, 0));
    if (attacks) {
        shoot(s, mob, towards);
        way = 0;
    }
    move_mob(s, p, mob, way);
}

// Arrows fly over water and lava, end at everything else, and break tables and furnaces.
ENV_FN void move_arrow(State *s, Mob *arrow) {
    int32_t row = arrow->row + row_step(arrow->way), col = arrow->col + col_step(arrow->way), cell = at(row, col);
    if (!arrow->alive) return;
    arrow->alive = 0;
    if (!is_inside(row, col)) return;
    int32_t block = s->map[cell] & BLOCK, hits = row == s->row && col == s->col;
    if (hits) {
        s->health = (int8_t)(s->health - 2);
        s->asleep = 0;
    }
    if (block == TABLE || block == FURNACE) set_block(s, cell, PATH);
    arrow->row = (int8_t)row;
    arrow->col = (int8_t)col;
    arrow->alive = !hits && !(s->map[cell] & MOB) && (!is_solid(block) || block == WATER);
}

ENV_FN void move_mobs(State *s, const Params *p) {
    for (int32_t k = 0; k < ZOMBIES; k++) move_zombie(s, p, &s->mobs[k]);
    for (int32_t k = FIRST_COW; k < FIRST_COW + COWS; k++) {
        uint32_t dice = rng_u32(&s->dice);
        move_mob(s, p, &s->mobs[k], dice & 4 ? any_way(dice) : 0);
    }
    for (int32_t k = FIRST_SKELETON; k < FIRST_SKELETON + SKELETONS; k++) move_skeleton(s, p, &s->mobs[k]);
    for (int32_t k = FIRST_ARROW; k < MOBS; k++) move_arrow(s, &s->mobs[k]);
}

// Four cells as a word, of which every byte that equals `block` gives a bit, the first the lowest.
ENV_FN uint32_t cells_equal(uint32_t word, uint32_t block) {
    uint32_t differ = word ^ block * 0x01010101u;
    uint32_t is_zero = ~(((differ & 0x7f7f7f7fu) + 0x7f7f7f7fu) | differ) & 0x80808080u;
    return (is_zero >> 7) * 0x10204080u >> 28;
}

enum {
    WINDOW = 32,
    NEAREST_EDGE = 13
};  // cells of a window; cells that it shows on both sides of the player, at least

// A bit for each free cell of blocks `a` or `b` in 32 cells of a row. `from` is a multiple of 4.
#if defined(__AVX2__) && !defined(__CUDACC__)
typedef char Cells __attribute__((vector_size(WINDOW)));
ENV_FN uint32_t window_of(const State *s, int32_t row, int32_t from, uint32_t a, uint32_t b) {
    Cells own;
    memcpy(&own, &s->map[at(row, from)], WINDOW);
    return (uint32_t)__builtin_ia32_pmovmskb256((Cells)((own == (char)a) | (own == (char)b)));
}
#else
ENV_FN uint32_t window_of(const State *s, int32_t row, int32_t from, uint32_t a, uint32_t b) {
    uint32_t words[WINDOW / 4], found = 0;
    memcpy(words, &s->map[at(row, from)], WINDOW);
    for (uint32_t k = 0; k < WINDOW / 4; k++) found |= (cells_equal(words[k], a) | cells_equal(words[k], b)) << 4 * k;
    return found;
}
#endif

// The bits `low` to `high`; bits beyond the 32 are left out.
ENV_FN uint32_t bits_between(int32_t low, int32_t high) {
    low = i_max(low, 0);
    high = i_min(high, 31);
    return low > high ? 0 : ~0u << low & ~0u >> (31 - high);
}

ENV_FN int32_t count_bits(uint32_t bits) {
    bits -= bits >> 1 & 0x55555555u;
    bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
    return (int32_t)(((bits + (bits >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}

// Of one row, the free cells of blocks `a` or `b` that are farther from the player than `near`, up to `reach`, among
// the 32 cells that start at `from`.
ENV_FN uint32_t free_cells(const State *s, int32_t row, int32_t from, int32_t near, int32_t reach, const uint8_t *ab) {
    int32_t tall = row < s->row ? s->row - row : row - s->row, wide = reach - tall, gap = near - tall;
    int32_t middle = s->col - from;
    uint32_t ring = bits_between(middle - wide, middle + wide);
    if (gap >= 0) ring &= ~bits_between(middle - gap, middle + gap);
    return ring ? ring & window_of(s, row, from, ab[0], ab[1]) : 0;
}

// A cell of these, chosen by the dice; -1 if there is none. Cells are numbered row by row.
ENV_FN int32_t find_cell(State *s, int32_t near, int32_t reach, const uint8_t *ab) {
    int32_t first = i_max(s->row - reach, 0), last = i_min(s->row + reach, side - 1), count = 0, windows = 1;
    int32_t from = i_min(i_max(s->col - NEAREST_EDGE, 0) & ~3, side - WINDOW);
    if (reach > NEAREST_EDGE) {  // the whole row: two windows
        from = 0;
        windows = 2;
    }
    for (int32_t row = first; row <= last; row++) {
        for (int32_t k = 0; k < windows; k++)
            count += count_bits(free_cells(s, row, from + k * WINDOW, near, reach, ab));
    }
    if (count == 0) return -1;
    int32_t pick = rng_int(&s->dice, count);
    for (int32_t row = first; row <= last; row++) {
        for (int32_t k = 0; k < windows; k++) {
            uint32_t found = free_cells(s, row, from + k * WINDOW, near, reach, ab);
            int32_t here = count_bits(found);
            if (pick < here) {
                int32_t col = from + k * WINDOW;
                for (; pick || !(found & 1); col++, found >>= 1) pick -= (int32_t)(found & 1);
                return at(row, col);
            }
            pick -= here;
        }
    }
    return -1;
}

ENV_FN void spawn_mobs(State *s, const Params *p) {
    const int8_t first[] = {FIRST_COW, 0, FIRST_SKELETON}, count[] = {COWS, ZOMBIES, SKELETONS}, near[] = {3, 9, 9};
    const uint8_t blocks[][2] = {{GRASS, GRASS}, {GRASS, PATH}, {PATH, PATH}};
    const int32_t health[] = {p->cow_health, p->zombie_health, p->skeleton_health};
    float dark = 1.0f - light_of(s, p);
    const float chance[] = {p->spawn_cow, p->spawn_zombie + p->spawn_zombie_night * (dark * dark), p->spawn_skeleton};
    int32_t reach = i_min(p->mob_distance - 1, 2 * side);
    for (int32_t kind = 0; kind < 3; kind++) {
        int32_t slot = first[kind], end = slot + count[kind];
        while (slot < end && s->mobs[slot].alive) slot++;
        if (slot == end || rng_uniform(&s->dice, 0.0f, 1.0f) >= chance[kind]) continue;
        int32_t cell = find_cell(s, near[kind], reach, blocks[kind]);
        if (cell < 0) continue;
        s->mobs[slot].row = (int8_t)(cell / side);
        s->mobs[slot].col = (int8_t)(cell % side);
        s->mobs[slot].health = (int8_t)health[kind];
        s->mobs[slot].alive = 1;
        s->map[cell] |= MOB;
    }
}
