"""GridCNN: for small grids and images."""

from __future__ import annotations

from torch import Tensor, nn

from shoal.nn.layers import features_of, layer_init


class GridCNN(nn.Module):
    """Two 3x3 convolutions, for grids that are too small for Nature's strides.

    It has the form of NatureCNN: an encoder is one file that is read without the others.
    """

    def __init__(self, shape: tuple[int, int, int], channels: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            layer_init(nn.Conv2d(shape[0], channels, 3, 1, padding=1)),
            nn.ReLU(),
            layer_init(nn.Conv2d(channels, channels, 3, 2 if min(shape[1:]) > 8 else 1, padding=1)),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.features = features_of(self.layers, shape)

    def forward(self, image: Tensor) -> Tensor:
        """(rows, channels, height, width) -> (rows, features)."""
        return self.layers(image)


ENCODER = GridCNN
