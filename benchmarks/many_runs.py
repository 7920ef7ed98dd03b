"""Several runs on one machine: how much of its throughput is lost when they run at once.

    python benchmarks/many_runs.py [--only cartpole breakout python] [--rounds 3] [--quick]

cartpole  8 runs of `shoal train cartpole`. One thread each: the time of all, against one run pinned to one core.
breakout  4 runs with 1,024 envs in threads: steps/s of all at once, against the same runs one after the other.
python    4 runs of Gymnasium's CartPole-v1 in worker processes: the same comparison.

Each case runs alone, at once, and at once with each run pinned to one core; these take turns, one round each. A run is
a process of its own, from its start to its end, so that imports count. `CPU` is the CPU time of a run in comparison
with a run that is alone: what spinning threads and cold caches cost. `others` is the share of the cores that other
processes used meanwhile. With more than a few per cent, times say little: look at `CPU` then (cartpole would take runs
/ cores x `CPU` times as long without the others). The result is appended to benchmarks/results/many_runs.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from shoal.cores import available_cores
from shoal.measure import describe_machine

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "many_runs.jsonl"
MIN_THROUGHPUT = 0.85  # of runs at once, relative to the same runs one after the other
QUIET = ("--console", "off", "--eval.episodes", "0")


@dataclass(frozen=True)
class Case:
    """Runs to compare: their command line and number."""

    command: tuple[str, ...]
    runs: int
    steps: int  # of each run
    quick_steps: int
    is_pinned: bool = False  # a run that is alone is pinned to one core


CASES = {
    "cartpole": Case(("cartpole", "--console", "off"), runs=8, steps=200_000, quick_steps=40_000, is_pinned=True),
    "breakout": Case(("breakout", *QUIET, "--vec.num-envs", "1024"), runs=4, steps=1_000_000, quick_steps=300_000),
    "python": Case(
        ("gymnasium:CartPole-v1", *QUIET, "--vec.num-envs", "16", "--vec.backend", "process"),
        runs=4,
        steps=40_000,
        quick_steps=10_000,
    ),
}


@dataclass
class Batch:
    """Runs that were started at once."""

    wall_s: float
    cpu_s: float  # of all runs
    others: float  # share of the cores that other processes used


@dataclass
class Samples:
    """The batches of one case, by round."""

    alone: list[Batch] = field(default_factory=list)
    at_once: list[Batch] = field(default_factory=list)
    pinned: list[Batch] = field(default_factory=list)


def start_runs(command: list[str], count: int, pin: bool) -> Batch:
    """Starts runs at once and waits for all of them. `pin`: each to one core, in turns."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        busy, wall = _busy_s(), time.perf_counter()
        runs = []
        for number in range(count):
            prefix = ["taskset", "-c", str(cores[number % len(cores)])] if pin else []
            place = Path(folder) / str(number)
            place.mkdir()
            seed = ["--seed", str(number + 1)]
            runs.append(
                subprocess.Popen(
                    [*prefix, *command, *seed], cwd=place, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                )
            )
        cpu = 0.0
        for run in runs:
            assert run.stdout is not None
            text = run.stdout.read()
            _, status, usage = os.wait4(run.pid, 0)
            run.returncode = os.waitstatus_to_exitcode(status)
            cpu += usage.ru_utime + usage.ru_stime
            if run.returncode:
                sys.exit(f"{' '.join(command)} failed with {run.returncode}:\n{text.decode()}")
        wall = time.perf_counter() - wall
    return Batch(wall, cpu, max(0.0, _busy_s() - busy - cpu) / (wall * (os.cpu_count() or 1)))


def _busy_s() -> float:
    """Seconds that all cores of the machine have been busy so far, those taken by its host included."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def measure(case: Case, rounds: int, quick: bool, console: Console, name: str) -> Samples:
    """Plays the rounds of one case."""
    steps = case.quick_steps if quick else case.steps
    command = [sys.executable, "-m", "shoal", "train", *case.command, "--train.total-steps", str(steps)]
    samples = Samples()
    for number in range(rounds):
        with console.status(f"{name}, round {number + 1} of {rounds}"):
            samples.alone.append(start_runs(command, 1, pin=case.is_pinned))
            samples.at_once.append(start_runs(command, case.runs, pin=False))
            samples.pinned.append(start_runs(command, case.runs, pin=True))
    return samples


def summarize(case: Case, samples: Samples, cores: int) -> dict[str, Any]:
    """Ratios of the case, by round. Throughput 1: as much as the same runs one after the other."""
    # runs that are alone and pinned leave the other cores idle: one after the other, `cores` of them run at a time
    width = cores if case.is_pinned else 1
    facts: dict[str, Any] = {"runs": case.runs, "alone_s": [batch.wall_s for batch in samples.alone]}
    for kind, batches in (("at_once", samples.at_once), ("pinned", samples.pinned)):
        pairs = list(zip(samples.alone, batches))
        facts[kind] = {
            "times": [many.wall_s / one.wall_s for one, many in pairs],
            "throughput": [case.runs / width * one.wall_s / many.wall_s for one, many in pairs],
            "cpu": [many.cpu_s / case.runs / one.cpu_s for one, many in pairs],
            "others": [max(one.others, many.others) for one, many in pairs],
        }
    return facts


def show(console: Console, results: dict[str, dict[str, Any]]) -> bool:
    """Prints a table of the results and returns whether all pass."""
    columns = ("runs", "", "alone, s", "times as long", "throughput", "CPU", "others")
    table = Table(box=None)
    for column in ("", *columns):
        table.add_column(column, justify="right" if column else "left")
    passed = True
    for name, facts in results.items():
        for kind, label in (("at_once", "at once"), ("pinned", "at once, pinned")):
            ratios = facts[kind]
            passed &= median(ratios["throughput"]) >= MIN_THROUGHPUT
            cells = [_spread(ratios[key]) for key in ("times", "throughput", "cpu")]
            table.add_row(
                name,
                str(facts["runs"]),
                label,
                f"{median(facts['alone_s']):.1f}",
                *cells,
                f"{max(ratios['others']):.0%}",
            )
    console.print(table)
    console.print(f"{'passes' if passed else 'fails'}: throughput, the bar is {MIN_THROUGHPUT:g}")
    return passed


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="short runs, mostly imports: to see that it works")
    options = parser.parse_args()
    console, cores = Console(width=120), available_cores()
    results = {}
    for name in options.only:
        samples = measure(CASES[name], options.rounds, options.quick, console, name)
        results[name] = summarize(CASES[name], samples, cores)
    passed = show(console, results)
    if not options.quick:
        facts = {"machine": describe_machine(), "rounds": options.rounds, **results, "passed": passed}
        with RESULTS.open("a") as file:
            file.write(json.dumps(facts) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
