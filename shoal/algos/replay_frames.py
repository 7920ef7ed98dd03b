"""ReplayFrames: the stacked observations of a replay, each frame stored once (frames.py has those of rollouts).

Each row has a ring of capacity + stack - 1 frames beside its ring of places: the oldest place needs the frames before
it. A place knows the slot of its newest frame, and its age: the steps since the first frame of its episode.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.algos import frames
from shoal.algos.actor import stored_dtype
from shoal.algos.frames import StackedObs
from shoal.errors import CheckpointError
from shoal.spec import Leaf

EMPTY = -1  # the age of a head before which nothing is stored


class ReplayFrames:
    """One leaf of a replay's observations."""

    def __init__(self, leaf: Leaf, rows: int, capacity: int, base: Tensor) -> None:
        self.leaf, self.stack, self.capacity, self.rows = leaf, leaf.stack, capacity, rows
        self.length = capacity + leaf.stack - 1  # of a row's ring of frames
        self.device = base.device
        zeros = partial(torch.zeros, device=self.device)
        self.frames = zeros((rows * self.length + 1, *frames.frame_shape(leaf)), dtype=stored_dtype(leaf.dtype))
        self.slots = zeros(rows * capacity + 1, dtype=torch.int32)  # by place: its newest frame, in the row's ring
        self.ages = zeros(rows * capacity + 1, dtype=torch.uint8)  # by place
        self.heads = zeros(rows, dtype=torch.int64)  # the slot of each row's current frame
        self.head_ages = torch.full((rows,), EMPTY, dtype=torch.int64, device=self.device)
        self.base = base // capacity * self.length  # (rows,): the first frame of each row's ring
        self.scratch = rows * self.length

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint saves."""
        own = {"frames": self.frames[:-1], "slots": self.slots[:-1], "ages": self.ages[:-1]}
        return own | {"heads": self.heads, "head_ages": self.head_ages}

    def check(self) -> None:
        """Raises CheckpointError if restored tensors hold impossible values."""
        ranges = {
            "slots": (self.slots, 0, self.length - 1),
            "ages": (self.ages, 0, self.stack - 1),
            "heads": (self.heads, 0, self.length - 1),
            "head_ages": (self.head_ages, EMPTY, self.stack - 1),
        }
        for name, (tensor, low, high) in ranges.items():
            lowest, highest = int(tensor.min()), int(tensor.max())
            if lowest < low or highest > high:
                raise CheckpointError(
                    f"the checkpoint's replay is damaged: {name} of frames has values from {lowest} to {highest}, "
                    f"expected {low} to {high}. Resume from another checkpoint."
                )

    # ---- writing ----

    def store(self, rollout: Any, number: int, places: Tensor, last: Tensor, head: Tensor, ended: Tensor) -> None:
        """Stores the frames of a rollout's leaf `number`.

        places, last (steps, rows): where its observations, and those after truncated steps, are stored; `last` is the
        scratch place where there is none. head (rows,): the place of the current observation. ended (steps, rows).
        """
        obs, steps = rollout.obs[number], rollout.horizon
        self._fill_empty(obs)
        has_last = last != self.rows * self.capacity
        written = 1 + has_last.to(torch.int64)
        after = torch.cumsum(written, 0)
        age = self.head_ages
        for t in range(steps):
            self._write(places[t], self.heads + after[t] - written[t], self._newest(obs, t), age)
            next_age = (age + 1).clamp(max=self.stack - 1)
            self._note(last[t], self.heads + after[t] - 1, next_age)  # their frames are written below: they are few
            age = torch.where(ended[t], 0, next_age)
        for truncation in rollout.truncations:
            at = last[truncation.steps, truncation.rows].min(0).values  # the others have the scratch place
            frame = frames.newest(truncation.obs[number].to(self.frames.dtype), self.leaf)
            self.frames[torch.where(at == len(self.slots) - 1, self.scratch, self._frame_of(at))] = frame
        self.heads.copy_((self.heads + after[-1]) % self.length)
        self.head_ages.copy_(age)
        self._write(head, self.heads, self._newest(obs, steps), age)

    def _newest(self, obs: Any, t: int) -> Tensor:
        if isinstance(obs, StackedObs):
            return obs.frames[t + self.stack - 1]
        return frames.newest(obs[t], self.leaf)

    def _fill_empty(self, obs: Any) -> None:
        """Frames before the first place of a row, which its first observation holds."""
        is_empty = self.head_ages == EMPTY
        if self.device.type == "cpu" and not is_empty.any():  # a CUDA graph cannot branch
            return
        whole = frames.split(obs[0], self.leaf).movedim(1 + self.leaf.axis, 0)  # (stack, rows, frame)
        for k in range(self.stack - 1):
            at = self.base + (self.heads - (self.stack - 1 - k)) % self.length
            self.frames[torch.where(is_empty, at, self.scratch)] = whole[k]
        self.head_ages.copy_(torch.where(is_empty, self.stack - 1, self.head_ages))

    def _write(self, places: Tensor, slots: Tensor, frame: Tensor, ages: Tensor) -> None:
        self._note(places, slots, ages)
        self.frames[self.base + slots % self.length] = frame

    def _note(self, places: Tensor, slots: Tensor, ages: Tensor) -> None:
        self.slots[places] = (slots % self.length).to(torch.int32)
        self.ages[places] = ages.to(torch.uint8)

    def restart(self, is_open: Tensor) -> None:
        """All envs start new episodes; rows that are open keep their current observation as the last of its episode."""
        self.heads.copy_((self.heads + is_open) % self.length)
        self.head_ages.copy_(torch.where(self.head_ages == EMPTY, EMPTY, 0))

    # ---- reading ----

    def _frame_of(self, places: Tensor, back: Tensor | int = 0) -> Tensor:
        """The frames of places, `back` steps before their newest."""
        return places // self.capacity * self.length + (self.slots[places].to(torch.int64) - back) % self.length

    def __getitem__(self, index: Tensor) -> Tensor:
        """(n, ...) observations of places (n,)."""
        backs = torch.arange(self.stack - 1, -1, -1, device=self.device)
        back = torch.minimum(backs, self.ages[index].to(torch.int64).unsqueeze(1))
        at = self._frame_of(index.unsqueeze(1).expand_as(back), back)
        found = self.frames.index_select(0, at.flatten())
        return frames.join(found.view(-1, self.stack, *self.frames.shape[1:]), self.leaf.axis)


def frames_nbytes(leaf: Leaf, rows: int, capacity: int) -> int:
    """The memory of a ReplayFrames in bytes."""
    one: int = leaf.nbytes // leaf.dtype.itemsize // leaf.stack * stored_dtype(leaf.dtype).itemsize
    return (rows * (capacity + leaf.stack - 1) + 1) * one + (rows * capacity + 1) * 5 + 16 * rows
