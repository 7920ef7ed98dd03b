"""PPO for a small network with an LSTM or MinGRU in a few kernels; see algos/fused.py for one without.

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

from typing import Any

import torch
from torch import Tensor

from shoal.algos.fused import Fused, why_not
from shoal.nn.launch import has_triton, launch
from shoal.nn.recurrent import LSTM, State

# planes of (transitions of a minibatch, units); gates, their slopes and what the LSTM made of them follow
FIRST, SECOND, OUT, D_OUT, D_SECOND, D_FIRST, TAKEN, GATES = range(8)
D_SKIP = TAKEN  # of a MinGRU
PROCESSORS = 132  # of a large GPU: so many blocks find the slopes by weights at a time
ACT_TILE, UNITS = 64, 256  # rows of a block of `act`, units of a block of a MinGRU
LSTM_WARPS = 8
STAGES = 3  # steps of a core whose numbers are on their way


def fused_for(learner: Any) -> Fused | None:
    """The kernels for a learner; none where it takes the plain path."""
    if learner.device.type != "cuda" or not has_triton() or why_not(learner):
        return None
    return (Fused if learner.actor.policy.core is None else FusedCore)(learner)


class FusedCore(Fused):
    """A recurrent learner's kernels and the memory that they share."""

    reduce_blocks = 32

    def _make_room(self) -> None:
        from shoal.algos import core_kernels

        self.core_kernels = core_kernels
        rollout, core, device = self.learner.rollout, self.learner.actor.policy.core, self.weights.device
        is_lstm = isinstance(core, LSTM)
        gates = self.gates = 4 if is_lstm else 3
        self.core = {"G": gates, "HIDDEN": is_lstm}
        self.segments = torch.zeros(0, dtype=torch.int64, device=device)  # in this epoch's order
        most, hidden = max(self.counts), self.shape["H"]
        kind = torch.float32 if self.shape["KIND"] == self.kernels.FLOAT32 else torch.bfloat16
        planes = GATES + gates * (3 if is_lstm else 2)
        self.room = torch.zeros((planes, most, hidden), dtype=kind, device=device)
        self.seen = torch.zeros((most, self.shape["DP"]), dtype=kind, device=device)
        self.slopes = torch.zeros((most, 16), dtype=kind, device=device)
        self.cleared = torch.zeros(most, dtype=torch.int8, device=device)  # whether the state is, before a step
        self.carried = torch.zeros((most, hidden), device=device)  # what a step hands on to the next
        self.new_state = tuple(torch.zeros_like(part) for part in rollout.state)
        self.matrices = 3 + gates * (2 if is_lstm else 1)
        self.most_parts = max(1, PROCESSORS // self.matrices)  # of a minibatch, for the slopes by weights
        self.partial = torch.zeros((self.most_parts, self.size), device=device)
        self.sums = torch.zeros((-(-most // self.tile), 8), device=device)

    def act(self, t: int, env_actions: Tensor | None = None, rows: slice = slice(None)) -> State:
        """As `Fused.act`."""
        seen, said = self._seen_and_said(t, env_actions, rows)
        state, new = ([part[rows] for part in parts] for parts in (self.learner.rollout.state, self.new_state))
        states = [state[0], state[-1], new[0], new[-1]]
        count = len(seen[0])
        launch(
            self.core_kernels.act, (-(-count // ACT_TILE),),
            *seen, *states, *said, count, **self.shape, **self.core, BM=ACT_TILE, num_warps=ACT_TILE // 16,
        )  # fmt: skip
        return tuple(new)

    def epoch(self, batch: Any, order: Tensor) -> Tensor:
        """One pass over the rollout in minibatches of `order`, which are segments."""
        length, rows = self.learner.rollout.segment, self.learner.rollout.rows
        self.segments = order
        first = order // rows * (length * rows) + order % rows
        steps = torch.arange(length, device=order.device) * rows
        return super().epoch(batch, (first.unsqueeze(1) + steps).flatten())

    def _gradient(self, batch: Any, order: Tensor, first: int, count: int, spread: Tensor) -> None:
        config, kernels, rollout, room = self.learner.config, self.core_kernels, self.learner.rollout, self.room
        shape, length, gates = self.shape, rollout.segment, self.gates
        hidden, choices, some = shape["H"], shape["A"], count // length
        order, segments, plane = order[first:], self.segments[first // length :], room[0].numel()
        starts = [part.flatten(0, 1) for part in rollout.starts]
        tiles = -(-count // self.tile)
        narrow = {name: shape[name] for name in ("H", "KIND")}
        body = narrow | {name: shape[name] for name in ("DP", "ACT")}
        d_gates, acts = room[GATES + gates], room[-gates]
        after = self.narrow[hidden * (shape["DP"] + hidden + 2) + gates * hidden * (hidden + 1) :]  # the core's biases
        heads = (choices + 1) * (hidden + 1)  # are last
        launch(
            kernels.encode, (tiles,),
            batch.obs[0], self.weights, self.narrow, self.mean, self.scale, order, batch.resets, self.seen,
            room[FIRST], room[SECOND], room[GATES], self.cleared, count, plane, **body, D=shape["D"], UNIT=shape["UNIT"], NORM=shape["NORM"], G=gates,
            BM=self.tile, num_warps=self.tile // 16,
        )  # fmt: skip
        if self.core["HIDDEN"]:
            blocks = (-(-some // 16),)
            launch(
                kernels.lstm_forward, blocks,
                after, room[GATES], *starts, self.cleared, segments, acts, self.carried, room[TAKEN],
                room[OUT], some, plane, length, **narrow, BM=16, STAGES=STAGES, num_warps=LSTM_WARPS,
            )  # fmt: skip
        else:
            blocks = (-(-some * hidden // UNITS),)
            launch(
                kernels.mingru_forward, blocks,
                room[SECOND], room[GATES], *starts, self.cleared, segments, self.carried, room[OUT],
                some, plane, length, H=hidden, PART=UNITS, STAGES=STAGES, num_warps=4,
            )  # fmt: skip
        launch(
            kernels.judge, (tiles,),
            room[OUT], self.weights[-heads:], self.narrow[-heads:], batch.masks, order, batch.actions, batch.logprobs, batch.values, batch.advantages,
            batch.returns, batch.counts, spread, self.slopes, room[D_OUT], self.sums, count,
            config.clip, config.value_clip, config.value_coef, config.entropy_coef, **narrow, A=choices,
            MASKED=shape["MASKED"], COUNTED=batch.counts is not None, CLIPPED=config.value_clip > 0.0, BM=self.tile,
            num_warps=self.tile // 16,
        )  # fmt: skip
        if self.core["HIDDEN"]:
            launch(
                kernels.lstm_backward, blocks,
                after, acts, self.carried, starts[1], self.cleared, segments, room[D_OUT], d_gates,
                some, plane, length, **narrow, BM=16, STAGES=STAGES, num_warps=LSTM_WARPS,
            )  # fmt: skip
        else:
            launch(
                kernels.mingru_backward, blocks,
                room[SECOND], room[GATES], *starts, self.cleared, segments, self.carried, room[D_OUT],
                d_gates, room[D_SKIP], some, plane, length, H=hidden, PART=UNITS, STAGES=STAGES, num_warps=4,
            )  # fmt: skip
        launch(
            kernels.back, (tiles,),
            self.narrow, room[FIRST], room[SECOND], d_gates, room[D_SKIP], room[D_SECOND], room[D_FIRST],
            count, plane, **body, G=gates, SKIP=not self.core["HIDDEN"], BM=self.tile, num_warps=self.tile // 16,
        )  # fmt: skip
        each = -(-count // (self.most_parts * 64)) * 64  # transitions of a part
        parts = -(-count // each)
        launch(
            kernels.weight_slopes, (self.matrices, parts),
            self.seen, room, self.slopes, self.partial, count, plane, each,
            D=shape["D"], DP=shape["DP"], H=hidden, A=choices, **self.core, FIRST=FIRST, SECOND=SECOND, OUT=OUT,
            TAKEN=TAKEN, D_GATES=GATES + gates, D_SECOND=D_SECOND, D_FIRST=D_FIRST, BM=64, num_warps=8,
        )  # fmt: skip
        self._reduce(parts, tiles)
