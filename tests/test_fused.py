"""The Triton kernels against their plain twins, in Triton's interpreter: no GPU is needed, and none is used.

The interpreter is chosen when the kernels are loaded, so each group of checks runs in a process of its own
(tests/fused_checks.py). On a GPU, benchmarks/gpu.py shows that they learn, and repeat to the bit.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import shoal
from shoal.algos.collect.device import DeviceCollector
from shoal.algos.collect.host_envs import HostEnvCollector
from shoal.algos.fast import layered
from shoal.algos.fast.base import KernelPPO, has_small_shared_memory
from shoal.algos.fast.fused import not_covered
from shoal.errors import BuildError, CheckpointError, CompilerMissing, ConfigError, TrainingError
from shoal.train import make_vec, options_for, train
from shoal.train.graphs import Pace, copy_of_state, put_back
from shoal.train.health import Context, check_finite

from .checks import check_kernels
from .fake_gpu import GpuLikeVec, use_fake_graphs
from .in_flight import hazards
from .training import make_trainer, training

HAS_TRITON = importlib.util.find_spec("triton") is not None


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.parametrize(
    "group",
    [
        "ppo",
        pytest.param("more_ppo", marks=pytest.mark.slow),
        pytest.param("recurrent_ppo", marks=pytest.mark.slow),
        pytest.param("more_recurrent_ppo", marks=pytest.mark.slow),
        pytest.param("collectors", marks=pytest.mark.slow),
        "parts",
        pytest.param("compiles", marks=pytest.mark.slow),
    ],
)
def test_kernels_equal_their_twins(group):
    check_kernels("tests.fused_checks", group)


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.parametrize(
    "group",
    [
        "heads",
        pytest.param("wide", marks=pytest.mark.slow),
        pytest.param("tiles", marks=pytest.mark.slow),
        pytest.param("compiled_tiles", marks=pytest.mark.slow),
        pytest.param("images", marks=pytest.mark.slow),
        pytest.param("cores", marks=pytest.mark.slow),
        pytest.param("compiles", marks=pytest.mark.slow),
    ],
)
def test_kernels_of_large_networks_equal_their_twins(group):
    check_kernels("tests.layered_checks", group)


LOOP = """
    %g = ttg.local_alloc : () -> !ttg.memdesc<{buffers}x64x64xbf16, #shared, #smem, mutable>
    %x = ttg.local_alloc : () -> !ttg.memdesc<3x64x64xbf16, #shared, #smem, mutable>
    %all = scf.for %k = %low to %high step %one iter_args(%sum = %zero) -> (tensor<64x64xf32, #mma>) {{
      %a = ttg.memdesc_index %g[%k] : !ttg.memdesc<{buffers}x64x64xbf16, #shared> -> !ttg.memdesc<64x64xbf16, #shared>
      %a_1 = ttg.memdesc_trans %a : !ttg.memdesc<64x64xbf16, #shared> -> !ttg.memdesc<64x64xbf16, #shared1>
      %b = ttg.memdesc_index %x[%k] : !ttg.memdesc<3x64x64xbf16, #shared> -> !ttg.memdesc<64x64xbf16, #shared>
      %c = ttng.warp_group_dot %a_1, %b, %sum {{isAsync = true}} : {kind}<64x64> * !ttg.memdesc<64x64> -> tensor<64x64>
      %d:2 = ttng.warp_group_dot_wait %c, %a_1 {{pendings = {pendings} : i32}} : tensor<64x64>, {kind}<64x64>
      scf.yield %d#0 : tensor<64x64xf32, #mma>
    }}
