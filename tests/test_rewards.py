"""Rewards of the user's own: what they are given, what the learner sees, what is logged, and what a resume keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import shoal
from shoal.algos.collect.device import DeviceCollector
from shoal.algos.collect.host import HostCollector
from shoal.algos.collect.host_envs import HostEnvCollector
from shoal.algos.collect.native import NativeCollector
from shoal.algos.rewards import REWARDS, make_reward
from shoal.errors import CheckpointError, ConfigError, TrainingError
from shoal.nn.distributions import ActionHead
from shoal.train import load_player, train

from .envs import CounterEnv, DyingAgentsEnv
from .fake_gpu import GpuLikeVec, use_fake_graphs
from .training import contents, cut, make_trainer, tiny, train_tiny, training

SMALL = {"vec": {"num_envs": 8, "backend": "serial"}, "train": {"horizon": 24, "minibatches": 2, "epochs": 1}}
SMALL["nn"] = {"hidden": 8}


class Same:
    """The env's own reward."""

    def compute(self, before, after, action, done, info):
        return info["reward"]


class Count:
    """How far the count of CounterEnv has moved: 1 at each step, if `after` is of the same episode."""

    def compute(self, before, after, action, done, info):
        return after[:, 0] - before[:, 0]


class Physics:
    """Cart-pole's position follows from its velocity: 0 at each step, if `after` is of the same episode."""

    def compute(self, before, after, action, done, info):
        assert torch.equal(done, info["terminated"] | info["truncated"])
        assert not (info["terminated"] & info["truncated"]).any()
        return after[:, 0] - before[:, 0] - 0.02 * before[:, 1]


class Clock(torch.nn.Module):
    """Counts the steps of each row since the start of its episode."""

    def __init__(self, rows: int = 16) -> None:
        super().__init__()
        self.register_buffer("steps", torch.full((rows,), -1.0))

    def compute(self, before, after, action, done, info):
        self.steps += 1.0
        return self.steps.clone()

    def reset(self, mask):
        self.steps.copy_(torch.where(mask, 0.0, self.steps))


def few(*rows: int) -> Any:
    """A reward that has the wrong number of rows."""
    return lambda before, after, action, done, info: torch.zeros(*rows)


# ---- what a reward is given ----


@pytest.mark.parametrize("algo", ["ppo", "dqn", "pqn"])
def test_after_is_of_the_same_episode(algo):
    with training(CounterEnv, reward=Count, **tiny(algo=algo, vec={"backend": "serial"})) as t:
        for _ in range(3):
            t.iterate()
        rollout = t.learners[0].rollout
        assert rollout.dones.any()
        assert torch.equal(rollout.rewards, torch.ones_like(rollout.rewards))


def test_after_is_of_the_same_episode_in_worker_processes():
    tables = {**SMALL, "vec": {"num_envs": 8, "num_workers": 2}}
    with training(CounterEnv, reward=Count, **tables) as t:
        t.iterate()
        assert len(t.collector.ranges) == 2
        rollout = t.learners[0].rollout
        assert rollout.dones.any()
        assert torch.equal(rollout.rewards, torch.ones_like(rollout.rewards))


@pytest.mark.parametrize("collector", [HostCollector, HostEnvCollector, DeviceCollector])
def test_after_is_of_the_same_episode_in_every_collector(collector, monkeypatch):
    """Episodes are terminated (the pole falls after some 20 steps) and truncated (after 13)."""
    use_fake_graphs(monkeypatch)
    env: Any = ("cartpole", {**SMALL, "env": {"max_steps": 13}})
    if collector is DeviceCollector:
        vec = GpuLikeVec(shoal.make("cartpole", 8, backend="serial", max_steps=13))
        env = (vec, {**SMALL, "env": {}})
    with training(env[0], reward=Physics(), **env[1]) as t:
        if collector is HostEnvCollector:
            t.collector = HostEnvCollector(t.vec, t.seats)
        assert type(t.collector) is collector
        for _ in range(2):
            t.iterate()
        rollout = t.learners[0].rollout
        truncated = rollout.truncations.flags()
        assert truncated.any()
        assert (rollout.dones & ~truncated).any()
        assert rollout.rewards.abs().max() < 1e-6
        # and bootstrapping has the last observations too
        assert all(one.obs[0].abs().sum() > 0 for one in rollout.truncations)


def test_a_device_collector_gives_the_rewards_of_the_host(monkeypatch):
    use_fake_graphs(monkeypatch)
    tables = {**SMALL, "env": {"max_steps": 9}}
    on_device = GpuLikeVec(shoal.make("cartpole", 8, backend="serial", max_steps=9))
    with (
        training("cartpole", reward=Clock(8), **tables) as host,
        training(on_device, reward=Clock(8), **{**tables, "env": {}}) as device,
    ):
        for t in (host, device):
            t.iterate()
        assert device.graphs is not None  # capturing has put the clocks back
        one, two = host.learners[0].rollout, device.learners[0].rollout
        assert torch.equal(one.rewards, two.rewards)
        assert torch.equal(host.shaping.shapers[0].returns, device.shaping.shapers[0].returns)
        assert one.rewards.max() == 9


