"""`auto`: TPE while trials are short; GP once the median trial takes longer than GP's own second or two matter."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from shoal.sweep.samplers import SamplerType, gp, tpe

LONG_S = 30.0  # the median trial from which on GP chooses


def make(seed: int, number: int, distributions: Mapping[str, Any]) -> Any:
    """A sampler that is TPE or GP, by the trials of the study that it is asked about."""
    from optuna.samplers import BaseSampler
    from optuna.trial import TrialState

    class AutoSampler(BaseSampler):
        """Asks TPE or GP."""

        chosen: Any = None

        def before_trial(self, study: Any, trial: Any) -> None:
            finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            seconds = [one.duration.total_seconds() for one in finished if one.duration is not None]
            is_long = bool(seconds) and statistics.median(seconds) > LONG_S
            self.chosen = (gp if is_long else tpe).make(seed, number, distributions)
            self.chosen.before_trial(study, trial)

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            space: dict[str, Any] = self.chosen.infer_relative_search_space(study, trial)
            return space

        def sample_relative(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
            values: dict[str, Any] = self.chosen.sample_relative(study, trial, search_space)
            return values

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return self.chosen.sample_independent(study, trial, name, distribution)

    return AutoSampler()


SAMPLER = SamplerType(make, "tpe while the median trial takes up to 30 s, then gp")
