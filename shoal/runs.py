"""A run's folder: the options, metrics and checkpoints of one training run.

    runs/<env>/<id>/
      config.toml      every option, resolved
      run.json         versions, commit, machine, command
      policy.json      the agents, roles and spaces of its policies (shoal/train/policy_file.py)
      metrics.jsonl    a line per log interval
      checkpoints/     named by their step when complete (shoal/checkpoint.py)
      summary.json     how it ended; absent while it runs, and after a kill
      train.lock       locked by the process that trains; names that process

Knows files and names; knows nothing of torch.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import platform
import re
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from shoal import config
from shoal.errors import ConfigError, did_you_mean

fcntl: Any = None
with contextlib.suppress(ImportError):  # Windows has none: the process id in run.json is used instead
    fcntl = importlib.import_module("fcntl")

ROOT = Path("runs")
LOCK = "train.lock"
STATE_FILE = "state.safetensors"  # of a checkpoint that can be resumed (shoal/checkpoint.py)
PATIENCE_S = 0.5  # `shoal runs` holds the lock for a moment while it reads it


class RunFolder:
    """A folder below `runs/ENV/`. Its files are read on demand."""

    facts_file = "run.json"

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.id, self.env = self.folder.name, self.folder.parent.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The contents of the file that says what this is."""
        return _read_json(self.folder / self.facts_file) or {}


class Run(RunFolder):
    """One run."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """The contents of config.toml."""
        return config.read_toml(self.folder / "config.toml")

    @property
    def summary(self) -> dict[str, Any] | None:
        """How the run ended; None while it runs, or if it was killed."""
        return _read_json(self.folder / "summary.json")

    @property
    def is_running(self) -> bool:
        """Whether a process is training this run, on this machine or on another one that shares the folder."""
        held = _is_held(self.folder / LOCK)
        if held is not None:
            return held
        # no lock: a run of an older version, or a file system without locks
        if self.summary is not None or (pid := self.facts.get("pid")) is None:
            return False
        began = process_began(pid) if isinstance(pid, int) else None
        # the pid may now belong to another process; in a restarted container it is often our own
        return began is not None and abs(began - float(self.facts.get("pid_began", began))) < 5.0

    def lock(self) -> RunLock:
        """Claims the run for this process: `with run.lock(): ...`, or `release()` at the end.

        Raises ConfigError if another process is training it.
        """
        return RunLock(self)

    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl. A line that a kill left incomplete is skipped."""
        path = self.folder / "metrics.jsonl"
        lines = []
        for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                lines.append(record)
        return lines

    def checkpoints(self) -> list[Path]:
        """The complete checkpoints, oldest first."""
        folder = self.folder / "checkpoints"
        paths = [path for path in folder.iterdir() if (path / "meta.json").is_file()] if folder.is_dir() else []
        steps = {step: path for path in paths if (step := checkpoint_step(path)) is not None}
        return [steps[step] for step in sorted(steps)]

    def resumable(self) -> list[Path]:
        """The checkpoints with all that a resume needs, oldest first. The best one may have weights alone."""
        return [path for path in self.checkpoints() if (path / STATE_FILE).is_file()]

    @property
    def last(self) -> Path | None:
        """The newest checkpoint."""
        paths = self.checkpoints()
        return paths[-1] if paths else None

    @property
    def best(self) -> Path | None:
        """The checkpoint with the best score; the newest if none was scored."""
        name = (_read_json(self.folder / "checkpoints" / "best.json") or {}).get("checkpoint", "")
        return next((path for path in self.checkpoints() if path.name == name), self.last)

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """Writes a JSON file, completely or not at all."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(data, indent=1, allow_nan=True)
        write_atomic(path, text.encode())


class RunLock:
    """A process's claim on a run, until `release`, the end of a `with` block, or the end of the process.

    It is a lock of the operating system (flock): a kill leaves no stale lock, a reused process id is not mistaken for
    the trainer, and other hosts and containers that share the folder see it.
    """

    def __init__(self, run: Run) -> None:
        self.path = run.folder / LOCK
        self._file: IO[str] | None = None
        try:
            file = self.path.open("a+")
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}.") from None
        deadline = time.monotonic() + PATIENCE_S
        while not _try_lock(file, shared=False):
            if time.monotonic() >= deadline:
                owner = _read_json(self.path) or {}
                file.close()
                raise ConfigError(_being_trained(run, owner))
            time.sleep(0.02)
        owner = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%dT%H:%M:%S")}
        file.truncate(0)
        file.write(json.dumps(owner) + "\n")
        file.flush()
        self._file = file
        _locks.add(self)

    def release(self) -> None:
        """Releases the run. A second call does nothing."""
        if self._file is not None:
            if fcntl is not None:
                with contextlib.suppress(OSError):
                    fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
            self._file = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_locks: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_locks() -> None:
    """In a forked child: a worker that outlives a killed trainer must not keep the run locked."""
    for lock in list(_locks):
        if lock._file is not None:
            lock._file.close()  # without LOCK_UN, which would release the parent's lock
            lock._file = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def _try_lock(file: IO[str], shared: bool) -> bool:
    """Tries to take the lock. True also on a file system without locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_held(path: Path) -> bool | None:
    """Whether a process holds the lock; None if unknown."""
    if fcntl is None:
        return None
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _being_trained(run: Run, owner: Mapping[str, Any]) -> str:
    pid, host, since = (owner.get(name) for name in ("pid", "host", "since"))
    where = f" on {host}" if host and host != platform.node() else ""
    process = f"process {pid}{where} (since {since})" if pid else "another process"
    return f"run {run.id} is being trained by {process}. Wait, stop it, or start a new run."


