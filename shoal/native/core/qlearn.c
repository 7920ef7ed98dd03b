// qlearn.c: Q-learning on a CPU for a multi-layer perceptron, called by algos/fast/q_native.py and replay_native.py:
// acting, storing and sampling transitions, and a whole gradient step. With few rows, calling an operation of torch
// takes longer than its arithmetic; here a step is one call. algos/dqn.py and algos/replay.py are the definition; tests
// compare.
//
// The order of every sum depends on sizes only, not on the width of the CPU's vectors: all builds give the same bytes.
#include <math.h>
#include <stdint.h>
#include <string.h>

// pow has a newer version since glibc 2.29, with the same results. The first version exists everywhere: with it a wheel
// runs on older systems (native/glibc.py).
#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver pow, pow@GLIBC_2.2.5");
#elif defined(__GLIBC__) && defined(__aarch64__)
__asm__(".symver pow, pow@GLIBC_2.17");
#endif

#define SHOAL_API __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
enum { PANEL = 2 * LANES, TILE = 4 };
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));

static const float NEVER = -1e9f;  // Q of an action that is not allowed

// A network: `layers` matrices of sizes[k] x sizes[k + 1]; the last one gives Q. Its weights are contiguous: for each
// layer the matrix, the bias and, with layer_norm (except for the last layer), gain and shift.
typedef struct {
    const int64_t *sizes;
    int32_t layers, is_tanh, layer_norm, padding;
} Net;

typedef struct {
    const float *weight, *bias, *gain, *shift;
    int64_t inputs, outputs, at;  // at: offset of its weights
    int is_last;
} Layer;

static Layer layer_of(const Net *net, const float *weights, int number) {
    int64_t at = 0;
    for (int k = 0; k < number; k++) at += (net->sizes[k] + (net->layer_norm ? 3 : 1)) * net->sizes[k + 1];
    Layer layer = {.inputs = net->sizes[number], .outputs = net->sizes[number + 1], .at = at};
    layer.is_last = number == net->layers - 1;
    layer.weight = weights + at;
    layer.bias = layer.weight + layer.inputs * layer.outputs;
    if (net->layer_norm && !layer.is_last) {
        layer.gain = layer.bias + layer.outputs;
        layer.shift = layer.gain + layer.outputs;
    }
    return layer;
}

static int64_t width_of(const Net *net) {
    int64_t widest = 0;
    for (int k = 0; k <= net->layers; k++) widest = net->sizes[k] > widest ? net->sizes[k] : widest;
    return widest;
}

// ---- matrix products ----

// A matrix with strides: entry (i, k) is at[i * row + k * column].
typedef struct {
    const float *at;
    int64_t row, column;
} Matrix;

// `rows` rows of a product, `lanes` vectors wide: out = start + a b. b has `depth` rows of `lanes` contiguous vectors.
INLINE void tile(int rows, int lanes, int64_t depth, Matrix a, const float *b, int64_t b_row, const float *start,
                 float *out, int64_t out_row) {
    Lanes sums[TILE][2];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < lanes; j++) sums[i][j] = start ? *(const Lanes *)(start + j * LANES) : (Lanes){0};
    }
    for (int64_t k = 0; k < depth; k++) {
        Lanes line[2];
        for (int j = 0; j < lanes; j++) line[j] = *(const Lanes *)(b + k * b_row + j * LANES);
        for (int i = 0; i < rows; i++) {
            float x = a.at[i * a.row + k * a.column];
            for (int j = 0; j < lanes; j++) sums[i][j] += x * line[j];
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < lanes; j++) *(Lanes *)(out + i * out_row + j * LANES) = sums[i][j];
    }
}

INLINE void tiles(int lanes, int64_t rows, int64_t depth, Matrix a, const float *b, int64_t b_row, const float *start,
                  float *out, int64_t out_row) {
    int64_t i = 0;
    for (; i + TILE <= rows; i += TILE, a.at += TILE * a.row, out += TILE * out_row) {
        tile(TILE, lanes, depth, a, b, b_row, start, out, out_row);
    }
    for (; i < rows; i++, a.at += a.row, out += out_row) tile(1, lanes, depth, a, b, b_row, start, out, out_row);
}

