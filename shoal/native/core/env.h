// env.h: what an env header declares, and what it may use. module.c does everything else.
//
// An env header describes itself by ENV_ macros, includes this file, then defines its functions:
//
//   #define ENV_OBS      OBS_F32(4)          float32 of any shape up to 4-D; OBS_U8(h, w, c) for bytes
//   #define ENV_ACTION   ACT_DISCRETE(2)     ACT_MULTI(3, 2) up to 8 choices; ACT_BOX(4) for floats
//                                            ACT_MIX(2, 3) for 2 floats, then up to 7 choices: Action is float
//   #define ENV_AGENTS   1                   players per env (default 1)
//   #define ENV_GROUPS(X) X("predators", 0, 2) X("prey", 3, 3)   named groups of agents, first to last: a policy each
//                        X("prey", 3, 3, 7, 2)                   it observes 7 elements and has 2 choices, the first
//                        ones
//   #define ENV_MAX_STEPS 500                time limit, also the param max_steps (default 0: none)
//   #define ENV_VERSION  0                   raise it when the same seed no longer gives the same bytes
//   #define ENV_OBS_LOW / ENV_OBS_HIGH       one bound for all elements, or one for each (default: none)
//   #define ENV_ACTION_LOW / ENV_ACTION_HIGH the same for ACT_BOX (default -1 and 1)
//   #define ENV_PARAMS(X) X(float, gravity, 9.8f, "m/s^2")       run-time numbers: float or int
//   #define ENV_CONSTS(X) X(side, 11, "cells per side")          compile-time integers, to size arrays
//   #define ENV_LIMITS(X)  X("gravity", 0, 100)                  what a param or const may be; "speed_*" for several
//   #define ENV_CHOICES(X) X("start", "corner random")           names for the values 0, 1, … of an int param
//   #define ENV_PRESETS(X) X("moon", "gravity=1.6 start=random", "light")    named sets of params and consts
//   #define ENV_STATS(X)  X(mean, tilt, "mean |tilt|, rad")      per episode: mean, sum or last of a step's value
//   #define ENV_STATE(X)  X(float, x) X(float, v)                for a few scalars: kept as one array per
//                                                                field and stepped many envs at a time
//   #define ENV_KEEPS_STATE                  env_reset finds the State of the episode before, not zeros: it and
//                                            env_finish write all of it
//   #define ENV_HAS_FINISH                   env_reset leaves what takes long to env_finish: see below
//   #define ENV_OBS_FIELD pixels             the observation of its one agent is this field of State, which a GPU then
//                                            copies with whole blocks; env_observe copies it, too
//   #define ENV_CURVES(X) X(paths, 2, 31, "where it may go")     curves for viewers: 2 of 31 points each
//   #include "core/env.h"
//   typedef struct { ... } State;                                without ENV_STATE: any plain struct
//
//   ENV_FN void env_reset(State *s, const Params *p, Rng *rng);
//   ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng);
//   ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs);
//   ENV_FN void env_draw(const State *s, const Params *p, Draw *d);             or #define ENV_NO_DRAW
//   ENV_FN void env_mask(const State *s, const Params *p, int agent, uint8_t *mask);  if ENV_HAS_MASK
//   ENV_FN int env_check(const State *s, const Params *p);                       if ENV_HAS_CHECK
//   ENV_FN void env_curves(const State *s, const Params *p, int agent, float *out);   if ENV_CURVES
//
// ENV_HAS_FINISH, for a State without ENV_STATE: env_is_unfinished(s) is 1 after env_reset and 0 after env_finish(s,
// p). On a GPU one thread would need long for it, and those beside it would wait. So a second kernel does it after a
// step, with the same result, by TEAM threads for each env: env_finish_together(s, p, rank), under #ifdef TEAM_WAIT. A
// TEAM_SHARED variable is memory of all of them; TEAM_WAIT() waits until all are there; a TEAM_PART is inlined.
//
// env_check returns whether a State that was read from a file is safe to step and to observe: every number that is used
// as an index or as the end of a loop is in its range. A State without such numbers needs no env_check.
// env_curves writes every curve as an agent knows it, in the order of the list, 4 floats per point: x, y, time, value.
// env_observe is also called for an agent that has just terminated (final_obs): its position must still be valid.
// A header is plain C11, C++17 and CUDA C++ at once: no malloc, no libc, no global variables. Tables are read-only:
//
//   ENV_DATA uint8_t walls[2][3] = {{1, 0, 1}, {1, 1, 1}};       after the include; levels, moves, shapes
//
// Headers share the form of these lists, not their content: each describes its env in full.
#ifndef SHOAL_ENV_H
#define SHOAL_ENV_H

#include "math.h"

#ifdef __CUDACC__
#define ENV_FN static __host__ __device__ __forceinline__
#elif defined(ENV_STATE)
#define ENV_FN static inline __attribute__((always_inline))  // needed for gcc to vectorize across envs
#else
#define ENV_FN static inline __attribute__((unused))
#endif

