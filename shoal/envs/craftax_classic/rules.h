// rules.h: the state, and what the player does: craft, interact, place, walk, live.
enum { view_rows = 7, view_cols = 9 };
enum { BLOCK = 0x1f, MOB = 0x80 };  // a cell of the map: its block, and whether a mob occupies it (arrows do not)
enum {
    ZOMBIES = 3,
    COWS = 3,
    SKELETONS = 2,
    ARROWS = 3,
    FIRST_COW = 3,
    FIRST_SKELETON = 6,
    FIRST_ARROW = 8,
    MOBS = 11
};
enum { PLANTS = 10, RIPE_AGE = 600, ACHIEVEMENTS = 22 };
enum { NOOP, LEFT, RIGHT, UP, DOWN, DO, SLEEP, PLACE_STONE, PLACE_TABLE, PLACE_FURNACE, PLACE_PLANT, MAKE };
enum { I_WOOD, I_STONE, I_COAL, I_IRON, I_DIAMOND, I_SAPLING, I_PICKAXE, I_SWORD = I_PICKAXE + 3, ITEMS = I_SWORD + 3 };
enum {  // in the order of the stats
    COLLECT_WOOD,
    A_PLACE_TABLE,
    EAT_COW,
    COLLECT_SAPLING,
    COLLECT_DRINK,
    MAKE_WOOD_PICKAXE,
    MAKE_WOOD_SWORD,
    A_PLACE_PLANT,
    DEFEAT_ZOMBIE,
    COLLECT_STONE,
    A_PLACE_STONE,
    EAT_PLANT,
    DEFEAT_SKELETON,
    MAKE_STONE_PICKAXE,
    MAKE_STONE_SWORD,
    WAKE_UP,
    A_PLACE_FURNACE,
    COLLECT_COAL,
    COLLECT_IRON,
    COLLECT_DIAMOND,
    MAKE_IRON_PICKAXE,
    MAKE_IRON_SWORD
};

typedef struct {
    int8_t row, col, health, cooldown;
    uint8_t alive;
    int8_t way;  // of arrows: as the actions, 0 to 4
} Mob;
typedef struct {
    uint16_t at, age;
} Plant;

typedef struct {
    uint8_t map[cells];
    uint64_t key;  // of the world
    Rng dice;      // all that is random in the episode
    uint32_t clock, achieved;
    Plant plants[PLANTS];
    Mob mobs[MOBS];        // zombies, cows, skeletons, arrows. One that is not alive is a ghost: it moves unseen
    uint8_t items[ITEMS];  // wood, stone, coal, iron, diamonds, saplings, 3 pickaxes, 3 swords
    uint8_t num_plants, asleep, is_unmade;  // is_unmade: env_finish has yet to make the map
    int8_t row, col, facing;
    int8_t health, food, drink, energy;
    int8_t hunger, thirst, fatigue, recover;  // towards the next point of each; halves of the reference's, less fatigue
    int8_t unused[28];                        // 64 * 67 bytes: rows of the map are lines of the cache
} State;

ENV_FN int32_t row_step(int32_t way) { return (way == DOWN) - (way == UP); }
ENV_FN int32_t col_step(int32_t way) { return (way == RIGHT) - (way == LEFT); }
ENV_FN int32_t kind_of(int32_t mob) { return (mob >= FIRST_COW) + (mob >= FIRST_SKELETON) + (mob >= FIRST_ARROW); }
ENV_FN int32_t is_among(int32_t block, uint32_t blocks) { return (int32_t)(blocks >> block & 1); }
ENV_FN int32_t is_solid(int32_t block) {
    const uint32_t solid = 1u << WATER | 1u << STONE | 1u << TREE | 1u << COAL | 1u << IRON | 1u << DIAMOND |
                           1u << TABLE | 1u << FURNACE | 1u << PLANT | 1u << RIPE;
    return is_among(block, solid);
}
ENV_FN void set_block(State *s, int32_t cell, int32_t block) { s->map[cell] = (uint8_t)((s->map[cell] & MOB) | block); }
ENV_FN void achieve(State *s, int32_t achievement, int32_t done) { s->achieved |= (uint32_t)done << achievement; }

// 1 at noon. A day begins in the morning, 0.3 of a day after midnight, and light is 0 at midnight.
ENV_FN float light_of(const State *s, const Params *p) {
    uint32_t day = (uint32_t)i_max(p->day_length, 1);
    float dark = m_abs(m_cos(M_PI_F * ((float)(s->clock % day) / (float)day + 0.3f)));
    return 1.0f - dark * dark * dark;
}

