"""What the last rollout shows about a run's health, for metrics.jsonl and the diagnosis. Read once per log interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.nn.distributions import LOG_STD_RANGE

MOST_ROWS = 1024  # rows whose advantages and actions are read: enough for a share
TOLERANCE = 1e-6  # of the largest value: below, a difference is rounding


def probe(learners: Sequence[Any]) -> dict[str, float]:
    """Metrics of the learners' last rollouts.

    rollout/reward_min, rollout/reward_max: over all transitions that count.
    rollout/zero_advantages: the fraction of steps whose advantage is 0; only with a critic.
    rollout/action_std: the mean standard deviation of Box actions, where the bounds are -1 and 1.
    """
    parts = [_probe(learner) for learner in learners]
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        by_name: Any = {"rollout/reward_min": min, "rollout/reward_max": max}
        merged[name] = by_name[name](values) if name in by_name else sum(values) / len(values)
    return merged


def _probe(learner: Any) -> dict[str, float]:
    rollout = learner.rollout
    counted = rollout.counted()
    rewards = rollout.rewards if counted is None else rollout.rewards[counted]
    if not rewards.numel():
        return {}
    low, high = torch.aminmax(rewards)
    numbers = {"rollout/reward_min": low, "rollout/reward_max": high}
    if rollout.needs_last_value:
        numbers["rollout/zero_advantages"] = zero_advantages(learner)
    head = learner.head
    if getattr(head, "has_box", False):
        log_stds = rollout.logits[:, :MOST_ROWS, head.num_noise :]
        numbers["rollout/action_std"] = log_stds.clamp(*LOG_STD_RANGE).mean().exp()
    return dict(zip(numbers, torch.stack(list(numbers.values())).tolist()))


def zero_advantages(learner: Any) -> Tensor:
    """The fraction of steps whose TD error r + gamma V' - V is 0; where all are, all GAE advantages are 0.

    Truncated steps are left out: their V' is not in the rollout.
    """
    rollout, config, rows = learner.rollout, learner.config, slice(0, MOST_ROWS)
    rewards, values = rollout.rewards[:, rows], rollout.values[:, rows]
    if (moments := learner.reward_moments) is not None:
        rewards = rewards * (moments.var + 1e-8).rsqrt().to(rewards.dtype)
    next_values = torch.where(rollout.dones[:, rows], 0.0, values[1:])
    errors = rewards + getattr(config, "gamma", 1.0) * next_values - values[:-1]
    is_zero = errors.abs() <= TOLERANCE * (rewards.abs().max() + values.abs().max())
    is_read = ~rollout.truncations.flags()[:, rows]
    if (counted := rollout.counted()) is not None:
        is_read = is_read & counted[:, rows]
    return (is_zero & is_read).sum() / is_read.sum().clamp(min=1)
