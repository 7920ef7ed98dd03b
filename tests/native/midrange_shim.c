// midrange_shim.c: the functions of midrange's headers, for tests that put bodies where they want them.
//
// A State, a Params and an Rng are memory of the caller, of the sizes that shim_bytes returns.
#include ENV_HEADER

#define API __attribute__((visibility("default")))

API int64_t shim_bytes(int32_t what) {
    return (int64_t)(what == 0 ? sizeof(State) : what == 1 ? sizeof(Params) : sizeof(Rng));
}

API void shim_defaults(Params *p) {
    p->max_steps = ENV_MAX_STEPS;
#define SET_DEFAULT(type, name, value, help) p->name = value;
    ENV_PARAMS(SET_DEFAULT)
}

// Returns whether there is such a param.
API int32_t shim_set(Params *p, const char *which, double number) {
#define SET_NAMED(type, name, value, help)                                                                             \
    if (strcmp(which, #name) == 0) {                                                                                   \
        p->name = (type)number;                                                                                        \
        return 1;                                                                                                      \
    }
    ENV_PARAMS(SET_NAMED)
    return 0;
}

API void shim_reset(State *s, const Params *p, Rng *rng, uint64_t seed) {
    *rng = rng_seed(seed);
    env_reset(s, p, rng);
}

// rewards of both sides, whether the game ended, statistics of the step.
API void shim_step(State *s, const Params *p, const Action *actions, Rng *rng, float *rewards, int32_t *ended,
                   float *stats) {
    Step out;
    memset(&out, 0, sizeof out);
    env_step(s, p, actions, &out, rng);
    memcpy(rewards, out.rewards, sizeof out.rewards);
    memcpy(stats, &out.stats, sizeof out.stats);
    *ended = out.terminations[0];
}

API void shim_observe(const State *s, const Params *p, int32_t side, float *obs) { env_observe(s, p, side, obs); }

API void shim_put(State *s, int32_t k, float x, float y, float heading, float speed, int32_t flies, float age) {
    s->body[k].x = x;
    s->body[k].y = y;
    s->body[k].dx = m_cos(heading);
    s->body[k].dy = m_sin(heading);
    s->body[k].speed = speed;
    s->body[k].rudder = 0.0f;
    s->flies[k] = flies;
    s->age[k] = age;
}

// x, y, dx, dy, speed, rudder, flies, age.
API void shim_get(const State *s, int32_t k, float *out) {
    memcpy(out, &s->body[k], 6 * sizeof(float));
    out[6] = (float)s->flies[k];
    out[7] = s->age[k];
}

API void shim_set_ammo(State *s, int32_t side, int32_t ammo) { s->ammo[side] = ammo; }
API int32_t shim_ammo(const State *s, int32_t side) { return s->ammo[side]; }
API float shim_track_age(const State *s, int32_t k) { return s->track[k].age; }
API float shim_scale(const State *s, int32_t kind, int32_t k) { return s->scale[kind][k]; }

// The sides change places.
API void shim_swap(const State *s, State *swapped) {
    *swapped = *s;
    for (int32_t k = 0; k < bodies; k++) {
        int32_t from = k < 2 ? 1 - k : 2 + (k - 2 + channels) % (2 * channels);
        swapped->body[k] = s->body[from];
        swapped->flies[k] = s->flies[from];
        swapped->age[k] = s->age[from];
        swapped->sight[k] = s->sight[from];
        swapped->track[k] = s->track[from];
    }
    for (int32_t side = 0; side < 2; side++) {
        swapped->throttle[side] = s->throttle[1 - side];
        swapped->cooldown[side] = s->cooldown[1 - side];
        swapped->ammo[side] = s->ammo[1 - side];
        swapped->mixed[side] = s->mixed[1 - side];
    }
}

API float shim_range(const Params *p, float shooter_speed, float target_speed, float aspect, int32_t escapes) {
    return missile_range(p, shooter_speed, target_speed, aspect, escapes);
}

API float shim_look_up(float shooter_speed, float target_speed, float aspect, int32_t escapes) {
    return escapes ? no_escape_range(shooter_speed, target_speed, aspect)
                   : straight_range(shooter_speed, target_speed, aspect);
}

// Every `stride`-th entry of a table, computed anew; `old` gets the entries that the header has.
API int32_t shim_table(const Params *p, int32_t escapes, int32_t stride, float *now, float *old) {
    int32_t count = 0;
    for (int32_t at = 0; at < range_speeds * range_speeds * range_aspects; at += stride) {
        float shooter = speed_of_row(at / (range_speeds * range_aspects));
        float target = speed_of_row(at / range_aspects % range_speeds);
        now[count] = missile_range(p, shooter, target, aspect_of_column(at % range_aspects), escapes);
        old[count] = (escapes ? no_escape_table : straight_table)[at];
        count++;
    }
    return count;
}
