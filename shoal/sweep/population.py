"""Trains the trials of a population: each process keeps one trainer and starts it again for every trial of its shape.

A population is a batch of trials that are chosen before any of them has a result. They wait in the queue of a process,
which trains them one after the other without imports, compiling or capturing in between (shoal/train/swap.py). Each is
an ordinary run. What a killed process had in its queue goes to the next one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import ConfigError
from shoal.sweep.runners import Job, Outcome
from shoal.sweep.runners.local import LocalRunner, Worker, outcome_of
from shoal.sweep.space import Space
from shoal.train import swap
from shoal.train.options import Options

if TYPE_CHECKING:
    from shoal.sweep.store import Trial  # it imports Optuna


def check(env: Any, base: Options, population: int, on: str) -> None:
    """Raises where the trials of a sweep cannot be populations, before anything starts."""
    if not population:
        return
    if on != "local":
        raise ConfigError(f"--population {population} trains on this machine, not --on {on}. Leave one of them out.")
    if reason := swap.not_shared(env, base):
        raise ConfigError(f"--population {population} does not support {reason}. Leave it out: --workers 2 works.")


def of_equal_shape(space: Space, given: Sequence[Mapping[str, Any]], population: int) -> Space:
    """The ranges of a population: those that keep the shape of a run, and those that the user has given.

    A range of `horizon` or `nn.hidden` gives trials that each build a trainer. Where only the env's file or the
    algorithm declares one, it is left out.
    """
    if not population:
        return space
    tables = [(table, part) for layer in given for table, part in layer.items() if isinstance(part, Mapping)]
    own = {f"{table}.{name}" for table, part in tables for name in part}
    free = {f"train.{name}" for name in swap.FREE}
    kept = {name: part for name, part in space.ranges.items() if name in free or name in own}
    if not kept:
        raise ConfigError(
            f"--population {population}: {', '.join(space)} decide the shape of a run, so no trial could use the "
            "trainer of another. Add a range: --sweep.train.learning-rate 'log(1e-4, 1e-2)'."
        )
    return Space(kept)


def first_of_batch(number: int, population: int) -> int:
    """The first trial of the batch that a trial belongs to."""
    return number // population * population if population else number


def as_known(trials: Sequence[Trial], number: int, population: int) -> list[Trial]:
    """The trials as the sampler sees them when it chooses trial `number`: its own batch has no results yet.

    So the trials of a batch do not depend on which of them end first, nor on when a sweep is killed.
    """
    first = first_of_batch(number, population)
    unknown: dict[str, Any] = {"status": "running", "score": None, "seconds": None, "curve": [], "steps": 0}
    return [trial if trial.number < first else dataclasses.replace(trial, **unknown) for trial in trials]


class PopulationRunner(LocalRunner):
    """Processes with queues, which hold `population` jobs in all."""

    def __init__(self, workers: int, logs: Path, population: int) -> None:
        super().__init__(workers, logs)
        self.population = population
        self.waiting: list[Job] = []  # of processes that died

    def free(self) -> int:
        """How many more jobs can be started."""
        return self.population - len(self.waiting) - sum(len(worker.jobs) for worker in self._alive())

    def _alive(self) -> list[QueueWorker]:
        return [worker for worker in self.workers if isinstance(worker, QueueWorker)]

    def start(self, job: Job) -> None:
        """Puts a job into the shortest queue; into the longest of its shape, if that is not longer by two."""

        def length(slot: int) -> tuple[int, int]:
            worker = self.workers[slot]
            jobs = worker.jobs if isinstance(worker, QueueWorker) else []
            return (max(0, len(jobs) - 2 * any(one.shape == job.shape for one in jobs)), slot)

        slot = min(range(len(self.workers)), key=length)
        worker = self.workers[slot]
        if worker is None:
            log = self.logs / f"worker-{os.getpid()}-{slot}.log"
            worker = self.workers[slot] = QueueWorker(self.cores[slot], log)
        worker.give(job)

    def poll(self) -> list[tuple[Job, Outcome]]:
        """The jobs that have ended. The queue of a process that died goes to a new one, less the job it trained."""
        ended: list[tuple[Job, Outcome]] = []
        for slot, worker in enumerate(self.workers):
            if not isinstance(worker, QueueWorker):
                continue
            code = worker.process.poll()  # before the answers are read: it may answer and then end
            ended += worker.answers()
            if code is None:
                continue
            culprit = worker.current or next(iter(worker.jobs), None)
            if culprit is not None and worker.jobs:
                ended.append((culprit, outcome_of(code, worker.log, worker.follow().get("step"))))
            self.waiting += [job for job in worker.jobs if job is not culprit]
            worker.close()
            self.workers[slot] = None
        for job in self.waiting:
            self.start(job)
        self.waiting = []
        return ended

    def progress(self) -> dict[str, dict[str, Any]]:
        """The latest record of the jobs that run now."""
        return {worker.current.name: worker.follow() for worker in self._alive() if worker.current is not None}


class QueueWorker(Worker):
    """A process with a queue of jobs, seen from the parent. It says which job it has begun, and how each ended."""

    def __init__(self, cores: list[int], log: Path) -> None:
        super().__init__(cores, log)
        self.jobs: list[Job] = []
        self.current: Job | None = None

    def give(self, job: Job) -> None:
        """Adds a job to the queue."""
        self.jobs.append(job)
        self.send(job, is_queued=True)

    def answers(self) -> list[tuple[Job, Outcome]]:
        """The jobs that have ended since the last call."""
        assert self.process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            self.answer += self.process.stdout.read() or b""
        lines = self.answer.split(b"\n")
        self.answer = lines.pop()  # an incomplete line
        ended = []
        for line in lines:
            answer = json.loads(line)
            job = next(one for one in self.jobs if one.name == answer["name"])
            if "kind" not in answer:
                self.current = job
                self.look_at(job)
                continue
            del answer["name"]
            self.jobs.remove(job)
            self.current = None
            ended.append((job, Outcome(**answer)))
        return ended
