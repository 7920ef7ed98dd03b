"""How values of spaces are stored: each value is a row of bytes, the leaves of its space one after the other.

Needs numpy alone. A space is recognized by the name of its class, so that spaces of Gymnasium, of old gym and of other
copies of them are stored alike: worker processes under another interpreter may have no Gymnasium (vector/remote.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import ConfigError

if TYPE_CHECKING:
    from gymnasium import spaces

Array = np.ndarray[Any, np.dtype[Any]]

KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")


def kind_of(space: Any) -> str:
    """Which of KINDS a space is, or is derived from; an empty string for any other.

    >>> from gymnasium.spaces import Box, Text
    >>> kind_of(Box(0, 1)), kind_of(Text(3))
    ('Box', '')
    """
    kind: Any = type(space)
    return _kind_of_class(kind)


@functools.cache
def _kind_of_class(kind: type) -> str:
    return next((base.__name__ for base in kind.__mro__ if base.__name__ in KINDS), "")


@dataclass(frozen=True)
class AgentSpaces:
    """The agents of one env and their spaces."""

    agents: tuple[str, ...]
    observation_spaces: tuple[spaces.Space[Any], ...]  # one for each agent
    action_spaces: tuple[spaces.Space[Any], ...]
    groups: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # that the env declares: (name, agents), unchecked

    @classmethod
    def of_equal_agents(cls, count: int, observation: spaces.Space[Any], action: spaces.Space[Any]) -> AgentSpaces:
        """Agents `agent_0`, `agent_1`, … that all have the same spaces."""
        return cls(tuple(f"agent_{k}" for k in range(count)), (observation,) * count, (action,) * count)

    @cached_property
    def alike(self) -> bool:
        """Whether all agents have the same spaces."""
        return all(
            space is candidates[0] or space == candidates[0]
            for candidates in (self.observation_spaces, self.action_spaces)
            for space in candidates
        )

    @cached_property
    def obs_layouts(self) -> tuple[Layout, ...]:
        """One for each agent; a row is as long as the largest."""
        return tuple(Layout(space) for space in self.observation_spaces)

    @cached_property
    def action_layouts(self) -> tuple[Layout, ...]:
        """One for each agent."""
        return tuple(Layout(space) for space in self.action_spaces)


@dataclass(frozen=True)
class Leaf:
    """A part of a space that is one array: its path in the space and its offset in the row."""

    path: tuple[str | int, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    stack: int = 1  # frames that it holds (Stacked of spec.py), along `axis`
    axis: int = 0

    @property
    def name(self) -> str:
        """Its path for messages: `['camera'][0]`; empty for a space that is one array."""
        return "".join(f"[{key!r}]" for key in self.path)

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return int(np.prod(self.shape)) * self.dtype.itemsize


class Layout:
    """How a value of a space is stored in a row of bytes, and a batch of them in a (rows, row_bytes) uint8 array.

    A space that is one array has no padding: a batch of it is one contiguous array of the space's dtype.
    """

    def __init__(self, space: Any) -> None:
        self.space = space
        leaves: list[Leaf] = []
        end = 0
        for path, leaf_space in _leaves(space, ()):
            dtype, shape = _array_of(leaf_space, path)
            offset = -(-end // dtype.itemsize) * dtype.itemsize
            stack, axis = getattr(leaf_space, "num_frames", 1), getattr(leaf_space, "frames_axis", 0)
            leaves.append(Leaf(path, dtype, shape, offset, stack, axis))
            end = offset + leaves[-1].nbytes
        if not leaves:
            raise ConfigError(
                f"the space {space} is empty: it has no parts. Give it at least one, or use Box(0, 1, (1,))."
            )
        self.leaves = tuple(leaves)
        self.leaf_spaces = tuple(leaf_space for _, leaf_space in _leaves(space, ()))
        self.is_one_array = len(leaves) == 1 and not leaves[0].path
        self.row_bytes = end if self.is_one_array else -(-end // 8) * 8

    def views(self, rows: Array) -> Any:
        """Views of the batch, in the structure of the space."""
        return structure(self.space, iter([_view(rows, leaf) for leaf in self.leaves]))

    def write(self, views: list[Array], row: int, value: Any) -> None:
        """Writes one value into a row of the leaf views that `leaf_views` returned."""
        for leaf, view in zip(self.leaves, views):
            part = value
            for key in leaf.path:
                part = part[key]
            view[row] = part

    def leaves_of(self, batch: Any) -> list[Any]:
        """The arrays of a batch that has the structure of the space, in the order of `leaves`."""
        arrays = []
        for leaf in self.leaves:
            part = batch
            for key in leaf.path:
                part = part[key]
            arrays.append(part)
        return arrays

    def leaf_views(self, rows: Array) -> list[Array]:
        """One array per leaf, in order."""
        return [_view(rows, leaf) for leaf in self.leaves]


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """A structure of dicts and tuples with every leaf replaced by `function(leaf)`."""
    if isinstance(value, dict):
        return {key: map_leaves(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map_leaves(function, part) for part in value)
    return function(value)


def unflatten(rows: Any, space: spaces.Space[Any] | Layout) -> Any:
    """Views of a (rows, row_bytes) uint8 array or torch tensor in the structure of the space, without a copy.

    >>> from gymnasium.spaces import Box, Dict, Discrete
    >>> space = Dict({"camera": Box(0, 255, (2, 2), np.uint8), "gear": Discrete(5)})
    >>> rows = np.zeros((3, Layout(space).row_bytes), np.uint8)
    >>> unflatten(rows, space)["camera"].shape
    (3, 2, 2)
    """
    layout = space if isinstance(space, Layout) else Layout(space)
    if tuple(rows.shape[1:]) != (layout.row_bytes,):
        raise ConfigError(f"rows have shape {tuple(rows.shape)}, expected (n, {layout.row_bytes}) for this space.")
    if isinstance(rows, np.ndarray):
        return layout.views(rows)
    return structure(layout.space, iter([_torch_view(rows, leaf) for leaf in layout.leaves]))


def _leaves(space: Any, path: tuple[str | int, ...]) -> Iterator[tuple[Any, Any]]:
    if kind_of(space) == "Dict":
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
    elif kind_of(space) == "Tuple":
        for index, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, index))
    else:
        yield path, space


def _array_of(space: Any, path: tuple[str | int, ...]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if kind_of(space) in KINDS[:4]:
        return np.dtype(space.dtype), tuple(space.shape or ())
    where = f" at {path}" if path else ""
    raise ConfigError(
        f"{type(space).__name__}{where} has no fixed size and cannot be stored in shared memory. "
        "Use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."
    )


def structure(space: Any, parts: Iterator[Any]) -> Any:
    """One part per leaf, in the structure of the space."""
    if kind_of(space) == "Dict":
        return {key: structure(part, parts) for key, part in space.spaces.items()}
    if kind_of(space) == "Tuple":
        return tuple(structure(part, parts) for part in space.spaces)
    return next(parts)


def _strides(leaf: Leaf) -> tuple[int, ...]:
    """Strides of one row of the leaf, in elements."""
    return tuple(int(np.prod(leaf.shape[k + 1 :])) for k in range(len(leaf.shape)))


def _view(rows: Array, leaf: Leaf) -> Array:
    strides = (rows.strides[0], *(step * leaf.dtype.itemsize for step in _strides(leaf)))
    shape = (len(rows), *leaf.shape)
    if 0 in shape:
        return np.zeros(shape, leaf.dtype)
    part = rows[:, leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype)
    view: Array = np.lib.stride_tricks.as_strided(part, shape, strides)
    return view


def _torch_view(rows: Any, leaf: Leaf) -> Any:
    import torch

    dtype = torch.from_numpy(np.zeros(0, leaf.dtype)).dtype
    typed = rows.view(dtype)
    size = leaf.dtype.itemsize
    offset = typed.storage_offset() + leaf.offset // size
    return torch.as_strided(typed, (len(rows), *leaf.shape), (typed.stride(0), *_strides(leaf)), offset)
