"""Finds the fastest way to step an env on this machine, and what the time of a step is spent on.

`autotune` measures the serial backend and processes with several numbers of workers and batch sizes, in turns, and
returns the fastest call and the reason. `profile` measures the parts of a step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.cores import available_cores, available_threads
from shoal.entry import make
from shoal.errors import ConfigError
from shoal.measure import Progress, Sample, Stepper, measure
from shoal.spec import map_leaves
from shoal.vector.base import check_num_envs

Env = str | Path | Callable[..., Any]


@dataclass(frozen=True)
class Setting:
    """One way to step the envs, and its measured speed."""

    options: dict[str, Any]
    sample: Sample

    @property
    def steps_per_s(self) -> float:
        """Median of the env steps per second."""
        return self.sample.median

    @property
    def name(self) -> str:
        """A short name: `process, 2 workers, batch 32`."""
        rest = dict(self.options)
        parts = [str(rest.pop("backend"))]
        for key, text in (("num_workers", "{} workers"), ("num_threads", "{} threads"), ("batch_size", "batch {}")):
            if key in rest:
                parts.append(text.format(rest.pop(key)).replace("1 workers", "1 worker"))
        return ", ".join(parts)


@dataclass(frozen=True)
class Tuning:
    """The result of `autotune`: all settings, fastest first; the call of shoal.make; the reason in a sentence."""

    settings: list[Setting]
    step_us: float  # of one env
    call: str
    why: str

    @property
    def best(self) -> Setting:
        """The fastest setting."""
        return self.settings[0]


def autotune(
    env: Env,
    num_envs: int = 64,
    *,
    seconds: float = 1.0,
    repeats: int = 5,
    progress: Progress | None = None,
    **params: Any,
) -> Tuning:
    """Measures `env` with every backend that fits and returns the settings by speed, with the fastest call."""
    count = check_num_envs(num_envs)
    probe = make(env, 1, backend="serial", **params)
    probe.reset(seed=0)
    is_native = probe.native_spec is not None
    step_us = 0.0 if is_native else _step_us(probe)
    probe.close()
    options = _candidates(count, is_native)
    makers = {str(k): partial(make_stepper, env, count, option, params) for k, option in enumerate(options)}
    samples = measure(makers, seconds, repeats, progress)
    settings = [Setting(option, samples[str(k)]) for k, option in enumerate(options)]
    if is_native:  # of a batch: alone, a call from Python takes far longer than the step in C
        step_us = 1e6 / settings[0].steps_per_s
    settings.sort(key=lambda setting: -setting.steps_per_s)
    best = settings[0]
    name = repr(str(env)) if isinstance(env, (str, Path)) else getattr(env, "__name__", "make_env")
    arguments = "".join(f", {key}={value!r}" for key, value in {**best.options, **params}.items())
    call = f"shoal.make({name}, num_envs={count}{arguments})"
    return Tuning(settings, step_us, call, _reason(settings, step_us))


def _candidates(count: int, is_native: bool) -> list[dict[str, Any]]:
    if is_native:
        most = available_threads()
        threads = sorted({1, most // 2, most} - {0})
        return [{"backend": "serial"}, *({"backend": "threads", "num_threads": k} for k in threads if k > 1)]
    cores, candidates = available_cores(), list[dict[str, Any]]([{"backend": "serial"}])
    for workers in sorted({1, cores // 2, cores - 1, cores, 2 * cores} - {0}):
        if workers > count or count % workers:
            continue
        candidates.append({"backend": "process", "num_workers": workers})
        if workers > 1 and workers % 2 == 0:
            candidates.append({"backend": "process", "num_workers": workers, "batch_size": count // 2})
    return candidates


def make_stepper(env: Env, count: int, options: dict[str, Any], params: dict[str, Any] | None = None) -> Stepper:
    """Steps envs with random actions that were drawn before: for measuring."""
    vec: Any = make(env, count, seed=0, **options, **(params or {}))
    vec.action_space.seed(0)
    if "batch_size" in options:
        batches = [vec.action_space.sample() for _ in range(8)]
        vec.async_reset()
        vec.recv()
        rows = options["batch_size"] * vec.agents_per_env
        next_actions = itertools.cycle([_take(batch, rows) for batch in batches]).__next__

        def overlapped() -> None:
            vec.send(next_actions())
            vec.recv()

        return Stepper(overlapped, options["batch_size"], vec.agents_per_env, vec.close)
    vec.reset()
    actions = itertools.cycle([vec.action_space.sample() for _ in range(8)]).__next__
    return Stepper(lambda: vec.step(actions()), vec.num_envs, vec.agents_per_env, vec.close)


def _take(actions: Any, rows: int) -> Any:
    """The first rows of a batch of actions of any structure."""
    return map_leaves(lambda leaf: leaf[:rows], actions)


def _step_us(vec: Any, seconds: float = 0.2) -> float:
    """The time of one step of a Python env in microseconds, without the backend."""
    vec.action_space.seed(0)
    vec.step(vec.action_space.sample())
    return 1e6 * _seconds_in_envs(vec._runners[0], seconds) / int(vec.num_envs)


def _reason(settings: list[Setting], step_us: float) -> str:
    best, cores = settings[0], available_cores()
    serial = next(setting for setting in settings if setting.options["backend"] == "serial")
    cost = f"your env takes {step_us:.0f} us per step" if step_us >= 10 else f"your env takes {step_us:.2g} us per step"
    gain = best.steps_per_s / serial.steps_per_s
    if len(settings) == 1:
        return f"{cost}, and there is one thread to step envs with: serial is fastest"
    if best is serial and any(setting.options["backend"] == "threads" for setting in settings):
        return f"{cost}: threads take more time than they save with so few envs, so serial is fastest"
    if best is serial:
        return f"{cost}: other processes take more time than they save, so serial is fastest"
    if "batch_size" in best.options:
        return (
            f"{cost}, and batches of the first {best.options['batch_size']} ready envs keep {cores} cores busy: "
            f"{gain:.1f} times as fast as serial"
        )
    where = "threads" if best.options["backend"] == "threads" else "processes"
    return f"{cost}, enough work for {cores} cores: {where} are {gain:.1f} times as fast as serial"


@dataclass(frozen=True)
class Part:
    """A part of a step's time."""

    name: str
    us: float  # per env step
    share: float  # of the step
    meaning: str


