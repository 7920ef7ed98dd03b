"""PufferLib's `ocean`: native envs by name, each a PufferEnv of many games.

    env = pufferlib.ocean.env_creator("puffer_breakout")(num_envs=1024)
    vecenv = pufferlib.vector.make(pufferlib.ocean.env_creator("breakout"), env_kwargs={"num_envs": 1024}, num_envs=2)

The games are those of Shoal. A game that PufferLib has too has the same name, but rewards, observations and params may
differ ('shoal envs NAME').
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shoal.errors import UnknownEnv, did_you_mean
from shoal.puffer import core, names
from shoal.puffer.env import BUFFERS, PufferEnv
from shoal.puffer.exceptions import missing_names
from shoal.registry import known_names
from shoal.vector.slots import VectorSlot

__all__ = ["OceanEnv", "env_creator"]


def env_creator(name: str = "breakout", *args: Any, **kwargs: Any) -> Callable[..., OceanEnv]:
    """A function that makes a native env: `env_creator("puffer_pong")(num_envs=64)`."""
    native = names.find(name)
    if not isinstance(native, str):
        known = known_names()
        raise UnknownEnv(
            f"'{name}' is not a native env.{did_you_mean(name, known)} Native envs are {', '.join(known)}."
        )
    return partial(OceanEnv, native, *args, **kwargs)


class OceanEnv(PufferEnv):
    """`num_envs` games of a native env as one PufferEnv. In a vector, Shoal steps the games themselves.

    Args:
        name: of a native env.
        num_envs: games.
        render_mode: None or `rgb_array`.
        log_interval: `step` returns infos every this many steps: means over the episodes that ended.
        buf: PufferLib's buffers; the results are copied into them.
        seed: of the first reset.
        **params: of the env, and num_threads.
    """

    emulated = True  # no in-place buffers are needed

    def __init__(
        self,
        name: str,
        num_envs: int = 1,
        render_mode: str | None = None,
        log_interval: int = 128,
        buf: Any = None,
        seed: int | None = None,
        num_threads: int | None = None,
        **params: Any,
    ) -> None:
        options = {"num_workers": num_threads, "render_mode": render_mode}
        self.vec: Any = core.make_threads(name, num_envs, None, options, params)
        self.render_mode, self.first_seed, self.log_interval = render_mode, seed, log_interval
        self.num_agents, self.agent_ids = int(self.vec.num_rows), np.arange(self.vec.num_rows)
        self.single_observation_space = self.vec.single_observation_space
        self.single_action_space = self.vec.single_action_space
        self.observation_space, self.action_space = self.vec.observation_space, self.vec.action_space
        self._buf = buf
        space: Any = self.single_observation_space
        self._start(np.zeros((self.num_agents, *space.shape), space.dtype), {})

    def reset(self, seed: int | None = None) -> tuple[Any, list[dict[str, Any]]]:
        """Starts episodes: (observations, infos)."""
        seed, self.first_seed = (self.first_seed if seed is None else seed), None
        obs, infos = self.vec.reset(seed=seed)
        self._start(obs, infos)
        return self.observations, self.infos

    def step(self, action: Any) -> tuple[Any, ...]:
        """One transition of all games: (observations, rewards, terminals, truncations, infos)."""
        self._set_results(*self.vec.step(action))
        self._steps += 1
        self.infos = self._means() if self._steps % self.log_interval == 0 else []
        return self.observations, self.rewards, self.terminals, self.truncations, self.infos

    def _start(self, obs: Any, infos: dict[str, Any]) -> None:
        """Sets the first observations, with zero rewards and flags."""
        rewards = np.zeros(self.num_agents, np.float32)
        self._set_results(obs, rewards, np.zeros(self.num_agents, np.bool_), np.zeros(self.num_agents, np.bool_), infos)
        self._steps = 0
        self.infos: list[dict[str, Any]] = []

    def _set_results(self, obs: Any, rewards: Any, terminals: Any, truncations: Any, infos: dict[str, Any]) -> None:
        masks = infos.get("alive", np.ones(self.num_agents, np.bool_))
        for name, value in zip(BUFFERS, (obs, rewards, terminals, truncations, masks)):
            if self._buf is not None:
                self._buf[name][:] = value
                value = self._buf[name]
            setattr(self, name, value)

    def _means(self) -> list[dict[str, Any]]:
        stats = self.vec.drain_stats()
        count = stats.pop("episodes")
        if not count:
            return []
        means = {name: numbers["mean"] for name, numbers in stats.items()}
        return [{"episode_return": means.pop("return"), "episode_length": means.pop("length"), **means, "n": count}]

    def as_slot(self) -> Any:
        """In a vector, the games are stepped without this wrapper."""
        return VectorSlot(self.vec)

    def render(self) -> Any:
        """A frame of every game."""
        return self.vec.render()

    def close(self) -> None:
        """Frees the games."""
        self.vec.close()


__getattr__ = missing_names(__name__, __all__, {})
