"""What Q-learning's ways in GPU kernels share: fused_q.py (a network in one block), layered_q.py (layer by layer)."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast.base import ACTIVATION_IDS
from shoal.algos.optimizers.adam import Adam
from shoal.nn.launch import fresh, launch
from shoal.nn.qnet import QHead, QNet

COPY_PART = 256  # weights of one block


def never_covered(learner: Any) -> str:
    """Why no kernels cover a learner; empty if it depends on the network's sizes."""
    config, policy, head = learner.config, learner.actor.policy, learner.actor.head
    if type(policy) is not QNet or type(head) is not QHead:
        return "a custom policy"
    if learner.actor.is_compiled:
        return "--train.compile"
    if type(learner.optimizer) is not Adam:
        return f"--train.optimizer {config.optimizer}"
    if policy.agents > 1 or policy.dueling or policy.distribution != "none":
        return "--train.policy per-agent, --train.dueling or --train.distribution"
    if len(policy.encoder.parts) != 1:
        return "observations of several parts"
    if policy.activation not in ACTIVATION_IDS:
        return f"--nn.activation {policy.activation}"
    if config.precision != "auto":
        return f"--train.precision {config.precision}"
    if getattr(config, "priority", 0.0):
        return "--train.priority"
    if learner.device.type == "cuda" and torch.cuda.get_device_capability(learner.device) < (8, 0):
        return "a GPU without bfloat16"
    return ""


class KernelQ:
    """Acts and learns for a learner of DQN or PQN, and owns the memory that its kernels share."""

    acts_for_members = False
    places: Tensor  # in `narrow`, of each weight
    narrow: Tensor  # the weights as the kernels multiply them
    target_narrow: Tensor  # those of DQN's target network

    def __init__(self, learner: Any, minibatches: list[int], exact: bool) -> None:
        from shoal.algos.fast import kernels, layered_kernels, q_kernels

        self.learner, self.shared, self.layer_kernels, self.kernels = learner, kernels, layered_kernels, q_kernels
        rollout, device = learner.rollout, learner.device
        self.dtype = torch.float32 if exact else torch.bfloat16  # of matrix products
        self.type = kernels.FLOAT32 if exact else kernels.BFLOAT16
        self.weights: Tensor = learner.weights
        self.size = self.weights.numel()
        self.moments = next(iter(learner.actor.moments.values()), None)
        elements = rollout.obs[0][0, 0].numel()
        self.mean, self.scale = (torch.zeros(elements, device=device) for _ in range(2))
        self.next_values = torch.zeros(max(minibatches), device=device)
        self.counts, self.starts = minibatches, [0, *accumulate(minibatches)]
        self.metrics, self.share = torch.zeros(8, device=device), torch.zeros(1, device=device)
        self.limit = torch.zeros(1, device=device)  # max_grad_norm, which may have a schedule
        self.edges = torch.tensor(self.starts, dtype=torch.int64, device=device)
        self.stats = torch.zeros((len(minibatches), 4), device=device)
        # outputs of `act` that are not needed: Q-values and actions after the last step, actions in the env's dtype
        self.unused = torch.empty_like(rollout.logits[0]), torch.empty_like(rollout.actions[0])
        self.unused_env_actions = torch.empty(rollout.rows, dtype=torch.int32, device=device)

    def _copy(self, weights: Tensor, narrow: Tensor) -> None:
        launch(
            self.kernels.copy_weights, (-(-self.size // COPY_PART),),
            weights, narrow, self.places, self.size, PART=COPY_PART, num_warps=4,
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
        """For each row: Q-values, the highest one, the action, and that in the env's dtype, into `outputs`."""
        raise NotImplementedError

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
        raise NotImplementedError

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
        raise NotImplementedError
