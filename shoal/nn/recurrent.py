"""Recurrent cores: LSTM and MinGRU. Each steps one row at a time in play, and a whole segment at once in training.

State is a tuple of (rows, size) tensors. `resets[t]` is true where a row's state is cleared before step t: exactly
where an episode began.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shoal.nn import fused

State = tuple[Tensor, ...]

LONGEST = 64.0  # steps that the slowest units remember at the start of training


def time_scales(size: int) -> Tensor:
    """Biases of forget gates by which units remember for 1 to LONGEST steps (Tallec & Ollivier 2018), evenly spread."""
    return torch.linspace(1.0, LONGEST, size).log()


class LSTM(nn.Module):
    """Hochreiter & Schmidhuber 1997, as torch.nn.LSTMCell computes it."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size, self.features = size, size
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
        if fused.is_for(x) and not torch.is_grad_enabled():
            hidden, cell = fused.lstm_step(self.input(x), self.hidden.weight, *state)
            return hidden, (hidden, cell)
        hidden, cell = lstm_gates(torch.addmm(self.input(x), state[0], self.hidden.weight.t()), state[1])
        return hidden, (hidden, cell)

    def unroll(self, x: Tensor, state: State, resets: Tensor) -> Tensor:
        """(steps, rows, inputs) -> (steps, rows, size), through time."""
        gates, keep = self.input(x), (~resets).to(x.dtype).unsqueeze(-1)
        hidden, cell = state
        if fused.is_for(x):
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
    """c' = f c + i g, h' = o tanh(c'), from the four gates' inputs (i, f, g, o) side by side."""
    i, f, g, o = gates.chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


class MinGRU(nn.Module):
    """Feng et al. 2024, "Were RNNs all we needed?": h_t = (1 - z_t) h_{t-1} + z_t g(W_h x_t), z_t = sigmoid(W_z x_t).

    Neither gate looks at h, so a whole segment is one scan. A highway gate mixes h with the input.
    """

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size, self.features = size, size
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
        if fused.is_for(x) and not torch.is_grad_enabled():
            never = torch.zeros((1, len(x)), dtype=torch.bool, device=x.device)
            out, hidden = fused.mingru(self.gates(x).unsqueeze(0), self.skip(x).unsqueeze(0), state[0], never)
            return out[0], (hidden[0],)
        update, candidate, highway = self._gates(x)
        hidden = torch.lerp(state[0], candidate, update)
        return torch.lerp(self._wide(self.skip(x)), hidden, highway), (hidden,)

    def unroll(self, x: Tensor, state: State, resets: Tensor) -> Tensor:
        """(steps, rows, inputs) -> (steps, rows, size), by a parallel scan."""
        if fused.is_for(x):
            return fused.mingru(self.gates(x), self.skip(x), state[0], resets)[0]
        update, candidate, highway = self._gates(x)
        keep = (1.0 - update) * (~resets).to(x.dtype).unsqueeze(-1)
        keep = torch.cat([1.0 - update[:1], keep[1:]])  # the start state is as it was stored
        hidden = scan(keep, update * candidate, state[0])
        return torch.lerp(self._wide(self.skip(x)), hidden, highway)

    def _wide(self, x: Tensor) -> Tensor:
        """In the dtype of the weights and the state: what is summed over time is not summed in half precision."""
        return x.to(self.gates.weight.dtype)

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        update, candidate, highway = self._wide(self.gates(x)).chunk(3, -1)
        # g of the paper: positive, and near linear where it matters
        candidate = torch.where(candidate >= 0, candidate + 0.5, torch.sigmoid(candidate))
        return torch.sigmoid(update), candidate, torch.sigmoid(highway)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, start: Tensor) -> Tensor:
        b = torch.cat([(b[0] + a[0] * start).unsqueeze(0), b[1:]])
        h = _doubling(a, b)
        ctx.save_for_backward(a, h, start)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, h, start = ctx.saved_tensors
        # dL/db_t = g_t = dL/dh_t + a_{t+1} g_{t+1}: the same scan, from the end
        later = torch.cat([torch.zeros_like(a[:1]), a[1:].flip(0)])
        g = _doubling(later, grads[0].flip(0)).flip(0)
        before = torch.cat([start.unsqueeze(0), h[:-1]])
        return g * before, g, g[0] * a[0]


def scan(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + b_t with h_{-1} = start, for a, b of shape (steps, rows, size), in log2(steps) passes.

    Hillis & Steele 1986. No division and no logarithm, so a_t = 0, a cleared state, is exact.
    """
    out: Tensor = _Scan.apply(a, b, start)
    return out


def _doubling(a: Tensor, b: Tensor) -> Tensor:
    distance, steps = 1, len(a)
    while distance < steps:
        b = torch.cat([b[:distance], torch.addcmul(b[distance:], a[distance:], b[:-distance])])
        if 2 * distance < steps:
            a = torch.cat([a[:distance], a[distance:] * a[:-distance]])
        distance *= 2
    return b


CORES = {"lstm": LSTM, "mingru": MinGRU}
