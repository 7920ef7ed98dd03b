"""Triton kernels: PPO for a small network (launched by fused.py), and the sums over time of algos/ops.py.

There are no atomic additions: the same inputs give the same bits. Plain torch defines the results: for `learn`
`clipped_loss` of algos/ppo.py and its gradient, for `adam` and `muon` algos/optimizers/, for `advantages` and
`running_returns` algos/ops.py. tests/test_fused.py compares them, in Triton's interpreter if there is no GPU.

Sizes: D numbers of an observation, padded to DP; H units of a layer; A choices; G gates of a recurrent core (0: none);
BM rows of a tile; PART elements of a block. Flags: ACT is the activation (0: relu, 1: tanh), NORM whether observations
are normalized, MASKED whether there are action masks, COUNTED whether there are `counts`, CLIPPED whether values are
clipped. UNIT is a factor of observations, DTYPE the precision of matrix products.

The weights of a policy are one flat tensor, in this order: first layer (H, D) and its biases (H,), second layer (H, H)
and its biases, recurrent core (core_kernels.py), actor (A, H) and its biases (A,), critic (1, H) and its bias. `narrow`
is a copy in DTYPE whose first layer is padded to (H, DP), so that its rows are aligned for wide loads.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

FLOAT32, BFLOAT16 = tl.float32, tl.bfloat16


@triton.jit
def _activate(x, ACT: tl.constexpr):
    if ACT == 0:
        return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0  # tanh


@triton.jit
def _activation_grad(h, ACT: tl.constexpr):
    """The derivative of the activation, from its output."""
    if ACT == 0:
        return tl.where(h > 0.0, 1.0, 0.0)
    return 1.0 - h * h


@triton.jit
def _load_obs(obs, at, live, mean, scale, D: tl.constexpr, DP: tl.constexpr, UNIT: tl.constexpr, NORM: tl.constexpr):
    """The policy's inputs: normalized observations `at` (rows,), padded with zeros to (rows, DP)."""
    column = tl.arange(0, DP)
    inside = live[:, None] & (column < D)[None, :]
    x = tl.load(obs + at[:, None] * D + column[None, :], mask=inside, other=0).to(tl.float32)
    if NORM:
        shift = tl.load(mean + column, mask=column < D, other=0.0)
        factor = tl.load(scale + column, mask=column < D, other=0.0)
        x = (x - shift[None, :]) * factor[None, :]
        x = tl.where(x < -10.0, -10.0, tl.where(x > 10.0, 10.0, x))  # nan stays nan, so that the loss shows it
        x = tl.where(inside, x, 0.0)
    return x * UNIT


@triton.jit
def _matrix(narrow, OUT: tl.constexpr, IN: tl.constexpr, DTYPE: tl.constexpr):
    """Loads an (OUT, IN) matrix."""
    row, column = tl.arange(0, OUT), tl.arange(0, IN)
    return tl.load(narrow + row[:, None] * IN + column[None, :]).to(DTYPE)


@triton.jit
def _heads(weights, narrow, H: tl.constexpr, A: tl.constexpr, DTYPE: tl.constexpr):
    """Actor and critic as one (16, H) matrix and (16,) biases: A logits, the value, zeros."""
    row, column = tl.arange(0, 16), tl.arange(0, H)
    # in memory: actor (A, H), its biases (A,), critic (1, H), its bias
    start = tl.where(row < A, row * H, A * H + A)
    wo = tl.load(narrow + start[:, None] + column[None, :], mask=(row <= A)[:, None], other=0.0).to(DTYPE)
    bias = tl.where(row < A, A * H + row, A * H + A + H)
    return wo, tl.load(weights + bias, mask=row <= A, other=0.0)


