"""What a command is, and how the commands are found. To add one, write one file:

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
function's signature is the flags, its docstring their help, its result the exit code. `shoal --help` imports every
command to read the first line of its help: import what is slow inside the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import ConfigError
from shoal.plugins import Plugins

COMMANDS = Plugins("command", package="shoal.cli", marker="COMMAND")


@dataclass(frozen=True)
class Command:
    """A verb of the `shoal` program."""

    run: Callable[..., int]
    order: float = 1000.0  # its place in `shoal --help`, the least first; equal ones are sorted by name
    examples: Mapping[str, str] = field(default_factory=dict)  # command lines, and what each is for
    parses_words: bool = False  # its flags depend on its words: `run` gets the words and parses them itself

    @property
    def help(self) -> str:
        """The docstring: its first line is the summary."""
        return inspect.getdoc(self.run) or ""

    @property
    def summary(self) -> str:
        """What it does, in a sentence."""
        return self.help.partition("\n")[0]


def verbs() -> dict[str, str]:
    """The plugin's name of every verb. Imports nothing."""
    return {" ".join(name.strip("_").split("_")): name for name in COMMANDS.names()}


def find(verb: str) -> Command:
    """The command of a verb. Where a plugin is a plain function, that is its command."""
    plugin: Any = COMMANDS.find(verbs().get(verb, verb))
    return plugin if isinstance(plugin, Command) else Command(plugin)


def find_all() -> tuple[dict[str, Command], dict[str, str]]:
    """Every verb's command, in the order of the overview; and why a command of another package cannot be loaded."""
    commands: dict[str, Command] = {}
    broken: dict[str, str] = {}
    for verb in verbs():
        try:
            commands[verb] = find(verb)
        except ConfigError as error:
            broken[verb] = str(error)
    return dict(sorted(commands.items(), key=lambda item: (item[1].order, item[0]))), broken
