// ppo_net.h: forward and backward pass of a policy on a CPU, for ppo.c. nn/policy.py and nn/cores/ are the definition.
//
//   observations -> layers -> LSTM or MinGRU, head layers -> heads      one tower: actor and critic share it
//   observations -> layers -> LSTM or MinGRU, head layers -> actor      two towers: --nn.separate
//   observations -> layers -> LSTM or MinGRU, head layers -> critic
//
// A block of rows passes through the whole network at once, so that its activations stay in the cache. With a core,
// rows are ordered by unit, step and segment: a unit is some segments whose gradients are summed together.
#ifndef SHOAL_PPO_NET_H
#define SHOAL_PPO_NET_H

#include "matmul.h"

enum { STATES = 2 };  // of an LSTM: hidden and cell; a MinGRU has one
enum { MAX_LAYERS = 3, MAX_DENSE = 2 * MAX_LAYERS + 3, MAX_TOWERS = 2 };
enum { RELU, TANH };
enum { NO_CORE, LSTM, MINGRU };
enum { FLOAT32, UINT8, INT8 };

// A dense layer of one or two torch.nn.Linear side by side (the actor's and the critic's head).
typedef struct {
    int64_t inputs, outputs;              // outputs of all its parts
    int64_t parts, part_outputs[2];       // torch.nn.Linear
    int64_t weight[2], bias[2];           // offsets in the weights; bias -1: none
    int64_t forward, backward, gradient;  // offsets of its packed weights and of its gradient (set by lay_out)
} Dense;

typedef struct {
    int64_t num_dense, first_head;  // dense layers before: layers, those of the core, head layers
    Dense dense[MAX_DENSE];         // of a core: input, hidden (LSTM), or gates, skip if the sizes differ (MinGRU)
} Tower;

typedef struct {
    int64_t inputs, layers, head_layers, hidden, core, core_size, activation, towers;
    int64_t log_std, num_stds;  // log_std: offset of the free log standard deviations; -1: none
    int64_t packed, gradients;  // floats of packed weights, and of the gradient of a group (set by lay_out)
    Tower tower[MAX_TOWERS];
} Net;

// Where a row's inputs come from: rows of numbers, scaled and normalized.
typedef struct {
    const void *at;  // (rows, inputs)
    int64_t kind;
    float scale, limit;
    const float *mean, *rstd;  // null: not normalized
} Inputs;

static int64_t core_inputs(const Net *net) { return net->layers ? net->hidden : net->inputs; }
static int has_skip(const Net *net) { return net->core == MINGRU && core_inputs(net) != net->core_size; }

// Computes the offsets of packed weights and gradients.
static void lay_out(Net *net) {
    int64_t packed = 0, gradient = 0;
    for (int64_t t = 0; t < net->towers; t++) {
        for (int64_t k = 0; k < net->tower[t].num_dense; k++) {
            Dense *d = &net->tower[t].dense[k];
            d->forward = packed, packed += (d->inputs + 1) * rounded(d->outputs);  // with the bias as the last row
            d->backward = packed, packed += d->outputs * rounded(d->inputs);
            d->gradient = gradient, gradient += d->outputs * stride_of(d->inputs) + stride_of(d->outputs);
        }
    }
    net->packed = packed;
    net->gradients = gradient + rounded(net->num_stds);
}

// The part of a dense layer that output i belongs to, and its number in the part.
static int64_t part_of(const Dense *d, int64_t *i) {
    int64_t second = d->parts > 1 && *i >= d->part_outputs[0];
    *i -= second ? d->part_outputs[0] : 0;
    return second;
}

static const float *weight_row(const Dense *d, const float *weights, int64_t i) {
    int64_t part = part_of(d, &i);
    return weights + d->weight[part] + i * d->inputs;
}

// Packs a dense layer's weights for products in both directions, one panel of columns at a time. The panels are
// numbered: first those of the forward product, then those of the backward product.
static int64_t panels_of(int64_t columns) { return (rounded(columns) + PANEL - 1) / PANEL; }
static int64_t num_panels(const Dense *d) { return panels_of(d->outputs) + panels_of(d->inputs); }

