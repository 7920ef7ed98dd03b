"""The Triton kernels of Q-learning against their plain twins, in Triton's interpreter: no GPU is needed."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from shoal.algos import fast
from shoal.algos.fast import fused_q, layered_q

from .checks import check_kernels
from .training import training


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("group", ["pqn", "dqn"])
def test_kernels_equal_their_twins(group):
    check_kernels("tests.fused_q_checks", group)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    "group",
    [
        pytest.param("pqn", marks=pytest.mark.slow),
        "dqn",
        pytest.param("tiles", marks=pytest.mark.slow),
        pytest.param("images", marks=pytest.mark.slow),
        pytest.param("collector", marks=pytest.mark.slow),
        pytest.param("compiles", marks=pytest.mark.slow),
    ],
)
def test_kernels_of_large_networks_equal_their_twins(group):
    check_kernels("tests.layered_q_checks", group)


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
def test_what_does_not_fit_into_one_block_is_known(algo, tables, reason):
    check_coverage(fused_q.not_covered, "cartpole", algo, tables, reason)


@pytest.mark.parametrize(
    ("env", "algo", "tables", "reason"),
    [
        ("cartpole", "pqn", {"nn": {"hidden": 512, "layers": 4}}, ""),
        ("cartpole", "pqn", {"nn": {"hidden": 7, "layers": 1}}, ""),
        ("craftax_classic", "pqn", {"env": {"flat": 1}, "nn": {"encoder": "mlp"}}, ""),
        ("maze", "pqn", {}, ""),
        ("maze", "pqn", {"nn": {"encoder": "impala"}}, "--nn.encoder"),
        ("cartpole", "dqn", {"nn": {"layers": 3}, "train": {"precision": "auto"}}, ""),
        ("cartpole", "dqn", {"nn": {"layers": 3}}, "--train.precision fp32"),
        ("cartpole", "pqn", {"nn": {"layers": 3}, "train": {"dueling": True}}, "--train.dueling"),
        ("cartpole", "pqn", {"nn": {"layers": 5}}, "--nn.layers"),
        ("cartpole", "pqn", {"nn": {"layers": 0}}, "--nn.layers"),
        ("cartpole", "pqn", {"nn": {"hidden": 513}}, "--nn.hidden above 512"),
        ("cartpole", "pqn", {"nn": {"layers": 3, "activation": "gelu"}}, "--nn.activation gelu"),
    ],
)
def test_what_takes_the_plain_path_is_known(env, algo, tables, reason):
    check_coverage(layered_q.not_covered, env, algo, tables, reason)


def check_coverage(not_covered, env, algo, tables, reason):
    with training(env, algo=algo, **tables) as trainer:
        found = not_covered(trainer.learners[0])
        assert reason in found if reason else found == ""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    ("nn", "kind"),
    [
        ({"hidden": 64}, fused_q.FusedQ),
        ({"hidden": 32}, layered_q.LayeredQ),
        ({"hidden": 64, "layers": 3}, layered_q.LayeredQ),
        ({"hidden": 64, "activation": "gelu"}, type(None)),
    ],
)
def test_the_fastest_kernels_that_cover_a_network_are_chosen(nn, kind, monkeypatch):
    """As on a GPU: the constructors are replaced by ones that only remember that they were called."""
    made = []
    for module, name in ((fused_q, "FusedQ"), (layered_q, "LayeredQ")):
        chosen = getattr(module, name)
        monkeypatch.setattr(module, name, lambda learner, sizes, chosen=chosen: made.append(chosen))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    with training("cartpole", algo="pqn", nn=nn) as trainer:
        learner = trainer.learners[0]
        learner.device = torch.device("cuda")
        fast.fused_q_learning(learner, [8])
    assert made == ([] if kind is type(None) else [kind])
