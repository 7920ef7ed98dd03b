"""MiniHack: `minihack:Room-5x5`. Small tasks in NetHack's world."""

from __future__ import annotations

import importlib
import importlib.util
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from shoal.errors import ConfigError
from shoal.integrations.framework import import_quietly
from shoal.integrations.nethack import NetHack

CUSTOM = ("Navigation-Custom", "Skill-Custom")  # envs of a file of the user's: `--env.des-file`


class MiniHack(NetHack):
    """The ids of the package minihack."""

    packages = {"minihack": "minihack>=1", "nle": "nle>=1.2", "pkg_resources": "setuptools<81"}
    install = ("pip install --no-deps nle==1.3.0 minihack==1.0.2", "pip install cffi 'setuptools<81'")
    notes = (
        "Boxoban's levels are downloaded by `python -m minihack.scripts.download_boxoban_levels`.",
        "MultiRoom, LavaCrossing and SimpleCrossing are made of MiniGrid's mazes: pip install minigrid.",
        "`Navigation-Custom` and `Skill-Custom` are levels of yours: `--env.des-file my.des`.",
        "minihack imports pkg_resources, which setuptools 81 no longer has.",
    )

    def names(self) -> list[str]:
        """Without those whose levels or mazes are not installed, and those of a file of the user's."""
        has_mazes = importlib.util.find_spec("minigrid") is not None
        missing: tuple[str, ...] = () if has_mazes else ("MultiRoom", "LavaCrossing", "SimpleCrossing")
        if not (Path(import_quietly("minihack").__file__).parent / "dat" / "boxoban-levels-master").is_dir():
            missing += ("Boxoban",)
        return [name for name in self.known() if not name.startswith(missing) and name not in CUSTOM]

    def check_params(self, name: str, given: Mapping[str, Any]) -> None:
        """Raises for a param that no env has, and for a level of the user's without its file."""
        super().check_params(name, given)
        if "des_file" not in given and self.canonical(name) in CUSTOM:
            raise ConfigError(f"minihack:{name} is a level of yours. Name its file: --env.des-file my.des")

    def _ids(self) -> list[str]:
        ids = super()._ids()
        importlib.import_module("minihack.envs.minigrid").gym = types.SimpleNamespace(make=_maze)  # type: ignore[attr-defined]
        return ids


def _maze(id: str, width: int, height: int) -> Any:
    """What minihack 1.0.2 makes MiniGrid's mazes by: MiniGrid 3 has no `seed`, and takes no size for crossings."""
    try:
        return Maze(gymnasium.make(id, width=width, height=height, disable_env_checker=True).unwrapped)
    except AssertionError:  # the id has its own size
        return Maze(gymnasium.make(id, disable_env_checker=True).unwrapped)


class Maze:
    """One of MiniGrid's envs, whose next reset has the seed that was given."""

    def __init__(self, env: Any) -> None:
        self.unwrapped = env
        self._seed: int | None = None

    def seed(self, seed: int | None) -> None:
        """Of the next reset."""
        self._seed = seed

    def reset(self) -> Any:
        """Makes another maze."""
        seed, self._seed = self._seed, None
        return self.unwrapped.reset(seed=seed)


FRAMEWORK = MiniHack("minihack", "small tasks in NetHack's world", "MiniHack-", "Room-5x5")
