"""Proximal Policy Optimization (Schulman et al. 2017): collect a rollout, improve the policy on it a little, again.

    for each iteration:
        collect      every row plays `horizon` steps with the policy as it is          (algos/rollout.py)
        advantages   how much better each action was than the critic expected          (algos/ops.py)
        update       `epochs` times over the rollout in `minibatches` random parts:
                     make good actions likelier and bad ones less likely, but let the
                     probability of none move by more than `clip`; fit the critic

Feed-forward policies shuffle single transitions. Recurrent ones shuffle segments of `segment` steps, each begun with
the state that it was played with and cleared inside where an episode began.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shoal.algos import ops
from shoal.algos.actor import Actor
from shoal.algos.fused_core import fused_for
from shoal.algos.optim import Adam, Muon, hidden_matrices
from shoal.algos.rollout import Cuts, Rollout
from shoal.config import LogUniform, Uniform, opt
from shoal.errors import ConfigError
from shoal.native import lib


@dataclass(frozen=True)
class PPO:
    """The options of `--train.*`."""

    total_steps: int = opt(10_000_000, "steps to train for, summed over all rows", low=1, is_count=True)
    num_iterations: int = opt(0, "rollouts to train for, instead of total_steps", low=0, is_count=True)
    horizon: int = opt(64, "steps of every row in a rollout", low=1, high=1 << 20, is_count=True)
    batch_size: int = opt(0, "steps of a rollout over all rows, instead of horizon", low=0, is_count=True)
    epochs: int = opt(4, "passes over each rollout", low=1, high=1000)
    minibatches: int = opt(4, "parts that a rollout is divided into", low=1, high=1 << 20, is_count=True)
    learning_rate: float = opt(3e-4, "step size of the optimizer", low=0.0, sweep=LogUniform(1e-5, 1e-1))
    schedule: Literal["constant", "linear", "cosine"] = opt("linear", "how the learning rate goes to 0 over the run")
    optimizer: Literal["adam", "adamw", "muon"] = opt("adam", "muon: for the hidden matrices, AdamW for the rest")
    weight_decay: float = opt(0.0, "of adamw and muon", low=0.0)
    adam_beta1: float = opt(0.9, "memory of the gradient", low=0.0, high=1.0)
    adam_beta2: float = opt(0.999, "memory of its square", low=0.0, high=1.0)
    adam_eps: float = opt(1e-5, "added to its root", low=0.0)
    max_grad_norm: float = opt(0.5, "gradients are scaled down to this norm; 0: never", low=0.0)
    gamma: float = opt(0.99, "discount per step", low=0.0, high=1.0, sweep=Uniform(0.9, 0.9999))
    gae_lambda: float = opt(0.95, "0 trusts the critic, 1 the returns", low=0.0, high=1.0, sweep=Uniform(0.6, 0.999))
    clip: float = opt(0.2, "how far an action's probability may move, as a ratio", low=0.0)
    value_clip: float = opt(0.0, "how far a value may move; 0: as far as it wants", low=0.0)
    value_coef: float = opt(0.5, "weight of the critic's loss", low=0.0)
    entropy_coef: float = opt(0.01, "weight of the entropy bonus", low=0.0, sweep=LogUniform(1e-5, 1e-1))
    normalize_advantage: Literal["minibatch", "batch", "none"] = opt(
        "minibatch", "scale advantages to mean 0, spread 1"
    )
    normalize_obs: bool = opt(False, "scale observations by their running mean and spread")
    normalize_reward: bool = opt(False, "scale rewards by the running spread of their discounted sum")
    target_kl: float = opt(0.0, "end an update early when the policy has moved this far; 0: never", low=0.0)
    vtrace: bool = opt(False, "correct advantages for data of an older policy (V-trace)")
    vtrace_rho: float = opt(1.0, "V-trace: largest weight of a step", low=0.0)
    vtrace_c: float = opt(1.0, "V-trace: largest weight of what comes after it", low=0.0)
    priority: float = opt(0.0, "draw segments by |advantage| to this power; 0: evenly", low=0.0, high=4.0)
    priority_beta: float = opt(1.0, "how much of that bias weights take back, 0 to 1", low=0.0, high=1.0)
    segment: int = opt(0, "steps of a segment; 0: one, or the horizon for recurrent policies", low=0, is_count=True)
    shuffle: bool = opt(True, "minibatches are drawn at random; False: they are slices of time, which need no copy")
    precision: Literal["auto", "fp32", "tf32", "bf16"] = opt(
        "auto", "GPU: how matrices are multiplied; weights stay fp32; auto: bf16 for small networks, else tf32"
    )
    compile: bool = opt(False, "compile the policy with torch.compile")

    def resolve(self, rows: int) -> PPO:
        """The same with horizon and total_steps, where batch_size and num_iterations were given, for so many rows."""
        horizon, total = self.horizon, self.total_steps
        if self.batch_size:
            if self.batch_size % rows:
                near = max(1, round(self.batch_size / rows)) * rows
                raise ConfigError(f"--train.batch-size {self.batch_size} does not divide over {rows} rows. Try {near}.")
            horizon = self.batch_size // rows
        if self.num_iterations:
            total = self.num_iterations * horizon * rows
        return replace(self, horizon=horizon, total_steps=total, batch_size=0, num_iterations=0)

    def minibatch(self, rows: int) -> int:
        """Transitions that go through the policy at a time."""
        return self.horizon * rows // self.minibatches


CHUNK = 8192  # transitions that go through a policy at a time on a CPU: their activations stay in its cache
METRICS = ("loss/policy", "loss/value", "entropy", "kl", "clip_fraction", "grad_norm")


class Learner:
    """An actor with all that trains it: optimizer, moments of rewards, a random stream, the rollout to learn from."""

    def __init__(
        self,
        config: PPO,
        actor: Actor,
        rows: int,
        *,
        seed: int,
        mask_size: int = 0,
        has_dead_rows: bool = False,
        device: Any = "cpu",
    ) -> None:
        self.config, self.actor, self.head, self.device = config, actor, actor.head, torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        segment = config.segment or (config.horizon if actor.initial_state(1) else 1)
        _check_sizes(config, rows, segment)
        more = {"mask_size": mask_size, "has_dead_rows": has_dead_rows, "device": self.device}
        self.rollout = Rollout(actor, config.horizon, rows, segment=segment, **more)
        self.reward_norm = ops.RunningMoments().to(self.device) if config.normalize_reward else None
        self.running_return = torch.zeros(rows, device=self.device)
        self.weights = flatten([p for p in actor.policy.parameters() if p.requires_grad])
        self.optimizer = make_optimizer(config, actor.policy, self.weights)
        self.fused = fused_for(self)

    def kept(self) -> dict[str, Tensor]:
        """What a checkpoint holds besides weights, optimizer, random stream and moments of rewards."""
        return {"running_return": self.running_return}

    def set_learning_rate(self, done: float) -> float:
        """By the schedule, `done` (0 to 1) of the way through the run."""
        rate = self.config.learning_rate * share_left(self.config.schedule, done)
        self.optimizer.set_rate(rate)
        return rate


def share_left(schedule: str, done: float) -> float:
    """Of the learning rate, `done` of the way through the run."""
    left = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}
    return max(0.0, left[schedule])


def _check_sizes(config: PPO, rows: int, segment: int) -> None:
    if config.horizon % segment:
        raise ConfigError(
            f"--train.segment {segment} does not divide --train.horizon {config.horizon}. "
            f"Try --train.segment {math.gcd(segment, config.horizon)}."
        )
    segments = config.horizon * rows // segment
    if segments < config.minibatches:
        what = f"{segments} segments of {segment} steps" if segment > 1 else f"{segments} transitions"
        raise ConfigError(
            f"--train.minibatches {config.minibatches} is more than the {what} of a rollout "
            f"({rows} rows, horizon {config.horizon}). Try --train.minibatches {segments}."
        )


def flatten(parameters: list[Any]) -> Any:
    """Puts all parameters, and their gradients, into one piece of memory, and returns it as one parameter.

    The policy's own become views of it: nothing about it changes, but its gradients are clipped and its weights are
    moved by a handful of operations in all, not for each layer.
    """
    if not parameters or len({(p.dtype, p.device) for p in parameters}) > 1:
        raise ConfigError("the policy has no parameters, or parameters of several dtypes or devices.")
    whole = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    whole.grad = torch.zeros_like(whole)
    at = 0
    for p in parameters:
        part = slice(at, at + p.numel())
        p.data, p.grad = whole.data[part].view_as(p), whole.grad[part].view_as(p)
        at += p.numel()
    return whole


def make_optimizer(config: PPO, policy: nn.Module, weights: Tensor) -> Adam:
    """Adam, AdamW, or Muon with AdamW for what is no hidden matrix."""
    rate: Any = config.learning_rate
    if weights.device.type == "cuda":
        rate = torch.tensor(rate, device=weights.device)  # a graph reads it there
    betas = (config.adam_beta1, config.adam_beta2)
    common: dict[str, Any] = {"rate": rate, "betas": betas, "eps": config.adam_eps}
    if config.optimizer == "muon":
        return Muon(weights, hidden_matrices(policy), **common, weight_decay=config.weight_decay)
    is_w = config.optimizer == "adamw"
    return Adam(weights, **common, weight_decay=config.weight_decay if is_w else 0.0, decoupled=is_w)


# ---- one update ----


@dataclass
class Batch:
    """A rollout seen as transitions: (horizon * rows, ...), time first, with what the loss compares against."""

    obs: list[Tensor]
    actions: Tensor
    logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    resets: Tensor
    masks: Tensor | None
    counts: Tensor | None  # 1.0 where the agent was in the game


def update(learner: Learner) -> dict[str, Tensor]:
    """Improves the learner's policy on its rollout. Metrics stay tensors until someone prints them."""
    config = learner.config
    batch = assess(learner)
    sums, epochs = torch.zeros(len(METRICS), device=learner.device), 0
    for _ in range(config.epochs):
        before, epochs = sums.clone(), epochs + 1
        if learner.fused is not None:
            sums += learner.fused.epoch(batch, shuffled(len(batch.advantages) // learner.rollout.segment, learner))
        else:
            for segments, weights in minibatches(learner, batch):
                sums += improve(learner, batch, segments, weights)
        if config.target_kl and float((sums - before)[3]) / config.minibatches > config.target_kl:
            break
    metrics = dict(zip(METRICS, sums / (epochs * config.minibatches)))
    metrics["explained_variance"] = ops.explained_variance(batch.values, batch.returns, batch.counts)
    learn_moments(learner)
    return metrics


@torch.no_grad()
def assess(learner: Learner) -> Batch:
    """Rewards to advantages: scale, bootstrap what a time limit cut off, sum backwards."""
    rollout, config = learner.rollout, learner.config
    rewards = scale_rewards(learner)
    # truncation bootstraps from final_obs; termination does not (docs/design/episodes.md)
    for cut in filter(rollout.is_ready, rollout.truncated):
        rewards[cut.t, cut.rows] += config.gamma * learner.actor.step(rollout.observations(cut.obs), cut.state)[1]
    if rollout.cuts is not None:
        bootstrap(learner, rollout.cuts, rewards)
    flat_logits, flat_actions = rollout.logits.flatten(0, 1), rollout.actions.flatten(0, 1)
    logprobs = learner.head.log_prob(flat_logits, flat_actions)
    if config.vtrace:
        ratios = (current_logprobs(learner) - logprobs).exp().view_as(rewards)
        args = (config.gamma, config.gae_lambda, config.vtrace_rho, config.vtrace_c)
        returns, advantages = ops.vtrace(rewards, rollout.values, rollout.dones, ratios, *args)
    else:
        advantages = ops.gae(rewards, rollout.values, rollout.dones, config.gamma, config.gae_lambda)
        returns = advantages + rollout.values[:-1]
    counted = rollout.counted()
    counts = None if counted is None else counted.flatten().to(torch.float32)
    if config.normalize_advantage == "batch":
        advantages = standardize(advantages.flatten(), counts).view_as(advantages)
    return Batch(
        obs=[leaf[:-1].flatten(0, 1) for leaf in rollout.obs],
        actions=flat_actions,
        logprobs=logprobs,
        values=rollout.values[:-1].flatten(),
        advantages=advantages.flatten(),
        returns=returns.flatten(),
        resets=rollout.resets().flatten(),
        masks=None if rollout.masks is None else rollout.masks[:-1].flatten(0, 1),
        counts=counts,
    )


def bootstrap(learner: Learner, cuts: Cuts, rewards: Tensor) -> None:
    """Adds gamma V(final_obs) where a row was cut off: one inference of all rows for each window, no more."""
    for k in range(len(cuts.obs[0])):
        state = tuple(part[k] for part in cuts.state)
        values = learner.actor.step(learner.rollout.observations([leaf[k] for leaf in cuts.obs]), state)[1]
        steps = slice(k * cuts.window, (k + 1) * cuts.window)
        rewards[steps] += torch.where(cuts.flags[steps], learner.config.gamma * values, 0.0)


def scale_rewards(learner: Learner) -> Tensor:
    """The rollout's rewards, divided by the spread of their running discounted sum where asked for."""
    rollout, norm = learner.rollout, learner.reward_norm
    if norm is None:
        return rollout.rewards.clone()
    rows, counted = rollout.ready, rollout.counted()
    if rows is None:
        sums = ops.running_returns(rollout.rewards, rollout.dones, learner.config.gamma, learner.running_return)
    else:  # the others' sums go on when they are full
        carry, sums = learner.running_return[rows], torch.zeros_like(rollout.rewards)
        part = rollout.rewards[:, rows], rollout.dones[:, rows]
        sums[:, rows] = ops.running_returns(*part, learner.config.gamma, carry)
        learner.running_return[rows] = carry
    norm.update(sums.flatten(), None if counted is None else counted.flatten())
    scale = (norm.var + 1e-8).rsqrt().to(torch.float32)
    return (rollout.rewards * scale).clamp_(-10.0, 10.0)


def current_logprobs(learner: Learner) -> Tensor:
    """Of the rollout's actions under the policy as it is now."""
    rollout = learner.rollout
    found = []
    for k in range(rollout.horizon // rollout.segment):
        steps = slice(k * rollout.segment, (k + 1) * rollout.segment)
        obs = rollout.observations([leaf[steps].flatten(0, 1) for leaf in rollout.obs])
        state = tuple(part[k] for part in rollout.starts)
        logits, _ = learner.actor.unroll(obs, state, rollout.resets()[steps])
        if rollout.masks is not None:
            logits = learner.head.mask(logits, rollout.masks[steps].flatten(0, 1))
        found.append(learner.head.log_prob(logits, rollout.actions[steps].flatten(0, 1)))
    return torch.cat(found)


def minibatches(learner: Learner, batch: Batch) -> Iterator[tuple[Tensor | slice, Tensor | None]]:
    """Parts of the rollout: the numbers of segments in random order (or neighbours, as a slice), and their weights."""
    rollout, config = learner.rollout, learner.config
    length, rows = rollout.segment, rollout.rows
    total = rollout.horizon * rows // length
    if not config.shuffle and not config.priority and length == 1 and rollout.ready is None:
        edges = [total * k // config.minibatches for k in range(config.minibatches + 1)]
        for lo, hi in pairwise(edges):
            yield slice(lo, hi), None
        return
    chances = None
    if config.priority:
        counted = batch.advantages if batch.counts is None else batch.advantages * batch.counts
        size = counted.view(-1, length, rows).abs().mean(1).flatten()
        chances = (size + 1e-6) ** config.priority
        if rollout.ready is not None:
            chances.view(-1, rows)[:, _others(rollout.ready, rows)] = 0.0
        chances /= chances.sum()
        order = torch.multinomial(chances, total, replacement=True, generator=learner.generator)
    else:
        order = shuffled(total, learner)
        if rollout.ready is not None:  # segments of rows that are not full are no one's turn
            order = order[torch.isin(order % rows, rollout.ready)]
    for segments in order.tensor_split(config.minibatches):
        weights = None
        if chances is not None:
            weights = (total * chances[segments]) ** -config.priority_beta
            weights = weights / weights.max()
        yield segments, weights


def transitions(rollout: Rollout, segments: Tensor | slice) -> Tensor | slice:
    """Where the transitions of some segments lie in the batch, time first."""
    length, rows = rollout.segment, rollout.rows
    if length == 1 or isinstance(segments, slice):
        return segments
    first = segments // rows * (length * rows) + segments % rows
    return (first + torch.arange(length, device=first.device).unsqueeze(1) * rows).flatten()


def shuffled(count: int, learner: Learner) -> Tensor:
    """0 .. count - 1, in random order where asked for."""
    if not learner.config.shuffle:
        return torch.arange(count, device=learner.device)
    if learner.device.type == "cuda":  # randperm cannot be captured in a graph
        return torch.rand(count, device=learner.device, generator=learner.generator).argsort()
    return torch.randperm(count, generator=learner.generator)


def take(values: Tensor, index: Tensor | slice) -> Tensor:
    """Some transitions: gathered, or where they are neighbours as they lie."""
    return values[index] if isinstance(index, slice) else values.index_select(0, index)


@dataclass
class Part:
    """What the loss compares the policy's answers against, and what it is divided by."""

    actions: Tensor
    logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    counts: Tensor | None
    total: Any  # transitions of the minibatch that count


def improve(learner: Learner, batch: Batch, segments: Tensor | slice, weights: Tensor | None) -> Tensor:
    """One step of the optimizer on a minibatch; returns its METRICS.

    On a CPU a large minibatch goes through in chunks whose activations stay in the cache; the gradients add up.
    """
    config, rollout = learner.config, learner.rollout
    index = transitions(rollout, segments)
    advantages = take(batch.advantages, index)
    counts = None if batch.counts is None else take(batch.counts, index)
    if config.normalize_advantage == "minibatch":
        advantages = standardize(advantages, counts)
    if weights is not None:
        advantages = advantages * weights.repeat(rollout.segment)
    total = len(advantages) if counts is None else counts.sum().clamp(min=1.0)

    gradient = learner.weights.grad
    gradient.zero_()
    found = torch.zeros(len(METRICS) - 1, device=learner.device)
    count = segments.stop - segments.start if isinstance(segments, slice) else len(segments)
    size = count if learner.device.type != "cpu" else max(1, CHUNK // rollout.segment)
    shaped = advantages.view(rollout.segment, count)
    for lo in range(0, count, size):
        chunk = slice(lo, min(lo + size, count))
        some = (
            slice(segments.start + lo, segments.start + chunk.stop) if isinstance(segments, slice) else segments[chunk]
        )
        whole = chunk.stop - lo == count
        found += learn_from(learner, batch, some, shaped if whole else shaped[:, chunk], total)
    norm = clip_gradient(gradient, config.max_grad_norm)
    learner.optimizer.step()
    return torch.cat([found, norm.reshape(1)])


def learn_from(learner: Learner, batch: Batch, segments: Tensor | slice, advantages: Tensor, total: Any) -> Tensor:
    """Adds the gradients of some segments, and returns their share of METRICS but the last."""
    rollout, head, index = learner.rollout, learner.head, transitions(learner.rollout, segments)
    obs = rollout.observations([take(leaf, index) for leaf in batch.obs])
    state = tuple(take(part.flatten(0, 1), segments) for part in rollout.starts)
    resets = take(batch.resets, index).view(rollout.segment, -1) if state else batch.resets[:0]
    logits, values = learner.actor.unroll(obs, state, resets)
    if batch.masks is not None:
        logits = head.mask(logits, take(batch.masks, index))
    part = Part(
        actions=take(batch.actions, index),
        logprobs=take(batch.logprobs, index),
        values=take(batch.values, index),
        advantages=advantages.reshape(-1),
        returns=take(batch.returns, index),
        counts=None if batch.counts is None else take(batch.counts, index),
        total=total,
    )
    loss, found = (choice_loss if head.is_one_choice else any_loss)(learner.config, head, logits, values, part)
    loss.backward()
    return found


def any_loss(config: PPO, head: Any, logits: Tensor, values: Tensor, part: Part) -> tuple[Tensor, Tensor]:
    """The loss, and METRICS but the last. This is its meaning, for any kind of action.

    L = -mean min(r A, clip(r) A) + value_coef mean (V - R)^2 / 2 - entropy_coef mean H,  r = pi(a) / pi_old(a)
    """

    def mean(x: Tensor) -> Tensor:
        return (x if part.counts is None else x * part.counts).sum() / part.total

    logprobs, entropies = head.judge(logits, part.actions)
    log_ratio = logprobs - part.logprobs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    policy_loss = -mean(torch.minimum(part.advantages * ratio, part.advantages * clipped))
    errors = (values - part.returns).square()
    if config.value_clip:
        near = part.values + (values - part.values).clamp(-config.value_clip, config.value_clip)
        errors = torch.maximum(errors, (near - part.returns).square())
    value_loss, entropy = 0.5 * mean(errors), mean(entropies)
    with torch.no_grad():
        kl = mean(ratio - 1.0 - log_ratio)  # Schulman's estimate: never negative
        moved = mean(((ratio - 1.0).abs() > config.clip).to(torch.float32))
        found = torch.stack([policy_loss.detach(), value_loss.detach(), entropy.detach(), kl, moved])
    return policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy, found


def choice_loss(config: PPO, head: Any, logits: Tensor, values: Tensor, part: Part) -> tuple[Tensor, Tensor]:
    """The same for one choice of n, with the gradient worked out by hand, on a CPU in C (core/learn.c)."""
    loss, found = _ChoiceLoss.apply(logits, values, part, config)
    return loss, found


class _ChoiceLoss(torch.autograd.Function):
    """Forward makes the gradients at once:

    dL/dlogits = g (onehot(a) - p) + entropy_coef p (log p + H) / n,   g = -A r / n where the clip does not hold it
    dL/dV      = value_coef (V - R) / n                                where the clip does not hold it
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor, part: Part, config: PPO) -> tuple[Tensor, Tensor]:
        on_cpu = logits.device.type == "cpu" and logits.dtype == torch.float32
        d_logits, d_values, found = (_in_c if on_cpu else _in_torch)(logits, values, part, config)
        ctx.save_for_backward(d_logits, d_values)
        ctx.mark_non_differentiable(found)
        return found[0] + config.value_coef * found[1] - config.entropy_coef * found[2], found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_logits, d_values = ctx.saved_tensors
        return d_logits * grads[0], d_values * grads[0], None, None


def _in_c(logits: Tensor, values: Tensor, part: Part, config: PPO) -> tuple[Tensor, Tensor, Tensor]:
    numbers = (part.actions, part.logprobs, part.values, part.advantages, part.returns)
    inputs = [x.contiguous() for x in (logits, values, *numbers, *([] if part.counts is None else [part.counts]))]
    d_logits, d_values, found = torch.empty_like(inputs[0]), torch.empty_like(inputs[1]), torch.empty(5)
    pointers = [x.data_ptr() for x in inputs] + [None] * (8 - len(inputs))
    coefs = (float(part.total), config.clip, config.value_clip, config.value_coef, config.entropy_coef)
    outputs = [x.data_ptr() for x in (d_logits, d_values, found)]
    lib.load_core().choice_loss(*pointers, len(values), logits.shape[1], *coefs, *outputs)
    return d_logits, d_values, found


def _in_torch(logits: Tensor, values: Tensor, part: Part, config: PPO) -> tuple[Tensor, Tensor, Tensor]:
    share: Any = 1.0 / part.total if part.counts is None else part.counts / part.total
    logp = torch.log_softmax(logits, -1)
    p = logp.exp()
    entropies = -(p * logp).sum(-1)
    log_ratio = logp.gather(-1, part.actions).squeeze(-1) - part.logprobs
    ratio = log_ratio.exp()
    free, held = part.advantages * ratio, part.advantages * ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    error = values - part.returns
    errors, slope = error.square(), error
    if config.value_clip:
        move = values - part.values
        step = move.clamp(-config.value_clip, config.value_clip)
        near = part.values + step - part.returns
        clipped = near.square()
        slope = torch.where(errors >= clipped, error, near * (move == step))
        errors = torch.maximum(errors, clipped)
    pull = (free * (free <= held) * share).unsqueeze(-1)  # -g
    d_logits = (p * pull).scatter_add_(-1, part.actions, -pull)
    weight = config.entropy_coef * share
    d_logits += (logp + entropies.unsqueeze(-1)) * p * (weight if part.counts is None else weight.unsqueeze(-1))
    moved = ((ratio - 1.0).abs() > config.clip).to(p.dtype)
    rows = torch.stack([-torch.minimum(free, held), 0.5 * errors, entropies, ratio - 1.0 - log_ratio, moved])
    found = rows.sum(1) * share if part.counts is None else rows @ share
    return d_logits, slope * (config.value_coef * share), found


def clip_gradient(gradient: Tensor, limit: float) -> Tensor:
    """Scales the gradient down to the norm `limit` (0: never), in place, and returns the norm that it had."""
    norm = torch.linalg.vector_norm(gradient)
    if limit:
        gradient *= (limit / (norm + 1e-6)).clamp(max=1.0)
    return norm


def standardize(advantages: Tensor, counts: Tensor | None) -> Tensor:
    """To mean 0 and spread 1 over the entries that count."""
    if counts is None:
        spread, mean = torch.std_mean(advantages, correction=0)
        return (advantages - mean) / (spread + 1e-8)
    mean = ops.masked_mean(advantages, counts)
    centered = advantages - mean
    return centered / (ops.masked_mean(centered.square(), counts).sqrt() + 1e-8)


@torch.no_grad()
def learn_moments(learner: Learner) -> None:
    """Takes the rollout's observations into the running moments: the next rollout is scaled by them."""
    rollout, counted = learner.rollout, learner.rollout.counted()
    for key, moments in learner.actor.moments.items():
        seen = rollout.obs[int(key)][:-1]
        moments.update(seen.flatten(0, 1), None if counted is None else counted.flatten())


def _others(ready: Tensor, rows: int) -> Tensor:
    out = torch.ones(rows, dtype=torch.bool, device=ready.device)
    out[ready] = False
    return out
