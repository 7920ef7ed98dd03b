// pool.c: a pool of threads that run range functions over envs, for the `threads` backend.
//
//   submit: job -> each thread claims chunks of its own lane, then of other lanes -> the last chunk ends the job ->
//   wait
//
// A pool has a fixed number of jobs, one per range of envs that `recv` returns. The envs of a job are divided into
// lanes, one per thread: a thread steps the same envs each time, so that their state stays in its cache (moving it
// takes longer than stepping it), and claims chunks of another lane only when its own is empty. After their last chunk
// threads spin for a short time and then sleep: consecutive steps start within a microsecond, and an idle pool uses no
// CPU. A thread that spun in vain sleeps at once the next time: where a policy acts between steps, spinning only takes
// the core from it, or from other runs. No result depends on which thread ran which env (module.c).
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

// These functions have newer versions since glibc 2.34. The first versions exist everywhere: with them a wheel runs on
// older systems (native/glibc.py).
#if defined(__GLIBC__) && defined(__x86_64__)
#define FIRST_VERSION "GLIBC_2.2.5"
#elif defined(__GLIBC__) && defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#endif
#ifdef FIRST_VERSION
__asm__(".symver pthread_create, pthread_create@" FIRST_VERSION);
__asm__(".symver pthread_join, pthread_join@" FIRST_VERSION);
__asm__(".symver pthread_once, pthread_once@" FIRST_VERSION);
#endif

typedef int64_t (*RangeFn)(void *batch, int32_t lo, int32_t hi);

enum { MAX_JOBS = 64 };

typedef struct {
    _Alignas(64) _Atomic uint64_t claim;  // high half: number of the submission; low half: next env to claim
    _Atomic int32_t end;
} Lane;

typedef struct {
    _Alignas(64) _Atomic int32_t unfinished;  // envs that have not run; 0: the job is done
    _Atomic int32_t chunk;                    // envs claimed at a time
    _Atomic int64_t result;                   // sum of what the range function returned
    RangeFn fn;
    void *batch;
    Lane *lanes;
    int32_t sleeps;  // the caller sleeps at once while it waits for this job
} Job;

typedef struct {
    Job jobs[MAX_JOBS];
    _Alignas(64) _Atomic uint64_t submissions;
    _Alignas(64) _Atomic int32_t sleeping_workers;
    _Atomic int32_t sleeping_callers, stopping;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int32_t num_threads, num_lanes, num_jobs, spin_us;
    uint32_t forks;
    Lane *lanes;  // (num_jobs, num_lanes)
    struct Worker *workers;
} Pool;

typedef struct Worker {
    Pool *pool;
    int32_t lane;
    pthread_t thread;
} Worker;

// A forked child has the pool's memory but none of its threads: the caller does all the work.
static uint32_t forks;
static void count_fork(void) { forks++; }
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static void watch_forks(void) { pthread_atfork(0, 0, count_fork); }

