"""Replay against a slow twin: a list of everything that each row lived through."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algos import replay as replays
from shoal.algos.replay import LAST, Replay, check_room, predict_nbytes
from shoal.errors import ConfigError
from tests.replay_world import World, make_actor, mask_of

torch.set_num_threads(1)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(1, 1), (3, 1), (2, 2), (6, 3)]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_what_is_drawn_is_what_was_lived(rows_agents, horizon, n_step, rollouts, can_die, fixed, seed):
    rows, agents = rows_agents
    actor = make_actor(agents)
    world = World(actor, rows, horizon, seed, can_die, masks=True, fixed=fixed)
    capacity = 2 * horizon + 2 + seed % 7
    replay = Replay(actor, capacity * rows, rows, horizon=horizon, agents=agents, mask_size=3)
    generator = torch.Generator().manual_seed(seed % 1000)
    for number in range(rollouts + 1):
        world.play()
        replay.store(world.rollout)
        if number % 3 == seed % 5:
            world.begin_anew()
            replay.truncate_all()
    lived = {(row, place.obs): k for row, life in enumerate(world.lives) for k, place in enumerate(life)}
    assert int(replay.stored) == sum(place.kind != LAST for life in world.lives for place in life)
    groups = agents if seed % 2 else 1
    batch = replay.sample(groups, 400, n_step, 0.5, generator)
    seen = set()
    for i in range(400 * groups):
        if float(batch.weights[i]) == 0.0:
            continue
        number = float(batch.obs[0][i, 0])
        row = next(row for row in range(rows) if (row, number) in lived)
        k = lived[row, number]
        seen.add((row, k))
        if groups > 1:
            assert row % agents == i % agents
        total, after, discount = world.window(row, k, n_step, 0.5)
        place = world.lives[row][k]
        assert (int(batch.actions[i]), place.kind == LAST) == (place.action, False)
        assert math.isclose(float(batch.returns[i]), total, abs_tol=1e-4)
        assert float(batch.discounts[i]) == discount
        if after is not None:
            assert batch.next_obs[0][i].tolist() == [after, after]
            assert batch.next_masks[i].tolist() == world.last_masks.get(after, mask_of(after)).tolist()
    newest = {
        (row, k)
        for row, life in enumerate(world.lives)
        for k in range(max(0, len(life) - capacity + 1), len(life))
        if life[k].kind != LAST
    }
    assert seen <= newest
    if len(newest) <= 20 and groups == 1:  # each has a chance of 1/26 or more in 400 draws: missing one is 1e-7
        assert seen == newest


def filled(agents=1, rows=2, capacity=30, rollouts=6, **more):
    actor = make_actor(agents)
    world = World(actor, rows, 4, seed=5, can_die=True)
    replay = Replay(actor, capacity * rows, rows, horizon=4, agents=agents, **more)
    for _ in range(rollouts):
        world.play()
        replay.store(world.rollout)
    return world, replay


def places(replay):
    """How likely each place should be, by the ring's own numbers, slowly."""
    rings = {}
    for row in range(replay.rows):
        base, head, count = (int(x[row]) for x in (replay.base, replay.heads, replay.counts))
        for age in range(1, count + 1):
            at = base + (head - age) % replay.capacity
            if int(replay.kinds[at]) != LAST:
                rings[at] = row
    return rings


def frequencies(replay, groups, draws):
    found = Counter()
    generator = torch.Generator().manual_seed(1)
    for _ in range(draws):
        batch = replay.sample(groups, 1000, 1, 0.9, generator)
        found.update(batch.index[batch.weights > 0].tolist())
    total = sum(found.values())
    return {place: count / total for place, count in found.items()}, total


def close(found, wanted, total):
    """Within five standard deviations of a count, everywhere."""
    assert set(found) <= set(wanted)
    for place, share in wanted.items():
        spread = math.sqrt(share * (1 - share) / total)
        assert abs(found.get(place, 0.0) - share) < 5 * spread + 1e-9


def test_all_transitions_are_as_likely():
    _, replay = filled()
    wanted = places(replay)
    found, total = frequencies(replay, 1, 40)
    close(found, dict.fromkeys(wanted, 1 / len(wanted)), total)


