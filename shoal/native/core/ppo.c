// ppo.c: PPO for a small network on a CPU, called by algos/fast/ppo_native.py: acting, and whole epochs of gradient
// steps. algos/ppo.py is the definition; tests compare.
//
//   for each minibatch:
//       learn      gather -> policy -> loss -> gradients: groups of rows, each with sums of its own     in parallel
//       reduce     adds up the sums of the groups, in their order                                       in parallel
//       optimize   clips the gradient; Adam, AdamW or Muon (ppo_optim.h)                                in parallel
//       pack       the new weights, for the next products                                               in parallel
//
// Which rows form a group depends on the minibatch alone. So the results are the same bits for any number of threads.
#include "ppo_act.h"
#include "ppo_collect.h"
#include "ppo_model.h"

// pow has a newer version since glibc 2.29, with the same results. The first version exists everywhere: with it a wheel
// runs on older systems (native/glibc.py).
#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver pow, pow@GLIBC_2.2.5");
#elif defined(__GLIBC__) && defined(__aarch64__)
__asm__(".symver pow, pow@GLIBC_2.17");
#endif

typedef struct {
    Inputs inputs;
    const void *actions;
    const float *logprobs, *values, *advantages, *returns;
    const float *counts;                      // 0.0 where a transition does not count; null: all count
    const int8_t *masks;                      // null: none
    const uint8_t *resets;                    // with a core
    const float *start[MAX_TOWERS * STATES];  // (segments, size): the core's states before each segment
    const int64_t *segments;                  // of all minibatches, one after the other
    const float *weights;                     // of the segments' advantages; null: 1
    const int64_t *edges;                     // (minibatches + 1) in `segments`
    int64_t rows, minibatches, standardizes;  // rows of the rollout
    double limit, rate;                       // of the gradient's norm, 0: none; the learning rate
    Coefs coefs;
    double *metrics;  // (NUM_SUMS + 1): adds up over minibatches; the last is the gradient's norm
    // null: a gradient step. Otherwise only the gradient of one minibatch, which is a part of a larger one: the count,
    // mean and variance of the advantages of all of it
    const double *whole;
} Epoch;

// A minibatch, as one thread sees it.
typedef struct {
    Model *m;
    const Epoch *epoch;
    const int64_t *segments;
    const float *weights;
    int64_t thread, count;  // segments
    Division division;
    float mean, factor, total, clip;
    double step;  // of the optimizer
} Minibatch;

INLINE int64_t transition(const Minibatch *b, int64_t segment, int64_t step) {
    int64_t rows = b->epoch->rows, number = b->segments[segment];
    return number / rows * (b->m->setup.steps * rows) + number % rows + step * rows;
}

// A thread's share of `count` tasks.
static int64_t share_of(const Minibatch *b, int64_t count, int64_t after) {
    return count * (b->thread + after) / b->m->team.threads;
}

// Sums over the advantages of a group: of the weights, the advantages and their squares.
static void sum_advantages(Minibatch *b, int64_t group) {
    const Epoch *e = b->epoch;
    double *sums = b->m->advantages + 3 * group;
    int64_t segments = b->division.group_units * b->division.unit_segments;
    sums[0] = sums[1] = sums[2] = 0.0;
    for (int64_t s = group * segments; s < least((group + 1) * segments, b->count); s++) {
        for (int64_t t = 0; t < b->m->setup.steps; t++) {
            int64_t i = transition(b, s, t);
            double weight = e->counts ? (double)e->counts[i] : 1.0, advantage = (double)e->advantages[i];
            sums[0] += weight, sums[1] += weight * advantage, sums[2] += weight * advantage * advantage;
        }
    }
}

// Whether `standardize` needs the sums of `sum_advantages`.
static int needs_sums(const Epoch *e) { return e->counts || e->standardizes; }

// This thread's groups of `sum_advantages`.
static void sum_own_advantages(Minibatch *b) {
    if (!b->count || !needs_sums(b->epoch)) return;
    int64_t groups = b->division.groups;
    for (int64_t g = share_of(b, groups, 0); g < share_of(b, groups, 1); g++) sum_advantages(b, g);
}

