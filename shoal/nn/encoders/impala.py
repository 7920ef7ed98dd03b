"""ImpalaCNN: residual, slower than NatureCNN, and better on many images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from shoal.nn.layers import features_of


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1)
        )

    def forward(self, image: Tensor) -> Tensor:
        return image + self.layers(image)


class ImpalaCNN(nn.Module):
    """The residual stacks of Espeholt et al. 2018."""

    def __init__(self, shape: tuple[int, int, int], channels: Sequence[int] = (16, 32, 32)) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        before = shape[0]
        for after in channels:
            pool = nn.MaxPool2d(3, 2, 1)
            parts += [nn.Conv2d(before, after, 3, 1, 1), pool, _Residual(after), _Residual(after)]
            before = after
        self.layers = nn.Sequential(*parts, nn.ReLU(), nn.Flatten())
        self.features = features_of(self.layers, shape)

    def forward(self, image: Tensor) -> Tensor:
        """(rows, channels, height, width) -> (rows, features)."""
        return self.layers(image)


ENCODER = ImpalaCNN
