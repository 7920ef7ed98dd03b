"""Griddly's grid worlds: `griddly:Sokoban`. They run in an environment of their own: `shoal env add griddly`."""

from __future__ import annotations

import ctypes.util
import re
from typing import Any

import numpy as np

from shoal.errors import ConfigError
from shoal.integrations.framework import import_quietly
from shoal.integrations.separate import Separate
from shoal.layout import Array
from shoal.vector.slots import Limited

VULKAN = "apt-get install libvulkan1 mesa-vulkan-drivers"


class Griddly(Separate):
    """The games that Griddly brings, each with its levels."""

    title = "grid worlds: Sokoban, Zelda, Foragers and others, for one player or several"
    packages = {"griddly": "griddly==1.6.7", "gym": "gym==0.26.2", "numpy": "numpy<2"}
    install = ("pip install griddly==1.6.7 gym==0.26.2 'numpy<2'",)
    python = ">=3.9,<3.12"
    example = "Sokoban"
    pattern = "GAME"
    preprocessing = "planes of 0 and 1, one for each kind of object; a time limit of 500 steps"
    notes = (
        "gym 0.26 and Griddly 1.6.7 need numpy < 2.",
        f"`--env.pixels true` draws observations and needs Vulkan ({VULKAN}); planes need none.",
        "Levels are fixed: a seed changes only games whose objects move at random.",
    )

    def canonical(self, name: str) -> str:
        """`Sokoban` also for `GDY-Sokoban-v0`."""
        return super().canonical(re.sub(r"^gdy-|-v\d+$", "", name, flags=re.IGNORECASE))

    def listed(self) -> list[str]:
        """The games, without gym's `GDY-` and `-v0`."""
        return sorted(re.sub(r"^GDY-|-v\d+$", "", id) for id in _ids())

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        level: int = 0,
        max_steps: int = 500,
        pixels: bool = False,
    ) -> Any:
        """One game: an env of one player, or one with the API of PettingZoo."""
        if pixels and ctypes.util.find_library("vulkan") is None:
            raise ConfigError(f"griddly: pixels=True needs Vulkan, without which Griddly crashes. Install it: {VULKAN}")
        import_quietly("gym")
        from griddly import gd
        from gym.envs.registration import registry

        observer = gd.ObserverType.SPRITE_2D if pixels else gd.ObserverType.VECTOR
        spec = registry[next(id for id in _ids() if re.sub(r"^GDY-|-v\d+$", "", id) == name)]
        keywords = {**spec.kwargs, "player_observer_type": observer, "global_observer_type": gd.ObserverType.VECTOR}
        from griddly.GymWrapper import GymWrapper

        game = GymWrapper(**keywords)
        if not 0 <= level < game.level_count:
            raise ConfigError(f"griddly:{name} has levels 0 .. {game.level_count - 1}, not {level}.")
        game.reset(level_id=level)
        return Limited(_Player(game), max_steps) if game.player_count == 1 else _Players(game, max_steps)


def _ids() -> list[str]:
    import_quietly("gym")
    import griddly  # noqa: F401, registers its ids
    from gym.envs.registration import registry

    return [id for id in registry if id.startswith("GDY-")]


def _frame(game: Any) -> Array:
    """The whole level as pixels, drawn from its planes: needs no Vulkan."""
    frame: Array = game._vector2rgb.convert(np.array(game.game.observe())).swapaxes(0, 2)
    return np.ascontiguousarray(frame)


class _Player:
    """A game of one player with the API of gymnasium.Env. Griddly's own `reset` takes no seed."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, game: Any) -> None:
        self.env = self.unwrapped = game
        self.observation_space, self.action_space = game.observation_space, game.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Starts the level."""
        if seed is not None:
            self.env.seed(seed % 2**31)
        return np.array(self.env.reset()), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One transition."""
        obs, reward, done, _info = self.env.step(action)
        return np.array(obs), float(reward), bool(done), False, {}

    def render(self) -> Array:
        """The level as pixels."""
        return _frame(self.env)

    def close(self) -> None:
        """Frees the game."""
        self.env.close()


class _Players:
    """A game of several players with the API of pettingzoo.ParallelEnv. They play until the game ends for all."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, game: Any, max_steps: int) -> None:
        self.env = self.unwrapped = game
        self.max_steps, self.tick = max_steps, 0
        self.possible_agents = [f"player_{k}" for k in range(game.player_count)]
        self.agents: list[str] = []
        self._observations = dict(zip(self.possible_agents, game.observation_space))
        self._actions = dict(zip(self.possible_agents, game.action_space))

    def observation_space(self, agent: str) -> Any:
        """Of one player."""
        return self._observations[agent]

    def action_space(self, agent: str) -> Any:
        """Of one player."""
        return self._actions[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Starts the level."""
        if seed is not None:
            self.env.seed(seed % 2**31)
        self.tick, self.agents = 0, list(self.possible_agents)
        return self._seen(self.env.reset()), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """One transition of all players."""
        self.tick += 1
        obs, rewards, done, _info = self.env.step([actions[agent] for agent in self.possible_agents])
        is_late = bool(self.max_steps) and self.tick >= self.max_steps and not done
        names = self.possible_agents
        self.agents = [] if done or is_late else list(names)
        flags = dict.fromkeys(names, bool(done)), dict.fromkeys(names, is_late)
        return self._seen(obs), dict(zip(names, map(float, rewards))), *flags, {agent: {} for agent in names}

    def _seen(self, obs: Any) -> dict[str, Array]:
        return {agent: np.array(own) for agent, own in zip(self.possible_agents, obs)}

    def render(self) -> Array:
        """The level as pixels."""
        return _frame(self.env)

    def close(self) -> None:
        """Frees the game."""
        self.env.close()


FRAMEWORK = Griddly("griddly")
