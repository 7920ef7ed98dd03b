"""Triton kernels: from a rollout's rewards to PPO's advantages, returns and log-probabilities (launched by base.py).

`make_batch` of algos/ppo.py defines the results. In torch it is some seventy launches of an iteration; here it is four:
`return_sums` and `reward_scale` (with `normalize_reward`), `targets` and `batch_stats`.

A tile has CHUNK steps of PART rows. Sums over time are scans over the steps of a tile, which load all of them at once.
`discounts` holds gamma and lambda. COUNTED: only transitions of agents in the game (`alive`) count.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _chain(a1, b1, a2, b2):
    """x -> a1 x + b1, and then x -> a2 x + b2."""
    return a1 * a2, b2 + a2 * b1


@triton.jit
def _weights(alive, at, inside, COUNTED: tl.constexpr):
    """1.0 for transitions that count."""
    if COUNTED:
        inside = inside & (tl.load(alive + at, mask=inside, other=0) != 0)
    return tl.where(inside, 1.0, 0.0).to(tl.float64)


@triton.jit
def _total(tile):
    return tl.sum(tl.sum(tile, 1), 0)


@triton.jit
def return_sums(
    rewards, dones, alive, carry, sums, discounts, steps, rows,
    COUNTED: tl.constexpr, CHUNK: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Sums over a block of R_t = r_t + gamma R_{t-1}, from 0 after each done: count, sum, sum of squares.

    `carry` is R before step 0, updated in place: see `running_returns` of algos/ops.py.
    """
    gamma = tl.load(discounts)
    block = tl.program_id(0)
    row = block * PART + tl.arange(0, PART)
    live = row < rows
    before = tl.load(carry + row, mask=live, other=0.0)
    ones = tl.zeros((CHUNK, PART), tl.float64)
    total, squares = tl.zeros((CHUNK, PART), tl.float64), tl.zeros((CHUNK, PART), tl.float64)
    for first in range(0, steps, CHUNK):
        t = first + tl.arange(0, CHUNK)
        inside, at = (t < steps)[:, None] & live[None, :], t[:, None] * rows + row[None, :]
        reward = tl.load(rewards + at, mask=inside, other=0.0)
        ended = tl.load(dones + at - rows, mask=inside & (t > 0)[:, None], other=0) != 0
        # after the last step the sum stays as it is
        decay = tl.where((t < steps)[:, None], tl.where(ended, 0.0, gamma), 1.0)
        a, b = tl.associative_scan((decay, reward), 0, _chain)
        returns = b + a * before[None, :]
        n, wide = _weights(alive, at, inside, COUNTED), returns.to(tl.float64)
        ones += n
        total += wide * n
        squares += wide * wide * n
        before = tl.sum(tl.where((t == first + CHUNK - 1)[:, None], returns, 0.0), 0)
    ended = tl.load(dones + (steps - 1) * rows + row, mask=live, other=0) != 0
    tl.store(carry + row, tl.where(ended, 0.0, before), mask=live)
    tl.store(sums + block * 3, _total(ones))
    tl.store(sums + block * 3 + 1, _total(total))
    tl.store(sums + block * 3 + 2, _total(squares))


@triton.jit
def _sum_of(sums, blocks, column: tl.constexpr, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr):
    """The sum of a column of (blocks, COLUMNS) numbers."""
    index, part = tl.arange(0, BLOCKS), tl.zeros((BLOCKS,), tl.float64)
    for first in range(0, blocks, BLOCKS):
        place = sums + (first + index) * COLUMNS + column
        part += tl.load(place, mask=first + index < blocks, other=0.0)
    return tl.sum(part, 0)


@triton.jit
def reward_scale(sums, mean, var, count, scale, blocks, BLOCKS: tl.constexpr):
    """Adds the sums of `return_sums` to running moments, as `RunningMoments.merge` does; the factor of rewards."""
    added = _sum_of(sums, blocks, 0, 3, BLOCKS)
    own = tl.maximum(added, 1.0)
    old_mean, old_var, old_count = tl.load(mean), tl.load(var), tl.load(count)
    new_mean = _sum_of(sums, blocks, 1, 3, BLOCKS) / own
    new_var = tl.maximum(_sum_of(sums, blocks, 2, 3, BLOCKS) / own - new_mean * new_mean, 0.0)
    total = tl.maximum(old_count + added, 1.0)
    delta = tl.where(added > 0.0, new_mean - old_mean, 0.0)
    squares = old_var * old_count + new_var * added + delta * delta * (old_count * added / total)
    variance = tl.where(old_count + added > 0.0, squares / total, old_var)
    tl.store(mean, old_mean + delta * (added / total))
    tl.store(var, variance)
    tl.store(count, old_count + added)
    tl.store(scale, (1.0 / tl.sqrt(variance + 1e-8)).to(tl.float32))