def test_every_policy_has_its_own_reward_on_a_device_too(monkeypatch):
    def change(before, after, action, done, info):
        return (
            after.flatten(1).float().sum(1) - before.flatten(1).float().sum(1) + action.float().flatten()[: len(done)]
        )

    use_fake_graphs(monkeypatch)
    tables = {**SMALL, "nn": {"hidden": 8, "policies": "per_agent"}}
    vec = GpuLikeVec(shoal.make("vacuum", 8, backend="serial", max_steps=9))
    with (
        training("vacuum", reward=change, env={"max_steps": 9}, **tables) as host,
        training(vec, reward=change, **tables) as device,
    ):
        assert not device.collector.plays_all
        for t in (host, device):
            t.iterate()
        for one, two in zip(host.learners, device.learners):
            assert one.rollout.truncations.flags().any()
            torch.testing.assert_close(one.rollout.rewards, two.rollout.rewards)


def test_reset_is_told_which_rows_begin_an_episode():
    with training(CounterEnv, reward=Clock(8), **SMALL) as t:
        t.iterate()
        rollout = t.learners[0].rollout
        age, expected = torch.zeros(8), []
        for done in rollout.dones:
            age = age + 1
            expected.append(age)
            age = torch.where(done, 0.0, age)
        assert torch.equal(rollout.rewards, torch.stack(expected))


def test_agents_that_are_out_have_no_reward():
    def one(before, after, action, done, info):
        assert info["alive"].shape == done.shape
        return torch.ones(len(done))

    with training(DyingAgentsEnv, reward=one, **SMALL) as t:
        t.iterate()
        rollout = t.learners[0].rollout
        assert not rollout.alive.all()
        assert torch.equal(rollout.rewards, rollout.alive[:-1].float())


