"""What this layer asks of a VecEnv beyond stepping it, and what its own VecEnvs have of that protocol.

The only file of the layer that knows how the parts of a VecEnv are called, and how Python envs lie in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal import spec
from shoal.errors import UsageError
from shoal.spec import Array
from shoal.vector import block
from shoal.vector.base import VecEnv

# the names and spaces of the agents of one env
AgentSpaces: Any = getattr(spec, "AgentSpaces", None) or block.Face


def agent_spaces(vec: Any) -> Any:
    """The names and spaces of the agents of one env, of a VecEnv or of a slot of the runner."""
    known = getattr(vec, "agent_spaces", None) or getattr(vec, "face", None)
    if known is not None:
        return known
    names = tuple(f"agent_{k}" for k in range(vec.agents_per_env))
    spaces = (vec.single_observation_space, vec.single_action_space)
    return AgentSpaces(names, *((space,) * len(names) for space in spaces))


def native_spec(vec: Any) -> Any:
    """The EnvSpec of a native env; None for Python envs."""
    return getattr(vec, "native_spec", None) or getattr(vec, "spec_env", None)


def mask_size(vec: Any) -> int:
    """Choices that an action mask of one row covers; 0 where there are no masks."""
    known = getattr(vec, "mask_size", None)
    return int(getattr(native_spec(vec), "mask_size", 0) if known is None else known)


def parallelism(vec: Any) -> int:
    """Threads or processes that step envs; 1 where this process does."""
    workers = getattr(vec, "num_workers", getattr(vec, "num_threads", 1))
    return int(getattr(vec, "parallelism", workers))


def ranges(vec: Any) -> tuple[tuple[int, int], ...]:
    """The ranges of envs that `recv` returns one at a time."""
    return tuple(getattr(vec, "ranges", ((0, vec.num_envs),)))


def returns_neighbours(vec: Any) -> bool:
    """Whether every batch of `recv` is a range of envs, not just those that are ready first."""
    units = getattr(vec, "units", ())
    return bool(getattr(vec, "zero_copy", True)) or getattr(vec, "_need", len(units)) >= len(units)


def alive_rows(vec: Any) -> Array | None:
    """Whether each row is in the game, as a view; None where a VecEnv does not keep it."""
    memory = getattr(vec, "block", None)
    return None if memory is None else memory.arrays["alive"]


def current_infos(vec: Any) -> dict[str, Any]:
    """The `alive` and `action_mask` of all rows now, where a VecEnv keeps them."""
    if hasattr(vec, "current_infos"):
        infos: dict[str, Any] = vec.current_infos()
        return infos
    memory = getattr(vec, "memory", getattr(vec, "block", None))
    arrays = getattr(memory, "arrays", {})
    named = (("alive", "alive"), ("action_mask", "masks"))
    return {ours: arrays[theirs] for ours, theirs in named if theirs in arrays and len(arrays[theirs])}


class Envs(VecEnv):
    """A VecEnv around another one or around a user's vector: on the CPU, without params and snapshots of its own."""

    native_spec: Any = None
    agent_spaces: Any
    face: Any
    device: Any = "cpu"
    is_on_gpu = False
    mask_size = 0
    parallelism = 1
    can_snapshot = False
    has_dead_rows: Any

    def describe(self, inner: Any) -> None:
        """Takes over what the VecEnv inside says of its envs."""
        self.agent_spaces = self.face = agent_spaces(self if inner is None else inner)
        self.native_spec = self.spec_env = native_spec(inner)
        self.mask_size, self.parallelism = mask_size(inner), parallelism(inner)

    @property
    def time_limit(self) -> int:
        """Steps after which any env truncates; 0: unknown, or never."""
        return 0

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of envs that `recv` returns one at a time."""
        return ((0, self.num_envs),)

    def current_infos(self) -> dict[str, Any]:
        """The `alive` and, where there are masks, the `action_mask` of all rows now."""
        return {"alive": np.ones(self.num_rows, np.bool_)}

    def get_params(self) -> dict[str, Array]:
        """Raises: only native envs have params."""
        raise UsageError(f"get_params() is for native envs; this is {self._kind}.")

    def set_params(self, **params: Any) -> None:
        """Raises: only native envs have params."""
        raise UsageError(f"set_params() is for native envs; this is {self._kind}.")

    def snapshot(self, env_ids: Sequence[int] | Array | None = None) -> bytes:
        """Raises: the state of these envs cannot be read."""
        raise UsageError(f"snapshot() is for native envs; this is {self._kind}. Check vec.can_snapshot first.")

    def restore(self, blob: bytes, env_ids: Sequence[int] | Array | None = None) -> Any:
        """Raises: the state of these envs cannot be written."""
        raise UsageError(f"restore() is for native envs; this is {self._kind}. Check vec.can_snapshot first.")

    def rows(self) -> Any:
        """A view with every agent as one env of the batch."""
        from shoal.vector.faces import RowsEnv

        return RowsEnv(self)

    def agents(self) -> Any:
        """A view by agent: `{agent_id: batch over envs}`."""
        from shoal.vector.faces import AgentsEnv

        return AgentsEnv(self)

    @property
    def _kind(self) -> str:
        return f"a {type(getattr(self, 'env', self)).__name__}"
