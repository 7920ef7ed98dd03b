"""Old gym (0.21 to 0.26) through shimmy: `gym:CartPole-v1`, or any gym.Env that a user's function returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.errors import ConfigError

INSTALL = "pip install shimmy gym==0.26.2"


def find(name: str) -> Callable[..., Any]:
    """A function that makes the env with this id."""
    try:
        import gym
    except ImportError:
        raise ConfigError(
            f"gym:{name} needs the old gym package, which is not installed. Install it: {INSTALL}"
        ) from None

    def make(**kwargs: Any) -> Any:
        try:
            return gym.make(name, disable_env_checker=True, **kwargs)
        except TypeError:  # gym before 0.24 does not have the option
            return gym.make(name, **kwargs)

    return make


def adapt(env: Any) -> Any:
    """An old gym env as a gymnasium.Env."""
    try:
        import shimmy
    except ImportError:
        raise ConfigError(
            f"{type(env).__name__} is an env of the old gym package, which needs shimmy. Install it: {INSTALL}"
        ) from None
    import gym

    from shoal.integrations.adapt import adapt as adapt_gymnasium

    is_26 = tuple(int(part) for part in gym.__version__.split(".")[:2]) >= (0, 26)
    wrapper = shimmy.GymV26CompatibilityV0 if is_26 else shimmy.GymV21CompatibilityV0
    return adapt_gymnasium(wrapper(env=env))
