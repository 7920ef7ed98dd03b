// device.h: the CUDA kernels of an env, one thread per env. module.c defines what they compute.
//
// Threads of a warp that go different ways wait for each other, and large observations leave room for few envs in a
// block. So envs with large observations have 2, 4 or 8 threads each, of which one steps the env: a warp then has fewer
// ways to go, and a processor more warps, of which some compute while others wait. All of them write observations.
//
// Observations are staged in shared memory and then written by the whole block, so that neighbouring threads write
// neighbouring bytes. If each thread wrote its own observation, a row of up to a kilobyte, every store of a warp would
// touch 32 lines of memory.

extern __shared__ __align__(16) unsigned char shoal_stage[];

enum { SHOAL_ENV_OBS_BYTES = NUM_AGENTS * OBS_SIZE * sizeof(Obs) };

// Whether native/cuda.py stages observations in any case: then kernels have no code for the other. A block has 48 KB,
// of which the system may take one.
#define SHOAL_STAGED(stage) (32 * (int32_t)SHOAL_ENV_OBS_BYTES <= (47 << 10) || (stage))

// Copies the block's staged observations to the rows of its envs.
static __device__ __forceinline__ void shoal_write_stage(Obs *obs, int64_t first, int32_t envs) {
    __syncthreads();
    int32_t bytes = envs * (int32_t)SHOAL_ENV_OBS_BYTES;
    unsigned char *to = (unsigned char *)obs + first * SHOAL_ENV_OBS_BYTES;
    if (bytes % 16 == 0 && (uint64_t)to % 16 == 0) {
#pragma unroll 4
        for (int32_t k = (int32_t)threadIdx.x; k < bytes / 16; k += (int32_t)blockDim.x)
            ((uint4 *)to)[k] = ((const uint4 *)shoal_stage)[k];
    } else {
        for (int32_t k = (int32_t)threadIdx.x; k < bytes; k += (int32_t)blockDim.x) to[k] = shoal_stage[k];
    }
}

#ifdef ENV_OBS_FIELD
extern "C" {
__device__ int32_t shoal_stages_nothing;  // native/cuda.py asks whether it exists
}

ENV_REQUIRE(NUM_AGENTS == 1 && sizeof(((State *)0)->ENV_OBS_FIELD) == OBS_SIZE * sizeof(Obs) && sizeof(State) % 4 == 0,
            "ENV_OBS_FIELD needs one agent, a field of the observation's size and a State of whole words");

// Copies the observations of the block's envs from their States, each thread one word at a time of all of them: a word
// of a row may be in two words of the State, or the end of one row and the begin of the next. All threads of the block
// call it, after their envs' steps.
static __device__ __forceinline__ void shoal_write_field(const ShoalBatch *b, int64_t first, int32_t envs) {
    enum { ROW = SHOAL_ENV_OBS_BYTES, STRIDE = sizeof(State), AT_ONCE = 4 };  // loads at once: stores wait for them
    __syncthreads();
    int32_t bytes = envs * ROW, step = (int32_t)blockDim.x;
    unsigned char *to = (unsigned char *)b->obs + first * ROW;
    const unsigned char *from = (const unsigned char *)((const State *)b->state + first)->ENV_OBS_FIELD;
    int32_t count = (uint64_t)from % 4 == 0 && (uint64_t)to % 4 == 0 ? bytes / 4 : 0;
    for (int32_t begin = (int32_t)threadIdx.x; begin < count; begin += AT_ONCE * step) {
        uint32_t words[AT_ONCE];
#pragma unroll
        for (int32_t n = 0; n < AT_ONCE; n++) {
            int32_t k = i_min(begin + n * step, count - 1), env = 4 * k / ROW, at = 4 * k - env * ROW;
            int32_t own = ROW - at, shift = 8 * (at % 4);  // own: bytes up to the end of the row
            const uint32_t *row = (const uint32_t *)(from + env * STRIDE);
            uint32_t low = row[at / 4], high = own > 4 - at % 4 ? row[at / 4 + 1] : 0;
            uint32_t next = own < 4 ? row[STRIDE / 4] : 0;
            words[n] = shift ? low >> shift | high << (32 - shift) : low;
            if (own < 4) words[n] = (words[n] & ((1u << 8 * own) - 1)) | next << 8 * own;
        }
#pragma unroll
        for (int32_t n = 0; n < AT_ONCE; n++) {
            if (begin + n * step < count) ((uint32_t *)to)[begin + n * step] = words[n];
        }
    }
    for (int32_t k = 4 * count + (int32_t)threadIdx.x; k < bytes; k += step) to[k] = from[k / ROW * STRIDE + k % ROW];
    __syncthreads();
    for (int32_t env = (int32_t)threadIdx.x; env < envs; env += step) {  // an agent that is not alive observes zeros
        if (!b->alive[first + env]) shoal_fill(shoal_obs_of(b, first + env), 0, ROW);
    }
}
#endif

