"""Snapshots of native envs as bytes: a head in JSON, then one record for each env.

The head says which env, version, consts and fields the records belong to. The records are read by C: what is checked
before C sees them is here, and what only the env can judge is its `env_check` (docs/add-an-env.md).
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
    """Records (envs, record_bytes) as one blob that says what it is."""
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
    """The records of a blob, checked to be of this env and of `count` envs. What they hold is not checked."""
    start = len(MAGIC) + 4
    if len(blob) < start or blob[: len(MAGIC)] != MAGIC:
        raise SnapshotError("these bytes are not a snapshot: they do not begin with its mark.")
    size = struct.unpack_from("<I", blob, len(MAGIC))[0]
    wanted = _identity(module)
    try:
        head = json.loads(blob[start : start + size])
        identity = {key: head[key] for key in wanted}
        held, crc = int(head["count"]), int(head["crc32"])
    except (ValueError, KeyError, TypeError):
        raise SnapshotError("this snapshot's head cannot be read: the bytes are damaged.") from None
    for key, value in wanted.items():
        if identity[key] != value:
            raise SnapshotError(
                f"this snapshot is of {identity['env']} version {identity['version']} ({key} {identity[key]}), "
                f"not of {wanted['env']} version {wanted['version']} ({key} {value})."
            )
    if held != count:
        raise SnapshotError(f"this snapshot holds {held} envs, to be put into {count}. Pass env_ids for {held}.")
    body = blob[start + size :]
    if len(body) != count * module.record_bytes:
        raise SnapshotError(f"this snapshot holds {len(body)} bytes, not {count * module.record_bytes}.")
    if zlib.crc32(body) != crc:
        raise SnapshotError("this snapshot's bytes are damaged: its checksum differs.")
    return np.array(np.frombuffer(body, np.uint8))  # a copy is aligned: C reads numbers from it


def check_records(module: Module, records: Array, ids: Array, batch: int) -> None:
    """Refuses records that would make C leave its memory. `batch` is the address of a Batch with the envs' params."""
    bad = module.check(batch, ids.ctypes.data, len(ids), records.ctypes.data)
    if bad >= 0:
        raise SnapshotError(
            f"env {bad} of this snapshot is in a state that {module.spec.name} cannot reach: the bytes were damaged or "
            "forged. Nothing was restored."
        )
