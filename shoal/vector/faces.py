"""Two more faces of a VecEnv with several agents per env: one row per agent, or a dict by agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from shoal.errors import ActionError, ConfigError
from shoal.spec import Array
from shoal.vector.base import Result


class RowsEnv(VectorEnv[Array, Any, Array]):
    """Every agent is one env of the batch, so that wrappers and trainers for single agents just work.

    An agent that is out before its game ends is a row of zeros until the game starts anew;
    `infos["alive"]` says which rows are real.
    """

    def __init__(self, vec: Any) -> None:
        self.vec, self.num_envs = vec, vec.num_rows
        self.single_observation_space, self.single_action_space = vec.single_observation_space, vec.single_action_space
        self.observation_space, self.action_space = vec.observation_space, vec.action_space
        self.metadata, self.render_mode = vec.metadata, vec.render_mode

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Starts episodes. A `reset_mask` is over rows and must be the same for all agents of a game."""
        agents = self.vec.agents_per_env
        if seed is not None and not isinstance(seed, (int, np.integer)):
            seed = list(seed)[::agents]
        if options and isinstance(mask := options.get("reset_mask"), np.ndarray) and len(mask) == self.num_envs:
            games = mask.reshape(-1, agents)
            if (games.any(1) != games.all(1)).any():
                raise ConfigError("options['reset_mask'] selects some agents of a game but not all: games reset whole.")
            options = {**options, "reset_mask": games.all(1)}
        result: tuple[Array, dict[str, Any]] = self.vec.reset(seed=seed, options=options)
        return result

    def step(self, actions: Any) -> Result:
        """One transition of every game."""
        result: Result = self.vec.step(actions)
        return result

    def render(self) -> Any:
        """A frame of every game, once for each of its agents."""
        return tuple(frame for frame in self.vec.render() for _ in range(self.vec.agents_per_env))

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the envs."""
        self.vec.close()


class AgentsEnv:
    """`{agent_id: batch over games}` for obs, actions, rewards and flags. Agents are `agent_0`, `agent_1`, …"""

    def __init__(self, vec: Any) -> None:
        self.vec, self.num_envs = vec, vec.num_envs
        self.possible_agents = [f"agent_{k}" for k in range(vec.agents_per_env)]

    def observation_space(self, agent: str) -> Any:
        """Of one agent of one game."""
        return self.vec.single_observation_space

    def action_space(self, agent: str) -> Any:
        """Of one agent of one game."""
        return self.vec.single_action_space

    def reset(self, *, seed: int | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
        """Starts episodes."""
        obs, infos = self.vec.reset(seed=seed)
        return self._split(obs), infos

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        """One transition: (obs, rewards, terminated, truncated) by agent, and the infos over rows."""
        if sorted(actions) != sorted(self.possible_agents):
            raise ActionError(f"actions are for {sorted(actions)}, expected {self.possible_agents}.")
        stacked = np.stack([np.asarray(actions[agent]) for agent in self.possible_agents], axis=1)
        *arrays, infos = self.vec.step(stacked.reshape(-1, *stacked.shape[2:]))
        return (*(self._split(array) for array in arrays), infos)

    def close(self) -> None:
        """Closes the envs."""
        self.vec.close()

    def _split(self, rows: Array) -> dict[str, Array]:
        """Views, no copies: agent k's rows are every agents_per_env-th."""
        agents = self.vec.agents_per_env
        return {name: rows[k::agents] for k, name in enumerate(self.possible_agents)}