@triton.jit
def _log_prob(logits, actions, at, inside, A: tl.constexpr):
    """The log-probability of a choice of A, from its logits."""
    place, chosen = logits + at * A, tl.load(actions + at, mask=inside, other=0)
    highest = tl.load(place, mask=inside, other=0.0)
    for k in tl.static_range(1, A):
        highest = tl.maximum(highest, tl.load(place + k, mask=inside, other=0.0))
    total, picked = tl.zeros(highest.shape, tl.float32), highest
    for k in tl.static_range(A):
        z = tl.load(place + k, mask=inside, other=0.0) - highest
        total += tl.exp(z)
        picked = tl.where(chosen == k, z, picked)
    return picked - tl.log(total)


@triton.jit
def targets(
    rewards, scale, values, dones, flags, last_values, alive, logits, actions, advantages, returns, logprobs, sums,
    discounts, steps, rows, window,
    SCALED: tl.constexpr, TRUNCATES: tl.constexpr, COUNTED: tl.constexpr, A: tl.constexpr,
    CHUNK: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """GAE and its returns: see `gae` of algos/ops.py. A: choices of the action, for its log-probability; 0: none.

    TRUNCATES: where `flags`, the value of the last observation (windows, rows) is added to the reward. `sums` gets for
    each block: count, sums and sums of squares of advantages and of returns.
    """
    gamma, lam = tl.load(discounts), tl.load(discounts + 1)
    factor = 1.0
    if SCALED:
        factor = tl.load(scale)
    block = tl.program_id(0)
    row = block * PART + tl.arange(0, PART)
    live = row < rows
    after = tl.zeros((PART,), tl.float32)  # the advantage of the step after the tile
    ones = tl.zeros((CHUNK, PART), tl.float64)
    sum_a, sum_aa = tl.zeros((CHUNK, PART), tl.float64), tl.zeros((CHUNK, PART), tl.float64)
    sum_r, sum_rr = tl.zeros((CHUNK, PART), tl.float64), tl.zeros((CHUNK, PART), tl.float64)
    chunks = (steps + CHUNK - 1) // CHUNK
    for k in range(chunks):
        first = (chunks - 1 - k) * CHUNK
        t = first + tl.arange(0, CHUNK)
        inside, at = (t < steps)[:, None] & live[None, :], t[:, None] * rows + row[None, :]
        reward, value = tl.load(rewards + at, mask=inside, other=0.0), tl.load(values + at, mask=inside, other=0.0)
        next_value = tl.load(values + at + rows, mask=inside, other=0.0)
        discount = tl.where(tl.load(dones + at, mask=inside, other=0) != 0, 0.0, gamma)
        if SCALED:
            reward *= factor
            reward = tl.where(reward < -10.0, -10.0, tl.where(reward > 10.0, 10.0, reward))  # nan stays nan
        if TRUNCATES:
            is_cut = inside & (tl.load(flags + at, mask=inside, other=0) != 0)
            place = last_values + (t // window)[:, None] * rows + row[None, :]
            reward += gamma * tl.load(place, mask=is_cut, other=0.0)
        delta = reward + discount * next_value - value
        a, b = tl.associative_scan((lam * discount, delta), 0, _chain, reverse=True)
        advantage = b + a * after[None, :]
        target = advantage + value
        tl.store(advantages + at, advantage, mask=inside)
        tl.store(returns + at, target, mask=inside)
        if A > 0:
            tl.store(logprobs + at, _log_prob(logits, actions, at.to(tl.int64), inside, A), mask=inside)
        after = tl.sum(tl.where((t == first)[:, None], advantage, 0.0), 0)
        n, wide, wide_r = _weights(alive, at, inside, COUNTED), advantage.to(tl.float64), target.to(tl.float64)
        ones += n
        sum_a += wide * n
        sum_aa += wide * wide * n
        sum_r += wide_r * n
        sum_rr += wide_r * wide_r * n
    tl.store(sums + block * 5, _total(ones))
    tl.store(sums + block * 5 + 1, _total(sum_a))
    tl.store(sums + block * 5 + 2, _total(sum_aa))
    tl.store(sums + block * 5 + 3, _total(sum_r))
    tl.store(sums + block * 5 + 4, _total(sum_rr))


@triton.jit
def batch_stats(sums, out, blocks, BLOCKS: tl.constexpr):
    """From the sums of `targets`: the advantages' mean, 1 / their standard deviation, and the explained variance."""
    total = tl.maximum(_sum_of(sums, blocks, 0, 5, BLOCKS), 1.0)
    mean, mean_r = _sum_of(sums, blocks, 1, 5, BLOCKS) / total, _sum_of(sums, blocks, 3, 5, BLOCKS) / total
    square, square_r = _sum_of(sums, blocks, 2, 5, BLOCKS) / total, _sum_of(sums, blocks, 4, 5, BLOCKS) / total
    variance, variance_r = tl.maximum(square - mean * mean, 0.0), square_r - mean_r * mean_r
    tl.store(out, mean.to(tl.float32))
    tl.store(out + 1, (1.0 / (tl.sqrt(variance) + 1e-8)).to(tl.float32))
    # returns minus values are the advantages. Of equal returns the difference is what rounding leaves
    differs = variance_r > 1e-14 * square_r
    tl.store(out + 2, tl.where(differs, 1.0 - variance / variance_r, float("nan")).to(tl.float32))
