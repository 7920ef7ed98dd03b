"""Distributions that env params are drawn from at the start of each episode.

    envs = shoal.make("pendulum", 1024, gravity=shoal.uniform(5, 15))

`parse` reads the same from text: `--env.gravity "uniform(5, 15)"`. Knows nothing of envs; a param checks the numbers
against its own limits (spec.py).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from shoal.errors import ConfigError

KINDS = ("uniform", "loguniform", "normal", "choice", "integers")  # in the order of core/randomize.h, from 1 on
_EXAMPLES = {
    "uniform": "uniform(5, 15)",
    "loguniform": "loguniform(0.1, 10)",
    "normal": "normal(9.8, 0.5)",
    "choice": "choice(1, 2, 5)",
    "integers": "integers(1, 6)",
}


@dataclass(frozen=True)
class Distribution:
    """What a param is drawn from: one of KINDS, and its numbers. `choice` may also hold names of a param's values."""

    kind: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"{self.kind!r} is no distribution. There are {', '.join(KINDS)}.")
        _CHECKS[self.kind](self)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.values))})"


def uniform(low: float, high: float) -> Distribution:
    """Any number between low and high, all equally likely."""
    return Distribution("uniform", (low, high))


def loguniform(low: float, high: float) -> Distribution:
    """A number between low and high whose logarithm is uniform: as often in 0.1 .. 1 as in 1 .. 10."""
    return Distribution("loguniform", (low, high))


def normal(mean: float, std: float) -> Distribution:
    """A Gaussian with this mean and standard deviation, clipped to the limits of the param."""
    return Distribution("normal", (mean, std))


def choice(*values: float | str) -> Distribution:
    """One of these values, all equally likely."""
    return Distribution("choice", tuple(values))


def integers(low: int, high: int) -> Distribution:
    """A whole number from low to high, both included."""
    return Distribution("integers", (low, high))


def parse(text: str) -> Distribution | None:
    """The distribution that a text such as `uniform(0, 3)` writes; None if it is not written like one."""
    match = re.fullmatch(r"\s*([a-z]+)\s*\((.*)\)\s*", text, re.DOTALL)
    if match is None or match[1] not in KINDS:
        return None
    words = [word.strip() for word in match[2].split(",")] if match[2].strip() else []
    values = tuple(number_or_word(word.strip("'\"")) for word in words)
    if match[1] != "choice" and any(isinstance(value, str) for value in values):
        bad = next(value for value in values if isinstance(value, str))
        raise ConfigError(f"{text.strip()}: {bad!r} is not a number. Write {_EXAMPLES[match[1]]}.")
    return Distribution(match[1], values)


def number_or_word(text: str) -> int | float | str:
    """A number if the text is one, otherwise the text.

    >>> [number_or_word(text) for text in ("3", "0.5", "seek")]
    [3, 0.5, 'seek']
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _numbers(given: Distribution, count: int) -> tuple[float, ...]:
    if len(given.values) != count:
        raise ConfigError(
            f"{given} has {len(given.values)} values; {given.kind} takes {count}. Write {_EXAMPLES[given.kind]}."
        )
    for value in given.values:
        is_number = isinstance(value, (int, float)) or hasattr(value, "__float__")
        if isinstance(value, (bool, str)) or not is_number or not math.isfinite(value):
            raise ConfigError(f"{given}: {value!r} is not a finite number. Write {_EXAMPLES[given.kind]}.")
    return given.values


def _check_range(given: Distribution) -> None:
    low, high = _numbers(given, 2)
    if not low < high:
        raise ConfigError(f"{given}: {low} is not below {high}. Give the lower number first.")
    if given.kind == "loguniform" and low <= 0:
        raise ConfigError(f"{given}: {low} has no logarithm. Both numbers must be above 0.")
    if given.kind == "integers" and (low != int(low) or high != int(high) or high - low >= 2**31 - 1):
        raise ConfigError(f"{given} must have two whole numbers, less than 2^31 - 1 apart.")


def _check_normal(given: Distribution) -> None:
    _mean, std = _numbers(given, 2)
    if not std > 0:
        raise ConfigError(f"{given}: the standard deviation {std} must be above 0.")


def _check_choice(given: Distribution) -> None:
    if not given.values:
        raise ConfigError("choice() has no values. Write choice(1, 2, 5).")


_CHECKS = {
    "uniform": _check_range,
    "loguniform": _check_range,
    "normal": _check_normal,
    "choice": _check_choice,
    "integers": _check_range,
}
