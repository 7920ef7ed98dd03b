// world.h: the terrain. A world is a function of its key.
//
// Four fields of gradient noise (Perlin 1985), each scaled to 0 .. 1 over the map: water and mountains (4 x 4 squares),
// tunnels (8 x 32), trees (16 x 16). A cell keeps only what the thresholds say of each. `make_world` makes a world
// alone; on a GPU `make_world_together` makes the same one with all threads of a block: alone, a thread would need a
// millisecond, while all others wait for it.
enum { side = 64, cells = side * side };
enum {
    BEYOND = 1,
    GRASS,
    WATER,
    STONE,
    TREE,
    WOOD,
    PATH,
    COAL,
    IRON,
    DIAMOND,
    TABLE,
    FURNACE,
    SAND,
    LAVA,
    PLANT,
    RIPE
};
enum { FIELD_WATER, FIELD_MOUNTAIN, FIELD_TUNNEL, FIELD_TREE, FIELDS };

typedef struct {
    uint8_t *ground;         // (side, side) levels of the fields; blocks in the end
    uint64_t tunnels[side];  // of each row, a bit for each column
    uint64_t key;
    float low, high;  // range of the current field
    uint32_t best;    // the stone that may be a diamond
} World;

ENV_FN int32_t at(int32_t row, int32_t col) { return row * side + col; }
ENV_FN int32_t is_inside(int32_t row, int32_t col) { return ((row | col) & ~(side - 1)) == 0; }
ENV_FN int32_t is_block(int32_t block) { return block >= GRASS && block <= RIPE; }
ENV_FN int32_t distance(int32_t row, int32_t col, int32_t row2, int32_t col2) {
    int32_t rows = row - row2, cols = col - col2;
    return (rows < 0 ? -rows : rows) + (cols < 0 ? -cols : cols);
}

// Squares of a field from top to bottom, and from left to right.
ENV_FN int32_t squares_down(int32_t field) { return field == FIELD_TREE ? 16 : field == FIELD_TUNNEL ? 8 : 4; }
ENV_FN int32_t squares_across(int32_t field) { return field == FIELD_TREE ? 16 : field == FIELD_TUNNEL ? 32 : 4; }

enum { CORNERS = 40 };  // at most 33 in a row; whole vectors of 8 are computed
// Row `row` of the gradients of a field: unit vectors (down, right) at the corners of its squares.
ENV_FN void make_gradients(uint64_t key, int32_t field, int32_t row, int32_t count, float *down, float *right) {
    Rng rng = rng_seed(key + (uint64_t)(1 + field * 32 + row));
    float angles[CORNERS];
    int32_t whole = (count + 7) / 8 * 8;
    for (int32_t k = 0; k < whole; k++) angles[k] = k < count ? rng_uniform(&rng, -M_PI_F, M_PI_F) : 0.0f;
    for (int32_t k = 0; k < whole; k++) {
        down[k] = m_cos(angles[k]);
        right[k] = m_sin(angles[k]);
    }
}
ENV_FN float fade(float t) { return t * t * t * (t * (t * 6.0f - 15.0f) + 10.0f); }

