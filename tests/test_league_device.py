"""Leagues whose envs are on a GPU: the same results as on the CPU, by kernels in Triton's interpreter, and by torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import shoal
from shoal.errors import ConfigError
from shoal.native import lib
from tests.checks import check_kernels
from tests.fake_gpu import GpuLikeVec, make_cuda_vec_on_host, use_fake_graphs
from tests.training import make_trainer, tiny

DUEL = "tests/duel.h"
HAS_TRITON = importlib.util.find_spec("triton") is not None


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.parametrize(
    "group",
    [
        pytest.param("parts", marks=pytest.mark.slow),
        pytest.param("collector", marks=pytest.mark.slow),
        pytest.param("compiles", marks=pytest.mark.slow),
    ],
)
def test_kernels_equal_their_twins(group):
    check_kernels("tests.member_checks", group)


def on_fake_gpu(env: str, monkeypatch: Any, *, device: bool = True, params: Any = (), **more: Any) -> Any:
    """The trainer of a league on envs that look like a GPU's, or on the same envs of the CPU."""
    use_fake_graphs(monkeypatch)
    tables = tiny(**more)
    league = {"on": True, "pool": 5, "every": 2, "snapshot": 100, "latest": 0.3, **more.get("league", {})}
    vec = shoal.make(env, 24, backend="serial", **dict(params))
    return make_trainer(GpuLikeVec(vec) if device else vec, **{**tables, "league": league})


ENVS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mlp": (DUEL, {}, {}),
    "robots": (DUEL, {"players": 3, "early": 1}, {"league": {"members": ("low", "high")}}),
    "lstm": (DUEL, {}, {"nn": {"core": "lstm"}, "train": {"normalize_obs": True}}),
    "mingru": (DUEL, {}, {"nn": {"core": "mingru", "head_layers": 1}}),
    "mixed actions": ("tests/mixture.h", {}, {"nn": {"separate": True, "core": "lstm"}}),
    "box": ("tests/chase.h", {"max_steps": 5}, {"nn": {"log_std": -0.5}}),
    "exploiters": (DUEL, {}, {"league": {"exploiters": 1, "exploiter_reset": 200}}),
}


FEW = ("lstm", "robots")  # of each run of the tests; the others are marked slow


@pytest.mark.parametrize("case", [pytest.param(x, marks=[] if x in FEW else pytest.mark.slow) for x in ENVS])
def test_a_league_on_a_gpu_equals_one_on_the_cpu(case, monkeypatch):
    env, params, more = ENVS[case]
    pair = [on_fake_gpu(env, monkeypatch, device=device, params=params, **more) for device in (False, True)]
    host, device = pair
    opponents = set()
    for _ in range(5):
        for t in pair:
            t.iterate()
        opponents |= set(host.league.games.member.tolist())
        for name, mine in host.league.games.tensors().items():
            torch.testing.assert_close(mine, device.league.games.tensors()[name], rtol=1e-4, atol=1e-4)
        for one, two in zip(host.learners, device.learners):
            torch.testing.assert_close(one.rollout.obs[0], two.rollout.obs[0], rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(one.rollout.dones, two.rollout.dones)
            torch.testing.assert_close(one.weights, two.weights, rtol=1e-3, atol=1e-3)
    assert len(opponents) > 1 or env != DUEL
    assert {p.name for p in host.league.league.players} == {p.name for p in device.league.league.players}
    for t in pair:
        t.close()


@pytest.mark.parametrize("case", ["robots", pytest.param("lstm", marks=pytest.mark.slow)])
def test_a_league_on_a_gpu_resumes_to_the_bit(case, monkeypatch):
    env, params, more = ENVS[case]
    whole, stopped = (on_fake_gpu(env, monkeypatch, params=params, **more) for _ in range(2))
    for _ in range(4):
        whole.iterate()
    for _ in range(2):
        stopped.iterate()
    saved = {name: {k: v.clone() for k, v in part.items()} for name, part in stopped.state().items()}
    resumed = on_fake_gpu(env, monkeypatch, params=params, **more)
    resumed.restore(saved, {**stopped.counters(), "step": stopped.step})
    assert resumed.exact
    for _ in range(2):
        resumed.iterate()
    wanted, got = whole.state(), resumed.state()
    for name, part in wanted.items():
        assert part.keys() == got[name].keys()
        assert all(torch.equal(value, got[name][key]) for key, value in part.items())
    for t in (whole, stopped, resumed):
        t.close()


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_q_learning_is_refused_before_the_run_starts(algo, monkeypatch):
    with pytest.raises(ConfigError, match=rf"--algo {algo} is not supported in a league on a GPU. Use --device cpu"):
        on_fake_gpu(DUEL, monkeypatch, algo=algo)


@pytest.mark.slow
def test_convolutions_are_refused_before_the_run_starts(monkeypatch):
    with pytest.raises(ConfigError, match=r"this policy uses conv2d. Use --nn.encoder mlp"):
        on_fake_gpu("forage", monkeypatch, params={"agents": 2})
    t = on_fake_gpu("forage", monkeypatch, params={"agents": 2}, nn={"encoder": "mlp"})
    t.iterate()
    t.close()


def test_a_gpus_envs_take_given_params_when_a_game_begins(monkeypatch):
    """The `cuda` backend on the host: a robot that is written into the tensor plays from the next reset on."""
    vec = make_cuda_vec_on_host(monkeypatch, lib.load(Path(DUEL)), 4)
    given = vec.give_params(["robot_0", "robot_1"])
    vec.reset(seed=3)
    given["robot_1"].copy_(torch.tensor([0.0, 1.0, 2.0, 2.0], dtype=torch.float64))
    begun = torch.zeros(4, dtype=torch.bool)
    for _ in range(12):
        vec.actions.fill_(2)
        vec.launch_step()
        begun |= vec.tensors["tick"] == 0
        seats = vec.tensors["obs"].view(4, 2, 6)[:, 0, 4:]
        assert torch.equal(seats[:, 1], torch.where(begun, torch.tensor([0.0, 1.0, 2.0, 2.0]), 0.0))
        assert not seats[:, 0].any()
    assert begun.all()
    blob = vec.snapshot()
    given["robot_1"].zero_()
    vec.restore(blob)
    assert vec.get_params()["robot_1"].tolist() == [0, 1, 2, 2]
