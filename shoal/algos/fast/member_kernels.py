"""Triton kernels of a league: rows ordered by member, acting for all members at once, and the results of games.

Launched by members.py and by shoal/league/games.py. A counting sort orders the rows, so that every tile of TILE rows
has one member: `tiles` says which one (-1: none), `limits[member]` is the end of its slots, and `order[slot]` is a row
of the opponents. A member's weights are a row of the bank, `stride` numbers after those of the member before. Sizes and
flags are named as in kernels.py. There are no atomic additions of floats: the same inputs give the same bits.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from shoal.algos.fast import core_kernels
from shoal.algos.fast.kernels import _load_obs, _outputs

_core_outputs = core_kernels._outputs


@triton.jit
def _members_of(member, row, live, PER_ENV: tl.constexpr, MEMBERS: tl.constexpr):
    """(rows, MEMBERS) 1 where a member plays a row."""
    who = tl.load(member + row // PER_ENV, mask=live, other=-1)
    return (who[:, None] == tl.arange(0, MEMBERS)[None, :]).to(tl.int32)


@triton.jit
def count_rows(member, counts, rows, PER_ENV: tl.constexpr, MEMBERS: tl.constexpr, BM: tl.constexpr):
    """How many of each block's BM rows every member plays."""
    block = tl.program_id(0)
    row = block * BM + tl.arange(0, BM)
    plays = _members_of(member, row, row < rows, PER_ENV, MEMBERS)
    tl.store(counts + block * MEMBERS + tl.arange(0, MEMBERS), tl.sum(plays, 0))


