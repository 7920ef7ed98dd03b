// policy.h: runs a policy's network for one row: a list of instructions over one array of floats.
//
// shoal/web/network.py writes the instructions and the array, which begins with the weights. Compiled into the env's
// WebAssembly (shoal/web/core/web.c) and into the core library, with which an export is checked.
//
// Every instruction is POLICY_WORDS ints: an op and its operands. Operands are places in the array or counts. Matrices
// are (inputs, outputs) and images (height, width, channels): the inner loops run over neighbours, so they vectorize
// although no sum is reordered.
#ifndef SHOAL_POLICY_H
#define SHOAL_POLICY_H

#include "math.h"

enum { POLICY_WORDS = 12 };
enum {
    POLICY_INPUT,       // to, count: the observation, as floats
    POLICY_RECALL,      // to, count, from: floats of the recurrent state
    POLICY_REMEMBER,    // from, count, to: into the recurrent state
    POLICY_NORMALIZE,   // at, count, mean, scale, limit
    POLICY_SCALE,       // at, count, factor
    POLICY_LINEAR,      // to, from, outputs, inputs, weight, bias (-1: none), adds (1: to what is there)
    POLICY_ACTIVATE,    // at, count, activation
    POLICY_CONV,        // to, from, channels out, channels in, height, width, side, stride, padding, weight, bias
    POLICY_POOL,        // to, from, channels, height, width, side, stride, padding: the largest
    POLICY_ADD,         // to, from, count
    POLICY_COPY,        // to, from, count
    POLICY_TRANSPOSE,   // to, from, rows, columns
    POLICY_LSTM,        // gates (i f g o), cell, hidden, count
    POLICY_MINGRU,      // gates (update, candidate, highway), skip, hidden, out, count
    POLICY_LAYER_NORM,  // at, count, gain, shift
    POLICY_DUEL,        // to, from, choices, atoms: value + advantages - their mean
    POLICY_EXPECT,      // to, from, choices, atoms, places of the atoms (-1: the mean)
    POLICY_MAX,         // to, from, count
};
enum { POLICY_RELU, POLICY_TANH, POLICY_GELU, POLICY_SILU };

MATH_FN float policy_sigmoid(float x) { return 1.0f / (1.0f + m_exp(m_clamp(-x, -80.0f, 80.0f))); }
MATH_FN float policy_tanh(float x) { return 2.0f * policy_sigmoid(2.0f * x) - 1.0f; }

// The error function by Abramowitz & Stegun 7.1.26; the error is below 2e-7.
MATH_FN float policy_erf(float x) {
    float t = 1.0f / (1.0f + 0.3275911f * m_abs(x));
    float sum = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    float y = 1.0f - sum * m_exp(m_max(-x * x, -80.0f));
    return x < 0.0f ? -y : y;
}

MATH_FN float policy_activation(float x, int32_t kind) {
    if (kind == POLICY_RELU) return x > 0.0f ? x : 0.0f;
    if (kind == POLICY_TANH) return policy_tanh(x);
    if (kind == POLICY_SILU) return x * policy_sigmoid(x);
    return 0.5f * x * (1.0f + policy_erf(x * 0.70710678f));
}

static void policy_linear(float *to, const float *from, const int32_t *op, const float *memory) {
    const int32_t outputs = op[3], inputs = op[4];
    const float *weight = memory + op[5];
    for (int32_t j = 0; j < outputs && !op[7]; j++) to[j] = op[6] < 0 ? 0.0f : memory[op[6] + j];
    for (int32_t i = 0; i < inputs; i++) {
        const float x = from[i], *row = weight + (int64_t)i * outputs;
        if (x == 0.0f) continue;  // after relu, half of them
        for (int32_t j = 0; j < outputs; j++) to[j] += x * row[j];
    }
}

static int32_t policy_side(int32_t size, int32_t side, int32_t stride, int32_t padding) {
    return (size + 2 * padding - side) / stride + 1;
}

