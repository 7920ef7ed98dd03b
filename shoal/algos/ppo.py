"""Proximal Policy Optimization (Schulman et al. 2017): collect a rollout, improve the policy on it a little, repeat.

    for each iteration:
        collect      every row plays `horizon` steps with the current policy             (algos/collect/)
        advantages   how much better each action was than the critic expected            (algos/ops.py)
        update       `epochs` passes over the rollout in random minibatches: make good
                     actions likelier and bad ones less likely, but gain nothing from
                     a probability ratio outside 1 +- `clip`; fit the critic

Minibatches of a feed-forward policy hold single transitions. Those of a recurrent policy hold segments of `segment`
steps: a segment starts from the recurrent state it was played with, and the state is reset where an episode starts
inside it.

algos/fast/ has faster implementations for small networks. This file defines what they must compute.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.algos import fast, ops
from shoal.algos.actor import Actor
from shoal.algos.algorithm import SHARDS_HELP, Algorithm, Metric
from shoal.algos.frames import flat
from shoal.algos.learner import Learner as BaseLearner
from shoal.algos.learner import clip_gradient, is_on, random_order, update_obs_moments
from shoal.algos.optimizers import OPTIMIZERS
from shoal.algos.rollout import Rollout, Truncation
from shoal.config import LogitUniform, LogUniform, PowerOfTwo, Uniform, opt
from shoal.errors import ConfigError
from shoal.nn.policy import use_bf16


@dataclass(frozen=True)
class PPO:
    """The options of `--train.*` with `--algo ppo`."""

    total_steps: int = opt(
        10_000_000, "environment steps to train for, summed over all rows (by env)", low=1, is_count=True
    )
    num_iterations: int = opt(0, "iterations to train for; overrides total_steps", low=0, is_count=True)
    horizon: int = opt(
        64, "steps of each row in a rollout (by env)", low=1, high=1 << 20, sweep=PowerOfTwo(8, 128), is_count=True
    )
    batch_size: int = opt(0, "steps of a rollout over all rows; overrides horizon", low=0, is_count=True)
    epochs: int = opt(4, "passes over each rollout (by env)", low=1, high=1000)
    minibatches: int = opt(
        4, "minibatches per epoch (by env)", low=1, high=1 << 20, sweep=PowerOfTwo(1, 32), is_count=True
    )
    learning_rate: float = opt(3e-4, "learning rate (by env)", low=0.0, sweep=LogUniform(1e-5, 1e-1), may_change=True)
    schedule: Literal["constant", "linear", "cosine"] = opt("linear", "learning rate schedule, down to 0 at the end")
    optimizer: str = opt(
        "adam", "optimizer; muon: Muon for hidden matrices, AdamW for the rest", choices=OPTIMIZERS.names
    )
    weight_decay: float = opt(0.0, "weight decay of adamw and muon", low=0.0)
    muon_steps: int = opt(5, "Muon: Newton-Schulz steps; fewer are faster and less accurate", low=2, high=5)
    adam_beta1: float = opt(0.9, "Adam: decay of the gradient's running mean", low=0.0, high=1.0)
    adam_beta2: float = opt(0.999, "Adam: decay of the running mean of its square", low=0.0, high=1.0)
    adam_eps: float = opt(1e-5, "Adam: added to the denominator", low=0.0)
    max_grad_norm: float = opt(0.5, "clip gradients to this norm; 0: no clipping", low=0.0, may_change="above 0")
    gamma: float = opt(0.99, "discount factor", low=0.0, high=1.0, sweep=LogitUniform(0.9, 0.9999), may_change=True)
    gae_lambda: float = opt(
        0.95,
        "GAE lambda: 0 trusts the critic, 1 the returns",
        low=0.0,
        high=1.0,
        sweep=LogitUniform(0.6, 0.999),
        may_change=True,
    )
    clip: float = opt(
        0.2, "clip range of the probability ratio (by env)", low=0.0, sweep=Uniform(0.05, 0.4), may_change=True
    )
    value_clip: float = opt(0.0, "clip range of the value; 0: no clipping", low=0.0, may_change="above 0")
    value_coef: float = opt(0.5, "weight of the value loss", low=0.0, sweep=LogUniform(0.1, 10.0), may_change=True)
    entropy_coef: float = opt(
        0.01, "weight of the entropy bonus (by env)", low=0.0, sweep=LogUniform(1e-5, 1e-1), may_change=True
    )
    normalize_advantage: Literal["minibatch", "batch", "none"] = opt(
        "minibatch", "normalize advantages to mean 0 and standard deviation 1 over a minibatch or the whole batch"
    )
    normalize_obs: bool = opt(False, "normalize observations by their running mean and standard deviation (by env)")
    normalize_reward: bool = opt(
        False, "divide rewards by the running standard deviation of the discounted return (by env)"
    )
    target_kl: float = opt(
        0.0, "end an update early once the KL divergence exceeds this; 0: never", low=0.0, may_change="above 0"
    )
    vtrace: bool = opt(False, "correct advantages for steps of an older policy (V-trace)")
    vtrace_rho: float = opt(1.0, "V-trace: clip of the importance weight of a step", low=0.0, may_change=True)
    vtrace_c: float = opt(1.0, "V-trace: clip of the importance weight of later steps", low=0.0, may_change=True)
    priority: float = opt(
        0.0, "sample segments by |advantage| to this power; 0: uniformly", low=0.0, high=4.0, may_change="above 0"
    )
    priority_beta: float = opt(
        1.0, "exponent of the importance weights that correct for priority", low=0.0, high=1.0, may_change=True
    )
    segment: int = opt(
        0, "steps of a segment; 0: 1, or the horizon for recurrent policies (by env)", low=0, is_count=True
    )
    shuffle: bool = opt(True, "sample minibatches at random; False: contiguous slices of time, which need no copy")
    precision: Literal["auto", "fp32", "tf32", "bf16"] = opt(
        "auto",
        "precision of matrix products; auto: on a GPU bf16 for small networks, otherwise tf32; on a CPU with bf16 "
        "instructions bf16 for large images, otherwise fp32",
    )
    compile: bool = opt(False, "compile the policy with torch.compile")
    shards: int = opt(0, SHARDS_HELP, low=0, high=1 << 16)

    def resolve(self, rows: int) -> PPO:
        """The options with `batch_size` and `num_iterations` converted to `horizon` and `total_steps`."""
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
        """Transitions of a minibatch."""
        return self.horizon * rows // self.minibatches


CHUNK = 8192  # transitions that a CPU computes at a time: their activations stay in its cache
METRICS = {
    "loss/policy": Metric("policy loss"),
    "loss/value": Metric("value loss", "value loss"),
    "entropy": Metric("entropy", "entropy"),
    "kl": Metric("KL", "kl"),
    "clip_fraction": Metric("clip fraction"),
    "grad_norm": Metric("grad norm"),
    "explained_variance": Metric("explained var"),
}
STEP_METRICS = tuple(METRICS)[:6]  # of one optimizer step; an update reports their means


class Learner(BaseLearner):
    """A policy in training, with the running variance of its discounted returns (`normalize_reward`)."""

    config: PPO

    def __init__(self, config: PPO, actor: Actor, rows: int, **options: Any) -> None:
        segment = config.segment or (config.horizon if actor.initial_state(1) else 1)
        _check_sizes(config, rows, segment)
        super().__init__(config, actor, rows, segment=segment, **options)
        if config.target_kl and self.device.type == "cuda":
            raise ConfigError(
                f"--train.target-kl {config.target_kl} is not supported on a GPU: an update is one CUDA graph there. "
                "Use 0, or --device cpu."
            )
        if self.device.type == "cpu" and config.precision in ("auto", "bf16"):
            use_bf16(actor.policy)
        self.reward_moments = ops.RunningMoments().to(self.device) if config.normalize_reward else None
        self.running_return = torch.zeros(rows, device=self.device)
        self.fused, self.native = fast.fused_ppo(self), fast.native_ppo(self)
        self.rollout.acting = self.native
        self.loss = fast.ppo_loss(self) or clipped_loss

    def row_tensors(self) -> dict[str, Tensor]:
        """With the discounted returns of the unfinished episodes."""
        return {**super().row_tensors(), "running_return": self.running_return}

    def restart_episodes(self) -> None:
        """Starts the discounted returns at zero."""
        super().restart_episodes()
        self.running_return.zero_()


def _check_sizes(config: PPO, rows: int, segment: int) -> None:
    if config.horizon % segment:
        raise ConfigError(
            f"--train.segment {segment} does not divide --train.horizon {config.horizon}. "
            f"Try --train.segment {math.gcd(segment, config.horizon)}."
        )
    segments = config.horizon * rows // segment
    if segments < config.minibatches:
        unit = f"{segments} segments of {segment} steps" if segment > 1 else f"{segments} transitions"
        raise ConfigError(
            f"--train.minibatches {config.minibatches} is more than the {unit} of a rollout "
            f"({rows} rows, horizon {config.horizon}). Try --train.minibatches {segments}."
        )


# ---- one update ----


@dataclass
class Batch:
    """A rollout as flat transitions (horizon * rows, ...), time first, with the targets of the loss."""

    obs: list[Any]  # by index t * rows + row: tensors, or frames.FlatObs
    actions: Tensor
    logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    resets: Tensor
    masks: Tensor | None
    counts: Tensor | None  # 1.0 where the agent was in the game, else 0.0
    native_inputs: Any = None  # what C reads in place of obs (fast/ppo_native.py)
    # of GPU kernels (`KernelPPO.make_batch` in fast/base.py): mean of all advantages, 1 / their standard deviation, and
    # the explained variance. Their advantages are not normalized yet
    moments: Tensor | None = None


def update(learner: Learner) -> dict[str, Tensor]:
    """Improves the learner's policy on its rollout. The metrics are tensors: reading them waits for a GPU."""
    config = learner.config
    with learner.actor.evaluation_mode():  # values are those of acting: no dropout
        batch = make_batch(learner)
    sums, epochs = torch.zeros(len(STEP_METRICS), device=learner.device), 0
    for _ in range(config.epochs):
        before, epochs = sums.clone(), epochs + 1
        sums += run_epoch(learner, batch)
        if config.target_kl:
            kl = float((sums - before)[STEP_METRICS.index("kl")]) / config.minibatches
            if kl > config.target_kl:
                break
    metrics = dict(zip(STEP_METRICS, sums / (epochs * config.minibatches)))
    explained = None if batch.moments is None else batch.moments[2]
    if explained is None:
        explained = ops.explained_variance(batch.values, batch.returns, batch.counts, learner.shards)
    metrics["explained_variance"] = explained
    update_obs_moments(learner)
    return metrics


