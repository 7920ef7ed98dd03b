"""REINFORCE with a baseline (Williams 1992): one gradient step on every rollout, by the returns that it saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.algos import ops
from shoal.algos.actor import Actor
from shoal.algos.algorithm import Algorithm, Metric, TrainOptions
from shoal.algos.learner import Learner, clip_gradient, update_obs_moments
from shoal.algos.optimizers import OPTIMIZERS
from shoal.algos.rollout import Truncation
from shoal.config import LogUniform, opt


@dataclass(frozen=True)
class Reinforce(TrainOptions):
    """The options of `--train.*` with `--algo reinforce`."""

    optimizer: str = opt("adam", "optimizer", choices=OPTIMIZERS.names)
    max_grad_norm: float = opt(0.5, "clip gradients to this norm; 0: no clipping", low=0.0)
    gamma: float = opt(0.99, "discount factor", low=0.0, high=1.0)
    baseline_coef: float = opt(0.5, "weight of the baseline loss", low=0.0, sweep=LogUniform(0.1, 1.0))


class ReinforceLearner(Learner):
    """A policy in training. A recurrent one learns from whole rollouts: a segment is the horizon."""

    def __init__(self, config: Reinforce, actor: Actor, rows: int, **options: Any) -> None:
        super().__init__(config, actor, rows, segment=config.horizon, **options)
        self.updates = torch.zeros((), dtype=torch.int64, device=self.device)

    def state_tensors(self) -> dict[str, Tensor]:
        """With a counter: a checkpoint saves and restores whatever is named here."""
        return {**super().state_tensors(), "updates": self.updates}


def update(learner: ReinforceLearner) -> dict[str, Tensor]:
    """One gradient step: L = -mean (G - V) log pi(a) + baseline_coef mean (V - G)^2 / 2."""
    rollout, config, head = learner.rollout, learner.config, learner.head
    returns = compute_returns(learner).flatten()
    counted = rollout.counted()
    counts = None if counted is None else counted.flatten().to(torch.float32)

    obs = rollout.observations([leaf[:-1].flatten(0, 1) for leaf in rollout.obs])
    start = tuple(part[0] for part in rollout.starts)
    logits, values = learner.actor.unroll(obs, start, rollout.resets())
    if rollout.masks is not None:
        logits = head.mask(logits, rollout.masks[:-1].flatten(0, 1))
    logprobs = head.log_prob(logits, rollout.actions.flatten(0, 1))
    policy_loss = -ops.masked_mean((returns - values).detach() * logprobs, counts)
    baseline_loss = 0.5 * ops.masked_mean((values - returns).square(), counts)

    learner.weights.grad.zero_()
    (policy_loss + config.baseline_coef * baseline_loss).backward()
    norm = clip_gradient(learner.weights.grad, config.max_grad_norm)
    learner.optimizer.step()
    learner.updates += 1
    update_obs_moments(learner)
    return {"loss/policy": policy_loss.detach(), "loss/baseline": baseline_loss.detach(), "grad_norm": norm}


@torch.no_grad()
def compute_returns(learner: ReinforceLearner) -> Tensor:
    """(horizon, rows): discounted sums of rewards. Where the rollout or a time limit cuts a game, V completes it."""
    rollout, gamma = learner.rollout, learner.config.gamma
    rewards = rollout.rewards.clone()

    def value(part: Truncation) -> Tensor:
        return learner.actor.step(rollout.observations(part.obs), part.state)[1]

    rollout.truncations.bootstrap(rewards, gamma, value)
    return ops.lambda_returns(rewards, rollout.values, rollout.dones, gamma, 1.0)


ALGORITHM = Algorithm(
    options=Reinforce,
    learner=ReinforceLearner,
    update=update,
    metrics={
        "loss/policy": Metric("policy loss"),
        "loss/baseline": Metric("baseline loss", "baseline"),
        "grad_norm": Metric("grad norm"),
    },
)
