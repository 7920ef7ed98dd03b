// wrap.h: wrappers around an env: sticky actions, frame skip, reward scale and clip, observation noise, frame stack.
// Included by module.c. The time limit is in shoal_limit.
//
//   action -> sticky -> env steps (skip) -> sum of rewards -> scale -> clip
//                                        -> last frame -> noise -> stack
//
// The env's own step is not changed: it writes plain frames, and they become observations here. Returns and stats of
// episodes are those of the env, without scale and clip. A row of stacked frames is (OBS_SIZE / chunk, stack, chunk),
// oldest frame first: with chunk = OBS_SIZE whole frames follow each other, with chunk = channels those of a pixel do.

#if SHOAL_EXTRAS

enum { SHOAL_WRAP_ENVS = NUM_AGENTS == 1 ? 64 : 1, SHOAL_WRAP_ROWS = SHOAL_WRAP_ENVS * NUM_AGENTS };

#ifdef __CUDACC__
static __device__ int64_t shoal_step_frame(ShoalBatch *b, int64_t lo, int64_t hi);
#define SHOAL_WRAP_FN static __device__
#else
static int64_t shoal_step_frame(ShoalBatch *b, int64_t lo, int64_t hi);
#define SHOAL_WRAP_FN static
#endif

// The batch as the env sees it: its frames in place of observations, and the actions that were applied.
SHOAL_FN ShoalBatch shoal_frames_of(const ShoalBatch *b) {
    ShoalBatch frames = *b;
    if (b->frames) frames.obs = b->frames, frames.final_obs = b->final_frames;
    if (b->applied) frames.actions = b->applied;
    return frames;
}

// Machado et al. 2018: with probability `sticky` an agent's last action is repeated. The first of an episode never is.
SHOAL_FN void shoal_stick(const ShoalBatch *b, int64_t i) {
    for (int32_t a = 0; a < NUM_AGENTS; a++) {
        int64_t at = (i * NUM_AGENTS + a) * ACTION_SIZE;
        int32_t repeats = rng_uniform(&b->wrap_rng[i], 0.0f, 1.0f) < b->sticky;
        if (!repeats || b->tick[i] == 0) memcpy(b->applied + at, b->actions + at, ACTION_SIZE * sizeof(Action));
    }
}

// Adds Gaussian noise to a frame. The result stays within the bounds of the observation space.
SHOAL_FN void shoal_add_noise(const ShoalBatch *b, int64_t i, Obs *frame) {
    const float low[] = {ENV_OBS_LOW}, high[] = {ENV_OBS_HIGH};
    if (!(b->obs_noise > 0.0f)) return;
    for (int32_t k = 0; k < OBS_SIZE; k++) {
        float noisy = (float)frame[k] + b->obs_noise * rng_normal(&b->wrap_rng[i]);
        noisy = m_clamp(noisy, low[sizeof low == sizeof(float) ? 0 : k], high[sizeof high == sizeof(float) ? 0 : k]);
        frame[k] = (Obs)(sizeof(Obs) == 1 ? m_floor(noisy + 0.5f) : noisy);
    }
}

// Moves `count` elements to the front by `by` elements.
SHOAL_FN void shoal_move(Obs *row, int64_t by, int64_t count) {
#ifdef __CUDACC__
    for (int64_t k = 0; k < count; k++) row[k] = row[k + by];
#else
    memmove(row, row + by, (size_t)count * sizeof(Obs));
#endif
}

// Moves a frame into a row of stacked frames. The first frame of an episode fills all places.
SHOAL_FN void shoal_push(const ShoalBatch *b, Obs *row, const Obs *frame, int32_t fills) {
    const int64_t stack = b->stack, chunk = b->chunk, kept = stack * OBS_SIZE - chunk;
    if (!fills) shoal_move(row, chunk, kept);
    for (int64_t at = 0; at < OBS_SIZE; at += chunk) {
        for (int64_t place = fills ? 0 : stack - 1; place < stack; place++) {
            memcpy(row + at * stack + place * chunk, frame + at, (size_t)chunk * sizeof(Obs));
        }
    }
}

