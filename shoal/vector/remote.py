"""Worker processes under another interpreter: `shoal.make(env, 8, python="/path/to/python")`, `--vec.python`.

That interpreter may be an older Python with an older numpy, without torch, Gymnasium and Shoal itself: it needs numpy
alone, and what the envs need. It runs the same `serve.py` over the same shared memory. The env travels as its name and
params (`Recipe`), its spaces come back as JSON, and messages are plain values (`portable.py`): no pickle names a module
that only one side has.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal import space_json
from shoal.distributions import Distribution
from shoal.errors import ConfigError
from shoal.layout import AgentSpaces
from shoal.native import lib
from shoal.vector import start_methods
from shoal.vector.handle import WorkerHandle, limit_blocking

OLDEST_PYTHON, OLDEST_NUMPY = (3, 9), (1, 22)
PROBE_S = 60.0
PROBE = """
import json, sys
facts = {"version": list(sys.version_info[:3])}
try:
    import numpy
    facts["numpy"] = numpy.__version__
except ImportError as error:
    facts["error"] = str(error)
print(json.dumps(facts))
"""
# makes the package importable without its __init__.py, which needs all that Shoal needs
BOOT = """
import sys, types
root, fd = sys.argv[1], int(sys.argv[2])
sys.argv[1:] = []
package = types.ModuleType("shoal")
package.__path__ = [root]
sys.modules["shoal"] = package
from shoal.integrations.remote import main
main(fd)
"""
PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Recipe:
    """How an env is made under another interpreter: its name, its params and its wrappers, all of them plain values."""

    env: str
    params: Mapping[str, Any]
    wrap: Mapping[str, Any]

    @classmethod
    def of(cls, env: str, params: Mapping[str, Any], wrap: Mapping[str, Any]) -> Recipe:
        """A recipe of checked params. ConfigError for one that has no JSON."""
        plain = {}
        for name, value in params.items():
            given = str(value) if isinstance(value, (Distribution, Path)) else value
            given = given.item() if isinstance(given, np.generic) else given
            try:
                plain[name] = json.loads(json.dumps(given))
            except (TypeError, ValueError):
                raise ConfigError(
                    f"{name}={value!r} cannot be sent to another Python interpreter. Params of {env} must be numbers, "
                    "text, lists or dicts of them."
                ) from None
        return cls(env, plain, wrap)


def find_python(given: str | Path) -> str:
    """The interpreter that a user names: a path, a command, or the folder of a virtual environment. Checked once."""
    text = os.path.expanduser(str(given))
    path = text if os.sep in text else shutil.which(text) or text
    if os.path.isdir(path):
        inside = [os.path.join(path, *parts) for parts in (("bin", "python"), ("Scripts", "python.exe"))]
        path = next((file for file in inside if os.path.isfile(file)), path)
    path = os.path.abspath(path)  # not resolved: the link in a virtual environment decides which packages it has
    if not os.path.exists(path):
        raise ConfigError(f"python={str(given)!r}: no such file or command. Give the path of a Python interpreter.")
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        what = "a folder without bin/python" if os.path.isdir(path) else "a file that cannot be executed"
        raise ConfigError(f"python={str(given)!r} is {what}. Give the path of a Python interpreter.")
    problem = _problem(path, os.stat(path).st_mtime)
    if problem:
        raise ConfigError(f"python={str(given)!r}: {problem}")
    return path


@functools.lru_cache(maxsize=64)
def _problem(path: str, changed: float) -> str:
    """Why workers cannot run under an interpreter; empty if they can."""
    try:
        done = subprocess.run(
            [path, "-c", PROBE], capture_output=True, text=True, errors="replace", timeout=PROBE_S, env=environment()
        )
        facts = json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else {}
    except subprocess.TimeoutExpired:
        return f"it did not answer within {PROBE_S:g} s. Is it a Python interpreter?"
    except (OSError, ValueError) as error:
        return f"it is not a Python interpreter that runs here: {error}."
    if not isinstance(facts, dict) or "version" not in facts:
        tail = " ".join(done.stderr.strip().splitlines()[-1:])[:100] or f"it ended with code {done.returncode}"
        return f"it is not a Python interpreter that runs here: {tail}"
    version = tuple(facts["version"])
    if version < OLDEST_PYTHON:
        shown, needed = (".".join(map(str, parts)) for parts in (version, OLDEST_PYTHON))
        return f"it is Python {shown}. Workers need Python {needed} or newer."
    if "numpy" not in facts:
        return f"it has no numpy ({facts['error']}). Install it: {path} -m pip install numpy"
    if tuple(int(part) for part in facts["numpy"].split(".")[:2]) < OLDEST_NUMPY:
        needed = ".".join(map(str, OLDEST_NUMPY))
        return f"its numpy is {facts['numpy']}. Workers need {needed} or newer: {path} -m pip install 'numpy>={needed}'"
    return ""


def environment() -> dict[str, str]:
    """The variables of this process without those that belong to its interpreter."""
    own = ("PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "__PYVENV_LAUNCHER__")
    variables = {name: value for name, value in os.environ.items() if name not in own}
    folders = [
        folder
        for folder in variables.get("PYTHONPATH", "").split(os.pathsep)
        if os.path.basename(folder.rstrip(os.sep)) not in ("site-packages", "dist-packages")
    ]
    variables["PYTHONPATH"] = os.pathsep.join(folders)
    return variables


class RemoteHandle(WorkerHandle):
    """The parent's end of a worker under another interpreter. Its creators are recipes."""

    def __init__(self, index: int, creators: Any, python: str, affinity: int | None, timeout_s: float) -> None:
        super().__init__(index, creators, "spawn", affinity, timeout_s)
        self.python = python

    def start(self) -> None:
        """Starts the process, which then makes its envs."""
        self.pipe, worker_end = multiprocessing.Pipe(duplex=True)
        limit_blocking(self.pipe.fileno(), self.timeout_s)
        fd = worker_end.fileno()
        with start_methods.without_interrupts():
            process = subprocess.Popen(
                [self.python, "-c", BOOT, str(PACKAGE), str(fd)],
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                env=environment(),
            )
        self.process = _Process(process)
        worker_end.close()
        recipe: Any = self.creators[0]
        work = {
            "env": recipe.env,
            "params": recipe.params,
            "wrap": recipe.wrap,
            "count": len(self.creators),
            "core": str(lib.load_core().path),
            "parent": os.getpid(),
            "from_main": threading.get_native_id() == os.getpid(),
            "affinity": self.affinity,
        }
        with contextlib.suppress(OSError):  # a worker that died is reported when its answer is missing
            self.pipe.send_bytes(json.dumps(work).encode())


