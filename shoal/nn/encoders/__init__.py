"""From observations of any space to one vector of features per row. Each leaf of the space has its own encoder.

Images go through an image encoder: one file of this folder each, chosen by `--nn.encoder`. To add one, add a file and
assign its class at top level:

    ENCODER = MyCNN

The file's stem is the name that `--nn.encoder` takes. Other packages use the entry point group `shoal.encoders`, and
scripts `ENCODERS.register("name", MyCNN)`. An image encoder is a torch module and must have:

    __init__(shape)               (channels, height, width) of one image
    features                      the features that go out
    forward(image)                (rows, channels, height, width) float32 -> (rows, features)

It may have:

    min_side: int                 the fewest pixels a side that it can encode
    options: type                 a dataclass of its own options, the flags of --encoder.*; `__init__` then takes their
                                  values as its second argument
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.errors import ConfigError
from shoal.nn.encoders.ids import IdGrid, IdText
from shoal.nn.looks import SMALL_IMAGE, Look, image_side, is_numeric, leaf_spaces, look_of
from shoal.plugins import Plugins, make_with_options
from shoal.spec import Layout

__all__ = ["EMBEDDING", "ENCODERS", "SMALL_IMAGE", "Encoder", "image_side", "is_numeric", "leaf_spaces"]

ENCODERS = Plugins("encoder", package="shoal.nn.encoders", marker="ENCODER")

IDS_AS_ONE_HOT = 32  # a Discrete with more choices is embedded
EMBEDDING = 32


class Numbers(nn.Module):
    """A Box of numbers, flattened. Integers with tight bounds are scaled by their largest value."""

    def __init__(self, shape: tuple[int, ...], scale: float = 1.0) -> None:
        super().__init__()
        self.features = int(np.prod(shape))
        self.scale = scale

    def forward(self, obs: Tensor) -> Tensor:
        """(rows, *shape) -> (rows, features) float32."""
        if obs.ndim == 2 and obs.dtype == torch.float32:
            return obs if self.scale == 1.0 else obs * self.scale
        flat = obs.reshape(obs.shape[0], -1)
        if flat.dtype != torch.float32:
            flat = flat.to(torch.float32)
        return flat if self.scale == 1.0 else flat * self.scale


class Image(nn.Module):
    """Pixels (or a grid of features), channels last or first, through an image encoder."""

    def __init__(self, look: Look, options: Any = None) -> None:
        super().__init__()
        make = ENCODERS.find(look.encoder)
        min_side, size = getattr(make, "min_side", 1), " x ".join(map(str, look.shape[1:]))
        if min(look.shape[1:]) < min_side:
            raise ConfigError(
                f"--nn.encoder {look.encoder} needs {min_side} pixels a side; this image has {size}. Use grid."
            )
        self.shape, self.channels_last, self.scale = look.shape, look.channels_last, look.scale
        self.cnn = make_with_options(make, look.shape, options=options)
        self.features = self.cnn.features
        self.is_large = min(look.shape[1:]) >= SMALL_IMAGE

    def forward(self, obs: Tensor) -> Tensor:
        """(rows, h, w, c) or (rows, c, h, w) -> (rows, features)."""
        if obs.ndim == 3:
            obs = obs.unsqueeze(1)
        elif self.channels_last:
            obs = obs.permute(0, 3, 1, 2)
        if self.is_large and not obs.is_cuda:  # a CPU's convolutions are a third faster with channels last
            obs = obs.contiguous(memory_format=torch.channels_last)
        obs = obs.to(torch.float32)
        return self.cnn(obs if self.scale == 1.0 else obs * self.scale)


class Ids(nn.Module):
    """Choices (Discrete, MultiDiscrete): one-hot up to IDS_AS_ONE_HOT of them, embedded above."""

    def __init__(self, counts: list[int], starts: list[int]) -> None:
        super().__init__()
        self.counts, self.starts = counts, starts
        embedded = [count for count in counts if count > IDS_AS_ONE_HOT]
        self.tables = nn.ModuleList([nn.Embedding(count, EMBEDDING) for count in embedded])
        self.features = sum(EMBEDDING if count > IDS_AS_ONE_HOT else count for count in counts)

    def forward(self, obs: Tensor) -> Tensor:
        """(rows,) or (rows, parts) ints -> (rows, features)."""
        columns = obs.reshape(obs.shape[0], -1).to(torch.int64)
        tables = iter(self.tables)
        parts = []
        for k, (count, start) in enumerate(zip(self.counts, self.starts)):
            # clamped: an agent that is out of the game observes zeros, which may be outside the space
            ids = (columns[:, k] - start).clamp(0, count - 1)
            if count > IDS_AS_ONE_HOT:
                parts.append(next(tables)(ids))
            else:
                parts.append(nn.functional.one_hot(ids, count).to(torch.float32))
        return torch.cat(parts, 1)


class Encoder(nn.Module):
    """Every leaf of the space through its own encoder, concatenated.

    `kind` is the value of `--nn.encoder`. `normalized`: the actor already normalizes the leaves that are numeric
    (`is_numeric`), so they are not scaled by their bounds. `options` are those of the image encoder.
    """

    def __init__(
        self, space: spaces.Space[Any], kind: str = "auto", *, normalized: bool = False, options: Any = None
    ) -> None:
        super().__init__()
        self.paths = [leaf.path for leaf in Layout(space).leaves]
        leaves = leaf_spaces(space)
        for leaf, path in zip(leaves, self.paths):
            if 0 in (leaf.shape or ()):
                name = "".join(f"[{key!r}]" for key in path)
                raise ConfigError(
                    f"obs{name} has no elements: its space is {leaf}. Leave it out, or give it a constant."
                )
        self.parts = nn.ModuleList([_for_leaf(leaf, kind, normalized and is_numeric(leaf), options) for leaf in leaves])
        self.features = sum(part.features for part in self.parts)
        self.has_large_image = any(isinstance(part, Image) and part.is_large for part in self.parts)
        # in a list, so that the module tree does not hold it twice
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


def _is_id_grid(space: spaces.MultiDiscrete) -> bool:
    """Whether all places of a grid have the same ids, more than one-hot is for."""
    is_uniform = bool((space.nvec == space.nvec.flat[0]).all() and (space.start == space.start.flat[0]).all())
    return space.nvec.ndim == 2 and is_uniform and int(space.nvec.flat[0]) > IDS_AS_ONE_HOT


def _for_leaf(space: spaces.Space[Any], kind: str, normalized: bool, options: Any) -> Any:
    if isinstance(space, spaces.Discrete):
        return Ids([int(space.n)], [int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        count, start = int(space.nvec.flat[0]), int(space.start.flat[0])
        if _is_id_grid(space):
            rows, columns = space.nvec.shape
            return IdText(columns, count, start) if rows == 1 else IdGrid((rows, columns), count, start)
        return Ids([int(n) for n in np.ravel(space.nvec)], [int(k) for k in np.ravel(space.start)])
    if isinstance(space, spaces.MultiBinary):
        return Numbers(space.shape)
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"observations of type {type(space).__name__} have no encoder. Pass your own policy.")
    look = look_of(space, kind, normalized=normalized)
    return Image(look, options) if look.shape else Numbers(space.shape, look.scale)
