"""ActionHead: sampling, log-probabilities and entropy of a policy's outputs, for every action space.

action_parts.py says how logits are laid out. Actions are (rows, size) tensors: a column per choice and per Box element;
int64, or float32 where there is a Box. A Box action is stored as sampled. `to_env` brings it into its bounds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shoal.native import ppo
from shoal.nn.action_parts import ActionParts, Part
from shoal.spec import Array, structure

NEVER = -1e9  # logit of a masked choice: its probability is exactly 0, and 0 * NEVER is still 0
LOG_STD_RANGE = (-20.0, 4.0)
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class ActionHead(ActionParts):
    """How a policy's logits become actions of a space."""

    def __init__(self, space: spaces.Space[Any], *, std: str = "free", squash: str = "none") -> None:
        super().__init__(space, std=std, squash=squash)
        self.dtype = torch.float32 if self.has_box else torch.int64
        self._log_scale = torch.from_numpy(np.log(np.maximum(self._scale, 1e-30)))

    def to(self, device: Any) -> None:
        """Moves the constants to the device. A captured graph cannot copy them from the host."""
        self._log_scale = self._log_scale.to(device)
        self._constants = [torch.from_numpy(part).to(device) for part in self.constants()]
        is_number = torch.from_numpy(self.by_column(np.ones_like(self._scale), 0.0) > 0)
        self._is_number = None if bool(is_number.all()) else is_number.to(device)  # None: there are no choices

    # ---- sampling ----

    def draw(self, noise: Tensor, generator: torch.Generator | None) -> None:
        """Fills (..., num_noise) with the noise that `sample` takes: Gumbel for choices, normal for numbers."""
        if not self.has_box:
            _draw_gumbel(noise, generator)
            return
        for part in self.parts:
            fresh = torch.empty_like(noise[..., part.logits])
            if part.count:
                _draw_gumbel(fresh, generator)
                noise[..., part.logits] = fresh
            else:
                noise[..., part.logits] = fresh.normal_(generator=generator)

    def sample(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Actions (rows, size), sampled from each row's distribution by each row's noise."""
        if self.is_one_choice:  # the Gumbel-max trick
            return (logits + noise).argmax(-1, keepdim=True)
        actions = []
        for part in self.parts:
            if part.count:
                actions.append((logits[:, part.logits] + noise[:, part.logits]).argmax(-1, keepdim=True))
            else:
                mean, log_std = self._gaussian(logits, part)
                actions.append(mean + log_std.exp() * noise[:, part.logits])
        return torch.cat([part.to(self.dtype) for part in actions], 1)

    def greedy(self, logits: Tensor) -> Tensor:
        """The most probable action of each row."""
        actions = [
            logits[:, part.logits].argmax(-1, keepdim=True) if part.count else logits[:, part.logits]
            for part in self.parts
        ]
        return torch.cat([part.to(self.dtype) for part in actions], 1)

    # ---- log-probability and entropy ----

    def log_prob(self, logits: Tensor, actions: Tensor) -> Tensor:
        """The log-probability of each row's action: (rows,)."""
        if self.is_one_choice:
            return torch.log_softmax(logits, -1).gather(-1, actions).squeeze(-1)
        return self.log_prob_and_entropy(logits, actions)[0]

    def log_prob_and_entropy(self, logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """(log-probability of each row's action, entropy of each row's distribution).

        The entropy of a squashed Box has no closed form. It is estimated as the Gaussian's plus the squash's
        log-derivative at the action.
        """
        if self.is_one_choice:
            logp = torch.log_softmax(logits, -1)
            return logp.gather(-1, actions).squeeze(-1), -(logp.exp() * logp).sum(-1)
        log_prob = logits.new_zeros(len(logits))
        entropy = logits.new_zeros(len(logits))
        for part in self.parts:
            if part.count:
                logp = torch.log_softmax(logits[:, part.logits], -1)
                chosen = actions[:, part.actions].to(torch.int64)
                log_prob = log_prob + logp.gather(-1, chosen).squeeze(-1)
                entropy = entropy - (logp.exp() * logp).sum(-1)
                continue
            mean, log_std = self._gaussian(logits, part)
            sampled = actions[:, part.actions]
            z = (sampled - mean) * (-log_std).exp()
            log_prob = log_prob - (0.5 * z * z + log_std + HALF_LOG_TWO_PI).sum(-1)
            entropy = entropy + (log_std + 0.5 + HALF_LOG_TWO_PI).sum(-1)
            if self.squash:  # a = scale tanh(u): log |da/du| = log scale + 2 (log 2 - u - softplus(-2 u))
                log_derivative = 2.0 * (math.log(2.0) - sampled - torch.nn.functional.softplus(-2.0 * sampled))
                log_derivative = (log_derivative + self._log_scale[part.log_stds].to(log_derivative)).sum(-1)
                log_prob, entropy = log_prob - log_derivative, entropy + log_derivative
        return log_prob, entropy

    def mask(self, logits: Tensor, allowed: Tensor) -> Tensor:
        """The logits, with those of forbidden choices (0 in the (rows, choices) mask) set to NEVER."""
        return torch.where(allowed != 0, logits, NEVER)

    def _gaussian(self, logits: Tensor, part: Part) -> tuple[Tensor, Tensor]:
        log_stds = slice(self.num_noise + part.log_stds.start, self.num_noise + part.log_stds.stop)
        return logits[:, part.logits], logits[:, log_stds].clamp(*LOG_STD_RANGE)

    # ---- to the env ----

    def to_device(self, actions: Tensor) -> Tensor:
        """(rows, size) for a native env on the same device: choices, or numbers within the bounds of the Box."""
        if not self.has_box:
            return actions
        scale, center, low, high = self._constants
        if self.squash:
            squashed = torch.tanh(actions)
            actions = squashed if self._is_number is None else torch.where(self._is_number, squashed, actions)
        return (actions * scale + center).clamp(low, high)

    def to_env(self, actions: Array) -> Any:
        """(rows, size) as the `step` of a vector env takes them: in the structure and bounds of the space."""
        if self.is_one_choice and self.layout.is_one_array:
            space = self._leaves[0][1]
            if isinstance(space, spaces.Discrete):
                column = actions[:, 0]
                return column + int(space.start) if int(space.start) else column
        leaves = [self._leaf_to_env(actions[:, columns], space) for columns, space in self._leaves]
        return structure(self.space, iter(leaves))

    def to_tensors(self, actions: Tensor) -> Any:
        """As `to_env`, but tensors on the device of the actions: for rewards of the user's own."""
        leaves = [self._leaf_to_tensor(actions[:, columns], space) for columns, space in self._leaves]
        return structure(self.space, iter(leaves))

    def _leaf_to_tensor(self, columns: Tensor, space: Any) -> Tensor:
        rows = len(columns)
        if isinstance(space, spaces.Box):
            at = next(part.actions for part, owner in self._boxes() if owner is space)
            scale, center, low, high = (constant[at] for constant in self._constants)
            unit = torch.tanh(columns) if self.squash else columns
            return (unit * scale + center).clamp(low, high).view(rows, *space.shape)
        choices = columns.to(torch.int64)
        if isinstance(space, spaces.Discrete):
            return choices[:, 0] + int(space.start)
        if isinstance(space, spaces.MultiDiscrete) and np.any(space.start):
            shifts = [int(start) for start in np.ravel(space.start)]  # numbers: a CUDA graph copies nothing to the GPU
            choices = torch.stack([choices[:, k] + shift for k, shift in enumerate(shifts)], 1)
        return choices.reshape(rows, *space.shape)

    def _leaf_to_env(self, columns: Array, space: Any) -> Array:
        rows = len(columns)
        if isinstance(space, spaces.Box):
            at = next(part.log_stds for part, owner in self._boxes() if owner is space)
            unit = np.tanh(columns) if self.squash else columns
            scaled = unit * self._scale[at] + self._center[at]
            bounded: Array = np.clip(scaled.astype(space.dtype), np.ravel(space.low), np.ravel(space.high))
            return bounded.reshape(rows, *space.shape)
        choices: Array = columns.astype(np.int64)
        if isinstance(space, spaces.Discrete):
            shifted: Array = choices[:, 0] + int(space.start)
            return shifted
        if isinstance(space, spaces.MultiDiscrete):
            choices = choices + np.ravel(space.start)
        return choices.reshape(rows, *space.shape).astype(space.dtype)

    def _boxes(self) -> list[tuple[Part, Any]]:
        boxes = [space for _, space in self._leaves if isinstance(space, spaces.Box)]
        return list(zip([part for part in self.parts if not part.count], boxes))


def _draw_gumbel(noise: Tensor, generator: torch.Generator | None) -> None:
    """Fills a tensor with Gumbel noise. On a CPU in C, from one number of the generator: ten times as fast as torch."""
    if noise.device.type != "cpu" or not noise.is_contiguous():
        noise.exponential_(generator=generator).log_().neg_()
        return
    seed = int(torch.randint(1 << 62, (), dtype=torch.int64, generator=generator))
    ppo.load().gumbel(seed, noise.numel(), noise.data_ptr())
