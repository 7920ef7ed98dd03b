"""Options as dataclasses: each default is written once; its flag, help, check, TOML key and sweep range are derived.

    @dataclass(frozen=True)
    class PPO:
        learning_rate: float = opt(3e-4, "step size of the optimizer", low=0.0, sweep=LogUniform(1e-5, 1e-1))

Knows nothing of what the options mean.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from shoal.errors import ConfigError, did_you_mean
from shoal.schedules import Schedule, is_call, parse_or_explain

if sys.version_info >= (3, 11):
    import tomllib as toml
else:
    import tomli as toml

T = TypeVar("T")
NUMBER = float | Schedule  # the type of a flag whose option is a float


@dataclass(frozen=True)
class Uniform:
    """A sweep draws uniformly between low and high."""

    low: float
    high: float


@dataclass(frozen=True)
class LogUniform:
    """A sweep draws uniformly in the logarithm."""

    low: float
    high: float


@dataclass(frozen=True)
class LogitUniform:
    """A sweep draws uniformly in log(x / (1 - x)): for values close to 1, such as a discount."""

    low: float
    high: float


@dataclass(frozen=True)
class PowerOfTwo:
    """A sweep draws one of low, 2 low, 4 low .. high."""

    low: int
    high: int


Sweepable = Uniform | LogUniform | LogitUniform | PowerOfTwo


def opt(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    sweep: Sweepable | None = None,
    is_count: bool = False,
    may_change: bool | Literal["above 0"] = False,
    choices: Callable[[], Sequence[str]] | None = None,
    metavar: str | None = None,
    convert: Callable[[Any], Any] | None = None,
) -> Any:
    """A field of an options dataclass.

    Args:
        default: its default value.
        help: its meaning, a phrase without a full stop: `discount per step`.
        low: the lowest value that is accepted.
        high: the highest value that is accepted.
        sweep: the range that a sweep draws from.
        is_count: an int that may be written as 20M, 4096 or 1e6.
        may_change: a float that may be a schedule (shoal/schedules.py): it is read anew in every iteration. "above 0":
            0 turns something off, which cannot happen during a run.
        choices: a function that lists the values of a str (`CORES.names`), for choices that depend on plugins. For
            fixed choices the type is a Literal.
        metavar: the placeholder of the value in `--help`: FILE.
        convert: makes the field's value from another form that Python and TOML may give; flags do not need it.
    """
    metadata: dict[str, Any] = {"help": help, "low": low, "high": high, "sweep": sweep, "is_count": is_count}
    metadata |= {"may_change": may_change, "choices": choices, "metavar": metavar, "convert": convert}
    return dataclasses.field(default=default, metadata=metadata)


def parse_count(text: str) -> int:
    """`20M`, `1.5k`, `2_000` or `1e6` as an int.

    >>> parse_count("1.5M")
    1500000
    """
    parts = re.fullmatch(r"\s*([0-9][0-9_]*\.?[0-9]*(?:[eE]\+?[0-9]{1,3})?)\s*([kKmMbBgG]?)\s*", text)
    scale = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
    if parts:
        value = Decimal(parts[1].replace("_", "")) * scale[parts[2].lower()]
        if value < 2**63 and value == int(value):
            return int(value)
    raise ConfigError(f"'{text}' is not a count. Write it as 20M, 500k, 4096 or 1e6.")


def check(config: Any, where: str) -> None:
    """Raises for a value outside its range. `where` is the flag's prefix, such as `train`."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        flag = f"--{where}.{field.name}".replace("_", "-").replace("--.", "--")
        if isinstance(value, Schedule):
            _check_schedule(value, field, flag, dataclasses.fields(config))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            _check_range(value, field, f"{flag} {value}")
        elif isinstance(value, tuple):
            for part in value:
                if isinstance(part, (int, float)):
                    _check_range(part, field, f"{flag} {part}")


def _check_range(value: float, field: dataclasses.Field[Any], name: str) -> None:
    low, high = field.metadata.get("low"), field.metadata.get("high")
    if value != value:
        raise ConfigError(f"{name} is not a number.")
    if low is not None and value < low:
        raise ConfigError(f"{name} is below {low}, the lowest value.")
    if high is not None and value > high:
        raise ConfigError(f"{name} is above {high}, the highest value.")


def _check_schedule(schedule: Schedule, field: dataclasses.Field[Any], flag: str, fields: Sequence[Any]) -> None:
    """Raises if an option takes no schedule, or not every value of this one. The points hold the extreme values."""
    if not field.metadata.get("may_change"):
        others = ", ".join(other.name for other in fields if other.metadata.get("may_change")) or "none of this table"
        raise ConfigError(
            f"{flag} {schedule}: {field.name} is fixed for the whole run and takes no schedule. Give a number. "
            f"Options that take a schedule: {others}."
        )
    for done, value in schedule.points:
        _check_range(value, field, f"{flag} {schedule}: {value:g} at {done:.0%} of the run")
        if field.metadata["may_change"] == "above 0" and value <= 0.0:
            raise ConfigError(
                f"{flag} {schedule}: {value:g} at {done:.0%} of the run. 0 turns {field.name} off, which a schedule "
                "cannot do. Use values above 0."
            )


def hint_of(field: dataclasses.Field[Any], hint: Any) -> Any:
    """The type of a field: a Literal of its choices, if it has any. That of a float does not depend on `flags`."""
    choices = field.metadata.get("choices")
    if hint == NUMBER:
        return float
    return typing.Literal[tuple(choices())] if choices is not None else hint


