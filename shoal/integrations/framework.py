"""Framework: what Shoal knows of a library of envs. To add one, write one file of this folder:

    # shoal/integrations/maze.py, or a module that another package names in its entry points, group `shoal.frameworks`
    class Maze(Framework):
        title = "mazes of the package maze"
        packages = {"maze": "maze>=2"}          # the module that is imported, and what pip calls it
        install = ("pip install 'maze>=2'",)
        example = "Small"

        def names(self) -> list[str]:
            import maze
            return maze.names()

        def make(self, name: str, *, render_mode: str | None = None, size: int = 9) -> Any:
            import maze
            return maze.make(name, size=size, render_mode=render_mode)

    FRAMEWORK = Maze("maze")

The file's name is the prefix: `shoal train maze:Small --env.size 11`. `make` returns what `adapt` accepts: a Gymnasium
env, a PettingZoo env or a vector env. Its keyword arguments are the env's params. A file imports its library inside
functions alone: Shoal reads the declarations of frameworks that are not installed, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import io
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from shoal.errors import ConfigError, UnknownEnv, did_you_mean
from shoal.names import arguments, check_arguments
from shoal.plugins import Plugins

FRAMEWORKS = Plugins("framework", package="shoal.integrations", marker="FRAMEWORK")
SHOWN = 12  # names in a message


@dataclass(frozen=True)
class Reference:
    """A published result of one env, to compare a run with."""

    env: str  # its name in the framework
    score: float
    what: str  # what the score is: the algorithm, the steps, the number of seeds
    source: str


class Framework:
    """One library of envs. Subclasses set the attributes, and define `names` and `make`."""

    title: str = ""  # one line: what envs these are
    packages: ClassVar[Mapping[str, str]] = {}  # modules that must be importable: "ale-py>=0.11", as pip names them
    programs: ClassVar[Mapping[str, str]] = {}  # programs that must be on the PATH, and the command that installs each
    libraries: ClassVar[Mapping[str, str]] = {}  # Linux: shared libraries, and the command that installs each
    extra: str = ""  # the extra of Shoal that installs it; empty where pip's resolver cannot
    install: ClassVar[tuple[str, ...]] = ()  # the commands, where there is no extra
    is_separate: bool = False  # its pins conflict with Shoal's: it has an environment of its own (`shoal env add`)
    is_vectorized: bool = False  # it steps many envs at once by itself: `make_vec` in place of `make`
    can_render: bool = True  # whether its envs draw frames
    vec_options: ClassVar[tuple[str, ...]] = ()  # options of `shoal.make` that its `make_vec` takes besides
    timeout_s: float = 60.0  # seconds that an env in an environment of its own may take, also to be made
    python: str = ""  # versions of Python that it runs on, such as "<3.11"; empty: all of Shoal's
    example: str = ""  # the env of its test and of its row in docs/frameworks.md
    also: ClassVar[tuple[str, ...]] = ()  # further envs that are tested: one of each family
    is_one_per_process: bool = False  # a process can hold one env only
    stem: str = ""  # what the ids of the library begin with, and names here do not
    pattern: str = "NAME"  # the form of its names, for messages and docs
    preprocessing: str = "none"  # what `make` does to observations and rewards
    network: str = "by the look of the env (docs/defaults.md)"
    options: ClassVar[Mapping[str, Any]] = {}  # default options of a run, as the tables of a TOML file
    references: ClassVar[tuple[Reference, ...]] = ()
    notes: ClassVar[tuple[str, ...]] = ()  # pitfalls, for docs/frameworks.md

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    # ---- of every framework ----

    def names(self) -> list[str]:
        """The envs that are installed, by the names that `find` accepts."""
        raise NotImplementedError

    def make(self, name: str, *args: Any, **params: Any) -> Any:
        """One env. It is called in every worker process."""
        raise NotImplementedError

    # ---- of some ----

    def make_vec(
        self, name: str, num_envs: int, *, seed: int | None, autoreset: str, render_mode: str | None, **params: Any
    ) -> Any:
        """All envs at once, as one VecEnv: for a framework that `is_vectorized`."""
        raise NotImplementedError

    def make_here(self, name: str, **params: Any) -> Any:
        """One env as an object of this process, also where its library has another interpreter (separate.py)."""
        return self.make(name, **params)

    def known(self) -> list[str]:
        """All names that `find` accepts: besides `names` those of envs that say what they need when they are made."""
        return self.names()

    def canonical(self, name: str) -> str:
        """The env's own name: that of `known` which is equal without case, punctuation, stem and version.

        Others raise UnknownEnv.
        """
        known = self.known()
        if name in known:
            return name
        by_plain = {plain(other): other for other in known}
        without_version = re.sub(r"[-_]v\d+$", "", name)
        for wanted in (plain(name), plain(without_version), plain(without_version).removeprefix(plain(self.stem))):
            if wanted in by_plain:
                return by_plain[wanted]
        return str(self.unknown(name, self.names()))

    def options_for(self, name: str) -> Mapping[str, Any]:
        """Default options of a run with this env, as the tables of a TOML file."""
        return self.options

    def evaluation_params(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Params that evaluations have in place of those that are given for training; empty: the same."""
        return {}

    def params(self, name: str) -> dict[str, str] | None:
        """The env's params and their defaults as text; None where they are not known before it is made."""
        maker = partial(self.make, name)
        return None if takes_any(maker) else arguments(maker)

    def check_params(self, name: str, given: Mapping[str, Any]) -> None:
        """Raises for a param that the env does not have."""
        check_arguments(f"{self.prefix}:{name}", partial(self.make, name), given, "--env.{}")

    def check(self) -> None:
        """Raises ConfigError, with the command that helps, unless envs can be made here."""
        if problem := self.problem():
            raise ConfigError(f"{self.prefix}: {problem}")

    # ---- derived ----

    def find(self, name: str) -> Callable[..., Any]:
        """A function that makes the env of this name, in any process."""
        self.check()
        if not name:
            raise UnknownEnv(f"'{self.prefix}:' is a framework. 'shoal envs {self.prefix}:' lists its envs.")
        return Maker(self.prefix, self.canonical(name))

    @property
    def own_python(self) -> str | None:
        """The interpreter that its envs run under, where that is another (separate.py); None: this one."""
        return None

    @property
    def commands(self) -> tuple[str, ...]:
        """The shell commands that install it."""
        return (f'pip install "shoal[{self.extra}]"',) if self.extra else self.install

    @property
    def advice(self) -> str:
        """The commands in one line."""
        return f"shoal env add {self.prefix}" if self.is_separate else " && ".join(self.commands)

    def problem(self) -> str:
        """Why no env can be made here, and the command that helps; empty if nothing is missing."""
        for module, requirement in self.packages.items():
            if not is_importable(module):
                return f"{requirement.split('[')[0]} is not installed. Install it: {self.advice}"
            if wrong := wrong_version(requirement):
                return f"{wrong}. Install another: {self.advice}"
        for program, command in self.programs.items():
            if shutil.which(program) is None:
                return f"the program {program} is not on the PATH. Install it: {command}"
        for library, command in self.libraries.items() if sys.platform == "linux" else ():
            if not can_load(library):
                return f"the library {library} is not on this machine. Install it: {command}"
        return ""

    @property
    def is_installed(self) -> bool:
        """Whether its envs can be made in this process."""
        return not self.problem()

    def unknown(self, name: str, known: list[str]) -> Any:
        """Raises UnknownEnv, with what is similar."""
        wanted = plain(name).removeprefix(plain(self.stem)) or plain(name)
        starting = [other for other in known if plain(other).startswith(wanted)]
        by_plain = {plain(other): other for other in reversed(known)}
        similar = difflib.get_close_matches(wanted, by_plain, n=1)
        near = f" Did you mean '{by_plain[similar[0]]}'?" if similar else ""
        if starting:
            near = f" There {'is' if len(starting) == 1 else 'are'} {', '.join(starting[:SHOWN])}."
        raise UnknownEnv(
            f"'{self.prefix}:{name}'.{near} 'shoal envs {self.prefix}:' lists the {len(known)} that are installed."
        )