// Mean and standard deviation of the advantages, and the number of transitions that count.
static void standardize(Minibatch *b) {
    const double *whole = b->epoch->whole;
    b->total = (float)(b->count * b->m->setup.steps), b->mean = 0.0f, b->factor = 1.0f;
    if (whole) {
        b->total = (float)whole[0];
        if (b->epoch->standardizes) b->mean = (float)whole[1], b->factor = (float)(1.0 / (sqrt(whole[2]) + 1e-8));
        return;
    }
    if (!needs_sums(b->epoch)) return;
    double sums[3] = {0.0, 0.0, 0.0};
    for (int64_t g = 0; g < 3 * b->division.groups; g++) sums[g % 3] += b->m->advantages[g];
    double count = sums[0] < 1.0 ? 1.0 : sums[0], mean = sums[1] / count, variance = sums[2] / count - mean * mean;
    b->total = (float)count;
    if (!b->epoch->standardizes) return;
    b->mean = (float)mean, b->factor = (float)(1.0 / (sqrt(variance < 0.0 ? 0.0 : variance) + 1e-8));
}

// Writes the gradients by the heads' outputs of a unit, and adds those of free log standard deviations. LANES rows at a
// time; where fewer are left, the last one is repeated with a weight of 0.
static void add_loss(Minibatch *b, Room *room, const Unit *unit, double *sums, float *std_sums) {
    const Model *m = b->m;
    const Epoch *e = b->epoch;
    const Head *head = &m->head;
    Work *work = &room->work;
    int64_t row = stride_of(m->net.tower[0].dense[m->net.tower[0].first_head].outputs);
    int64_t value_row = m->net.towers > 1 ? stride_of(1) : row;
    float *d_values = m->net.towers > 1 ? work->head_slopes[1] : work->head_slopes[0] + head->num_outputs;
    // one number of each row at a time is written to these as floats, and then they are read as vectors
    Lanes z[head->num_params], d[head->num_params], actions[head->columns], allowed[head->num_logits], parts[6];
    float *each_z = (float *)z, *each_action = (float *)actions, *each_allowed = (float *)allowed;
    float *value = (float *)parts, *logprob = value + LANES, *old_value = value + 2 * LANES;
    float *advantage = value + 3 * LANES, *target = value + 4 * LANES, *share = value + 5 * LANES;
    for (int64_t first = unit->first; first < unit->first + unit->rows; first += LANES) {
        int64_t left = least(LANES, unit->first + unit->rows - first);
        for (int64_t k = 0; k < LANES; k++) {
            int64_t i = first + least(k, left - 1), at = room->index[i];
            const int8_t *mask = e->masks ? e->masks + at * head->num_logits : 0;
            value[k] = read_heads(m, work, i, mask, each_z + k, LANES);
            for (int64_t c = 0; mask && c < head->num_logits; c++) each_allowed[c * LANES + k] = mask[c] ? 1.0f : 0.0f;
            for (int64_t c = 0; c < head->columns; c++) {
                int64_t entry = at * head->columns + c;
                each_action[c * LANES + k] =
                    head->is_float ? ((const float *)e->actions)[entry] : (float)((const int64_t *)e->actions)[entry];
            }
            logprob[k] = e->logprobs[at], old_value[k] = e->values[at], target[k] = e->returns[at];
            advantage[k] = (e->advantages[at] - b->mean) * b->factor;
            if (b->weights) advantage[k] *= b->weights[room->position[i]];
            share[k] = k < left ? (e->counts ? e->counts[at] : 1.0f) / b->total : 0.0f;
        }
        Target t = {.logprob = parts[1], .value = parts[2], .advantage = parts[3], .target = parts[4]};
        t.share = parts[5], t.actions = actions, t.allowed = e->masks ? allowed : 0;
        Lanes d_value;
        loss_of_rows(head, &e->coefs, z, parts[0], &t, d, &d_value, sums);
        for (int64_t k = 0; k < left; k++) {
            float *slopes = work->head_slopes[0] + (first + k) * row;
            for (int64_t c = 0; c < head->num_outputs; c++) slopes[c] = d[c][k];
            d_values[(first + k) * value_row] = d_value[k];
        }
        for (int64_t c = head->num_outputs; c < head->num_params; c++) std_sums[c - head->num_outputs] += sum_of(d[c]);
    }
}