"""


@pytest.mark.parametrize(
    ("buffers", "kind", "pendings", "found"),
    [
        (3, "!ttg.memdesc", 1, []),
        (2, "!ttg.memdesc", 0, []),
        (2, "!ttg.memdesc", 1, ["%c: %a_1 has 2 buffers"]),
        (3, "tensor", 0, []),
        (3, "tensor", 1, ["%c: %a_1 is in registers"]),
    ],
)
def test_a_product_in_flight_whose_operand_is_overwritten_is_found(buffers, kind, pendings, found):
    assert hazards(LOOP.format(buffers=buffers, kind=kind, pendings=pendings)) == found


@pytest.mark.parametrize(
    ("env", "tables", "reason"),
    [
        ("breakout", {}, ""),
        ("cartpole", {"nn": {"hidden": 64, "activation": "tanh"}, "train": {"normalize_obs": True}}, ""),
        ("breakout", {"nn": {"hidden": 100}}, "--nn.hidden"),
        ("breakout", {"nn": {"layers": 3}}, "--nn.layers"),
        ("breakout", {"nn": {"core": "lstm"}}, ""),
        ("breakout", {"nn": {"core": "mingru"}, "train": {"segment": 2}}, ""),
        ("breakout", {"nn": {"core": "mingru", "core_size": 64}}, "--nn.core-size"),
        ("breakout", {"train": {"segment": 2}}, "--train.segment"),
        ("breakout", {"nn": {"separate": True}}, "--nn.separate"),
        ("breakout", {"nn": {"separate": True, "core": "lstm"}}, "--nn.separate"),
        ("breakout", {"nn": {"activation": "gelu"}}, "--nn.activation gelu"),
        ("breakout", {"train": {"precision": "fp32"}}, "--train.precision fp32"),
        ("breakout", {"train": {"priority": 0.5}}, "--train.priority"),
        ("pendulum", {}, ""),
        ("pendulum", {"nn": {"std": "state"}}, "--nn.std state"),
        ("forage", {"nn": {"encoder": "mlp"}, "env": {"view": 5}}, ""),
        ("maze", {}, "numbers"),
    ],
)
def test_what_does_not_fit_into_one_block_is_known(env, tables, reason):
    check_coverage(not_covered, env, tables, reason)


def check_coverage(covers, env, tables, reason):
    train = {"horizon": 4, **tables.get("train", {})}
    trainer = make_trainer(env, **{**tables, "vec": {"num_envs": 8}, "train": train})
    try:
        found = covers(trainer.learners[0])
        assert (reason in found) if reason else not found
    finally:
        trainer.close()


@pytest.mark.parametrize(
    ("env", "tables", "reason"),
    [
        ("maze", {}, ""),
        ("forage", {"nn": {"encoder": "mlp", "hidden": 512, "layers": 3}}, ""),
        ("forage", {"nn": {"core": "mingru"}, "train": {"segment": 2}}, ""),
        ("forage", {"nn": {"core": "mingru", "hidden": 256}, "train": {"segment": 2}}, "--nn.core-size"),
        ("maze", {"nn": {"core": "lstm", "hidden": 256}}, "--nn.core-size"),
        ("maze", {"nn": {"encoder": "impala"}}, "--nn.encoder"),
        ("pendulum", {"nn": {"std": "state", "core": "lstm"}}, ""),
        ("breakout", {"nn": {"layers": 0}}, "--nn.layers"),
        ("breakout", {"nn": {"hidden": 1024}}, "--nn.hidden"),
        ("breakout", {"nn": {"separate": True}}, "--nn.separate"),
        ("breakout", {"train": {"entropy_coef": "linear(0.02, 0.001)", "max_grad_norm": "linear(1.0, 0.5)"}}, ""),
    ],
)
def test_what_takes_the_plain_path_is_known(env, tables, reason):
    check_coverage(layered.not_covered, env, tables, reason)


def test_a_schedule_reaches_the_kernels():
    """What a graph copies at every replay; a number is written once."""
    trainer = make_trainer("pendulum", vec={"num_envs": 8}, train={"horizon": 4, "clip": 0.3})
    kernels = Coefs(trainer.learners[0])
    assert kernels.coefs.tolist() == pytest.approx([0.3, 0.0, 0.5, 0.01, 0.5])
    scheduled = torch.tensor(0.25)
    trainer.learners[0].config = dataclasses.replace(trainer.learners[0].config, entropy_coef=scheduled, clip=0.1)
    for value in (0.25, 0.125):
        scheduled.fill_(value)
        kernels._set_coefs()
        assert kernels.coefs.tolist() == pytest.approx([0.1, 0.0, 0.5, value, 0.5])
    trainer.close()


class Coefs(KernelPPO):
    """Only what the kernels read of the options."""

    def __init__(self, learner):
        self.learner, self.coefs, self._known_coefs = learner, torch.zeros(5), {}
        self._set_coefs()


@pytest.mark.parametrize(
    ("capability", "narrow", "has_bfloat16"),
    [((7, 5), False, False), ((8, 0), False, True), ((8, 9), True, True), ((9, 0), False, True), ((12, 0), True, True)],
)
def test_tiles_fit_into_the_cards_shared_memory(monkeypatch, capability, narrow, has_bfloat16):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_small_shared_memory(torch.device("cuda")) == narrow
    trainer = make_trainer("breakout", vec={"num_envs": 8})
    trainer.learners[0].device = torch.device("cuda")
    assert ("bfloat16" in not_covered(trainer.learners[0])) != has_bfloat16
    trainer.close()
    for hidden, fits in ((128, capability == (9, 0)), (64, has_bfloat16)):
        trainer = make_trainer("breakout", vec={"num_envs": 8}, nn={"core": "lstm", "hidden": hidden})
        trainer.learners[0].device = torch.device("cuda")
        assert (not_covered(trainer.learners[0]) == "") == fits
        trainer.close()


def test_a_row_is_cut_off_at_most_once_in_a_window():
    """Envs may have limits of their own: the shortest decides, and one without a limit does not."""
    for limits, wanted in ([7, 3, 0, 5], 3), ([0, 0, 0, 0], 0), (6, 6):
        vec = shoal.make("cartpole", 4, backend="serial", max_steps=limits)
        assert vec.time_limit == wanted
        vec.close()
    trainer = make_trainer("cartpole", vec={"num_envs": 4}, train={"horizon": 8}, env={"max_steps": 3})
    truncations = trainer.learners[0].rollout.truncations
    truncations.reserve(3)
    assert len(truncations.obs[0]) == 3  # steps 0-2, 3-5, 6-7
    trainer.close()


TRAIN = {
    "ppo": {"horizon": 16, "minibatches": 2, "epochs": 2, "total_steps": 10**6},
    "pqn": {"horizon": 16, "minibatches": 2, "epochs": 2, "total_steps": 10**6},
    "dqn": {"train_frequency": 16, "replay_start": 10, "replay_size": 6400, "total_steps": 10**6},
}
BRIDGES = {
    "cut off at limits of their own": ("cartpole", {"env": {"max_steps": [5, 9, 0, 30] * 8}}),
    "cut off in every rollout": ("cartpole", {"env": {"max_steps": 5}}),
    "feed-forward": ("breakout", {}),
    "lstm": ("memory", {"nn": {"core": "lstm"}}),
    "agents that die, masks, a core": (
        "forage",
        {"nn": {"core": "mingru", "encoder": "mlp"}, "env": {"hunger": 0.1, "max_steps": 40}},
    ),
    "cut off with a core": ("pendulum", {"nn": {"core": "lstm"}, "env": {"max_steps": 7}}),
    "scripted opponents": (
        "vacuum",
        {"opponents": "0=seek,2=flee", "nn": {"core": "lstm", "hidden": 16}, "env": {"max_steps": 20}},
    ),
    "scripted opponents, DQN": ("vacuum", {"algo": "dqn", "opponents": "1=seek,2=seek,3=seek"}),
    "cut off, PQN": ("cartpole", {"algo": "pqn", "env": {"max_steps": 5}}),
    "python envs": ("gymnasium:CartPole-v1", {"vec": {"num_envs": 4, "backend": "serial"}}),
    "python envs, DQN": ("gymnasium:CartPole-v1", {"algo": "dqn", "vec": {"num_envs": 4, "backend": "serial"}}),
}


@pytest.mark.parametrize("case", BRIDGES)
def test_a_bridge_collects_what_a_collector_does(case, monkeypatch):
    """With both halves on the CPU the envs and actions are the same to the bit: only where things lie differs.

    What networks compute is the same but for the last digits: they may see other numbers of rows at once, and the order
    of sums in a product may depend on that.
    """
    monkeypatch.setattr("shoal.algos.fast.q_native.MAX_WORK", 0)  # C rounds in its own way
    monkeypatch.setattr("shoal.algos.fast.native_ppo", lambda learner: None)
    env, tables = BRIDGES[case]
    native = {"num_envs": 32, "backend": "threads", "num_groups": 2, "num_threads": 2}
    tables = {"vec": native, **tables, "train": TRAIN[tables.get("algo", "ppo")]}
    plain, bridged = make_trainer(env, **tables), make_trainer(env, **tables)
    learner = bridged.learners[0]
    bridged.collector = HostEnvCollector(bridged.vec, bridged.seats)
    bridged._started = False
    try:
        for _ in range(4):
            plain.iterate()
            bridged.iterate()
        one, two = plain.learners[0].rollout, learner.rollout
        for name in ("actions", "rewards", "dones"):
            assert torch.equal(getattr(one, name), getattr(two, name)), name
        assert all(torch.equal(a, b) for a, b in zip(one.obs, two.obs))
        parts = [one.logits, one.values, *one.starts, plain.learners[0].weights]
        for mine, theirs in zip(parts, [two.logits, two.values, *two.starts, learner.weights]):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    finally:
        plain.close()
        bridged.close()


ON_DEVICE = {name: case for name, case in BRIDGES.items() if "python envs" not in name}


@pytest.mark.parametrize("case", ON_DEVICE)
def test_a_device_collector_collects_what_a_collector_does(case, monkeypatch):
    """Without a GPU its kernels are the plain ones; the same rollouts, and weights but for the order of sums."""
    monkeypatch.setattr("shoal.algos.collect.device.has_triton", lambda: False)
    monkeypatch.setattr("shoal.algos.fast.native_ppo", lambda learner: None)
    env, tables = BRIDGES[case]
    tables = {**tables, "train": TRAIN[tables.get("algo", "ppo")]}
    tables["vec"] = {"num_envs": 32, "backend": "serial"}
    plain, other = make_trainer(env, **tables), make_trainer(env, **tables)
    learner = other.learners[0]
    other.collector = DeviceCollector(GpuLikeVec(other.vec), other.seats)
    try:
        for _ in range(4):
            plain.iterate()
            other.iterate()
        one, two = plain.learners[0].rollout, learner.rollout
        assert torch.equal(one.actions, two.actions)
        parts = [*one.tensors(), plain.learners[0].weights], [*two.tensors(), learner.weights]
        for mine, theirs in zip(*parts):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        if case.startswith("cut off"):
            assert two.truncations.flags().any()
        assert two.alive is None or not two.alive.all()
    finally:
        plain.close()
        other.close()


SEVERAL = {
    "scripted": ("1=seek,2=flee", {"algo": "dqn"}),
    "frozen": ("1=RUN,3=RUN", {"algo": "dqn"}),
    "frozen, against PPO with a state": ("2=RUN,3=random", {"nn": {"core": "mingru"}, "train": {"segment": 4}}),
    "a policy for each agent": ("", {"nn": {"policies": "per_agent", "hidden": 16}, "env": {"max_steps": 20}}),
    "cut off": ("0=stay", {"algo": "pqn", "env": {"preset": "dust", "max_steps": 5}}),
}


@pytest.fixture(scope="module")
def frozen_run(tmp_path_factory):
    """With a recurrent policy: its state is carried over, and cleared."""
    tables = {"nn": {"core": "lstm", "hidden": 16}, "train": {"horizon": 4, "total_steps": 256}}
    return train("vacuum", runs_folder=tmp_path_factory.mktemp("runs"), console="off", **tables, vec={"num_envs": 16})


@pytest.mark.parametrize("case", SEVERAL)
def test_a_device_collector_shares_the_envs_between_several_policies(case, frozen_run, monkeypatch):
    monkeypatch.setattr("shoal.algos.collect.device.has_triton", lambda: False)
    opponents, tables = SEVERAL[case]
    own = {"total_steps": 10**6, "horizon": 16}
    if tables.get("algo") == "dqn":
        own = {"total_steps": 10**6, "train_frequency": 16, "replay_start": 10, "replay_size": 6400}
    tables = {**tables, "opponents": opponents.replace("RUN", str(frozen_run.folder))}
    tables |= {"train": {**own, **tables.get("train", {})}, "vec": {"num_envs": 32, "backend": "serial"}}
    plain, other = make_trainer("vacuum", **tables), make_trainer("vacuum", **tables)
    other.collector = DeviceCollector(GpuLikeVec(other.vec), [*other.seats, *other.frozen])
    assert not other.collector.plays_all
    try:
        for _ in range(4):
            plain.iterate()
            other.iterate()
        sides = [[*(x.rollout for x in t.learners), *(seat.rollout for seat in t.frozen)] for t in (plain, other)]
        for one, two in zip(*sides):
            assert torch.equal(one.actions, two.actions)
            for mine, theirs in zip(one.tensors(), two.tensors()):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        for one, two in zip(plain.learners, other.learners):
            torch.testing.assert_close(one.weights, two.weights, rtol=1e-4, atol=1e-5)
        found = [t.drain() for t in (plain, other)]
        assert found[0]["episode/n"] > 0
        for name in ("episode/n", "episode/return", "episode/return_min", "episode/return_max"):
            assert found[0][name] == pytest.approx(found[1][name], rel=1e-4)
        if case == "cut off":
            assert other.learners[0].rollout.truncations.flags().any()
    finally:
        plain.close()
        other.close()


PENDULUM = {"horizon": 16, "minibatches": 2, "normalize_obs": True, "normalize_reward": True, "total_steps": 10**6}
REWOUND = {
    "PPO": ("pendulum", {"nn": {"core": "lstm"}, "train": PENDULUM}),
    "DQN, a frozen run": ("vacuum", {"algo": "dqn", "opponents": "1=RUN", "train": {**TRAIN["dqn"], "priority": 0.5}}),
    "PQN": ("vacuum", {"algo": "pqn", "opponents": "1=seek", "train": TRAIN["pqn"]}),
}


@pytest.mark.parametrize("case", REWOUND)
def test_rewinding_puts_everything_back_in_place(case, frozen_run):
    """What `_capture` tries the graphs on leaves no trace, and the tensors are those that the graphs hold."""
    env, tables = REWOUND[case]
    tables = {**tables, "opponents": tables.get("opponents", "").replace("RUN", str(frozen_run.folder))}
    trainer = make_trainer(env, vec={"num_envs": 16}, **tables)
    try:
        trainer.iterate()
        kept = copy_of_state(trainer)
        places = {key: value.data_ptr() for part in trainer.state().values() for key, value in part.items()}
        trainer.iterate()
        put_back(trainer, kept)
        for name, part in trainer.state().items():
            for key in part.keys() - {"envs"}:
                assert torch.equal(part[key], kept[name][key]), key
                assert ".stream." in key or part[key].data_ptr() == places[key], key
    finally:
        trainer.close()


CAPTURED = {
    **REWOUND,
    "a policy for each agent": (
        "vacuum",
        {"nn": {"policies": "per_agent", "core": "mingru"}, "env": {"max_steps": 9}, "train": TRAIN["ppo"]},
    ),
}


@pytest.mark.parametrize("case", CAPTURED)
def test_capturing_leaves_no_trace(case, frozen_run, monkeypatch):
    """A run that is captured, resumed and captured again is the run that never was, to the bit."""
    use_fake_graphs(monkeypatch)
    env, tables = CAPTURED[case]
    opponents = tables.get("opponents", "").replace("RUN", str(frozen_run.folder))
    tables = {**tables, "opponents": opponents}
    robots = {"robot_1": "seek"} if opponents == "1=seek" else {}

    def make():
        vec = GpuLikeVec(shoal.make(env, 16, backend="serial", **tables.get("env", {}), **robots))
        trainer = make_trainer(vec, name=env, **tables)
        assert isinstance(trainer.collector, DeviceCollector)
        return trainer

    def contents(trainer):
        return {f"{name}.{k}": v.clone() for name, part in trainer.state().items() for k, v in part.items()}

    plain, captured = make(), make()
    plain._is_captured = True  # it runs without graphs
    for _ in range(2):
        plain.iterate()
        captured.iterate()
    assert captured.graphs.updates
    assert captured.graphs.collect is not None
    records = [{k: v for k, v in t.drain().items() if not k.startswith(("time/", "wall_s"))} for t in (plain, captured)]
    assert "learning_rate" in records[0]
    assert any(name.startswith("loss/") for name in records[0])
    assert records[0] == pytest.approx(records[1], rel=1e-5, nan_ok=True)  # the graphs' own are sums of float32
    files, meta = copy_of_state(captured), {**captured.counters(), "step": captured.step}
    captured.close()
    captured = make()
    captured.restore(files, meta)
    for _ in range(2):
        plain.iterate()
        captured.iterate()
    one, two = contents(plain), contents(captured)
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []
    plain.close()
    captured.close()


def test_the_host_is_one_iteration_ahead_and_no_further(monkeypatch):
    """On a device that works only when somebody waits for it: one iteration is left to do, whatever its number."""
    use_fake_graphs(monkeypatch)
    launched = finished = 0

    class Event:
        def record(self):
            self.mark = launched

        def synchronize(self):
            nonlocal finished
            finished = max(finished, self.mark)

    def finish_all():
        nonlocal finished
        finished = launched

    monkeypatch.setattr("shoal.train.trainer.Pace", Pace)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", finish_all)
    vec = GpuLikeVec(shoal.make("cartpole", 8, backend="serial"))
    with training(vec, train={"horizon": 4, "minibatches": 1, "total_steps": 10**6}) as trainer:
        for _ in range(4):
            launched += 1
            trainer.iterate()
            assert launched - finished == 1
        trainer.drain()
        assert launched == finished


def test_a_copy_of_the_state_takes_no_room_for_a_second_replay(monkeypatch):
    """A GPU that has room for one replay need not have room for two. Tensors without memory stand for the GPU's."""
    with training("cartpole", algo="dqn", vec={"num_envs": 8}, train=TRAIN["dqn"]) as trainer:
        trainer.iterate()
        state = trainer.state()
        with FakeTensorMode():
            there = {
                name: {key: torch.empty(x.shape, dtype=x.dtype, device="cuda") for key, x in part.items()}
                for name, part in state.items()
            }
            monkeypatch.setattr(type(trainer), "own_state", lambda self: there)
            copied = copy_of_state(trainer)
    replays = {key for key in there["state"] if ".replay." in key}
    assert sum(there["state"][key].nbytes for key in replays) > 6400 * 4 * 4  # four floats for each transition
    for name, part in copied.items():
        assert part.keys() == there[name].keys()
        for key, tensor in part.items():
            assert tensor is not there[name][key]
            assert tensor.device.type == ("cpu" if key in replays else "cuda"), key