// Turns env i's frames into observations, after a step or a reset.
SHOAL_FN void shoal_show(const ShoalBatch *b, int64_t i) {
    const int64_t width = (int64_t)b->stack * OBS_SIZE;
    const int32_t begins = b->tick[i] == 0;
    for (int32_t a = 0; a < NUM_AGENTS; a++) {
        int64_t row = i * NUM_AGENTS + a;
        Obs *seen = b->history + row * width, *obs = b->obs + row * width, *last = b->final_obs + row * width;
        Obs *frame = b->frames + row * OBS_SIZE, *last_frame = b->final_frames + row * OBS_SIZE;
        int32_t is_last = b->done[row] && !(b->final_cut && b->terminated[row]), stays = b->alive[row] && !begins;
        if (is_last && !stays) {  // the row holds another observation than the last one: a new episode, or zeros
            shoal_add_noise(b, i, last_frame);
            memcpy(last, seen, (size_t)width * sizeof(Obs));
            shoal_push(b, last, last_frame, 0);
        }
        if (b->alive[row]) {
            shoal_add_noise(b, i, frame);
            shoal_push(b, seen, frame, begins);
        } else {
            memset(seen, 0, (size_t)width * sizeof(Obs));
        }
        if (is_last && stays) memcpy(last, seen, (size_t)width * sizeof(Obs));
        if (obs != seen) memcpy(obs, seen, (size_t)width * sizeof(Obs));
    }
}

#if defined(ENV_STATE) || defined(__CUDACC__)
SHOAL_FN int32_t shoal_writes_in_place(const ShoalBatch *b) {
    (void)b;
    return 0;
}
#else
// Whether frames can be written to their place in the stack at once, which saves a copy of each.
SHOAL_FN int32_t shoal_writes_in_place(const ShoalBatch *b) {
    return NUM_AGENTS == 1 && b->frames && b->history == b->obs && b->chunk == OBS_SIZE && !(b->obs_noise > 0.0f);
}
#endif

// Fetches the memory of a frame that will be written soon: with a stack, the frames of a step are far apart.
SHOAL_FN void shoal_prefetch(const Obs *frame) {
#if defined(__GNUC__) && !defined(__CUDACC__)
    for (int64_t at = 0; at < (int64_t)(OBS_SIZE * sizeof(Obs)) && at < 1024; at += 64) {
        __builtin_prefetch((const char *)frame + at, 1);
    }
#else
    (void)frame;
#endif
}

// shoal_show for an env whose frame is in its place, and whose older frames have moved already.
SHOAL_FN void shoal_show_in_place(const ShoalBatch *b, int64_t i) {
    const int64_t stack = b->stack, kept = (stack - 1) * OBS_SIZE;
    const int32_t begins = b->tick[i] == 0;
    Obs *obs = b->obs + i * stack * OBS_SIZE, *last = b->final_obs + i * stack * OBS_SIZE;
    if (b->done[i] && !(b->final_cut && b->terminated[i])) {
        memcpy(last, obs, (size_t)kept * sizeof(Obs));
        memcpy(last + kept, begins ? b->final_frames + i * OBS_SIZE : obs + kept, OBS_SIZE * sizeof(Obs));
    }
    for (int64_t place = 0; begins && place < stack - 1; place++) {
        memcpy(obs + place * OBS_SIZE, obs + kept, OBS_SIZE * sizeof(Obs));
    }
}

