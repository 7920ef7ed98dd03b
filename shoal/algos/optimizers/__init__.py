"""Optimizers for weights in one flat tensor: one file each, found by name (`--train.optimizer`). Knows nn.

An optimizer is a class that a file assigns to OPTIMIZER:

    OPTIMIZER = Adam        # Adam(weights, policy, config, rate)

`weights` is a flat tensor with a `.grad`, `policy` the module whose parameters are views of it, `config` the options of
the algorithm, `rate` the learning rate. `state` holds the tensors that checkpoints save, `step()` updates the weights,
and `set_rate(rate)` sets the learning rate of later steps.

An optimizer with options of its own names their dataclass in `options`. They are the flags of `--optimizer.*`, and its
fifth argument:

    class Lion:
        options = LionOptions

        def __init__(self, weights, policy, config, rate, options): ...
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shoal.plugins import Plugins, make_with_options

OPTIMIZERS = Plugins("optimizer", package="shoal.algos.optimizers", marker="OPTIMIZER")


class Optimizer(Protocol):
    """What a learner needs from an optimizer."""

    state: dict[str, Tensor]

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate of later steps."""

    def step(self) -> None:
        """Updates the weights from their gradient."""


def make_optimizer(name: str, weights: Tensor, policy: nn.Module, config: Any, options: Any = None) -> Any:
    """The optimizer of a name, with its own options (None: the defaults). On a GPU its rate is a tensor for graphs."""
    rate: Any = config.learning_rate
    if weights.device.type == "cuda":
        rate = torch.tensor(rate, device=weights.device)
    return make_with_options(OPTIMIZERS.find(name), weights, policy, config, rate, options=options)


def fits(optimizer: Optimizer, state: dict[str, Tensor]) -> bool:
    """Whether saved tensors have the names, shapes and dtypes of the optimizer's state."""
    expected = {name: (value.shape, value.dtype) for name, value in optimizer.state.items()}
    return expected == {name: (value.shape, value.dtype) for name, value in state.items()}
