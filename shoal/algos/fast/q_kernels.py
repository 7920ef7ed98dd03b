"""Triton kernels: Q-learning for a small network (launched by fused_q.py).

There are no atomic additions: the same inputs give the same bits. Plain torch defines the results: nn/qnet.py the
Q-values, `improve` of algos/pqn.py and algos/dqn.py the gradients. tests/fused_q_checks.py compares them, in Triton's
interpreter if there is no GPU.

Sizes and flags are those of kernels.py: D numbers of an observation, padded to DP; H units of a layer; A choices; BM
rows of a tile; ACT the activation. LN: layer normalization after each hidden layer. HUBER: the loss of a TD error.

The weights of a network are one flat tensor: for each hidden layer the matrix (inputs, H), biases (H,) and with LN
gains (H,) and shifts (H,); then the head's (H, A) and its biases (A,). `narrow` is a copy of the matrices in DTYPE as
(outputs, inputs): (H, DP), (H, H) and (16, H), padded with zeros. In this order their rows are loaded as they are
multiplied, as in kernels.py; with (inputs, outputs), Triton 3.6 read beyond the shared memory on Hopper.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from shoal.algos.fast.kernels import _activate, _activation_grad, _load_obs, _matrix


@triton.jit
def copy_weights(weights, narrow, places, size, PART: tl.constexpr):
    """Copies the weights to their `places` in `narrow`."""
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    place = tl.load(places + at, mask=at < size, other=-1)
    w = tl.load(weights + at, mask=at < size, other=0.0)
    tl.store(narrow + place, w.to(narrow.dtype.element_ty), mask=place >= 0)


@triton.jit
def share_of(weights, is_ready, share, metrics, count, PART: tl.constexpr):
    """A transition's share in DQN's loss: `is_ready` / the number of weights that are not 0. Clears the metrics."""
    ones = tl.zeros((PART,), tl.float32)
    for start in range(0, count, PART):
        at = start + tl.arange(0, PART)
        ones += tl.where(tl.load(weights + at, mask=at < count, other=0.0) != 0.0, 1.0, 0.0)
    tl.store(share, tl.load(is_ready).to(tl.float32) / tl.maximum(tl.sum(ones, 0), 1.0))
    tl.store(metrics + tl.arange(0, 8), tl.zeros((8,), tl.float32))


@triton.jit
def _hidden(x, w, weights, IN: tl.constexpr, H: tl.constexpr, LN: tl.constexpr, ACT: tl.constexpr):
    """A hidden layer of the matrix w (H, INP) and inputs (rows, INP): its outputs, and what its gradient needs."""
    unit = tl.arange(0, H)
    bias = tl.load(weights + IN * H + unit)
    z = tl.dot(x, tl.trans(w)) + bias[None, :]
    normal, factor = z, tl.sum(z, 1) * 0.0 + 1.0
    if LN:
        centered = z - (tl.sum(z, 1) / H)[:, None]
        factor = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / H + 1e-5)
        normal = centered * factor[:, None]
        z = tl.load(weights + IN * H + 2 * H + unit)[None, :] + normal * tl.load(weights + IN * H + H + unit)[None, :]
    return _activate(z, ACT), normal, factor


@triton.jit
def _head(h, w, weights, H: tl.constexpr, A: tl.constexpr):
    """The Q-values (rows, 16) of the last layer's outputs, by the matrix w (16, H); zeros after the A choices."""
    column = tl.arange(0, 16)
    return tl.dot(h, tl.trans(w)) + tl.load(weights + H * A + column, mask=column < A, other=0.0)[None, :]


