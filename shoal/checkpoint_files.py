"""The files of a checkpoint as they are read: meta.json, the checksums, and arrays without torch. See checkpoint.py."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

from shoal.errors import CheckpointError
from shoal.layout import Array

FORMAT = 1
FILES = ("weights", "state")
META_LIMIT = 1 << 20  # bytes: a meta.json is far smaller
COUNT_LIMIT = 1 << 63  # steps and iterations are smaller


def read_meta(path: str | Path) -> dict[str, Any]:
    """The contents of meta.json, validated."""
    path = Path(path)
    file = path / "meta.json"
    if not path.is_dir() or not file.is_file() or file.is_symlink():
        kind = "is not a folder" if path.exists() and not path.is_dir() else "has no meta.json"
        hint = " Checkpoints of Shoal are folders; it never loads pickles." if path.is_file() else ""
        raise CheckpointError(f"{path} is not a checkpoint: it {kind}.{hint}")
    try:
        if file.stat().st_size > META_LIMIT:
            raise CheckpointError(f"{file} is larger than {META_LIMIT:,} bytes: it was not written by Shoal.")
        meta = json.loads(file.read_text())
        files = {str(name): (int(about["bytes"]), int(about["crc32"])) for name, about in meta["files"].items()}
        step, iteration = int(meta["step"]), int(meta.get("iteration", 0))
        wall_s = float(meta.get("wall_s", 0.0))
        if not (0 <= step < COUNT_LIMIT and 0 <= iteration < COUNT_LIMIT and 0.0 <= wall_s < math.inf):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise CheckpointError(f"{file} cannot be read: it is damaged.") from None
    if meta.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {meta.get('format')}; this Shoal reads format {FORMAT}.")
    for name in files:
        if name not in {f"{known}.safetensors" for known in FILES}:  # a forged meta.json must not choose paths
            raise CheckpointError(f"{file} names the file {name!r}, which no checkpoint has.")
    return {**meta, "step": step, "iteration": iteration, "wall_s": wall_s, "files": files}


def find_file(path: Path, meta: dict[str, Any], name: str) -> Path:
    """One of the files of a checkpoint. A missing or damaged one raises CheckpointError."""
    file = path / f"{name}.safetensors"
    if file.name not in meta["files"]:
        raise CheckpointError(f"{path} has no {file.name}.")
    if not is_intact(file, *meta["files"][file.name]):
        raise CheckpointError(f"{file} is damaged: its size or checksum differs from meta.json's.")
    return file


def read_arrays(path: Path, name: str = "weights") -> dict[str, Array]:
    """The tensors of one file as numpy arrays. Types that numpy does not have raise CheckpointError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = find_file(path, read_meta(path), name)
    try:
        return dict(load_file(file))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is not a safetensors file: {error}.") from None


def is_intact(file: Path, size: int, crc: int) -> bool:
    """Whether a file has this size and checksum. Links are not followed."""
    return not file.is_symlink() and file.is_file() and file.stat().st_size == size and _crc(file) == crc


def _crc(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
