"""Shoal steps thousands of environments as one and trains on them at the speed of the hardware.

    envs = shoal.make("breakout", num_envs=4096)
    obs, infos = envs.reset(seed=0)
    obs, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())

    policy = shoal.load("last")  # of the newest run of `shoal train`
    actions = policy.act(obs)

Importing makes the stock envs known to Gymnasium (`gymnasium.make("shoal/Breakout-v0")`) and does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.distributions import choice, integers, loguniform, normal, uniform
from shoal.entry import make
from shoal.errors import ShoalError
from shoal.integrations.gymnasium import register, register_stock
from shoal.schedules import cosine, exp, linear, piecewise, steps
from shoal.spec import unflatten
from shoal.tune import autotune
from shoal.vector.base import VecEnv

if TYPE_CHECKING:
    from shoal.acting import Policy, Team
    from shoal.runs import Run

__all__ = [
    "ShoalError",
    "VecEnv",
    "__version__",
    "agent",
    "autotune",
    "choice",
    "cosine",
    "exp",
    "integers",
    "linear",
    "load",
    "loguniform",
    "make",
    "normal",
    "opponent",
    "piecewise",
    "register",
    "reward",
    "steps",
    "unflatten",
    "uniform",
]
__version__ = "0.2.0"

register_stock()

Class = TypeVar("Class")


def agent(name: str) -> Callable[[Class], Class]:
    """Registers an agent class under a name, for `train(..., opponents="1=NAME")` and `evaluate_agent(env, "NAME")`.

    @shoal.agent("pursuit")
    class Pursuit:
        def act(self, obs, mask): ...
    """
    from shoal.algos.agents import AGENTS

    return _registering(AGENTS, name)


def opponent(name: str) -> Callable[[Class], Class]:
    """The same as `agent`: an opponent is an agent in the seat of another player."""
    return agent(name)


def reward(name: str) -> Callable[[Class], Class]:
    """Registers a reward class under a name, for `--reward NAME` and `train(..., reward="NAME")`.

    @shoal.reward("closing")
    class Closing:
        def compute(self, before, after, action, done, info): ...
    """
    from shoal.algos.rewards import REWARDS

    return _registering(REWARDS, name)


def _registering(plugins: Any, name: str) -> Callable[[Class], Class]:
    def register_class(plugin: Class) -> Class:
        plugins.register(name, plugin)
        return plugin

    return register_class


def load(
    run: str | Path | Run = "last",
    checkpoint: str | int | Path = "best",
    *,
    policy: Any = None,
    device: Any = "cpu",
    seed: int | None = None,
    runs: str | Path = "runs",
) -> Policy | Team:
    """The trained policy of a run, ready to act: `shoal.load("last").act(obs)`. The env need not be installed.

    Args:
        run: the run: its folder, its id, the name of its env (its newest run), `last`, or what `train` returned. Or the
            folder of a checkpoint.
        checkpoint: `best`, `last`, or the step of a checkpoint.
        policy: for a run with a policy of your own that cannot be imported by its name: its class, the function of the
            spaces that makes it, or a module.
        device: where the network computes; `policy.to(device)` moves it later.
        seed: the seed of sampled actions; default: derived from the run's seed.
        runs: the folder of all runs.

    Returns:
        A `Policy` (shoal/acting.py); a `Team` of them where agents or groups have a policy each.
    """
    from shoal.loading import load as load_policy  # imports torch

    return load_policy(run, checkpoint, policy=policy, device=device, seed=seed, runs=runs)
