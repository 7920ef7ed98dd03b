"""PettingZoo's envs in Shoal: `pettingzoo:butterfly/pistonball_v6`, `pettingzoo:mpe2/simple_spread_v3`.

Parallel envs are stepped unchanged. An AEC env becomes a parallel one in which a step is one turn (`Turns`).
"""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from shoal.errors import BadOutput, ConfigError, UnknownEnv, did_you_mean
from shoal.integrations.cycles import AsParallel, Cycle
from shoal.integrations.framework import Framework, Reference, import_quietly, newest, plain, takes_any
from shoal.integrations.masks import KEY, AgentMasksFromObs, agents_with_masks, only_first
from shoal.layout import kind_of
from shoal.names import arguments, check_arguments

INSTALL = {"pettingzoo": "pip install 'pettingzoo[classic,butterfly]'", "mpe2": "pip install mpe2"}
SPREAD = {  # 0.6M steps, seed 1: -12.8; with gamma 0.99, lambda 0.95, 3e-4 and layers of 64: -23.6 after 1M
    "train": {"gamma": 0.9, "gae_lambda": 0.9, "learning_rate": 1e-3},
    "nn": {"hidden": 128},
}
Info = dict[str, Any]


# ---- by name ----


def find(name: str) -> Callable[..., Any]:
    """A function that makes the env of a name, `folder/module_vN`; the parallel one if the module has both APIs."""
    package = "mpe2" if name.startswith("mpe2/") else "pettingzoo"
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"pettingzoo:{name} needs {package}, which is not installed. Install it: {INSTALL[package]}")
    known = names()
    if name not in known:
        raise UnknownEnv(
            f"'pettingzoo:{name}'.{_suggestion(name, known)} 'shoal envs pettingzoo:' lists those of {_folders(known)}."
        )
    module = name.replace("/", ".") if package == "mpe2" else f"pettingzoo.{name.replace('/', '.')}"
    try:
        _load(module)
    except ImportError as error:
        folder = name.split("/")[0]
        install = INSTALL["mpe2"] if package == "mpe2" else f"pip install 'pettingzoo[{folder}]'"
        install += " ale-py" if folder == "atari" else ""  # it has the ROMs
        raise ConfigError(f"pettingzoo:{name} cannot be imported: {error}. Install what it needs: {install}") from error
    return partial(_make, module)


def names() -> list[str]:
    """Every env of the installed packages, by the names that `find` accepts. Imports none."""
    envs = []
    for package in INSTALL:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            continue
        root = Path(next(iter(spec.submodule_search_locations)))
        folders = [root] if package == "mpe2" else sorted(path for path in root.iterdir() if path.is_dir())
        for folder in folders:
            modules = (module.name for module in pkgutil.iter_modules([str(folder)]))
            envs += [f"{folder.name}/{module}" for module in modules if re.fullmatch(r"\w+_v\d+", module)]
    return sorted(envs)


def _suggestion(name: str, known: list[str]) -> str:
    """The same env in another version or folder; otherwise a similar name."""
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
    found: ModuleType = import_quietly(module)  # it warns that this is deprecated, but works in every version
    return found


def _make(module: str, **kwargs: Any) -> Any:
    loaded = _load(module)
    if module.startswith("pettingzoo.atari.") and (folder := rom_folder()):
        kwargs = {"auto_rom_install_path": folder, **kwargs}
    return (loaded.parallel_env if hasattr(loaded, "parallel_env") else loaded.env)(**kwargs)


def rom_folder() -> str:
    """The ROMs of ale-py, which multi_agent_ale_py itself does not have; empty without ale-py."""
    spec = importlib.util.find_spec("ale_py")
    return str(Path(spec.origin).parent / "roms") if spec is not None and spec.origin else ""


