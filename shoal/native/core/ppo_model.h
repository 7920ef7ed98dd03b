// ppo_model.h: a policy in training on a CPU: its network, its optimizer, and the memory and threads of ppo.c.
#ifndef SHOAL_PPO_MODEL_H
#define SHOAL_PPO_MODEL_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "ppo_loss.h"
#include "ppo_net.h"
#include "ppo_optim.h"
#include "team.h"

enum { GROUPS = 16 };        // sums of gradients, at most
enum { MIN_UNIT = 64 };      // rows of a unit, at least
enum { MLP_BLOCK = 128 };    // rows that pass through the network at once
enum { CORE_BLOCK = 1024 };  // the same with a core: its products over the segments of a step need many of them
enum { ROWS_PART = 8 };      // rows of a weight matrix that a thread reduces at a time
enum { MUON_TEAM = 8 };      // threads that update one matrix, at most: they exchange all of it
enum { MAX_UNITS = 64 };     // of a block
enum { MAX_WIDTH = 4096 };   // inputs or outputs of a layer

typedef struct {
    int64_t steps;  // of a segment; 0: the model only acts
    int64_t max_threads;
    RunFn run;                        // shoal_pool_run of pool.c
    int32_t (*pool_threads)(void *);  // shoal_pool_threads
    void *pool;
} Setup;

// What a thread does at a time: rows or panels of a dense layer, rows of a matrix, a range of weights.
typedef struct {
    int64_t number, lo, hi;
} Task;

typedef struct {
    Task *at;
    int64_t count;
} Tasks;

// Memory of one thread.
typedef struct {
    Work work;
    int64_t *index;             // of a row in the batch
    int32_t *position, *order;  // of its segment in the minibatch; see Block
    uint8_t *resets;
    float *start[MAX_TOWERS * STATES];
} Room;

typedef struct {
    Net net;
    Head head;
    Optimizer optimizer;
    Setup setup;
    int64_t threads;  // that the next calls use
    float *packed, *sums, *memory;
    Tasks reduce, panels, spans;
    double *squares;     // of each task of `reduce`
    double *advantages;  // (GROUPS, 3), (GROUPS, NUM_SUMS): sums of each group
    double *losses;
    Team team, *matrix_teams;  // of all threads, and by matrix
    Room *rooms;
    _Atomic int32_t *is_taken;  // by room
} Model;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t states_of(const Net *net) { return net->core == LSTM ? 2 : net->core == MINGRU ? 1 : 0; }

// Runs a function over [0, count) on the pool's threads, or on this one.
static void parallel(Model *m, RangeFn fn, void *job, int64_t count, int64_t chunk) {
    if (m->threads > 1 && count > chunk) {
        m->setup.run(m->setup.pool, fn, job, 0, (int32_t)count, (int32_t)chunk);
    } else if (count) {
        fn(job, 0, (int32_t)count);
    }
}

static Room *take_room(Model *m) {
    for (int64_t k = 0;; k = (k + 1) % m->setup.max_threads) {
        if (!atomic_exchange_explicit(&m->is_taken[k], 1, memory_order_acquire)) return &m->rooms[k];
    }
}

static void leave_room(Model *m, Room *room) {
    atomic_store_explicit(&m->is_taken[room - m->rooms], 0, memory_order_release);
}

static const Dense *dense_of(const Model *m, int64_t number) {
    return &m->net.tower[number / MAX_DENSE].dense[number % MAX_DENSE];
}

static void add_tasks(Tasks *tasks, int64_t number, int64_t lo, int64_t hi, int64_t part) {
    for (int64_t at = lo; at < hi; at += part) {
        if (tasks->at) tasks->at[tasks->count] = (Task){number, at, least(at + part, hi)};
        tasks->count++;
    }
}

static void list_tasks(Model *m) {
    m->reduce.count = m->panels.count = m->spans.count = 0;
    for (int64_t t = 0; t < m->net.towers; t++) {
        for (int64_t k = 0; k < m->net.tower[t].num_dense; k++) {
            const Dense *d = &m->net.tower[t].dense[k];
            add_tasks(&m->reduce, t * MAX_DENSE + k, 0, d->outputs, ROWS_PART);
            add_tasks(&m->reduce, t * MAX_DENSE + k, -1, 0, 1);  // the bias
            add_tasks(&m->panels, t * MAX_DENSE + k, 0, num_panels(d), 1);
        }
    }
    if (m->net.log_std >= 0) add_tasks(&m->reduce, -1, 0, 1, 1);
    for (int64_t k = 0; k < m->optimizer.num_spans; k++) {
        add_tasks(&m->spans, k, m->optimizer.spans[2 * k], m->optimizer.spans[2 * k + 1], ADAM_PART);
    }
}

// ---- how a minibatch is divided ----

// A unit is the segments whose rows are contiguous in a block; a group some units that share sums of gradients.
typedef struct {
    int64_t unit_segments, units, group_units, groups;
} Division;

static Division divide(const Model *m, int64_t segments) {
    int64_t steps = m->setup.steps, largest = ceil_div(m->net.core ? CORE_BLOCK / 2 : MLP_BLOCK, steps);
    Division d;
    d.unit_segments = least(most(ceil_div(segments, GROUPS), ceil_div(MIN_UNIT, steps)), largest);
    d.units = ceil_div(segments, d.unit_segments);
    d.group_units = ceil_div(d.units, GROUPS);
    d.groups = ceil_div(d.units, d.group_units);
    return d;
}