// Fills a block with the units [unit, unit + units) of a minibatch: its rows, their order, and the core's states.
static Block fill_block(Minibatch *b, Room *room, int64_t unit, int64_t units, Unit *out) {
    const Model *m = b->m;
    const Epoch *e = b->epoch;
    int64_t steps = m->setup.steps, size = m->net.core_size, per_tower = states_of(&m->net);
    int64_t first = unit * b->division.unit_segments;
    Block block = {.steps = steps, .index = room->index, .order = room->order, .resets = room->resets};
    block.segments = least((unit + units) * b->division.unit_segments, b->count) - first;
    int64_t row = 0;
    for (int64_t u = 0; u < units; u++) {
        int64_t lo = u * b->division.unit_segments, hi = least(lo + b->division.unit_segments, block.segments);
        int64_t group = (unit + u) / b->division.group_units;
        out[u] = (Unit){row, (hi - lo) * steps, m->sums + group * m->net.gradients,
                        (unit + u) % b->division.group_units == 0};
        for (int64_t t = 0; t < steps; t++) {
            for (int64_t s = lo; s < hi; s++, row++) {
                int64_t at = transition(b, first + s, t);
                room->index[row] = at;
                room->position[row] = (int32_t)(first + s);
                room->order[t * block.segments + s] = (int32_t)row;
                room->resets[row] = m->net.core ? e->resets[at] : 0;
                const float *later[] = {e->logprobs, e->values, e->advantages, e->returns};  // read by the loss
                for (int p = 0; p < 4; p++) __builtin_prefetch(later[p] + at);
            }
        }
    }
    block.rows = row;
    for (int64_t p = 0; p < per_tower * m->net.towers; p++) {
        int64_t slot = p / per_tower * STATES + p % per_tower;
        for (int64_t s = 0; s < block.segments; s++) {
            memcpy(room->start[slot] + s * size, e->start[p] + b->segments[first + s] * size, 4 * (size_t)size);
        }
        block.start[slot] = room->start[slot];
    }
    return block;
}

// Adds up the gradients of groups lo .. hi.
static void learn_groups(Minibatch *b, int64_t lo, int64_t hi) {
    Model *m = b->m;
    Room *room = &m->rooms[b->thread];
    int64_t unit_rows = b->division.unit_segments * m->setup.steps;
    int64_t at_once = m->net.core ? most(1, least(CORE_BLOCK / unit_rows, MAX_UNITS)) : 1;
    int64_t end = least(hi * b->division.group_units, b->division.units);
    Unit units[MAX_UNITS];
    for (int64_t unit = lo * b->division.group_units; unit < end; unit += at_once) {
        int64_t count = least(at_once, end - unit);
        Block block = fill_block(b, room, unit, count, units);
        gather_inputs(&m->net, &b->epoch->inputs, &block, room->work.tower[0].inputs);
        forward(&room->work, &block);
        for (int64_t u = 0; u < count; u++) {
            double *sums = m->losses + (unit + u) / b->division.group_units * NUM_SUMS;
            float *std_sums = units[u].gradient + m->net.gradients - rounded(m->net.num_stds);
            if (units[u].is_first) {
                memset(sums, 0, 8 * NUM_SUMS);
                memset(std_sums, 0, 4 * (size_t)rounded(m->net.num_stds));
            }
            add_loss(b, room, &units[u], sums, std_sums);
        }
        backward(&room->work, &block, units, count);
    }
}

