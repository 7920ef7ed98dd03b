"""PPO for a small network with an LSTM or MinGRU in a few kernels; fused.py has it without.

    act             policy -> sample -> store, one kernel for each step
    encode          gather -> both layers -> the gates by what comes in
    *_forward       the core through time
    judge           heads -> loss -> slopes
    *_backward      the core back through time
    back            to both layers
    weight_slopes   the slopes by all weights, in parts; then reduce, muon and adam as for a network without a core

A minibatch of a recurrent policy took some 280 kernels. Products are bfloat16 with float32 sums, as there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast.fused import Fused
from shoal.nn.launch import launch
from shoal.nn.recurrent import LSTM, State

# planes of (transitions of a minibatch, units), in one piece of memory; the gates' come after these
FIRST, SECOND, OUT, D_OUT, D_SECOND, D_FIRST, TAKEN, GATES = range(8)
D_SKIP = TAKEN  # a MinGRU takes nothing of what it put out, an LSTM lets nothing around it
TILE = 64  # rows of a block: several find room on a processor, and wait for their loads beside each other
LSTM_ROWS, MINGRU_UNITS = 16, 256  # segments of a block, and units of segments
STAGES = 3  # steps through time whose numbers are on their way
PROCESSORS = 132  # of a large GPU: so many blocks find the slopes by weights at a time


class FusedCore(Fused):
    """A recurrent learner's kernels and the memory that they share."""

    reduce_blocks = 32

    def __init__(self, learner: Any, tile: int = TILE, exact: bool = False) -> None:
        super().__init__(learner, tile, exact)

    def _make_room(self) -> None:
        from shoal.algos.fast import core_kernels

        self.core_kernels = core_kernels
        rollout, core, kind = self.learner.rollout, self.learner.actor.policy.core, self.narrow.dtype
        self.is_lstm, self.length, hidden = type(core) is LSTM, rollout.segment, self.shape["H"]
        gates = self.gates = 4 if self.is_lstm else 3
        self.core = {"G": gates, "HIDDEN": self.is_lstm}
        self.matrices = 3 + gates * (2 if self.is_lstm else 1)
        self.most_parts = max(1, PROCESSORS // self.matrices)  # of a minibatch, for the slopes by weights
        most, zeros = max(self.counts), partial(torch.zeros, device=self.weights.device)
        self.room = room = zeros((GATES + gates * (3 if self.is_lstm else 2), most, hidden), dtype=kind)
        self.first, self.second, self.out, self.d_out, self.d_second, self.d_first = room[:TAKEN]
        self.taken = self.d_skip = room[TAKEN]
        self.by_input, self.d_gates, self.acts = room[GATES], room[GATES + gates], room[-gates]
        self.plane = most * hidden
        self.seen, self.slopes = zeros((most, self.shape["DP"]), dtype=kind), zeros((most, 16), dtype=kind)
        self.cleared = zeros(most, dtype=torch.int8)  # whether the state is, before a step
        self.carried = zeros((most, hidden))  # what a step hands on to the next: hidden, or an LSTM's cell
        self.new_state = tuple(torch.zeros_like(part) for part in rollout.state)
        self.begun = [part.flatten(0, 1) for part in rollout.starts]  # the states that segments began with
        self.partial, self.sums = zeros((self.most_parts, self.size)), zeros((-(-most // self.tile), 8))
        # where they lie among the weights: what an LSTM makes of what it put out, and the heads
        body, heads = hidden * (self.shape["DP"] + hidden + 2), (self.shape["A"] + 1) * (hidden + 1)
        self.again = self.narrow[body + gates * hidden * (hidden + 1) :]
        self.heads = self.weights.detach()[-heads:], self.narrow[-heads:]

    def _shape(self, *names: str) -> dict[str, Any]:
        return {name: self.shape[name] for name in names}

    def act(self, t: int, env_actions: Tensor | None = None, rows: slice = slice(None)) -> State:
        """As `Fused.act`."""
        seen, said = self._seen_and_said(t, env_actions, rows)
        state, new = ([part[rows] for part in parts] for parts in (self.learner.rollout.state, self.new_state))
        states, count = [state[0], state[-1], new[0], new[-1]], len(seen[0])
        launch(
            self.core_kernels.act, (-(-count // TILE),),
            *seen, *states, *said, count, **self.shape, **self.core, BM=TILE, num_warps=4,
        )  # fmt: skip
        return tuple(new)

    def epoch(self, batch: Any, order: Tensor) -> Tensor:
        """One pass over the rollout in minibatches of `order`, which are segments."""
        length, rows = self.length, self.learner.rollout.rows
        self.segments = order
        first = order // rows * (length * rows) + order % rows
        steps = torch.arange(length, device=order.device) * rows
        return super().epoch(batch, (first.unsqueeze(1) + steps).flatten())

    def _gradient(self, batch: Any, order: Tensor, first: int, count: int, spread: Tensor) -> None:
        order, segments = order[first:], self.segments[first // self.length :]
        self._encode(batch, order, count)
        self._forward(segments, count)
        self._judge(batch, order, count, spread)
        self._backward(segments, count)
        self._weight_slopes(count)

    def _encode(self, batch: Any, order: Tensor, count: int) -> None:
        launch(
            self.core_kernels.encode, (-(-count // self.tile),),
            batch.obs[0], self.weights, self.narrow, self.mean, self.scale, order, batch.resets,
            self.seen, self.first, self.second, self.by_input, self.cleared, count, self.plane,
            **self._shape("D", "DP", "H", "ACT", "UNIT", "NORM", "KIND"), G=self.gates, BM=self.tile, num_warps=4,
        )  # fmt: skip

    def _forward(self, segments: Tensor, count: int) -> None:
        """The core through time."""
        kernels, some = self.core_kernels, count // self.length
        ends = self.cleared, segments, some, self.plane, self.length
        if self.is_lstm:
            launch(
                kernels.lstm_forward, (-(-some // LSTM_ROWS),),
                self.again, self.by_input, *self.begun, self.acts, self.carried, self.taken, self.out, *ends,
                **self._shape("H", "KIND"), BM=LSTM_ROWS, STAGES=STAGES, num_warps=8,
            )  # fmt: skip
        else:
            launch(
                kernels.mingru_forward, (-(-some * self.shape["H"] // MINGRU_UNITS),),
                self.second, self.by_input, *self.begun, self.carried, self.out, *ends,
                H=self.shape["H"], PART=MINGRU_UNITS, STAGES=STAGES, num_warps=4,
            )  # fmt: skip

    def _judge(self, batch: Any, order: Tensor, count: int, spread: Tensor) -> None:
        config = self.learner.config
        launch(
            self.core_kernels.judge, (-(-count // self.tile),),
            self.out, *self.heads, batch.masks, order, batch.actions, batch.logprobs, batch.values, batch.advantages,
            batch.returns, batch.counts, spread, self.slopes, self.d_out, self.sums, count,
            config.clip, config.value_clip, config.value_coef, config.entropy_coef,
            **self._shape("H", "A", "MASKED", "KIND"), COUNTED=batch.counts is not None,
            CLIPPED=config.value_clip > 0.0, BM=self.tile, num_warps=4,
        )  # fmt: skip

    def _backward(self, segments: Tensor, count: int) -> None:
        """The core back through time, and on to both layers."""
        kernels, some = self.core_kernels, count // self.length
        ends = self.cleared, segments, some, self.plane, self.length
        if self.is_lstm:
            launch(
                kernels.lstm_backward, (-(-some // LSTM_ROWS),),
                self.again, self.acts, self.carried, self.begun[1], self.d_out, self.d_gates, *ends,
                **self._shape("H", "KIND"), BM=LSTM_ROWS, STAGES=STAGES, num_warps=8,
            )  # fmt: skip
        else:
            launch(
                kernels.mingru_backward, (-(-some * self.shape["H"] // MINGRU_UNITS),),
                self.second, self.by_input, *self.begun, self.carried, self.d_out, self.d_gates, self.d_skip, *ends,
                H=self.shape["H"], PART=MINGRU_UNITS, STAGES=STAGES, num_warps=4,
            )  # fmt: skip
        launch(
            kernels.back, (-(-count // self.tile),),
            self.narrow, self.first, self.second, self.d_gates, self.d_skip, self.d_second, self.d_first, count,
            self.plane, **self._shape("DP", "H", "ACT", "KIND"), G=self.gates, SKIP=not self.is_lstm, BM=self.tile,
            num_warps=4,
        )  # fmt: skip

    def _weight_slopes(self, count: int) -> None:
        each = -(-count // (self.most_parts * TILE)) * TILE  # transitions of a part
        parts = -(-count // each)
        launch(
            self.core_kernels.weight_slopes, (self.matrices, parts),
            self.seen, self.room, self.slopes, self.partial, count, self.plane, each,
            **self._shape("D", "DP", "H", "A"), **self.core, FIRST=FIRST, SECOND=SECOND, OUT=OUT, TAKEN=TAKEN,
            D_GATES=GATES + self.gates, D_SECOND=D_SECOND, D_FIRST=D_FIRST, BM=TILE, num_warps=8,
        )  # fmt: skip
        self._reduce(parts, -(-count // self.tile))
