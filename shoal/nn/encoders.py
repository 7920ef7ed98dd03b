"""From an observation of any space to one vector per row. An encoder is found for each leaf of the space."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.errors import ConfigError
from shoal.nn.layers import GridCNN, ImpalaCNN, NatureCNN
from shoal.spec import Layout

IDS_AS_ONE_HOT = 32  # more choices than this are embedded
EMBEDDING = 32
SMALL_IMAGE = 40  # pixels: below, Nature's strides leave nothing


class Numbers(nn.Module):
    """A Box of numbers, flattened; bytes are scaled by their largest value."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.features = int(np.prod(space.shape))
        top = float(np.max(space.high)) if space.dtype is not None and space.dtype.kind in "iu" else 1.0
        self.scale = 1.0 / top if top > 1.0 else 1.0

    def forward(self, obs: Tensor) -> Tensor:
        """(rows, *shape) -> (rows, features) float32."""
        if obs.ndim == 2 and obs.dtype == torch.float32:
            return obs if self.scale == 1.0 else obs * self.scale
        flat = obs.reshape(len(obs), -1)
        if flat.dtype != torch.float32:
            flat = flat.to(torch.float32)
        return flat if self.scale == 1.0 else flat * self.scale


class Image(nn.Module):
    """Pixels (or a grid of features), channels last or first, through a CNN."""

    def __init__(self, space: spaces.Box, kind: str) -> None:
        super().__init__()
        shape = space.shape
        self.channels_last = len(shape) == 3 and _has_channels_last(shape)
        if len(shape) == 2:
            shape = (1, *shape)
        elif self.channels_last:
            shape = (shape[2], shape[0], shape[1])
        if kind == "auto":
            kind = "grid" if min(shape[1:]) < SMALL_IMAGE else "nature"
        if kind == "nature" and min(shape[1:]) < 36:
            raise ConfigError(f"--nn.encoder nature needs 36 pixels a side; this image has {shape[1:]}. Use grid.")
        self.cnn = {"grid": GridCNN, "nature": NatureCNN, "impala": ImpalaCNN}[kind](shape)  # type: ignore[arg-type]
        self.features = self.cnn.features
        top = float(np.max(space.high))
        self.scale = 1.0 / top if np.isfinite(top) and top > 1.0 else 1.0

    def forward(self, obs: Tensor) -> Tensor:
        """(rows, h, w, c) or (rows, c, h, w) -> (rows, features)."""
        if obs.ndim == 3:
            obs = obs.unsqueeze(1)
        elif self.channels_last:
            obs = obs.permute(0, 3, 1, 2)
        obs = obs.to(torch.float32)
        return self.cnn(obs if self.scale == 1.0 else obs * self.scale)


def _has_channels_last(shape: tuple[int, ...]) -> bool:
    """The two equal sides are height and width; where that does not tell, the smaller end is the channels."""
    if (shape[0] == shape[1]) != (shape[1] == shape[2]):
        return shape[0] == shape[1]
    return shape[2] <= shape[0]


class Ids(nn.Module):
    """Choices (Discrete, MultiDiscrete): one-hot where few, embedded where many."""

    def __init__(self, counts: list[int], starts: list[int]) -> None:
        super().__init__()
        self.counts, self.starts = counts, starts
        many = [count for count in counts if count > IDS_AS_ONE_HOT]
        self.tables = nn.ModuleList([nn.Embedding(count, EMBEDDING) for count in many])
        self.features = sum(EMBEDDING if count > IDS_AS_ONE_HOT else count for count in counts)

    def forward(self, obs: Tensor) -> Tensor:
        """(rows,) or (rows, parts) ints -> (rows, features)."""
        columns = obs.reshape(len(obs), -1).to(torch.int64)
        tables = iter(self.tables)
        parts = []
        for k, (count, start) in enumerate(zip(self.counts, self.starts)):
            ids = (columns[:, k] - start).clamp(0, count - 1)  # the zeros of an agent that is out may be no member
            if count > IDS_AS_ONE_HOT:
                parts.append(next(tables)(ids))
            else:
                parts.append(nn.functional.one_hot(ids, count).to(torch.float32))
        return torch.cat(parts, 1)


class Encoder(nn.Module):
    """Every leaf of the space through an encoder of its own, then side by side. `kind` is how images are seen."""

    def __init__(self, space: spaces.Space[Any], kind: str = "auto") -> None:
        super().__init__()
        self.paths = [leaf.path for leaf in Layout(space).leaves]
        self.parts = nn.ModuleList([_for_leaf(_leaf_space(space, path), kind) for path in self.paths])
        self.features = sum(part.features for part in self.parts)
        # in a list, so that it is not registered twice
        self._only = [self.parts[0]] if len(self.parts) == 1 and not self.paths[0] else []

    def forward(self, obs: Any) -> Tensor:
        """(rows, features) of a batch in the structure of the space."""
        for only in self._only:
            return only.forward(obs)
        return torch.cat([part(_pick(obs, path)) for part, path in zip(self.parts, self.paths)], 1)


def _pick(obs: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        obs = obs[key]
    return obs


def _leaf_space(space: Any, path: tuple[Any, ...]) -> spaces.Space[Any]:
    for key in path:
        space = space.spaces[key]
    return space  # type: ignore[no-any-return]


def _for_leaf(space: spaces.Space[Any], kind: str) -> Any:
    if isinstance(space, spaces.Discrete):
        return Ids([int(space.n)], [int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        return Ids([int(n) for n in np.ravel(space.nvec)], [int(k) for k in np.ravel(space.start)])
    if isinstance(space, spaces.MultiBinary):
        return Numbers(spaces.Box(0, 1, space.shape, np.int8))
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"no encoder for {type(space).__name__}. Give a policy of your own.")
    is_image = len(space.shape) == 3 or (len(space.shape) == 2 and space.dtype == np.uint8)
    return Image(space, kind) if is_image and kind != "mlp" else Numbers(space)
