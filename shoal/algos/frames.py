"""Frames: observations of stacked frames, each frame stored once in rollouts.

An observation of `stack` frames shares all but one with the observation before it. Here the frames are stored, and
observations are gathered from them when they are read. At the start of an episode its first frame is in all places, so
frames before it are never part of an observation:

    frame       f0  f1  f2 | g0  g1        (an episode of g begins)
    obs of g1   g0  g0  g0  g1

Results are those of whole observations, bit for bit. The replay does the same in replay_frames.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.algos.actor import stored_dtype
from shoal.errors import BadOutput
from shoal.spec import Array, Leaf

SMALLEST = 4096  # numbers in an observation: smaller ones are read by C (native/ppo.py), which wants them whole


def is_stored_once(leaf: Leaf, has_dead_rows: bool) -> bool:
    """Whether frames of a leaf are stored, not whole observations. Agents that come and go have no one stream."""
    return leaf.stack > 1 and not has_dead_rows and int(np.prod(leaf.shape)) > SMALLEST


def frame_shape(leaf: Leaf) -> tuple[int, ...]:
    """The shape of one frame of a leaf."""
    shape = list(leaf.shape)
    shape[leaf.axis] //= leaf.stack
    return tuple(shape)


def join(frames: Tensor, axis: int) -> Tensor:
    """(n, stack, frame) as observations (n, ...): frames follow each other along `axis` of the frame."""
    moved = frames.movedim(1, axis + 1)
    return moved.flatten(axis + 1, axis + 2).contiguous()


def split(obs: Any, leaf: Leaf) -> Any:
    """A view (..., stack, ...) of observations (n, ...), an array or a tensor: the frames are at axis 1 + leaf.axis."""
    shape = tuple(obs.shape)
    at = 1 + leaf.axis
    return obs.reshape(*shape[:at], leaf.stack, shape[at] // leaf.stack, *shape[at + 1 :])


def newest(obs: Tensor, leaf: Leaf) -> Tensor:
    """(n, frame): the last frame of observations (n, ...)."""
    frame: Tensor = split(obs, leaf).select(1 + leaf.axis, leaf.stack - 1)
    return frame


class StackedObs:
    """A leaf of a rollout's observations. `leaf[t]`, `leaf[t, rows]` and `leaf[steps]` gather tensors.

    obs[t] ends with frames[t + stack - 1]. `now` has each row's current observation, which the policy reads.
    """

    def __init__(self, leaf: Leaf, dones: Tensor, zeros: Callable[..., Tensor]) -> None:
        self.leaf, self.stack, self.dones = leaf, leaf.stack, dones
        self.horizon, self.rows = dones.shape
        self.dtype, self.device = stored_dtype(leaf.dtype), dones.device
        self.frames = zeros((self.horizon + self.stack, self.rows, *frame_shape(leaf)), dtype=self.dtype)
        self.now = zeros((self.rows, *leaf.shape), dtype=self.dtype)
        # (stack - 1, rows): episodes that ended in the last steps before this rollout
        self.before = zeros((self.stack - 1, self.rows), dtype=torch.bool)
        self._is_fresh = torch.zeros(self.rows, dtype=torch.bool)  # rows whose frames were all given by `writer.whole`

    @property
    def shape(self) -> tuple[int, ...]:
        """Of whole observations."""
        return (self.horizon + 1, self.rows, *self.leaf.shape)

    def tensors(self) -> list[Tensor]:
        """What it holds."""
        return [self.frames, self.now, self.before, self._is_fresh]

    def last(self) -> list[Tensor]:
        """Views of what the next rollout begins with."""
        return [self.frames[-self.stack :], self.now, self._is_fresh]

    # ---- collecting ----

    def begin(self, ready: Tensor | None) -> None:
        """The last observations become the first ones of the next rollout, for the rows that are ready."""
        rows: Any = slice(None) if ready is None else ready
        ended = torch.cat([self.before, self.dones])[-(self.stack - 1) :]
        ended[:, self._is_fresh] = False
        self.before[:, rows] = ended[:, rows]
        self.frames[: self.stack, rows] = self.frames[-self.stack :, rows].clone()
        self._is_fresh[rows] = False

    def writer(self, t: int, rows: slice) -> Writer:
        """Takes the observations of step t + 1."""
        return Writer(self, t, rows)

    # ---- reading ----

    def ages(self) -> Tensor:
        """(horizon + 1, rows): steps since the episode's first frame, at most stack - 1."""
        ended = torch.cat([self.before, self.dones])  # ended[t + stack - 1]: of step t
        goes_on = torch.ones((self.horizon + 1, self.rows), dtype=torch.bool, device=self.device)
        ages = torch.zeros((self.horizon + 1, self.rows), dtype=torch.int64, device=self.device)
        for back in range(1, self.stack):
            first = self.stack - 1 - back
            goes_on &= ~ended[first : first + self.horizon + 1]
            ages += goes_on
        return ages

    def gather(self, steps: Tensor, rows: Tensor, ages: Tensor) -> Tensor:
        """(n, ...) observations of steps and rows (n,), whose `ages` are given."""
        backs = torch.arange(self.stack - 1, -1, -1, device=self.device)
        at = (steps + self.stack - 1).unsqueeze(1) - torch.minimum(backs, ages.unsqueeze(1))
        index = at * self.rows + rows.unsqueeze(1)
        frames = self.frames.flatten(0, 1).index_select(0, index.flatten())
        return join(frames.view(-1, self.stack, *self.frames.shape[2:]), self.leaf.axis)

    def __getitem__(self, key: Any) -> Tensor:
        t, rows = key if isinstance(key, tuple) else (key, slice(None))
        steps = torch.arange(self.horizon + 1, device=self.device)[t]
        chosen = torch.arange(self.rows, device=self.device)[rows]
        every = steps.reshape(-1, 1).expand(-1, len(chosen))
        columns = chosen.expand_as(every)
        found = self.gather(every.flatten(), columns.flatten(), self.ages()[every, columns].flatten())
        return found if steps.ndim == 0 else found.view(*every.shape, *self.leaf.shape)

    def flat(self) -> FlatObs:
        """All observations but the last, as (horizon * rows, ...), gathered when they are indexed."""
        return FlatObs(self)