@dataclass(frozen=True)
class Maker:
    """Makes an env of a framework. It finds the framework where it is called, so that other processes can call it."""

    prefix: str
    name: str

    @property
    def __name__(self) -> str:
        return f"{self.prefix}:{self.name}"

    def __call__(self, **params: Any) -> Any:
        """Makes one env. A param that its library does not take, or what it lacks, raises ConfigError."""
        one = framework(self.prefix)
        try:
            return one.make_here(self.name, **params)
        except TypeError as error:
            refused = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if refused is None or refused[1] not in params:
                raise
            own = [name for name in arguments(partial(one.make, self.name)) if name != "render_mode"]
            has = f" It has {', '.join(own)}, and what its class takes." if own else ""
            near = did_you_mean(refused[1], own)
            raise ConfigError(f"{self.prefix}:{self.name} has no param '{refused[1]}'.{near}{has}") from error
        except Exception as error:
            if isinstance(error, ImportError) or type(error).__name__ == "DependencyNotInstalled":  # Gymnasium's
                what = "cannot be made, as something that it needs is missing"
                raise ConfigError(f"{self.prefix}:{self.name} {what}: {error}") from error
            raise


def framework(prefix: str) -> Framework:
    """The framework of a prefix. An unknown one raises."""
    found: Framework = FRAMEWORKS.find(prefix)
    return found


