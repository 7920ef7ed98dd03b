"""PufferEnv and Wrapper: the base classes of PufferLib's envs, in its two styles.

(a) Guides: `super().__init__(buf)` first, spaces afterwards, `reset() -> obs`, `step -> (obs, reward, done, info)`.
(b) PufferLib 3: `single_observation_space`, `single_action_space` and `num_agents` first, then `super().__init__(buf)`
    gives the buffers that `reset` and `step` write in place. Such an env resets its agents itself, inside `step`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from shoal.puffer.exceptions import APIUsageError
from shoal.spec import Array

BUFFERS = ("observations", "rewards", "terminals", "truncations", "masks")


class PufferEnv:
    """An env in one of PufferLib's two styles (see the module). In style (b) `buf` holds its rows of shared memory."""

    single_observation_space: spaces.Space[Any]
    single_action_space: spaces.Space[Any]
    num_agents: int
    observations: Any
    rewards: Array
    terminals: Array
    truncations: Array
    masks: Array
    actions: Array
    is_in_place = False  # style (b)
    first_seed: int | None = None

    def __init__(self, buf: Any = None) -> None:
        given = [name for name in ("single_observation_space", "single_action_space") if hasattr(self, name)]
        if not given:
            self.buf = buf
            if not hasattr(self, "num_agents"):
                self.num_agents = 1
            return
        for name in ("single_observation_space", "single_action_space", "num_agents"):
            if not hasattr(self, name):
                raise APIUsageError(
                    f"{type(self).__name__} has no {name}. Set it before super().__init__(buf), as {given[0]} is, "
                    "or set all spaces afterwards."
                )
        if self.num_agents < 1:
            raise APIUsageError(f"num_agents={self.num_agents!r} must be at least 1.")
        if not isinstance(self.single_observation_space, spaces.Box):
            kind = type(self.single_observation_space).__name__
            raise APIUsageError(f"in-place buffers need a Box of observations, not {kind}.")
        if not isinstance(self.single_action_space, (spaces.Discrete, spaces.MultiDiscrete, spaces.Box)):
            kind = type(self.single_action_space).__name__
            raise APIUsageError(f"in-place buffers need Discrete, MultiDiscrete or Box actions, not {kind}.")
        self.is_in_place = True
        set_buffers(self, buf)
        self.observation_space: Any = batch_space(self.single_observation_space, self.num_agents)
        self.action_space: Any = batch_space(self.single_action_space, self.num_agents)
        self.agent_ids = np.arange(self.num_agents)

    # ---- methods that an env defines ----

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Starts an episode: (a) returns obs; (b) takes a seed and returns (observations, infos)."""
        raise NotImplementedError

    def step(self, action: Any) -> Any:
        """One transition: (a) returns (obs, reward, done, info); (b) the buffers and a list of infos."""
        raise NotImplementedError

    def close(self) -> None:
        """Frees the env's resources."""

    def render(self) -> Any:
        """A frame; None unless an env defines it."""

    # ---- spaces, guide style ----

    def make_space(
        self, shape: Any, low: float = -np.inf, high: float = np.inf, dtype: Any = np.float32
    ) -> spaces.Space[Any]:
        """A Box of that shape, or a Dict of several: `{"image": (84, 84, 3), "kind": self.make_discrete(5)}`."""
        if isinstance(shape, spaces.Space):
            return shape
        if isinstance(shape, Mapping):
            return spaces.Dict({key: self.make_space(part, low, high, dtype) for key, part in shape.items()})
        shape = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(size) for size in shape)
        return spaces.Box(low, high, shape, dtype)

    def make_discrete(self, n: int) -> spaces.Discrete:
        """A space of n choices."""
        return spaces.Discrete(n)

    def make_multi_discrete(self, sizes: Sequence[int]) -> spaces.MultiDiscrete:
        """A space of several choices."""
        return spaces.MultiDiscrete(list(sizes))

    # ---- randomness of a guide-style env, whose reset takes no seed ----

    @property
    def np_random(self) -> np.random.Generator:
        """The random stream of this env, which `seed` sets. (numpy's global stream is shared by all envs.)"""
        if "_np_random" not in self.__dict__:
            self._np_random = np.random.default_rng()
        return self._np_random

    def seed(self, seed: int | None = None) -> None:
        """Seeds `np_random`. Called before a `reset` that takes no seed."""
        self._np_random = np.random.default_rng(seed)

    # ---- PufferLib 3: an env of many agents is a vector env itself ----

    emulated = False
    done = False  # never true: the env resets itself

    @property
    def driver_env(self) -> Any:
        """The env."""
        return self

    @property
    def agents_per_batch(self) -> int:
        """All of its agents."""
        return self.num_agents

    def async_reset(self, seed: int | None = None) -> None:
        """Resets the env; `recv` returns the result."""
        seed, self.first_seed = (self.first_seed if seed is None else seed), None
        _, self.infos = self.reset() if seed is None else self.reset(seed=seed)

    def send(self, actions: Any) -> None:
        """Steps the env; `recv` returns the result."""
        *_, self.infos = self.step(actions)

    def recv(self) -> tuple[Any, ...]:
        """(observations, rewards, terminals, truncations, infos, agent_ids, masks)."""
        flags = (self.rewards, self.terminals, self.truncations)
        return (self.observations, *flags, self.infos, self.agent_ids, self.masks)


def set_buffers(env: Any, buf: Any = None) -> None:
    """Sets the buffers of an env, those of BUFFERS and `actions`: new ones, or those of `buf`."""
    buffers = new_buffers(env) if buf is None else buf
    for name in (*BUFFERS, "actions"):
        setattr(env, name, buffers[name] if isinstance(buffers, Mapping) else getattr(buffers, name))


def new_buffers(env: Any) -> dict[str, Array]:
    """Buffers for an env in style (b) outside a vector."""
    count, space = env.num_agents, env.single_observation_space
    return {
        "observations": np.zeros((count, *space.shape), space.dtype),
        "rewards": np.zeros(count, np.float32),
        "terminals": np.zeros(count, np.bool_),
        "truncations": np.zeros(count, np.bool_),
        "masks": np.ones(count, np.bool_),
        "actions": new_actions(env.single_action_space, count),
    }


def new_actions(space: Any, count: int) -> Array:
    """A buffer for actions. PufferLib's envs expect 32-bit choices."""
    return np.zeros((count, *space.shape), space.dtype if isinstance(space, spaces.Box) else np.int32)


class Forwarding:
    """Holds an `env`. Attributes that a subclass does not define are that env's."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        """The env without any wrapper."""
        return getattr(self.env, "unwrapped", self.env)


class Wrapper(Forwarding):
    """A wrapper of one env or of a vector."""

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped env's."""
        return self.env.reset(*args, **kwargs)

    def step(self, action: Any) -> Any:
        """The wrapped env's."""
        return self.env.step(action)

    def close(self) -> None:
        """The wrapped env's."""
        self.env.close()
