"""Schedule: a number that changes with the finished fraction of a run, in place of an option's fixed value.

    linear(0.01, 0.001)                    from the first value to the second
    cosine(0.01, 0.001)                    the same, along half a cosine: slow at both ends
    exp(0.01, 0.001)                       by the same factor in every part of the run
    steps(0: 0.01, 0.5: 0.001)             each value from its fraction of the run on
    piecewise(0: 1, 0.3: 0.1, 1: 0.01)     linear from point to point

The notation is that of flags and TOML files; the functions of this module are the same in Python. Which options take a
schedule is said where they are declared (`config.opt`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from shoal.errors import ConfigError, did_you_mean

FORMS = {
    "linear": "linear(0.01, 0.001)",
    "cosine": "cosine(0.01, 0.001)",
    "exp": "exp(0.01, 0.001)",
    "steps": "steps(0: 0.01, 0.5: 0.001)",
    "piecewise": "piecewise(0: 1, 0.3: 0.1, 1: 0.01)",
}
BY_POINTS = ("steps", "piecewise")  # written with their fractions; the others go from 0 to 1
_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, repr=False)
class Schedule:
    """A number by the finished fraction of the run.

    Args:
        kind: one of FORMS.
        points: (fraction, value), with rising fractions between 0 and 1.
    """

    kind: str
    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if self.kind not in FORMS:
            raise ConfigError(f"'{self.kind}' is not a schedule.{did_you_mean(self.kind, FORMS)} {_known()}")
        try:
            points = tuple((float(fraction), float(value)) for fraction, value in self.points)
        except (TypeError, ValueError):
            raise ConfigError(f"the points of {self.kind} are {self.points!r}. Give pairs of numbers.") from None
        object.__setattr__(self, "points", points)
        fractions, values = [at for at, _ in points], self.values
        if len(points) < 2:
            raise ConfigError(f"{self} has {len(points)} of at least 2 points. Give a number, or another point.")
        if bad := [value for value in values if not math.isfinite(value)]:
            raise ConfigError(f"{self} has the value {bad[0]}. Every value must be finite.")
        if bad := [fraction for fraction in fractions if not 0.0 <= fraction <= 1.0]:
            raise ConfigError(f"{self} has a point at {bad[0]:g}. Points are fractions of the run, between 0 and 1.")
        if bad := [later for earlier, later in pairwise(fractions) if later <= earlier]:
            raise ConfigError(f"{self} has a point at {bad[0]:g} after a later one. The fractions must rise.")
        if self.kind == "steps" and fractions[0] > 0.0:
            raise ConfigError(f"{self} has no value before {fractions[0]:g}. Add one: 'steps(0: ...'.")
        if self.kind == "exp" and min(values) <= 0.0:
            raise ConfigError(f"{self} has the value {min(values):g}. exp needs values above 0. Try linear.")

    @property
    def values(self) -> tuple[float, ...]:
        """The values of the points. All others lie between those of two neighbours."""
        return tuple(value for _, value in self.points)

    @property
    def settled(self) -> float:
        """The fraction of the run from which on the value is the last one."""
        changes = [at for (_, before), (at, value) in pairwise(self.points) if value != before]
        return changes[-1] if changes else 0.0

    def number(self, done: float, kind: str | None) -> float | int:
        """The value for a param of a kind: whole for an int, and for steps between whole numbers in a Python env."""
        value = self.at(done)
        are_whole = self.kind == "steps" and all(number.is_integer() for number in self.values)
        return round(value) if kind == "int" or (kind is None and are_whole) else value

    def at(self, done: float) -> float:
        """The value after the fraction `done` (0 to 1) of the run."""
        before = after = self.points[0]
        for point in self.points:
            before, after = after, point
            if done < after[0]:
                break
        else:  # after the last point
            return after[1]
        (start, low), (end, high) = before, after
        if self.kind == "steps" or end == start:  # equal: before the first point
            return low
        part = (done - start) / (end - start)
        if self.kind == "exp":
            value = math.pow(low, 1.0 - part) * math.pow(high, part)
        else:
            value = low + (high - low) * (0.5 * (1.0 - math.cos(math.pi * part)) if self.kind == "cosine" else part)
        return min(max(value, min(low, high)), max(low, high))  # rounding may not lead past the ends

    def __str__(self) -> str:
        """The notation that `parse` reads."""
        if self.kind in BY_POINTS:
            return f"{self.kind}({', '.join(f'{_short(at)}: {_short(value)}' for at, value in self.points)})"
        return f"{self.kind}({', '.join(map(_short, self.values))})"

    __repr__ = __str__  # errors show values by repr


# ---- in Python ----


def linear(start: float, end: float) -> Schedule:
    """From `start` to `end` in a straight line."""
    return Schedule("linear", ((0.0, start), (1.0, end)))


def cosine(start: float, end: float) -> Schedule:
    """From `start` to `end` along half a cosine: slow at both ends of the run."""
    return Schedule("cosine", ((0.0, start), (1.0, end)))


def exp(start: float, end: float) -> Schedule:
    """From `start` to `end` by the same factor in every part of the run. Both are above 0."""
    return Schedule("exp", ((0.0, start), (1.0, end)))


def steps(points: Mapping[float, float]) -> Schedule:
    """Each value from its fraction of the run on: `steps({0: 0.01, 0.5: 0.001})`."""
    return Schedule("steps", tuple(points.items()))


def piecewise(points: Mapping[float, float]) -> Schedule:
    """Linear from point to point, by fraction of the run: `piecewise({0: 1, 0.3: 0.1, 1: 0.01})`.

    Before the first point the value is the first, after the last point the last.
    """
    return Schedule("piecewise", tuple(points.items()))


# ---- as text ----


def is_call(text: str) -> bool:
    """Whether a text has the form `name(...`, which no number has."""
    return _CALL.match(text) is not None


def parse(text: str) -> Schedule | None:
    """The schedule that a text describes; None if it does not begin with the name of a schedule and a bracket."""
    call = _CALL.match(text)
    if call is None or call[1] not in FORMS:
        return None
    return _Reader(text, call[1], call.end()).read()


def parse_or_explain(text: str) -> Schedule:
    """The schedule that a text describes. Raises for any other text, with a suggestion."""
    if (schedule := parse(text)) is not None:
        return schedule
    call = _CALL.match(text)
    near = did_you_mean(call[1], FORMS) if call is not None else ""
    raise ConfigError(f"'{text}' is neither a number nor a schedule.{near} {_known()}")


class _Reader:
    """Reads the arguments of one schedule from left to right."""

    def __init__(self, text: str, kind: str, at: int) -> None:
        self.text, self.kind, self.at = text, kind, at

    def read(self) -> Schedule:
        points: list[tuple[float, float]] = []
        while True:
            first = self._number("a fraction of the run" if self.kind in BY_POINTS else "a number")
            if self.kind in BY_POINTS:
                self._take(":")
                points.append((first, self._number("a number")))
            else:
                points.append((float(len(points)), first))
            is_last = self.kind not in BY_POINTS and len(points) == 2
            if self._take(*((")",) if is_last else (",",) if len(points) < 2 else (",", ")"))) == ")":
                break
        self._skip_spaces()
        if self.at < len(self.text):
            raise self._error("the end")
        return Schedule(self.kind, tuple(points))

    def _skip_spaces(self) -> None:
        self.at += len(self.text[self.at :]) - len(self.text[self.at :].lstrip())

    def _number(self, what: str) -> float:
        self._skip_spaces()
        number = _NUMBER.match(self.text, self.at)
        if number is None:
            raise self._error(what)
        self.at = number.end()
        return float(number[0])

    def _take(self, *signs: str) -> str:
        """Moves past one of these signs, and returns it."""
        self._skip_spaces()
        sign = self.text[self.at : self.at + 1]
        if sign not in signs:
            raise self._error(" or ".join(f"'{sign}'" for sign in signs))
        self.at += 1
        return sign

    def _error(self, expected: str) -> ConfigError:
        found = f"'{self.text[self.at]}'" if self.at < len(self.text) else "the end of the text"
        return ConfigError(
            f"'{self.text}' is not a schedule: expected {expected} at character {self.at + 1}, found {found}. "
            f"Write it as {FORMS[self.kind]}."
        )


def _short(value: float) -> str:
    """The shortest text of a float that reads back as the same."""
    return text if float(text := f"{value:g}") == value else repr(value)


def _known() -> str:
    return f"Schedules: {', '.join(FORMS.values())}."
