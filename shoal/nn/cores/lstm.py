"""LSTM: a step at a time in play, and a loop over the steps of a segment in training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.nn import fused
from shoal.nn.cores import State, time_scales


class LSTM(nn.Module):
    """Hochreiter & Schmidhuber 1997. Computes the same as torch.nn.LSTMCell."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size, self.features, self.gate_rows = size, size, size
        self.input = nn.Linear(inputs, 4 * size)
        self.hidden = nn.Linear(size, 4 * size, bias=False)
        nn.init.orthogonal_(self.input.weight)
        nn.init.orthogonal_(self.hidden.weight)
        nn.init.zeros_(self.input.bias)
        with torch.no_grad():  # gates i, f, g, o
            self.input.bias[:size] = -time_scales(size)
            self.input.bias[size : 2 * size] = time_scales(size)

    def initial_state(self, rows: int) -> State:
        """Zeros."""
        zeros = self.input.weight.new_zeros(2, rows, self.size)
        return zeros[0], zeros[1]

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of (rows, inputs)."""
        # only for this exact class: a subclass may compute something else
        if type(self) is LSTM and fused.is_for(x) and not torch.is_grad_enabled():
            hidden, cell = fused.lstm_step(self.input(x), self.hidden.weight, *state)
            return hidden, (hidden, cell)
        hidden, cell = lstm_gates(torch.addmm(self.input(x), state[0], self.hidden.weight.t()), state[1])
        return hidden, (hidden, cell)

    def unroll(self, x: Tensor, state: State, resets: Tensor) -> Tensor:
        """(steps, rows, inputs) -> (steps, rows, size)."""
        gates, keep = self.input(x), (~resets).to(x.dtype).unsqueeze(-1)
        hidden, cell = state
        if type(self) is LSTM and fused.is_for(x):
            return fused.lstm(gates, self.hidden.weight, hidden, cell, resets)
        weight = self.hidden.weight.t()
        outputs = []
        for t in range(len(x)):
            if t:
                hidden, cell = hidden * keep[t], cell * keep[t]
            hidden, cell = lstm_gates(torch.addmm(gates[t], hidden, weight), cell)
            outputs.append(hidden)
        return torch.stack(outputs)


def lstm_gates(gates: Tensor, cell: Tensor) -> State:
    """c' = f c + i g, h' = o tanh(c'), from the four gates (i, f, g, o) before their activations, concatenated."""
    i, f, g, o = gates.chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


CORE = LSTM
