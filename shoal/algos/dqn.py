"""Deep Q-learning (Mnih et al. 2015): learn what every action is worth from everything that was lived through so far.

    for each iteration:
        collect      every row plays `train_frequency` steps: the best action, or by chance any     (algos/rollout.py)
        store        what happened goes into the replay, what time limits cut off included          (algos/replay.py)
        update       `gradient_steps` times: draw `batch_size` windows of n steps, and pull
                         Q(s, a)   to   r_0 + gamma r_1 + ... + gamma^n Q_target(s', argmax Q(s', .))
        target       the network that targets come from follows the other one, in jumps or slowly

Many agents are many rows: all of them, in all envs, act by one inference and fill one replay. With `policy = per-agent`
each agent has a network of its own, and all of them still run as one (nn/qnet.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from shoal.algos import ops
from shoal.algos.actor import Actor, Role
from shoal.algos.optim import Adam
from shoal.algos.ppo import clip_gradient, flatten, learn_moments, share_left
from shoal.algos.quick import QuickLearner, is_for_c
from shoal.algos.replay import Batch, Replay
from shoal.algos.rollout import Rollout
from shoal.config import LogUniform, Uniform, opt
from shoal.errors import ConfigError
from shoal.nn.distributions import NEVER
from shoal.nn.policy import Net
from shoal.nn.qnet import QHead, QNet


@dataclass(frozen=True)
class DQN:
    """The options of `--train.*` with `--algo dqn`."""

    total_steps: int = opt(1_000_000, "steps to train for, summed over all rows", low=1, is_count=True)
    num_episodes: int = opt(
        0, "games to train for, if they end before total_steps; 0: any number", low=0, is_count=True
    )
    train_frequency: int = opt(4, "steps of every env between two updates", low=1, high=1 << 20, is_count=True)
    gradient_steps: int = opt(1, "steps of the optimizer in an update", low=1, high=1 << 20, is_count=True)
    batch_size: int = opt(128, "transitions of a gradient step, for each network", low=1, is_count=True)
    learning_rate: float = opt(5e-4, "step size of the optimizer", low=0.0, sweep=LogUniform(1e-5, 1e-2))
    schedule: Literal["constant", "linear", "cosine"] = opt("constant", "how the learning rate goes to 0 over the run")
    adam_eps: float = opt(1e-5, "added to the root of the gradient's square", low=0.0)
    max_grad_norm: float = opt(10.0, "gradients are scaled down to this norm; 0: never", low=0.0)
    gamma: float = opt(0.99, "discount per step", low=0.0, high=1.0, sweep=Uniform(0.9, 0.9999))
    reward_scale: float = opt(1.0, "rewards are learned as so many times what they are; 0.01 for large ones", low=0.0)
    n_step: int = opt(1, "steps of reward before the target network's word counts", low=1, high=1000)
    loss: Literal["huber", "mse"] = opt("huber", "of errors; huber: large ones count only linearly")
    double: bool = opt(True, "the network chooses the next action, the target network says what it is worth")
    dueling: bool = opt(False, "worth of the state and of the actions beside each other are learned apart")
    distribution: Literal["none", "c51", "quantile"] = opt("none", "learn how returns are spread, not only their mean")
    num_atoms: int = opt(51, "c51: places that a return can have; quantile: quantiles", low=2, high=1024)
    value_low: float = opt(-10.0, "c51: the least return")
    value_high: float = opt(10.0, "c51: the highest return")
    layer_norm: bool = opt(False, "scale every layer's outputs to mean 0, spread 1")
    target_every: int = opt(1000, "gradient steps between two jumps of the target network", low=1, is_count=True)
    target_tau: float = opt(0.0, "how far it follows after each gradient step, instead; 0: it jumps", low=0.0, high=1.0)
    replay_size: int = opt(100_000, "transitions that are kept, over all rows", low=1, is_count=True)
    replay_start: int = opt(1000, "transitions to collect before learning begins", low=1, is_count=True)
    replay: Literal["shared", "per-agent"] = opt("shared", "draw from all agents' transitions, or as many from each's")
    policy: Literal["shared", "per-agent"] = opt("shared", "one network for all agents, or one for each")
    priority: float = opt(0.0, "draw transitions by |error| to this power; 0: evenly", low=0.0, high=4.0)
    priority_beta: float = opt(0.4, "how much of that bias weights take back, 0 to 1", low=0.0, high=1.0)
    epsilon_start: float = opt(1.0, "chance of a random action at the start", low=0.0, high=1.0)
    epsilon_end: float = opt(0.05, "the least it becomes; the same as epsilon_start: constant", low=0.0, high=1.0)
    epsilon_fraction: float = opt(0.5, "linear: part of the run over which it falls", low=0.0, high=1.0)
    epsilon_decay: float = opt(0.0, "by so much with every game that ends, instead; 0: linear", low=0.0, high=1.0)
    normalize_obs: bool = opt(False, "scale observations by their running mean and spread")
    precision: Literal["fp32", "tf32"] = opt("fp32", "GPU: how matrices are multiplied")

    @property
    def horizon(self) -> int:
        """Steps of every row in a rollout."""
        return self.train_frequency

    def resolve(self, rows: int) -> DQN:
        """The same: nothing depends on the number of rows."""
        return self

    def minibatch(self, rows: int) -> int:
        """Transitions that go through the network at a time."""
        return self.batch_size


METRICS = ("loss/q", "q", "q_target", "grad_norm")


def make_policy(config: Any, role: Role, net: Net, agents: int) -> tuple[nn.Module, QHead]:
    """The network of a role, and how its numbers become actions."""
    if net.core != "none":
        raise ConfigError(f"--nn.core {net.core} is for --algo ppo yet: a replay keeps no recurrent state. Use none.")
    if net.policies != "shared":
        raise ConfigError("--nn.policies per_agent is for --algo ppo. Use --train.policy per-agent: one batch for all.")
    head = QHead(role.action_space)
    options: dict[str, Any] = {"dueling": config.dueling, "layer_norm": config.layer_norm}
    kind = getattr(config, "distribution", "none")
    if kind != "none":
        options |= {"distribution": kind, "num_atoms": config.num_atoms}
    if kind == "c51":
        if config.value_low >= config.value_high:
            raise ConfigError(
                f"--train.value-low {config.value_low:g} is not below --train.value-high {config.value_high:g}. "
                "Give the least and the highest discounted return."
            )
        options |= {"low": config.value_low, "high": config.value_high}
    own = agents if config.policy == "per-agent" else 1
    return QNet(role.observation_space, head.choices, net, agents=own, **options), head


class QLearner:
    """What DQN and PQN share: an actor with its weights, optimizer, random stream, rollout, and how far the run is."""

    fused = None  # PPO's kernels
    reward_norm = None

    def __init__(
        self,
        config: Any,
        actor: Actor,
        rows: int,
        *,
        seed: int,
        mask_size: int = 0,
        has_dead_rows: bool = False,
        device: Any = "cpu",
    ) -> None:
        self.config, self.actor, self.device = config, actor, torch.device(device)
        self.head = check_policy(config, actor)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        more: dict[str, Any] = {"mask_size": mask_size, "has_dead_rows": has_dead_rows, "device": self.device}
        self.rollout = Rollout(actor, config.horizon, rows, **more)
        self.rollout.wants_last_value = False  # Q-values are asked for when they are needed
        self.weights = flatten([p for p in actor.policy.parameters() if p.requires_grad])
        self.optimizer = make_optimizer(config, self.weights)
        self.games = torch.zeros((), dtype=torch.float64, device=self.device)  # that ended so far
        self.done = torch.zeros((), device=self.device)  # part of the run that is done
        # on a CPU the same memory for numpy, where one number is set or read in a tenth of torch's time
        self.host: dict[str, Any] = {}
        if self.device.type == "cpu":
            self.host = {"done": self.done.numpy(), "epsilon": self.head.epsilon.numpy()}
        set_epsilon(self)

    def kept(self) -> dict[str, Tensor]:
        """What a checkpoint holds besides weights, optimizer and random stream."""
        return {"games": self.games, "done": self.done, "epsilon": self.head.epsilon}

    def set_learning_rate(self, done: float) -> float:
        """By the schedule, `done` (0 to 1) of the way through the run."""
        if self.host:
            self.host["done"][()] = done
        else:
            self.done.fill_(done)
        rate: float = self.config.learning_rate * share_left(self.config.schedule, done)
        self.optimizer.set_rate(rate)
        return rate


class Learner(QLearner):
    """With a replay to learn from, and a target network."""

    config: DQN

    def __init__(self, config: DQN, actor: Actor, rows: int, *, mask_size: int = 0, **more: Any) -> None:
        super().__init__(config, actor, rows, mask_size=mask_size, **more)
        self.replay = Replay(
            actor,
            config.replay_size,
            rows,
            horizon=config.train_frequency,
            agents=actor.agents,
            priority=config.priority,
            priority_beta=config.priority_beta,
            mask_size=mask_size,
            device=self.device,
        )
        if config.replay_start > rows * (self.replay.capacity - 1):
            raise ConfigError(
                f"--train.replay-start {config.replay_start} is more than a replay of {config.replay_size} holds for "
                f"{rows} rows. Try --train.replay-start {rows * (self.replay.capacity - 1) // 2}."
            )
        self.target_policy = copy.deepcopy(actor.policy)
        self.target = flatten([p for p in self.target_policy.parameters() if p.requires_grad])
        self.target_policy.requires_grad_(False)
        self.updates = torch.zeros((), dtype=torch.int64, device=self.device)  # gradient steps so far
        if self.host:
            self.host["updates"] = self.updates.numpy()
        self.drawn: Batch | None = None  # memory for the next one
        groups, count = groups_of(self)
        self.quick = QuickLearner(self, groups * count) if is_for_c(actor, groups * count) else None
        self.rollout.is_quick = self.device.type == "cpu"

    def kept(self) -> dict[str, Tensor]:
        """What a checkpoint holds besides weights, optimizer and random stream."""
        mine = {**super().kept(), "target": self.target.data, "updates": self.updates}
        return mine | {f"replay.{name}": part for name, part in self.replay.tensors().items()}

    def begin_anew(self) -> None:
        """The envs have lost their state: no episode in the replay goes on."""
        self.replay.cut_off()


def check_policy(config: Any, actor: Actor) -> QHead:
    """The actor's head. A network of the user's own gives Q-values as its logits, and no more."""
    head = actor.head
    assert isinstance(head, QHead)
    if isinstance(actor.policy, QNet):
        return head
    if actor.initial_state(1):
        raise ConfigError("a policy with a state is for --algo ppo yet.")
    asked = config.policy == "per-agent" or config.dueling or getattr(config, "distribution", "none") != "none"
    if asked:
        raise ConfigError(
            "--train.policy per-agent, --train.dueling and --train.distribution are about Shoal's own network. "
            "Leave them out with a policy of your own: its logits are the Q-values."
        )
    return head


def make_optimizer(config: Any, weights: Tensor) -> Adam:
    """Adam; on a GPU a graph reads its rate there."""
    rate: Any = config.learning_rate
    rate = torch.tensor(rate, device=weights.device) if weights.device.type == "cuda" else rate
    return Adam(weights, rate=rate, betas=(0.9, 0.999), eps=config.adam_eps)


def set_epsilon(learner: Any) -> None:
    """The chance of a random action from now on, by what is done of the run or by the games that ended."""
    config = learner.config
    start, end = config.epsilon_start, config.epsilon_end
    if learner.host and not config.epsilon_decay:
        done = np.minimum(learner.host["done"] / max(config.epsilon_fraction, 1e-9), 1.0)  # a float32, as torch's
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


# ---- one update ----


def update(learner: Learner) -> dict[str, Any]:
    """Stores the learner's rollout and learns from the replay. Metrics are numbers, or on a GPU tensors."""
    config, replay = learner.config, learner.replay
    metrics: dict[str, Any] = watch(learner) if learner.quick is None else learner.quick.watch()
    replay.store(learner.rollout)
    is_cpu = learner.device.type == "cpu"
    found: Any = [0.0] * len(METRICS) if is_cpu else torch.zeros(len(METRICS), device=learner.device)
    if not is_cpu:  # a GPU's graph cannot ask: what it learns too early is undone
        is_ready = replay.stored >= config.replay_start
        for batch in batches(learner):
            found = improve(learner, batch, is_ready)
    elif replay.has_stored(config.replay_start):
        for batch in batches(learner):
            found = improve(learner, batch, None)
    set_epsilon(learner)
    if len(learner.actor.moments):
        learn_moments(learner)
    return metrics | dict(zip(METRICS, found)) | {"replay_fill": replay.fill()}


