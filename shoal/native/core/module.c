// module.c: turns one env header into one library with a plain C ABI (no Python.h).
//
//   cc -shared -DENV_HEADER='"cartpole.h"' module.c        CPU: functions over ranges of envs
//   nvcc / NVRTC, -x cu                                     GPU: the same functions, one thread per env
//
// Does everything that an env could get wrong: time limit, autoreset, final_obs, alive, seeding, and the return, length
// and statistics of episodes. shoal_step_env is the definition; shoal_step_block (host.h) and shoal_step_thread
// (device.h) compute the same. wrap.h changes what goes in and comes out; randomize.h draws params for each episode.
#include ENV_HEADER

#ifdef __CUDACC__
#define SHOAL_API extern "C"
#define SHOAL_FN static __host__ __device__ inline
#elif defined(__cplusplus)
#define SHOAL_API extern "C" __attribute__((visibility("default")))
#define SHOAL_FN static inline
#else
#define SHOAL_API __attribute__((visibility("default")))
#define SHOAL_FN static inline
#endif

// Whether wrappers, params drawn per episode and all autoreset modes are compiled in. On a GPU they are a build of
// their own, so that the kernels of plain envs, all SHOAL_SAME_STEP, have no code for them.
#if !defined(__CUDACC__) && !defined(SHOAL_EXTRAS)
#define SHOAL_EXTRAS 1
#elif !defined(SHOAL_EXTRAS)
#define SHOAL_EXTRAS 0
#endif

enum { SHOAL_SAME_STEP, SHOAL_NEXT_STEP, SHOAL_DISABLED };  // ShoalBatch.autoreset
enum {
    SHOAL_RETURN,
    SHOAL_LENGTH_METRIC,
    SHOAL_FIRST_STAT,
    SHOAL_FIRST_AGENT = SHOAL_FIRST_STAT +
        NUM_STATS,  // with several agents: the return of each, then the length of each
    SHOAL_AGENT_METRICS = NUM_AGENTS > 1 ? 2 * NUM_AGENTS : 0,
    SHOAL_METRICS = SHOAL_FIRST_AGENT + SHOAL_AGENT_METRICS
};

// How one param is drawn at the start of an episode: see randomize.h.
typedef struct {
    int32_t kind;            // SHOAL_FIXED: it is not drawn
    int32_t offset, is_int;  // of the param, in Params
    int32_t first, count;    // its numbers in rule_values
    float low, high;         // a normal draw is clipped to them
} ShoalRule;

// All memory of a batch of envs, allocated by the caller. An env's rows are [env * NUM_AGENTS, + NUM_AGENTS).
// native/lib.py mirrors this struct field by field.
typedef struct {
    int32_t num_envs;
    int32_t autoreset;
    int32_t params_stride;  // 0: one Params for all envs, 1: one for each
    int32_t poison;         // State is filled with this byte before env_reset: 0, except in `shoal check`
    int32_t final_cut;      // 1: final_obs is written for truncated rows only: learners need no others
    int32_t num_rules;      // params that may be drawn per episode; 0: none
    // wrappers (wrap.h); without them `wraps` is 0 and the others are not read
    int32_t wraps;
    int32_t stack, chunk;  // frames per observation; neighbouring elements that belong to one frame
    int32_t skip;          // env steps per step
    int32_t frame_limit;   // time limit in env steps; 0: none
    float sticky, obs_noise, reward_scale, reward_clip;
    int32_t slides;  // 1: `obs` has moved by a frame since the last step, and the older frames need not
    // envs
    char *state;     // shoal_state_bytes(num_envs)
    Rng *rng;        // (envs)
    int32_t *tick;   // (envs) steps taken in this episode
    uint8_t *ended;  // (envs) whether an env waits for a reset; never under SHOAL_SAME_STEP
    float *returns;  // (rows) reward so far in this episode
    float *stats;    // (NUM_STATS, envs) so far in this episode
    Params *params;  // (1) or (envs)
    Rng *param_rng;  // (envs) the stream that params are drawn from, where num_rules > 0
    const ShoalRule *rules;
    const double *rule_values;
    // wrappers: each is 0 unless a wrapper needs it
    Rng *wrap_rng;               // (envs) the stream of sticky actions and noise
    Action *applied;             // (rows, ACTION_SIZE) the actions that the envs took last
    Obs *frames, *final_frames;  // (rows, OBS_SIZE) what env_observe wrote
    Obs *history;                // (rows, stack * OBS_SIZE) the last observations; may be `obs`
    // inputs
    Action *actions;            // (rows, ACTION_SIZE)
    const uint64_t *seeds;      // (envs), or 0: random streams continue
    const uint8_t *reset_mask;  // (envs), or 0: all
    // outputs of the last step or reset
    Obs *obs, *final_obs;                            // (rows, OBS_SIZE); final_obs is set where done
    float *rewards;                                  // (rows)
    uint8_t *terminated, *truncated, *done, *alive;  // (rows)
    uint8_t *masks;                                  // (rows, MASK_SIZE) where the env has masks
    float *final_return;                             // (rows) set where done
    int32_t *final_length;                           // (rows) set where done
    float *final_stats;                              // (NUM_STATS, envs) set where an episode ended
    // sums over the episodes that ended since the caller last cleared them, one per env: added in the order
    // of envs they give the same bits for any number of threads
    int32_t *episodes;    // (envs)
    double *sums;         // (SHOAL_FIRST_AGENT, envs), then (envs, SHOAL_AGENT_METRICS): see shoal_sum_at
    float *lows, *highs;  // (SHOAL_FIRST_AGENT, envs)
} ShoalBatch;

