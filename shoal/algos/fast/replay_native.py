"""Stores and samples a replay on a CPU in C, row by row (native/core/qlearn.c). algos/replay.py defines the results."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.native import qlearn


class NativeReplay:
    """A replay's memory for C. Results equal those of torch bit for bit, except for powers of gamma."""

    def __init__(self, replay: Any, make_batch: Any) -> None:
        self.replay, self.lib, self._make_batch = replay, qlearn.load(), make_batch
        whole = [leaf for _, leaf in replay.whole(replay.obs)]  # C knows only these; torch has stacked frames
        self.sizes = np.array([leaf[0].numel() * leaf.element_size() for leaf in whole], np.int64)
        self.ends = torch.zeros(replay.rows, dtype=torch.int64)
        self.counts = replay.counts.numpy()
        self.leaves = addresses(whole)
        tensors = {"base": replay.base, "actions": replay.actions, "rewards": replay.rewards, "kinds": replay.kinds}
        tensors |= {"heads": replay.heads, "counts": replay.counts, "stored": replay.stored}
        self.memory = qlearn.Replay(
            rows=replay.rows,
            agents=replay.agents,
            capacity=replay.capacity,
            leaves=len(whole),
            mask_size=0 if replay.masks is None else replay.masks.shape[1],
            action_bytes=replay.actions.element_size(),
            obs_bytes=self.sizes.ctypes.data,
            obs=ctypes.addressof(self.leaves),
            masks=None if replay.masks is None else replay.masks.data_ptr(),
            ends=self.ends.data_ptr(),
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
        )
        self.address = ctypes.addressof(self.memory)
        self._last_rollout: tuple[Any, ...] = (None,)  # the rollout that was stored last, and its C struct
        self._last_batch: tuple[Any, ...] = (None,)  # the batch that was sampled last, and its C struct

    def store(self, rollout: Any) -> None:
        """The same as `Replay.store`."""
        if self._last_rollout[0] is not rollout:
            self._last_rollout = rollout, *self._describe(rollout)
        struct = self._last_rollout[1]
        truncations = list(rollout.truncations)
        if truncations:
            flags, last = rollout.truncations.flags(), torch.empty(rollout.dones.shape, dtype=torch.int64)
            struct.cuts, struct.last = flags.data_ptr(), last.data_ptr()
        self.lib.store(ctypes.addressof(struct))
        if truncations:
            struct.cuts = struct.last = None
        for truncation in truncations:  # rows whose agent was out of the game have no place
            t, rows = truncation.steps.start, truncation.rows
            counts = slice(None) if rollout.alive is None else rollout.alive[t, rows]
            for k, stored in self.replay.whole(self.replay.obs):
                stored[last[t, rows[counts]]] = truncation.obs[k][counts].to(stored.dtype)
            if self.replay.masks is not None:
                self.replay.masks[last[t, rows[counts]]] = rollout.truncations.masks_of(truncation)[counts]

    def _describe(self, rollout: Any) -> tuple[Any, ...]:
        """The C struct of a rollout, and what it points to."""
        leaves = addresses([leaf for _, leaf in self.replay.whole(rollout.obs)])
        tensors = {name: getattr(rollout, name) for name in "actions rewards dones alive masks".split()}
        if self.replay.masks is None:
            tensors["masks"] = None
        pointers = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
        struct = qlearn.Store(replay=self.address, steps=rollout.horizon, obs=ctypes.addressof(leaves), **pointers)
        return struct, leaves, tensors

    def sample(self, chance: Tensor, n_step: int, gamma: float, reuse: Any) -> Any:
        """The same as `Replay.sample` without priorities; chance: (groups, count) uniform random numbers."""
        groups, count = chance.shape
        batch = self._batch(groups * count, reuse)
        struct = self._last_batch[1]
        struct.groups, struct.count, struct.chances = groups, count, chance.data_ptr()
        struct.n_step, struct.gamma = n_step, gamma
        self.lib.draw(ctypes.addressof(struct))
        self.lib.windows(ctypes.addressof(struct))
        self._take_frames(batch, n_step)
        return batch

    def windows(self, index: Tensor, weights: Tensor, n_step: int, gamma: float) -> Any:
        """The windows that start at the places `index` (batch,)."""
        batch = self._batch(len(index), None)
        batch.index.copy_(index)
        batch.weights.copy_(weights)
        struct = self._last_batch[1]
        struct.groups, struct.count, struct.n_step, struct.gamma = 1, len(index), n_step, gamma
        self.lib.windows(ctypes.addressof(struct))
        self._take_frames(batch, n_step)
        return batch

    def _take_frames(self, batch: Any, n_step: int) -> None:
        """Gathers the stacked observations of a batch."""
        stacked = self.replay.stacked
        if stacked:
            after = self.replay.after(batch.index, n_step)
            for k, leaf in stacked.items():
                batch.obs[k], batch.next_obs[k] = leaf[batch.index], leaf[after]

    def _batch(self, count: int, reuse: Any) -> Any:
        """Memory for a batch: that of `reuse` if it is the last batch and has this size."""
        if reuse is not None and reuse is self._last_batch[0] and len(reuse.index) == count:
            return reuse
        replay = self.replay
        floats = {name: torch.empty(count) for name in ("returns", "discounts", "weights")}
        integers = {name: torch.empty(count, dtype=torch.int64) for name in ("index", "actions")}
        obs, next_obs = [list(replay.obs) for _ in range(2)]
        for leaves in (obs, next_obs):
            for k, leaf in replay.whole(leaves):
                leaves[k] = leaf.new_empty((count, *leaf.shape[1:]))
        masks = None if replay.masks is None else replay.masks.new_empty((count, replay.masks.shape[1]))
        batch = self._make_batch(obs=obs, next_obs=next_obs, next_masks=masks, **floats, **integers)
        here, there = (addresses([leaf for _, leaf in replay.whole(part)]) for part in (obs, next_obs))
        struct = qlearn.Draw(
            replay=self.address,
            obs=ctypes.addressof(here),
            next_obs=ctypes.addressof(there),
            next_masks=None if masks is None else masks.data_ptr(),
            **{name: tensor.data_ptr() for name, tensor in (floats | integers).items()},
        )
        self._last_batch = batch, struct, here, there
        return batch


def addresses(leaves: list[Tensor]) -> Any:
    """The addresses of tensors, as a C array."""
    return (ctypes.c_void_p * len(leaves))(*[leaf.data_ptr() for leaf in leaves])
