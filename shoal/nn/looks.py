"""What an observation looks like to a policy: numbers or an image, and their size. Knows spaces, not torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.spec import Layout

WIDEST_RANGE = 65535.0  # of bounds that scale values: that of 16 bits. Wider bounds say nothing about the values.
SMALL_IMAGE = 40  # pixels a side: below, "auto" uses grid, because Nature's strides leave too few pixels


@dataclass(frozen=True)
class Look:
    """How a Box is encoded: as numbers, or as an image of this shape."""

    encoder: str  # numbers, or the name of an image encoder
    scale: float  # of all values
    shape: tuple[int, ...] = ()  # (channels, height, width) of an image
    channels_last: bool = False


def look_of(space: spaces.Box, encoder: str = "auto", *, normalized: bool = False) -> Look:
    """`encoder` is the value of `--nn.encoder`. `normalized`: the actor has normalized the values."""
    if not _is_image(space) or encoder == "mlp":
        return Look("numbers", 1.0 if normalized or _is_float(space) else _scale_of(space))
    shape: tuple[int, ...] = space.shape
    channels_last = len(shape) == 3 and _has_channels_last(shape)
    if len(shape) == 2:
        shape = (1, *shape)
    elif channels_last:
        shape = (shape[2], shape[0], shape[1])
    if encoder == "auto":
        encoder = "grid" if min(shape[1:]) < SMALL_IMAGE else "nature"
    return Look(encoder, 1.0 if normalized else _scale_of(space), shape, channels_last)


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


def _scale_of(space: spaces.Box) -> float:
    """The factor that brings values within tight bounds to about -1 .. 1."""
    if not _has_tight_bounds(space):
        return 1.0
    low, high = float(np.min(space.low)), float(np.max(space.high))
    largest = high if _is_float(space) else max(high, -low - 1.0)  # 127 for all of int8
    return 1.0 / largest if largest > 1.0 else 1.0


def _has_channels_last(shape: tuple[int, ...]) -> bool:
    """Two equal sides are height and width. Where that does not decide, the smaller end is the channels."""
    if (shape[0] == shape[1]) != (shape[1] == shape[2]):
        return shape[0] == shape[1]
    return shape[2] <= shape[0]


def leaf_spaces(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    """The spaces of the leaves, in the order of `Layout(space).leaves`."""
    leaves = []
    for leaf in Layout(space).leaves:
        inner: Any = space
        for key in leaf.path:
            inner = inner.spaces[key]
        leaves.append(inner)
    return leaves
