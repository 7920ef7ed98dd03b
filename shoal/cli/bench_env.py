"""`shoal bench env`: measures how many steps per second envs take when stepped from Python, and prints a table.

shoal/measure.py does the timing.
"""

from __future__ import annotations

import itertools
import json as jsonlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from shoal.cli.command import Command
from shoal.cores import available_cores, available_threads
from shoal.measure import CALIBRATION_S, Sample, Stepper, describe_machine, measure

if TYPE_CHECKING:
    from shoal.native.simd import Simd

POOL_SIZE = 64  # batches of random actions, drawn before measuring and used in turn
POOL_BYTES = 64 << 20  # limit on their total size: fewer batches where they are large
LEAST_BAR = 6  # columns of a bar: below that there is none

Backend = Literal["serial", "threads"]


@dataclass(frozen=True)
class Config:
    """One row of the table."""

    env: str
    num_envs: int
    backend: str
    num_threads: int | None  # None: serial
    agents: int

    @property
    def how(self) -> str:
        """The backend in short: `serial`, `threads x2`."""
        return self.backend if self.num_threads is None else f"{self.backend} x{self.num_threads}"

    def make(self) -> Stepper:
        """Resets the envs and draws a pool of random actions to step them with."""
        from shoal.entry import make

        vec = make(self.env, self.num_envs, backend=self.backend, num_threads=self.num_threads, seed=0)
        vec.reset()
        step, next_actions = vec.step, itertools.cycle(_random_actions(vec)).__next__
        return Stepper(lambda: step(next_actions()), vec.num_envs, vec.agents_per_env, vec.close)


def _random_actions(vec: Any) -> list[Any]:
    """Batches of actions with a policy's dtype: int64, or float32 for a box."""
    import numpy as np

    spec, rng = vec.native_spec, np.random.default_rng(0)
    rows, shape = vec.num_rows, vec.actions.shape
    count = max(4, min(POOL_SIZE, POOL_BYTES // (8 * rows * max(1, vec.module.action_size))))
    if spec.action_kind == "box":
        low, high = np.maximum(spec.action_low, -1e3), np.minimum(spec.action_high, 1e3)  # also where unbounded
        return [rng.uniform(low, high, shape).astype(np.float32) for _ in range(count)]
    if spec.action_kind == "mix" or spec.own_sizes:
        return [vec.action_space.sample() for _ in range(count)]
    return [rng.integers(0, spec.action_dims, shape, np.int64) for _ in range(count)]


def bench_env(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...|all]")] = ("all",),
    /,
    *,
    num_envs: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N [N ...]")] = (4096,),
    backends: Annotated[tuple[Backend, ...], tyro.conf.arg(metavar="{serial,threads} [...]")] = ("serial", "threads"),
    num_threads: Annotated[
        tuple[int, ...], tyro.conf.arg(metavar="N [N ...]", help_behavior_hint="(default: every core)")
    ] = (),
    seconds: float = 1.0,
    repeats: int = 5,
    json: bool = False,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: no file)")] = None,
) -> int:
    """Measure how many steps per second envs take on this machine.

    Calls `step` from Python with new random actions each time. Every combination of the options is one row. Rows are
    measured in turns and shown as the median and the range over the repeats.

    Try:
        shoal bench env all
        shoal bench env cartpole --num-envs 256 4096 65536
        shoal bench env cartpole --backends threads --num-threads 1 2 4
        shoal bench env ./my_env.h --seconds 5 --json

    Args:
        names: The envs to measure: names that 'shoal envs' lists, paths of env headers, Python envs, or all.
        num_envs: Envs stepped by one call; several numbers give several rows.
        backends: The backends to measure.
        num_threads: Threads of the threads backend, for Python envs worker processes; several give several rows.
        seconds: Time spent on each row, over all its repeats.
        repeats: Measurements per row.
        json: Print one line of JSON instead of the table: machine, config and every repeat.
        out: Append that line of JSON to this file.
    """
    from shoal.cli.main import console

    headers = _check(names, num_envs, num_threads, backends, seconds, repeats, out)
    screen = console(stderr=json)
    agents, broken = _load(screen, headers, skip_broken="all" in names)
    rows = [
        Config(env, envs, backend, threads, agents[env])
        for env in agents
        for envs in num_envs
        for backend in backends
        for threads in ((None,) if backend == "serial" else num_threads or (available_threads(),))
    ]
    rows += _python_rows(names, num_envs, backends, num_threads)
    configs = list(dict.fromkeys(rows))  # without duplicates
    makers = {repr(config): config.make for config in configs}
    machine = describe_machine()
    if screen.is_terminal:
        samples = _watch(screen, configs, makers, machine, seconds, repeats)
    else:
        samples = measure(makers, seconds, repeats)
    results = [(config, samples[repr(config)]) for config in configs]
    if not json and not screen.is_terminal:
        screen.print(_table(configs, samples, machine, screen.width))
    for env, reason in broken.items():
        screen.print(f"\n{env} was skipped: {reason}", style="red")
    notes = {env: note for env in agents if (note := _simd_note(env))}
    if results and not json:
        _conclude(screen, results)
        for env, note in notes.items():
            screen.print(f"\n{env}: {note.text}.", style="yellow" if note.is_simd is False else "")
    line = jsonlib.dumps(
        {
            "bench": "env",
            "machine": machine,
            "seconds": seconds,
            "repeats": repeats,
            "results": [_result(config, sample) for config, sample in results],
            **({"simd": {env: vars(note) for env, note in notes.items()}} if notes else {}),
        }
    )
    if json:
        print(line)
    if out:
        with out.open("a") as file:
            file.write(line + "\n")
    return 1 if broken else 0


