"""GRU (Cho et al. 2014): a step at a time in play, and a loop over the steps of a segment in training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.config import opt
from shoal.nn.cores import State


@dataclass(frozen=True)
class GRUOptions:
    """The options of `--core.*` with `--nn.core gru`."""

    update_bias: float = opt(1.0, "initial bias of the update gate; a higher one remembers longer")


class GRU(nn.Module):
    """h' = z h + (1 - z) n, with gates r, z and n of torch.nn.GRUCell."""

    options = GRUOptions

    def __init__(self, inputs: int, size: int, options: GRUOptions) -> None:
        super().__init__()
        self.size = self.features = self.gate_rows = size
        self.cell = nn.GRUCell(inputs, size)
        with torch.no_grad():
            self.cell.bias_ih[size : 2 * size] = options.update_bias

    def initial_state(self, rows: int) -> State:
        """Zeros."""
        return (self.cell.weight_ih.new_zeros(rows, self.size),)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: (rows, inputs) -> (rows, size)."""
        hidden = self.cell(x, state[0])
        return hidden, (hidden,)

    def unroll(self, x: Tensor, state: State, resets: Tensor) -> Tensor:
        """A segment: (steps, rows, inputs) -> (steps, rows, size)."""
        hidden, outputs = state[0], []
        for t in range(len(x)):
            if t:  # the start state was stored after its reset
                hidden = hidden * ~resets[t].unsqueeze(-1)
            hidden = self.cell(x[t], hidden)
            outputs.append(hidden)
        return torch.stack(outputs)


CORE = GRU
