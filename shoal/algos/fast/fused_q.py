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

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast.base import ACTIVATION_IDS, activation_id, triton_size
from shoal.algos.fast.fused import ADAM_PART, ALIGNED, REDUCE_PART, WIDEST
from shoal.algos.optimizers.adam import Adam
from shoal.nn.encoders import Numbers
from shoal.nn.launch import fresh, launch
from shoal.nn.qnet import QHead, QNet

CHOICES = 16  # columns of the last product
WIDTHS: tuple[int, ...] = (64, 128)  # units of a layer that were tried on a GPU
SMALL_TILE = 32 * 132  # up to this many transitions the tiles have 32 rows, one for each of 132 multiprocessors


def not_covered(learner: Any) -> str:
    """Why a learner takes the plain path; empty if the kernels cover it."""
    config, policy, head = learner.config, learner.actor.policy, learner.actor.head
    if type(policy) is not QNet or type(head) is not QHead:
        return "a custom policy"
    if learner.actor.is_compiled:
        return "--train.compile"
    if type(learner.optimizer) is not Adam:
        return f"--train.optimizer {config.optimizer}"
    if policy.agents > 1 or policy.dueling or policy.distribution != "none":
        return "--train.policy per-agent, --train.dueling or --train.distribution"
    if head.choices > CHOICES:
        return f"more than {CHOICES} choices"
    encoder = policy.encoder
    if len(encoder.parts) != 1 or type(encoder.parts[0]) is not Numbers or encoder.features > WIDEST:
        return f"observations other than up to {WIDEST} numbers"
    widths = [layer.weight.shape[2] for layer in policy.layers]
    if len(widths) != 2 or widths[0] not in WIDTHS:
        return f"--nn.layers other than 2, or --nn.hidden other than {' and '.join(map(str, WIDTHS))}"
    if policy.activation not in ACTIVATION_IDS:
        return f"--nn.activation {policy.activation}"
    if config.precision != "auto":
        return f"--train.precision {config.precision}"
    if getattr(config, "priority", 0.0):
        return "--train.priority"
    if learner.device.type == "cuda" and torch.cuda.get_device_capability(learner.device) < (8, 0):
        return "a GPU without bfloat16"
    return ""


