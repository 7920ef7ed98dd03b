"""Checkpoints: folders of safetensors files and a meta.json, written completely or not at all. Never pickle.

    checkpoints/000000262144/
      weights.safetensors    the policy
      state.safetensors      the rest of an exact resume: optimizer, random streams, envs, counters; absent where a
                             policy was kept for being the best one (selection.py)
      meta.json              step, score, and the size and checksum of each file

A checkpoint is written under a temporary name, synced to the disk and renamed. A kill at any moment leaves the earlier
checkpoints intact. Loading verifies the size and checksum of every file first: a damaged checkpoint raises, and no part
of it is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.checkpoint_files import FILES, FORMAT, find_file, is_intact
from shoal.checkpoint_files import read_meta as read_meta
from shoal.errors import CheckpointError
from shoal.runs import STATE_FILE, checkpoint_name, checkpoint_step, write_atomic

CHUNK_BYTES = 4 << 20  # copied at a time, from a GPU or from a tensor that is not contiguous
LEFTOVER = re.compile(
    r"\.(?P<checkpoint>[0-9]{12,})\.[0-9]+\.(?P<kind>tmp|old)"
)  # names that `save` uses while it writes
# the names of safetensors, in the order of its writer: large elements first, so that every tensor is aligned
DTYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

Files = dict[str, dict[str, Tensor]]


def save(
    folder: str | Path, step: int, files: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any], keep: int = 2
) -> Path:
    """Writes `folder/<step>`, then removes all checkpoints but the newest `keep` and the best one.

    Tensors are written directly: no copy of them is made in memory.
    """
    folder = Path(folder)
    final = folder / checkpoint_name(step)
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        recover(folder)
        temporary.mkdir()
        described = {}
        for name, tensors in files.items():
            path = temporary / f"{name}.safetensors"
            described[path.name] = write_tensors(path, tensors)
        meta = {"format": FORMAT, "step": step, "files": described, **facts}
        write_atomic(temporary / "meta.json", json.dumps(meta, indent=1).encode())
        _sync(temporary)
        if final.exists() and _holds(final, described):  # saved before with the same contents
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
            "Earlier checkpoints are intact. Free disk space, or choose another place with --runs."
        ) from error
    prune(folder, keep)
    return final


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Writes a safetensors file, synced to the disk, and returns its size and checksum.

    The bytes are the same as from safetensors' `save_file`, which copies every tensor before it writes.
    """
    order = {dtype: rank for rank, dtype in enumerate(DTYPES)}
    for name, tensor in tensors.items():
        if tensor.dtype not in order:
            raise CheckpointError(f"{name} is {tensor.dtype}, which safetensors cannot store")
    named = sorted(tensors.items(), key=lambda item: (order[item[1].dtype], item[0]))
    header, begin = {}, 0
    for name, tensor in named:
        end = begin + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    size, crc = 0, 0
    with path.open("wb", buffering=0) as file:
        for block in (len(text).to_bytes(8, "little"), text, *(tensor for _, tensor in named)):
            for chunk in _chunks(block) if isinstance(block, Tensor) else (memoryview(block),):
                done = 0
                while done < len(chunk):  # on a nearly full disk, write() may take only a part
                    done += file.write(chunk[done:]) or 0
                size, crc = size + len(chunk), zlib.crc32(chunk, crc)
        os.fsync(file.fileno())
    return {"bytes": size, "crc32": crc}


def _chunks(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor in C order. A contiguous one on the CPU is not copied; others are, chunk by chunk."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.numel() == 0:
        return
    if tensor.is_contiguous():
        flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)  # a dimension of size 1 may have any stride
        for begin in range(0, len(flat), CHUNK_BYTES):
            yield memoryview(flat[begin : begin + CHUNK_BYTES].cpu().numpy())
        return
    row_bytes = tensor[0].numel() * tensor.element_size()
    if row_bytes > CHUNK_BYTES:
        for row in tensor:
            yield from _chunks(row)
        return
    rows = max(1, CHUNK_BYTES // row_bytes)
    for begin in range(0, len(tensor), rows):
        yield from _chunks(tensor[begin : begin + rows].contiguous())


def mark_best(folder: str | Path, checkpoint: str | Path, score: float, by: str = "") -> None:
    """Records which checkpoint is the best one, and by what: it is never pruned."""
    file = Path(folder) / "best.json"
    try:
        write_atomic(file, json.dumps({"checkpoint": Path(checkpoint).name, "score": score, "by": by}).encode())
    except OSError as error:
        raise CheckpointError(f"{file} cannot be written: {error.strerror}. Free disk space.") from error


def prune(folder: str | Path, keep: int) -> None:
    """Removes all but the best checkpoint and the newest `keep` of those that can be resumed. 0 keeps all."""
    folder = Path(folder)
    best = ""
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        best = str(json.loads((folder / "best.json").read_text()).get("checkpoint"))
    steps = {step: path for path in folder.iterdir() if (step := checkpoint_step(path)) is not None}
    resumable = [step for step in sorted(steps) if (steps[step] / STATE_FILE).is_file()]
    for step, path in steps.items() if keep else ():
        if step not in resumable[-keep:] and path.name != best:
            shutil.rmtree(path, ignore_errors=True)


def load(path: str | Path, names: Sequence[str] = FILES) -> tuple[Files, dict[str, Any]]:
    """The tensors of a checkpoint's files by file name, and its meta.

    A damaged or foreign checkpoint raises CheckpointError. The tensors are mapped from the files, so that loading does
    not take twice the memory.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    meta = read_meta(path)
    loaded: Files = {}
    for name in names:
        file = find_file(path, meta, name)
        try:
            loaded[name] = load_file(file)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{file} is not a safetensors file: {error}.") from None
    return loaded, meta


def load_newest(paths: Sequence[str | Path], names: Sequence[str] = FILES) -> tuple[Path, Files, dict[str, Any]]:
    """The newest checkpoint that can be loaded. Damaged ones are skipped."""
    problems = []
    for path in reversed(paths):
        try:
            return (Path(path), *load(path, names))
        except CheckpointError as error:
            problems.append(str(error))
    raise CheckpointError(problems[0] if problems else "this run has no checkpoint.")


def from_bytes(data: bytes) -> Tensor:
    """Bytes as a tensor, to be saved."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


def to_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor that `from_bytes` made."""
    return bytes(tensor.numpy().tobytes())


def _holds(path: Path, described: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a checkpoint is intact and consists of exactly these files."""
    with contextlib.suppress(CheckpointError, OSError):
        files = read_meta(path)["files"]
        return files == {name: (about["bytes"], about["crc32"]) for name, about in described.items()} and all(
            is_intact(path / name, *about) for name, about in files.items()
        )
    return False


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def recover(folder: str | Path) -> None:
    """Removes what a killed `save` left in the folder, and restores the checkpoint that it was about to replace.

    Other files and folders are never touched. Only the process that writes these checkpoints may call it.
    """
    folder = Path(folder)
    for path in folder.glob(".*"):
        leftover = LEFTOVER.fullmatch(path.name)
        if leftover is None:  # not written by `save`
            continue
        final = folder / leftover["checkpoint"]
        if leftover["kind"] == "old" and not final.exists():
            path.rename(final)
        else:
            shutil.rmtree(path, ignore_errors=True)
