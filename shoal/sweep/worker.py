"""The process that trains trials, one after the other: `python -m shoal.sweep.worker`.

It reads jobs from stdin and answers each with a line of JSON on stdout; what training prints goes to a log. It watches
stdin while it trains: when stdin ends, the parent has died, and this process saves a checkpoint and stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle

from shoal.errors import BuildError, CheckpointError, CompileFailed, ConfigError, EnvCrashed, EnvTimeout, WorkerDied
from shoal.runs import Run, folder_name
from shoal.train.loop import train
from shoal.train.many_seeds import SIZE_BYTES
from shoal.train.run_files import env_name
from shoal.train.signals import Stopped
from shoal.train.swap import TrainerPool

WAIT_S = 60.0  # for another process to leave the run: one whose parent was killed saves a checkpoint first


def main() -> int:
    """Trains jobs until stdin ends, or a signal stops one."""
    answers = os.fdopen(os.dup(1), "w")
    jobs: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(sys.stdin.buffer, jobs), daemon=True).start()

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    pool, waiting = TrainerPool(), _Waiting(jobs)
    while (job := waiting.next()) is not None:
        _print_to(job["log"])
        named = {"name": job["name"]} if "name" in job else {}  # a job of a population
        if named:
            say(named)
        answer = train_job(job, pool if named else None)
        say({**named, **answer})
        if answer["kind"] == "stopped":
            break
        if answer["kind"] != "finished":
            pool.clear()  # the trainer may be broken
    return 0


class _Waiting:
    """The jobs that have arrived. Those of the last job's shape come first: its trainer is used again."""

    def __init__(self, jobs: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        self.jobs, self.shape = jobs, ""
        self.arrived: list[dict[str, Any]] = []

    def next(self) -> dict[str, Any] | None:
        """The next job; None at the end of stdin."""
        while not self.arrived or not self.jobs.empty():
            job = self.jobs.get()
            if job is None:
                return None
            self.arrived.append(job)
        job = next((one for one in self.arrived if one.get("shape", "") == self.shape), self.arrived[0])
        self.arrived.remove(job)
        self.shape = job.get("shape", "")
        return job


def _read_jobs(stdin: BinaryIO, jobs: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    """Passes jobs on. The end of stdin stops this process: the run saves a checkpoint, as after SIGTERM."""
    while size := stdin.read(SIZE_BYTES):
        jobs.put(cloudpickle.loads(stdin.read(int.from_bytes(size, "little"))))  # from our own program
    jobs.put(None)  # if the run ends before it sees the signal
    os.kill(os.getpid(), signal.SIGTERM)


def _print_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def train_job(job: dict[str, Any], pool: TrainerPool | None = None) -> dict[str, Any]:
    """Trains one run, or the rest of it, and returns how it ended: the fields of `Outcome`.

    With a pool it uses the trainer of the last run, if that had the same shape.
    """
    run = Run(Path(job["root"]) / folder_name(env_name(job["env"])) / job["run_id"])
    try:
        _wait_for(run)
        done = finished(run)
        if done is not None:
            return done
        can_resume = bool(run.resumable()) and job["attempt"] <= 2  # later from the start: a checkpoint may be bad
        if not can_resume:
            shutil.rmtree(run.folder, ignore_errors=True)
        sys.argv = job["argv"]
        trained = train(
            job["env"],
            options=job["options"],
            runs_folder=job["root"],
            run_id=None if can_resume else job["run_id"],
            resume=run if can_resume else None,
            callbacks=[*job["options"].callback, *job["callbacks"]],
            console="off",
            pool=pool,
        )
    except Stopped as stop:
        print(stop, flush=True)
        return {"kind": "stopped", "reason": str(stop)}
    except KeyboardInterrupt:
        return {"kind": "stopped", "reason": "interrupted"}
    except Exception as error:
        traceback.print_exc()
        return describe(error, run)
    return finished(trained) or {"kind": "lost", "reason": "it left no summary"}


def finished(run: Run) -> dict[str, Any] | None:
    """How a run ended that needs no more training: it has finished, or failed by its own fault."""
    summary = run.summary or {}
    if summary.get("status") == "finished":
        return {"kind": "finished", "reason": summary.get("reason", "")}
    return None


def describe(error: Exception, run: Run) -> dict[str, Any]:
    """A failure: by the trial's own fault, or the machine's, which is tried again."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    answer: dict[str, Any] = {"kind": "lost" if is_of_machine(error) else "failed", "reason": reason}
    answer["is_config"] = isinstance(error, ConfigError)
    step, seed = (run.summary or {}).get("step"), None
    if isinstance(error, EnvCrashed):
        step, seed = (step if error.step is None else error.step), error.seed
    return {**answer, "step": step, "seed": seed}


def is_of_machine(error: BaseException) -> bool:
    """Whether an error comes from the machine, not from the options: it may not happen again."""
    if isinstance(error, (ConfigError, CompileFailed)):
        return False
    if isinstance(error, (OSError, MemoryError, WorkerDied, EnvTimeout, CheckpointError, BuildError)):
        return True
    return isinstance(error, RuntimeError) and "CUDA error" in str(error)


def _wait_for(run: Run) -> None:
    """Waits while another process trains the run."""
    deadline = time.monotonic() + WAIT_S
    while run.is_running and time.monotonic() < deadline:
        time.sleep(0.1)


if __name__ == "__main__":
    code = 1
    with contextlib.suppress(BrokenPipeError):
        code = main()
    os._exit(code)  # the thread that waits for stdin would hold up the end of the interpreter
