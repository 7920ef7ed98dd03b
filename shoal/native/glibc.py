"""Which glibc a compiled library needs: the version that the tag of a wheel promises (`manylinux_2_28_x86_64`).

A library names the version of every function that it takes from glibc. It loads wherever glibc is at least as new as
the newest of them, if it needs no library besides those that every Linux has.

Uses the standard library only: the build hook runs before Shoal's dependencies are installed.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# every Linux with glibc has these; torch's wheels are tagged manylinux_2_28, so an older tag would help nobody
LIBRARIES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
OLDEST = (2, 28)
DYNAMIC, NEEDED, NEEDED_VERSIONS = 6, 1, 0x6FFFFFFE  # kinds of sections, and of entries


@dataclass(frozen=True)
class Needs:
    """What a library takes from the system."""

    libraries: tuple[str, ...]
    glibc: tuple[int, int]  # the newest version of a function


def needs(library: Path) -> Needs:
    """Reads a 64-bit little-endian ELF file. Raises ValueError if it is none."""
    data = library.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{library.name} is not a 64-bit ELF library")
    libraries: list[str] = []
    newest = (2, 0)
    for kind, strings, section, count in _sections(data):
        if kind == DYNAMIC:
            for at in range(0, len(section), 16):
                tag, value = struct.unpack_from("<QQ", section, at)
                libraries += [_text(strings, value)] if tag == NEEDED else []
        elif kind == NEEDED_VERSIONS:
            newest = max([newest, *_versions(section, strings, count)])
    return Needs(tuple(libraries), newest)


def tag(libraries: Iterable[Path]) -> str:
    """The platform tag of a wheel with these libraries; empty if they need a library that not every Linux has."""
    newest = OLDEST
    for library in libraries:
        found = needs(library)
        if not set(found.libraries) <= set(LIBRARIES):
            return ""
        newest = max(newest, found.glibc)
    return f"manylinux_{newest[0]}_{newest[1]}_{platform.machine()}"


def _sections(data: bytes) -> Iterator[tuple[int, bytes, bytes, int]]:
    """(kind, its strings, its bytes, number of entries) of every section."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    # name, kind, flags, address, offset, size, link, info
    heads = [struct.unpack_from("<IIQQQQII", data, table + k * size) for k in range(count)]
    for _name, kind, _flags, _address, offset, length, link, info in heads:
        if kind in (DYNAMIC, NEEDED_VERSIONS):
            strings = data[heads[link][4] : heads[link][4] + heads[link][5]]
            yield kind, strings, data[offset : offset + length], info


def _versions(section: bytes, strings: bytes, count: int) -> Iterator[tuple[int, int]]:
    """The versions of glibc among the needed versions: a list of files, each with a list of names."""
    at = 0
    for _file in range(count):
        _version, names, _library, first, following = struct.unpack_from("<HHIII", section, at)
        entry = at + first
        for _name in range(names):
            _hash, _flags, _other, text, step = struct.unpack_from("<IHHII", section, entry)
            name = _text(strings, text)
            if name.startswith("GLIBC_") and name[6:7].isdigit():
                major, minor = name.removeprefix("GLIBC_").split(".")[:2]
                yield int(major), int(minor)
            entry += step
        at += following


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()
