"""`shoal bench train`: what it measures adds up, and what it says can be read by machines and people."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gymnasium import spaces
from torch import nn

import shoal
from shoal.algos import ops
from shoal.bench import training as profiling
from shoal.bench.training import macs_per_row, profile
from shoal.cli.main import main
from shoal.nn.policy import Net
from shoal.nn.qnet import QNet
from shoal.train import options_for
from shoal.train.ranks import timing
from shoal.train.ranks.timing import ExchangeTime, fit, time_sums
from tests.fake_gpu import GpuLikeVec, use_fake_graphs
from tests.training import training

SMALL = ["--vec.num-envs", "16", "--train.horizon", "8", "--train.minibatches", "2", "--seconds", "0.2"]


def floor_of(found: dict) -> float:
    """The seconds that the bytes and the arithmetic of an iteration take at the limits of this machine."""
    assert min(found["bandwidth"], found["flops_per_s"]) > 0
    return max(found["bytes"] / found["bandwidth"], found["flops"] / found["flops_per_s"])


def test_the_parts_of_an_iteration_add_up_to_it():
    tables = {"device": "cpu", "vec": {"num_envs": 64}, "train": {"horizon": 16}}
    found = profile("breakout", options_for("", tables), seconds=0.5)
    slowest_s = found["steps"] / min(found["steps_per_s_all"])
    assert found["steps"] == 64 * 16
    assert all(found["split_s"][part] > 0 for part in ("env", "policy", "update"))
    assert sum(found["split_s"].values()) <= slowest_s  # parts of one thread, which take turns
    assert found["floor_s"] == pytest.approx(floor_of(found))
    assert min(found["steps_per_s_all"]) <= found["steps_per_s"] <= max(found["steps_per_s_all"])
    weights = 118 * 128 + 128 * 128 + 128 * 4
    assert found["flops"] == 2 * weights * found["steps"] * (1 + 3 * 4)  # of a rollout, and of 4 epochs thrice that


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_every_algorithm_can_be_measured(algo):
    found = profile("squared", options_for("squared", {"device": "cpu", "algo": algo}), seconds=0.2)
    assert found["steps_per_s"] > 0
    assert found["floor_s"] == pytest.approx(floor_of(found))
    assert found["flops"] > found["steps"]  # its matrices were seen


def test_networks_and_policies_of_agents_can_be_measured():
    """Each network has a batch of its own; the rollouts of all policies are written and read."""
    small, replay = {"num_envs": 16}, {"policy": "per-agent", "replay_size": 6400, "batch_size": 32}
    tables = {"device": "cpu", "algo": "dqn", "vec": small, "nn": {"hidden": 16}, "train": replay}
    found = profile("vacuum", options_for("", tables), seconds=0.1)
    weights = 18 * 16 + 16 * 16 + 16 * 5
    gradient_steps = found["steps"] // 4  # replay_ratio
    assert found["flops"] == 2 * weights * (found["steps"] + 5 * 32 * 4 * gradient_steps)
    moved = []
    for policies in ("shared", "per_agent"):
        tables = {"device": "cpu", "vec": small, "nn": {"hidden": 16, "policies": policies}, "train": {"horizon": 4}}
        moved.append(profile("vacuum", options_for("", tables), seconds=0.1)["bytes"])
    assert moved[0] == moved[1]


def test_each_part_of_a_gpus_iteration_is_timed_alone(monkeypatch):
    """With a clock that counts work: a second for a step of the envs, 100 for advantages, 10,000 for a gradient step.

    So the parts hold all of their own work, of all four policies, and nothing of the others.
    """
    use_fake_graphs(monkeypatch)
    monkeypatch.setattr(profiling, "capture", lambda function, streams: function)
    seconds = [0]

    def slow(function, cost):
        def run(*args, **kwargs):
            seconds[0] += cost
            return function(*args, **kwargs)

        return run

    def time_of(call):
        began = seconds[0]
        call()
        return seconds[0] - began

    vec = GpuLikeVec(shoal.make("vacuum", 8, backend="serial"))
    train = {"horizon": 4, "epochs": 3, "minibatches": 2, "total_steps": 10**6}
    with training(vec, nn={"policies": "per_agent", "hidden": 16}, train=train) as trainer:
        trainer.iterate()
        vec.launch_step = slow(vec.launch_step, 1)
        monkeypatch.setattr(ops, "gae", slow(ops.gae, 100))
        for learner in trainer.learners:
            learner.optimizer.step = slow(learner.optimizer.step, 10_000)
        monkeypatch.setattr(profiling, "device_seconds", time_of)
        split = profiling._device_split(trainer)
    assert split == {"env": 4, "policy": 0, "advantages": 4 * 100, "update": 4 * 3 * 2 * 10_000}


def test_products_of_a_network_are_counted():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 5 * 5, 4))
    assert macs_per_row(net, torch.zeros(1, 3, 5, 5)) == 8 * 3 * 9 * 25 + 200 * 4


def test_networks_of_several_agents_are_counted_as_one_row_is():
    for agents in (1, 3):
        net = QNet(spaces.Box(-1, 1, (5,)), 4, Net(hidden=8), agents=agents)
        assert macs_per_row(net, torch.zeros(agents, 5)) == 5 * 8 + 8 * 8 + 8 * 4


def test_json_is_one_line_with_everything(capsys, tmp_path):
    out = tmp_path / "found.jsonl"
    assert main(["bench", "train", "cartpole", "--device", "cpu", *SMALL, "--json", "--out", str(out)]) == 0
    line = capsys.readouterr().out.strip()
    assert out.read_text().strip() == line
    found = json.loads(line)
    assert found["env"] == "cartpole"
    assert found["num_envs"] == 16
    assert found["launches"] is None  # no GPU
    assert {"steps_per_s", "split_s", "floor_s", "bound", "warm_up_s", "peak_bytes", "machine"} <= set(found)


def test_a_person_sees_the_rate_the_split_and_the_floor(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "train", "cartpole", "--device=cpu", *SMALL]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("steps/s end to end", "env", "policy", "update", "Floor", "peak memory"))
    assert not list(tmp_path.iterdir())  # nothing is written


class SlowWorld:
    """Exchanges take 2 ms, and a second for a million bytes, by a clock of its own."""

    def __init__(self):
        self.received, self.now = 0, 0.0

    def gather(self, own):
        self.received += 8
        self.now += 5.0  # the wait for the others is not the exchange

    def sum(self, own):
        self.received += 8 * own.numel()
        self.now += 2e-3 + 8 * own.numel() / 1e6


def test_latency_and_rate_of_an_exchange_are_measured_without_the_wait_for_others(monkeypatch):
    world = SlowWorld()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: world.now)
    times = time_sums(world, torch.device("cpu"))
    assert [one.bytes for one in times] == [8 * size for size in timing.SIZES]
    latency_s, rate = fit(times)
    assert latency_s == pytest.approx(2e-3, rel=1e-3)
    assert rate == pytest.approx(1e6, rel=1e-3)
    assert world.received == 0  # they do not count as training's


def test_noise_gives_no_negative_latency_or_rate():
    latency_s, rate = fit([ExchangeTime(8.0, 3e-3), ExchangeTime(8e6, 2e-3)])
    assert latency_s >= 0
    assert rate > 0


@pytest.mark.slow
def test_processes_say_what_they_exchange_and_a_larger_machine_is_projected(tmp_path):
    """Two gradients of 4 minibatches a process: bytes are known; the projection takes the file."""
    out, root = tmp_path / "parts.jsonl", Path(__file__).parent.parent
    words = ["train", "cartpole", "--processes", "2", "--device", "cpu", *SMALL, "--train.epochs", "2", "--json"]
    command = [sys.executable, "-m", "shoal", "bench", *words, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    sent = found["exchange"]
    gradients = 4 * 2 * 4 * found["params"]  # 2 epochs of 2 minibatches; float32 of 2 processes
    assert gradients <= sent["bytes"] <= 1.2 * gradients
    assert 0 < sent["latency_s"] < 1
    assert sent["alone_s"] == pytest.approx(sent["calls"] * sent["latency_s"] + sent["bytes"] / sent["bytes_per_s"])
    shown = subprocess.run(
        [sys.executable, root / "benchmarks/scaling.py", out], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "PROJECTION, not a measurement" in shown
    assert "| cartpole | cpu, processes 2, shards 2 | measured |" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seconds", "none"], "--seconds 'none' must be a number"),
        (["--seconds", "0"], "--seconds '0' must be a number"),
        (["--out", "/nowhere/x.jsonl"], "--out /nowhere/x.jsonl cannot be written"),
    ],
)
def test_mistakes_are_told_before_any_work(capsys, words, said):
    assert main(["bench", "train", "cartpole", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
