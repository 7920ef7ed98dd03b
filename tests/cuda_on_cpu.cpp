// cuda_on_cpu.cpp: the CUDA kernels of an env (native/core/device.h) with a CPU's threads, one for each of a block.
//
//   g++ -shared -DENV_HEADER='"craftax_classic.h"' cuda_on_cpu.cpp     (tests/test_cuda.py)
//
// Blocks run one after the other. __syncthreads and __ballot_sync are barriers, so that all threads have to reach them.
#define __CUDACC__
#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __shared__ static
#define __forceinline__ inline __attribute__((unused))
#define __noinline__ __attribute__((noinline, unused))
#define __align__(bytes) __attribute__((aligned(bytes)))

#include <pthread.h>
#include <stdint.h>
#include <string.h>

struct Index {
    uint32_t x, y, z;
};
struct uint4 {
    uint32_t x, y, z, w;
};
static thread_local Index threadIdx;
static Index blockIdx, blockDim;
static pthread_barrier_t barrier;

static void __syncthreads() { pthread_barrier_wait(&barrier); }
static uint32_t __ballot_sync(uint32_t, int own) {
    static uint32_t votes[32];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    uint32_t warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) votes[warp] = 0;
    __syncthreads();
    pthread_mutex_lock(&lock);
    votes[warp] |= (uint32_t)(own != 0) << threadIdx.x % 32;
    pthread_mutex_unlock(&lock);
    __syncthreads();
    uint32_t result = votes[warp];
    __syncthreads();
    return result;
}
static inline int __ffs(int bits) { return __builtin_ffs(bits); }
static inline void atomicMin(long long *to, long long value) { *to = value < *to ? value : *to; }

#include "module.c"

alignas(16) unsigned char shoal_stage[48 << 10];

struct Launch {
    const char *name;
    ShoalBatch *batch;
    const int64_t *ids;
    int64_t count;
    ShoalRecord *records;
    int32_t stage, spread;
};
struct Thread {
    const Launch *launch;
    uint32_t number, blocks;
};

static void *run(void *own) {
    const Thread *thread = (const Thread *)own;
    const Launch *launch = thread->launch;
    threadIdx.x = thread->number;
    for (uint32_t block = 0; block < thread->blocks; block++) {
        if (threadIdx.x == 0) blockIdx.x = block;
        __syncthreads();
        if (!strcmp(launch->name, "step")) shoal_step_kernel(*launch->batch, launch->stage, launch->spread);
#ifdef ENV_HAS_FINISH
        if (!strcmp(launch->name, "finish")) shoal_finish_kernel(*launch->batch);
#endif
        if (!strcmp(launch->name, "reset")) shoal_reset_kernel(*launch->batch);
        if (!strcmp(launch->name, "save")) {
            shoal_save_kernel(*launch->batch, launch->ids, launch->count, launch->records);
        }
        if (!strcmp(launch->name, "load")) {
            shoal_load_kernel(*launch->batch, launch->ids, launch->count, launch->records);
        }
        __syncthreads();
    }
    return 0;
}

extern "C" __attribute__((visibility("default"))) void launch(const char *name, void *batch, int64_t total,
                                                              const int64_t *ids, void *records, uint32_t block,
                                                              int32_t stage, int32_t spread) {
    Launch one = {name, (ShoalBatch *)batch, ids, total, (ShoalRecord *)records, stage, spread};
    Thread threads[128];
    pthread_t handles[128];
    blockDim.x = block;
    pthread_barrier_init(&barrier, 0, block);
    for (uint32_t k = 0; k < block; k++) {
        threads[k] = {&one, k, (uint32_t)((total + block - 1) / block)};
        pthread_create(&handles[k], 0, run, &threads[k]);
    }
    for (uint32_t k = 0; k < block; k++) pthread_join(handles[k], 0);
    pthread_barrier_destroy(&barrier);
}