// A large function that is called rarely: kernels that call it in several places would have a copy at each.
#ifdef __CUDACC__
#define ENV_RARE static __host__ __device__ __noinline__
#else
#define ENV_RARE static inline __attribute__((unused))
#endif

#ifdef __CUDACC__
#define TEAM_FN static __device__ __noinline__
#define TEAM_PART static __device__ __forceinline__
#define TEAM_SHARED __shared__
#define TEAM_WAIT() __syncthreads()
enum { TEAM = 128 };
#endif

// Read-only data that all envs share. On a GPU it is in the memory of the device, cached; __constant__ memory would
// serve the threads of a warp one after the other if they read different elements.
#ifdef __CUDA_ARCH__
#define ENV_DATA static __device__ const
#else
#define ENV_DATA static const __attribute__((unused))
#endif

#ifndef ENV_OBS
#error "Define ENV_OBS before including core/env.h, for example: #define ENV_OBS OBS_F32(4)"
#define ENV_OBS OBS_F32(1)
#endif
#ifndef ENV_ACTION
#error "Define ENV_ACTION before including core/env.h, for example: #define ENV_ACTION ACT_DISCRETE(2)"
#define ENV_ACTION ACT_DISCRETE(1)
#endif
#ifndef ENV_AGENTS
#define ENV_AGENTS 1
#endif
#ifndef ENV_MAX_STEPS
#define ENV_MAX_STEPS 0
#endif
#ifndef ENV_VERSION
#define ENV_VERSION 0
#endif
#ifndef ENV_PARAMS
#define ENV_PARAMS(X)
#endif
#ifndef ENV_CONSTS
#define ENV_CONSTS(X)
#endif
#ifndef ENV_LIMITS
#define ENV_LIMITS(X)
#endif
#ifndef ENV_CHOICES
#define ENV_CHOICES(X)
#endif
#ifndef ENV_GROUPS
#define ENV_GROUPS(X)
#endif
#ifndef ENV_PRESETS
#define ENV_PRESETS(X)
#endif

#define SHOAL_HEAD_(first, ...) first
#define SHOAL_HEAD(...) SHOAL_HEAD_(__VA_ARGS__, ~)
#define SHOAL_TAIL_(first, ...) __VA_ARGS__
#define SHOAL_TAIL(...) SHOAL_TAIL_(__VA_ARGS__)
#define SHOAL_PRODUCT_(a, b, c, d, ...) ((a) * (b) * (c) * (d))
#define SHOAL_PRODUCT(...) SHOAL_PRODUCT_(__VA_ARGS__, 1, 1, 1, 1)
#define SHOAL_SUM_(a, b, c, d, e, f, g, h, ...) ((a) + (b) + (c) + (d) + (e) + (f) + (g) + (h))
#define SHOAL_SUM(...) SHOAL_SUM_(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0, 0)
#define SHOAL_COUNT_(a, b, c, d, e, f, g, h, count, ...) count
#define SHOAL_COUNT(...) SHOAL_COUNT_(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, ~)

// A const has its default value unless the build defines it: -DSHOAL_SET_side=~,15 makes 15 the second argument.
#define SHOAL_SECOND_(a, b, ...) b
#define SHOAL_SECOND(...) SHOAL_SECOND_(__VA_ARGS__)
#define SHOAL_CONST(name, value, help) name = SHOAL_SECOND(SHOAL_SET_##name, value, ~),
enum { ENV_CONSTS(SHOAL_CONST) SHOAL_CONSTS_END };

// A condition on consts: ENV_REQUIRE(side % 2 == 1, "side must be odd");
#ifdef __cplusplus
#define ENV_REQUIRE(condition, text) static_assert(condition, text)
#else
#define ENV_REQUIRE(condition, text) _Static_assert(condition, text)
#endif

#define OBS_F32(...) float, __VA_ARGS__
#define OBS_U8(...) uint8_t, __VA_ARGS__
typedef SHOAL_HEAD(ENV_OBS) Obs;
enum { OBS_SIZE = SHOAL_PRODUCT(SHOAL_TAIL(ENV_OBS)) };

