// ppo_optim.h: Adam, AdamW and Muon on flat weights, for ppo.c. algos/optimizers/ is the definition.
#ifndef SHOAL_PPO_OPTIM_H
#define SHOAL_PPO_OPTIM_H

#include <math.h>

#include "matmul.h"

typedef int64_t (*RangeFn)(void *job, int32_t lo, int32_t hi);
typedef int64_t (*RunFn)(void *pool, RangeFn fn, void *job, int32_t lo, int32_t hi, int32_t chunk);

enum { ADAM, ADAMW, MUON };
enum { ADAM_PART = 4096 };  // weights that a thread updates at a time
enum { MUON_PART = 8 };     // rows of a matrix

// A matrix that Muon updates: `rows` x `columns` at `start` in the flat weights.
typedef struct {
    int64_t start, rows, columns;
    // of the smaller shape, `height` <= `width`: x, its packed columns, square = x x^T, first = square x and
    // second = square first
    float *x, *by_column, *square, *first, *second;
    double *squares;  // sums of x^2, of each part of its rows
} Matrix;

typedef struct {
    int64_t kind, size;
    float *weights, *gradient, *mean, *second, *step;  // second: the running mean of squares; step: of torch's Adam
    double rate, beta1, beta2, eps, decay, momentum;
    int64_t num_matrices, num_spans, newton_steps;
    Matrix *matrices;
    const int64_t *spans;  // (num_spans, 2): the weights that Adam updates
    const float *newton;   // (newton_steps, 3): the polynomial of each Newton-Schulz step
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
    m->by_column = memory + at, at += width * rounded(height);
    m->square = memory + at, at += height * stride_of(height);
    m->first = memory + at, at += height * stride_of(width);
    m->second = memory + at, at += height * stride_of(width);
    m->squares = (double *)(memory + at), at += 2 * (height / MUON_PART + 1);
    return at;
}

// Packs the numbers of x in rows i_lo .. i_hi and columns k_lo .. k_hi, for x x^T.
static void pack_columns(Matrix *m, int64_t i_lo, int64_t i_hi, int64_t k_lo, int64_t k_hi) {
    int64_t height = height_of(m), width = width_of(m), columns = rounded(height);
    for (int64_t i = i_lo; i < i_hi; i++) {
        int64_t panel = i / PANEL * PANEL, lanes = PANEL;
        if (columns - panel < PANEL) panel = i / LANES * LANES, lanes = LANES;
        const float *x = m->x + i * stride_of(width);
        float *to = m->by_column + panel * width + i - panel;
        for (int64_t k = k_lo; k < k_hi; k++) to[k * lanes] = x[k];
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
    pack_columns(m, lo, hi, 0, width);
}

// A step of Newton and Schulz: square = x x^T, then x = a x + b square x + c square^2 x by p = (a, b, c). Threads
// share the rows of the first, and the columns of the second: a column of x needs all of square, but no other column.
static void muon_square(Matrix *m, int64_t lo, int64_t hi) {
    int64_t height = height_of(m), width = width_of(m), row = stride_of(height);
    Strided a = {m->x + lo * stride_of(width), stride_of(width), 1};
    multiply_packed(hi - lo, rounded(height), width, a, m->by_column, FROM_ZERO, 0, m->square + lo * row, row);
}

static void muon_step(Matrix *m, const float *p, int64_t lo, int64_t hi) {
    int64_t height = height_of(m), width = width_of(m), row = stride_of(width);
    Strided square = {m->square, stride_of(height), 1};
    float a = p[0], b = p[1], c = p[2];
    multiply_rows(height, hi - lo, height, square, m->x + lo, row, FROM_ZERO, m->first + lo, row);
    multiply_rows(height, hi - lo, height, square, m->first + lo, row, FROM_ZERO, m->second + lo, row);
    for (int64_t i = 0; i < height; i++) {
        float *x = m->x + i * row, *first = m->first + i * row, *second = m->second + i * row;
        for (int64_t k = lo; k < hi; k++) x[k] = a * x[k] + (b * first[k] + c * second[k]);
    }
}

// Columns lo .. hi of x.
static void muon_apply(const Optimizer *o, const Matrix *m, int64_t lo, int64_t hi) {
    int64_t height = height_of(m), width = width_of(m), is_turned = m->rows > m->columns;
    float size = (float)(o->rate * 0.2 * sqrt((double)width)), kept = (float)(1.0 - o->rate * o->decay);
    for (int64_t i = 0; i < height; i++) {
        const float *x = m->x + i * stride_of(width);
        for (int64_t k = lo; k < hi; k++) {
            int64_t at = m->start + (is_turned ? k * m->columns + i : i * m->columns + k);
            o->weights[at] = o->weights[at] * kept - size * x[k];
        }
    }
}

#endif