TRITON_GCC = ["gcc", "launcher.c", "-Itriton/backends/nvidia/include"]


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to"), ConfigError, "num_envs=8, horizon=4.*fewer --vec.num"),
        (RuntimeError("Failed to find C compiler. Please"), CompilerMissing, "python3-dev"),
        (subprocess.CalledProcessError(1, TRITON_GCC), CompilerMissing, "python3-dev"),
        (subprocess.CalledProcessError(1, ["an", "env's"]), subprocess.CalledProcessError, "env"),
        (RuntimeError("something else"), RuntimeError, "something else"),
        (BuildError("no C compiler"), BuildError, "^no C compiler"),
    ],
)
def test_what_a_gpu_machine_lacks_is_told(monkeypatch, raised, kind, said):
    def fail() -> None:
        raise raised

    trainer = make_trainer("cartpole", vec={"num_envs": 8}, train={"horizon": 4})
    monkeypatch.setattr(trainer, "collect", fail)
    with pytest.raises(kind, match=said):
        trainer.iterate()
    trainer.close()


@pytest.mark.parametrize(("algo", "said"), [("dqn", "--train.replay-size"), ("pqn", "--train.minibatches")])
def test_what_to_do_about_too_little_memory_is_of_the_algorithm(monkeypatch, algo, said):
    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to")

    trainer = make_trainer("cartpole", algo=algo, vec={"num_envs": 8})
    monkeypatch.setattr(trainer, "collect", fail)
    with pytest.raises(ConfigError, match=said) as caught:
        trainer.iterate()
    names = {name.replace("-", "_") for name in re.findall(r"--train\.([a-z-]+)", str(caught.value))}
    assert names <= {field.name for field in dataclasses.fields(trainer.options.train)}
    trainer.close()


