"""PQN (Gallici et al. 2024): Q-learning from rollouts, with LayerNorm and lambda returns instead of replay and target.

for each iteration:
    collect      every row plays `horizon` steps, epsilon-greedy                              (algos/collect/)
    returns      G_t = r_t + gamma (lam G_{t+1} + (1 - lam) max Q(s_{t+1}, .))               (algos/ops.py)
    update       `epochs` passes over the rollout in random minibatches: move Q(s, a) towards G

What it shares with DQN is in q.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.algos import fast, ops, q
from shoal.algos.actor import Actor
from shoal.algos.algorithm import SHARDS_HELP, Algorithm
from shoal.algos.frames import flat
from shoal.algos.learner import clip_gradient, random_order, update_obs_moments
from shoal.algos.q import QLearner, error_loss
from shoal.algos.rollout import Truncation
from shoal.config import LogitUniform, LogUniform, Uniform, opt
from shoal.errors import ConfigError
from shoal.nn.distributions import NEVER


# DQN restates the options that both have: their defaults and their order in --help differ
@dataclass(frozen=True)
class PQN:
    """The options of `--train.*` with `--algo pqn`."""

    total_steps: int = opt(
        5_000_000, "environment steps to train for, summed over all rows (by env)", low=1, is_count=True
    )
    num_episodes: int = opt(0, "end after this many episodes, if before total_steps; 0: no limit", low=0, is_count=True)
    horizon: int = opt(32, "steps of each row in a rollout", low=1, high=1 << 20, is_count=True)
    epochs: int = opt(2, "passes over each rollout (by env)", low=1, high=1000)
    minibatch_size: int = opt(
        128, "transitions of a minibatch, whatever the number of envs (by env)", low=1, high=1 << 30, is_count=True
    )
    minibatches: int = opt(
        0, "minibatches per epoch; overrides minibatch_size, 0: by minibatch_size", low=0, high=1 << 20, is_count=True
    )
    learning_rate: float = opt(5e-4, "learning rate (by env)", low=0.0, sweep=LogUniform(1e-5, 1e-2), may_change=True)
    schedule: Literal["constant", "linear", "cosine"] = opt("linear", "learning rate schedule, down to 0 at the end")
    adam_eps: float = opt(1e-5, "Adam: added to the denominator", low=0.0)
    max_grad_norm: float = opt(10.0, "clip gradients to this norm; 0: no clipping", low=0.0, may_change="above 0")
    gamma: float = opt(0.99, "discount factor", low=0.0, high=1.0, sweep=LogitUniform(0.9, 0.9999), may_change=True)
    reward_scale: float = opt(1.0, "factor applied to rewards", low=0.0, may_change=True)
    q_lambda: float = opt(
        0.65,
        "lambda: 0 trusts Q after one step, 1 the returns (by env)",
        low=0.0,
        high=1.0,
        sweep=Uniform(0.0, 1.0),
        may_change=True,
    )
    loss: Literal["mse", "huber"] = opt("mse", "loss of the TD error")
    dueling: bool = opt(False, "dueling network: separate value and advantage streams")
    layer_norm: bool = opt(True, "layer normalization after each hidden layer, which keeps training stable")
    policy: Literal["shared", "per-agent"] = opt("shared", "one network for all agents, or one for each")
    epsilon: float = opt(
        0.0,
        "probability of a random action, also as a schedule; 0: by the other epsilon options",
        low=0.0,
        high=1.0,
        may_change=True,
    )
    epsilon_start: float = opt(1.0, "probability of a random action at the start", low=0.0, high=1.0)
    epsilon_end: float = opt(0.01, "probability of a random action at the end", low=0.0, high=1.0)
    epsilon_fraction: float = opt(
        0.5, "fraction of the run over which epsilon falls linearly (by env)", low=0.0, high=1.0
    )
    epsilon_decay: float = opt(0.0, "multiply epsilon by this after each episode instead; 0: linear", low=0.0, high=1.0)
    normalize_obs: bool = opt(False, "normalize observations by their running mean and standard deviation (by env)")
    precision: Literal["auto", "fp32", "tf32"] = opt(
        "auto", "GPU: precision of matrix products; auto: bf16 for small networks, otherwise tf32"
    )
    shards: int = opt(0, SHARDS_HELP, low=0, high=1 << 16)

    def resolve(self, rows: int) -> PQN:
        """The options with `minibatch_size` converted to `minibatches`."""
        return replace(self, minibatches=self.minibatches or max(1, self.horizon * rows // self.minibatch_size))

    def minibatch(self, rows: int) -> int:
        """Transitions of a minibatch."""
        return self.horizon * rows // self.minibatches


STEP_METRICS = ("loss/q", "grad_norm")  # of one optimizer step; an update reports their means


class Learner(QLearner):
    """A Q-network in training. It learns from the rollout alone."""

    config: PQN

    def __init__(self, config: PQN, actor: Actor, rows: int, **options: Any) -> None:
        transitions = config.horizon * rows // actor.networks  # of each network
        if transitions < config.minibatches:
            raise ConfigError(
                f"--train.minibatches {config.minibatches} is more than the {transitions} transitions of a rollout "
                f"({rows} rows, horizon {config.horizon}). Try --train.minibatches {transitions}."
            )
        super().__init__(config, actor, rows, **options)
        size, larger = divmod(transitions, config.minibatches)  # the first ones are larger by one: see tensor_split
        self.fused = fast.fused_q_learning(self, [size + (k < larger) for k in range(config.minibatches)])


# ---- one update ----


def update(learner: Learner) -> dict[str, Tensor]:
    """Improves the learner's Q-values on its rollout. The metrics are tensors: reading them waits for a GPU."""
    config = learner.config
    metrics: dict[str, Tensor] = q.observe(learner)
    with learner.actor.evaluation_mode():  # values are those of acting: no dropout
        returns = compute_returns(learner).flatten()
    sums = torch.zeros(len(STEP_METRICS), device=learner.device)
    for _ in range(config.epochs):
        sums += run_epoch(learner, returns)
    q.set_epsilon(learner)
    update_obs_moments(learner)
    means: Tensor = sums / (config.epochs * config.minibatches)
    return metrics | dict(zip(STEP_METRICS, means))