@triton.jit
def _values(
    obs, at, live, weights, narrow, mean, scale,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, LN: tl.constexpr, ACT: tl.constexpr,
    UNIT: tl.constexpr, NORM: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """The Q-values (rows, 16) of the observations `at`."""
    second: tl.constexpr = D * H + H + 2 * H * LN
    third: tl.constexpr = second + H * H + H + 2 * H * LN
    x = _load_obs(obs, at, live, mean, scale, D, DP, UNIT, NORM).to(DTYPE)
    h = _hidden(x, _matrix(narrow, H, DP, DTYPE), weights, D, H, LN, ACT)[0].to(DTYPE)
    h = _hidden(h, _matrix(narrow + H * DP, H, H, DTYPE), weights + second, H, H, LN, ACT)[0].to(DTYPE)
    return _head(h, _matrix(narrow + H * DP + H * H, 16, H, DTYPE), weights + third, H, A)


@triton.jit
def allow(q, masks, row, live, A: tl.constexpr, MASKED: tl.constexpr, OP: tl.constexpr):
    """The Q-values in OP columns with -1e9 for choices that are not allowed, and -inf for columns that are none."""
    column = tl.arange(0, OP)
    if MASKED:
        inside = live[:, None] & (column < A)[None, :]
        allowed = tl.load(masks + row[:, None] * A + column[None, :], mask=inside, other=1)
        q = tl.where(allowed == 0, -1e9, q)
    return tl.where((column < A)[None, :], q, -float("inf"))


@triton.jit
def choose(
    q, row, live, noise, masks, logits, values, actions, env_actions, A: tl.constexpr, MASKED: tl.constexpr,
    OP: tl.constexpr,
):  # fmt: skip
    """Stores Q-values, the highest one, and epsilon-greedy actions. `noise`: see QHead.draw (nn/qnet.py)."""
    column = tl.arange(0, OP)
    q = allow(q, masks, row, live, A, MASKED, OP)
    inside = live[:, None] & (column < A)[None, :]
    tl.store(logits + row[:, None] * A + column[None, :], q, mask=inside)
    tl.store(values + row, tl.max(q, 1), mask=live)
    drawn = tl.load(noise + row[:, None] * (A + 1) + column[None, :], mask=inside, other=-2.0)
    drawn = tl.where(inside & (q <= -1e9), -1.0, drawn)
    explores = tl.load(noise + row * (A + 1) + A, mask=live, other=0.0)
    score = tl.where((explores > 0.0)[:, None], drawn, q)
    chosen = tl.minimum(tl.argmax(score, 1), A - 1)  # if all are nan, argmax returns any column
    tl.store(actions + row, chosen.to(tl.int64), mask=live)
    tl.store(env_actions + row, chosen.to(env_actions.dtype.element_ty), mask=live)


@triton.jit
def act(
    obs, weights, narrow, mean, scale, noise, masks, logits, values, actions, env_actions, rows,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, LN: tl.constexpr, ACT: tl.constexpr,
    UNIT: tl.constexpr, NORM: tl.constexpr, MASKED: tl.constexpr, DTYPE: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """One epsilon-greedy step."""
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    live = row < rows
    q = _values(obs, row, live, weights, narrow, mean, scale, D, DP, H, A, LN, ACT, UNIT, NORM, DTYPE)
    choose(q, row, live, noise, masks, logits, values, actions, env_actions, A, MASKED, 16)


@triton.jit
def targets(
    obs, weights, narrow, other, other_narrow, mean, scale, masks, returns, discounts, out, rows,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, LN: tl.constexpr, ACT: tl.constexpr,
    UNIT: tl.constexpr, NORM: tl.constexpr, MASKED: tl.constexpr, DOUBLE: tl.constexpr, DTYPE: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """DQN's targets: the returns, and the discounted value of the next action by the target network `other`.

    DOUBLE: the online network chooses that action.
    """
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    live, column = row < rows, tl.arange(0, 16)
    at = row.to(tl.int64)
    judged = _values(obs, at, live, other, other_narrow, mean, scale, D, DP, H, A, LN, ACT, UNIT, NORM, DTYPE)
    choosing = judged
    if DOUBLE:
        choosing = _values(obs, at, live, weights, narrow, mean, scale, D, DP, H, A, LN, ACT, UNIT, NORM, DTYPE)
    best = tl.argmax(allow(choosing, masks, at, live, A, MASKED, 16), 1)
    value = tl.sum(tl.where(column[None, :] == best[:, None], judged, 0.0), 1)
    discount = tl.load(discounts + row, mask=live, other=0.0)
    tl.store(out + row, tl.load(returns + row, mask=live, other=0.0) + discount * value, mask=live)


@triton.jit
def _hidden_grads(
    d, h, normal, factor, x, weights, out, IN: tl.constexpr, INP: tl.constexpr, H: tl.constexpr,
    LN: tl.constexpr, ACT: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Stores the gradient of a hidden layer's weights, from `d` by its outputs `h`; returns that of its products."""
    place, unit = tl.arange(0, INP), tl.arange(0, H)
    d = d * _activation_grad(h, ACT)
    if LN:
        tl.store(out + IN * H + H + unit, tl.sum(d * normal, 0))
        tl.store(out + IN * H + 2 * H + unit, tl.sum(d, 0))
        d = d * tl.load(weights + IN * H + H + unit)[None, :]
        d = (d - (tl.sum(d, 1) / H)[:, None] - normal * (tl.sum(d * normal, 1) / H)[:, None]) * factor[:, None]
    tl.store(out + IN * H + unit, tl.sum(d, 0))
    d = d.to(DTYPE)
    inside = (place < IN)[None, :] & (unit >= 0)[:, None]
    tl.store(out + place[None, :] * H + unit[:, None], tl.dot(tl.trans(d), x), mask=inside)
    return d


@triton.jit
def learn(
    obs, weights, narrow, mean, scale, order, actions, targets, factors, share, partial, sums, count,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, LN: tl.constexpr, ACT: tl.constexpr,
    UNIT: tl.constexpr, NORM: tl.constexpr, ORDERED: tl.constexpr, WEIGHTED: tl.constexpr, HUBER: tl.constexpr,
    DTYPE: tl.constexpr, BM: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """The gradient on `count` transitions, those of `order` if ORDERED. Each block stores a row of `partial`.

    A transition has the weight `share`, with WEIGHTED times its entry of `factors`.
    """
    block = tl.program_id(0)
    row = block * BM + tl.arange(0, BM)
    live, column, unit = row < count, tl.arange(0, 16), tl.arange(0, H)
    at = tl.load(order + row, mask=live, other=0) if ORDERED else row.to(tl.int64)
    second: tl.constexpr = D * H + H + 2 * H * LN
    third: tl.constexpr = second + H * H + H + 2 * H * LN
    # these arrive while the network computes
    weight = tl.where(live, tl.load(share), 0.0)
    if WEIGHTED:
        weight = weight * tl.load(factors + at, mask=live, other=0.0)
    taken, target = tl.load(actions + at, mask=live, other=0), tl.load(targets + at, mask=live, other=0.0)
    x = _load_obs(obs, at, live, mean, scale, D, DP, UNIT, NORM).to(DTYPE)
    w1, w2 = _matrix(narrow, H, DP, DTYPE), _matrix(narrow + H * DP, H, H, DTYPE)
    w3 = _matrix(narrow + H * DP + H * H, 16, H, DTYPE)
    h1, normal1, factor1 = _hidden(x, w1, weights, D, H, LN, ACT)
    narrow1 = h1.to(DTYPE)
    h2, normal2, factor2 = _hidden(narrow1, w2, weights + second, H, H, LN, ACT)
    narrow2 = h2.to(DTYPE)
    q = _head(narrow2, w3, weights + third, H, A)

    is_chosen = column[None, :] == taken[:, None]
    chosen = tl.sum(tl.where(is_chosen, q, 0.0), 1)
    error = chosen - target
    slope, loss = error, 0.5 * error * error
    if HUBER:
        slope = tl.minimum(tl.maximum(error, -1.0), 1.0)
        loss = slope * (error - 0.5 * slope)
    metrics = tl.where((column == 0)[None, :], (loss * weight)[:, None], 0.0)
    metrics = tl.where((column == 1)[None, :], (chosen * weight)[:, None], metrics)
    metrics = tl.where((column == 2)[None, :], (target * weight)[:, None], metrics)
    tl.store(sums + block * 8 + column, tl.sum(metrics, 0), mask=column < 5)

    out = partial + block.to(tl.int64) * ROW
    d = tl.where(is_chosen, (slope * weight)[:, None], 0.0)
    tl.store(out + third + H * A + column, tl.sum(d, 0), mask=column < A)
    d = d.to(DTYPE)
    inside = (column < A)[:, None] & (unit >= 0)[None, :]
    tl.store(out + third + unit[None, :] * A + column[:, None], tl.dot(tl.trans(d), narrow2), mask=inside)
    d = tl.dot(d, w3)
    d = _hidden_grads(d, h2, normal2, factor2, narrow1, weights + second, out + second, H, H, H, LN, ACT, DTYPE)
    d = tl.dot(d, w2)
    _hidden_grads(d, h1, normal1, factor1, x, weights, out, D, DP, H, LN, ACT, DTYPE)