def checkpoint_name(step: int) -> str:
    """The name of a checkpoint's folder: its step in at least 12 digits."""
    return f"{step:012d}"


def checkpoint_step(path: str | Path) -> int | None:
    """The step in the name of a checkpoint's folder; None if the name is not that of a checkpoint."""
    name = Path(path).name
    if not re.fullmatch(r"[0-9]{12,19}", name) or checkpoint_name(int(name)) != name:
        return None
    return int(name)


def choose_checkpoint(run: Run, which: str, flag: str) -> Path:
    """The checkpoint that `best`, `last` or a step names. `flag` is the user's word for it, for errors."""
    paths = run.checkpoints()
    if not paths:
        raise ConfigError(
            f"{run.folder} has no checkpoint. Training saves one every --save.every-s seconds and at the end."
        )
    if which in ("best", "last"):
        chosen = run.best if which == "best" else run.last
        return chosen or paths[-1]
    digits = which.replace("_", "").replace(",", "")
    steps = [int(path.name) for path in paths]
    if not (digits.isascii() and digits.isdecimal()):
        raise ConfigError(f"{flag} must be best, last or a step.")
    if int(digits) not in steps:
        near = min(steps, key=lambda step: abs(step - int(digits)))
        count = f"{len(steps)} checkpoint{'s' * (len(steps) > 1)}"
        raise ConfigError(
            f"{flag}: {run.folder} has no checkpoint of that step. The nearest is {near}; there are {count} from "
            f"{steps[0]} to {steps[-1]}."
        )
    return paths[steps.index(int(digits))]


NOT_IDS = {"last": "--resume last is the newest one", "auto": "--resume auto is the newest unfinished one"}


def create(env: str, root: str | Path = ROOT, id: str | None = None) -> Run:
    """Makes a new folder for a run of this env, named `id` or by the time."""
    root = Path(root)
    if id is not None:
        check_name("run_id", id)
        if id in NOT_IDS:
            raise ConfigError(f"run_id '{id}' is a word that names other runs: {NOT_IDS[id]}. Choose another name.")
    # of another env, in the same second: ids name runs
    is_taken = (lambda name: False) if id is not None else (lambda name: any(root.glob(f"*/{name}")))
    return Run(make_folder(root / folder_name(env), id or timestamp(), is_taken=is_taken))


