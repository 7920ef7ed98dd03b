"""Optimizers for weights in one flat tensor: one file each, found by name (`--train.optimizer`). Knows nn.

An optimizer is a class that a file assigns to OPTIMIZER:

    OPTIMIZER = Adam        # Adam(weights, policy, config, rate)

`weights` is a flat tensor with a `.grad`, `policy` the module whose parameters are views of it, `config` the options of
the algorithm, `rate` the learning rate. `state` holds the tensors that checkpoints save, `step()` updates the weights,
and `set_rate(rate)` sets the learning rate of later steps.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shoal.plugins import Plugins

OPTIMIZERS = Plugins("optimizer", package="shoal.algos.optimizers", marker="OPTIMIZER")


class Optimizer(Protocol):
    """What a learner needs from an optimizer."""

    state: dict[str, Tensor]

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate of later steps."""

    def step(self) -> None:
        """Updates the weights from their gradient."""


def make_optimizer(name: str, weights: Tensor, policy: nn.Module, config: Any) -> Any:
    """Makes the optimizer of that name. On a GPU its learning rate is a tensor, which CUDA graphs read."""
    rate: Any = config.learning_rate
    if weights.device.type == "cuda":
        rate = torch.tensor(rate, device=weights.device)
    return OPTIMIZERS.find(name)(weights, policy, config, rate)


def fits(optimizer: Optimizer, state: dict[str, Tensor]) -> bool:
    """Whether saved tensors have the names, shapes and dtypes of the optimizer's state."""
    expected = {name: (value.shape, value.dtype) for name, value in optimizer.state.items()}
    return expected == {name: (value.shape, value.dtype) for name, value in state.items()}
