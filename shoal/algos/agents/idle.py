"""`idle`: always takes the first choice, and 0 (or the nearest number within its bounds) for numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shoal.spec import Layout, map_leaves, structure


class Idle:
    """The same action in every step."""

    capturable = True

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.layout, leaves = Layout(action_space), []
        for leaf in self.layout.leaves:
            part: Any = action_space
            for key in leaf.path:
                part = part.spaces[key]
            leaves.append(torch.as_tensor(np.asarray(_still(part))))
        self.action = structure(action_space, iter(leaves))
        self.observed = Layout(observation_space)

    def to(self, device: Any) -> None:
        """Moves the action."""
        self.action = map_leaves(lambda leaf: leaf.to(device), self.action)

    def act(self, obs: Any, mask: Tensor | None) -> Any:
        """The same for every row."""
        rows = len(self.observed.leaves_of(obs)[0])
        return map_leaves(lambda leaf: leaf.expand(rows, *leaf.shape), self.action)


def _still(space: Any) -> Any:
    """The action of a space that is one array."""
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return np.asarray(space.start, np.int64)
    return np.zeros(space.shape, np.int64)


AGENT = Idle