def choose_gl() -> None:
    """MuJoCo and pyglet draw with EGL where there is no display. It must be chosen before they are imported."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("PYGLET_HEADLESS", "true")


def import_quietly(module: str) -> Any:
    """A module that prints and warns when it is imported, without that."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def is_prefix(text: str) -> bool:
    """Whether a framework has this prefix. Other packages are looked at last: that takes longer."""
    return text in FRAMEWORKS.stock() or text in FRAMEWORKS.names()


def plain(name: str) -> str:
    """A name without case and punctuation.

    >>> plain("ALE/Ms_Pacman-v5")
    'alemspacmanv5'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def newest(ids: list[str]) -> str:
    """The id with the highest `-vN` or `_vN`."""

    def version(name: str) -> int:
        match = re.search(r"[-_]v(\d+)$", name)
        return int(match[1]) if match else -1

    return max(ids, key=version)


def wrong_version(requirement: str) -> str:
    """What is wrong with an installed package, by pip's `name>=1,<2`; empty if nothing is."""
    match = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?(.*)", requirement)
    assert match is not None
    name, wanted = match.groups()
    if not wanted:
        return ""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # imported from a source folder: nothing says its version
        return ""
    have = _numbers(version)
    for operator, bound in re.findall(r"(>=|<=|==|!=|<|>)\s*([\w.]+)", wanted):
        if not _holds(have, operator, _numbers(bound)):
            return f"{name} {version} is installed, and {requirement} is needed"
    return ""


def _holds(have: tuple[int, ...], operator: str, bound: tuple[int, ...]) -> bool:
    width = max(len(have), len(bound))
    a, b = (value + (0,) * (width - len(value)) for value in (have, bound))
    results = {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, "<": a < b, ">": a > b}
    return results[operator]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0].split("rc")[0])[:4])


def is_importable(module: str) -> bool:
    """Whether a module is installed. Imports no more than its parents."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its parent is missing
        return False


@functools.cache
def can_load(library: str) -> bool:
    """Whether a shared library is on this machine."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def takes_any(maker: Callable[..., Any]) -> bool:
    """Whether a class or function takes keyword arguments of any name."""
    import inspect

    return any(p.kind == p.VAR_KEYWORD for p in inspect.signature(maker).parameters.values())