// out (rows, columns) = start + a (rows, depth) b (depth, columns). start (columns) may be null. panel is workspace for
// depth * PANEL numbers, into which columns of b are copied, and edge for rows * LANES.
static void multiply(int64_t rows, int64_t columns, int64_t depth, Matrix a, Matrix b, const float *start, float *out,
                     float *panel, float *edge) {
    int64_t j = 0;
    for (; j + PANEL <= columns; j += PANEL) {
        const float *columns_of_b = b.at + j * b.column;
        int64_t row_stride = b.row;
        if (b.column != 1 || rows > 2 * TILE) {
            for (int64_t k = 0; k < depth; k++) {
                if (b.column == 1) {
                    memcpy(panel + k * PANEL, columns_of_b + k * b.row, 4 * PANEL);
                } else {
                    for (int c = 0; c < PANEL; c++) panel[k * PANEL + c] = columns_of_b[k * b.row + c * b.column];
                }
            }
            columns_of_b = panel, row_stride = PANEL;
        }
        tiles(2, rows, depth, a, columns_of_b, row_stride, start ? start + j : 0, out + j, columns);
    }
    for (; j < columns; j += LANES) {  // fewer columns than a panel: the missing ones are zeros
        int64_t count = columns - j < LANES ? columns - j : LANES;
        float first[LANES] = {0};
        for (int64_t c = 0; c < count; c++) first[c] = start ? start[j + c] : 0.0f;
        for (int64_t k = 0; k < depth; k++) {
            for (int64_t c = 0; c < LANES; c++) {
                panel[k * LANES + c] = c < count ? b.at[k * b.row + (j + c) * b.column] : 0.0f;
            }
        }
        tiles(1, rows, depth, a, panel, LANES, first, edge, LANES);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t c = 0; c < count; c++) out[i * columns + j + c] = edge[i * LANES + c];
        }
    }
}

static float total_of(const Four *sums) {
    Four both = sums[0] + sums[1];
    return both[0] + both[1] + (both[2] + both[3]);
}

// Sum of a_i b_i: eight partial sums, then their sum.
static float dot(const float *a, const float *b, int64_t count) {
    Four sums[2] = {{0}, {0}};
    int64_t k = 0;
    for (; k + 8 <= count; k += 8) {
        sums[0] += *(const Four *)(a + k) * *(const Four *)(b + k);
        sums[1] += *(const Four *)(a + k + 4) * *(const Four *)(b + k + 4);
    }
    float total = total_of(sums);
    for (; k < count; k++) total += a[k] * b[k];
    return total;
}

static float sum(const float *a, int64_t count) {
    Four sums[2] = {{0}, {0}};
    int64_t k = 0;
    for (; k + 8 <= count; k += 8) {
        sums[0] += *(const Four *)(a + k);
        sums[1] += *(const Four *)(a + k + 4);
    }
    float total = total_of(sums);
    for (; k < count; k++) total += a[k];
    return total;
}

// ---- the network ----

// Workspace of a forward and a backward pass. Of every hidden layer: its outputs and, with layer_norm, the outputs
// before gain and shift, and the scale of every row.
typedef struct {
    float *outs, *normals, *scales, *slopes[2], *values, *panel, *edge;
} Workspace;

static Workspace workspace_of(const Net *net, int64_t rows, float *work, int64_t *needed) {
    Workspace space = {0};
    int64_t hidden = 0, at = 0, width = width_of(net), depth = rows > width ? rows : width;
    for (int k = 1; k < net->layers; k++) hidden += net->sizes[k];
    space.outs = work + at, at += rows * hidden;
    if (net->layer_norm) {
        space.normals = work + at, at += rows * hidden;
        space.scales = work + at, at += rows * net->layers;
    }
    for (int k = 0; k < 2; k++) space.slopes[k] = work + at, at += rows * width;
    space.values = work + at, at += 2 * rows * net->sizes[net->layers];
    space.panel = work + at, at += depth * PANEL;
    space.edge = work + at, at += depth * LANES;
    *needed = at;
    return space;
}