# ---- rewards to advantages ----


@torch.no_grad()
def make_batch(learner: Learner) -> Batch:
    """Turns rewards into advantages and returns: scale, bootstrap truncated episodes, sum backwards in time."""
    rollout, config = learner.rollout, learner.config
    if learner.fused is not None and learner.fused.makes_batches:
        batch: Batch = learner.fused.make_batch(Batch)
        return batch
    rewards = scale_rewards(learner)

    def value(truncation: Truncation) -> Tensor:
        return learner.actor.step(rollout.observations(truncation.obs), truncation.state)[1]

    # truncation bootstraps from final_obs; termination does not (docs/design/episodes.md)
    rollout.truncations.bootstrap(rewards, config.gamma, value)
    logits, actions = rollout.logits.flatten(0, 1), rollout.actions.flatten(0, 1)
    logprobs = learner.head.log_prob(logits, actions)
    if config.vtrace:
        ratios = (current_logprobs(learner) - logprobs).exp().view_as(rewards)
        factors = (config.gamma, config.gae_lambda, config.vtrace_rho, config.vtrace_c)
        returns, advantages = ops.vtrace(rewards, rollout.values, rollout.dones, ratios, *factors)
    else:
        advantages = ops.gae(rewards, rollout.values, rollout.dones, config.gamma, config.gae_lambda)
        returns = advantages + rollout.values[:-1]
    counted = rollout.counted()
    counts = None if counted is None else counted.flatten().to(torch.float32)
    if config.normalize_advantage == "batch" and learner.shards is not None:
        sums = ops.moment_sums(advantages.flatten(), counts)
        advantages = standardize_by(ops.moments_of(learner.shards.sum(sums)), advantages)
    elif config.normalize_advantage == "batch":
        advantages = standardize(advantages.flatten(), counts).view_as(advantages)
    return Batch(
        obs=[flat(leaf) for leaf in rollout.obs],
        actions=actions,
        logprobs=logprobs,
        values=rollout.values[:-1].flatten(),
        advantages=advantages.flatten(),
        returns=returns.flatten(),
        resets=rollout.resets().flatten(),
        masks=None if rollout.masks is None else rollout.masks[:-1].flatten(0, 1),
        counts=counts,
    )


