"""EnvActions: `ActionHead.to_env` in torch operations alone, for tensors that stay on a device and for exports."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.nn.distributions import ActionHead


class EnvActions(nn.Module):
    """From a head's actions (rows, size) to one tensor for each leaf of the action space, as the env takes them.

    Choices get the start of their space. Numbers are scaled (or squashed) and clipped to the bounds of their Box.
    """

    def __init__(self, head: ActionHead) -> None:
        super().__init__()
        self.squash = head.squash
        self.leaves: list[tuple[slice, Any]] = list(head._leaves)
        boxes = iter(part.log_stds for part, _ in head._boxes())
        for number, (_, space) in enumerate(self.leaves):
            if isinstance(space, spaces.Box):
                at = next(boxes)
                numbers = {"scale": head._scale[at], "center": head._center[at]}
                numbers |= {"low": np.ravel(space.low), "high": np.ravel(space.high)}
            elif isinstance(space, spaces.MultiDiscrete):
                numbers = {"start": np.ravel(space.start)}
            else:
                numbers = {}
            for name, values in numbers.items():
                self.register_buffer(f"{name}_{number}", torch.from_numpy(np.array(values)))

    def forward(self, actions: Tensor) -> tuple[Tensor, ...]:
        """One (rows, ...) tensor for each leaf."""
        return tuple(self._leaf(number, actions[:, columns]) for number, (columns, _) in enumerate(self.leaves))

    def _leaf(self, number: int, columns: Tensor) -> Tensor:
        space = self.leaves[number][1]
        if isinstance(space, spaces.Box):
            unit = torch.tanh(columns) if self.squash else columns
            scaled = unit * self._constant("scale", number) + self._constant("center", number)
            low, high = self._constant("low", number), self._constant("high", number)
            clipped = torch.maximum(torch.minimum(scaled.to(low.dtype), high), low)
            return clipped.reshape(columns.shape[0], *space.shape)
        choices = columns.to(torch.int64)
        if isinstance(space, spaces.Discrete):
            return choices[:, 0] + int(space.start)
        if isinstance(space, spaces.MultiDiscrete):
            choices = choices + self._constant("start", number)
        dtype = torch.from_numpy(np.zeros(0, space.dtype)).dtype
        return choices.reshape(columns.shape[0], *space.shape).to(dtype)

    def _constant(self, name: str, number: int) -> Any:
        return self.get_buffer(f"{name}_{number}")
