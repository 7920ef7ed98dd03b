"""Actions for Python envs: checked against their spaces before anything is written or stepped."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ActionError
from shoal.spec import Array, EnvSpec, Leaf


def leaf_spaces(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    """The parts of a space that are one array each, in the order of `Layout.leaves`."""
    if isinstance(space, spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in leaf_spaces(part)]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in leaf_spaces(part)]
    return [space]


def as_array(actions: Any, where: str = "actions", expected: str = "one array.") -> Array:
    """Actions as an array, or an ActionError."""
    try:
        return np.asarray(actions)
    except ValueError:  # parts of different shapes
        raise ActionError(f"{where} have parts of different shapes, expected {expected} Nothing was stepped.") from None


def mixed_rows(actions: Any) -> Array:
    """A batch of a Tuple space of floats and choices as the rows of a native env: (rows, values) of float32."""
    if not isinstance(actions, tuple) or len(actions) != 2:
        return as_array(actions)
    parts = [as_array(part) for part in actions]
    if any(part.ndim == 0 or part.dtype.kind not in "iuf" for part in parts) or len(parts[0]) != len(parts[1]):
        shapes = " and ".join(f"{part.dtype} {part.shape}" for part in parts)
        raise ActionError(f"actions are {shapes}, expected numbers and choices of the same rows. Nothing was stepped.")
    return np.concatenate([part.reshape(len(part), -1).astype(np.float32) for part in parts], 1)


def choices_of(spec: EnvSpec, element: int, agent: int) -> int:
    """The choices that an agent of a native env has in one element of its action."""
    if spec.action_kind == "mix":
        return spec.action_dims[1 + element - spec.action_dims[0]]
    own = spec.own_sizes[agent][1] if spec.own_sizes and spec.action_kind == "discrete" else 0
    return own or spec.action_dims[element]


def checked_actions(actions: Any, leaf: Leaf, space: spaces.Space[Any], rows: int) -> Array:
    """One leaf of a batch of actions as an array that its space allows, or an ActionError. Writes nothing."""
    part = actions
    try:
        for key in leaf.path:
            part = part[key]
    except (KeyError, IndexError, TypeError):
        raise ActionError(f"actions{leaf.name} is missing. Nothing was stepped.") from None
    where, shape = f"actions{leaf.name}", (rows, *leaf.shape)
    # a common mistake: a list with a tuple or dict for each env, in place of a tuple or dict of batches
    hint = (
        " Give a tuple or dict of batches, not a list of single actions." if leaf.path and type(actions) is list else ""
    )
    array = as_array(part, where, f"one array of shape {shape}.{hint}")
    if array.shape != shape:
        raise ActionError(f"{where} have shape {array.shape}, expected {shape}.{hint} Nothing was stepped.")
    if isinstance(space, spaces.Box):
        if array.dtype.kind not in "iufb":
            raise ActionError(f"{where} have dtype {array.dtype}, expected {leaf.dtype}. Nothing was stepped.")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            raise ActionError(f"{where} of row {row} is not finite: {array[row]}. Nothing was stepped.")
        if leaf.dtype.kind in "iu" and array.dtype.kind == "f":
            raise ActionError(f"{where} have dtype {array.dtype}, expected {leaf.dtype}. Nothing was stepped.")
        if leaf.dtype.kind in "iu" and array.size:
            limits = np.iinfo(leaf.dtype)
            if int(array.min()) < limits.min or int(array.max()) > limits.max:
                raise ActionError(f"{where} do not fit in {leaf.dtype}. Nothing was stepped.")
        return array
    if array.dtype.kind not in "iu" and not (array.dtype.kind == "b" and isinstance(space, spaces.MultiBinary)):
        raise ActionError(f"{where} have dtype {array.dtype}, expected {leaf.dtype}. Nothing was stepped.")
    low: Any = 0
    high: Any = 1
    if isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", 0)
        low, high = start, start + space.nvec - 1
    if array.size and ((array < low) | (array > high)).any():
        place = tuple(np.argwhere((array < low) | (array > high))[0].tolist())
        row, value = place[0], array[place]
        bounds = f"{np.min(low)} .. {np.max(high)}"
        raise ActionError(f"{where} of row {row} is {value}, out of range {bounds}. Nothing was stepped.")
    return array
