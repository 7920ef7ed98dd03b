"""Activations, orthogonal initialization, and the stack of linear layers that policies share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

# in place if the gradient allows it: allocating memory costs more than the arithmetic
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

    It is one module: for a few rows, calling a module for each layer takes longer than the arithmetic.
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


def features_of(layers: nn.Module, shape: tuple[int, ...]) -> int:
    """The number of features that the layers compute from one input."""
    with torch.no_grad():
        return int(layers(torch.zeros(1, *shape)).shape[1])