def profile(
    env: Env, num_envs: int = 64, *, num_workers: int | None = None, seconds: float = 0.5, **params: Any
) -> list[Part]:
    """The parts of a step's time in worker processes: the env, copying, the parent's Python, waiting.

    Each part is timed alone in this process, then a whole step in worker processes. The difference is waiting: waking
    processes, and waiting for the slowest worker.
    """
    count = check_num_envs(num_envs)
    serial: Any = make(env, count, backend="serial", seed=0, **params)
    if serial.native_spec is not None:
        raise ConfigError("profile is for Python envs: the whole step of a native env is C. Try 'shoal bench env'.")
    serial.reset()
    serial.action_space.seed(0)
    actions = [serial.action_space.sample() for _ in range(8)]
    runner = serial._runners[0]
    serial.step(actions[0])

    runner_s = _mean_s(runner.step, seconds)
    serial_s = _mean_s(lambda: serial.step(actions[0]), seconds)
    env_s = min(_seconds_in_envs(runner, seconds), runner_s)
    serial.close()

    vec: Any = make(env, count, backend="process", num_workers=num_workers, seed=0, **params)
    vec.reset()
    vec.step(actions[0])
    process_s = _mean_s(lambda: vec.step(actions[0]), seconds)
    workers = vec.num_workers
    vec.close()

    total = vec.num_envs
    parallel = min(workers, available_cores())
    parts = {
        "env": (env_s / parallel, f"env.step itself, over {parallel} cores"),
        "copy": ((runner_s - env_s) / parallel, "checking and copying its results, in the workers"),
        "python": (max(0.0, serial_s - runner_s), "actions in, infos out, in the parent"),
    }
    known = sum(seconds for seconds, _ in parts.values())
    parts["wait"] = (max(0.0, process_s - known), "waking processes, and waiting for the slowest worker")
    step_s = max(process_s, known)
    return [Part(name, 1e6 * s / total, s / step_s, meaning) for name, (s, meaning) in parts.items()]


def _seconds_in_envs(runner: Any, seconds: float) -> float:
    """The seconds of a runner's step that are spent in env.step, by timing each call."""
    spent = [0.0]

    def timed(step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = step(*arguments)
            spent[0] += time.perf_counter() - start
            return result

        return call

    if runner.is_simple:
        runner.env_steps = [timed(step) for step in runner.env_steps]
    else:
        for slot in runner.slots:
            slot.env.step = timed(slot.env.step)
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        runner.step()
        calls += 1
    return max(0.0, spent[0] / calls - _clock_cost() * len(runner.slots))


def _clock_cost() -> float:
    start = time.perf_counter()
    for _ in range(10_000):
        time.perf_counter()
        time.perf_counter()
    return (time.perf_counter() - start) / 10_000


def _mean_s(step: Callable[[], Any], seconds: float) -> float:
    times = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        before = time.perf_counter()
        step()
        times.append(time.perf_counter() - before)
    return float(np.median(times))
