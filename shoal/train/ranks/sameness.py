"""Compares the code and the options of all processes: ranks that differ would train on different things."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

import torch

import shoal
from shoal.errors import ConfigError
from shoal.train.ranks.world import World

CODE = (".py", ".c", ".h", ".in")  # suffixes of the files that decide what a run computes


def code_hash() -> str:
    """A hash of all of Shoal's source files."""
    root, sha = Path(shoal.__file__).parent, hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in CODE and p.is_file()):
        sha.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:12]


def check_same(world: World, request: str) -> None:
    """Raises ConfigError on every rank if their code or their requests (command line or arguments) differ."""
    if world.is_checked:
        return
    world.is_checked = True
    own = {
        "Shoal": f"{shoal.__version__}, code {code_hash()}",
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "options": request,
    }
    parts = world.collect((world.host, own))
    verdict = ""
    if world.leads:
        first_host, first = parts[0]
        for rank, (host, part) in enumerate(parts):
            differing = [name for name in first if first[name] != part[name]]
            if differing:
                name = differing[0]
                verdict = (
                    f"rank {rank} on {host} differs from rank 0 on {first_host} in its {name}: {part[name]!r} instead "
                    f"of {first[name]!r}. Start all processes with the same version and the same command line."
                )
                break
    verdict = world.spread([verdict] * world.size if world.leads else None)
    if verdict:
        raise ConfigError(verdict)


def describe_request(env: Any, arguments: dict[str, Any]) -> str:
    """The arguments of `train` as text that is the same in all processes. Objects are named by their type."""
    return f"{_plain(env)} " + " ".join(f"{name}={_plain(value)}" for name, value in sorted(arguments.items()))


def _plain(value: Any) -> str:
    if isinstance(value, (str, int, float, bool, type(None), Path)):
        return repr(str(value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_plain(part) for part in value) + "]"
    return getattr(value, "__qualname__", type(value).__qualname__)
