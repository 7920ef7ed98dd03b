"""Searches for the best options of a run: many trials, each an ordinary run. Knows train; Optuna is imported lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.sweep.api import sweep
    from shoal.sweep.store import Sweep

__all__ = ["Sweep", "sweep"]


def __getattr__(name: str) -> Any:
    if name == "sweep":
        from shoal.sweep.api import sweep

        return sweep
    if name == "Sweep":
        from shoal.sweep.store import Sweep

        return Sweep
    raise AttributeError(f"module 'shoal.sweep' has no attribute '{name}'")