// The number of floats of workspace that a batch of `rows` rows needs.
SHOAL_API int64_t shoal_q_room(const Net *net, int64_t rows) {
    int64_t needed;
    workspace_of(net, rows, (float *)0, &needed);
    return needed;
}

static const float NORM_EPS = 1e-5f;  // that of torch's layer_norm

static void normalize(const Layer *layer, int64_t rows, float *out, float *normals, float *scales) {
    int64_t n = layer->outputs;
    for (int64_t i = 0; i < rows; i++) {
        float *z = normals + i * n, mean = sum(out + i * n, n) / (float)n;
        for (int64_t c = 0; c < n; c++) z[c] = out[i * n + c] - mean;
        float scale = 1.0f / sqrtf(dot(z, z, n) / (float)n + NORM_EPS);
        scales[i] = scale;
        for (int64_t c = 0; c < n; c++) {
            z[c] *= scale;
            out[i * n + c] = layer->shift[c] + z[c] * layer->gain[c];
        }
    }
}

// Q (rows, choices) of x (rows, sizes[0]). The outputs of hidden layers stay in the workspace.
static void forward(const Net *net, const float *weights, const float *x, int64_t rows, const Workspace *space,
                    float *values) {
    float *out = space->outs, *normals = space->normals, *scales = space->scales;
    for (int k = 0; k < net->layers; k++) {
        Layer layer = layer_of(net, weights, k);
        float *to = layer.is_last ? values : out;
        int64_t count = rows * layer.outputs;
        Matrix a = {x, layer.inputs, 1}, b = {layer.weight, layer.outputs, 1};
        multiply(rows, layer.outputs, layer.inputs, a, b, layer.bias, to, space->panel, space->edge);
        if (layer.is_last) return;
        if (net->layer_norm) {
            normalize(&layer, rows, out, normals, scales);
            normals += count, scales += rows;
        }
        if (net->is_tanh) {
            for (int64_t c = 0; c < count; c++) out[c] = tanhf(out[c]);
        } else {
            for (int64_t c = 0; c < count; c++) out[c] = out[c] < 0.0f ? 0.0f : out[c];  // NaN stays NaN
        }
        x = out, out += count;
    }
}

// The backward pass of layer_norm: turns the gradients of its outputs into those of its inputs, in place, and writes
// the gradients of gain and shift.
static void backward_norm(const Layer *layer, int64_t rows, float *slopes, const float *normals, const float *scales,
                          float *d_gain, float *d_shift, float *row) {
    int64_t n = layer->outputs;
    memset(d_gain, 0, 4 * (size_t)n);
    memset(d_shift, 0, 4 * (size_t)n);
    for (int64_t i = 0; i < rows; i++) {
        const float *z = normals + i * n;
        float *d = slopes + i * n;
        for (int64_t c = 0; c < n; c++) {
            d_gain[c] += d[c] * z[c];
            d_shift[c] += d[c];
            row[c] = d[c] * layer->gain[c];
        }
        float mean = sum(row, n) / (float)n, along = dot(row, z, n) / (float)n;
        for (int64_t c = 0; c < n; c++) d[c] = scales[i] * (row[c] - mean - z[c] * along);
    }
}