// Adds up the groups' gradients of some rows of a layer, of its bias, or of the free log standard deviations. Returns
// the sum of their squares.
static double reduce_rows(Model *m, int64_t groups, const Task *task) {
    const Dense *d = task->number < 0 ? 0 : dense_of(m, task->number);
    float *gradient = m->optimizer.gradient, row[MAX_WIDTH];
    double squares = 0.0;
    for (int64_t i = task->lo; i < task->hi; i++) {  // -1 is the bias
        if (d && i < 0 && d->bias[0] < 0) continue;
        int64_t width = !d ? m->net.num_stds : i < 0 ? d->outputs : d->inputs;
        int64_t at = !d ? m->net.gradients - rounded(m->net.num_stds)
                        : d->gradient + (i < 0 ? d->outputs : i) * stride_of(d->inputs);
        Lanes own = {0};
        for (int64_t c = 0; c < rounded(width); c += LANES) {
            Lanes sum = load(m->sums + at + c);
            for (int64_t g = 1; g < groups; g++) sum += load(m->sums + g * m->net.gradients + at + c);
            store(row + c, sum);
            own += sum * sum;
        }
        squares += (double)sum_of(own);
        if (!d) {
            memcpy(gradient + m->net.log_std, row, 4 * (size_t)width);
        } else if (i >= 0) {
            int64_t output = i, part = part_of(d, &output);
            memcpy(gradient + d->weight[part] + output * d->inputs, row, 4 * (size_t)width);
        } else {
            memcpy(gradient + d->bias[0], row, 4 * (size_t)d->part_outputs[0]);
            if (d->parts > 1) memcpy(gradient + d->bias[1], row + d->part_outputs[0], 4 * (size_t)d->part_outputs[1]);
        }
    }
    return squares;
}

// Muon's update of one matrix by a team of threads, which meet after every part.
static void muon_of_matrix(Minibatch *b, int64_t number, int64_t thread) {
    Optimizer *o = &b->m->optimizer;
    Matrix *x = &o->matrices[number];
    Team *team = &b->m->matrix_teams[number];
    int64_t height = height_of(x), width = width_of(x);
    int64_t parts = ceil_div(height, MUON_PART), first = parts * thread / team->threads;
    int64_t last = parts * (thread + 1) / team->threads;
    int64_t lo = first * MUON_PART, hi = least(last * MUON_PART, height);                       // this thread's rows
    int64_t vectors = rounded(width) / LANES, left = vectors * thread / team->threads * LANES;  // and its columns
    int64_t right = vectors * (thread + 1) / team->threads * LANES, end = least(right, width);
    for (int64_t k = first; k < last; k++) {  // summed by parts: the result does not depend on the team
        x->squares[k] = muon_begin(o, x, b->clip, k * MUON_PART, least((k + 1) * MUON_PART, height));
    }
    meet(team);
    double squares = 0.0;
    for (int64_t k = 0; k < parts; k++) squares += x->squares[k];
    muon_scale(x, sqrt(squares), lo, hi);
    meet(team);
    for (int64_t step = 0; step < o->newton_steps; step++) {
        muon_square(x, lo, hi);
        meet(team);
        muon_step(x, o->newton + 3 * step, left, right);
        if (step + 1 == o->newton_steps) break;
        pack_columns(x, 0, height, left, end);
        meet(team);
    }
    muon_apply(o, x, left, end);
}

// Muon's update of all matrices: several at a time, each by one thread or, if there are more threads, by a team.
static void muon(Minibatch *b) {
    Team *team = &b->m->team;
    int64_t matrices = b->m->optimizer.num_matrices, members = least(team->threads / matrices, MUON_TEAM);
    if (members > 1) {
        int64_t number = b->thread / members;
        if (number < matrices) muon_of_matrix(b, number, b->thread % members);
    } else {
        for (int64_t k; (k = atomic_fetch_add(&team->next, 1)) < matrices;) muon_of_matrix(b, k, 0);
    }
}

