"""What an env looks like from outside: its spaces, agents, params, consts and statistics.

Knows Gymnasium's spaces and numpy; knows nothing of how an env is built or stepped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError, did_you_mean

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Param:
    """A run-time number of an env: one value for all envs, or one for each."""

    name: str
    kind: str  # float or int
    default: float
    help: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """As it lies in memory."""
        return np.dtype(np.float32 if self.kind == "float" else np.int32)

    def check(self, env: str, value: Any, num_envs: int) -> Array:
        """The value as an array of shape () or (num_envs,), or a ConfigError that says what was wrong."""
        array = np.asarray(value)
        whole = array.dtype.kind in "iu"
        if array.dtype.kind not in "iuf" or (self.kind == "int" and not whole):
            raise ConfigError(f"{env}: {self.name}={value!r} is not {'an int' if self.kind == 'int' else 'a number'}.")
        if array.shape not in ((), (num_envs,)):
            raise ConfigError(
                f"{env}: {self.name} has shape {array.shape}. Give one number, or one for each of the {num_envs} envs."
            )
        if not np.isfinite(array).all():
            raise ConfigError(f"{env}: {self.name}={value!r} must be finite.")
        if whole and (np.any(array > 2**31 - 1) or np.any(array < -(2**31))):
            raise ConfigError(f"{env}: {self.name}={value!r} does not fit in 32 bits.")
        if self.name == "max_steps" and np.any(array < 0):
            raise ConfigError(f"{env}: max_steps={value!r} is negative. Use 0 for no limit.")
        return array.astype(self.dtype)


@dataclass(frozen=True)
class Const:
    """A compile-time integer of an env; another value means another library."""

    name: str
    default: int
    help: str


@dataclass(frozen=True)
class Stat:
    """A number that an env reports for every episode."""

    name: str
    kind: str  # mean, sum or last
    help: str


@dataclass(frozen=True)
class EnvSpec:
    """One env's contract with the world."""

    name: str
    version: int
    agents: int
    max_steps: int
    obs_dtype: np.dtype[Any]
    obs_shape: tuple[int, ...]
    obs_low: Array
    obs_high: Array
    action_kind: str  # discrete, multi or box
    action_dims: tuple[int, ...]  # choices per sub-action; (n,) for a box of n floats
    action_low: Array
    action_high: Array
    mask_size: int  # 0: no action masks
    has_draw: bool
    params: tuple[Param, ...]
    consts: tuple[Const, ...]
    stats: tuple[Stat, ...]

    @cached_property
    def observation_space(self) -> spaces.Box:
        """Of one agent."""
        low = np.broadcast_to(self.obs_low.astype(self.obs_dtype), self.obs_shape)
        high = np.broadcast_to(self.obs_high.astype(self.obs_dtype), self.obs_shape)
        return spaces.Box(low, high, self.obs_shape, self.obs_dtype.type)

    @cached_property
    def action_space(self) -> spaces.Discrete | spaces.MultiDiscrete | spaces.Box:
        """Of one agent."""
        if self.action_kind == "discrete":
            return spaces.Discrete(self.action_dims[0])
        if self.action_kind == "multi":
            return spaces.MultiDiscrete(list(self.action_dims))
        shape = self.action_dims
        return spaces.Box(
            np.broadcast_to(self.action_low, shape), np.broadcast_to(self.action_high, shape), shape, np.float32
        )

    def split(self, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Keyword options as (params, consts). An unknown name is an error with a suggestion."""
        param_names = {p.name for p in self.params}
        const_names = {c.name for c in self.consts}
        for name, value in options.items():
            if name not in param_names | const_names:
                known = sorted(param_names | const_names)
                raise ConfigError(
                    f"{self.name} has no param '{name}'.{did_you_mean(name, known)} "
                    f"'shoal envs {self.name}' lists its {len(known)} params."
                )
            if name in const_names and (isinstance(value, bool) or not isinstance(value, (int, np.integer))):
                raise ConfigError(f"{self.name}: {name}={value!r} is fixed when the env is compiled: give one int.")
        return (
            {name: value for name, value in options.items() if name in param_names},
            {name: int(value) for name, value in options.items() if name in const_names},
        )