// Writes the gradients of the weights, given those of Q (rows, choices). The workspace must be as `forward` left it.
static void backward(const Net *net, const float *weights, const float *x, int64_t rows, const Workspace *space,
                     float *slopes, float *gradient) {
    int64_t hidden = 0;
    for (int k = 1; k < net->layers; k++) hidden += net->sizes[k];
    float *out = space->outs + rows * hidden, *normals = space->normals + rows * hidden;
    float *scales = space->scales + rows * (net->layers - 1);
    for (int number = net->layers - 1; number >= 0; number--) {
        Layer layer = layer_of(net, weights, number);
        int64_t n = layer.outputs, m = layer.inputs;
        float *d_weight = gradient + layer.at, *d_bias = d_weight + m * n;
        if (!layer.is_last) {
            int64_t count = rows * n;
            if (net->is_tanh) {
                for (int64_t c = 0; c < count; c++) slopes[c] *= 1.0f - out[c] * out[c];
            } else {
                for (int64_t c = 0; c < count; c++) slopes[c] = out[c] <= 0.0f ? 0.0f : slopes[c];
            }
            if (net->layer_norm) {
                normals -= count, scales -= rows;
                backward_norm(&layer, rows, slopes, normals, scales, d_bias + n, d_bias + 2 * n, space->edge);
            }
        }
        const float *input = number ? out - rows * m : x;
        memset(d_bias, 0, 4 * (size_t)n);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t c = 0; c < n; c++) d_bias[c] += slopes[i * n + c];
        }
        Matrix a = {input, 1, m}, b = {slopes, n, 1};
        multiply(m, n, rows, a, b, 0, d_weight, space->panel, space->edge);
        if (!number) return;
        float *before = slopes == space->slopes[0] ? space->slopes[1] : space->slopes[0];
        Matrix d = {slopes, n, 1}, transposed = {layer.weight, 1, n};
        multiply(rows, m, n, d, transposed, 0, before, space->panel, space->edge);
        slopes = before, out -= rows * m;
    }
}

// ---- acting ----

typedef struct {
    const Net *net;
    const float *weights, *x;
    const int8_t *masks;  // (rows, choices); null: all actions are allowed
    const float *noise;   // (rows, choices + 1): a random number for every choice, then whether the row explores
    float *logits, *best;
    int64_t *actions;
    float *work;
    int64_t rows;
} Act;

// Writes Q of every choice (NEVER where it is not allowed), the highest Q and the action, as QHead does (nn/qnet.py).
SHOAL_API void shoal_q_act(const Act *act) {
    int64_t needed, choices = act->net->sizes[act->net->layers];
    Workspace space = workspace_of(act->net, act->rows, act->work, &needed);
    forward(act->net, act->weights, act->x, act->rows, &space, act->logits);
    for (int64_t i = 0; i < act->rows; i++) {
        float *q = act->logits + i * choices, best = q[0];
        const float *noise = act->noise + i * (choices + 1);
        for (int64_t c = 1; c < choices; c++) best = q[c] > best ? q[c] : best;
        act->best[i] = best;
        for (int64_t c = 0; act->masks && c < choices; c++) q[c] = act->masks[i * choices + c] ? q[c] : NEVER;
        int explores = noise[choices] > 0.0f;
        int64_t chosen = 0;
        float most = 0.0f;
        for (int64_t c = 0; c < choices; c++) {
            float value = !explores ? q[c] : q[c] > NEVER ? noise[c] : -1.0f;
            if (!c || value > most) most = value, chosen = c;
        }
        act->actions[i] = chosen;
    }
}

// ---- statistics of a rollout ----

typedef struct {
    const float *rewards, *logits;  // (steps, rows), (steps, rows, choices)
    const uint8_t *dones, *alive;   // alive may be null: all rows
    double *games;                  // that have ended so far
    float *found;                   // out: mean reward, mean of the highest Q
    int64_t steps, rows, choices, agents;
} Watch;

// The same as the statistics of algos/dqn.py in torch.
SHOAL_API void shoal_q_watch(const Watch *w) {
    double reward = 0.0, best = 0.0;
    int64_t ended = 0, counted = 0;
    for (int64_t i = 0; i < w->steps * w->rows; i++) {
        // rows of agents that are out have weight 0; their NaN, if any, still shows in the sums
        float counts = !w->alive || w->alive[i] ? 1.0f : 0.0f;
        const float *q = w->logits + i * w->choices;
        float most = q[0];
        for (int64_t c = 1; c < w->choices; c++) most = q[c] > most ? q[c] : most;
        reward += (double)(w->rewards[i] * counts), best += (double)(most * counts);
        ended += w->dones[i] && counts > 0.0f, counted += counts > 0.0f;
    }
    double total = counted ? (double)counted : 1.0;
    *w->games += (double)(float)((double)ended / (double)w->agents);
    w->found[0] = (float)(reward / total), w->found[1] = (float)(best / total);
}

