"""What every logger is, how one is found, and how a bad one is kept from hurting the run.

A logger is a file in this folder with `open(facts, **options) -> Logger`; `--log x` opens `log/x.py`. It may also have
`check(**options)`, which raises ConfigError for what a user can mend (a package that is missing, a bad option): that is
called before any work starts, because `open` itself runs on the logger's own thread.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shoal.errors import ConfigError, did_you_mean

Record = Mapping[str, float]

NOT_OPTIONAL = ("__init__", "base", "console", "jsonl")  # files of this room that `--log` does not name
QUEUE = 1000  # records that may wait for a slow logger
PATIENCE_S = 5.0  # how long the end of a run waits for a logger to finish


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run before its first step."""

    folder: Path
    id: str
    env: str
    algo: str = "ppo"
    backend: str = ""
    device: str = "cpu"
    seed: int = 0
    num_envs: int = 1
    num_rows: int = 1  # envs times agents
    horizon: int = 1
    num_threads: int = 1
    total_steps: int = 0
    num_params: int = 0
    resumed_from: int = 0  # the step, 0 for a new run
    config: dict[str, Any] = field(default_factory=dict)


class Logger(Protocol):
    """What a file of this room opens."""

    def log(self, record: Record) -> None:
        """Takes the numbers of one interval."""

    def note(self, text: str) -> None:
        """Takes an event worth a line: a checkpoint, an evaluation."""

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Ends it. The summary is None where the run broke off without one."""


class Guarded:
    """Runs a logger on a daemon thread of its own, so that the run neither waits for it nor dies of it.

    One that raises is switched off with one warning. One that is slow loses its oldest waiting records, counted in
    `dropped`. `close` waits for it, but never longer than `patience_s`.
    """

    def __init__(
        self,
        name: str,
        open: Callable[[], Logger],
        warn: Callable[[str], None],
        *,
        queue: int = QUEUE,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.name, self.dropped, self.failure = name, 0, ""
        self._open, self._warn, self._limit, self._patience_s = open, warn, queue, patience_s
        self._waiting: deque[tuple[str, Any]] = deque()
        self._changed = threading.Condition()
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=f"shoal-log-{name}", daemon=True)
        self._thread.start()

    def log(self, record: Record) -> None:
        """Hands a copy over; returns at once."""
        self._put("log", dict(record))

    def note(self, text: str) -> None:
        """Hands it over; returns at once."""
        self._put("note", text)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Waits until everything is told, or `patience_s` have passed."""
        with self._changed:
            self._waiting.append(("close", summary))
            self._changed.notify()
        self._thread.join(self._patience_s)
        self._tell()
        if self._thread.is_alive():
            with self._changed:
                left = sum(kind == "log" for kind, _ in self._waiting)
            # whatever it was doing, nobody waits any longer: the thread is a daemon
            self._say("late", f"did not finish within {self._patience_s:g} s and was left with {left} records to write")
        if self.dropped:
            self._say("count", f"was too slow for {self.dropped:,} records, which it lost; metrics.jsonl has them all")

    def _put(self, kind: str, what: Any) -> None:
        self._tell()
        if self.failure:
            return
        with self._changed:
            if len(self._waiting) >= self._limit:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append((kind, what))
            self._changed.notify()
        if self.dropped:
            self._say("slow", "is too slow and loses records; metrics.jsonl has them all")

    def _tell(self) -> None:
        if self.failure:
            self._say("failure", f"is switched off: {self.failure}; metrics.jsonl goes on")

    def _say(self, what: str, text: str) -> None:
        """Warns once of each thing, on the thread of the run, so that no two threads write to the screen."""
        if what not in self._told:
            self._told.add(what)
            self._warn(f"logger {self.name} {text}")

    def _run(self) -> None:
        try:
            logger = self._open()
            while True:
                with self._changed:
                    while not self._waiting:
                        self._changed.wait()
                    kind, what = self._waiting.popleft()
                getattr(logger, kind)(what)
                if kind == "close":
                    return
        except BaseException as error:  # also SystemExit: what a library raises here must not go unseen
            with self._changed:
                self._waiting.clear()
            self.failure = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]


