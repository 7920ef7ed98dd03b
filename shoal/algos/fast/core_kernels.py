"""Triton kernels: PPO for a small network with an LSTM or MinGRU between layers and heads (launched by fused_core.py).

A minibatch is `count` transitions: segments of L steps, one after the other. `order` has their indices in the rollout.
Results that one kernel leaves for another are planes of (count, H) numbers; each gate has its own plane. Plain torch
defines the results: nn/cores/ and `clipped_loss` of algos/ppo.py; tests/test_fused.py compares them. Sizes and flags
are named as in kernels.py; RECURRENT says whether the gates depend on the hidden state (an LSTM's do).

The core's weights are between the second layer's and the actor's. MinGRU: three gates (H, H) on the layers' output and
their biases (H,). LSTM: four gates, their biases, and four recurrent matrices (H, H) on the hidden state.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from shoal.algos.fast.head_kernels import load_coefs, load_stats, load_targets, loss_grads, sample
from shoal.algos.fast.kernels import _activate, _activation_grad, _heads, _load_obs, _matrix, finished
from shoal.nn.kernels import _tanh


@triton.jit
def _body(
    x, weights, narrow, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, ACT: tl.constexpr, DTYPE: tl.constexpr
):
    """The outputs of the two layers."""
    unit = tl.arange(0, H)
    w1, b1 = _matrix(narrow, H, DP, DTYPE), tl.load(weights + H * D + unit)
    h1 = _activate(tl.dot(x, tl.trans(w1)) + b1[None, :], ACT).to(DTYPE)
    w2, b2 = _matrix(narrow + H * DP + H, H, H, DTYPE), tl.load(weights + H * D + H + H * H + unit)
    return h1, _activate(tl.dot(h1, tl.trans(w2)) + b2[None, :], ACT).to(DTYPE)


@triton.jit
def _gate(
    h, weights, narrow, gate: tl.constexpr, k: tl.constexpr, H: tl.constexpr, PART: tl.constexpr, G: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """The k-th PART of a gate's units before the sigmoid, without the hidden state, rounded as `encode` stores it."""
    first: tl.constexpr = gate * H + k * PART
    weight = _matrix(narrow + first * H, PART, H, DTYPE)
    bias = tl.load(weights + G * H * H + first + tl.arange(0, PART))
    return (tl.dot(h, tl.trans(weight)) + bias[None, :]).to(DTYPE)


