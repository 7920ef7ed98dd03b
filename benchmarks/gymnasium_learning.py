"""Gymnasium envs in processes, trained by `shoal train` with the options in shoal/envs/gymnasium, against known marks.

    pip install -e ".[dev]" "gymnasium[mujoco,box2d]" swig
    python benchmarks/gymnasium_learning.py [--envs CartPole-v1 Hopper-v5] [--seeds 1 2 3] [--jobs 1]

Each run is a process of its own. It ends with the mean return of its last 100 training episodes, with actions drawn
from the policy, and of 100 held-out episodes, with the likeliest actions. An env passes when the means of both over the
seeds reach its mark. Each run of this file appends machine, commit and every row to
benchmarks/results/gymnasium_learning.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from shoal.config import read_toml
from shoal.measure import describe_machine
from shoal.registry import STOCK

RESULTS = Path(__file__).parent / "results" / "gymnasium_learning.jsonl"
MARKS = {  # HalfCheetah and Hopper: what CleanRL published for its PPO on v4, after 1M steps
    "CartPole-v1": 475.0,
    "Acrobot-v1": -100.0,
    "LunarLander-v3": 200.0,
    "HalfCheetah-v5": 1442.0,
    "Hopper-v5": 2382.0,
}
Row = dict[str, Any]


def train_one(name: str, seed: int, options: argparse.Namespace) -> Row:
    """One run, in this process."""
    from shoal.train import train

    began = time.perf_counter()
    tables: dict[str, Any] = {"vec": {"backend": options.backend}, "eval": {"episodes": options.episodes}}
    if options.steps is not None:
        tables["train"] = {"total_steps": options.steps}
    run = train(f"gymnasium:{name}", seed=seed, runs_folder=options.runs, console="off", **tables)
    summary = run.summary or {}
    row = {"env": name, "seed": seed, "steps": summary["step"], "train_return": last_episodes(run.metrics(), 100)}
    row |= {"eval_return": summary["eval"]["return"], "train_s": round(summary["wall_s"], 1)}
    row |= {"sps": round(summary["step"] / summary["wall_s"]), "whole_s": round(time.perf_counter() - began, 1)}
    return row


def last_episodes(metrics: Sequence[Row], count: int) -> float:
    """The mean return of the last log lines that hold at least `count` episodes."""
    total, seen = 0.0, 0
    for line in reversed(metrics):
        n = int(line.get("episode/n", 0))
        if n and seen < count:
            total, seen = total + n * line["episode/return"], seen + n
    return total / seen if seen else -math.inf


def in_a_process(name: str, seed: int, runs: str, options: argparse.Namespace) -> Row:
    """One run in its own process, whose last line of output is its row."""
    asked = [sys.executable, __file__, "--one", name, str(seed), "--runs", runs, "--episodes", str(options.episodes)]
    asked += ["--backend", options.backend, *([] if options.steps is None else ["--steps", options.steps])]
    done = subprocess.run(asked, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {"env": name, "seed": seed, "failed": done.returncode}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=list(MARKS), default=list(MARKS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default 1: a run has the whole machine)")
    parser.add_argument("--steps", help="steps instead of those in the TOML, for a short trial; not recorded")
    parser.add_argument("--episodes", type=int, default=100, help="held-out episodes (default 100)")
    parser.add_argument(
        "--backend", choices=("process", "serial"), default="process", help="both give the same returns"
    )
    parser.add_argument("--runs", help="folder for the runs (default: they are deleted)")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, seed = options.one
        row = train_one(name, int(seed), options)
        print(json.dumps(row), flush=True)
        return
    console = Console(width=120)
    wanted = [(name, seed) for name in options.envs for seed in options.seeds]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        runs = options.runs or scratch
        rows = []
        for row in pool.map(lambda pair: in_a_process(pair[0], pair[1], runs, options), wanted):
            rows.append(row)
            console.print(" ".join(f"{key}={value}" for key, value in row.items()), highlight=False, soft_wrap=True)
    show(console, rows)
    failed = any("failed" in row for row in rows)
    if options.steps is None and not failed:
        RESULTS.parent.mkdir(exist_ok=True)
        used = {name: read_toml(STOCK / "gymnasium" / f"{name}.toml") for name in options.envs}
        facts = {"machine": describe_machine(), "backend": options.backend, "jobs": options.jobs}
        facts |= {"options": used, "rows": rows}
        with RESULTS.open("a") as file:
            file.write(json.dumps(facts) + "\n")
    sys.exit(failed)


def show(console: Console, rows: Sequence[Row]) -> None:
    """Prints a line for each env: mean, minimum and maximum over its seeds."""
    table = Table(title="PPO on Gymnasium's envs: mean return over the seeds (least .. most)", box=None)
    for column in ("env", "mark", "last 100 episodes", "held-out episodes", "steps", "seconds", "steps/s", ""):
        table.add_column(column, justify="left" if column in ("env", "") else "right")
    for name, mark in MARKS.items():
        mine = [row for row in rows if row["env"] == name and "failed" not in row]
        if not mine:
            continue
        texts, means = [], []
        for key in ("train_return", "eval_return"):
            values = [row[key] for row in mine]
            means.append(fmean(values))
            texts.append(f"{means[-1]:,.0f} ({min(values):,.0f} .. {max(values):,.0f})")
        seconds, rate = (fmean(row[key] for row in mine) for key in ("train_s", "sps"))
        verdict = "passes" if min(means) >= mark else "fails"
        table.add_row(name, f"{mark:,.0f}", *texts, f"{mine[0]['steps']:,}", f"{seconds:,.0f}", f"{rate:,.0f}", verdict)
    console.print(table)


if __name__ == "__main__":
    main()
