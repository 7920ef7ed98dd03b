"""Third-party frameworks in parallel, against Gymnasium's and Stable-Baselines3's processes, interleaved in one run.

    pip install "shoal[atari,minigrid,pettingzoo,sb3,envpool,crafter]", procgen and nle (docs/frameworks.md)
    python benchmarks/frameworks.py [--num-envs 64] [--seconds 6] [--repeats 5] [--only atari minigrid]

Every row steps the same envs with the same preprocessing: those that `shoal train NAME` trains on. EnvPool's rows are
its own C++ envs with settings as close as it has them. SuperSuit steps PettingZoo's envs in processes. Frameworks that
are not installed are left out. Env steps per second; appended to benchmarks/results/framework_speed.jsonl.

On a machine that others use, a row of 64 processes gets a larger part of the cores than one of 2. CPU time, that of all
processes of a row for one env step, does not depend on that.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import shoal
from shoal.cores import available_cores
from shoal.integrations.adapt import adapt
from shoal.integrations.framework import FRAMEWORKS, framework
from shoal.measure import Sample, Stepper, describe_machine, measure
from shoal.vector.slots import Limited

RESULTS = Path(__file__).parent / "results" / "framework_speed.jsonl"
BAR = 1.5  # Shoal against the best peer that steps envs in processes


@dataclass(frozen=True)
class Case:
    """One env, and how EnvPool names it."""

    env: str
    envpool: str = ""
    envpool_params: dict[str, Any] = field(default_factory=dict)
    ale: str = ""  # the game in ALE's own vector env
    is_parallel: bool = False  # PettingZoo


CASES = {
    "atari": Case("atari:Breakout", "Breakout-v5", ale="ale:Breakout"),
    "procgen": Case("procgen:coinrun"),
    "nethack": Case("nethack:Score"),
    "minigrid": Case("minigrid:DoorKey-8x8", "MiniGrid-DoorKey-8x8-v0"),
    "crafter": Case("crafter:Reward"),
    "butterfly": Case("pettingzoo:butterfly/cooperative_pong_v6", is_parallel=True),
}


class Single(gymnasium.Env[Any, Any]):
    """The env of a framework as a plain `gymnasium.Env` with its time limit, for peers."""

    def __init__(self, name: str) -> None:
        prefix, _, rest = name.partition(":")
        made = adapt(framework(prefix).find(rest)())
        self.inner, self.limit = (made.env, made.limit) if isinstance(made, Limited) else (made, 0)
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space
        self.metadata = {"render_modes": []}
        self.tick = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.tick = 0
        obs, _info = self.inner.reset(seed=seed)
        return obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.tick += 1
        obs, reward, terminated, truncated, _info = self.inner.step(action)
        return obs, float(reward), bool(terminated), bool(truncated or self.tick == self.limit), {}


def turns(space: Any, count: int = 16) -> Callable[[], Any]:
    """Random actions, the same for every call of a row."""
    space.seed(0)
    return itertools.cycle([space.sample() for _ in range(count)]).__next__


def ours(case: Case, count: int, **options: Any) -> Stepper:
    vec: Any = shoal.make(case.env, count, seed=0, **options)
    vec.reset()
    actions = turns(vec.action_space)
    return Stepper(lambda: vec.step(actions()), count, 1, vec.close)


def gymnasium_async(case: Case, count: int) -> Stepper:
    vec: Any = gymnasium.vector.AsyncVectorEnv([partial(Single, case.env)] * count, shared_memory=True, context="fork")
    vec.reset(seed=0)
    actions = turns(vec.action_space)
    return Stepper(lambda: vec.step(actions()), count, 1, vec.close)


def sb3(case: Case, count: int) -> Stepper:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    vec = SubprocVecEnv([partial(Single, case.env)] * count, start_method="fork")
    vec.reset()
    actions = turns(gymnasium.vector.utils.batch_space(vec.action_space, count))
    return Stepper(lambda: vec.step(actions()), count, 1, vec.close)


def supersuit(case: Case, count: int, workers: int) -> Stepper:
    """PettingZoo's env in SuperSuit's worker processes: what its tutorials train with. Without a render mode the env
    would draw nothing, and observations would be black."""
    import supersuit as ss

    prefix, _, rest = case.env.partition(":")
    env = framework(prefix).find(rest)(render_mode="rgb_array")
    agents = len(env.possible_agents)
    vec = ss.concat_vec_envs_v1(ss.pettingzoo_env_to_vec_env_v1(env), count, num_cpus=workers, base_class="gymnasium")
    vec.reset()
    actions = turns(gymnasium.vector.utils.batch_space(vec.action_space, count * agents))
    return Stepper(lambda: vec.step(actions()), count, 1, vec.close)


class CpuClock:
    """Adds up the CPU seconds and the env steps of one row, over all its slices."""

    def __init__(self, make: Callable[[], Stepper]) -> None:
        self.make, self.seconds, self.steps = make, 0.0, 0

    def __call__(self) -> Stepper:
        """Makes the row; its processes are counted from now on until it is closed."""
        stepper = self.make()
        began = cpu_seconds()

        def step() -> None:
            stepper.step()
            self.steps += stepper.envs

        def close() -> None:
            self.seconds += cpu_seconds() - began
            stepper.close()

        return Stepper(step, stepper.envs, stepper.agents, close)

    @property
    def us_per_step(self) -> float:
        """CPU microseconds of an env step."""
        return 1e6 * self.seconds / max(1, self.steps)


def cpu_seconds() -> float:
    """User and system time of this process and of those that it started, as long as they live."""
    total = 0.0
    this = psutil.Process()
    for process in [this, *this.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def plain_loop(case: Case, count: int) -> Stepper:
    """One core, no processes: what parallel stepping must beat."""
    return ours(case, count, backend="serial")


def peers(case: Case, count: int, workers: int) -> dict[str, Callable[[], Stepper]]:
    rows: dict[str, Callable[[], Stepper]] = {}
    if case.is_parallel:
        if importlib.util.find_spec("supersuit") is not None:
            rows["SuperSuit processes"] = partial(supersuit, case, count, workers)
        return rows
    rows["Gymnasium AsyncVectorEnv"] = partial(gymnasium_async, case, count)
    if importlib.util.find_spec("stable_baselines3") is not None:
        rows["SB3 SubprocVecEnv"] = partial(sb3, case, count)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="spent on each row (default 6)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--num-envs", type=int, default=64, help="default 64")
    parser.add_argument("--only", nargs="*", help=f"some of: {' '.join(CASES)}")
    options = parser.parse_args()
    console, count, workers = Console(width=120), options.num_envs, available_cores()
    results: dict[str, Any] = {}
    warnings.simplefilter("ignore")
    for name, case in CASES.items():
        if options.only and name not in options.only:
            continue
        prefix, _, rest = case.env.partition(":")
        found = framework(prefix) if prefix in FRAMEWORKS.names() else None
        if found is None or found.problem():
            console.print(f"{name}: left out, {found.problem() if found else 'no such framework'}\n")
            continue
        rows: dict[str, Callable[[], Stepper]] = {
            "shoal process": partial(ours, case, count, num_workers=_divisor(count, workers), timeout_s=600.0),
            "shoal serial": partial(plain_loop, case, count),
            **peers(case, count, workers),
        }
        if case.envpool and framework("envpool").is_installed:
            own = Case(f"envpool:{case.envpool}", envpool_params=case.envpool_params)
            rows["EnvPool, by itself"] = partial(ours, own, count)
        if case.ale:
            rows["shoal ale:"] = partial(ours, Case(case.ale), count)  # ALE's own vector env behind our VecEnv
        clocks = {row: CpuClock(make) for row, make in rows.items()}
        load = os.getloadavg()[0]
        with console.status(name):
            samples = measure(clocks, options.seconds, options.repeats, fresh=True)
        cpu = {row: clock.us_per_step for row, clock in clocks.items()}
        title = (
            f"{name} ({case.env}, {count} envs; load of the machine {load:.1f} before, {os.getloadavg()[0]:.1f} after)"
        )
        results[name] = show(console, title, samples, cpu) | {"load": [load, os.getloadavg()[0]]}
        with_bar = results[name]["best_process_peer"]
        if with_bar is not None:
            console.print(f"against the best process-based peer {with_bar:.2f}x (bar {BAR}x)\n")
        with RESULTS.open("a") as file:  # at once: what is done is kept if the script is interrupted
            line = {"machine": describe_machine(), "num_envs": count, "workers": workers, name: results[name]}
            file.write(json.dumps(line) + "\n")


PROCESSES = ("Gymnasium AsyncVectorEnv", "SB3 SubprocVecEnv", "SuperSuit processes")


def is_ours(row: str) -> bool:
    """Whether a row is what Shoal steps these envs with: not serial, which is shown for what processes add to it."""
    return row.startswith("shoal") and row != "shoal serial"


def _divisor(count: int, workers: int) -> int:
    return max(k for k in range(1, workers + 1) if count % k == 0)


def show(console: Console, title: str, samples: dict[str, Sample], cpu: dict[str, float]) -> dict[str, Any]:
    table = Table(title=title, box=None, title_justify="left")
    for column in ("", "steps/s", "least .. most", "Shoal is faster by", "CPU us/step", "CPU, to Shoal's"):
        table.add_column(column, justify="left" if not column else "right")
    best = max((row for row in samples if is_ours(row)), key=lambda row: samples[row].median)
    ratios: dict[str, float] = {}
    for row, sample in samples.items():
        rates = sample.steps_per_s
        ratios[row] = float(np.median([a / b for a, b in zip(samples[best].steps_per_s, rates)]))
        text = "" if row.startswith("shoal") else f"{ratios[row]:.2f}x"
        ours = "" if row == best else f"{cpu[row] / cpu[best]:.2f}x"
        spread = f"{min(rates):,.0f} .. {max(rates):,.0f}"
        table.add_row(row, f"{sample.median:,.0f}", spread, text, f"{cpu[row]:,.0f}", ours)
    console.print(table)
    against = [ratios[row] for row in PROCESSES if row in ratios]
    return {
        "rates": {row: [round(rate) for rate in sample.steps_per_s] for row, sample in samples.items()},
        "ratios": ratios,
        "best": {row: round(max(sample.steps_per_s)) for row, sample in samples.items()},
        "cpu_us_per_step": {row: round(value, 1) for row, value in cpu.items()},
        "best_process_peer": min(against) if against else None,
    }


if __name__ == "__main__":
    main()
