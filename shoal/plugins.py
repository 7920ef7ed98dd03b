"""Finds plugins: an algorithm, optimizer, core, encoder, backend, logger, reward or command is one file of its folder.

    ALGORITHMS = Plugins("algorithm", package="shoal.algos", marker="ALGORITHM")

A file is a plugin where it assigns the folder's marker at top level (`ALGORITHM = ...`), and its name is the file's
stem. Listing names reads the text of files and imports nothing. Other packages add plugins by entry points (the
group is the kind in the plural: `shoal.algorithms`), and scripts by `register`.

An optimizer, core, encoder or backend may have options of its own: its attribute `options` is a dataclass of
`config.opt` fields, and its constructor takes their values as the last argument (`make_with_options`).
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shoal.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class NoOptions:
    """The options of a plugin that has none."""


def options_type(plugin: Any) -> type[Any]:
    """The dataclass of a plugin's own options."""
    options = getattr(plugin, "options", None)
    return options if isinstance(options, type) and is_dataclass(options) else NoOptions


def make_with_options(plugin: Any, *args: Any, options: Any = None) -> Any:
    """Calls a plugin's constructor: with its options (None: their defaults) as the last argument, where it has any."""
    kind = options_type(plugin)
    if not fields(kind):
        return plugin(*args)
    return plugin(*args, options if isinstance(options, kind) else kind())


class Plugins:
    """All plugins of one kind, by name."""

    def __init__(self, kind: str, *, package: str, marker: str) -> None:
        self.kind, self.package, self.marker = kind, package, marker
        self.group = f"shoal.{kind}s"
        self._registered: dict[str, Any] = {}
        self._stock: tuple[str, ...] | None = None

    def register(self, name: str, plugin: Any) -> None:
        """Adds a plugin of this process: what the marker is assigned in a file, or a module that assigns it."""
        if name in self.stock():
            raise ConfigError(f"'{name}' is the name of a stock {self.kind}. Register yours under another name.")
        self._registered[name] = self._value(plugin)

    def is_registered(self, name: str) -> bool:
        """Whether a name is known in this process alone: `register` added it."""
        return name in self._registered

    def stock(self) -> tuple[str, ...]:
        """The names of the plugins that Shoal ships."""
        if self._stock is None:
            files = (path for folder in self._folders() for path in folder.glob("*.py"))
            self._stock = tuple(sorted(path.stem for path in files if self._assigns_marker(path)))
        return self._stock

    def _assigns_marker(self, path: Path) -> bool:
        text = path.read_text(encoding="utf-8")
        if not re.search(rf"^{self.marker}\b", text, re.MULTILINE):
            return False
        targets: list[ast.expr] = []  # a docstring may show an assignment, too
        for node in ast.parse(text).body:
            targets += node.targets if isinstance(node, ast.Assign) else []
            targets += [node.target] if isinstance(node, ast.AnnAssign) else []
        return any(isinstance(target, ast.Name) and target.id == self.marker for target in targets)

    def names(self) -> tuple[str, ...]:
        """Every name that `find` knows: stock plugins first, then those of other packages and of this process."""
        others = {*self._registered, *self._entry_points()} - {*self.stock()}
        return (*self.stock(), *sorted(others))

    def find(self, name: str) -> Any:
        """The plugin of a name. An unknown name raises, with a suggestion."""
        if name in self._registered:
            return self._registered[name]
        if name in self.stock():
            return self._value(importlib.import_module(f"{self.package}.{name}"))
        if point := self._entry_points().get(name):
            try:
                return self._value(point.load())
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise ConfigError(f"{self.kind} '{name}' of '{point.value}' cannot be loaded: {reason}.") from error
        known = self.names()
        raise ConfigError(f"no {self.kind} '{name}'.{did_you_mean(name, known)} Known: {', '.join(known)}.")

    def _value(self, plugin: Any) -> Any:
        if not isinstance(plugin, ModuleType):
            return plugin
        if not hasattr(plugin, self.marker):
            raise ConfigError(f"{plugin.__name__} does not assign {self.marker}, which makes a file a {self.kind}.")
        return getattr(plugin, self.marker)

    def _folders(self) -> list[Path]:
        spec = importlib.util.find_spec(self.package)
        return [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []

    def _entry_points(self) -> Mapping[str, EntryPoint]:
        return entry_points(self.group)


def entry_points(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group in all installed packages, by name."""
    return _entry_points(group, tuple(sys.path))


@functools.cache
def _entry_points(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    return {point.name: point for point in _all_entry_points(path).select(group=group)}


@functools.cache
def _all_entry_points(path: tuple[str, ...]) -> Any:
    """The entry points of all groups. It reads the metadata of every installed package: once for each path."""
    import importlib.metadata  # takes 50 ms

    return importlib.metadata.entry_points()
