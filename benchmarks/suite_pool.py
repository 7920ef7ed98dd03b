"""The processes of the suite: tasks one after the other on each, with a share of the cores, until all are done.

A task that raises is tried once more in a new process: after an error, CUDA cannot be used any more in the old one. So
is a task whose process dies. With MPS, one client's fault on the GPU ends the work of all of them.

Tasks of a group, such as the seeds of one env, need the same compiled kernels. While the first of them compiles, other
groups come first, so that nothing is compiled twice at the same time; how long it took is what the others are taken to
need.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

TRIES = 2
MPS = "nvidia-cuda-mps-control"
UNKNOWN_S = 60.0  # what a task without a known time is taken to need
COMPILING_S = 40.0  # after which the first task of a group is taken to have compiled its kernels


@dataclass(frozen=True)
class Task:
    """One call of the work."""

    name: Any
    arguments: tuple[Any, ...]
    seconds: float  # expected; infinite: unknown
    tries: int = 0
    group: str = ""  # tasks of a group use the same kernels; empty: of its own


class Queue:
    """Tasks that wait, in their order, and what is known of their groups."""

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks = list(tasks)
        self.began: dict[str, float] = {}  # when the first task of a group began
        self.took: dict[str, float] = {}  # the longest time of those that ended

    def expected_s(self, task: Task) -> float:
        """What a task is taken to need."""
        return self.took.get(task.group, task.seconds if task.seconds < float("inf") else UNKNOWN_S)

    def is_compiling(self, group: str) -> bool:
        """Whether the first task of a group may still compile kernels."""
        return group not in self.took and time.perf_counter() - self.began.get(group, -COMPILING_S) < COMPILING_S

    def next(self, left_s: float) -> Task | None:
        """The task to begin, which then waits no more; None if none would end in time."""
        fitting = [task for task in self.tasks if self.expected_s(task) <= left_s]
        task = next((task for task in fitting if not self.is_compiling(task.group)), fitting[0] if fitting else None)
        if task is not None:
            self.tasks.remove(task)
            if task.group:
                self.began.setdefault(task.group, time.perf_counter())
        return task

    def note(self, task: Task, seconds: float) -> None:
        """A task was done."""
        if task.group:
            self.took[task.group] = max(seconds, self.took.get(task.group, 0.0))


class Worker:
    """A process that does one task at a time."""

    def __init__(self, work: Callable[..., Any], cores: list[int]) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.cores = cores
        self.task: Task | None = None
        self.began = 0.0
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(work, theirs, cores), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, task: Task) -> None:
        """Begins a task."""
        self.task, self.began = replace(task, tries=task.tries + 1), time.perf_counter()
        with contextlib.suppress(OSError):  # a process that is gone is seen by take
            self.pipe.send(task.arguments)

    def take(self) -> tuple[bool, Any]:
        """(whether the task was done, its result or why not)."""
        try:
            is_done, result = self.pipe.recv()
            return bool(is_done), result
        except (EOFError, OSError):
            self.process.join(5.0)
            return False, f"its process ended with exit code {self.process.exitcode}"

    def end(self) -> None:
        """Ends the process, whatever it does."""
        self.pipe.close()
        self.process.kill()
        self.process.join()


def serve(work: Callable[..., Any], pipe: Any, cores: list[int]) -> None:
    """What a worker process does."""
    os.sched_setaffinity(0, cores)
    with contextlib.suppress(EOFError, OSError):
        while True:
            arguments = pipe.recv()
            try:
                answer = (True, work(*arguments))
            except Exception:
                answer = (False, traceback.format_exc()[-2000:])
            pipe.send(answer)


def run_all(
    tasks: list[Task], work: Callable[..., Any], jobs: int, limit_s: float = 0.0, *, shared_cores: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Does the tasks in their order, and yields (name, result) as they end; for a failed one, text that says why.

    With `limit_s`, a task that would not end in time is not begun, and what has not ended then is given up. With
    `shared_cores` the processes use all cores, as the system decides: those of a GPU's runs mostly wait.
    """
    began, waiting = time.perf_counter(), Queue(tasks)
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // jobs)
    shares = [cores[job * share : (job + 1) * share] or cores for job in range(min(jobs, len(tasks)))]
    if shared_cores:
        shares = [cores] * len(shares)
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each process; the GPU computes
    workers: list[Worker] = []

    def left_s() -> float:
        return limit_s - (time.perf_counter() - began) if limit_s else float("inf")

    def begin(worker: Worker) -> None:
        task = waiting.next(left_s())
        worker.task = None
        if task is not None:
            worker.give(task)

    try:
        workers += [Worker(work, share) for share in shares]
        for worker in workers:
            begin(worker)
        while busy := [worker for worker in workers if worker.task is not None]:
            ready = wait([worker.pipe for worker in busy], None if not limit_s else max(0.0, left_s()))
            if not ready:
                return
            for worker in (worker for worker in busy if worker.pipe in ready):
                task, (is_done, result) = worker.task, worker.take()
                assert task is not None
                if not is_done:
                    worker.end()
                    workers[workers.index(worker)] = worker = Worker(work, worker.cores)
                    if task.tries < TRIES:
                        waiting.tasks.append(task)
                else:
                    waiting.note(task, time.perf_counter() - worker.began)
                begin(worker)
                yield task.name, result
            for worker in workers:  # those that found nothing to do: a failed task may be there again
                if worker.task is None and waiting.tasks:
                    begin(worker)
    finally:
        for worker in workers:
            worker.end()


def start_mps(log: Path) -> bool:
    """Starts MPS in the background. Returns whether it runs."""
    # its output goes to a file: the end of a pipe would come with the end of the process in the background
    with log.open("wb") as file, contextlib.suppress(OSError, subprocess.TimeoutExpired):
        code = subprocess.run([MPS, "-d"], stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=20).returncode
        # it also fails where that of an earlier suite, which was cut off, still runs: that one serves as well
        return not code or b"already running" in log.read_bytes()
    return False


@contextlib.contextmanager
def mps(is_wanted: bool) -> Iterator[bool]:
    """NVIDIA's MPS for the processes that are started meanwhile. Yields whether it runs."""
    if not is_wanted or os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):  # the caller's own
        yield is_wanted
        return
    folder = Path(tempfile.gettempdir()) / f"shoal-mps-{os.getuid()}"
    names = {"CUDA_MPS_PIPE_DIRECTORY": folder / "pipe", "CUDA_MPS_LOG_DIRECTORY": folder / "log"}
    for name, path in names.items():
        path.mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(path)
    try:
        is_on = start_mps(folder / "start.txt")
        if not is_on:
            for name in names:
                os.environ.pop(name)
        try:
            yield is_on
        finally:
            if is_on:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    subprocess.run(
                        [MPS], input=b"quit\n", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20
                    )
    finally:
        for name in names:
            os.environ.pop(name, None)
