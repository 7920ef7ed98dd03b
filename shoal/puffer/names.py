"""PufferLib's names of envs, such as `atari-pong`: finds the function that makes one, or the native env."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
from gymnasium import wrappers

from shoal import registry
from shoal.entry import find_python
from shoal.errors import ConfigError, UnknownEnv, did_you_mean
from shoal.integrations import gymnasium as gymnasium_envs
from shoal.integrations import pettingzoo as pettingzoo_envs
from shoal.puffer.exceptions import APIUsageError

# families of names that are frameworks of Shoal: the prefix, and the env of the family's name alone
FAMILIES = {
    "crafter": ("crafter", "Reward"),
    "dm_control": ("dm_control", "walker-walk"),
    "gpudrive": ("gpudrive", "example_data"),
    "griddly": ("griddly", "Spiders"),
    "magent": ("magent", "battle"),
    "microrts": ("microrts", "16x16/basesWorkers16x16"),
    "minihack": ("minihack", "River"),
    "nethack": ("nethack", "Score"),
    "neuralmmo": ("nmmo", "small"),
    "open_spiel": ("openspiel", "connect_four"),
    "pokemon_red": ("pyboy", "PokemonRed"),
    "procgen": ("procgen", "bigfish"),
    "stable_retro": ("retro", "Airstriker-Genesis"),
    "vizdoom": ("vizdoom", "HealthGatheringSupreme"),
}
INSTALL = {
    "ale_py": "pip install ale-py==0.12.1",
    "minigrid": "pip install minigrid==3.2.0",
    "pettingzoo": "pip install 'pettingzoo[butterfly,classic,sisl]==1.27.0' mpe2==1.1.1",
    "cv2": "pip install opencv-python-headless",
}
PREFIXES = ("gym-", "atari-", "minigrid-", "pettingzoo-", "puffer_")
SHORT = {"minigrid-multiroom": "MiniGrid-MultiRoom-N6-v0", "minigrid-doorkey": "MiniGrid-DoorKey-8x8-v0"}
# the keyword arguments that set the number of agents of an env
AGENTS = {
    "knights_archers_zombies": lambda n: {"num_archers": n // 2, "num_knights": n - n // 2},
    "pistonball": lambda n: {"n_pistons": n},
    "multiwalker": lambda n: {"n_walkers": n},
    "pursuit": lambda n: {"n_pursuers": n},
    "simple_spread": lambda n: {"N": n},
}

_registered: dict[str, tuple[Any, dict[str, Any]]] = {}


def register(id: str, entry_point: Any, kwargs: dict[str, Any] | None = None) -> None:
    """Gives an env a name: `register("my-env", "my_package.envs:MyEnv", {"size": 5})`, then `make("my-env")`.

    Args:
        id: its name.
        entry_point: a function or class that makes one env, or its `module:name`, imported on first use.
        kwargs: keyword arguments for every env; those given to `make` override them.
    """
    if not isinstance(id, str) or not id:
        raise APIUsageError(f"id={id!r} must be a name.")
    if not callable(entry_point) and not (isinstance(entry_point, str) and ":" in entry_point):
        raise APIUsageError(f"entry_point={entry_point!r} must be a function, a class, or 'module:name' of one.")
    _registered[id] = (entry_point, dict(kwargs or {}))


def find(name: str) -> Callable[..., Any] | str:
    """A function that makes one env, or the name of a native env."""
    if name in _registered:
        entry_point, kwargs = _registered[name]
        return partial(_load(entry_point), **kwargs)
    for family, (prefix, default) in FAMILIES.items():
        if re.match(rf"{family}([-_].|$)", name) and ":" not in name:
            return _of_framework(name, prefix, name[len(family) + 1 :] or default)
    if name.startswith("gym-") or name in gymnasium.registry:
        return gymnasium_envs.find(name.removeprefix("gym-"))
    if name.startswith("atari-"):
        _need(name, "ale_py")
        return partial(_atari, _match(name, "ALE/"))
    if name.startswith("minigrid-"):
        _need(name, "minigrid")
        return partial(_minigrid, SHORT.get(name) or _match(name, "MiniGrid-"))
    if name.startswith("pettingzoo-"):
        _need(name, "pettingzoo")
        return _pettingzoo(name)
    if not registry.is_native(name):
        return find_python(name)
    native = name.removeprefix("puffer_")
    try:
        registry.find(native)
    except UnknownEnv:
        known = [*_registered, *registry.known_names(), *FAMILIES]
        near = did_you_mean(native, known)
        raise UnknownEnv(
            f"'{name}'.{near} Known names are gym-<id>, atari-<game>, minigrid-<name>, pettingzoo-<name>, "
            f"puffer_<name> for native envs ({', '.join(registry.known_names())}), and registered names."
        ) from None
    return native


def _of_framework(name: str, prefix: str, env: str) -> Callable[..., Any]:
    """An env of a framework of Shoal, with its standard preprocessing."""
    try:
        return find_python(f"{prefix}:{env}")
    except UnknownEnv:
        raise
    except ConfigError as error:
        raise APIUsageError(f"'{name}': {error}") from error


def _load(entry_point: Any) -> Callable[..., Any]:
    if callable(entry_point):
        return entry_point  # type: ignore[no-any-return]
    module, _, attribute = entry_point.partition(":")
    try:
        creator: Any = importlib.import_module(module)
        for part in attribute.split("."):
            creator = getattr(creator, part)
    except (ImportError, AttributeError) as error:
        raise APIUsageError(f"entry_point '{entry_point}' cannot be imported: {error}.") from error
    return creator  # type: ignore[no-any-return]


def _need(name: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise APIUsageError(f"'{name}' needs {package}, which is not installed. Install it: {INSTALL[package]}")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _match(name: str, prefix: str) -> str:
    """The newest Gymnasium id with this prefix and name, ignoring case and punctuation."""
    _import_ids(prefix)
    given = name.split("-", 1)[1]
    if prefix == "ALE/":  # the ids of old gym
        given = re.sub(r"(NoFrameskip|Deterministic)-v\d+$", "", given, flags=re.IGNORECASE)
    wanted = _plain(given)
    ids = {id: re.sub(r"-v\d+$", "", id.removeprefix(prefix)) for id in gymnasium.registry if id.startswith(prefix)}
    matching = [id for id, stem in ids.items() if _plain(stem) == wanted or _plain(id.removeprefix(prefix)) == wanted]
    if not matching:
        family = name.split("-", 1)[0]
        known = sorted({f"{family}-{re.sub(r'(?<=[a-z])(?=[A-Z])', '-', stem).lower()}" for stem in ids.values()})
        starting = [other for other in known if _plain(other).startswith(_plain(name))]
        near = f" There are {', '.join(starting[:8])}." if starting else did_you_mean(name, known)
        raise UnknownEnv(f"'{name}' is not one of the {len(known)} {family} envs.{near}")
    return max(matching, key=lambda other: int(other.rsplit("-v", 1)[1]))


def _import_ids(prefix: str) -> None:
    """Registers the ids of a package with Gymnasium. Called in each worker process."""
    gymnasium.register_envs(importlib.import_module("ale_py" if prefix == "ALE/" else "minigrid"))


def _atari(
    id: str, frameskip: int = 4, framestack: int | None = None, screen_size: int | None = None, **kwargs: Any
) -> Any:
    """An Atari game in grey: 210 x 160 pixels, or `screen_size` squared by Gymnasium's AtariPreprocessing (OpenCV)."""
    _import_ids("ALE/")
    env: Any
    if screen_size is None:
        env = gymnasium.make(id, frameskip=frameskip, **{"obs_type": "grayscale", **kwargs})
    else:
        _need(f"screen_size={screen_size}", "cv2")
        env = gymnasium.make(id, frameskip=1, **kwargs)
        env = wrappers.AtariPreprocessing(env, frame_skip=frameskip, screen_size=screen_size)
    return env if framestack in (None, 0, 1) else wrappers.FrameStackObservation(env, framestack)


