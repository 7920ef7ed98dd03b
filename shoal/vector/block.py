"""Block: all memory of a batch of Python envs in one buffer, private or shared between processes.

One contiguous array per kind, each aligned to cache lines. Workers write into their rows, and the parent returns views
of the same rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.layout import AgentSpaces, Array, Layout

ALIGNMENT = 128  # two cache lines: CPUs fetch adjacent ones in pairs


class Block:
    """The arrays. Rows of env i are [i * agents, (i + 1) * agents)."""

    def __init__(self, spaces: AgentSpaces, num_envs: int, buffer: Any = None) -> None:
        self.agent_spaces, self.num_envs, self.num_rows = spaces, num_envs, num_envs * len(spaces.agents)
        offsets, size = self._offsets(spaces, num_envs)
        memory = np.zeros(size, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8, size)
        self.arrays: dict[str, Array] = {
            name: np.ndarray(shape, dtype, memory, offset) for name, (offset, shape, dtype) in offsets.items()
        }

    @staticmethod
    def bytes_needed(spaces: AgentSpaces, num_envs: int) -> int:
        """The size of the buffer."""
        return Block._offsets(spaces, num_envs)[1]

    @staticmethod
    def _offsets(spaces: AgentSpaces, num_envs: int) -> tuple[dict[str, tuple[int, tuple[int, ...], Any]], int]:
        rows = num_envs * len(spaces.agents)
        obs_bytes = max(layout.row_bytes for layout in spaces.obs_layouts)
        action_bytes = max(layout.row_bytes for layout in spaces.action_layouts)
        kinds: dict[str, tuple[tuple[int, ...], Any]] = {
            "obs": ((rows, obs_bytes), np.uint8),
            "final_obs": ((rows, obs_bytes), np.uint8),
            "actions": ((rows, action_bytes), np.uint8),
            "rewards": ((rows,), np.float32),
            "terminated": ((rows,), np.bool_),
            "truncated": ((rows,), np.bool_),
            "done": ((rows,), np.bool_),
            "alive": ((rows,), np.bool_),
            "ended": ((num_envs,), np.bool_),
            "final_return": ((rows,), np.float32),
            "final_length": ((rows,), np.int32),
            "seeds": ((num_envs,), np.uint64),  # for the next reset
            "reset_mask": ((num_envs,), np.bool_),
            "reset_with": ((3,), np.bool_),  # whether the next reset has seeds, a mask, options
        }
        offsets, end = {}, 0
        for name, (shape, dtype) in kinds.items():
            offsets[name] = (end, shape, dtype)
            end += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        return offsets, end

    def leaf_views(self, kind: str, agent: int = 0) -> list[Array]:
        """The obs, final_obs or actions of one agent: an array over envs for each leaf of its space."""
        return self._layout(kind, agent).leaf_views(self._agent_rows(kind, agent))

    def views(self, kind: str, agent: int, lo: int, hi: int) -> Any:
        """The same for envs [lo, hi), in the structure of the agent's space."""
        return self._layout(kind, agent).views(self._agent_rows(kind, agent)[lo:hi])

    def row_views(self, kind: str, lo: int, hi: int) -> Any:
        """All rows of envs [lo, hi), for agents with equal spaces."""
        agents = len(self.agent_spaces.agents)
        rows = self.arrays[kind][lo * agents : hi * agents]
        return self._layout(kind, 0).views(rows)

    def _layout(self, kind: str, agent: int) -> Layout:
        return self.agent_spaces.action_layouts[agent] if kind == "actions" else self.agent_spaces.obs_layouts[agent]

    def _agent_rows(self, kind: str, agent: int) -> Array:
        return self.arrays[kind][agent :: len(self.agent_spaces.agents)]
