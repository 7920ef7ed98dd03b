"""Several runs that differ in their seed only, as one result: their scores, and the mean with an interval.

    runs/<env>/<time>-seeds/
      seeds.json       the seeds, their runs, and the summary
      seed-<n>.log     what the process of a seed printed, if seeds were trained side by side
    runs/<env>/<time>-seed<n>/    an ordinary run for each seed

A population is such a group, too: runs/<env>/<time>-population/, with runs <time>-member<n> (shoal/sweep/evolve.py).

Knows files and names; knows nothing of torch. shoal/train/many_seeds.py trains.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.config import plain
from shoal.errors import ConfigError, did_you_mean
from shoal.runs import ROOT, Run, RunFolder, folder_name, make_folder, timestamp, write_atomic
from shoal.stats import ci95, mean

FILE = "seeds.json"
KINDS = {"seeds": "seed", "population": "member"}  # of groups, and what one of its runs is called
SEED_LIMIT = 2**31  # seeds are smaller


class SeedGroup(RunFolder):
    """The runs of several seeds. `facts` is what seeds.json holds."""

    facts_file = FILE

    @property
    def seeds(self) -> list[int]:
        """The seeds, in the order in which they are trained."""
        return [int(seed) for seed in self.facts.get("seeds", ())]

    @property
    def runs(self) -> dict[int, Run]:
        """The run of every seed that has started and was not deleted."""
        runs = {seed: Run(self.folder.parent / self.run_id(seed)) for seed in self.seeds}
        return {seed: run for seed, run in runs.items() if (run.folder / "run.json").is_file()}

    @property
    def kind(self) -> str:
        """`seeds`, or `population`: its members differ in other options too, and have numbers in place of seeds."""
        return "population" if self.id.endswith("-population") else "seeds"

    def run_id(self, seed: int) -> str:
        """The name of the run's folder for a seed."""
        return f"{self.id.removesuffix(f'-{self.kind}')}-{KINDS[self.kind]}{seed}"

    @property
    def scores(self) -> dict[int, float]:
        """The score of every seed that has one. The mean is over those that have finished."""
        return {row["seed"]: row["score"] for row in self.facts.get("results", ()) if row.get("score") is not None}

    @property
    def mean(self) -> float | None:
        """The mean score over seeds."""
        return self.facts.get("mean")

    @property
    def ci95(self) -> float | None:
        """Half the width of the 95 % interval of the mean over seeds; None for fewer than two scores."""
        return self.facts.get("ci95")

    @property
    def is_finished(self) -> bool:
        """Whether the runs of all seeds have finished."""
        runs = self.runs
        return all(seed in runs and (runs[seed].summary or {}).get("status") == "finished" for seed in self.seeds)

    @property
    def is_running(self) -> bool:
        """Whether a process is training these seeds."""
        return Run(self.folder).is_running or any(run.is_running for run in self.runs.values())

    def update(self, status: str, reasons: dict[int, str] | None = None, elapsed_s: float | None = None) -> None:
        """Writes seeds.json with the results so far. `reasons` say why seeds failed."""
        facts = {**self.facts, "status": status, **summarize(self.seeds, self.runs, reasons or {})}
        if elapsed_s is not None:
            facts["elapsed_s"] = facts.get("elapsed_s", 0.0) + elapsed_s
        self.write(facts)

    def write(self, facts: dict[str, Any]) -> None:
        """Replaces seeds.json."""
        write_atomic(self.folder / FILE, json.dumps(facts, indent=1).encode())
        self.__dict__.pop("facts", None)  # it is read again


def summarize(seeds: Sequence[int], runs: dict[int, Run], reasons: dict[int, str]) -> dict[str, Any]:
    """The result of every seed, and the mean score with its interval over the seeds that have finished."""
    results = [result_of(seed, runs.get(seed), reasons.get(seed, "")) for seed in seeds]
    finished = [row for row in results if row["status"] == "finished" and row["score"] is not None]
    scores = [row["score"] for row in finished]
    interval = ci95(scores) if scores else math.inf
    return {
        "results": results,
        "n": len(scores),
        "mean": mean(scores) if scores else None,
        "ci95": interval if math.isfinite(interval) else None,
        "min": min(scores, default=None),
        "max": max(scores, default=None),
        "score_by": finished[0]["score_by"] if finished else None,
        "steps": sum(row["step"] for row in results),
        "wall_s": sum(row["wall_s"] for row in results),
    }


