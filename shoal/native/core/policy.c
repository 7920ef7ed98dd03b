// policy.c: policy.h for the CPU: an export is compared with its policy by the code that the browser runs.
#include "policy.h"

__attribute__((visibility("default"))) void shoal_policy_run(const int32_t *code, int32_t count, float *memory,
                                                             const void *obs, int32_t is_bytes, float *state) {
    policy_run(code, count, memory, obs, is_bytes, state);
}
