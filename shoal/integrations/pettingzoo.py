"""PettingZoo in Shoal: `pettingzoo:butterfly/pistonball_v6`, `pettingzoo:mpe2/simple_spread_v3`, or any env of its API.

Parallel envs are stepped as they are. An AEC env becomes a parallel one in which a step is one turn (`Turns`).
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.errors import BadOutput, ConfigError, UnknownEnv, did_you_mean

INSTALL = {"pettingzoo": "pip install 'pettingzoo[classic,butterfly]'", "mpe2": "pip install mpe2"}
Info = dict[str, Any]


# ---- by name ----


def find(name: str) -> Callable[..., Any]:
    """A function that makes the env of that name, `folder/module_vN`; parallel where the module has both APIs."""
    package = "mpe2" if name.startswith("mpe2/") else "pettingzoo"
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"pettingzoo:{name} needs {package}, which is not installed. Install it: {INSTALL[package]}")
    known = names()
    if name not in known:
        raise UnknownEnv(f"'pettingzoo:{name}'.{_suggestion(name, known)} There are {len(known)}: {_folders(known)}.")
    module = name.replace("/", ".") if package == "mpe2" else f"pettingzoo.{name.replace('/', '.')}"
    try:
        _load(module)
    except ImportError as error:
        folder = name.split("/")[0]
        install = INSTALL["mpe2"] if package == "mpe2" else f"pip install 'pettingzoo[{folder}]'"
        raise ConfigError(f"pettingzoo:{name} cannot be imported: {error}. Install what it needs: {install}") from error
    return partial(_make, module)


def names() -> list[str]:
    """Every env of the installed packages, as `find` takes them. Imports none."""
    found = []
    for package in INSTALL:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            continue
        root = Path(next(iter(spec.submodule_search_locations)))
        folders = [root] if package == "mpe2" else sorted(path for path in root.iterdir() if path.is_dir())
        for folder in folders:
            modules = (module.name for module in pkgutil.iter_modules([str(folder)]))
            found += [f"{folder.name}/{module}" for module in modules if re.fullmatch(r"\w+_v\d+", module)]
    return sorted(found)


def _suggestion(name: str, known: list[str]) -> str:
    """The same env in another version or folder, else a name that looks alike."""
    stem = re.sub(r"_v\d+$", "", name.split("/")[-1])
    versions = [other for other in known if re.sub(r"_v\d+$", "", other.split("/")[-1]) == stem]
    if versions:
        newest = max(versions, key=lambda other: int(other.rsplit("_v", 1)[1]))
        return f" Did you mean '{newest}', the newest version that is installed?"
    return did_you_mean(name, known)


def _folders(known: list[str]) -> str:
    folders = sorted({name.split("/")[0] for name in known})
    return ", ".join(f"{folder}/…" for folder in folders)


def _load(module: str) -> ModuleType:
    with warnings.catch_warnings():  # importing an env by its module is deprecated, but works in every version
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(module)


def _make(module: str, **kwargs: Any) -> Any:
    loaded = _load(module)
    return (loaded.parallel_env if hasattr(loaded, "parallel_env") else loaded.env)(**kwargs)


# ---- as the runner wants it ----


def adapt(env: Any) -> Any:
    """A parallel env: the given one, or an AEC env turn by turn."""
    env = _without_checks(env)
    return Turns(env) if hasattr(env, "observe") and hasattr(env, "last") else env


def _without_checks(env: Any) -> Any:
    """Takes off the wrappers that check the order and the range of what the runner gives right by construction."""
    try:
        from pettingzoo.utils import conversions, wrappers
    except ImportError:  # an env with the same API
        return env
    checks = (wrappers.OrderEnforcingWrapper, wrappers.AssertOutOfBoundsWrapper)
    while type(env) in checks:
        env = env.env
    if type(env) is conversions.parallel_to_aec_wrapper:  # made for all to act at once, so let them
        return _without_checks(env.env)
    if type(env) is conversions.aec_to_parallel_wrapper:
        while type(env.aec_env) in checks:
            env.aec_env = env.aec_env.env
        env.env = env.aec_env  # where get_attr and set_attr look further, as in any wrapper
    return env


class Turns:
    """An AECEnv with the API of ParallelEnv: a step is one turn, and only the action of whose turn it is counts.

    All living agents are shown what they observe, and get what the turn earned them. `infos[agent]["acting"]` says
    whose turn is next. The steps that AEC wants of dead agents are taken here; the dead leave `agents` at once.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.possible_agents = list(env.possible_agents)
        self.agents: list[Any] = []

    def observation_space(self, agent: Any) -> Any:
        """Of one agent."""
        return self.env.observation_space(agent)

    def action_space(self, agent: Any) -> Any:
        """Of one agent."""
        return self.env.action_space(agent)

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[dict[Any, Any], dict[Any, Info]]:
        """Starts a game."""
        self.env.reset(seed=seed, options=options)
        self._bury({})
        return self._look()

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """One turn."""
        env, players = self.env, self.agents
        env.step(actions[env.agent_selection])
        # `rewards` is what this very step gave to each; `_cumulative_rewards` adds up since an agent's own last turn
        rewards = {agent: env.rewards.get(agent, 0.0) for agent in players}
        terminations, truncations, infos = dict(env.terminations), dict(env.truncations), dict(env.infos)
        dead = [agent for agent in env.agents if terminations[agent] or truncations[agent]]
        last_obs = {agent: env.observe(agent) for agent in dead if agent in players}
        self._bury(rewards)
        terminations |= env.terminations  # burying one may end another
        truncations |= env.truncations
        obs, living_infos = self._look()
        return {**last_obs, **obs}, rewards, terminations, truncations, {**infos, **living_infos}

    def _bury(self, rewards: dict[Any, Any]) -> None:
        """Takes the steps of dead agents, until a living one is to act or none is left."""
        env = self.env
        while env.agents and _is_dead(env, env.agent_selection):
            agent, before = env.agent_selection, dict(env._cumulative_rewards)
            env.step(None)
            if agent in env.agents:
                raise BadOutput(f"agent {agent!r} is dead, but step(None) did not take it out of env.agents")
            for other in rewards:
                if other in env._cumulative_rewards:
                    rewards[other] += env._cumulative_rewards[other] - before[other]

    def _look(self) -> tuple[dict[Any, Any], dict[Any, Info]]:
        """What the living see, after the dead are gone: masks of legal actions depend on whose turn it is."""
        env = self.env
        self.agents = [agent for agent in env.agents if not _is_dead(env, agent)]
        obs = {agent: env.observe(agent) for agent in self.agents}
        return obs, {
            agent: {**env.infos.get(agent, {}), "acting": agent == env.agent_selection} for agent in self.agents
        }

    def render(self) -> Any:
        """A frame."""
        return self.env.render()

    def state(self) -> Any:
        """The env's global state, where it has one."""
        return self.env.state()

    def close(self) -> None:
        """Closes the env."""
        self.env.close()


def _is_dead(env: Any, agent: Any) -> bool:
    return bool(env.terminations[agent] or env.truncations[agent])