// ---- one step of one env, as shoal_step_env defines it ----
//
// A warp waits whenever one of its threads waits for memory, and a GPU that runs one warp at a time on each scheduler
// has nothing else to do then. So a thread loads all that its env needs at once, computes in registers and stores in
// the end. The compiler cannot do that by itself: to it, every store may change what was not yet loaded. And what few
// envs do in a step, the end of an episode, is a function of its own, not in the way of the others' instructions.

// A State of up to 128 bytes is held in registers. One that is indexed by a variable is not: it is copied to the
// thread's stack, which is cached and in the order of threads.
enum { SHOAL_HOLDS_STATE = sizeof(State) <= 128, SHOAL_HOLDS_PARAMS = sizeof(Params) <= 64 };

// Copies an element of an array of the batch, whose memory is aligned to more than 16 bytes.
template <class Element>
static __device__ __forceinline__ void shoal_load(Element *to, const Element *from) {
    if (sizeof(Element) % 16) {
        *to = *from;
    } else {
        uint4 words[(sizeof(Element) + 15) / 16];
#pragma unroll
        for (int32_t k = 0; k < (int32_t)(sizeof(Element) / 16); k++) words[k] = ((const uint4 *)from)[k];
        memcpy(to, words, sizeof *to);
    }
}
template <class Element>
static __device__ __forceinline__ void shoal_store(Element *to, const Element *from) {
    if (sizeof(Element) % 16) {
        *to = *from;
    } else {
        uint4 words[(sizeof(Element) + 15) / 16];
        memcpy(words, from, sizeof *from);
#pragma unroll
        for (int32_t k = 0; k < (int32_t)(sizeof(Element) / 16); k++) ((uint4 *)to)[k] = words[k];
    }
}

static __device__ __forceinline__ void shoal_hold(const ShoalBatch *b, int64_t i, State *s) {
#ifdef ENV_STATE
    const ShoalColumns columns = shoal_columns_of(b);
    *s = shoal_state_load(&columns, i);
#else
    shoal_load(s, (const State *)b->state + i);
#endif
}

static __device__ __forceinline__ void shoal_release(const ShoalBatch *b, int64_t i, const State *s) {
#ifdef ENV_STATE
    const ShoalColumns columns = shoal_columns_of(b);
    shoal_state_store(&columns, i, s);
#else
    shoal_store((State *)b->state + i, s);
#endif
}

// What follows a step in which some row of env i was done. `over`: the whole episode is.
static __device__ __noinline__ void shoal_end_rows(ShoalBatch *b, int64_t i, int32_t over) {
    STATE_OPEN(b, i);
    for (int32_t a = 0; a < NUM_AGENTS; a++) {
        int64_t row = i * NUM_AGENTS + a;
        if (!b->done[row]) continue;
        if (!b->final_cut || !b->terminated[row]) {
            shoal_observe_agent(s, shoal_params_of(b, i), a, b->final_obs + row * OBS_SIZE);
        }
        shoal_row_end(b, i, row);
    }
    if (over) shoal_episode_record(b, i);
    if (over && (!SHOAL_EXTRAS || b->autoreset == SHOAL_SAME_STEP)) {
        shoal_episode_begin(b, i, s);
        STATE_CLOSE(i);
    }
}

// SHOAL_NEXT_STEP: this step is the reset, and its action is ignored.
static __device__ __noinline__ void shoal_begin_waiting(ShoalBatch *b, int64_t i) {
    STATE_OPEN(b, i);
    shoal_episode_begin(b, i, s);
    for (int32_t a = 0; a < NUM_AGENTS; a++) shoal_row_clear(b, i * NUM_AGENTS + a);
    STATE_CLOSE(i);
}

