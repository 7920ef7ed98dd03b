// learn.c: loops of the learners on a CPU (algos/ops.py, algos/fast/choice_loss.py): advantages, running returns, and
// the gradient of PPO's loss. Arrays are (steps, rows), time first, so that the inner loop over rows vectorizes. No
// row's result depends on another row.
#include <math.h>
#include <stdint.h>

#define SHOAL_API __attribute__((visibility("default")))

// A_t = rho_t (r_t + gamma n_t v_{t+1} - v_t) + gamma lambda c_t n_t A_{t+1}, with n_t = 0 where step t ended an
// episode. values is (steps + 1, rows). rho and c may be null, which means 1: generalized advantage estimation.
SHOAL_API void shoal_advantages(const float *rewards, const float *values, const uint8_t *dones, const float *rho,
                                const float *c, float gamma, float lambda, int64_t steps, int64_t rows,
                                float *advantages) {
    for (int64_t t = steps - 1; t >= 0; t--) {
        const float *r = rewards + t * rows, *v = values + t * rows, *next_v = v + rows;
        const uint8_t *done = dones + t * rows;
        float *a = advantages + t * rows;
        const float *next_a = t + 1 < steps ? a + rows : 0;
        for (int64_t k = 0; k < rows; k++) {
            float discount = done[k] ? 0.0f : gamma;
            float delta = r[k] + discount * next_v[k] - v[k];
            float later = next_a ? lambda * discount * next_a[k] : 0.0f;
            a[k] = rho ? rho[t * rows + k] * delta + c[t * rows + k] * later : delta + later;
        }
    }
}

// R_t = r_t + gamma R_{t-1}, from 0 after each done: the running return by which rewards are normalized. carry (rows)
// holds R of the step before the first one, and afterwards R of the last one.
SHOAL_API void shoal_running_returns(const float *rewards, const uint8_t *dones, float gamma, int64_t steps,
                                     int64_t rows, float *carry, float *returns) {
    for (int64_t t = 0; t < steps; t++) {
        for (int64_t k = 0; k < rows; k++) {
            float sum = rewards[t * rows + k] + gamma * carry[k];
            returns[t * rows + k] = sum;
            carry[k] = dones[t * rows + k] ? 0.0f : sum;
        }
    }
}

// PPO's loss for one discrete action of `choices` per row (defined in algos/ppo.py): writes its gradients by logits
// (rows, choices) and values (rows), and into sums[5] the sums over rows of policy loss, value loss, entropy, KL and
// clipped ratios. weights (rows) weight the rows; null: 1. Everything is divided by `total`.
SHOAL_API void shoal_choice_loss(const float *logits, const float *values, const int64_t *actions,
                                 const float *old_logprobs, const float *old_values, const float *advantages,
                                 const float *returns, const float *weights, int64_t rows, int64_t choices, float total,
                                 float clip, float value_clip, float value_coef, float entropy_coef, float *d_logits,
                                 float *d_values, float *sums) {
    double policy = 0.0, value = 0.0, entropies = 0.0, kl = 0.0, clipped = 0.0;
    for (int64_t i = 0; i < rows; i++) {
        const float *z = logits + i * choices;
        float *d = d_logits + i * choices;
        float share = (weights ? weights[i] : 1.0f) / total;
        float top = z[0], sum = 0.0f, entropy = 0.0f;
        for (int64_t c = 1; c < choices; c++) top = z[c] > top ? z[c] : top;
        for (int64_t c = 0; c < choices; c++) sum += d[c] = expf(z[c] - top);
        float log_sum = logf(sum);  // top is not added: next to a forbidden logit (-1e9) the sum would be lost
        for (int64_t c = 0; c < choices; c++) {
            d[c] /= sum;  // a probability, until it becomes a gradient below
            entropy -= d[c] * (z[c] - top - log_sum);
        }
        float log_ratio = z[actions[i]] - top - log_sum - old_logprobs[i], ratio = expf(log_ratio);
        float plain = advantages[i] * ratio;
        float bounded = advantages[i] * fminf(fmaxf(ratio, 1.0f - clip), 1.0f + clip);
        float scale = plain > bounded ? 0.0f : plain * share;  // NaN stays NaN
        for (int64_t c = 0; c < choices; c++) {
            float probability = d[c];
            d[c] = scale * (probability - (float)(c == actions[i])) +
                   entropy_coef * share * probability * (z[c] - top - log_sum + entropy);
        }
        float error = values[i] - returns[i], squared = error * error, slope = error;
        if (value_clip > 0.0f) {
            float move = values[i] - old_values[i], step = fminf(fmaxf(move, -value_clip), value_clip);
            float near = old_values[i] + step - returns[i];
            if (near * near > squared) squared = near * near, slope = move == step ? near : 0.0f;
        }
        d_values[i] = value_coef * share * slope;
        policy -= (double)(share * (plain > bounded ? bounded : plain));
        value += (double)(share * 0.5f * squared);
        entropies += (double)(share * entropy);
        kl += (double)(share * (ratio - 1.0f - log_ratio));
        clipped += (double)(share * (float)(fabsf(ratio - 1.0f) > clip));
    }
    sums[0] = (float)policy, sums[1] = (float)value, sums[2] = (float)entropies, sums[3] = (float)kl;
    sums[4] = (float)clipped;
}