def _python_rows(names: Sequence[str], *options: Any) -> list[Config]:
    """The rows of Python envs: `gymnasium:CartPole-v1`, `mine:Env`."""
    from shoal import registry
    from shoal.cli.bench_python import python_rows

    return python_rows((name for name in names if not registry.is_native(name)), *options)


def _load(screen: Any, headers: Mapping[str, Path], skip_broken: bool) -> tuple[dict[str, int], dict[str, str]]:
    """Compiles the envs. Returns the number of agents by env, and why an env was skipped."""
    from rich.text import Text

    from shoal.errors import ShoalError
    from shoal.native import lib

    agents: dict[str, int] = {}
    broken: dict[str, str] = {}
    with screen.status("") as status:
        for env, header in headers.items():
            status.update(Text(f"loading {env}"))
            try:
                agents[env] = lib.load(header).spec.agents
            except ShoalError as error:
                if not skip_broken:
                    raise
                broken[env] = str(error).splitlines()[0]
    return agents, broken


def _check(
    names: Sequence[str],
    num_envs: Sequence[int],
    num_threads: Sequence[int],
    backends: Sequence[str],
    seconds: float,
    repeats: int,
    out: Path | None,
) -> dict[str, Path]:
    """The headers to measure. Invalid arguments raise before anything is compiled."""
    from shoal import registry
    from shoal.errors import ConfigError
    from shoal.vector.base import check_num_envs

    for count in num_envs:
        check_num_envs(count)
    if not num_envs or not backends:
        raise ConfigError(f"--{'backends' if num_envs else 'num-envs'} is empty. Give at least one value.")
    if num_threads and "threads" not in backends:
        raise ConfigError("--num-threads needs the threads backend. Add threads to --backends.")
    for count in num_threads:
        if not 1 <= count <= 1024:
            raise ConfigError(
                f"--num-threads {count} must be in 1 .. 1024. This machine has {available_cores()} cores."
            )
    if not 0.0 < seconds <= 3600.0:
        raise ConfigError(f"--seconds {seconds:g} must be more than 0 and at most 3600.")
    if not 1 <= repeats <= 1000:
        raise ConfigError(f"--repeats {repeats} must be in 1 .. 1000.")
    if out and (out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK)):
        raise ConfigError(f"--out {out} cannot be written. Choose a file in an existing folder that you may write to.")
    known = registry.known_names()
    wanted = [env for name in names or ("all",) for env in (known if name == "all" else [name])]
    return {env: registry.find(env) for env in wanted if registry.is_native(env)}


