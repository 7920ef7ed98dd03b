"""Gymnasium's envs in Shoal, and Shoal's envs in Gymnasium.

`shoal.make("gymnasium:CartPole-v1", …)`; `gymnasium.make("shoal/Breakout-v0")` and `gymnasium.make_vec`.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal import names, registry
from shoal.entry import make
from shoal.errors import ConfigError, UnknownEnv, did_you_mean
from shoal.integrations.framework import Framework, Reference, choose_gl, newest, plain, wrong_version
from shoal.spec import RESERVED_PARAMS, Array


def find(name: str) -> Callable[..., Any]:
    """A function that makes the Gymnasium env with this id.

    `module:Name-v0` and `./file.py:Name-v0` import the module or file first, which registers the id.
    """
    module, _, id = name.rpartition(":")
    place = ""
    if module:
        try:
            choose_gl()
            place = names.absolute_place(module, f"'gymnasium:{name}'")
            names.load(place)
        except ConfigError as error:
            raise UnknownEnv(str(error)) from error.__cause__
    id = spelled(id)
    try:
        gymnasium.spec(id)  # only checked: each worker process imports the module again
    except gymnasium.error.Error as error:
        registered = f" {names.shortened(place)} was imported and has not registered it." if place else ""
        raise UnknownEnv(f"'gymnasium:{name}': {error}{registered}") from None
    return partial(_make, place, id)


def spelled(id: str) -> str:
    """The registered id that is equal without case and punctuation; without a version, the newest one of it."""
    if id in gymnasium.registry:
        return id
    wanted = plain(id)
    same = [known for known in gymnasium.registry if wanted in (plain(known), plain(re.sub(r"-v\d+$", "", known)))]
    return newest(same) if same else id


def _make(place: str, id: str, **kwargs: Any) -> Any:
    """Makes an env, in any process: where the id is not registered, its module is imported first."""
    if place or kwargs.get("render_mode"):
        choose_gl()
    if place and id not in gymnasium.registry:
        names.load(place)
    try:
        return gymnasium.make(id, **{"disable_env_checker": True, **kwargs})
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise ConfigError(
            f"gymnasium:{id} cannot be made, as a package is missing or of another version: {error}"
        ) from error


def params_of(name: str) -> list[str] | None:
    """The keyword arguments that the env with this id takes; None: any, or unknown."""
    module, _, id = name.rpartition(":")
    try:
        if module:
            names.load(module)
        spec = gymnasium.spec(spelled(id))
        creator = gymnasium.envs.registration.load_env_creator(spec.entry_point)  # type: ignore[arg-type]
        accepted = inspect.signature(creator).parameters
    except Exception:  # mistakes are reported when the env is made
        return None
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in accepted.values()):
        return None
    of_make = ("max_episode_steps", "disable_env_checker", "render_mode")
    return sorted({*accepted, *spec.kwargs, *of_make} - {"self"})


class Gymnasium(Framework):
    """Every id that Gymnasium knows, and those that a module registers when it is imported."""

    title = "all ids of Gymnasium, and of packages that register theirs"
    packages = {"gymnasium": "gymnasium>=1.1"}
    install = ("pip install 'gymnasium[classic-control,box2d,mujoco]'",)
    example = "CartPole-v1"
    also = ("FrozenLake-v1", "LunarLander-v3", "HalfCheetah-v5")
    pattern = "ID or MODULE:ID"
    references = (
        Reference("CartPole-v1", 488.75, "PPO, 500k steps", "CleanRL docs, ppo.py"),
        Reference("Acrobot-v1", -82.48, "PPO, 500k steps", "CleanRL docs, ppo.py"),
    )
    notes = (
        "Box2D and MuJoCo need extras of Gymnasium: the message for a missing one has the command.",
        "`gymnasium:miniworld:MiniWorld-Hallway-v0` imports miniworld first, which registers its ids.",
    )

    def names(self) -> list[str]:
        """The ids of Gymnasium itself that can be made here, without those of Shoal."""
        return sorted(
            id
            for id, spec in gymnasium.registry.items()
            if not id.startswith(("shoal/", "phys2d/", "tabular/")) and _needs(spec) is None and not _has_moved(spec)
        )

    def find(self, name: str) -> Callable[..., Any]:
        """A function that makes the env of an id."""
        maker = find(name)
        spec = gymnasium.spec(spelled(name.rpartition(":")[2]))
        if family := _needs(spec):
            raise ConfigError(
                f"gymnasium:{name} needs {NEEDS[family]}, which is not installed. Install it: "
                f"pip install 'gymnasium[{family}]'"
            )
        if _has_moved(spec):
            why = (
                wrong_version("mujoco<3")
                if spec.id == "Pusher-v4"
                else f"Gymnasium {gymnasium.__version__} has it no more"
            )
            raise UnknownEnv(f"'gymnasium:{name}': {why}.{self._instead(spec)}")
        return maker

    def _instead(self, spec: Any) -> str:
        """The newest version that there is of an id that has moved."""
        versions = [id for id in self.names() if re.sub(r"-v\d+$", "", id) == spec.name]
        if versions:
            return f" Use gymnasium:{newest(versions)}."
        return " Envs of the old gym package are gym:ID." if spec.name.startswith("Gym") else ""

    def params(self, name: str) -> dict[str, str] | None:
        """Those of the env's constructor; their defaults are not known."""
        known = params_of(name)
        return None if known is None else dict.fromkeys(known, "")

    def check_params(self, name: str, given: Mapping[str, Any]) -> None:
        """Raises for a param that the env's constructor does not take."""
        known = params_of(name) if given else None
        for key in given:
            if known is not None and key not in known:
                raise ConfigError(
                    f"gymnasium:{name} has no param '{key}'.{did_you_mean(key, known)} It has {', '.join(known)}."
                )


