"""What a logger is, how one is found, and how the run is protected from a faulty one.

A logger is one file: `--log x` opens `log/x.py`, or a module that another package names in its entry points (group
`shoal.loggers`). `--log mine:Logger` opens a class of your own.

    @dataclass(frozen=True)
    class Options:  # its flags: --x.url
        url: str = opt("http://localhost", "server that receives the numbers")

    class Http(Logger):
        def __init__(self, facts: RunFacts, options: Options) -> None: ...
        def log(self, record: Record) -> None: ...

    LOGGER = LoggerType(Http, Options)
"""

from __future__ import annotations

import codecs
import contextlib
import importlib.util
import inspect
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from shoal import config
from shoal.errors import ConfigError, did_you_mean
from shoal.names import find as find_by_name
from shoal.names import shortened
from shoal.plugins import NoOptions, Plugins, options_type

Record = Mapping[str, float]

LOGGERS = Plugins("logger", package="shoal.log", marker="LOGGER")
ALWAYS_ON = ("jsonl", "console")  # not chosen by `--log`
QUEUE = 1000  # records that may wait for a slow logger
PATIENCE_S = 5.0  # how long the end of a run waits for a logger to finish


@dataclass(frozen=True)
class MetricRow:
    """How the console shows a metric of the algorithm."""

    name: str  # its key in the records
    label: str  # on the dashboard
    short: str = ""  # on a plain line; empty: not shown there


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run, known before its first step."""

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
    env_argument: str = ""  # the env on a command line, if it is not `env`
    lost: tuple[str, ...] = ()  # why commands cannot load the run again; empty: they can
    lost_to_resume: tuple[str, ...] = ()  # why they cannot resume it, though they can load its policy
    metrics: tuple[MetricRow, ...] = ()  # declared by the algorithm, in the order of the dashboard
    agents: tuple[str, ...] = ()  # the names of an env's agents, if it has several
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)  # named groups of them
    policies: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the agents of each, if there are several
    opponents: tuple[str, ...] = ()  # the agents that do not learn


class Logger:
    """Receives what a run reports. The base class ignores everything: override what you need."""

    def log(self, record: Record) -> None:
        """Receives the numbers of one interval."""

    def note(self, text: str) -> None:
        """Receives an event as a line of text: a checkpoint, an evaluation."""

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Ends the log. The summary is None if the run ended without one."""


@dataclass(frozen=True)
class LoggerType:
    """The value of LOGGER in a logger's file.

    `check(options)` raises ConfigError for mistakes that a user can fix: a missing package, a bad option. It is called
    before any work starts. `open(facts, options)` runs later, on the logger's thread.
    """

    open: Callable[..., Logger]
    options: type = NoOptions
    check: Callable[[Any], None] = lambda options: None


class Guarded(Logger):
    """Runs a logger on a separate daemon thread: the run neither waits for it nor fails with it.

    A logger that raises is switched off with one warning. A slow one loses its oldest waiting records, counted in
    `dropped`. `close` waits for at most `patience_s`.
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
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=f"shoal-log-{name}", daemon=True)
        self._thread.start()

    def log(self, record: Record) -> None:
        """Queues a copy and returns at once."""
        self._put("log", dict(record))

    def note(self, text: str) -> None:
        """Queues it and returns at once."""
        self._put("note", text)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Waits until everything is written, or `patience_s` have passed."""
        with self._changed:
            self._waiting.append(("close", summary))
            self._changed.notify()
        self._thread.join(self._patience_s)
        self._report_failure()
        if self._thread.is_alive():
            with self._changed:
                left = sum(kind == "log" for kind, _ in self._waiting)
            # the thread is a daemon: it does not keep the process alive
            self._warn_once(
                "late", f"did not finish within {self._patience_s:g} s; {left} of its records were not written"
            )
        if self.dropped:
            self._warn_once("count", f"was too slow and lost {self.dropped:,} records; metrics.jsonl has all of them")

    def _put(self, kind: str, argument: Any) -> None:
        self._report_failure()
        if self.failure:
            return
        with self._changed:
            if len(self._waiting) >= self._limit:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append((kind, argument))
            self._changed.notify()
        if self.dropped:
            self._warn_once("slow", "is too slow and loses records; metrics.jsonl has all of them")

    def _report_failure(self) -> None:
        if self.failure:
            self._warn_once("failure", f"is switched off: {self.failure}; metrics.jsonl continues")

    def _warn_once(self, kind: str, text: str) -> None:
        """Warns once about each kind of problem, on the thread of the run: only that thread writes to the screen."""
        if kind not in self._warned:
            self._warned.add(kind)
            self._warn(f"logger {self.name} {text}")

    def _run(self) -> None:
        try:
            logger = self._open()
            while True:
                with self._changed:
                    while not self._waiting:
                        self._changed.wait()
                    kind, argument = self._waiting.popleft()
                getattr(logger, kind)(argument)
                if kind == "close":
                    return
        except BaseException as error:  # including SystemExit, which a thread would ignore
            with self._changed:
                self._waiting.clear()
            self.failure = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]


