"""Adam: the same numbers as torch.optim.Adam with `fused=True`.

torch's own imports its compiler when it is made, which takes a second of every run's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Adam:
    """Kingma & Ba 2015."""

    MEAN = "exp_avg"  # the state's name for the running mean of the gradient
    decoupled = False  # weight decay

    def __init__(self, weights: Tensor, policy: nn.Module, config: Any, rate: Any) -> None:
        self.weights = weights
        self.rate = rate  # a float, or a tensor where a graph reads it
        self.fixed = {
            "beta1": getattr(config, "adam_beta1", 0.9),
            "beta2": getattr(config, "adam_beta2", 0.999),
            "eps": getattr(config, "adam_eps", 1e-5),
            "weight_decay": self.weight_decay(config),
        }
        step = torch.zeros((), dtype=torch.float32, device=weights.device)
        mean, square = (torch.zeros_like(weights, requires_grad=False) for _ in range(2))
        self.state: dict[str, Tensor] = {"step": step, self.MEAN: mean, "exp_avg_sq": square}

    @staticmethod
    def weight_decay(config: Any) -> float:
        """Adam has none."""
        return 0.0

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate. A graph holds the tensor: its value changes, not the tensor."""
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.rate = rate

    @torch.no_grad()
    def step(self) -> None:
        """Moves the weights against their gradient."""
        self.state["step"] += 1
        self._adam([slice(None)])

    def _adam(self, parts: Sequence[slice]) -> None:
        step, mean, square = self.state.values()
        grad = self.weights.grad
        assert grad is not None
        lists = [[x.detach()[part] for part in parts] for x in (self.weights, grad, mean, square)]
        options = {"amsgrad": False, "maximize": False, "grad_scale": None, "found_inf": None, **self.fixed}
        run = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        run(*lists, [], [step] * len(parts), lr=self.rate, **options)


OPTIMIZER = Adam
