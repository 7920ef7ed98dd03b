"""Ranges that a sweep draws values from, and how they are written: `{log = [1e-4, 1e-2]}` or `log(1e-4, 1e-2)`.

A range has two forms in Optuna. Outside, in the journal, a value is what the run gets: gamma = 0.99. Inside, where
samplers see it, logit and pow2 are straightened: 4.6 in place of 0.99, 5 in place of 32.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal import config
from shoal.errors import ConfigError, did_you_mean

KINDS = {
    "uniform": "uniform = [low, high]",
    "log": "log = [low, high]: uniform in the logarithm",
    "logit": "logit = [low, high]: uniform in log(x / (1 - x)), for values close to 0 or 1",
    "pow2": "pow2 = [low, high]: powers of two",
    "integer": "integer = [low, high]",
    "choice": "choice = [a, b, ...]",
}
DECLARED = {
    config.Uniform: "uniform",
    config.LogUniform: "log",
    config.LogitUniform: "logit",
    config.PowerOfTwo: "pow2",
}
# PufferLib's kinds, in tables with distribution, min and max
OF_PUFFERLIB = {
    "uniform": "uniform",
    "int_uniform": "integer",
    "uniform_pow2": "pow2",
    "log_normal": "log",
    "logit_normal": "logit",
}
KEYS_OF_PUFFERLIB = ("distribution", "min", "max", "mean", "scale", "search_center")
EXAMPLE = "Write {log = [1e-4, 1e-2]} or log(1e-4, 1e-2)"


@dataclass(frozen=True)
class Range:
    """The values that one option takes in a sweep. `is_int`: the option is an int."""

    kind: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()
    is_int: bool = False

    def __str__(self) -> str:
        values = self.choices if self.kind == "choice" else (self._shown(self.low), self._shown(self.high))
        return f"{self.kind}({', '.join(repr(value) for value in values)})"

    def _shown(self, value: float) -> float:
        return int(value) if self.is_int and value == int(value) else value

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values to check before a sweep starts: the ends of the range, or all choices."""
        return self.choices if self.kind == "choice" else (self.outward(self._inner(self.low)), self._last())

    def _last(self) -> Any:
        return self.outward(self._inner(self.high))

    # ---- Optuna's forms ----

    def outer(self) -> Any:
        """The distribution in the journal, over the values of the option."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.kind == "choice":
            return CategoricalDistribution(self.choices)
        if self.is_int:
            return IntDistribution(int(self.low), int(self.high), log=self.kind in ("log", "pow2"))
        return FloatDistribution(self.low, self.high, log=self.kind == "log")

    def inner(self) -> Any:
        """The distribution that samplers see."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.kind == "logit":
            return FloatDistribution(_logit(self.low), _logit(self.high))
        if self.kind == "pow2":
            return IntDistribution(int(math.log2(self.low)), int(math.log2(self.high)))
        return self.outer()

    def _inner(self, value: Any) -> Any:
        if self.kind == "logit":
            return _logit(value)
        return round(math.log2(value)) if self.kind == "pow2" else value

    def inward(self, value: Any) -> Any:
        """A value of the option as samplers see it. It is moved into the range."""
        return self._inner(self.nearest(value))

    def outward(self, value: Any) -> Any:
        """A value that a sampler chose, as a value of the option."""
        if self.kind == "choice":
            return value
        if self.kind == "logit":
            value = min(max(1.0 / (1.0 + math.exp(-value)), self.low), self.high)
        elif self.kind == "pow2":
            value = 2**value
        return round(value) if self.is_int else float(value)

    def nearest(self, value: Any) -> Any:
        """The value of this range that is nearest to another one. A choice that is not listed: the first."""
        if self.kind == "choice":
            return value if value in self.choices else self.choices[0]
        value = min(max(value, self.low), self.high)
        if self.kind == "pow2" and value > 0:
            value = 2 ** round(math.log2(value))
        return round(value) if self.is_int else float(value)

    def holds(self, value: Any) -> bool:
        """Whether a value lies in this range."""
        if self.kind == "choice":
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        return is_number(value) and self.nearest(value) == value


def is_number(value: Any) -> bool:
    """Whether a value is an int or a float, and finite."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _logit(value: float) -> float:
    return math.log(value / (1.0 - value))


def declared(field_range: Any, is_int: bool) -> Range:
    """The range that an option declares: `opt(..., sweep=LogUniform(1e-5, 1e-1))`."""
    return make(DECLARED[type(field_range)], [field_range.low, field_range.high], is_int, "its own range")


def read(value: Any, is_int: bool, where: str) -> Range:
    """A range from a TOML table or a text. Anything else raises ConfigError, with how it is written."""
    if isinstance(value, str):
        kind, values = _read_text(value, where)
    elif isinstance(value, Mapping):
        if any(key in KEYS_OF_PUFFERLIB for key in value):
            return _read_pufferlib(value, is_int, where)
        if len(value) != 1:
            raise ConfigError(f"{where} = {dict(value)!r} must have one kind of range. {EXAMPLE}.")
        kind, values = next(iter(value.items()))
    else:
        raise ConfigError(f"{where} = {value!r} is not a range. {EXAMPLE}.")
    if kind not in KINDS:
        known = "; ".join(KINDS.values())
        raise ConfigError(f"{where}: no kind of range '{kind}'.{did_you_mean(str(kind), KINDS)} Known: {known}.")
    return make(kind, values, is_int, where)


def is_change(value: Any) -> bool:
    """Whether a table changes a range by PufferLib's keys and is none by itself: `{min = 1e-4}`."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and "distribution" not in value
        and set(value) <= {*KEYS_OF_PUFFERLIB}
    )


