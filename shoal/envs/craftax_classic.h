// craftax_classic.h: survive, gather and craft in a world of 64 x 64 cells: 22 achievements, each rewarded once.
//
// Craftax-Classic (Matthews et al. 2024, a rewrite of Crafter, Hafner 2021), by its rules as of craftax 1.6.1. Written
// anew, with random numbers of its own. You see 9 x 7 cells and start on grass among trees, water, caves with ores and
// lava. Wood makes a table (2 wood); beside a table, wood makes a wooden pickaxe and sword, wood and stone those of
// stone; beside a table and a furnace (1 stone), wood, stone, coal and iron those of iron. Stone and coal need a wooden
// pickaxe, iron one of stone, diamonds one of iron. Food, drink and energy fall with time; while one of them is 0,
// health falls, else it recovers. Cows and ripe plants feed (a sapling ripens in 600 steps), water quenches, sleep
// rests until energy is full. Zombies come on grass, more at night, and hit harder who sleeps; skeletons live in caves
// and shoot arrows. Damage is 1, or the most of 2 for each wooden sword, 3 of stone, 5 of iron. An episode ends when
// health is 0 or in lava.
//
// Kept from the reference: a mob that is too far away is not gone but a ghost that walks on unseen, and `do` brings it
// back where it is near; furnaces need no table; several swords of a kind add up. Not kept: what reads beyond the map
// do there (they wrap round), and mobs that hide others from the observation. max_steps truncates; there it terminates.
//
// obs: bytes. The 63 blocks of the view, row by row (1 beyond the map, then grass, water, stone, tree, -, path, coal,
// iron, diamond, table, furnace, sand, lava, plant, ripe plant: 2 to 16); for each of these cells who is there (1
// zombie, 2 cow, 4 skeleton, 8 arrow, added up); wood, stone, coal, iron, diamonds, saplings, pickaxes of wood, stone,
// iron, swords of wood, stone, iron (0 to 9); health, food, drink, energy (0 to 9); where you look (0 left, 1 right,
// 2 up, 3 down); light (0 to 255); asleep (0, 1). Embeddings of the first 126, summed, equal a linear layer on the
// reference's one-hot numbers. `flat=1` has its 1345 numbers themselves, times 255.
// action: 0 none, 1 left, 2 right, 3 up, 4 down, 5 do (mine, drink, eat, hit what is ahead), 6 sleep,
// 7 place stone, 8 place table, 9 place furnace, 10 place plant, 11 wood pickaxe, 12 stone pickaxe, 13 iron pickaxe,
// 14 wood sword, 15 stone sword, 16 iron sword.
// reward: 1 for every achievement's first time, and 0.1 for each point of health gained or lost. At most 22; random
// play returns 1.4, a scripted player (tests/craftax_player.py) 16.1.
#define ENV_OBS OBS_U8(flat ? 63 * 21 + 22 : 63 * 2 + 19)
#define ENV_ACTION ACT_DISCRETE(17)
#define ENV_MAX_STEPS 10000
#define ENV_HAS_CHECK
#define ENV_HAS_FINISH
#define ENV_KEEPS_STATE
#define ENV_CONSTS(X) X(flat, 0, "1: the observation is the reference's vector of 1345 numbers, times 255")
#define ENV_PARAMS(X)                                                                                                  \
    X(int, day_length, 300, "steps per day")                                                                           \
    X(int, always_diamond, 1, "1: one more block of stone is a diamond")                                               \
    X(int, zombie_health, 5, "health of a new zombie")                                                                 \
    X(int, cow_health, 3, "health of a new cow")                                                                       \
    X(int, skeleton_health, 3, "health of a new skeleton")                                                             \
    X(int, mob_distance, 14, "cells from the player (dx + dy) at which mobs vanish; they appear nearer")               \
    X(float, spawn_cow, 0.1f, "chance per step that a cow appears, if there are fewer than 3")                         \
    X(float, spawn_zombie, 0.02f, "chance per step that a zombie appears, if there are fewer than 3")                  \
    X(float, spawn_zombie_night, 0.1f, "added to it, times (1 - light)^2")                                             \
    X(float, spawn_skeleton, 0.05f, "chance per step that a skeleton appears, if there are fewer than 2")
#define ENV_LIMITS(X)                                                                                                  \
    X("flat", 0, 1)                                                                                                    \
    X("day_length", 1, 1000000)                                                                                        \
    X("always_diamond", 0, 1)                                                                                          \
    X("*_health", 1, 100)                                                                                              \
    X("mob_distance", 1, 128)                                                                                          \
    X("spawn_*", 0, 1)
