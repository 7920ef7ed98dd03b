// wait.c: how the parent and the worker processes of the `process` backend wait for each other.
//
//   parent: post(worker, command) -> worker: wait_command ... finish(worker, status) -> parent: wait_ready
//
// Both sides watch a word in shared memory for a short while and then sleep in the kernel on it (a futex), so a step
// starts in a microsecond and an idle worker uses no CPU. No function blocks for longer than its timeout_us: between
// calls the caller checks that the other process is alive.
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "clock.h"

// One per worker, in shared memory; shoal_channels_bytes is the size of all.
typedef struct {
    _Alignas(128) _Atomic uint32_t posted;  // commands posted so far
    int32_t command;                        // the last one posted
    _Atomic uint32_t worker_sleeps;
    _Alignas(64) _Atomic uint32_t finished;  // commands done so far
    int32_t status;                          // result of the last one: a number that vector/worker.py defines
    uint32_t ticket;                         // order of completion: lower is earlier
    int32_t current;                         // the env being stepped, for the report of a hang
    int32_t step;                            // the step of that env
} Channel;

// Precedes the workers' channels; all workers count into it.
typedef struct {
    _Alignas(128) _Atomic uint32_t tickets;
    _Atomic uint32_t parent_sleeps;
    _Atomic uint32_t wanted;  // the value of tickets at which the parent is woken
} Channels;

static void sleep_on(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_us) {
#ifdef __linux__
    struct timespec t = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, 0, 0);
#else
    struct timespec t = {0, timeout_us < 200 ? timeout_us * 1000 : 200000};
    if (atomic_load(word) == seen) nanosleep(&t, 0);
#endif
}

static void wake(_Atomic uint32_t *word) {
#ifdef __linux__
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, 0, 0, 0);
#else
    (void)word;
#endif
}

// Waits while *word == seen, for at most timeout_us. Returns whether it changed.
static int wait_change(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *sleeps, int64_t spin_us,
                       int64_t timeout_us) {
    int64_t start = now_us();
    for (int32_t spins = 0; atomic_load(word) == seen; spins++) {
        CPU_RELAX();
        if (spins % 16 == 15) sched_yield();  // with few cores, the other process may need this one
        if (spins % 64 || now_us() - start < spin_us) continue;
        int64_t left = timeout_us - (now_us() - start);
        if (left <= 0) return atomic_load(word) != seen;
        // the other side changes the word, then reads `sleeps`; this side sets `sleeps`, then reads the word
        atomic_store(sleeps, 1);
        if (atomic_load(word) == seen) sleep_on(word, seen, left);
        atomic_store(sleeps, 0);
    }
    return 1;
}

static Channel *channel_of(Channels *channels, int32_t worker) { return (Channel *)(channels + 1) + worker; }

SHOAL_API int64_t shoal_channels_bytes(int32_t workers) {
    return (int64_t)(sizeof(Channels) + (size_t)workers * sizeof(Channel));
}
SHOAL_API Channel *shoal_channel(Channels *channels, int32_t worker) { return channel_of(channels, worker); }

// ---- the parent's side ----

SHOAL_API void shoal_post(Channels *channels, const int32_t *workers, int32_t count, int32_t command) {
    for (int32_t k = 0; k < count; k++) {
        Channel *channel = channel_of(channels, workers[k]);
        channel->command = command;
        atomic_fetch_add(&channel->posted, 1);
        if (atomic_load(&channel->worker_sleeps)) wake(&channel->posted);
    }
}

// Marks everything posted as finished, for a worker that was replaced.
SHOAL_API void shoal_settle(Channels *channels, int32_t worker) {
    Channel *channel = channel_of(channels, worker);
    channel->status = 0;
    channel->ticket = atomic_load(&channels->tickets);
    atomic_store(&channel->finished, atomic_load(&channel->posted));
    atomic_fetch_add(&channels->tickets, 1);
}

static int is_ready(Channel *channel) { return atomic_load(&channel->finished) == atomic_load(&channel->posted); }

// Waits until `need` of the given workers have finished what was posted to them, for at most timeout_us. Writes the
// finished workers into `ready`, the earliest first, and returns their number.
SHOAL_API int32_t shoal_wait_ready(Channels *channels, const int32_t *workers, int32_t count, int32_t need,
                                   int32_t *ready, int64_t spin_us, int64_t timeout_us) {
    int64_t start = now_us();
    for (;;) {
        uint32_t seen = atomic_load(&channels->tickets);
        int32_t num_ready = 0;
        for (int32_t k = 0; k < count; k++) {
            Channel *channel = channel_of(channels, workers[k]);
            if (!is_ready(channel)) continue;
            int32_t at = num_ready++;  // insertion by ticket
            while (at > 0 && (int32_t)(channel_of(channels, ready[at - 1])->ticket - channel->ticket) > 0) {
                ready[at] = ready[at - 1];
                at--;
            }
            ready[at] = workers[k];
        }
        int64_t left = timeout_us - (now_us() - start);
        if (num_ready >= need || left <= 0) return num_ready;
        // an earlier wake-up would take a core from a worker
        atomic_store(&channels->wanted, seen + (uint32_t)(need - num_ready));
        wait_change(&channels->tickets, seen, &channels->parent_sleeps, spin_us, left);
    }
}

// ---- the worker's side ----

// The next command, or -1 after timeout_us without one.
SHOAL_API int32_t shoal_wait_command(Channels *channels, int32_t worker, int64_t spin_us, int64_t timeout_us) {
    Channel *channel = channel_of(channels, worker);
    uint32_t done = atomic_load(&channel->finished);
    // Unlike env threads, a worker that watched in vain watches again the next time: its parent is often late by a
    // little (Python, the scheduler), and to sleep at once cost a third of the speed of cheap envs.
    if (!wait_change(&channel->posted, done, &channel->worker_sleeps, spin_us, timeout_us)) return -1;
    return channel->command;
}

SHOAL_API void shoal_finish(Channels *channels, int32_t worker, int32_t status) {
    Channel *channel = channel_of(channels, worker);
    channel->status = status;
    channel->ticket = atomic_load(&channels->tickets);
    atomic_fetch_add(&channel->finished, 1);
    uint32_t tickets = atomic_fetch_add(&channels->tickets, 1) + 1;
    if (atomic_load(&channels->parent_sleeps) && (int32_t)(tickets - atomic_load(&channels->wanted)) >= 0)
        wake(&channels->tickets);
}
