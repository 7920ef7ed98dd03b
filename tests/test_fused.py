"""The Triton kernels against their plain twins, in Triton's interpreter: no GPU is needed, and none is used.

The interpreter is chosen when the kernels are loaded, so each group of checks runs in a process of its own
(tests/fused_checks.py). On a GPU the same kernels are held to the same twins by benchmarks/gpu.py.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal.algos.device import Bridge
from shoal.algos.fused import why_not
from shoal.algos.rollout import Seat
from shoal.train import Trainer, options_for

HAS_TRITON = importlib.util.find_spec("triton") is not None


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.parametrize("group", ["ppo", "sums", "cores", "carry", "compiles"])
def test_kernels_equal_their_twins(group):
    root = Path(__file__).parents[1]
    env = {**os.environ, "TRITON_INTERPRET": "0" if group == "compiles" else "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.fused_checks", group],
        env=env,
        capture_output=True,
        text=True,
        cwd=root,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checked" in done.stdout


def trainer_of(name: str, **tables):
    return Trainer(name, options_for("", {"device": "cpu", **tables}))


@pytest.mark.parametrize(
    ("env", "tables", "reason"),
    [
        ("breakout", {}, ""),
        ("cartpole", {"nn": {"hidden": 64, "activation": "tanh"}, "train": {"normalize_obs": True}}, ""),
        ("breakout", {"nn": {"hidden": 100}}, "--nn.hidden"),
        ("breakout", {"nn": {"layers": 3}}, "--nn.layers"),
        ("breakout", {"nn": {"core": "lstm"}}, "core"),
        ("breakout", {"nn": {"separate": True}}, "--nn.separate"),
        ("breakout", {"nn": {"activation": "gelu"}}, "--nn.activation gelu"),
        ("breakout", {"train": {"precision": "fp32"}}, "--train.precision fp32"),
        ("breakout", {"train": {"priority": 0.5}}, "--train.priority"),
        ("pendulum", {}, "one choice"),
        ("maze", {}, "numbers"),
    ],
)
def test_what_takes_the_plain_path_is_known(env, tables, reason):
    tables["vec"], tables["train"] = {"num_envs": 8}, {"horizon": 4, **tables.get("train", {})}
    trainer = trainer_of(env, **tables)
    try:
        found = why_not(trainer.learners[0])
        assert (reason in found) if reason else not found
    finally:
        trainer.close()


BRIDGES = {
    "cut off in every rollout": ("cartpole", {"env": {"max_steps": 5}}),
    "feed-forward": ("breakout", {}),
    "lstm": ("memory", {"nn": {"core": "lstm"}}),
    "agents that die, masks, a core": ("forage", {"nn": {"core": "mingru", "encoder": "mlp"}}),
    "cut off with a core": ("pendulum", {"nn": {"core": "lstm"}, "env": {"max_steps": 7}}),
    "python envs": ("gymnasium:CartPole-v1", {"vec": {"num_envs": 4, "backend": "serial"}}),
}


@pytest.mark.parametrize("case", BRIDGES)
def test_a_bridge_collects_what_a_collector_does(case):
    """With both halves on the CPU, rollouts and weights are the same to the bit: only where things lie differs."""
    env, tables = BRIDGES[case]
    native = {"num_envs": 32, "backend": "threads", "num_groups": 2, "num_threads": 2}
    tables = {"vec": native, **tables, "train": {"horizon": 16, "minibatches": 2, "epochs": 2, "total_steps": 10**6}}
    plain, bridged = trainer_of(env, **tables), trainer_of(env, **tables)
    learner = bridged.learners[0]
    bridged.collector = Bridge(bridged.vec, [Seat(bridged.actors[0], bridged.roles[0], learner.rollout)])
    try:
        for _ in range(4):
            plain.iterate()
            bridged.iterate()
        one, two = plain.learners[0].rollout, learner.rollout
        for name in ("actions", "logits", "values", "rewards", "dones"):
            assert torch.equal(getattr(one, name), getattr(two, name)), name
        assert all(torch.equal(a, b) for a, b in zip([*one.obs, *one.starts], [*two.obs, *two.starts]))
        assert torch.equal(plain.learners[0].weights, learner.weights)
    finally:
        plain.close()
        bridged.close()