ENV_FN void begin_life(State *s, const Params *p, Rng dice) {
    s->dice = dice;
    s->clock = s->achieved = 0;
    memset(s->plants, 0, sizeof s->plants);
    memset(s->mobs, 0, sizeof s->mobs);
    for (int32_t k = 0; k < ZOMBIES; k++) s->mobs[k].health = 1;
    for (int32_t k = 0; k < COWS; k++) s->mobs[FIRST_COW + k].health = (int8_t)p->cow_health;
    memset(s->items, 0, sizeof s->items);
    s->num_plants = s->asleep = 0;
    s->row = s->col = side / 2;
    s->facing = UP;
    s->health = s->food = s->drink = s->energy = 9;
    s->hunger = s->thirst = s->fatigue = s->recover = 0;
    memset(s->unused, 0, sizeof s->unused);
}

ENV_FN int32_t is_near(const State *s, int32_t block) {
    int32_t found = 0;
    for (int32_t row = s->row - 1; row <= s->row + 1; row++) {
        for (int32_t col = s->col - 1; col <= s->col + 1; col++) {
            if (is_inside(row, col)) found |= (s->map[at(row, col)] & BLOCK) == block;
        }
    }
    return found;
}

// Actions MAKE + 0 .. 5: pickaxes of wood, stone, iron, then swords.
ENV_FN void craft(State *s, int32_t action) {
    const int8_t achievements[] = {MAKE_WOOD_PICKAXE, MAKE_STONE_PICKAXE, MAKE_IRON_PICKAXE,
                                   MAKE_WOOD_SWORD,   MAKE_STONE_SWORD,   MAKE_IRON_SWORD};
    int32_t made = action - MAKE, of = made % 3, costs = of == 2 ? 4 : of + 1;  // wood; stone; coal and iron
    if (action < MAKE || made > 5 || !is_near(s, TABLE) || (of == 2 && !is_near(s, FURNACE))) return;
    for (int32_t k = 0; k < costs; k++) {
        if (!s->items[I_WOOD + k]) return;
    }
    for (int32_t k = 0; k < costs; k++) s->items[I_WOOD + k]--;
    s->items[I_PICKAXE + made]++;
    achieve(s, achievements[made], 1);
}

// Hits the first mob of a kind on a cell. Returns 1 if there is one, 2 if that killed it.
ENV_FN int32_t hit(State *s, int32_t first, int32_t count, int32_t row, int32_t col) {
    int32_t damage =
        i_max(i_max(1, 2 * s->items[I_SWORD]), i_max(3 * s->items[I_SWORD + 1], 5 * s->items[I_SWORD + 2]));
    int32_t result = 0;
    for (int32_t k = first; k < first + count; k++) {
        Mob *mob = &s->mobs[k];
        if (!result && mob->alive && mob->row == row && mob->col == col) {
            mob->health = (int8_t)(mob->health - damage);
            result = mob->health > 0 ? 1 : 2;
        }
        mob->alive = mob->health > 0;  // so ghosts come back, unless they were killed
    }
    return result;
}

ENV_FN void take(State *s, int32_t cell, int32_t item, int32_t left, int32_t achievement) {
    s->items[item]++;
    set_block(s, cell, left);
    achieve(s, achievement, 1);
}

ENV_FN void interact(State *s) {
    int32_t row = s->row + row_step(s->facing), col = s->col + col_step(s->facing), cell = at(row, col);
    int32_t zombie = hit(s, 0, ZOMBIES, row, col), cow = hit(s, FIRST_COW, COWS, row, col);
    int32_t skeleton = hit(s, FIRST_SKELETON, SKELETONS, row, col);
    achieve(s, DEFEAT_ZOMBIE, zombie == 2);
    achieve(s, EAT_COW, cow == 2);
    achieve(s, DEFEAT_SKELETON, skeleton == 2);
    if (cow == 2) {
        s->food = (int8_t)i_min(s->food + 6, 9);
        s->hunger = 0;
    }
    if (!is_inside(row, col)) return;
    if (zombie == 2 || cow == 2 || skeleton == 2) s->map[cell] &= BLOCK;
    if (zombie || cow || skeleton) return;
    const uint8_t *pickaxes = &s->items[I_PICKAXE];
    int32_t block = s->map[cell] & BLOCK;
    if (block == TREE) take(s, cell, I_WOOD, GRASS, COLLECT_WOOD);
    if (block == STONE && pickaxes[0]) take(s, cell, I_STONE, PATH, COLLECT_STONE);
    if (block == COAL && pickaxes[0]) take(s, cell, I_COAL, PATH, COLLECT_COAL);
    if (block == IRON && pickaxes[1]) take(s, cell, I_IRON, PATH, COLLECT_IRON);
    if (block == DIAMOND && pickaxes[2]) take(s, cell, I_DIAMOND, PATH, COLLECT_DIAMOND);
    if (block == GRASS && rng_uniform(&s->dice, 0.0f, 1.0f) < 0.1f) take(s, cell, I_SAPLING, GRASS, COLLECT_SAPLING);
    if (block == WATER) {
        s->drink = (int8_t)i_min(s->drink + 1, 9);
        s->thirst = 0;
        achieve(s, COLLECT_DRINK, 1);
    }
    if (block == RIPE) {
        for (int32_t k = 0; k < s->num_plants; k++) {
            if (s->plants[k].at == cell) s->plants[k].age = 0;
        }
        set_block(s, cell, PLANT);
        s->food = (int8_t)i_min(s->food + 4, 9);
        s->hunger = 0;
        achieve(s, EAT_PLANT, 1);
    }
}