// One gradient step. Before it, all threads have met after `sum_own_advantages`; it does that for the next minibatch.
static void learn_minibatch(Minibatch *b, Minibatch *next) {
    Model *m = b->m;
    Team *team = &m->team;
    standardize(b);
    if (m->net.core) {  // several groups at once: products over more segments are faster
        learn_groups(b, share_of(b, b->division.groups, 0), share_of(b, b->division.groups, 1));
    } else {
        for (int64_t g; (g = atomic_fetch_add(&team->next, 1)) < b->division.groups;) learn_groups(b, g, g + 1);
    }
    meet(team);
    for (int64_t k = share_of(b, m->reduce.count, 0); k < share_of(b, m->reduce.count, 1); k++) {
        m->squares[k] = reduce_rows(m, b->division.groups, &m->reduce.at[k]);
    }
    meet(team);
    double squares = 0.0;
    for (int64_t k = 0; k < m->reduce.count; k++) squares += m->squares[k];
    double norm = sqrt(squares), clip = b->epoch->limit > 0.0 ? b->epoch->limit / (norm + 1e-6) : 1.0;
    b->clip = clip > 1.0 ? 1.0f : (float)clip;
    if (b->thread == 0) {
        for (int64_t k = 0; k < b->division.groups * NUM_SUMS; k++) b->epoch->metrics[k % NUM_SUMS] += m->losses[k];
        b->epoch->metrics[NUM_SUMS] += norm;
    }
    if (b->epoch->whole) return;  // the caller adds the other parts, and then steps
    if (m->optimizer.num_matrices) muon(b);
    for (int64_t k = share_of(b, m->spans.count, 0); k < share_of(b, m->spans.count, 1); k++) {
        adam(&m->optimizer, b->step, b->clip, m->spans.at[k].lo, m->spans.at[k].hi);
    }
    meet(team);
    pack_panels(m, (int32_t)share_of(b, m->panels.count, 0), (int32_t)share_of(b, m->panels.count, 1));
    sum_own_advantages(next);
    meet(team);
}

// A thread's view of the first minibatch from k on that has segments, after which k is set to the one behind it. One
// without segments: there is no further one.
static Minibatch next_minibatch(Model *m, const Epoch *e, int64_t thread, int64_t *k) {
    Minibatch b = {.m = m, .epoch = e, .thread = thread};
    for (; *k < e->minibatches && !b.count; ++*k) {
        b.count = e->edges[*k + 1] - e->edges[*k];
        b.segments = e->segments + e->edges[*k];
        b.weights = e->weights ? e->weights + e->edges[*k] : 0;
    }
    if (b.count) b.division = divide(m, b.count);
    return b;
}

typedef struct {
    Model *m;
    const Epoch *epoch;
    double step;
} LearnJob;

static int64_t learn_in_thread(void *job, int32_t thread, int32_t end) {
    const LearnJob *j = (const LearnJob *)job;
    const Epoch *e = j->epoch;
    double step = j->step;
    int64_t k = 0;
    Minibatch b = next_minibatch(j->m, e, thread, &k);
    sum_own_advantages(&b);
    meet(&j->m->team);
    while (b.count) {
        Minibatch next = next_minibatch(j->m, e, thread, &k);
        b.step = ++step;
        learn_minibatch(&b, &next);
        b = next;
    }
    if (thread == 0 && !e->whole) *j->m->optimizer.step = (float)step;
    return end - thread - 1;  // 0: every thread runs one call
}

// One pass over a rollout: a gradient step for each minibatch. With `whole`, only the gradient of one minibatch.
SHOAL_API void shoal_ppo_learn(Model *m, const Epoch *e) {
    m->optimizer.rate = e->rate;
    LearnJob job = {m, e, (double)*m->optimizer.step};
    int64_t threads = least(m->threads, m->setup.pool ? m->setup.pool_threads(m->setup.pool) : 1);
    begin_team(&m->team, threads);
    for (int64_t k = 0; k < m->optimizer.num_matrices; k++) {
        begin_team(&m->matrix_teams[k], most(1, least(threads / m->optimizer.num_matrices, MUON_TEAM)));
    }
    if (m->team.threads > 1) {
        m->setup.run(m->setup.pool, learn_in_thread, &job, 0, (int32_t)m->team.threads, 1);
    } else {
        learn_in_thread(&job, 0, 1);
    }
}
