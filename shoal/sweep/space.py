"""The space of a sweep: which options it changes, and their ranges.

Ranges come from the env's TOML file (`[sweep.train] learning_rate = {log = [1e-4, 1e-2]}`), a file of the user, flags
and Python. Where none of them has any, the ranges that the options of `--train.*` declare are used.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal import config, registry
from shoal.errors import ConfigError, did_you_mean
from shoal.sweep import ranges
from shoal.sweep.ranges import Range
from shoal.train.options import PLUGIN_TABLES, TABLES, Options, fit_segment, merge, tuned

OFF, DEFAULT = "off", "default"  # words in place of a range
CHANGE = "__change__"  # a table of a range, and a change of it
SIZES = ("train.horizon", "train.minibatches", "train.batch_size", "vec.num_envs")  # a segment depends on them
FIXED = ("eval", "save", "league")  # tables that say how a run is judged or stored
SETTINGS = ("trials", "sampler", "workers", "early_stop", "finals", "final_seeds")  # of [sweep] itself


@dataclasses.dataclass(frozen=True)
class Space:
    """Ranges by option: `train.learning_rate`."""

    ranges: Mapping[str, Range]

    def __iter__(self) -> Iterator[str]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    def as_texts(self) -> dict[str, str]:
        """The ranges as they are written on a command line."""
        return {name: str(part) for name, part in self.ranges.items()}

    def apply(self, options: Options, values: Mapping[str, Any]) -> Options:
        """The options with these values: `{"train.learning_rate": 3e-4}`."""
        tables: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            table, _, option = name.partition(".")
            tables.setdefault(table, {})[option] = value
        changed = merge(options, tables, "sweep", has_presets=False)
        if "train.segment" not in self.ranges and any(name in values for name in SIZES):
            changed = fit_segment(changed)
        return changed

    def values_of(self, options: Options) -> dict[str, Any]:
        """The values that options have in this space; without those that are not numbers, such as schedules."""
        values = {}
        for name, part in self.ranges.items():
            table, _, option = name.partition(".")
            holder = getattr(options, table)
            value = holder.get(option) if isinstance(holder, Mapping) else getattr(holder, option)
            if part.kind == "choice" or ranges.is_number(value):
                values[name] = value
        return values


def find_tables(env: Any, options: Options, on_gpu: bool) -> dict[str, Any]:
    """The `[sweep]` table of the env's TOML file, for this algorithm and device."""
    own = tuned(env) if isinstance(env, str) else {}
    if options.algo != own.get("algo", "ppo"):
        own = own.get(options.algo, {})
    tables: dict[str, Any] = {}
    for part in (own, own.get("cuda", {}) if on_gpu else {}):
        tables = over(tables, part.get("sweep", {}))
    return tables


def over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of ranges over others, option by option."""
    merged = {name: dict(value) if isinstance(value, Mapping) else value for name, value in below.items()}
    for name, value in above.items():
        if isinstance(value, Mapping) and isinstance(merged.get(name), Mapping):
            merged[name] = {key: _joined(merged[name].get(key), value.get(key)) for key in {**merged[name], **value}}
        else:
            merged[name] = value
    return merged


def _joined(below: Any, above: Any) -> Any:
    """One range over another. PufferLib's `{min = 1e-4}` changes a part of it."""
    if above is None:
        return below
    if ranges.is_change(above) and isinstance(below, Mapping) and ("distribution" in below or ranges.is_change(below)):
        return {**below, **above}
    if ranges.is_change(above) and below is not None and not ranges.is_change(below):
        return {CHANGE: (below, above)}
    return above


