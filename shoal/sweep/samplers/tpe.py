"""TPE: tree-structured Parzen estimators, which compare the density of good trials with that of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.sweep.samplers import SamplerType, seed_of

STARTUP = 10  # trials at random


def make(seed: int, number: int, distributions: Mapping[str, Any]) -> Any:
    """Optuna's TPESampler over all options together. Trials that run count as bad ones, so that workers spread out."""
    import optuna

    return optuna.samplers.TPESampler(
        seed=seed_of(seed, number), n_startup_trials=STARTUP, multivariate=True, constant_liar=True
    )


SAMPLER = SamplerType(make, "tree-structured Parzen estimators: milliseconds per trial")
