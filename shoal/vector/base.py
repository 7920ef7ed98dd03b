"""VecEnv: many envs behind one call. The API that every backend keeps, and what its words mean.

`serial` is the meaning; the other backends are faster ways to say it (tests/test_backends.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.errors import ConfigError, UsageError
from shoal.spec import Array, EnvSpec

Result = tuple[Array, Array, Array, Array, dict[str, Any]]

AUTORESET = {
    "same_step": AutoresetMode.SAME_STEP,
    "next_step": AutoresetMode.NEXT_STEP,
    "disabled": AutoresetMode.DISABLED,
}


class VecEnv(VectorEnv[Array, Any, Array]):
    """`num_envs` games as one `gymnasium.vector.VectorEnv`.

    A batch has `num_rows = num_envs * agents_per_env` rows; env i's agents are rows
    [i * agents_per_env, (i + 1) * agents_per_env). With one agent per env, rows and envs are one.

    **Arrays are views.** Unless made with `copy=True`, what reset, step and recv return is the env's own memory:
    it holds until the next call on the same envs, which overwrites it. Copy what you keep.

    Episodes end as Gymnasium's SAME_STEP says (docs/design/episodes.md): where `terminated | truncated`,
    `obs` is already the next episode's first and `infos["final_obs"]` the last one's.
    """

    backend: str
    spec_env: EnvSpec
    num_rows: int
    agents_per_env: int

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """As in the metadata, where Gymnasium's own vector envs have it too."""
        mode: AutoresetMode = self.metadata["autoreset_mode"]
        return mode

    @cached_property
    def observation_space(self) -> Space[Any]:  # type: ignore[override]
        """Of all rows. Made when first asked for: its bounds are as large as a batch."""
        return batch_space(self.single_observation_space, self.num_rows)

    @cached_property
    def action_space(self) -> Space[Any]:  # type: ignore[override]
        """Of all rows."""
        return batch_space(self.single_action_space, self.num_rows)

    def _refuse_closed(self) -> None:
        if self.closed:
            raise UsageError("this env is closed. Make a new one with shoal.make.")

    @abstractmethod
    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Starts episodes. An int seed gives env i the seed `seed + i`; None lets each env's stream go on.

        `options={"reset_mask": mask}` resets only the envs where the (num_envs,) bool mask is true.
        """

    @abstractmethod
    def step(self, actions: Any) -> Result:
        """One transition of every env: (obs, rewards, terminated, truncated, infos)."""

    @abstractmethod
    def async_reset(self, *, seed: int | Sequence[int] | None = None) -> None:
        """Starts episodes without waiting; `recv` then returns one group of envs after the other."""

    @abstractmethod
    def send(self, actions: Any, env_id: Array | None = None) -> None:
        """Starts a step of the group last received (or of the group that `env_id` names) and returns at once."""

    @abstractmethod
    def recv(self) -> Result:
        """Waits for the group sent earliest. `infos["env_id"]` says which envs it holds."""


def has_true(flags: Array) -> bool:
    """Whether any flag is set: `flags.any()`, in a quarter of the time."""
    return b"\x01" in flags.tobytes()


def check_num_envs(num_envs: Any) -> int:
    """A count of envs, or a ConfigError."""
    if isinstance(num_envs, bool) or not isinstance(num_envs, (int, np.integer)) or num_envs < 1:
        raise ConfigError(f"num_envs={num_envs!r} must be an int of at least 1.")
    if num_envs > 2**30:
        raise ConfigError(f"num_envs={num_envs} is more than 2^30.")
    return int(num_envs)


def check_seeds(seed: int | Sequence[int] | Array, num_envs: int) -> Array:
    """One uint64 per env: seed + i for an int, or the given ones."""
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        if not 0 <= seed < 2**63:
            raise ConfigError(f"seed={seed} must be in 0 .. 2^63 - 1.")
        return np.uint64(seed) + np.arange(num_envs, dtype=np.uint64)  # type: ignore[no-any-return]
    if isinstance(seed, (str, bytes, float, bool, dict, set)) or not hasattr(seed, "__len__"):
        raise ConfigError(f"seed={seed!r} must be an int, or one int for each of the {num_envs} envs.")
    if len(seed) != num_envs:
        raise ConfigError(f"seed has {len(seed)} entries for num_envs={num_envs}. Give an int, or one for each env.")
    for value in seed:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < 2**63:
            raise ConfigError(f"seed entry {value!r} must be an int in 0 .. 2^63 - 1.")
    return np.array(seed, np.uint64)


def check_reset_mask(mask: Any, num_envs: int) -> Array:
    """A (num_envs,) bool mask with some env in it, as Gymnasium defines `options["reset_mask"]`."""
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,):
        got = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise ConfigError(f"options['reset_mask'] must be a bool array of shape ({num_envs},), not {got}.")
    if not mask.any():
        raise ConfigError("options['reset_mask'] selects no env. Leave it out to reset all.")
    return np.ascontiguousarray(mask)