def _result(config: Config, sample: Sample) -> dict[str, Any]:
    rates = sample.steps_per_s
    return {
        "env": config.env,
        "num_envs": config.num_envs,
        "backend": config.backend,
        "num_threads": config.num_threads or 1,
        "agents": sample.agents,
        "calls": sample.calls,
        "steps_per_s": {"median": round(sample.median), "min": round(min(rates)), "max": round(max(rates))},
        "us_per_call": [round(1e6 * seconds, 3) for seconds in sample.seconds_per_call],
    }


# ---- the table ----


def _watch(
    screen: Any,
    configs: Sequence[Config],
    makers: Mapping[str, Callable[[], Stepper]],
    machine: dict[str, Any],
    seconds: float,
    repeats: int,
) -> dict[str, Sample]:
    """Measures and redraws the table. It is drawn only between measurements, so that drawing is not measured."""
    from rich.console import Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    def frame(samples: Mapping[str, Sample], done: float) -> Any:
        left = (1.0 - done) * len(configs) * (seconds + 3 * CALIBRATION_S)
        bar = Table.grid(padding=(0, 2))
        bar.add_row("measuring", ProgressBar(1.0, done, width=40), f"{left:.0f} s left")
        return Group(_table(configs, samples, machine, screen.width), "", bar)

    with Live(frame({}, 0.0), console=screen, auto_refresh=False) as live:
        samples = measure(makers, seconds, repeats, lambda so_far, done: live.update(frame(so_far, done), refresh=True))
        live.update(_table(configs, samples, machine, screen.width), refresh=True)
    return samples


def _table(configs: Sequence[Config], samples: Mapping[str, Sample], machine: dict[str, Any], width: int) -> Any:
    """The rows measured so far, and empty ones for the rest. What all rows share is printed above the table."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    sizes = {config.num_envs for config in configs}
    teams = any(config.agents > 1 for config in configs)
    samples = {name: sample for name, sample in samples.items() if sample.calls}
    best = max((sample.median for sample in samples.values()), default=1.0)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("\nenv", style="cyan", no_wrap=True)
    if len(sizes) > 1:
        table.add_column("num\nenvs", justify="right", no_wrap=True)
    table.add_column("\nbackend", no_wrap=True)
    table.add_column("env\nsteps/s", style="bold", justify="right", no_wrap=True)
    table.add_column("\nmin .. max", style="dim", justify="right", no_wrap=True)
    if teams:
        table.add_column("agent\nsteps/s", justify="right", no_wrap=True)
    table.add_column("\nus/call", justify="right", no_wrap=True)
    names = max(len(config.env) for config in configs) + max(len(config.how) for config in configs)
    room = width - names - 43 - (9 if len(sizes) > 1 else 0) - (9 if teams else 0)  # width left by the other columns
    if room >= LEAST_BAR:
        table.add_column("", no_wrap=True)  # a bar
    last = None
    for config in configs:
        sample = samples.get(repr(config))
        cells: list[Any] = [config.env if config.env != last else ""]
        last = config.env
        if len(sizes) > 1:
            cells.append(f"{config.num_envs:,}")
        cells.append(config.how)
        if sample:
            cells += [_short(sample.median), _spread(sample)]
            if teams:
                cells.append(_short(sample.median * sample.agents) if sample.agents > 1 else "")
            cells.append(f"{sample.us_per_call:,.1f}")
            if room >= LEAST_BAR:
                bar = _bar(sample.median / best, min(24, room))
                cells.append(Text(bar, "blue" if config.backend == "serial" else "green"))
        else:
            cells.append(Text("…", "dim"))
        table.add_row(*cells)
    envs = f"{sizes.pop():,} envs" if len(sizes) == 1 else "num_envs envs"
    machine_text = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, Shoal {machine['shoal']}"
    row_text = f"Each row: {envs} stepped from Python with new random actions."
    return Group(Text(f"{machine_text}\n{row_text}\n", "dim"), table)


def _unit(rate: float) -> tuple[str, float]:
    units = (("G", 1e9), ("M", 1e6), ("k", 1e3))
    return next(((unit, size) for unit, size in units if rate >= 0.9995 * size), ("", 1.0))


def _digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _short(rate: float) -> str:
    """Three digits and a unit: 138M."""
    unit, size = _unit(rate)
    return f"{_digits(rate / size)}{unit}"


def _spread(sample: Sample) -> str:
    """The lowest and highest rate of the repeats, in the median's unit: 131 .. 142."""
    size = _unit(sample.median)[1]
    return f"{_digits(min(sample.steps_per_s) / size)} .. {_digits(max(sample.steps_per_s) / size)}"