@torch.no_grad()
def compute_returns(learner: Learner) -> Tensor:
    """(horizon, rows): lambda returns of the rollout, from the Q-values that it was played with."""
    rollout, config, actor = learner.rollout, learner.config, learner.actor
    rewards = rollout.rewards * config.reward_scale

    def value(truncation: Truncation) -> Tensor:
        """Max Q of the last observations. Networks of agents need a row for every agent: the others are zeros."""
        rows, masks = truncation.rows, rollout.truncations.masks_of(truncation)
        if learner.fused is not None and isinstance(rows, slice):
            values: Tensor = learner.fused.values_of(truncation.obs[0], masks)
            return values
        leaves = truncation.obs
        is_part = actor.networks > 1 and not isinstance(rows, slice)
        if is_part:
            leaves = [leaf.new_zeros((rollout.rows, *leaf.shape[1:])) for leaf in truncation.obs]
            for padded, leaf in zip(leaves, truncation.obs):
                padded[rows] = leaf
        outputs = actor.step(rollout.observations(leaves), ())[0]
        outputs = outputs[rows] if is_part else outputs
        return (outputs if masks is None else torch.where(masks != 0, outputs, NEVER)).amax(-1)

    # truncation bootstraps from final_obs; termination does not (docs/design/episodes.md)
    rollout.truncations.bootstrap(rewards, config.gamma, value)
    return ops.lambda_returns(rewards, best_values(learner), rollout.dones, config.gamma, config.q_lambda)


def best_values(learner: Learner) -> Tensor:
    """(horizon + 1, rows): the highest allowed Q-value of every observation."""
    rollout = learner.rollout
    if learner.fused is not None:
        return rollout.values
    last = learner.actor.step(rollout.observations([leaf[-1] for leaf in rollout.obs]), ())[0]
    if rollout.masks is not None:
        last = torch.where(rollout.masks[-1] != 0, last, NEVER)
    return torch.cat([rollout.logits.amax(-1), last.amax(-1).unsqueeze(0)])  # the stored Q-values are masked


def shuffled(learner: Learner) -> Tensor:
    """(steps of envs, networks): all transitions in random order. Networks of agents keep an env's agents together."""
    networks = learner.actor.networks
    count = learner.rollout.horizon * learner.rollout.rows
    order = random_order(count // networks, learner.streams["minibatches"])
    return order.unsqueeze(1) * networks + torch.arange(networks, device=learner.device)


def run_epoch(learner: Learner, returns: Tensor) -> Tensor:
    """One pass over the rollout in minibatches; returns the sums of STEP_METRICS over them."""
    order, sums = shuffled(learner), torch.zeros(len(STEP_METRICS), device=learner.device)
    if learner.fused is not None:
        return sums + learner.fused.epoch(returns, order.flatten())
    for index in order.tensor_split(learner.config.minibatches):
        sums += improve(learner, index.flatten(), returns)
    return sums


def improve(learner: Learner, index: Tensor, returns: Tensor) -> Tensor:
    """One gradient step on a minibatch of transitions; returns STEP_METRICS."""
    config, rollout = learner.config, learner.rollout
    gradient: Any = learner.weights.grad
    gradient.zero_()
    obs = rollout.observations([flat(leaf)[index] for leaf in rollout.obs])
    values = learner.actor.unroll(obs, (), rollout.dones[:0])[0]
    chosen = values.gather(1, rollout.actions.flatten(0, 1)[index]).squeeze(-1)
    losses, derivatives = error_loss(config.loss, chosen.detach(), returns[index])
    counted = rollout.counted()
    counts = None if counted is None else counted.flatten()[index].to(losses.dtype)
    # each network learns from its share of the minibatch: its gradient is the mean over that share
    total = len(index) if counts is None else counts.sum().clamp(min=1.0)
    shards = learner.shards
    if shards is not None:
        total = shards.sum(losses.new_tensor(len(index)) if counts is None else counts.sum()).clamp(min=1.0)
    chosen.backward((derivatives if counts is None else derivatives * counts) * (learner.actor.networks / total))
    if shards is None:
        loss = ops.masked_mean(losses, counts)
    else:
        with torch.no_grad():
            whole, loss = shards.sum_all(gradient, (losses if counts is None else losses * counts).sum() / total)
            gradient.copy_(whole)
    norm = clip_gradient(gradient, config.max_grad_norm)
    learner.optimizer.step()
    return torch.stack([loss, norm])


ALGORITHM = Algorithm(
    options=PQN,
    learner=Learner,
    update=update,
    metrics=q.METRICS,
    make_policy=q.make_policy,
    prepare=compute_returns,
    cost=lambda config, networks, steps: (steps * config.epochs, 3.0),
    shard=lambda config, shards: config,  # every shard divides its rollout into as many minibatches
)
