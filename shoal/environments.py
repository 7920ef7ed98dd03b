"""Python environments of frameworks whose pins conflict with Shoal's: `shoal env add griddly`.

Each is a virtual environment in the data folder: $SHOAL_DATA_DIR, or shoal/ in the user's data folder. The name of its
folder holds a hash of what is installed, and its file READY is written last, after an env was made and stepped there:
one without it was interrupted, is never used, and is made anew by the next `add`. Nothing else is written: the
environment that Shoal itself runs in stays as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError

READY, LOG = "ready.json", "install.log"
MAY_TAKE_S = 3600  # for one command of an installation
PLACES = ("~/.pyenv/versions/*/bin/python", "~/.local/share/uv/python/*/bin/python3", "/usr/bin/python3.*")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """What the environment of a framework holds."""

    name: str
    commands: tuple[str, ...]  # pip's, such as "pip install griddly==1.6.7"
    python: str = ""  # the versions that it runs on, such as ">=3.9,<3.11"; empty: any

    @property
    def digest(self) -> str:
        """A hash of all of it: with other pins the environment is another."""
        return hashlib.sha256(json.dumps([self.commands, self.python]).encode()).hexdigest()[:8]

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        return data_folder() / f"{self.name}-{self.digest}"


def data_folder() -> Path:
    """The folder of all environments: envs/ in $SHOAL_DATA_DIR, or in shoal/ of the user's data folder."""
    if chosen := os.environ.get("SHOAL_DATA_DIR"):
        return Path(chosen).expanduser().resolve() / "envs"
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "shoal" / "envs"


def python_of(recipe: Recipe) -> str | None:
    """The interpreter of a framework's environment; None if there is none that is complete."""
    python = recipe.folder / "bin" / "python"
    return str(python) if (recipe.folder / READY).is_file() and python.exists() else None


def facts_of(folder: Path) -> dict[str, Any]:
    """What is known of an environment: {} if it is not complete."""
    try:
        facts: dict[str, Any] = json.loads((folder / READY).read_text())
    except (OSError, ValueError):
        return {}
    return facts


