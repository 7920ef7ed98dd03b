"""Snapshots of native envs as bytes: a JSON header, then one record per env.

The header names the env, version, consts and fields that the records belong to. C reads the records: the checks before
that are in this file, and those that depend on the env are in its `env_check` (docs/add-an-env.md).

Wrappers, and params that were changed or are drawn, add arrays after the records (`extras`). A snapshot of plain envs
has none.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.distributions import Distribution, parse
from shoal.errors import ConfigError, SnapshotError
from shoal.native.lib import Module
from shoal.native.params import ParamTable
from shoal.spec import Array
from shoal.wrappers import Wrap

MAGIC = b"SHOALSNP"


@dataclass(frozen=True)
class Saved:
    """The contents of a snapshot, checked as far as Python can."""

    records: Array  # bytes, aligned: C reads numbers from them
    extras: dict[str, Array]  # by name, (envs, bytes)
    params: Array | None  # (envs) of the module's params_dtype
    distributions: dict[str, Distribution]
    made: str  # `ParamTable.made` of the envs that it is from

    def has_params_for(self, table: ParamTable) -> bool:
        """Whether its params replace those of these envs: not if the user made them with other ones."""
        return self.params is not None and self.made == table.made


def pack_snapshot(module: Module, records: Array, wrap: Wrap, table: ParamTable, extras: Mapping[str, Array]) -> bytes:
    """Records (envs, record_bytes) and extras (envs, bytes) as one blob with a header."""
    body = records.tobytes() + b"".join(extra.tobytes() for extra in extras.values())
    facts = {**_identity(module), "count": len(records), "crc32": zlib.crc32(body)}
    if extras:
        facts["extras"] = [[name, extra.shape[1]] for name, extra in extras.items()]
    if wrap:
        facts["wrap"] = str(wrap)
    if "params" in extras:
        facts["made"] = table.made
        facts["distributions"] = {name: str(drawn) for name, drawn in table.distributions.items()}
    head = json.dumps(facts, sort_keys=True).encode()
    return MAGIC + struct.pack("<I", len(head)) + head + body


def _identity(module: Module) -> dict[str, Any]:
    consts = {const.name: const.default for const in module.spec.consts}
    return {
        "env": module.spec.name,
        "version": module.spec.version,
        "consts": consts,
        "fields": module.fields,
        "record_bytes": module.record_bytes,
    }


def read_snapshot(module: Module, blob: bytes, count: int, wrap: Wrap) -> Saved:
    """The contents of a blob, checked to be `count` records of this env with these wrappers.

    The records' contents are not checked.
    """
    start = len(MAGIC) + 4
    if len(blob) < start or blob[: len(MAGIC)] != MAGIC:
        raise SnapshotError("these bytes are not a snapshot: they do not start with its signature.")
    size = struct.unpack_from("<I", blob, len(MAGIC))[0]
    wanted = _identity(module)
    try:
        head = json.loads(blob[start : start + size])
        identity = {key: head[key] for key in wanted}
        num_envs, crc = int(head["count"]), int(head["crc32"])
        sizes = {str(name): int(size) for name, size in head.get("extras", [])}
        drawn = {str(name): str(text) for name, text in head.get("distributions", {}).items()}
        if any(size <= 0 for size in sizes.values()):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SnapshotError("the header of this snapshot cannot be read: the bytes are damaged.") from None
    for key, value in wanted.items():
        if identity[key] != value:
            raise SnapshotError(
                f"this snapshot is of {identity['env']} version {identity['version']} ({key} {identity[key]}), "
                f"not of {wanted['env']} version {wanted['version']} ({key} {value})."
            )
    if num_envs != count:
        raise SnapshotError(
            f"this snapshot holds {num_envs} envs, but {count} are to be restored. Pass {num_envs} env_ids."
        )
    if head.get("wrap", "none") != str(wrap):
        raise SnapshotError(
            f"this snapshot is of {module.spec.name} with the wrappers {head.get('wrap', 'none')}, not {wrap}. "
            "Make the envs with the same wrap."
        )
    body = blob[start + size :]
    lengths = [count * module.record_bytes, *(count * size for size in sizes.values())]
    if len(body) != sum(lengths):
        raise SnapshotError(f"this snapshot holds {len(body)} bytes, not {sum(lengths)}.")
    if zlib.crc32(body) != crc:
        raise SnapshotError("this snapshot is damaged: its checksum differs.")
    ends = np.cumsum(lengths)
    parts = [np.array(np.frombuffer(body[end - n : end], np.uint8)) for n, end in zip(lengths, ends)]  # aligned copies
    extras = {name: part.reshape(count, -1) for name, part in zip(sizes, parts[1:])}
    _check_extras(module, extras)
    params, distributions = _read_params(module, extras.pop("params", None), drawn)
    return Saved(parts[0], extras, params, distributions, str(head.get("made", "")))


def _read_params(module: Module, values: Array | None, texts: Mapping[str, str]) -> tuple[Any, dict[str, Distribution]]:
    """The params of a snapshot and what they are drawn from. C uses some as indices: all are checked."""
    if values is None:
        return None, {}
    spec, dtype = module.spec, module.params_dtype
    known = {param.name: param for param in spec.params}
    if values.shape[1] != dtype.itemsize or not set(texts) <= set(known):
        raise SnapshotError("the params of this snapshot are not those of this env: the bytes are damaged.")
    params = values.reshape(-1).view(dtype)
    try:
        for param in spec.params:
            param.check(spec.name, params[param.name], len(params))
        drawn = {name: parse(text) for name, text in texts.items()}
        checked = {name: known[name].check_drawn(spec.name, rule) for name, rule in drawn.items() if rule is not None}
    except ConfigError as error:
        raise SnapshotError(f"the params of this snapshot are damaged or forged: {error}") from None
    return params, checked


def _check_extras(module: Module, extras: Mapping[str, Array]) -> None:
    """Raises for numbers with which C would leave its memory, or a random stream that gives only zeros."""
    spec = module.spec
    for name in ("wrap_rng", "param_rng"):
        if name in extras and (extras[name].shape[1] != 16 or not extras[name].any(axis=1).all()):
            raise SnapshotError("a random stream of this snapshot is damaged: it would give only zeros.")
    if "applied" in extras and spec.action_kind != "box":
        actions = extras["applied"].reshape(-1).view(np.int32)
        choices = np.array(spec.action_dims, np.int32)
        if (
            actions.size % len(choices)
            or ((actions.reshape(-1, len(choices)) >= choices) | (actions.reshape(-1, len(choices)) < 0)).any()
        ):
            raise SnapshotError("this snapshot holds an action that is out of range: the bytes are damaged or forged.")


def check_records(module: Module, records: Array, ids: Array, batch: int) -> None:
    """Raises for records with which C would leave its memory. `batch` is the address of a Batch with the params."""
    bad = module.check(batch, ids.ctypes.data, len(ids), records.ctypes.data)
    if bad >= 0:
        raise SnapshotError(
            f"env {bad} of this snapshot has a state that {module.spec.name} cannot reach: the bytes are damaged or "
            "forged. Nothing was restored."
        )
