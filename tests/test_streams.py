"""Random streams: no two policies of a run share actions, weights or minibatch orders, on any collector."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal
from shoal.algos import ppo, pqn
from shoal.algos.collect.device import DeviceCollector
from shoal.algos.collect.host_envs import HostEnvCollector
from shoal.evaluate import held_out
from shoal.seeds import stream_seed
from shoal.train import Trainer, env_seed, options_for, train

from .fake_gpu import GpuLikeVec

torch.set_num_threads(1)
CHASE = str(Path(__file__).parent / "chase.h")
ALGORITHMS = {
    "ppo": ("vacuum", {"nn": {"policies": "per_agent", "hidden": 16}, "train": {"horizon": 16, "minibatches": 2}}),
    "ppo, box": (CHASE, {"nn": {"policies": "per_agent", "hidden": 16}, "train": {"horizon": 16, "minibatches": 2}}),
    "dqn": ("vacuum", {"nn": {"hidden": 16}, "train": {"policy": "per-agent", "train_frequency": 16}}),
    "pqn": ("vacuum", {"nn": {"hidden": 16}, "train": {"policy": "per-agent", "horizon": 16, "epsilon_start": 1.0}}),
}


@pytest.fixture(params=ALGORITHMS)
def case(request):
    return request.param


@contextlib.contextmanager
def trainer(case, collector="host", **tables):
    """A trainer with a policy (or a network) for each agent."""
    env, own = ALGORITHMS[case]
    vec = {"num_envs": 64, "backend": "serial", "torch_threads": 1}
    options = options_for("", {"device": "cpu", "algo": case[:3], "vec": vec, "seed": 1, **own}, tables)
    made = Trainer(env, options)
    if collector == "device":
        made.collector = DeviceCollector(GpuLikeVec(made.vec), [*made.seats, *made.frozen])
    try:
        made.start()
        made.collect()
        yield made
    finally:
        made.close()


def actions_by_agent(t):
    """What each agent did, one flat array for each."""
    if len(t.learners) > 1:
        return [learner.rollout.actions.flatten().numpy() for learner in t.learners]
    rollout = t.learners[0].rollout  # one rollout holds all agents, side by side
    return list(rollout.actions.view(rollout.horizon, -1, t.agents).flatten(0, 1).T.numpy())


@pytest.mark.parametrize("collector", ["host", "device"])
def test_agents_act_independently(case, collector, monkeypatch):
    """Untrained policies act at random: discrete actions agree by chance, box noise has no correlation."""
    monkeypatch.setattr("shoal.algos.collect.device.has_triton", lambda: False)
    with trainer(case, collector) as t:
        acted = actions_by_agent(t)
        assert len(acted) == 4
        for one, other in itertools.combinations(acted, 2):
            if one.dtype.kind == "f":
                assert abs(np.corrcoef(one, other)[0, 1]) < 0.1
            else:
                assert np.mean(one == other) < 0.35  # of five choices


def test_policies_start_from_different_weights(case):
    with trainer(case) as t:
        if len(t.learners) > 1:
            weights = [learner.weights.detach() for learner in t.learners]
        else:  # the networks of all agents lie side by side: the first axis is the agent
            matrices = [p.detach() for p in t.actors[0].policy.parameters() if p.ndim == 3 and p.shape[1] > 1]
            weights = [torch.cat([m[k].flatten() for m in matrices]) for k in range(t.agents)]
        for one, other in itertools.combinations(weights, 2):
            assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.2


@pytest.mark.parametrize("order_of", [ppo.segment_order, pqn.shuffled])
def test_policies_draw_different_minibatches(order_of):
    with trainer("ppo" if order_of is ppo.segment_order else "pqn") as t, trainer("ppo", seed=2) as other:
        learners = [*t.learners, *(other.learners if order_of is ppo.segment_order else ())]
        orders = [order_of(learner).flatten() for learner in learners]
        orders += [order_of(learners[0]).flatten()]  # the next one is another, too
        for one, two in itertools.combinations(orders, 2):
            if len(one) == len(two):
                assert not torch.equal(one, two)
                assert (one == two).float().mean() < 0.05


def test_replays_of_different_seeds_draw_different_transitions():
    drawn = []
    for seed in (1, 2):
        with trainer("dqn", seed=seed) as t:
            learner = t.learners[0]
            learner.replay.store(learner.rollout)
            sample = learner.replay.sample(1, 64, 1, 0.9, learner.streams["minibatches"])
            drawn.append(sample.index.clone())
    assert not torch.equal(*drawn)


def test_no_two_streams_of_a_run_are_the_same(tmp_path):
    """Learners, frozen opponents and the evaluation: every generator has a state of its own."""
    tables = {"train": {"horizon": 4, "total_steps": 256}, "vec": {"num_envs": 16}, "eval": {"episodes": 0}}
    run = train("vacuum", runs_folder=tmp_path, console="off", device="cpu", nn={"hidden": 16}, **tables)
    opponents = {"opponents": f"1={run.folder},3={run.folder}"}
    with trainer("ppo", **opponents) as t:
        states = [stream.get_state().numpy().tobytes() for stream in t._streams().values()]
        states += [t.player(greedy=False).generator.get_state().numpy().tobytes()]
        assert len(t.frozen) == 1
        assert len(states) == 2 * len(t.learners) + 1 + 1
        assert len(set(states)) == len(states)


def test_a_frozen_opponent_does_not_copy_the_learners_actions(tmp_path):
    """It is the same network with the same weights: only its noise can differ."""
    tables = {"train": {"horizon": 4, "total_steps": 64}, "vec": {"num_envs": 16}, "eval": {"episodes": 0}}
    tables |= {"nn": {"hidden": 16}, "device": "cpu"}
    run = train("vacuum", runs_folder=tmp_path, console="off", **tables, env={"preset": "duel-stun"})
    options = options_for("", {**tables, "env": {"preset": "duel-stun"}, "opponents": f"1={run.folder}"})
    with contextlib.closing(Trainer("vacuum", options)) as t:
        t.start()
        t.collect()
        mine, theirs = t.seats[0].rollout.noise.flatten(), t.frozen[0].rollout.noise.flatten()
        assert abs(float(torch.corrcoef(torch.stack([mine, theirs]))[0, 1])) < 0.1


def test_streams_are_the_same_with_the_learner_on_a_gpu():
    """The host's half of a rollout draws nothing: its noise is the learner's."""
    tables = {"device": "cpu", "vec": {"num_envs": 8}, "train": {"horizon": 8}}
    noise = []
    for kind in ("host", "host envs"):
        with contextlib.closing(Trainer("cartpole", options_for("", tables))) as t:
            if kind == "host envs":
                t.collector = HostEnvCollector(t.vec, t.seats)
            t.start()
            t.collect()
            noise.append(t.learners[0].rollout.noise.clone())
    assert torch.equal(*noise)


# ---- envs ----


@pytest.mark.parametrize("other", [2, 1025, 1 + 2**10, 1 + 2**20])
def test_runs_with_different_seeds_have_different_envs(other):
    """Seeds kept ten bits before: 1 and 1025 had the same envs."""
    assert abs(env_seed(1) - env_seed(other)) > 1 << 16
    obs = []
    for seed in (1, other):
        with contextlib.closing(shoal.make("cartpole", 8, seed=env_seed(seed))) as vec:
            obs.append(vec.reset()[0].copy())
    assert not np.isclose(*obs).any()


def test_seeds_of_envs_fit_what_python_envs_take():
    """31 bits, with the held-out seeds of evaluation and a million envs."""
    seeds = [env_seed(k) for k in range(2000)]
    assert max(held_out(seed) for seed in seeds) + (1 << 20) < 1 << 32
    assert len(set(seeds)) == len(seeds)
    assert env_seed(1) != env_seed(1, "resumed", 100)


def test_weights_do_not_depend_on_what_was_drawn_before():
    found = []
    for k in range(2):
        torch.manual_seed(k)
        with trainer("ppo") as t:
            found.append([learner.weights.detach().clone() for learner in t.learners])
    assert all(torch.equal(a, b) for a, b in zip(*found))
    assert stream_seed(1, "policy 0", "weights") != stream_seed(1, "policy 1", "weights")
