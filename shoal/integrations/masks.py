"""Action masks that an env has in its observations, as `infos["action_mask"]`, which policies read.

Observations stay as they are. A mask in the infos of the env itself is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.layout import Array, kind_of

KEY = "action_mask"


def has_mask(observation_space: Any, action_space: Any) -> bool:
    """Whether observations have a mask with one entry for each choice."""
    if kind_of(observation_space) != "Dict" or kind_of(action_space) != "Discrete":
        return False
    mask = observation_space.spaces.get(KEY)
    return mask is not None and mask.shape == (int(action_space.n),)


def only_first(count: int) -> Array:
    """The mask of an agent whose action does not count: one choice is left, from which nothing is learned."""
    mask = np.zeros(count, np.int8)
    mask[0] = 1
    return mask


class MasksFromObs:
    """A single env whose observations have a mask."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # before __init__, as when it is unpickled
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, {KEY: obs[KEY], **info}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One transition."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {KEY: obs[KEY], **info}


class AgentMasksFromObs:
    """An env with the API of ParallelEnv, where the observations of some agents have a mask."""

    def __init__(self, env: Any, agents: set[Any]) -> None:
        self.env, self._masked = env, agents

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # before __init__, as when it is unpickled
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Starts a game."""
        obs, infos = self.env.reset(seed=seed, options=options)
        return obs, self._with_masks(obs, infos)

    def step(self, actions: dict[Any, Any]) -> tuple[Any, ...]:
        """One transition of all agents."""
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        return obs, rewards, terminations, truncations, self._with_masks(obs, infos)

    def _with_masks(self, obs: dict[Any, Any], infos: Any) -> Any:
        if not isinstance(infos, dict):  # the runner says so
            return infos
        masks = {agent: {KEY: own[KEY]} for agent, own in obs.items() if agent in self._masked}
        return {agent: {**masks.get(agent, {}), **infos.get(agent, {})} for agent in {**infos, **masks}}


def agents_with_masks(env: Any) -> set[Any]:
    """The agents of a ParallelEnv whose observations have a mask."""
    return {agent for agent in env.possible_agents if has_mask(env.observation_space(agent), env.action_space(agent))}