static void pack_panel(const Dense *d, const float *weights, float *packed, int64_t number) {
    int64_t forward = panels_of(d->outputs), is_forward = number < forward;
    int64_t first = (is_forward ? number : number - forward) * PANEL, count = is_forward ? d->outputs : d->inputs;
    int64_t left = rounded(count) - first, width = left < PANEL ? left : PANEL;
    for (int64_t at = first; at < first + width;) {  // one panel, or single vectors where the last one is narrower
        int64_t lanes = first + width - at >= PANEL ? PANEL : LANES;
        if (is_forward) {
            float *to = packed + d->forward + at * d->inputs;
            float *bias = packed + d->forward + d->inputs * rounded(d->outputs);
            for (int64_t c = 0; c < lanes; c++) {
                int64_t i = at + c, part = part_of(d, &i);
                int is_weight = at + c < d->outputs;
                bias[at + c] = is_weight && d->bias[part] >= 0 ? weights[d->bias[part] + i] : 0.0f;
                const float *row = weights + d->weight[part] + i * d->inputs;
                for (int64_t k = 0; k < d->inputs; k++) to[k * lanes + c] = is_weight ? row[k] : 0.0f;
            }
        } else {
            float *to = packed + d->backward + at * d->outputs;
            int64_t filled = d->inputs - at < lanes ? d->inputs - at : lanes;
            for (int64_t i = 0; i < d->outputs; i++, to += lanes) {
                const float *row = weight_row(d, weights, i) + at;
                for (int64_t c = 0; c < lanes; c++) to[c] = c < filled ? row[c] : 0.0f;
            }
        }
        at += lanes;
    }
}

// ---- one block of rows ----

// Rows of a block, and where they come from. With a core they are `segments` segments of `steps` steps.
typedef struct {
    int64_t rows, segments, steps;
    const int64_t *index;   // (rows) of each row in the batch; null: 0, 1, 2, ...
    const int32_t *order;   // (steps, segments): the row of every step of every segment; null: steps is 1
    const uint8_t *resets;  // (rows) whether the core's state is reset before the step
    const float *start[MAX_TOWERS * STATES];  // by tower: (segments, size), the core's states before the first step
} Block;

// Workspace of a block. Matrices have strides stride_of(width).
typedef struct {
    float *inputs;                      // (rows, inputs), shared by the towers
    float *outs[MAX_LAYERS];            // of every layer
    float *tops[MAX_LAYERS];            // of every head layer
    float *gates, *cells, *before;      // LSTM: (rows, 4 size), (rows, size), (rows, size): h before the step
    float *skip, *hidden;               // MinGRU: (rows, size)
    float *out;                         // of the core
    float *step_in, *step_out, *carry;  // (segments of the block, ...)
    float *head;                        // (rows, outputs of the head)
} Activations;

typedef struct {
    const Net *net;
    const float *packed;
    Activations tower[MAX_TOWERS];
    float *slopes[2];  // (rows, widest): gradients by the outputs of a layer
    float *head_slopes[MAX_TOWERS];
} Work;

static int64_t widest(const Net *net) { return net->hidden > net->core_size ? net->hidden : net->core_size; }

// Divides memory for blocks of up to `rows` rows and `segments` segments; returns the floats that it takes.
static int64_t work_of(const Net *net, int64_t rows, int64_t segments, float *memory, Work *work) {
    int64_t at = 0;
#define TAKE(pointer, count, width)                                                                                    \
    do {                                                                                                               \
        (pointer) = memory + at, at += (count) * stride_of(width);                                                     \
        if (memory) guard(memory + at, 4 * GUARD);                                                                     \
        at += GUARD;                                                                                                   \
    } while (0)
    for (int64_t t = 0; t < net->towers; t++) {
        const Tower *tower = &net->tower[t];
        Activations *a = &work->tower[t];
        if (t == 0) TAKE(a->inputs, rows, net->inputs);
        a->inputs = work->tower[0].inputs;
        for (int64_t k = 0; k < net->layers; k++) TAKE(a->outs[k], rows, net->hidden);
        int64_t size = net->core_size;
        if (net->core == LSTM) {
            TAKE(a->gates, rows, 4 * size);
            TAKE(a->cells, rows, size);
            TAKE(a->before, rows, size);
            TAKE(a->step_in, segments, size);
            TAKE(a->step_out, segments, 4 * size);
            TAKE(a->carry, segments, size);
        }
        if (net->core == MINGRU) {
            TAKE(a->gates, rows, 3 * size);
            TAKE(a->hidden, rows, size);
            TAKE(a->before, rows, size);
            if (has_skip(net)) TAKE(a->skip, rows, size);
            TAKE(a->carry, segments, size);
        }
        if (net->core) TAKE(a->out, rows, size);
        for (int64_t k = 0; k < net->head_layers; k++) TAKE(a->tops[k], rows, net->hidden);
        TAKE(a->head, rows, tower->dense[tower->first_head].outputs);
        TAKE(work->head_slopes[t], rows, tower->dense[tower->first_head].outputs);
    }
    TAKE(work->slopes[0], rows, widest(net));
    TAKE(work->slopes[1], rows, widest(net));
#undef TAKE
    work->net = net;
    return at;
}

