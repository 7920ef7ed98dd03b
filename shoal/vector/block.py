"""Block: all memory of a batch of Python envs over one buffer, private or shared between processes.

One contiguous array per kind, each on a cache line of its own; workers write into their rows and the parent hands the
same rows out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.spec import Array, Layout

ALIGNMENT = 128  # two cache lines: adjacent ones are fetched in pairs


@dataclass(frozen=True)
class Face:
    """What one env looks like from outside: its agents, and what each of them sees and does."""

    agents: tuple[str, ...]
    observation_spaces: tuple[spaces.Space[Any], ...]  # one for each agent
    action_spaces: tuple[spaces.Space[Any], ...]

    @cached_property
    def alike(self) -> bool:
        """Whether all agents have the same spaces."""
        return all(space == self.observation_spaces[0] for space in self.observation_spaces) and all(
            space == self.action_spaces[0] for space in self.action_spaces
        )

    @cached_property
    def obs_layouts(self) -> tuple[Layout, ...]:
        """One for each agent; a row has room for the largest."""
        return tuple(Layout(space) for space in self.observation_spaces)

    @cached_property
    def action_layouts(self) -> tuple[Layout, ...]:
        """One for each agent."""
        return tuple(Layout(space) for space in self.action_spaces)


class Block:
    """The arrays. Rows of env i are [i * agents, (i + 1) * agents)."""

    def __init__(self, face: Face, num_envs: int, buffer: Any = None) -> None:
        self.face, self.num_envs, self.num_rows = face, num_envs, num_envs * len(face.agents)
        places, size = self._places(face, num_envs)
        memory = np.zeros(size, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8, size)
        self.arrays: dict[str, Array] = {
            name: np.ndarray(shape, dtype, memory, offset) for name, (offset, shape, dtype) in places.items()
        }

    @staticmethod
    def bytes_needed(face: Face, num_envs: int) -> int:
        """The size of the buffer."""
        return Block._places(face, num_envs)[1]

    @staticmethod
    def _places(face: Face, num_envs: int) -> tuple[dict[str, tuple[int, tuple[int, ...], Any]], int]:
        rows = num_envs * len(face.agents)
        obs_bytes = max(layout.row_bytes for layout in face.obs_layouts)
        action_bytes = max(layout.row_bytes for layout in face.action_layouts)
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
            "reset_with": ((3,), np.bool_),  # whether it has seeds, a mask, options
        }
        places, end = {}, 0
        for name, (shape, dtype) in kinds.items():
            places[name] = (end, shape, dtype)
            end += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        return places, end

    def leaf_views(self, kind: str, agent: int = 0) -> list[Array]:
        """Of obs, final_obs or actions of one agent: an array over envs for each leaf of its space."""
        return self._layout(kind, agent).leaf_views(self._agent_rows(kind, agent))

    def views(self, kind: str, agent: int, lo: int, hi: int) -> Any:
        """Of one agent in envs [lo, hi), in the structure of its space."""
        return self._layout(kind, agent).views(self._agent_rows(kind, agent)[lo:hi])

    def row_views(self, kind: str, lo: int, hi: int) -> Any:
        """Of all rows of envs [lo, hi), for agents that are alike."""
        agents = len(self.face.agents)
        rows = self.arrays[kind][lo * agents : hi * agents]
        layout = self._layout(kind, 0)
        return layout.views(rows)

    def _layout(self, kind: str, agent: int) -> Layout:
        return self.face.action_layouts[agent] if kind == "actions" else self.face.obs_layouts[agent]

    def _agent_rows(self, kind: str, agent: int) -> Array:
        return self.arrays[kind][agent :: len(self.face.agents)]
