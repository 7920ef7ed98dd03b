"""Old gym (0.21 to 0.26) through shimmy: `gym:CartPole-v1`, or any gym.Env that a user's function returns."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable
from typing import Any

from shoal.errors import ConfigError
from shoal.integrations.framework import Framework, Reference, choose_gl, import_quietly, is_importable, wrong_version
from shoal.vector.slots import Limited

INSTALL = "pip install shimmy gym==0.26.2"
NEEDS = {  # what envs of gym 0.26 need besides it
    r"(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|Pusher|Reacher|Swimmer|Walker2d)-v[23]": "mujoco_py",
    r"Inverted(Double)?Pendulum-v[23]": "mujoco_py",
    r"(Hopper|Swimmer|Walker2d)-v4": "mujoco<3",  # whose format their files have
    r"(Acrobot|CarRacing|LunarLanderContinuous)-v\d": "numpy<2",
}


class Gym(Framework):
    """The ids of the old gym package: 0.21 (reset returns an observation alone) and 0.26 (as Gymnasium)."""

    title = "ids of the old gym package, 0.21 to 0.26"
    packages = {"gym": "gym>=0.21", "shimmy": "shimmy>=1"}
    install = ("pip install --no-deps gym==0.26.2 gym_notices", "pip install shimmy")
    example = "CartPole-v1"
    pattern = "ID or MODULE:ID"
    preprocessing = "shimmy's compatibility wrapper"
    references = (Reference("CartPole-v1", 488.75, "PPO, 500k steps, 3 seeds", "CleanRL docs, ppo.py"),)
    notes = (
        "gym 0.26 runs on numpy 2 with its env checker off, as it is here.",
        "gym 0.21 needs pip<24.1, setuptools==65.5.0, wheel==0.38.4 and numpy<2: an environment of its own.",
    )

    def names(self) -> list[str]:
        """The ids that gym has registered and that can be made here."""
        return [name for name in self.known() if not lacking(name)]

    def known(self) -> list[str]:
        """All ids that gym has registered."""
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
        if missing := lacking(name):
            stem = re.sub(r"-v\d+$", "", name)
            raise ConfigError(f"gym:{name}: {missing}. Gymnasium has a newer version: gymnasium:{stem}")
        return super().find(name)

    def make(self, name: str, *, render_mode: str | None = None, **params: Any) -> Any:
        """One env, with today's API."""
        choose_gl()
        gym = import_quietly("gym")
        if is_new(gym):
            return adapt(gym.make(name, disable_env_checker=True, render_mode=render_mode, **params))
        return adapt(gym.make(name, **params), render_mode)


def lacking(id: str) -> str:
    """What gym's own env of this id needs and that is not installed; empty if nothing is missing."""
    for pattern, requirement in NEEDS.items():
        if re.fullmatch(pattern, id):
            if not is_importable(re.split("[<=>]", requirement)[0]):
                return f"{requirement} is not installed, and it is needed"
            if wrong := wrong_version(requirement):
                return wrong
    return ""


def is_new(gym: Any) -> bool:
    """Whether the package has the API of 0.26: truncation, seeds in reset, render_mode in the constructor."""
    return tuple(int(part) for part in gym.__version__.split(".")[:2]) >= (0, 26)


def adapt(env: Any, render_mode: str | None = None) -> Any:
    """An old gym env for the runner: with its spaces where Gymnasium is missing, otherwise as a gymnasium.Env.

    render_mode is for 0.21, whose constructors do not take it.
    """
    if importlib.util.find_spec("gymnasium") is None:  # a worker under another interpreter
        from shoal.integrations.adapt import without_standard_wrappers

        limited = without_standard_wrappers(env)
        return Limited(OldEnv(limited.env), limited.limit)
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


class OldEnv:
    """An env of old gym with the methods of a gymnasium.Env, whichever of gym's two APIs it has. Keeps its spaces."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata = getattr(env, "metadata", {})
        try:
            parameters = inspect.signature(env.unwrapped.reset).parameters.values()
            self._takes_seed = any(p.name == "seed" or p.kind == p.VAR_KEYWORD for p in parameters)
        except (TypeError, ValueError):
            self._takes_seed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        if seed is not None and not self._takes_seed and hasattr(self.env, "seed"):
            self.env.seed(seed)
        result = self.env.reset(seed=seed) if self._takes_seed and seed is not None else self.env.reset()
        has_info = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return result if has_info else (result, {})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One transition. The four results of the old API say in the info whether the time limit ended the episode."""
        result = self.env.step(action)
        if len(result) == 5:
            return tuple(result)
        obs, reward, done, info = result
        is_cut = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not is_cut, is_cut, info

    def render(self) -> Any:
        """A frame."""
        if getattr(self.env, "render_mode", None):
            return self.env.render()
        return self.env.render(mode="rgb_array")

    def close(self) -> None:
        """Closes the env."""
        self.env.close()


FRAMEWORK = Gym("gym")
