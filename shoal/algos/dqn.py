"""Deep Q-learning (Mnih et al. 2015): learn the value of every action from a replay of past transitions.

    for each iteration:
        collect      every row plays `train_frequency` steps, epsilon-greedy                        (algos/collect/)
        store        transitions and the last observations of truncated episodes go to the replay   (algos/replay.py)
        update       `replay_ratio` times for each transition: sample `batch_size` windows of n steps, and move
                         Q(s, a)   towards   r_0 + gamma r_1 + ... + gamma^n Q_target(s', argmax Q(s', .))
        target       copy the online network to the target network now and then, or average it in

Each agent of each env is a row: one inference acts for all rows, and they fill one replay. With `policy = per-agent`
each agent has its own network, and all networks run as one batched matrix product (nn/qnet.py).

algos/fast/ has a faster implementation in C for small networks on a CPU. This file defines what it must compute.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.algos import fast, ops, q
from shoal.algos.actor import Actor
from shoal.algos.algorithm import SHARDS_HELP, Algorithm, Metric
from shoal.algos.learner import clip_gradient, flatten, is_on, update_obs_moments
from shoal.algos.q import QLearner, error_loss
from shoal.algos.replay import Batch, Replay
from shoal.algos.shards import divide
from shoal.config import LogitUniform, LogUniform, opt
from shoal.errors import ConfigError
from shoal.nn.distributions import NEVER
from shoal.nn.qnet import QNet


# PQN restates the options that both have: their defaults and their order in --help differ
@dataclass(frozen=True)
class DQN:
    """The options of `--train.*` with `--algo dqn`."""

    total_steps: int = opt(
        1_000_000, "environment steps to train for, summed over all rows (by env)", low=1, is_count=True
    )
    num_episodes: int = opt(0, "end after this many episodes, if before total_steps; 0: no limit", low=0, is_count=True)
    replay_ratio: float = opt(
        0.25, "gradient steps per transition, whatever the number of envs (by env)", low=0.0, sweep=LogUniform(0.01, 1)
    )
    train_frequency: int = opt(4, "steps of each env between two updates", low=1, high=1 << 20, is_count=True)
    gradient_steps: int = opt(
        0, "gradient steps per update; overrides replay_ratio, 0: by replay_ratio", low=0, high=1 << 20, is_count=True
    )
    batch_size: int = opt(128, "transitions of a gradient step, for each network (by env)", low=1, is_count=True)
    learning_rate: float = opt(5e-4, "learning rate (by env)", low=0.0, sweep=LogUniform(1e-5, 1e-2), may_change=True)
    schedule: Literal["constant", "linear", "cosine"] = opt("constant", "learning rate schedule, down to 0 at the end")
    adam_eps: float = opt(1e-5, "Adam: added to the denominator", low=0.0)
    max_grad_norm: float = opt(10.0, "clip gradients to this norm; 0: no clipping", low=0.0, may_change="above 0")
    gamma: float = opt(0.99, "discount factor", low=0.0, high=1.0, sweep=LogitUniform(0.9, 0.9999), may_change=True)
    reward_scale: float = opt(1.0, "factor applied to rewards", low=0.0, may_change=True)
    n_step: int = opt(1, "n-step return: rewards summed before bootstrapping (by env)", low=1, high=1000)
    loss: Literal["huber", "mse"] = opt("huber", "loss of the TD error")
    double: bool = opt(True, "double DQN: the online network selects the next action, the target network evaluates it")
    dueling: bool = opt(False, "dueling network: separate value and advantage streams")
    distribution: Literal["none", "c51", "quantile"] = opt(
        "none", "distributional Q-learning: C51 or quantile regression"
    )
    num_atoms: int = opt(51, "atoms of c51, or quantiles", low=2, high=1024)
    value_low: float = opt(-10.0, "c51: the lowest return")
    value_high: float = opt(10.0, "c51: the highest return")
    layer_norm: bool = opt(False, "layer normalization after each hidden layer")
    target_every: int = opt(1000, "gradient steps between two copies to the target network", low=1, is_count=True)
    target_tau: float = opt(
        0.0,
        "soft update of the target network after each gradient step; 0: copies (by env)",
        low=0.0,
        high=1.0,
        may_change="above 0",
    )
    replay_size: int = opt(100_000, "transitions in the replay, over all rows (by env)", low=1, is_count=True)
    replay_start: int = opt(1000, "transitions to collect before learning begins (by env)", low=1, is_count=True)
    replay: Literal["shared", "per-agent"] = opt(
        "shared", "sample from all agents' transitions, or equally from each agent's"
    )
    policy: Literal["shared", "per-agent"] = opt("shared", "one network for all agents, or one for each")
    priority: float = opt(0.0, "sample transitions by |TD error| to this power; 0: uniformly", low=0.0, high=4.0)
    priority_beta: float = opt(
        0.4, "exponent of the importance weights that correct for priority", low=0.0, high=1.0, may_change=True
    )
    epsilon: float = opt(
        0.0,
        "probability of a random action, also as a schedule; 0: by the other epsilon options",
        low=0.0,
        high=1.0,
        may_change=True,
    )
    epsilon_start: float = opt(1.0, "probability of a random action at the start", low=0.0, high=1.0)
    epsilon_end: float = opt(0.05, "probability of a random action at the end", low=0.0, high=1.0)
    epsilon_fraction: float = opt(
        0.5, "fraction of the run over which epsilon falls linearly (by env)", low=0.0, high=1.0
    )
    epsilon_decay: float = opt(0.0, "multiply epsilon by this after each episode instead; 0: linear", low=0.0, high=1.0)
    normalize_obs: bool = opt(False, "normalize observations by their running mean and standard deviation (by env)")
    precision: Literal["auto", "fp32", "tf32"] = opt(
        "fp32", "GPU: precision of matrix products; auto: bf16 for small networks, otherwise tf32"
    )
    shards: int = opt(0, SHARDS_HELP, low=0, high=1 << 16)

    @property
    def horizon(self) -> int:
        """Steps of each row in a rollout."""
        return self.train_frequency

    def resolve(self, rows: int) -> DQN:
        """The options with `replay_ratio` converted to `gradient_steps`.

        A ratio below one gradient step per `train_frequency` steps lengthens `train_frequency`.
        """
        if self.gradient_steps:
            return self
        if not self.replay_ratio:
            raise ConfigError("--train.replay-ratio 0 makes no gradient steps. Use a number above 0, such as 0.25.")
        frequency = max(self.train_frequency, math.ceil(1.0 / (self.replay_ratio * rows) - 1e-9))
        return replace(
            self, train_frequency=frequency, gradient_steps=max(1, round(self.replay_ratio * frequency * rows))
        )

    def minibatch(self, rows: int) -> int:
        """Transitions of a gradient step."""
        return self.batch_size


METRICS = {**q.METRICS, "replay_fill": Metric("replay fill")}
STEP_METRICS = ("loss/q", "q", "q_target", "grad_norm")  # of one gradient step; an update reports its last


class Learner(QLearner):
    """A Q-network with a replay to learn from, and a target network."""

    config: DQN

    def __init__(self, config: DQN, actor: Actor, rows: int, *, mask_size: int = 0, **options: Any) -> None:
        super().__init__(config, actor, rows, mask_size=mask_size, **options)
        config = self.config
        self.replay = Replay(
            actor,
            config.replay_size,
            rows,
            horizon=config.train_frequency,
            agents=actor.agents,
            priority=config.priority,
            priority_beta=config.priority_beta,
            mask_size=mask_size,
            has_dead_rows=self.rollout.alive is not None,
            device=self.device,
        )
        limit = rows * (self.replay.capacity - 1) * (1 if self.shards is None else self.shards.count)
        if config.replay_start > limit:
            raise ConfigError(
                f"--train.replay-start {config.replay_start} is more than the {limit} transitions that a replay of "
                f"{config.replay_size} holds for {rows} rows. Try --train.replay-start {limit // 2}."
            )
        self.target_policy = copy.deepcopy(actor.policy)
        self.target = flatten([p for p in self.target_policy.parameters() if p.requires_grad])
        self.target_policy.requires_grad_(False)
        self.updates = torch.zeros((), dtype=torch.int64, device=self.device)  # gradient steps taken
        if self.host:
            self.host["updates"] = self.updates.numpy()
        self.reused: Batch | None = None  # the last batch, whose memory the next one overwrites
        groups, count = sample_groups(self)
        self.native = fast.native_q_learning(self, groups * count)
        self.fused = fast.fused_q_learning(self, [groups * count])
        self.rollout.acting = fast.native_q_acting(actor, self.rollout)

    def set_progress(self, done: float) -> float:
        """Sets also the exponent of the replay's importance weights."""
        rate = super().set_progress(done)
        self.replay.priority_beta = self.config.priority_beta
        return rate

    def begin(self, seed: int) -> None:
        """Copies the new weights to the target network."""
        super().begin(seed)
        self.target.data.copy_(self.weights.data)

    def state_tensors(self) -> dict[str, Tensor]:
        """With the target network."""
        return {**super().state_tensors(), "target": self.target.data, "updates": self.updates}

    def row_tensors(self) -> dict[str, Tensor]:
        """With the replay."""
        replay = {f"replay.{name}": part for name, part in self.replay.tensors().items()}
        return {**super().row_tensors(), **replay}

    def check_restored(self) -> None:
        """Checks the replay's indices: wrong ones would make C read and write out of bounds."""
        self.replay.check()

    def restart_episodes(self) -> None:
        """Truncates the unfinished episodes in the replay too."""
        super().restart_episodes()
        self.replay.truncate_all()