// Puts `block` on the cell ahead, for `cost` of an item.
ENV_FN void place(State *s, int32_t action) {
    const int8_t blocks[] = {STONE, TABLE, FURNACE, PLANT}, items[] = {I_STONE, I_WOOD, I_STONE, I_SAPLING};
    const int8_t achievements[] = {A_PLACE_STONE, A_PLACE_TABLE, A_PLACE_FURNACE, A_PLACE_PLANT};
    if (action < PLACE_STONE || action > PLACE_PLANT) return;
    int32_t row = s->row + row_step(s->facing), col = s->col + col_step(s->facing), cell = at(row, col);
    int32_t what = action - PLACE_STONE, cost = action == PLACE_TABLE ? 2 : 1;
    if (!is_inside(row, col) || s->map[cell] & MOB || s->items[items[what]] < cost) return;
    int32_t block = s->map[cell] & BLOCK, fits = !is_solid(block);
    if (action == PLACE_STONE) fits |= block == WATER;
    if (action == PLACE_PLANT) fits = block == GRASS;
    if (!fits) return;
    s->items[items[what]] = (uint8_t)(s->items[items[what]] - cost);
    set_block(s, cell, blocks[what]);
    achieve(s, achievements[what], 1);
    if (action == PLACE_PLANT && s->num_plants < PLANTS) {  // one more than that does not grow
        s->plants[s->num_plants].at = (uint16_t)cell;
        s->plants[s->num_plants++].age = 0;
    }
}

// Lava can be walked into, even where a mob is; nothing else that is solid, or taken, can.
ENV_FN void walk(State *s, int32_t action) {
    if (action < LEFT || action > DOWN) return;
    int32_t row = s->row + row_step(action), col = s->col + col_step(action);
    s->facing = (int8_t)action;
    if (!is_inside(row, col)) return;
    uint8_t cell = s->map[at(row, col)];
    if ((cell & BLOCK) != LAVA && ((cell & MOB) || is_solid(cell & BLOCK))) return;
    s->row = (int8_t)row;
    s->col = (int8_t)col;
}

ENV_FN void grow_plants(State *s) {
    for (int32_t k = 0; k < s->num_plants; k++) {
        Plant *plant = &s->plants[k];
        plant->age = (uint16_t)i_min(plant->age + 1, RIPE_AGE);
        if (plant->age == RIPE_AGE) set_block(s, plant->at, RIPE);
    }
}

// A need: `meter` counts up to `limit`; then a point of `level` is lost.
ENV_FN void need(int8_t *meter, int8_t *level, int32_t add, int32_t limit) {
    *meter = (int8_t)(*meter + add);
    if (*meter <= limit) return;
    *meter = 0;
    *level = (int8_t)i_max(*level - 1, 0);
}

// Hunger, thirst, sleep and health. Sleep halves hunger and thirst, and doubles recovery.
ENV_FN void live(State *s, int32_t action) {
    if (action == SLEEP && s->energy < 9) s->asleep = 1;
    if (s->asleep && s->energy >= 9) {
        s->asleep = 0;
        achieve(s, WAKE_UP, 1);
    }
    need(&s->hunger, &s->food, s->asleep ? 1 : 2, 50);
    need(&s->thirst, &s->drink, s->asleep ? 1 : 2, 40);
    if (s->asleep) {
        s->fatigue = (int8_t)i_min(s->fatigue - 1, 0);
        if (s->fatigue < -10) {
            s->fatigue = 0;
            s->energy = (int8_t)i_min(s->energy + 1, 9);
        }
    } else {
        need(&s->fatigue, &s->energy, 1, 30);
    }
    int32_t well = s->food > 0 && s->drink > 0 && (s->energy > 0 || s->asleep);
    s->recover = (int8_t)(s->recover + (well ? (s->asleep ? 4 : 2) : (s->asleep ? -1 : -2)));
    if (s->recover > 50) {
        s->recover = 0;
        s->health = (int8_t)i_min(s->health + 1, 9);
    } else if (s->recover < -30) {
        s->recover = 0;
        s->health = (int8_t)(s->health - 1);
    }
}
