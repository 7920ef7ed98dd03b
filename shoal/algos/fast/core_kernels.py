"""The Triton kernels of algos/fused_core.py: PPO for a small network with an LSTM or MinGRU between body and heads.

A minibatch is `count` transitions, segment after segment, each `L` steps long; `order` tells where each lies in the
rollout. What one kernel leaves for another lies in planes of (count, H) numbers. Gates are planes too, one for each.
Their twin is the plain path: nn/recurrent.py and `any_loss` of algos/ppo.py. tests/test_fused.py holds them together.

The core's weights lie between the second layer's and the actor's. MinGRU: three gates (H, H) of what comes in, and
their biases (H,) each. LSTM: four, their biases, and four more (H, H) of what it put out before.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from shoal.algos.fast.kernels import _activate, _choose, _heads, _judge, _matrix, _see, _slope
from shoal.nn.kernels import _tanh


@triton.jit
def _body(
    x, weights, narrow, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, ACT: tl.constexpr, KIND: tl.constexpr
):
    """What the two layers make of observations."""
    unit = tl.arange(0, H)
    w1, b1 = _matrix(narrow, H, DP, KIND), tl.load(weights + H * D + unit)
    h1 = _activate(tl.dot(x, tl.trans(w1)) + b1[None, :], ACT).to(KIND)
    w2, b2 = _matrix(narrow + H * DP + H, H, H, KIND), tl.load(weights + H * D + H + H * H + unit)
    return h1, _activate(tl.dot(h1, tl.trans(w2)) + b2[None, :], ACT).to(KIND)


@triton.jit
def _gate(
    h, weights, narrow, gate: tl.constexpr, k: tl.constexpr, H: tl.constexpr, PART: tl.constexpr, G: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """The k-th PART of a gate's units by what comes in, before its sigmoid, in the precision that `encode` stores."""
    first: tl.constexpr = gate * H + k * PART
    weight = _matrix(narrow + first * H, PART, H, KIND)
    bias = tl.load(weights + G * H * H + first + tl.arange(0, PART))
    return (tl.dot(h, tl.trans(weight)) + bias[None, :]).to(KIND)


