"""Chooses the values of the next trial: shows the trials so far to a sampler, as a study in memory.

The study is made anew for every trial, and the sampler is seeded by the trial's number. So the choice depends on the
results alone, not on the process: a sweep with one worker gives the same trials, however often it is killed.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from shoal.sweep.needs import quiet
from shoal.sweep.samplers import SAMPLERS
from shoal.sweep.space import Space
from shoal.sweep.store import Trial

START = datetime.datetime(2000, 1, 1)


def suggest(
    space: Space,
    trials: Sequence[Trial],
    number: int,
    *,
    sampler: str,
    seed: int,
    goal: str = "score",
    cost_unit: str = "seconds",
) -> dict[str, Any]:
    """The values of trial `number`."""
    kind = SAMPLERS.find(sampler)
    two = kind.uses_cost or goal == "pareto"
    distributions = {name: part.inner() for name, part in space.ranges.items()}
    with quiet():
        study = optuna.create_study(
            sampler=kind.make(seed, number, distributions), directions=["maximize", "minimize"] if two else ["maximize"]
        )
        known = [trial for trial in trials if trial.number < number and len(trial.values) == len(space)]
        known = [trial for trial in known if trial.status != "failed" or _worst(trials) is not None]
        for trial in known:
            study.add_trial(_shown(space, distributions, trial, two, cost_unit, _worst(trials)))
        while len(study.get_trials(deepcopy=False)) < number:  # so that the sampler's trial has the right number
            study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL))
        chosen = study.ask(distributions).params
    return {name: part.outward(chosen[name]) for name, part in space.ranges.items()}


def _worst(trials: Sequence[Trial]) -> Trial | None:
    """The finished trial with the lowest score."""
    finished = [trial for trial in trials if trial.score is not None]
    return min(finished, key=lambda trial: (trial.score, -trial.number), default=None)


def cost_of(trial: Trial, unit: str) -> float:
    """The cost of a finished trial."""
    return float(trial.steps if unit == "steps" else trial.seconds or 0.0)


def _shown(
    space: Space, distributions: dict[str, Any], trial: Trial, two: bool, unit: str, worst: Trial | None
) -> FrozenTrial:
    """A trial as samplers see it. A failed one counts as the worst one so far: nobody should go there again."""
    result = trial if trial.status != "failed" else worst
    state = TrialState.RUNNING if trial.status == "running" else TrialState.COMPLETE
    values: list[float] | None = None
    if state == TrialState.COMPLETE:
        assert result is not None
        assert result.score is not None
        values = [result.score, cost_of(result, unit)] if two else [result.score]
    seconds = datetime.timedelta(seconds=(result.seconds or 0.0) if result is not None else 0.0)
    total = trial.curve[-1][0] if trial.curve else 0.0
    at = 0 if unit == "steps" else 1
    curve = [[point[0] / total, point[at], point[2]] for point in trial.curve[:-1][::4]] if total else []
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=None,
        values=values,
        datetime_start=START,
        datetime_complete=None if state == TrialState.RUNNING else START + seconds,
        params={name: part.inward(trial.values[name]) for name, part in space.ranges.items()},
        distributions=distributions,
        user_attrs={"curve": curve},
        system_attrs={},
        intermediate_values={},
    )