@torch.no_grad()
def watch(learner: Any) -> dict[str, Tensor]:
    """Counts the games that ended; what the rollout was like. Nonsense that an env said shows here first."""
    rollout = learner.rollout
    counts = None if rollout.alive is None else rollout.alive[:-1]
    ended = rollout.dones if counts is None else rollout.dones & counts
    learner.games += ended.sum() / learner.actor.agents
    weights = None if counts is None else counts.to(torch.float32)
    return {
        "epsilon": learner.head.epsilon.clone(),
        "reward": ops.masked_mean(rollout.rewards, weights),
        "q_played": ops.masked_mean(rollout.logits.amax(-1), weights),
    }


def batches(learner: Learner) -> Iterator[Batch]:
    """What each gradient step learns from. All are drawn at once, unless priorities change in between."""
    config, (groups, count) = learner.config, groups_of(learner)
    times = 1 if config.priority else config.gradient_steps
    for _ in range(config.gradient_steps // times):
        sizes = groups, count * times, config.n_step
        drawn = learner.replay.sample(*sizes, config.gamma, learner.generator, room=learner.drawn)
        learner.drawn = drawn
        if config.reward_scale != 1.0:
            drawn.returns *= config.reward_scale
        yield from drawn.split(groups * count)


def improve(learner: Learner, batch: Batch, is_ready: Tensor | None) -> Any:
    """One gradient step, and the target network's; returns METRICS. With `is_ready` false nothing is learned."""
    if learner.quick is None or is_ready is not None:
        return improve_by_torch(learner, batch, is_ready)
    found, errors = learner.quick.improve(batch)
    updates = learner.host["updates"]
    updates += 1
    if learner.config.target_tau or updates.item() % learner.config.target_every == 0:
        follow(learner)
    if learner.config.priority:
        learner.replay.reprioritize(batch, errors)
    return found


def improve_by_torch(learner: Learner, batch: Batch, is_ready: Tensor | None) -> Tensor:
    """The same for any network, and for a GPU: its meaning."""
    config, networks = learner.config, getattr(learner.actor.policy, "agents", 1)
    gradient: Any = learner.weights.grad
    if not getattr(learner.actor.policy, "learns_by_hand", False):  # what is written by hand is not added up
        gradient.zero_()
    chosen, targets, losses, slopes, pull = judge(learner, batch)
    # a place that is no transition counts for nothing; each network has a batch of its own, whose mean it learns from
    share = batch.weights * (networks / torch.count_nonzero(batch.weights).clamp(min=1))
    pull(slopes * share.view(-1, *[1] * (slopes.ndim - 1)))
    if is_ready is not None:
        gradient *= is_ready
    norm = clip_gradient(gradient, config.max_grad_norm)
    learner.optimizer.step()
    if is_ready is None:
        learner.updates += 1
    else:
        learner.optimizer.state["step"] *= is_ready  # zero gradients leave all else of it at zero
        learner.updates += is_ready.to(torch.int64)
    follow(learner)
    if config.priority:
        if is_ready is not None:
            batch.weights *= is_ready
        learner.replay.reprioritize(batch, losses if config.distribution != "none" else chosen - targets)
    rows = torch.stack([losses, chosen, targets]) @ (share / networks)
    return torch.cat([rows, norm.reshape(1)])


def groups_of(learner: Learner) -> tuple[int, int]:
    """From how many parts of the replay a batch is drawn, and how many windows from each."""
    config, agents = learner.config, learner.actor.agents
    networks = getattr(learner.actor.policy, "agents", 1)
    if config.replay == "per-agent":
        return agents, config.batch_size if networks > 1 else max(1, config.batch_size // agents)
    return 1, config.batch_size * networks


def judge(learner: Learner, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor, Callable[[Tensor], Any]]:
    """Q of what was done, what it should have been, the loss, (batch,) each; its slopes by the network's answers, and
    what makes gradients of the weights from slopes.
    """
    config, policy, target = learner.config, learner.actor.policy, learner.target_policy
    see = learner.rollout.observations
    obs, next_obs = learner.actor.see(see(batch.obs)), learner.actor.see(see(batch.next_obs))
    with torch.no_grad():
        if config.distribution == "none":
            theirs = worth(target, next_obs)
            best = best_actions(worth(policy, next_obs) if config.double else theirs, batch)
            later = theirs.gather(1, best).squeeze(1)
        else:
            spread = outputs(target, next_obs)
            best = best_actions(worth(policy, next_obs) if config.double else expect(target, spread), batch)
            later = pick(spread, best)  # (batch, atoms)
    actions = batch.actions.unsqueeze(1)
    if config.distribution == "none":
        values, pull = answer(policy, obs)
        chosen = values.detach().gather(1, actions).squeeze(1)
        targets = torch.addcmul(batch.returns, batch.discounts, later)
        losses, slope = error_loss(config.loss, chosen, targets)
        return chosen, targets, losses, torch.zeros_like(values).scatter_(1, actions, slope.unsqueeze(1)), pull
    mine = pick(outputs(policy, obs), actions)
    if config.distribution == "c51":
        goal = ops.project(torch.softmax(later, -1), batch.returns, batch.discounts, target.atoms)
        losses = -(goal * torch.log_softmax(mine, -1)).sum(-1)
        chosen, targets = torch.softmax(mine.detach(), -1) @ target.atoms, goal @ target.atoms
    else:
        goals = torch.addcmul(batch.returns.unsqueeze(1), batch.discounts.unsqueeze(1), later)
        losses = ops.quantile_loss(mine, goals)
        chosen, targets = mine.detach().mean(-1), goals.mean(-1)
    return chosen, targets, losses.detach(), torch.ones_like(losses), losses.backward


def best_actions(values: Tensor, batch: Batch) -> Tensor:
    """(batch, 1): what to do next, of what is allowed."""
    if batch.next_masks is not None:
        values = torch.where(batch.next_masks != 0, values, NEVER)
    return values.argmax(-1, keepdim=True)


def worth(policy: Any, obs: Any) -> Tensor:
    """Q (rows, choices), to look at."""
    is_plain = isinstance(policy, QNet) and policy.learns_by_hand
    found: Tensor = policy.answer(obs)[0] if is_plain else expect(policy, outputs(policy, obs))
    return found


def answer(policy: Any, obs: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Q (rows, choices), and what makes gradients of the weights from slopes by Q: by hand where that is known."""
    if isinstance(policy, QNet) and policy.learns_by_hand:
        with torch.no_grad():
            values, kept = policy.answer(obs)
        return values, partial(policy.put_gradients, kept)
    values = expect(policy, outputs(policy, obs))
    return values, values.backward


def pick(found: Tensor, actions: Tensor) -> Tensor:
    """(batch, atoms): of each row, the outputs of one action."""
    return found.gather(1, actions.unsqueeze(-1).expand(-1, 1, found.shape[-1])).squeeze(1)


def outputs(policy: Any, obs: Any) -> Tensor:
    """(rows, choices, atoms); of a network of the user's own, its logits."""
    found: Tensor = policy.outputs(obs) if isinstance(policy, QNet) else policy(obs)[0].unsqueeze(-1)
    return found


def expect(policy: Any, found: Tensor) -> Tensor:
    """(rows, choices): the mean of outputs."""
    return policy.expect(found) if isinstance(policy, QNet) else found.squeeze(-1)


def error_loss(kind: str, chosen: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Half the square of the error, or Huber's, and its slope; (batch,) each."""
    errors = chosen - targets
    if kind == "mse":
        return 0.5 * errors.square(), errors
    slopes = errors.clamp(-1.0, 1.0)
    return slopes * (errors - 0.5 * slopes), slopes


@torch.no_grad()
def follow(learner: Learner) -> None:
    """The target network goes a part of the way to the other one, or all of it now and then."""
    config = learner.config
    if config.target_tau:
        learner.target.data.lerp_(learner.weights.data, config.target_tau)
    elif learner.device.type == "cpu":
        if int(learner.updates) % config.target_every == 0:
            learner.target.data.copy_(learner.weights.data)
    else:  # no host is asked
        jumps = learner.updates % config.target_every == 0
        learner.target.data.copy_(torch.where(jumps, learner.weights.data, learner.target.data))
