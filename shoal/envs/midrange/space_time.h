// space_time.h: the space-time graph of one side: where the enemy's missiles can be, and where it can be itself.

// ---- space-time graph ----

// The 10 features of the space-time graph that a side observes.
ENV_FN void stg_features(const State *s, const Params *p, int side, float *out10) {
    (void)s, (void)p, (void)side;
    for (int32_t k = 0; k < 10; k++) out10[k] = 0.0f;
}
