"""layer_init and the small stacks that encoders are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

# in place where the gradient allows it: a fresh batch of activations costs more than the arithmetic
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
}


def layer_init(layer: Any, std: float = 2.0**0.5, bias: float = 0.0) -> Any:
    """Orthogonal weights of the given gain and a constant bias, in place. Returns the layer."""
    nn.init.orthogonal_(layer.weight, std)
    if layer.bias is not None:
        nn.init.constant_(layer.bias, bias)
    return layer


class MLP(nn.Module):
    """Linear layers from sizes[0] to sizes[-1], each followed by the activation.

    One module, not one for each layer: for a few rows, calling modules takes longer than the arithmetic.
    """

    def __init__(self, sizes: Sequence[int], activation: str = "relu") -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer_init(nn.Linear(before, after)) for before, after in pairwise(sizes)])
        self.features = sizes[-1]
        self._activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """(rows, sizes[0]) -> (rows, sizes[-1])."""
        for layer in self.layers:
            x = self._activation(nn.functional.linear(x, layer.weight, layer.bias))
        return x


class NatureCNN(nn.Module):
    """The three convolutions of Mnih et al. 2015. (rows, channels, height, width) -> (rows, features)."""

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
        """Features of a batch of images."""
        return self.layers(image)


class GridCNN(nn.Module):
    """Two 3x3 convolutions for small grids that Nature's strides would swallow."""

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
        """Features of a batch of grids."""
        return self.layers(image)


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
        """Features of a batch of images."""
        return self.layers(image)


def features_of(layers: nn.Module, shape: tuple[int, ...]) -> int:
    """How many numbers the layers make of one input."""
    with torch.no_grad():
        return int(layers(torch.zeros(1, *shape)).shape[1])
