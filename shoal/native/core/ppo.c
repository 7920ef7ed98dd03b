// ppo.c: PPO for a small network on a CPU, called by algos/fast/ppo_native.py: acting, and whole epochs of gradient
// steps. algos/ppo.py is the definition; tests compare.
//
//   for each minibatch:
//       learn      gather -> policy -> loss -> gradients: groups of rows, each with sums of its own     in parallel
//       reduce     adds up the sums of the groups, in their order                                       in parallel
//       optimize   clips the gradient; Adam, AdamW or Muon (ppo_optim.h)                                in parallel
//       pack       the new weights, for the next products                                               in parallel
//
// Which rows form a group depends on the minibatch alone. So the results are the same bits for any number of threads.
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "ppo_loss.h"
#include "ppo_net.h"
#include "ppo_optim.h"

#define SHOAL_API __attribute__((visibility("default")))

enum { GROUPS = 16 };        // sums of gradients, at most
enum { MIN_UNIT = 64 };      // rows of a unit, at least
enum { MLP_BLOCK = 128 };    // rows that pass through the network at once
enum { CORE_BLOCK = 1024 };  // the same with a core: its products over the segments of a step need many of them
enum { ROWS_PART = 8 };      // rows of a weight matrix that a thread reduces at a time
enum { MAX_UNITS = 64 };     // of a block
enum { MAX_WIDTH = 4096 };   // inputs or outputs of a layer

// ---- the model: a network, its optimizer, and their memory ----

typedef struct {
    int64_t steps, max_segments;  // of a minibatch: steps of a segment, segments at most; 0: the model only acts
    int64_t max_threads;
    RunFn run;  // shoal_pool_run (pool.c)
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
    Tasks reduce, panels, matrix_rows, spans;
    double *squares;  // of each task of `reduce`, or of `matrix_rows`
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
    m->reduce.count = m->panels.count = m->matrix_rows.count = m->spans.count = 0;
    for (int64_t t = 0; t < m->net.towers; t++) {
        for (int64_t k = 0; k < m->net.tower[t].num_dense; k++) {
            const Dense *d = &m->net.tower[t].dense[k];
            add_tasks(&m->reduce, t * MAX_DENSE + k, 0, d->outputs, ROWS_PART);
            add_tasks(&m->reduce, t * MAX_DENSE + k, -1, 0, 1);  // the bias
            add_tasks(&m->panels, t * MAX_DENSE + k, 0, num_panels(d), 1);
        }
    }
    if (m->net.log_std >= 0) add_tasks(&m->reduce, -1, 0, 1, 1);
    for (int64_t k = 0; k < m->optimizer.num_matrices; k++) {
        add_tasks(&m->matrix_rows, k, 0, height_of(&m->optimizer.matrices[k]), 2 * TILE);
    }
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
    *at += (bytes + 63) / 64 * 64;
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
    m->matrix_rows.at = (Task *)claim(memory, &at, m->matrix_rows.count * (int64_t)sizeof(Task));
    m->spans.at = (Task *)claim(memory, &at, m->spans.count * (int64_t)sizeof(Task));
    m->squares = (double *)claim(memory, &at, 8 * most(m->reduce.count, m->matrix_rows.count));
    for (int64_t k = 0; k < m->optimizer.num_matrices; k++) {
        Matrix *matrix = &m->optimizer.matrices[k];
        float *floats_of_matrix = (float *)claim(memory, &at, 4 * matrix_memory(matrix, (float *)0));
        matrix_memory(matrix, floats_of_matrix);
    }
    return at;
}

SHOAL_API void shoal_ppo_close(Model *m) {
    free(m->memory);
    free(m);
}