class FlatObs:
    """The observations of a rollout by index t * rows + row. `obs[index]` and `obs.index_select(0, index)`."""

    def __init__(self, obs: StackedObs) -> None:
        self.obs, self.ages = obs, obs.ages()[:-1].flatten()

    def __len__(self) -> int:
        return len(self.ages)

    def __getitem__(self, index: Any) -> Tensor:
        numbers = torch.arange(len(self.ages), device=self.ages.device)[index] if isinstance(index, slice) else index
        return self.index_select(0, numbers)

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """As that of a tensor; dim is 0."""
        steps = torch.div(index, self.obs.rows, rounding_mode="floor")
        return self.obs.gather(steps, index - steps * self.obs.rows, self.ages[index])


def flat(leaf: Any) -> Any:
    """All observations of a rollout's leaf but the last, by index t * rows + row."""
    return leaf.flat() if isinstance(leaf, StackedObs) else leaf[:-1].flatten(0, 1)


class Writer:
    """Where a collector puts the observations of some rows: their newest frames, and the whole for the policy."""

    def __init__(self, obs: StackedObs, t: int, rows: slice) -> None:
        self.leaf, self.fresh, self.rows = obs.leaf, obs._is_fresh, rows
        self.now = obs.now[rows].numpy()
        self.frame = obs.frames[t + obs.stack, rows].numpy()
        self.last = obs.frames[-obs.stack :, rows].numpy()
        self.dones = obs.dones[t, rows].numpy()
        self.at = 1 + obs.leaf.axis

    def put(self, obs: Array) -> None:
        """The observations that a step led to; the step's dones are already stored."""
        obs = obs.astype(self.now.dtype, copy=False)
        old, new = (np.moveaxis(split(part, self.leaf), self.at, 0) for part in (self.now, obs))
        self._check(old, new)
        np.copyto(self.frame, new[-1], casting="unsafe")
        np.copyto(self.now, obs, casting="unsafe")

    def whole(self, obs: Array) -> None:
        """The first observations of a run: all of their frames, also those before the episode's start."""
        np.copyto(self.last, np.moveaxis(split(obs, self.leaf), self.at, 0), casting="unsafe")
        np.copyto(self.now, obs, casting="unsafe")
        self.fresh[self.rows] = True

    def _check(self, old: Array, new: Array) -> None:
        """Raises if frames did not move by one place: (stack, rows, ...) each."""
        moved = new[:-1] == old[1:]
        if moved.all():
            return
        if new.dtype.kind == "f":  # numbers that are not finite are reported when the rollout is full
            moved |= ~np.isfinite(new[:-1])
        is_moved, is_filled = (same.reshape(*same.shape[:2], -1).all((0, 2)) for same in (moved, new[:-1] == new[-1]))
        if not np.where(self.dones, is_filled, is_moved).all():
            row = (self.rows.start or 0) + int(np.flatnonzero(~np.where(self.dones, is_filled, is_moved))[0])
            raise BadOutput(
                f"row {row}: its space says that an observation{self.leaf.name} holds {self.leaf.stack} frames which "
                "move by one place in each step, but they did not. Whatever changes them must declare a plain Box"
            )