// What a cell keeps of a field: 2 bits of water (above 0.4, 0.6, 0.7), 2 of mountain (0.7, 0.8, 0.85), 2 of
// tree (0.5, 0.7). Near the start there is neither water nor mountain. Of tunnels (0.8), `tunnels` keeps a bit.
ENV_FN void keep_levels(World *w, int32_t field, int32_t row, const float *noise) {
    float scale = 1.0f / (w->high - w->low), lift = field == FIELD_MOUNTAIN ? 0.05f : 0.0f;
    float a = field == FIELD_WATER ? 0.4f : 0.7f, b = field == FIELD_WATER ? 0.6f : 0.8f;
    float c = field == FIELD_WATER ? 0.7f : 0.85f;
    int32_t bits[side], shift = field == FIELD_WATER ? 0 : 2;
    uint8_t *line = &w->ground[row * side];
    if (field == FIELD_TUNNEL) {
        uint64_t mask = 0;
        for (int32_t k = 0; k < side; k++) {
            uint64_t is_tunnel = (noise[k] - w->low) * scale > 0.8f ? 1 : 0;
            mask |= is_tunnel << (k % 32 * 2 + k / 32);
        }
        w->tunnels[row] = mask;
    } else if (field == FIELD_TREE) {
        for (int32_t k = 0; k < side; k++) {
            float level = (noise[k] - w->low) * scale;
            bits[k] = (level > 0.5f ? 16 : 0) + (level > 0.7f ? 16 : 0);
        }
        for (int32_t k = 0; k < side; k++) line[k % 16 * 4 + k / 16] |= (uint8_t)bits[k];
    } else {
        const int32_t is_far = distance(row, 0, side / 2, 0) >= 5;  // then `away` is 1 in all of the row
        for (int32_t col = 0; col < side; col++) {
            float away = is_far ? 1.0f : m_min((float)distance(row, col, side / 2, side / 2) / 5.0f, 1.0f);
            float level = (noise[col] - w->low) * scale + lift + away - 1.0f;
            bits[col] = ((level > a ? 1 : 0) + (level > b ? 1 : 0) + (level > c ? 1 : 0)) << shift;
        }
        for (int32_t col = 0; col < side; col++) line[col] |= (uint8_t)bits[col];
    }
}

// One row of noise, between two gradients of which `level + slope * x` is the ramp of each. Where squares are small,
// cell i of all squares follows cell i - 1 of all squares, so that this becomes SIMD code.
ENV_FN void make_noise(const float *level, const float *slope, int32_t across, float *noise) {
    int32_t wide = side / across;
    if (across <= 4) {
        float x[16], blend[16];
        for (int32_t i = 0; i < 16; i++) {
            x[i] = (float)i / (float)wide;
            blend[i] = fade(x[i]);
        }
        for (int32_t j = 0; j < 4; j++) {
            for (int32_t i = 0; i < 16; i++) {
                float near = level[j] + slope[j] * x[i], far = level[j + 1] + slope[j + 1] * (x[i] - 1.0f);
                noise[j * 16 + i] = near + blend[i] * (far - near);
            }
        }
        return;
    }
    for (int32_t i = 0; i < wide; i++) {
        float x = (float)i / (float)wide, blend = fade(x);
        for (int32_t j = 0; j < across; j++) {
            float near = level[j] + slope[j] * x, far = level[j + 1] + slope[j + 1] * (x - 1.0f);
            noise[i * across + j] = near + blend * (far - near);
        }
    }
}

#ifdef __CUDACC__
enum { KEPT_ROWS = 1 };  // a thread has little memory of its own: noise is made twice
#else
enum { KEPT_ROWS = side };
#endif
// A field: its range first, then what its cells keep.
ENV_FN void make_field(World *w, int32_t field) {
    const int32_t squares = squares_down(field), across = squares_across(field);
    float down[2][CORNERS], right[2][CORNERS], slope[CORNERS], level[CORNERS], noise[KEPT_ROWS * side], low[8], high[8];
    int32_t tall = side / squares, whole = (across + 8) / 8 * 8;
    for (int32_t k = 0; k < 8; k++) {
        low[k] = M_INF;
        high[k] = -M_INF;
    }
    for (int32_t pass = 0; pass < (KEPT_ROWS == 1 ? 2 : 1); pass++) {
        make_gradients(w->key, field, 0, across + 1, down[0], right[0]);
        for (int32_t row = 0; row < side; row++) {
            const int32_t band = row / tall, above = band & 1, below = above ^ 1;
            if (row % tall == 0) make_gradients(w->key, field, band + 1, across + 1, down[below], right[below]);
            float y = (float)(row % tall) / (float)tall, to = fade(y), *line = noise + row % KEPT_ROWS * side;
            for (int32_t j = 0; j < whole; j++) {
                level[j] = (1.0f - to) * (down[above][j] * y) + to * (down[below][j] * (y - 1.0f));
                slope[j] = (1.0f - to) * right[above][j] + to * right[below][j];
            }
            make_noise(level, slope, across, line);
            if (pass) keep_levels(w, field, row, line);
            for (int32_t from = 0; from < side && !pass; from += 8) {
                for (int32_t i = 0; i < 8; i++) {
                    low[i] = m_min(low[i], line[from + i]);
                    high[i] = m_max(high[i], line[from + i]);
                }
            }
        }
        if (pass) return;
        w->low = low[0];
        w->high = high[0];
        for (int32_t k = 1; k < 8; k++) {
            w->low = m_min(w->low, low[k]);
            w->high = m_max(w->high, high[k]);
        }
    }
    for (int32_t row = 0; row < side; row++) keep_levels(w, field, row, noise + row % KEPT_ROWS * side);
}

