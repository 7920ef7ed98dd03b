"""Lion (Chen et al. 2023): moves every weight by the learning rate, in the direction of the sign of a momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shoal.config import opt


@dataclass(frozen=True)
class LionOptions:
    """The options of `--optimizer.*` with `--train.optimizer lion`."""

    beta1: float = opt(0.9, "part of the momentum in the direction of a step", low=0.0, high=1.0)
    beta2: float = opt(0.99, "decay of the momentum", low=0.0, high=1.0)


class Lion:
    """w -= rate sign(beta1 m + (1 - beta1) g); then m = beta2 m + (1 - beta2) g."""

    options = LionOptions

    def __init__(self, weights: Tensor, policy: nn.Module, config: Any, rate: Any, options: LionOptions) -> None:
        self.weights, self.rate, self.values = weights, rate, options
        self.state = {"momentum": torch.zeros_like(weights, requires_grad=False)}

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate. On a GPU it is a tensor, which CUDA graphs read: its value changes."""
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.rate = rate

    @torch.no_grad()
    def step(self) -> None:
        """Moves the weights against their gradient."""
        gradient, momentum = self.weights.grad, self.state["momentum"]
        direction = torch.lerp(gradient, momentum, self.values.beta1).sign_()
        self.weights -= self.rate * direction
        momentum.lerp_(gradient, 1.0 - self.values.beta2)


OPTIMIZER = Lion
