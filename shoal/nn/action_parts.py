"""ActionParts: how a policy's outputs and actions are laid out, for every action space. Knows spaces, not torch.

An action space is a list of parts in the order of its leaves. A policy's `logits` are, side by side, the logits (l) of
each choice and the means (m) of each Box part, and then the log standard deviations (s) of all Box parts:

    Discrete(3)                         l l l
    MultiDiscrete([3, 2])               l l l  l l
    Box(2)                              m m  s s
    Dict(a=Discrete(2), b=Box(1))       l l  m  s
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.spec import Array, Layout

NO_BOUND = 1e30  # some envs declare the largest float where there is no bound: scaled to it, actions would be useless


@dataclass(frozen=True)
class Part:
    """One choice of `count`, or numbers (count 0), and their columns in logits and actions."""

    count: int
    logits: slice
    actions: slice
    log_stds: slice  # within the log standard deviations; empty for a choice


class ActionParts:
    """The parts of an action space, and the constants that bring numbers into the bounds of their Box."""

    def __init__(self, space: spaces.Space[Any], *, std: str = "free", squash: str = "none") -> None:
        self.space, self.squash = space, squash == "tanh"
        self.layout = Layout(space)
        parts: list[Part] = []
        at = column = num_stds = 0
        self._leaves: list[tuple[slice, Any]] = []  # columns of each leaf, and its space
        lows: list[Array] = []
        highs: list[Array] = []
        for leaf in self.layout.leaves:
            leaf_space: Any = space
            for key in leaf.path:
                leaf_space = leaf_space.spaces[key]
            first = column
            if isinstance(leaf_space, spaces.Box):
                if leaf_space.dtype is None or leaf_space.dtype.kind != "f":
                    kind = leaf_space.dtype
                    raise ConfigError(f"actions{leaf.name}: a Box of {kind} is not supported. Use a float dtype.")
                size = int(np.prod(leaf_space.shape))
                places = [slice(first, first + size) for first in (at, column, num_stds)]
                parts.append(Part(0, *places))
                at, column, num_stds = at + size, column + size, num_stds + size
                lows.append(np.ravel(leaf_space.low).astype(np.float64))
                highs.append(np.ravel(leaf_space.high).astype(np.float64))
            else:
                for count in _counts(leaf_space):
                    parts.append(Part(count, slice(at, at + count), slice(column, column + 1), slice(0, 0)))
                    at, column = at + count, column + 1
            self._leaves.append((slice(first, column), leaf_space))
        self.parts, self.size = tuple(parts), column
        self.num_noise = at  # one random number for every logit and mean
        self.num_params = at + num_stds
        self.num_free = num_stds if std == "free" else 0
        self.num_outputs = self.num_params - self.num_free
        self.has_box = num_stds > 0
        self.choices = at if not self.has_box else 0  # the length of an action mask
        self.is_one_choice = len(parts) == 1 and not self.has_box
        low, high = (np.concatenate(ends) if ends else np.zeros(0) for ends in (lows, highs))
        bounded = (np.abs(low) < NO_BOUND) & (np.abs(high) < NO_BOUND)
        if self.squash and self.has_box and not bounded.all():
            raise ConfigError("--nn.squash tanh needs actions with finite bounds. Use --nn.squash none.")
        self._ends = low, high
        # a bounded Box is sampled in -1 .. 1 and scaled to its bounds
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        self._center, self._scale = ((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)

    def constants(self) -> list[Array]:
        """Factor, center, lower and upper bound of each column of the actions."""
        low, high = (end.astype(np.float32) for end in self._ends)
        numbers = ((self._scale, 1.0), (self._center, 0.0), (low, -np.inf), (high, np.inf))
        return [self.by_column(part, neutral) for part, neutral in numbers]

    def by_column(self, constants: Array, neutral: float) -> Array:
        """A constant of each Box element for each column of the actions; `neutral` for choices."""
        out = np.full(self.size, neutral, np.float32)
        for part in self.parts:
            if not part.count:
                out[part.actions] = constants[part.log_stds]
        return out

    def __str__(self) -> str:
        kinds = [f"{part.count} logits" if part.count else f"{_size(part)} means" for part in self.parts]
        return " + ".join([*kinds, *([f"{self.num_params - self.num_noise} log stds"] if self.has_box else [])])


def _counts(space: spaces.Space[Any]) -> list[int]:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in np.ravel(space.nvec)]
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    raise ConfigError(f"actions of type {type(space).__name__} are not supported.")


def _size(part: Part) -> int:
    return int(part.logits.stop - part.logits.start)
