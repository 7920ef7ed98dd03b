"""PufferLib's wrappers of single envs: statistics of episodes, clipped actions, smaller images.

Shoal reports `episode_return` and `episode_length` of every env; EpisodeStats adds the env's infos, summed over the
episode.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.puffer.adapt import GuideEnv, PettingZooWrapper
from shoal.puffer.exceptions import APIUsageError, missing_names
from shoal.puffer.utils import unroll_nested_dict

__all__ = [
    "ClipAction",
    "EpisodeStats",
    "GymToGymnasium",
    "MeanOverAgents",
    "MultiagentEpisodeStats",
    "PettingZooTruncatedWrapper",
    "PettingZooWrapper",
    "ResizeObservation",
]

Info = dict[str, Any]


class _Episode:
    """The sums of one agent's infos and rewards over an episode."""

    def __init__(self) -> None:
        self.infos: dict[str, list[Any]] = {}
        self.total, self.length = 0.0, 0

    def add(self, reward: Any, info: Info | None) -> None:
        """One step."""
        for key, value in unroll_nested_dict(info or {}):
            self.infos.setdefault(key, []).append(value)
        self.total += reward
        self.length += 1

    def report(self) -> Info:
        """The sums of all values that can be summed; the last value of text."""
        report: Info = {}
        for key, values in self.infos.items():
            if isinstance(values[-1], str):
                report[key] = values[-1]
            else:
                try:
                    report[key] = sum(values)
                except TypeError:  # not a number: PufferLib drops it too
                    continue
        return {**report, "episode_return": self.total, "episode_length": self.length}


class EpisodeStats(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A Gymnasium env whose infos are empty until an episode ends.

    At the end they have `episode_return`, `episode_length` and the sums of all numbers of the env's infos, nested ones
    by path (`"reward/goal"`).
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._episode = _Episode()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Starts an episode."""
        self._episode = _Episode()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """One transition."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._episode.add(reward, info)
        return obs, reward, terminated, truncated, self._episode.report() if terminated or truncated else {}


class MultiagentEpisodeStats(PettingZooWrapper):
    """The same as EpisodeStats for each agent of a PettingZoo parallel env."""

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[Any, Any]:
        """Starts a game."""
        self._episodes = {agent: _Episode() for agent in self.env.possible_agents}
        result: tuple[Any, Any] = super().reset(seed, options)
        return result

    def step(self, actions: Any) -> tuple[Any, ...]:
        """One transition of all agents."""
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        reports = {}
        for agent in rewards:
            episode = self._episodes[agent]
            episode.add(rewards[agent], infos.get(agent))
            is_over = terminations.get(agent) or truncations.get(agent)
            reports[agent] = episode.report() if is_over else {}
        return obs, rewards, terminations, truncations, reports


class MeanOverAgents(PettingZooWrapper):
    """A PettingZoo parallel env with one dict of infos for the whole game: the mean over agents of every number."""

    has_game_infos = True

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Starts a game."""
        obs, infos = super().reset(seed, options)
        return obs, self._mean(infos)

    def step(self, actions: Any) -> tuple[Any, ...]:
        """One transition of all agents."""
        *rest, infos = self.env.step(actions)
        return (*rest, self._mean(infos))

    def _mean(self, infos: dict[Any, Info]) -> Info:
        values: dict[str, list[Any]] = {}
        for info in infos.values():
            for key, value in info.items():
                values.setdefault(key, []).append(value)
        means = {}
        for key, parts in values.items():
            if all(isinstance(part, (bool, int, float, np.number, np.ndarray)) for part in parts):
                means[key] = np.mean(parts)
        return means


class ClipAction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A Gymnasium env whose Box actions have no bounds: they are clipped to the env's bounds before each step."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, spaces.Box):
            raise APIUsageError(f"ClipAction needs a Box of actions, not {space}.")
        self._low, self._high = space.low, space.high
        self.action_space = spaces.Box(-np.inf, np.inf, space.shape, space.dtype)

    def step(self, action: Any) -> Any:
        """One transition."""
        return self.env.step(np.clip(action, self._low, self._high))


class ResizeObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A Gymnasium env whose images, (height, width) or (height, width, c), keep every `downscale`-th row and column."""

    def __init__(self, env: Any, downscale: int = 2) -> None:
        super().__init__(env)
        space, self.downscale = env.observation_space, int(downscale)
        if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
            raise APIUsageError(f"ResizeObservation needs images, not {space}.")
        if self.downscale < 1 or any(side % self.downscale for side in space.shape[:2]):
            raise APIUsageError(f"downscale={downscale} does not divide the {space.shape[0]} x {space.shape[1]} image.")
        low, high = self._resized(space.low), self._resized(space.high)
        self.observation_space = spaces.Box(low, high, dtype=space.dtype)

    def _resized(self, image: Any) -> Any:
        return image[:: self.downscale, :: self.downscale]

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Starts an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._resized(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """One transition."""
        obs, *rest = self.env.step(action)
        return self._resized(obs), *rest


class GymToGymnasium(GuideEnv):
    """An env of old gym, `reset() -> obs` and four values from `step`, with the API of `gymnasium.Env`.

    A time limit (`TimeLimit.truncated` in the info) is a truncation, not a termination.
    """


class PettingZooTruncatedWrapper(PettingZooWrapper):
    """A PettingZoo parallel env whose reset returns an empty info for each agent."""

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[Any, Any]:
        """Starts a game."""
        obs, _ = super().reset(seed, options)
        return copy.copy(obs), {agent: {} for agent in obs}


__getattr__ = missing_names(__name__, __all__, {})
