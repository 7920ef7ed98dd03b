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

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.errors import ConfigError
from shoal.nn.encoders.ids import IdGrid, IdText
from shoal.plugins import Plugins, make_with_options
from shoal.spec import Layout

ENCODERS = Plugins("encoder", package="shoal.nn.encoders", marker="ENCODER")

IDS_AS_ONE_HOT = 32  # a Discrete with more choices is embedded
EMBEDDING = 32
WIDEST_RANGE = 65535.0  # of bounds that scale values: that of 16 bits. Wider bounds say nothing about the values.
SMALL_IMAGE = 40  # pixels a side: below, "auto" uses grid, because Nature's strides leave too few pixels


def is_numeric(space: spaces.Space[Any]) -> bool:
    """Whether `normalize_obs` normalizes a leaf: floats, integers with wide bounds, and the cells of a small grid.

    A grid of uint8 usually holds small numbers (kinds of objects), which division by 255 would make invisible. Pixels
    of a larger image are scaled by their bounds alone: one that rarely changes would become a large number.
    """
    if not isinstance(space, spaces.Box):
        return False
    if _has_tight_bounds(space) and (side := image_side(space)):
        return side < SMALL_IMAGE
    return _is_float(space) or not _has_tight_bounds(space)


def image_side(space: spaces.Space[Any]) -> int:
    """Pixels of the shorter side of an image, or cells of a grid; 0 if the leaf is neither."""
    if not isinstance(space, spaces.Box) or not _is_image(space):
        return 0
    shape = space.shape
    sides = shape if len(shape) == 2 else shape[:2] if _has_channels_last(shape) else shape[1:]
    return int(min(sides))


def _is_image(space: spaces.Box) -> bool:
    return len(space.shape) == 3 or (len(space.shape) == 2 and space.dtype == np.uint8)


def _is_float(space: spaces.Box) -> bool:
    return space.dtype is not None and space.dtype.kind == "f"


def _has_tight_bounds(space: spaces.Box) -> bool:
    """Whether the bounds say how large the values are. Bounds like the limits of a wide dtype do not."""
    low, high = float(np.min(space.low)), float(np.max(space.high))
    return math.isfinite(low) and math.isfinite(high) and high - low <= WIDEST_RANGE


def _scale(space: spaces.Box) -> float:
    """The factor that brings values within tight bounds to about -1 .. 1."""
    if not _has_tight_bounds(space):
        return 1.0
    low, high = float(np.min(space.low)), float(np.max(space.high))
    largest = high if _is_float(space) else max(high, -low - 1.0)  # 127 for all of int8
    return 1.0 / largest if largest > 1.0 else 1.0


class Numbers(nn.Module):
    """A Box of numbers, flattened. Integers with tight bounds are scaled by their largest value."""

    def __init__(self, space: spaces.Box, *, normalized: bool = False) -> None:
        super().__init__()
        self.features = int(np.prod(space.shape))
        self.scale = 1.0 if normalized or _is_float(space) else _scale(space)

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

    def __init__(self, space: spaces.Box, kind: str, *, normalized: bool = False, options: Any = None) -> None:
        super().__init__()
        shape = space.shape
        self.channels_last = len(shape) == 3 and _has_channels_last(shape)
        if len(shape) == 2:
            shape = (1, *shape)
        elif self.channels_last:
            shape = (shape[2], shape[0], shape[1])
        if kind == "auto":
            kind = "grid" if min(shape[1:]) < SMALL_IMAGE else "nature"
        make = ENCODERS.find(kind)
        min_side = getattr(make, "min_side", 1)
        if min(shape[1:]) < min_side:
            size = " x ".join(map(str, shape[1:]))
            raise ConfigError(f"--nn.encoder {kind} needs {min_side} pixels a side; this image has {size}. Use grid.")
        self.shape = shape  # (channels, height, width)
        self.cnn = make_with_options(make, shape, options=options)
        self.features = self.cnn.features
        self.scale = 1.0 if normalized else _scale(space)

    def forward(self, obs: Tensor) -> Tensor:
        """(rows, h, w, c) or (rows, c, h, w) -> (rows, features)."""
        if obs.ndim == 3:
            obs = obs.unsqueeze(1)
        elif self.channels_last:
            obs = obs.permute(0, 3, 1, 2)
        obs = obs.to(torch.float32)
        return self.cnn(obs if self.scale == 1.0 else obs * self.scale)


def _has_channels_last(shape: tuple[int, ...]) -> bool:
    """Two equal sides are height and width. Where that does not decide, the smaller end is the channels."""
    if (shape[0] == shape[1]) != (shape[1] == shape[2]):
        return shape[0] == shape[1]
    return shape[2] <= shape[0]


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
        self.parts = nn.ModuleList([_for_leaf(leaf, kind, normalized and is_numeric(leaf), options) for leaf in leaves])
        self.features = sum(part.features for part in self.parts)
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


def leaf_spaces(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    """The spaces of the leaves, in the order of `Layout(space).leaves`."""
    leaves = []
    for leaf in Layout(space).leaves:
        inner: Any = space
        for key in leaf.path:
            inner = inner.spaces[key]
        leaves.append(inner)
    return leaves


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
        return Numbers(spaces.Box(0, 1, space.shape, np.int8))
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"observations of type {type(space).__name__} have no encoder. Pass your own policy.")
    if _is_image(space) and kind != "mlp":
        return Image(space, kind, normalized=normalized, options=options)
    return Numbers(space, normalized=normalized)