// The block of a cell of given levels. In a mountain 4 % of the cells are coal, 3 % of the rest iron, 0.5 % of that
// rest diamonds, these only far inside.
ENV_FN int32_t block_of(int32_t levels, int32_t is_tunnel, uint32_t number) {
    float chance = (float)(int32_t)(number >> 8) * (1.0f / 16777216.0f);
    int32_t water = levels & 3, mountain = levels >> 2 & 3, tree = levels >> 4;
    int32_t deep = mountain == 3, cave = is_tunnel | (deep & (water > 0));
    int32_t grown = (tree > 0) & (chance > 0.8f), rich = (mountain > 1) & (chance < 0.04f + 0.0288f + 0.004656f);
    int32_t plain = grown ? TREE : GRASS, inside = rich ? DIAMOND : STONE;
    plain = water == 2 ? SAND : plain;
    plain = water == 3 ? WATER : plain;
    inside = chance < 0.04f + 0.0288f ? IRON : inside;
    inside = chance < 0.04f ? COAL : inside;
    inside = cave ? PATH : inside;
    inside = deep & (tree == 2) ? LAVA : inside;
    return mountain > 0 ? inside : plain;
}
// The stone with the highest rank may be one more diamond: 20 bits of its random number, then the cell.
ENV_FN uint32_t rank_of(uint32_t number, int32_t cell) { return (number & ~(cells - 1u)) | (uint32_t)cell; }
ENV_FN Rng numbers_of_row(uint64_t key, int32_t row) { return rng_seed(key + (uint64_t)(1 + FIELDS * 32 + row)); }

// From the levels to blocks; one random number for each cell. All of it becomes SIMD code.
ENV_FN void make_blocks(World *w, int32_t row) {
    Rng rng = numbers_of_row(w->key, row);
    uint8_t *line = &w->ground[row * side];
    uint32_t numbers[side], best = w->best;
    int32_t blocks[side], tunnels[side];
    for (int32_t col = 0; col < side; col++) numbers[col] = rng_u32(&rng);
    for (int32_t col = 0; col < side; col++) {  // tunnels go both ways
        tunnels[col] = (int32_t)((w->tunnels[row] >> col | w->tunnels[col] >> row) & 1);
    }
    for (int32_t col = 0; col < side; col++) {
        int32_t block = block_of(line[col], tunnels[col], numbers[col]);
        numbers[col] = block == STONE ? rank_of(numbers[col], row * side + col) : 0;
        blocks[col] = block;
    }
    for (int32_t col = 0; col < side; col++) best = numbers[col] > best ? numbers[col] : best;
    for (int32_t col = 0; col < side; col++) line[col] = (uint8_t)blocks[col];
    w->best = best;
}

// What a world has in any case: grass where the player starts, and a diamond.
ENV_FN void make_sure(uint8_t *ground, uint32_t best, int32_t always_diamond) {
    ground[at(side / 2, side / 2)] = GRASS;
    if (always_diamond && best) ground[best % cells] = DIAMOND;
}

