"""MinGRU: a step at a time in play, and one parallel scan over a segment in training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shoal.nn import fused
from shoal.nn.cores import State, time_scales
from shoal.nn.scan import scan


class MinGRU(nn.Module):
    """Feng et al. 2024, "Were RNNs all we needed?": h_t = (1 - z_t) h_{t-1} + z_t g(W_h x_t), z_t = sigmoid(W_z x_t).

    Neither gate depends on h, so a whole segment is one scan. A highway gate mixes h with the input.
    """

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size, self.features, self.gate_rows = size, size, size
        self.gates = nn.Linear(inputs, 3 * size)
        nn.init.orthogonal_(self.gates.weight)
        nn.init.zeros_(self.gates.bias)
        with torch.no_grad():
            self.gates.bias[:size] = -time_scales(size)
        self.skip: Any = nn.Identity() if inputs == size else nn.Linear(inputs, size, bias=False)

    def initial_state(self, rows: int) -> State:
        """Zeros."""
        return (self.gates.weight.new_zeros(rows, self.size),)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of (rows, inputs)."""
        # only for this exact class: a subclass may compute something else
        if type(self) is MinGRU and fused.is_for(x) and not torch.is_grad_enabled():
            no_resets = torch.zeros((1, len(x)), dtype=torch.bool, device=x.device)
            out, hidden = fused.mingru(self.gates(x).unsqueeze(0), self.skip(x).unsqueeze(0), state[0], no_resets)
            return out[0], (hidden[0],)
        update, candidate, highway = self._gates(x)
        hidden = torch.lerp(state[0], candidate, update)
        return torch.lerp(self._wide(self.skip(x)), hidden, highway), (hidden,)

    def unroll(self, x: Tensor, state: State, resets: Tensor) -> Tensor:
        """(steps, rows, inputs) -> (steps, rows, size), by a parallel scan."""
        if type(self) is MinGRU and fused.is_for(x):
            return fused.mingru(self.gates(x), self.skip(x), state[0], resets)[0]
        update, candidate, highway = self._gates(x)
        keep = (1.0 - update) * (~resets).to(x.dtype).unsqueeze(-1)
        keep = torch.cat([1.0 - update[:1], keep[1:]])  # the start state was stored after its reset
        hidden = scan(keep, update * candidate, state[0])
        return torch.lerp(self._wide(self.skip(x)), hidden, highway)

    def _wide(self, x: Tensor) -> Tensor:
        """Converts to the dtype of the weights and the state: sums over time need full precision."""
        return x.to(self.gates.weight.dtype)

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        update, candidate, highway = self._wide(self.gates(x)).chunk(3, -1)
        # g of the paper: positive, and linear where its input is positive
        candidate = torch.where(candidate >= 0, candidate + 0.5, torch.sigmoid(candidate))
        return torch.sigmoid(update), candidate, torch.sigmoid(highway)


CORE = MinGRU
