"""What DQN and PQN share: the Q-network of a role, epsilon-greedy exploration and the loss of a TD error.

Their updates are in dqn.py and pqn.py, the network in nn/qnet.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.algos import ops
from shoal.algos.actor import Actor
from shoal.algos.algorithm import Metric
from shoal.algos.learner import Learner
from shoal.algos.roles import Role
from shoal.errors import ConfigError
from shoal.nn.policy import Net
from shoal.nn.qnet import QHead, QNet

METRICS = {
    "loss/q": Metric("Q loss", "loss"),
    "q_played": Metric("Q", "Q"),
    "epsilon": Metric("epsilon", "eps"),
    "grad_norm": Metric("grad norm"),
}


def make_policy(config: Any, role: Role, net: Net, agents: int) -> tuple[nn.Module, QHead]:
    """The Q-network of a role, and the head that turns its values into actions."""
    if net.core != "none":
        raise ConfigError(f"--nn.core {net.core} is not supported by Q-learning. Use --nn.core none, or --algo ppo.")
    if net.policies == "per_agent":
        raise ConfigError(
            "--nn.policies per_agent is not supported by Q-learning. Use --train.policy per-agent, or --algo ppo."
        )
    head = QHead(role.action_space)
    options: dict[str, Any] = {"dueling": config.dueling, "layer_norm": config.layer_norm}
    options["normalized"] = config.normalize_obs
    kind = getattr(config, "distribution", "none")
    if kind != "none":
        options |= {"distribution": kind, "num_atoms": config.num_atoms}
    if kind == "c51":
        if config.value_low >= config.value_high:
            raise ConfigError(
                f"--train.value-low {config.value_low:g} is not below --train.value-high {config.value_high:g}. "
                "Give the lowest and the highest discounted return."
            )
        options |= {"low": config.value_low, "high": config.value_high}
    networks = agents if config.policy == "per-agent" else 1
    return QNet(role.observation_space, head.choices, net, agents=networks, **options), head


class QLearner(Learner):
    """A Q-network in training, with the number of episodes played and epsilon."""

    head: QHead
    learned = ("logits",)

    def __init__(self, config: Any, actor: Actor, rows: int, **options: Any) -> None:
        check_policy(config, actor)
        super().__init__(config, actor, rows, **options)
        self.rollout.needs_last_value = False  # updates compute the Q-values that they need
        self.games = torch.zeros((), dtype=torch.float64, device=self.device)  # episodes played
        self.done = torch.zeros((), device=self.device)  # finished fraction of the run
        # on a CPU: numpy views of the same memory, which set and read one number ten times faster than torch
        self.host: dict[str, Any] = {}
        if self.device.type == "cpu":
            self.host = {"done": self.done.numpy(), "epsilon": self.head.epsilon.numpy()}
        set_epsilon(self)

    @property
    def has_finished(self) -> bool:
        """Whether `num_episodes` have been played."""
        limit = getattr(self.config, "num_episodes", 0)
        return bool(limit) and float(self.games) >= limit

    def state_tensors(self) -> dict[str, Tensor]:
        """With the progress of the run."""
        return {**super().state_tensors(), "games": self.games, "done": self.done, "epsilon": self.head.epsilon}

    def set_progress(self, done: float) -> float:
        """Sets the learning rate, and the finished fraction of the run, on which epsilon depends."""
        if self.host:
            self.host["done"][()] = done
        else:
            self.done.fill_(done)
        return super().set_progress(done)


def check_policy(config: Any, actor: Actor) -> None:
    """Raises if Q-learning cannot train a custom network. Its logits are the Q-values."""
    assert isinstance(actor.head, QHead)
    if isinstance(actor.policy, QNet):
        return
    if actor.initial_state(1):
        raise ConfigError("Q-learning does not support recurrent policies. Use --algo ppo.")
    if config.policy == "per-agent" or config.dueling or getattr(config, "distribution", "none") != "none":
        raise ConfigError(
            "--train.policy per-agent, --train.dueling and --train.distribution do not work with a custom policy: its "
            "logits are the Q-values. Leave these options out."
        )


def set_epsilon(learner: QLearner) -> None:
    """Sets the probability of a random action, by the finished fraction of the run or by the episodes played."""
    config = learner.config
    if "epsilon" in learner.schedules or getattr(config, "epsilon", None):  # other algorithms may not have it
        if isinstance(config.epsilon, Tensor):
            learner.head.epsilon.copy_(config.epsilon)
        else:
            learner.head.epsilon.fill_(config.epsilon)
        return
    start, end = config.epsilon_start, config.epsilon_end
    if learner.host and not config.epsilon_decay:
        done = np.minimum(learner.host["done"] / max(config.epsilon_fraction, 1e-9), 1.0)  # float32, as in torch
        learner.host["epsilon"][()] = end if start == end else start + (end - start) * done
        return
    if start == end:
        learner.head.epsilon.fill_(end)
        return
    if config.epsilon_decay:
        epsilon = (start * torch.full_like(learner.games, config.epsilon_decay) ** learner.games).clamp(min=end)
    else:
        epsilon = start + (end - start) * (learner.done / max(config.epsilon_fraction, 1e-9)).clamp(max=1.0)
    learner.head.epsilon.copy_(epsilon)


@torch.no_grad()
def observe(learner: QLearner) -> dict[str, Tensor]:
    """Counts finished episodes; returns metrics of the rollout, in which bad values of an env show first."""
    rollout = learner.rollout
    counts = None if rollout.alive is None else rollout.alive[:-1]
    ended = rollout.dones if counts is None else rollout.dones & counts
    games = ended.sum() if learner.shards is None else learner.shards.sum(ended.sum())
    learner.games += games / learner.actor.agents
    weights = None if counts is None else counts.to(torch.float32)
    return {
        "epsilon": learner.head.epsilon.clone(),
        "reward": ops.masked_mean(rollout.rewards, weights),
        "q_played": ops.masked_mean(rollout.logits.amax(-1), weights),
    }


def error_loss(kind: str, chosen: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The losses of TD errors (half the square, or Huber) and their derivatives by `chosen`; (batch,) each."""
    errors = chosen - targets
    if kind == "mse":
        return 0.5 * errors.square(), errors
    derivatives = errors.clamp(-1.0, 1.0)
    return derivatives * (errors - 0.5 * derivatives), derivatives
