"""Triton kernels: Q-learning for a network of several layers (launched by layered_q.py, with layered_kernels.py).

Plain torch defines the results: nn/qnet.py the Q-values, `improve` of algos/pqn.py and algos/dqn.py the gradients.
tests/layered_q_checks.py compares them, in Triton's interpreter if there is no GPU.

A layer with layer normalization has two planes: z = W x + b, and the activations of its normalized rows. Sizes: N units
of a layer, whose rows in planes have NP numbers; W the power of two that holds NP; A choices in OP columns. `gain` is
where a layer's N gains begin in `weights`; its N shifts follow. Other sizes and flags: layered_kernels.py. There are no
atomic additions.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from shoal.algos.fast.kernels import _activate, _activation_grad
from shoal.algos.fast.layered_kernels import _head_outputs
from shoal.algos.fast.q_kernels import allow, choose

# ---- layer normalization ----


@triton.jit
def _normalized(z, row, live, N: tl.constexpr, NP: tl.constexpr, W: tl.constexpr):
    """Rows of z with mean 0 and variance 1, zeros after N; what they were multiplied by; where they exist."""
    unit = tl.arange(0, W)
    inside = live[:, None] & (unit < N)[None, :]
    x = tl.load(z + row[:, None] * NP + unit[None, :], mask=inside, other=0.0).to(tl.float32)
    centered = tl.where(inside, x - (tl.sum(x, 1) / N)[:, None], 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / N + 1e-5)
    return centered * factor[:, None], factor, inside


@triton.jit
def norm(
    z, weights, out, gain, count, N: tl.constexpr, NP: tl.constexpr, W: tl.constexpr, ACT: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """The activations of normalized rows."""
    row, unit = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, W)
    live = row < count
    normal, _, inside = _normalized(z, row, live, N, NP, W)
    gains = tl.load(weights + gain + unit, mask=unit < N, other=0.0)
    shifts = tl.load(weights + gain + N + unit, mask=unit < N, other=0.0)
    h = _activate(shifts[None, :] + normal * gains[None, :], ACT)
    place, exists = row[:, None] * NP + unit[None, :], live[:, None] & (unit < NP)[None, :]
    tl.store(out + place, tl.where(inside, h, 0.0).to(out.dtype.element_ty), mask=exists)


@triton.jit
def norm_backward(
    d, z, weights, sums, gain, count, part_rows, N: tl.constexpr, NP: tl.constexpr, W: tl.constexpr, BM: tl.constexpr
):
    """From the gradient by normalized rows, before the activation, to that by z, in place.

    A block has `part_rows` rows, a multiple of BM. Its sums are a row of `sums`: NP numbers each of the gradients of
    biases, gains and shifts.
    """
    part, unit = tl.program_id(0), tl.arange(0, W)
    gains = tl.load(weights + gain + unit, mask=unit < N, other=0.0)
    d_bias, d_gain, d_shift = tl.zeros((W,), tl.float32), tl.zeros((W,), tl.float32), tl.zeros((W,), tl.float32)
    for start in range(part * part_rows, tl.minimum(part * part_rows + part_rows, count), BM):
        row = (start + tl.arange(0, BM)).to(tl.int64)
        live = row < count
        normal, factor, inside = _normalized(z, row, live, N, NP, W)
        place = d + row[:, None] * NP + unit[None, :]
        g = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        d_gain += tl.sum(g * normal, 0)
        d_shift += tl.sum(g, 0)
        g = g * gains[None, :]
        g = (g - (tl.sum(g, 1) / N)[:, None] - normal * (tl.sum(g * normal, 1) / N)[:, None]) * factor[:, None]
        g = tl.where(inside, g, 0.0)
        d_bias += tl.sum(g, 0)
        tl.store(place, g.to(d.dtype.element_ty), mask=inside)
    out = sums + part * (3 * NP) + unit
    tl.store(out, d_bias, mask=unit < NP)
    tl.store(out + NP, d_gain, mask=unit < NP)
    tl.store(out + 2 * NP, d_shift, mask=unit < NP)


# ---- heads ----


@triton.jit
def act_heads(
    h, weights, narrow, biases, noise, masks, logits, values, actions, env_actions, rows,
    K: tl.constexpr, KP: tl.constexpr, A: tl.constexpr, MASKED: tl.constexpr, OP: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """One epsilon-greedy step."""
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    live = row < rows
    q, _ = _head_outputs(h, row, live, weights, narrow, biases, K, KP, 0, False, OP, BM, BK)
    choose(q, row, live, noise, masks, logits, values, actions, env_actions, A, MASKED, OP)


@triton.jit
def best_actions(
    h, weights, narrow, biases, masks, best, rows, K: tl.constexpr, KP: tl.constexpr, A: tl.constexpr,
    MASKED: tl.constexpr, OP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The allowed choice of the highest Q-value."""
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    live = row < rows
    q, _ = _head_outputs(h, row, live, weights, narrow, biases, K, KP, 0, False, OP, BM, BK)
    tl.store(best + row, tl.argmax(allow(q, masks, row, live, A, MASKED, OP), 1), mask=live)