# the modules that families of Gymnasium's envs import
NEEDS = {"box2d": "Box2D", "mujoco": "mujoco"}


def _needs(spec: Any) -> str | None:
    """The extra of Gymnasium that an env needs to be stepped and that is not installed; None if nothing is missing."""
    entry_point = spec.entry_point if isinstance(spec.entry_point, str) else ""
    match = re.match(r"gymnasium\.envs\.(box2d|mujoco)\b", entry_point)
    return match[1] if match and importlib.util.find_spec(NEEDS[match[1]]) is None else None


def _has_moved(spec: Any) -> bool:
    """Whether the id only says where its env is now, or needs an old MuJoCo.

    The entry point of such an id is a function of Gymnasium that raises.
    """
    entry_point = spec.entry_point
    if spec.id == "Pusher-v4" and wrong_version("mujoco<3"):
        return True
    if spec.name in ("GymV21Environment", "GymV26Environment"):  # shimmy's, once it is imported
        return True
    return getattr(entry_point, "__module__", "") == "gymnasium.envs" and entry_point.__name__.startswith("_raise")


class SingleEnv(gymnasium.Env[Any, Any]):
    """One native env as a `gymnasium.Env`.

    An env with several agents is one player that controls them all: obs and actions are stacked over agents, the reward
    is the sum, and `info` has each agent's reward and whether it is alive. The time limit is the param `max_steps`;
    Gymnasium's `max_episode_steps` can only shorten it.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, env: str, render_mode: str | None = None, **params: Any) -> None:
        if unfit := sorted(set(params) & RESERVED_PARAMS - {"max_steps", "preset", "wrap"}):
            raise ConfigError(
                f"gymnasium.make makes one env and has no option {unfit[0]}. Use gymnasium.make_vec for many envs."
            )
        self.vec: Any = make(env, backend="serial", autoreset="disabled", render_mode=render_mode, **params)
        spec = self.vec.native_spec
        assert spec is not None
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"] if spec.has_draw else [], "render_fps": 30}
        self._is_single = spec.agents == 1
        single = self.vec.single_action_space
        self.observation_space = self.vec.single_observation_space if self._is_single else self.vec.observation_space
        self.action_space = single if self._is_single else _stacked(self.vec.action_space, spec.agents, single)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Starts an episode; a seed restarts the env's random stream."""
        super().reset(seed=seed)
        obs, infos = self.vec.reset(seed=seed, options=options)
        return self._first(obs).copy(), self._info(infos)

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One transition."""
        if isinstance(self.action_space, spaces.Tuple) and self._is_single:
            batch: Any = tuple(np.asarray(part)[None] for part in action)
        else:
            batch = np.asarray(action)[None] if self._is_single else np.asarray(action)
        obs, rewards, _terminated, truncated, infos = self.vec.step(batch)
        over, timeout = bool(self.vec.memory.arrays["ended"][0]), bool(truncated.any())
        return self._first(obs).copy(), float(rewards.sum()), over and not timeout, timeout, self._info(infos)

    def render(self) -> Array | None:
        """The env as pixels."""
        return self.vec.frame(0) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Frees the env."""
        self.vec.close()

    def _first(self, array: Array) -> Array:
        first: Array = array[0] if self._is_single else array
        return first

    def _info(self, infos: dict[str, Any]) -> dict[str, Any]:
        info = {k: self._first(v).copy() for k, v in infos.items() if k in ("alive", "action_mask")}
        if not self._is_single:
            info["rewards"] = self.vec.memory.arrays["rewards"].copy()
        if "final_info" in infos and self.vec.memory.arrays["ended"][0]:
            stats = {stat.name for stat in self.vec.native_spec.stats}
            info |= {k: float(v[0]) for k, v in infos["final_info"].items() if k in stats}
        return info


def _stacked(batched: spaces.Space[Any], agents: int, single: spaces.Space[Any]) -> spaces.Space[Any]:
    """The actions of all agents as one space."""
    if isinstance(single, spaces.Discrete):
        return spaces.MultiDiscrete([int(single.n)] * agents)
    return batched


def make_vector(env: str, num_envs: int = 1, max_episode_steps: int | None = None, **options: Any) -> Any:
    """Called by `gymnasium.make_vec`. Results are copies by default, as in Gymnasium; every agent is an env."""
    if max_episode_steps is not None:
        options["max_steps"] = max_episode_steps
    vec: Any = make(env, num_envs, **{"copy": True, **options})
    return vec if vec.agents_per_env == 1 else vec.rows()


def register(name: str, header: str | Path) -> None:
    """Gives a header a name: `shoal.make(name)` then finds it, and Gymnasium as `shoal/Name-v0`."""
    registry.register(name, header)
    _register_id(name, registry.find(name))


def register_stock() -> None:
    """Registers the stock envs with Gymnasium. Compiles and loads nothing."""
    for name in registry.stock_names():
        _register_id(name, registry.STOCK / f"{name}.h")


def _register_id(name: str, header: Path) -> None:
    id = f"shoal/{registry.title(name)}-v{registry.version(header)}"
    module = "shoal.integrations.gymnasium"
    env = (
        name if header.parent == registry.STOCK else str(header)
    )  # a path also works in processes that have not registered it
    if id not in gymnasium.registry:
        gymnasium.register(id, f"{module}:SingleEnv", vector_entry_point=f"{module}:make_vector", kwargs={"env": env})


FRAMEWORK = Gymnasium("gymnasium")