def _minigrid(id: str, **kwargs: Any) -> Any:
    """A MiniGrid env with the observations image and direction, without the mission, whose text has no fixed size."""
    _import_ids("MiniGrid-")
    env = gymnasium.make(id, disable_env_checker=True, **kwargs)
    return wrappers.FilterObservation(env, ["image", "direction"])


def _pettingzoo(name: str) -> Callable[..., Any]:
    """The newest installed version of an env."""
    wanted = _plain(name.split("-", 1)[1])
    known = pettingzoo_envs.names()
    stems = {full: re.sub(r"_v\d+$", "", full.split("/")[-1]) for full in known}
    matching = [full for full, stem in stems.items() if wanted in (_plain(stem), _plain(full.split("/")[-1]))]
    if not matching:
        offered = sorted({f"pettingzoo-{stem.replace('_', '-')}" for stem in stems.values()})
        raise UnknownEnv(f"'{name}' is not one of the {len(offered)} PettingZoo envs.{did_you_mean(name, offered)}")
    newest = max(matching, key=lambda full: int(full.rsplit("_v", 1)[1]))
    return partial(_make_pettingzoo, pettingzoo_envs.find(newest), newest, stems[newest])


def _make_pettingzoo(
    make: Callable[..., Any], full: str, stem: str, num_agents: int | None = None, **kwargs: Any
) -> Any:
    if num_agents is not None and stem in AGENTS:
        kwargs = {**AGENTS[stem](num_agents), **kwargs}
    env = make(**kwargs)
    if num_agents is not None and len(env.possible_agents) != num_agents:
        raise APIUsageError(
            f"{full} has {len(env.possible_agents)} agents, not num_agents={num_agents}. "
            "Set their number with the env's own keyword argument."
        )
    return env


def is_env(thing: Any) -> bool:
    """Whether it is an env, not a function or class that makes one."""
    return not inspect.isclass(thing) and hasattr(thing, "step") and hasattr(thing, "reset")
