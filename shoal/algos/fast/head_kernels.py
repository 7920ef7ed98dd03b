"""Triton functions: from a network's outputs to actions, and to PPO's loss and its gradient, for every action space.

A network's outputs are `o` (rows, OP): logits of choices and means of numbers (A columns in the order of ActionHead's
noise), the value in column A, zeros. Numbers have their log standard deviations in `s` (rows, OP), each in the column
of its mean.

Constants of a head (heads.py): A; SIZE columns of an action; PARTS choices; NUMBERS, how many numbers; SQUASH, whether
tanh squashes them. `table` holds for each choice its first column, its end and its column in actions, then for each
column of `o` that of the action and that of the stored log standard deviation (-1: no number). `bounds` holds scale,
center, low, high and log scale of each column. A single choice uses neither. `coefs` holds clip, value_clip,
value_coef and entropy_coef (base.py).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _part(table, k: tl.constexpr, A: tl.constexpr, PARTS: tl.constexpr, NUMBERS: tl.constexpr):
    """First column, end and action column of choice k."""
    if PARTS == 1 and NUMBERS == 0:
        return 0, A, 0
    else:
        return tl.load(table + 3 * k), tl.load(table + 3 * k + 1), tl.load(table + 3 * k + 2)


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _clamp(x, low, high):
    """nan stays nan."""
    return tl.where(x < low, low, tl.where(x > high, high, x))


@triton.jit
def sample(
    o, s, row, live, noise, masks, logits, values, actions, env_actions, table, bounds,
    A: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr, NUMBERS: tl.constexpr, SQUASH: tl.constexpr,
    WIDTH: tl.constexpr, MASKED: tl.constexpr, OP: tl.constexpr,
):  # fmt: skip
    """Stores values, logits and the actions sampled by `noise`; in `env_actions` (rows, WIDTH) as envs take them."""
    column = tl.arange(0, OP)
    is_own = (column < A)[None, :]
    place, stored = row[:, None] * A + column[None, :], row[:, None] * (A + NUMBERS) + column[None, :]
    inside = live[:, None] & is_own
    if MASKED:
        allowed = tl.load(masks + place, mask=inside, other=1)
        o = tl.where(is_own & (allowed == 0), -1e9, o)
    tl.store(values + row, tl.sum(tl.where((column == A)[None, :], o, 0.0), 1), mask=live)
    tl.store(logits + stored, o, mask=inside)
    random = tl.load(noise + place, mask=inside, other=0.0)
    for k in tl.static_range(PARTS):
        first, end, to = _part(table, k, A, PARTS, NUMBERS)
        is_choice = ((column >= first) & (column < end))[None, :]
        chosen = tl.argmax(tl.where(is_choice, o + random, -float("inf")), 1) - first
        # if all are nan, argmax returns any column, and it is used as an index
        chosen = tl.maximum(tl.minimum(chosen, end - first - 1), 0)
        tl.store(actions + row * SIZE + to, chosen.to(actions.dtype.element_ty), mask=live)
        tl.store(env_actions + row * WIDTH + to, chosen.to(env_actions.dtype.element_ty), mask=live)
    if NUMBERS > 0:
        to = tl.load(table + 3 * PARTS + column)
        std_at = tl.load(table + 3 * PARTS + OP + column)
        inside = live[:, None] & (to >= 0)[None, :]
        tl.store(logits + row[:, None] * (A + NUMBERS) + std_at[None, :], s, mask=inside)
        x = o + tl.exp(_clamp(s, -20.0, 4.0)) * random
        tl.store(actions + row[:, None] * SIZE + to[None, :], x.to(actions.dtype.element_ty), mask=inside)
        if SQUASH:
            x = 2.0 * tl.sigmoid(2.0 * x) - 1.0
        x = x * tl.load(bounds + column)[None, :] + tl.load(bounds + OP + column)[None, :]
        x = _clamp(x, tl.load(bounds + 2 * OP + column)[None, :], tl.load(bounds + 3 * OP + column)[None, :])
        tl.store(env_actions + row[:, None] * WIDTH + to[None, :], x.to(env_actions.dtype.element_ty), mask=inside)


@triton.jit
def load_targets(
    at, live, actions, logprobs, old_values, advantages, returns, counts,
    SIZE: tl.constexpr, PARTS: tl.constexpr, NUMBERS: tl.constexpr, COUNTED: tl.constexpr, CLIPPED: tl.constexpr,
):  # fmt: skip
    """What `loss_grads` compares the outputs for the transitions `at` with: actions, log-probabilities, advantages,
    returns, values, counts.

    Loaded before the network's products, these arrive while it computes. What is not needed is anything.
    """
    logprob = tl.load(logprobs + at, mask=live, other=0.0)
    advantage = tl.load(advantages + at, mask=live, other=0.0)
    target = tl.load(returns + at, mask=live, other=0.0)
    chosen, old, count = at, target, target
    if PARTS == 1 and NUMBERS == 0:
        chosen = tl.load(actions + at * SIZE, mask=live, other=0).to(tl.int64)
    if CLIPPED:
        old = tl.load(old_values + at, mask=live, other=0.0)
    if COUNTED:
        count = tl.load(counts + at, mask=live, other=0.0)
    return chosen, logprob, advantage, target, old, count


@triton.jit
def load_coefs(coefs):
    """clip, value_clip, value_coef and entropy_coef."""
    return tl.load(coefs), tl.load(coefs + 1), tl.load(coefs + 2), tl.load(coefs + 3)


@triton.jit
def load_stats(stats):
    """The mean of the advantages, 1 / their standard deviation, and 1 / the transitions that count."""
    return tl.load(stats), tl.load(stats + 1), tl.load(stats + 2)


@triton.jit
def loss_grads(
    o, s, at, live, block, masks, actions, chosen, old_logprob, advantage, target, old, count, mean, factor, share,
    sums, clip, value_clip, value_coef, entropy_coef, table, bounds,
    A: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr, NUMBERS: tl.constexpr, SQUASH: tl.constexpr,
    MASKED: tl.constexpr, COUNTED: tl.constexpr, CLIPPED: tl.constexpr, OP: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The gradients of the loss by `o` and by `s`: see choice_loss.py and `clipped_loss` of ppo.py. Stores the sums of
    metrics. `chosen` to `count` are those of `load_targets`, `mean` to `share` and `clip` to `entropy_coef` those of
    `load_stats` and `load_coefs`.
    """
    column = tl.arange(0, OP)
    is_own, is_value = (column < A)[None, :], (column == A)[None, :]
    if MASKED:
        allowed = tl.load(masks + at[:, None] * A + column[None, :], mask=live[:, None] & is_own, other=1)
        o = tl.where(is_own & (allowed == 0), -1e9, o)

    weight = tl.where(live, share, 0.0)
    if COUNTED:
        weight = weight * count

    # log-probability and entropy of each part; p, log p, chosen and entropy of the part by column
    log_prob, entropy = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
    p, logp, entropies = tl.zeros((BM, OP), tl.float32), tl.zeros((BM, OP), tl.float32), tl.zeros((BM, OP), tl.float32)
    is_chosen = tl.zeros((BM, OP), tl.int1)
    for k in tl.static_range(PARTS):
        first, end, to = _part(table, k, A, PARTS, NUMBERS)
        is_choice = ((column >= first) & (column < end))[None, :]
        z = tl.where(is_choice, o, -float("inf"))
        z = z - tl.max(z, 1)[:, None]
        e = tl.exp(z)
        total = tl.sum(e, 1)
        own_p = e / total[:, None]
        own_logp = tl.where(is_choice, z - tl.log(total)[:, None], 0.0)
        own_entropy = -tl.sum(own_p * own_logp, 1)
        if PARTS > 1 or NUMBERS > 0:
            chosen = tl.load(actions + at * SIZE + to, mask=live, other=0).to(tl.int64)
        own_chosen = column[None, :] == (first + chosen)[:, None]
        log_prob += tl.sum(tl.where(own_chosen, own_logp, 0.0), 1)
        entropy += own_entropy
        p, logp, is_chosen = p + own_p, logp + own_logp, is_chosen | own_chosen
        entropies = tl.where(is_choice, own_entropy[:, None], entropies)
    d_numbers, d_s = tl.zeros((BM, OP), tl.float32), tl.zeros((BM, OP), tl.float32)  # of the log-probability
    if NUMBERS > 0:
        to = tl.load(table + 3 * PARTS + column)
        is_number = (to >= 0)[None, :]
        x = tl.load(actions + at[:, None] * SIZE + to[None, :], mask=live[:, None] & is_number, other=0.0)
        log_std = _clamp(s, -20.0, 4.0)
        inverse = tl.exp(-log_std)
        z = (x - o) * inverse
        log_prob -= tl.sum(tl.where(is_number, 0.5 * z * z + log_std + 0.9189385332046727, 0.0), 1)  # log(2 pi) / 2
        entropy += tl.sum(tl.where(is_number, log_std + 1.4189385332046727, 0.0), 1)
        if SQUASH:
            change = 2.0 * (0.6931471805599453 - x - _softplus(-2.0 * x)) + tl.load(bounds + 4 * OP + column)[None, :]
            change = tl.sum(tl.where(is_number, change, 0.0), 1)
            log_prob -= change
            entropy += change
        d_numbers = tl.where(is_number, z * inverse, 0.0)
        in_range = is_number & (s >= -20.0) & (s <= 4.0)
        d_s = tl.where(in_range, z * z - 1.0, 0.0)

    log_ratio = log_prob - old_logprob
    ratio = tl.exp(tl.where(live, log_ratio, 0.0))
    advantage = (advantage - mean) * factor
    surrogate = advantage * ratio
    clipped = advantage * tl.minimum(tl.maximum(ratio, 1.0 - clip), 1.0 + clip)
    value = tl.sum(tl.where(is_value, o, 0.0), 1)
    error = value - target
    square, d_value = error * error, error
    if CLIPPED:
        change = value - old
        clipped_change = tl.minimum(tl.maximum(change, -value_clip), value_clip)
        clipped_error = old + clipped_change - target
        clipped_square = clipped_error * clipped_error
        d_clipped = tl.where(change == clipped_change, clipped_error, 0.0)
        d_value = tl.where(square >= clipped_square, error, d_clipped)
        square = tl.maximum(square, clipped_square)
    g = tl.where(surrogate <= clipped, surrogate, 0.0) * weight  # minus the derivative by log p of the action
    grads = p * g[:, None] - tl.where(is_chosen, g[:, None], 0.0)
    grads += (entropy_coef * weight)[:, None] * p * (logp + entropies)
    if NUMBERS > 0:
        grads -= d_numbers * g[:, None]
        d_s = tl.where(in_range, -d_s * g[:, None] - (entropy_coef * weight)[:, None], 0.0)
    grads = tl.where(is_value, (value_coef * weight * d_value)[:, None], tl.where(is_own, grads, 0.0))
    # five sums over the rows in one pass: a column each
    entry = tl.arange(0, 16)[None, :]
    metrics = tl.where(entry == 0, -(tl.minimum(surrogate, clipped) * weight)[:, None], 0.0)
    metrics = tl.where(entry == 1, (0.5 * square * weight)[:, None], metrics)
    metrics = tl.where(entry == 2, (entropy * weight)[:, None], metrics)
    metrics = tl.where(entry == 3, ((ratio - 1.0 - log_ratio) * weight)[:, None], metrics)
    metrics = tl.where(entry == 4, tl.where(tl.abs(ratio - 1.0) > clip, weight, 0.0)[:, None], metrics)
    entry = tl.arange(0, 16)
    tl.store(sums + block * 8 + entry, tl.sum(metrics, 0), mask=entry < 5)
    return grads, d_s