@triton.jit
def _lstm_gate(
    h, taken, weights, narrow, gate: tl.constexpr, k: tl.constexpr, H: tl.constexpr, PART: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """The same with what was put out before."""
    again = _matrix(narrow + 4 * H * H + 4 * H + (gate * H + k * PART) * H, PART, H, KIND)
    return tl.dot(taken, tl.trans(again), _gate(h, weights, narrow, gate, k, H, PART, 4, KIND).to(tl.float32))


@triton.jit
def act(
    obs, weights, narrow, mean, scale, noise, masks, hidden, cell, new_hidden, new_cell,
    logits, values, actions, env_actions, rows,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, MASKED: tl.constexpr, KIND: tl.constexpr, G: tl.constexpr, HIDDEN: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """One step of the policy: logits, values, actions and next state of `rows` observations.

    Units go through the core in two parts: more of them at once do not fit into registers.
    """
    PART: tl.constexpr = H // 2 if H > 16 else H
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    live = row < rows
    x = _see(obs, row.to(tl.int64), live, mean, scale, D, DP, UNIT, NORM).to(KIND)
    h1, h2 = _body(x, weights, narrow, D, DP, H, ACT, KIND)
    core: tl.constexpr = H * D + H + H * H + H
    again: tl.constexpr = core + G * H * H + G * H
    heads: tl.constexpr = again + (G * H * H if HIDDEN else 0)
    ours = narrow + H * (DP - D)  # beyond the first layer
    column = tl.arange(0, 16)
    bias = heads + tl.where(column < A, A * H + column, A * H + A + H)
    said = tl.zeros((BM, 16), tl.float32) + tl.load(weights + bias, mask=column <= A, other=0.0)[None, :]
    if HIDDEN:
        units = tl.arange(0, H)
        place = row.to(tl.int64)[:, None] * H + units[None, :]
        taken = tl.load(hidden + place, mask=live[:, None] & (units >= 0)[None, :], other=0.0).to(KIND)
    for k in tl.static_range(H // PART):
        unit = k * PART + tl.arange(0, PART)
        place, inside = row.to(tl.int64)[:, None] * H + unit[None, :], live[:, None] & (unit >= 0)[None, :]
        if HIDDEN:
            c = tl.sigmoid(_lstm_gate(h2, taken, weights + core, ours + core, 0, k, H, PART, KIND))
            c *= _tanh(_lstm_gate(h2, taken, weights + core, ours + core, 2, k, H, PART, KIND))
            f = tl.sigmoid(_lstm_gate(h2, taken, weights + core, ours + core, 1, k, H, PART, KIND))
            c += f * tl.load(cell + place, mask=inside, other=0.0)
            tl.store(new_cell + place, c, mask=inside)
            h = tl.sigmoid(_lstm_gate(h2, taken, weights + core, ours + core, 3, k, H, PART, KIND)) * _tanh(c)
            out = h.to(KIND)
        else:
            u = tl.sigmoid(_gate(h2, weights + core, ours + core, 0, k, H, PART, G, KIND).to(tl.float32))
            c = _gate(h2, weights + core, ours + core, 1, k, H, PART, G, KIND).to(tl.float32)
            c = u * tl.where(c >= 0.0, c + 0.5, tl.sigmoid(c))
            h = c + (1.0 - u) * tl.load(hidden + place, mask=inside, other=0.0)
            w = tl.sigmoid(_gate(h2, weights + core, ours + core, 2, k, H, PART, G, KIND).to(tl.float32))
            # h2 once more: these units of it
            second = _matrix(narrow + H * DP + H + k * PART * H, PART, H, KIND)
            s = tl.dot(h1, tl.trans(second)) + tl.load(weights + core - H + unit)[None, :]
            s = _activate(s, ACT).to(KIND).to(tl.float32)
            out = (s + w * (h - s)).to(KIND)
        tl.store(new_hidden + place, h, mask=inside)
        start = heads + tl.where(column < A, column * H, A * H + A)
        wo = tl.load(ours + start[:, None] + unit[None, :], mask=(column <= A)[:, None], other=0.0)
        said = tl.dot(out, tl.trans(wo), said)
    _choose(said, row, live, noise, masks, logits, values, actions, env_actions, A, MASKED)


@triton.jit
def encode(
    obs, weights, narrow, mean, scale, order, resets, seen, first, second, gates, cleared, count, plane,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr, NORM: tl.constexpr,
    KIND: tl.constexpr, G: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """A minibatch's observations (count, DP), both layers, the gates by what comes in, and where the state is cleared.

    `plane`: how many numbers one has.
    """
    plane = plane.to(tl.int64)
    row, unit = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, H)
    live = row < count
    inside, place = live[:, None] & (unit >= 0)[None, :], row[:, None] * H + unit[None, :]
    at = tl.load(order + row, mask=live, other=0)
    x = _see(obs, at, live, mean, scale, D, DP, UNIT, NORM).to(KIND)
    tl.store(cleared + row, tl.load(resets + at, mask=live, other=0).to(tl.int8), mask=live)
    column = tl.arange(0, DP)
    tl.store(seen + row[:, None] * DP + column[None, :], x, mask=live[:, None] & (column >= 0)[None, :])
    h1, h2 = _body(x, weights, narrow, D, DP, H, ACT, KIND)
    tl.store(first + place, h1, mask=inside)
    tl.store(second + place, h2, mask=inside)
    core: tl.constexpr = H * D + H + H * H + H
    for k in tl.static_range(G):
        gate = _gate(h2, weights + core, narrow + H * (DP - D) + core, k, 0, H, H, G, KIND)
        tl.store(gates + k * plane + place, gate, mask=inside)


@triton.jit
def mingru_forward(
    second, gates, starts, hidden, out, cleared, segments, count, plane, L,
    H: tl.constexpr, PART: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """MinGRU through `count` segments, one thread for each unit: see `MinGRU.unroll`."""
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
        anew = (tl.load(cleared + step, mask=live, other=0) != 0) & (step > row * L)
        h = tl.where(anew, 0.0, h)
        h = h + u * (tl.where(c >= 0.0, c + 0.5, tl.sigmoid(c)) - h)
        tl.store(hidden + place, h, mask=live)
        tl.store(out + place, (s + w * (h - s)).to(out.dtype.element_ty), mask=live)


@triton.jit
def mingru_backward(
    second, gates, starts, hidden, d_out, d_gates, d_skip, cleared, segments, count, plane, L,
    H: tl.constexpr, PART: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The slopes of `mingru_forward` by the gates and by what goes around them."""
    plane = plane.to(tl.int64)
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    unit, row = at % H, (at // H).to(tl.int64)
    live = row < count
    start = tl.load(starts + tl.load(segments + row, mask=live, other=0) * H + unit, mask=live, other=0.0)
    kind = d_gates.dtype.element_ty
    later = tl.zeros((PART,), tl.float32)  # dL/dh_t by what comes after t
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
        anew = (tl.load(cleared + step, mask=live, other=0) != 0) & (step > row * L)
        before = tl.where(anew, 0.0, before)
        g = tl.load(d_out + place, mask=live, other=0.0).to(tl.float32)
        dh = g * w + later
        tl.store(d_gates + place, (dh * (c - before) * u * (1.0 - u)).to(kind), mask=live)
        slope = tl.where(x >= 0.0, 1.0, small * (1.0 - small))
        tl.store(d_gates + plane + place, (dh * u * slope).to(kind), mask=live)
        tl.store(d_gates + 2 * plane + place, (g * (h - s) * w * (1.0 - w)).to(kind), mask=live)
        tl.store(d_skip + place, (g * (1.0 - w)).to(kind), mask=live)
        later = tl.where(anew, 0.0, dh * (1.0 - u))


@triton.jit
def lstm_forward(
    narrow, gates, hidden, cell, acts, cells, taken, out, cleared, segments, count, plane, L,
    H: tl.constexpr, KIND: tl.constexpr, BM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """An LSTM through `count` segments, BM to a block: see `LSTM.unroll`. `taken` is what each step's product took."""
    plane = plane.to(tl.int64)
    row, unit = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, H)
    live = row < count
    inside = live[:, None] & (unit >= 0)[None, :]
    segment = tl.load(segments + row, mask=live, other=0)[:, None] * H + unit[None, :]
    h = tl.load(hidden + segment, mask=inside, other=0.0)
    c = tl.load(cell + segment, mask=inside, other=0.0)
    wi, wf = tl.trans(_matrix(narrow, H, H, KIND)), tl.trans(_matrix(narrow + H * H, H, H, KIND))
    wg, wo = tl.trans(_matrix(narrow + 2 * H * H, H, H, KIND)), tl.trans(_matrix(narrow + 3 * H * H, H, H, KIND))
    for t in tl.range(0, L, num_stages=STAGES):
        step = row * L + t
        place = step[:, None] * H + unit[None, :]
        anew = (tl.load(cleared + step, mask=live, other=0) != 0) & (step > row * L)
        h, c = tl.where(anew[:, None], 0.0, h), tl.where(anew[:, None], 0.0, c)
        took = h.to(KIND)
        tl.store(taken + place, took, mask=inside)
        i = tl.sigmoid(tl.load(gates + place, mask=inside, other=0.0) + tl.dot(took, wi))
        f = tl.sigmoid(tl.load(gates + plane + place, mask=inside, other=0.0) + tl.dot(took, wf))
        g = _tanh(tl.load(gates + 2 * plane + place, mask=inside, other=0.0) + tl.dot(took, wg))
        o = tl.sigmoid(tl.load(gates + 3 * plane + place, mask=inside, other=0.0) + tl.dot(took, wo))
        c = f * c + i * g
        h = o * _tanh(c)
        tl.store(acts + place, i.to(KIND), mask=inside)
        tl.store(acts + plane + place, f.to(KIND), mask=inside)
        tl.store(acts + 2 * plane + place, g.to(KIND), mask=inside)
        tl.store(acts + 3 * plane + place, o.to(KIND), mask=inside)
        tl.store(cells + place, c, mask=inside)
        tl.store(out + place, h.to(KIND), mask=inside)


@triton.jit
def lstm_backward(
    narrow, acts, cells, cell, d_out, d_gates, cleared, segments, count, plane, L,
    H: tl.constexpr, KIND: tl.constexpr, BM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The slopes of `lstm_forward` by the gates before their sigmoids."""
    plane = plane.to(tl.int64)
    row, unit = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, H)
    live = row < count
    inside = live[:, None] & (unit >= 0)[None, :]
    segment = tl.load(segments + row, mask=live, other=0)[:, None] * H + unit[None, :]
    start = tl.load(cell + segment, mask=inside, other=0.0)
    wi, wf = _matrix(narrow, H, H, KIND), _matrix(narrow + H * H, H, H, KIND)
    wg, wo = _matrix(narrow + 2 * H * H, H, H, KIND), _matrix(narrow + 3 * H * H, H, H, KIND)
    dh, dc = tl.zeros((BM, H), tl.float32), tl.zeros((BM, H), tl.float32)  # by what comes after t
    for k in tl.range(0, L, num_stages=STAGES):
        step = row * L + (L - 1 - k)
        place, is_first = step[:, None] * H + unit[None, :], (step == row * L)[:, None]
        anew = ((tl.load(cleared + step, mask=live, other=0) != 0) & (step > row * L))[:, None]
        i = tl.load(acts + place, mask=inside, other=0.0).to(tl.float32)
        f = tl.load(acts + plane + place, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(acts + 2 * plane + place, mask=inside, other=0.0).to(tl.float32)
        o = tl.load(acts + 3 * plane + place, mask=inside, other=0.0).to(tl.float32)
        before = tl.load(cells + place - H, mask=inside & (step > row * L)[:, None], other=0.0)
        before = tl.where(anew, 0.0, tl.where(is_first, start, before))
        tanh = _tanh(tl.load(cells + place, mask=inside, other=0.0))
        dh += tl.load(d_out + place, mask=inside, other=0.0).to(tl.float32)
        dc += dh * o * (1.0 - tanh * tanh)
        di, df = (dc * g * i * (1.0 - i)).to(KIND), (dc * before * f * (1.0 - f)).to(KIND)
        dg, do = (dc * i * (1.0 - g * g)).to(KIND), (dh * tanh * o * (1.0 - o)).to(KIND)
        tl.store(d_gates + place, di, mask=inside)
        tl.store(d_gates + plane + place, df, mask=inside)
        tl.store(d_gates + 2 * plane + place, dg, mask=inside)
        tl.store(d_gates + 3 * plane + place, do, mask=inside)
        dh = tl.dot(do, wo, tl.dot(dg, wg, tl.dot(df, wf, tl.dot(di, wi))))
        dh, dc = tl.where(anew, 0.0, dh), tl.where(anew, 0.0, dc * f)


@triton.jit
def judge(
    out, weights, narrow, masks, order, actions, logprobs, old_values, advantages, returns, counts, moments,
    slopes, d_out, sums, count,
    clip, value_clip, value_coef, entropy_coef,
    H: tl.constexpr, A: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr, CLIPPED: tl.constexpr,
    KIND: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The heads and the loss: its slopes by what they put out (count, 16) and by what the core did."""
    block = tl.program_id(0)
    row, unit, column = (block * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, H), tl.arange(0, 16)
    live = row < count
    inside, place = live[:, None] & (unit >= 0)[None, :], row[:, None] * H + unit[None, :]
    at = tl.load(order + row, mask=live, other=0)
    h = tl.load(out + place, mask=inside, other=0.0)
    wo, bo = _heads(weights, narrow, H, A, KIND)
    o = tl.dot(h, tl.trans(wo)) + bo[None, :]
    slope = _judge(
        o, at, live, block, masks, actions, logprobs, old_values, advantages, returns, counts, moments, sums,
        clip, value_clip, value_coef, entropy_coef, A, MASKED, COUNTED, CLIPPED,
    ).to(KIND)  # fmt: skip
    tl.store(slopes + row[:, None] * 16 + column[None, :], slope, mask=live[:, None] & (column >= 0)[None, :])
    tl.store(d_out + place, tl.dot(slope, wo).to(KIND), mask=inside)


@triton.jit
def back(
    narrow, first, second, d_gates, d_skip, d_second, d_first, count, plane,
    DP: tl.constexpr, H: tl.constexpr, ACT: tl.constexpr, KIND: tl.constexpr, G: tl.constexpr, SKIP: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """From the gates' slopes to those of both layers before their activations."""
    plane = plane.to(tl.int64)
    row, unit = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, H)
    inside, place = (row < count)[:, None] & (unit >= 0)[None, :], row[:, None] * H + unit[None, :]
    core = narrow + H * DP + H + H * H + H
    slope = tl.zeros((BM, H), tl.float32)
    if SKIP:
        slope += tl.load(d_skip + place, mask=inside, other=0.0).to(tl.float32)
    for k in tl.static_range(G):
        by_gate = tl.load(d_gates + k * plane + place, mask=inside, other=0.0)
        slope = tl.dot(by_gate, _matrix(core + k * H * H, H, H, KIND), slope)
    h2 = tl.load(second + place, mask=inside, other=0.0).to(tl.float32)
    slope = (slope * _slope(h2, ACT)).to(KIND)
    tl.store(d_second + place, slope, mask=inside)
    h1 = tl.load(first + place, mask=inside, other=0.0).to(tl.float32)
    slope = tl.dot(slope, _matrix(narrow + H * DP + H, H, H, KIND)) * _slope(h1, ACT)
    tl.store(d_first + place, slope.to(KIND), mask=inside)


@triton.jit
def _product(left, right, low, high, M: tl.constexpr, N: tl.constexpr, BM: tl.constexpr):
    """Of (rows, M) and (rows, N), over rows `low` to `high`: (M, N), and the sums of the left one's columns."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    by, sums = tl.zeros((M, N), tl.float32), tl.zeros((BM, M), tl.float32)
    for start in range(low, high, BM):
        row = (start + tl.arange(0, BM)).to(tl.int64)
        live = (row < high)[:, None]
        a = tl.load(left + row[:, None] * M + m[None, :], mask=live & (m >= 0)[None, :], other=0.0)
        b = tl.load(right + row[:, None] * N + n[None, :], mask=live & (n >= 0)[None, :], other=0.0)
        by = tl.dot(tl.trans(a), b, by)
        sums += a.to(tl.float32)
    return by, tl.sum(sums, 0)


@triton.jit
def _slopes_of_heads(slopes, out, mine, low, high, H: tl.constexpr, A: tl.constexpr, BM: tl.constexpr):
    by, bias = _product(slopes, out, low, high, 16, H, BM)
    column, unit = tl.arange(0, 16), tl.arange(0, H)
    is_value, named = column == A, column <= A
    place = tl.where(is_value, A * H + A, column * H)
    tl.store(mine + place[:, None] + unit[None, :], by, mask=named[:, None] & (unit >= 0)[None, :])
    tl.store(mine + tl.where(is_value, A * H + A + H, A * H + column), bias, mask=named)


@triton.jit
def _slopes_of_first(
    d_first, seen, mine, low, high, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, BM: tl.constexpr
):
    by, bias = _product(d_first, seen, low, high, H, DP, BM)
    width, unit = tl.arange(0, DP), tl.arange(0, H)
    inside = (width < D)[None, :] & (unit >= 0)[:, None]
    tl.store(mine + unit[:, None] * D + width[None, :], by, mask=inside)
    tl.store(mine + H * D + unit, bias)


@triton.jit
def weight_slopes(
    seen, room, slopes, partial, count, plane, each,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, G: tl.constexpr, HIDDEN: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr, OUT: tl.constexpr, TAKEN: tl.constexpr, D_GATES: tl.constexpr,
    D_SECOND: tl.constexpr, D_FIRST: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The slopes by all weights, of `each` transitions to a row of `partial`: a block for one matrix of one part.

    Matrices are the heads, the first layer, the second, the gates by what comes in, and the gates by what was put out.
    `room` holds all planes; FIRST, SECOND ... are their numbers.
    """
    job, part = tl.program_id(0), tl.program_id(1)
    low, high = part * each, tl.minimum(part * each + each, count)
    core: tl.constexpr = H * D + H + H * H + H
    again: tl.constexpr = core + G * H * H + G * H
    heads: tl.constexpr = again + G * H * H if HIDDEN else again
    mine = partial + part.to(tl.int64) * (heads + (A + 1) * (H + 1))
    plane = plane.to(tl.int64)
    if job == 0:
        _slopes_of_heads(slopes, room + OUT * plane, mine + heads, low, high, H, A, BM)
    elif job == 1:
        _slopes_of_first(room + D_FIRST * plane, seen, mine, low, high, D, DP, H, BM)
    else:
        gate = job - 3  # -1: the second layer; from G on: by what was put out
        is_again = gate >= G
        left = tl.where(job == 2, D_SECOND, D_GATES + tl.where(is_again, gate - G, gate)) * plane
        right = tl.where(job == 2, FIRST, tl.where(is_again, TAKEN, SECOND)) * plane
        by, bias = _product(room + left, room + right, low, high, H, H, BM)
        unit = tl.arange(0, H)
        matrix = tl.where(job == 2, H * D + H, tl.where(is_again, again - G * H * H, core) + gate * H * H)
        tl.store(mine + matrix + unit[:, None] * H + unit[None, :], by)
        if job < 3 + G:
            tl.store(mine + tl.where(job == 2, core - H, core + G * H * H + gate * H) + unit, bias)