def settings_of(tables: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings of a `[sweep]` table that are no ranges: `trials = 100`."""
    plain = {name: value for name, value in tables.items() if not isinstance(value, Mapping)}
    for name in plain:
        if name not in SETTINGS:
            known = [*SETTINGS, *_tables()]
            raise ConfigError(f"{where}: sweep.{name}.{did_you_mean(name, known)} Known: {', '.join(known)}.")
    return plain


def make_space(env: Any, options: Options, layers: Sequence[Mapping[str, Any]]) -> Space:
    """The space that layers of `[sweep]` tables describe; later ones override. Mistakes raise ConfigError.

    `off` in place of a range removes an option, `default` means the range that it declares. Without any range, the
    declared ranges of the algorithm's options are used.
    """
    tables: dict[str, Any] = {}
    for layer in layers:
        tables = over(tables, {name: part for name, part in layer.items() if isinstance(part, Mapping)})
    given = {f"{table}.{name}": value for table, part in tables.items() for name, value in part.items()}
    found: dict[str, Range] = {}
    if all(value == OFF for value in given.values()):
        found = declared_ranges(options)
        for name in given:
            _find_field(env, options, *_split(name))
    for name, value in given.items():
        table, option = _split(name)
        name = f"{table}.{option}"
        if value == OFF:
            found.pop(name, None)
            continue
        field, hint = _find_field(env, options, table, option)
        where, is_int = f"sweep.{name}", hint is int
        found[name] = _read(value, field, is_int, where)
        _check_ends(found[name], field, hint, where)
    if not found:
        raise ConfigError("the sweep has no ranges. Add one: --sweep.train.learning-rate 'log(1e-4, 1e-2)'.")
    space = Space(found)
    for name, part in found.items():
        for value in part.ends:
            try:
                space.apply(options, {name: value})
            except ConfigError as error:
                raise ConfigError(f"sweep.{name} = {part}: {error}") from None
    return space


def _read(value: Any, field: Any, is_int: bool, where: str) -> Range:
    """A range as it is written, `default`, or a change of either."""
    if isinstance(value, Mapping) and CHANGE in value:
        below, above = value[CHANGE]
        return ranges.changed(_read(below, field, is_int, where), above, where)
    if ranges.is_change(value):
        return ranges.changed(_read(DEFAULT, field, is_int, where), value, where)
    if value != DEFAULT:
        return ranges.read(value, is_int, where)
    if field is None or field.metadata.get("sweep") is None:
        raise ConfigError(f"{where}: the option declares no range. {ranges.EXAMPLE}.")
    return ranges.declared(field.metadata["sweep"], is_int)


def declared_ranges(options: Options) -> dict[str, Range]:
    """The ranges that the options of the algorithm declare."""
    fields = dataclasses.fields(options.train)
    hints = typing.get_type_hints(type(options.train))
    return {
        f"train.{field.name}": ranges.declared(field.metadata["sweep"], hints[field.name] is int)
        for field in fields
        if field.metadata.get("sweep") is not None
    }


def _tables() -> tuple[str, ...]:
    """The tables whose options a sweep may change."""
    return (*(name for name in TABLES if name not in FIXED), *PLUGIN_TABLES, "env")


def _split(name: str) -> tuple[str, str]:
    """`train.learning-rate` as table and option."""
    table, _, option = name.partition(".")
    return table, option.replace("-", "_")


def _find_field(env: Any, options: Options, table: str, option: str) -> tuple[Any, Any]:
    """The field of an option and its type; of an env's own param: None and its type. Unknown ones raise."""
    known = _tables()
    if table not in known:
        raise ConfigError(f"sweep.{table}: no such table.{did_you_mean(table, known)} Known: {', '.join(known)}.")
    if table == "env":
        return None, _param_type(env, option)
    holder = getattr(options, table)
    fields = {field.name: field for field in dataclasses.fields(holder)}
    if option not in fields:
        near = did_you_mean(option, fields)
        listed = ", ".join(fields) or "none of its own"
        raise ConfigError(f"sweep.{table}.{option}: no such option.{near} {table} has {listed}.")
    hint = config.hint_of(fields[option], typing.get_type_hints(type(holder))[option])
    return fields[option], hint


def _param_type(env: Any, name: str) -> Any:
    """The type of a param of a native env; of a Python env unknown."""
    if not isinstance(env, str) or not registry.is_native(env):
        return None
    from shoal.native import lib

    spec = lib.load(registry.find(env)).spec
    spec.split({name: 0})  # raises for an unknown name, with a suggestion
    kinds = {param.name: param.kind for param in spec.params} | {const.name: "int" for const in spec.consts}
    return int if kinds.get(name) == "int" else None


def _check_ends(part: Range, field: Any, hint: Any, where: str) -> None:
    """Raises where a range leaves what its option takes."""
    if field is None:
        return
    for value in part.ends:
        low, high = field.metadata.get("low"), field.metadata.get("high")
        if ranges.is_number(value) and low is not None and value < low:
            raise ConfigError(f"{where} = {part}: {value:g} is below {low:g}, the lowest value of the option.")
        if ranges.is_number(value) and high is not None and value > high:
            raise ConfigError(f"{where} = {part}: {value:g} is above {high:g}, the highest value of the option.")
    if part.kind != "choice" and hint not in (int, float):
        raise ConfigError(f"{where} = {part}: the option is not a number. Use choice = [a, b].")