SPACES = [
    spaces.Discrete(4, start=-1),
    spaces.MultiDiscrete([3, 2], start=[1, -2]),
    spaces.MultiBinary((2, 2)),
    spaces.Box(np.float32([-1, 0]), np.float32([3, 9]), (2,), np.float32),
    spaces.Box(-np.inf, np.inf, (2, 1), np.float32),
    spaces.Box(np.float32([0, -np.inf, -1]), np.float32([np.inf, 0, 2]), (3,), np.float32),
    spaces.Dict({"gear": spaces.Discrete(3), "wheel": spaces.Box(-2, 2, (1,), np.float32)}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("squash", ["none", "tanh"])
def test_a_reward_gets_the_actions_of_the_env(space, squash):
    is_unbounded = isinstance(space, spaces.Box) and not space.is_bounded()
    head = ActionHead(space, squash="none" if is_unbounded else squash)
    head.to("cpu")
    generator = torch.Generator().manual_seed(0)
    noise = torch.zeros(5, head.num_noise)
    head.draw(noise, generator)
    actions = head.sample(torch.zeros(5, head.num_params), noise)
    expected, given = head.to_env(actions.numpy()), head.to_tensors(actions)
    if not isinstance(space, spaces.Dict):
        expected, given = {"": expected}, {"": given}
    for name, array in expected.items():
        assert given[name].shape == array.shape
        np.testing.assert_allclose(given[name].numpy(), array, rtol=1e-5, atol=1e-6)


# ---- what the learner sees, and what is logged ----


@pytest.mark.parametrize("algo", ["ppo", "dqn", "pqn"])
def test_the_envs_reward_as_a_reward_changes_nothing(algo):
    with training("cartpole", **tiny(algo=algo)) as plain, training("cartpole", reward=Same, **tiny(algo=algo)) as own:
        if algo == "ppo":
            assert isinstance(plain.collector, NativeCollector)
        for t in (plain, own):
            for _ in range(3):
                t.iterate()
        assert torch.equal(plain.learners[0].weights, own.learners[0].weights)
        record = own.drain()
        assert record["episode/shaped_return"] == pytest.approx(record["episode/return"])
        assert "episode/shaped_return" not in plain.drain()


def test_both_returns_are_logged():
    double = {"cartpole": lambda before, after, action, done, info: -2.0 * info["reward"]}
    with training("cartpole", reward=double["cartpole"], **tiny()) as t:
        for _ in range(4):
            t.iterate()
        record = t.drain()
    for end in ("", "_min", "_max"):
        assert f"episode/shaped_return{end}" in record
    assert record["episode/shaped_return"] == pytest.approx(-2.0 * record["episode/return"])
    assert record["episode/return"] > 0


def test_a_reward_is_chosen_by_name_and_stored(tmp_path):
    run = train_tiny("cartpole", tmp_path, reward="tests.test_rewards:Same")
    assert run.config["reward"].endswith("/tests/test_rewards.py:Same")
    assert all("episode/shaped_return" in record for record in run.metrics() if record.get("episode/n"))
    again = train(run.facts["env"], resume=run, runs_folder=tmp_path, console="off", **tiny(train={"total_steps": 900}))
    assert again.metrics()[-1]["step"] == 1024


def test_a_reward_class_of_python_is_stored_by_its_name(tmp_path):
    run = train("cartpole", reward=Same, runs_folder=tmp_path, console="off", **tiny())
    assert run.config["reward"].endswith("/tests/test_rewards.py:Same")
    assert run.facts["lost_to_resume"] == []


def test_a_reward_without_a_name_is_passed_again(tmp_path, capsys):
    same = Same()
    run = train("cartpole", reward=same, runs_folder=tmp_path, console="lines", **tiny())
    start, _, end = capsys.readouterr().out.partition("Finished")
    assert "it is an object of Same, not a class or function; 'shoal train --resume' cannot continue" in start
    assert "shoal eval" in end  # an evaluation needs no reward
    assert "shoal train" not in end
    load_player(run)
    assert "Same" in run.facts["custom_reward"]
    assert "reward cannot be found again by name: it is an object of Same" in run.facts["lost_to_resume"][0]
    with pytest.raises(ConfigError, match=r"trained with the reward Same, .*train\(env, reward=\.\.\., resume="):
        train("cartpole", resume=run, runs_folder=tmp_path, console="off", **tiny())
    train("cartpole", resume=run, reward=same, runs_folder=tmp_path, console="off", **tiny())


def test_a_registered_reward_has_a_name():
    REWARDS.register("same", Same)
    try:
        assert isinstance(make_reward("same"), Same)
        with pytest.raises(ConfigError, match="no reward 'sam'. Known: same. Name your own"):
            make_reward("sam")
    finally:
        del REWARDS._registered["same"]


# ---- resume ----


@pytest.mark.parametrize("kind", ["without state", "with state"])
def test_a_resume_is_exact(kind, tmp_path):
    reward = {"without state": "tests.test_rewards:Count", "with state": "tests.test_rewards:Clock"}[kind]
    whole = train_tiny("cartpole", tmp_path, reward=reward)
    expected = contents(whole)
    again = train("cartpole", resume=cut(whole, 3), runs_folder=tmp_path, console="off", **tiny(reward=reward))
    assert contents(again) == expected
    assert any(b"0.shaped_return" in part for part in expected.values())


def test_a_reward_may_be_added_to_a_run(tmp_path):
    run = train_tiny("cartpole", tmp_path)
    tables = tiny(train={"total_steps": 1024})
    train("cartpole", resume=run, reward=Clock, runs_folder=tmp_path, console="off", **tables)


def test_state_that_is_no_tensor_is_an_error():
    class Odd(Same):
        def state_dict(self):
            return {"mood": "good"}

    with training("cartpole", reward=Odd, **tiny()) as t, pytest.raises(CheckpointError, match=r"'mood'\] is str"):
        t.state()


# ---- mistakes ----


class NeedsSize:
    def __init__(self, size):
        pass

    compute = Same.compute


class TooFew:
    def compute(self, before, after):
        return before


MISTAKES = [
    (few(3), r"computed a tensor of shape \(3,\). Return one number for each of the 8 rows: a tensor of shape \(8,\)"),
    (few(8, 1), r"computed a tensor of shape \(8, 1\)"),
    (lambda before, after, action, done, info: 1.0, "computed float 1.0. Return one number for each of the 8 rows"),
    (lambda before, after, action, done, info: before["x"], "raised .*Error for blank observations"),
    (lambda before, after: before, r"takes \(before, after\), but is called as compute\(before, after, action"),
    (TooFew, r"takes \(self, before, after\), but is called as compute"),
    (NeedsSize, "needs size, which has no default. Name a function without arguments"),
    (object, r"has no compute\(before, after, action, done, info\), so it is no reward"),
    (7, "is int, which has no compute"),
    ("tests.test_rewards:SPACES", "is list, which has no compute"),
    ("tests.test_rewards:Sam", "has no 'Sam'. Did you mean 'Same'"),
    ("curious", "no reward 'curious'. No reward is installed by name. Name your own"),
]


@pytest.mark.parametrize(("reward", "says"), MISTAKES)
def test_mistakes_are_errors_before_the_first_step(reward, says):
    with pytest.raises(ConfigError, match=says):
        make_trainer("cartpole", reward=reward, **SMALL)


def test_a_reward_that_is_not_finite_is_an_error():
    def broken(before, after, action, done, info):
        return torch.where(done, torch.nan, 1.0)

    says = r"reward broken computed nan for row \d at step \d+ of a rollout"
    tables = {**SMALL, "env": {"max_steps": 5}}
    with training("cartpole", reward=broken, **tables) as t, pytest.raises(TrainingError, match=says):
        t.iterate()


def test_a_reward_needs_complete_rollouts():
    tables = {**SMALL, "vec": {"num_envs": 8, "num_workers": 2, "surplus_envs": 4}}
    with pytest.raises(ConfigError, match="--vec.surplus-envs 4"):
        make_trainer(CounterEnv, reward=Count, **tables)
