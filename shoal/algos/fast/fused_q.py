"""DQN and PQN for a small network in a few GPU kernels (q_kernels.py). algos/{dqn,pqn}.py define the results.

    act       Q-values -> epsilon-greedy -> store: one kernel for each step
    targets   DQN: the values of next observations by both networks
    learn     gather -> Q-values -> loss -> gradients: one kernel for each minibatch, which leaves a sum for each block
    reduce    adds the blocks' sums to the gradient, in a fixed order, and sums its squares
    adam      clips the gradient and updates the weights

It covers one network of two layers of 64 or 128 units, with or without layer normalization, up to 16 choices and
observations of up to 128 numbers. Matrix products are bfloat16 with float32 sums, on a copy of the weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast.base import activation_id, triton_size
from shoal.algos.fast.fused import ADAM_PART, ALIGNED, REDUCE_PART, WIDEST
from shoal.algos.fast.q_base import KernelQ, never_covered
from shoal.nn.encoders import Numbers
from shoal.nn.launch import launch

CHOICES = 16  # columns of the last product
WIDTHS: tuple[int, ...] = (64, 128)  # units of a layer that were tried on a GPU
SMALL_TILE = 32 * 132  # up to this many transitions the tiles have 32 rows, one for each of 132 multiprocessors


def not_covered(learner: Any) -> str:
    """Why a learner takes the plain path; empty if the kernels cover it."""
    if reason := never_covered(learner):
        return reason
    policy, head = learner.actor.policy, learner.actor.head
    if head.choices > CHOICES:
        return f"more than {CHOICES} choices"
    if type(policy.encoder.parts[0]) is not Numbers or policy.encoder.features > WIDEST:
        return f"observations other than up to {WIDEST} numbers"
    widths = [layer.weight.shape[2] for layer in policy.layers]
    if len(widths) != 2 or widths[0] not in WIDTHS:
        return f"--nn.layers other than 2, or --nn.hidden other than {' and '.join(map(str, WIDTHS))}"
    return ""


class FusedQ(KernelQ):
    """DQN or PQN with one kernel for the whole network."""

    reduce_blocks = 128  # rows of `partial` that a block of `reduce` loads at once

    def __init__(self, learner: Any, minibatches: list[int], tile: int = 0, exact: bool = False) -> None:
        super().__init__(learner, minibatches, exact)
        policy, device = learner.actor.policy, learner.device
        encoder = policy.encoder
        self.shape: dict[str, Any] = {  # constants of the kernels, explained in q_kernels.py
            "D": encoder.features,
            "DP": triton_size(encoder.features),
            "H": policy.layers[0].weight.shape[2],
            "A": policy.choices,
            "LN": int(policy.layer_norm),
            "ACT": activation_id(policy.activation, self.dtype, device),
            "UNIT": encoder.parts[0].scale,
            "NORM": self.moments is not None,
            "DTYPE": self.type,
        }
        places = self._places()
        room = int(places.max()) + 1
        self.places = places.to(torch.int32).to(device)  # in `narrow`
        self.narrow, self.target_narrow = (torch.zeros(room, dtype=self.dtype, device=device) for _ in range(2))
        self.tile = tile or (32 if max(minibatches) <= SMALL_TILE else 64)
        self.warps = 8 if self.tile > 32 or self.shape["H"] > 64 else 4
        self.parts = -(-self.size // REDUCE_PART)
        blocks = -(-max(minibatches) // self.tile)
        self.row_size = -(-self.size // ALIGNED) * ALIGNED
        self.partial = torch.zeros((blocks, self.row_size), device=device)
        self.sums = torch.zeros((blocks, 8), device=device)
        self.squares = torch.zeros(self.parts, device=device)

    def _places(self) -> Tensor:
        """The place of each weight in `narrow`: the three matrices as (outputs, inputs), then all other weights."""
        inputs, padded, units, choices, norm = (self.shape[name] for name in ("D", "DP", "H", "A", "LN"))
        places, start, at = torch.full((self.size,), -1), 0, 0
        for rows, width, columns, room in (
            (inputs, padded, units, units),
            (units, units, units, units),
            (units, units, choices, CHOICES),
        ):
            own = at + torch.arange(columns).view(1, -1) * width + torch.arange(rows).view(-1, 1)
            places[start : start + rows * columns] = own.flatten()
            start, at = start + rows * columns + columns * (1 + 2 * norm), at + room * width
        rest = places < 0
        places[rest] = at + torch.arange(int(rest.sum()))
        return places

    def _act(self, obs: Tensor, noise: Tensor, masks: Tensor | None, *outputs: Tensor) -> None:
        launch(
            self.kernels.act, (-(-len(obs) // 64),),
            obs, self.weights, self.narrow, self.mean, self.scale, noise, masks, *outputs, len(obs),
            **self.shape, MASKED=masks is not None, BM=64, num_warps=4,
        )  # fmt: skip

    def improve(
        self,
        k: int,
        obs: Tensor,
        actions: Tensor,
        targets: Tensor,
        share: Tensor,
        factors: Tensor | None = None,
        order: Tensor | None = None,
    ) -> None:
        """As `KernelQ.improve`."""
        config, optimizer, count = self.learner.config, self.learner.optimizer, self.counts[k]
        blocks = -(-count // self.tile)
        launch(
            self.kernels.learn, (blocks,),
            obs, self.weights, self.narrow, self.mean, self.scale, order, actions, targets, factors, share,
            self.partial, self.sums, count,
            **self.shape, ORDERED=order is not None, WEIGHTED=factors is not None, HUBER=config.loss == "huber",
            BM=self.tile, ROW=self.row_size, num_warps=self.warps,
        )  # fmt: skip
        step, mean, square = optimizer.state.values()
        grad, fixed = self.weights.grad, optimizer.fixed
        launch(
            self.shared.reduce, (self.parts,),
            self.partial, self.sums, grad, self.squares, self.metrics, step, self.size, self.row_size,
            blocks, blocks,
            BEGIN=True, END=True, BLOCKS=self.reduce_blocks, PART=REDUCE_PART, num_warps=4,
        )  # fmt: skip
        launch(
            self.layer_kernels.adam, (-(-self.size // ADAM_PART),),
            self.weights, self.narrow, self.places, grad, mean, square, self.squares, self.metrics, step,
            optimizer.rate, self.limit, self.size, self.parts,
            fixed["beta1"], fixed["beta2"], fixed["eps"], fixed["weight_decay"],
            DECOUPLED=False, PARTS=triton_size(self.parts), PART=ADAM_PART, num_warps=4,
        )  # fmt: skip

    def target_values(self, batch: Any) -> None:
        """As `KernelQ.target_values`."""
        next_obs, target = batch.next_obs[0], self.learner.target.detach()
        self._copy(target, self.target_narrow)
        launch(
            self.kernels.targets, (-(-len(next_obs) // 64),),
            next_obs, self.weights, self.narrow, target, self.target_narrow, self.mean, self.scale, batch.next_masks,
            batch.returns, batch.discounts, self.next_values, len(next_obs),
            **self.shape, MASKED=batch.next_masks is not None, DOUBLE=self.learner.config.double, BM=64, num_warps=4,
        )  # fmt: skip
