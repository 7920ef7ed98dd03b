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
    packages = {"gym": "gym>=0.21", "shimmy": "shimmy>=1"}
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

    def make(self, name: str, *, render_mode: str | None = None, **params: Any) -> Any:
        """One env, with today's API."""
        gym = import_quietly("gym")
        if is_new(gym):
            return adapt(gym.make(name, disable_env_checker=True, render_mode=render_mode, **params))
        return adapt(gym.make(name, **params), render_mode)


def is_new(gym: Any) -> bool:
    """Whether the package has the API of 0.26: truncation, seeds in reset, render_mode in the constructor."""
    return tuple(int(part) for part in gym.__version__.split(".")[:2]) >= (0, 26)


def adapt(env: Any, render_mode: str | None = None) -> Any:
    """An old gym env as a gymnasium.Env. render_mode is for 0.21, whose constructors do not take it."""
    try:
        import shimmy
    except ImportError:
        raise ConfigError(
            f"{type(env).__name__} is an env of the old gym package, which needs shimmy. Install it: {INSTALL}"
        ) from None
    from shoal.integrations.adapt import adapt as adapt_gymnasium

    if is_new(import_quietly("gym")):
        return adapt_gymnasium(shimmy.GymV26CompatibilityV0(env=env))
    return adapt_gymnasium(shimmy.GymV21CompatibilityV0(env=env, render_mode=render_mode))


FRAMEWORK = Gym("gym")
