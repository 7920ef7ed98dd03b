"""PQN (Gallici et al. 2024): Q-learning on rollouts: no replay, no target network, but LayerNorm and lambda returns.

for each iteration:
    collect      every row plays `horizon` steps: the best action, or by chance any          (algos/rollout.py)
    returns      G_t = r_t + gamma (lam G_{t+1} + (1 - lam) max Q(s_{t+1}, .))               (algos/ops.py)
    update       `epochs` times over the rollout in `minibatches` random parts: pull Q(s, a) to G
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.algos import ops
from shoal.algos.actor import Actor
from shoal.algos.dqn import QLearner, error_loss, set_epsilon, watch
from shoal.algos.ppo import bootstrap, clip_gradient, learn_moments
from shoal.config import LogUniform, Uniform, opt
from shoal.errors import ConfigError
from shoal.nn.distributions import NEVER


@dataclass(frozen=True)
class PQN:
    """The options of `--train.*` with `--algo pqn`."""

    total_steps: int = opt(5_000_000, "steps to train for, summed over all rows", low=1, is_count=True)
    num_episodes: int = opt(
        0, "games to train for, if they end before total_steps; 0: any number", low=0, is_count=True
    )
    horizon: int = opt(32, "steps of every row in a rollout", low=1, high=1 << 20, is_count=True)
    epochs: int = opt(2, "passes over each rollout", low=1, high=1000)
    minibatches: int = opt(8, "parts that a rollout is divided into", low=1, high=1 << 20, is_count=True)
    learning_rate: float = opt(5e-4, "step size of the optimizer", low=0.0, sweep=LogUniform(1e-5, 1e-2))
    schedule: Literal["constant", "linear", "cosine"] = opt("linear", "how the learning rate goes to 0 over the run")
    adam_eps: float = opt(1e-5, "added to the root of the gradient's square", low=0.0)
    max_grad_norm: float = opt(10.0, "gradients are scaled down to this norm; 0: never", low=0.0)
    gamma: float = opt(0.99, "discount per step", low=0.0, high=1.0, sweep=Uniform(0.9, 0.9999))
    reward_scale: float = opt(1.0, "rewards are learned as so many times what they are; 0.01 for large ones", low=0.0)
    q_lambda: float = opt(0.65, "0 trusts Q after one step, 1 the returns", low=0.0, high=1.0, sweep=Uniform(0.0, 1.0))
    loss: Literal["mse", "huber"] = opt("mse", "of errors; huber: large ones count only linearly")
    dueling: bool = opt(False, "worth of the state and of the actions beside each other are learned apart")
    layer_norm: bool = opt(True, "scale every layer's outputs to mean 0, spread 1: what keeps it stable")
    policy: Literal["shared", "per-agent"] = opt("shared", "one network for all agents, or one for each")
    epsilon_start: float = opt(1.0, "chance of a random action at the start", low=0.0, high=1.0)
    epsilon_end: float = opt(0.01, "the least it becomes; the same as epsilon_start: constant", low=0.0, high=1.0)
    epsilon_fraction: float = opt(0.5, "linear: part of the run over which it falls", low=0.0, high=1.0)
    epsilon_decay: float = opt(0.0, "by so much with every game that ends, instead; 0: linear", low=0.0, high=1.0)
    normalize_obs: bool = opt(False, "scale observations by their running mean and spread")
    precision: Literal["fp32", "tf32"] = opt("fp32", "GPU: how matrices are multiplied")

    def resolve(self, rows: int) -> PQN:
        """The same: nothing depends on the number of rows."""
        return self

    def minibatch(self, rows: int) -> int:
        """Transitions that go through the network at a time."""
        return self.horizon * rows // self.minibatches


METRICS = ("loss/q", "grad_norm")


class Learner(QLearner):
    """With nothing more: PQN learns from the rollout alone."""

    config: PQN

    def __init__(self, config: PQN, actor: Actor, rows: int, **more: Any) -> None:
        units = config.horizon * rows // getattr(actor.policy, "agents", 1)
        if units < config.minibatches:
            raise ConfigError(
                f"--train.minibatches {config.minibatches} is more than the {units} transitions of a rollout "
                f"({rows} rows, horizon {config.horizon}). Try --train.minibatches {units}."
            )
        super().__init__(config, actor, rows, **more)


# ---- one update ----


def update(learner: Learner) -> dict[str, Tensor]:
    """Improves the learner's Q-values on its rollout. Metrics stay tensors until someone prints them."""
    config = learner.config
    metrics: dict[str, Tensor] = watch(learner)
    returns = assess(learner).flatten()
    sums = torch.zeros(len(METRICS), device=learner.device)
    for _ in range(config.epochs):
        for index in shuffled(learner).tensor_split(config.minibatches):
            sums += improve(learner, index.flatten(), returns)
    set_epsilon(learner)
    learn_moments(learner)
    means: Tensor = sums / (config.epochs * config.minibatches)
    return metrics | dict(zip(METRICS, means))


