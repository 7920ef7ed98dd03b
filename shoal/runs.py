"""A run's folder: where one training run keeps what it was, what it measured and what it learned.

    runs/<env>/<id>/
      config.toml      every option, resolved
      run.json         versions, commit, machine, command
      metrics.jsonl    a line per log interval
      checkpoints/     complete ones are named by their step (shoal/checkpoint.py)
      summary.json     how it ended; absent while it runs, and when it was killed

Knows files and names; knows nothing of torch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from shoal import config
from shoal.errors import ConfigError, did_you_mean

ROOT = Path("runs")


class Run:
    """One run's folder, read when asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id, self.env = folder.name, folder.parent.name

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What run.json says."""
        return _read_json(self.folder / "run.json") or {}

    @cached_property
    def config(self) -> dict[str, Any]:
        """What config.toml says."""
        return config.read_toml(self.folder / "config.toml")

    @property
    def summary(self) -> dict[str, Any] | None:
        """How the run ended; None while it runs, or when it was killed."""
        return _read_json(self.folder / "summary.json")

    @property
    def is_running(self) -> bool:
        """Whether the process that trains is there."""
        if self.summary is not None or (pid := self.facts.get("pid")) is None:
            return False
        began = process_began(pid) if isinstance(pid, int) else None
        # the pid may be another process's by now; in a restarted container it is often our own
        return began is not None and abs(began - float(self.facts.get("pid_began", began))) < 5.0

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl. One that was torn by a kill is left out."""
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
        """The complete ones, oldest first."""
        folder = self.folder / "checkpoints"
        found = folder.iterdir() if folder.is_dir() else ()
        return sorted(path for path in found if re.fullmatch(r"\d{12}", path.name) and (path / "meta.json").is_file())

    @property
    def last(self) -> Path | None:
        """The newest checkpoint."""
        found = self.checkpoints()
        return found[-1] if found else None

    @property
    def best(self) -> Path | None:
        """The checkpoint with the best score so far; the newest where none was scored."""
        name = (_read_json(self.folder / "checkpoints" / "best.json") or {}).get("checkpoint", "")
        return next((path for path in self.checkpoints() if path.name == name), self.last)

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """Writes a JSON file whole or not at all."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(data, indent=1, allow_nan=True)
        write_atomic(path, text.encode())


def create(env: str, root: Path = ROOT) -> Run:
    """A new folder for a run of this env."""
    name = folder_name(env)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(10_000):
        folder = root / name / (stamp if number == 0 else f"{stamp}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot make {folder}: {error.strerror}. Choose another place with --runs.") from None
        return Run(folder)
    raise ConfigError(f"{root / name} has no free name left for {stamp}.")


def folder_name(env: str) -> str:
    """`gymnasium:CartPole-v1` or `./my_env.h` as a folder's name."""
    plain = Path(env).stem if env.endswith(".h") else env
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-.") or "env"


def all_runs(root: Path = ROOT) -> list[Run]:
    """Every run under the folder, newest last."""
    found = [Run(path.parent) for path in root.glob("*/*/run.json")]
    return sorted(found, key=lambda run: (run.facts.get("started", ""), run.id))


def find(text: str | Path, root: Path = ROOT) -> Run:
    """A run by its folder, its id, the name of its env (the newest) or `last`."""
    path = Path(text)
    if (path / "run.json").is_file():
        return Run(path)
    runs = all_runs(root)
    if not runs:
        raise ConfigError(f"no run '{text}': {root}/ holds none yet. 'shoal train cartpole' makes one.")
    if str(text) == "last":
        return runs[-1]
    name = str(text).strip("/").removeprefix(f"{root}/")
    for run in reversed(runs):
        if name in (run.id, f"{run.env}/{run.id}", run.env, folder_name(name) if run.env == folder_name(name) else ""):
            return run
    known = [*(run.id for run in runs), *{run.env for run in runs}]
    raise ConfigError(f"no run '{text}'.{did_you_mean(name, known)} 'shoal runs' lists all {len(runs)}.")


def process_began(pid: int) -> float | None:
    """When a process began, in seconds since 1970; None where there is none."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError, OverflowError):
        return None


def commit() -> str | None:
    """The commit of the working folder, with + where files differ from it; None outside git."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=5)
        if head.returncode:
            return None
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def write_atomic(path: Path, data: bytes) -> None:
    """A file that is there whole or not at all, also after a crash."""
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