@triton.jit
def plan_tiles(
    counts, starts, tiles, limits, blocks, num_tiles,
    TILE: tl.constexpr, MEMBERS: tl.constexpr, BLOCKS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """From the counts of all blocks: the first slot of each block and member, the member of each tile, and limits."""
    who, block = tl.arange(0, MEMBERS), tl.arange(0, BLOCKS)
    total = tl.zeros((MEMBERS,), tl.int32)
    for first in range(0, blocks, BLOCKS):
        inside = (first + block < blocks)[:, None] & (who >= 0)[None, :]
        total += tl.sum(tl.load(counts + (first + block)[:, None] * MEMBERS + who[None, :], mask=inside, other=0), 0)
    used = (total + TILE - 1) // TILE
    ends = tl.cumsum(used, 0)
    next_slot = (ends - used) * TILE
    tl.store(limits + who, next_slot + total)
    for first in range(0, blocks, BLOCKS):
        inside = (first + block < blocks)[:, None] & (who >= 0)[None, :]
        place = (first + block)[:, None] * MEMBERS + who[None, :]
        count = tl.load(counts + place, mask=inside, other=0)
        tl.store(starts + place, next_slot[None, :] + tl.cumsum(count, 0) - count, mask=inside)
        next_slot += tl.sum(count, 0)
    all_used = tl.sum(used, 0)
    for first in range(0, num_tiles, TILES):
        tile = first + tl.arange(0, TILES)
        owner = tl.sum((ends[None, :] <= tile[:, None]).to(tl.int32), 1)
        tl.store(tiles + tile, tl.where(tile < all_used, owner, -1), mask=tile < num_tiles)


@triton.jit
def place_rows(member, starts, order, rows, PER_ENV: tl.constexpr, MEMBERS: tl.constexpr, BM: tl.constexpr):
    """Puts every row into its slot: in each member's slots the rows are ascending."""
    block = tl.program_id(0)
    row = block * BM + tl.arange(0, BM)
    live = row < rows
    plays = _members_of(member, row, live, PER_ENV, MEMBERS)
    start = tl.load(starts + block * MEMBERS + tl.arange(0, MEMBERS))
    slot = tl.sum(plays * (start[None, :] + tl.cumsum(plays, 0) - 1), 1)
    tl.store(order + slot, row, mask=live)


@triton.jit
def _choose(o, row, at, live, noise, masks, env_actions, A: tl.constexpr, MASKED: tl.constexpr):
    """Stores the actions sampled by `noise`, from the network's outputs `o` (rows, 16). `at`: rows of the envs."""
    column = tl.arange(0, 16)
    is_choice = (column < A)[None, :]
    inside = live[:, None] & is_choice
    if MASKED:
        allowed = tl.load(masks + at[:, None] * A + column[None, :], mask=inside, other=1)
        o = tl.where(is_choice & (allowed == 0), -1e9, o)
    noisy = o + tl.load(noise + row[:, None] * A + column[None, :], mask=inside, other=0.0)
    chosen = tl.argmax(tl.where(is_choice, noisy, -float("inf")), 1)
    chosen = tl.minimum(chosen, A - 1)  # if all are nan, argmax returns any column, and it is used as an index
    tl.store(env_actions + at, chosen.to(env_actions.dtype.element_ty), mask=live)


@triton.jit
def act(
    obs, weights, narrow, mean, scale, noise, masks, hidden, cell, new_hidden, new_cell, env_actions,
    order, tiles, limits, places, stride, narrow_stride,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, MASKED: tl.constexpr, DTYPE: tl.constexpr, G: tl.constexpr, RECURRENT: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """One step of all members: the actions of the envs' rows `places`, and the next state of a core (G gates)."""
    tile = tl.program_id(0)
    member = tl.load(tiles + tile).to(tl.int64)
    if member >= 0:
        slot = tile * BM + tl.arange(0, BM)
        live = slot < tl.load(limits + member)
        row = tl.load(order + slot, mask=live, other=0).to(tl.int64)
        at = tl.load(places + row, mask=live, other=0)
        own, own_narrow = weights + member * stride, narrow + member * narrow_stride
        own_mean, own_scale = mean + member * D, scale + member * D
        if G == 0:
            o = _outputs(obs, at, live, own, own_narrow, own_mean, own_scale, D, DP, H, A, ACT, UNIT, NORM, DTYPE)
            _choose(o, row, at, live, noise, masks, env_actions, A, MASKED)
        else:
            x = _load_obs(obs, at, live, own_mean, own_scale, D, DP, UNIT, NORM).to(DTYPE)
            o = _core_outputs(
                x, row, live, own, own_narrow, hidden, cell, new_hidden, new_cell,
                D, DP, H, A, ACT, DTYPE, G, RECURRENT, BM,
            )  # fmt: skip
            _choose(o, row, at, live, noise, masks, env_actions, A, MASKED)


@triton.jit
def linear(
    x, weights, bias, add, out, order, tiles, limits, stride, IN, OUT,
    BIASED: tl.constexpr, ADDS: tl.constexpr, PRECISION: tl.constexpr, DTYPE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out[row] = W[member of row] x[row] + b (+ add[row]), with W (OUT, IN) of each member `stride` numbers apart."""
    tile, first = tl.program_id(0), tl.program_id(1) * BN
    member = tl.load(tiles + tile).to(tl.int64)
    if member >= 0:
        slot = tile * BM + tl.arange(0, BM)
        live = slot < tl.load(limits + member)
        row = tl.load(order + slot, mask=live, other=0).to(tl.int64)
        column, k = first + tl.arange(0, BN), tl.arange(0, BK)
        own = weights + member * stride
        total = tl.zeros((BM, BN), tl.float32)
        for start in range(0, IN, BK):
            place, inside = start + k, start + k < IN
            a = tl.load(x + row[:, None] * IN + place[None, :], mask=live[:, None] & inside[None, :], other=0.0)
            w = tl.load(
                own + column[:, None] * IN + place[None, :], mask=(column < OUT)[:, None] & inside[None, :], other=0.0
            )
            total = tl.dot(a.to(DTYPE), tl.trans(w.to(DTYPE)), total, input_precision=PRECISION)
        if BIASED:
            total += tl.load(bias + member * stride + column, mask=column < OUT, other=0.0)[None, :]
        place, inside = row[:, None] * OUT + column[None, :], live[:, None] & (column < OUT)[None, :]
        if ADDS:
            total += tl.load(add + place, mask=inside, other=0.0)
        tl.store(out + place, total, mask=inside)


@triton.jit
def inputs(obs, mean, scale, member, places, out, rows, size, PART: tl.constexpr):
    """The policy's inputs (rows, size): observations of the envs' rows `places`, normalized for each row's member."""
    at = (tl.program_id(0) * PART + tl.arange(0, PART)).to(tl.int64)
    row, column = at // size, at % size
    live = row < rows
    place = tl.load(places + row, mask=live, other=0) * size + column
    own = tl.load(member + row, mask=live, other=0) * size + column
    x = tl.load(obs + place, mask=live, other=0).to(tl.float32) - tl.load(mean + own, mask=live, other=0.0)
    x *= tl.load(scale + own, mask=live, other=0.0)
    tl.store(out + at, tl.where(x < -10.0, -10.0, tl.where(x > 10.0, 10.0, x)), mask=live)


@triton.jit
def take(
    obs, rewards, done, truncated, final_obs, alive, masks, places,
    to_obs, to_rewards, to_done, to_truncated, to_final, to_alive, to_masks, rows, size,
    TRUNCATES: tl.constexpr, ALIVE: tl.constexpr, MASKS: tl.constexpr, BM: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Copies the results of a step from the envs' rows `places` into a rollout: see LeagueCollector.

    `size`: numbers of an observation. MASKS: entries of an action mask, 0 without masks. A block copies BM rows.
    """
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    live, column = row < rows, tl.arange(0, PART)
    at = tl.load(places + row, mask=live, other=0)
    tl.store(to_rewards + row, tl.load(rewards + at, mask=live, other=0.0), mask=live)
    tl.store(to_done + row, tl.load(done + at, mask=live, other=0), mask=live)
    if ALIVE:
        tl.store(to_alive + row, tl.load(alive + at, mask=live, other=0), mask=live)
    cut = live
    if TRUNCATES:
        flag = tl.load(truncated + at, mask=live, other=0)
        tl.store(to_truncated + row, flag, mask=live)
        cut = live & (flag != 0)
    for first in range(0, size, PART):
        inside = (first + column < size)[None, :]
        source, target = at[:, None] * size + (first + column)[None, :], row[:, None] * size + (first + column)[None, :]
        tl.store(
            to_obs + target, tl.load(obs + source, mask=live[:, None] & inside, other=0), mask=live[:, None] & inside
        )
        if TRUNCATES:
            last = tl.load(final_obs + source, mask=cut[:, None] & inside, other=0)
            tl.store(to_final + target, last, mask=cut[:, None] & inside)
    if MASKS > 0:
        for first in range(0, MASKS, PART):
            inside = live[:, None] & (first + column < MASKS)[None, :]
            allowed = tl.load(masks + at[:, None] * MASKS + (first + column)[None, :], mask=inside, other=1)
            tl.store(to_masks + row[:, None] * MASKS + (first + column)[None, :], allowed, mask=inside)


@triton.jit
def referee(
    rewards, is_over, returns, member, next_member, learner, side, sides, counts, margin, envs,
    MEMBERS: tl.constexpr, AGENTS: tl.constexpr, SIDES: tl.constexpr, SIZE: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """`finish_step` of shoal/league/games.py: adds up returns, counts games that ended, and changes opponents there."""
    env = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    live = env < envs
    over = live & (tl.load(is_over + env, mask=live, other=0) != 0)
    own_side = tl.load(side + env, mask=live, other=0)
    own = tl.zeros((BM,), tl.float32)
    best = tl.zeros((BM,), tl.float32) - float("inf")
    for number in tl.static_range(SIDES):
        total = tl.zeros((BM,), tl.float32)
        for k in tl.static_range(SIZE):
            row = env * AGENTS + tl.load(sides + number * SIZE + k)
            value = tl.load(returns + row, mask=live, other=0.0) + tl.load(rewards + row, mask=live, other=0.0)
            tl.store(returns + row, tl.where(over, 0.0, value), mask=live)
            total += value
        total = total / SIZE
        own = tl.where(own_side == number, total, own)
        best = tl.where(own_side == number, best, tl.maximum(best, total))
    lead = own - best
    outcome = tl.where(lead > margin, 0, tl.where(lead < -margin, 2, 1))
    now = tl.load(member + env, mask=live, other=0)
    game = tl.load(learner + env, mask=live, other=0) * MEMBERS + now
    tl.atomic_add(counts + (game * SIDES + own_side) * 3 + outcome, tl.where(over, 1, 0).to(tl.int64), mask=over)
    tl.store(member + env, tl.load(next_member + env, mask=over, other=0), mask=over)
