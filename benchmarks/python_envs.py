"""Python envs in parallel, against Gymnasium's, Stable-Baselines3's and TorchRL's, interleaved in one run.

    pip install -e ".[dev]"
    python benchmarks/python_envs.py [--seconds 3] [--repeats 5]

Six envs: empty (overhead alone), CartPole, an 84x84x3 image, 200 us of work, Dict observations, and steps of
1x to 20x varying length. Env steps per second; appended to benchmarks/results/python_envs.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

import shoal
from shoal.cores import available_cores
from shoal.measure import Sample, Stepper, describe_machine, measure

RESULTS = Path(__file__).parent / "results" / "python_envs.jsonl"


class Base(gymnasium.Env[Any, Any]):
    """An env that never ends and returns the same observation in every step."""

    observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.obs = self.observation_space.sample()
        self.rng = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.rng = np.random.default_rng(seed)
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.work()
        return self.obs, 0.0, False, False, {}

    def work(self) -> None:
        pass


class Image(Base):
    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 3), np.uint8)


class Mixed(Base):
    observation_space = gymnasium.spaces.Dict(
        {
            "camera": gymnasium.spaces.Box(0, 255, (32, 32, 3), np.uint8),
            "joints": gymnasium.spaces.Box(-1, 1, (12,), np.float32),
            "target": gymnasium.spaces.Box(-1, 1, (3,), np.float64),
            "gripper": gymnasium.spaces.Discrete(3),
        }
    )


def burn(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Heavy(Base):
    def work(self) -> None:
        burn(200e-6)


class Varying(Base):
    """A tenth of the steps take longer than the rest, up to 20 times: resets, collisions, planning."""

    def work(self) -> None:
        burn(50e-6 * (1.0 if self.rng.random() < 0.9 else self.rng.uniform(1.0, 20.0)))


class Loop:
    """A plain Python loop over envs: the upper limit of one core."""

    def __init__(self, maker: Callable[[], Any], count: int) -> None:
        self.envs = [maker() for _ in range(count)]
        for number, env in enumerate(self.envs):
            env.reset(seed=number)

    def step(self, actions: Any) -> None:
        for env, action in zip(self.envs, actions):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()


def cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def batches(vec: Any, count: int = 16) -> Callable[[], Any]:
    vec.action_space.seed(0)
    return itertools.cycle([vec.action_space.sample() for _ in range(count)]).__next__


def ours(maker: Callable[[], Any], count: int, **options: Any) -> Stepper:
    vec: Any = shoal.make(maker, count, seed=0, **options)
    vec.reset()
    actions = batches(vec)
    return Stepper(lambda: vec.step(actions()), count, 1, vec.close)


def ours_async(maker: Callable[[], Any], count: int, batch: int, workers: int) -> Stepper:
    vec: Any = shoal.make(maker, count, seed=0, num_workers=workers, batch_size=batch)
    actions = [a[:batch] for a in (batches(vec)() for _ in range(16))]
    turn = itertools.cycle(actions).__next__
    vec.async_reset()
    vec.recv()

    def step() -> None:
        vec.send(turn())
        vec.recv()

    return Stepper(step, batch, 1, vec.close)


def loop(maker: Callable[[], Any], count: int) -> Stepper:
    plain = Loop(maker, count)
    space = gymnasium.spaces.MultiDiscrete([2] * count)
    space.seed(0)
    actions = itertools.cycle([space.sample() for _ in range(16)]).__next__
    return Stepper(lambda: plain.step(actions()), count)


def gymnasium_vec(maker: Callable[[], Any], count: int, kind: str) -> Stepper:
    vec: Any = (
        gymnasium.vector.SyncVectorEnv([maker] * count)
        if kind == "sync"
        else gymnasium.vector.AsyncVectorEnv([maker] * count, shared_memory=True)
    )
    vec.reset(seed=0)
    actions = batches(vec)
    return Stepper(lambda: vec.step(actions()), count, 1, vec.close)


def sb3(maker: Callable[[], Any], count: int) -> Stepper:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    vec = SubprocVecEnv([maker] * count, start_method="fork")
    vec.reset()
    space = gymnasium.spaces.MultiDiscrete([2] * count)
    space.seed(0)
    actions = itertools.cycle([space.sample() for _ in range(16)]).__next__
    return Stepper(lambda: vec.step(actions()), count, 1, vec.close)


def torchrl(maker: Callable[[], Any], count: int) -> Stepper:
    from torchrl.envs import GymWrapper, ParallelEnv

    vec = ParallelEnv(count, lambda: GymWrapper(maker()), mp_start_method="fork")
    state = vec.reset()
    state = vec.rand_action(state)

    def step() -> None:
        vec.step(state)

    return Stepper(step, count, 1, lambda: vec.close(raise_if_closed=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="spent on each row (default 3)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--num-envs", type=int, default=64, help="default 64")
    parser.add_argument("--only", nargs="*", help="some of: empty cartpole image heavy dict varying")
    parser.add_argument("--no-torchrl", action="store_true", help="leave TorchRL out, if it is not installed")
    options = parser.parse_args()
    console, count, workers = Console(width=120), options.num_envs, available_cores()
    envs: dict[str, Callable[[], Any]] = {
        "empty": Base,
        "cartpole": cartpole,
        "image": Image,
        "heavy": Heavy,
        "dict": Mixed,
        "varying": Varying,
    }
    results: dict[str, Any] = {}
    for name, maker in envs.items():
        if options.only and name not in options.only:
            continue
        rows: dict[str, Callable[[], Stepper]] = {
            "shoal process": partial(ours, maker, count, num_workers=workers),
            "shoal serial": partial(ours, maker, count, backend="serial"),
            "plain loop": partial(loop, maker, count),
            "Gymnasium SyncVectorEnv": partial(gymnasium_vec, maker, count, "sync"),
            "Gymnasium AsyncVectorEnv": partial(gymnasium_vec, maker, count, "async"),
            "SB3 SubprocVecEnv": partial(sb3, maker, count),
        }
        if name == "heavy":
            rows["shoal process, pinned"] = partial(ours, maker, count, num_workers=workers, cpu_affinity=True)
        if name == "varying":
            rows["shoal process, async"] = partial(ours_async, maker, count, count // 4, 4 * workers)
        if not options.no_torchrl and name != "dict":
            rows["TorchRL ParallelEnv"] = partial(torchrl, maker, count)
        with console.status(name):
            samples = measure(rows, options.seconds, options.repeats, fresh=True)
        results[name] = show(console, name, samples, workers)
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps({"machine": describe_machine(), "num_envs": count, "workers": workers, **results}) + "\n")


PARALLEL = ("Gymnasium AsyncVectorEnv", "SB3 SubprocVecEnv", "TorchRL ParallelEnv")


def show(console: Console, name: str, samples: dict[str, Sample], workers: int) -> dict[str, Any]:
    table = Table(title=name, box=None, title_justify="left")
    for column in ("", "steps/s", "least .. most", "Shoal is faster by"):
        table.add_column(column, justify="left" if not column else "right")
    ours = samples.get("shoal process, async", samples["shoal process"])
    ratios: dict[str, float] = {}
    for row, sample in samples.items():
        rates = sample.steps_per_s
        ratios[row] = float(np.median([a / b for a, b in zip(ours.steps_per_s, rates)]))
        text = "" if row.startswith("shoal") else f"{ratios[row]:.2f}x"
        table.add_row(row, f"{sample.median:,.0f}", f"{min(rates):,.0f} .. {max(rates):,.0f}", text)
    console.print(table)
    parallel = min(ratios[row] for row in PARALLEL if row in ratios)
    ideal = samples["shoal process"].median / (workers * samples["plain loop"].median)
    console.print(f"against the best parallel peer {parallel:.2f}x; {ideal:.0%} of ideal scaling over a plain loop\n")
    return {
        "rates": {row: [round(rate) for rate in sample.steps_per_s] for row, sample in samples.items()},
        "ratios": ratios,
        "best_parallel_peer": parallel,
        "ideal": ideal,
    }


if __name__ == "__main__":
    main()
