// host.h: the CPU half of module.c: functions over ranges of envs, checked actions, the env's description.
//
// A range function is int64_t f(ShoalBatch *, int32_t lo, int32_t hi) over envs [lo, hi). Several threads may run it at
// once on ranges that do not overlap (pool.c); no result depends on how the envs are divided.
#include <stddef.h>

// Tells the compiler that the iterations of the next loop do not depend on each other.
#if defined(__clang__)
#define SHOAL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define SHOAL_INDEPENDENT _Pragma("GCC ivdep")
#else
#define SHOAL_INDEPENDENT
#endif

#if defined(ENV_STATE) && !defined(SHOAL_SCALAR) && !defined(ENV_HAS_MASK)
// shoal_step_env for a block of envs with one agent: step all, handle the episodes that ended, observe all. The first
// and the last loop have no branches and no dependence between envs, so that compilers vectorize them.
enum { SHOAL_BLOCK = 64 };

static int32_t shoal_step_block(ShoalBatch *b, const ShoalColumns *all, int64_t lo, int64_t hi) {
    const ShoalColumns columns = *all, *c = &columns;  // a copy: compilers know that nothing else writes it
    const Params params = *b->params;
    const int32_t limit = shoal_limit(b, b->params);
    const Action *actions = b->actions;
    Rng *rng = b->rng;
    int32_t *tick = b->tick;
    float *rewards = b->rewards, *returns = b->returns;
    uint8_t *terminated = b->terminated, *truncated = b->truncated, *done = b->done;
    int32_t any = 0;
#ifdef ENV_STATS
    float *stats = b->stats;
    const int64_t num_envs = b->num_envs;
#endif
    SHOAL_INDEPENDENT
    for (int64_t i = lo; i < hi; i++) {
        State s = shoal_state_load(c, i);
        Step out;
        memset(&out, 0, sizeof out);
        env_step(&s, &params, actions + i * ACTION_SIZE, &out, &rng[i]);
        shoal_state_store(c, i, &s);
        int32_t now = tick[i] + 1;
        int32_t term = out.terminated != 0, trunc = (now >= limit) & !term;
        tick[i] = now;
        rewards[i] = out.reward;
        returns[i] += out.reward;
        terminated[i] = (uint8_t)term;
        truncated[i] = (uint8_t)trunc;
        done[i] = (uint8_t)(term | trunc);
        any |= term | trunc;
#ifdef ENV_STATS
#define SHOAL_KEEP_COLUMN(kind, name, help)                                                                            \
    stats[stat_##name * num_envs + i] = SHOAL_KEEP_##kind(stats[stat_##name * num_envs + i], out.stats.name);
        ENV_STATS(SHOAL_KEEP_COLUMN)
#endif
    }
    int32_t finished = 0;
    for (int64_t i = lo; any && i < hi; i++) {
        if (!done[i]) continue;
        State s = shoal_state_load(c, i);
        env_observe(&s, &params, 0, b->final_obs + i * OBS_SIZE);
        shoal_row_end(b, i, i);
        shoal_episode_record(b, i);
        shoal_episode_begin(b, i, &s);
        shoal_state_store(c, i, &s);
        finished++;
    }
    Obs *obs = b->obs;
    SHOAL_INDEPENDENT
    for (int64_t i = lo; i < hi; i++) {
        State s = shoal_state_load(c, i);
        env_observe(&s, &params, 0, obs + i * OBS_SIZE);
    }
    return finished;
}
#endif

// One step of envs [lo, hi) without wrappers. Returns the number of rows that are done.
static int64_t shoal_step_plain(ShoalBatch *b, int32_t lo, int32_t hi) {
    int64_t finished = 0;
#if defined(ENV_STATE) && !defined(SHOAL_SCALAR) && !defined(ENV_HAS_MASK)
    if (NUM_AGENTS == 1 && b->autoreset == SHOAL_SAME_STEP && b->params_stride == 0 && b->num_rules == 0) {
        const ShoalColumns c = shoal_columns_of(b);
        for (int64_t at = lo; at < hi; at += SHOAL_BLOCK) {
            finished += shoal_step_block(b, &c, at, at + SHOAL_BLOCK < hi ? at + SHOAL_BLOCK : hi);
        }
        return finished;
    }
#endif
    for (int64_t i = lo; i < hi; i++) finished += shoal_step_env(b, i, shoal_obs_of(b, i));
    return finished;
}

static int64_t shoal_step_frame(ShoalBatch *b, int64_t lo, int64_t hi) {
    return shoal_step_plain(b, (int32_t)lo, (int32_t)hi);
}

SHOAL_API int64_t shoal_step(ShoalBatch *b, int32_t lo, int32_t hi) {
    return b->wraps ? shoal_step_wrapped(b, lo, hi) : shoal_step_plain(b, lo, hi);
}

SHOAL_API int64_t shoal_reset(ShoalBatch *b, int32_t lo, int32_t hi) {
    ShoalBatch frames = shoal_frames_of(b);
    for (int64_t i = lo; i < hi; i++) {
        if (b->reset_mask && !b->reset_mask[i]) continue;
        shoal_reset_env(&frames, i, b->seeds, shoal_obs_of(&frames, i));
        if (b->frames) shoal_show(b, i);
    }
    return 0;
}

// ---- actions: checked and copied in. Each function returns the index of the first bad value, or -1. ----

static const float shoal_action_low[] = {ENV_ACTION_LOW}, shoal_action_high[] = {ENV_ACTION_HIGH};
static const int32_t shoal_action_dims[] = {SHOAL_TAIL(SHOAL_TAIL(SHOAL_TAIL(SHOAL_TAIL(ENV_ACTION))))};
enum { ACTION_LOWS = sizeof shoal_action_low / sizeof(float), ACTION_HIGHS = sizeof shoal_action_high / sizeof(float) };

ENV_REQUIRE(ACTION_KIND != SHOAL_MULTI || sizeof shoal_action_dims / sizeof(int32_t) == (size_t)ACTION_SIZE,
            "ACT_MULTI takes at most 8 choices");
ENV_REQUIRE(ACTION_KIND != SHOAL_MIX || (sizeof shoal_action_dims / sizeof(int32_t) <= 8 &&
                                         ACTION_SIZE - ACTION_FLOATS + 1 == sizeof shoal_action_dims / sizeof(int32_t)),
            "ACT_MIX takes at most 7 choices");
#ifdef ENV_HAS_MASK
ENV_REQUIRE(ACTION_KIND != SHOAL_BOX && ACTION_KIND != SHOAL_MIX, "action masks need ACT_DISCRETE or ACT_MULTI");
#endif

// Discrete actions must be in range. A box action outside its bounds is clipped, as in Gymnasium's envs; NaN and
// infinity are bad values.
#define SHOAL_TAKE_INT(NAME, TYPE, UNSIGNED)                                                                           \
    SHOAL_API int64_t NAME(ShoalBatch *b, const TYPE *from, int32_t lo, int32_t hi) {                                  \
        const int64_t count = (int64_t)(hi - lo) * NUM_AGENTS * ACTION_SIZE;                                           \
        Action *to = b->actions + (int64_t)lo * NUM_AGENTS * ACTION_SIZE;                                              \
        int32_t bad = 0;                                                                                               \
        if (ACTION_SIZE == 1) {                                                                                        \
            const UNSIGNED n = (UNSIGNED)shoal_action_dims[0];                                                         \
            for (int64_t k = 0; k < count; k++) {                                                                      \
                to[k] = (Action)from[k];                                                                               \
                bad |= (UNSIGNED)from[k] >= n;                                                                         \
            }                                                                                                          \
        } else {                                                                                                       \
            for (int64_t k = 0; k < count; k++) {                                                                      \
                to[k] = (Action)from[k];                                                                               \
                bad |= (UNSIGNED)from[k] >= (UNSIGNED)shoal_action_dims[k % ACTION_SIZE];                              \
            }                                                                                                          \
        }                                                                                                              \
        for (int64_t k = 0; bad && k < count; k++) {                                                                   \
            if ((UNSIGNED)from[k] >= (UNSIGNED)shoal_action_dims[k % ACTION_SIZE]) return k;                           \
        }                                                                                                              \
        for (int64_t k = 0; SHOAL_OWN_ACTIONS > 0 && ACTION_KIND == SHOAL_DISCRETE && k < count; k++) {                \
            if ((UNSIGNED)from[k] >= (UNSIGNED)shoal_choices_of((int32_t)(k % NUM_AGENTS))) return k;                  \
        }                                                                                                              \
        return -1;                                                                                                     \
    }
SHOAL_TAKE_INT(shoal_take_i32, int32_t, uint32_t)
SHOAL_TAKE_INT(shoal_take_i64, int64_t, uint64_t)

SHOAL_API int64_t shoal_take_f32(ShoalBatch *b, const float *from, int32_t lo, int32_t hi) {
    const int64_t count = (int64_t)(hi - lo) * NUM_AGENTS * ACTION_SIZE;
    Action *to = b->actions + (int64_t)lo * NUM_AGENTS * ACTION_SIZE;
    int32_t bad = 0;
    for (int64_t k = 0; k < count; k++) {
        int32_t element = (int32_t)(k % ACTION_SIZE);
        if (ACTION_KIND == SHOAL_MIX && element >= ACTION_FLOATS) {
            bad |= !shoal_mix_fits(from[k], element);
            to[k] = (Action)from[k];
            continue;
        }
        bad |= !(m_abs(from[k]) < M_INF);
        to[k] = (Action)m_clamp(from[k], shoal_box_low(element), shoal_box_high(element));
    }
    for (int64_t k = 0; bad && k < count; k++) {
        if (ACTION_KIND == SHOAL_MIX ? !shoal_mix_fits(from[k], (int32_t)(k % ACTION_SIZE)) : !(m_abs(from[k]) < M_INF))
            return k;
    }
    return -1;
}

// ---- random play and digests, for tests, benchmarks and `shoal check` ----

// Uniform actions that depend on (key, env, element) only: an env gets the same ones in any batch.
SHOAL_API int64_t shoal_sample(ShoalBatch *b, uint64_t key, int32_t lo, int32_t hi) {
    const int32_t width = NUM_AGENTS * ACTION_SIZE;
    for (int64_t i = lo; i < hi; i++) {
        for (int32_t k = 0; k < width; k++) {
            uint32_t u = (uint32_t)(rng_mix(rng_mix(key + 1) + (uint64_t)(i * width + k)) >> 32);
            int32_t element = k % ACTION_SIZE;
            float unit = (float)(int32_t)(u >> 8) * (1.0f / 16777216.0f);
            if (element < ACTION_FLOATS) {  // unbounded boxes are sampled from -1000 to 1000
                float low = m_max(shoal_box_low(element), -1e3f), high = m_min(shoal_box_high(element), 1e3f);
                b->actions[i * width + k] = (Action)(low + (high - low) * unit);
            } else {
                uint32_t n =
                    (uint32_t)shoal_action_dims[ACTION_SIZE == 1 ? 0 : element - ACTION_FLOATS + (ACTION_FLOATS > 0)];
                if (ACTION_KIND == SHOAL_DISCRETE && SHOAL_OWN_ACTIONS > 0) n = (uint32_t)shoal_choices_of(k);
                b->actions[i * width + k] = (Action)(((uint64_t)u * n) >> 32);
            }
        }
    }
    return 0;
}

static uint64_t shoal_digest_bytes(uint64_t h, const void *bytes, int64_t count) {
    const char *at = (const char *)bytes;
    for (; count > 0; count -= 8, at += 8) {
        uint64_t word = 0;
        memcpy(&word, at, (size_t)(count < 8 ? count : 8));
        h = (h ^ word) * 0x9E3779B97F4A7C15ULL;
        h ^= h >> 32;
    }
    return h;
}

// Adds the outputs of env i's last step to digests[i].
SHOAL_API int64_t shoal_digest(const ShoalBatch *b, uint64_t *digests, int32_t lo, int32_t hi) {
    const int64_t width = b->wraps ? b->stack * OBS_SIZE : OBS_SIZE;
    for (int64_t row = (int64_t)lo * NUM_AGENTS; row < (int64_t)hi * NUM_AGENTS; row++) {
        uint64_t h = digests[row / NUM_AGENTS];
        uint8_t flags[4] = {b->terminated[row], b->truncated[row], b->done[row], b->alive[row]};
        h = shoal_digest_bytes(h, b->obs + row * width, width * (int64_t)sizeof(Obs));
        h = shoal_digest_bytes(h, &b->rewards[row], sizeof(float));
        h = shoal_digest_bytes(h, flags, sizeof flags);
#ifdef ENV_HAS_MASK
        h = shoal_digest_bytes(h, b->masks + row * MASK_SIZE, MASK_SIZE);
#endif
        if (b->done[row]) {
            h = shoal_digest_bytes(h, b->final_obs + row * width, width * (int64_t)sizeof(Obs));
            h = shoal_digest_bytes(h, &b->final_return[row], sizeof(float));
            h = shoal_digest_bytes(h, &b->final_length[row], sizeof(int32_t));
        }
        digests[row / NUM_AGENTS] = h;
    }
    return 0;
}

// ---- snapshots and drawing ----

SHOAL_API void shoal_save(const ShoalBatch *b, const int64_t *ids, int64_t count, ShoalRecord *records) {
    for (int64_t k = 0; k < count; k++) shoal_save_env(b, ids[k], &records[k]);
}
// Whether a record is safe to load. It may come from a damaged or forged file: none of its numbers is trusted.
SHOAL_FN int32_t shoal_check_record(const ShoalRecord *record, const Params *p) {
    const uint32_t *r = record->rng.s;
    if (!(r[0] | r[1] | r[2] | r[3])) return 0;  // the one state that xoshiro never leaves: every draw would be 0
    if (record->tick < 0 || record->tick == 0x7fffffff || (record->ended & ~1)) return 0;
    for (int32_t a = 0; a < NUM_AGENTS; a++) {
        if (record->alive[a] > 1) return 0;
    }
#ifdef ENV_HAS_CHECK
    return env_check(&record->state, p) != 0;
#else
    (void)p;
    return 1;
#endif
}

// The index of the first record that is not safe to load, or -1.
SHOAL_API int64_t shoal_check(const ShoalBatch *b, const int64_t *ids, int64_t count, const ShoalRecord *records) {
    for (int64_t k = 0; k < count; k++) {
        if (!shoal_check_record(&records[k], shoal_params_of(b, ids[k]))) return k;
    }
    return -1;
}
SHOAL_API void shoal_load(ShoalBatch *b, const int64_t *ids, int64_t count, const ShoalRecord *records) {
    for (int64_t k = 0; k < count; k++) shoal_load_wrapped(b, ids[k], &records[k]);
}

SHOAL_API void shoal_draw(const ShoalBatch *b, int64_t i, Draw *d) {
    STATE_OPEN(b, i);
#ifdef ENV_NO_DRAW
    (void)s, (void)d;
#else
    env_draw(s, shoal_params_of(b, i), d);
#endif
}

typedef struct {
    const char *name, *help;  // name 0 ends the list
    int32_t count, points;
} ShoalCurve;

#ifdef ENV_CURVES
#define SHOAL_CURVE_ENTRY(name, count, points, help) {#name, help, count, points},
static const ShoalCurve shoal_curve_entries[] = {ENV_CURVES(SHOAL_CURVE_ENTRY){0, 0, 0, 0}};
#else
static const ShoalCurve shoal_curve_entries[] = {{0, 0, 0, 0}};
#endif

SHOAL_API const ShoalCurve *shoal_curve_list(void) { return shoal_curve_entries; }

// Writes the curves that an agent of env i knows, 4 floats for each point.
SHOAL_API void shoal_curves(const ShoalBatch *b, int64_t i, int32_t agent, float *out) {
    STATE_OPEN(b, i);
#ifdef ENV_CURVES
    env_curves(s, shoal_params_of(b, i), agent, out);
#else
    (void)s, (void)agent, (void)out;
#endif
}

// ---- the env's description; native/lib.py mirrors these structs ----

enum { SHOAL_ABI = 4 };

typedef struct {
    const char *name, *kind, *help;  // kind: float or int; mean, sum or last; const
    double value;                    // the default
    int32_t offset;                  // of a param, in Params
} ShoalEntry;

typedef struct {
    int32_t abi, version, agents, max_steps;
    int32_t obs_is_u8, obs_ndim, obs_shape[4];
    int32_t action_kind, action_size, action_dims[8];
    int32_t mask_size, has_draw, is_columns;
    int32_t params_bytes, record_bytes;
    int32_t num_params, num_consts, num_stats;
    int32_t obs_lows, obs_highs, action_lows, action_highs;
    const ShoalEntry *params, *consts, *stats;
    const char *fields;  // of ENV_STATE, or empty; a snapshot is refused where they differ
    const float *obs_low, *obs_high, *action_low, *action_high;
} ShoalSpec;

#define SHOAL_PARAM_ENTRY(type, name, value, help)                                                                     \
    {#name, #type, help, (double)(value), (int32_t)offsetof(Params, name)},
#define SHOAL_CONST_ENTRY(name, value, help) {#name, "const", help, (double)name, 0},
#define SHOAL_STAT_ENTRY(kind, name, help) {#name, #kind, help, 0.0, 0},
#define SHOAL_LAST_ENTRY {0, 0, 0, 0.0, 0}

static const ShoalEntry shoal_param_entries[] = {
    {"max_steps", "int", "time limit in steps; 0 for none", (double)(ENV_MAX_STEPS), 0},
    ENV_PARAMS(SHOAL_PARAM_ENTRY) SHOAL_LAST_ENTRY,
};
static const ShoalEntry shoal_const_entries[] = {ENV_CONSTS(SHOAL_CONST_ENTRY) SHOAL_LAST_ENTRY};
#ifdef ENV_STATS
static const ShoalEntry shoal_stat_entries[] = {ENV_STATS(SHOAL_STAT_ENTRY) SHOAL_LAST_ENTRY};
#else
static const ShoalEntry shoal_stat_entries[] = {SHOAL_LAST_ENTRY};
#endif
static const float shoal_obs_low[] = {ENV_OBS_LOW}, shoal_obs_high[] = {ENV_OBS_HIGH};
static const int32_t shoal_obs_shape[] = {SHOAL_TAIL(ENV_OBS)};
ENV_REQUIRE(sizeof shoal_obs_shape / sizeof(int32_t) <= 4, "ENV_OBS has at most 4 dimensions");

#ifdef ENV_STATE
#define SHOAL_FIELD_NAME(type, name) #type " " #name ";"
#define SHOAL_FIELDS ENV_STATE(SHOAL_FIELD_NAME)
#else
#define SHOAL_FIELDS ""
#endif

typedef struct {
    const char *names;  // of params or consts; * stands for any letters; 0 ends the list
    double low, high;
} ShoalLimit;

#define SHOAL_LIMIT_ENTRY(names, low, high) {names, (double)(low), (double)(high)},
static const ShoalLimit shoal_limit_entries[] = {ENV_LIMITS(SHOAL_LIMIT_ENTRY){0, 0.0, 0.0}};

SHOAL_API const ShoalLimit *shoal_limits(void) { return shoal_limit_entries; }

typedef struct {
    const char *name;  // 0 ends the list
    int32_t first, last, obs, actions;
} ShoalGroup;

#define SHOAL_GROUP_ENTRY_(name, first, last, obs, actions, ...) {name, first, last, obs, actions},
#define SHOAL_GROUP_ENTRY(...) SHOAL_GROUP_ENTRY_(__VA_ARGS__, 0, 0, 0)
static const ShoalGroup shoal_group_entries[] = {ENV_GROUPS(SHOAL_GROUP_ENTRY){0, 0, 0, 0, 0}};

SHOAL_API const ShoalGroup *shoal_groups(void) { return shoal_group_entries; }

// Descriptions that Python reads, as text: one line per entry, its parts separated by tabs.
#define SHOAL_CONST_LINE(name, value, help) #name "=" #value " "
#define SHOAL_CHOICE_LINE(names, words) names "\t" words "\n"
#define SHOAL_PRESET_LINE(name, settings, help) name "\t" settings "\t" help "\n"

SHOAL_API const char *shoal_const_defaults(void) { return "" ENV_CONSTS(SHOAL_CONST_LINE); }
SHOAL_API const char *shoal_choices(void) { return "" ENV_CHOICES(SHOAL_CHOICE_LINE); }
SHOAL_API const char *shoal_presets(void) { return "" ENV_PRESETS(SHOAL_PRESET_LINE); }

#define SHOAL_LENGTH(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))

SHOAL_API void shoal_spec(ShoalSpec *spec) {
    memset(spec, 0, sizeof *spec);
    spec->abi = SHOAL_ABI;
    spec->version = ENV_VERSION;
    spec->agents = NUM_AGENTS;
    spec->max_steps = ENV_MAX_STEPS;
    spec->obs_is_u8 = sizeof(Obs) == 1;
    spec->obs_ndim = SHOAL_LENGTH(shoal_obs_shape);
    for (int32_t k = 0; k < spec->obs_ndim; k++) spec->obs_shape[k] = shoal_obs_shape[k];
    spec->action_kind = ACTION_KIND;
    spec->action_size = ACTION_SIZE;
    for (int32_t k = 0; k < SHOAL_LENGTH(shoal_action_dims); k++) spec->action_dims[k] = shoal_action_dims[k];
#ifdef ENV_HAS_MASK
    spec->mask_size = MASK_SIZE;
#endif
#ifndef ENV_NO_DRAW
    spec->has_draw = 1;
#endif
#ifdef ENV_STATE
    spec->is_columns = 1;
#endif
    spec->params_bytes = (int32_t)sizeof(Params);
    spec->record_bytes = (int32_t)sizeof(ShoalRecord);
    spec->num_params = SHOAL_LENGTH(shoal_param_entries) - 1;
    spec->num_consts = SHOAL_LENGTH(shoal_const_entries) - 1;
    spec->num_stats = NUM_STATS;
    spec->obs_lows = SHOAL_LENGTH(shoal_obs_low);
    spec->obs_highs = SHOAL_LENGTH(shoal_obs_high);
    spec->action_lows = ACTION_LOWS;
    spec->action_highs = ACTION_HIGHS;
    spec->fields = SHOAL_FIELDS;
    spec->params = shoal_param_entries;
    spec->consts = shoal_const_entries;
    spec->stats = shoal_stat_entries;
    spec->obs_low = shoal_obs_low;
    spec->obs_high = shoal_obs_high;
    spec->action_low = shoal_action_low;
    spec->action_high = shoal_action_high;
}

SHOAL_API int64_t shoal_state_bytes(int64_t num_envs) {
#ifdef ENV_STATE
    int64_t total = 0;
#define SHOAL_COLUMN_BYTES(type, name) total += shoal_column_bytes(num_envs, sizeof(type));
    ENV_STATE(SHOAL_COLUMN_BYTES)
    return total;
#else
    return num_envs * (int64_t)sizeof(State);
#endif
}

SHOAL_API void shoal_default_params(Params *p) {
    p->max_steps = ENV_MAX_STEPS;
#define SHOAL_DEFAULT(type, name, value, help) p->name = value;
    ENV_PARAMS(SHOAL_DEFAULT)
}
