"""Adapts what a user's function returns to what the runner steps: a Gymnasium, PettingZoo, old gym or vector env."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.distributions import Distribution, parse
from shoal.errors import ConfigError
from shoal.integrations import masks
from shoal.vector.slots import Limited, is_vector_env

if TYPE_CHECKING:
    from shoal.wrappers import Wrap

# the wrappers that `make` of Gymnasium and of old gym adds; the runner does their work
STANDARD = ("TimeLimit", "OrderEnforcing", "PassiveEnvChecker")


def creator(make: Callable[..., Any], kwargs: dict[str, Any], wrap: Wrap | None = None) -> Callable[[], Any]:
    """A function without arguments that makes an env for the runner. It can be pickled if `make` can.

    Arguments that are distributions become attributes of the env, drawn before each episode.
    """
    drawn = {name: rule for name, rule in ((name, _rule(value)) for name, value in kwargs.items()) if rule is not None}
    plain = {name: value for name, value in kwargs.items() if name not in drawn}
    if wrap or drawn:
        return partial(_make_wrapped, make, plain, wrap, drawn)
    return partial(_make, make, kwargs)


def _rule(value: Any) -> Distribution | None:
    """The distribution that an argument is, or is the text of."""
    return value if isinstance(value, Distribution) else parse(value) if isinstance(value, str) else None


def _make(make: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    return adapt(make(**kwargs))


def _make_wrapped(
    make: Callable[..., Any], kwargs: dict[str, Any], wrap: Wrap | None, drawn: dict[str, Distribution]
) -> Any:
    from shoal.wrappers import Wrap

    wrapped = importlib.import_module("shoal.integrations.wrapped")
    return wrapped.wrap_env(adapt(make(**kwargs)), wrap or Wrap(), drawn)


def adapt(env: Any) -> Any:
    """An env that the runner can step."""
    if isinstance(env, Limited) or is_vector_env(env):
        return env
    if is_derived(env, "gymnasium", "Env") and not _lacks(env):
        return without_standard_wrappers(env)
    if hasattr(env, "agent_selection") or hasattr(env, "possible_agents"):
        pettingzoo = importlib.import_module("shoal.integrations.pettingzoo")
        return pettingzoo.adapt(env)
    if is_derived(env, "gym", "Env"):
        gym = importlib.import_module("shoal.integrations.gym")
        return gym.adapt(env)
    if hasattr(env, "step") and hasattr(env, "reset") and hasattr(env, "observation_space"):
        return env
    shown = "None" if env is None else f"{type(env).__module__}.{type(env).__name__}"
    if is_derived(env, "gymnasium", "Env"):
        raise ConfigError(
            f"{shown} has no {' and no '.join(_lacks(env))}. Set it in __init__, as every gymnasium.Env does."
        )
    raise ConfigError(
        f"{shown} is not an env that Shoal can step: it has no {', '.join(_lacks(env))}. Return a gymnasium.Env, a "
        "PettingZoo ParallelEnv or AECEnv, a gym.Env, or a gymnasium.vector.VectorEnv."
    )


def _lacks(env: Any) -> list[str]:
    return [name for name in ("reset", "step", "observation_space", "action_space") if not hasattr(env, name)]


def is_derived(value: Any, package: str, name: str) -> bool:
    """Whether a value is of a package's class of this name, or of one derived from it. Imports nothing."""
    return any(kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(value).__mro__)


def without_standard_wrappers(env: Any) -> Any:
    """Removes the wrappers of `make`: the runner does the time limit, the order of calls and the checks."""
    limit = 0
    while type(env).__name__ in STANDARD and type(env).__module__.split(".")[0] in ("gymnasium", "gym"):
        if type(env).__name__ == "TimeLimit":
            steps = int(env._max_episode_steps)
            limit = min(limit, steps) if limit else steps
        env = env.env
    if masks.has_mask(env.observation_space, env.action_space):
        env = masks.MasksFromObs(env)
    return Limited(env, limit)