class FusedQ:
    """Acts and learns for a learner of DQN or PQN, and owns the memory that its kernels share."""

    acts_for_members = False
    reduce_blocks = 128  # rows of `partial` that a block of `reduce` loads at once

    def __init__(self, learner: Any, minibatches: list[int], tile: int = 0, exact: bool = False) -> None:
        from shoal.algos.fast import kernels, layered_kernels, q_kernels

        self.learner, self.shared, self.layered, self.kernels = learner, kernels, layered_kernels, q_kernels
        policy, rollout, device = learner.actor.policy, learner.rollout, learner.device
        encoder = policy.encoder
        self.weights: Tensor = learner.weights
        self.size = self.weights.numel()
        self.moments = next(iter(learner.actor.moments.values()), None)
        self.mean, self.scale = (torch.zeros(encoder.features, device=device) for _ in range(2))
        dtype = torch.float32 if exact else torch.bfloat16
        self.shape: dict[str, Any] = {  # constants of the kernels, explained in q_kernels.py
            "D": encoder.features,
            "DP": triton_size(encoder.features),
            "H": policy.layers[0].weight.shape[2],
            "A": policy.choices,
            "LN": int(policy.layer_norm),
            "ACT": activation_id(policy.activation, dtype, device),
            "UNIT": encoder.parts[0].scale,
            "NORM": self.moments is not None,
            "DTYPE": kernels.FLOAT32 if exact else kernels.BFLOAT16,
        }
        places = self._places()
        room = int(places.max()) + 1
        self.places = places.to(torch.int32).to(device)  # in `narrow`
        self.narrow, self.target_narrow = (torch.zeros(room, dtype=dtype, device=device) for _ in range(2))
        self.next_values = torch.zeros(max(minibatches), device=device)
        self.counts, self.starts = minibatches, [0, *accumulate(minibatches)]
        self.tile = tile or (32 if max(minibatches) <= SMALL_TILE else 64)
        self.warps = 8 if self.tile > 32 or self.shape["H"] > 64 else 4
        self.parts = -(-self.size // REDUCE_PART)
        blocks = -(-max(minibatches) // self.tile)
        self.row_size = -(-self.size // ALIGNED) * ALIGNED
        self.partial = torch.zeros((blocks, self.row_size), device=device)
        self.sums = torch.zeros((blocks, 8), device=device)
        self.squares, self.metrics = torch.zeros(self.parts, device=device), torch.zeros(8, device=device)
        self.share = torch.zeros(1, device=device)
        self.limit = torch.zeros(1, device=device)  # max_grad_norm, which may have a schedule
        self.edges = torch.tensor(self.starts, dtype=torch.int64, device=device)
        self.stats = torch.zeros((len(minibatches), 4), device=device)
        # outputs of `act` that are not needed: Q-values and actions after the last step, actions in the env's dtype
        self.unused = torch.empty_like(rollout.logits[0]), torch.empty_like(rollout.actions[0])
        self.unused_env_actions = torch.empty(rollout.rows, dtype=torch.int32, device=device)

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

    def _copy(self, weights: Tensor, narrow: Tensor) -> None:
        launch(
            self.kernels.copy_weights, (-(-self.size // ADAM_PART),),
            weights, narrow, self.places, self.size, PART=ADAM_PART, num_warps=4,
        )  # fmt: skip

    # ---- collecting ----

    def begin(self) -> None:
        """Copies the weights, and the mean and variance of observations, which are constant during an iteration."""
        self._copy(self.weights.detach(), self.narrow)
        limit = self.learner.config.max_grad_norm
        if isinstance(limit, Tensor):
            self.limit.copy_(limit)
        else:
            self.limit.fill_(limit)
        if self.moments is not None:
            self.mean.copy_(self.moments.mean.reshape(-1))
            self.scale.copy_((self.moments.var + 1e-8).rsqrt().reshape(-1))

    def act(self, t: int, env_actions: Tensor | None = None, rows: slice = slice(None)) -> tuple[()]:
        """Stores Q-values, the highest ones as values, and actions at step t; after the last step, only values."""
        rollout, masks = self.learner.rollout, self.learner.rollout.masks
        is_last = t == rollout.horizon
        # the same kernel after the last step, so that no second one is compiled: its actions are not used
        noise = rollout.noise[0 if is_last else t, rows]
        logits, actions = self.unused if is_last else (rollout.logits[t], rollout.actions[t])
        env_actions = self.unused_env_actions[rows] if env_actions is None else env_actions
        allowed, outputs = None if masks is None else masks[t, rows], (rollout.values[t, rows], actions[rows])
        self._act(rollout.obs[0][t, rows], noise, allowed, logits[rows], *outputs, env_actions)
        return ()

    def _act(self, obs: Tensor, noise: Tensor, masks: Tensor | None, *outputs: Tensor) -> None:
        launch(
            self.kernels.act, (-(-len(obs) // 64),),
            obs, self.weights, self.narrow, self.mean, self.scale, noise, masks, *outputs, len(obs),
            **self.shape, MASKED=masks is not None, BM=64, num_warps=4,
        )  # fmt: skip

    def values_of(self, obs: Tensor, masks: Tensor | None) -> Tensor:
        """The highest allowed Q-value of each of as many observations as there are rows."""
        rollout, out = self.learner.rollout, fresh(obs, len(obs), dtype=torch.float32)
        self._act(obs, rollout.noise[0], masks, self.unused[0], out, self.unused[1], self.unused_env_actions)
        return out

    # ---- learning ----

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
        """One gradient step on minibatch k: `order` has its transitions, without it they are all rows.

        A transition's weight is `share`, times its entry of `factors`. Adds the sums of the weighted losses, Q-values
        and targets, and the norm of the gradient, to `metrics` 0, 1, 2 and 5.
        """
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
            self.layered.adam, (-(-self.size // ADAM_PART),),
            self.weights, self.narrow, self.places, grad, mean, square, self.squares, self.metrics, step,
            optimizer.rate, self.limit, self.size, self.parts,
            fixed["beta1"], fixed["beta2"], fixed["eps"], fixed["weight_decay"],
            DECOUPLED=False, PARTS=triton_size(self.parts), PART=ADAM_PART, num_warps=4,
        )  # fmt: skip

    def epoch(self, returns: Tensor, order: Tensor) -> Tensor:
        """PQN: one pass over the rollout in minibatches of `order`; returns the sums of the loss and of the norm."""
        rollout = self.learner.rollout
        counted = rollout.counted()
        counts = None if counted is None else counted.flatten().to(torch.float32)
        launch(  # 1 / the transitions that count, for each minibatch
            self.shared.advantage_stats, (len(self.counts),),
            returns, counts, order, self.stats, self.metrics, self.edges, None,
            COUNTED=counts is not None, STANDARDIZE=False, PART=2048, num_warps=8,
        )  # fmt: skip
        obs, actions = rollout.obs[0][:-1].flatten(0, 1), rollout.actions.flatten()
        for k, start in enumerate(self.starts[:-1]):
            self.improve(k, obs, actions, returns, self.stats[k, 2:], counts, order[start:])
        return self.metrics[::5]

    def improve_from_replay(self, batch: Any, is_ready: Tensor) -> Tensor:
        """DQN: one gradient step; returns the means of loss, Q-value and target, and the norm. Not ready: no change."""
        self.target_values(batch)
        launch(
            self.kernels.share_of, (1,),
            batch.weights, is_ready, self.share, self.metrics, len(batch.weights), PART=2048, num_warps=8,
        )  # fmt: skip
        self.improve(0, batch.obs[0], batch.actions, self.next_values, self.share, batch.weights)
        self.learner.optimizer.state["step"] *= is_ready  # its other state stays zero: the gradients were zero
        return torch.cat([self.metrics[:3], self.metrics[5:6]])

    def target_values(self, batch: Any) -> None:
        """DQN's targets of a batch of the replay, into `next_values`."""
        next_obs, target = batch.next_obs[0], self.learner.target.detach()
        self._copy(target, self.target_narrow)
        launch(
            self.kernels.targets, (-(-len(next_obs) // 64),),
            next_obs, self.weights, self.narrow, target, self.target_narrow, self.mean, self.scale, batch.next_masks,
            batch.returns, batch.discounts, self.next_values, len(next_obs),
            **self.shape, MASKED=batch.next_masks is not None, DOUBLE=self.learner.config.double, BM=64, num_warps=4,
        )  # fmt: skip
