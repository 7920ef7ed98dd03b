// ppo_act.h: acting, for ppo.c: the policy's forward pass and samples of its actions. Actor.act (algos/actor.py) is the
// definition.
#ifndef SHOAL_PPO_ACT_H
#define SHOAL_PPO_ACT_H

#include "ppo_model.h"

typedef struct {
    Inputs inputs;
    const int8_t *masks;                // (rows, logits); null: all choices are allowed
    const float *noise;                 // (rows, logits and means); null: no action is sampled
    float *logits, *values;             // (rows, params), (rows); logits may be null
    void *actions;                      // (rows, columns)
    float *state[MAX_TOWERS * STATES];  // (rows, size): the core's state
    float *saved[MAX_TOWERS * STATES];  // copies of the state before the step; null: none
    int64_t rows, keeps_state;          // keeps_state: the state is not changed
} Act;

typedef struct {
    Model *m;
    const Act *act;
    int64_t block;
} ActJob;

// Writes the logits (with free log standard deviations) of a row of a block, masked, `step` floats apart; returns its
// value.
static float read_heads(const Model *m, const Work *work, int64_t i, const int8_t *mask, float *z, int64_t step) {
    const Net *net = &m->net;
    const Head *head = &m->head;
    const float *out = work->tower[0].head + i * stride_of(net->tower[0].dense[net->tower[0].first_head].outputs);
    for (int64_t c = 0; c < head->num_outputs; c++) z[c * step] = out[c];
    for (int64_t c = head->num_outputs; c < head->num_params; c++) {
        z[c * step] = m->optimizer.weights[net->log_std + c - head->num_outputs];
    }
    for (int64_t c = 0; mask && c < head->num_logits; c++) z[c * step] = mask[c] ? z[c * step] : NEVER;
    return net->towers > 1 ? work->tower[1].head[i * stride_of(1)] : out[head->num_outputs];
}

static int64_t act_blocks(void *job, int32_t lo, int32_t hi) {
    Model *m = ((ActJob *)job)->m;
    const Act *act = ((ActJob *)job)->act;
    const Head *head = &m->head;
    int64_t size = m->net.core_size, states = states_of(&m->net) * m->net.towers, per_tower = states_of(&m->net);
    int64_t number_size = act->inputs.kind == FLOAT32 ? 4 : 1;
    Room *room = take_room(m);
    float buffer[head->num_params];
    for (int32_t k = lo; k < hi; k++) {
        int64_t first = k * ((ActJob *)job)->block, rows = least(((ActJob *)job)->block, act->rows - first);
        Inputs inputs = act->inputs;
        inputs.at = (const char *)inputs.at + first * m->net.inputs * number_size;
        Block block = {.rows = rows, .segments = rows, .steps = 1};
        for (int64_t p = 0; p < states; p++) {
            float *state = act->state[p] + first * size;
            if (act->saved[p]) memcpy(act->saved[p] + first * size, state, 4 * (size_t)(rows * size));
            block.start[p / per_tower * STATES + p % per_tower] = state;
        }
        gather_inputs(&m->net, &inputs, &block, room->work.tower[0].inputs);
        forward(&room->work, &block);
        for (int64_t i = 0; i < rows; i++) {
            int64_t row = first + i;
            float *z = act->logits ? act->logits + row * head->num_params : buffer;
            act->values[row] =
                read_heads(m, &room->work, i, act->masks ? act->masks + row * head->num_logits : 0, z, 1);
            if (act->noise) sample_row(head, z, act->noise + row * head->num_logits, act->actions, row);
        }
        for (int64_t p = 0; p < states && !act->keeps_state; p++) {
            const Activations *a = &room->work.tower[p / per_tower];
            const float *from = per_tower > 1 && p % per_tower == 0 ? a->step_in : a->carry;
            for (int64_t i = 0; i < rows; i++) {
                memcpy(act->state[p] + (first + i) * size, from + i * stride_of(size), 4 * (size_t)size);
            }
        }
    }
    leave_room(m, room);
    return 0;
}

SHOAL_API void shoal_ppo_act(Model *m, const Act *act) {
    int64_t block = least(most(ceil_div(act->rows, m->threads), TILE), MLP_BLOCK);
    ActJob job = {m, act, block};
    parallel(m, act_blocks, &job, ceil_div(act->rows, block), 1);
}

#endif