def changed(part: Range, change: Mapping[str, Any], where: str) -> Range:
    """A range with another lowest or highest value."""
    if part.kind == "choice":
        raise ConfigError(f"{where}: {part} has no min and max. {EXAMPLE}.")
    return make(part.kind, [change.get("min", part.low), change.get("max", part.high)], part.is_int, where)


def _read_pufferlib(table: Mapping[str, Any], is_int: bool, where: str) -> Range:
    """`{distribution = "log_normal", min = 1e-4, max = 1e-2}`; mean and scale, which guide PufferLib's search, too."""
    for key in table:
        if key not in KEYS_OF_PUFFERLIB:
            near = did_you_mean(key, KEYS_OF_PUFFERLIB)
            raise ConfigError(f"{where}: no key '{key}'.{near} PufferLib's are {', '.join(KEYS_OF_PUFFERLIB)}.")
    kind = table.get("distribution")
    if kind not in OF_PUFFERLIB:
        near = did_you_mean(str(kind), OF_PUFFERLIB)
        raise ConfigError(f"{where}: distribution = {kind!r}.{near} PufferLib's are {', '.join(OF_PUFFERLIB)}.")
    if "min" not in table or "max" not in table:
        raise ConfigError(f"{where}: a distribution needs min and max.")
    if is_int and kind in ("log_normal", "uniform", "int_uniform"):  # 1e7 is a float
        table = {**table, "min": int(table["min"]), "max": int(table["max"])}
    return make(OF_PUFFERLIB[kind], [table["min"], table["max"]], is_int, where)


def _read_text(text: str, where: str) -> tuple[str, Any]:
    """`log(1e-4, 1e-2)` or `{log = [1e-4, 1e-2]}`."""
    as_toml = config.parse_value(text) if text.lstrip().startswith("{") else None
    if isinstance(as_toml, dict) and len(as_toml) == 1:
        kind, values = next(iter(as_toml.items()))
        return str(kind), values
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.keywords:
            return call.func.id, [_literal(part) for part in call.args]
    except (SyntaxError, ValueError):
        pass
    raise ConfigError(f"{where} = '{text}' is not a range. {EXAMPLE}.")


def _literal(part: ast.expr) -> Any:
    if isinstance(part, ast.Name):  # choice(adam, muon)
        return {"true": True, "false": False}.get(part.id.lower(), part.id)
    return ast.literal_eval(part)


def make(kind: str, values: Any, is_int: bool, where: str) -> Range:
    """A range of one kind, checked."""
    shown = f"{where}: {kind} = {values!r}"
    if not isinstance(values, (list, tuple)):
        raise ConfigError(f"{shown} must be a list. Kinds: {'; '.join(KINDS.values())}.")
    if kind == "choice":
        if len(values) < 2 or not all(isinstance(value, (bool, int, float, str)) for value in values):
            raise ConfigError(f"{shown} must list at least two numbers, texts or booleans.")
        if len(set(map(repr, values))) < len(values):
            raise ConfigError(f"{shown} lists a value twice.")
        return Range("choice", choices=tuple(values), is_int=is_int)
    if len(values) != 2 or not all(map(is_number, values)):
        raise ConfigError(f"{shown} must be two numbers, the lowest and the highest value.")
    low, high = values
    if not low < high:
        raise ConfigError(f"{shown}: the lowest value must be below the highest one.")
    if kind == "log" and low <= 0:
        raise ConfigError(f"{shown}: a logarithm needs a lowest value above 0.")
    if kind == "logit" and not 0 < low < high < 1:
        raise ConfigError(f"{shown}: both values must lie between 0 and 1, and be neither.")
    if kind == "pow2" and any(value < 1 or 2 ** round(math.log2(value)) != value for value in values):
        raise ConfigError(f"{shown}: both values must be powers of two, from 1 on.")
    is_int = is_int or kind in ("pow2", "integer")
    if is_int and any(value != int(value) for value in values):
        raise ConfigError(f"{shown}: the option is an int, so both values must be whole numbers.")
    if is_int and kind == "logit":
        raise ConfigError(f"{shown}: the option is an int. Use integer, log, pow2 or choice.")
    ends = (int(low), int(high)) if is_int else (float(low), float(high))
    return Range(kind, ends[0], ends[1], is_int=is_int)
