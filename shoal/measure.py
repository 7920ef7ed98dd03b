"""Measures speed: the candidates take turns, and a result records where and when it was measured.

Measures anything with a `step`, so that `shoal bench`, `shoal tune` and `benchmarks/*.py` time peers by the same code.
"""

from __future__ import annotations

import datetime
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.cores import available_cores, cpu_model

CALIBRATION_S = 0.02


@dataclass(frozen=True)
class Stepper:
    """What is measured: one call of `step` steps `envs` envs of `agents` agents each."""

    step: Callable[[], object]
    envs: int
    agents: int = 1
    close: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Sample:
    """The measurement of a Stepper: the mean time of a call, for each repeat."""

    envs: int
    agents: int
    calls: tuple[int, ...]
    seconds_per_call: tuple[float, ...]

    @property
    def steps_per_s(self) -> list[float]:
        """Env steps per second, for each repeat."""
        return [self.envs / seconds for seconds in self.seconds_per_call]

    @property
    def median(self) -> float:
        """Env steps per second."""
        return statistics.median(self.steps_per_s)

    @property
    def us_per_call(self) -> float:
        """Median of the microseconds per call."""
        return 1e6 * statistics.median(self.seconds_per_call)


# Called between slices with the samples so far (some without a repeat) and the share of the work that is done.
Progress = Callable[[Mapping[str, Sample], float], None]


def measure(
    makers: Mapping[str, Callable[[], Stepper]],
    seconds: float,
    repeats: int,
    progress: Progress | None = None,
    fresh: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Sample]:
    """Times each stepper for about `seconds`, in `repeats` slices.

    The steppers take turns, one slice each per round, so that a busy moment of the machine affects all of them. The
    number of calls in a slice comes from a short trial, and later from the slice before. With `fresh` a stepper is made
    for its slice and closed after it, so that its idle processes do not disturb another. `clock` may be
    `time.process_time`: seconds of the process on a core, for a machine that is busy with other work.
    """
    steppers: dict[str, Stepper] = {}
    samples: dict[str, Sample] = {}
    try:
        slice_s = seconds / repeats
        expected = {}  # seconds per call
        for done, (name, make) in enumerate(makers.items()):
            if progress:
                progress(samples, 0.1 * done / len(makers))
            if not fresh:
                steppers[name] = make()
                expected[name] = _calibrate(steppers[name].step, clock)
                samples[name] = Sample(steppers[name].envs, steppers[name].agents, (), ())
        for turn in range(repeats):
            for done, (name, make) in enumerate(makers.items()):
                if progress:
                    progress(samples, 0.1 + 0.9 * (turn + done / len(makers)) / repeats)
                if fresh:
                    steppers[name] = make()
                    expected[name] = _calibrate(steppers[name].step, clock)
                stepper = steppers[name]
                samples.setdefault(name, Sample(stepper.envs, stepper.agents, (), ()))
                sample, calls = samples[name], max(1, round(slice_s / expected[name]))
                expected[name] = _time(stepper.step, calls, clock) / calls
                seconds_per_call = (*sample.seconds_per_call, expected[name])
                samples[name] = Sample(sample.envs, sample.agents, (*sample.calls, calls), seconds_per_call)
                if fresh:
                    steppers.pop(name).close()
    finally:
        for stepper in steppers.values():
            stepper.close()
    return samples


def _time(step: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        step()
    return clock() - start


def _calibrate(step: Callable[[], object], clock: Callable[[], float]) -> float:
    """Roughly the time of a call. Also warms caches and desynchronizes the episodes of the envs."""
    step()
    calls = 1
    while (took := _time(step, calls, clock)) < CALIBRATION_S:
        calls *= 2
    return took / calls


def describe_machine() -> dict[str, Any]:
    """Where and when numbers were measured."""
    import shoal

    root = Path(shoal.__file__).parent.parent
    commit = None
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        try:
            commit = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
        except (OSError, subprocess.TimeoutExpired):
            commit = None
    return {
        "cpu": cpu_model(),
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "shoal": shoal.__version__,
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
