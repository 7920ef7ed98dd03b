"""A worker process of the `process` backend that runs under this interpreter. serve.py has what it does."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import cloudpickle

from shoal.errors import BadOutput
from shoal.native import lib
from shoal.vector import serve
from shoal.vector.faults import pack
from shoal.vector.slots import InfoRows
from shoal.vector.start_methods import unpack_work


def main(creators: bytes | list[Any], pipe: Any, parent: int, from_main: bool, affinity: int | None) -> None:
    """The main function of a worker process. `from_main`: it was started by a main thread, not by one that may end."""
    serve.prepare(parent, from_main, affinity)
    unpacked = (lambda: unpack_work(creators)) if isinstance(creators, bytes) else (lambda: creators)
    with contextlib.suppress(
        EOFError, ConnectionError
    ):  # the parent is gone, or closed the pipe because another worker failed
        serve.work(unpacked, pipe, lib.load_core, serve.Wire(_dumps, pack_infos, pack, lambda spaces: spaces))


def _dumps(message: Any) -> bytes:
    return bytes(cloudpickle.dumps(message))


def pack_infos(info_rows: InfoRows) -> bytes:
    """The infos as bytes, or BadOutput."""
    try:
        return pickle.dumps(info_rows, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        pass
    try:
        return bytes(cloudpickle.dumps(info_rows))
    except Exception as error:
        raise BadOutput(f"an info cannot be sent to another process: {error}") from error
