"""GP: Optuna's Gaussian process with expected improvement. Few trials suffice; each takes about a second to choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.sweep.samplers import SamplerType, seed_of

STARTUP = 10  # trials at random


def make(seed: int, number: int, distributions: Mapping[str, Any]) -> Any:
    """Optuna's GPSampler."""
    import optuna

    return optuna.samplers.GPSampler(
        seed=seed_of(seed, number), n_startup_trials=STARTUP, warn_independent_sampling=False
    )


SAMPLER = SamplerType(make, "a Gaussian process: fewer trials, about a second to choose each")
