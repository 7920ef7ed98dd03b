"""The result of a sweep: the ranking, the finals with intervals, best.toml and results.json."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from shoal import config
from shoal.runs import write_atomic
from shoal.stats import ci95, mean
from shoal.sweep.options import SweepOptions
from shoal.sweep.store import Sweep, Trial
from shoal.train.options import Options, as_tables

NOT_IN_BEST = ("seed", "device", "callback", "init", "eval", "save", "league")  # a run's own business


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with a score, the highest first.

    Of equal ones (a game may have a highest score) those come first that were not stopped, then those that learned
    faster: a higher mean of the learning curve. One good evaluation can be luck; a good curve hardly is.
    """

    def key(trial: Trial) -> tuple[float, bool, float, float, int]:
        learned = mean([point[2] for point in trial.curve]) if trial.curve else -math.inf
        return -(trial.score or 0.0), trial.is_stopped, -learned, trial.seconds or 0.0, trial.number

    return sorted((trial for trial in trials if trial.score is not None), key=key)


def pareto(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that no other beats in score within the same seconds, fastest first."""
    front: list[Trial] = []
    for trial in sorted(ranked(trials), key=lambda trial: (trial.seconds or 0.0, -(trial.score or 0.0))):
        if not front or (trial.score or 0.0) > (front[-1].score or 0.0):
            front.append(trial)
    return front


def finals(sweep: Sweep) -> list[dict[str, Any]]:
    """The rerun trials, best mean first: scores on fresh seeds, their mean and 95 % interval."""
    by_trial: dict[int, list[dict[str, Any]]] = {}
    for path in sorted((sweep.folder / "finals").glob("*.json")):
        try:
            row = json.loads(path.read_text())
        except ValueError:
            continue
        by_trial.setdefault(int(row["trial"]), []).append(row)
    rows = []
    for number, results in by_trial.items():
        good = [row for row in results if row["status"] == "finished" and row["score"] is not None]
        scores = [float(row["score"]) for row in good]
        interval = ci95(scores) if scores else math.inf
        rows.append(
            {
                "trial": number,
                "seeds": [row["seed"] for row in good],
                "scores": scores,
                "mean": mean(scores) if scores else None,
                "ci95": interval if math.isfinite(interval) else None,
                "seconds": mean([float(row["seconds"]) for row in good]) if good else None,
                "failed": [row["reason"] for row in results if row["status"] != "finished"],
            }
        )
    # a trial that failed on a seed comes after those that never do
    return sorted(rows, key=lambda row: (len(row["failed"]), -(row["mean"] if row["mean"] is not None else -math.inf)))


def write(sweep: Sweep, base: Options, options: SweepOptions) -> dict[str, Any]:
    """Writes results.json and best.toml, and returns the results."""
    trials = sweep.trials()
    order, rows = ranked(trials), finals(sweep)
    wanted = {trial.number for trial in order[: options.finals]}
    rows = [row for row in rows if row["trial"] in wanted]
    best = rows[0]["trial"] if rows and rows[0]["mean"] is not None else order[0].number if order else None
    by_number = {trial.number: trial for trial in trials}
    results = {
        "trials": len(trials),
        "wanted": [options.finals, options.final_seeds],
        "finished": len(order),
        "failed": sum(trial.status == "failed" for trial in trials),
        "stopped": sum(trial.is_stopped for trial in trials),
        "best": best,
        "values": by_number[best].actual if best is not None else None,
        "given": next((trial.score for trial in trials if trial.number == 0), None),
        "finals": rows,
        "pareto": [trial.number for trial in pareto(trials)],
        "steps": sum(trial.steps for trial in trials),
        "seconds": sum(trial.seconds or 0.0 for trial in trials),
    }
    if best is not None:
        row = next((row for row in rows if row["trial"] == best), None)
        _write_best(sweep, base, by_number[best], row)
    sweep.write("results.json", results)
    return results


def write_best_so_far(sweep: Sweep, base: Options) -> None:
    """Writes best.toml while the sweep runs: the trial with the highest score, on its one seed."""
    order = ranked(sweep.trials())
    if order:
        _write_best(sweep, base, order[0], None)


def _write_best(sweep: Sweep, base: Options, trial: Trial, row: dict[str, Any] | None) -> None:
    chosen = base if trial.number == 0 else sweep.space.apply(base, trial.values)
    tables = {name: value for name, value in as_tables(chosen).items() if name not in NOT_IN_BEST}
    tables = {name: value for name, value in tables.items() if value not in ({}, [], "")}
    env = sweep.identity["env"]
    if row is not None and row["mean"] is not None:
        spread = f" ± {row['ci95']:.4g} (95 % interval)" if row["ci95"] is not None else ""
        score = f"score {row['mean']:.4g}{spread} over {len(row['scores'])} fresh seeds"
    else:
        score = f"score {trial.score:.4g} on one seed: not yet rerun on others"
    head = f"# Trial {trial.number} of {sweep.id}: {score}.\n# Use it: shoal train {env} --config best.toml\n"
    swept = "".join(f"#   {name} = {trial.actual[name]!r}\n" for name in sweep.space if name in trial.actual)
    write_atomic(sweep.folder / "best.toml", f"{head}# Found:\n{swept}\n{config.write_toml(tables)}".encode())