ENV_RARE void make_world(uint8_t *ground, uint64_t key, int32_t always_diamond) {
    World w;
    memset(&w, 0, sizeof w);
    memset(ground, 0, cells);
    w.ground = ground;
    w.key = key;
    for (int32_t field = 0; field < FIELDS; field++) make_field(&w, field);
    for (int32_t row = 0; row < side; row++) make_blocks(&w, row);
    make_sure(ground, w.best, always_diamond);
}

#ifdef TEAM_WAIT
// ---- the same by all threads of a block: thread `rank` of TEAM makes the cells rank, rank + TEAM, ... ----

enum { TUNNEL = 64, TUNNELS = 128 };  // bits of a cell: in the field, and in either way
enum { ALL_ROWS = 5 + 5 + 9 + 17, ALL_CORNERS = 5 * 5 + 5 * 5 + 9 * 33 + 17 * 17 };
typedef struct {
    uint8_t ground[cells];
    float noise[cells];  // of the current field
    float down[ALL_CORNERS], right[ALL_CORNERS];
    float low[TEAM], high[TEAM], lowest[8], highest[8];
    uint32_t best[TEAM], bests[8];
} Workshop;

ENV_FN int32_t first_corner(int32_t field) {
    return field == FIELD_WATER ? 0 : field == FIELD_MOUNTAIN ? 25 : field == FIELD_TUNNEL ? 50 : 50 + 9 * 33;
}

// Noise of one cell: make_noise and make_field, in the same order of operations.
ENV_FN float noise_at(const Workshop *w, int32_t field, int32_t row, int32_t col) {
    const int32_t squares = squares_down(field), across = squares_across(field);
    const int32_t tall = side / squares, wide = side / across, corner = across + 1;
    const int32_t above = first_corner(field) + row / tall * corner + col / wide, below = above + corner;
    float y = (float)(row % tall) / (float)tall, to = fade(y), x = (float)(col % wide) / (float)wide, blend = fade(x);
    float level[2], slope[2];
    for (int32_t k = 0; k < 2; k++) {
        level[k] = (1.0f - to) * (w->down[above + k] * y) + to * (w->down[below + k] * (y - 1.0f));
        slope[k] = (1.0f - to) * w->right[above + k] + to * w->right[below + k];
    }
    float near = level[0] + slope[0] * x, far = level[1] + slope[1] * (x - 1.0f);
    return near + blend * (far - near);
}

// keep_levels of one cell.
ENV_FN int32_t levels_at(int32_t field, int32_t row, int32_t col, float level) {
    if (field == FIELD_TUNNEL) return level > 0.8f ? TUNNEL : 0;
    if (field == FIELD_TREE) return (level > 0.5f ? 16 : 0) + (level > 0.7f ? 16 : 0);
    const int32_t is_water = field == FIELD_WATER;
    float away = m_min((float)distance(row, col, side / 2, side / 2) / 5.0f, 1.0f);
    level = level + (is_water ? 0.0f : 0.05f) + away - 1.0f;
    int32_t bits = (level > (is_water ? 0.4f : 0.7f) ? 1 : 0) + (level > (is_water ? 0.6f : 0.8f) ? 1 : 0) +
                   (level > (is_water ? 0.7f : 0.85f) ? 1 : 0);
    return bits << (is_water ? 0 : 2);
}

// Angles, which are drawn row by row, then gradients.
TEAM_PART void make_corners(Workshop *w, uint64_t key, int32_t rank) {
    for (int32_t number = rank; number < ALL_ROWS; number += TEAM) {
        int32_t field = 0, row = number;
        for (; row > squares_down(field); field++) row -= squares_down(field) + 1;
        int32_t corners = squares_across(field) + 1, first = first_corner(field) + row * corners;
        Rng rng = rng_seed(key + (uint64_t)(1 + field * 32 + row));
        for (int32_t k = 0; k < corners; k++) w->down[first + k] = rng_uniform(&rng, -M_PI_F, M_PI_F);
    }
    TEAM_WAIT();
    for (int32_t k = rank; k < ALL_CORNERS; k += TEAM) {
        float angle = w->down[k];
        w->down[k] = m_cos(angle);
        w->right[k] = m_sin(angle);
    }
    TEAM_WAIT();
}

