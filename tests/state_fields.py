"""Reads and writes fields of the State of native envs, through snapshots: tests construct rare positions with it."""

from __future__ import annotations

from typing import Any

from shoal.native.fields import fields_of

from .forging import forged, records_of


def read_state(vec: Any, env: int = 0) -> dict[str, Any]:
    """The fields of one env's State by name: numbers, or arrays that are copies."""
    record = records_of(vec, vec.snapshot([env]))[0]
    values = {field.path: field.read(record).copy() for field in _fields(vec)}
    return {name: value if value.shape else value.item() for name, value in values.items()}


def write_state(vec: Any, env: int = 0, **values: Any) -> None:
    """Sets fields of one env's State. The env's own check refuses what is out of range."""
    blob = vec.snapshot([env])
    records = records_of(vec, blob)
    fields = {field.path: field for field in _fields(vec)}
    for name, value in values.items():
        fields[name].read(records[0])[...] = value
    vec.restore(forged(blob, records[0]), [env])


_known: dict[Any, Any] = {}


def _fields(vec: Any) -> Any:
    source = vec.module.source
    key = (str(source.header), str(source))
    if key not in _known:
        _known[key] = fields_of(source)
    assert _known[key], "the fields of State could not be read"
    return _known[key]