static __device__ __forceinline__ void shoal_step_thread(ShoalBatch *b, int64_t i, Obs *obs) {
    enum { ACTIONS = NUM_AGENTS * ACTION_SIZE, HOLDS_ACTIONS = (int)ACTIONS <= 4 };
    State held_state, *s = (State *)b->state + i;
    Params held_params;
    const Params *p = shoal_params_of(b, i);
    Action held_actions[ACTIONS];
    const Action *actions = b->actions + i * ACTIONS;
    const int32_t tick = b->tick[i] + 1, first_alive = b->alive[i * NUM_AGENTS];
    const float first_return = b->returns[i * NUM_AGENTS];
    Rng rng;
    shoal_load(&rng, &b->rng[i]);
    const Rng before = rng;
    if (SHOAL_HOLDS_STATE) {
        s = &held_state;
        shoal_hold(b, i, s);
    }
    if (SHOAL_HOLDS_PARAMS) {
        held_params = *p;
        p = &held_params;
    }
    if (HOLDS_ACTIONS) {
        for (int32_t k = 0; k < (int32_t)ACTIONS; k++) held_actions[k] = actions[k];
        actions = held_actions;
    }
    const int32_t waits = SHOAL_EXTRAS && b->ended[i];
    int32_t over = 0, ends = 0;
    if (!waits) {
        Step out;
        memset(&out, 0, sizeof out);
        env_step(s, p, actions, &out, &rng);
        if (SHOAL_HOLDS_STATE) shoal_release(b, i, s);
        if ((rng.s[0] ^ before.s[0]) | (rng.s[1] ^ before.s[1]) | (rng.s[2] ^ before.s[2]) | (rng.s[3] ^ before.s[3]))
            shoal_store(&b->rng[i], &rng);
        b->tick[i] = tick;
        int32_t timeout = tick >= shoal_limit(b, p), left = 0;
#ifdef ENV_STATS
#define SHOAL_KEPT(kind, name, help)                                                                                   \
    const int32_t keeps_##name = SHOAL_KEEPS_##kind(out.stats.name);                                                   \
    float *at_##name = &b->stats[(int64_t)stat_##name * b->num_envs + i];                                              \
    [[maybe_unused]] const float kept_##name = keeps_##name ? *at_##name : 0.0f;
#define SHOAL_KEEP_HELD(kind, name, help)                                                                              \
    if (keeps_##name) *at_##name = SHOAL_KEEP_##kind(kept_##name, out.stats.name);
        ENV_STATS(SHOAL_KEPT)
        ENV_STATS(SHOAL_KEEP_HELD)
#endif
        for (int32_t a = 0; a < NUM_AGENTS; a++) {
            int64_t row = i * NUM_AGENTS + a;
            int32_t was_alive = NUM_AGENTS == 1 ? first_alive : b->alive[row];
            int32_t dies = was_alive && out.terminations[a], continues = was_alive && !dies;
            float reward = was_alive ? out.rewards[a] : 0.0f;
            b->rewards[row] = reward;
            b->returns[row] = (NUM_AGENTS == 1 ? first_return : b->returns[row]) + reward;
            b->terminated[row] = (uint8_t)dies;
            b->truncated[row] = (uint8_t)(timeout && continues);
            b->done[row] = (uint8_t)(dies || (timeout && continues));
            left += continues;
            ends |= dies || (timeout && continues);
        }
        over = left == 0 || timeout;
        if (SHOAL_EXTRAS && b->autoreset != SHOAL_SAME_STEP) b->ended[i] = (uint8_t)over;
        for (int32_t a = 0; NUM_AGENTS > 1 && a < NUM_AGENTS && !over; a++) {
            b->alive[i * NUM_AGENTS + a] &= (uint8_t)!b->terminated[i * NUM_AGENTS + a];
        }
    }
    if (waits | ends | over) {
        if (waits) {
            shoal_begin_waiting(b, i);
        } else {
            shoal_end_rows(b, i, over);
        }
        if (SHOAL_HOLDS_STATE) shoal_hold(b, i, s);
    }
#ifndef ENV_OBS_FIELD
    shoal_observe_env(b, i, s, p, obs);
#endif
}

#if SHOAL_EXTRAS
static __device__ int64_t shoal_step_frame(ShoalBatch *b, int64_t lo, int64_t hi) {
    return shoal_step_env(b, lo, shoal_obs_of(b, lo));
}
#endif

#ifdef ENV_HAS_FINISH
static __device__ State *shoal_state_of(const ShoalBatch *b, int64_t i) { return (State *)b->state + i; }

// Finishes an episode that env i has begun, by one thread: in a kernel in which all threads do it at once.
static __device__ void shoal_finish_env(ShoalBatch *b, int64_t i, Obs *obs) {
    State *s = shoal_state_of(b, i);
    if (!env_is_unfinished(s)) return;
    env_finish(s, shoal_params_of(b, i));
    shoal_observe_env(b, i, s, shoal_params_of(b, i), obs);
}
#else
static __device__ void shoal_finish_env(ShoalBatch *, int64_t, Obs *) {}
#endif

// stage: whether the launch has enough shared memory for the block's observations. spread: each env has 2^spread
// threads, of which the first steps it.
SHOAL_API __global__ void shoal_step_kernel(const __grid_constant__ ShoalBatch batch, int32_t stage, int32_t spread) {
    ShoalBatch *b = (ShoalBatch *)&batch;  // functions get its address, and none of them writes it
#if SHOAL_EXTRAS
    if (b->wraps) {
        int64_t env = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
        if (env < b->num_envs) shoal_step_wrapped(b, env, env + 1);
        return;
    }
#endif
    int32_t room = (int32_t)blockDim.x >> spread, local = (int32_t)threadIdx.x >> spread;
    int64_t first = (int64_t)blockIdx.x * room, i = first + local;
    int32_t envs = (int32_t)(b->num_envs - first < room ? b->num_envs - first : room);
    int32_t has_env = local < envs && local << spread == (int32_t)threadIdx.x;
#ifdef ENV_OBS_FIELD
    if (has_env) shoal_step_thread(b, i, 0);
    shoal_write_field(b, first, envs);
#else
    Obs *obs = SHOAL_STAGED(stage) ? (Obs *)(shoal_stage + local * (int32_t)SHOAL_ENV_OBS_BYTES) : shoal_obs_of(b, i);
    if (has_env) shoal_step_thread(b, i, obs);
    if (SHOAL_STAGED(stage)) shoal_write_stage(b->obs, first, envs);
#endif
}

#ifdef ENV_HAS_FINISH
// After a step: finishes the episodes that envs have begun in it, TEAM threads for each, and writes their observations
// again. A block looks after SHOAL_FINISHED envs (FINISHED of native/cuda.py), of which few have begun one.
enum { SHOAL_FINISHED = 16 };
SHOAL_API __global__ void shoal_finish_kernel(ShoalBatch b) {
    __shared__ uint32_t begun;  // a bit for each env
    int64_t first = (int64_t)blockIdx.x * SHOAL_FINISHED, i = first + threadIdx.x;
    int32_t own = threadIdx.x < SHOAL_FINISHED && i < b.num_envs && env_is_unfinished(shoal_state_of(&b, i));
    uint32_t bits = __ballot_sync(0xffffffffu, own);
    if (threadIdx.x == 0) begun = bits;
    __syncthreads();
    for (uint32_t left = begun; left; left &= left - 1) {
        int64_t env = first + __ffs((int)left) - 1;
        env_finish_together(shoal_state_of(&b, env), shoal_params_of(&b, env), (int32_t)threadIdx.x);
    }
    if (own) shoal_observe_env(&b, i, shoal_state_of(&b, i), shoal_params_of(&b, i), shoal_obs_of(&b, i));
}
#endif

SHOAL_API __global__ void shoal_reset_kernel(ShoalBatch b) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= b.num_envs || (b.reset_mask && !b.reset_mask[i])) return;
    ShoalBatch frames = shoal_frames_of(&b);
    shoal_reset_env(&frames, i, b.seeds, shoal_obs_of(&frames, i));
    shoal_finish_env(&frames, i, shoal_obs_of(&frames, i));
    if (SHOAL_EXTRAS && b.frames) shoal_show(&b, i);
}

