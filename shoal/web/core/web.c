// web.c: one env header, and the networks of its players, as one WebAssembly module without a C library.
//
//   zig cc -target wasm32-freestanding ... -DENV_HEADER='"cartpole.h"' web.c
//
// native/core/module.c steps the env. This file adds what Python does elsewhere: the memory of a batch, calls without
// 64-bit numbers, and the policy. shoal/web/page/engine.js is its caller.
#include "core/module.c"
#include "core/policy.h"

#define WEB_API(result, name) __attribute__((export_name(#name))) result name

// ---- memory: it only grows, and it starts as zeros ----

extern unsigned char __heap_base;
static uintptr_t web_top;

WEB_API(void *, web_alloc)(int32_t bytes) {
    if (!web_top) web_top = (uintptr_t)&__heap_base;
    uintptr_t start = (web_top + 63) & ~(uintptr_t)63, end = start + (uintptr_t)bytes;
    uintptr_t have = (uintptr_t)__builtin_wasm_memory_size(0) << 16;
    if (end > have && __builtin_wasm_memory_grow(0, (end - have + 65535) >> 16) == (uintptr_t)-1) return 0;
    web_top = end;
    return (void *)start;
}

// ---- a batch of envs ----

// `draws`: the wrappers need random numbers. `changes_obs`: observations are not the env's own. `rules`: params may be
// drawn per episode, so that every env has its own.
WEB_API(ShoalBatch *, web_open)(int32_t num_envs, int32_t autoreset, int32_t rules, int32_t wraps, int32_t stack,
                                int32_t chunk, int32_t skip, int32_t frame_limit, int32_t draws, int32_t changes_obs,
                                float sticky, float obs_noise, float reward_scale, float reward_clip) {
    ShoalBatch *b = (ShoalBatch *)web_alloc(sizeof *b);
    const int32_t envs = num_envs, rows = envs * NUM_AGENTS, width = (wraps ? stack : 1) * OBS_SIZE;
    b->num_envs = envs, b->autoreset = autoreset, b->params_stride = rules > 0, b->num_rules = rules;
    b->wraps = wraps, b->stack = stack, b->chunk = chunk, b->skip = skip, b->frame_limit = frame_limit;
    b->sticky = sticky, b->obs_noise = obs_noise, b->reward_scale = reward_scale, b->reward_clip = reward_clip;
#define WEB_ARRAY(name, type, count) b->name = (type *)web_alloc((int32_t)((int64_t)(count) * (int64_t)sizeof(type)))
    WEB_ARRAY(state, char, shoal_state_bytes(envs));
    WEB_ARRAY(rng, Rng, envs);
    WEB_ARRAY(tick, int32_t, envs);
    WEB_ARRAY(ended, uint8_t, envs);
    WEB_ARRAY(returns, float, rows);
    WEB_ARRAY(stats, float, NUM_STATS *envs);
    WEB_ARRAY(params, Params, rules > 0 ? envs : 1);
    if (rules > 0) WEB_ARRAY(param_rng, Rng, envs);
    if (draws) WEB_ARRAY(wrap_rng, Rng, envs);
    if (sticky > 0.0f) WEB_ARRAY(applied, Action, rows * ACTION_SIZE);
    WEB_ARRAY(obs, Obs, rows * width);
    WEB_ARRAY(final_obs, Obs, rows * width);
    if (changes_obs) {
        WEB_ARRAY(frames, Obs, rows * OBS_SIZE);
        WEB_ARRAY(final_frames, Obs, rows * OBS_SIZE);
        b->history = b->obs;
    }
    WEB_ARRAY(actions, Action, rows * ACTION_SIZE);
    b->seeds = (uint64_t *)web_alloc(envs * 8);
    WEB_ARRAY(rewards, float, rows);
    WEB_ARRAY(terminated, uint8_t, rows);
    WEB_ARRAY(truncated, uint8_t, rows);
    WEB_ARRAY(done, uint8_t, rows);
    WEB_ARRAY(alive, uint8_t, rows);
    WEB_ARRAY(masks, uint8_t, rows *MASK_SIZE);
    WEB_ARRAY(final_return, float, rows);
    WEB_ARRAY(final_length, int32_t, rows);
    WEB_ARRAY(final_stats, float, NUM_STATS *envs);
    WEB_ARRAY(episodes, int32_t, envs);
    WEB_ARRAY(sums, double, SHOAL_METRICS *envs);
    WEB_ARRAY(lows, float, SHOAL_METRICS *envs);
    WEB_ARRAY(highs, float, SHOAL_METRICS *envs);
    for (int32_t i = 0; i < (rules > 0 ? envs : 1); i++) shoal_default_params(&b->params[i]);
    return b;
}

