"""Some of the checks of `shoal check`: all of them compile a header six times."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import pytest

from shoal import conformance, registry

from .compile_envs import KINDS, VARIANTS

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
SHORT = ("determinism", "initialised", "spaces", "snapshot", "episodes", "draw")  # compile nothing


def with_slow(names: Iterable[str], quick: Container[str]) -> list[Any]:
    """Params of a test: these names, those that are not in `quick` as slow tests."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


ALL = registry.stock_names()
STOCK = with_slow(ALL, KINDS)
EVERY = with_slow(ALL, set(ALL) - set(VARIANTS))


def use_checks(monkeypatch, *names: str) -> int:
    """Leaves `shoal check` these checks, by their functions' names without `check_`. Returns how many."""
    checks = [getattr(conformance, f"check_{name}") for name in names or QUICK]
    monkeypatch.setattr(conformance, "CHECKS", checks)
    return len(checks)


def check_kernels(module: str, group: str) -> None:
    """Runs checks of Triton kernels in a process of their own: in Triton's interpreter, or compiled for a GPU."""
    env = {**os.environ, "TRITON_INTERPRET": "0" if group.startswith("compile") else "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, group],
        env=env,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checked" in done.stdout