@triton.jit
def targets(
    h, weights, narrow, biases, masks, best, returns, discounts, out, rows, K: tl.constexpr, KP: tl.constexpr,
    A: tl.constexpr, MASKED: tl.constexpr, OP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """DQN's targets by the target network: the returns, and the discounted value of the next action.

    `best` are the choices of the online network; None: the target network chooses.
    """
    row, column = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, OP)
    live = row < rows
    q, _ = _head_outputs(h, row, live, weights, narrow, biases, K, KP, 0, False, OP, BM, BK)
    if best is None:
        chosen = tl.argmax(allow(q, masks, row, live, A, MASKED, OP), 1)
    else:
        chosen = tl.load(best + row, mask=live, other=0)
    value = tl.sum(tl.where(column[None, :] == chosen[:, None], q, 0.0), 1)
    discount = tl.load(discounts + row, mask=live, other=0.0)
    tl.store(out + row, tl.load(returns + row, mask=live, other=0.0) + discount * value, mask=live)


@triton.jit
def learn_heads(
    h, weights, narrow, biases, order, actions, targets, factors, share, d_heads, d_h, d_bias, sums, count,
    K: tl.constexpr, KP: tl.constexpr, A: tl.constexpr, HUBER: tl.constexpr, ACT: tl.constexpr, DTYPE: tl.constexpr,
    OP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The loss: its gradients by the Q-values, and by the last layer before its activation.

    `order` names the transitions; None: they are all rows. A transition has the weight `share`, times its entry of
    `factors` unless they are None. `d_bias`: see `backward` of layered_kernels.py.
    """
    block, column = tl.program_id(0), tl.arange(0, OP)
    row = (block * BM + tl.arange(0, BM)).to(tl.int64)
    live, at = row < count, row
    if order is not None:
        at = tl.load(order + row, mask=live, other=0)
    weight = tl.where(live, tl.load(share), 0.0)
    if factors is not None:
        weight = weight * tl.load(factors + at, mask=live, other=0.0)
    taken, target = tl.load(actions + at, mask=live, other=0), tl.load(targets + at, mask=live, other=0.0)
    q, _ = _head_outputs(h, row, live, weights, narrow, biases, K, KP, 0, False, OP, BM, BK)

    is_chosen = column[None, :] == taken[:, None]
    chosen = tl.sum(tl.where(is_chosen, q, 0.0), 1)
    error = chosen - target
    slope, loss = error, 0.5 * error * error
    if HUBER:
        slope = tl.minimum(tl.maximum(error, -1.0), 1.0)
        loss = slope * (error - 0.5 * slope)
    which = tl.arange(0, 8)
    metrics = tl.where((which == 0)[None, :], (loss * weight)[:, None], 0.0)
    metrics = tl.where((which == 1)[None, :], (chosen * weight)[:, None], metrics)
    metrics = tl.where((which == 2)[None, :], (target * weight)[:, None], metrics)
    tl.store(sums + block * 8 + which, tl.sum(metrics, 0), mask=which < 5)

    d = tl.where(is_chosen, (slope * weight)[:, None], 0.0).to(DTYPE)
    tl.store(d_heads + row[:, None] * OP + column[None, :], d, mask=live[:, None] & (column >= 0)[None, :])
    for start in range(0, KP, BK):
        k = start + tl.arange(0, BK)
        total = tl.dot(d, tl.load(narrow + column[:, None] * KP + k[None, :]))
        unit, is_unit = row[:, None] * K + k[None, :], live[:, None] & (k < K)[None, :]
        before = tl.load(h + unit, mask=is_unit, other=0.0).to(tl.float32)
        total *= _activation_grad(before, ACT)
        tl.store(d_h + unit, total.to(DTYPE), mask=is_unit)
        if d_bias is not None:
            tl.store(d_bias + block * K + k, tl.sum(total, 0), mask=k < K)
