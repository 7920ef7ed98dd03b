// wait.c: how the parent and the worker processes of the `process` backend wait for each other.
//
//   parent: post(worker, command) -> worker: wait_command ... finish(worker, status) -> parent: wait_ready
//
// Both sides watch a word in shared memory for a short while and then sleep in the kernel on it (a futex), so a step
// starts in a microsecond and an idle worker uses no CPU. Nothing here blocks for longer than the caller allows: the
// caller looks in between whether the other side still lives.
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

// In shared memory, one per worker; vector/process.py allocates 128 bytes for each.
typedef struct {
    _Alignas(128) _Atomic uint32_t posted;  // commands given so far
    int32_t command;                        // the last one
    _Atomic uint32_t worker_sleeps;
    _Alignas(64) _Atomic uint32_t finished;  // commands done so far
    int32_t status;                          // how the last one went
    uint32_t ticket;                         // when it was done: lower is earlier
    int32_t current;                         // the env being stepped, for the report of a hang
    int32_t step;                            // of that env
} Slot;

// Before the slots; all workers count into it.
typedef struct {
    _Alignas(128) _Atomic uint32_t tickets;
    _Atomic uint32_t parent_sleeps;
    _Atomic uint32_t wanted;  // how far tickets must come before the parent is woken
} Desk;

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
        if (spins % 16 == 15) sched_yield();  // where cores are few, whoever we wait for may need this one
        if (spins % 64 || now_us() - start < spin_us) continue;
        int64_t left = timeout_us - (now_us() - start);
        if (left <= 0) return atomic_load(word) != seen;
        // the other side changes the word and then looks at `sleeps`; we do the two the other way round
        atomic_store(sleeps, 1);
        if (atomic_load(word) == seen) sleep_on(word, seen, left);
        atomic_store(sleeps, 0);
    }
    return 1;
}

static Slot *slot_of(Desk *desk, int32_t worker) { return (Slot *)(desk + 1) + worker; }

SHOAL_API int64_t shoal_desk_bytes(int32_t workers) { return (int64_t)(sizeof(Desk) + (size_t)workers * sizeof(Slot)); }
SHOAL_API Slot *shoal_desk_slot(Desk *desk, int32_t worker) { return slot_of(desk, worker); }

// ---- the parent's side ----

SHOAL_API void shoal_post(Desk *desk, const int32_t *workers, int32_t count, int32_t command) {
    for (int32_t k = 0; k < count; k++) {
        Slot *slot = slot_of(desk, workers[k]);
        slot->command = command;
        atomic_fetch_add(&slot->posted, 1);
        if (atomic_load(&slot->worker_sleeps)) wake(&slot->posted);
    }
}

// Counts what was posted as done: for a worker that was replaced.
SHOAL_API void shoal_settle(Desk *desk, int32_t worker) {
    Slot *slot = slot_of(desk, worker);
    slot->status = 0;
    slot->ticket = atomic_load(&desk->tickets);
    atomic_store(&slot->finished, atomic_load(&slot->posted));
    atomic_fetch_add(&desk->tickets, 1);
}

static int is_ready(Slot *slot) { return atomic_load(&slot->finished) == atomic_load(&slot->posted); }

// Waits until `need` of the given workers are done with what was posted to them, for at most timeout_us. Writes the
// workers that are done into `ready`, the earliest first, and returns how many.
SHOAL_API int32_t shoal_wait_ready(Desk *desk, const int32_t *workers, int32_t count, int32_t need, int32_t *ready,
                                   int64_t spin_us, int64_t timeout_us) {
    int64_t start = now_us();
    for (;;) {
        uint32_t seen = atomic_load(&desk->tickets);
        int32_t found = 0;
        for (int32_t k = 0; k < count; k++) {
            Slot *slot = slot_of(desk, workers[k]);
            if (!is_ready(slot)) continue;
            int32_t at = found++;  // insertion by ticket
            while (at > 0 && (int32_t)(slot_of(desk, ready[at - 1])->ticket - slot->ticket) > 0) {
                ready[at] = ready[at - 1];
                at--;
            }
            ready[at] = workers[k];
        }
        int64_t left = timeout_us - (now_us() - start);
        if (found >= need || left <= 0) return found;
        atomic_store(&desk->wanted, seen + (uint32_t)(need - found));  // waking it earlier would cost a worker its core
        wait_change(&desk->tickets, seen, &desk->parent_sleeps, spin_us, left);
    }
}

// ---- the worker's side ----

// The next command, or -1 after timeout_us without one.
SHOAL_API int32_t shoal_wait_command(Desk *desk, int32_t worker, int64_t spin_us, int64_t timeout_us) {
    Slot *slot = slot_of(desk, worker);
    uint32_t done = atomic_load(&slot->finished);
    if (!wait_change(&slot->posted, done, &slot->worker_sleeps, spin_us, timeout_us)) return -1;
    return slot->command;
}

SHOAL_API void shoal_finish(Desk *desk, int32_t worker, int32_t status) {
    Slot *slot = slot_of(desk, worker);
    slot->status = status;
    slot->ticket = atomic_load(&desk->tickets);
    atomic_fetch_add(&slot->finished, 1);
    uint32_t tickets = atomic_fetch_add(&desk->tickets, 1) + 1;
    if (atomic_load(&desk->parent_sleeps) && (int32_t)(tickets - atomic_load(&desk->wanted)) >= 0) wake(&desk->tickets);
}
