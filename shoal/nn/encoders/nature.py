"""NatureCNN: for images of Atari's size."""

from __future__ import annotations

from torch import Tensor, nn

from shoal.nn.layers import features_of, layer_init


class NatureCNN(nn.Module):
    """The three convolutions of Mnih et al. 2015."""

    min_side = 36  # the three strides leave nothing of a smaller image

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            layer_init(nn.Conv2d(shape[0], 32, 8, 4)),
            nn.ReLU(),
            layer_init(nn.Conv2d(32, 64, 4, 2)),
            nn.ReLU(),
            layer_init(nn.Conv2d(64, 64, 3, 1)),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.features = features_of(self.layers, shape)

    def forward(self, image: Tensor) -> Tensor:
        """(rows, channels, height, width) -> (rows, features)."""
        return self.layers(image)


ENCODER = NatureCNN
