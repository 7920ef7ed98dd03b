"""Env steps per second from Python, against EnvPool and Gymnasium, interleaved in one run on one core.

    pip install -e ".[bench]"
    python benchmarks/env_throughput.py [--seconds 3] [--repeats 9]

Three tables: (1) one core, 4096 envs, `step()` with fresh actions each time; (2) one thread against two;
(3) what one call of `step()` costs with one env. Each run appends machine, commit and every repeat to
benchmarks/results/env_throughput.jsonl. `scripts/readme` draws the README's chart and writes the tables of
docs/performance.md from there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

import shoal
from shoal.measure import Sample, Stepper, describe_machine, measure
from shoal.registry import stock_names

RESULTS = Path(__file__).parent / "results" / "env_throughput.jsonl"
NUM_ENVS = 4096


def fresh(space: gymnasium.Space[Any], dtype: Any, count: int = 64) -> Callable[[], Any]:
    """Returns one of `count` batches of random actions after the other, as a policy would."""
    space.seed(0)
    return itertools.cycle([np.asarray(space.sample(), dtype) for _ in range(count)]).__next__


def ours(env: str, num_envs: int = NUM_ENVS, **options: Any) -> Stepper:
    vec: Any = shoal.make(env, num_envs, seed=0, **options)
    vec.reset()
    box = vec.native_spec.action_kind == "box"
    actions = fresh(vec.action_space, np.float32 if box else np.int64)
    return Stepper(lambda: vec.step(actions()), num_envs, vec.agents_per_env, vec.close)


def gymnasium_vector(id: str, num_envs: int, mode: str) -> Stepper:
    vec = gymnasium.make_vec(id, num_envs=num_envs, vectorization_mode=mode)
    vec.reset(seed=0)
    box = isinstance(vec.single_action_space, gymnasium.spaces.Box)
    actions = fresh(vec.action_space, np.float32 if box else np.int64)
    return Stepper(lambda: vec.step(actions()), num_envs, 1, vec.close)


def envpool(id: str, num_threads: int) -> Stepper:
    import envpool as peer

    pool = peer.make(id, env_type="gymnasium", num_envs=NUM_ENVS, num_threads=num_threads, seed=0)
    pool.reset()
    batched = gymnasium.vector.utils.batch_space(pool.action_space, NUM_ENVS)
    box = isinstance(pool.action_space, gymnasium.spaces.Box)
    actions = fresh(batched, np.float32 if box else np.int32)
    return Stepper(lambda: pool.step(actions()), NUM_ENVS, 1, pool.close)


class Empty(gymnasium.Env[Any, Any]):
    """A Python env that does nothing: its time is that of the vectorizer."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)
    obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.obs, 0.0, False, False, {}


def sync_one(maker: Callable[[], gymnasium.Env[Any, Any]]) -> Stepper:
    vec = gymnasium.vector.SyncVectorEnv([maker])
    vec.reset(seed=0)
    actions = fresh(vec.action_space, np.int64)
    return Stepper(lambda: vec.step(actions()), 1, 1, vec.close)


def ratio(a: Sample, b: Sample) -> tuple[float, float, float]:
    """Median, minimum and maximum of a / b over the rounds."""
    ratios = sorted(x / y for x, y in zip(a.steps_per_s, b.steps_per_s))
    return float(np.median(ratios)), ratios[0], ratios[-1]


