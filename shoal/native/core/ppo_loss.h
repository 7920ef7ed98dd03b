// ppo_loss.h: PPO's loss and its gradients for every action space, and sampling of actions, for ppo.c.
// algos/ppo.py (clipped_loss) and nn/distributions.py are the definition.
#ifndef SHOAL_PPO_LOSS_H
#define SHOAL_PPO_LOSS_H

#include <math.h>
#include <stdint.h>

#include "simd.h"

static const float NEVER = -1e9f;  // logit of a forbidden choice
static const float MIN_LOG_STD = -20.0f, MAX_LOG_STD = 4.0f, HALF_LOG_TWO_PI = 0.918938533f;

enum { MAX_PARTS = 64 };

// A part of an action: one choice of `count`, or (count 0) `size` numbers.
typedef struct {
    int64_t count, size;
    int64_t logits, column, log_stds;  // its first logit or mean, action and log standard deviation
} Part;

typedef struct {
    const Part *parts;
    int64_t num_parts, columns;      // columns of an action
    int64_t num_logits, num_params;  // logits and means; with the log standard deviations
    int64_t num_outputs;             // of the actor's head: without free log standard deviations
    int64_t is_float, is_squashed;   // actions are float32, otherwise int64
    const float *log_scale;          // (numbers) of the bounds, for squashed actions
} Head;

typedef struct {
    float clip, value_clip, value_coef, entropy_coef;
} Coefs;

enum { POLICY_LOSS, VALUE_LOSS, ENTROPY, KL, CLIPPED, NUM_SUMS };

// What the loss compares the outputs of LANES rows with.
typedef struct {
    Lanes logprob, value, advantage, target;
    Lanes share;           // weight of the row / total of the minibatch
    const Lanes *actions;  // (columns)
    const Lanes *allowed;  // (logits): 1.0, or 0.0 for forbidden choices; null: all are allowed
} Target;

// log |da/du| of a = scale tanh(u), without the scale: 2 (log 2 - u - softplus(-2 u))
static Lanes log_derivative(Lanes u) {
    for (int c = 0; c < LANES; c++) {
        float x = -2.0f * u[c];
        u[c] = 2.0f * (0.693147181f - u[c] - (x > 20.0f ? x : log1pf(expf(x))));
    }
    return u;
}

INLINE Lanes clamp(Lanes x, float low, float high) {  // NaN stays NaN
    x = choose(x < low, all(low), x);
    return choose(x > high, all(high), x);
}