def result_of(seed: int, run: Run | None, reason: str) -> dict[str, Any]:
    """One seed: its status and score."""
    if run is None:
        status = "failed" if reason else "waiting"
        blank = {"score": None, "score_by": None, "score_ci95": None, "step": 0, "wall_s": 0.0}
        return {"seed": seed, "run": None, "status": status, **blank, "reason": reason}
    summary = run.summary or {}
    evaluation = summary.get("eval") or {}
    score, by = evaluation.get("return"), f"{evaluation.get('mode', 'greedy')} return in the final evaluation"
    if not _is_number(score):
        score, by = summary.get("latest_return"), "return in training, latest episodes"
    if not _is_number(score):
        score, by = last_return(run), "return in training, last interval"
    return {
        "seed": seed,
        "run": run.id,
        "status": summary.get("status") or ("failed" if reason else "running" if run.is_running else "killed"),
        "score": score,
        "score_by": by if score is not None else None,
        "score_ci95": evaluation.get("ci95"),
        "step": summary.get("step", 0),
        "wall_s": summary.get("wall_s", 0.0),
        "reason": reason or summary.get("reason", ""),
    }


def last_return(run: Run) -> float | None:
    """The mean return of the last interval of training in which episodes ended."""
    values = (record.get("episode/return") for record in reversed(run.metrics()))
    return next((float(value) for value in values if _is_number(value)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def create(env: str, seeds: Sequence[int], root: str | Path, kind: str = "seeds", **facts: Any) -> SeedGroup:
    """Makes the folder of a new group of a kind."""
    group = SeedGroup(make_folder(Path(root) / folder_name(env), timestamp(), f"{{}}-{kind}"))
    started = time.strftime("%Y-%m-%dT%H:%M:%S")
    about = {"id": group.id, "env": env, "seeds": list(seeds), "started": started, "command": sys.argv}
    group.write({**about, **facts, "status": "running"})
    return group


def all_groups(root: str | Path = ROOT) -> list[SeedGroup]:
    """Every group under the folder, newest last."""
    groups = [SeedGroup(path.parent) for kind in KINDS for path in Path(root).glob(f"*/*-{kind}/{FILE}")]
    return sorted(groups, key=lambda group: (str(group.facts.get("started", "")), group.id))


def find_group(text: str | Path, root: str | Path = ROOT) -> SeedGroup | None:
    """A group by its folder or id; None if there is none."""
    if (Path(text) / FILE).is_file():
        return SeedGroup(text)
    name = str(text).strip("/").removeprefix(f"{root}/")
    return next((g for g in reversed(all_groups(root)) if name in (g.id, f"{g.env}/{g.id}")), None)


def group_to_resume(text: str, env: str | None, seeds: Sequence[int], root: str | Path = ROOT) -> SeedGroup | None:
    """The group that `--resume` names with several seeds.

    `last` is the newest one of the env. `auto` is the newest unfinished one that has these seeds; None if there is
    none.
    """
    named = None if env is None else folder_name(env)
    groups = [group for group in all_groups(root) if named is None or group.env == named]
    if text == "auto":
        matching = [group for group in groups if group.kind == "seeds" and set(group.seeds) == set(seeds)]
        return next((g for g in reversed(matching) if not g.is_finished and not g.is_running), None)
    found = groups[-1] if text == "last" and groups else find_group(text, root)
    if found is None:
        near = did_you_mean(text, [group.id for group in groups])
        raise ConfigError(
            f"--resume {text}: {root}/ has no group of seeds by that name.{near} 'shoal runs' lists them; --resume "
            "auto continues the newest unfinished one."
        )
    return found


def parse_seeds(seeds: Any) -> list[int]:
    """Checks seeds. One number is a count: 3 means the seeds 1, 2 and 3.

    >>> parse_seeds(3), parse_seeds([7, 8])
    ([1, 2, 3], [7, 8])
    """
    seeds = plain(seeds)
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if not 1 <= seeds <= 10_000:
            raise ConfigError(
                f"--seeds {seeds} is a number of seeds: it must be in 1 .. 10000. Or list them: --seeds 1 2."
            )
        return list(range(1, seeds + 1))
    if isinstance(seeds, str):
        raise ConfigError(f"seeds={seeds!r} must be a number of seeds or a list of ints.")
    listed = [plain(seed) for seed in seeds]
    if not listed:
        raise ConfigError("no seeds are given. List them (--seeds 1 2 3), or give their number (--seeds 3).")
    for seed in listed:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEED_LIMIT:
            raise ConfigError(f"seed {seed!r} must be an int in 0 .. {SEED_LIMIT - 1}.")
    twice = sorted({seed for seed in listed if listed.count(seed) > 1})
    if twice:
        raise ConfigError(f"seed {twice[0]} is given twice. The same seed gives the same run: give each once.")
    return listed
