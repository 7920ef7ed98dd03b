"""Samplers of sweeps against random search: the time until a trial reaches a target, over seeds.

    python benchmarks/sweeps.py [--tasks hartmann squared] [--samplers random tpe protein] [--seeds 5] [--jobs 1]
    python benchmarks/sweeps.py --print               only print the latest results

Two tasks:

- `hartmann`: the Hartmann function of six inputs, whose highest value is 3.322. A trial costs 1 to 10 s, by its first
  input; these seconds are not spent.
- `squared`: training on the tutorial env for 16,000 steps, with wide ranges of eight options. The score is the return
  of the sampled policy, which grows smoothly; 0.859 is the best. The time is CPU seconds, which other programs on the
  machine change little.

The samplers take turns, seed by seed; with `--jobs N`, N seeds at a time, each on one core. A search ends when a trial
reaches the target, or after `--trials`: then its time is a lower bound, and counted as such. Printed are the mean with
its 95 % interval and the ratio to random search, of trials' time alone and together with the sampler's own. Appends to
benchmarks/results/sweeps.jsonl.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.measure import describe_machine
from shoal.stats import ci95, mean
from shoal.sweep.ranges import Range
from shoal.sweep.space import Space, make_space
from shoal.sweep.store import Trial
from shoal.sweep.suggest import suggest
from shoal.train import options_for, train

RESULTS = Path(__file__).parent / "results" / "sweeps.jsonl"
STEPS = 16_000
RANGES = {
    "learning_rate": "log(1e-5, 1e-1)",
    "gamma": "logit(0.8, 0.999)",
    "gae_lambda": "logit(0.5, 0.999)",
    "entropy_coef": "log(1e-4, 0.3)",
    "clip": "uniform(0.05, 0.5)",
    "horizon": "pow2(8, 128)",
    "epochs": "integer(1, 8)",
    "minibatches": "pow2(1, 32)",
}


@dataclasses.dataclass(frozen=True)
class Task:
    """What is searched. `play(values, number, seed)` returns the score and the seconds of a trial."""

    space: Space
    play: Callable[[Mapping[str, Any], int, int], tuple[float, float]]
    target: float
    trials: int


def hartmann() -> Task:
    """Hartmann's function of six inputs, with a cost."""
    weights = np.array([1.0, 1.2, 3.0, 3.2])
    scales = np.array(
        [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
    )
    centres = 1e-4 * np.array(
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
    )
    space = Space({f"train.x{k}": Range("uniform", 0.0, 1.0) for k in range(6)})

    def play(values: Mapping[str, Any], number: int, seed: int) -> tuple[float, float]:
        x = np.array([values[f"train.x{k}"] for k in range(6)])
        score = float(weights @ np.exp(-(scales * (x - centres) ** 2).sum(1)))
        return score, 1.0 + 9.0 * x[0]

    return Task(space, play, target=2.4, trials=200)


def squared() -> Task:
    """Training on squared."""
    tables = {
        "train": {"total_steps": STEPS},
        "vec": {"num_envs": 64, "num_threads": 1, "torch_threads": 1},
        "eval": {"episodes": 100, "greedy": False},
    }
    base = options_for("squared", {"device": "cpu", **tables})
    space = make_space("squared", base, [{"train": RANGES}])

    def play(values: Mapping[str, Any], number: int, seed: int) -> tuple[float, float]:
        options = dataclasses.replace(space.apply(base, values), seed=1000 * seed + number)
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            run = train("squared", options=options, runs_folder=folder, console="off")
            return float((run.summary or {})["eval"]["return"]), time.process_time() - began

    return Task(space, play, target=0.75, trials=80)


TASKS = {"hartmann": hartmann, "squared": squared}


def search(task: Task, sampler: str, seed: int) -> dict[str, Any]:
    """One search until its target. No trial has tuned values: trial 0 is the sampler's, too."""
    trials: list[Trial] = []
    asked = 0.0
    for number in range(task.trials):
        began = time.process_time()
        values = suggest(task.space, trials, number, sampler=sampler, seed=seed)
        asked += time.process_time() - began
        score, seconds = task.play(values, number, seed)
        trials.append(Trial(number, "finished", values, score, seconds, STEPS))
        if score >= task.target:
            break
    scores = [trial.score or -math.inf for trial in trials]
    facts = {"trials": len(trials), "seconds": sum(trial.seconds or 0.0 for trial in trials), "asked_s": asked}
    return {**facts, "reached": max(scores) >= task.target, "best": max(scores)}


def search_all(name: str, samplers: list[str], seed: int) -> dict[str, dict[str, Any]]:
    """The searches of one seed, one sampler after the other."""
    task = TASKS[name]()
    found = {sampler: search(task, sampler, seed) for sampler in samplers}
    for sampler, facts in found.items():
        print(name, sampler, seed, facts, flush=True)
    return found


def take_core(cores: Any) -> None:
    """Pins a process of the pool to a core of its own."""
    os.sched_setaffinity(0, [cores.get()])


def report() -> None:
    """Prints the latest result of each task."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []
    latest = {line["task"]: line for line in lines}
    for name, line in latest.items():
        print(f"\n{name}: until a score of {line['target']}, at most {line['limit']} trials, {line['seeds']} seeds")
        print(f"{'sampler':10} {'reached':>8} {'trials':>15} {'seconds':>17} {'with asking':>17} {'to random':>10}")
        random = mean([row["seconds"] for row in line["searches"]["random"]]) if "random" in line["searches"] else None
        for sampler, rows in line["searches"].items():
            cells = []
            for values in (
                [row["trials"] for row in rows],
                [row["seconds"] for row in rows],
                [row["seconds"] + row["asked_s"] for row in rows],
            ):
                cells.append(f"{mean(values):.1f} ± {ci95(values):.1f}")
            ratio = f"{mean([row['seconds'] for row in rows]) / random:.2f}" if random else "-"
            reached = f"{sum(row['reached'] for row in rows)}/{len(rows)}"
            print(f"{sampler:10} {reached:>8} {cells[0]:>15} {cells[1]:>17} {cells[2]:>17} {ratio:>10}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--samplers", nargs="+", default=["random", "tpe", "protein"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, each on one core")
    parser.add_argument("--print", action="store_true", help="print the stored results only")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    cores: Any = context.Queue()
    for core in sorted(os.sched_getaffinity(0))[: arguments.jobs]:
        cores.put(core)
    for name in () if arguments.print else arguments.tasks:
        call = partial(search_all, name, arguments.samplers)
        with ProcessPoolExecutor(arguments.jobs, context, take_core, (cores,)) as pool:
            found = list(pool.map(call, range(1, arguments.seeds + 1)))
        for core in sorted(os.sched_getaffinity(0))[: arguments.jobs]:
            cores.put(core)
        searches = {sampler: [facts[sampler] for facts in found] for sampler in arguments.samplers}
        task = TASKS[name]()
        record = {"machine": describe_machine(), "task": name, "target": task.target, "limit": task.trials}
        with RESULTS.open("a") as file:
            file.write(json.dumps({**record, "seeds": arguments.seeds, "searches": searches}) + "\n")
    report()


if __name__ == "__main__":
    main()
