// ppo_loss.h: PPO's loss and its gradients for every action space, and sampling of actions, for ppo.c.
// algos/ppo.py (clipped_loss) and nn/distributions.py are the definition.
#ifndef SHOAL_PPO_LOSS_H
#define SHOAL_PPO_LOSS_H

#include <math.h>
#include <stdint.h>

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

// What the loss compares a row's outputs with.
typedef struct {
    float logprob, value, advantage, target, weight, share;  // share: weight / total of the minibatch
} Target;

enum { POLICY_LOSS, VALUE_LOSS, ENTROPY, KL, CLIPPED, NUM_SUMS };

static int64_t choice_at(const Head *head, const void *actions, int64_t row, int64_t column) {
    int64_t at = row * head->columns + column;
    return head->is_float ? (int64_t)((const float *)actions)[at] : ((const int64_t *)actions)[at];
}

// log(1 + exp(x)) as torch computes it
static float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

static float log_std_of(float x) { return x < MIN_LOG_STD ? MIN_LOG_STD : x > MAX_LOG_STD ? MAX_LOG_STD : x; }

// Writes into d (num_params) the gradient of one row's loss by its logits (masked already), into *d_value that by its
// value, and adds the row's losses to sums.
static void loss_of_row(const Head *head, const Coefs *coefs, const float *z, const int8_t *mask, float value,
                        const void *actions, int64_t action_row, const Target *t, float *d, float *d_value,
                        double *sums) {
    float logprob = 0.0f, entropy = 0.0f, entropies[MAX_PARTS], log_sums[MAX_PARTS];
    for (int64_t p = 0; p < head->num_parts; p++) {
        const Part *part = &head->parts[p];
        const float *zp = z + part->logits;
        float *dp = d + part->logits;
        if (part->count) {
            float top = zp[0], sum = 0.0f, own = 0.0f;
            for (int64_t c = 1; c < part->count; c++) top = zp[c] > top ? zp[c] : top;
            for (int64_t c = 0; c < part->count; c++) sum += dp[c] = expf(zp[c] - top);
            float log_sum = logf(sum) + top;
            for (int64_t c = 0; c < part->count; c++) {
                dp[c] = dp[c] / sum;  // a probability, until it becomes a gradient below
                own -= dp[c] * (zp[c] - log_sum);
            }
            logprob += zp[choice_at(head, actions, action_row, part->column)] - log_sum;
            entropies[p] = own, log_sums[p] = log_sum, entropy += own;
            continue;
        }
        const float *sampled = (const float *)actions + action_row * head->columns + part->column;
        const float *stds = z + head->num_logits + part->log_stds;
        for (int64_t c = 0; c < part->size; c++) {
            float log_std = log_std_of(stds[c]), normal = (sampled[c] - zp[c]) * expf(-log_std);
            logprob -= 0.5f * normal * normal + log_std + HALF_LOG_TWO_PI;
            entropy += log_std + 0.5f + HALF_LOG_TWO_PI;
            dp[c] = normal;
            if (!head->is_squashed) continue;
            float slope = 2.0f * (0.693147181f - sampled[c] - softplus(-2.0f * sampled[c]));
            slope += head->log_scale[part->log_stds + c];
            logprob -= slope, entropy += slope;
        }
    }
    float log_ratio = logprob - t->logprob, ratio = expf(log_ratio);
    float low = 1.0f - coefs->clip, high = 1.0f + coefs->clip;
    float plain = t->advantage * ratio, bounded = t->advantage * (ratio < low ? low : ratio > high ? high : ratio);
    float scale = plain <= bounded ? plain * t->share : 0.0f;  // minus the gradient by the log-probability
    float bonus = coefs->entropy_coef * t->share;
    for (int64_t p = 0; p < head->num_parts; p++) {
        const Part *part = &head->parts[p];
        const float *zp = z + part->logits;
        float *dp = d + part->logits;
        if (part->count) {
            int64_t chosen = choice_at(head, actions, action_row, part->column);
            for (int64_t c = 0; c < part->count; c++) {
                float slope = scale * (dp[c] - (float)(c == chosen));
                slope += bonus * dp[c] * (zp[c] - log_sums[p] + entropies[p]);
                dp[c] = mask && !mask[part->logits + c] ? 0.0f : slope;
            }
            continue;
        }
        const float *stds = z + head->num_logits + part->log_stds;
        float *d_stds = d + head->num_logits + part->log_stds;
        for (int64_t c = 0; c < part->size; c++) {
            float log_std = log_std_of(stds[c]), normal = dp[c];
            dp[c] = -scale * normal * expf(-log_std);
            int is_inside = stds[c] >= MIN_LOG_STD && stds[c] <= MAX_LOG_STD;
            d_stds[c] = is_inside ? -scale * (normal * normal - 1.0f) - bonus : 0.0f;
        }
    }
    float error = value - t->target, squared = error * error, slope = error;
    if (coefs->value_clip > 0.0f) {
        float move = value - t->value, step = move < -coefs->value_clip ? -coefs->value_clip : move;
        step = step > coefs->value_clip ? coefs->value_clip : step;
        float near = t->value + step - t->target;
        if (near * near > squared) squared = near * near, slope = move == step ? near : 0.0f;
    }
    *d_value = coefs->value_coef * t->share * slope;
    sums[POLICY_LOSS] -= (double)(t->share * (plain < bounded ? plain : bounded));
    sums[VALUE_LOSS] += (double)(t->share * 0.5f * squared);
    sums[ENTROPY] += (double)(t->share * entropy);
    sums[KL] += (double)(t->share * (ratio - 1.0f - log_ratio));
    sums[CLIPPED] += (double)(t->share * (float)(fabsf(ratio - 1.0f) > coefs->clip));
}

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