def test_several_policies_are_told_to_use_the_cpu():
    trainer = make_trainer("forage", vec={"num_envs": 8}, train={"horizon": 4}, nn={"policies": "per_agent"})
    with pytest.raises(ConfigError, match="4 policies.*--device cpu"):
        HostEnvCollector(trainer.vec, trainer.seats)
    trainer.close()


def test_a_checkpoint_of_another_device_is_told():
    trainer = make_trainer("cartpole", vec={"num_envs": 8}, train={"horizon": 4})
    trainer.iterate()
    files, meta = trainer.state(), {**trainer.counters(), "step": trainer.step}
    files["state"]["0.stream.actions"] = torch.zeros(16, dtype=torch.uint8)  # a GPU's is this long
    with pytest.raises(CheckpointError, match="--device cuda"):
        trainer.restore(files, meta)
    trainer.close()


def test_a_files_table_for_the_gpu_goes_over_its_others(monkeypatch):
    """As the tuned values' does; flags go over both."""
    file = {"train": {"horizon": 8, "minibatches": 2}, "cuda": {"train": {"horizon": 32}}}
    found = [options_for("cartpole", file, {"device": device}).train.horizon for device in ("cpu", "cuda")]
    assert found == [8, 32]
    assert options_for("cartpole", file, {"device": "cuda", "train": {"horizon": 5}}).train.horizon == 5
    with pytest.raises(ConfigError, match="horizn"):
        options_for("cartpole", {"device": "cuda", "cuda": {"train": {"horizn": 1}}})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert options_for("cartpole", file).train.horizon == 32