// `field` is a number in the code where this is inlined, so that no division is left: the sizes of squares are powers
// of two. With a variable a world took 0.2 ms on an H200.
TEAM_PART void make_field_together(Workshop *w, const int32_t field, int32_t rank) {
    const int32_t col = rank % side, first = rank / side, rows = TEAM / side;
    float low = M_INF, high = -M_INF;
#pragma unroll 4
    for (int32_t row = first; row < side; row += rows) {
        float noise = noise_at(w, field, row, col);
        w->noise[row * side + col] = noise;
        low = m_min(low, noise);
        high = m_max(high, noise);
    }
    w->low[rank] = low;
    w->high[rank] = high;
    TEAM_WAIT();
    if (rank < 8) {
        for (int32_t k = rank; k < TEAM; k += 8) {
            low = m_min(low, w->low[k]);
            high = m_max(high, w->high[k]);
        }
        w->lowest[rank] = low;
        w->highest[rank] = high;
    }
    TEAM_WAIT();
    for (int32_t k = 0; k < 8; k++) {
        low = m_min(low, w->lowest[k]);
        high = m_max(high, w->highest[k]);
    }
    float scale = 1.0f / (high - low);
#pragma unroll 4
    for (int32_t row = first; row < side; row += rows) {
        int32_t cell = row * side + col, bits = levels_at(field, row, col, (w->noise[cell] - low) * scale);
        w->ground[cell] = (uint8_t)(bits | (field == FIELD_WATER ? 0 : w->ground[cell]));
    }
}

TEAM_FN void make_world_together(uint8_t *map, uint64_t key, int32_t always_diamond, int32_t rank) {
    TEAM_SHARED Workshop shared;
    Workshop *w = &shared;
    make_corners(w, key, rank);
    make_field_together(w, FIELD_WATER, rank);
    make_field_together(w, FIELD_MOUNTAIN, rank);
    make_field_together(w, FIELD_TUNNEL, rank);
    make_field_together(w, FIELD_TREE, rank);
    TEAM_WAIT();
    for (int32_t cell = rank; cell < cells; cell += TEAM) {
        int32_t back = cell % side * side + cell / side;
        if ((w->ground[cell] | w->ground[back]) & TUNNEL) w->ground[cell] |= TUNNELS;
    }
    TEAM_WAIT();
    uint32_t best = 0;
    for (int32_t row = rank; row < side; row += TEAM) {
        Rng rng = numbers_of_row(key, row);
        for (int32_t col = 0; col < side; col++) {
            int32_t cell = row * side + col, levels = w->ground[cell];
            uint32_t number = rng_u32(&rng);
            int32_t block = block_of(levels & (TUNNEL - 1), levels & TUNNELS ? 1 : 0, number);
            uint32_t own = block == STONE ? rank_of(number, cell) : 0;
            best = own > best ? own : best;
            w->ground[cell] = (uint8_t)block;
        }
    }
    w->best[rank] = best;
    TEAM_WAIT();
    if (rank < 8) {
        for (int32_t k = rank; k < TEAM; k += 8) best = w->best[k] > best ? w->best[k] : best;
        w->bests[rank] = best;
    }
    TEAM_WAIT();
    if (rank == 0) {
        for (int32_t k = 1; k < 8; k++) best = w->bests[k] > best ? w->bests[k] : best;
        make_sure(w->ground, best, always_diamond);
    }
    TEAM_WAIT();
    for (int32_t k = rank; k < cells / 4; k += TEAM) {
        uint32_t four;
        memcpy(&four, w->ground + 4 * k, 4);
        memcpy(map + 4 * k, &four, 4);
    }
    TEAM_WAIT();
}
#endif
