"""PPO for a small network with an LSTM or MinGRU in a few GPU kernels (core_kernels.py). fused.py has no core.

    act               policy -> sample -> store: one kernel for each step
    encode            gather -> both layers -> gates before their sigmoids, without the hidden state
    *_forward         the core over the steps of each segment
    heads_loss        heads -> loss -> gradients by the heads and by the core's output
    *_backward        the core backward in time
    layers_backward   gradients by both layers
    weight_grads      gradients of all weights, in parts; then reduce, muon and adam as in fused.py

The plain path launches about 280 kernels for a minibatch. Products are bfloat16 with float32 sums, as in fused.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast.base import KernelPPO, width_of
from shoal.algos.fast.fused import Fused
from shoal.algos.learner import is_on
from shoal.nn.launch import launch
from shoal.nn.recurrent import LSTM, State

# planes of (transitions of a minibatch, units) in one tensor; from GATES on there are several for each gate
FIRST, SECOND, OUT, D_OUT, D_SECOND, D_FIRST, HIDDEN_IN, GATES = range(8)
D_SKIP = HIDDEN_IN  # shared: only an LSTM's gates use the hidden state, only a MinGRU has a skip connection
TILE = 64  # rows of a block: several blocks fit on a multiprocessor, and one computes while others load
LSTM_ROWS, MINGRU_UNITS = 16, 256  # of a block: segments, and units of segments
STAGES = 3  # time steps that are loaded ahead
PROCESSORS = 132  # multiprocessors of a large GPU: blocks of `weight_grads` at a time


class CoreSteps(KernelPPO):
    """A recurrent core over the steps of segments, forward and backward. Its tensors: `FusedCore._allocate`."""

    core_kernels: Any
    shape: dict[str, Any]
    is_lstm: bool
    length: int  # steps of a segment
    plane: int
    segments: Tensor  # of an epoch, in the order of its minibatches
    start_states: list[Tensor]
    second: Tensor
    input_gates: Tensor
    d_gates: Tensor
    acts: Tensor
    carried: Tensor
    hidden_in: Tensor
    d_skip: Tensor
    out: Tensor
    d_out: Tensor
    cleared: Tensor
    recurrent: Tensor

    def _shape(self, *names: str) -> dict[str, Any]:
        return {name: self.shape[name] for name in names}

    def epoch(self, batch: Any, order: Tensor) -> Tensor:
        """One pass over the rollout in minibatches of `order`, indices of segments."""
        length, rows = self.length, self.learner.rollout.rows
        self.segments = order
        first = order // rows * (length * rows) + order % rows
        steps = torch.arange(length, device=order.device) * rows
        return super().epoch(batch, (first.unsqueeze(1) + steps).flatten())

    def _core_forward(self, segments: Tensor, count: int) -> None:
        """The core over the steps of each segment."""
        kernels, num_segments = self.core_kernels, count // self.length
        last_arguments = self.cleared, segments, num_segments, self.plane, self.length
        if self.is_lstm:
            launch(
                kernels.lstm_forward, (-(-num_segments // LSTM_ROWS),),
                self.recurrent, self.input_gates, *self.start_states, self.acts, self.carried, self.hidden_in, self.out,
                *last_arguments,
                **self._shape("H", "DTYPE"), BM=LSTM_ROWS, STAGES=STAGES, num_warps=8,
            )  # fmt: skip
        else:
            launch(
                kernels.mingru_forward, (-(-num_segments * self.shape["H"] // MINGRU_UNITS),),
                self.second, self.input_gates, *self.start_states, self.carried, self.out, *last_arguments,
                H=self.shape["H"], PART=MINGRU_UNITS, STAGES=STAGES, num_warps=4,
            )  # fmt: skip

    def _core_backward(self, segments: Tensor, count: int) -> None:
        """The core backward in time. Launches as in `_core_forward`, with other operands."""
        kernels, num_segments = self.core_kernels, count // self.length
        last_arguments = self.cleared, segments, num_segments, self.plane, self.length
        if self.is_lstm:
            launch(
                kernels.lstm_backward, (-(-num_segments // LSTM_ROWS),),
                self.recurrent, self.acts, self.carried, self.start_states[1], self.d_out, self.d_gates,
                *last_arguments,
                **self._shape("H", "DTYPE"), BM=LSTM_ROWS, STAGES=STAGES, num_warps=8,
            )  # fmt: skip
        else:
            launch(
                kernels.mingru_backward, (-(-num_segments * self.shape["H"] // MINGRU_UNITS),),
                self.second, self.input_gates, *self.start_states, self.carried, self.d_out, self.d_gates, self.d_skip,
                *last_arguments,
                H=self.shape["H"], PART=MINGRU_UNITS, STAGES=STAGES, num_warps=4,
            )  # fmt: skip


class FusedCore(CoreSteps, Fused):
    """`Fused` for a recurrent policy."""

    reduce_blocks = 32

    def __init__(self, learner: Any, tile: int = TILE, exact: bool = False) -> None:
        super().__init__(learner, tile, exact)

    def _allocate(self) -> None:
        """Allocates what the kernels of a minibatch leave for each other."""
        from shoal.algos.fast import core_kernels

        self.core_kernels = core_kernels
        rollout, core, dtype = self.learner.rollout, self.learner.actor.policy.core, self.narrow.dtype
        self.is_lstm, self.length, hidden = type(core) is LSTM, rollout.segment, self.shape["H"]
        gates = self.gates = 4 if self.is_lstm else 3
        self.core = {"G": gates, "RECURRENT": self.is_lstm}
        self.matrices = 3 + gates * (2 if self.is_lstm else 1)
        self.max_parts = max(1, PROCESSORS // self.matrices)  # of a minibatch in `weight_grads`
        largest, zeros = max(self.counts), partial(torch.zeros, device=self.weights.device)
        self.planes = planes = zeros((GATES + gates * (3 if self.is_lstm else 2), largest, hidden), dtype=dtype)
        self.first, self.second, self.out, self.d_out, self.d_second, self.d_first = planes[:HIDDEN_IN]
        self.hidden_in = self.d_skip = planes[HIDDEN_IN]
        self.input_gates, self.d_gates, self.acts = planes[GATES], planes[GATES + gates], planes[-gates]
        self.plane = largest * hidden
        self.inputs, self.d_heads = zeros((largest, self.shape["DP"]), dtype=dtype), zeros((largest, 16), dtype=dtype)
        self.cleared = zeros(largest, dtype=torch.int8)  # whether the state is reset before a step
        self.carried = zeros((largest, hidden))  # the state after each step: hidden, or an LSTM's cell
        self.new_state = tuple(torch.zeros_like(part) for part in rollout.state)
        self.start_states = [part.flatten(0, 1) for part in rollout.starts]  # of the segments
        self.partial, self.sums = zeros((self.max_parts, self.size)), zeros((-(-largest // self.tile), 8))
        # views of the weights: an LSTM's recurrent matrices, and the heads
        body, heads = hidden * (self.shape["DP"] + hidden + 2), (self.shape["A"] + 1) * (hidden + 1)
        self.recurrent = self.narrow[body + gates * hidden * (hidden + 1) :]
        self.heads = self.weights.detach()[-heads:], self.narrow[-heads:]

    def _head(self, *names: str) -> dict[str, Any]:
        return {name: self.head.constants[name] for name in names}

    def act(self, t: int, env_actions: Tensor | None = None, rows: slice = slice(None)) -> State:
        """As `Fused.act`."""
        inputs, outputs = self._act_arguments(t, env_actions, rows)
        state, new = ([part[rows] for part in parts] for parts in (self.learner.rollout.state, self.new_state))
        states, count = [state[0], state[-1], new[0], new[-1]], len(inputs[0])
        launch(
            self.core_kernels.act, (-(-count // TILE),),
            *inputs, *states, *outputs, self.head.table, self.head.bounds, count, **self.shape, **self.core,
            **self._head("SIZE", "PARTS"), WIDTH=width_of(outputs[-1]), BM=TILE, num_warps=4,
        )  # fmt: skip
        return tuple(new)

    def _gradient(self, batch: Any, order: Tensor, first: int, count: int, stats: Tensor) -> None:
        order, segments = order[first:], self.segments[first // self.length :]
        self._encode(batch, order, count)
        self._core_forward(segments, count)
        self._heads_loss(batch, order, count, stats)
        self._core_backward(segments, count)
        self._layers_backward(count)
        self._weight_grads(count)

    def _encode(self, batch: Any, order: Tensor, count: int) -> None:
        launch(
            self.core_kernels.encode, (-(-count // self.tile),),
            batch.obs[0], self.weights, self.narrow, self.mean, self.scale, order, batch.resets,
            self.inputs, self.first, self.second, self.input_gates, self.cleared, count, self.plane,
            **self._shape("D", "DP", "H", "ACT", "UNIT", "NORM", "DTYPE"), G=self.gates, BM=self.tile, num_warps=4,
        )  # fmt: skip

    def _heads_loss(self, batch: Any, order: Tensor, count: int, stats: Tensor) -> None:
        config = self.learner.config
        launch(
            self.core_kernels.heads_loss, (-(-count // self.tile),),
            self.out, *self.heads, batch.masks, order, batch.actions, batch.logprobs, batch.values, batch.advantages,
            batch.returns, batch.counts, stats, self.d_heads, self.d_out, self.sums, self.coefs, self.head.table,
            self.head.bounds, count, **self._shape("H", "A", "MASKED", "DTYPE"), **self._head("SIZE", "PARTS"),
            COUNTED=batch.counts is not None, CLIPPED=is_on(config.value_clip), BM=self.tile, num_warps=4,
        )  # fmt: skip

    def _layers_backward(self, count: int) -> None:
        launch(
            self.core_kernels.layers_backward, (-(-count // self.tile),),
            self.narrow, self.first, self.second, self.d_gates, self.d_skip, self.d_second, self.d_first, count,
            self.plane, **self._shape("DP", "H", "ACT", "DTYPE"), G=self.gates, SKIP=not self.is_lstm, BM=self.tile,
            num_warps=4,
        )  # fmt: skip

    def _weight_grads(self, count: int) -> None:
        part_size = -(-count // (self.max_parts * TILE)) * TILE  # transitions
        parts = -(-count // part_size)
        launch(
            self.core_kernels.weight_grads, (self.matrices, parts),
            self.inputs, self.planes, self.d_heads, self.partial, count, self.plane, part_size,
            **self._shape("D", "DP", "H", "A"), **self.core, FIRST=FIRST, SECOND=SECOND, OUT=OUT, HIDDEN_IN=HIDDEN_IN,
            D_GATES=GATES + self.gates, D_SECOND=D_SECOND, D_FIRST=D_FIRST, BM=TILE, num_warps=8,
        )  # fmt: skip
        self._reduce(parts, -(-count // self.tile))
