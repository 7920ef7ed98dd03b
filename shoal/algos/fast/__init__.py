"""The computations of algos/*.py again, faster, for what they cover: kernels of a GPU, and C on a CPU. Knows algos.

Each is chosen here, by a list of what it covers: an exact type of network, core, optimizer and head. Anything else, a
subclass included, takes the plain path, which is the meaning; the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.nn.distributions import ActionHead
from shoal.nn.launch import has_triton


def fused_ppo(learner: Any) -> Any:
    """Kernels that act and learn for a PPO learner on a GPU; None where they do not cover it."""
    if learner.device.type != "cuda" or not has_triton():
        return None
    from shoal.algos.fast import fused, fused_core

    if fused.not_covered(learner):
        return None
    return (fused.Fused if learner.actor.policy.core is None else fused_core.FusedCore)(learner)


def ppo_loss(learner: Any) -> Callable[..., Any] | None:
    """PPO's loss with its gradient worked out by hand, for one choice of n."""
    from shoal.algos.fast.choice_loss import choice_loss as loss

    return loss if type(learner.head) is ActionHead and learner.head.is_one_choice else None


def native_acting(actor: Any, rollout: Any) -> Any:
    """Acting in C for a Q-network of plain layers on a CPU; None where it does not cover it."""
    from shoal.algos.fast import q_native

    if not rollout.allows_native_acting or rollout.state or not q_native.covers(actor, rollout.rows):
        return None
    return q_native.NativeActing(actor, rollout.rows)


def native_q_learning(learner: Any, batch_rows: int) -> Any:
    """DQN's gradient step in C for a Q-network of plain layers on a CPU; None where it does not cover it."""
    from shoal.algos.fast import q_native
    from shoal.algos.optimizers.adam import Adam

    if type(learner.optimizer) is not Adam or not q_native.covers(learner.actor, batch_rows):
        return None
    return q_native.NativeLearning(learner, batch_rows)