def scale_rewards(learner: Learner) -> Tensor:
    """The rollout's rewards. `normalize_reward` divides them by the running standard deviation of the return."""
    rollout, moments = learner.rollout, learner.reward_moments
    if moments is None:
        return rollout.rewards.clone()
    sums, counted = rollout.running_returns(learner.config.gamma, learner.running_return), rollout.counted()
    moments.update(sums.flatten(), None if counted is None else counted.flatten(), learner.shards)
    scale = (moments.var + 1e-8).rsqrt().to(torch.float32)
    return (rollout.rewards * scale).clamp_(-10.0, 10.0)


def current_logprobs(learner: Learner) -> Tensor:
    """Log-probabilities of the rollout's actions under the current policy."""
    rollout = learner.rollout
    logprobs = []
    for k in range(rollout.horizon // rollout.segment):
        steps = slice(k * rollout.segment, (k + 1) * rollout.segment)
        obs = rollout.observations([leaf[steps].flatten(0, 1) for leaf in rollout.obs])
        state = tuple(part[k] for part in rollout.starts)
        logits, _ = learner.actor.unroll(obs, state, rollout.resets()[steps])
        if rollout.masks is not None:
            logits = learner.head.mask(logits, rollout.masks[steps].flatten(0, 1))
        logprobs.append(learner.head.log_prob(logits, rollout.actions[steps].flatten(0, 1)))
    return torch.cat(logprobs)


def standardize(advantages: Tensor, counts: Tensor | None) -> Tensor:
    """Normalizes to mean 0 and standard deviation 1 over the entries that count."""
    if counts is None:
        std, mean = torch.std_mean(advantages, correction=0)
        return (advantages - mean) / (std + 1e-8)
    mean = ops.masked_mean(advantages, counts)
    centered = advantages - mean
    return centered / (ops.masked_mean(centered.square(), counts).sqrt() + 1e-8)


def standardize_by(stats: Tensor, advantages: Tensor) -> Tensor:
    """Normalizes by the count, mean and variance of all shards."""
    _, mean, variance = stats
    return (advantages - mean.to(torch.float32)) / (variance.sqrt() + 1e-8).to(torch.float32)


# ---- one epoch ----


def run_epoch(learner: Learner, batch: Batch) -> Tensor:
    """One pass over the rollout in minibatches; returns the sums of STEP_METRICS over them."""
    sums: Tensor
    if learner.fused is not None:
        sums = learner.fused.epoch(batch, segment_order(learner))
    elif learner.shards is not None:  # minibatch k of the run is that of all shards together
        sums, plan = torch.zeros(len(STEP_METRICS), device=learner.device), list(minibatches(learner, batch))
        for (segments, weights), stats in zip(plan, minibatch_stats(learner, batch, plan)):
            sums += improve_sharded(learner, batch, segments, weights, stats)
    elif learner.native is not None:
        sums = learner.native.epoch(batch, minibatches(learner, batch))
    else:
        sums = torch.zeros(len(STEP_METRICS), device=learner.device)
        for segments, weights in minibatches(learner, batch):
            sums += improve(learner, batch, segments, weights)
    return sums


def minibatch_stats(learner: Learner, batch: Batch, plan: list[tuple[Any, Tensor | None]]) -> Tensor:
    """(minibatches, 3): count, mean and variance of the advantages of each minibatch, over all shards."""
    sums = []
    for segments, _ in plan:
        index = transitions(learner.rollout, segments)
        counts = None if batch.counts is None else take(batch.counts, index)
        sums.append(ops.moment_sums(take(batch.advantages, index), counts))
    return ops.moments_of(learner.shards.sum(torch.stack(sums)))


def minibatches(learner: Learner, batch: Batch) -> Iterator[tuple[Tensor | slice, Tensor | None]]:
    """For each minibatch: indices of its segments (a slice without `shuffle`), and their importance weights."""
    rollout, config = learner.rollout, learner.config
    length, rows = rollout.segment, rollout.rows
    total = rollout.horizon * rows // length
    if not config.shuffle and not is_on(config.priority) and length == 1 and rollout.ready is None:
        size, larger = divmod(total, config.minibatches)  # the first ones are larger by one, as with shuffle
        edges = [k * size + min(k, larger) for k in range(config.minibatches + 1)]
        for lo, hi in pairwise(edges):
            yield slice(lo, hi), None
        return
    if not is_on(config.priority):
        segments = segment_order(learner)
        if rollout.ready is not None:  # skip segments of rows that are not full
            segments = segments[torch.isin(segments % rows, rollout.ready)]
        for minibatch in segments.tensor_split(config.minibatches):
            yield minibatch, None
        return
    counted = batch.advantages if batch.counts is None else batch.advantages * batch.counts
    probs = (counted.view(-1, length, rows).abs().mean(1).flatten() + 1e-6) ** config.priority
    if rollout.ready is not None:
        probs.view(-1, rows)[:, _complement(rollout.ready, rows)] = 0.0
    probs /= probs.sum()
    sampled = torch.multinomial(probs, total, replacement=True, generator=learner.streams["minibatches"])
    for minibatch in sampled.tensor_split(config.minibatches):
        weights = (total * probs[minibatch]) ** -config.priority_beta
        yield minibatch, weights / weights.max()


def segment_order(learner: Learner) -> Tensor:
    """Indices of all segments, in random order with `shuffle`."""
    count = learner.rollout.horizon * learner.rollout.rows // learner.rollout.segment
    if not learner.config.shuffle:
        return torch.arange(count, device=learner.device)
    return random_order(count, learner.streams["minibatches"])


def _complement(ready: Tensor, rows: int) -> Tensor:
    """(rows,) bool: the rows that are not ready."""
    out = torch.ones(rows, dtype=torch.bool, device=ready.device)
    out[ready] = False
    return out


# ---- one minibatch ----


@dataclass
class Targets:
    """The data that the loss compares the policy's outputs with, for some transitions."""

    actions: Tensor
    logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    counts: Tensor | None
    total: Any  # transitions of the whole minibatch that count: the loss is a sum over `counts` divided by it


def improve(learner: Learner, batch: Batch, segments: Tensor | slice, weights: Tensor | None) -> Tensor:
    """One optimizer step on a minibatch; returns STEP_METRICS.

    On a CPU a large minibatch is computed in chunks whose activations stay in the cache; their gradients add up.
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
    metrics = compute_gradient(learner, batch, segments, advantages, total)
    norm = clip_gradient(learner.weights.grad, config.max_grad_norm)
    learner.optimizer.step()
    return torch.cat([metrics, norm.reshape(1)])


def improve_sharded(
    learner: Learner, batch: Batch, segments: Tensor | slice, weights: Tensor | None, stats: Tensor
) -> Tensor:
    """`improve` for one shard, given the stats of the whole minibatch: the gradient is the sum over all shards."""
    config, rollout, gradient = learner.config, learner.rollout, learner.weights.grad
    if learner.native is not None:
        metrics = learner.native.gradient(batch, segments, weights, stats)
    else:
        advantages = take(batch.advantages, transitions(rollout, segments))
        if config.normalize_advantage == "minibatch":
            advantages = standardize_by(stats, advantages)
        if weights is not None:
            advantages = advantages * weights.repeat(rollout.segment)
        metrics = compute_gradient(learner, batch, segments, advantages, stats[0].to(torch.float32))
    with torch.no_grad():
        whole, metrics = learner.shards.sum_all(gradient, metrics)
        gradient.copy_(whole)
    norm = clip_gradient(gradient, config.max_grad_norm)
    learner.optimizer.step()
    return torch.cat([metrics, norm.reshape(1)])


def compute_gradient(
    learner: Learner, batch: Batch, segments: Tensor | slice, advantages: Tensor, total: Any
) -> Tensor:
    """Sets the gradient of some segments; returns their share of STEP_METRICS without the gradient norm."""
    rollout = learner.rollout
    learner.weights.grad.zero_()
    metrics = torch.zeros(len(STEP_METRICS) - 1, device=learner.device)
    count = segments.stop - segments.start if isinstance(segments, slice) else len(segments)
    size = count if learner.device.type != "cpu" else max(1, CHUNK // rollout.segment)
    by_segment = advantages.view(rollout.segment, count)
    for lo in range(0, count, size):
        hi = min(lo + size, count)
        chunk = slice(segments.start + lo, segments.start + hi) if isinstance(segments, slice) else segments[lo:hi]
        metrics += add_gradient(learner, batch, chunk, by_segment if hi - lo == count else by_segment[:, lo:hi], total)
    return metrics


def add_gradient(learner: Learner, batch: Batch, segments: Tensor | slice, advantages: Tensor, total: Any) -> Tensor:
    """Adds the gradient of some segments; returns their share of STEP_METRICS without the gradient norm."""
    rollout, head, index = learner.rollout, learner.head, transitions(learner.rollout, segments)
    obs = rollout.observations([take(leaf, index) for leaf in batch.obs])
    state = tuple(take(part.flatten(0, 1), segments) for part in rollout.starts)
    resets = take(batch.resets, index).view(rollout.segment, -1) if state else batch.resets[:0]
    logits, values = learner.actor.unroll(obs, state, resets)
    if batch.masks is not None:
        logits = head.mask(logits, take(batch.masks, index))
    targets = Targets(
        actions=take(batch.actions, index),
        logprobs=take(batch.logprobs, index),
        values=take(batch.values, index),
        advantages=advantages.reshape(-1),
        returns=take(batch.returns, index),
        counts=None if batch.counts is None else take(batch.counts, index),
        total=total,
    )
    loss, metrics = learner.loss(learner.config, head, logits, values, targets)
    loss.backward()
    return metrics


def clipped_loss(config: PPO, head: Any, logits: Tensor, values: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """The loss for any action space, and STEP_METRICS without the gradient norm.

    L = -mean min(r A, clip(r) A) + value_coef mean (V - R)^2 / 2 - entropy_coef mean H,  r = pi(a) / pi_old(a)
    """

    def mean(x: Tensor) -> Tensor:
        return (x if targets.counts is None else x * targets.counts).sum() / targets.total

    logprobs, entropies = head.log_prob_and_entropy(logits, targets.actions)
    log_ratio = logprobs - targets.logprobs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    policy_loss = -mean(torch.minimum(targets.advantages * ratio, targets.advantages * clipped))
    errors = (values - targets.returns).square()
    if is_on(config.value_clip):
        clipped_values = targets.values + (values - targets.values).clamp(-config.value_clip, config.value_clip)
        errors = torch.maximum(errors, (clipped_values - targets.returns).square())
    value_loss, entropy = 0.5 * mean(errors), mean(entropies)
    with torch.no_grad():
        kl = mean(ratio - 1.0 - log_ratio)  # Schulman's estimator: never negative
        clip_fraction = mean(((ratio - 1.0).abs() > config.clip).to(torch.float32))
        metrics = torch.stack([policy_loss.detach(), value_loss.detach(), entropy.detach(), kl, clip_fraction])
    return policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy, metrics


def transitions(rollout: Rollout, segments: Tensor | slice) -> Tensor | slice:
    """The indices in the batch of the transitions of some segments, time first."""
    length, rows = rollout.segment, rollout.rows
    if length == 1 or isinstance(segments, slice):
        return segments
    first = segments // rows * (length * rows) + segments % rows
    return (first + torch.arange(length, device=first.device).unsqueeze(1) * rows).flatten()


def take(values: Any, index: Tensor | slice) -> Tensor:
    """The entries at `index`: copied, or for a slice a view."""
    return values[index] if isinstance(index, slice) else values.index_select(0, index)


ALGORITHM = Algorithm(
    options=PPO,
    learner=Learner,
    update=update,
    metrics=METRICS,
    takes_late_steps=True,
    prepare=make_batch,
    cost=lambda config, networks, steps: (steps * config.epochs, 3.0),
    shard=lambda config, shards: config,  # every shard divides its rollout into as many minibatches
)
