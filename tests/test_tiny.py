"""The whole library in small, in about ten seconds: if this passes, most things work."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import shoal
from shoal import runs
from shoal.cli.main import main
from shoal.train import train
from tests.checks import STOCK
from tests.envs import CounterEnv
from tests.training import contents, cut, train_tiny, training

CHASE = str(Path(__file__).parent / "chase.h")


@pytest.mark.parametrize("name", STOCK)
def test_a_native_env_steps_draws_and_goes_back(name):
    vec = shoal.make(name, num_envs=65, backend="threads", num_threads=2, seed=1)
    twin = shoal.make(name, num_envs=65, backend="serial", seed=1)
    np.testing.assert_array_equal(vec.reset()[0], twin.reset()[0])
    vec.action_space.seed(0)
    for _ in range(20):
        actions = vec.action_space.sample()
        obs, rewards, terminated, truncated, _ = vec.step(actions)
        for mine, theirs in zip((obs, rewards, terminated, truncated), twin.step(actions)):
            np.testing.assert_array_equal(mine, theirs)
    assert obs.shape == vec.observation_space.shape
    assert vec.drain_stats()["episodes"] == twin.drain_stats()["episodes"]
    before, blob = obs.copy(), vec.snapshot()
    vec.step(actions)
    np.testing.assert_array_equal(vec.restore(blob), before)
    assert vec.frame(0).ndim == 3
    vec.close()
    twin.close()


def test_native_envs_are_gymnasium_envs():
    env = gymnasium.make("shoal/Cartpole-v0")
    env.reset(seed=0)
    assert env.step(1)[1] == 1.0
    env.close()


def test_python_envs_step_in_processes_as_they_do_here():
    here = shoal.make(CounterEnv, 4, backend="serial", seed=3)
    there = shoal.make(CounterEnv, 4, backend="process", num_workers=2, seed=3)
    np.testing.assert_array_equal(here.reset()[0], there.reset()[0])
    here.action_space.seed(0)
    episodes = 0
    for _ in range(30):
        actions = here.action_space.sample()
        for mine, theirs in zip(here.step(actions)[:4], there.step(actions)[:4]):
            np.testing.assert_array_equal(mine, theirs)
        episodes += int(mine.sum())  # truncations
    assert episodes > 3
    here.close()
    there.close()


@pytest.mark.parametrize("algo", ["ppo", "dqn", "pqn"])
def test_a_run_is_resumed_to_the_bit(tmp_path, algo):
    whole = contents(train_tiny("cartpole", tmp_path / "whole", algo=algo))
    assert len(whole) == 12  # two files of each of six checkpoints
    resumed = train(
        "cartpole", resume=cut(train_tiny("cartpole", tmp_path / "cut", algo=algo), 2).folder, console="off"
    )
    assert resumed.summary["exact"]
    assert contents(resumed) == whole


LEARN = {
    "ppo": {"total_steps": 130_000, "horizon": 16, "minibatches": 4, "epochs": 2},
    "pqn": {"total_steps": 130_000, "horizon": 16, "minibatches": 4, "epochs": 2, "epsilon_fraction": 0.4},
    "dqn": {"total_steps": 60_000, "batch_size": 128, "gradient_steps": 4, "target_tau": 0.02, "n_step": 3},
}


@pytest.mark.parametrize("algo", LEARN)
def test_squared_is_learned(algo):
    """On a field of 3 x 3 the best is 0.92; random play returns less than 0."""
    own = {"gamma": 0.95, "learning_rate": 3e-3, "schedule": "linear", **LEARN[algo]}
    with training(
        "squared", algo=algo, train=own, vec={"num_envs": 128}, nn={"hidden": 32}, env={"size": 3}
    ) as trainer:
        while not trainer.is_done:
            trainer.iterate()
            latest = trainer.drain().get("episode/return", -1.0)
        assert latest > 0.6


def test_agents_that_interact_have_policies_of_their_own():
    """In the chase every reward depends on what the others do; the four policies act differently, and all learn."""
    tables = {"nn": {"policies": "per_agent", "hidden": 16}, "vec": {"num_envs": 32}, "train": {"horizon": 10}}
    with training(CHASE, **tables) as trainer:
        before = [learner.weights.detach().clone() for learner in trainer.learners]
        trainer.iterate()
        actions = torch.stack([learner.rollout.actions.flatten() for learner in trainer.learners])
        assert torch.corrcoef(actions).fill_diagonal_(0).abs().max() < 0.2
        predators, prey = [learner.rollout.rewards for learner in trainer.learners[:3]], trainer.learners[3].rollout
        torch.testing.assert_close(prey.rewards, -sum(predators) / 3, rtol=1e-4, atol=1e-5)
        assert not any(torch.equal(a, b.weights) for a, b in zip(before, trainer.learners))


def test_the_command_line_trains_evaluates_and_plots(tmp_path, monkeypatch, capsys):
    pytest.importorskip("PIL")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    words = "--device cpu --vec.num-envs 16 --train.horizon 8 --train.total-steps 384 --eval.episodes 4 --console off"
    assert main(["train", "cartpole", *words.split()]) == 0
    run = runs.find("last")
    assert run.summary["status"] == "finished"
    assert run.metrics()[-1]["step"] == run.summary["step"] == 384
    capsys.readouterr()
    assert main(["eval", "last", "--episodes", "4", "--video", "a.gif", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (tmp_path / "a.gif").stat().st_size > 1000
    assert main(["plot", "last"]) == 0
    assert main(["runs"]) == 0
    assert "cartpole" in capsys.readouterr().out