#define ENV_STATS(X)                                                                                                   \
    X(sum, achievements, "achievements unlocked, of 22")                                                               \
    X(sum, collect_wood, "1 if done: from a tree")                                                                     \
    X(sum, place_table, "1 if done: 2 wood")                                                                           \
    X(sum, eat_cow, "1 if done: food + 6")                                                                             \
    X(sum, collect_sapling, "1 if done: from grass, one time in ten")                                                  \
    X(sum, collect_drink, "1 if done: drink + 1")                                                                      \
    X(sum, make_wood_pickaxe, "1 if done: 1 wood, beside a table")                                                     \
    X(sum, make_wood_sword, "1 if done: 1 wood, beside a table")                                                       \
    X(sum, place_plant, "1 if done: a sapling, on grass")                                                              \
    X(sum, defeat_zombie, "1 if done: 5 health")                                                                       \
    X(sum, collect_stone, "1 if done: with a wooden pickaxe")                                                          \
    X(sum, place_stone, "1 if done: also on water and lava")                                                           \
    X(sum, eat_plant, "1 if done: food + 4, when ripe")                                                                \
    X(sum, defeat_skeleton, "1 if done: 3 health")                                                                     \
    X(sum, make_stone_pickaxe, "1 if done: 1 wood, 1 stone, beside a table")                                           \
    X(sum, make_stone_sword, "1 if done: 1 wood, 1 stone, beside a table")                                             \
    X(sum, wake_up, "1 if done: rested, or hit by a zombie")                                                           \
    X(sum, place_furnace, "1 if done: 1 stone")                                                                        \
    X(sum, collect_coal, "1 if done: with a wooden pickaxe")                                                           \
    X(sum, collect_iron, "1 if done: with a stone pickaxe")                                                            \
    X(sum, collect_diamond, "1 if done: with an iron pickaxe")                                                         \
    X(sum, make_iron_pickaxe, "1 if done: 1 wood, 1 stone, 1 coal, 1 iron, beside a table and a furnace")              \
    X(sum, make_iron_sword, "1 if done: 1 wood, 1 stone, 1 coal, 1 iron, beside a table and a furnace")                \
    X(sum, died_of_lava, "1 if lava ended the episode")
#include "core/env.h"

// world.h makes worlds, rules.h is what the player does, mobs.h what the mobs do
#include "craftax_classic/world.h"
#include "craftax_classic/rules.h"
#include "craftax_classic/mobs.h"
#include "craftax_classic/picture.h"

// The world of an episode depends on two numbers of `rng` alone, which nothing else draws from.
ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    uint64_t high = rng_u32(rng);
    s->key = high << 32 | rng_u32(rng);
    s->is_unmade = 1;
    begin_life(s, p, rng_seed(s->key));
}

ENV_FN int env_is_unfinished(const State *s) { return s->is_unmade; }
ENV_FN void env_finish(State *s, const Params *p) {
    make_world(s->map, s->key, p->always_diamond);
    s->is_unmade = 0;
}
#ifdef TEAM_WAIT
TEAM_FN void env_finish_together(State *s, const Params *p, int32_t rank) {
    make_world_together(s->map, s->key, p->always_diamond, rank);
    if (rank == 0) s->is_unmade = 0;
}
#endif

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)rng;
    uint32_t before = s->achieved;
    int32_t health = s->health, action = s->asleep ? NOOP : *a;
    craft(s, action);
    if (action == DO) interact(s);
    place(s, action);
    walk(s, action);
    move_mobs(s, p);
    spawn_mobs(s, p);
    grow_plants(s);
    live(s, action);
    for (int32_t k = 0; k < ITEMS; k++) s->items[k] = (uint8_t)i_min(s->items[k], 9);
    int32_t in_lava = (s->map[at(s->row, s->col)] & BLOCK) == LAVA;
    s->health = (int8_t)(in_lava ? 0 : i_max(s->health, 0));
    s->clock++;

    uint32_t unlocked = s->achieved & ~before;
    int32_t count = 0;
    float *stats = &out->stats.collect_wood;
    for (int32_t k = 0; k < ACHIEVEMENTS && unlocked; k++) {
        stats[k] = (float)(unlocked >> k & 1);
        count += (int32_t)(unlocked >> k & 1);
    }
    out->stats.achievements = (float)count;
    out->stats.died_of_lava = (float)in_lava;
    out->reward = (float)count + 0.1f * (float)(s->health - health);
    out->terminated = s->health <= 0;
}

