"""NativeCollector (a rollout in one call of C) against HostCollector, bit for bit; and which runs it is chosen for."""

from __future__ import annotations

import contextlib
import gc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.algos import fast
from shoal.algos.collect.host import HostCollector
from shoal.algos.collect.native import MIN_BLOCK_ROWS, NativeCollector, block_edges
from shoal.errors import ActionError, ShoalError, UsageError
from shoal.train import train
from shoal.train import trainer as trainer_module
from shoal.vector.serial import SerialVec

from .checks import ALL, KINDS
from .training import contents, cut, make_trainer, train_tiny, training

TESTS = Path(__file__).parent
HORIZON = 24
SHORT = {name: {"max_steps": 10} for name in ("pendulum", "squared", "cartpole", "forage", "vacuum", "breakout")}
CASES: list[Any] = [  # of an env and options of the network
    *(pytest.param(name, {}, marks=[] if name in (*KINDS, "memory", "midrange") else pytest.mark.slow) for name in ALL),
    ("cartpole", {"core": "lstm"}),
    ("memory", {"core": "lstm"}),
    ("memory", {"core": "mingru"}),
    ("forage", {"core": "mingru"}),
    ("vacuum", {"core": "lstm"}),
    ("pendulum", {"core": "lstm", "std": "state"}),
    ("breakout", {"separate": True, "activation": "tanh"}),
    ("chase", {"core": "lstm"}),
    ("cartpole", {"core": "mingru", "separate": True}),
]


