"""What a page needs to know, as JSON: an env with its module and params, a network with its weights. Knows no torch."""

from __future__ import annotations

import dataclasses
import functools
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal import registry
from shoal.errors import ConfigError
from shoal.spec import Array
from shoal.web import build, controls
from shoal.web.instructions import Network

FORMAT = 2
# of Python's base64.b85encode, with a comma for "<", which the text of a page may not hold
LETTERS = np.frombuffer(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~", np.uint8
)
# midrange: parts of its picture that the key V switches between, and the seconds of a decision
VIEWS = {
    "views": [
        {"name": "both", "rect": None},
        {"name": "plane", "rect": [0, 0, 100, 112]},
        {"name": "graph", "rect": [100, 0, 200, 112]},
    ],
    "seconds_per_step": 0.5,
    "legend": "Graph: the plane lies flat, time goes down, 5 s a grid. Red: where a missile can be that the enemy "
    "fires now. Yellow: your escapes to both sides. Blue: your present course. Orange: incoming missiles. "
    "(Of side 1, red and blue are exchanged.)",
}


def check_native(env: str) -> None:
    """Raises if an env cannot run in a page."""
    if not registry.is_native(env):
        raise ConfigError(
            f"{env} is a Python env, and a page runs env headers (C). 'shoal eval RUN --video game.gif' records it."
        )


def plain_options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an env that JSON holds, for records."""
    return {name: value for name, value in kwargs.items() if name != "env" and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    """Whether JSON holds an option of the env: numbers, words, and lists of them."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str))


def env_facts(vec: Any) -> dict[str, Any]:
    """What the page needs of a native env: its module, and its params and wrappers as they are in the CPU's memory."""
    module, spec, wrap, table = vec.module, vec.module.spec, vec.wrap, vec.memory.table
    header = module.source.header
    params = [
        {"name": p.name, "kind": p.kind, "offset": int(module.params_dtype.fields[p.name][1])}
        | ({"choices": list(p.choices)} if p.choices else {})
        for p in spec.params
    ]
    width = int(np.prod(wrap.stacked_shape(spec.obs_shape)))
    facts: dict[str, Any] = {
        "format": FORMAT,
        "env": spec.name,
        "title": spec.name.replace("_", " "),
        "about": about_header(header),
        "wasm": _packed_file(build.module(module.source)),
        "agents": list(map(str, spec.agent_spaces.agents)),
        "obs": {"size": width, "bytes": spec.obs_dtype == np.uint8},
        "action": {"kind": spec.action_kind, "size": module.action_size, "floats": controls.spec_floats(spec)},
        "mask": spec.mask_size,
        "stats": [stat.name for stat in spec.stats],
        "has_draw": spec.has_draw,
        "params": params,
        "values": plain(table.values[:1].view(np.uint8)),
        "wrap": dataclasses.asdict(wrap)
        | {"wraps": bool(wrap), "chunk": wrap.chunk(spec.obs_shape)}
        | {"draws": wrap.draws, "changes_obs": wrap.changes_obs},
        "robots": robots_of(vec),
        "rules": None,
        "curves": {name: list(shape) for name, shape in module.curve_shapes.items()},
        "controls": controls.describe(spec, header),
    }
    facts |= VIEWS if "draw_yaw" in spec.param_names else {}
    if table.is_drawn:
        numbers = plain(table.rule_values)
        facts["rules"] = {"count": len(table.rules), "rules": plain(table.rules.view(np.uint8)), "values": numbers}
    return facts


def about_header(header: Path) -> str:
    """The first sentence of a header's comment, without its file name."""
    first = header.read_text(errors="replace").partition("\n")[0].removeprefix("//").strip()
    return first.partition(": ")[2] if first.startswith(header.name) else first


def packed(data: bytes) -> str:
    """Bytes as text, compressed. Without a time stamp: the same data gives the same text."""
    return letters(gzip.compress(data, 9, mtime=0))


def letters(data: bytes) -> str:
    """Bytes as text in base 85: four of them as five letters (base64: as 5.33). page/packed.js reads it."""
    missing = -len(data) % 4
    words = np.frombuffer(data + bytes(missing), ">u4").astype(np.uint32)
    digits = words[:, None] // np.array([85**4, 85**3, 85**2, 85, 1], np.uint32) % np.uint32(85)
    text: str = LETTERS[digits].tobytes().decode()
    return text[: len(text) - missing]


@functools.lru_cache(64)
def _packed_file(path: Path) -> str:
    """A module, whose name changes with its contents."""
    return packed(path.read_bytes())


def plain(array: Array) -> str:
    """An array's bytes as text."""
    return letters(np.ascontiguousarray(array).tobytes())


def robots_of(vec: Any) -> dict[str, int]:
    """The params that put scripted robots into seats, with their values; 0: no robot."""
    spec, values = vec.module.spec, vec.memory.table.values
    names = [p.name for p in spec.params if p.name.startswith("robot_") and p.name[6:].isdigit()]
    return {name: int(values[name][0]) for name in names if int(name[6:]) < spec.agents}


def network_facts(net: Network) -> dict[str, Any]:
    """A network as JSON."""
    numbers = {name: getattr(net, name) for name in "size logits value num_logits state_size inputs".split()}
    matrices = b"".join(matrix.tobytes() for matrix in net.matrices)
    if net.scales:  # the lower bytes of all numbers, then the upper ones: these compress where few bits are used
        matrices = matrices[::2] + matrices[1::2]
    weights = packed(b"".join(part.tobytes() for part in [net.floats, *net.scales]) + matrices)
    shapes = [list(matrix.shape) for matrix in net.matrices]
    kinds = {"bits": 16 if net.scales else 32, "shapes": shapes, "floats": len(net.floats)}
    return {**numbers, **kinds, "code": plain(net.code), "weights": weights}
