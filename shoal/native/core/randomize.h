// randomize.h: params that change at the start of each episode: drawn (domain randomization), or given for each env.
// Included by module.c.
//
// Draws come from a stream of their own: the env's stream gives the same numbers whether params are drawn or not.

enum {  // ShoalRule.kind
    SHOAL_FIXED,
    SHOAL_UNIFORM,
    SHOAL_LOGUNIFORM,
    SHOAL_NORMAL,
    SHOAL_CHOICE,
    SHOAL_INTEGERS,
    SHOAL_GIVEN  // not drawn: rule_values has a value for each env, which its next episode takes
};
#define SHOAL_PARAM_STREAM 0xA24BAED4963EE407ULL
#define SHOAL_WRAP_STREAM 0x9FB21C651E98DF25ULL

SHOAL_FN double shoal_draw_number(const ShoalRule *rule, const double *values, Rng *rng) {
    const float a = (float)values[0], b = (float)values[rule->count > 1];
    switch (rule->kind) {
        case SHOAL_UNIFORM:
            return (double)m_clamp(rng_uniform(rng, a, b), a, b);
        case SHOAL_LOGUNIFORM:
            return (double)m_clamp(m_exp(rng_uniform(rng, m_log(a), m_log(b))), a, b);
        case SHOAL_NORMAL:
            return (double)m_clamp(a + b * rng_normal(rng), rule->low, rule->high);
        case SHOAL_INTEGERS:
            return values[0] + (double)rng_int(rng, (int32_t)(values[1] - values[0]) + 1);
        default:
            return values[rng_int(rng, rule->count)];
    }
}

// Draws env i's params of the next episode.
SHOAL_FN void shoal_randomize(ShoalBatch *b, int64_t i) {
    char *params = (char *)(b->params + i * b->params_stride);
    for (int32_t k = 0; k < b->num_rules; k++) {
        const ShoalRule *rule = &b->rules[k];
        if (rule->kind == SHOAL_FIXED) continue;
        const double *values = b->rule_values + rule->first;
        double value = rule->kind == SHOAL_GIVEN ? values[i] : shoal_draw_number(rule, values, &b->param_rng[i]);
        int32_t whole = (int32_t)value;
        float number = (float)value;
        memcpy(params + rule->offset, rule->is_int ? (const void *)&whole : (const void *)&number, 4);
    }
}