def use_threads(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Makes learners in C use a number of threads."""
    monkeypatch.setattr(fast, "available_threads", lambda: threads)


def use_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes trainers use HostCollector."""
    monkeypatch.setattr(trainer_module, "covers", lambda *arguments: False)


def tables(name: str, net: dict[str, Any], envs: int = 70, **train: Any) -> dict[str, Any]:
    return {
        "seed": 5,
        "env": SHORT.get(name, {}),
        "vec": {"num_envs": envs, "num_groups": 2},
        "nn": {"hidden": 32, "layers": 1, "encoder": "mlp", **net},
        "train": {"horizon": HORIZON, "segment": 0, "minibatches": 2, "epochs": 1, **train},
    }


def env_of(name: str) -> str:
    return str(TESTS / f"{name}.h") if name == "chase" else name


def everything(trainer: Any) -> dict[str, Any]:
    """All that a collector leaves: the rollout, truncations, statistics and envs."""
    rollout = trainer.learners[0].rollout
    found = {f"tensor {k}": part.numpy().tobytes() for k, part in enumerate(rollout.tensors())}
    for k, one in enumerate(rollout.truncations.added):
        tensors = [one.rows, one.flags, *one.obs, *one.state]
        found[f"truncation {k}"] = (one.steps, [(x.dtype, tuple(x.shape), x.numpy().tobytes()) for x in tensors])
    arrays = trainer.vec.memory.arrays
    found |= {name: arrays[name].tobytes() for name in ("obs", "rewards", "done", "alive", "masks", "tick")}
    return {**found, "stats": trainer.vec.drain_stats(), "envs": trainer.vec.snapshot()}


def play(name: str, net: dict[str, Any], iterations: int = 4, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The type of the collector, and what it left after each iteration of training."""
    with training(env_of(name), **tables(name, net, **options)) as trainer:
        found = []
        for _ in range(iterations):
            trainer.iterate()
            found.append(everything(trainer))
        return type(trainer.collector), found


# ---- the same bits ----


@pytest.mark.parametrize(("name", "net"), CASES, ids=lambda value: value if isinstance(value, str) else "-".join(value))
def test_a_rollout_in_c_has_the_bits_of_host_collector(name, net, monkeypatch):
    """In training: with episodes that end, truncations, agents that are out, masks, and weights that change."""
    with monkeypatch.context() as patch:
        use_host(patch)
        kind, expected = play(name, net)
        assert kind is HostCollector
    assert any(key.startswith("truncation") for found in expected for key in found) == (name in {*SHORT, "chase"})
    for threads in (1, 2, 3):
        use_threads(monkeypatch, threads)
        kind, found = play(name, net)
        assert kind is NativeCollector
        for ours, theirs in zip(found, expected, strict=True):
            assert list(ours) == list(theirs)
            assert [key for key in ours if ours[key] != theirs[key]] == []


@pytest.mark.parametrize("options", [{"normalize_obs": True}, {"segment": 8}, {"normalize_obs": False, "segment": 12}])
def test_normalized_observations_and_segments(options, monkeypatch):
    use_threads(monkeypatch, 2)
    kind, found = play("cartpole", {"core": "mingru"}, **options)
    assert kind is NativeCollector
    use_host(monkeypatch)
    assert play("cartpole", {"core": "mingru"}, **options) == (HostCollector, found)


@pytest.mark.parametrize("envs", [1, 2, 3, 64, 129, 1024])
def test_any_number_of_envs(envs, monkeypatch):
    use_threads(monkeypatch, 3)
    options: dict[str, Any] = tables("cartpole", {}, envs=envs)
    options["vec"]["num_groups"] = min(envs, 2)
    found = []
    for collector in (NativeCollector, HostCollector):
        with training("cartpole", **options) as trainer:
            assert type(trainer.collector) is collector
            trainer.iterate()
            trainer.iterate()
            found.append(everything(trainer))
        use_host(monkeypatch)
    assert found[0] == found[1]


def test_params_of_each_env_count_from_the_next_rollout_on(monkeypatch):
    found = []
    for _ in range(2):
        with training("pendulum", **tables("pendulum", {})) as trainer:
            trainer.iterate()
            trainer.vec.set_params(max_steps=np.arange(3, 73))
            trainer.iterate()
            found.append(everything(trainer))
        use_host(monkeypatch)
    assert found[0] == found[1]
    assert sum(key.startswith("truncation") for key in found[0]) > 20


@given(st.integers(1, 5000), st.integers(1, 8), st.integers(1, 64))
@settings(deadline=None)
def test_blocks_hold_every_env_once(num_envs, agents, threads):
    edges = block_edges(num_envs, agents, threads)
    sizes = np.diff(edges)
    assert edges[0] == 0
    assert edges[-1] == num_envs
    assert (sizes > 0).all()
    if num_envs * agents >= MIN_BLOCK_ROWS * threads:
        assert len(sizes) >= min(threads, num_envs)


# ---- runs ----


def test_a_run_resumes_exactly(tmp_path, monkeypatch):
    """Checkpoints of a run that was stopped and resumed equal those of one that was not, and of HostCollector's."""
    options: dict[str, Any] = {"nn": {"hidden": 16, "core": "lstm"}, "env": {"max_steps": 13}}
    whole = train_tiny("cartpole", tmp_path / "whole", **options)
    part = cut(train_tiny("cartpole", tmp_path / "part", **options), 3)
    train("cartpole", resume=part, runs_folder=tmp_path, console="off")
    assert contents(part) == contents(whole)
    use_host(monkeypatch)
    assert contents(train_tiny("cartpole", tmp_path / "host", **options)) == contents(whole)


def test_a_restored_trainer_continues_with_the_same_rollout():
    options = tables("memory", {"core": "mingru"})
    with training("memory", **options) as first, training("memory", **options) as second:
        first.iterate()
        files, meta = first.state(), {"step": first.step, **first.counters()}
        second.restore(files, meta)
        first.iterate()
        second.iterate()
        found = [everything(trainer) for trainer in (first, second)]
        assert {**found[0], "stats": None} == {**found[1], "stats": None}  # the statistics of the first are longer


def test_the_two_loops_can_alternate():
    options = tables("cartpole", {"core": "lstm"})
    with training("cartpole", **options) as plain, training("cartpole", **options) as mixed:
        in_c = mixed.collector._fill
        for k in range(4):
            plain.iterate()
            mixed.collector._fill = partial(HostCollector._fill, mixed.collector) if k % 2 else in_c
            mixed.iterate()
            assert everything(plain) == everything(mixed)


def test_seconds_are_divided_among_env_and_policy():
    with training("cartpole", **tables("cartpole", {})) as trainer:
        trainer.iterate()
        record = trainer.drain()
        assert record["time/env"] > 0
        assert record["time/inference"] > 0
        assert record["time/env"] + record["time/inference"] + record["time/copy"] < trainer.wall_s


# ---- errors ----


def error_of(env: Any, spoil: Any, /, **options: Any) -> ShoalError:
    """The error of a run whose weights are spoiled after an iteration."""

    def run() -> None:
        trainer.iterate()
        spoil(trainer)
        for _ in range(6):
            trainer.iterate()

    with training(env, **options) as trainer, pytest.raises(ShoalError) as caught:
        run()
    return caught.value


@torch.no_grad()
def spoil_weights(trainer: Any) -> None:
    """All actions become nan."""
    trainer.actors[0].policy.actor.weight.fill_(torch.nan)


@torch.no_grad()
def spoil_some_rows(trainer: Any) -> None:
    """Actions become nan where an observation is almost 1, so in the middle of a rollout: a unit is infinite there."""
    policy = trainer.actors[0].policy
    for layer, edge in zip(policy.body.layers.layers, (0.97, 0.0)):
        layer.weight[0], layer.bias[0] = 0.0, -edge * 1e30
        layer.weight[0, 1 if edge else 0] = 1e30
    policy.actor.weight[:, 0] = 0.0


@pytest.mark.parametrize("spoil", [spoil_weights, spoil_some_rows])
@pytest.mark.parametrize("name", ["pendulum", "chase"])
def test_an_action_that_is_not_finite_raises_the_same_error(name, spoil, monkeypatch):
    use_threads(monkeypatch, 3)
    options = tables(name, {"layers": 2}, normalize_obs=False)
    ours = error_of(env_of(name), spoil, **options)
    use_host(monkeypatch)
    theirs = error_of(env_of(name), spoil, **options)
    assert type(ours) is type(theirs) is ActionError
    assert str(ours) == str(theirs)


def test_an_observation_that_is_not_finite_raises_the_same_error(monkeypatch):
    options = tables("nan", {})
    ours = error_of(str(TESTS / "broken" / "nan.h"), lambda trainer: None, **options)
    use_host(monkeypatch)
    theirs = error_of(str(TESTS / "broken" / "nan.h"), lambda trainer: None, **options)
    assert (type(ours), str(ours)) == (type(theirs), str(theirs))
    assert "nan" in str(ours)


def test_envs_that_are_closed_or_in_flight_are_refused():
    with training("cartpole", **tables("cartpole", {})) as trainer:
        with pytest.raises(UsageError, match="step before reset"):
            trainer.collector.collect()
        trainer.iterate()
        trainer.vec.async_reset()
        with pytest.raises(UsageError, match="in flight"):
            trainer.collector.collect()
        while trainer.vec._in_flight:
            trainer.vec.recv()
        trainer.collector.collect()
        trainer.vec.close()
        with pytest.raises(UsageError, match="closed"):
            trainer.collector.collect()


def test_the_memory_of_reports_is_freed_with_the_collector():
    with training("pendulum", **tables("pendulum", {})) as trainer:
        trainer.iterate()
        collector, trainer.collector = trainer.collector, None
        reports = collector._reports
        assert any(report.at for report in reports)
        del collector
        gc.collect()
        assert not any(report.at or report.obs or report.state for report in reports)


# ---- which runs ----


class _Counting(SerialVec):
    """Counts the steps: C must not step these envs itself."""

    sent = 0

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Counts."""
        self.sent += 1
        super().send(actions, env_id)


NOT_COVERED: dict[str, tuple[str, dict[str, Any]]] = {
    "a python env": ("gymnasium:CartPole-v1", {"vec": {"num_envs": 4}}),
    "an encoder with weights": ("maze", {"nn": {"encoder": "grid"}}),
    "a policy for each agent": ("forage", {"nn": {"policies": "per_agent"}}),
    "an opponent": ("vacuum", {"opponents": "1=random"}),
    "another activation": ("cartpole", {"nn": {"activation": "gelu"}}),
    "squashed actions": ("pendulum", {"nn": {"squash": "tanh"}}),
    "dqn": ("cartpole", {"algo": "dqn"}),
}


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_it_is_chosen_for_native_envs_of_this_process(backend):
    with training("cartpole", vec={"backend": backend, "num_envs": 64}) as trainer:
        assert type(trainer.collector) is NativeCollector


@pytest.mark.parametrize("case", NOT_COVERED)
def test_it_is_not_chosen_for(case):
    env, options = NOT_COVERED[case]
    with training(env, **{"vec": {"num_envs": 8}, **options}) as trainer:
        assert type(trainer.collector) is HostCollector


def test_envs_with_steps_of_their_own_are_stepped_by_them():
    module = shoal.make("cartpole", 1).module
    with contextlib.closing(_Counting(module, 16)) as vec, contextlib.closing(make_trainer(vec)) as trainer:
        assert type(trainer.collector) is HostCollector
        trainer.collect()
        assert vec.sent == trainer.options.train.horizon


def test_envs_that_reset_in_the_next_step_are_stepped_by_host_collector():
    with training(shoal.make("cartpole", 16, autoreset="next_step")) as trainer:
        assert type(trainer.collector) is HostCollector
        trainer.collect()
