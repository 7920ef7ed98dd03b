"""Faster implementations of computations in algos/*.py, for small networks: GPU kernels, and C on a CPU. Knows algos.

They are chosen here, by lists of the exact types of network, core, optimizer and head that they cover. Anything else,
subclasses included, takes the plain path in algos/*.py, which defines the results. The tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.cores import available_threads
from shoal.nn.distributions import ActionHead
from shoal.nn.launch import has_triton


def fused_ppo(learner: Any) -> Any:
    """GPU kernels that act and learn for a PPO learner; None if they do not cover it."""
    if learner.device.type != "cuda" or not has_triton() or _has_shards(learner):
        return None
    from shoal.algos.fast import fused, fused_core, layered, layered_core

    has_core = getattr(learner.actor.policy, "core", None) is not None
    if not fused.not_covered(learner):
        return (fused_core.FusedCore if has_core else fused.Fused)(learner)
    if not layered.not_covered(learner):
        return (layered_core.LayeredCore if has_core else layered.Layered)(learner)
    return None


def fused_q_learning(learner: Any, minibatches: list[int]) -> Any:
    """GPU kernels that act and learn for a learner of DQN or PQN; None if they do not cover it.

    `minibatches` are the transitions of each gradient step of an epoch.
    """
    if learner.device.type != "cuda" or not has_triton() or _has_shards(learner):
        return None
    from shoal.algos.fast import fused_q, layered_q

    if not fused_q.not_covered(learner):
        return fused_q.FusedQ(learner, minibatches)
    return None if layered_q.not_covered(learner) else layered_q.LayeredQ(learner, minibatches)


def _has_shards(learner: Any) -> bool:
    """Gradients of shards are added between gradient and step, which GPU kernels do not separate."""
    if learner.shards is not None:
        learner.plain_reason = "with shards a GPU learns in torch: its kernels have no sum over shards"
    return learner.shards is not None


def ppo_loss(learner: Any) -> Callable[..., Any] | None:
    """PPO's loss with a manual gradient, for a single discrete action; None for other actions."""
    from shoal.algos.fast.choice_loss import choice_loss as loss

    return loss if type(learner.head) is ActionHead and learner.head.is_one_choice else None


def native_ppo(learner: Any) -> Any:
    """Acting and learning in C for a PPO learner on a CPU; None if C does not cover it."""
    if learner.device.type != "cpu":
        return None
    from shoal.algos.fast import ppo_native

    if not ppo_native.covers_learning(learner):
        return None
    return ppo_native.NativePPO(learner.actor, learner.rollout, learner, threads=available_threads())


def native_q_acting(actor: Any, rollout: Any) -> Any:
    """Acting in C, for a small Q-network on a CPU; None if C does not cover it."""
    from shoal.algos.fast import q_native

    if rollout.device.type != "cpu" or rollout.state or not q_native.covers(actor, rollout.rows):
        return None
    return q_native.NativeActing(actor, rollout.rows)


def native_q_learning(learner: Any, batch_rows: int) -> Any:
    """DQN's gradient step in C, for a small Q-network on a CPU; None if C does not cover it.

    It does not cover shards: C computes gradient and step in one call, and the gradients of shards are added between.
    """
    from shoal.algos.fast import q_native
    from shoal.algos.optimizers.adam import Adam

    if type(learner.optimizer) is not Adam or not q_native.covers(learner.actor, batch_rows):
        return None
    if learner.shards is not None:
        learner.plain_reason = "with shards DQN learns in torch: its C code takes gradient and step in one call"
        return None
    return q_native.NativeLearning(learner, batch_rows)
