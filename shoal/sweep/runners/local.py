"""Trains trials in processes of this machine, each pinned to cores of its own.

On a CPU a process trains one trial after the other, which saves the import of torch; a failure replaces it. On a GPU
every trial has a fresh one, so that no memory of the last trial remains.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle

from shoal.runs import folder_name
from shoal.sweep.runners import Job, Outcome
from shoal.train.envs import device_of
from shoal.train.many_seeds import SIZE_BYTES, core_shares, pinned
from shoal.train.run_files import env_name

WORKER = ("-m", "shoal.sweep.worker")
CRASHES = ("SIGSEGV", "SIGFPE", "SIGILL", "SIGABRT")  # by the program's own fault
PATIENCE_S = 60.0  # for processes that save a checkpoint


class LocalRunner:
    """As many processes as `workers`."""

    def __init__(self, workers: int, logs: Path) -> None:
        self.cores = core_shares(workers, workers, "--workers")
        self.workers: list[Worker | None] = [None] * workers
        self.logs = logs
        logs.mkdir(parents=True, exist_ok=True)

    def free(self) -> int:
        """How many more jobs can be started."""
        return sum(worker is None or worker.job is None for worker in self.workers)

    def start(self, job: Job) -> None:
        """Gives a job to a process that is free."""
        slot = next(k for k, worker in enumerate(self.workers) if worker is None or worker.job is None)
        worker = self.workers[slot]
        if worker is not None and worker.process.poll() is not None:  # it died while it was free
            worker.close()
            worker = None
        if worker is None:
            worker = self.workers[slot] = Worker(self.cores[slot], self.logs / f"worker-{os.getpid()}-{slot}.log")
        worker.give(job)

    def poll(self) -> list[tuple[Job, Outcome]]:
        """The jobs that have ended."""
        ended = []
        for slot, worker in enumerate(self.workers):
            if worker is None or worker.job is None:
                continue
            outcome = worker.outcome()
            if outcome is None:
                continue
            job = worker.job
            worker.job = None
            if outcome.kind != "finished" or device_of(job.options) != "cpu":
                worker.close()
                self.workers[slot] = None
            ended.append((job, outcome))
        return ended

    def progress(self) -> dict[str, dict[str, Any]]:
        """The latest record of every job that runs."""
        return {worker.job.name: worker.follow() for worker in self.workers if worker is not None and worker.job}

    def stop(self, at_once: bool = False) -> None:
        """Stops all processes; those that train save a checkpoint first."""
        alive = [worker for worker in self.workers if worker is not None]
        for worker in alive:
            worker.process.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        for worker in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.1, deadline - time.monotonic()))
            worker.close()
        self.workers = [None] * len(self.workers)


class Worker:
    """A process that trains jobs, seen from the parent."""

    def __init__(self, cores: list[int], log: Path) -> None:
        self.job: Job | None = None
        self.log, self.answer = log, b""
        self.record: dict[str, Any] = {}
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        with log.open("ab") as errors, pinned(cores):
            self.process = subprocess.Popen(
                [sys.executable, *WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C reaches the parent only
            )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def give(self, job: Job) -> None:
        """Sends a job."""
        self.job, self.answer = job, b""
        self.send(job)
        self.look_at(job)

    def look_at(self, job: Job) -> None:
        """Follows the metrics of a job."""
        self.record, self.read_to = {}, 0
        self.metrics = job.root / folder_name(env_name(job.env)) / job.run_id / "metrics.jsonl"

    def send(self, job: Job, is_queued: bool = False) -> None:
        """Writes a job into the process's pipe."""
        request = {"env": job.env, "options": job.options, "root": str(job.root), "run_id": job.run_id}
        request |= {"callbacks": job.callbacks, "log": str(self.log), "argv": sys.argv, "attempt": job.attempt}
        request |= {"name": job.name, "shape": job.shape} if is_queued else {}
        payload = cloudpickle.dumps(request)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died: `outcome` reports it
            self.process.stdin.write(len(payload).to_bytes(SIZE_BYTES, "little") + payload)
            self.process.stdin.flush()

    def outcome(self) -> Outcome | None:
        """How the job ended; None while it runs."""
        assert self.process.stdout is not None
        code = self.process.poll()  # before the answer is read: it may answer and then end
        with contextlib.suppress(BlockingIOError):
            self.answer += self.process.stdout.read() or b""
        if self.answer.endswith(b"\n"):
            return Outcome(**json.loads(self.answer.splitlines()[-1]))
        return None if code is None else outcome_of(code, self.log, self.follow().get("step"))

    def follow(self) -> dict[str, Any]:
        """The latest numbers of metrics.jsonl."""
        with contextlib.suppress(OSError), self.metrics.open("rb") as file:
            file.seek(self.read_to)
            text = file.read()
            complete = text.rfind(b"\n") + 1
            self.read_to += complete
            for line in text[:complete].splitlines():
                with contextlib.suppress(ValueError):
                    record = json.loads(line)
                    self.record |= {key: record[key] for key in ("step", "wall_s", "sps") if key in record}
                    if record.get("episode/return") is not None:
                        self.record["return"] = record["episode/return"]
        return self.record

    def close(self) -> None:
        """Ends the process."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def outcome_of(code: int, log: Path, step: int | None) -> Outcome:
    """How a job ended whose process ended without an answer."""
    if code >= 0:
        return Outcome("lost", f"its process ended with code {code}: see {log}")
    name = signal.Signals(-code).name
    return Outcome("failed" if name in CRASHES else "lost", f"its process was ended by {name}", step)


RUNNER = LocalRunner
