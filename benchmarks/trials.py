"""Tries options of stock envs: each trial of a file is trained with some seeds, several at a time, and scored.

    python benchmarks/trials.py [benchmarks/trials.toml] [--only breakout midrange ...] [--jobs 14] [--limit 240]
    python benchmarks/trials.py --jobs 1 --seeds 1 --unscored --only breakout    times of runs that are alone on the GPU
    python benchmarks/trials.py --profile 2 --only breakout    steps/s and where the time goes, 2 s each

A file has tables [[trial]]: `name`, `env`, `seeds`, and tables of options as in an env's TOML file, over those that it
ships; `params` are those of the env. `--only` chooses trials whose env or name has one of these words. Scores are those
of benchmarks/suite.py. Each finished run is a line of benchmarks/results/trials.jsonl at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import suite
import suite_pool

from shoal import config
from shoal.measure import describe_machine
from shoal.runs import commit

FILE, RESULTS = Path(__file__).parent / "trials.toml", Path(__file__).parent / "results/trials.jsonl"
OWN = ("name", "env", "seeds", "episodes", "stats", "params")  # the keys of a trial that are no options of training


@dataclasses.dataclass(frozen=True)
class Trial:
    """An env with options."""

    name: str
    env: str
    seeds: list[int]
    options: dict[str, Any]
    episodes: int | None = None  # of the score; default: as in the suite
    stats: tuple[str, ...] = ()  # of the last training episodes: which to print

    @classmethod
    def read(cls, table: dict[str, Any]) -> Trial:
        """A table [[trial]]."""
        options = {name: value for name, value in table.items() if name not in OWN}
        options |= {"env": table["params"]} if "params" in table else {}
        stats = tuple(table.get("stats", ()))
        return cls(table["name"], table["env"], table.get("seeds", [1]), options, table.get("episodes"), stats)


def read(path: Path, words: list[str], seeds: list[int]) -> list[Trial]:
    """The trials of a file whose env or name has one of the words, with these seeds."""
    trials = [Trial.read(table) for table in config.read_toml(path)["trial"]]
    chosen = [t for t in trials if not words or any(word in f"{t.env} {t.name}" for word in words)]
    if not seeds:
        return chosen
    return [dataclasses.replace(t, seeds=[s for s in t.seeds if s in seeds]) for t in chosen]


def work(trial: Trial, seed: int, device: str, is_scored: bool) -> dict[str, Any]:
    """In a worker process: one run."""
    goal = suite.goals(device)[trial.env]
    if trial.episodes is not None:
        goal = dataclasses.replace(goal, episodes=trial.episodes)
    row = suite.one(trial.env, goal, seed, device, trial.options, is_scored)
    suite.free(row, device)
    return {"trial": trial.name, **row}


def describe(trial: Trial, row: dict[str, Any]) -> str:
    """A line for the screen."""
    tail = " ".join(f"{point[2]:.4g}" for point in row["curve"][-3:])
    score = "" if row["score"] is None else f"score {row['score']:.4g}  "
    reached = "" if row.get("reached_s") is None else f"target after {row['reached_steps'] / 1e6:.1f}M  "
    stats = " ".join(f"{name}={row['stats'][name]:.3g}" for name in trial.stats if name in row["stats"])
    return (
        f"{row['env']:20} {trial.name:38} seed {row['seed']:2}  {score}training {tail}  {reached}"
        f"{row['steps'] / 1e6:.0f}M steps  {row['train_s']} of {row['seconds']} s  {stats}"
    )


def show_profile(trial: Trial, device: str, seconds: float) -> None:
    """Prints what `shoal bench train` measures."""
    from shoal.bench.training import profile
    from shoal.train import options_for

    row = profile(trial.env, options_for(trial.env, {"device": device}, trial.options), seconds)
    iteration = row["steps"] / row["steps_per_s"]
    split = ", ".join(f"{part} {1e3 * value:.2f}" for part, value in row["split_s"].items())
    print(
        f"{trial.env:20} {trial.name:38} {row['steps_per_s'] / 1e6:6.2f}M steps/s  {1e3 * iteration:.2f} ms an "
        f"iteration of {row['steps']:,}: {split} ms; warm-up {row['warm_up_s']:.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--seeds", nargs="+", type=int, default=[], help="of the trials' seeds only these")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--limit", type=float, default=0.0, metavar="S", help="end after S seconds; 0: no limit")
    parser.add_argument("--unscored", action="store_true", help="train only")
    parser.add_argument("--profile", type=float, default=0.0, metavar="S", help="measure S seconds of each instead")
    parser.add_argument("--out", type=Path, default=RESULTS, help="append the results to this file")
    args = parser.parse_args()
    trials = {trial.name: trial for trial in read(args.file, args.only, args.seeds)}
    if args.profile:
        for trial in trials.values():
            show_profile(trial, args.device, args.profile)
        return
    facts = {"machine": describe_machine(), "commit": commit(), "jobs": args.jobs}
    tasks = [
        suite_pool.Task((trial.name, seed), (trial, seed, args.device, not args.unscored), 0.0, group=trial.name)
        for trial in trials.values()
        for seed in trial.seeds
    ]
    with suite_pool.mps(args.device == "cuda" and args.jobs > 1) as is_on:
        print(f"{len(tasks)} runs, {args.jobs} at a time, MPS {'on' if is_on else 'off'}", flush=True)
        for (name, seed), row in suite_pool.run_all(
            tasks, work, args.jobs, args.limit, shared_cores=args.device == "cuda"
        ):
            if isinstance(row, str):
                print(f"{name} seed {seed} failed:\n{row}", flush=True)
                continue
            print(describe(trials[name], row), flush=True)
            options = {"options": trials[name].options, "mps": is_on, "time": time.strftime("%Y-%m-%d %H:%M")}
            with args.out.open("a") as file:
                file.write(json.dumps({**row, **facts, **options}) + "\n")


if __name__ == "__main__":
    main()
