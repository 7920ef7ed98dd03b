"""Snapshots of native envs as bytes: a JSON header, then one record per env.

The header names the env, version, consts and fields that the records belong to. C reads the records: the checks before
that are in this file, and those that depend on the env are in its `env_check` (docs/add-an-env.md).
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np

from shoal.errors import SnapshotError
from shoal.native.lib import Module
from shoal.spec import Array

MAGIC = b"SHOALSNP"


def pack_snapshot(module: Module, records: Array) -> bytes:
    """Records (envs, record_bytes) as one blob with a header."""
    body = records.tobytes()
    facts = {**_identity(module), "count": len(records), "crc32": zlib.crc32(body)}
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


def read_snapshot(module: Module, blob: bytes, count: int) -> Array:
    """The records of a blob, checked to be `count` records of this env. Their contents are not checked."""
    start = len(MAGIC) + 4
    if len(blob) < start or blob[: len(MAGIC)] != MAGIC:
        raise SnapshotError("these bytes are not a snapshot: they do not start with its signature.")
    size = struct.unpack_from("<I", blob, len(MAGIC))[0]
    wanted = _identity(module)
    try:
        head = json.loads(blob[start : start + size])
        identity = {key: head[key] for key in wanted}
        num_envs, crc = int(head["count"]), int(head["crc32"])
    except (ValueError, KeyError, TypeError):
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
    body = blob[start + size :]
    if len(body) != count * module.record_bytes:
        raise SnapshotError(f"this snapshot holds {len(body)} bytes, not {count * module.record_bytes}.")
    if zlib.crc32(body) != crc:
        raise SnapshotError("this snapshot is damaged: its checksum differs.")
    return np.array(np.frombuffer(body, np.uint8))  # a copy, so that it is aligned: C reads numbers from it


def check_records(module: Module, records: Array, ids: Array, batch: int) -> None:
    """Raises for records with which C would leave its memory. `batch` is the address of a Batch with the params."""
    bad = module.check(batch, ids.ctypes.data, len(ids), records.ctypes.data)
    if bad >= 0:
        raise SnapshotError(
            f"env {bad} of this snapshot has a state that {module.spec.name} cannot reach: the bytes are damaged or "
            "forged. Nothing was restored."
        )