@triton.jit
def _sample(o, row, live, noise, masks, logits, values, actions, env_actions, A: tl.constexpr, MASKED: tl.constexpr):
    """Stores values, logits and the actions sampled by `noise`, from the network's outputs `o` (rows, 16)."""
    column = tl.arange(0, 16)
    is_choice = (column < A)[None, :]
    place = row[:, None] * A + column[None, :]
    inside = live[:, None] & is_choice
    if MASKED:
        allowed = tl.load(masks + place, mask=inside, other=1)
        o = tl.where(is_choice & (allowed == 0), -1e9, o)
    tl.store(values + row, tl.sum(tl.where((column == A)[None, :], o, 0.0), 1), mask=live)
    tl.store(logits + place, o, mask=inside)
    noisy = o + tl.load(noise + place, mask=inside, other=0.0)
    chosen = tl.argmax(tl.where(is_choice, noisy, -float("inf")), 1)
    chosen = tl.minimum(chosen, A - 1)  # if all are nan, argmax returns any column, and it is used as an index
    tl.store(actions + row, chosen.to(tl.int64), mask=live)
    tl.store(env_actions + row, chosen.to(env_actions.dtype.element_ty), mask=live)


@triton.jit
def _outputs(
    obs, at, live, weights, narrow, mean, scale,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """The network's outputs (rows, 16) for the observations `at`.

    `learn` repeats the loads of the weights: a helper would have to return all six of them.
    """
    w1 = _matrix(narrow, H, DP, DTYPE)
    b1 = tl.load(weights + H * D + tl.arange(0, H))
    w2 = _matrix(narrow + H * DP + H, H, H, DTYPE)
    b2 = tl.load(weights + H * D + H + H * H + tl.arange(0, H))
    after: tl.constexpr = H + H * H + H
    wo, bo = _heads(weights + H * D + after, narrow + H * DP + after, H, A, DTYPE)
    x = _load_obs(obs, at, live, mean, scale, D, DP, UNIT, NORM).to(DTYPE)
    h1 = _activate(tl.dot(x, tl.trans(w1)) + b1[None, :], ACT).to(DTYPE)
    h2 = _activate(tl.dot(h1, tl.trans(w2)) + b2[None, :], ACT).to(DTYPE)
    return tl.dot(h2, tl.trans(wo)) + bo[None, :]


@triton.jit
def act(
    obs, weights, narrow, mean, scale, noise, masks, logits, values, actions, env_actions, rows,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, MASKED: tl.constexpr, DTYPE: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """One step of the policy: logits, values and actions for `rows` observations."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    live = row < rows
    o = _outputs(obs, row.to(tl.int64), live, weights, narrow, mean, scale, D, DP, H, A, ACT, UNIT, NORM, DTYPE)
    _sample(o, row, live, noise, masks, logits, values, actions, env_actions, A, MASKED)


@triton.jit
def _loss_grads(
    o, at, live, block, masks, actions, logprobs, old_values, advantages, returns, counts, stats, sums,
    clip, value_clip, value_coef, entropy_coef,
    A: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr, CLIPPED: tl.constexpr,
):  # fmt: skip
    """The gradient of the loss by the network's outputs `o` (rows, 16): see choice_loss.py. Stores the sums of metrics.

    `stats` holds the mean of the advantages, 1 / their standard deviation, and 1 / the transitions that count.
    """
    column = tl.arange(0, 16)
    is_choice, is_value = (column < A)[None, :], (column == A)[None, :]
    if MASKED:
        allowed = tl.load(masks + at[:, None] * A + column[None, :], mask=live[:, None] & is_choice, other=1)
        o = tl.where(is_choice & (allowed == 0), -1e9, o)

    mean, factor, share = tl.load(stats), tl.load(stats + 1), tl.load(stats + 2)
    weight = tl.where(live, share, 0.0)
    if COUNTED:
        weight = weight * tl.load(counts + at, mask=live, other=0.0)
    z = tl.where(is_choice, o, -float("inf"))
    z = z - tl.max(z, 1)[:, None]
    e = tl.exp(z)
    total = tl.sum(e, 1)
    p = e / total[:, None]
    logp = tl.where(is_choice, z - tl.log(total)[:, None], 0.0)
    entropy = -tl.sum(p * logp, 1)
    chosen = tl.load(actions + at, mask=live, other=0)
    is_chosen = column[None, :] == chosen[:, None]
    log_ratio = tl.sum(tl.where(is_chosen, logp, 0.0), 1) - tl.load(logprobs + at, mask=live, other=0.0)
    ratio = tl.exp(tl.where(live, log_ratio, 0.0))
    advantage = (tl.load(advantages + at, mask=live, other=0.0) - mean) * factor
    surrogate = advantage * ratio
    clipped = advantage * tl.minimum(tl.maximum(ratio, 1.0 - clip), 1.0 + clip)
    value = tl.sum(tl.where(is_value, o, 0.0), 1)
    target = tl.load(returns + at, mask=live, other=0.0)
    error = value - target
    square, d_value = error * error, error
    if CLIPPED:
        old = tl.load(old_values + at, mask=live, other=0.0)
        change = value - old
        clipped_change = tl.minimum(tl.maximum(change, -value_clip), value_clip)
        clipped_error = old + clipped_change - target
        clipped_square = clipped_error * clipped_error
        d_clipped = tl.where(change == clipped_change, clipped_error, 0.0)
        d_value = tl.where(square >= clipped_square, error, d_clipped)
        square = tl.maximum(square, clipped_square)
    g = tl.where(surrogate <= clipped, surrogate, 0.0) * weight  # minus the derivative by log p of the action
    grads = p * g[:, None] - tl.where(is_chosen, g[:, None], 0.0)
    grads += (entropy_coef * weight)[:, None] * p * (logp + entropy[:, None])
    grads = tl.where(is_value, (value_coef * weight * d_value)[:, None], tl.where(is_choice, grads, 0.0))
    tl.store(sums + block * 8 + 0, -tl.sum(tl.minimum(surrogate, clipped) * weight, 0))
    tl.store(sums + block * 8 + 1, tl.sum(0.5 * square * weight, 0))
    tl.store(sums + block * 8 + 2, tl.sum(entropy * weight, 0))
    tl.store(sums + block * 8 + 3, tl.sum((ratio - 1.0 - log_ratio) * weight, 0))
    tl.store(sums + block * 8 + 4, tl.sum(tl.where(tl.abs(ratio - 1.0) > clip, weight, 0.0), 0))
    return grads


@triton.jit
def learn(
    obs, weights, narrow, mean, scale, masks, order, actions, logprobs, old_values, advantages, returns, counts,
    stats, partial, sums, count,
    clip, value_clip, value_coef, entropy_coef,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr, CLIPPED: tl.constexpr, DTYPE: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """The gradient on the transitions `order[:count]`. Each block computes BM of them and stores a row of `partial`.

    A block does not loop over several tiles: sums over tiles do not fit into registers, and spilling them costs more
    than adding them up later (`reduce`).
    """
    block = tl.program_id(0)
    row = block * BM + tl.arange(0, BM)
    live = row < count
    at = tl.load(order + row, mask=live, other=0)
    x = _load_obs(obs, at, live, mean, scale, D, DP, UNIT, NORM).to(DTYPE)
    w1 = _matrix(narrow, H, DP, DTYPE)
    b1 = tl.load(weights + H * D + tl.arange(0, H))
    w2 = _matrix(narrow + H * DP + H, H, H, DTYPE)
    b2 = tl.load(weights + H * D + H + H * H + tl.arange(0, H))
    after: tl.constexpr = H + H * H + H
    wo, bo = _heads(weights + H * D + after, narrow + H * DP + after, H, A, DTYPE)
    h1 = _activate(tl.dot(x, tl.trans(w1)) + b1[None, :], ACT).to(DTYPE)
    h2 = _activate(tl.dot(h1, tl.trans(w2)) + b2[None, :], ACT).to(DTYPE)
    o = tl.dot(h2, tl.trans(wo)) + bo[None, :]
    grads = _loss_grads(
        o, at, live, block, masks, actions, logprobs, old_values, advantages, returns, counts, stats, sums,
        clip, value_clip, value_coef, entropy_coef, A, MASKED, COUNTED, CLIPPED,
    )  # fmt: skip

    # backward through the network
    size: tl.constexpr = H * D + H + H * H + H + (A + 1) * (H + 1)
    out_1 = partial + block.to(tl.int64) * size
    out_2 = out_1 + H * D + H
    out_o = out_2 + H * H + H
    unit, place, column = tl.arange(0, H), tl.arange(0, DP), tl.arange(0, 16)
    tl.store(out_o + tl.where(column < A, A * H + column, A * H + A + H), tl.sum(grads, 0), mask=column <= A)
    grads = grads.to(DTYPE)
    place_o = tl.where(column < A, column * H, A * H + A)[:, None] + unit[None, :]
    tl.store(out_o + place_o, tl.dot(tl.trans(grads), h2), mask=(column <= A)[:, None])
    grads = tl.dot(grads, wo) * _activation_grad(h2.to(tl.float32), ACT)
    tl.store(out_2 + H * H + unit, tl.sum(grads, 0))
    grads = grads.to(DTYPE)
    tl.store(out_2 + unit[:, None] * H + unit[None, :], tl.dot(tl.trans(grads), h1))
    grads = tl.dot(grads, w2) * _activation_grad(h1.to(tl.float32), ACT)
    tl.store(out_1 + H * D + unit, tl.sum(grads, 0))
    inside = (place < D)[None, :] & (unit >= 0)[:, None]
    tl.store(out_1 + unit[:, None] * D + place[None, :], tl.dot(tl.trans(grads.to(DTYPE)), x), mask=inside)


@triton.jit
def reduce(
    partial, sums, gradient, squares, metrics, step, size, blocks, tiles,
    BEGIN: tl.constexpr, END: tl.constexpr, BLOCKS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Adds the blocks' rows of `partial` to the gradient (BEGIN: starts from zero), and sums its squares.

    Also adds the metrics of `tiles` tiles, and with END counts the optimizer step.
    """
    part = tl.program_id(0)
    at, block = part * PART + tl.arange(0, PART), tl.arange(0, BLOCKS)
    rows = tl.zeros((BLOCKS, PART), tl.float32)
    for first in range(0, blocks, BLOCKS):
        inside = (first + block < blocks)[:, None] & (at < size)[None, :]
        place = (first + block).to(tl.int64)[:, None] * size + at[None, :]
        rows += tl.load(partial + place, mask=inside, other=0.0)
    grads = tl.sum(rows, 0)
    if not BEGIN:
        grads += tl.load(gradient + at, mask=at < size, other=0.0)
    tl.store(gradient + at, grads, mask=at < size)
    tl.store(squares + part, tl.sum(grads * grads, 0))
    if part == 0:
        column = tl.arange(0, 8)
        tile_sums = tl.zeros((BLOCKS, 8), tl.float32)
        for first in range(0, tiles, BLOCKS):
            inside = (first + block < tiles)[:, None] & (column < 5)[None, :]
            tile_sums += tl.load(sums + (first + block)[:, None] * 8 + column[None, :], mask=inside, other=0.0)
        tl.store(metrics + column, tl.load(metrics + column, mask=column < 5) + tl.sum(tile_sums, 0), mask=column < 5)
        if END:
            tl.store(step, tl.load(step) + 1.0)


@triton.jit
def adam(
    weights, narrow, gradient, mean, square, squares, metrics, step, rate, size, parts,
    limit, beta1, beta2, eps, decay, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    RECURRENT: tl.constexpr, MATRICES: tl.constexpr, DECOUPLED: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Clips the gradient to the norm `limit` (0: never) and applies Adam or AdamW. Without MATRICES it skips Muon's."""
    part, index = tl.program_id(0), tl.arange(0, PARTS)
    norm = tl.sqrt(tl.sum(tl.load(squares + index, mask=index < parts, other=0.0), 0))
    if part == 0:
        tl.store(metrics + 5, tl.load(metrics + 5) + norm)
    at = part * PART + tl.arange(0, PART)
    inside = at < size
    if not MATRICES:
        core: tl.constexpr = H * D + H + H * H + H
        inside = inside & (at >= H * D) & ((at < H * D + H) | (at >= core - H))
        if G > 0:
            inside = inside & ((at < core) | (at >= core + G * H * H))
        if RECURRENT:
            inside = inside & ((at < core + G * H * H + G * H) | (at >= core + 2 * G * H * H + G * H))
    g, w = tl.load(gradient + at, mask=inside, other=0.0), tl.load(weights + at, mask=inside, other=0.0)
    lr, t = tl.load(rate), tl.load(step)
    g *= tl.where(limit > 0.0, tl.minimum(limit / (norm + 1e-6), 1.0), 1.0)
    if DECOUPLED:
        w *= 1.0 - lr * decay
    else:
        g += decay * w
    m = tl.load(mean + at, mask=inside, other=0.0)
    m += (1.0 - beta1) * (g - m)
    v = tl.load(square + at, mask=inside, other=0.0)
    v = beta2 * v + (1.0 - beta2) * g * g
    correction_1 = 1.0 - tl.exp(t * tl.log(beta1))
    correction_2 = 1.0 - tl.exp(t * tl.log(beta2))
    w -= lr / correction_1 * m / (tl.sqrt(v) / tl.sqrt(correction_2) + eps)
    tl.store(weights + at, w, mask=inside)
    copy = tl.where(at < H * D, at // D * DP + at % D, at + H * (DP - D))
    tl.store(narrow + copy, w.to(narrow.dtype.element_ty), mask=inside)
    tl.store(mean + at, m, mask=inside)
    tl.store(square + at, v, mask=inside)


@triton.jit
def muon(
    weights, narrow, gradient, momentum, squares, rate, parts, limit, decay, scale_1, scale_2, D: tl.constexpr,
    DP: tl.constexpr, H: tl.constexpr, G: tl.constexpr, MOMENTUM: tl.constexpr, STEPS: tl.constexpr,
    PARTS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Muon's update of the two hidden matrices and a core's gates, one block each: see optimizers/muon.py."""
    which, index = tl.program_id(0), tl.arange(0, PARTS)
    norm = tl.sqrt(tl.sum(tl.load(squares + index, mask=index < parts, other=0.0), 0))
    start, width = tl.where(which == 0, 0, H * D + H), tl.where(which == 0, D, H)
    if which >= 2:
        start += H * H + H + (which - 2) * (H * H) + tl.where(which >= 2 + G, G * H, 0)
    W: tl.constexpr = DP if DP > H else H
    row, column = tl.arange(0, H), tl.arange(0, W)
    at = start + row[:, None] * width + column[None, :]
    inside = (column < width)[None, :] & (row >= 0)[:, None]
    g = tl.load(gradient + at, mask=inside, other=0.0)
    g *= tl.where(limit > 0.0, tl.minimum(limit / (norm + 1e-6), 1.0), 1.0)
    m = tl.load(momentum + at, mask=inside, other=0.0)
    m += (1.0 - MOMENTUM) * (g - m)
    tl.store(momentum + at, m, mask=inside)
    x = (g + MOMENTUM * (m - g)).to(DTYPE).to(tl.float32)
    x = x / tl.maximum(tl.sqrt(tl.sum(tl.sum(x * x, 1), 0)), 1e-7)
    for _ in range(STEPS):
        rounded = x.to(DTYPE)
        square = tl.dot(rounded, tl.trans(rounded)).to(DTYPE)
        polynomial = (-4.7750 * square.to(tl.float32) + 2.0315 * tl.dot(square, square)).to(DTYPE)
        x = 3.4445 * rounded.to(tl.float32) + tl.dot(polynomial, rounded)
    lr = tl.load(rate)
    w = tl.load(weights + at, mask=inside, other=0.0) * (1.0 - lr * decay)
    w -= x * (lr * tl.where(which == 0, scale_1, scale_2))
    tl.store(weights + at, w, mask=inside)
    copy = tl.where(which == 0, row[:, None] * DP + column[None, :], at + H * (DP - D))
    tl.store(narrow + copy, w.to(narrow.dtype.element_ty), mask=inside)


@triton.jit
def advantage_stats(advantages, counts, order, stats, edges, COUNTED: tl.constexpr,
                    STANDARDIZE: tl.constexpr, PART: tl.constexpr):  # fmt: skip
    """For each minibatch `order[edges[k]:edges[k + 1]]`: mean and 1 / std of its advantages, and 1 / its count."""
    k = tl.program_id(0)
    first, last = tl.load(edges + k), tl.load(edges + k + 1)
    pivot = tl.load(advantages + tl.load(order + first))  # subtracted: sums of numbers far from 0 lose precision
    ones, sums, squares = tl.zeros((PART,), tl.float32), tl.zeros((PART,), tl.float32), tl.zeros((PART,), tl.float32)
    for start in range(first, last, PART):
        at = start + tl.arange(0, PART)
        inside = at < last
        index = tl.load(order + at, mask=inside, other=0)
        a = tl.load(advantages + index, mask=inside, other=0.0) - pivot
        n = tl.where(inside, 1.0, 0.0)
        if COUNTED:
            n = tl.load(counts + index, mask=inside, other=0.0)
        ones += n
        sums += a * n
        squares += a * a * n
    total = tl.maximum(tl.sum(ones, 0), 1.0)
    mean = tl.sum(sums, 0) / total
    std = tl.sqrt(tl.maximum(tl.sum(squares, 0) / total - mean * mean, 0.0))
    tl.store(stats + k * 4, pivot + mean if STANDARDIZE else 0.0)
    tl.store(stats + k * 4 + 1, 1.0 / (std + 1e-8) if STANDARDIZE else 1.0)
    tl.store(stats + k * 4 + 2, 1.0 / total)


@triton.jit
def carry(
    new, state, dones, alive, next_alive, truncated, stored, rows,
    TRUNCATES: tl.constexpr, ALIVE: tl.constexpr, S: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Sets the recurrent state to `new`, or to zero where an episode ended. `stored` gets that of truncated rows."""
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    live = at < rows * S
    row = at // S
    value = tl.load(new + at, mask=live, other=0.0)
    if TRUNCATES:
        tl.store(stored + at, value, mask=live & (tl.load(truncated + row, mask=live, other=0) != 0))
    keep = tl.load(dones + row, mask=live, other=0) == 0
    if ALIVE:
        keep = keep & (tl.load(alive + row, mask=live, other=0) != 0)
        keep = keep & (tl.load(next_alive + row, mask=live, other=0) != 0)
    tl.store(state + at, tl.where(keep, value, 0.0), mask=live)


@triton.jit
def advantages(rewards, values, dones, rho, c, out, gamma, lam, steps, rows, PART: tl.constexpr):
    """GAE, or with rho and c V-trace's v - V: see `gae` and `vtrace` of algos/ops.py."""
    row = tl.program_id(0) * PART + tl.arange(0, PART)
    live = row < rows
    advantage = tl.zeros((PART,), tl.float32)
    next_value = tl.load(values + steps * rows + row, mask=live, other=0.0)
    for k in range(steps):
        at = (steps - 1 - k) * rows + row
        reward, value = tl.load(rewards + at, mask=live, other=0.0), tl.load(values + at, mask=live, other=0.0)
        discount = tl.where(tl.load(dones + at, mask=live, other=0) != 0, 0.0, gamma)
        delta = reward + discount * next_value - value
        if rho is not None:
            delta *= tl.load(rho + at, mask=live, other=0.0)
            discount *= tl.load(c + at, mask=live, other=0.0)
        advantage = delta + lam * discount * advantage
        tl.store(out + at, advantage, mask=live)
        next_value = value


@triton.jit
def running_returns(rewards, dones, carry, out, gamma, steps, rows, PART: tl.constexpr):
    """R_t = r_t + gamma R_{t-1}, from 0 after each done; `carry` is R before step 0, updated in place."""
    row = tl.program_id(0) * PART + tl.arange(0, PART)
    live = row < rows
    previous = tl.load(carry + row, mask=live, other=0.0)
    for t in range(steps):
        at = t * rows + row
        returns = tl.load(rewards + at, mask=live, other=0.0) + gamma * previous
        tl.store(out + at, returns, mask=live)
        previous = tl.where(tl.load(dones + at, mask=live, other=0) != 0, 0.0, returns)
    tl.store(carry + row, previous, mask=live)
