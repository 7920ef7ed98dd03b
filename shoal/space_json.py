"""Gymnasium spaces as JSON and back: `to_json`, `from_json`. A run's folder keeps the spaces of its policies so, and
workers under another interpreter send theirs. `to_json` needs numpy alone and takes spaces of old gym, too.

Every kind of space that an env may have in Shoal: Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple. The space
that is read back equals the one that was written, with its dtype, bounds, starts and the order of its keys.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import ConfigError
from shoal.layout import Array, kind_of

if TYPE_CHECKING:
    from gymnasium import spaces


def to_json(space: Any) -> dict[str, Any]:
    """A space as plain values.

    >>> from gymnasium import spaces
    >>> to_json(spaces.Box(-1, np.inf, (3,), np.float32))
    {'kind': 'Box', 'dtype': 'float32', 'shape': [3], 'low': -1.0, 'high': 'inf'}
    """
    kind = kind_of(space)
    if kind == "Dict":
        pairs = [[_key(key), to_json(part)] for key, part in space.spaces.items()]
        return {"kind": "Dict", "spaces": pairs}  # a list: the order of keys is the order of the policy's inputs
    if kind == "Tuple":
        return {"kind": "Tuple", "spaces": [to_json(part) for part in space.spaces]}
    if kind == "Box":
        head = {"kind": "Box", "dtype": _dtype(space), "shape": list(space.shape)}
        return {**head, "low": _numbers(space.low), "high": _numbers(space.high)}
    if kind == "Discrete":
        return {"kind": "Discrete", "dtype": _dtype(space), "n": int(space.n), "start": _start(space, 0)}
    if kind == "MultiDiscrete":
        head = {"kind": "MultiDiscrete", "dtype": _dtype(space)}
        return {**head, "nvec": space.nvec.tolist(), "start": np.asarray(_start(space, space.nvec * 0)).tolist()}
    if kind == "MultiBinary":
        return {"kind": "MultiBinary", "shape": list(space.shape)}
    raise ConfigError(
        f"{type(space).__name__} cannot be written to a run's folder. Use Box, Discrete, MultiDiscrete, MultiBinary, "
        "Dict or Tuple."
    )


def from_json(data: Any) -> spaces.Space[Any]:
    """The space that `to_json` was given. Data of another form raises ConfigError."""
    try:
        return _read(data)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise ConfigError(f"{str(data)[:80]} is not a space: {type(error).__name__}: {error}.") from None


def _read(data: Any) -> spaces.Space[Any]:
    from gymnasium import spaces

    kind = data["kind"]
    if kind == "Dict":
        return spaces.Dict(OrderedDict((key, _read(part)) for key, part in data["spaces"]))
    if kind == "Tuple":
        return spaces.Tuple([_read(part) for part in data["spaces"]])
    if kind == "Box":
        dtype: Any = np.dtype(data["dtype"])
        shape = tuple(data["shape"])
        low, high = (_array(data[name], dtype, shape) for name in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        # older versions of Gymnasium have no dtype for Discrete: theirs are all int64
        other: Any = {} if data["dtype"] == "int64" else {"dtype": np.dtype(data["dtype"]).type}
        return spaces.Discrete(int(data["n"]), start=int(data["start"]), **other)
    if kind == "MultiDiscrete":
        dtype = np.dtype(data["dtype"])
        return spaces.MultiDiscrete(np.array(data["nvec"], dtype), dtype.type, start=np.array(data["start"], dtype))
    if kind == "MultiBinary":
        shape = tuple(data["shape"])
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else list(shape))
    raise ValueError(f"unknown kind {kind!r}")


def _dtype(space: Any) -> str:
    return str(np.dtype(space.dtype))


def _start(space: Any, default: Any) -> Any:
    """The lowest value of a Discrete or MultiDiscrete space; those of old gym have none."""
    start = getattr(space, "start", default)
    return start if isinstance(start, np.ndarray) else int(start)


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ConfigError(f"a Dict space has the key {key!r}. Only string keys can be written to a run's folder.")
    return key


def _numbers(bounds: Array) -> Any:
    """The bounds as one number if all are equal, otherwise as nested lists. JSON has no infinity: it is a string."""
    flat = bounds.reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return _number(flat[0].item())
    if np.isfinite(bounds).all():
        return bounds.tolist()
    return {"values": [_number(value) for value in flat.tolist()]}


def _number(value: Any) -> Any:
    is_plain = not isinstance(value, float) or math.isfinite(value)
    return value if is_plain else str(value)


def _array(data: Any, dtype: Any, shape: tuple[int, ...]) -> Array:
    if isinstance(data, dict):
        values = [float(value) if isinstance(value, str) else value for value in data["values"]]
        return np.array(values, dtype).reshape(shape)
    value = float(data) if isinstance(data, str) else data
    return np.full(shape, value, dtype) if not isinstance(value, list) else np.array(value, dtype)