@torch.no_grad()
def assess(learner: Learner) -> Tensor:
    """(horizon, rows): lambda returns of the rollout, by the Q-values that it was played with."""
    rollout, config, actor = learner.rollout, learner.config, learner.actor
    rewards = rollout.rewards * config.reward_scale
    # truncation bootstraps from final_obs; termination does not (docs/design/episodes.md)
    for cut in rollout.truncated:
        values = last_values(learner, cut.obs, cut.rows)
        rewards[cut.t, cut.rows] += config.gamma * values
    if rollout.cuts is not None:
        bootstrap(learner, rollout.cuts, rewards)  # type: ignore[arg-type]
    now = actor.step(rollout.observations([leaf[-1] for leaf in rollout.obs]), ())[0]
    if rollout.masks is not None:
        now = torch.where(rollout.masks[-1] != 0, now, NEVER)
    best = torch.cat([rollout.logits.amax(-1), now.amax(-1).unsqueeze(0)])  # the logits that were played are masked
    return ops.lambda_returns(rewards, best, rollout.dones, config.gamma, config.q_lambda)


def last_values(learner: Learner, obs: list[Tensor], rows: Tensor) -> Tensor:
    """max Q of some rows' last observations. Networks of agents' own take whole envs: the others' rows are empty."""
    if getattr(learner.actor.policy, "agents", 1) == 1:
        return learner.actor.step(learner.rollout.observations(obs), ())[1]
    whole = [leaf.new_zeros((learner.rollout.rows, *leaf.shape[1:])) for leaf in obs]
    for kept, leaf in zip(whole, obs):
        kept[rows] = leaf
    return learner.actor.step(learner.rollout.observations(whole), ())[1][rows]


def shuffled(learner: Learner) -> Tensor:
    """(units, agents): all transitions in random order. Those of networks of agents' own stay together, by env."""
    agents = getattr(learner.actor.policy, "agents", 1)
    count = learner.rollout.horizon * learner.rollout.rows
    if learner.device.type == "cuda":  # randperm cannot be captured in a graph
        order = torch.rand(count // agents, device=learner.device, generator=learner.generator).argsort()
    else:
        order = torch.randperm(count // agents, generator=learner.generator)
    return order.unsqueeze(1) * agents + torch.arange(agents, device=learner.device)


def improve(learner: Learner, index: Tensor, returns: Tensor) -> Tensor:
    """One gradient step on some transitions; returns METRICS."""
    config, rollout = learner.config, learner.rollout
    gradient: Any = learner.weights.grad
    gradient.zero_()
    obs = rollout.observations([leaf[:-1].flatten(0, 1)[index] for leaf in rollout.obs])
    values = learner.actor.unroll(obs, (), rollout.dones[:0])[0]
    chosen = values.gather(1, rollout.actions.flatten(0, 1)[index]).squeeze(-1)
    losses, slopes = error_loss(config.loss, chosen.detach(), returns[index])
    counted = rollout.counted()
    counts = None if counted is None else counted.flatten()[index].to(losses.dtype)
    # each network has a part of the minibatch: its gradient does not shrink with the number of networks
    networks = getattr(learner.actor.policy, "agents", 1)
    total = len(index) if counts is None else counts.sum().clamp(min=1.0)
    chosen.backward((slopes if counts is None else slopes * counts) * (networks / total))
    norm = clip_gradient(gradient, config.max_grad_norm)
    learner.optimizer.step()
    return torch.stack([ops.masked_mean(losses, counts), norm])
