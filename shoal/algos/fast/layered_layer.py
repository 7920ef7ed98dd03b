"""Layer: a layer of a network, as the kernels of layer_stack.py see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

NORM_TILE = 4096  # numbers of a tile of rows that are normalized


@dataclass(eq=False)
class Layer:
    """A layer: how the kernels see it. It may have layer normalization before its activation."""

    constants: dict[str, Any]  # of `forward` and `weight_grads`: see layered_kernels.py
    index: Tensor  # (NP, KP): the weight at each place of the matrix in `narrow`; -1: padding
    bias_index: Tensor  # (NP,)
    act: int
    units: int = 0  # of `width` numbers of a row
    images: tuple[int, int] = (1, 1)  # height and width of the outputs
    gain: int = -1  # where its gains begin in the weights, followed by its shifts; -1: it has none
    start: int = 0  # in `narrow`
    source: Tensor | None = None  # plane of the layer before; None: observations
    z: Tensor = field(default_factory=lambda: torch.empty(0))  # the plane before normalization
    out: Tensor = field(default_factory=lambda: torch.empty(0))  # its plane
    d_out: Tensor = field(default_factory=lambda: torch.empty(0))  # gradients by it, before the activation
    biases: Tensor = field(default_factory=lambda: torch.empty(0))
    parts: int = 1  # of its rows in `weight_grads`
    partial: Tensor = field(default_factory=lambda: torch.empty(0))
    is_wide: bool = False  # whether `Tiles` are for it
    d_bias: Tensor | None = None  # of a wide layer: gradients of its biases by blocks of rows
    norm_sums: Tensor = field(default_factory=lambda: torch.empty(0))  # see `norm_backward`

    @property
    def pixels(self) -> int:
        """Rows of a transition."""
        height, width = self.images
        return height * width

    @property
    def width(self) -> int:
        """NP: numbers of a row of its plane."""
        return int(self.constants["NP"])

    @property
    def order(self) -> Tensor:
        """For each number of a transition in its plane, (pixels, width): the number that torch has there; -1: none."""
        order = torch.full((self.pixels, self.width), -1)
        order[:, : self.units] = torch.arange(self.units * self.pixels).view(self.units, self.pixels).T
        return order.flatten()

    @property
    def tile(self) -> int:
        """Rows of a tile of its weight gradient."""
        return min(self.constants["H"] or 64, self.width, 64)

    @property
    def size(self) -> int:
        """Numbers of `partial`: weights and biases."""
        return int(self.index.numel() + self.bias_index.numel())

    @property
    def contents(self) -> Tensor:
        """The weight at each place of its part of `narrow`: matrix, biases, gains, shifts; -1: padding."""
        parts = [self.index.flatten(), self.bias_index]
        if self.is_normalized:
            norms = torch.full((2, self.width), -1)
            norms[:, : self.units] = self.gain + torch.arange(2 * self.units).view(2, -1)
            parts.append(norms.flatten())
        return torch.cat(parts)

    @property
    def is_normalized(self) -> bool:
        """Whether it has layer normalization."""
        return self.gain >= 0

    @property
    def norm_parts(self) -> int:
        """Blocks of `norm_backward`."""
        return len(self.norm_sums) // (3 * self.width)

    @property
    def norm_tile(self) -> dict[str, int]:
        """Sizes of the kernels of its normalization."""
        columns = 1 << (self.width - 1).bit_length()
        return {"N": self.units, "NP": self.width, "W": columns, "BM": max(1, min(64, NORM_TILE // columns))}
