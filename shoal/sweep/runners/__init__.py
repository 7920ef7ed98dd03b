"""Runners that train trials: one file each. A file assigns RUNNER, a class with the methods of `Runner`.

It is made with the number of workers and a folder for logs; with `from_options` it takes all options of the sweep, and
its `check(options)` raises ConfigError before a sweep starts.

A runner that trains trials of equal shape as one batch (a population on one GPU) takes several jobs by `start` and
reports each by `poll`; `Job.shape` is equal for trials that fit into one batch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shoal.plugins import Plugins

RUNNERS = Plugins("runner", package="shoal.sweep.runners", marker="RUNNER")

# options that trials of one batch may differ in: everything else decides shapes
FREE = "learning_rate gamma gae_lambda entropy_coef clip value_coef max_grad_norm value_clip".split()


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
        """Equal for runs that could be trained as one batch: all options but FREE ones and the seed."""
        train = dataclasses.replace(
            self.options.train, **{name: 0.0 for name in FREE if hasattr(self.options.train, name)}
        )
        return repr(dataclasses.replace(self.options, train=train, seed=0))


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