// ---- state: an array of structs, or with ENV_STATE one array per field ----

#ifdef ENV_STATE
#define SHOAL_COLUMN(type, name) type *name;
typedef struct {
    ENV_STATE(SHOAL_COLUMN)
} ShoalColumns;

SHOAL_FN int64_t shoal_column_bytes(int64_t num_envs, int64_t size) { return (num_envs * size + 63) & ~(int64_t)63; }

SHOAL_FN ShoalColumns shoal_columns_of(const ShoalBatch *b) {
    char *at = b->state;
    ShoalColumns c;
#define SHOAL_PLACE(type, name)                                                                                        \
    c.name = (type *)at;                                                                                               \
    at += shoal_column_bytes(b->num_envs, sizeof(type));
    ENV_STATE(SHOAL_PLACE)
    (void)at;
    return c;
}
MATH_FN State shoal_state_load(const ShoalColumns *c, int64_t i) {
    State s;
#define SHOAL_LOAD(type, name) s.name = c->name[i];
    ENV_STATE(SHOAL_LOAD)
    return s;
}
MATH_FN void shoal_state_store(const ShoalColumns *c, int64_t i, const State *s) {
#define SHOAL_STORE(type, name) c->name[i] = s->name;
    ENV_STATE(SHOAL_STORE)
}
#define STATE_OPEN(b, i)                                                                                               \
    const ShoalColumns columns = shoal_columns_of(b);                                                                  \
    State local = shoal_state_load(&columns, i);                                                                       \
    State *s = &local
#define STATE_CLOSE(i) shoal_state_store(&columns, i, s)
#else
#define STATE_OPEN(b, i) State *s = (State *)(b)->state + (i)
#define STATE_CLOSE(i) (void)0
#endif

SHOAL_FN const Params *shoal_params_of(const ShoalBatch *b, int64_t i) { return b->params + i * b->params_stride; }

#include "randomize.h"

// The time limit in env steps: that of the params or of the wrapper, whichever is shorter.
SHOAL_FN int32_t shoal_limit(const ShoalBatch *b, const Params *p) {
    int32_t limit = p->max_steps > 0 ? p->max_steps : 0x7fffffff;
    return SHOAL_EXTRAS && b->wraps && b->frame_limit > 0 ? i_min(limit, b->frame_limit) : limit;
}

// The steps of env i's episode: calls of shoal_step, each of which may be several env steps.
SHOAL_FN int32_t shoal_length(const ShoalBatch *b, int64_t i) {
    return SHOAL_EXTRAS && b->wraps ? (b->tick[i] + b->skip - 1) / b->skip : b->tick[i];
}

