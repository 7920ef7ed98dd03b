"""Two views of a VecEnv with several agents per env: one env per agent, or a dict by agent."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from shoal.errors import ActionError, ConfigError
from shoal.spec import Array, map_leaves
from shoal.vector.base import ClosesItself, Result


class RowsEnv(ClosesItself, VectorEnv[Array, Any, Array]):
    """Every agent is one env, for wrappers and trainers that support single agents only.

    An agent that is out before its game ends is a row of zeros until its next game starts;
    `infos["alive"]` says which rows are in the game.
    """

    def __init__(self, vec: Any) -> None:
        self.vec, self.num_envs = vec, vec.num_rows
        self.single_observation_space, self.single_action_space = vec.single_observation_space, vec.single_action_space
        self.observation_space, self.action_space = vec.observation_space, vec.action_space
        self.metadata, self.render_mode = vec.metadata, vec.render_mode
        self.autoreset_mode = vec.autoreset_mode

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
                raise ConfigError(
                    "options['reset_mask'] selects some agents of a game but not all. A game resets all of its agents."
                )
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

    def __del__(self) -> None:
        """Does nothing: some versions of Gymnasium would close the viewed env."""


class AgentsEnv(ClosesItself):
    """`{agent_id: batch over games}` for obs, actions, rewards and flags, also where agents have different spaces.

    Agents have the names that their env gives them; those of native envs are `agent_0`, `agent_1`, …
    """

    def __init__(self, vec: Any) -> None:
        self.vec, self.num_envs = vec, vec.num_envs
        self.possible_agents, self._alike = list(vec.agent_spaces.agents), vec.agent_spaces.alike

    def observation_space(self, agent: Any) -> Any:
        """Of one agent of one game."""
        return self.vec.single_observation_space if self._alike else self.vec.single_observation_space[agent]

    def action_space(self, agent: Any) -> Any:
        """Of one agent of one game."""
        return self.vec.single_action_space if self._alike else self.vec.single_action_space[agent]

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Any, Any], dict[str, Any]]:
        """Starts episodes."""
        obs, infos = self.vec.reset(seed=seed, options=options)
        return self._split(obs) if self._alike else obs, infos

    def step(self, actions: dict[Any, Any]) -> tuple[Any, ...]:
        """One transition: (obs, rewards, terminated, truncated) by agent, and the infos over rows."""
        if set(actions) != set(self.possible_agents):
            raise ActionError(f"actions are for {list(actions)}, expected {self.possible_agents}. Nothing was stepped.")
        rows = interleaved([actions[agent] for agent in self.possible_agents]) if self._alike else actions
        obs, *flags, infos = self.vec.step(rows)
        return (self._split(obs) if self._alike else obs, *(self._split(flag) for flag in flags), infos)

    def render(self) -> Any:
        """A frame of every game."""
        return self.vec.render()

    def close(self) -> None:
        """Closes the envs."""
        self.vec.close()

    def _split(self, rows: Any) -> dict[Any, Any]:
        """Views by agent: the rows of agent k are k, k + agents_per_env, …"""
        step = self.vec.agents_per_env
        return {name: map_leaves(itemgetter(slice(k, None, step)), rows) for k, name in enumerate(self.possible_agents)}


def interleaved(batches: list[Any]) -> Any:
    """The batches of all agents as one batch of rows: the agents of game 0, those of game 1, …"""
    try:
        if isinstance(batches[0], dict):
            return {key: interleaved([batch[key] for batch in batches]) for key in batches[0]}
        if isinstance(batches[0], tuple):
            return tuple(interleaved([batch[k] for batch in batches]) for k in range(len(batches[0])))
        stacked = np.stack([np.asarray(batch) for batch in batches], axis=1)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ActionError(f"the agents' actions differ in structure or shape: {error}. Nothing was stepped.") from None
    return stacked.reshape(-1, *stacked.shape[2:])
