"""The Triton kernels of Q-learning against their plain twins, in Triton's interpreter: no GPU is needed."""

from __future__ import annotations

import importlib.util

import pytest

from shoal.algos.fast.fused_q import not_covered

from .checks import check_kernels
from .training import training


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("group", ["pqn", "dqn"])
def test_kernels_equal_their_twins(group):
    check_kernels("tests.fused_q_checks", group)


@pytest.mark.parametrize(
    ("algo", "tables", "reason"),
    [
        ("pqn", {}, ""),
        ("dqn", {"nn": {"hidden": 64}, "train": {"layer_norm": True, "precision": "auto"}}, ""),
        ("dqn", {"train": {"dueling": True}}, "--train.dueling"),
        ("dqn", {"train": {"distribution": "c51"}}, "--train.distribution"),
        ("dqn", {"train": {"priority": 0.6, "precision": "auto"}}, "--train.priority"),
        ("dqn", {}, "--train.precision fp32"),
        ("pqn", {"train": {"precision": "tf32"}}, "--train.precision tf32"),
        ("pqn", {"train": {"max_grad_norm": "linear(10, 1)"}}, ""),
        ("pqn", {"nn": {"hidden": 100}}, "--nn.hidden"),
        ("pqn", {"nn": {"layers": 3}}, "--nn.layers"),
        ("pqn", {"nn": {"activation": "gelu"}}, "--nn.activation gelu"),
    ],
)
def test_what_takes_the_plain_path_is_known(algo, tables, reason):
    with training("cartpole", algo=algo, **tables) as trainer:
        found = not_covered(trainer.learners[0])
        assert reason in found if reason else found == ""
