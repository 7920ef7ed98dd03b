// clock.h: shared by pool.c and wait.c: the time, a pause for loops that spin, and when spinning is worth it.
#ifndef SHOAL_CLOCK_H
#define SHOAL_CLOCK_H

#include <stdint.h>
#include <time.h>

#define SHOAL_API __attribute__((visibility("default")))

#if defined(__x86_64__) || defined(__i386__)
#define CPU_RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define CPU_RELAX() __asm__ volatile("yield")
#else
#define CPU_RELAX() (void)0
#endif

static inline int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

// Whether the next wait should sleep at once: this one spun in vain, or slept for longer than spinning and waking take.
static inline int32_t spins_in_vain(int64_t spin_us, int32_t slept_at_once, int64_t waited_us) {
    return waited_us > (slept_at_once ? 2 : 1) * spin_us;
}

#endif