def check_name(option: str, name: str) -> None:
    """Raises unless a name that the user chose for a folder is a plain one."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise ConfigError(f"{option} {name!r} must consist of letters, digits, dots, dashes and underscores.")


def timestamp() -> str:
    """The name of a folder by the time."""
    return time.strftime("%Y%m%d-%H%M%S")


def make_folder(
    parent: Path, stamp: str, form: str = "{}", is_taken: Callable[[str], bool] = lambda name: False
) -> Path:
    """Makes a new folder named `stamp`, or `stamp`-1, `stamp`-2, … if that exists. `form` has the stamp in its {}."""
    for number in range(10_000):
        folder = parent / form.format(stamp if number == 0 else f"{stamp}-{number}")
        if is_taken(folder.name):
            continue
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot make {folder}: {error.strerror}. Choose another folder with --runs.") from None
        return folder
    raise ConfigError(f"{parent} has 10,000 folders of {stamp}. Choose another folder with --runs.")


def folder_name(env: str) -> str:
    """`gymnasium:CartPole-v1`, `./my_env.h` or `package.module:Env` as a folder's name.

    >>> folder_name("gymnasium:CartPole-v1"), folder_name("/home/me/mine.py:Env"), folder_name("package.mine:Env")
    ('gymnasium-CartPole-v1', 'mine-Env', 'mine-Env')
    """
    plain = Path(env).stem if env.endswith(".h") else env
    plain = re.sub(r"[^:]*?([^/:]+?)(?:/__init__)?\.py:", r"\1:", plain)  # the name of a file: without its folder
    plain = re.sub(r"(^|:)(?:\w+\.)+(\w+):", r"\1\2:", plain)  # of a module: without its package
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-.") or "env"


def all_runs(root: str | Path = ROOT) -> list[Run]:
    """Every run under the folder, newest last."""
    runs = [Run(path.parent) for path in Path(root).glob("*/*/run.json")]
    return sorted(runs, key=_age)


def _age(run: Run) -> tuple[str, float, str]:
    """Sorts runs by when they started. Runs of older versions know the second only."""
    began = run.facts.get("started_s")
    return str(run.facts.get("started", "")), began if isinstance(began, float) else 0.0, run.id


def find(text: str | Path, root: str | Path = ROOT) -> Run:
    """A run by its folder, its id, the name of its env (the newest) or `last`."""
    path = Path(text)
    if (path / "run.json").is_file():
        return Run(path)
    runs = all_runs(root)
    if not runs:
        raise ConfigError(f"no run '{text}': {root}/ has no runs. Start one: shoal train cartpole")
    if str(text) == "last":
        return runs[-1]
    name = str(text).strip("/").removeprefix(f"{root}/")
    for run in reversed(runs):
        if name in (run.id, f"{run.env}/{run.id}") or run.env in (name, folder_name(str(text))):
            return run
    for folder in (path, *Path(root).glob("*/*-seeds")):
        if (folder / "seeds.json").is_file() and (folder == path or name in (folder.name, "/".join(folder.parts[-2:]))):
            seeds = [run.id for run in runs if run.id.rpartition("-seed")[0] == folder.name.removesuffix("-seeds")]
            which = f"Name one of its runs: {', '.join(seeds)}" if seeds else "Its runs are deleted"
            raise ConfigError(f"'{text}' is a group of seeds, not one run. {which}.")
    known = [*(run.id for run in runs), *{run.env for run in runs}]
    raise ConfigError(f"no run '{text}' in {root}/.{did_you_mean(name, known)} 'shoal runs' lists the runs.")


def find_unfinished(env: str, root: str | Path = ROOT) -> Run | None:
    """The newest run of an env that has checkpoints, has not finished and is not being trained."""
    name = folder_name(env)
    for run in reversed(all_runs(root)):
        is_finished = (run.summary or {}).get("status") == "finished"
        if run.env == name and not is_finished and run.resumable() and not run.is_running:
            return run
    return None


def begun(folder: str | Path) -> Run | None:
    """The run of a folder, if it can be continued: it has a checkpoint and has not finished."""
    run = Run(folder)
    is_finished = (run.summary or {}).get("status") == "finished"
    return run if run.resumable() and not is_finished else None


def process_began(pid: int) -> float | None:
    """When a process started, in seconds since 1970; None if it does not exist."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError, OverflowError):
        return None


@functools.cache  # of runs that one process trains one after the other
def commit() -> str | None:
    """The commit of the working folder, with a + if files differ from it; None outside git."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=5)
        if head.returncode:
            return None
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a file completely or not at all, even if the machine crashes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
