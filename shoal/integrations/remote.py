"""A worker process under another interpreter: finds its env by name, then does what every worker does (serve.py).

This file and all that it imports need numpy alone. What an env needs besides is imported when it is made.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import pickle
import sys
from multiprocessing.connection import Connection
from typing import Any

from shoal import names, space_json
from shoal.errors import ConfigError, ShoalError
from shoal.integrations import framework
from shoal.layout import AgentSpaces
from shoal.native.channels import Channels
from shoal.vector import faults, portable, serve
from shoal.vector.slots import Creator


def main(fd: int) -> None:
    """The main function of the worker. `fd`: its end of the pipe."""
    pipe = Connection(fd)
    os.set_inheritable(fd, False)  # children of the env must not hold the pipe open
    with contextlib.suppress(EOFError, ConnectionError):
        work = json.loads(pipe.recv_bytes())
        serve.prepare(work["parent"], work["from_main"], work["affinity"])
        wire = serve.Wire(portable.dumps, portable.dumps, _pack, _describe)
        serve.work(lambda: _creators(work), pipe, lambda: Channels(ctypes.CDLL(work["core"])), wire)


def _creators(work: dict[str, Any]) -> list[Creator]:
    from shoal.integrations.adapt import creator

    wrap = work["wrap"]
    if wrap and importlib.util.find_spec("gymnasium") is None:
        shown = ",".join(f"{name}={value}" for name, value in wrap.items())
        raise ConfigError(
            f"wrap={shown} needs Gymnasium where the env runs. Install it: {sys.executable} -m pip install gymnasium"
        )
    if wrap:
        from shoal.wrappers import Wrap

        wrap = Wrap(**wrap)
    return [creator(find(work["env"]), work["params"], wrap or None)] * int(work["count"])


def find(env: str) -> Any:
    """A function that makes the env of a name."""
    prefix, _, rest = env.partition(":")
    if prefix in ("gymnasium", "gym"):
        place, _, id = rest.rpartition(":")
        return lambda **kwargs: _make(prefix, place, id, kwargs)
    return framework.framework(prefix).find(rest) if framework.is_prefix(prefix) else names.Maker(env)


def _make(package: str, place: str, id: str, kwargs: dict[str, Any]) -> Any:
    """An env by its id in Gymnasium or in old gym; `place` is the module that registers it."""
    try:
        library = importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{package}:{id} needs {package}. Install it: {sys.executable} -m pip install {package}"
        ) from error
    if place:
        names.load(place)
    try:
        return library.make(id, disable_env_checker=True, **kwargs)
    except TypeError:  # gym before 0.24 does not have the option
        return library.make(id, **kwargs)


def _describe(spaces: AgentSpaces) -> dict[str, Any]:
    """Spaces as plain values; `read_spaces` of vector/remote.py reads them."""
    both = list(zip(spaces.observation_spaces, spaces.action_spaces))
    pairs = [tuple(map(space_json.to_json, pair)) for pair in (both[:1] if spaces.alike else both)]
    pairs = pairs * len(both) if spaces.alike else pairs
    distinct = pairs[:1] if spaces.alike else [pair for k, pair in enumerate(pairs) if pair not in pairs[:k]]
    return {
        "agents": list(spaces.agents),
        "observations": [pair[0] for pair in distinct],
        "actions": [pair[1] for pair in distinct],
        "spaces_of": [distinct.index(pair) for pair in pairs],
        "groups": [[name, list(agents)] for name, agents in spaces.groups],
        "row_bytes": [
            [layout.row_bytes for layout in layouts] for layouts in (spaces.obs_layouts, spaces.action_layouts)
        ],
    }


def _pack(error: BaseException) -> dict[str, Any]:
    return faults.pack(error, _pickled)


def _pickled(error: BaseException) -> bytes:
    """The exception itself, if both sides have its class and it holds plain values; otherwise empty bytes."""
    if type(error).__module__ == "builtins" or isinstance(error, ShoalError):
        with contextlib.suppress(Exception):
            plain = tuple(pickle.loads(portable.dumps(part)) for part in error.args)
            return pickle.dumps(type(error)(*plain), portable.PROTOCOL)
    return b""