// ---- forward ----

enum { AHEAD = 12 };  // rows that are prefetched

static void gather_inputs(const Net *net, const Inputs *in, const Block *block, float *out) {
    int64_t n = net->inputs, row = stride_of(n), number_size = in->kind == FLOAT32 ? 4 : 1;
    for (int64_t i = 0; i < block->rows; i++, out += row) {
        if (block->index && i + AHEAD < block->rows) {  // rows of a minibatch are anywhere in memory
            const char *later = (const char *)in->at + block->index[i + AHEAD] * n * number_size;
            for (int64_t byte = 0; byte < n * number_size; byte += 64) __builtin_prefetch(later + byte);
        }
        int64_t at = (block->index ? block->index[i] : i) * n;
        if (in->kind == FLOAT32) {
            memcpy(out, (const float *)in->at + at, 4 * (size_t)n);
        } else if (in->kind == UINT8) {
            for (int64_t c = 0; c < n; c++) out[c] = (float)((const uint8_t *)in->at)[at + c];
        } else {
            for (int64_t c = 0; c < n; c++) out[c] = (float)((const int8_t *)in->at)[at + c];
        }
        if (in->mean) {
            for (int64_t c = 0; c < n; c++) {
                float x = (out[c] - in->mean[c]) * in->rstd[c];
                x = x > in->limit ? in->limit : x;
                out[c] = x < -in->limit ? -in->limit : x;
            }
        }
        if (in->scale != 1.0f) {
            for (int64_t c = 0; c < n; c++) out[c] *= in->scale;
        }
        for (int64_t c = n; c < rounded(n); c++) out[c] = 0.0f;
    }
}

// out = x W^T + b
static void dense_forward(const Work *work, const Dense *d, int64_t rows, const float *x, float *out) {
    const float *packed = work->packed + d->forward, *bias = packed + d->inputs * rounded(d->outputs);
    Strided a = {x, stride_of(d->inputs), 1};
    multiply_packed(rows, rounded(d->outputs), d->inputs, a, packed, FROM_ROW, bias, out, stride_of(d->outputs));
}

static void activate(const Net *net, int64_t rows, int64_t width, float *out) {
    for (int64_t i = 0; i < rows; i++, out += stride_of(width)) {
        if (net->activation == TANH) {
            for (int64_t c = 0; c < rounded(width); c += LANES) store(out + c, tanh_of(load(out + c)));
        } else {
            for (int64_t c = 0; c < rounded(width); c += LANES) {
                Lanes x = load(out + c);
                store(out + c, choose(x < 0.0f, (Lanes){0}, x));  // NaN stays NaN
            }
        }
    }
}

INLINE int64_t row_of(const Block *block, int64_t step, int64_t segment) {
    return block->order ? block->order[step * block->segments + segment] : segment;
}

// Copies the state before a step: that of the segment's start, zeros after a reset, or else what the last step left.
INLINE void begin_step(const Block *block, int64_t step, int64_t segment, int64_t size, const float *start,
                       float *state) {
    if (step == 0) {
        memcpy(state, start + segment * size, 4 * (size_t)size);
    } else if (block->resets[row_of(block, step, segment)]) {
        memset(state, 0, 4 * (size_t)size);
    }
}