def millions(sample: Sample) -> str:
    low, high = min(sample.steps_per_s) / 1e6, max(sample.steps_per_s) / 1e6
    return f"{sample.median / 1e6:,.2f} M [dim]({low:,.2f} .. {high:,.2f})[/]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="spent on each row (default 3)")
    parser.add_argument("--repeats", type=int, default=9, help="rounds (default 9)")
    parser.add_argument("--no-envpool", action="store_true", help="leave EnvPool out, if it is not installed")
    options = parser.parse_args()
    console = Console(width=120)
    cores = sorted(os.sched_getaffinity(0))

    one_core: dict[str, Callable[[], Stepper]] = {
        f"shoal {env}": partial(ours, env, backend="serial") for env in stock_names()
    }
    one_core |= {
        "Gymnasium CartPole, vectorized in NumPy": partial(
            gymnasium_vector, "CartPole-v1", NUM_ENVS, "vector_entry_point"
        ),
        "Gymnasium Pendulum, SyncVectorEnv": partial(gymnasium_vector, "Pendulum-v1", NUM_ENVS, "sync"),
    }
    if not options.no_envpool:
        one_core |= {"EnvPool CartPole": partial(envpool, "CartPole-v1", 1)}
        one_core |= {"EnvPool Pendulum": partial(envpool, "Pendulum-v1", 1)}

    def progress(title: str) -> Callable[[Any, float], None]:
        return lambda samples, share: status.update(f"{title} {share:.0%}")

    with console.status("") as status:
        os.sched_setaffinity(0, cores[:1])  # threads that are started later inherit it
        first = measure(one_core, options.seconds, options.repeats, progress("one core"))
        calls = measure(
            {
                "shoal squared": partial(ours, "squared", 1, backend="serial"),
                "SyncVectorEnv of an empty Python env": partial(sync_one, Empty),
                "SyncVectorEnv of CartPole-v1": partial(sync_one, partial(gymnasium.make, "CartPole-v1")),
            },
            options.seconds,
            options.repeats,
            progress("one env"),
        )
        os.sched_setaffinity(0, cores)
        threads: dict[str, Callable[[], Stepper]] = {}
        for env, count, number in itertools.product(stock_names(), (NUM_ENVS, 16 * NUM_ENVS), (1, 2)):
            maker = partial(ours, env, count, backend="threads", num_threads=number)
            threads[f"{env} x{count} on {number}"] = maker
        second: dict[str, Sample] = {}
        if len(cores) > 1:
            for env in stock_names():  # one env at a time, so that idle pools do not disturb
                pools = {name: make for name, make in threads.items() if name.startswith(f"{env} ")}
                second |= measure(pools, options.seconds / 2, options.repeats, progress(f"threads {env}"))

    peers = {"cartpole": [n for n in first if "CartPole" in n], "pendulum": [n for n in first if "Pendulum" in n]}
    table = Table(title=f"One core, {NUM_ENVS} envs, step() from Python: env steps per second")
    for column in ("", "median (least .. most)", "against the fastest peer"):
        table.add_column(column)
    best_ratios = {}
    for name, sample in first.items():
        env = name.removeprefix("shoal ")
        text = ""
        if env in peers:
            best = max(peers[env], key=lambda peer: first[peer].median)
            best_ratios[env] = (best, *ratio(sample, first[best]))
            text = "{1:.1f}x [dim]({2:.1f} .. {3:.1f})[/] {0}".format(*best_ratios[env])
        table.add_row(name, millions(sample), text)
    console.print(table)

    table = Table(title="Two threads against one")
    for column in ("", "one thread", "two threads", "speed-up"):
        table.add_column(column)
    speedups = {}
    for name in (name for name in second if name.endswith(" on 1")):
        label = name.removesuffix(" on 1")
        one, two = second[name], second[f"{label} on 2"]
        speedups[label] = ratio(two, one)
        spread = "{:.2f}x [dim]({:.2f} .. {:.2f})[/]".format(*speedups[label])
        table.add_row(label, millions(one), millions(two), spread)
    console.print(table)

    table = Table(title="One call of step() with one env, Python to Python")
    for column in ("", "microseconds, median (least .. most)"):
        table.add_column(column)
    for name, sample in calls.items():
        times = [1e6 * seconds for seconds in sample.seconds_per_call]
        table.add_row(name, f"{sample.us_per_call:.2f} [dim]({min(times):.2f} .. {max(times):.2f})[/]")
    console.print(table)

    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        record = {
            "machine": describe_machine(),
            "num_envs": NUM_ENVS,
            "one_core": rows(first),
            "ratios": best_ratios,
            "threads": rows(second),
            "speedups": speedups,
            "one_env": rows(calls),
        }
        file.write(json.dumps(record) + "\n")
    console.print(f"appended to {RESULTS}")


def rows(samples: dict[str, Sample]) -> dict[str, Iterable[float]]:
    return {name: [round(rate) for rate in sample.steps_per_s] for name, sample in samples.items()}


if __name__ == "__main__":
    main()
