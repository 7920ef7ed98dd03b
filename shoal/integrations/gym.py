"""Old gym (0.21 to 0.26) through shimmy: `gym:CartPole-v1`, or any gym.Env that a user's function returns."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from shoal.errors import ConfigError
from shoal.integrations.framework import Framework, import_quietly

INSTALL = "pip install shimmy gym==0.26.2"


class Gym(Framework):
    """The ids of the old gym package: 0.21 (reset returns an observation alone) and 0.26 (as Gymnasium)."""

    title = "ids of the old gym package, 0.21 to 0.26"
    packages = {"gym": "gym>=0.21"}
    install = ("pip install --no-deps gym==0.26.2 gym_notices", "pip install shimmy")
    example = "CartPole-v1"
    pattern = "ID or MODULE:ID"
    preprocessing = "shimmy's compatibility wrapper"
    notes = (
        "gym 0.26 runs on numpy 2 with its env checker off, as it is here.",
        "gym 0.21 needs pip<24.1, setuptools==65.5.0, wheel==0.38.4 and numpy<2: an environment of its own.",
    )

    def names(self) -> list[str]:
        """The ids that gym has registered."""
        gym = import_quietly("gym")
        specs = getattr(gym.envs.registry, "env_specs", gym.envs.registry)  # a dict from 0.24 on
        return sorted(specs)

    def canonical(self, name: str) -> str:
        """The id itself: `module:Id-v0` is imported by gym."""
        return name if ":" in name else super().canonical(name)

    def find(self, name: str) -> Callable[..., Any]:
        """A function that makes the env with this id."""
        if importlib.util.find_spec("gym") is None:
            raise ConfigError(f"gym:{name} needs the old gym package, which is not installed. Install it: {INSTALL}")
        return super().find(name)

    def make(self, name: str, **params: Any) -> Any:
        """One env of the old API, which `adapt` translates."""
        gym = import_quietly("gym")
        try:
            return gym.make(name, disable_env_checker=True, **params)
        except TypeError:  # gym before 0.24 does not have the option
            return gym.make(name, **params)


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


FRAMEWORK = Gym("gym")