def _bar(share: float, width: int) -> str:
    eighths = max(1, round(8 * width * share))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _simd_note(env: str) -> Simd | None:
    """Whether a user's env is vectorized, and which line prevents it. None for stock envs: tests cover them."""
    from shoal import registry
    from shoal.errors import BuildError
    from shoal.native import build, lib, simd

    header = registry.find(env)
    if header.parent == registry.STOCK:
        return None
    try:
        report = simd.report(build.Source.env(header), lib.best_variant())
    except BuildError:  # no compiler on this machine: the library was compiled elsewhere
        return None
    return replace(report, text=f"the step is vectorized, {report.text}") if report.is_simd else report


def _conclude(screen: Any, results: list[tuple[Config, Sample]]) -> None:
    """Prints the result in a sentence, and commands to try next."""
    from shoal.cli.main import suggest

    ranked = sorted(results, key=lambda result: result[1].median)
    (slow, slowest), (fast, fastest) = ranked[0], ranked[-1]
    best: dict[str, tuple[Config, Sample]] = {config.env: (config, sample) for config, sample in ranked}
    if len(best) > 1:
        slow, slowest = min(best.values(), key=lambda result: result[1].median)
        words = (
            f"The fastest env is {fast.env} with {_words(fastest.median)} steps per second, "
            f"the slowest {slow.env} with {_words(slowest.median)}."
        )
    elif len(results) > 1:
        ratio = fastest.median / slowest.median
        words = (
            f"{fast.env}: {_words(fastest.median)} steps per second at best ({fast.how}, {fast.num_envs:,} envs), "
            f"{ratio:.1f} times the slowest row ({slow.how}, {slow.num_envs:,} envs)."
        )
    else:
        words = f"{fast.env}: {_words(fastest.median)} steps per second ({fast.how}, {fast.num_envs:,} envs)."
    screen.print(f"\n{words}")
    if len(best) > 1:
        example = "breakout" if "breakout" in best else fast.env
        suggest(screen, {f"shoal envs {example}": "details of one env", "shoal new my_env": "write your own env"})
    else:
        scale = {f"shoal bench env {fast.env} --num-envs 256 4096 65536": "speed by number of envs"}
        hints = scale if fast.num_envs == slow.num_envs else {}
        last = {f"shoal envs {fast.env}": "its spaces, params and presets"}
        if ":" in fast.env:
            hints, last = {}, {f"shoal tune {fast.env}": "the fastest way to step it"}
        suggest(screen, {**hints, **last})


def _words(rate: float) -> str:
    """A rate as a person says it: 138 million."""
    for unit, size in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if rate >= size:
            value = rate / size
            return f"{value:.{1 if value < 10 else 0}f} {unit}"
    return f"{rate:.0f}"


COMMAND = Command(bench_env, order=60, examples={"shoal bench env all": "measure every env on this machine"})
