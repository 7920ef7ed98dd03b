"""Some of the checks of `shoal check`: all of them compile a header six times."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def check_kernels(module: str, group: str) -> None:
    """Runs checks of Triton kernels in a process of their own: in Triton's interpreter, or compiled for a GPU."""
    env = {**os.environ, "TRITON_INTERPRET": "0" if group == "compiles" else "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, group],
        env=env,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checked" in done.stdout
