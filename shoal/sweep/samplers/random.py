"""Random search: every trial is drawn from the ranges, whatever the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.sweep.samplers import SamplerType, seed_of


def make(seed: int, number: int, distributions: Mapping[str, Any]) -> Any:
    """Optuna's RandomSampler."""
    import optuna

    return optuna.samplers.RandomSampler(seed=seed_of(seed, number))


SAMPLER = SamplerType(make, "every trial at random")