# ---- one update ----


def update(learner: Learner) -> dict[str, Any]:
    """Stores the learner's rollout and learns from the replay. The metrics are numbers, on a GPU tensors."""
    config, replay = learner.config, learner.replay
    metrics: dict[str, Any] = q.observe(learner) if learner.native is None else learner.native.observe()
    replay.store(learner.rollout)
    on_cpu = learner.device.type == "cpu"
    last: Any = [0.0] * len(STEP_METRICS) if on_cpu else torch.zeros(len(STEP_METRICS), device=learner.device)
    if not on_cpu:  # a CUDA graph cannot branch: `improve` changes nothing before the replay has enough transitions
        is_ready = stored(learner) >= config.replay_start
        for batch in batches(learner):
            last = (improve if learner.fused is None else improve_on_gpu)(learner, batch, is_ready)
    elif int(stored(learner)) >= config.replay_start:
        for batch in batches(learner):
            last = improve(learner, batch) if learner.native is None else improve_natively(learner, batch)
    q.set_epsilon(learner)
    if len(learner.actor.moments):
        update_obs_moments(learner)
    return metrics | dict(zip(STEP_METRICS, last)) | {"replay_fill": replay.fill()}


def stored(learner: Learner) -> Tensor:
    """Transitions ever stored, over all shards."""
    own = learner.replay.stored
    return own if learner.shards is None else learner.shards.sum(own)