class PettingZoo(Framework):
    """The families of PettingZoo, and mpe2, which PettingZoo's `mpe` has become."""

    title = "games of several agents: butterfly, classic, sisl, mpe2"
    packages = {"pettingzoo": "pettingzoo>=1.24"}
    extra = "pettingzoo"
    example = "mpe2/simple_spread"
    also = ("butterfly/knights_archers_zombies", "classic/connect_four", "sisl/multiwalker")
    pattern = "FAMILY/NAME or FAMILY/NAME_vN"
    preprocessing = "none; games in which agents take turns (AEC) become steps of one turn each"
    references = (
        Reference(
            "mpe2/simple_spread",
            -19.21,
            "agents that walk to the nearest landmark, 200 episodes",
            "benchmarks/framework_learning.py spread --baseline",
        ),
        Reference(
            "butterfly/knights_archers_zombies",
            0.75,
            "agents that always attack, 30 episodes",
            "benchmarks/framework_learning.py kaz --baseline",
        ),
    )
    notes = (
        "Action masks are read from infos, and from the observation where it has an `action_mask`.",
        "Versions are those of the installed PettingZoo: 1.27 has knights_archers_zombies_v11, cooperative_pong_v6 and "
        "pursuit_v5, and no waterworld.",
        "Atari's games for two to four players need multi-agent-ale-py, and their ROMs from ale-py: "
        "pip install 'pettingzoo[atari]' ale-py.",
        "cooperative_pong is drawn once a step, also without a render mode, in which PettingZoo leaves it black.",
    )

    def names(self) -> list[str]:
        """Every env of the installed packages. Those of Atari need one more, and ROMs."""
        has_atari = importlib.util.find_spec("multi_agent_ale_py") is not None and bool(rom_folder())
        return [name for name in names() if has_atari or not name.startswith("atari/")]

    def find(self, name: str) -> Callable[..., Any]:
        """A function that makes the env of a name; without a version, the newest one that is installed.

        Case, punctuation and the family do not matter where the rest is the name of one env.
        """
        known = names()
        if name in known:
            return find(name)
        places = [(other, re.sub(r"_v\d+$", "", other)) for other in known]
        for part in (slice(None), slice(-1, None)):  # with the family, without it
            own = [(other, {plain("".join(text.split("/")[part])) for text in (other, stem)}) for other, stem in places]
            same = [other for other, spellings in own if plain(name) in spellings]
            if len({other.split("/")[0] for other in same}) == 1:
                return find(newest(same))
        return find(name)

    def options_for(self, name: str) -> Mapping[str, Any]:
        """What trains simple_spread: its episodes are of 25 steps, and its rewards are dense."""
        return SPREAD if re.match("(mpe2)?simplespread", plain(name)) else self.options

    def params(self, name: str) -> dict[str, str] | None:
        """Those of the env's class; None where it takes any, and checks them itself."""
        try:
            kind = self._class_of(name)
        except ConfigError:  # mistakes are reported when the env is made
            return None
        return None if kind is None else arguments(kind)

    def check_params(self, name: str, given: Mapping[str, Any]) -> None:
        """Raises for a param that the env's class does not have."""
        if given and (kind := self._class_of(name)) is not None:
            check_arguments(f"pettingzoo:{name}", kind, given, "--env.{}")

    def _class_of(self, name: str) -> Any:
        """The class of an env without its wrappers, which take any keywords; None if it takes any, too."""
        kind = getattr(_load(self.find(name).args[0]), "raw_env", None)  # type: ignore[attr-defined]
        return None if kind is None or takes_any(kind) else kind


# ---- envs for the runner ----


def adapt(env: Any) -> Any:
    """A parallel env: the given one, or an AEC env in which a step is one turn."""
    env = _without_checks(env)
    if hasattr(env, "observe") and hasattr(env, "last"):
        return Turns(env)
    masked = agents_with_masks(env)
    return AgentMasksFromObs(env, masked) if masked else env


