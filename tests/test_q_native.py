"""What C does for Q-learning on a CPU (native/core/qlearn.c) against the same by torch."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algos import dqn
from shoal.algos.actor import Actor
from shoal.algos.dqn import DQN
from shoal.algos.fast import q_native
from shoal.algos.learner import flatten
from shoal.algos.q import make_policy
from shoal.algos.replay import Batch, Replay
from shoal.algos.roles import Role
from shoal.algos.rollout import Rollout, StepViews
from shoal.native import build, lib, qlearn
from shoal.nn.policy import Net
from tests.replay_world import World
from tests.replay_world import make_actor as replay_actor
from tests.training import make_trainer

CHAIN = str(Path(__file__).parent / "chain.h")


def make_actor(config, inputs=5, choices=3, *, normalize_obs=False, space=None, **net):
    seen = space or spaces.Box(-np.inf, np.inf, (inputs,), np.float32)
    role, shape = Role(None, (), seen, spaces.Discrete(choices)), Net(**({"hidden": 9} | net))
    torch.manual_seed(choices)
    policy, head = make_policy(config, role, shape, 1)
    with torch.no_grad():  # the last layer begins near zero, where nothing is learned
        for part in policy.parameters():
            part += 0.3 * torch.randn_like(part)
    return Actor(seen, role.action_space, shape, seed=0, policy=policy, head=head, normalize_obs=normalize_obs)


def random_batch(rows, inputs, choices, seed, has_masks):
    g = torch.Generator().manual_seed(seed)
    masks = (torch.rand(rows, choices, generator=g) < 0.6).to(torch.int8) if has_masks else None
    weights = torch.rand(rows, generator=g)
    weights[torch.rand(rows, generator=g) < 0.3] = 0.0
    return Batch(
        index=torch.arange(rows),
        obs=[torch.randn(rows, inputs, generator=g)],
        actions=torch.randint(choices, (rows,), generator=g),
        returns=3 * torch.randn(rows, generator=g),
        next_obs=[torch.randn(rows, inputs, generator=g)],
        discounts=torch.where(torch.rand(rows, generator=g) < 0.2, 0.0, 0.97),
        next_masks=masks,
        weights=weights,
    )


def step(learner, batch):
    """A gradient step as `dqn.update` takes it."""
    return dqn.improve(learner, batch) if learner.native is None else dqn.improve_natively(learner, batch)


def held(learner):
    return [learner.weights.data, learner.weights.grad, learner.target.data, *learner.optimizer.state.values()]


NETS = {
    "plain": {},
    "no hidden layer": {"layers": 0},
    "one layer, tanh": {"layers": 1, "activation": "tanh", "hidden": 24},
    "three layers": {"layers": 3, "hidden": 17},
    "wide": {"hidden": 128},
}
STEPS = {
    "as it is": {},
    "layer norm": {"layer_norm": True},
    "not double, mse": {"double": False, "loss": "mse"},
    "follows": {"target_tau": 0.2, "layer_norm": True, "double": False},
    "jumps": {"target_every": 2, "loss": "mse"},
    "clipped": {"max_grad_norm": 0.05},
    "never clipped": {"max_grad_norm": 0.0},
}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("options", STEPS)
def test_a_gradient_step_is_torchs(net, options):
    """Four in a row: weights, gradients, Adam's state, the target network and the metrics."""
    for rows, inputs, choices, has_masks in (
        (1, 1, 2, False),
        (37, 5, 3, True),
        (128, 18, 17, True),
        (64, 4, 1, False),
    ):
        config = DQN(replay_size=400, replay_start=1, batch_size=rows, adam_eps=1e-3, **STEPS[options])
        actors = [make_actor(config, inputs, choices, **NETS[net]) for _ in range(2)]
        by_c, by_torch = (dqn.Learner(config, actor, 2, seed=0) for actor in actors)
        assert by_c.native is not None
        by_torch.native = None
        for seed in range(4):
            batch = random_batch(rows, inputs, choices, seed, has_masks)
            found = [step(learner, copy.deepcopy(batch)) for learner in (by_c, by_torch)]
            torch.testing.assert_close(torch.tensor(found[0]), found[1], rtol=1e-4, atol=1e-5)
        for mine, exact in zip(held(by_c), held(by_torch)):
            torch.testing.assert_close(mine, exact, rtol=2e-4, atol=2e-5)
        assert int(by_c.updates) == 4


