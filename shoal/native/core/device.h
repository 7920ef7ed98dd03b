// device.h: the CUDA kernels of an env, one thread per env. module.c defines what they compute.
//
// Observations are staged in shared memory and then written by the whole block, so that neighbouring threads write
// neighbouring bytes. If each thread wrote its own observation, a row of up to a kilobyte, every store of a warp would
// touch 32 lines of memory.

extern __shared__ __align__(16) unsigned char shoal_stage[];

enum { SHOAL_ENV_OBS_BYTES = NUM_AGENTS * OBS_SIZE * sizeof(Obs) };

// Copies the block's staged observations to the rows of its envs.
static __device__ __forceinline__ void shoal_write_stage(Obs *obs, int64_t first, int64_t num_envs) {
    __syncthreads();
    int64_t envs = num_envs - first < (int64_t)blockDim.x ? num_envs - first : (int64_t)blockDim.x;
    int64_t bytes = envs * SHOAL_ENV_OBS_BYTES;
    unsigned char *to = (unsigned char *)obs + first * SHOAL_ENV_OBS_BYTES;
    if (bytes % 16 == 0 && (uint64_t)to % 16 == 0) {
        for (int64_t k = threadIdx.x; k < bytes / 16; k += blockDim.x)
            ((uint4 *)to)[k] = ((const uint4 *)shoal_stage)[k];
    } else {
        for (int64_t k = threadIdx.x; k < bytes; k += blockDim.x) to[k] = shoal_stage[k];
    }
}

#if SHOAL_EXTRAS
static __device__ int64_t shoal_step_frame(ShoalBatch *b, int64_t lo, int64_t hi) {
    return shoal_step_env(b, lo, shoal_obs_of(b, lo));
}
#endif

#ifdef ENV_HAS_FINISH
static __device__ State *shoal_state_of(const ShoalBatch *b, int64_t i) { return (State *)b->state + i; }

// Finishes the episodes that the block's envs have begun, one after the other, and writes their observations again.
// All threads of the block call it.
static __device__ void shoal_finish_together(ShoalBatch *b, int64_t first, int64_t i, Obs *obs) {
    __shared__ uint32_t begun[32];  // by warp: a bit for each env
    int32_t own = i < b->num_envs && env_is_unfinished(shoal_state_of(b, i));
    uint32_t bits = __ballot_sync(0xffffffffu, own);
    if (threadIdx.x % 32 == 0) begun[threadIdx.x / 32] = bits;
    __syncthreads();
    for (uint32_t warp = 0; warp < blockDim.x / 32; warp++) {
        for (uint32_t left = begun[warp]; left; left &= left - 1) {
            int64_t env = first + 32 * warp + __ffs((int)left) - 1;
            env_finish_together(shoal_state_of(b, env), shoal_params_of(b, env), (int32_t)threadIdx.x,
                                (int32_t)blockDim.x);
        }
    }
    if (own) shoal_observe_env(b, i, shoal_state_of(b, i), obs);
}

// The same for one env, by one thread: in a kernel in which all threads do it at once.
static __device__ void shoal_finish_env(ShoalBatch *b, int64_t i, Obs *obs) {
    State *s = shoal_state_of(b, i);
    if (!env_is_unfinished(s)) return;
    env_finish(s, shoal_params_of(b, i));
    shoal_observe_env(b, i, s, obs);
}
#else
static __device__ void shoal_finish_together(ShoalBatch *, int64_t, int64_t, Obs *) {}
static __device__ void shoal_finish_env(ShoalBatch *, int64_t, Obs *) {}
#endif

// stage: whether the launch has enough shared memory for the block's observations.
SHOAL_API __global__ void shoal_step_kernel(ShoalBatch b, int32_t stage) {
#if SHOAL_EXTRAS
    if (b.wraps) {
        int64_t env = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
        if (env < b.num_envs) shoal_step_wrapped(&b, env, env + 1);
        return;
    }
#endif
    int64_t first = (int64_t)blockIdx.x * blockDim.x, i = first + threadIdx.x;
    Obs *obs = stage ? (Obs *)(shoal_stage + (int64_t)threadIdx.x * SHOAL_ENV_OBS_BYTES) : shoal_obs_of(&b, i);
    if (i < b.num_envs) shoal_step_env(&b, i, obs);
    shoal_finish_together(&b, first, i, obs);
    if (stage) shoal_write_stage(b.obs, first, b.num_envs);
}

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