def _without_checks(env: Any) -> Any:
    """Removes the wrappers that check the order of calls and the range of actions: the runner does."""
    try:
        from pettingzoo.utils import conversions, wrappers
    except ImportError:  # PettingZoo is not installed: an env with the same API
        return env
    checks = (wrappers.OrderEnforcingWrapper, wrappers.AssertOutOfBoundsWrapper)
    while type(env) in checks:
        env = env.env
    if type(env) is conversions.parallel_to_aec_wrapper:  # made as a parallel env
        return _without_checks(env.env)
    if type(env) is conversions.aec_to_parallel_wrapper:
        while type(env.aec_env) in checks:
            env.aec_env = env.aec_env.env
        return Cycle(env)
    return env


class Turns(AsParallel):
    """An AECEnv with the API of ParallelEnv: a step is one turn, and only the action of the agent to move counts.

    All living agents get an observation and their reward of the turn. `infos[agent]["acting"]` says whose turn is next,
    and `action_mask` what is allowed, where observations have a mask.
    Dead agents leave `agents` at once: the steps that AEC requires of them are taken here.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._masked = agents_with_masks(env)
        # hanabi, which is OpenSpiel's, takes its random numbers from the clock where no seed is given
        self._seeds = np.random.default_rng() if hasattr(getattr(env, "unwrapped", env), "hanabi_env") else None

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[dict[Any, Any], dict[Any, Info]]:
        """Starts a game."""
        if self._seeds is not None and seed is not None:
            self._seeds = np.random.default_rng(seed)
        elif self._seeds is not None:
            seed = int(self._seeds.integers(2**31))
        self.env.reset(seed=seed, options=options)
        self._step_dead({})
        return self._observe()

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """One turn."""
        env, players = self.env, self.agents
        env.step(actions[env.agent_selection])
        # `rewards` are those of this turn; `_cumulative_rewards` are summed since an agent's last turn
        rewards = {agent: env.rewards.get(agent, 0.0) for agent in players}
        terminations, truncations, infos = dict(env.terminations), dict(env.truncations), dict(env.infos)
        dead = [agent for agent in env.agents if terminations[agent] or truncations[agent]]
        last_obs = {agent: env.observe(agent) for agent in dead if agent in players}
        self._step_dead(rewards)
        terminations |= env.terminations  # the step of a dead agent may end another
        truncations |= env.truncations
        obs, living_infos = self._observe()
        return {**last_obs, **obs}, rewards, terminations, truncations, {**infos, **living_infos}

    def _step_dead(self, rewards: dict[Any, Any]) -> None:
        """Takes the steps of dead agents until a living one is to move or none is left; adds to rewards."""
        env = self.env
        while env.agents and _is_dead(env, env.agent_selection):
            agent, before = env.agent_selection, dict(env._cumulative_rewards)
            env.step(None)
            if agent in env.agents:
                raise BadOutput(f"agent {agent!r} is dead, but step(None) did not remove it from env.agents")
            for other in rewards:
                if other in env._cumulative_rewards:
                    rewards[other] += env._cumulative_rewards[other] - before[other]

    def _observe(self) -> tuple[dict[Any, Any], dict[Any, Info]]:
        """Observations and infos of the living agents. Called last, as action masks depend on whose turn it is."""
        env = self.env
        self.agents = [agent for agent in env.agents if not _is_dead(env, agent)]
        obs = {agent: env.observe(agent) for agent in self.agents}
        infos: dict[Any, Info] = {}
        for agent in self.agents:
            seen = {KEY: obs[agent][KEY]} if agent in self._masked else {}
            own = infos[agent] = {"acting": agent == env.agent_selection, **seen, **env.infos.get(agent, {})}
            if KEY in own and not own["acting"] and kind_of(env.action_space(agent)) == "Discrete":
                own[KEY] = only_first(len(own[KEY]))  # also where the env's infos allow nothing, as hanabi's do
        return obs, infos


def _is_dead(env: Any, agent: Any) -> bool:
    return bool(env.terminations[agent] or env.truncations[agent])


FRAMEWORK = PettingZoo("pettingzoo")
