"""Messages between interpreters of different versions: pickles of plain values alone.

A pickle names the modules of what it holds, and these differ: numpy 2 moved its own, and the other interpreter may not
have a package at all. So arrays and numbers of numpy are rebuilt by functions of this file, subclasses of dict, list
and the like become what they are derived from, and any other object becomes its text.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

PROTOCOL = 4  # Python 3.8 reads it
PLAIN: tuple[Any, ...] = (bool, int, float, complex, str, bytes, bytearray)
CONTAINERS: tuple[Any, ...] = (dict, list, tuple, set, frozenset)
BUILTIN = (*PLAIN, *CONTAINERS)


def dumps(value: Any) -> bytes:
    """A value as bytes that `pickle.loads` reads under any interpreter that can import this file."""
    file = io.BytesIO()
    _Pickler(file, PROTOCOL).dump(value)
    return file.getvalue()


def array(data: bytes, dtype: str, shape: tuple[int, ...]) -> Any:
    """An array of its bytes."""
    return np.frombuffer(bytearray(data), dtype).reshape(shape)


def scalar(data: bytes, dtype: str) -> Any:
    """A number of numpy."""
    return np.frombuffer(data, dtype)[0]


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """How everything but builtin values is written."""
        if value is array or value is scalar or (isinstance(value, type) and value in BUILTIN):
            return NotImplemented
        if isinstance(value, np.generic):
            return (scalar, (value.tobytes(), value.dtype.str)) if _has_bytes(value) else _plain(value.item())
        if not isinstance(value, BUILTIN) and not isinstance(value, type) and hasattr(value, "__array__"):
            value = np.asarray(value)  # an array, or a tensor
            return (array, (value.tobytes(), value.dtype.str, value.shape)) if _has_bytes(value) else _plain(value)
        return _plain(value)


def _has_bytes(value: Any) -> bool:
    """Whether the bytes of an array or number of numpy are its value: not objects, records or times."""
    return value.dtype.kind not in "OVMm"


def _plain(value: Any) -> Any:
    """How the plain value that an object is derived from is written, or its text."""
    if isinstance(value, np.ndarray):
        return list, (value.tolist(),)
    for container in CONTAINERS:
        if isinstance(value, container):
            return container, (dict(value) if container is dict else list(value),)
    for kind in PLAIN:
        if isinstance(value, kind):
            return kind, (kind(value),)
    try:
        return str, (str(value),)
    except Exception as error:
        return str, (f"({type(value).__name__}, whose text cannot be read: {type(error).__name__})",)