def existing() -> list[Path]:
    """The folders of all environments, complete or not."""
    root = data_folder()
    folders = [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    return sorted(path for path in folders if re.fullmatch(r"[a-z]\w*-[0-9a-f]{8}", path.name))


def add(recipe: Recipe, verify: Callable[[str], str], say: Say, python: str | None = None) -> Path:
    """Makes an environment, unless it is there. `verify(python)` makes an env in it and says what it saw."""
    for command in recipe.commands:
        _arguments(command)  # a wrong command raises before any work
    if facts_of(recipe.folder) and python is None:
        say(f"{recipe.name} is there: {recipe.folder}")
        return recipe.folder
    base = _interpreter(recipe, python)
    with _lock(recipe.name, say) as lock:
        if facts_of(recipe.folder) and python is None:  # another process has just made it
            return recipe.folder
        _make(recipe, base, verify, say, lock)
        for old in existing():
            if old.name.rpartition("-")[0] == recipe.name and old != recipe.folder:
                say(f"removing {old}, which has other versions")
                _delete(old)
    return recipe.folder


def _make(recipe: Recipe, base: str, verify: Callable[[str], str], say: Say, lock: int) -> None:
    folder, began = recipe.folder, time.monotonic()
    if folder.exists():
        say(f"removing {folder}{'' if facts_of(folder) else ', which was not complete'}")
        _delete(folder)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {folder.parent}: {error.strerror}. Set SHOAL_DATA_DIR to a folder that you may write to."
        ) from None
    try:
        inner = str(folder / "bin" / "python")
        commands = [[base, "-m", "venv", str(folder)], *([inner, "-m", *_arguments(line)] for line in recipe.commands)]
        with (folder / LOG).open("w") as log:
            for command, shown in zip(commands, ("a virtual environment with " + base, *recipe.commands)):
                say(shown)
                _run(command, log, recipe, lock)
        say("making an env and stepping it")
        seen = verify(inner)
        version = subprocess.run([inner, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        size = sum(path.lstat().st_size for path in folder.rglob("*"))
        facts = {"name": recipe.name, "commands": recipe.commands, "python": version, "bytes": size, "seen": seen}
        part = folder / f"{READY}.part"
        part.write_text(json.dumps(facts, indent=2))
        part.replace(folder / READY)
    except Exception:
        with contextlib.suppress(OSError):
            _delete(folder)
        raise
    say(f"{seen}; {size / 1e6:,.0f} MB in {time.monotonic() - began:.0f} s: {folder}")


def _arguments(command: str) -> list[str]:
    words = shlex.split(command)
    if words[:2] != ["pip", "install"]:
        raise ConfigError(f"{command!r} is no command of pip.")
    return ["pip", "install", "--no-input", "--disable-pip-version-check", *words[2:]]


def _run(command: Sequence[str], log: Any, recipe: Recipe, lock: int) -> None:
    """Runs one command with its output in the log. One that fails raises, with the last lines.

    It holds the lock, too: if this process is killed, pip goes on, and the next `add` waits until it has ended.
    """
    log.write(f"$ {shlex.join(command)}\n")
    log.flush()
    start = log.tell()
    # not those that point pip or Python at another environment
    own = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    variables = {name: value for name, value in os.environ.items() if name not in own} | {"PYTHONNOUSERSITE": "1"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
            timeout=MAY_TAKE_S,
            pass_fds=(lock,),
        )
        code: Any = done.returncode
    except subprocess.TimeoutExpired:
        code = f"none within {MAY_TAKE_S} s"
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror}.") from None
    if code == 0:
        return
    lines = [line for line in Path(log.name).read_text(errors="replace")[start:].splitlines() if line.strip()]
    hint = ""
    if any("ensurepip" in line for line in lines):
        hint = " Its module venv is not complete: on Debian, apt-get install python3-venv."
    raise ConfigError(
        f"the environment of {recipe.name} could not be made: {shlex.join(command)} ended with code {code}.{hint} "
        "Its last lines:\n" + "\n".join(f"  {line}" for line in lines[-12:])
    )


def _delete(folder: Path) -> None:
    (folder / READY).unlink(missing_ok=True)  # first: from now on it is not complete
    shutil.rmtree(folder)


@contextlib.contextmanager
def _lock(name: str, say: Say) -> Iterator[int]:
    """One process at a time makes or removes an environment. The system frees the lock of a process that dies.

    Yields the lock's file descriptor.
    """
    root = data_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        file = (root / f".{name}.lock").open("w")
    except OSError as error:
        raise ConfigError(
            f"cannot write to {root}: {error.strerror}. Set SHOAL_DATA_DIR to a folder that you may write to."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"another process is at {name}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def remove(name: str, say: Say) -> None:
    """Deletes the environments of a framework."""
    with _lock(name, say):
        found = [folder for folder in existing() if folder.name.rpartition("-")[0] == name]
        if not found:
            there = sorted({folder.name.rpartition("-")[0] for folder in existing()})
            has = f"There are {', '.join(there)}." if there else "There are none."
            raise ConfigError(f"{name} has no environment. {has}")
        for folder in found:
            _delete(folder)
            say(f"removed {folder}")


# ---- which Python ----


def _interpreter(recipe: Recipe, given: str | None) -> str:
    """The interpreter that an environment is made with: the given one, this one, or another that is installed here."""
    if given is not None:
        path = shutil.which(os.path.expanduser(given)) or given
        version = _version(path)
        if version is None:
            raise ConfigError(f"--python {given} is not a Python interpreter that runs here.")
        if not fits(version, recipe.python):
            raise ConfigError(f"--python {given} is Python {_text(version)}; {recipe.name} needs {recipe.python}.")
        return path
    base = getattr(sys, "_base_executable", None) or sys.executable  # not that of a virtual environment
    seen = []
    for path in (base, *_installed()):
        version = _version(path)
        if version is not None and fits(version, recipe.python):
            return path
        seen += [f"{_text(version)} ({path})"] if version is not None else []
    wanted = re.sub(r"[^\d.]", "", recipe.python.split(",")[-1])
    newest = _below(wanted) if "<" in recipe.python.split(",")[-1] else wanted
    raise ConfigError(
        f"{recipe.name} needs Python {recipe.python}, and there is none here. Found: {', '.join(seen[:6])}. Install "
        f"one, for example: uv python install {newest}, pyenv install {newest} or apt-get install python{newest}-venv. "
        f"Then run 'shoal env add {recipe.name}' again, or give it with --python PATH."
    )


def _installed() -> list[str]:
    """Interpreters on the PATH and in the folders of pyenv and uv, newest first."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    found = [str(path) for folder in folders if folder for path in Path(folder).glob("python3.*")]
    for pattern in PLACES:
        root = Path(pattern).expanduser()
        found += [str(path) for path in Path("/").glob(str(root).lstrip("/"))]
    names = [path for path in found if re.search(r"python(3(\.\d+)?)?$", path) and "/shims/" not in path]
    return sorted(dict.fromkeys(names), key=lambda path: _numbers(path), reverse=True)


def _numbers(path: str) -> list[int]:
    match = re.search(r"3\.(\d+)(?:\.(\d+))?", path)
    return [int(part or 0) for part in match.groups()] if match else [0, 0]


def _version(path: str) -> tuple[int, ...] | None:
    try:
        code = "import sys; print(*sys.version_info[:3])"
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=30)
        return tuple(int(word) for word in done.stdout.split()) or None if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def fits(version: tuple[int, ...], wanted: str) -> bool:
    """Whether a version is in a range such as ">=3.9,<3.11".

    >>> fits((3, 10, 13), ">=3.9,<3.11"), fits((3, 11, 2), ">=3.9,<3.11")
    (True, False)
    """
    for operator, number in re.findall(r"(>=|<)\s*([\d.]+)", wanted):
        bound = tuple(int(part) for part in number.split("."))
        if (version >= bound) != (operator == ">="):
            return False
    return True


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _below(version: str) -> str:
    """The version before: 3.10 for 3.11."""
    major, minor = version.split(".")[:2]
    return f"{major}.{int(minor) - 1}"
