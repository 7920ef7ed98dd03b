"""NativeVecBase: the base class of all vectors of native envs, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from shoal.distributions import Distribution
from shoal.errors import ConfigError
from shoal.native.lib import Module
from shoal.spec import AgentSpaces, Array, EnvSpec
from shoal.vector.base import AUTORESET, VecEnv, check_num_envs, check_seeds
from shoal.wrappers import Wrap


class NativeVecBase(VecEnv):
    """Attributes and checks that every vector of native envs has."""

    native_spec: EnvSpec
    agent_spaces: AgentSpaces
    module: Module
    copy: bool
    can_snapshot = True

    def __init__(
        self,
        module: Module,
        num_envs: int,
        *,
        seed: int | None,
        copy: bool,
        autoreset: str,
        render_mode: str | None,
        wrap: Wrap | None = None,
    ) -> None:
        self.wrap = wrap or Wrap()
        spec = self.native_spec = self.wrap.spec(module.spec)
        self.num_envs = check_num_envs(num_envs)
        if autoreset not in AUTORESET:
            raise ConfigError(f"autoreset={autoreset!r} must be one of {', '.join(AUTORESET)}.")
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"render_mode={render_mode!r} must be None or 'rgb_array'.")
        self.module, self.copy, self.render_mode = module, copy, render_mode
        self.agents_per_env, self.num_rows = spec.agents, self.num_envs * spec.agents
        self.agent_spaces, self.mask_size = spec.agent_spaces, spec.mask_size
        self.single_observation_space, self.single_action_space = spec.observation_space, spec.action_space
        self.metadata = {
            "autoreset_mode": AUTORESET[autoreset],
            "render_modes": ["rgb_array"] if spec.has_draw else [],
            "render_fps": 30,
        }
        self._next_seeds = None if seed is None else check_seeds(seed, self.num_envs)
        self._started = False  # whether it was reset or restored

    @cached_property
    def action_space(self) -> spaces.Space[Any]:  # type: ignore[override]
        """Of all rows. Agents of a group with fewer choices have only those."""
        spec = self.native_spec
        if spec.own_sizes and spec.action_kind == "discrete":
            counts = [own or spec.action_dims[0] for _, own in spec.own_sizes]
            return spaces.MultiDiscrete(counts * self.num_envs)
        return batch_space(self.single_action_space, self.num_rows)

    @property
    def time_limit(self) -> int:
        """The smallest time limit of any env in steps, of `max_steps` and the wrapper `time_limit`; 0: none."""
        limits = self.get_params().get("max_steps", np.array([self.native_spec.max_steps]))
        steps = [-(-int(limit) // self.wrap.skip) for limit in limits if limit > 0]
        return min([*steps, *([self.wrap.time_limit] if self.wrap.time_limit else [])], default=0)

    def _seeds_for_reset(self, seed: int | Sequence[int] | None) -> Array | None:
        """One seed for each env; None continues their random streams."""
        seeds = self._next_seeds if seed is None else check_seeds(seed, self.num_envs)
        if seeds is None and not self._started:
            entropy = int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
            seeds = check_seeds(entropy >> 1, self.num_envs)
        return seeds


def check_params(spec: EnvSpec, params: dict[str, Any], num_envs: int) -> dict[str, Array | Distribution]:
    """Params as arrays of one value or of one per env, or as distributions. A wrong name or value raises."""
    values, consts = spec.split(params)
    if consts:
        name = next(iter(consts))
        raise ConfigError(f"{spec.name}: {name} is a compile-time const. Pass it to shoal.make instead.")
    known = {param.name: param for param in spec.params}
    return {name: known[name].check_any(spec.name, value, num_envs) for name, value in values.items()}


def check_ids(env_ids: Sequence[int] | Array | None, num_envs: int) -> Array:
    """Numbers of envs; None means all."""
    ids = np.arange(num_envs) if env_ids is None else np.asarray(env_ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ConfigError(f"env_ids must be a list of ints, not {env_ids!r}.")
    if len(ids) == 0 or ids.min() < 0 or ids.max() >= num_envs:
        raise ConfigError(f"env_ids={env_ids!r} must be numbers of envs in 0 .. {num_envs - 1}, at least one.")
    return np.ascontiguousarray(ids, np.int64)
