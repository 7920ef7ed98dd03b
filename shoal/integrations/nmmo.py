"""Neural MMO 2: `nmmo:small`, a world in which many agents forage, fight and trade.

It runs in an environment of its own, with Python 3.9 or 3.10: `shoal env add nmmo`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from shoal.integrations.separate import Box, Discrete, MultiDiscrete, Separate
from shoal.layout import Array

SIZES = {"small": "Small", "medium": "Medium", "large": "Large"}
SEEN = ("Tile", "Entity", "Inventory")  # of the observation; the market is an option


class NMMO(Separate):
    """The three sizes of world, with all game systems."""

    title = "Neural MMO 2: many agents in one world forage, fight and trade"
    packages = {"nmmo": "nmmo==2.1.2"}
    install = ("pip install nmmo==2.1.2",)
    python = ">=3.9,<3.11"
    timeout_s = 1800.0  # making the map of `large` takes minutes
    example = "small"
    pattern = "small, medium or large"
    can_render = False
    preprocessing = "tiles, entities and inventory; nine kinds of action as one MultiDiscrete, with masks"
    notes = (
        "nmmo 2.1.2 pins numpy 1.23, gymnasium 0.29 and pettingzoo 1.24, and needs a C compiler.",
        "Maps are made once, in the user's cache folder: seconds for small, minutes for large.",
        "Each agent's reward is that of its task; the default task is to survive.",
    )

    def listed(self) -> list[str]:
        """The sizes."""
        return list(SIZES)

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        players: int = 0,
        horizon: int = 0,
        maps: int = 1,
        market: bool = False,
    ) -> Any:
        """One world with the API of pettingzoo.ParallelEnv. 0: the size's own number."""
        import nmmo
        from nmmo.core import config

        chosen = {"MAP_N": maps, "MAP_FORCE_GENERATION": False}
        chosen |= {key: value for key, value in (("PLAYER_N", players), ("HORIZON", horizon)) if value}
        size = getattr(config, SIZES[name])
        settings = type("Settings", (size, config.AllGameSystems), chosen)()
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = base / "shoal" / "nmmo" / f"{nmmo.__version__}-{maps}"
        folder.mkdir(parents=True, exist_ok=True)
        settings.set("PATH_CWD", str(folder))
        with (folder / ".lock").open("w") as lock:  # the first worker makes the maps
            fcntl.flock(lock, fcntl.LOCK_EX)
            _remove_unfinished(folder / settings.PATH_MAPS)
            world = nmmo.Env(settings, seed=0)
        return World(world, (*SEEN, "Market") if market else SEEN)


def _remove_unfinished(maps: Path) -> None:
    """Removes maps whose making was interrupted: Neural MMO looks for their folders alone, and would read no map."""
    for one in maps.glob("map*"):
        if not (one / "fractal.npy").is_file():  # the file that is written last
            shutil.rmtree(one)


class World:
    """One world. Agents that die leave it."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, world: Any, seen: tuple[str, ...]) -> None:
        self.env, self.seen = world, seen
        self.possible_agents = list(world.possible_agents)
        first = self.possible_agents[0]
        spaces, actions = world.observation_space(first).spaces, world.action_space(first).spaces
        self.parts = [(kind, part) for kind, own in actions.items() for part in own.spaces]
        self._action = MultiDiscrete([actions[kind].spaces[part].n for kind, part in self.parts])
        self._observation = Dict(
            {
                **{key: Box(-32768, 32767, spaces[key].shape, np.int16) for key in seen},
                "AgentId": Discrete(int(spaces["AgentId"].n)),
            }
        )
        self.random = np.random.RandomState()

    @property
    def agents(self) -> list[Any]:
        """Those that are alive."""
        return list(self.env.agents)

    def observation_space(self, agent: Any) -> Any:
        """Of one agent."""
        return self._observation

    def action_space(self, agent: Any) -> Any:
        """What an agent does of each kind of action."""
        return self._action

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[Any, Any], Any]:
        """Starts an episode. Without a seed the next one is drawn here: Neural MMO would take one from the clock."""
        if seed is not None:
            self.random = np.random.RandomState(seed % 2**32)
        obs, _ = self.env.reset(seed=int(self.random.randint(2**31 - 1)))
        return self._seen(obs), self._infos(obs)

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """One tick of the world."""
        obs, rewards, terminated, truncated, _ = self.env.step(
            {agent: self._nested(actions[agent]) for agent in self.env.agents if agent in actions}
        )
        return self._seen(obs), rewards, terminated, truncated, self._infos(obs)

    def _nested(self, action: Array) -> dict[str, dict[str, int]]:
        nested: dict[str, dict[str, int]] = {}
        for (kind, part), value in zip(self.parts, action.tolist()):
            nested.setdefault(kind, {})[part] = value
        return nested

    def _seen(self, obs: dict[Any, Any]) -> dict[Any, dict[str, Any]]:
        return {
            agent: {**{key: own[key] for key in self.seen}, "AgentId": np.int64(own["AgentId"])}
            for agent, own in obs.items()
        }

    def _infos(self, obs: dict[Any, Any]) -> dict[Any, dict[str, Any]]:
        """Each agent's action mask. A part without a choice may only take its first."""
        infos = {}
        for agent, own in obs.items():
            masks = []
            for kind, part in self.parts:
                mask = own["ActionTargets"][kind][part].astype(np.bool_)
                if not mask.any():
                    mask[0] = True
                masks.append(mask)
            infos[agent] = {"action_mask": np.concatenate(masks)}
        return infos

    def close(self) -> None:
        """Does nothing: it holds no resources."""


class Dict:
    """A space with named parts."""

    def __init__(self, spaces: dict[str, Any]) -> None:
        self.spaces = spaces


FRAMEWORK = NMMO("nmmo")