static void lstm_forward(const Work *work, const Tower *tower, Activations *a, const Block *block) {
    int64_t size = work->net->core_size, row = stride_of(size), gates_row = stride_of(4 * size);
    const Dense *hidden = &tower->dense[work->net->layers + 1];
    for (int64_t t = 0; t < block->steps; t++) {
        for (int64_t n = 0; n < block->segments; n++) {
            begin_step(block, t, n, size, block->start[0], a->step_in + n * row);
            begin_step(block, t, n, size, block->start[1], a->carry + n * row);
            memcpy(a->before + row_of(block, t, n) * row, a->step_in + n * row, 4 * (size_t)size);
        }
        Strided h = {a->step_in, row, 1};
        multiply_packed(block->segments, 4 * size, size, h, work->packed + hidden->forward, FROM_ZERO, 0, a->step_out,
                        gates_row);
        for (int64_t n = 0; n < block->segments; n++) {
            int64_t i = row_of(block, t, n);
            const float *z = a->step_out + n * gates_row;
            float *g = a->gates + i * gates_row, *c = a->carry + n * row, *state = a->step_in + n * row;
            for (int64_t k = 0; k < size; k += LANES) {
                Lanes input = sigmoid_of(load(g + k) + load(z + k));
                Lanes forget = sigmoid_of(load(g + size + k) + load(z + size + k));
                Lanes update = tanh_of(load(g + 2 * size + k) + load(z + 2 * size + k));
                Lanes output = sigmoid_of(load(g + 3 * size + k) + load(z + 3 * size + k));
                Lanes cell = forget * load(c + k) + input * update, value = output * tanh_of(cell);
                store(g + k, input), store(g + size + k, forget);
                store(g + 2 * size + k, update), store(g + 3 * size + k, output);
                store(c + k, cell), store(a->cells + i * row + k, cell);
                store(state + k, value), store(a->out + i * row + k, value);
            }
        }
    }
}

// h' = h + z (g - h), out = skip + w (h' - skip), with the gates z, w = sigmoid and the candidate g
static void mingru_forward(const Work *work, Activations *a, const Block *block, const float *skip, int64_t skip_row) {
    int64_t size = work->net->core_size, row = stride_of(size), gates_row = stride_of(3 * size);
    for (int64_t t = 0; t < block->steps; t++) {
        for (int64_t n = 0; n < block->segments; n++) {
            int64_t i = row_of(block, t, n);
            float *g = a->gates + i * gates_row, *state = a->carry + n * row;
            begin_step(block, t, n, size, block->start[0], state);
            for (int64_t k = 0; k < size; k += LANES) {
                Lanes update = sigmoid_of(load(g + k)), raw = load(g + size + k), before = load(state + k);
                Lanes candidate = choose(raw >= 0.0f, raw + 0.5f, sigmoid_of(raw));
                Lanes highway = sigmoid_of(load(g + 2 * size + k)), past = load(skip + i * skip_row + k);
                Lanes hidden = before + update * (candidate - before);
                store(g + k, update), store(g + size + k, candidate), store(g + 2 * size + k, highway);
                store(a->before + i * row + k, before), store(a->hidden + i * row + k, hidden);
                store(state + k, hidden), store(a->out + i * row + k, past + highway * (hidden - past));
            }
        }
    }
}

// Computes the head's outputs (`head` of each tower) from the inputs. The core's last state stays in step_in and carry
// (LSTM), or carry (MinGRU).
static void forward(Work *work, const Block *block) {
    const Net *net = work->net;
    for (int64_t t = 0; t < net->towers; t++) {
        const Tower *tower = &net->tower[t];
        Activations *a = &work->tower[t];
        const float *x = a->inputs;
        for (int64_t k = 0; k < net->layers; x = a->outs[k++]) {
            dense_forward(work, &tower->dense[k], block->rows, x, a->outs[k]);
            activate(net, block->rows, net->hidden, a->outs[k]);
        }
        if (net->core) dense_forward(work, &tower->dense[net->layers], block->rows, x, a->gates);
        Block own = *block;  // every tower has its own state
        for (int p = 0; p < 2; p++) own.start[p] = block->start[t * STATES + p];
        if (net->core == LSTM) lstm_forward(work, tower, a, &own);
        if (net->core == MINGRU) {
            if (has_skip(net)) dense_forward(work, &tower->dense[net->layers + 1], block->rows, x, a->skip);
            mingru_forward(work, a, &own, has_skip(net) ? a->skip : x,
                           stride_of(has_skip(net) ? net->core_size : core_inputs(net)));
        }
        x = net->core ? a->out : x;
        for (int64_t k = 0; k < net->head_layers; x = a->tops[k++]) {
            dense_forward(work, &tower->dense[tower->first_head - net->head_layers + k], block->rows, x, a->tops[k]);
            activate(net, block->rows, net->hidden, a->tops[k]);
        }
        dense_forward(work, &tower->dense[tower->first_head], block->rows, x, a->head);
    }
}

// ---- backward ----

// Rows of a block whose gradients are added to the same sums, one after the other.
typedef struct {
    int64_t first, rows;
    float *gradient;
    int is_first;  // whether the sums start with it
} Unit;

