// team.h: threads that run the same function side by side and wait for each other, for ppo.c.
#ifndef SHOAL_TEAM_H
#define SHOAL_TEAM_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#include "clock.h"

// How long a thread polls, then polls and lets other threads run, before it sleeps. To wake takes longer than most
// waits.
enum { TEAM_SPIN_US = 50, TEAM_YIELD_US = 5000 };

typedef struct {
    int64_t threads;
    _Alignas(64) _Atomic int32_t arrived;
    _Alignas(64) _Atomic uint32_t round;
    _Atomic int32_t sleeping;
    _Alignas(64) _Atomic int64_t next;  // the next task that is not claimed; 0 after each meeting
    pthread_mutex_t lock;
    pthread_cond_t wake;
} Team;

static void open_team(Team *team) {
    pthread_mutex_init(&team->lock, 0);
    pthread_cond_init(&team->wake, 0);
}

static void close_team(Team *team) {
    pthread_mutex_destroy(&team->lock);
    pthread_cond_destroy(&team->wake);
}

static void begin_team(Team *team, int64_t threads) {
    team->threads = threads;
    atomic_store(&team->arrived, 0);
    atomic_store(&team->next, 0);
}

// Waits until all threads of the team are here.
static void meet(Team *team) {
    if (team->threads == 1) {
        atomic_store_explicit(&team->next, 0, memory_order_relaxed);
        return;
    }
    uint32_t round = atomic_load(&team->round);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == team->threads) {
        atomic_store(&team->arrived, 0);
        atomic_store(&team->next, 0);
        atomic_fetch_add(&team->round, 1);
        if (!atomic_load(&team->sleeping)) return;
        pthread_mutex_lock(&team->lock);
        pthread_cond_broadcast(&team->wake);
        pthread_mutex_unlock(&team->lock);
        return;
    }
    int64_t began = now_us(), waited = 0;
    for (int32_t spins = 1; atomic_load_explicit(&team->round, memory_order_acquire) == round; spins++) {
        CPU_RELAX();
        if (waited < TEAM_SPIN_US && spins % 64) continue;
        waited = now_us() - began;
        if (waited >= TEAM_SPIN_US) sched_yield();
        if (waited < TEAM_YIELD_US) continue;
        pthread_mutex_lock(&team->lock);
        atomic_fetch_add(&team->sleeping, 1);
        while (atomic_load(&team->round) == round) pthread_cond_wait(&team->wake, &team->lock);
        atomic_fetch_sub(&team->sleeping, 1);
        pthread_mutex_unlock(&team->lock);
    }
}

#endif