// ---- episodes ----

#define SHOAL_STAT_INDEX(kind, name, help) stat_##name,
#define SHOAL_KEEP_sum(total, value) ((total) + (value))
#define SHOAL_KEEP_mean(total, value) ((total) + (value))
#define SHOAL_KEEP_last(total, value) (value)
#define SHOAL_KEEPS_sum(value) ((value) != 0.0f)  // adding 0 changes nothing: the total is not even read
#define SHOAL_KEEPS_mean(value) ((value) != 0.0f)
#define SHOAL_KEEPS_last(value) 1
#define SHOAL_FINAL_sum(total, length) (total)
#define SHOAL_FINAL_mean(total, length) ((total) / (float)(length))
#define SHOAL_FINAL_last(total, length) (total)
#ifdef ENV_STATS
enum { ENV_STATS(SHOAL_STAT_INDEX) };
#endif

// Where the sum of a metric of env i is. Those of its agents lie side by side: the end of an episode touches one line
// of memory for them.
SHOAL_FN int64_t shoal_sum_at(const ShoalBatch *b, int64_t metric, int64_t i) {
    if (metric < (int64_t)SHOAL_FIRST_AGENT) return metric * b->num_envs + i;
    return (int64_t)SHOAL_FIRST_AGENT * b->num_envs + i * (int64_t)SHOAL_AGENT_METRICS + metric -
           (int64_t)SHOAL_FIRST_AGENT;
}

SHOAL_FN void shoal_metric_add(ShoalBatch *b, int64_t metric, int64_t i, float mean, float low, float high,
                               int32_t first) {
    int64_t at = metric * b->num_envs + i;
    b->sums[at] += (double)mean;
    b->lows[at] = first ? low : m_min(b->lows[at], low);
    b->highs[at] = first ? high : m_max(b->highs[at], high);
}

