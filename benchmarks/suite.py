"""Every stock env to its target: `python benchmarks/learning.py --suite`.

Each run is what `shoal train ENV --seed S --device D` does. `jobs` processes train one run after another, each on its
share of the cores, so that Python and torch are loaded once for many runs. A score is the mean return of 100 held-out
episodes; in a two-player env, the share of games won against the robot `against` of [score]. Each finished run is a
line of benchmarks/results/suite.jsonl. `write_page` writes the table of docs/suite.md from the newest line of each env
and seed.

On a GPU several processes take turns unless NVIDIA's MPS runs (nvidia-cuda-mps-control -d): with it their kernels run
at the same time. The results of docs/suite.md were measured with it.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import re
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import config, registry
from shoal.measure import describe_machine
from shoal.runs import commit

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks/results/suite.jsonl", ROOT / "docs/suite.md"
MARKS = r"(<!-- Written by benchmarks/learning.py --suite -->\n).*?(<!-- The end of what --suite writes. -->)"
EPISODES, GAMES = 100, 2000
CURVE_POINTS = 60


@dataclass(frozen=True)
class Goal:
    """The table [score] of an env's TOML file; on a GPU, [cuda.score] overrides it."""

    target: float
    why: str = ""  # what justifies the target
    random: float | None = None  # the score of random play
    scripted: float | None = None  # of a simple scripted player
    against: str = ""  # a robot: the score is the share of games won against it
    opponents: str = ""  # --opponents of the training run

    @classmethod
    def of(cls, env: str, device: str = "cuda") -> Goal | None:
        """The goal of a stock env; None if it has none."""
        path = registry.STOCK / f"{env}.toml"
        tables = config.read_toml(path) if path.is_file() else {}
        table = {**tables.get("score", {}), **(tables.get("cuda", {}).get("score", {}) if device == "cuda" else {})}
        return cls(**{name: table[name] for name in cls.__dataclass_fields__ if name in table}) if table else None


@functools.cache
def goals(device: str = "cuda") -> dict[str, Goal]:
    """The goals of all stock envs that have one."""
    found = {env: Goal.of(env, device) for env in registry.stock_names()}
    return {env: goal for env, goal in found.items() if goal is not None}


# ---- running ----


def one(env: str, goal: Goal, seed: int, device: str) -> dict[str, Any]:
    """Trains one run and measures its score."""
    from shoal.match import play_match
    from shoal.train import train

    with tempfile.TemporaryDirectory() as folder:
        tables: dict[str, Any] = {"opponents": goal.opponents} if goal.opponents else {}
        tables |= {"seed": seed, "device": device, "eval": {"episodes": 0 if goal.against else EPISODES}}
        began = time.perf_counter()
        run = train(env, console="off", runs_folder=folder, **tables)
        summary = run.summary or {}
        points = [(m["step"], m["wall_s"], m["episode/return"]) for m in run.metrics() if m.get("episode/n")]
        if goal.against:
            played = play_match([str(run.folder), goal.against], games=GAMES, device=device, runs_folder=folder)
            score = played.facts()["results"][0]["win_rate"]
        else:
            score = summary["eval"]["return"]
        seconds = time.perf_counter() - began
    thinning = max(1, -(-len(points) // CURVE_POINTS))
    facts = {"steps": summary["step"], "train_s": round(summary["wall_s"], 2), "seconds": round(seconds, 1)}
    curve = [[step, round(wall, 2), round(value, 4)] for step, wall, value in points[::-1][::thinning][::-1]]
    return {"env": env, "seed": seed, "device": device, "score": score, **facts, "curve": curve}


def _begin(shares: Any) -> None:
    """Gives a worker process its cores."""
    os.sched_setaffinity(0, shares.get())


def _work(env: str, seed: int, device: str) -> dict[str, Any] | str:
    """In a worker process: the results of a run, or why it failed."""
    try:
        return one(env, goals(device)[env], seed, device)
    except Exception:
        return traceback.format_exc()[-2000:]
    finally:
        if device == "cuda":
            import torch

            torch.cuda.empty_cache()


def run_suite(envs: Sequence[str], seeds: Sequence[int], device: str, jobs: int) -> None:
    """Trains all envs with all seeds, and appends a line for each run. What took longest last time comes first."""
    wanted, before = goals(device), newest()
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // jobs)
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    shares = context.Queue()
    for job in range(jobs):
        shares.put(cores[job * share : (job + 1) * share] or cores)
    facts = {"machine": describe_machine(), "commit": commit(), "jobs": jobs}
    began = time.perf_counter()

    def took(env: str) -> float:
        return max((run["seconds"] for run in before.get(env, [])), default=float("inf"))

    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(shares,)) as pool:
        order = sorted(((env, seed) for seed in seeds for env in envs), key=lambda run: -took(run[0]))
        runs = {pool.submit(_work, env, seed, device): (env, seed) for env, seed in order}
        for future in as_completed(runs):
            (env, seed), row = runs[future], future.result()
            if isinstance(row, str):
                print(f"{env} seed {seed} failed:\n{row}", flush=True)
                continue
            verdict = "ok" if row["score"] >= wanted[env].target else "MISSED"
            print(
                f"{env:23} seed {seed}  target {wanted[env].target:8.4g}  score {row['score']:8.4g}  "
                f"{row['steps'] / 1e6:7.1f}M steps  {row['train_s']:6.1f} of {row['seconds']:6.1f} s  {verdict}",
                flush=True,
            )
            with RESULTS.open("a") as file:
                file.write(json.dumps({**row, **facts, "time": time.strftime("%Y-%m-%d %H:%M")}) + "\n")
    print(f"{len(envs)} envs, {len(seeds)} seeds: {time.perf_counter() - began:.0f} s", flush=True)


# ---- the page ----


def newest() -> dict[str, list[dict[str, Any]]]:
    """The newest run of each seed by env, of the device that was used last."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []
    device = {line["env"]: line["device"] for line in lines}
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for line in lines:
        if line["device"] == device[line["env"]]:
            found.setdefault(line["env"], {})[line["seed"]] = line
    return {env: [by_seed[seed] for seed in sorted(by_seed)] for env, by_seed in sorted(found.items())}


def number(value: float | None) -> str:
    """A score for a table."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table() -> str:
    """All envs in Markdown: those that were not trained, too."""
    done, wanted = newest(), goals()
    rows = [
        "| env | random | scripted | target | reached, by seed | steps | seconds of a run | what the target is |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for env in registry.stock_names():
        goal, runs = wanted.get(env), done.get(env, [])
        cells = [f"[{env}](envs/{env}.md)"]
        if goal is None:
            rows.append(f"| {cells[0]} | | | | no target | | | |")
            continue
        missed = [run for run in runs if run["score"] < goal.target]
        reached = ", ".join(number(run["score"]) for run in runs) + (" **missed**" if missed else "")
        seconds = [run["seconds"] for run in runs]
        why = f"share of games won against {goal.against}. {goal.why}" if goal.against else goal.why
        cells += [number(goal.random), number(goal.scripted), number(goal.target), reached or "not trained yet"]
        cells += [f"{runs[0]['steps'] / 1e6:.3g}M" if runs else ""]
        cells += [f"{min(seconds):.1f} to {max(seconds):.1f}" if runs else "", why.replace("|", "/")]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def write_page() -> None:
    """Writes the table into docs/suite.md."""
    page = PAGE.read_text()
    PAGE.write_text(re.sub(MARKS, lambda match: f"{match[1]}{table()}\n{match[2]}", page, flags=re.DOTALL))