def from_dict(cls: type[T], data: Mapping[str, Any], where: str, base: T | None = None, flags: str | None = None) -> T:
    """An options object from a table of a TOML file. Unknown keys and wrong types raise, with a suggestion.

    `where` names the table in messages; `flags` is the prefix of its flags, if that is another word.
    """
    hints = typing.get_type_hints(cls)
    known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ConfigError(f"{where} has no option '{key}'.{did_you_mean(name, known)} It has {', '.join(known)}.")
        value = plain(value)
        if known[name].metadata.get("is_count") and isinstance(value, (str, float)):
            value = parse_count(str(value))
        if (convert := known[name].metadata.get("convert")) is not None:
            value = convert(value)
        hint = hint_of(known[name], hints[name])
        if hint is float and isinstance(value, str) and is_call(value):
            value = _parse_schedule(value, f"{where}.{name}")
        is_schedule = hint is float and isinstance(value, Schedule)  # `check` says whether it may be one
        values[name] = value if is_schedule else _checked(value, hint, f"{where}.{name}")
    config: T = dataclasses.replace(base, **values) if base is not None else cls(**values)  # type: ignore[type-var]
    check(config, where if flags is None else flags)
    return config


def _parse_schedule(text: str, where: str) -> Schedule:
    try:
        return parse_or_explain(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def to_dict(config: Any) -> dict[str, Any]:
    """The options as a table, without those that are None, which TOML cannot express. A schedule becomes its text."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    values = {name: str(value) if isinstance(value, Schedule) else value for name, value in values.items()}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if v is not None}


def read_toml(path: Path) -> dict[str, Any]:
    """The contents of a TOML file. Raises ConfigError with the reason if it cannot be read."""
    try:
        data: dict[str, Any] = toml.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None
    except (toml.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from None
    return data


def parse_toml(text: str) -> dict[str, Any]:
    """The contents of TOML text. Raises ValueError if it is none."""
    data: dict[str, Any] = toml.loads(text)
    return data


def parse_value(text: str) -> Any:
    """A value in TOML's notation (True and False also in Python's); otherwise the text itself."""
    try:
        return toml.loads(f"value = {text.lower() if text in ('True', 'False') else text}")["value"]
    except toml.TOMLDecodeError:
        return text


def write_toml(data: Mapping[str, Any]) -> str:
    """The text of a TOML file."""
    import tomli_w

    return tomli_w.dumps(data)


def flags(cls: type[T]) -> type[T]:
    """Gives tyro the help of every field, also of nested dataclasses, and returns the class."""
    import tyro
    from tyro.constructors import PrimitiveConstructorSpec

    hints = typing.get_type_hints(cls)  # without the annotations of an earlier call
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        hint = hint_of(field, hints[field.name])
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            flags(hint)
        text = field.metadata.get("help")
        if text is None:
            continue
        about = tyro.conf.arg(help=text, metavar=field.metadata.get("metavar"), help_behavior_hint=default_hint)
        parts: list[Any] = [about]
        if field.metadata["is_count"]:
            parts.append(PrimitiveConstructorSpec(1, "N", _count_from_flag, _is_int, lambda value: [str(value)]))
        elif hint is float:
            metavar = "FLOAT|SCHEDULE" if field.metadata.get("may_change") else "FLOAT"
            parts.append(PrimitiveConstructorSpec(1, metavar, number_from_flag, is_number, lambda value: [str(value)]))
            hint = NUMBER  # the default may be a schedule
        cls.__annotations__[field.name] = functools.reduce(lambda t, part: Annotated[t, part], parts, hint)
    return cls


def default_hint(default: str) -> str:
    """The text of a default in `--help`. An empty one is shown as none."""
    return f"(default: {default if default not in ('', repr('')) else 'none'})"


def _count_from_flag(words: list[str]) -> int:
    try:
        return parse_count(words[0])
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _is_int(value: Any) -> bool:
    return isinstance(value, int)


def number_from_flag(words: list[str]) -> Any:
    """A float, or a schedule; `check` says whether the option takes one."""
    try:
        return parse_or_explain(words[0]) if is_call(words[0]) else float(words[0])
    except ConfigError as error:
        raise ValueError(str(error)) from None


def is_number(value: Any) -> bool:
    """Whether a value is what `number_from_flag` returns."""
    return isinstance(value, (int, float, Schedule)) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """A number of NumPy or torch as Python's own, as loops over `np.arange` and `np.logspace` give them."""
    is_foreign = getattr(value, "ndim", None) == 0 and hasattr(value, "item")
    return value.item() if is_foreign else value


def _checked(value: Any, hint: Any, where: str) -> Any:
    """The value in the field's type, or a ConfigError."""
    value = plain(value)
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        if value not in choices:
            raise ConfigError(f"{where} = {value!r}.{did_you_mean(str(value), choices)} Choices: {', '.join(choices)}.")
        return value
    if origin in (typing.Union, types.UnionType):
        own = [choice for choice in choices if choice is not type(None)]
        return None if value is None else _checked(value, own[0], where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where} = {value!r} must be a list, not {type(value).__name__}.")
        return tuple(_checked(part, choices[0], where) for part in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (int, float, str, bool) and (type(value) is not hint):
        raise ConfigError(f"{where} = {value!r} must be {hint.__name__}, not {type(value).__name__}.")
    return value
