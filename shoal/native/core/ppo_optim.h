// ppo_optim.h: Adam, AdamW and Muon on flat weights, for ppo.c. algos/optimizers/ is the definition.
#ifndef SHOAL_PPO_OPTIM_H
#define SHOAL_PPO_OPTIM_H

#include <math.h>

#include "matmul.h"

typedef int64_t (*RangeFn)(void *job, int32_t lo, int32_t hi);
typedef int64_t (*RunFn)(void *pool, RangeFn fn, void *job, int32_t lo, int32_t hi, int32_t chunk);

enum { ADAM, ADAMW, MUON };
enum { ADAM_PART = 4096 };  // weights that a thread updates at a time
enum { NEWTON_STEPS = 5 };
enum { MUON_PART = 8 };  // rows of a matrix

// A matrix that Muon updates: `rows` x `columns` at `start` in the flat weights.
typedef struct {
    int64_t start, rows, columns;
    // of the smaller shape, `height` <= `width`: x, and for products its packed rows (of this and of the last step),
    // its packed columns, x x^T with its packed rows, and the polynomial of it
    float *x, *by_row[2], *by_column, *square, *square_by_row, *polynomial;
    double *squares;  // sums of x^2, of each part of its rows
} Matrix;

typedef struct {
    int64_t kind, size;
    float *weights, *gradient, *mean, *second, *step;  // second: the running mean of squares; step: of torch's Adam
    double rate, beta1, beta2, eps, decay, momentum;
    int64_t num_matrices, num_spans;
    Matrix *matrices;
    const int64_t *spans;  // (num_spans, 2): the weights that Adam updates
} Optimizer;

// ---- Adam ----

// The numbers of torch's fused Adam: m += (1 - beta1) (g - m), v = beta2 v + (1 - beta2) g^2,
// w -= rate / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
static void adam(const Optimizer *o, double step, float clip, int64_t lo, int64_t hi) {
    double correction = sqrt(1.0 - pow(o->beta2, step));
    float size = (float)(o->rate / (1.0 - pow(o->beta1, step))), shrink = (float)(1.0 / correction);
    float beta1 = (float)o->beta1, beta2 = (float)o->beta2, eps = (float)o->eps;
    float kept = o->kind == ADAM ? 1.0f : (float)(1.0 - o->rate * o->decay);
    float *w = o->weights, *g = o->gradient, *m = o->mean, *v = o->second;
    for (int64_t i = lo; i < hi; i++) {
        g[i] *= clip;
        m[i] += (1.0f - beta1) * (g[i] - m[i]);
        v[i] = beta2 * v[i] + (1.0f - beta2) * g[i] * g[i];
        w[i] = w[i] * kept - size * m[i] / (sqrtf(v[i]) * shrink + eps);
    }
}

// ---- Muon ----

static int64_t height_of(const Matrix *m) { return m->rows < m->columns ? m->rows : m->columns; }
static int64_t width_of(const Matrix *m) { return m->rows < m->columns ? m->columns : m->rows; }

// Divides memory for a matrix; returns the floats that it takes.
static int64_t matrix_memory(Matrix *m, float *memory) {
    int64_t height = height_of(m), width = width_of(m), at = 0;
    m->x = memory + at, at += height * stride_of(width);
    for (int k = 0; k < 2; k++) m->by_row[k] = memory + at, at += height * rounded(width);
    m->by_column = memory + at, at += width * rounded(height);
    m->square = memory + at, at += height * stride_of(height);
    m->square_by_row = memory + at, at += height * rounded(height);
    m->polynomial = memory + at, at += height * stride_of(height);
    m->squares = (double *)(memory + at), at += 2 * (height / MUON_PART + 1);
    return at;
}

// Packs rows lo .. hi of x for the products of a step.
static void pack_rows(Matrix *m, int step, int64_t lo, int64_t hi) {
    int64_t height = height_of(m), width = width_of(m), columns = rounded(height);
    for (int64_t i = lo; i < hi; i++) {
        const float *x = m->x + i * stride_of(width);
        pack_row(i, height, rounded(width), width, x, 1, m->by_row[step % 2]);
        int64_t panel = i / PANEL * PANEL, lanes = PANEL;
        if (columns - panel < PANEL) panel = i / LANES * LANES, lanes = LANES;
        float *to = m->by_column + panel * width + i - panel;
        for (int64_t k = 0; k < width; k++) to[k * lanes] = x[k];
    }
}

