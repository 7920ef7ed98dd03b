// returns.c: what a learner sums backwards over time, for algos/ops.py. All arrays are (steps, rows), time first, so
// the inner loop runs over rows and vectorizes; a row's result never depends on its neighbours.
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
            float goes_on = done[k] ? 0.0f : gamma;
            float delta = r[k] + goes_on * next_v[k] - v[k];
            float later = next_a ? lambda * goes_on * next_a[k] : 0.0f;
            a[k] = rho ? rho[t * rows + k] * delta + c[t * rows + k] * later : delta + later;
        }
    }
}

// R_t = r_t + gamma R_{t-1}, begun anew after each done: forwards, as a running normalizer of rewards needs it.
// carry (rows) is R of the step before and becomes R of the last one.
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