// Adds the episode that env i has finished to the sums.
SHOAL_FN void shoal_episode_record(ShoalBatch *b, int64_t i) {
    const float *returns = b->returns + i * NUM_AGENTS;
    int32_t length = shoal_length(b, i), first = b->episodes[i]++ == 0;
    float total = 0.0f, low = returns[0], high = returns[0];
    for (int32_t a = 0; a < NUM_AGENTS; a++) {
        total += returns[a];
        low = m_min(low, returns[a]);
        high = m_max(high, returns[a]);
    }
    shoal_metric_add(b, SHOAL_RETURN, i, total / (float)NUM_AGENTS, low, high, first);
    shoal_metric_add(b, SHOAL_LENGTH_METRIC, i, (float)length, (float)length, (float)length, first);
#ifdef ENV_STATS
#define SHOAL_RECORD(kind, name, help)                                                                                 \
    {                                                                                                                  \
        float value = SHOAL_FINAL_##kind(b->stats[(int64_t)stat_##name * b->num_envs + i], b->tick[i]);                \
        b->final_stats[(int64_t)stat_##name * b->num_envs + i] = value;                                                \
        shoal_metric_add(b, SHOAL_FIRST_STAT + stat_##name, i, value, value, value, first);                            \
    }
    ENV_STATS(SHOAL_RECORD)
#endif
    double *by_agent = b->sums + shoal_sum_at(b, SHOAL_FIRST_AGENT, i);
    for (int32_t a = 0; NUM_AGENTS > 1 && a < NUM_AGENTS; a++) {
        by_agent[a] += (double)returns[a];
        by_agent[NUM_AGENTS + a] += (double)b->final_length[i * NUM_AGENTS + a];  // the game's, or less
    }
}

// memset of memory of the batch. On a GPU it is a loop: compilers would make a thousand instructions of a kilobyte.
// Rows and states of whole words are aligned as words.
SHOAL_FN void shoal_fill(void *to, int32_t value, int64_t bytes) {
#ifdef __CUDACC__
    const uint32_t word = (uint32_t)(uint8_t)value * 0x01010101u;
    if (bytes % 4 == 0) {
#pragma unroll 1
        for (int64_t k = 0; k < bytes / 4; k++) ((uint32_t *)to)[k] = word;
    } else {
#pragma unroll 1
        for (int64_t k = 0; k < bytes; k++) ((uint8_t *)to)[k] = (uint8_t)value;
    }
#else
    memset(to, value, (size_t)bytes);
#endif
}

SHOAL_FN void shoal_row_end(ShoalBatch *b, int64_t i, int64_t row) {
    b->final_return[row] = b->returns[row];
    b->final_length[row] = shoal_length(b, i);
}

// Whether an episode that is begun is finished later: by shoal_finish_kernel, or in the end of the kernel that began
// it.
#ifdef __CUDACC__
#define SHOAL_FINISHES_LATE(b) (!SHOAL_EXTRAS || !(b)->wraps)
#else
#define SHOAL_FINISHES_LATE(b) 0
#endif

SHOAL_FN void shoal_episode_begin(ShoalBatch *b, int64_t i, State *s) {
#ifdef ENV_KEEPS_STATE
    if (b->poison)
#endif
#ifdef ENV_STATE
        memset(s, b->poison, sizeof *s);
#else
    shoal_fill(s, b->poison, sizeof *s);
#endif
    if (SHOAL_EXTRAS && b->num_rules > 0) shoal_randomize(b, i);
    env_reset(s, shoal_params_of(b, i), &b->rng[i]);
#ifdef ENV_HAS_FINISH
    if (!SHOAL_FINISHES_LATE(b)) env_finish(s, shoal_params_of(b, i));
#endif
    b->tick[i] = 0;
    b->ended[i] = 0;
    for (int32_t a = 0; a < NUM_AGENTS; a++) {
        b->returns[i * NUM_AGENTS + a] = 0.0f;
        b->alive[i * NUM_AGENTS + a] = 1;
    }
    for (int32_t k = 0; k < NUM_STATS; k++) b->stats[(int64_t)k * b->num_envs + i] = 0.0f;
}

// An agent's observation. Of a group that has a smaller one, the rest of the row is 0.
SHOAL_FN void shoal_observe_agent(const State *s, const Params *p, int32_t agent, Obs *obs) {
    if (SHOAL_OWN_OBS > 0) shoal_fill(obs, 0, OBS_SIZE * sizeof(Obs));
    env_observe(s, p, agent, obs);
}

// Writes env i's observations to `out` (NUM_AGENTS, OBS_SIZE), and its masks.
SHOAL_FN void shoal_observe_env(ShoalBatch *b, int64_t i, const State *s, const Params *p, Obs *out) {
    for (int32_t a = 0; a < NUM_AGENTS; a++) {
        int64_t row = i * NUM_AGENTS + a;
        Obs *obs = out + (int64_t)a * OBS_SIZE;
        if (b->alive[row]) {
            shoal_observe_agent(s, p, a, obs);
        } else {
            shoal_fill(obs, 0, OBS_SIZE * sizeof(Obs));
        }
#ifdef ENV_HAS_MASK
        uint8_t *mask = b->masks + row * MASK_SIZE;
        if (b->alive[row]) {
            env_mask(s, p, a, mask);
        } else {
            memset(mask, 1, MASK_SIZE);
        }
#endif
    }
}

SHOAL_FN void shoal_row_clear(ShoalBatch *b, int64_t row) {
    b->rewards[row] = 0.0f;
    b->terminated[row] = b->truncated[row] = b->done[row] = 0;
}

SHOAL_FN Obs *shoal_obs_of(const ShoalBatch *b, int64_t i) { return b->obs + i * NUM_AGENTS * OBS_SIZE; }

// Starts an episode of env i: from its seed or, where seeds is 0, with its random stream continued.
SHOAL_FN void shoal_reset_env(ShoalBatch *b, int64_t i, const uint64_t *seeds, Obs *obs) {
    STATE_OPEN(b, i);
    if (seeds) {
        b->rng[i] = rng_seed(seeds[i]);
        if (SHOAL_EXTRAS && b->param_rng) b->param_rng[i] = rng_seed(rng_mix(seeds[i] + SHOAL_PARAM_STREAM));
        if (SHOAL_EXTRAS && b->wrap_rng) b->wrap_rng[i] = rng_seed(rng_mix(seeds[i] + SHOAL_WRAP_STREAM));
    }
    shoal_episode_begin(b, i, s);
    shoal_observe_env(b, i, s, shoal_params_of(b, i), obs);
    for (int32_t a = 0; a < NUM_AGENTS; a++) shoal_row_clear(b, i * NUM_AGENTS + a);
    STATE_CLOSE(i);
}

#if SHOAL_EXTRAS  // a GPU's other build has shoal_step_thread only
// One step of one env. Writes its observations to `obs` and returns the number of its rows that are done.
SHOAL_FN int32_t shoal_step_env(ShoalBatch *b, int64_t i, Obs *obs) {
    if (b->ended[i]) {  // SHOAL_NEXT_STEP: this step is the reset, and its action is ignored
        shoal_reset_env(b, i, 0, obs);
        return 0;
    }
    STATE_OPEN(b, i);
    const Params *p = shoal_params_of(b, i);
    Step out;
    memset(&out, 0, sizeof out);
    env_step(s, p, b->actions + i * NUM_AGENTS * ACTION_SIZE, &out, &b->rng[i]);

    int32_t tick = ++b->tick[i];
    int32_t timeout = tick >= shoal_limit(b, p);
    int32_t left = 0, finished = 0;
#ifdef ENV_STATS
#define SHOAL_KEEP(kind, name, help)                                                                                   \
    if (SHOAL_KEEPS_##kind(out.stats.name)) {                                                                          \
        float *total = &b->stats[(int64_t)stat_##name * b->num_envs + i];                                              \
        *total = SHOAL_KEEP_##kind(*total, out.stats.name);                                                            \
    }
    ENV_STATS(SHOAL_KEEP)
#endif
    for (int32_t a = 0; a < NUM_AGENTS; a++) {
        int64_t row = i * NUM_AGENTS + a;
        int32_t was_alive = b->alive[row], ends = was_alive && out.terminations[a], continues = was_alive && !ends;
        float reward = was_alive ? out.rewards[a] : 0.0f;
        b->rewards[row] = reward;
        b->returns[row] += reward;
        b->terminated[row] = (uint8_t)ends;
        b->truncated[row] = (uint8_t)(timeout && continues);
        b->done[row] = (uint8_t)(ends || (timeout && continues));
        left += continues;
        if (b->done[row]) {
            finished++;
            if (!b->final_cut || !ends) shoal_observe_agent(s, p, a, b->final_obs + row * OBS_SIZE);
            shoal_row_end(b, i, row);
        }
    }
    int32_t over = left == 0 || timeout;
    if (over) shoal_episode_record(b, i);
    if (over && b->autoreset == SHOAL_SAME_STEP) {
        shoal_episode_begin(b, i, s);
    } else {
        b->ended[i] = (uint8_t)over;
        for (int32_t a = 0; a < NUM_AGENTS && !over; a++) {
            b->alive[i * NUM_AGENTS + a] &= (uint8_t)!b->terminated[i * NUM_AGENTS + a];
        }
    }
    shoal_observe_env(b, i, s, p, obs);
    STATE_CLOSE(i);
    return finished;
}
#endif

// ---- bounds of actions and observations ----

#ifndef ENV_ACTION_LOW
#define ENV_ACTION_LOW -1.0f
#endif
#ifndef ENV_ACTION_HIGH
#define ENV_ACTION_HIGH 1.0f
#endif

#ifndef ENV_OBS_LOW
#define ENV_OBS_LOW (sizeof(Obs) == 1 ? 0.0f : -M_INF)
#endif
#ifndef ENV_OBS_HIGH
#define ENV_OBS_HIGH (sizeof(Obs) == 1 ? 255.0f : M_INF)
#endif

SHOAL_FN float shoal_box_low(int32_t element) {
    const float low[] = {ENV_ACTION_LOW};
    return low[sizeof low == sizeof(float) ? 0 : element];
}
SHOAL_FN float shoal_box_high(int32_t element) {
    const float high[] = {ENV_ACTION_HIGH};
    return high[sizeof high == sizeof(float) ? 0 : element];
}

// The choices of an agent whose action is one choice: those of its group, or all.
SHOAL_FN int32_t shoal_choices_of(int32_t agent) {
    int32_t own = 0;
#define SHOAL_OWN_CHOICES_(name, first, last, obs, actions, ...)                                                       \
    if (agent >= (first) && agent <= (last)) own = (actions);
#define SHOAL_OWN_CHOICES(...) SHOAL_OWN_CHOICES_(__VA_ARGS__, 0, 0, 0)
    ENV_GROUPS(SHOAL_OWN_CHOICES)
    (void)agent;
    return own ? own : (int32_t)SHOAL_DIM;
}

// Whether a value of a mixed action is allowed: a finite number, or a whole number that is one of the choices.
SHOAL_FN int32_t shoal_mix_fits(float value, int32_t element) {
    const int32_t dims[] = {SHOAL_TAIL(SHOAL_TAIL(SHOAL_TAIL(SHOAL_TAIL(ENV_ACTION))))};
    if (element < (int32_t)ACTION_FLOATS) return m_abs(value) < M_INF;
    int32_t count = (int32_t)(sizeof dims / sizeof(int32_t)),
            choices = dims[(1 + element - (int32_t)ACTION_FLOATS) % count];
    return value >= 0.0f && value < (float)choices && value == (float)(int32_t)value;
}

// ---- snapshots: everything that an env's future depends on, as one record of bytes ----

typedef struct {
    State state;
    Rng rng;
    int32_t tick, ended;
    float returns[NUM_AGENTS];
    uint8_t alive[NUM_AGENTS];
#ifdef ENV_STATS
    float stats[NUM_STATS];
#endif
} ShoalRecord;

SHOAL_FN void shoal_save_env(const ShoalBatch *b, int64_t i, ShoalRecord *record) {
    memset(record, 0, sizeof *record);
    STATE_OPEN(b, i);
    memcpy(&record->state, s, sizeof *s);
    record->rng = b->rng[i];
    record->tick = b->tick[i];
    record->ended = b->ended[i];
    memcpy(record->returns, b->returns + i * NUM_AGENTS, sizeof record->returns);
    memcpy(record->alive, b->alive + i * NUM_AGENTS, sizeof record->alive);
#ifdef ENV_STATS
    for (int32_t k = 0; k < NUM_STATS; k++) record->stats[k] = b->stats[(int64_t)k * b->num_envs + i];
#endif
}

SHOAL_FN void shoal_load_env(ShoalBatch *b, int64_t i, const ShoalRecord *record) {
    STATE_OPEN(b, i);
    memcpy(s, &record->state, sizeof *s);
    b->rng[i] = record->rng;
    b->tick[i] = record->tick;
    b->ended[i] = (uint8_t)record->ended;
    memcpy(b->returns + i * NUM_AGENTS, record->returns, sizeof record->returns);
    memcpy(b->alive + i * NUM_AGENTS, record->alive, sizeof record->alive);
#ifdef ENV_STATS
    for (int32_t k = 0; k < NUM_STATS; k++) b->stats[(int64_t)k * b->num_envs + i] = record->stats[k];
#endif
    for (int32_t a = 0; a < NUM_AGENTS; a++) {
        // a record does not hold when an agent that is out left: its length counts as the game's so far
        if (!record->alive[a]) b->final_length[i * NUM_AGENTS + a] = record->tick;
    }
    // a record of another autoreset mode may wait for its reset: SHOAL_SAME_STEP would have done it at once
    if (record->ended && b->autoreset == SHOAL_SAME_STEP) shoal_episode_begin(b, i, s);
    shoal_observe_env(b, i, s, shoal_params_of(b, i), shoal_obs_of(b, i));
    for (int32_t a = 0; a < NUM_AGENTS; a++) shoal_row_clear(b, i * NUM_AGENTS + a);
    STATE_CLOSE(i);
}

#include "wrap.h"

#ifdef __CUDACC__
#include "device.h"
#else
#include "host.h"
#endif