def test_priorities_are_torchs():
    config = DQN(replay_size=400, replay_start=1, batch_size=16, priority=0.6, adam_eps=1e-3)
    learners = [dqn.Learner(config, make_actor(config), 2, seed=0) for _ in range(2)]
    learners[1].native = None
    for learner in learners:
        learner.replay.counts.fill_(16)
        step(learner, random_batch(16, 5, 3, 0, False))
    torch.testing.assert_close(learners[0].replay.priorities, learners[1].replay.priorities)
    assert len(learners[0].replay.priorities.unique()) > 5


@pytest.mark.parametrize("rows", [1, 3, 8, 70])
@pytest.mark.parametrize("has_masks", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_acting_is_torchs(rows, has_masks, layer_norm):
    config, choices = DQN(layer_norm=layer_norm), 5
    actor = make_actor(config, 7, choices, hidden=32, normalize_obs=True)
    actor.moments["0"].update(torch.randn(100, 7) * 3 + 1)
    flatten(list(actor.policy.parameters()))
    rollout = Rollout(actor, 2, rows, mask_size=choices if has_masks else 0)
    rollout.obs[0].normal_()
    actor.head.epsilon.fill_(0.5)
    rollout.head.draw(rollout.noise, None)
    if rollout.masks is not None:
        rollout.masks.copy_(torch.rand(rollout.masks.shape) < 0.5)
    cell, by_c = StepViews(rollout, 1, slice(0, rows)), q_native.NativeActing(actor, rows)
    assert by_c.begin()
    by_c.act(cell)
    with torch.inference_mode():
        logits, values, _ = actor.step(cell.obs, ())
        logits = logits if cell.mask is None else rollout.head.mask(logits, cell.mask)
        torch.testing.assert_close(cell.logits, logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(cell.values, values, rtol=1e-4, atol=1e-5)
        assert torch.equal(cell.actions, rollout.head.sample(cell.logits, cell.noise))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(1, 1), (3, 1), (2, 2), (6, 3)]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 99),
    st.booleans(),
    st.booleans(),
    st.sampled_from([3, 300]),
)
def test_the_replay_is_torchs(rows_agents, horizon, n_step, seed, can_die, masks, choices):
    """What it stores, to the bit; what it draws with the same chances, but for the last bit of powers of gamma."""
    rows, agents = rows_agents
    masks = masks and choices == 3
    actor = replay_actor(agents, choices=choices)
    world = World(actor, rows, horizon, seed, can_die, masks)
    more = {"horizon": horizon, "agents": agents, "mask_size": 3 if masks else 0}
    by_c, by_torch = (Replay(actor, rows * (2 * horizon + 7), rows, **more) for _ in range(2))
    by_torch.native = None
    for play in range(9):
        world.play()
        by_c.store(world.rollout)
        by_torch.store(world.rollout)
        if play == 5:
            world.begin_anew()
            by_c.truncate_all()
            by_torch.truncate_all()
        for name, part in by_torch.tensors().items():
            assert torch.equal(by_c.tensors()[name], part), name
        for groups in {1, agents}:
            streams = [torch.Generator().manual_seed(seed) for _ in range(2)]
            mine, exact = (
                part.sample(groups, 6, n_step, 0.9, stream) for part, stream in zip((by_c, by_torch), streams)
            )
            for name in ("index", "actions", "weights", "next_masks"):
                a, b = getattr(mine, name), getattr(exact, name)
                assert (a is None) == (b is None)
                assert a is None or torch.equal(a, b), name
            assert torch.equal(mine.obs[0], exact.obs[0])
            assert torch.equal(mine.next_obs[0], exact.next_obs[0])
            torch.testing.assert_close(mine.returns, exact.returns)
            torch.testing.assert_close(mine.discounts, exact.discounts)