// One env step of envs [lo, hi). From the second one of a step on, rewards are added and flags kept.
SHOAL_WRAP_FN int64_t shoal_step_again(ShoalBatch *b, ShoalBatch *frames, int64_t lo, int64_t hi, int32_t is_first) {
    float rewards[SHOAL_WRAP_ROWS];
    uint8_t terminated[SHOAL_WRAP_ROWS], truncated[SHOAL_WRAP_ROWS];
    const int64_t first = lo * NUM_AGENTS, rows = (hi - lo) * NUM_AGENTS;
    for (int64_t i = lo; b->applied && i < hi; i++) shoal_stick(b, i);
    for (int64_t k = 0; !is_first && k < rows; k++) {
        rewards[k] = b->rewards[first + k];
        terminated[k] = b->terminated[first + k];
        truncated[k] = b->truncated[first + k];
    }
    int64_t finished = 0;
    if (shoal_writes_in_place(b)) {
        const int64_t kept = (int64_t)(b->stack - 1) * OBS_SIZE;
        for (int64_t i = lo; i < hi; i++) {
            Obs *obs = b->obs + i * b->stack * OBS_SIZE;
            if (is_first && !b->slides) shoal_move(obs, OBS_SIZE, kept);
            if (b->slides && i + 4 < hi) shoal_prefetch(obs + 4 * b->stack * OBS_SIZE + kept);
            finished += shoal_step_env(frames, i, obs + kept);
        }
    } else {
        finished = shoal_step_frame(frames, lo, hi);
    }
    for (int64_t k = 0; !is_first && k < rows; k++) {
        b->rewards[first + k] = rewards[k] + b->rewards[first + k];
        b->terminated[first + k] |= terminated[k];
        b->truncated[first + k] |= truncated[k];
        b->done[first + k] |= (uint8_t)(terminated[k] | truncated[k]);
    }
    return finished;
}

// Whether the last env step ended env i's episode, or was its reset.
SHOAL_FN int32_t shoal_is_over(const ShoalBatch *b, int64_t i) { return b->tick[i] == 0 || b->ended[i]; }

SHOAL_FN void shoal_shape_rewards(const ShoalBatch *b, int64_t first, int64_t rows) {
    for (int64_t row = first; row < first + rows; row++) {
        float reward = b->rewards[row] * b->reward_scale;
        b->rewards[row] = b->reward_clip > 0.0f ? m_clamp(reward, -b->reward_clip, b->reward_clip) : reward;
    }
}

// One step of envs [lo, hi) with wrappers. Returns the number of rows that are done.
SHOAL_WRAP_FN int64_t shoal_step_wrapped(ShoalBatch *b, int64_t lo, int64_t hi) {
    ShoalBatch frames = shoal_frames_of(b);
    int64_t finished = 0;
    for (int64_t at = lo; at < hi; at += SHOAL_WRAP_ENVS) {
        const int64_t end = at + SHOAL_WRAP_ENVS < hi ? at + SHOAL_WRAP_ENVS : hi;
        finished += shoal_step_again(b, &frames, at, end, 1);
        for (int32_t frame = 1; frame < b->skip; frame++) {
            for (int64_t i = at; i < end; i++) {  // a run of neighbours whose episodes continue is stepped at once
                int64_t first = i;
                while (i < end && !shoal_is_over(b, i)) i++;
                if (i > first) finished += shoal_step_again(b, &frames, first, i, 0);
            }
        }
        if (b->reward_scale != 1.0f || b->reward_clip > 0.0f) {
            shoal_shape_rewards(b, at * NUM_AGENTS, (end - at) * NUM_AGENTS);
        }
        for (int64_t i = at; b->frames && i < end; i++) {
            if (shoal_writes_in_place(b)) {
                shoal_show_in_place(b, i);
            } else {
                shoal_show(b, i);
            }
        }
    }
    return finished;
}

// Loads a record. The caller has put the last observations into `history` and `obs`: no record holds them.
SHOAL_FN void shoal_load_wrapped(ShoalBatch *b, int64_t i, const ShoalRecord *record) {
    ShoalBatch frames = shoal_frames_of(b);
    shoal_load_env(&frames, i, record);
    if (b->frames && record->ended && b->autoreset == SHOAL_SAME_STEP) shoal_show(b, i);  // it has begun an episode
}

#else
SHOAL_FN ShoalBatch shoal_frames_of(const ShoalBatch *b) { return *b; }
SHOAL_FN void shoal_show(const ShoalBatch *b, int64_t i) { (void)b, (void)i; }
SHOAL_FN void shoal_load_wrapped(ShoalBatch *b, int64_t i, const ShoalRecord *record) { shoal_load_env(b, i, record); }
#endif