class Loggers:
    """All loggers of a run as one. Whatever they do, the run goes on."""

    def __init__(self) -> None:
        self._loggers: dict[str, Logger] = {}
        self._told: set[str] = set()

    def add(self, name: str, logger: Logger) -> None:
        """From now on this one is told, too."""
        self._loggers[name] = logger

    def log(self, record: Record) -> None:
        """Tells every logger the numbers of an interval."""
        self._each("log", record)

    def note(self, text: str) -> None:
        """Tells every logger of an event."""
        self._each("note", text)

    def warn(self, text: str) -> None:
        """Tells the person in front of the screen; without one, stderr."""
        console = self._loggers.get("console")
        if console is None:
            print(f"warning: {text}", file=sys.stderr, flush=True)
        else:
            self._call("console", console, "note", f"warning: {text}")

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Ends them all, the screen last: the others may have a warning to show on it."""
        for name in sorted(self._loggers, key=lambda name: name == "console"):
            self._call(name, self._loggers[name], "close", summary)
        self._loggers.clear()

    def _each(self, what: str, argument: Any) -> None:
        for name, logger in list(self._loggers.items()):
            self._call(name, logger, what, argument)

    def _call(self, name: str, logger: Logger, what: str, argument: Any) -> None:
        try:
            getattr(logger, what)(argument)
        except Exception as error:
            if name != "jsonl":  # which may miss a line, but is never off
                self._loggers.pop(name, None)
            if name not in self._told and not isinstance(error, BrokenPipeError):  # `| head`: nobody reads on
                self._told.add(name)
                self.warn(f"logger {name} failed in {what}: {type(error).__name__}: {error}")


def names() -> list[str]:
    """The loggers that `--log` can name: the files of this folder."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in NOT_OPTIONAL)


def open_all(
    facts: RunFacts,
    wanted: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    console: str = "auto",
) -> Loggers:
    """Opens jsonl, the console (`auto`, `dashboard`, `lines` or `off`) and the loggers asked for.

    What a user can mend raises ConfigError here, before any work: a name that is not there, a package that is missing,
    an option that the logger does not have.
    """
    from shoal.log import console as screen
    from shoal.log import jsonl

    options = options or {}
    modules = check(wanted, options, console=console)
    loggers = Loggers()
    loggers.add("jsonl", jsonl.open(facts, warn=loggers.warn))
    if console != "off":
        loggers.add("console", screen.open(facts, style=console))
    for name, module in modules.items():
        opener = _opener(module.open, facts, dict(options.get(name, {})))
        loggers.add(name, Guarded(name, opener, loggers.warn))
    return loggers


def check(
    wanted: Sequence[str], options: Mapping[str, Mapping[str, Any]] | None = None, *, console: str = "auto"
) -> dict[str, Any]:
    """The modules of the loggers; what a user can mend raises ConfigError, and nothing is opened yet."""
    from shoal.log import console as screen

    modules = {name: find(name) for name in dict.fromkeys(wanted)}
    for name, module in modules.items():
        given = (options or {}).get(name, {})
        known = list(inspect.signature(module.open).parameters)[1:]
        for key in given:
            if key not in known:
                raise ConfigError(f"logger {name} has no option '{key}'.{did_you_mean(key, known)} It has {known}.")
        if hasattr(module, "check"):
            module.check(**given)
    screen.check_style(console)
    return modules


def find(name: str) -> Any:
    """The module of a logger."""
    if name not in names():
        always = f" '{name}' is always on." if name in ("jsonl", "console") else ""
        raise ConfigError(
            f"no logger '{name}'.{always or did_you_mean(name, names())} There are: {', '.join(names())}."
        )
    return importlib.import_module(f"shoal.log.{name}")


def need(package: str, logger: str) -> None:
    """Raises with the install line where an optional package is missing."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f'--log {logger} needs the package {package}: pip install "shoal[{logger}]"')


def _opener(open: Callable[..., Logger], facts: RunFacts, options: dict[str, Any]) -> Callable[[], Logger]:
    return lambda: open(facts, **options)


# ---- numbers as a person reads them ----


def human(value: float) -> str:
    """A count in three digits and a unit: 1.2M, 17.3k, 950."""
    if not math.isfinite(value):
        return str(value)
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * size:
            return f"{_digits(value / size)}{unit}"
    return _digits(value)


def number(value: float | None) -> str:
    """A metric in four digits at most: 0.0123, 487.3, 2.5e-05, 1.2M."""
    if value is None:
        return "-"
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if size >= 1e5:
        return human(value)
    if size == 0 or size >= 0.001:
        digits = (
            0
            if size >= 1000 or value == int(value)
            else 1
            if size >= 100
            else 2
            if size >= 10
            else 3
            if size >= 1
            else 4
        )
        return f"{value:.{digits}f}"
    return f"{value:.1e}"


def short(value: float) -> str:
    """A metric in a sentence: four digits at most, no zeros at the end."""
    return human(value) if abs(value) >= 1e5 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """A time in its two largest units: 4.2s, 3m05s, 2h07m, 5d03h."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds < 59.95:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    whole = round(seconds)
    for big, small, units in ((86400, 3600, "dh"), (3600, 60, "hm"), (60, 1, "ms")):
        if whole >= big:
            return f"{whole // big}{units[0]}{whole % big // small:02d}{units[1]}"
    return f"{whole}s"


def _digits(value: float) -> str:
    text = f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def now() -> float:
    """The clock of the loggers; tests replace it."""
    return time.perf_counter()
