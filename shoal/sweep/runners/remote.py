"""What trains a trial on another machine: an actor that runs the local runner there, and copies of the run's folder.

Nothing here imports Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pickle
import platform
import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from shoal.runs import Run, fcntl, folder_name
from shoal.sweep.runners import Job
from shoal.sweep.runners.local import LocalRunner
from shoal.train.run_files import env_name

COPY_S = 30.0  # between two copies of a run that trains
PREFIX = "shoal-trial-"


class Packed(NamedTuple):
    """A job, and what it needs of the driver's process."""

    job: bytes
    path: list[str]
    folder: str  # the working folder; empty: that which Ray has made
    argv: list[str]
    variables: dict[str, str]


class Report(NamedTuple):
    """What an actor says of its trial."""

    host: str
    record: dict[str, Any]  # the latest numbers
    outcome: dict[str, Any] | None = None  # the fields of `Outcome`, at the end
    folder: bytes = b""  # of nodes that do not share the sweep's folder: the run, if it has changed
    log: bytes = b""  # and what training printed
    is_stopped: bool = False


class TrialActor:
    """Trains one job in a process of its node."""

    runner: LocalRunner
    job: Job

    def start(self, work: Packed, marker: str, cpus: int, folder: bytes) -> Report:
        """Starts the job. `folder`: the run as far as it got before."""
        self.is_shared = os.path.exists(marker)
        self._take_surroundings(work)
        self.locks = take_cores(cpus)
        job: Job = pickle.loads(work.job)
        logs = Path(marker).parent
        if not self.is_shared:
            root = make_folder()
            logs, job = root / "logs", dataclasses.replace(job, root=root / "runs")
        self.job, self.copied, self.copied_at, self.log_read = job, b"", time.monotonic(), 0
        self.folder = job.root / folder_name(env_name(job.env)) / job.run_id
        if not self.is_shared and folder:
            unpack_folder(folder, self.folder)
        self.runner, self.logs = LocalRunner(1, logs), logs
        self.runner.start(job)
        return self._report()

    def _take_surroundings(self, work: Packed) -> None:
        sys.path += [part for part in work.path if part not in sys.path and os.path.exists(part or ".")]
        sys.argv = work.argv
        for name, value in work.variables.items():
            os.environ.setdefault(name, value)
        if os.path.isdir(work.folder):
            with contextlib.suppress(OSError):
                os.chdir(work.folder)

    def look(self) -> Report:
        """How far the job is, or how it ended."""
        ended = self.runner.poll()
        if not ended:
            return self._report()
        self.runner.stop(at_once=True)  # the process waits for another job
        report = self._report(outcome=dataclasses.asdict(ended[0][1]), is_last=True)
        self._clean()
        return report

    def stop(self) -> Report:
        """Stops the job, after a checkpoint."""
        self.runner.stop()
        report = self._report(is_last=True, is_stopped=True)
        self._clean()
        return report

    def _report(self, outcome: dict[str, Any] | None = None, is_last: bool = False, is_stopped: bool = False) -> Report:
        record = next(iter(self.runner.progress().values()), {})
        folder = log = b""
        if not self.is_shared:
            folder, log = self._changes(is_last), self._new_log()
        return Report(platform.node(), record, outcome, folder, log, is_stopped)

    def _changes(self, is_last: bool) -> bytes:
        """The run, if it has a checkpoint that the driver does not have."""
        if not is_last:
            newest = "".join(path.name for path in Run(self.folder).checkpoints()[-1:]).encode()
            if newest == self.copied or time.monotonic() - self.copied_at < COPY_S:
                return b""
            self.copied, self.copied_at = newest, time.monotonic()
        return pack_folder(self.folder)

    def _new_log(self) -> bytes:
        with contextlib.suppress(OSError, StopIteration), next(iter(sorted(self.logs.glob("*.log")))).open("rb") as log:
            log.seek(self.log_read)
            text = log.read()
            self.log_read += len(text)
            return text
        return b""

    def _clean(self) -> None:
        if not self.is_shared:
            shutil.rmtree(self.job.root.parent, ignore_errors=True)


def make_folder() -> Path:
    """A temporary folder for a trial. Those of processes that were killed are removed."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def take_cores(count: int) -> list[IO[str]]:
    """Binds this process, and those that it starts, to cores that no other trial of this node has.

    Returns the locks that hold them. Where too few are free, or the system has no locks, all cores stay allowed.
    """
    locks: list[IO[str]] = []
    if fcntl is None or not hasattr(os, "sched_setaffinity"):
        return locks
    folder = Path(tempfile.gettempdir()) / f"shoal-cores-{os.getuid()}"
    cores: list[int] = []
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        for core in sorted(os.sched_getaffinity(0)):
            file = (folder / str(core)).open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                continue
            locks.append(file)
            cores.append(core)
            if len(cores) == count:
                os.sched_setaffinity(0, cores)
                return locks
    for lock in locks:
        lock.close()
    return []


def pack_folder(folder: Path) -> bytes:
    """A folder's files as an archive; empty if there is none."""
    if not folder.is_dir():
        return b""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            with contextlib.suppress(OSError):  # a checkpoint that was removed meanwhile
                if path.is_file():
                    archive.add(path, str(path.relative_to(folder)), recursive=False)
    return packed.getvalue()


def unpack_folder(packed: bytes, folder: Path) -> None:
    """Replaces a folder by an archive's files. A kill leaves the old files or the new ones (`put_back`)."""
    new, old = _beside(folder)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(new, **safely)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def put_back(folder: Path) -> None:
    """Repairs a folder whose replacement was broken off."""
    new, old = _beside(folder)
    if old.is_dir() and not folder.exists():
        old.rename(folder)
    for path in (new, old):
        shutil.rmtree(path, ignore_errors=True)


def _beside(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