def test_windows_of_places_that_priorities_drew_are_torchs():
    actor = replay_actor()
    world = World(actor, 3, 4, 0)
    replay = Replay(actor, 60, 3, horizon=4, priority=0.7, priority_beta=0.5)
    for _ in range(7):
        world.play()
        replay.store(world.rollout)
    mine = replay.sample(1, 50, 3, 0.9, torch.Generator().manual_seed(1))
    replay.native = None
    exact = replay.sample(1, 50, 3, 0.9, torch.Generator().manual_seed(1))
    for name in ("index", "weights", "returns", "discounts"):
        torch.testing.assert_close(getattr(mine, name), getattr(exact, name))
    assert torch.equal(mine.next_obs[0], exact.next_obs[0])


def test_leaves_of_any_kind_are_stored():
    """Bytes, choices and numbers, each as it is."""
    leaves = {"a": spaces.Box(0, 255, (2, 3), np.uint8), "b": spaces.Discrete(3), "c": spaces.Box(0, 1, (2,))}
    space = spaces.Dict(leaves)
    actor = make_actor(DQN(), space=space)
    rollout = Rollout(actor, 3, 4)
    by_c, by_torch = (Replay(actor, 80, 4, horizon=3) for _ in range(2))
    by_torch.native = None
    for leaf in rollout.obs:
        leaf.copy_(torch.randint(0, 3, leaf.shape))
    for replay in (by_c, by_torch):
        replay.store(rollout)
    mine, exact = (replay.sample(1, 20, 2, 0.9, torch.Generator().manual_seed(0)) for replay in (by_c, by_torch))
    assert all(torch.equal(a, b) for a, b in zip([*mine.obs, *mine.next_obs], [*exact.obs, *exact.next_obs]))
    assert [leaf.dtype for leaf in mine.obs] == [leaf.dtype for leaf in rollout.obs]


@pytest.mark.parametrize("layer_norm", [False, True])
def test_every_build_gives_the_same_bytes(monkeypatch, layer_norm):
    found = []
    for variant in build.variants():
        if variant == "avx2" and lib.load_core().cpu_level() < 2:
            continue
        library = qlearn.QLearn(build.library(build.QLEARN_SOURCE, variant))
        monkeypatch.setattr(qlearn, "load", lambda library=library: library)
        config = DQN(replay_size=400, replay_start=1, batch_size=37, layer_norm=layer_norm)
        learner = dqn.Learner(config, make_actor(config, hidden=45), 2, seed=0)
        for seed in range(3):
            step(learner, random_batch(37, 5, 3, seed, True))
        found.append([part.clone() for part in held(learner)])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other))


@pytest.mark.parametrize("options", [{}, {"layer_norm": True, "n_step": 3, "priority": 0.5}])
def test_a_run_is_torchs(options):
    """A few updates of a whole run: acting, storing, drawing and learning."""

    def weights(by_c):
        train = {"total_steps": "10k", "train_frequency": 4, "batch_size": 32, "replay_start": 64, "adam_eps": 1e-2}
        t = make_trainer(CHAIN, algo="dqn", train=train | options, vec={"num_envs": 8})
        learner = t.learners[0]
        if not by_c:
            learner.native = learner.replay.native = None
            t.collector._quick = [None]
        for _ in range(10):
            t.iterate()
        t.close()
        assert int(learner.updates) > 5
        return learner.weights.data

    torch.testing.assert_close(weights(True), weights(False), rtol=1e-3, atol=1e-4)


def test_what_c_does_not_know_is_done_by_torch():
    for options in ({"dueling": True}, {"distribution": "c51"}):
        assert not q_native.covers(make_actor(DQN(**options)), 8)
    assert not q_native.covers(make_actor(DQN(), activation="gelu"), 8)
    plain = make_actor(DQN())
    assert q_native.covers(plain, 8)
    assert not q_native.covers(plain, 1 << 30)
    assert not q_native.covers(plain.double(), 8)


def test_weights_that_lie_apart_are_left_to_torch():
    actor = make_actor(DQN())
    assert not q_native.NativeActing(actor, 2).begin()
    flatten(list(actor.policy.parameters()))
    assert q_native.NativeActing(actor, 2).begin()
