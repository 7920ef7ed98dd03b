"""`Layered` for a recurrent policy: an LSTM or MinGRU between layers and heads.

The gates before their sigmoids are a layer whose outputs are planes, one for each gate. Time is computed by the kernels
of fused_core.py, in play with segments of one step. A LSTM's recurrent matrices are a layer that has a gradient only.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast.fused_core import CoreSteps
from shoal.algos.fast.layer_stack import NO_ACTIVATION, NO_CONVOLUTION
from shoal.algos.fast.layered import Layered
from shoal.algos.fast.layered_layer import Layer
from shoal.nn.recurrent import LSTM, State


class LayeredCore(CoreSteps, Layered):
    """PPO with one kernel for each layer, and a recurrent core."""

    def _make_core(self) -> tuple[list[Layer], Layer]:
        from shoal.algos.fast import core_kernels

        self.core_kernels, core = core_kernels, self.learner.actor.policy.core
        self.is_lstm, self.length, size = type(core) is LSTM, self.learner.rollout.segment, core.size
        self.shape = {"H": size, "DTYPE": self.type}
        inputs = core.input if self.is_lstm else core.gates
        layers = [self._gates(inputs.weight, inputs.bias, size)]
        if self.is_lstm:
            layers.append(self._gates(core.hidden.weight, None, size))
        last = Layer({"NP": size}, torch.empty(0), torch.empty(0), NO_ACTIVATION)
        return layers, last

    def _gates(self, weight: Tensor, bias: Tensor | None, size: int) -> Layer:
        """All gates' matrices (size, size), one below the other."""
        rows, columns = weight.shape
        index = self.starts_of[id(weight)] + torch.arange(rows * columns).view(rows, columns)
        biases = torch.full((rows,), -1) if bias is None else self.starts_of[id(bias)] + torch.arange(rows)
        constants = {"NP": rows, "KP": columns, "H": size, "K": columns, "ROW": columns, **NO_CONVOLUTION}
        constants |= {"IS_OBS": False, "UNIT": 1.0, "NORM": False, "DTYPE": self.type, "BK": min(columns, 64)}
        return Layer(constants, index, biases, NO_ACTIVATION)

    def _allocate_core(self) -> None:
        rollout, size, gates = self.learner.rollout, self.shape["H"], 4 if self.is_lstm else 3
        zeros = partial(torch.zeros, dtype=self.dtype, device=self.learner.device)
        self.plane, body = self.chunk * size, self.layers[-1]
        self.second = body.out
        self.input_gates, self.d_gates = zeros((gates, self.chunk, size)), zeros((gates, self.chunk, size))
        self.acts = zeros((gates, self.chunk, size)) if self.is_lstm else self.input_gates
        self.hidden_in = self.d_skip = zeros((self.chunk, size))
        self.last.out, self.last.d_out = self.out, self.d_out = zeros((self.chunk, size)), zeros((self.chunk, size))
        self.carried = zeros((self.chunk, size), dtype=torch.float32)
        self.cleared = zeros(self.chunk, dtype=torch.int8)
        self.new_state = tuple(torch.zeros_like(part) for part in rollout.state)
        self.start_states = [part.flatten(0, 1) for part in rollout.starts]
        self.every_row = torch.arange(self.chunk, device=self.learner.device)
        for layer in self.core_layers:
            layer.out, layer.d_out, layer.source = self.input_gates, self.d_gates, body.out
        if self.is_lstm:
            self.core_layers[1].source = self.hidden_in
        self.recurrent = self.narrow[self.core_layers[-1].start :]

    def _act_core(self, rows: slice, first: int, count: int) -> Tensor:
        """One step of the core: segments of one step, which begin with the state of the rows."""
        own = slice(first, first + count)
        state, new = ([part[rows][own] for part in parts] for parts in (self.learner.rollout.state, self.new_state))
        kept = self.start_states, self.carried, self.out, self.length
        self.start_states, self.length = state, 1
        if self.is_lstm:
            self.out, self.carried = new
        else:
            self.carried = new[0]
        self._core_forward(self.every_row, count)
        heads_input = self.out
        self.start_states, self.carried, self.out, self.length = kept
        return heads_input

    def _new_state(self, rows: slice) -> State:
        return tuple(part[rows] for part in self.new_state)

    def _run_core(self, batch: Any, order: Tensor, first: int, count: int) -> None:
        self.cleared[:count].copy_(batch.resets.index_select(0, order[:count]))
        self._core_forward(self.segments[first // self.length :], count)

    def _backward_core(self, first: int, count: int) -> None:
        self._core_backward(self.segments[first // self.length :], count)
        skip = None if self.is_lstm else self.d_skip
        self._linear_backward(self.core_layers[0], self.layers[-1], count, skip)