// Writes into d (num_params) the gradients of LANES rows' losses by their logits z (masked already), and into *d_value
// those by their values, and adds the rows' losses to sums.
static void loss_of_rows(const Head *head, const Coefs *coefs, const Lanes *z, Lanes value, const Target *t, Lanes *d,
                         Lanes *d_value, double *sums) {
    Lanes logprob = {0}, entropy = {0}, entropies[MAX_PARTS], log_sums[MAX_PARTS], tops[MAX_PARTS];
    for (int64_t p = 0; p < head->num_parts; p++) {
        const Part *part = &head->parts[p];
        const Lanes *zp = z + part->logits, *action = t->actions + part->column;
        Lanes *dp = d + part->logits;
        if (part->count) {
            Lanes top = zp[0], sum = {0}, own = {0}, chosen = {0};
            for (int64_t c = 1; c < part->count; c++) top = choose(zp[c] > top, zp[c], top);
            for (int64_t c = 0; c < part->count; c++) sum += dp[c] = exp_of(zp[c] - top);
            Lanes log_sum = log_of(sum);  // top is not added: next to NEVER the sum would be lost
            for (int64_t c = 0; c < part->count; c++) {
                dp[c] = dp[c] / sum;  // a probability, until it becomes a gradient below
                own -= dp[c] * (zp[c] - top - log_sum);
                chosen = choose(*action == (float)c, zp[c] - top, chosen);
            }
            logprob += chosen - log_sum;
            entropies[p] = own, log_sums[p] = log_sum, tops[p] = top, entropy += own;
            continue;
        }
        const Lanes *stds = z + head->num_logits + part->log_stds;
        for (int64_t c = 0; c < part->size; c++) {
            Lanes log_std = clamp(stds[c], MIN_LOG_STD, MAX_LOG_STD), normal = (action[c] - zp[c]) * exp_of(-log_std);
            logprob -= 0.5f * normal * normal + log_std + HALF_LOG_TWO_PI;
            entropy += log_std + 0.5f + HALF_LOG_TWO_PI;
            dp[c] = normal;
            if (!head->is_squashed) continue;
            Lanes slope = log_derivative(action[c]) + head->log_scale[part->log_stds + c];
            logprob -= slope, entropy += slope;
        }
    }
    Lanes log_ratio = logprob - t->logprob, ratio = exp_of(log_ratio), plain = t->advantage * ratio;
    Lanes bounded = t->advantage * clamp(ratio, 1.0f - coefs->clip, 1.0f + coefs->clip);
    Ints is_bound = plain > bounded;                               // NaN is not: it stays NaN
    Lanes scale = choose(is_bound, (Lanes){0}, plain * t->share);  // minus the gradient by the log-probability
    Lanes bonus = coefs->entropy_coef * t->share;
    for (int64_t p = 0; p < head->num_parts; p++) {
        const Part *part = &head->parts[p];
        const Lanes *zp = z + part->logits, *action = t->actions + part->column;
        Lanes *dp = d + part->logits;
        for (int64_t c = 0; c < part->count; c++) {
            Lanes is_chosen = choose(*action == (float)c, all(1.0f), (Lanes){0});
            dp[c] = scale * (dp[c] - is_chosen) + bonus * dp[c] * (zp[c] - tops[p] - log_sums[p] + entropies[p]);
            if (t->allowed) dp[c] *= t->allowed[part->logits + c];
        }
        if (part->count) continue;
        const Lanes *stds = z + head->num_logits + part->log_stds;
        Lanes *d_stds = d + head->num_logits + part->log_stds;
        for (int64_t c = 0; c < part->size; c++) {
            Lanes log_std = clamp(stds[c], MIN_LOG_STD, MAX_LOG_STD), normal = dp[c];
            dp[c] = -scale * normal * exp_of(-log_std);
            d_stds[c] = choose(stds[c] == log_std, -scale * (normal * normal - 1.0f) - bonus, (Lanes){0});
        }
    }
    Lanes error = value - t->target, squared = error * error, slope = error;
    if (coefs->value_clip > 0.0f) {
        Lanes move = value - t->value, step = clamp(move, -coefs->value_clip, coefs->value_clip);
        Lanes near = t->value + step - t->target;
        Ints is_worse = near * near > squared;
        slope = choose(is_worse, choose(move == step, near, (Lanes){0}), slope);
        squared = choose(is_worse, near * near, squared);
    }
    *d_value = coefs->value_coef * t->share * slope;
    Lanes change = ratio - 1.0f;
    Ints is_clipped = (change > coefs->clip) | (change < -coefs->clip);
    sums[POLICY_LOSS] -= (double)sum_of(t->share * choose(is_bound, bounded, plain));
    sums[VALUE_LOSS] += (double)sum_of(t->share * 0.5f * squared);
    sums[ENTROPY] += (double)sum_of(t->share * entropy);
    sums[KL] += (double)sum_of(t->share * (ratio - 1.0f - log_ratio));
    sums[CLIPPED] += (double)sum_of(choose(is_clipped, t->share, (Lanes){0}));
}

// ---- sampling ----

static float log_std_of(float x) { return x < MIN_LOG_STD ? MIN_LOG_STD : x > MAX_LOG_STD ? MAX_LOG_STD : x; }

// Samples one row's action by its noise, as ActionHead.sample does.
static void sample_row(const Head *head, const float *z, const float *noise, void *actions, int64_t row) {
    for (int64_t p = 0; p < head->num_parts; p++) {
        const Part *part = &head->parts[p];
        const float *zp = z + part->logits, *np = noise + part->logits;
        int64_t at = row * head->columns + part->column;
        if (!part->count) {
            const float *stds = z + head->num_logits + part->log_stds;
            float *out = (float *)actions + at;
            for (int64_t c = 0; c < part->size; c++) out[c] = zp[c] + expf(log_std_of(stds[c])) * np[c];
            continue;
        }
        int64_t chosen = 0;
        float most = zp[0] + np[0];
        for (int64_t c = 1; c < part->count; c++) {
            float value = zp[c] + np[c];
            if (value > most) most = value, chosen = c;
        }
        if (head->is_float) {
            ((float *)actions)[at] = (float)chosen;
        } else {
            ((int64_t *)actions)[at] = chosen;
        }
    }
}

#endif
