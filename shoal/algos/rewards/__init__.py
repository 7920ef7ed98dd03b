"""Rewards of the user's own, which the learner sees in place of the env's. One file per reward, found by its name.

A reward has one method, on batches of tensors on the run's device, one entry for each row:

    class Reward:
        def compute(self, before, after, action, done, info):
            return -(after - GOAL).norm(dim=-1)

`shaper.py` calls it for every step of a rollout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal import names
from shoal.errors import ConfigError
from shoal.plugins import Plugins

REWARDS = Plugins("reward", package="shoal.algos.rewards", marker="REWARD")
ARGUMENTS = ("before", "after", "action", "done", "info")
SIGNATURE = f"compute({', '.join(ARGUMENTS)})"


class FunctionReward:
    """A plain function as a reward."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.compute = function


def make_reward(reward: Any) -> Any:
    """An object with `compute`: of a name (`mine:Reward`, or a plugin's), a class, a function or an object."""
    shown = names.shortened(reward) if isinstance(reward, str) else getattr(reward, "__qualname__", repr(reward))
    shown = f"--reward {shown}" if isinstance(reward, str) else f"reward {shown}"
    if isinstance(reward, str):
        reward = names.find(reward, "--reward") if ":" in reward else _plugin(reward)
    if isinstance(reward, type):
        _check_compute(reward, shown)
        names.check_arguments(shown, reward, {}, "")
        return reward()
    if hasattr(reward, "compute"):
        _check_compute(reward, shown)
        return reward
    if not callable(reward):
        raise ConfigError(f"{shown} is {type(reward).__name__}, which has no {SIGNATURE}. Name a class that has.")
    names.check_call(reward, SIGNATURE, ARGUMENTS, shown)
    return FunctionReward(reward)


def _plugin(name: str) -> Any:
    known = REWARDS.names()
    if name not in known:
        has = f" Known: {', '.join(known)}." if known else " No reward is installed by name."
        raise ConfigError(f"no reward '{name}'.{has} Name your own by module or file: mine:Reward or ./mine.py:Reward.")
    return REWARDS.find(name)


def _check_compute(reward: Any, shown: str) -> None:
    if not callable(getattr(reward, "compute", None)):
        raise ConfigError(f"{shown} has no {SIGNATURE}, so it is no reward. Add this method.")
    names.check_call(reward.compute, SIGNATURE, ARGUMENTS, shown, has_self=isinstance(reward, type))
