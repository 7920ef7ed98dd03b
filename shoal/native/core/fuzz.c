// fuzz.c: a program that plays one env at random, to run under sanitizers.
//
//   fuzz STEPS [PARAM=VALUE ...]       prints "ok" and exits 0, unless a sanitizer ends it first
//   fuzz forge STEPS [PARAM=VALUE ...] the same, and loads snapshots with changed bytes that shoal_check accepts
//
// Every buffer is a separate allocation of the exact size, so that the sanitizer sees a write past its end. Covers
// batch sizes around the SIMD block, all autoreset modes, partial resets, snapshots, drawing, wrappers, and params far
// from defaults.
#include <stdio.h>
#include <stdlib.h>

#include "module.c"

static void *exact(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) exit(3);
    return memset(memory, 0, bytes);
}

static char **settings;  // PARAM=VALUE words of the command line, then 0

static double start_value(const ShoalEntry *param) {
    size_t length = strlen(param->name);
    for (char **word = settings; *word; word++) {
        if (strncmp(*word, param->name, length) == 0 && (*word)[length] == '=') return atof(*word + length + 1);
    }
    return param->value;
}

static void set_param(Params *p, const ShoalEntry *param, double value) {
    char *at = (char *)p + param->offset;
    if (strcmp(param->kind, "int") == 0) {
        int rounded = (int)(value < 0.0 && param->offset == 0 ? 0.0 : value);  // max_steps is never negative
        memcpy(at, &rounded, sizeof rounded);
    } else {
        float number = (float)value;
        memcpy(at, &number, sizeof number);
    }
}

// Sets params to their start values or, with a key, to values that a user might try: an env must never leave its
// memory.
static void set_params(Params *p, uint64_t key) {
    static const double factors[] = {1.0, 1.0, 1.0, 0.5, 2.0, 0.0, -1.0, 100.0};
    for (int32_t k = 0; shoal_param_entries[k].name; k++) {
        double value = start_value(&shoal_param_entries[k]);
        double factor = key ? factors[rng_mix(key + (uint64_t)k) % 8] : 1.0;
        if (factor != 1.0) value = factor * (value == 0.0 ? 1.0 : value);
        set_param(p, &shoal_param_entries[k], value);
    }
}

// Changes a byte, a bit, a number or a run of bytes of a record.
static void forge(ShoalRecord *record, uint64_t key) {
    unsigned char *bytes = (unsigned char *)record;
    uint64_t kind = rng_mix(key) % 4, at = rng_mix(key + 1) % sizeof *record, value = rng_mix(key + 2);
    if (kind == 0) bytes[at] = (unsigned char)value;
    if (kind == 1) bytes[at] ^= (unsigned char)(1 << value % 8);
    if (kind == 2)
        memcpy(bytes + at / 4 * 4, &value, sizeof *record - at / 4 * 4 < 4 ? sizeof *record - at / 4 * 4 : 4);
    for (uint64_t k = 0; kind == 3 && k < 1 + value % 64 && at + k < sizeof *record; k++) {
        bytes[at + k] = (unsigned char)rng_mix(key + 3 + k);
    }
}