static int64_t max_block(const Model *m) {
    if (!m->setup.steps) return MLP_BLOCK;
    int64_t unit = m->setup.steps * ceil_div(m->net.core ? CORE_BLOCK / 2 : MLP_BLOCK, m->setup.steps);
    return most(unit, m->net.core ? CORE_BLOCK : MLP_BLOCK);
}

// ---- memory ----

static void *claim(char *memory, int64_t *at, int64_t bytes) {
    void *claimed = memory ? memory + *at : 0;
    int64_t end = *at + bytes;
    *at += (bytes + 63) / 64 * 64 + 4 * GUARD;
    if (memory) guard(memory + end, *at - end);
    return claimed;
}

// Divides memory, or (memory null) returns the bytes that are needed.
static int64_t divide_memory(Model *m, char *memory) {
    int64_t at = 0, threads = m->setup.max_threads, rows = max_block(m);
    int64_t segments = m->setup.steps ? rows / m->setup.steps : rows;
    segments = most(segments, MLP_BLOCK);  // acting: rows of one step
    m->packed = (float *)claim(memory, &at, 4 * m->net.packed);
    m->rooms = (Room *)claim(memory, &at, threads * (int64_t)sizeof(Room));
    m->is_taken = (_Atomic int32_t *)claim(memory, &at, 4 * threads);
    Work sizes;
    int64_t floats = work_of(&m->net, rows, segments, (float *)0, &sizes);
    for (int64_t k = 0; k < threads; k++) {
        float *work = (float *)claim(memory, &at, 4 * floats);
        int64_t *index = (int64_t *)claim(memory, &at, 8 * rows);
        int32_t *position = (int32_t *)claim(memory, &at, 4 * rows), *order = (int32_t *)claim(memory, &at, 4 * rows);
        uint8_t *resets = (uint8_t *)claim(memory, &at, rows);
        float *start = (float *)claim(memory, &at, 4 * MAX_TOWERS * STATES * segments * m->net.core_size);
        if (!memory) continue;
        Room *room = &m->rooms[k];
        work_of(&m->net, rows, segments, work, &room->work);
        room->work.packed = m->packed;
        room->index = index, room->position = position, room->order = order, room->resets = resets;
        for (int p = 0; p < MAX_TOWERS * STATES; p++) room->start[p] = start + p * segments * m->net.core_size;
    }
    m->panels.at = (Task *)claim(memory, &at, m->panels.count * (int64_t)sizeof(Task));
    if (!m->setup.steps) return at;
    m->sums = (float *)claim(memory, &at, 4 * GROUPS * m->net.gradients);
    m->reduce.at = (Task *)claim(memory, &at, m->reduce.count * (int64_t)sizeof(Task));
    m->matrix_teams = (Team *)claim(memory, &at, m->optimizer.num_matrices * (int64_t)sizeof(Team));
    m->spans.at = (Task *)claim(memory, &at, m->spans.count * (int64_t)sizeof(Task));
    m->squares = (double *)claim(memory, &at, 8 * m->reduce.count);
    m->advantages = (double *)claim(memory, &at, 8 * GROUPS * 3);
    m->losses = (double *)claim(memory, &at, 8 * GROUPS * NUM_SUMS);
    for (int64_t k = 0; k < m->optimizer.num_matrices; k++) {
        Matrix *matrix = &m->optimizer.matrices[k];
        float *floats_of_matrix = (float *)claim(memory, &at, 4 * matrix_memory(matrix, (float *)0));
        matrix_memory(matrix, floats_of_matrix);
    }
    return at;
}

SHOAL_API void shoal_ppo_close(Model *m) {
    close_team(&m->team);
    for (int64_t k = 0; k < m->optimizer.num_matrices; k++) close_team(&m->matrix_teams[k]);
    free(m->memory);
    free(m);
}

// Copies the descriptions, whose arrays must outlive the model. 0: not enough memory.
SHOAL_API Model *shoal_ppo_open(const Net *net, const Head *head, const Optimizer *optimizer, const Setup *setup) {
    Model *m = (Model *)aligned_alloc(64, (sizeof(Model) + 63) / 64 * 64);
    if (!m) return 0;
    memset(m, 0, sizeof(Model));
    m->net = *net, m->head = *head, m->optimizer = *optimizer, m->setup = *setup;
    m->threads = 1;
    lay_out(&m->net);
    list_tasks(m);
    int64_t bytes = divide_memory(m, (char *)0);
    m->memory = (float *)aligned_alloc(64, (size_t)bytes);
    if (!m->memory) {
        free(m);
        return 0;
    }
    memset(m->memory, 0, (size_t)bytes);
    divide_memory(m, (char *)m->memory);
    list_tasks(m);
    open_team(&m->team);
    for (int64_t k = 0; k < m->optimizer.num_matrices; k++) open_team(&m->matrix_teams[k]);
    return m;
}

SHOAL_API void shoal_ppo_set_threads(Model *m, int64_t threads) { m->threads = least(threads, m->setup.max_threads); }

// ---- packed weights ----

static int64_t pack_panels(void *job, int32_t lo, int32_t hi) {
    Model *m = (Model *)job;
    for (int32_t k = lo; k < hi; k++) {
        const Task *task = &m->panels.at[k];
        pack_panel(dense_of(m, task->number), m->optimizer.weights, m->packed, task->lo);
    }
    return 0;
}

// Reads the weights. Must be called after something else has changed them.
SHOAL_API void shoal_ppo_pack(Model *m) { parallel(m, pack_panels, m, m->panels.count, 4); }

#endif