// Adds the gradients of a dense layer's weights, by the gradients of its outputs.
static void add_weights(const Dense *d, const Unit *units, int64_t num_units, const float *x, const float *slopes) {
    int64_t row = stride_of(d->outputs), x_row = stride_of(d->inputs);
    for (const Unit *u = units; u < units + num_units; u++) {
        float *sums = u->gradient + d->gradient, *bias = sums + d->outputs * x_row;
        const float *slope = slopes + u->first * row;
        Strided a = {slope, 1, row};
        multiply_rows(d->outputs, rounded(d->inputs), u->rows, a, x + u->first * x_row, x_row,
                      u->is_first ? FROM_ZERO : FROM_OUT, sums, x_row);
        if (u->is_first) memset(bias, 0, 4 * (size_t)rounded(d->outputs));
        for (int64_t i = 0; i < u->rows; i++) {
            for (int64_t c = 0; c < rounded(d->outputs); c += LANES) {
                store(bias + c, load(bias + c) + load(slope + i * row + c));
            }
        }
    }
}

// slopes of x = slopes of the outputs times W, added to what is there with FROM_OUT
static void dense_backward(const Work *work, const Dense *d, int64_t rows, const float *slopes, int from, float *out) {
    Strided a = {slopes, stride_of(d->outputs), 1};
    multiply_packed(rows, rounded(d->inputs), d->outputs, a, work->packed + d->backward, from, 0, out,
                    stride_of(d->inputs));
}

static void deactivate(const Net *net, int64_t rows, int64_t width, const float *out, float *slopes) {
    for (int64_t i = 0; i < rows; i++, out += stride_of(width), slopes += stride_of(width)) {
        for (int64_t c = 0; c < rounded(width); c += LANES) {
            Lanes y = load(out + c), slope = load(slopes + c);
            if (net->activation == TANH) {
                store(slopes + c, slope * (1.0f - y * y));
            } else {
                store(slopes + c, choose(y <= 0.0f, (Lanes){0}, slope));
            }
        }
    }
}

// Turns gates into their gradients, in place. slopes: gradients by the core's outputs.
static void lstm_backward(const Work *work, const Tower *tower, Activations *a, const Block *block,
                          const float *slopes) {
    int64_t size = work->net->core_size, row = stride_of(size), gates_row = stride_of(4 * size);
    const Dense *hidden = &tower->dense[work->net->layers + 1];
    for (int64_t t = block->steps - 1; t >= 0; t--) {
        int is_last = t == block->steps - 1;
        for (int64_t n = 0; n < block->segments; n++) {
            int64_t i = row_of(block, t, n), next = is_last ? 0 : row_of(block, t + 1, n);
            int ends = is_last || block->resets[next];  // nothing flows back from the next step
            int starts = t > 0 && block->resets[i];
            const float *cells = a->cells + i * row;
            const float *past = t == 0 ? block->start[1] + n * size : a->cells + row_of(block, t - 1, n) * row;
            float *g = a->gates + i * gates_row, *c = a->carry + n * row, *z = a->step_out + n * gates_row;
            for (int64_t k = 0; k < size; k += LANES) {
                Lanes input = load(g + k), forget = load(g + size + k), update = load(g + 2 * size + k);
                Lanes output = load(g + 3 * size + k), value = tanh_of(load(cells + k));
                Lanes h = load(slopes + i * row + k), cell = {0};
                if (!ends) h += load(a->step_in + n * row + k), cell = load(c + k);
                cell += h * output * (1.0f - value * value);
                Lanes before = starts ? (Lanes){0} : load(past + k);
                Lanes by_gate[4] = {cell * update * input * (1.0f - input), cell * before * forget * (1.0f - forget),
                                    cell * input * (1.0f - update * update), h * value * output * (1.0f - output)};
                for (int p = 0; p < 4; p++) store(g + p * size + k, by_gate[p]), store(z + p * size + k, by_gate[p]);
                store(c + k, cell * forget);
            }
        }
        if (t == 0) break;
        Strided z = {a->step_out, gates_row, 1};
        multiply_packed(block->segments, size, 4 * size, z, work->packed + hidden->backward, FROM_ZERO, 0, a->step_in,
                        row);
    }
}