def shard_options(config: DQN, shards: int) -> DQN:
    """The options of one shard: its part of each batch, and of the replay. `replay_start` is of all shards."""
    batch_size = divide(config.batch_size, shards, "--train.batch-size")
    return replace(config, batch_size=batch_size, replay_size=config.replay_size // shards)


def batches(learner: Learner) -> Iterator[Batch]:
    """The batch of each gradient step. All are sampled at once, unless each step changes the priorities."""
    config, (groups, count) = learner.config, sample_groups(learner)
    at_once = 1 if config.priority else config.gradient_steps
    for _ in range(config.gradient_steps // at_once):
        sizes, stream = (groups, count * at_once, config.n_step), learner.streams["minibatches"]
        batch = learner.replay.sample(*sizes, config.gamma, stream, reuse=learner.reused)
        learner.reused = batch
        if isinstance(config.reward_scale, Tensor) or config.reward_scale != 1.0:
            batch.returns *= config.reward_scale
        yield from batch.split(groups * count)


def sample_groups(learner: Learner) -> tuple[int, int]:
    """How many parts of the replay a batch is sampled from (1, or one for each agent), and the windows from each."""
    config, agents, networks = learner.config, learner.actor.agents, learner.actor.networks
    if config.replay == "per-agent":
        return agents, config.batch_size if networks > 1 else max(1, config.batch_size // agents)
    return 1, config.batch_size * networks


def improve(learner: Learner, batch: Batch, is_ready: Tensor | None = None) -> Tensor:
    """One gradient step and one step of the target network; returns STEP_METRICS.

    Where `is_ready` is false it changes nothing.
    """
    config, networks = learner.config, learner.actor.networks
    gradient: Any = learner.weights.grad
    gradient.zero_()
    chosen, targets, losses, derivatives, backward = td_errors(learner, batch)
    # an entry that is not a transition has weight 0; the gradient of a network is the mean over its own entries
    shards, count = learner.shards, torch.count_nonzero(batch.weights)
    share = batch.weights * (networks / (count if shards is None else shards.sum(count)).clamp(min=1))
    backward(derivatives * share.view(-1, *[1] * (derivatives.ndim - 1)))
    rows = torch.stack([losses, chosen, targets]) @ (share / networks)
    if shards is not None:
        with torch.no_grad():
            whole, rows = shards.sum_all(gradient, rows)
            gradient.copy_(whole)
    if is_ready is not None:
        gradient *= is_ready
    norm = clip_gradient(gradient, config.max_grad_norm)
    learner.optimizer.step()
    if is_ready is None:
        learner.updates += 1
    else:
        learner.optimizer.state["step"] *= is_ready  # its other state stays zero: the gradients were zero
        learner.updates += is_ready.to(torch.int64)
    update_target(learner)
    if config.priority:
        if is_ready is not None:
            batch.weights *= is_ready
        learner.replay.reprioritize(batch, losses if config.distribution != "none" else chosen - targets)
    return torch.cat([rows, norm.reshape(1)])


def improve_on_gpu(learner: Learner, batch: Batch, is_ready: Tensor) -> Tensor:
    """`improve`, with the gradient step in a few kernels."""
    metrics: Tensor = learner.fused.improve_from_replay(batch, is_ready)
    learner.updates += is_ready.to(torch.int64)
    update_target(learner)
    return metrics


def improve_natively(learner: Learner, batch: Batch) -> list[float]:
    """`improve`, with the gradient step in C."""
    metrics, errors = learner.native.improve(batch)
    updates = learner.host["updates"]
    updates += 1
    if learner.config.target_tau or updates.item() % learner.config.target_every == 0:
        update_target(learner)
    if learner.config.priority:
        learner.replay.reprioritize(batch, errors)
    return metrics  # type: ignore[no-any-return]


class TDErrors(NamedTuple):
    """Q-values of a batch compared with their targets, and what the gradient needs."""

    chosen: Tensor  # (batch,): Q of the actions that were taken
    targets: Tensor  # (batch,)
    losses: Tensor  # (batch,)
    derivatives: Tensor  # (batch, ...): of the losses by the network's outputs, or ones
    backward: Callable[[Tensor], Any]  # turns such derivatives into gradients of the weights


def td_errors(learner: Learner, batch: Batch) -> TDErrors:
    """Computes Q of the actions that were taken, its targets and its losses."""
    config, policy, target = learner.config, learner.actor.policy, learner.target_policy
    structured = learner.rollout.observations
    obs = learner.actor.normalize(structured(batch.obs))
    next_obs = learner.actor.normalize(structured(batch.next_obs))
    with torch.no_grad():
        if config.distribution == "none":
            next_values = q_values(target, next_obs)
            best = best_actions(q_values(policy, next_obs) if config.double else next_values, batch)
            bootstrap = next_values.gather(1, best).squeeze(1)
        else:
            next_outputs = outputs(target, next_obs)
            best = best_actions(q_values(policy, next_obs) if config.double else expected(target, next_outputs), batch)
            bootstrap = of_actions(next_outputs, best)  # (batch, atoms)
    actions = batch.actions.unsqueeze(1)
    if config.distribution == "none":
        values = q_values(policy, obs)
        chosen = values.detach().gather(1, actions).squeeze(1)
        targets = torch.addcmul(batch.returns, batch.discounts, bootstrap)
        losses, derivatives = error_loss(config.loss, chosen, targets)
        by_action = torch.zeros_like(values).scatter_(1, actions, derivatives.unsqueeze(1))
        return TDErrors(chosen, targets, losses, by_action, values.backward)
    taken = of_actions(outputs(policy, obs), actions)
    if config.distribution == "c51":
        target_probs = ops.project(torch.softmax(bootstrap, -1), batch.returns, batch.discounts, target.atoms)
        losses = -(target_probs * torch.log_softmax(taken, -1)).sum(-1)
        chosen, targets = torch.softmax(taken.detach(), -1) @ target.atoms, target_probs @ target.atoms
    else:
        target_quantiles = torch.addcmul(batch.returns.unsqueeze(1), batch.discounts.unsqueeze(1), bootstrap)
        losses = ops.quantile_loss(taken, target_quantiles)
        chosen, targets = taken.detach().mean(-1), target_quantiles.mean(-1)
    return TDErrors(chosen, targets, losses.detach(), torch.ones_like(losses), losses.backward)


@torch.no_grad()
def update_target(learner: Learner) -> None:
    """Moves the target network by `target_tau` to the online network, or copies it every `target_every` steps."""
    config = learner.config
    if is_on(config.target_tau):
        learner.target.data.lerp_(learner.weights.data, config.target_tau)
    elif learner.device.type == "cpu":
        if int(learner.updates) % config.target_every == 0:
            learner.target.data.copy_(learner.weights.data)
    else:  # without waiting for the device
        is_due = learner.updates % config.target_every == 0
        learner.target.data.copy_(torch.where(is_due, learner.weights.data, learner.target.data))


# ---- the network's outputs ----


def best_actions(values: Tensor, batch: Batch) -> Tensor:
    """(batch, 1): the best allowed next actions."""
    if batch.next_masks is not None:
        values = torch.where(batch.next_masks != 0, values, NEVER)
    return values.argmax(-1, keepdim=True)


def q_values(policy: Any, obs: Any) -> Tensor:
    """Q (rows, choices)."""
    return expected(policy, outputs(policy, obs))


def of_actions(values: Tensor, actions: Tensor) -> Tensor:
    """(batch, atoms): the outputs of one action of each row."""
    return values.gather(1, actions.unsqueeze(-1).expand(-1, 1, values.shape[-1])).squeeze(1)


def outputs(policy: Any, obs: Any) -> Tensor:
    """(rows, choices, atoms); a custom network's logits are one atom."""
    values: Tensor = policy.outputs(obs) if isinstance(policy, QNet) else policy(obs)[0].unsqueeze(-1)
    return values


def expected(policy: Any, values: Tensor) -> Tensor:
    """(rows, choices): the means of the distributions that outputs describe."""
    return policy.expect(values) if isinstance(policy, QNet) else values.squeeze(-1)


ALGORITHM = Algorithm(
    options=DQN,
    learner=Learner,
    update=update,
    metrics=METRICS,
    make_policy=q.make_policy,
    # forward and backward of the online network, and two networks on the next observations
    cost=lambda config, networks, steps: (config.gradient_steps * config.batch_size * networks, 5.0),
    shard=shard_options,
)