// weight: (side, side, channels in, channels out)
static void policy_conv(float *to, const float *from, const int32_t *op, const float *memory) {
    const int32_t outs = op[3], ins = op[4], height = op[5], width = op[6], side = op[7], stride = op[8], pad = op[9];
    const int32_t rows = policy_side(height, side, stride, pad), columns = policy_side(width, side, stride, pad);
    const float *weight = memory + op[10], *bias = memory + op[11];
    for (int32_t y = 0; y < rows; y++) {
        for (int32_t x = 0; x < columns; x++, to += outs) {
            for (int32_t j = 0; j < outs; j++) to[j] = bias[j];
            for (int32_t k = 0; k < side * side; k++) {
                const int32_t at_y = y * stride - pad + k / side, at_x = x * stride - pad + k % side;
                if (at_y < 0 || at_y >= height || at_x < 0 || at_x >= width) continue;
                const float *pixel = from + (at_y * width + at_x) * ins;
                const float *row = weight + (int64_t)k * ins * outs;
                for (int32_t i = 0; i < ins; i++, row += outs) {
                    const float value = pixel[i];
                    if (value == 0.0f) continue;
                    for (int32_t j = 0; j < outs; j++) to[j] += value * row[j];
                }
            }
        }
    }
}

static void policy_pool(float *to, const float *from, const int32_t *op) {
    const int32_t channels = op[3], height = op[4], width = op[5], side = op[6], stride = op[7], pad = op[8];
    const int32_t rows = policy_side(height, side, stride, pad), columns = policy_side(width, side, stride, pad);
    for (int32_t y = 0; y < rows; y++) {
        for (int32_t x = 0; x < columns; x++, to += channels) {
            for (int32_t j = 0; j < channels; j++) to[j] = -M_INF;
            for (int32_t k = 0; k < side * side; k++) {
                const int32_t at_y = y * stride - pad + k / side, at_x = x * stride - pad + k % side;
                if (at_y < 0 || at_y >= height || at_x < 0 || at_x >= width) continue;
                const float *pixel = from + (at_y * width + at_x) * channels;
                for (int32_t j = 0; j < channels; j++) to[j] = m_max(to[j], pixel[j]);
            }
        }
    }
}

static void policy_lstm(const float *gates, float *cell, float *hidden, int32_t count) {
    for (int32_t k = 0; k < count; k++) {
        float i = policy_sigmoid(gates[k]), f = policy_sigmoid(gates[count + k]);
        float g = policy_tanh(gates[2 * count + k]), o = policy_sigmoid(gates[3 * count + k]);
        cell[k] = f * cell[k] + i * g;
        hidden[k] = o * policy_tanh(cell[k]);
    }
}

static void policy_mingru(const float *gates, const float *skip, float *hidden, float *out, int32_t count) {
    for (int32_t k = 0; k < count; k++) {
        float update = policy_sigmoid(gates[k]), x = gates[count + k], highway = policy_sigmoid(gates[2 * count + k]);
        float candidate = x >= 0.0f ? x + 0.5f : policy_sigmoid(x);
        hidden[k] += update * (candidate - hidden[k]);
        out[k] = skip[k] + highway * (hidden[k] - skip[k]);
    }
}

static void policy_layer_norm(float *at, int32_t count, const float *gain, const float *shift) {
    float mean = 0.0f, squares = 0.0f;
    for (int32_t k = 0; k < count; k++) mean += at[k];
    mean /= (float)count;
    for (int32_t k = 0; k < count; k++) squares += (at[k] - mean) * (at[k] - mean);
    const float scale = 1.0f / m_sqrt(squares / (float)count + 1e-5f);
    for (int32_t k = 0; k < count; k++) at[k] = (at[k] - mean) * scale * gain[k] + shift[k];
}

static void policy_duel(float *to, const float *from, int32_t choices, int32_t atoms) {
    for (int32_t a = 0; a < atoms; a++) {
        float mean = 0.0f;
        for (int32_t k = 0; k < choices; k++) mean += from[(1 + k) * atoms + a];
        mean /= (float)choices;
        for (int32_t k = 0; k < choices; k++) to[k * atoms + a] = from[a] + from[(1 + k) * atoms + a] - mean;
    }
}

