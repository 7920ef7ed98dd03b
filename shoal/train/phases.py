"""The phases of a curriculum: read from TOML, from Python or from a preset, and checked before any work starts.

    [[curriculum]]
    name = "intercept"
    opponents = "1=drone"
    env = { start_range = 20.0 }
    until = { win_rate = 0.9, games = 500, steps = "5M" }

A run stores them as text (`write`), so that a resume needs no other file. curriculum.py runs them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal import config
from shoal.distributions import Distribution
from shoal.errors import ConfigError, did_you_mean

FOLDER = Path(__file__).parent / "curricula"  # presets, one file each
CONDITIONS = ("win_rate", "return", "steps")
EXAMPLE = "until = { win_rate = 0.9, games = 500 }"


@dataclass(frozen=True)
class Until:
    """When a phase ends: when win rate and return are reached, each if given; at the latest after `steps`."""

    win_rate: float | None = None  # share of the latest games that are won
    mean_return: float | None = None  # of the latest games
    games: int = 100  # how many games are the latest ones
    margin: float = 0.0  # a game with a return above it is won
    steps: int = 0  # of the phase; 0: no limit

    def __bool__(self) -> bool:
        return self.needs_games or bool(self.steps)

    @property
    def needs_games(self) -> bool:
        """Whether the results of games decide."""
        return self.win_rate is not None or self.mean_return is not None

    def tables(self) -> dict[str, Any]:
        """What `_read_until` reads."""
        values = {"return" if key == "mean_return" else key: value for key, value in vars(self).items()}
        defaults = {"games": 100, "margin": 0.0, "steps": 0}
        return {key: value for key, value in values.items() if value is not None and value != defaults.get(key)}


@dataclass(frozen=True)
class Phase:
    """One phase of a curriculum.

    Args:
        name: in messages and metrics; default: its number.
        env: env params. Those that it does not name have the values of the run's options.
        opponents: players of seats, as in `--opponents`; also `1=self`, a frozen copy of the learner.
        reward: the name of a reward, or values of attributes of the run's reward.
        until: when it ends: a table with `win_rate`, `return`, `games`, `margin`, `steps`.
        refresh: steps after which the frozen copy of the learner is taken anew; 0: never in this phase.
    """

    name: str = ""
    env: Mapping[str, Any] = field(default_factory=dict)
    opponents: str = ""
    reward: str | Mapping[str, float] = ""
    until: Until | Mapping[str, Any] = field(default_factory=Until)
    refresh: int | str = 0

    def table(self) -> dict[str, Any]:
        """The phase as a table of a TOML file."""
        env = {name: _plain(value, f"phase '{self.name}': env.{name}") for name, value in self.env.items()}
        until = self.until.tables() if isinstance(self.until, Until) else dict(self.until)
        values = {"name": self.name, "env": env, "opponents": self.opponents, "until": until, "refresh": self.refresh}
        values["reward"] = self.reward if isinstance(self.reward, str) else dict(self.reward)
        return {key: value for key, value in values.items() if value}


def _plain(value: Any, shown: str) -> Any:
    """A param in a form that text can hold."""
    if isinstance(value, Distribution):
        return str(value)
    value = config.plain(value)
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{shown} is of type {type(value).__name__}, which a phase cannot hold. Give a number, a text or a "
            "distribution."
        ) from None
    return value


def presets() -> tuple[str, ...]:
    """The curricula that Shoal ships."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def write(value: Any) -> str:
    """The text of phases, for the option `curriculum`: a preset's name and a file stay as they are."""
    if isinstance(value, str):
        return value.strip()
    return json.dumps([phase.table() for phase in read(value)])


def read(value: Any) -> tuple[Phase, ...]:
    """The phases of a preset's name, a TOML file, tables or Phase objects; empty for an empty text."""
    where = "curriculum"
    if isinstance(value, str):
        value, where = _load(value.strip())
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise ConfigError(f"{where} is {type(value).__name__}, not a list of phases. Write [[curriculum]] tables.")
    if not value and where:
        raise ConfigError(f"{where} has no phases. Give one at least, or leave the curriculum out.")
    phases = [_read_phase(part, number, where) for number, part in enumerate(value, 1)]
    names = [phase.name for phase in phases]
    for number, phase in enumerate(phases):
        if phase.name in names[:number]:
            raise ConfigError(f"{where} has two phases named '{phase.name}'. Give each its own name.")
        if not phase.until and number < len(phases) - 1:
            raise ConfigError(
                f"{where}: phase '{phase.name}' has no `until`, so '{names[number + 1]}' never begins. Say when it "
                f"ends: {EXAMPLE}."
            )
    return tuple(phases)


