"""Some of the checks of `shoal check`: all of them compile a header six times."""

from __future__ import annotations

import pytest

from shoal import conformance, registry

# without long compilations: other languages, sanitizers, other builds
QUICK = (
    "c11",
    "symbols",
    "determinism",
    "initialised",
    "spaces",
    "batch_size",
    "threads",
    "snapshot",
    "episodes",
    "draw",
)


VARIANTS = ("midrange_continuous", "midrange_full")  # the code of midrange with other actions
# every stock env in turn; variants of another env's code with the slow tests
STOCK = [pytest.param(name, marks=pytest.mark.slow) if name in VARIANTS else name for name in registry.stock_names()]


def use_checks(monkeypatch, *names: str) -> int:
    """Leaves `shoal check` these checks, by their functions' names without `check_`. Returns how many."""
    checks = [getattr(conformance, f"check_{name}") for name in names or QUICK]
    monkeypatch.setattr(conformance, "CHECKS", checks)
    return len(checks)
