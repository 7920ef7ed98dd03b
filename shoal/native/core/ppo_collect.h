// ppo_collect.h: whole rollouts of native envs on a CPU, for ppo.c, called by algos/collect/native.py.
// algos/collect/host.py is the definition; tests compare.
//
//   for each block of envs, one block on one thread:
//       for each step:  policy -> sample -> the envs' actions -> shoal_step -> results into the rollout
//
// A block waits for no other block: rows are independent, and the noise of all steps is drawn before the first. So the
// results are the same bits for any division into blocks and any number of threads.
#ifndef SHOAL_PPO_COLLECT_H
#define SHOAL_PPO_COLLECT_H

#include <time.h>

#include "ppo_act.h"

typedef int64_t (*TakeFn)(void *batch, const void *actions, int32_t lo, int32_t hi);

// The memory of the envs (ShoalBatch in module.c), and functions of their library.
typedef struct {
    void *batch;
    RangeFn step;  // shoal_step
    TakeFn take;   // shoal_take_i64, or shoal_take_f32 for a Box
    const char *obs, *final_obs;
    const float *rewards;
    const uint8_t *terminated, *truncated, *alive;
    const int8_t *masks;
    int64_t agents, obs_bytes;  // of an env; of a row
} Envs;

// What a block reports. Its memory grows as needed, and is used again in the next rollout.
typedef struct {
    int64_t count, capacity;  // truncated rows
    int64_t *at;              // (count): step * rows + row
    char *obs;                // (count, obs_bytes): the last observation of the episode
    float *state;             // (count, states, size): the recurrent state that belongs to it
    int64_t bad_step,
        bad_value;  // the first action that the envs refuse: its step, and its number in the step; -1: none
    int64_t out_of_memory;
    int64_t policy_ns, env_ns, copy_ns;
} Report;

typedef struct {
    Envs envs;
    Act act;                   // of all rows of step 0; `saved`: the states at the starts of all segments
    int64_t horizon, segment;  // steps
    float *rewards;            // (horizon, rows)
    uint8_t *dones;            // (horizon, rows)
    uint8_t *alive;            // (horizon + 1, rows); null: no row is ever out of the game
    const float *scale, *center, *low, *high;  // (columns) of a Box; low null: the actions are choices
    float *box;                                // (rows, columns) of a Box: the actions that the envs take
    const int32_t *edges;                      // (blocks + 1): the first env of each block
    int64_t blocks;
    Report *reports;  // (blocks)
} Collect;

typedef struct {
    Model *m;
    const Collect *c;
} CollectJob;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// Acts for rows [first, first + rows) at a step.
static void act_at(Model *m, const Collect *c, int64_t step, int64_t first, int64_t rows) {
    const Head *head = &m->head;
    int64_t size = m->net.core_size, at = step * c->act.rows + first;
    Act act = c->act;
    act.inputs.at = (const char *)act.inputs.at + at * c->envs.obs_bytes;
    act.masks = act.masks ? act.masks + at * head->num_logits : 0;
    act.noise += at * head->num_logits;
    act.logits += at * head->num_params;
    act.values += at;
    act.actions = (char *)act.actions + at * head->columns * (head->is_float ? 4 : 8);
    for (int64_t p = 0; p < states_of(&m->net) * m->net.towers; p++) {
        act.state[p] += first * size;
        act.saved[p] = step % c->segment ? 0 : act.saved[p] + (step / c->segment * c->act.rows + first) * size;
    }
    act.rows = rows;
    ActJob job = {m, &act, MLP_BLOCK};
    act_blocks(&job, 0, (int32_t)ceil_div(rows, MLP_BLOCK));
}

// Gives the sampled actions to the envs [lo, hi), as ActionHead.to_env does. Returns the number of the first bad value,
// or -1.
static int64_t send_actions(const Model *m, const Collect *c, int64_t step, int32_t lo, int32_t hi) {
    int64_t columns = m->head.columns, first = lo * c->envs.agents, rows = (hi - lo) * c->envs.agents;
    int64_t at = (step * c->act.rows + first) * columns;
    if (!c->low) return c->envs.take(c->envs.batch, (const int64_t *)c->act.actions + at, lo, hi);
    const float *sampled = (const float *)c->act.actions + at;
    float *box = c->box + first * columns;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < columns; k++) {
            volatile float scaled = sampled[i * columns + k] * c->scale[k];  // volatile: rounded before the sum, no FMA
            float x = scaled + c->center[k];
            if (x == x) x = x > c->low[k] ? x : c->low[k], x = x < c->high[k] ? x : c->high[k];
            box[i * columns + k] = x;
        }
    }
    return c->envs.take(c->envs.batch, box, lo, hi);
}

static void clear_states(const Model *m, const Collect *c, int64_t row) {
    for (int64_t p = 0; p < states_of(&m->net) * m->net.towers; p++) {
        memset(c->act.state[p] + row * m->net.core_size, 0, 4 * (size_t)m->net.core_size);
    }
}

