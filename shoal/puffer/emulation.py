"""PufferLib 3's `emulation`: one Gymnasium or PettingZoo env as a PufferEnv, a batch of one game that resets itself.

Unlike in PufferLib, spaces keep their structure: observations of a Dict space are a dict of arrays, not bytes. In a
vector (`vector.make(lambda: GymnasiumPufferEnv(env=…))`) Shoal steps the wrapped env directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shoal.puffer import adapt
from shoal.puffer.env import PufferEnv
from shoal.puffer.exceptions import APIUsageError, missing_names
from shoal.puffer.vectorization import VectorEnv
from shoal.vector.python import PythonSerial

__all__ = ["GymnasiumPufferEnv", "PettingZooPufferEnv"]


class _Emulated(PufferEnv):
    """An env with PufferEnv's names. Pass the env, or a function that makes it with its arguments."""

    emulated = True

    def __init__(
        self,
        env: Any = None,
        env_creator: Callable[..., Any] | None = None,
        env_args: Sequence[Any] = (),
        env_kwargs: dict[str, Any] | None = None,
        buf: Any = None,  # unused: the runner writes results into the vector's memory
        seed: int | None = None,
    ) -> None:
        if (env is None) == (env_creator is None):
            raise APIUsageError("give either env or env_creator, not both or neither.")
        self.env = env_creator(*env_args, **(env_kwargs or {})) if env_creator else env
        self.first_seed = seed
        self._slot = adapt.slot(self.env)
        self.possible_agents = list(self._slot.agent_spaces.agents)
        self.num_agents = len(self.possible_agents)
        vec = PythonSerial([self._slot])
        self._vec = VectorEnv.over(vec)
        self.single_observation_space, self.single_action_space = vec.single_observation_space, vec.single_action_space
        self.observation_space, self.action_space = self._vec.observation_space, self._vec.action_space
        self.agent_ids, self.masks = np.arange(self.num_agents), np.ones(self.num_agents, np.bool_)
        self.infos: list[dict[str, Any]] = []

    def reset(self, seed: int | None = None) -> tuple[Any, list[dict[str, Any]]]:
        """Starts an episode: (observations, infos), a row for each agent."""
        self._vec.async_reset(self.first_seed if seed is None else seed)
        self.first_seed = None
        self._take()
        return self.observations, self.infos

    def step(self, action: Any) -> tuple[Any, ...]:
        """One transition: (observations, rewards, terminals, truncations, infos). Also takes `{agent: action}`."""
        self._vec.send(self._batched(action))
        self._take()
        return self.observations, self.rewards, self.terminals, self.truncations, self.infos

    def _batched(self, action: Any) -> Any:
        if isinstance(action, dict) and set(action) == set(self.possible_agents):
            if not self._vec._is_alike:
                return {name: np.asarray(action[name])[np.newaxis] for name in self.possible_agents}
            action = [action[name] for name in self.possible_agents]
        shape = self.action_space.shape
        return np.asarray(action).reshape(shape) if shape else action

    def _take(self) -> None:
        self.observations, self.rewards, self.terminals, self.truncations, self.infos, _, self.masks = self._vec.recv()

    def as_slot(self) -> Any:
        """In a vector, the wrapped env is stepped directly."""
        return self._slot

    def render(self) -> Any:
        """The env's frame."""
        return self.env.render()

    def close(self) -> None:
        """Closes the env."""
        self._vec.close()


class GymnasiumPufferEnv(_Emulated):
    """A `gymnasium.Env`, or one of old gym, as a PufferEnv of one agent."""


class PettingZooPufferEnv(_Emulated):
    """A PettingZoo env, parallel or AEC, as a PufferEnv of all its possible agents. `masks` says who is alive."""


__getattr__ = missing_names(__name__, __all__, {"nativize": "It is not needed: observations keep their structure."})