@triton.jit
def _lstm_gate(
    h, hidden_in, weights, narrow, gate: tl.constexpr, k: tl.constexpr, H: tl.constexpr, PART: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """`_gate` plus the product with the hidden state."""
    recurrent = _matrix(narrow + 4 * H * H + 4 * H + (gate * H + k * PART) * H, PART, H, DTYPE)
    return tl.dot(hidden_in, tl.trans(recurrent), _gate(h, weights, narrow, gate, k, H, PART, 4, DTYPE).to(tl.float32))


@triton.jit
def _outputs(
    x, row, live, weights, narrow, hidden, cell, new_hidden, new_cell,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ACT: tl.constexpr, DTYPE: tl.constexpr,
    G: tl.constexpr, RECURRENT: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The network's outputs (rows, 16) for inputs x, with the state of the rows `row`, whose next state it stores.

    The core computes its units in two parts: all of them at once do not fit into registers.
    """
    PART: tl.constexpr = H // 2 if H > 16 else H
    h1, h2 = _body(x, weights, narrow, D, DP, H, ACT, DTYPE)
    core: tl.constexpr = H * D + H + H * H + H
    recurrent: tl.constexpr = core + G * H * H + G * H
    heads: tl.constexpr = recurrent + (G * H * H if RECURRENT else 0)
    shifted = narrow + H * (DP - D)  # offsets beyond the padded first layer
    column = tl.arange(0, 16)
    bias = heads + tl.where(column < A, A * H + column, A * H + A + H)
    outputs = tl.zeros((BM, 16), tl.float32) + tl.load(weights + bias, mask=column <= A, other=0.0)[None, :]
    if RECURRENT:
        units = tl.arange(0, H)
        place = row.to(tl.int64)[:, None] * H + units[None, :]
        hidden_in = tl.load(hidden + place, mask=live[:, None] & (units >= 0)[None, :], other=0.0).to(DTYPE)
    for k in tl.static_range(H // PART):
        unit = k * PART + tl.arange(0, PART)
        place, inside = row.to(tl.int64)[:, None] * H + unit[None, :], live[:, None] & (unit >= 0)[None, :]
        if RECURRENT:
            c = tl.sigmoid(_lstm_gate(h2, hidden_in, weights + core, shifted + core, 0, k, H, PART, DTYPE))
            c *= _tanh(_lstm_gate(h2, hidden_in, weights + core, shifted + core, 2, k, H, PART, DTYPE))
            f = tl.sigmoid(_lstm_gate(h2, hidden_in, weights + core, shifted + core, 1, k, H, PART, DTYPE))
            c += f * tl.load(cell + place, mask=inside, other=0.0)
            tl.store(new_cell + place, c, mask=inside)
            h = tl.sigmoid(_lstm_gate(h2, hidden_in, weights + core, shifted + core, 3, k, H, PART, DTYPE)) * _tanh(c)
            out = h.to(DTYPE)
        else:
            u = tl.sigmoid(_gate(h2, weights + core, shifted + core, 0, k, H, PART, G, DTYPE).to(tl.float32))
            c = _gate(h2, weights + core, shifted + core, 1, k, H, PART, G, DTYPE).to(tl.float32)
            c = u * tl.where(c >= 0.0, c + 0.5, tl.sigmoid(c))
            h = c + (1.0 - u) * tl.load(hidden + place, mask=inside, other=0.0)
            w = tl.sigmoid(_gate(h2, weights + core, shifted + core, 2, k, H, PART, G, DTYPE).to(tl.float32))
            # recompute these units of h2
            second = _matrix(narrow + H * DP + H + k * PART * H, PART, H, DTYPE)
            s = tl.dot(h1, tl.trans(second)) + tl.load(weights + core - H + unit)[None, :]
            s = _activate(s, ACT).to(DTYPE).to(tl.float32)
            out = (s + w * (h - s)).to(DTYPE)
        tl.store(new_hidden + place, h, mask=inside)
        start = heads + tl.where(column < A, column * H, A * H + A)
        wo = tl.load(shifted + start[:, None] + unit[None, :], mask=(column <= A)[:, None], other=0.0)
        outputs = tl.dot(out, tl.trans(wo), outputs)
    return outputs


@triton.jit
def act(
    obs, weights, narrow, mean, scale, noise, masks, hidden, cell, new_hidden, new_cell,
    logits, values, actions, env_actions, table, bounds, rows,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, MASKED: tl.constexpr, DTYPE: tl.constexpr, G: tl.constexpr, RECURRENT: tl.constexpr,
    SIZE: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """One step of the policy: logits, values, actions and next state for `rows` observations."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    live = row < rows
    x = _load_obs(obs, row.to(tl.int64), live, mean, scale, D, DP, UNIT, NORM).to(DTYPE)
    outputs = _outputs(
        x, row, live, weights, narrow, hidden, cell, new_hidden, new_cell, D, DP, H, A, ACT, DTYPE, G, RECURRENT, BM
    )
    sample(
        outputs, outputs, row, live, noise, masks, logits, values, actions, env_actions, table, bounds,
        A, SIZE, PARTS, 0, False, WIDTH, MASKED, 16,
    )  # fmt: skip


@triton.jit
def encode(
    obs, weights, narrow, mean, scale, order, resets, inputs, first, second, gates, cleared, count, plane,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr, NORM: tl.constexpr,
    DTYPE: tl.constexpr, G: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """A minibatch's observations (count, DP), both layers, the gates by what comes in, and where the state is cleared.

    `plane`: how many numbers one has.
    """
    plane = plane.to(tl.int64)
    row, unit = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, H)
    live = row < count
    inside, place = live[:, None] & (unit >= 0)[None, :], row[:, None] * H + unit[None, :]
    at = tl.load(order + row, mask=live, other=0)
    x = _load_obs(obs, at, live, mean, scale, D, DP, UNIT, NORM).to(DTYPE)
    tl.store(cleared + row, tl.load(resets + at, mask=live, other=0).to(tl.int8), mask=live)
    column = tl.arange(0, DP)
    tl.store(inputs + row[:, None] * DP + column[None, :], x, mask=live[:, None] & (column >= 0)[None, :])
    h1, h2 = _body(x, weights, narrow, D, DP, H, ACT, DTYPE)
    tl.store(first + place, h1, mask=inside)
    tl.store(second + place, h2, mask=inside)
    core: tl.constexpr = H * D + H + H * H + H
    for k in tl.static_range(G):
        gate = _gate(h2, weights + core, narrow + H * (DP - D) + core, k, 0, H, H, G, DTYPE)
        tl.store(gates + k * plane + place, gate, mask=inside)


@triton.jit
def mingru_forward(
    second, gates, starts, hidden, out, cleared, segments, count, plane, L,
    H: tl.constexpr, PART: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A MinGRU over the steps of `count` segments, one thread for part_size unit: see `MinGRU.unroll`."""
    plane = plane.to(tl.int64)
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    unit, row = at % H, (at // H).to(tl.int64)
    live = row < count
    h = tl.load(starts + tl.load(segments + row, mask=live, other=0) * H + unit, mask=live, other=0.0)
    for t in tl.range(0, L, num_stages=STAGES):
        step = row * L + t
        place = step * H + unit
        u = tl.sigmoid(tl.load(gates + place, mask=live, other=0.0).to(tl.float32))
        c = tl.load(gates + plane + place, mask=live, other=0.0).to(tl.float32)
        w = tl.sigmoid(tl.load(gates + 2 * plane + place, mask=live, other=0.0).to(tl.float32))
        s = tl.load(second + place, mask=live, other=0.0).to(tl.float32)
        is_reset = (tl.load(cleared + step, mask=live, other=0) != 0) & (step > row * L)
        h = tl.where(is_reset, 0.0, h)
        h = h + u * (tl.where(c >= 0.0, c + 0.5, tl.sigmoid(c)) - h)
        tl.store(hidden + place, h, mask=live)
        tl.store(out + place, (s + w * (h - s)).to(out.dtype.element_ty), mask=live)


@triton.jit
def mingru_backward(
    second, gates, starts, hidden, d_out, d_gates, d_skip, cleared, segments, count, plane, L,
    H: tl.constexpr, PART: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradients of `mingru_forward` by the gates and by the skip connection. It repeats the indices and loads of
    `mingru_forward`, whose values both need.
    """
    plane = plane.to(tl.int64)
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    unit, row = at % H, (at // H).to(tl.int64)
    live = row < count
    start = tl.load(starts + tl.load(segments + row, mask=live, other=0) * H + unit, mask=live, other=0.0)
    kind = d_gates.dtype.element_ty
    later = tl.zeros((PART,), tl.float32)  # dL/dh_t through the steps after t
    for k in tl.range(0, L, num_stages=STAGES):
        step = row * L + (L - 1 - k)
        place, is_first = step * H + unit, step == row * L
        u = tl.sigmoid(tl.load(gates + place, mask=live, other=0.0).to(tl.float32))
        x = tl.load(gates + plane + place, mask=live, other=0.0).to(tl.float32)
        w = tl.sigmoid(tl.load(gates + 2 * plane + place, mask=live, other=0.0).to(tl.float32))
        small = tl.sigmoid(x)
        c = tl.where(x >= 0.0, x + 0.5, small)
        s = tl.load(second + place, mask=live, other=0.0).to(tl.float32)
        h = tl.load(hidden + place, mask=live, other=0.0)
        before = tl.where(is_first, start, tl.load(hidden + place - H, mask=live & (step > row * L), other=0.0))
        is_reset = (tl.load(cleared + step, mask=live, other=0) != 0) & (step > row * L)
        before = tl.where(is_reset, 0.0, before)
        g = tl.load(d_out + place, mask=live, other=0.0).to(tl.float32)
        dh = g * w + later
        tl.store(d_gates + place, (dh * (c - before) * u * (1.0 - u)).to(kind), mask=live)
        d_candidate = tl.where(x >= 0.0, 1.0, small * (1.0 - small))
        tl.store(d_gates + plane + place, (dh * u * d_candidate).to(kind), mask=live)
        tl.store(d_gates + 2 * plane + place, (g * (h - s) * w * (1.0 - w)).to(kind), mask=live)
        tl.store(d_skip + place, (g * (1.0 - w)).to(kind), mask=live)
        later = tl.where(is_reset, 0.0, dh * (1.0 - u))


@triton.jit
def lstm_forward(
    narrow, gates, hidden, cell, acts, cells, hidden_in, out, cleared, segments, count, plane, L,
    H: tl.constexpr, DTYPE: tl.constexpr, BM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """An LSTM over the steps of `count` segments, BM to a block: see `LSTM.unroll`.

    `hidden_in` stores the hidden state before each step, for the gradient. `lstm_backward` repeats its indices and
    loads: a helper would have to return as many values as it saves lines.
    """
    plane = plane.to(tl.int64)
    row, unit = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, H)
    live = row < count
    inside = live[:, None] & (unit >= 0)[None, :]
    segment = tl.load(segments + row, mask=live, other=0)[:, None] * H + unit[None, :]
    h = tl.load(hidden + segment, mask=inside, other=0.0)
    c = tl.load(cell + segment, mask=inside, other=0.0)
    wi, wf = tl.trans(_matrix(narrow, H, H, DTYPE)), tl.trans(_matrix(narrow + H * H, H, H, DTYPE))
    wg, wo = tl.trans(_matrix(narrow + 2 * H * H, H, H, DTYPE)), tl.trans(_matrix(narrow + 3 * H * H, H, H, DTYPE))
    for t in tl.range(0, L, num_stages=STAGES):
        step = row * L + t
        place = step[:, None] * H + unit[None, :]
        is_reset = (tl.load(cleared + step, mask=live, other=0) != 0) & (step > row * L)
        h, c = tl.where(is_reset[:, None], 0.0, h), tl.where(is_reset[:, None], 0.0, c)
        h_in = h.to(DTYPE)
        tl.store(hidden_in + place, h_in, mask=inside)
        i = tl.sigmoid(tl.load(gates + place, mask=inside, other=0.0) + tl.dot(h_in, wi))
        f = tl.sigmoid(tl.load(gates + plane + place, mask=inside, other=0.0) + tl.dot(h_in, wf))
        g = _tanh(tl.load(gates + 2 * plane + place, mask=inside, other=0.0) + tl.dot(h_in, wg))
        o = tl.sigmoid(tl.load(gates + 3 * plane + place, mask=inside, other=0.0) + tl.dot(h_in, wo))
        c = f * c + i * g
        h = o * _tanh(c)
        tl.store(acts + place, i.to(DTYPE), mask=inside)
        tl.store(acts + plane + place, f.to(DTYPE), mask=inside)
        tl.store(acts + 2 * plane + place, g.to(DTYPE), mask=inside)
        tl.store(acts + 3 * plane + place, o.to(DTYPE), mask=inside)
        tl.store(cells + place, c, mask=inside)
        tl.store(out + place, h.to(out.dtype.element_ty), mask=inside)


@triton.jit
def lstm_backward(
    narrow, acts, cells, cell, d_out, d_gates, cleared, segments, count, plane, L,
    H: tl.constexpr, DTYPE: tl.constexpr, BM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradients of `lstm_forward` by the gates before their sigmoids. Its loads are repeated: see there."""
    plane = plane.to(tl.int64)
    row, unit = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, H)
    live = row < count
    inside = live[:, None] & (unit >= 0)[None, :]
    segment = tl.load(segments + row, mask=live, other=0)[:, None] * H + unit[None, :]
    start = tl.load(cell + segment, mask=inside, other=0.0)
    wi, wf = _matrix(narrow, H, H, DTYPE), _matrix(narrow + H * H, H, H, DTYPE)
    wg, wo = _matrix(narrow + 2 * H * H, H, H, DTYPE), _matrix(narrow + 3 * H * H, H, H, DTYPE)
    dh, dc = tl.zeros((BM, H), tl.float32), tl.zeros((BM, H), tl.float32)  # through the steps after t
    for k in tl.range(0, L, num_stages=STAGES):
        step = row * L + (L - 1 - k)
        place, is_first = step[:, None] * H + unit[None, :], (step == row * L)[:, None]
        is_reset = ((tl.load(cleared + step, mask=live, other=0) != 0) & (step > row * L))[:, None]
        i = tl.load(acts + place, mask=inside, other=0.0).to(tl.float32)
        f = tl.load(acts + plane + place, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(acts + 2 * plane + place, mask=inside, other=0.0).to(tl.float32)
        o = tl.load(acts + 3 * plane + place, mask=inside, other=0.0).to(tl.float32)
        before = tl.load(cells + place - H, mask=inside & (step > row * L)[:, None], other=0.0)
        before = tl.where(is_reset, 0.0, tl.where(is_first, start, before))
        tanh = _tanh(tl.load(cells + place, mask=inside, other=0.0))
        dh += tl.load(d_out + place, mask=inside, other=0.0).to(tl.float32)
        dc += dh * o * (1.0 - tanh * tanh)
        di, df = (dc * g * i * (1.0 - i)).to(DTYPE), (dc * before * f * (1.0 - f)).to(DTYPE)
        dg, do = (dc * i * (1.0 - g * g)).to(DTYPE), (dh * tanh * o * (1.0 - o)).to(DTYPE)
        tl.store(d_gates + place, di, mask=inside)
        tl.store(d_gates + plane + place, df, mask=inside)
        tl.store(d_gates + 2 * plane + place, dg, mask=inside)
        tl.store(d_gates + 3 * plane + place, do, mask=inside)
        dh = tl.dot(do, wo, tl.dot(dg, wg, tl.dot(df, wf, tl.dot(di, wi))))
        dh, dc = tl.where(is_reset, 0.0, dh), tl.where(is_reset, 0.0, dc * f)


@triton.jit
def heads_loss(
    out, weights, narrow, masks, order, actions, logprobs, old_values, advantages, returns, counts, stats,
    d_heads, d_out, sums, coefs, table, bounds, count,
    H: tl.constexpr, A: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr, CLIPPED: tl.constexpr,
    DTYPE: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The heads and the loss: its gradients by the heads' outputs (count, 16) and by the core's output."""
    block = tl.program_id(0)
    row, unit, column = (block * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, H), tl.arange(0, 16)
    live = row < count
    inside, place = live[:, None] & (unit >= 0)[None, :], row[:, None] * H + unit[None, :]
    at = tl.load(order + row, mask=live, other=0)
    chosen, logprob, advantage, target, old, weight = load_targets(
        at, live, actions, logprobs, old_values, advantages, returns, counts, SIZE, PARTS, 0, COUNTED, CLIPPED
    )
    clip, value_clip, value_coef, entropy_coef = load_coefs(coefs)
    center, factor, share = load_stats(stats)
    h = tl.load(out + place, mask=inside, other=0.0)
    wo, bo = _heads(weights, narrow, H, A, DTYPE)
    o = tl.dot(h, tl.trans(wo)) + bo[None, :]
    grads, _ = loss_grads(
        o, o, at, live, block, masks, actions, chosen, logprob, advantage, target, old, weight, center, factor, share,
        sums, clip, value_clip, value_coef, entropy_coef, table, bounds, A, SIZE, PARTS, 0, False, MASKED,
        COUNTED, CLIPPED, 16, BM,
    )  # fmt: skip
    grads = grads.to(DTYPE)
    tl.store(d_heads + row[:, None] * 16 + column[None, :], grads, mask=live[:, None] & (column >= 0)[None, :])
    tl.store(d_out + place, tl.dot(grads, wo).to(DTYPE), mask=inside)


@triton.jit
def layers_backward(
    narrow, first, second, d_gates, d_skip, d_second, d_first, count, plane,
    DP: tl.constexpr, H: tl.constexpr, ACT: tl.constexpr, DTYPE: tl.constexpr, G: tl.constexpr, SKIP: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """From the gradients by the gates to those by both layers, before their activations."""
    plane = plane.to(tl.int64)
    row, unit = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, H)
    inside, place = (row < count)[:, None] & (unit >= 0)[None, :], row[:, None] * H + unit[None, :]
    core = narrow + H * DP + H + H * H + H
    grads = tl.zeros((BM, H), tl.float32)
    if SKIP:
        grads += tl.load(d_skip + place, mask=inside, other=0.0).to(tl.float32)
    for k in tl.static_range(G):
        d_gate = tl.load(d_gates + k * plane + place, mask=inside, other=0.0)
        grads = tl.dot(d_gate, _matrix(core + k * H * H, H, H, DTYPE), grads)
    h2 = tl.load(second + place, mask=inside, other=0.0).to(tl.float32)
    grads = (grads * _activation_grad(h2, ACT)).to(DTYPE)
    tl.store(d_second + place, grads, mask=inside)
    h1 = tl.load(first + place, mask=inside, other=0.0).to(tl.float32)
    grads = tl.dot(grads, _matrix(narrow + H * DP + H, H, H, DTYPE)) * _activation_grad(h1, ACT)
    tl.store(d_first + place, grads.to(DTYPE), mask=inside)


@triton.jit
def _product(left, right, low, high, M: tl.constexpr, N: tl.constexpr, BM: tl.constexpr):
    """left^T right (M, N) over rows `low` to `high` of (rows, M) and (rows, N), and the column sums of `left` (M,)."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    product, sums = tl.zeros((M, N), tl.float32), tl.zeros((BM, M), tl.float32)
    for start in range(low, high, BM):
        row = (start + tl.arange(0, BM)).to(tl.int64)
        live = (row < high)[:, None]
        a = tl.load(left + row[:, None] * M + m[None, :], mask=live & (m >= 0)[None, :], other=0.0)
        b = tl.load(right + row[:, None] * N + n[None, :], mask=live & (n >= 0)[None, :], other=0.0)
        product = finished(tl.dot(tl.trans(a), b, product), start < high)
        sums += a.to(tl.float32)
    return product, tl.sum(sums, 0)


@triton.jit
def _head_grads(d_heads, out, grads, low, high, H: tl.constexpr, A: tl.constexpr, BM: tl.constexpr):
    weight, bias = _product(d_heads, out, low, high, 16, H, BM)
    column, unit = tl.arange(0, 16), tl.arange(0, H)
    is_value, named = column == A, column <= A
    place = tl.where(is_value, A * H + A, column * H)
    tl.store(grads + place[:, None] + unit[None, :], weight, mask=named[:, None] & (unit >= 0)[None, :])
    tl.store(grads + tl.where(is_value, A * H + A + H, A * H + column), bias, mask=named)


@triton.jit
def _first_layer_grads(
    d_first, inputs, grads, low, high, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, BM: tl.constexpr
):
    weight, bias = _product(d_first, inputs, low, high, H, DP, BM)
    width, unit = tl.arange(0, DP), tl.arange(0, H)
    inside = (width < D)[None, :] & (unit >= 0)[:, None]
    tl.store(grads + unit[:, None] * D + width[None, :], weight, mask=inside)
    tl.store(grads + H * D + unit, bias)


@triton.jit
def weight_grads(
    inputs, planes, d_heads, partial, count, plane, part_size,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, G: tl.constexpr, RECURRENT: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr, OUT: tl.constexpr, HIDDEN_IN: tl.constexpr, D_GATES: tl.constexpr,
    D_SECOND: tl.constexpr, D_FIRST: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The gradients of all weights. Block (matrix, part) sums one matrix over `part_size` transitions into row
    `part` of `partial`.

    The matrices: heads, first layer, second layer, gates, and with RECURRENT the recurrent matrices of the gates.
    `planes` holds all planes; FIRST, SECOND and so on are their numbers.
    """
    matrix, part = tl.program_id(0), tl.program_id(1)
    low, high = part * part_size, tl.minimum(part * part_size + part_size, count)
    core: tl.constexpr = H * D + H + H * H + H
    recurrent: tl.constexpr = core + G * H * H + G * H
    heads: tl.constexpr = recurrent + G * H * H if RECURRENT else recurrent
    grads = partial + part.to(tl.int64) * (heads + (A + 1) * (H + 1))
    plane = plane.to(tl.int64)
    if matrix == 0:
        _head_grads(d_heads, planes + OUT * plane, grads + heads, low, high, H, A, BM)
    elif matrix == 1:
        _first_layer_grads(planes + D_FIRST * plane, inputs, grads, low, high, D, DP, H, BM)
    else:
        gate = matrix - 3  # -1: the second layer; from G on: the recurrent matrices
        is_recurrent = gate >= G
        left = tl.where(matrix == 2, D_SECOND, D_GATES + tl.where(is_recurrent, gate - G, gate)) * plane
        right = tl.where(matrix == 2, FIRST, tl.where(is_recurrent, HIDDEN_IN, SECOND)) * plane
        weight, bias = _product(planes + left, planes + right, low, high, H, H, BM)
        unit = tl.arange(0, H)
        offset = tl.where(matrix == 2, H * D + H, tl.where(is_recurrent, recurrent - G * H * H, core) + gate * H * H)
        tl.store(grads + offset + unit[:, None] * H + unit[None, :], weight)
        if matrix < 3 + G:
            tl.store(grads + tl.where(matrix == 2, core - H, core + G * H * H + gate * H) + unit, bias)
