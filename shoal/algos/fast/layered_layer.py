"""Layer: a layer of a network, as the kernels of layered.py see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(eq=False)
class Layer:
    """A layer: how the kernels see it."""

    constants: dict[str, Any]  # of `forward` and `weight_grads`: see layered_kernels.py
    index: Tensor  # (NP, KP): the weight at each place of `narrow`; -1: padding
    bias_index: Tensor  # (NP,)
    act: int
    images: tuple[int, int] = (1, 1)  # height and width of the outputs
    start: int = 0  # in `narrow`
    source: Tensor | None = None  # plane of the layer before; None: observations
    out: Tensor = field(default_factory=lambda: torch.empty(0))  # its plane
    d_out: Tensor = field(default_factory=lambda: torch.empty(0))  # gradients by it, before the activation
    biases: Tensor = field(default_factory=lambda: torch.empty(0))
    parts: int = 1  # of its rows in `weight_grads`
    partial: Tensor = field(default_factory=lambda: torch.empty(0))
    is_wide: bool = False  # whether `Tiles` are for it
    d_bias: Tensor | None = None  # of a wide layer: gradients of its biases by blocks of rows

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
    def tile(self) -> int:
        """Rows of a tile of its weight gradient."""
        return min(self.constants["H"] or 64, self.width, 64)

    @property
    def size(self) -> int:
        """Numbers in `narrow`: weights and biases."""
        return int(self.index.numel() + self.bias_index.numel())
