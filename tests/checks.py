"""Some of the checks of `shoal check`: all of them compile a header six times."""

from __future__ import annotations

from shoal import conformance

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


def use_checks(monkeypatch, *names: str) -> int:
    """Leaves `shoal check` these checks, by their functions' names without `check_`. Returns how many."""
    checks = [getattr(conformance, f"check_{name}") for name in names or QUICK]
    monkeypatch.setattr(conformance, "CHECKS", checks)
    return len(checks)
