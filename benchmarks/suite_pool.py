"""The processes of the suite: tasks one after the other on each, with a share of the cores, until all are done.

A task that raises is tried once more in a new process: after an error, CUDA cannot be used any more in the old one. So
is a task whose process dies. With MPS, one client's fault on the GPU ends the work of all of them.
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


@dataclass(frozen=True)
class Task:
    """One call of the work."""

    name: Any
    arguments: tuple[Any, ...]
    seconds: float  # expected; infinite: unknown
    tries: int = 0

    def fits(self, left_s: float) -> bool:
        """Whether it would end in time."""
        return (self.seconds if self.seconds < float("inf") else UNKNOWN_S) <= left_s


class Worker:
    """A process that does one task at a time."""

    def __init__(self, work: Callable[..., Any], cores: list[int]) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.cores = cores
        self.task: Task | None = None
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(work, theirs, cores), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, task: Task) -> None:
        """Begins a task."""
        self.task = replace(task, tries=task.tries + 1)
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


def run_all(tasks: list[Task], work: Callable[..., Any], jobs: int, limit_s: float = 0.0) -> Iterator[tuple[Any, Any]]:
    """Does the tasks in their order, and yields (name, result) as they end; for a failed one, text that says why.

    With `limit_s`, a task that would not end in time is not begun, and what has not ended then is given up.
    """
    began, waiting = time.perf_counter(), list(tasks)
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // jobs)
    shares = [cores[job * share : (job + 1) * share] or cores for job in range(min(jobs, len(tasks)))]
    workers: list[Worker] = []

    def left_s() -> float:
        return limit_s - (time.perf_counter() - began) if limit_s else float("inf")

    def begin(worker: Worker) -> None:
        task = next((task for task in waiting if task.fits(left_s())), None)
        worker.task = None
        if task is not None:
            waiting.remove(task)
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
                        waiting.append(task)
                begin(worker)
                yield task.name, result
            for worker in workers:  # those that found nothing to do: a failed task may be there again
                if worker.task is None and waiting:
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