@pytest.mark.parametrize("kind", ["threads", "groups"])
def test_what_is_for_the_cpus_envs_is_refused_with_the_gpus(kind):
    with pytest.raises(ConfigError, match=rf"--vec.num-{kind} 2 is for envs on the CPU.*--vec.backend threads"):
        make_vec("cartpole", options_for("", {"vec": {"backend": "cuda", f"num_{kind}": 2}}))


def test_one_group_of_envs_is_what_a_gpu_has(monkeypatch):
    """Opponents that act for all rows at once ask for it (train/opponents.py)."""
    made = []
    monkeypatch.setattr("shoal.train.envs.make", lambda *words, **options: made.append(options["backend"]))
    make_vec("cartpole", options_for("", {"vec": {"backend": "cuda", "num_groups": 1}}))
    assert made == ["cuda"]


def test_a_last_observation_that_is_not_finite_is_found_where_a_gpu_keeps_it():
    trainer = make_trainer("cartpole", vec={"num_envs": 4}, train={"horizon": 8}, env={"max_steps": 3})
    rollout = trainer.learners[0].rollout
    rollout.truncations.reserve(3)
    rollout.truncations.fixed_flags[4, 2] = True
    rollout.truncations.obs[0][1, 2, 3] = torch.nan
    rollout.truncations.obs[0][0, 1] = torch.nan  # row 1 was not truncated
    with pytest.raises(TrainingError, match=r"the last observation of env 2 is nan \(element 3\)"):
        check_finite({"loss": math.nan}, [(rollout, trainer.roles[0])], Context(0, 0, 0.1, 1))
    trainer.close()


def test_what_needs_a_gpu_says_so_before_any_work():
    script = Path(__file__).parents[1] / "benchmarks/gpu.py"
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(script.parents[1])}
    done = subprocess.run([sys.executable, script, "parity"], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "GPU" in done.stderr or "CUDA" in done.stderr
