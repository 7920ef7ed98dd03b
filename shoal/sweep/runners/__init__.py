"""Runners that train trials: one file each. A file assigns RUNNER, a class with the methods of `Runner`.

It is made with the number of workers and a folder for logs; with `from_options` it takes all options of the sweep, and
its `check(options)` raises ConfigError before a sweep starts.

A runner that trains several trials on one trainer (shoal/sweep/population.py) takes several jobs by `start` and reports
each by `poll`; `Job.shape` is equal for trials that fit one trainer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shoal.plugins import Plugins
from shoal.train.swap import shape_of

RUNNERS = Plugins("runner", package="shoal.sweep.runners", marker="RUNNER")


@dataclass(frozen=True, eq=False)
class Job:
    """One run that a runner trains."""

    name: str  # `trial 7`
    env: Any
    options: Any  # shoal.train.Options
    root: Path  # the folder of runs
    run_id: str
    callbacks: tuple[Any, ...] = ()
    attempt: int = 1
    owner: Any = None  # what the driver keeps with it

    @property
    def shape(self) -> str:
        """Equal for runs that can use one trainer (shoal/train/swap.py)."""
        return shape_of(self.options)


@dataclass(frozen=True)
class Outcome:
    """How a job ended. `kind`: finished, failed (by its own fault) or lost (a failure of the machine: try again)."""

    kind: str
    reason: str = ""
    step: int | None = None
    seed: int | None = None
    is_config: bool = False  # the options do not fit
    facts: dict[str, Any] = field(default_factory=dict)


class Runner(Protocol):
    """Trains jobs, several at a time."""

    def free(self) -> int:
        """How many more jobs can be started."""

    def start(self, job: Job) -> None:
        """Starts a job, or continues one that was broken off."""

    def poll(self) -> list[tuple[Job, Outcome]]:
        """The jobs that have ended since the last call."""

    def progress(self) -> dict[str, dict[str, Any]]:
        """By the name of each job that runs: its latest step, wall_s, return and steps per second."""

    def stop(self, at_once: bool = False) -> None:
        """Stops all jobs; they save checkpoints first, unless at once."""


def make_runner(options: Any, logs: Path) -> Any:
    """The runner of `--on`."""
    kind = RUNNERS.find(options.on)
    return kind.from_options(options, logs) if hasattr(kind, "from_options") else kind(options.workers, logs)
