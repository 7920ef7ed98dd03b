"""Commands of the `shoal` program, and how they are found. To add one, write one file:

    # shoal/cli/hello.py, or a module that another package names in its entry points, group `shoal.commands`
    def hello(name: str = "you") -> int:
        '''Greet someone.

        Args:
            name: Who is greeted.
        '''
        print(f"Hello, {name}.")
        return 0

    COMMAND = Command(hello, examples={"shoal hello --name Ada": "greet Ada"})

The file's name is the verb: `bench_env.py` is `shoal bench env`. (A `_` at the end is ignored, as in `import_.py`.) The
function's signature defines the flags, its docstring their help, its result the exit code. `shoal --help` imports every
command to read the first line of its help, so import slow packages inside the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import ConfigError
from shoal.plugins import Plugins

COMMANDS = Plugins("command", package="shoal.cli", marker="COMMAND")


@dataclass(frozen=True)
class Command:
    """A verb of the `shoal` program."""

    run: Callable[..., int]
    order: float = 1000.0  # position in `shoal --help`, lowest first; equal ones are sorted by name
    examples: Mapping[str, str] = field(default_factory=dict)  # command lines and their purpose
    parses_words: bool = False  # `run` gets the words and parses them itself, because its flags depend on them

    @property
    def help(self) -> str:
        """The docstring: its first line is the summary."""
        return inspect.getdoc(self.run) or ""

    @property
    def summary(self) -> str:
        """The first line of the help."""
        return self.help.partition("\n")[0]


def verbs() -> dict[str, str]:
    """The plugin name of every verb. Imports nothing."""
    return {" ".join(name.strip("_").split("_")): name for name in COMMANDS.names()}


def find(verb: str) -> Command:
    """The command with this verb."""
    return _load(verbs().get(verb, verb))


def find_all() -> tuple[dict[str, Command], dict[str, str]]:
    """Every command by verb, in the order of the overview; and the errors of commands that cannot be loaded."""
    commands: dict[str, Command] = {}
    broken: dict[str, str] = {}
    for verb, name in verbs().items():
        try:
            commands[verb] = _load(name)
        except ConfigError as error:
            broken[verb] = str(error)
    return dict(sorted(commands.items(), key=lambda item: (item[1].order, item[0]))), broken


def _load(name: str) -> Command:
    """The command of a plugin. A plain function is a command too."""
    plugin: Any = COMMANDS.find(name)
    return plugin if isinstance(plugin, Command) else Command(plugin)


def value_of(args: Sequence[str], flag: str) -> str | None:
    """The value of one flag, read before the others are parsed."""
    for k, word in enumerate(args):
        if word == flag and k + 1 < len(args):
            return args[k + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None
