"""PPO for a small network in a few GPU kernels (kernels.py). algos/ppo.py defines the results.

    act       policy -> sample -> store: one kernel for each step
    learn     gather -> policy -> loss -> gradients: one kernel for each minibatch, which leaves a sum for each block
    reduce    adds the blocks' sums to the gradient, in a fixed order, and sums its squares
    adam      clips the gradient and updates the weights

It covers networks of two layers of up to 128 units, actions of up to 15 choices and numbers, and observations of up to
128 numbers; layered.py covers larger ones. Everything between an observation and the gradients then fits into the
registers and shared memory of one block. The plain path writes and reads the activations about ten times and launches
about a hundred kernels for each minibatch, so it needs large minibatches to be fast. Here small minibatches are fast
too, and they learn more per step. fused_core.py adds a recurrent core between layers and heads.

Matrix products are bfloat16 with float32 sums, on a copy of the weights. Weights, loss and optimizer are float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast.base import (
    CORES,
    KernelPPO,
    activation_id,
    activation_of,
    has_small_shared_memory,
    large_lstm_not_covered,
    never_covered,
    triton_size,
    width_of,
)
from shoal.algos.learner import is_on
from shoal.algos.optimizers.muon import POLYNOMIALS, Muon, muon_scale
from shoal.nn.encoders import Numbers
from shoal.nn.launch import launch, overlap
from shoal.nn.recurrent import State

WIDEST = 128  # units of a layer, or numbers of an observation
CHOICES = 15  # logits and the value are the 16 columns of the last product
FEW = 64 * 132  # up to this many transitions the tiles have 64 rows (one for each of 132 multiprocessors), above 128
BLOCKS = 512  # of `learn` at a time: their sums take 70 MB; `reduce` adds them up before the next ones
REDUCE_PART, ADAM_PART = 32, 256  # weights of one block
ALIGNED = 32  # rows of `partial` begin at multiples of it: of the 128 bytes that a warp loads at once


def not_covered(learner: Any) -> str:
    """Why a learner is not computed in one block; empty if these kernels cover it."""
    if reason := never_covered(learner):
        return reason
    policy, head = learner.actor.policy, learner.actor.head
    if head.num_noise > CHOICES:
        return f"actions of more than {CHOICES} choices and numbers"
    if head.has_box and (head.num_outputs != head.num_noise or policy.core is not None):
        return "continuous actions with --nn.std state or --nn.core"
    encoder = policy.body.encoder
    if type(encoder.parts[0]) is not Numbers or encoder.features > WIDEST:
        return f"observations other than up to {WIDEST} numbers"
    widths = [layer.out_features for layer in policy.body.layers.layers]
    if len(widths) != 2 or widths[0] not in (16, 32, 64, 128):
        return "--nn.layers other than 2, or --nn.hidden other than 16, 32, 64 or 128"
    if policy.core is not None and type(policy.core) not in CORES:
        return "--nn.core other than lstm and mingru"
    if policy.core is not None and not (policy.core.size == policy.body.features == widths[0]):
        return "--nn.core-size other than --nn.hidden"
    return large_lstm_not_covered(learner)


class Fused(KernelPPO):
    """PPO for a network whose weights and activations fit into one block."""

    reduce_blocks = 128  # rows of `partial` that a block of `reduce` loads at once

    def __init__(self, learner: Any, tile: int = 0, exact: bool = False) -> None:
        super().__init__(learner, 16, exact)
        kernels, device, actor = self.kernels, learner.device, learner.actor
        encoder, layers = actor.policy.body.encoder, actor.policy.body.layers.layers
        features, hidden, outputs = encoder.features, layers[0].out_features, actor.head.num_noise
        # continuous actions: free log standard deviations come first
        self.log_std, self.body = self.weights.detach()[: self.head.numbers], self.weights.detach()[self.head.numbers :]
        core = actor.policy.core
        core_size = 0 if core is None else sum(p.numel() for p in core.parameters())
        assert len(self.body) == hidden * (features + hidden + 2) + core_size + (outputs + 1) * (hidden + 1)
        self.shape: dict[str, Any] = {  # constants of the kernels, explained in kernels.py
            "D": features,
            "DP": triton_size(features),
            "H": hidden,
            "A": outputs,
            "ACT": activation_id(activation_of(actor.policy), self.dtype, device),
            "UNIT": encoder.parts[0].scale,
            "NORM": self.moments is not None,
            "MASKED": learner.rollout.masks is not None,
            "DTYPE": kernels.FLOAT32 if exact else kernels.BFLOAT16,
        }
        self.tile = tile or (64 if max(self.counts) <= FEW or has_small_shared_memory(device) else 128)
        self.parts = -(-self.size // REDUCE_PART)
        self.core: dict[str, Any] = {"G": 0, "RECURRENT": False}  # gates, and whether they use the hidden state
        padding = hidden * (self.shape["DP"] - features)
        self.narrow = torch.zeros(len(self.body) + padding, dtype=self.dtype, device=device)
        self._allocate()
        self.squares = torch.zeros(self.parts, device=device)
        if isinstance(learner.optimizer, Muon):
            self.polynomials = torch.tensor(POLYNOMIALS[learner.optimizer.steps], device=device)

    @property
    def acts_for_members(self) -> bool:  # type: ignore[override]
        """Whether member_kernels.py covers the network: with a single choice."""
        return self.head.table is None

    def _allocate(self) -> None:
        """Allocates what `learn` leaves for `reduce`."""
        blocks = min(-(-max(self.counts) // self.tile), BLOCKS)
        self.row_size = -(-self.size // ALIGNED) * ALIGNED
        self.partial = torch.zeros((blocks, self.row_size), device=self.weights.device)
        self.sums = torch.zeros((blocks, 8), device=self.weights.device)

    def _copy_weights(self) -> None:
        weights, units, features, padded = self.body, *(self.shape[name] for name in ("H", "D", "DP"))
        first = self.narrow[: units * padded].view(units, padded)
        first[:, :features].copy_(weights[: units * features].view(units, features))
        self.narrow[units * padded :].copy_(weights[units * features :])

    def act(self, t: int, env_actions: Tensor | None = None, rows: slice = slice(None)) -> State:
        """As `KernelPPO.act`."""
        self._act(*self._act_arguments(t, env_actions, rows))
        return ()

    def _act(self, inputs: list[Any], outputs: list[Tensor]) -> None:
        count = len(inputs[0])
        launch(
            self.kernels.act, (-(-count // 64),),
            *inputs, *outputs, self.log_std, self.head.table, self.head.bounds, count,
            **{**self.shape, **self.head.constants}, WIDTH=width_of(outputs[-1]), BM=64, num_warps=4,
        )  # fmt: skip

    def _act_arguments(self, t: int, env_actions: Tensor | None, rows: slice) -> tuple[list[Any], list[Tensor]]:
        """Inputs and outputs of the kernel `act`."""
        (obs, noise, allowed), outputs = self._step_tensors(t, env_actions, rows)
        return [obs, self.body, self.narrow, self.mean, self.scale, noise, allowed], outputs

    def _last_values(self, truncation: Any, out: Tensor) -> None:
        if truncation.state:
            super()._last_values(truncation, out)
            return
        (_, noise, allowed), _ = self._step_tensors(0, None, slice(None))
        inputs = [truncation.obs[0], self.body, self.narrow, self.mean, self.scale, noise, allowed]
        self._act(inputs, [self.unused[0], out, self.unused[1], self.unused_env_actions])

    def _gradient(self, batch: Any, order: Tensor, first: int, count: int, stats: Tensor) -> None:
        config = self.learner.config
        for lo in range(0, count, BLOCKS * self.tile):
            size = min(count - lo, BLOCKS * self.tile)
            blocks = -(-size // self.tile)
            launch(
                self.kernels.learn, (blocks,),
                batch.obs[0], self.body, self.narrow, self.mean, self.scale, batch.masks, order[first + lo :],
                batch.actions, batch.logprobs, batch.values, batch.advantages, batch.returns, batch.counts,
                stats, self.partial, self.sums, self.coefs, self.log_std, self.head.table, self.head.bounds, size,
                **{**self.shape, **self.head.constants}, COUNTED=batch.counts is not None,
                CLIPPED=is_on(config.value_clip), BM=self.tile, ROW=self.row_size, num_warps=8,
                **overlap(self.weights.device),
            )  # fmt: skip
            self._reduce(blocks, blocks, is_first=lo == 0, is_last=lo + size == count)

    def _reduce(self, blocks: int, tiles: int, *, is_first: bool = True, is_last: bool = True) -> None:
        """Adds up the first `blocks` rows of `partial`, and the metrics of the first `tiles` tiles."""
        step = self.learner.optimizer.state["step"]
        launch(
            self.kernels.reduce, (self.parts,),
            self.partial, self.sums, self.weights.grad, self.squares, self.metrics, step, self.size,
            self.partial.shape[1], blocks, tiles,
            BEGIN=is_first, END=is_last, BLOCKS=self.reduce_blocks, PART=REDUCE_PART, num_warps=4,
            **overlap(self.weights.device),
        )  # fmt: skip

    def _optimize(self) -> None:
        optimizer, grad, limit = self.learner.optimizer, self.weights.grad, self.coefs[-1:]
        step, mean, square = optimizer.state.values()
        state = [self.weights, self.narrow, grad, mean, square, self.squares, self.metrics, step, optimizer.rate, limit]
        fixed = [optimizer.fixed[name] for name in ("beta1", "beta2", "eps", "weight_decay")]
        options = {name: self.shape[name] for name in ("D", "DP", "H")}
        options |= {**self.core, "NUMBERS": self.head.numbers, "PARTS": triton_size(self.parts), "PART": ADAM_PART}
        options |= overlap(self.weights.device)
        blocks = -(-self.size // ADAM_PART)
        if isinstance(optimizer, Muon):
            scales = [muon_scale(rows, columns) for _, rows, columns in optimizer.matrices[:2]]
            matrices = len(optimizer.matrices)
            launch(
                self.kernels.muon, (matrices + blocks,),
                *state, self.polynomials, self.size, self.parts, *fixed, *scales,
                **options, MATRICES=matrices, MOMENTUM=optimizer.MOMENTUM, STEPS=optimizer.steps,
                DTYPE=self.shape["DTYPE"], num_warps=8,
            )  # fmt: skip
        else:
            launch(
                self.kernels.adam, (blocks,), *state, self.size, self.parts, *fixed,
                **options, DECOUPLED=optimizer.decoupled, num_warps=4,
            )  # fmt: skip
