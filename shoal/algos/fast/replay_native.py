"""A replay on a CPU, stored and sampled in C, row by row (native/core/qlearn.c). The meaning is algos/replay.py."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.native import qlearn


class NativeReplay:
    """A replay on a CPU as C sees it. The same results as the methods in torch, to the bit but for powers of gamma."""

    def __init__(self, replay: Any, make_batch: Any) -> None:
        self.replay, self.lib, self._make_batch = replay, qlearn.load(), make_batch
        self.sizes = np.array([leaf[0].numel() * leaf.element_size() for leaf in replay.obs], np.int64)
        self.ends = torch.zeros(replay.rows, dtype=torch.int64)
        self.counts = replay.counts.numpy()
        self.leaves = addresses(replay.obs)
        parts = {"base": replay.base, "actions": replay.actions, "rewards": replay.rewards, "kinds": replay.kinds}
        parts |= {"heads": replay.heads, "counts": replay.counts, "stored": replay.stored}
        self.memory = qlearn.Replay(
            rows=replay.rows,
            agents=replay.agents,
            capacity=replay.capacity,
            leaves=len(replay.obs),
            mask_size=0 if replay.masks is None else replay.masks.shape[1],
            action_bytes=replay.actions.element_size(),
            obs_bytes=self.sizes.ctypes.data,
            obs=ctypes.addressof(self.leaves),
            masks=None if replay.masks is None else replay.masks.data_ptr(),
            ends=self.ends.data_ptr(),
            **{name: part.data_ptr() for name, part in parts.items()},
        )
        self.address = ctypes.addressof(self.memory)
        self._from: tuple[Any, ...] = (None,)  # the rollout that was stored last, and how C sees it
        self._into: tuple[Any, ...] = (None,)  # the batch that was drawn last, and how C sees it

    def store(self, rollout: Any) -> None:
        """As Replay.store."""
        if self._from[0] is not rollout:
            self._from = rollout, *self._describe(rollout)
        what = self._from[1]
        truncated = list(rollout.truncations)
        if truncated:
            flags, last = rollout.truncations.flags(), torch.empty(rollout.dones.shape, dtype=torch.int64)
            what.cuts, what.last = flags.data_ptr(), last.data_ptr()
        self.lib.store(ctypes.addressof(what))
        if truncated:
            what.cuts = what.last = None
        for part in truncated:  # one that does not count has no place
            t = part.steps.start
            counts = slice(None) if rollout.alive is None else rollout.alive[t, part.rows]
            for stored, leaf in zip(self.replay.obs, part.obs):
                stored[last[t, part.rows[counts]]] = leaf[counts].to(stored.dtype)

    def _describe(self, rollout: Any) -> tuple[Any, ...]:
        leaves = addresses(rollout.obs)
        parts = {name: getattr(rollout, name) for name in "actions rewards dones alive masks".split()}
        if self.replay.masks is None or rollout.masks is None:
            parts["masks"] = None
        pointers = {name: part.data_ptr() for name, part in parts.items() if part is not None}
        what = qlearn.Store(replay=self.address, steps=rollout.horizon, obs=ctypes.addressof(leaves), **pointers)
        return what, leaves, parts

    def sample(self, chance: Tensor, n_step: int, gamma: float, reuse: Any) -> Any:
        """As Replay.sample, without priorities."""
        groups, count = chance.shape
        batch = self._batch(groups * count, reuse)
        what = self._into[1]
        what.groups, what.count, what.chances = groups, count, chance.data_ptr()
        what.n_step, what.gamma = n_step, gamma
        self.lib.draw(ctypes.addressof(what))
        self.lib.windows(ctypes.addressof(what))
        return batch

    def windows(self, index: Tensor, weights: Tensor, n_step: int, gamma: float) -> Any:
        """What began at some places, (batch,)."""
        batch = self._batch(len(index), None)
        batch.index.copy_(index)
        batch.weights.copy_(weights)
        what = self._into[1]
        what.groups, what.count, what.n_step, what.gamma = 1, len(index), n_step, gamma
        self.lib.windows(ctypes.addressof(what))
        return batch

    def _batch(self, count: int, reuse: Any) -> Any:
        """Memory for a batch: an earlier one's if it has the size, and is the last one that was drawn."""
        if reuse is not None and reuse is self._into[0] and len(reuse.index) == count:
            return reuse
        replay = self.replay
        numbers = {name: torch.empty(count) for name in ("returns", "discounts", "weights")}
        whole = {name: torch.empty(count, dtype=torch.int64) for name in ("index", "actions")}
        obs, next_obs = ([leaf.new_empty((count, *leaf.shape[1:])) for leaf in replay.obs] for _ in range(2))
        masks = None if replay.masks is None else replay.masks.new_empty((count, replay.masks.shape[1]))
        batch = self._make_batch(obs=obs, next_obs=next_obs, next_masks=masks, **numbers, **whole)
        leaves, next_leaves = addresses(obs), addresses(next_obs)
        what = qlearn.Draw(
            replay=self.address,
            obs=ctypes.addressof(leaves),
            next_obs=ctypes.addressof(next_leaves),
            next_masks=None if masks is None else masks.data_ptr(),
            **{name: part.data_ptr() for name, part in (numbers | whole).items()},
        )
        self._into = batch, what, leaves, next_leaves
        return batch


def addresses(leaves: list[Tensor]) -> Any:
    """Where some tensors lie, as an array of C."""
    return (ctypes.c_void_p * len(leaves))(*[leaf.data_ptr() for leaf in leaves])
