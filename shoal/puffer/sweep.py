"""PufferLib's `sweep`. Hyperparameter searches are not supported yet: each class raises and says so."""

from __future__ import annotations

from typing import Any

from shoal.puffer.exceptions import APIUsageError, missing_names

__all__ = ["ParetoGenetic", "Protein", "Random"]

INSTEAD = (
    "Run 'shoal train ENV --train.learning-rate …' once for each setting and compare with 'shoal plot', or use another "
    "library to choose the options of shoal.train.train."
)


class _Search:
    """A search that raises."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise APIUsageError(f"{type(self).__name__}: sweeps are not supported yet. {INSTEAD}")


class Protein(_Search):
    """PufferLib's cost-aware search."""


class ParetoGenetic(_Search):
    """PufferLib's genetic search."""


class Random(_Search):
    """PufferLib's random search."""


__getattr__ = missing_names(__name__, __all__, {})
