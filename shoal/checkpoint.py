"""Checkpoints: folders of safetensors files and a meta.json, there whole or not at all. Never pickle.

    checkpoints/000000262144/
      weights.safetensors    what playing needs
      state.safetensors      what going on to the bit needs besides: optimizer, random streams, envs, counters
      meta.json              step, score, and the size and checksum of each file

A checkpoint is written under a temporary name, synced to the disk and renamed; a kill at any moment leaves the ones
before it as they were. Loading checks every file's size and checksum first, so a damaged one is told, never half used.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.errors import CheckpointError
from shoal.runs import write_atomic

FORMAT = 1
META_LIMIT = 1 << 20  # bytes: a meta.json is far smaller
FILES = ("weights", "state")
NAME = r"\d{12}"  # of a checkpoint's folder: its step


def save(
    folder: Path, step: int, files: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any], keep: int = 2
) -> Path:
    """Writes `folder/<step>` and then removes all but the newest `keep` and the best one."""
    from safetensors.torch import save_file

    final = folder / f"{step:012d}"
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        recover(folder)
        temporary.mkdir()
        described = {}
        for name, tensors in files.items():
            path = temporary / f"{name}.safetensors"
            save_file({key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}, path)
            _sync(path)
            described[path.name] = {"bytes": path.stat().st_size, "crc32": _crc(path)}
        meta = {"format": FORMAT, "step": step, "files": described, **facts}
        write_atomic(temporary / "meta.json", json.dumps(meta, indent=1).encode())
        _sync(temporary)
        if final.exists() and _is_same(final, described):  # the same step again: what is there is whole and stays
            shutil.rmtree(temporary, ignore_errors=True)
        elif final.exists():
            old = folder / f".{final.name}.{os.getpid()}.old"
            final.rename(old)
            temporary.rename(final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            temporary.rename(final)
        _sync(folder)
    except Exception as error:
        with contextlib.suppress(OSError):
            recover(folder)
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"the checkpoint of step {step} cannot be written to {folder}: {reason}. "
            "The ones before it are as they were. Make room, or choose another place with --runs."
        ) from error
    prune(folder, keep)
    return final


def mark_best(folder: Path, checkpoint: Path, score: float) -> None:
    """Remembers which checkpoint is the best one: it is never pruned."""
    try:
        write_atomic(folder / "best.json", json.dumps({"checkpoint": checkpoint.name, "score": score}).encode())
    except OSError as error:
        raise CheckpointError(f"{folder / 'best.json'} cannot be written: {error.strerror}. Make room.") from error


def prune(folder: Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints and the best one."""
    best = ""
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        best = str(json.loads((folder / "best.json").read_text()).get("checkpoint"))
    found = sorted(path for path in folder.iterdir() if re.fullmatch(NAME, path.name))
    for path in found[:-keep] if keep else []:
        if path.name != best:
            shutil.rmtree(path, ignore_errors=True)


def read_meta(path: Path) -> dict[str, Any]:
    """What meta.json says, checked."""
    file = path / "meta.json"
    if not path.is_dir() or not file.is_file() or file.is_symlink():
        kind = "is not a folder" if path.exists() and not path.is_dir() else "has no meta.json"
        hint = " Shoal's checkpoints are folders; it never loads pickles." if path.is_file() else ""
        raise CheckpointError(f"{path} is not a checkpoint: it {kind}.{hint}")
    try:
        if file.stat().st_size > META_LIMIT:
            raise CheckpointError(f"{file} is larger than {META_LIMIT:,} bytes: it is not ours.")
        meta = json.loads(file.read_text())
        files = {str(name): (int(about["bytes"]), int(about["crc32"])) for name, about in meta["files"].items()}
        step, iteration = int(meta["step"]), int(meta.get("iteration", 0))
        wall_s = float(meta.get("wall_s", 0.0))
        if not (0 <= step < 10**12 and 0 <= iteration < 10**12 and 0.0 <= wall_s < math.inf):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise CheckpointError(f"{file} cannot be read: it is damaged.") from None
    if meta.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {meta.get('format')}; this Shoal reads format {FORMAT}.")
    for name in files:
        if name not in {f"{known}.safetensors" for known in FILES}:  # no path of someone else's choosing is opened
            raise CheckpointError(f"{file} names the file {name!r}, which no checkpoint has.")
    return {**meta, "step": step, "iteration": iteration, "wall_s": wall_s, "files": files}


def load(path: Path, names: tuple[str, ...] = FILES) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The files of a checkpoint by name, and its meta. Anything damaged or foreign raises a CheckpointError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    meta = read_meta(path)
    found = {}
    for name in names:
        file = path / f"{name}.safetensors"
        if file.name not in meta["files"]:
            raise CheckpointError(f"{path} has no {file.name}.")
        size, crc = meta["files"][file.name]
        if file.is_symlink() or not file.is_file() or file.stat().st_size != size or _crc(file) != crc:
            raise CheckpointError(f"{file} is damaged: its size or checksum differs from meta.json's.")
        try:
            found[name] = load_file(file)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{file} is not a safetensors file: {error}.") from None
    return found, meta


def load_newest(paths: list[Path], names: tuple[str, ...] = FILES) -> tuple[Path, dict[str, dict[str, Tensor]], Any]:
    """The newest of the checkpoints that can be loaded. Damaged ones are passed over."""
    problems = []
    for path in reversed(paths):
        try:
            return (path, *load(path, names))
        except CheckpointError as error:
            problems.append(str(error))
    raise CheckpointError(problems[0] if problems else "this run has no checkpoint yet.")


def from_bytes(data: bytes) -> Tensor:
    """Bytes as a tensor, to be saved."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


def to_bytes(tensor: Tensor) -> bytes:
    """The bytes again."""
    return bytes(tensor.numpy().tobytes())


def _is_same(path: Path, described: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a checkpoint that is there is whole and holds these very files."""
    with contextlib.suppress(CheckpointError):
        load(path)
        files = read_meta(path)["files"]
        return bool(files == {name: (about["bytes"], about["crc32"]) for name, about in described.items()})
    return False


def _crc(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def recover(folder: Path) -> None:
    """Removes what a killed save left behind, and puts back what it was about to replace. For who writes here only."""
    for path in folder.glob(".*.old"):
        final = folder / path.name[1:13]
        if final.exists() or not re.fullmatch(NAME, final.name):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.rename(final)
    for path in folder.glob(".*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