// Turns gates into their gradients, in place, and slopes into those of the skipped inputs.
static void mingru_backward(const Work *work, Activations *a, const Block *block, const float *skip, int64_t skip_row,
                            float *slopes) {
    int64_t size = work->net->core_size, row = stride_of(size), gates_row = stride_of(3 * size);
    for (int64_t t = block->steps - 1; t >= 0; t--) {
        for (int64_t n = 0; n < block->segments; n++) {
            int64_t i = row_of(block, t, n);
            int ends = t == block->steps - 1 || block->resets[row_of(block, t + 1, n)];
            float *g = a->gates + i * gates_row, *carry = a->carry + n * row, *slope = slopes + i * row;
            for (int64_t k = 0; k < size; k += LANES) {
                Lanes update = load(g + k), candidate = load(g + size + k), highway = load(g + 2 * size + k);
                Lanes hidden = load(a->hidden + i * row + k), before = load(a->before + i * row + k);
                Lanes past = load(skip + i * skip_row + k), out = load(slope + k);
                Lanes h = out * highway;
                if (!ends) h += load(carry + k);
                // the candidate is above 0.5 where it is linear, and a sigmoid where it is below
                Lanes bend = choose(candidate >= 0.5f, all(1.0f), candidate * (1.0f - candidate));
                store(g + k, h * (candidate - before) * update * (1.0f - update));
                store(g + size + k, h * update * bend);
                store(g + 2 * size + k, out * (hidden - past) * highway * (1.0f - highway));
                store(carry + k, h * (1.0f - update));
                store(slope + k, out * (1.0f - highway));
            }
        }
    }
}

// Adds the gradients of all weights, by those of the heads' outputs (head_slopes).
static void backward(Work *work, const Block *block, const Unit *units, int64_t num_units) {
    const Net *net = work->net;
    for (int64_t t = 0; t < net->towers; t++) {
        const Tower *tower = &net->tower[t];
        const Dense *dense = tower->dense, *head = &dense[tower->first_head];
        Activations *a = &work->tower[t];
        Block own = *block;
        for (int p = 0; p < 2; p++) own.start[p] = block->start[t * STATES + p];
        const float *x = net->layers ? a->outs[net->layers - 1] : a->inputs;
        float *slopes = work->slopes[0], *other = work->slopes[1];
        const float *top = net->head_layers ? a->tops[net->head_layers - 1] : net->core ? a->out : x;
        add_weights(head, units, num_units, top, work->head_slopes[t]);
        if (!net->core && !net->layers) continue;
        dense_backward(work, head, block->rows, work->head_slopes[t], FROM_ZERO, slopes);
        for (int64_t k = net->head_layers - 1; k >= 0; k--) {
            const Dense *layer = head - net->head_layers + k;
            deactivate(net, block->rows, net->hidden, a->tops[k], slopes);
            add_weights(layer, units, num_units, k ? a->tops[k - 1] : a->out, slopes);
            dense_backward(work, layer, block->rows, slopes, FROM_ZERO, other);
            float *swapped = slopes;
            slopes = other, other = swapped;
        }
        if (net->core == LSTM) {
            lstm_backward(work, tower, a, &own, slopes);
            add_weights(&dense[net->layers + 1], units, num_units, a->before, a->gates);
        }
        if (net->core == MINGRU) {
            int skips = has_skip(net);
            mingru_backward(work, a, &own, skips ? a->skip : x, stride_of(skips ? net->core_size : core_inputs(net)),
                            slopes);
            if (skips) {
                add_weights(&dense[net->layers + 1], units, num_units, x, slopes);
                dense_backward(work, &dense[net->layers + 1], block->rows, slopes, FROM_ZERO, other);
                float *swapped = slopes;
                slopes = other, other = swapped;
            }
        }
        if (net->core) {
            add_weights(&dense[net->layers], units, num_units, x, a->gates);
            if (!net->layers) continue;
            int from = net->core == MINGRU ? FROM_OUT : FROM_ZERO;  // the skipped inputs' gradients are there already
            dense_backward(work, &dense[net->layers], block->rows, a->gates, from, slopes);
        }
        for (int64_t k = net->layers - 1; k >= 0; k--) {
            deactivate(net, block->rows, net->hidden, a->outs[k], slopes);
            add_weights(&dense[k], units, num_units, k ? a->outs[k - 1] : a->inputs, slopes);
            if (!k) break;
            dense_backward(work, &dense[k], block->rows, slopes, FROM_ZERO, other);
            float *swapped = slopes;
            slopes = other, other = swapped;
        }
    }
}

#endif
