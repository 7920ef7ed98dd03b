"""The fields of an env's State: names, types and offsets, so that a debugger can show them.

C keeps no names in a library. The names are read from the header's text; a small library, compiled on demand, says
where each field is and of which type. What the text does not give away (macros, unions) is left out.
"""

from __future__ import annotations

import ctypes
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import BuildError
from shoal.native import build
from shoal.spec import Array

# what _Generic maps the types of C to: numbers that Python maps to dtypes
TYPES = {
    "float": "f4",
    "double": "f8",
    "int8_t": "i1",
    "uint8_t": "u1",
    "int16_t": "i2",
    "uint16_t": "u2",
    "int32_t": "i4",
    "uint32_t": "u4",
    "int64_t": "i8",
    "uint64_t": "u8",
    "char": "i1",
}
LARGEST_ARRAY = 64  # elements of an array of structs that are listed
MOST_DIMENSIONS = 4  # of an array that is listed


@dataclass(frozen=True)
class Field:
    """One field of State. Its path is that of C: `bodies[1].x`."""

    path: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # () for a number

    def read(self, state: Array) -> Array:
        """Its value in the bytes of a State."""
        end = self.offset + int(np.prod(self.shape)) * self.dtype.itemsize
        value: Array = state[self.offset : end].view(self.dtype).reshape(self.shape)
        return value


def fields_of(source: build.Source) -> tuple[Field, ...]:
    """The fields of State that the header's text names; none if it cannot be read or no compiler is there.

    The text is that of the header and of the files of its folder that it includes, after the consts that were set.
    """
    assert source.header is not None
    own = [file for file in source.files() if build.CORE not in file.parents]
    text = "".join(f"{name} = {value};\n" for name, value in source.consts)
    text += "\n".join(_without_comments(file.read_text(errors="replace")) for file in own)
    paths = list(_paths(text, "State"))
    if not paths:
        return ()
    try:
        with tempfile.TemporaryDirectory(prefix="shoal-fields-") as folder:
            return _locate(source, paths, Path(folder))
    except BuildError:
        return ()


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def _paths(text: str, struct: str, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """The fields of a struct and their numbers of dimensions. Fields that are structs are opened.

    The struct is that of ENV_STATE, or of `typedef struct { … } name;`.
    """
    listed = re.search(r"^[ \t]*#[ \t]*define[ \t]+ENV_STATE\(X\)((?:[^\n]*\\\n)*[^\n]*)", text, re.MULTILINE)
    if struct == "State" and listed:
        yield from ((name, 0) for _, name in re.findall(r"X\(\s*([\w ]+?)\s*,\s*(\w+)\s*\)", listed[1]))
        return
    body = re.search(rf"typedef\s+struct\s*\w*\s*\{{([^{{}}]*)\}}\s*{struct}\s*;", text)
    for declaration in body[1].split(";") if body and depth < 4 else ():
        match = re.match(r"\s*((?:const |unsigned |struct )*\w+)\s+(.*)", " ".join(declaration.split()))
        if not match or re.search(r"[*:]", re.sub(r"\[[^\]]*\]", "", declaration)):  # pointers and bits
            continue
        kind = match[1].split()[-1]
        is_struct = re.search(rf"\}}\s*{kind}\s*;", text) is not None
        for declarator in re.findall(r"\w+(?:\s*\[[^\]]*\])*", re.sub(r"\s*\[\s*", "[", match[2])):
            name, sizes = re.match(r"\w+", declarator)[0], re.findall(r"\[([^\]]*)\]", declarator)  # type: ignore[index]
            if not is_struct and len(sizes) <= MOST_DIMENSIONS:
                yield prefix + name, len(sizes)
            if not is_struct:
                continue
            length = _number(text, sizes[0]) if sizes else 0
            places = [f"{name}[{k}]" for k in range(min(length, LARGEST_ARRAY))] if sizes else [name]
            for place in places:
                yield from _paths(text, kind, f"{prefix}{place}.", depth + 1)


def _number(text: str, size: str) -> int:
    """The length of an array of structs: a number, or the name of an enum's constant or of one of ENV_CONSTS."""
    name = size.strip()
    if name.isdigit():
        return int(name)
    given = re.search(rf"\b{re.escape(name)}\s*=\s*(\d+)", text) if name else None
    match = given or (re.search(rf"X\(\s*{re.escape(name)}\s*,\s*(\d+)\s*,", text) if name else None)
    return int(match[1]) if match else 0


def _locate(source: build.Source, paths: list[tuple[str, int]], folder: Path) -> tuple[Field, ...]:
    """Compiles a table with a row for each path. One path that does not compile fails all of them."""
    kinds = ", ".join(f"{kind}: {number}" for number, kind in enumerate(TYPES))
    rows = []
    for path, dimensions in paths:
        parts = [f"((State *)0)->{path}" + "[0]" * k for k in range(dimensions + 1)]
        sizes = [f"sizeof {part}" for part in parts] + ["0"] * (MOST_DIMENSIONS - dimensions)
        rows.append(f"{{offsetof(State, {path}), _Generic({parts[-1]}, {kinds}, default: -1), {', '.join(sizes)}}}")
    program, library = folder / "fields.c", folder / "fields.so"
    table = f"long long shoal_fields[][{3 + MOST_DIMENSIONS}] = {{{', '.join(rows)}}};"
    program.write_text(f"#include ENV_HEADER\n#include <stddef.h>\n{table}\n")
    command = [*build.find_compiler(), "-x", "c", "-std=c11", "-w", "-fPIC", "-shared", f"-I{build.NATIVE}"]
    build.run_compiler([*command, *source.defines(), str(program), "-o", str(library)], source)
    numbers = (ctypes.c_longlong * ((3 + MOST_DIMENSIONS) * len(paths))).in_dll(
        ctypes.CDLL(str(library)), "shoal_fields"
    )
    dtypes = [np.dtype(code) for code in TYPES.values()]
    rows_of_numbers = np.array(numbers[:], np.int64).reshape(len(paths), -1)
    fields = []
    for (path, dimensions), row in zip(paths, rows_of_numbers):
        offset, kind, extents = int(row[0]), int(row[1]), row[2:]
        if kind >= 0:
            shape = tuple(int(extents[k] // extents[k + 1]) for k in range(dimensions))
            fields.append(Field(path, offset, dtypes[kind], shape))
    return tuple(fields)
