"""One env of another Python interpreter as an object of this one, for libraries that want a function that makes an env.

`shoal.make` needs none of this: its workers run under that interpreter. Here one worker holds one env, and each step is
a message to it.
"""

from __future__ import annotations

import operator
from typing import Any

import gymnasium
import numpy as np

from shoal.layout import map_leaves
from shoal.spec import Array

NOT_OF_ENVS = ("env_id", "alive", "final_obs", "final_info")  # infos of the vector, not of an env


def make_one(env: str, **params: Any) -> Any:
    """One env by its name: a `gymnasium.Env`, or for several agents one with the API of pettingzoo.ParallelEnv."""
    from shoal.entry import make

    vec = make(env, 1, backend="serial", autoreset="disabled", copy=True, **params)
    return One(vec, env, params.get("render_mode")) if vec.agents_per_env == 1 else Many(vec, env)


def _row(values: Any, row: int) -> Any:
    return map_leaves(operator.itemgetter(row), values)


def _infos(infos: dict[str, Any], row: int) -> dict[str, Any]:
    own = {key: value for key, value in infos.items() if not key.startswith("_") and key not in NOT_OF_ENVS}
    return {key: _row(value, row) for key, value in own.items() if f"_{key}" not in infos or infos[f"_{key}"][row]}


class One(gymnasium.Env[Any, Any]):
    """An env of one agent."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, vec: Any, name: str, render_mode: str | None) -> None:
        self.vec, self.name, self.render_mode = vec, name, render_mode
        self.observation_space, self.action_space = vec.single_observation_space, vec.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed)
        obs, infos = self.vec.reset(seed=seed, options=options)
        return _row(obs, 0), _infos(infos, 0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One transition."""
        obs, rewards, terminated, truncated, infos = self.vec.step(np.asarray(action)[np.newaxis])
        return _row(obs, 0), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _infos(infos, 0)

    def render(self) -> Any:
        """The env's frame."""
        return self.vec.call("render")[0]

    def close(self) -> None:
        """Ends the worker."""
        self.vec.close()


class Many:
    """An env of several agents. An agent that is out of the game leaves `agents`."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, vec: Any, name: str) -> None:
        self.vec, self.name = vec, name
        self.spaces = vec.agent_spaces
        self.possible_agents = list(self.spaces.agents)
        self.agents: list[Any] = []

    def observation_space(self, agent: Any) -> Any:
        """Of one agent."""
        return self.spaces.observation_spaces[self.possible_agents.index(agent)]

    def action_space(self, agent: Any) -> Any:
        """Of one agent."""
        return self.spaces.action_spaces[self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[Any, Any], Any]:
        """Starts an episode."""
        obs, infos = self.vec.reset(seed=seed, options=options)
        self.agents = self._alive(infos)
        return self._of(obs, self.agents), {agent: _infos(infos, self._number(agent)) for agent in self.agents}

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """One transition of all agents that are in the game."""
        obs, rewards, terminated, truncated, infos = self.vec.step(self._batch(actions))
        acting, rows = self.agents, [self._number(agent) for agent in self.agents]
        flags = [dict(zip(acting, map(bool, values[rows]))) for values in (terminated, truncated)]
        over = [agent for agent in acting if flags[0][agent] or flags[1][agent]]
        self.agents = [agent for agent in self._alive(infos) if agent not in over]
        each = {agent: _infos(infos, row) for agent, row in zip(acting, rows)}
        return self._of(obs, acting), dict(zip(acting, map(float, rewards[rows]))), *flags, each

    def _number(self, agent: Any) -> int:
        return self.possible_agents.index(agent)

    def _alive(self, infos: dict[str, Any]) -> list[Any]:
        alive: Array = infos.get("alive", np.ones(len(self.possible_agents), np.bool_))
        return [agent for agent, is_in in zip(self.possible_agents, alive) if is_in]

    def _of(self, obs: Any, agents: list[Any]) -> dict[Any, Any]:
        if self.spaces.alike:
            return {agent: _row(obs, self._number(agent)) for agent in agents}
        return {agent: _row(obs[agent], 0) for agent in agents}

    def _batch(self, actions: dict[Any, Any]) -> Any:
        """Actions of all agents; those that are out of the game have none: zeros, which the env does not read."""
        each = {
            agent: actions[agent] if agent in actions else np.zeros_like(self.action_space(agent).sample())
            for agent in self.possible_agents
        }
        if self.spaces.alike:
            return np.stack([np.asarray(action) for action in each.values()])
        return {agent: np.asarray(action)[np.newaxis] for agent, action in each.items()}

    def render(self) -> Any:
        """The env's frame."""
        return self.vec.call("render")[0]

    def close(self) -> None:
        """Ends the worker."""
        self.vec.close()