SHOAL_API __global__ void shoal_save_kernel(ShoalBatch b, const int64_t *ids, int64_t count, ShoalRecord *records) {
    int64_t k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (k < count) shoal_save_env(&b, ids[k], &records[k]);
}

SHOAL_API __global__ void shoal_load_kernel(ShoalBatch b, const int64_t *ids, int64_t count,
                                            const ShoalRecord *records) {
    int64_t k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= count) return;
    shoal_load_wrapped(&b, ids[k], &records[k]);
    shoal_finish_env(&b, ids[k], shoal_obs_of(&b, ids[k]));
}

static __device__ __forceinline__ int32_t shoal_choices(int32_t element) {
    const int32_t choices[] = {SHOAL_TAIL(SHOAL_TAIL(SHOAL_TAIL(SHOAL_TAIL(ENV_ACTION))))};
    return choices[ACTION_SIZE == 1 ? 0 : element];
}

// Copies actions in; those of a box are clipped. `bad` becomes the lowest index of an invalid action.
#define SHOAL_TAKE_KERNEL(name, From)                                                                                  \
    SHOAL_API __global__ void name(ShoalBatch b, const From *from, long long *bad) {                                   \
        int64_t k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;                                                    \
        if (k >= (int64_t)b.num_envs * NUM_AGENTS * ACTION_SIZE) return;                                               \
        int32_t element = (int32_t)(k % ACTION_SIZE), agent = (int32_t)(k / ACTION_SIZE % NUM_AGENTS);                 \
        if (!shoal_take_one(&b.actions[k], from[k], element, agent)) atomicMin(bad, (long long)k);                     \
    }
