"""`metrics.jsonl`: one JSON object per interval, written and flushed line by line. Every run has it.

A full disk does not stop the run: records stay in memory and are written as soon as there is space.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.log.base import Logger, LoggerType, Record, RunFacts

NAME = "metrics.jsonl"


class Jsonl(Logger):
    """The file, the length of its complete lines, and the lines that could not be written so far."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path, self.warn = path, warn
        self.waiting: list[bytes] = []
        self.has_warned = False
        self.file = path.open("a+b", buffering=0)
        self.length = self.file.seek(0, os.SEEK_END)

    def log(self, record: Record) -> None:
        """Writes a line. A number that is not finite is null, which every JSON parser accepts."""
        finite = {key: value if math.isfinite(value) else None for key, value in record.items()}
        self.waiting.append(json.dumps(finite, default=float).encode() + b"\n")
        self._write()

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Tries once more to write the waiting records."""
        self._write()
        if self.waiting:
            self.warn(f"the last {len(self.waiting)} records could not be written to {self.path}")
        self.file.close()

    def _write(self) -> None:
        block = b"".join(self.waiting)
        try:
            self._restore()
            done = 0
            while done < len(block):
                done += self.file.write(block[done:]) or 0
        except OSError as error:
            if not self.has_warned:
                self.has_warned = True
                self.warn(f"{self.path} cannot be written ({error.strerror}); records stay in memory until it can")
            self._remove_partial_line()
        else:
            self.length += len(block)
            self.waiting.clear()

    def _restore(self) -> None:
        """Writes a file that was deleted again: the open file still has all lines."""
        if os.fstat(self.file.fileno()).st_nlink:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b", buffering=0) as fresh:
            self.file.seek(0)
            fresh.write(self.file.read())
        self.file.close()
        self.file = self.path.open("a+b", buffering=0)

    def _remove_partial_line(self) -> None:
        """Removes a line that was written in part."""
        try:
            self.file.truncate(self.length)
        except OSError:
            self.length = os.fstat(self.file.fileno()).st_size  # the partial line stays: readers skip it
            if self.waiting:
                self.waiting[0] = b"\n" + self.waiting[0].lstrip(b"\n")


def open(facts: RunFacts, *, warn: Callable[[str], None] = print) -> Jsonl:
    """Appends to the run's file. After a resume, lines later than the checkpoint are moved to a second file."""
    path = facts.folder / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _rewind(path, facts.resumed_from or sys.maxsize)
    return Jsonl(path, warn)


def _rewind(path: Path, step: float) -> None:
    """Keeps the complete lines up to this step. Later ones, which a resumed run writes again, go to a second file."""
    lines = path.read_bytes().splitlines(keepends=True)
    earlier = [line for line in lines if _step(line) <= step]
    if len(earlier) == len(lines):
        return
    with path.with_suffix(".superseded.jsonl").open("ab") as superseded:
        superseded.writelines(line for line in lines if step < _step(line) < math.inf)
    draft = path.with_suffix(".tmp")
    draft.write_bytes(b"".join(earlier))
    os.replace(draft, path)


def _step(line: bytes) -> float:
    """The step of a line; infinite if the line is incomplete."""
    try:
        return float(json.loads(line)["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


LOGGER = LoggerType(lambda facts, options: open(facts))