@pytest.mark.parametrize("groups", [1, 2])
def test_priorities_are_frequencies(groups):
    """In proportion to |error|^priority, over blocks and rows, and within each agent's share where asked for."""
    _, replay = filled(agents=2, rows=4, capacity=400, rollouts=150, priority=0.7, priority_beta=0.5)
    wanted = places(replay)
    assert len(wanted) > replays.BLOCK
    everything = torch.tensor(sorted(wanted))
    errors = torch.rand(len(everything), generator=torch.Generator().manual_seed(3)) * 10
    errors[7] = 0.0
    batch = replay.sample(1, len(everything), 1, 0.9, None)
    batch.index, batch.weights = everything, torch.ones(len(everything))
    replay.reprioritize(batch, errors)
    powers = {int(place): (float(error) + 1e-6) ** 0.7 for place, error in zip(everything, errors)}
    sums = Counter()
    for place, power in powers.items():
        sums[wanted[place] % groups if groups > 1 else 0] += power
    share = {place: p / sums[wanted[place] % groups if groups > 1 else 0] / groups for place, p in powers.items()}
    found, total = frequencies(replay, groups, 60)
    close(found, share, total)
    batch = replay.sample(1, 500, 1, 0.9, torch.Generator().manual_seed(2))
    assert float(batch.weights.max()) == 1.0
    rarest, commonest = min(share, key=share.get), max(share, key=share.get)
    weights = dict(zip(batch.index.tolist(), batch.weights.tolist()))
    if commonest in weights:
        assert weights[commonest] == min(weights.values())
    assert rarest not in weights or weights[rarest] == 1.0


def test_new_transitions_have_the_highest_priority_and_dead_places_none():
    world, replay = filled(priority=1.0)
    batch = replay.sample(1, 50, 1, 0.9, torch.Generator().manual_seed(1))
    replay.reprioritize(batch, torch.full((50,), 4.0))
    world.play()
    replay.store(world.rollout)
    wanted = places(replay)
    values = replay.priorities[: replay.places]
    assert set(values.nonzero().flatten().tolist()) == set(wanted)
    newest = int(replay.base[0] + (replay.heads[0] - 1) % replay.capacity)
    if newest in wanted:
        assert math.isclose(float(values[newest]), 4.0, rel_tol=1e-5)
    assert torch.equal(replay.sums, replay.priorities[:-1].view(-1, replays.BLOCK).sum(-1))


def test_nothing_can_be_drawn_from_an_empty_replay():
    for priority in (0.0, 0.6):
        replay = Replay(make_actor(), 64, 2, horizon=4, priority=priority)
        batch = replay.sample(1, 8, 3, 0.9, torch.Generator().manual_seed(1))
        assert batch.weights.tolist() == [0.0] * 8
        assert all(torch.isfinite(x).all() for x in (batch.returns, batch.discounts, batch.obs[0]))


# ---- memory ----


@pytest.mark.parametrize("priority", [0.0, 0.5])
@pytest.mark.parametrize("space", ["floats", "bytes", "dict"])
def test_memory_is_as_predicted(space, priority):
    obs = {
        "floats": spaces.Box(-1, 1, (7,), np.float32),
        "bytes": spaces.Box(0, 255, (9, 9, 3), np.uint8),
        "dict": spaces.Dict({"a": spaces.Box(0, 255, (5,), np.uint8), "b": spaces.Discrete(4)}),
    }[space]
    actor = make_actor(2, obs)
    replay = Replay(actor, 1000, 6, horizon=4, agents=2, mask_size=3, priority=priority)
    held = {id(x): x for x in vars(replay).values() if isinstance(x, torch.Tensor)} | {id(x): x for x in replay.obs}
    taken = sum(x.numel() * x.element_size() for x in held.values())
    assert replay.nbytes == taken
    assert predict_nbytes(actor, 1000, 6, mask_size=3, priority=bool(priority)) == taken


def test_bytes_stay_bytes_and_are_kept_once():
    """Ten million transitions of 84 x 84 pixels are 70.6 GB, not 282 or 141."""
    actor = make_actor(1, spaces.Box(0, 255, (84, 84, 1), np.uint8))
    assert Replay(actor, 100, 4, horizon=4).obs[0].dtype == torch.uint8
    assert predict_nbytes(actor, 10_000_000, 1000) / 10_000_000 < 84 * 84 + 7


def test_a_replay_that_does_not_fit_is_refused_before_it_is_made():
    actor = make_actor(1, spaces.Box(0, 255, (84, 84, 4), np.uint8))
    with pytest.raises(
        ConfigError, match=r"a replay of 100,000,000 transitions takes 2823.\d\d GB .*--train.replay-size"
    ):
        Replay(actor, 100_000_000, 1000, horizon=4)
    check_room(900, 9, 1001)
    with pytest.raises(ConfigError, match="Try --train.replay-size 8"):
        check_room(902, 9, 1000)


def test_a_replay_shorter_than_a_rollout_is_refused():
    with pytest.raises(ConfigError, match="Try --train.replay-size 640"):
        Replay(make_actor(), 100, 64, horizon=4)
