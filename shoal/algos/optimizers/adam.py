"""Adam: the same numbers as torch.optim.Adam with `fused=True`.

torch.optim imports torch's compiler when an optimizer is made, which delays the start of a run by a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Adam:
    """Adam (Kingma & Ba 2015)."""

    MEAN = "exp_avg"  # name in `state` of the running mean of the gradient
    decoupled = False  # whether weight decay is applied to the weights, not to the gradient

    def __init__(self, weights: Tensor, policy: nn.Module, config: Any, rate: Any) -> None:
        self.weights = weights
        self.rate = rate  # a float, or on a GPU a tensor
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
        """The weight decay: 0 for Adam."""
        return 0.0

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate. A CUDA graph reads the tensor, so its value is changed in place."""
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.rate = rate

    @torch.no_grad()
    def step(self) -> None:
        """Updates the weights from their gradient."""
        self.state["step"] += 1
        self._adam([slice(None)])

    def _adam(self, spans: Sequence[slice]) -> None:
        """Updates these spans of the weights."""
        step, mean, square = self.state.values()
        grad = self.weights.grad
        assert grad is not None
        lists = [[x.detach()[span] for span in spans] for x in (self.weights, grad, mean, square)]
        options = {"amsgrad": False, "maximize": False, "grad_scale": None, "found_inf": None, **self.fixed}
        run = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        run(*lists, [], [step] * len(spans), lr=self.rate, **options)


OPTIMIZER = Adam
