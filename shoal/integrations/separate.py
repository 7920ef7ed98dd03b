"""Separate: a framework whose pins conflict with Shoal's, so that its envs run in a Python environment of their own.

`shoal env add NAME` makes the environment (shoal/environments.py). `shoal.make` then steps its envs in workers under
that interpreter (vector/remote.py), where `make` and `listed` are called: a file imports its library inside them alone,
and nothing that only the trainer has.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from typing import Any

import numpy as np

from shoal import environments
from shoal.errors import ConfigError
from shoal.integrations.framework import Framework

ASK_S = 120.0
ASK = """
import json, sys, types
package = types.ModuleType("shoal")
package.__path__ = [sys.argv[1]]
sys.modules["shoal"] = package
from shoal.integrations.framework import framework
print(json.dumps(framework(sys.argv[2]).listed()))
"""


class Separate(Framework):
    """A framework with an environment of its own. Subclasses define `listed` in place of `names`."""

    is_separate = True

    @property
    def recipe(self) -> environments.Recipe:
        """What its environment holds."""
        return environments.Recipe(self.prefix, tuple(self.install), self.python)

    @property
    def is_here(self) -> bool:
        """Whether this interpreter itself has what the envs need, as that of its environment has."""
        return not super().problem()

    @property
    def own_python(self) -> str | None:
        """The interpreter that its envs run under; None: this one."""
        return None if self.is_here else environments.python_of(self.recipe)

    def problem(self) -> str:
        """Why no env can be made, and the command that helps; empty if this interpreter or its own can make them."""
        missing = super().problem()
        if not missing or environments.python_of(self.recipe):
            return self.missing_program()
        old = [folder for folder in environments.existing() if folder.name.rpartition("-")[0] == self.prefix]
        if any(environments.facts_of(folder) for folder in old):
            return f"its environment has other versions than this Shoal needs. Make it anew: {self.advice}"
        if old:
            return f"its environment is not complete: 'shoal env add' was interrupted. Make it anew: {self.advice}"
        return f"it runs in a Python environment of its own, which is not there yet. Make it: {self.advice}"

    def make_here(self, name: str, **params: Any) -> Any:
        """One env, or a stand-in for one that a worker under its interpreter holds."""
        if self.is_here:
            return self.make(name, **params)
        from shoal.integrations.elsewhere import make_one

        return make_one(f"{self.prefix}:{name}", **params)

    def missing_program(self) -> str:
        """The program that is not on the PATH, and the command that installs it; empty if none is missing."""
        for program, command in self.programs.items():
            if shutil.which(program) is None:
                return f"the program {program} is not on the PATH. Install it: {command}"
        return ""

    def listed(self) -> list[str]:
        """The envs, where the framework is installed."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """The envs that are installed, here or in its environment."""
        if self.is_here:
            return self.listed()
        python = environments.python_of(self.recipe)
        if python is None:
            self.check()
            return []
        return list(_ask(self.prefix, python))


@functools.cache
def _ask(prefix: str, python: str) -> tuple[str, ...]:
    """The names of a framework's envs, listed by the interpreter of its environment."""
    from shoal.vector.remote import PACKAGE, environment

    try:
        done = subprocess.run(
            [python, "-c", ASK, str(PACKAGE), prefix], capture_output=True, text=True, timeout=ASK_S, env=environment()
        )
        return tuple(json.loads(done.stdout.strip().splitlines()[-1]))
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        tail = (done.stderr.strip().splitlines() or [""])[-1] if "done" in locals() else str(error)
        raise ConfigError(
            f"{prefix}: {python} cannot list its envs: {tail[:200]}. Make the environment anew: shoal env remove "
            f"{prefix} && shoal env add {prefix}"
        ) from None


# ---- spaces for envs that have none of their own: the other Python may have neither Gymnasium nor gym ----


class Box:
    """An array of numbers between two bounds."""

    def __init__(self, low: Any, high: Any, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)


class Discrete:
    """A number from 0 to n - 1."""

    def __init__(self, n: int) -> None:
        self.n, self.shape, self.dtype = n, (), np.dtype(np.int64)


class MultiDiscrete:
    """Several numbers, each from 0 to one less than its entry in nvec."""

    def __init__(self, nvec: Any) -> None:
        self.nvec = np.asarray(nvec, np.int64)
        self.shape, self.dtype = self.nvec.shape, np.dtype(np.int64)
