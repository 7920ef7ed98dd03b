"""PufferLib's `environments`: a package of env creators for each third-party library.

    make_env = pufferlib.environments.atari.env_creator("breakout")
    vecenv = pufferlib.vector.make(make_env, env_kwargs={"framestack": 4}, num_envs=8)

`env_creator` needs the library to be installed: the error has the command. A package that is not supported raises
an error that says what to use.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import gymnasium

from shoal.errors import UnknownEnv, did_you_mean
from shoal.puffer import emulation, names
from shoal.puffer.exceptions import EnvironmentSetupError, MissingName, missing_names

# patterns of Shoal's names, from the names in a package of PufferLib
PACKAGES: dict[str, str] = {
    "atari": "atari-{}",
    "minigrid": "minigrid-{}",
    "butterfly": "pettingzoo-{}",
    "pettingzoo": "pettingzoo-{}",
    "box2d": "gym-{}",
    "classic_control": "gym-{}",
    "classic_control_continuous": "gym-{}",
    "mujoco": "gym-{}",
    "nmmo": "neuralmmo-{}",
    **{family: f"{family}-{{}}" for family in names.FAMILIES if family != "neuralmmo"},
}
DEFAULTS = {
    "atari": "breakout",
    "minigrid": "minigrid",
    "butterfly": "cooperative_pong",
    "pettingzoo": "cooperative_pong",
    "box2d": "car_racing",
    "classic_control": "cartpole",
    "classic_control_continuous": "mountain_car_continuous",
    "mujoco": "hopper",
}
SHORT_NAMES = {"vizdoom": ("doom",), "nethack": ("nle",)}  # other names of a package's default env
# packages of PufferLib 3 that are not supported
OTHERS = (
    "bsuite cogames craftax dm_lab gvgai kinetix links_awaken madrona mani_skill metta minerl morph nmmo3 nocturne "
    "slimevolley smac tribal_village trade_sim"
).split()
__all__ = [*PACKAGES]


def env_creator(package: str, name: str | None = None, **kwargs: Any) -> Callable[..., Any]:
    """A function that makes one env of a package as a PufferEnv. kwargs are passed to the env."""
    name = DEFAULTS.get(package, package) if name is None else name
    pattern = PACKAGES[package]
    if pattern == "gym-{}":
        name = _gymnasium_id(name)
    stem = name.lower().removeprefix(f"{package}-").removeprefix(f"{package}_") if pattern != "gym-{}" else name
    family = pattern.removesuffix("-{}")
    if family in names.FAMILIES:  # the family's name alone is its default env
        stem = names.FAMILIES[family][1] if stem in (package, family, *SHORT_NAMES.get(package, ())) else stem
    if (package, stem) == ("minigrid", "minigrid"):
        stem = "empty-8x8"
    try:
        make = names.find(pattern.format(stem))
    except UnknownEnv:
        raise
    except ValueError as error:
        raise EnvironmentSetupError(str(error)) from None
    return partial(_make, make, kwargs)


def _make(make: Any, fixed: dict[str, Any], buf: Any = None, seed: int | None = None, **own: Any) -> Any:
    env = make(**fixed, **own)
    is_many = hasattr(env, "possible_agents")
    emulated = emulation.PettingZooPufferEnv if is_many else emulation.GymnasiumPufferEnv
    return emulated(env=env, buf=buf, seed=seed)


def _gymnasium_id(name: str) -> str:
    """The newest Gymnasium id of a name: `mountain_car_continuous` is `MountainCarContinuous-v0`."""
    if name in gymnasium.registry:
        return name
    wanted = re.sub(r"[^a-z0-9]", "", re.sub(r"-v\d+$", "", name).lower())
    stems = {id: re.sub(r"-v\d+$", "", id) for id in gymnasium.registry if "/" not in id}
    ids = [id for id, stem in stems.items() if re.sub(r"[^a-z0-9]", "", stem.lower()) == wanted]
    if not ids:
        raise UnknownEnv(f"'{name}' is not an env of Gymnasium.{did_you_mean(name, sorted(set(stems.values())))}")
    return max(ids, key=lambda known: int(known.rsplit("-v", 1)[1]))


def _package(name: str) -> ModuleType:
    """A package as a module, so that `import shoal.puffer.environments.atari` works."""
    module = ModuleType(f"{__name__}.{name}", f"Env creators of {name}.")
    vars(module)["env_creator"] = partial(env_creator, name)
    vars(module)["__getattr__"] = missing_names(module.__name__, ["env_creator"], {})
    return module


for _name in PACKAGES:
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _package(_name)

_missing = missing_names(__name__, [*PACKAGES], {})


def __getattr__(name: str) -> Any:
    if name in OTHERS:
        raise MissingName(
            f"puffer.environments.{name} is not supported. Install its library, and pass a function that makes "
            "one env to shoal.puffer.emulate or shoal.puffer.vector.make."
        )
    return _missing(name)