class Loggers:
    """All loggers of a run as one. The run continues whatever they do."""

    def __init__(self) -> None:
        self._loggers: dict[str, Logger] = {}
        self._warned: set[str] = set()

    def add(self, name: str, logger: Logger) -> None:
        """Adds a logger. It receives what is logged from now on."""
        self._loggers[name] = logger

    def log(self, record: Record) -> None:
        """Gives every logger the numbers of an interval."""
        self._call_all("log", record)

    def note(self, text: str) -> None:
        """Gives every logger an event."""
        self._call_all("note", text)

    def warn(self, text: str) -> None:
        """Shows a warning on the console; without one, on stderr."""
        console = self._loggers.get("console")
        if console is None:
            print(f"warning: {text}", file=sys.stderr, flush=True)
        else:
            self._call("console", console, "note", f"warning: {text}")

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Closes all loggers, the console last: the others may show a warning on it."""
        for name in sorted(self._loggers, key=lambda name: name == "console"):
            self._call(name, self._loggers[name], "close", summary)
        self._loggers.clear()

    def _call_all(self, method: str, argument: Any) -> None:
        for name, logger in list(self._loggers.items()):
            self._call(name, logger, method, argument)

    def _call(self, name: str, logger: Logger, method: str, argument: Any) -> None:
        try:
            getattr(logger, method)(argument)
        except Exception as error:
            if name != "jsonl":  # jsonl may lose a line, but is never switched off
                self._loggers.pop(name, None)
            if name not in self._warned and not isinstance(error, BrokenPipeError):  # `| head` has closed the pipe
                self._warned.add(name)
                self.warn(f"logger {name} failed in {method}: {type(error).__name__}: {error}")


def names() -> list[str]:
    """The loggers that `--log` can name."""
    return [name for name in LOGGERS.names() if name not in ALWAYS_ON]


def find(name: str) -> LoggerType:
    """The logger with this name: a plugin's, or that of your own class (`mine:Logger`, `./mine.py:Logger`)."""
    if ":" in name:
        return _own_logger(name)
    if name not in names():
        always = f" '{name}' is always on." if name in ALWAYS_ON else did_you_mean(name, names())
        raise ConfigError(f"no logger '{name}'.{always} Known: {', '.join(names())}, or your own: mine:Logger.")
    plugin: LoggerType = LOGGERS.find(name)
    return plugin


def _own_logger(name: str) -> LoggerType:
    """The logger of a module or file: a LoggerType, or a class that is made with (facts, options), (facts) or ()."""
    kind, shown = find_by_name(name, "--log"), f"--log {shortened(name)}"
    if isinstance(kind, LoggerType):
        return kind
    lacks = [method for method in ("log", "note", "close") if not callable(getattr(kind, method, None))]
    if not isinstance(kind, type) or lacks:
        what = "a class" if isinstance(kind, type) else type(kind).__name__
        without = f" without {', '.join(lacks)}" if isinstance(kind, type) else ""
        raise ConfigError(f"{shown} is {what}{without}, not a logger. Name a subclass of shoal.log.Logger.")
    options = options_type(kind)
    signature = inspect.signature(kind)
    for count in (2, 1, 0):
        with contextlib.suppress(TypeError):
            signature.bind(*range(count))
            return LoggerType(partial(_open_own, kind, count), options)
    raise ConfigError(
        f"{shown} takes {signature}, but is made with (facts, options), (facts) or (). Change its arguments."
    )


def _open_own(kind: Callable[..., Logger], count: int, *arguments: Any) -> Logger:
    """Makes a logger from the first of (facts, options): as many as it takes."""
    return kind(*arguments[:count])


