"""Patches: the same linear layer for every square of the image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.config import opt


@dataclass(frozen=True)
class PatchOptions:
    """The options of `--encoder.*` with `--nn.encoder patches`."""

    channels: int = opt(16, "features of a patch", low=1)


class Patches(nn.Module):
    """A convolution whose stride is its size, without overlap."""

    min_side = 4
    options = PatchOptions

    def __init__(self, shape: tuple[int, int, int], options: PatchOptions) -> None:
        super().__init__()
        _, height, width = shape
        self.patches = nn.Conv2d(shape[0], options.channels, self.min_side, self.min_side)
        self.features = options.channels * (height // self.min_side) * (width // self.min_side)

    def forward(self, image: Tensor) -> Tensor:
        """(rows, channels, height, width) -> (rows, features)."""
        return torch.relu(self.patches(image)).flatten(1)


ENCODER = Patches
