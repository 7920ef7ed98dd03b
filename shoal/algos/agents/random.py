"""`random`: any allowed action, all equally likely: the score that an agent has to beat."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from shoal.nn.distributions import ActionHead
from shoal.spec import Layout, structure


class Random:
    """Uniform choices within the action mask; uniform numbers within bounds, normal ones where there are none."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], seed: int) -> None:
        self.head, self.observed = ActionHead(action_space), Layout(observation_space)
        self.seed, self.generator = seed, torch.Generator().manual_seed(seed)
        self.leaves: list[Any] = []
        for leaf in self.head.layout.leaves:
            part: Any = action_space
            for key in leaf.path:
                part = part.spaces[key]
            self.leaves.append(part)

    def to(self, device: Any) -> None:
        """The stream of random numbers on a device: its numbers differ from those of a CPU."""
        self.head.to(device)
        self.generator = torch.Generator(device).manual_seed(self.seed)

    def act(self, obs: Any, mask: Tensor | None) -> Any:
        """A new action for every row."""
        seen = self.observed.leaves_of(obs)[0]
        noise = torch.rand(len(seen), self.head.num_noise, generator=self.generator, device=seen.device)
        if mask is not None and self.head.choices:
            noise = torch.where(mask != 0, noise, -1.0)
        columns = [
            noise[:, part.logits].argmax(1, keepdim=True) if part.count else noise[:, part.logits]
            for part in self.head.parts
        ]
        actions, at = torch.cat([part.to(self.head.dtype) for part in columns], 1), 0
        leaves = []
        for space in self.leaves:
            size = 1
            for length in space.shape or ():
                size *= length
            leaves.append(self._leaf(actions[:, at : at + size], space))
            at += size
        return structure(self.head.space, iter(leaves))

    def _leaf(self, columns: Tensor, space: Any) -> Tensor:
        shape = (len(columns), *(space.shape or ()))
        if not isinstance(space, spaces.Box):
            start = torch.as_tensor(getattr(space, "start", 0), device=columns.device)
            return columns.long().view(shape) + start
        unit = columns.view(shape)
        like = {"dtype": torch.float32, "device": columns.device}
        low, high = (torch.as_tensor(end, **like) for end in (space.low, space.high))
        normal = torch.erfinv((2.0 * unit - 1.0).clamp(-0.999999, 0.999999)) * 2.0**0.5
        bounded = torch.isfinite(low) & torch.isfinite(high)
        within = torch.where(bounded, low, 0.0) + unit * torch.where(bounded, high - low, 0.0)
        return torch.where(bounded, within, normal.clamp(low, high))

    def state_dict(self) -> dict[str, Tensor]:
        """The stream of random numbers."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Continues that stream."""
        self.generator.set_state(tensors["generator"].cpu())


AGENT = Random