// ---- a gradient step ----

typedef struct {
    const Net *net;
    float *weights, *gradient, *mean, *square, *step;  // step: Adam's count of steps
    const float *target, *x, *next_x;
    const int64_t *actions;
    const float *returns, *discounts, *counts;  // counts: the weights of rows
    const int8_t *next_masks;                   // null: all actions are allowed
    float *errors, *found, *work;               // out: errors: Q - target by row; found: loss, Q, target, gradient norm
    int64_t rows;
    int32_t is_double, is_mse;
    double rate, beta1, beta2, eps, limit;
} Improve;

static int64_t best_of(const float *q, const int8_t *mask, int64_t choices) {
    int64_t best = 0;
    float most = mask && !mask[0] ? NEVER : q[0];
    for (int64_t c = 1; c < choices; c++) {
        float value = mask && !mask[c] ? NEVER : q[c];
        if (value > most) most = value, best = c;
    }
    return best;
}

// Adam (algos/optimizers/adam.py), with the gradient clipped to a norm of `limit`. Returns the norm before clipping.
static double adam_step(const Improve *s, int64_t count) {
    double squares = 0.0;
    for (int64_t k = 0; k < count;
         k += 1024) {  // sums of 1,024 are added as doubles: no precision is lost for many weights
        squares += (double)dot(s->gradient + k, s->gradient + k, count - k < 1024 ? count - k : 1024);
    }
    float norm = (float)sqrt(squares), shrink = 1.0f;
    if (s->limit > 0.0) shrink = (float)s->limit / (norm + 1e-6f);
    shrink = shrink < 1.0f ? shrink : 1.0f;
    double step = (double)(*s->step += 1.0f);
    float rate = (float)(s->rate / (1.0 - pow(s->beta1, step))), gain = (float)(1.0 - s->beta1);
    float root = (float)sqrt(1.0 - pow(s->beta2, step)), eps = (float)s->eps;
    float beta2 = (float)s->beta2, rest = (float)(1.0 - s->beta2);
    float *restrict weights = s->weights, *restrict mean = s->mean, *restrict square = s->square;
    float *restrict gradient = s->gradient;
    for (int64_t k = 0; k < count; k++) {
        float g = gradient[k] * shrink;
        gradient[k] = g;
        mean[k] += gain * (g - mean[k]);
        square[k] = beta2 * square[k] + rest * g * g;
        weights[k] -= rate * mean[k] / (sqrtf(square[k]) / root + eps);
    }
    return (double)norm;
}

// One gradient step, the same as `improve` of algos/dqn.py: Q(s, a) is fitted to r + gamma^n Q_target(s', a'), where a'
// is the best action by the network (double Q-learning) or by the target network.
SHOAL_API void shoal_q_improve(const Improve *s) {
    const Net *net = s->net;
    int64_t needed, rows = s->rows, choices = net->sizes[net->layers], counted = 0;
    Workspace space = workspace_of(net, rows, s->work, &needed);
    float *target_q = space.values, *online_q = space.values + rows * choices, *slopes = space.slopes[0];
    float *targets = s->errors;
    forward(net, s->target, s->next_x, rows, &space, target_q);
    if (s->is_double) forward(net, s->weights, s->next_x, rows, &space, online_q);
    for (int64_t i = 0; i < rows; i++) {
        const int8_t *mask = s->next_masks ? s->next_masks + i * choices : 0;
        int64_t best = best_of((s->is_double ? online_q : target_q) + i * choices, mask, choices);
        targets[i] = s->returns[i] + s->discounts[i] * target_q[i * choices + best];
        counted += s->counts[i] != 0.0f;
    }
    forward(net, s->weights, s->x, rows, &space, online_q);
    memset(slopes, 0, 4 * (size_t)(rows * choices));
    float row_share = 1.0f / (float)(counted ? counted : 1);
    double loss = 0.0, q = 0.0, target = 0.0;
    for (int64_t i = 0; i < rows; i++) {
        float chosen = online_q[i * choices + s->actions[i]], error = chosen - targets[i],
              share = s->counts[i] * row_share;
        float slope = error;
        if (!s->is_mse) slope = error > 1.0f ? 1.0f : error < -1.0f ? -1.0f : error;  // Huber loss
        slopes[i * choices + s->actions[i]] = slope * share;
        loss += (double)(slope * (error - 0.5f * slope) * share);
        q += (double)(chosen * share), target += (double)(targets[i] * share);
        s->errors[i] = error;
    }
    backward(net, s->weights, s->x, rows, &space, slopes, s->gradient);
    Layer last = layer_of(net, s->weights, net->layers - 1);
    double norm = adam_step(s, last.at + (last.inputs + 1) * last.outputs);
    s->found[0] = (float)loss, s->found[1] = (float)q, s->found[2] = (float)target, s->found[3] = (float)norm;
}