def _load(text: str) -> tuple[Any, str]:
    """The tables that a text stands for, and what they are called in messages."""
    if not text:
        return [], ""
    if text.startswith("["):
        try:
            return json.loads(text), "curriculum"
        except ValueError as error:
            raise ConfigError(f"curriculum: the text of phases cannot be read: {error}.") from None
    if text in presets():
        path = FOLDER / f"{text}.toml"
    elif text.endswith(".toml"):
        path = Path(text).expanduser()
    else:
        raise ConfigError(
            f"--curriculum {text}: no preset of that name.{did_you_mean(text, presets())} Presets: "
            f"{', '.join(presets()) or 'none'}. A file of your own ends in .toml."
        )
    tables = config.read_toml(path)
    if "curriculum" not in tables:
        raise ConfigError(f"--curriculum {text}: the file has no [[curriculum]] tables. It has {', '.join(tables)}.")
    return tables["curriculum"], f"--curriculum {text}"


def _read_phase(part: Any, number: int, where: str) -> Phase:
    if isinstance(part, Phase):
        part = part.table()
    if not isinstance(part, Mapping):
        raise ConfigError(f"{where}: phase {number} is {type(part).__name__} {part!r}, not a table.")
    name = part.get("name", "") or f"phase {number}"
    if not isinstance(name, str):
        raise ConfigError(f"{where}: the name of phase {number} is {name!r}, not text.")
    shown = f"{where}: phase '{name}'"
    known = [option.name for option in dataclasses.fields(Phase)]
    for key in part:
        if key not in known:
            also = " It belongs into `until`." if key in _UNTIL else did_you_mean(str(key), known)
            raise ConfigError(f"{shown} has no '{key}'.{also} It has {', '.join(known)}.")
    env, opponents, reward = part.get("env", {}), part.get("opponents", ""), part.get("reward", "")
    if not isinstance(env, Mapping):
        raise ConfigError(f"{shown}: env is {env!r}, not a table of params: env = {{ gravity = 5.0 }}.")
    if not isinstance(opponents, str):
        raise ConfigError(f'{shown}: opponents is {opponents!r}, not text: opponents = "1=seek".')
    if not isinstance(reward, (str, Mapping)):
        raise ConfigError(f"{shown}: reward is {reward!r}, neither a name nor a table of attributes.")
    for key, value in reward.items() if isinstance(reward, Mapping) else ():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ConfigError(f"{shown}: reward.{key} = {value!r} is not a number.")
    refresh = _count(part.get("refresh", 0), f"{shown}: refresh")
    return Phase(name, dict(env), opponents, reward, _read_until(part.get("until", {}), shown), refresh)


_UNTIL = ("win_rate", "return", "games", "margin", "steps")


def _read_until(value: Any, shown: str) -> Until:
    if isinstance(value, Until):
        value = value.tables()
    if not isinstance(value, Mapping):
        raise ConfigError(f"{shown}: until is {value!r}, not a table: {EXAMPLE}.")
    for key in value:
        if key not in _UNTIL:
            raise ConfigError(
                f"{shown}: until has no '{key}'.{did_you_mean(str(key), _UNTIL)} It has {', '.join(_UNTIL)}."
            )
    if value and not any(key in value for key in CONDITIONS):
        raise ConfigError(f"{shown}: until names no condition. Add one of {', '.join(CONDITIONS)}: {EXAMPLE}.")
    numbers = {
        key: _number(value[key], f"{shown}: until.{key}") for key in ("win_rate", "return", "margin") if key in value
    }
    rate = numbers.get("win_rate")
    if rate is not None and not 0.0 < rate <= 1.0:
        raise ConfigError(f"{shown}: until.win_rate = {rate:g} is not a share of games. Give a number in 0 .. 1: 0.9.")
    games = _count(value.get("games", 100), f"{shown}: until.games")
    if games < 1:
        raise ConfigError(f"{shown}: until.games = {games} must be at least 1.")
    steps = _count(value.get("steps", 0), f"{shown}: until.steps")
    return Until(rate, numbers.get("return"), games, numbers.get("margin", 0.0), steps)


def _number(value: Any, shown: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{shown} = {value!r} is not a number.")
    return float(value)


def _count(value: Any, shown: str) -> int:
    """A whole number: 500000, 5e5 or "500k"."""
    if isinstance(value, str):
        try:
            return config.parse_count(value)
        except ConfigError as error:
            raise ConfigError(f"{shown}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**63 or value != int(value):
        raise ConfigError(f'{shown} = {value!r} is not a count. Write it as 500000 or "500k".')
    return int(value)
