"""Snapshots with other bytes and a checksum that fits them."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np

from shoal.vector.snapshot import MAGIC


def records_of(vec, blob):
    body = blob[len(MAGIC) + 4 + struct.unpack_from("<I", blob, len(MAGIC))[0] :]
    return np.frombuffer(body, np.uint8).reshape(-1, vec.module.record_bytes).copy()


def forged(blob, records):
    """The snapshot with other records, and with the checksum that belongs to them."""
    start = len(MAGIC) + 4
    size = struct.unpack_from("<I", blob, len(MAGIC))[0]
    head = json.loads(blob[start : start + size])
    head["crc32"] = zlib.crc32(records.tobytes())
    text = json.dumps(head, sort_keys=True).encode()
    return MAGIC + struct.pack("<I", len(text)) + text + records.tobytes()