// Momentum, and x: Nesterov's momentum in the smaller shape. Rows lo .. hi of x.
static double muon_begin(const Optimizer *o, Matrix *m, float clip, int64_t lo, int64_t hi) {
    int64_t width = width_of(m), is_turned = m->rows > m->columns;
    float beta = (float)o->momentum;
    double squares = 0.0;
    for (int64_t i = lo; i < hi; i++) {
        float *x = m->x + i * stride_of(width);
        for (int64_t k = 0; k < width; k++) {
            int64_t at = m->start + (is_turned ? k * m->columns + i : i * m->columns + k);
            float g = o->gradient[at] *= clip;
            float mean = o->mean[at] += (1.0f - beta) * (g - o->mean[at]);
            x[k] = g + beta * (mean - g);
            squares += (double)x[k] * (double)x[k];
        }
    }
    return squares;
}

static void muon_scale(Matrix *m, double norm, int64_t lo, int64_t hi) {
    int64_t width = width_of(m);
    float factor = (float)(1.0 / (norm > 1e-7 ? norm : 1e-7));
    for (int64_t i = lo; i < hi; i++) {
        float *x = m->x + i * stride_of(width);
        for (int64_t k = 0; k < width; k++) x[k] *= factor;
    }
    pack_rows(m, 0, lo, hi);
}

// square = x x^T, then polynomial = b square + c square^2, then x = a x + polynomial x: rows lo .. hi
static void muon_square(Matrix *m, int64_t lo, int64_t hi) {
    int64_t height = height_of(m), width = width_of(m), row = stride_of(height);
    Strided a = {m->x + lo * stride_of(width), stride_of(width), 1};
    multiply_packed(hi - lo, rounded(height), width, a, m->by_column, FROM_ZERO, 0, m->square + lo * row, row);
    for (int64_t i = lo; i < hi; i++) {
        pack_row(i, height, rounded(height), height, m->square + i * row, 1, m->square_by_row);
    }
}

static void muon_polynomial(Matrix *m, int64_t lo, int64_t hi) {
    int64_t height = height_of(m), row = stride_of(height);
    Strided a = {m->square + lo * row, row, 1};
    multiply_packed(hi - lo, rounded(height), height, a, m->square_by_row, FROM_ZERO, 0, m->polynomial + lo * row, row);
    for (int64_t i = lo; i < hi; i++) {
        float *p = m->polynomial + i * row, *s = m->square + i * row;
        for (int64_t k = 0; k < height; k++) p[k] = -4.7750f * s[k] + 2.0315f * p[k];
        p[i] += 3.4445f;  // a x is the identity's part
    }
}

static void muon_multiply(Matrix *m, int step, int64_t lo, int64_t hi) {
    int64_t height = height_of(m), width = width_of(m), row = stride_of(width);
    Strided a = {m->polynomial + lo * stride_of(height), stride_of(height), 1};
    multiply_packed(hi - lo, rounded(width), height, a, m->by_row[step % 2], FROM_ZERO, 0, m->x + lo * row, row);
    if (step + 1 < NEWTON_STEPS) pack_rows(m, step + 1, lo, hi);
}

static void muon_apply(const Optimizer *o, const Matrix *m, int64_t lo, int64_t hi) {
    int64_t width = width_of(m), is_turned = m->rows > m->columns;
    float size = (float)(o->rate * 0.2 * sqrt((double)width)), kept = (float)(1.0 - o->rate * o->decay);
    for (int64_t i = lo; i < hi; i++) {
        const float *x = m->x + i * stride_of(width);
        for (int64_t k = 0; k < width; k++) {
            int64_t at = m->start + (is_turned ? k * m->columns + i : i * m->columns + k);
            o->weights[at] = o->weights[at] * kept - size * x[k];
        }
    }
}

#endif