// Copies the descriptions, whose arrays must outlive the model. 0: not enough memory.
SHOAL_API Model *shoal_ppo_open(const Net *net, const Head *head, const Optimizer *optimizer, const Setup *setup) {
    Model *m = (Model *)calloc(1, sizeof(Model));
    if (!m) return 0;
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

// ---- acting ----

typedef struct {
    Inputs inputs;
    const int8_t *masks;                // (rows, logits); null: all choices are allowed
    const float *noise;                 // (rows, logits and means); null: no action is sampled
    float *logits, *values;             // (rows, params), (rows); logits may be null
    void *actions;                      // (rows, columns)
    float *state[MAX_TOWERS * STATES];  // (rows, size): the core's state
    float *saved[MAX_TOWERS * STATES];  // copies of the state before the step; null: none
    int64_t rows, keeps_state;          // keeps_state: the state is not changed
} Act;

typedef struct {
    Model *m;
    const Act *act;
    int64_t block;
} ActJob;

// The logits (with free log standard deviations) and the value of a row of a block, masked.
static float read_heads(const Model *m, const Work *work, int64_t i, const int8_t *mask, float *z) {
    const Net *net = &m->net;
    const Head *head = &m->head;
    const Dense *actor = &net->tower[0].dense[net->tower[0].first_head];
    const float *out = work->tower[0].head + i * stride_of(actor->outputs);
    for (int64_t c = 0; c < head->num_outputs; c++) z[c] = out[c];
    for (int64_t c = head->num_outputs; c < head->num_params; c++) {
        z[c] = m->optimizer.weights[net->log_std + c - head->num_outputs];
    }
    for (int64_t c = 0; mask && c < head->num_logits; c++) z[c] = mask[c] ? z[c] : NEVER;
    return net->towers > 1 ? work->tower[1].head[i * stride_of(1)] : out[head->num_outputs];
}

static int64_t act_blocks(void *job, int32_t lo, int32_t hi) {
    Model *m = ((ActJob *)job)->m;
    const Act *act = ((ActJob *)job)->act;
    const Head *head = &m->head;
    int64_t size = m->net.core_size, states = states_of(&m->net) * m->net.towers, per_tower = states_of(&m->net);
    int64_t number_size = act->inputs.kind == FLOAT32 ? 4 : 1;
    Room *room = take_room(m);
    float buffer[head->num_params];
    for (int32_t k = lo; k < hi; k++) {
        int64_t first = k * ((ActJob *)job)->block, rows = least(((ActJob *)job)->block, act->rows - first);
        Inputs inputs = act->inputs;
        inputs.at = (const char *)inputs.at + first * m->net.inputs * number_size;
        Block block = {.rows = rows, .segments = rows, .steps = 1};
        for (int64_t p = 0; p < states; p++) {
            float *state = act->state[p] + first * size;
            if (act->saved[p]) memcpy(act->saved[p] + first * size, state, 4 * (size_t)(rows * size));
            block.start[p / per_tower * STATES + p % per_tower] = state;
        }
        gather_inputs(&m->net, &inputs, &block, room->work.tower[0].inputs);
        forward(&room->work, &block);
        for (int64_t i = 0; i < rows; i++) {
            int64_t row = first + i;
            float *z = act->logits ? act->logits + row * head->num_params : buffer;
            act->values[row] = read_heads(m, &room->work, i, act->masks ? act->masks + row * head->num_logits : 0, z);
            if (act->noise) sample_row(head, z, act->noise + row * head->num_logits, act->actions, row);
        }
        for (int64_t p = 0; p < states && !act->keeps_state; p++) {
            const Activations *a = &room->work.tower[p / per_tower];
            const float *from = per_tower > 1 && p % per_tower == 0 ? a->step_in : a->carry;
            for (int64_t i = 0; i < rows; i++) {
                memcpy(act->state[p] + (first + i) * size, from + i * stride_of(size), 4 * (size_t)size);
            }
        }
    }
    leave_room(m, room);
    return 0;
}

SHOAL_API void shoal_ppo_act(Model *m, const Act *act) {
    int64_t block = least(most(ceil_div(act->rows, m->threads), TILE), MLP_BLOCK);
    ActJob job = {m, act, block};
    parallel(m, act_blocks, &job, ceil_div(act->rows, block), 1);
}

// ---- learning ----

typedef struct {
    Inputs inputs;
    const void *actions;
    const float *logprobs, *values, *advantages, *returns;
    const float *counts;                      // 0.0 where a transition does not count; null: all count
    const int8_t *masks;                      // null: none
    const uint8_t *resets;                    // with a core
    const float *start[MAX_TOWERS * STATES];  // (segments, size): the core's states before each segment
    const int64_t *segments;                  // of all minibatches, one after the other
    const float *weights;                     // of the segments' advantages; null: 1
    const int64_t *edges;                     // (minibatches + 1) in `segments`
    int64_t rows, minibatches, standardizes;  // rows of the rollout
    double limit, rate;                       // of the gradient's norm, 0: none; the learning rate
    Coefs coefs;
    double *metrics;  // (NUM_SUMS + 1): adds up over minibatches; the last is the gradient's norm
} Epoch;

typedef struct {
    Model *m;
    const Epoch *epoch;
    const int64_t *segments;
    const float *weights;
    int64_t count;  // segments
    Division division;
    float mean, factor, total;
    float clip;
    int step;
    double sums[GROUPS][NUM_SUMS];
} Minibatch;

INLINE int64_t transition(const Minibatch *b, int64_t segment, int64_t step) {
    int64_t rows = b->epoch->rows, number = b->segments[segment];
    return number / rows * (b->m->setup.steps * rows) + number % rows + step * rows;
}

// Mean and standard deviation of the advantages, and the number of transitions that count.
static void standardize(Minibatch *b) {
    const Epoch *e = b->epoch;
    double sum = 0.0, squares = 0.0, count = 0.0;
    for (int64_t s = 0; s < b->count; s++) {
        for (int64_t t = 0; t < b->m->setup.steps; t++) {
            int64_t i = transition(b, s, t);
            double weight = e->counts ? (double)e->counts[i] : 1.0, advantage = (double)e->advantages[i];
            count += weight, sum += weight * advantage;
        }
    }
    count = count < 1.0 ? 1.0 : count;
    double mean = sum / count;
    b->total = (float)count, b->mean = 0.0f, b->factor = 1.0f;
    if (!e->standardizes) return;
    for (int64_t s = 0; s < b->count; s++) {
        for (int64_t t = 0; t < b->m->setup.steps; t++) {
            int64_t i = transition(b, s, t);
            double weight = e->counts ? (double)e->counts[i] : 1.0, centered = (double)e->advantages[i] - mean;
            squares += weight * centered * centered;
        }
    }
    b->mean = (float)mean, b->factor = (float)(1.0 / (sqrt(squares / count) + 1e-8));
}

// Writes the gradients by the heads' outputs of a unit, and adds those of free log standard deviations.
static void loss_of_rows(Minibatch *b, Room *room, const Unit *unit, double *sums, float *std_sums) {
    const Model *m = b->m;
    const Epoch *e = b->epoch;
    const Head *head = &m->head;
    Work *work = &room->work;
    int64_t row = stride_of(m->net.tower[0].dense[m->net.tower[0].first_head].outputs);
    float z[head->num_params], d[head->num_params];
    for (int64_t i = unit->first; i < unit->first + unit->rows; i++) {
        int64_t at = room->index[i];
        const int8_t *mask = e->masks ? e->masks + at * head->num_logits : 0;
        float value = read_heads(m, work, i, mask, z), d_value;
        Target target = {.logprob = e->logprobs[at], .value = e->values[at], .target = e->returns[at]};
        target.advantage = (e->advantages[at] - b->mean) * b->factor;
        if (b->weights) target.advantage *= b->weights[room->position[i]];
        target.share = (e->counts ? e->counts[at] : 1.0f) / b->total;
        loss_of_row(head, &e->coefs, z, mask, value, e->actions, at, &target, d, &d_value, sums);
        float *slopes = work->head_slopes[0] + i * row;
        memcpy(slopes, d, 4 * (size_t)head->num_outputs);
        for (int64_t c = head->num_outputs; c < head->num_params; c++) std_sums[c - head->num_outputs] += d[c];
        (m->net.towers > 1 ? work->head_slopes[1] + i * stride_of(1) : slopes + head->num_outputs)[0] = d_value;
    }
}

// Fills a block with the units [unit, unit + units) of a minibatch: its rows, their order, and the core's states.
static Block fill_block(Minibatch *b, Room *room, int64_t unit, int64_t units, Unit *out) {
    const Model *m = b->m;
    const Epoch *e = b->epoch;
    int64_t steps = m->setup.steps, size = m->net.core_size, per_tower = states_of(&m->net);
    int64_t first = unit * b->division.unit_segments;
    Block block = {.steps = steps, .index = room->index, .order = room->order, .resets = room->resets};
    block.segments = least((unit + units) * b->division.unit_segments, b->count) - first;
    int64_t row = 0;
    for (int64_t u = 0; u < units; u++) {
        int64_t lo = u * b->division.unit_segments, hi = least(lo + b->division.unit_segments, block.segments);
        int64_t group = (unit + u) / b->division.group_units;
        out[u] = (Unit){row, (hi - lo) * steps, m->sums + group * m->net.gradients,
                        (unit + u) % b->division.group_units == 0};
        for (int64_t t = 0; t < steps; t++) {
            for (int64_t s = lo; s < hi; s++, row++) {
                int64_t at = transition(b, first + s, t);
                room->index[row] = at;
                room->position[row] = (int32_t)(first + s);
                room->order[t * block.segments + s] = (int32_t)row;
                room->resets[row] = m->net.core ? e->resets[at] : 0;
            }
        }
    }
    block.rows = row;
    for (int64_t p = 0; p < per_tower * m->net.towers; p++) {
        int64_t slot = p / per_tower * STATES + p % per_tower;
        for (int64_t s = 0; s < block.segments; s++) {
            memcpy(room->start[slot] + s * size, e->start[p] + b->segments[first + s] * size, 4 * (size_t)size);
        }
        block.start[slot] = room->start[slot];
    }
    return block;
}

static int64_t learn_groups(void *job, int32_t lo, int32_t hi) {
    Minibatch *b = (Minibatch *)job;
    Model *m = b->m;
    Room *room = take_room(m);
    int64_t unit_rows = b->division.unit_segments * m->setup.steps;
    int64_t at_once = m->net.core ? most(1, least(CORE_BLOCK / unit_rows, MAX_UNITS)) : 1;
    int64_t end = least(hi * b->division.group_units, b->division.units);
    Unit units[MAX_UNITS];
    for (int64_t unit = lo * b->division.group_units; unit < end; unit += at_once) {
        int64_t count = least(at_once, end - unit);
        Block block = fill_block(b, room, unit, count, units);
        gather_inputs(&m->net, &b->epoch->inputs, &block, room->work.tower[0].inputs);
        forward(&room->work, &block);
        for (int64_t u = 0; u < count; u++) {
            int64_t group = (unit + u) / b->division.group_units;
            float *std_sums = units[u].gradient + m->net.gradients - rounded(m->net.num_stds);
            if (units[u].is_first) {
                memset(b->sums[group], 0, sizeof(b->sums[group]));
                memset(std_sums, 0, 4 * (size_t)m->net.num_stds);
            }
            loss_of_rows(b, room, &units[u], b->sums[group], std_sums);
        }
        backward(&room->work, &block, units, count);
    }
    leave_room(m, room);
    return 0;
}

// Adds up the groups' gradients of some rows of a layer, of its bias, or of the free log standard deviations.
static int64_t reduce_rows(void *job, int32_t lo, int32_t hi) {
    Minibatch *b = (Minibatch *)job;
    Model *m = b->m;
    float *gradient = m->optimizer.gradient;
    for (int32_t k = lo; k < hi; k++) {
        const Task *task = &m->reduce.at[k];
        Lanes squares = {0};
        for (int64_t i = task->lo; i < task->hi; i++) {
            const Dense *d = task->number < 0 ? 0 : dense_of(m, task->number);
            int64_t width = !d ? m->net.num_stds : i < 0 ? d->outputs : d->inputs;
            int64_t at = !d ? m->net.gradients - rounded(m->net.num_stds)
                            : d->gradient + (i < 0 ? d->outputs : i) * stride_of(d->inputs);
            float row[MAX_WIDTH];
            for (int64_t c = 0; c < rounded(width); c += LANES) {
                Lanes sum = load(m->sums + at + c);
                for (int64_t g = 1; g < b->division.groups; g++) sum += load(m->sums + g * m->net.gradients + at + c);
                store(row + c, sum);
                squares += sum * sum;
            }
            if (!d) {
                memcpy(gradient + m->net.log_std, row, 4 * (size_t)width);
            } else if (i >= 0) {
                int64_t output = i, part = part_of(d, &output);
                memcpy(gradient + d->weight[part] + output * d->inputs, row, 4 * (size_t)width);
            } else {
                float *from = row;
                for (int64_t p = 0; p < d->parts; from += d->part_outputs[p++]) {
                    if (d->bias[p] >= 0) memcpy(gradient + d->bias[p], from, 4 * (size_t)d->part_outputs[p]);
                    if (d->bias[p] < 0) squares = (Lanes){0};
                }
            }
        }
        double total = 0.0;
        for (int c = 0; c < LANES; c++) total += (double)squares[c];
        m->squares[k] = total;
    }
    return 0;
}

static int64_t clip_and_adam(void *job, int32_t lo, int32_t hi) {
    Minibatch *b = (Minibatch *)job;
    for (int32_t k = lo; k < hi; k++) {
        const Task *task = &b->m->spans.at[k];
        adam(&b->m->optimizer, b->clip, task->lo, task->hi);
    }
    return 0;
}

// ---- Muon, a step of its iteration at a time ----

#define MUON_PHASE(NAME, CALL)                                                                                         \
    static int64_t NAME(void *job, int32_t lo, int32_t hi) {                                                           \
        Minibatch *b = (Minibatch *)job;                                                                               \
        for (int32_t k = lo; k < hi; k++) {                                                                            \
            const Task *task = &b->m->matrix_rows.at[k];                                                               \
            Matrix *x = &b->m->optimizer.matrices[task->number];                                                       \
            CALL;                                                                                                      \
        }                                                                                                              \
        return 0;                                                                                                      \
    }
MUON_PHASE(begin_muon, b->m->squares[k] = muon_begin(&b->m->optimizer, x, b->clip, task->lo, task->hi))
MUON_PHASE(scale_muon, muon_scale(x, task->lo, task->hi))
MUON_PHASE(square_muon, muon_square(x, task->lo, task->hi))
MUON_PHASE(polynomial_muon, muon_polynomial(x, task->lo, task->hi))
MUON_PHASE(multiply_muon, muon_multiply(x, b->step, task->lo, task->hi))
MUON_PHASE(apply_muon, muon_apply(&b->m->optimizer, x, task->lo, task->hi))

static void muon(Model *m, Minibatch *b) {
    int64_t count = m->matrix_rows.count;
    if (!count) return;
    parallel(m, begin_muon, b, count, 1);
    for (int64_t k = 0; k < m->optimizer.num_matrices; k++) m->optimizer.matrices[k].norm = 0.0;
    for (int64_t k = 0; k < count; k++) {
        m->optimizer.matrices[m->matrix_rows.at[k].number].norm += m->squares[k];
    }
    for (int64_t k = 0; k < m->optimizer.num_matrices; k++) {
        m->optimizer.matrices[k].norm = sqrt(m->optimizer.matrices[k].norm);
    }
    parallel(m, scale_muon, b, count, 1);
    for (b->step = 0; b->step < NEWTON_STEPS; b->step++) {
        parallel(m, square_muon, b, count, 1);
        parallel(m, polynomial_muon, b, count, 1);
        parallel(m, multiply_muon, b, count, 1);
    }
    parallel(m, apply_muon, b, count, 1);
}

// One pass over a rollout: a gradient step for each minibatch.
SHOAL_API void shoal_ppo_learn(Model *m, const Epoch *e) {
    m->optimizer.rate = e->rate;
    for (int64_t k = 0; k < e->minibatches; k++) {
        int64_t first = e->edges[k];
        Minibatch b = {.m = m, .epoch = e, .segments = e->segments + first, .count = e->edges[k + 1] - first};
        b.weights = e->weights ? e->weights + first : 0;
        if (!b.count) continue;
        b.division = divide(m, b.count);
        standardize(&b);
        // with a core one thread takes several groups at once: products over more segments are faster
        int64_t chunk = m->net.core ? ceil_div(b.division.groups, m->threads) : 1;
        parallel(m, learn_groups, &b, b.division.groups, chunk);
        parallel(m, reduce_rows, &b, m->reduce.count, 4);
        double squares = 0.0;
        for (int64_t i = 0; i < m->reduce.count; i++) squares += m->squares[i];
        double norm = sqrt(squares), clip = e->limit > 0.0 ? e->limit / (norm + 1e-6) : 1.0;
        b.clip = clip < 1.0 ? (float)clip : 1.0f;
        if (!(norm == norm)) b.clip = NAN;
        *m->optimizer.step += 1.0f;
        muon(m, &b);
        parallel(m, clip_and_adam, &b, m->spans.count, 1);
        shoal_ppo_pack(m);
        for (int64_t g = 0; g < b.division.groups; g++) {
            for (int p = 0; p < NUM_SUMS; p++) e->metrics[p] += b.sums[g][p];
        }
        e->metrics[NUM_SUMS] += norm;
    }
}

// ---- whole rollouts ----

#include "ppo_collect.h"
