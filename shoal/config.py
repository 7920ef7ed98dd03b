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
from typing import Annotated, Any, TypeVar

from shoal.errors import ConfigError, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib as toml
else:
    import tomli as toml

T = TypeVar("T")


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


def opt(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    sweep: Uniform | LogUniform | None = None,
    is_count: bool = False,
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
        choices: a function that lists the values of a str (`CORES.names`), for choices that depend on plugins. For
            fixed choices the type is a Literal.
        metavar: the placeholder of the value in `--help`: FILE.
        convert: makes the field's value from another form that Python and TOML may give; flags do not need it.
    """
    metadata = {"help": help, "low": low, "high": high, "sweep": sweep, "is_count": is_count, "convert": convert}
    return dataclasses.field(default=default, metadata={**metadata, "choices": choices, "metavar": metavar})


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
        value, low, high = getattr(config, field.name), field.metadata.get("low"), field.metadata.get("high")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            name = f"--{where}.{field.name}".replace("_", "-") + f" {value}"
            if value != value:
                raise ConfigError(f"{name} is not a number.")
            if low is not None and value < low:
                raise ConfigError(f"{name} is below {low}, the lowest value.")
            if high is not None and value > high:
                raise ConfigError(f"{name} is above {high}, the highest value.")


def hint_of(field: dataclasses.Field[Any], hint: Any) -> Any:
    """The type of a field: a Literal of its choices, if it has any."""
    choices = field.metadata.get("choices")
    return typing.Literal[tuple(choices())] if choices is not None else hint


def from_dict(cls: type[T], data: Mapping[str, Any], where: str, base: T | None = None) -> T:
    """An options object from a table of a TOML file. Unknown keys and wrong types raise, with a suggestion."""
    hints = typing.get_type_hints(cls)
    known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ConfigError(f"{where} has no option '{key}'.{did_you_mean(name, known)} It has {', '.join(known)}.")
        if known[name].metadata.get("is_count") and isinstance(value, (str, float)):
            value = parse_count(str(value))
        if (convert := known[name].metadata.get("convert")) is not None:
            value = convert(value)
        values[name] = _checked(value, hint_of(known[name], hints[name]), f"{where}.{name}")
    config: T = dataclasses.replace(base, **values) if base is not None else cls(**values)  # type: ignore[type-var]
    check(config, where)
    return config


def to_dict(config: Any) -> dict[str, Any]:
    """The options as a table, without those that are None, which TOML cannot express."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
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


def _checked(value: Any, hint: Any, where: str) -> Any:
    """The value in the field's type, or a ConfigError."""
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        if value not in choices:
            raise ConfigError(f"{where} = {value!r}.{did_you_mean(str(value), choices)} Choices: {', '.join(choices)}.")
        return value
    if origin in (typing.Union, types.UnionType):
        plain = [choice for choice in choices if choice is not type(None)]
        return None if value is None else _checked(value, plain[0], where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where} = {value!r} must be a list, not {type(value).__name__}.")
        return tuple(_checked(part, choices[0], where) for part in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (int, float, str, bool) and (type(value) is not hint):
        raise ConfigError(f"{where} = {value!r} must be {hint.__name__}, not {type(value).__name__}.")
    return value
