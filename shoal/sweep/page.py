"""A sweep as one web page: finals, history, Pareto front, importance, slices, parallel coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal import html_page
from shoal.log.base import duration, human
from shoal.sweep import report
from shoal.sweep.needs import quiet
from shoal.sweep.store import Sweep

TEMPLATE = Path(__file__).parent / "page.html"
LEAST = 4  # finished trials that an importance needs


def write_html(sweep: Sweep, path: Path) -> dict[str, Any]:
    """Writes the page and returns what it shows."""
    shown = data(sweep)
    path.write_text(html_of(shown))
    return shown


def html_of(shown: dict[str, Any]) -> str:
    """The page of what `data` returned."""
    return html_page.fill(TEMPLATE, shown["title"], data=html_page.data_text(shown))


def data(sweep: Sweep) -> dict[str, Any]:
    """What the page shows."""
    trials = sweep.trials()
    identity, results = sweep.identity, sweep.results or {}
    done = [trial for trial in trials if trial.is_done]
    failed, stopped = sum(t.status == "failed" for t in trials), sum(t.is_stopped for t in trials)
    steps, seconds = sum(t.steps for t in trials), sum(t.seconds or 0.0 for t in trials)
    counts = f"{len(done)} of {sweep.target} trials, {stopped} stopped early, {failed} failed"
    return {
        "title": f"Sweep of {identity['env']}",
        "note": f"{counts}; sampler {identity['sampler']}; {human(steps)} steps, {duration(seconds)} of training. "
        f"{sweep.folder}",
        "ranges": {name: _range(part) for name, part in sweep.space.ranges.items()},
        "trials": [
            {
                "n": trial.number,
                "score": trial.score,
                "seconds": trial.seconds,
                "steps": trial.steps,
                "values": trial.actual,
                "stopped": trial.is_stopped,
                "reason": trial.reason,
                "failed": trial.status == "failed",
            }
            for trial in done
        ],
        "front": [trial.number for trial in report.pareto(trials)],
        "importance": importance(sweep),
        "finals": [{k: v for k, v in row.items() if k != "seeds"} for row in results.get("finals", ())],
        "best": results.get("best"),
    }


def _range(part: Any) -> dict[str, Any]:
    return {"kind": part.kind, "low": part.low, "high": part.high, "choices": list(part.choices)}


def importance(sweep: Sweep) -> dict[str, float]:
    """How much each option decides about the score, most first; they sum to 1. Optuna's PED-ANOVA.

    Values are those that samplers see: a log range in logarithms. Empty for few trials, or where all scores are equal.
    """
    import optuna
    from optuna.trial import TrialState, create_trial

    space = sweep.space
    trials = [trial for trial in report.ranked(sweep.trials()) if len(trial.values) == len(space)]
    if len(trials) < LEAST or len({trial.score for trial in trials}) < 2:
        return {}
    inner = {name: part.inner() for name, part in space.ranges.items()}
    with quiet():
        study = optuna.create_study(direction="maximize")
        for trial in sorted(trials, key=lambda trial: trial.number):
            params = {name: part.inward(trial.values[name]) for name, part in space.ranges.items()}
            study.add_trial(
                create_trial(state=TrialState.COMPLETE, params=params, distributions=inner, value=trial.score)
            )
        try:
            found = optuna.importance.get_param_importances(
                study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
            )
        except (RuntimeError, ValueError):  # no option varies
            return {}
    total = sum(found.values())
    if not total > 0:
        return {}
    return {name: share / total for name, share in sorted(found.items(), key=lambda item: -item[1])}