// Runs one chunk of the lane, if any is left. The compare-and-swap fails if another thread took the chunk or the job
// was submitted again, so that `end` and `chunk` always belong to the submission that was claimed.
static int run_chunk(Pool *pool, Job *job, Lane *lane) {
    uint64_t claim = atomic_load(&lane->claim);
    for (;;) {
        int32_t lo = (int32_t)(uint32_t)claim, end = atomic_load(&lane->end), chunk = atomic_load(&job->chunk);
        if (lo >= end) return 0;
        int32_t hi = end - lo > chunk ? lo + chunk : end;
        if (!atomic_compare_exchange_weak(&lane->claim, &claim, claim + (uint32_t)(hi - lo))) continue;
        int64_t result = job->fn(job->batch, lo, hi);
        if (result) atomic_fetch_add(&job->result, result);
        if (atomic_fetch_sub(&job->unfinished, hi - lo) == hi - lo && atomic_load(&pool->sleeping_callers)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_broadcast(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
        return 1;
    }
}

// Runs one chunk of the job: of the thread's own lane, or else of another.
static int run_job(Pool *pool, Job *job, int32_t own) {
    if (!atomic_load_explicit(&job->unfinished, memory_order_relaxed)) return 0;
    for (int32_t k = 0; k < pool->num_lanes; k++) {
        int32_t lane = own + k < pool->num_lanes ? own + k : own + k - pool->num_lanes;
        if (run_chunk(pool, job, &job->lanes[lane])) return 1;
    }
    return 0;
}

static int run_any(Pool *pool, int32_t own) {
    for (int32_t k = 0; k < pool->num_jobs; k++) {
        if (run_job(pool, &pool->jobs[k], own)) return 1;
    }
    return 0;
}

static void *worker(void *arg) {
    Pool *pool = ((Worker *)arg)->pool;
    int32_t own = ((Worker *)arg)->lane, sleeps = 0;
    while (!atomic_load(&pool->stopping)) {
        uint64_t seen = atomic_load(&pool->submissions);
        if (run_any(pool, own)) continue;
        int64_t start = now_us(), until = start + pool->spin_us;
        int32_t spins = 0;
        while (!sleeps && atomic_load_explicit(&pool->submissions, memory_order_relaxed) == seen) {
            CPU_RELAX();
            if (++spins % 64 == 0 && now_us() >= until) break;
        }
        if (atomic_load(&pool->submissions) != seen) {
            sleeps = 0;
            continue;
        }
        pthread_mutex_lock(&pool->lock);
        atomic_fetch_add(&pool->sleeping_workers, 1);
        while (atomic_load(&pool->submissions) == seen && !atomic_load(&pool->stopping)) {
            pthread_cond_wait(&pool->work, &pool->lock);
        }
        atomic_fetch_sub(&pool->sleeping_workers, 1);
        pthread_mutex_unlock(&pool->lock);
        sleeps = spins_in_vain(pool->spin_us, sleeps, now_us() - start);
    }
    return 0;
}

static void wake_workers(Pool *pool) {
    // in a forked child no thread sleeps, and a broadcast would wait for threads that do not exist
    if (pool->forks != forks || !atomic_load(&pool->sleeping_workers)) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

// Ends the threads. The pool can still be used: the caller then does all the work, as in a forked child.
SHOAL_API void shoal_pool_stop(Pool *pool) {
    if (pool->forks == forks && !atomic_load(&pool->stopping)) {
        pthread_mutex_lock(&pool->lock);
        atomic_store(&pool->stopping, 1);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->lock);
        atomic_fetch_add(&pool->submissions, 1);
        for (int32_t k = 0; k < pool->num_threads; k++) pthread_join(pool->workers[k].thread, 0);
    }
}

SHOAL_API void shoal_pool_close(Pool *pool) {
    shoal_pool_stop(pool);
    if (pool->forks == forks) {
        pthread_mutex_destroy(&pool->lock);
        pthread_cond_destroy(&pool->work);
        pthread_cond_destroy(&pool->done);
    }
    free(pool->lanes);
    free(pool->workers);
    free(pool);
}

static void *zeros(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    return memory ? memset(memory, 0, bytes) : 0;
}

// A pool of num_threads threads, besides the caller, who works too in shoal_pool_run. 0 if the system cannot start
// them.
SHOAL_API Pool *shoal_pool_open(int32_t num_threads, int32_t num_jobs, int32_t spin_us) {
    if (num_threads < 0 || num_jobs < 1 || num_jobs > MAX_JOBS) return 0;
    // with one job the caller works too and has lane 0; with several it runs the policy meanwhile
    int32_t callers = num_jobs == 1 || num_threads == 0, num_lanes = num_threads + callers;
    Pool *pool = (Pool *)zeros(sizeof(Pool));
    if (!pool) return 0;
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_init(&pool->lock, 0);
    pthread_cond_init(&pool->work, 0);
    pthread_cond_init(&pool->done, 0);
    pool->num_jobs = num_jobs;
    pool->num_lanes = num_lanes;
    pool->spin_us = spin_us;
    pool->forks = forks;
    pool->lanes = (Lane *)zeros(sizeof(Lane) * (size_t)num_jobs * (size_t)num_lanes);
    pool->workers = (Worker *)zeros(sizeof(Worker) * (size_t)(num_threads + 1));
    int32_t refused = !pool->lanes || !pool->workers;
    for (int32_t k = 0; k < num_jobs && !refused; k++) pool->jobs[k].lanes = pool->lanes + (int64_t)k * num_lanes;
    for (int32_t k = 0; k < num_threads && !refused; k++) {
        Worker *self = &pool->workers[k];
        self->pool = pool;
        self->lane = k + callers;
        refused = pthread_create(&self->thread, 0, worker, self) != 0;
        pool->num_threads += !refused;
    }
    if (!refused) return pool;
    shoal_pool_close(pool);
    return 0;
}

// The threads that work on a job, the caller included.
SHOAL_API int32_t shoal_pool_threads(Pool *pool) {
    return pool->forks == forks && !atomic_load(&pool->stopping) ? pool->num_threads + 1 : 1;
}

// Starts a job over envs [lo, hi) and returns. Its previous submission must have been waited for.
SHOAL_API void shoal_pool_submit(Pool *pool, int32_t number, RangeFn fn, void *batch, int32_t lo, int32_t hi,
                                 int32_t chunk) {
    Job *job = &pool->jobs[number];
    job->fn = fn;
    job->batch = batch;
    atomic_store(&job->chunk, chunk);
    atomic_store(&job->result, 0);
    atomic_store(&job->unfinished, hi - lo);
    // equal lanes of whole chunks, so that every lane starts at a SIMD block
    int64_t chunks = (hi - lo + chunk - 1) / chunk;
    for (int32_t k = 0; k < pool->num_lanes; k++) {
        Lane *lane = &job->lanes[k];
        uint64_t submission = (atomic_load(&lane->claim) >> 32) + 1;
        int64_t from = lo + chunks * k / pool->num_lanes * chunk, to = lo + chunks * (k + 1) / pool->num_lanes * chunk;
        atomic_store(&lane->claim,
                     submission << 32 | INT32_MAX);  // closed, so that no old claim is combined with the new end
        atomic_store(&lane->end, (int32_t)(to < hi ? to : hi));
        atomic_store(&lane->claim, submission << 32 | (uint32_t)(from < hi ? from : hi));
    }
    atomic_fetch_add(&pool->submissions, 1);
    wake_workers(pool);
}

// Waits for a job and returns the sum of its results. With `help` the caller works on it too.
SHOAL_API int64_t shoal_pool_wait(Pool *pool, int32_t number, int32_t help) {
    Job *job = &pool->jobs[number];
    if (help || pool->num_threads == 0 || pool->forks != forks || atomic_load(&pool->stopping)) {
        while (run_job(pool, job, 0)) {
        }
    }
    if (!atomic_load(&job->unfinished)) return atomic_load(&job->result);
    int64_t start = now_us(), until = start + pool->spin_us;
    int32_t spins = 0;
    while (atomic_load(&job->unfinished)) {
        CPU_RELAX();
        if (!job->sleeps && (++spins % 64 || now_us() < until)) continue;
        pthread_mutex_lock(&pool->lock);
        atomic_fetch_add(&pool->sleeping_callers, 1);
        while (atomic_load(&job->unfinished)) pthread_cond_wait(&pool->done, &pool->lock);
        atomic_fetch_sub(&pool->sleeping_callers, 1);
        pthread_mutex_unlock(&pool->lock);
        job->sleeps = spins_in_vain(pool->spin_us, job->sleeps, now_us() - start);
    }
    return atomic_load(&job->result);
}

SHOAL_API int64_t shoal_pool_run(Pool *pool, RangeFn fn, void *batch, int32_t lo, int32_t hi, int32_t chunk) {
    shoal_pool_submit(pool, 0, fn, batch, lo, hi, chunk);
    return shoal_pool_wait(pool, 0, 1);
}

// Actions to be checked and copied in (shoal_take_* of host.h): of envs from `first` on, `stride` bytes for each.
typedef int64_t (*TakeFn)(void *batch, const void *from, int32_t lo, int32_t hi);
typedef struct {
    TakeFn take;
    void *batch;
    const char *from;
    int64_t stride;
    int32_t first;
} Actions;

static int64_t take_range(void *actions, int32_t lo, int32_t hi) {
    const Actions *all = (const Actions *)actions;
    return all->take(all->batch, all->from + (lo - all->first) * all->stride, lo, hi) >= 0;
}

// Takes the actions of envs [lo, hi) with all threads, each those of its own envs. Returns the index of the first bad
// value, or -1. No job may be in flight.
SHOAL_API int64_t shoal_pool_take(Pool *pool, TakeFn take, void *batch, const void *from, int64_t stride, int32_t lo,
                                  int32_t hi, int32_t chunk) {
    Actions all = {take, batch, (const char *)from, stride, lo};
    return shoal_pool_run(pool, take_range, &all, lo, hi, chunk) ? take(batch, from, lo, hi) : -1;
}

// The builds that this CPU can run (native/build.py): 3 with AVX-512, 2 with AVX2, otherwise 0.
SHOAL_API int32_t shoal_cpu_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
               ? 3
               : 2;
#else
    return 0;
#endif
}