// The mean of each choice's distribution: of its quantiles, or of places that have the softmax as probabilities.
static void policy_expect(float *to, const float *from, int32_t choices, int32_t atoms, const float *places) {
    for (int32_t k = 0; k < choices; k++, from += atoms) {
        float highest = -M_INF, total = 0.0f, sum = 0.0f;
        for (int32_t a = 0; a < atoms; a++) highest = m_max(highest, from[a]);
        for (int32_t a = 0; a < atoms; a++) {
            float weight = places ? m_exp(m_max(from[a] - highest, -80.0f)) : 1.0f;
            total += weight;
            sum += weight * (places ? places[a] : from[a]);
        }
        to[k] = sum / total;
    }
}

static void policy_input(float *to, int32_t count, const void *obs, int32_t is_bytes) {
    for (int32_t k = 0; k < count; k++) to[k] = is_bytes ? (float)((const uint8_t *)obs)[k] : ((const float *)obs)[k];
}

// Runs `count` instructions on an observation and a recurrent state.
static void policy_run(const int32_t *code, int32_t count, float *memory, const void *obs, int32_t is_bytes,
                       float *state) {
    for (const int32_t *op = code, *end = code + (int64_t)count * POLICY_WORDS; op < end; op += POLICY_WORDS) {
        float *to = memory + op[1], *second = memory + (op[2] < 0 ? 0 : op[2]);
        switch (op[0]) {
            case POLICY_INPUT:
                policy_input(to, op[2], obs, is_bytes);
                break;
            case POLICY_RECALL:
                for (int32_t k = 0; k < op[2]; k++) to[k] = state[op[3] + k];
                break;
            case POLICY_REMEMBER:
                for (int32_t k = 0; k < op[2]; k++) state[op[3] + k] = to[k];
                break;
            case POLICY_NORMALIZE: {
                const float *mean = memory + op[3], *scale = memory + op[4], limit = (float)op[5];
                for (int32_t k = 0; k < op[2]; k++) to[k] = m_clamp((to[k] - mean[k]) * scale[k], -limit, limit);
                break;
            }
            case POLICY_SCALE:
                for (int32_t k = 0; k < op[2]; k++) to[k] *= memory[op[3]];
                break;
            case POLICY_LINEAR:
                policy_linear(to, second, op, memory);
                break;
            case POLICY_ACTIVATE:
                for (int32_t k = 0; k < op[2]; k++) to[k] = policy_activation(to[k], op[3]);
                break;
            case POLICY_CONV:
                policy_conv(to, second, op, memory);
                break;
            case POLICY_POOL:
                policy_pool(to, second, op);
                break;
            case POLICY_ADD:
                for (int32_t k = 0; k < op[3]; k++) to[k] += second[k];
                break;
            case POLICY_COPY:
                for (int32_t k = 0; k < op[3]; k++) to[k] = second[k];
                break;
            case POLICY_TRANSPOSE:
                for (int32_t k = 0; k < op[3] * op[4]; k++) to[(k % op[4]) * op[3] + k / op[4]] = second[k];
                break;
            case POLICY_LSTM:
                policy_lstm(to, second, memory + op[3], op[4]);
                break;
            case POLICY_MINGRU:
                policy_mingru(to, second, memory + op[3], memory + op[4], op[5]);
                break;
            case POLICY_LAYER_NORM:
                policy_layer_norm(to, op[2], memory + op[3], memory + op[4]);
                break;
            case POLICY_DUEL:
                policy_duel(to, second, op[3], op[4]);
                break;
            case POLICY_EXPECT:
                policy_expect(to, second, op[3], op[4], op[5] < 0 ? 0 : memory + op[5]);
                break;
            default:  // POLICY_MAX
                to[0] = second[0];
                for (int32_t k = 1; k < op[3]; k++) to[0] = m_max(to[0], second[k]);
        }
    }
}

#endif