// ---- the replay (algos/replay.py describes its layout) ----

enum { STEP, END, CUT, LAST };

typedef struct {
    int64_t rows, agents, capacity, leaves, mask_size, action_bytes;
    const int64_t *obs_bytes, *base;  // (leaves) bytes of one observation; (rows) where a row's ring starts
    uint8_t *const *obs;              // (leaves)
    uint8_t *actions;                 // of action_bytes each: 1 or 4
    float *rewards;
    uint8_t *kinds;
    int8_t *masks;  // null: none
    int64_t *heads, *counts, *stored;
    int64_t *ends;  // (rows) workspace
} Replay;

typedef struct {
    const Replay *replay;
    int64_t steps;
    uint8_t *const *obs;  // (leaves) of (steps + 1, rows)
    const int64_t *actions;
    const float *rewards;
    const uint8_t *dones, *alive, *cuts;  // alive: (steps + 1, rows); null: all. cuts: truncated; null: none
    const int8_t *masks;                  // (steps + 1, rows, mask_size)
    int64_t *last;  // (steps, rows) out: the place for the final observation of a truncated episode
} Store;

static void write_obs(const Store *s, int64_t place, int64_t t, int64_t row) {
    const Replay *r = s->replay;
    for (int64_t k = 0; k < r->leaves; k++) {
        int64_t bytes = r->obs_bytes[k];
        memcpy(r->obs[k] + place * bytes, s->obs[k] + (t * r->rows + row) * bytes, (size_t)bytes);
    }
    if (!r->masks || !s->masks) return;
    memcpy(r->masks + place * r->mask_size, s->masks + (t * r->rows + row) * r->mask_size, (size_t)r->mask_size);
}

// Stores a rollout, as Replay.store does. The caller writes the final observations and masks of truncated episodes.
SHOAL_API void shoal_replay_store(const Store *s) {
    const Replay *r = s->replay;
    for (int64_t row = 0; row < r->rows; row++) {
        int64_t head = r->heads[row], base = r->base[row], written = 0;
        for (int64_t t = 0; t < s->steps; t++) {
            int64_t at = t * r->rows + row, place = base + head;
            if (s->alive && !s->alive[at]) continue;
            int is_cut = s->cuts && s->cuts[at];
            int is_over = s->dones[at] || (s->alive && !s->alive[at + r->rows]);
            write_obs(s, place, t, row);
            if (r->action_bytes == 1) {
                r->actions[place] = (uint8_t)s->actions[at];
            } else {
                ((int32_t *)r->actions)[place] = (int32_t)s->actions[at];
            }
            r->rewards[place] = s->rewards[at];
            r->kinds[place] = is_cut ? CUT : is_over ? END : STEP;
            head = head + 1 == r->capacity ? 0 : head + 1;
            written++;
            ++*r->stored;
            if (!is_cut) continue;
            place = base + head;
            r->kinds[place] = LAST;
            s->last[at] = place;
            head = head + 1 == r->capacity ? 0 : head + 1;
            written++;
        }
        r->heads[row] = head;
        int64_t count = r->counts[row] + written;
        r->counts[row] = count < r->capacity - 1 ? count : r->capacity - 1;
        write_obs(s, base + head, s->steps, row);
    }
}

