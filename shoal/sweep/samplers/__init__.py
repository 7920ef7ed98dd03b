"""Samplers that choose the next trial: one file each, on Optuna's BaseSampler. A file assigns SAMPLER."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.plugins import Plugins

SAMPLERS = Plugins("sampler", package="shoal.sweep.samplers", marker="SAMPLER")


@dataclass(frozen=True)
class SamplerType:
    """How a sampler is made.

    `make(seed, number, distributions)` returns an optuna.samplers.BaseSampler for one trial: everything random in it is
    drawn from the sweep's seed and the trial's number, so that a sweep that was killed continues with the same trials.
    """

    make: Callable[[int, int, Mapping[str, Any]], Any]
    help: str
    uses_cost: bool = False  # whether it sees the cost of trials as a second objective, whatever the sweep's goal


def seed_of(seed: int, number: int) -> int:
    """The seed of one trial's sampler, from that of the sweep."""
    import numpy as np

    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