template <class From>
static __device__ __forceinline__ bool shoal_take_one(Action *to, From value, int32_t element, int32_t agent) {
    if (ACTION_KIND == SHOAL_MIX && element >= ACTION_FLOATS) {
        bool fits = shoal_mix_fits((float)value, element);
        *to = fits ? (Action)value : (Action)0;
        return fits;
    }
    if (ACTION_FLOATS > 0) {
        float number = (float)value;
        *to = (Action)m_clamp(number, shoal_box_low(element), shoal_box_high(element));
        return m_abs(number) < M_INF;
    }
    int32_t choices =
        SHOAL_OWN_ACTIONS > 0 && ACTION_KIND == SHOAL_DISCRETE ? shoal_choices_of(agent) : shoal_choices(element);
    bool fits = value >= (From)0 && value < (From)choices;
    *to = fits ? (Action)value : (Action)0;
    return fits;
}
SHOAL_TAKE_KERNEL(shoal_take_i32_kernel, int32_t)
SHOAL_TAKE_KERNEL(shoal_take_i64_kernel, int64_t)
SHOAL_TAKE_KERNEL(shoal_take_f32_kernel, float)

// Each block sums one metric over all envs and clears it. The order of the sum is that of native/batch.py: thread j
// adds the envs j, j + 256, ...; then the upper half of the threads is added to the lower until one is left.
SHOAL_API __global__ void shoal_drain_kernel(ShoalBatch b, double *sums, float *lows, float *highs, int64_t *episodes) {
    __shared__ double total[256];
    __shared__ float low[256], high[256];
    __shared__ long long count[256];
    int32_t j = (int32_t)threadIdx.x;
    int64_t metric = blockIdx.x;
    double sum = 0.0;
    float least = M_INF, most = -M_INF;
    long long ended = 0;
    for (int64_t i = j; i < b.num_envs; i += 256) {
        int64_t at = shoal_sum_at(&b, metric, i);
        sum += b.sums[at];
        if (b.episodes[i] && metric < SHOAL_FIRST_AGENT) {  // agents have no extremes
            least = m_min(least, b.lows[at]);
            most = m_max(most, b.highs[at]);
        }
        ended += b.episodes[i];
        b.sums[at] = 0.0;
    }
    total[j] = sum, low[j] = least, high[j] = most, count[j] = ended;
    for (int32_t half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (j < half) {
            total[j] += total[j + half];
            low[j] = m_min(low[j], low[j + half]);
            high[j] = m_max(high[j], high[j + half]);
            count[j] += count[j + half];
        }
    }
    if (j == 0) sums[metric] = total[0], lows[metric] = low[0], highs[metric] = high[0], episodes[metric] = count[0];
}