// The mobs of the view, as bits per cell.
ENV_FN void see_mobs(const State *s, uint8_t *seen) {
    const uint8_t bits[] = {1, 2, 4, 8};
    for (int32_t k = 0; k < MOBS; k++) {
        const Mob *mob = &s->mobs[k];
        int32_t row = mob->row - s->row + view_rows / 2, col = mob->col - s->col + view_cols / 2;
        if (!mob->alive || row < 0 || row >= view_rows || col < 0 || col >= view_cols) continue;
        seen[row * view_cols + col] |= bits[kind_of(k)];
    }
}

ENV_FN void see_blocks(const State *s, uint8_t *seen) {
    int32_t top = s->row - view_rows / 2, left = s->col - view_cols / 2;
    for (int32_t row = 0; row < view_rows; row++) {
        for (int32_t col = 0; col < view_cols; col++) {
            int32_t inside = is_inside(top + row, left + col);
            seen[row * view_cols + col] = inside ? s->map[at(top + row, left + col)] & BLOCK : BEYOND;
        }
    }
}

// The row may begin at any address: a GPU's memset would write it byte by byte, in 1345 instructions.
ENV_FN void clear_row(Obs *row) {
#ifdef __CUDA_ARCH__
    Obs *end = row + OBS_SIZE;
    while ((uint64_t)row % 4) *row++ = 0;
#pragma unroll 8
    for (; end - row >= 4; row += 4) *(uint32_t *)row = 0;
    while (row < end) *row++ = 0;
#else
    memset(row, 0, OBS_SIZE);
#endif
}

// The reference's numbers, from the bytes of the view.
ENV_RARE void see_flat(const State *s, const uint8_t *seen, uint8_t light, Obs *obs) {
    enum { VIEW = view_rows * view_cols };
    const int8_t vitals[] = {s->health, s->food, s->drink, s->energy};
    clear_row(obs);
    for (int32_t k = 0; k < VIEW; k++) {
        Obs *cell = obs + 21 * k;
        cell[seen[k]] = 255;
        for (int32_t kind = 0; seen[VIEW + k] && kind < 4; kind++)
            cell[17 + kind] = seen[VIEW + k] >> kind & 1 ? 255 : 0;
    }
    obs += 21 * VIEW;
    for (int32_t k = 0; k < ITEMS; k++) obs[k] = (uint8_t)((51 * s->items[k] + 1) / 2);
    for (int32_t k = 0; k < 4; k++) obs[ITEMS + k] = (uint8_t)((51 * vitals[k] + 1) / 2);
    obs[ITEMS + 4 + s->facing - 1] = 255;
    obs[ITEMS + 8] = light;
    obs[ITEMS + 9] = s->asleep ? 255 : 0;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)agent;
    enum { VIEW = view_rows * view_cols };
    uint8_t seen[2 * VIEW];
    see_blocks(s, seen);
    memset(seen + VIEW, 0, VIEW);
    see_mobs(s, seen + VIEW);
    const int8_t vitals[] = {s->health, s->food, s->drink, s->energy};
    uint8_t light = (uint8_t)(int32_t)(255.0f * light_of(s, p) + 0.5f);
    if (flat) {
        see_flat(s, seen, light, obs);
        return;
    }
    memcpy(obs, seen, 2 * VIEW);
    obs += 2 * VIEW;
    for (int32_t k = 0; k < ITEMS; k++) obs[k] = s->items[k];
    for (int32_t k = 0; k < 4; k++) obs[ITEMS + k] = (uint8_t)vitals[k];
    obs[ITEMS + 4] = (uint8_t)(s->facing - 1);
    obs[ITEMS + 5] = light;
    obs[ITEMS + 6] = s->asleep;
}

// Everybody is on the map, and every cell holds a block.
ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    for (int32_t k = 0; k < cells; k++) {
        if (!is_block(s->map[k] & ~MOB)) return 0;
    }
    for (int32_t k = 0; k < MOBS; k++) {
        if (!is_inside(s->mobs[k].row, s->mobs[k].col) || s->mobs[k].way < 0 || s->mobs[k].way > 4) return 0;
    }
    for (int32_t k = 0; k < PLANTS; k++) {
        if (s->plants[k].at >= cells) return 0;
    }
    if (s->is_unmade) return 0;
    return is_inside(s->row, s->col) && s->facing >= 1 && s->facing <= 4 && s->num_plants <= PLANTS;
}