class _Process:
    """A process of `subprocess` with the attributes of one of `multiprocessing`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self.pid = process, process.pid

    @property
    def exitcode(self) -> int | None:
        """None while it runs; the negative number of the signal that killed it."""
        return self._process.poll()

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()

    def join(self) -> None:
        """Waits for its end."""
        self._process.wait()

    def close(self) -> None:
        """Does nothing: it holds no resources once it has ended."""


def read_spaces(data: Mapping[str, Any]) -> AgentSpaces:
    """The spaces that a worker described (`integrations/remote.py`)."""
    observation, action = (tuple(map(space_json.from_json, data[name])) for name in ("observations", "actions"))
    pick = data["spaces_of"]  # agents with equal spaces share one
    agent_spaces = AgentSpaces(
        tuple(data["agents"]),
        tuple(observation[k] for k in pick),
        tuple(action[k] for k in pick),
        tuple((name, tuple(agents)) for name, agents in data["groups"]),
    )
    rows = [[layout.row_bytes for layout in agent_spaces.obs_layouts]]
    rows.append([layout.row_bytes for layout in agent_spaces.action_layouts])
    if rows != data["row_bytes"]:
        raise ConfigError(f"the other Python stores these spaces in rows of {data['row_bytes']} bytes, not {rows}.")
    return agent_spaces