static void play(int32_t num_envs, int32_t autoreset, int32_t steps, int32_t varies_params, int32_t is_forging,
                 int32_t wraps) {
    const size_t envs = (size_t)num_envs, rows = envs * NUM_AGENTS;
    ShoalBatch b;
    memset(&b, 0, sizeof b);
    b.num_envs = num_envs;
    b.autoreset = autoreset;
    b.params_stride = varies_params;
    b.wraps = wraps;
    b.stack = wraps ? 3 : 1, b.skip = wraps ? 2 : 1, b.frame_limit = wraps ? 50 : 0;
    b.chunk = wraps > 1 && SHOAL_LENGTH(shoal_obs_shape) == 3 ? shoal_obs_shape[2] : OBS_SIZE;
    b.sticky = wraps ? 0.25f : 0.0f, b.obs_noise = wraps > 1 ? 0.1f : 0.0f;  // 1: frames are written in place
    b.reward_scale = 0.5f, b.reward_clip = 1.0f;
    const size_t width = (size_t)b.stack * OBS_SIZE;
    b.state = (char *)exact((size_t)shoal_state_bytes(num_envs));
    b.rng = (Rng *)exact(envs * sizeof(Rng));
    b.tick = (int32_t *)exact(envs * 4);
    b.ended = (uint8_t *)exact(envs);
    b.returns = (float *)exact(rows * 4);
    b.stats = (float *)exact(envs * NUM_STATS * 4);
    Params *params = (Params *)exact((varies_params ? envs : 1) * sizeof(Params));
    b.params = params;
    b.actions = (Action *)exact(rows * ACTION_SIZE * sizeof(Action));
    uint64_t *seeds = (uint64_t *)exact(envs * 8);
    uint8_t *reset_mask = (uint8_t *)exact(envs);
    b.obs = (Obs *)exact(rows * width * sizeof(Obs));
    b.final_obs = (Obs *)exact(rows * width * sizeof(Obs));
    Rng *wrap_rng = (Rng *)exact(envs * sizeof(Rng));
    Action *applied = (Action *)exact(rows * ACTION_SIZE * sizeof(Action));
    Obs *frames = (Obs *)exact(rows * OBS_SIZE * sizeof(Obs));
    Obs *final_frames = (Obs *)exact(rows * OBS_SIZE * sizeof(Obs));
    Obs *history = (Obs *)exact(rows * width * sizeof(Obs));
    if (wraps) {
        b.wrap_rng = wrap_rng, b.applied = applied, b.frames = frames, b.final_frames = final_frames;
        b.history = wraps > 1 ? history : b.obs;
    }
    b.rewards = (float *)exact(rows * 4);
    b.terminated = (uint8_t *)exact(rows);
    b.truncated = (uint8_t *)exact(rows);
    b.done = (uint8_t *)exact(rows);
    b.alive = (uint8_t *)exact(rows);
    b.masks = (uint8_t *)exact(rows * MASK_SIZE);
    b.final_return = (float *)exact(rows * 4);
    b.final_length = (int32_t *)exact(rows * 4);
    b.final_stats = (float *)exact(envs * NUM_STATS * 4);
    b.episodes = (int32_t *)exact(envs * 4);
    b.sums = (double *)exact(envs * SHOAL_METRICS * 8);
    b.lows = (float *)exact(envs * SHOAL_METRICS * 4);
    b.highs = (float *)exact(envs * SHOAL_METRICS * 4);
    ShoalRecord *record = (ShoalRecord *)exact(sizeof(ShoalRecord));
    uint64_t *digests = (uint64_t *)exact(envs * 8);
    DrawItem *items = (DrawItem *)exact(4096 * sizeof(DrawItem));
    float *points = (float *)exact(2 * 16384 * sizeof(float));

    set_params(params, 0);
    for (size_t i = 0; varies_params && i < envs; i++) set_params(&params[i], rng_mix(i + 1));
    for (size_t i = 0; i < envs; i++) seeds[i] = i + 1000;
    b.seeds = seeds;
    shoal_reset(&b, 0, num_envs);
    b.seeds = 0;
    for (int32_t t = 0; t < steps; t++) {
        if (autoreset == SHOAL_DISABLED || t % 97 == 96) {
            for (size_t i = 0; i < envs; i++) {
                reset_mask[i] = (uint8_t)(b.ended[i] | (rng_mix(i * 7919 + (uint64_t)t) % 64 == 0));
            }
            b.reset_mask = reset_mask;
            shoal_reset(&b, 0, num_envs);
            b.reset_mask = 0;
        }
        shoal_sample(&b, (uint64_t)t, 0, num_envs);
        shoal_step(&b, 0, num_envs);
        shoal_digest(&b, digests, 0, num_envs);
        int64_t i = (int64_t)(rng_mix((uint64_t)t) % envs);
        if (t % 16 == 0) {
            shoal_save(&b, &i, 1, record);
            if (shoal_check(&b, &i, 1, record) != -1) {
                fprintf(stderr, "env_check refuses a state that env_step has reached");
                exit(4);
            }
            shoal_load(&b, &i, 1, record);
        }
        for (int64_t env = 0; is_forging && env < num_envs; env++) {
            shoal_save(&b, &env, 1, record);
            for (uint64_t k = 0; k < 1 + (uint64_t)t % 3; k++) forge(record, rng_mix((uint64_t)(t * 1000 + env)) + k);
            if (shoal_check(&b, &env, 1, record) == -1) shoal_load(&b, &env, 1, record);
        }
        if (t % 256 == 0) {
            Draw draw = {0.0f, 0.0f, 1.0f, 1.0f, 0, 0, 4096, items, points, 0, 16384};
            shoal_draw(&b, i, &draw);
        }
    }
    void *all[] = {b.state,     b.rng,   b.tick,     b.ended,      b.returns,      b.stats,        params,
                   b.actions,   seeds,   reset_mask, b.obs,        b.final_obs,    b.rewards,      b.terminated,
                   b.truncated, b.done,  b.alive,    b.masks,      b.final_return, b.final_length, b.final_stats,
                   b.episodes,  b.sums,  b.lows,     b.highs,      record,         digests,        items,
                   wrap_rng,    applied, frames,     final_frames, history};
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) free(all[k]);
    free(points);
}

int main(int argc, char **argv) {
    int32_t is_forging = argc > 1 && strcmp(argv[1], "forge") == 0, at = 1 + is_forging;
    int32_t steps = argc > at ? atoi(argv[at]) : 1000;
    settings = argv + (argc > at ? at + 1 : argc);
    if (!is_forging) play(1, SHOAL_SAME_STEP, steps, 0, 0, 0);
    play(63, SHOAL_NEXT_STEP, steps, 0, is_forging, 0);
    if (!is_forging) play(65, SHOAL_SAME_STEP, steps, 0, 0, 0);
    if (!is_forging) play(64, SHOAL_DISABLED, steps, 0, 0, 0);
    play(130, SHOAL_SAME_STEP, steps, 1, is_forging, 0);
    if (!is_forging) play(5, SHOAL_SAME_STEP, steps, 0, 0, 1);
    if (!is_forging) play(3, SHOAL_NEXT_STEP, steps, 0, 0, 2);
    puts("ok");
    return 0;
}