// Adds a truncated row, with its last observation and its recurrent state.
static void report_truncated(const Model *m, const Collect *c, Report *report, int64_t step, int64_t row) {
    int64_t states = states_of(&m->net) * m->net.towers, size = m->net.core_size;
    if (report->count == report->capacity) {
        int64_t capacity = most(64, 2 * report->capacity);
        int64_t *at = (int64_t *)realloc(report->at, 8 * (size_t)capacity);
        char *obs = (char *)realloc(report->obs, (size_t)(capacity * c->envs.obs_bytes));
        float *state = (float *)realloc(report->state, 4 * (size_t)(capacity * most(1, states * size)));
        if (at) report->at = at;
        if (obs) report->obs = obs;
        if (state) report->state = state;
        if (!at || !obs || !state) {
            report->out_of_memory = 1;
            return;
        }
        report->capacity = capacity;
    }
    int64_t k = report->count++;
    report->at[k] = step * c->act.rows + row;
    memcpy(report->obs + k * c->envs.obs_bytes, c->envs.final_obs + row * c->envs.obs_bytes, (size_t)c->envs.obs_bytes);
    for (int64_t p = 0; p < states; p++) {
        memcpy(report->state + (k * states + p) * size, c->act.state[p] + row * size, 4 * (size_t)size);
    }
}

// Copies the results of a step into the rollout, and resets the recurrent state of rows whose episode ended.
static void take_results(const Model *m, const Collect *c, Report *report, int64_t step, int64_t first, int64_t rows) {
    const Envs *envs = &c->envs;
    int64_t at = step * c->act.rows + first, next = at + c->act.rows;
    memcpy(c->rewards + at, envs->rewards + first, 4 * (size_t)rows);
    uint8_t any = 0, *dones = c->dones + at;
    for (int64_t i = 0; i < rows; i++) any |= dones[i] = envs->terminated[first + i] | envs->truncated[first + i];
    for (int64_t i = 0; any && i < rows; i++) {
        if (!dones[i]) continue;
        if (!envs->terminated[first + i]) report_truncated(m, c, report, step, first + i);
        clear_states(m, c, first + i);
    }
    memcpy((char *)c->act.inputs.at + next * envs->obs_bytes, envs->obs + first * envs->obs_bytes,
           (size_t)(rows * envs->obs_bytes));
    if (c->act.masks) {
        int64_t size = m->head.num_logits;
        memcpy((int8_t *)c->act.masks + next * size, envs->masks + first * size, (size_t)(rows * size));
    }
    if (c->alive) {
        memcpy(c->alive + next, envs->alive + first, (size_t)rows);
        for (int64_t i = 0; i < rows; i++) {
            if (!(c->alive[at + i] & c->alive[next + i])) clear_states(m, c, first + i);
        }
    }
}

static void collect_block(Model *m, const Collect *c, int64_t number) {
    Report *report = &c->reports[number];
    int32_t lo = c->edges[number], hi = c->edges[number + 1];
    int64_t first = lo * c->envs.agents, rows = (hi - lo) * c->envs.agents, before = now_ns();
    report->count = report->policy_ns = report->env_ns = report->copy_ns = report->out_of_memory = 0;
    report->bad_step = report->bad_value = -1;
    for (int64_t step = 0; step < c->horizon; step++) {
        act_at(m, c, step, first, rows);
        int64_t bad = send_actions(m, c, step, lo, hi), acted = now_ns();
        report->policy_ns += acted - before;
        if (bad >= 0) {
            report->bad_step = step, report->bad_value = first * m->head.columns + bad;
            return;
        }
        c->envs.step(c->envs.batch, lo, hi);
        int64_t stepped = now_ns();
        report->env_ns += stepped - acted;
        take_results(m, c, report, step, first, rows);
        before = now_ns();
        report->copy_ns += before - stepped;
    }
}

static int64_t collect_blocks(void *job, int32_t lo, int32_t hi) {
    for (int32_t k = lo; k < hi; k++) collect_block(((CollectJob *)job)->m, ((CollectJob *)job)->c, k);
    return 0;
}

// Plays `horizon` steps of all envs, with the weights that were packed last.
SHOAL_API void shoal_ppo_collect(Model *m, const Collect *c) {
    CollectJob job = {m, c};
    if (m->threads > 1 && c->blocks > 1) {
        m->setup.run(m->setup.pool, collect_blocks, &job, 0, (int32_t)c->blocks, 1);
    } else {
        collect_blocks(&job, 0, (int32_t)c->blocks);
    }
}

SHOAL_API void shoal_ppo_free_reports(Report *reports, int64_t blocks) {
    for (int64_t k = 0; k < blocks; k++) free(reports[k].at), free(reports[k].obs), free(reports[k].state);
    memset(reports, 0, sizeof(Report) * (size_t)blocks);
}

#endif
