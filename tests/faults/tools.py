"""What the fault tests share: clocks, scripts in processes of their own, a look at other processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ALL_START_METHODS = ("fork", "spawn", "forkserver")
# spawn starts a Python for every worker, which takes a second: most faults have it with the slow tests only
START_METHODS = ("fork", pytest.param("spawn", marks=pytest.mark.slow), "forkserver")


def stat_of(pid: int) -> tuple[int, str]:
    """(its parent, its state)."""
    text = Path(f"/proc/{pid}/stat").read_text()
    state, parent = text.rpartition(")")[2].split()[:2]
    return int(parent), state


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    spent = time.monotonic() - start
    print(f"{spent:.3f} s of {seconds} s")
    assert spent <= seconds, f"took {spent:.2f} s, more than {seconds} s"


def is_alive(pid: int) -> bool:
    try:
        return stat_of(pid)[1] != "Z"
    except OSError:
        return False


def wait_for_end(pids: list[int], seconds: float) -> list[int]:
    """Those that still live after so long."""
    until = time.monotonic() + seconds
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < until:
        time.sleep(0.01)
    return left


def start_script(source: str, how: str = "-c", **options: Any) -> subprocess.Popen[str]:
    """A Python process of its own session: `how` is -c, - (by stdin), or the path to write the script to."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-W", "error"]
    if how == "-c":
        command += ["-c", source]
    elif how == "-":
        command += ["-"]
    else:
        Path(how).write_text(source)
        command += [how]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environ, start_new_session=True, **options
    )
    if how == "-":
        process.stdin.write(source)  # type: ignore[union-attr]
        process.stdin.close()  # type: ignore[union-attr]
        process.stdin = None
    return process


def run_script(source: str, how: str = "-c", timeout: float = 40.0, **options: Any) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    with start_script(source, how, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"the script hangs.\n{out}\n{err}") from None
    return process.returncode, out, err