def open_all(
    facts: RunFacts,
    wanted: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    console: str = "auto",
) -> Loggers:
    """Opens jsonl, the console (`auto`, `dashboard`, `lines` or `off`) and the loggers in `wanted`.

    An unknown name, a missing package or an unknown option raises ConfigError before any work starts.
    """
    from shoal.log import console as screen
    from shoal.log import jsonl

    chosen = check(wanted, options, console=console)
    loggers = Loggers()
    loggers.add("jsonl", jsonl.open(facts, warn=loggers.warn))
    if console != "off":
        loggers.add("console", screen.open(facts, style=console))
    for name, (kind, values) in chosen.items():
        loggers.add(name, Guarded(name, _opener(kind, facts, values), loggers.warn))
    return loggers


def check(
    wanted: Sequence[str], options: Mapping[str, Mapping[str, Any]] | None = None, *, console: str = "auto"
) -> dict[str, tuple[LoggerType, Any]]:
    """The loggers in `wanted` with their options, checked. Raises ConfigError and opens nothing."""
    from shoal.log import console as screen

    chosen = {}
    for name in dict.fromkeys(wanted):
        kind = find(name)
        values: Any = config.from_dict(kind.options, (options or {}).get(name, {}), name)
        kind.check(values)
        chosen[name] = kind, values
    screen.check_style(console)
    return chosen


def need(package: str, logger: str) -> None:
    """Raises ConfigError with the install command if an optional package is missing."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f'--log {logger} needs the package {package}. Install it: pip install "shoal[{logger}]"')


def _opener(kind: LoggerType, facts: RunFacts, options: Any) -> Callable[[], Logger]:
    return lambda: kind.open(facts, options)


# ---- text for terminals and files of any encoding ----


def beside(hints: Mapping[str, str], width: int | None) -> list[tuple[str, str]]:
    """Commands, padded, with what they do; without it where a terminal of `width` has no room after "Next: "."""
    room = max(map(len, hints)) if width is None else width - 9 - max(map(len, hints.values()))
    indent = max((len(command) for command in hints if len(command) <= room), default=0) + 3
    return [(f"{one:<{indent}}", what) if len(one) <= room else (one, "") for one, what in hints.items()]


ENCODING_ERRORS = "shoal.ascii"  # for `str.encode(errors=...)` and `stream.reconfigure(errors=...)`
ASCII = {"±": "+-", "…": "...", "→": "->", "·": "-", "×": "x", "█": "#", "─": "-"}


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error(ENCODING_ERRORS, _to_ascii)


def printable(text: str, encoding: str | None) -> str:
    """The text with characters that the encoding lacks replaced by ASCII: `±` by `+-`."""
    return text.encode(encoding or "utf-8", ENCODING_ERRORS).decode(encoding or "utf-8")


# ---- numbers as text ----


def human(value: float) -> str:
    """A count in three digits and a unit: 1.2M, 17.3k, 950."""
    if not math.isfinite(value):
        return str(value)
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * size:
            return f"{_digits(value / size)}{unit}"
    return _digits(value)


def exact_count(count: int) -> str:
    """A count without rounding, as short as an option accepts it: 40M, 512, 65536."""
    return next(
        (f"{count // size}{unit}" for unit, size in (("M", 10**6), ("k", 1000)) if count and count % size == 0),
        str(count),
    )


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
        is_round = size >= 1000 or value == int(value)
        decimals = 0 if is_round else 1 if size >= 100 else 2 if size >= 10 else 3 if size >= 1 else 4
        return f"{value:.{decimals}f}"
    return f"{value:.1e}"


def short(value: float) -> str:
    """A metric in a sentence: four digits at most, without trailing zeros."""
    return human(value) if abs(value) >= 1e5 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """A time in its two largest units: 4.2s, 3m05s, 2h07m, 5d03h."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds < 59.95:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    rounded = round(seconds)
    for big, small, units in ((86400, 3600, "dh"), (3600, 60, "hm"), (60, 1, "ms")):
        if rounded >= big:
            return f"{rounded // big}{units[0]}{rounded % big // small:02d}{units[1]}"
    return f"{rounded}s"


def _digits(value: float) -> str:
    text = f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def now() -> float:
    """The clock of the loggers; tests replace it."""
    return time.perf_counter()
