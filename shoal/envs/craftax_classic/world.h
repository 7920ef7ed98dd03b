// world.h: the terrain. A world is a function of its key, and is made in parts.
//
// Four fields of gradient noise (Perlin 1985), each scaled to 0 .. 1 over the map: water and mountains (4 x 4 squares),
// tunnels (8 x 32), trees (16 x 16). As no field fits beside the map, a cell keeps only what the thresholds say; and as
// scaling needs the lowest and highest value first, every field is made twice, a band of squares at a time.
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
// Parts: of each field its bands for the range, its bands for the levels; then 8 times 8 rows of blocks.
enum { NOISE_PARTS = 2 * (4 + 4 + 8 + 16), DECODE_PARTS = 8, PARTS = NOISE_PARTS + DECODE_PARTS };

typedef struct {
    uint8_t ground[cells];   // levels of the fields; blocks in the end
    uint64_t tunnels[side];  // of each row, a bit for each column
    uint64_t key;
    float low, high;  // range of the current field
    uint32_t best;    // the stone that may be a diamond
    int32_t part;     // the next one to make
} World;

ENV_FN int32_t at(int32_t row, int32_t col) { return row * side + col; }
ENV_FN int32_t is_inside(int32_t row, int32_t col) { return ((row | col) & ~(side - 1)) == 0; }
ENV_FN int32_t is_block(int32_t block) { return block >= GRASS && block <= RIPE; }
ENV_FN int32_t distance(int32_t row, int32_t col, int32_t row2, int32_t col2) {
    int32_t rows = row - row2, cols = col - col2;
    return (rows < 0 ? -rows : rows) + (cols < 0 ? -cols : cols);
}

ENV_FN void begin_world(World *w, uint64_t key) {
    memset(w, 0, sizeof *w);
    w->key = key;
}

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
        for (int32_t col = 0; col < side; col++) {
            float away = m_min((float)distance(row, col, side / 2, side / 2) / 5.0f, 1.0f);
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

// A band: the cells between two rows of gradients. The first pass through a field finds its range.
ENV_FN void make_band(World *w, int32_t field, int32_t band, int32_t squares, int32_t across, int32_t find_range) {
    float down[2][CORNERS], right[2][CORNERS], slope[CORNERS], level[CORNERS], noise[side], low[8], high[8];
    int32_t tall = side / squares, whole = (across + 8) / 8 * 8;
    for (int32_t k = 0; k < 2; k++) make_gradients(w->key, field, band + k, across + 1, down[k], right[k]);
    for (int32_t k = 0; k < 8; k++) {
        low[k] = band ? w->low : M_INF;
        high[k] = band ? w->high : -M_INF;
    }
    for (int32_t k = 0; k < tall; k++) {
        float y = (float)k / (float)tall, to = fade(y);
        for (int32_t j = 0; j < whole; j++) {
            level[j] = (1.0f - to) * (down[0][j] * y) + to * (down[1][j] * (y - 1.0f));
            slope[j] = (1.0f - to) * right[0][j] + to * right[1][j];
        }
        make_noise(level, slope, across, noise);
        if (!find_range) {
            keep_levels(w, field, band * tall + k, noise);
            continue;
        }
        for (int32_t from = 0; from < side; from += 8) {
            for (int32_t i = 0; i < 8; i++) {
                low[i] = m_min(low[i], noise[from + i]);
                high[i] = m_max(high[i], noise[from + i]);
            }
        }
    }
    if (!find_range) return;
    w->low = low[0];
    w->high = high[0];
    for (int32_t k = 1; k < 8; k++) {
        w->low = m_min(w->low, low[k]);
        w->high = m_max(w->high, high[k]);
    }
}

// From the levels to blocks; one random number for each cell. In a mountain 4 % of the cells are coal, 3 % of the rest
// iron, 0.5 % of that rest diamonds, these only far inside. The stone with the highest number may be one more diamond:
// `best` is 20 bits of that number, then the cell. All of it becomes SIMD code.
ENV_FN void make_blocks(World *w, int32_t row) {
    Rng rng = rng_seed(w->key + (uint64_t)(1 + FIELDS * 32 + row));
    uint8_t *line = &w->ground[row * side];
    uint32_t numbers[side], best = w->best;
    int32_t blocks[side], tunnels[side];
    for (int32_t col = 0; col < side; col++) numbers[col] = rng_u32(&rng);
    for (int32_t col = 0; col < side; col++) {  // tunnels go both ways
        tunnels[col] = (int32_t)((w->tunnels[row] >> col | w->tunnels[col] >> row) & 1);
    }
    for (int32_t col = 0; col < side; col++) {
        float chance = (float)(int32_t)(numbers[col] >> 8) * (1.0f / 16777216.0f);
        int32_t levels = line[col], water = levels & 3, mountain = levels >> 2 & 3, tree = levels >> 4;
        int32_t deep = mountain == 3, cave = tunnels[col] | (deep & (water > 0));
        int32_t grown = (tree > 0) & (chance > 0.8f), rich = (mountain > 1) & (chance < 0.04f + 0.0288f + 0.004656f);
        int32_t plain = grown ? TREE : GRASS, inside = rich ? DIAMOND : STONE;
        plain = water == 2 ? SAND : plain;
        plain = water == 3 ? WATER : plain;
        inside = chance < 0.04f + 0.0288f ? IRON : inside;
        inside = chance < 0.04f ? COAL : inside;
        inside = cave ? PATH : inside;
        inside = deep & (tree == 2) ? LAVA : inside;
        int32_t block = mountain > 0 ? inside : plain;
        uint32_t rank = (numbers[col] & ~(cells - 1u)) | (uint32_t)(row * side + col);
        numbers[col] = block == STONE ? rank : 0;
        blocks[col] = block;
    }
    for (int32_t col = 0; col < side; col++) best = numbers[col] > best ? numbers[col] : best;
    for (int32_t col = 0; col < side; col++) line[col] = (uint8_t)blocks[col];
    w->best = best;
    if (row == side / 2) line[side / 2] = GRASS;  // where the player starts
}

ENV_FN void make_part(World *w) {
    const int8_t squares[] = {4, 4, 8, 16}, across[] = {4, 4, 32, 16};
    int32_t part = w->part++;
    for (int32_t field = 0; field < FIELDS; field++) {
        int32_t bands = squares[field];
        if (part < 2 * bands) {
            make_band(w, field, part % bands, bands, across[field], part < bands);
            return;
        }
        part -= 2 * bands;
    }
    for (int32_t row = part * side / DECODE_PARTS; row < (part + 1) * side / DECODE_PARTS; row++) make_blocks(w, row);
}