#define ACT_DISCRETE(n) int32_t, SHOAL_DISCRETE, 1, n, n
#define ACT_MULTI(...) int32_t, SHOAL_MULTI, SHOAL_COUNT(__VA_ARGS__), SHOAL_SUM(__VA_ARGS__), __VA_ARGS__
#define ACT_BOX(n) float, SHOAL_BOX, n, 1, n
#define ACT_MIX(n, ...) float, SHOAL_MIX, (n) + SHOAL_COUNT(__VA_ARGS__), SHOAL_SUM(__VA_ARGS__), n, __VA_ARGS__
typedef SHOAL_HEAD(ENV_ACTION) Action;
enum {
    SHOAL_DISCRETE,
    SHOAL_MULTI,
    SHOAL_BOX,
    SHOAL_MIX,
    ACTION_KIND = SHOAL_HEAD(SHOAL_TAIL(ENV_ACTION)),
    ACTION_SIZE = SHOAL_HEAD(SHOAL_TAIL(SHOAL_TAIL(ENV_ACTION))),  // values per agent
    MASK_SIZE = SHOAL_HEAD(SHOAL_TAIL(SHOAL_TAIL(SHOAL_TAIL(ENV_ACTION)))),
    SHOAL_DIM = SHOAL_HEAD(SHOAL_TAIL(SHOAL_TAIL(SHOAL_TAIL(SHOAL_TAIL(ENV_ACTION))))),
    ACTION_FLOATS = (int)ACTION_KIND == (int)SHOAL_BOX || (int)ACTION_KIND == (int)SHOAL_MIX ? (int)SHOAL_DIM : 0,
    NUM_AGENTS = ENV_AGENTS
};

// What ENV_GROUPS says of a group, where it leaves out its sizes: 0, which means all.
#define SHOAL_GROUP_OBS_(name, first, last, obs, actions, ...) +(obs)
#define SHOAL_GROUP_OBS(...) SHOAL_GROUP_OBS_(__VA_ARGS__, 0, 0, 0)
#define SHOAL_GROUP_ACTIONS_(name, first, last, obs, actions, ...) +(actions)
#define SHOAL_GROUP_ACTIONS(...) SHOAL_GROUP_ACTIONS_(__VA_ARGS__, 0, 0, 0)
enum { SHOAL_OWN_OBS = 0 ENV_GROUPS(SHOAL_GROUP_OBS), SHOAL_OWN_ACTIONS = 0 ENV_GROUPS(SHOAL_GROUP_ACTIONS) };

// xoshiro128++ (Blackman & Vigna 2019): 32-bit operations only, so it vectorizes and suits GPUs.
// One stream per env: what an env draws depends on its seed only.
typedef struct {
    uint32_t s[4];
} Rng;

MATH_FN uint32_t rng_rotate(uint32_t x, int32_t k) { return (x << k) | (x >> (32 - k)); }

MATH_FN uint32_t rng_u32(Rng *r) {
    uint32_t *s = r->s;
    uint32_t result = rng_rotate(s[0] + s[3], 7) + s[0];
    uint32_t t = s[1] << 9;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rng_rotate(s[3], 11);
    return result;
}

// SplitMix64 fills the state, as the authors of xoshiro advise: nearby seeds give unrelated streams.
MATH_FN uint64_t rng_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}
MATH_FN Rng rng_seed(uint64_t seed) {
    uint64_t a = rng_mix(seed + 0x9E3779B97F4A7C15ULL);
    uint64_t b = rng_mix(seed + 2 * 0x9E3779B97F4A7C15ULL);
    Rng r = {{(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32)}};
    return r;
}

// Uniform in [lo, hi) with 24 random bits. Rounding can give hi itself, but not for lo = 0.
MATH_FN float rng_uniform(Rng *r, float lo, float hi) {
    return lo + (hi - lo) * ((float)(int32_t)(rng_u32(r) >> 8) * (1.0f / 16777216.0f));
}
// Uniform in 0 .. n-1 by multiply and shift (Lemire 2019); the bias is below n / 2^32.
MATH_FN int32_t rng_int(Rng *r, int32_t n) { return (int32_t)(((uint64_t)rng_u32(r) * (uint32_t)n) >> 32); }
// Standard normal (Box & Muller 1958).
MATH_FN float rng_normal(Rng *r) {
    float u = 1.0f - rng_uniform(r, 0.0f, 1.0f);  // (0, 1]: its log is finite
    float v = rng_uniform(r, -M_PI_F, M_PI_F);
    return m_sqrt(-2.0f * m_log(u)) * m_cos(v);
}

#define SHOAL_PARAM(type, name, value, help) type name;
typedef struct {
    int max_steps;  // every env has it; 0 means no limit
    ENV_PARAMS(SHOAL_PARAM)
} Params;

#ifdef ENV_STATE
#define SHOAL_FIELD(type, name) type name;
typedef struct {
    ENV_STATE(SHOAL_FIELD)
} State;
#endif

#ifdef ENV_STATS
#define SHOAL_STAT(kind, name, help) float name;
typedef struct {
    ENV_STATS(SHOAL_STAT)
} Stats;
enum { NUM_STATS = sizeof(Stats) / sizeof(float) };
#else
enum { NUM_STATS = 0 };
#endif

// What env_step reports; all fields are 0 before the call. `reward` and `terminated` are those of agent 0. An agent
// that terminates is out until the next episode; when no agent is left, the episode ends.
typedef struct {
    union {
        float reward;
        float rewards[NUM_AGENTS];
    };
    union {
        int32_t terminated;
        int32_t terminations[NUM_AGENTS];
    };
#ifdef ENV_STATS
    Stats stats;
#endif
} Step;

#include "draw.h"

#endif