// The row of a ring: rings are ordered by agent, rows by env.
static int64_t row_of(const Replay *r, int64_t ring) {
    int64_t envs = r->rows / r->agents;
    return ring % envs * r->agents + ring / envs;
}

typedef struct {
    const Replay *replay;
    int64_t groups, count;  // count windows from each group of rows
    const double *chances;  // (groups, count) random numbers from 0 to 1
    int64_t *index;         // (count, groups)
    float *weights;         // (count, groups)
    int64_t n_step;
    double gamma;
    uint8_t *const *obs, *const *next_obs;  // (leaves)
    int64_t *actions;
    float *returns, *discounts;
    int8_t *next_masks;
} Draw;

// Draws places of transitions, uniformly within each group.
SHOAL_API void shoal_replay_draw(const Draw *d) {
    const Replay *r = d->replay;
    int64_t rings = r->rows / d->groups;
    for (int64_t group = 0; group < d->groups; group++) {
        int64_t total = 0, first = group * rings, *ends = r->ends;
        for (int64_t k = 0; k < rings; k++) ends[k] = total += r->counts[row_of(r, first + k)];
        for (int64_t i = 0; i < d->count; i++) {
            int64_t number = (int64_t)(d->chances[group * d->count + i] * (double)total), low = 0, high = rings - 1;
            number = number > total - 1 ? total - 1 : number;
            number = number < 0 ? 0 : number;
            while (low < high) {  // binary search: the first ring that ends after it
                int64_t middle = (low + high) / 2;
                if (ends[middle] > number) {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            int64_t ring = first + low, slot = r->heads[row_of(r, ring)] - (ends[low] - number);
            d->index[i * d->groups + group] = ring * r->capacity + (slot < 0 ? slot + r->capacity : slot);
            d->weights[i * d->groups + group] = total > 0 ? 1.0f : 0.0f;
        }
    }
}

// Reads the n-step transitions that start at the places of `index`, as Replay.sample does.
SHOAL_API void shoal_replay_windows(const Draw *d) {
    const Replay *r = d->replay;
    float gamma = (float)d->gamma;
    for (int64_t i = 0; i < d->groups * d->count; i++) {
        int64_t index = d->index[i], ring = index / r->capacity, start = ring * r->capacity, at = index;
        int64_t head = start + r->heads[row_of(r, ring)];
        float returned = 0.0f;
        int64_t steps = 0, kind = STEP, after = at;
        while (steps < d->n_step) {
            returned += (steps ? powf(gamma, (float)steps) : 1.0f) * r->rewards[at];
            after = at + 1 == start + r->capacity ? start : at + 1;
            kind = r->kinds[at];
            steps++;
            if (kind != STEP || after == head) break;
            at = after;
        }
        d->returns[i] = returned;
        d->discounts[i] = kind == END ? 0.0f : steps == 1 ? gamma : powf(gamma, (float)steps);
        d->actions[i] = r->action_bytes == 1 ? r->actions[index] : ((int32_t *)r->actions)[index];
        if (r->kinds[index] == LAST) d->weights[i] = 0.0f;
        for (int64_t k = 0; k < r->leaves; k++) {
            size_t bytes = (size_t)r->obs_bytes[k];
            memcpy(d->obs[k] + (size_t)i * bytes, r->obs[k] + (size_t)index * bytes, bytes);
            memcpy(d->next_obs[k] + (size_t)i * bytes, r->obs[k] + (size_t)after * bytes, bytes);
        }
        if (!r->masks) continue;
        memcpy(d->next_masks + i * r->mask_size, r->masks + after * r->mask_size, (size_t)r->mask_size);
    }
}
