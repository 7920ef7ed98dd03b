"""Reads files below one folder, and nothing else: no link out of it, no device, no more bytes than are asked for.

A run's folder may come from anywhere. Whatever is in it, reading ends: wrong JSON, a pipe or a file of 1 TB is the same
as no file.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SMALL = 1 << 20  # bytes of a JSON or TOML file that is read
# without blocking: a pipe would wait for its writer
FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
DEEP = 32  # levels of JSON that are kept


class Root:
    """The folder whose files are read."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()  # it may be a link itself

    def holds(self, path: Path) -> bool:
        """Whether a path exists below the folder, with all links resolved."""
        try:
            return path.resolve(strict=True).is_relative_to(self.folder)
        except (OSError, RuntimeError, ValueError):  # it does not exist; a circle of links; a zero byte
            return False

    def open(self, path: Path) -> int | None:
        """The handle of a regular file below the folder; None for anything else. Links below it are not followed."""
        try:
            parts = path.relative_to(self.folder).parts
            place = str(self.folder)
            for part in parts[:-1]:  # cheaper than resolving the path: a scan opens thousands of files
                place = f"{place}{os.sep}{part}"
                if part == ".." or not stat.S_ISDIR(os.lstat(place).st_mode):
                    return None
            return _open_file(f"{place}{os.sep}{parts[-1]}")
        except (OSError, ValueError, IndexError):
            return None

    def read(self, path: Path, limit: int = SMALL, offset: int = 0) -> bytes | None:
        """At most `limit` bytes from `offset` on; from the end, if the offset is negative. None: no such file."""
        return _read(self.open(path), limit, offset)

    def json(self, path: Path) -> dict[str, Any]:
        """The object in a JSON file; empty if there is none."""
        return parse_object(self.read(path) or b"")


def read_in(folder: str, name: str, limit: int = SMALL, offset: int = 0) -> bytes | None:
    """As `Root.read`, of a file in a folder that is known to be none of links."""
    try:
        return _read(_open_file(f"{folder}{os.sep}{name}"), limit, offset)
    except OSError:
        return None


def _open_file(path: str) -> int | None:
    """The handle of a regular file; a link raises."""
    handle = os.open(path, FLAGS)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    return None


def _read(handle: int | None, limit: int, offset: int) -> bytes | None:
    if handle is None:
        return None
    try:
        size = os.fstat(handle).st_size
        begin = max(0, size + offset) if offset < 0 else offset
        return os.pread(handle, max(0, min(limit, size - begin)), begin)
    except OSError:
        return None
    finally:
        os.close(handle)


def parse_object(text: bytes) -> dict[str, Any]:
    """The object that JSON text holds; empty if it holds none. `plain` makes its values fit for a page."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def plain(value: Any, levels: int = DEEP) -> Any:
    """A value that JSON and JavaScript hold: numbers that are not finite become None, huge ints become floats."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, (int, float)):
        return number(value) if isinstance(value, float) or abs(value) > 2**53 else value
    if levels == 0:
        return None
    if isinstance(value, dict):
        return {str(key): plain(part, levels - 1) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part, levels - 1) for part in value]
    return str(value)  # dates of TOML


def number(value: Any) -> float | None:
    """A finite number; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def complete_lines(data: bytes) -> Iterator[bytes]:
    """The lines that end with a newline: the last one may be half written."""
    return iter(data[: data.rfind(b"\n") + 1].splitlines())