#define WEB_FIELD(name)                                                                                                \
    WEB_API(const void *, web_##name)(const ShoalBatch *b) { return b->name; }
WEB_FIELD(params)
WEB_FIELD(actions)
WEB_FIELD(obs)
WEB_FIELD(rewards)
WEB_FIELD(terminated)
WEB_FIELD(truncated)
WEB_FIELD(alive)
WEB_FIELD(masks)
WEB_FIELD(returns)
WEB_FIELD(final_return)
WEB_FIELD(final_length)
WEB_FIELD(final_stats)
WEB_FIELD(tick)
WEB_FIELD(ended)

WEB_API(int32_t, web_params_bytes)(void) { return (int32_t)sizeof(Params); }
WEB_API(int32_t, web_record_bytes)(void) { return (int32_t)sizeof(ShoalRecord); }

WEB_API(void, web_set_rules)(ShoalBatch *b, const ShoalRule *rules, const double *values) {
    b->rules = rules;
    b->rule_values = values;
}

// Starts an episode in every env: env i from the seed + i.
WEB_API(void, web_reset)(ShoalBatch *b, uint32_t seed_low, uint32_t seed_high) {
    uint64_t *seeds = (uint64_t *)b->seeds;
    for (int32_t i = 0; i < b->num_envs; i++) seeds[i] = ((uint64_t)seed_high << 32 | seed_low) + (uint64_t)i;
    shoal_reset(b, 0, b->num_envs);
}

// Starts the next episode in every env: its random stream continues.
WEB_API(void, web_next)(ShoalBatch *b) {
    const uint64_t *seeds = b->seeds;
    b->seeds = 0;
    shoal_reset(b, 0, b->num_envs);
    b->seeds = seeds;
}

// Returns the number of rows that are done.
WEB_API(int32_t, web_step)(ShoalBatch *b) { return (int32_t)shoal_step(b, 0, b->num_envs); }

WEB_API(void, web_save)(const ShoalBatch *b, int32_t i, ShoalRecord *record) { shoal_save_env(b, i, record); }

WEB_API(void, web_load)(ShoalBatch *b, int32_t i, const ShoalRecord *record) { shoal_load_wrapped(b, i, record); }

// ---- pictures ----

WEB_API(Draw *, web_canvas)(int32_t items, int32_t points) {
    Draw *d = (Draw *)web_alloc(sizeof *d);
    d->capacity = items;
    d->items = (DrawItem *)web_alloc(items * (int32_t)sizeof(DrawItem));
    d->point_capacity = points;
    d->points = (float *)web_alloc(2 * points * (int32_t)sizeof(float));
    return d;
}

WEB_API(void, web_draw)(const ShoalBatch *b, int32_t i, Draw *d) {
    d->count = d->point_count = 0;
    d->left = d->top = 0.0f;
    d->right = d->bottom = 1.0f;
    d->background = 0;
    shoal_draw(b, i, d);
}

WEB_API(void, web_curves)(const ShoalBatch *b, int32_t i, int32_t agent, float *out) { shoal_curves(b, i, agent, out); }

// ---- the policy ----

// A matrix of 16-bit numbers, with a factor for each column, to float32.
WEB_API(void, web_widen)(const int16_t *from, float *to, int32_t rows, int32_t columns, const float *scales) {
    for (int32_t i = 0; i < rows; i++) {
        for (int32_t j = 0; j < columns; j++) to[i * columns + j] = (float)from[i * columns + j] * scales[j];
    }
}

// Runs a network on the observation of a row.
WEB_API(void, web_think)(const ShoalBatch *b, int32_t row, const int32_t *code, int32_t count, float *memory,
                         float *state) {
    const int64_t width = b->wraps ? b->stack * OBS_SIZE : OBS_SIZE;
    policy_run(code, count, memory, b->obs + row * width, sizeof(Obs) == 1, state);
}

// ---- tests ----

// The hash of `golden` in shoal/vector/play.py, over random play from seed 0: its lower and upper half.
WEB_API(void, web_golden)(ShoalBatch *b, int32_t steps, uint32_t *out) {
    uint64_t *digests = (uint64_t *)web_alloc(b->num_envs * 8), hash = 0;
    web_reset(b, 0, 0);
    for (int32_t step = 0; step < steps; step++) {
        shoal_sample(b, (uint64_t)step, 0, b->num_envs);
        shoal_step(b, 0, b->num_envs);
        shoal_digest(b, digests, 0, b->num_envs);
    }
    for (int32_t i = 0; i < b->num_envs; i++) hash ^= digests[i] * (2 * (uint64_t)i + 1);
    out[0] = (uint32_t)hash;
    out[1] = (uint32_t)(hash >> 32);
}
