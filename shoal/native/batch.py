"""All memory of a batch of native envs: one contiguous numpy array per kind, and the C struct that points to them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.native.lib import Batch, Module
from shoal.spec import Array

ALIGNMENT = 64  # a cache line: SIMD loads do not cross lines, and threads share none


def aligned_zeros(shape: tuple[int, ...] | int, dtype: Any) -> Array:
    """Like np.zeros, but starting on a cache line."""
    dtype, shape = np.dtype(dtype), (shape,) if isinstance(shape, int) else shape
    count = int(np.prod(shape))
    block = np.zeros(count * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    zeros: Array = block[start : start + count * dtype.itemsize].view(dtype).reshape(shape)
    return zeros


class Memory:
    """The arrays of `Batch` in core/module.c, under the same names. `address` is the argument of the C functions."""

    def __init__(self, module: Module, num_envs: int, autoreset: int = 0, poison: int = 0) -> None:
        self.module, self.num_envs, self.num_rows = module, num_envs, num_envs * module.spec.agents
        self.arrays = {
            name: aligned_zeros(shape, dtype) for name, (shape, dtype) in self._layout(module, num_envs).items()
        }
        self.struct = Batch(num_envs=num_envs, autoreset=autoreset, poison=poison)
        self.address = ctypes.addressof(self.struct)
        for name, array in self.arrays.items():
            setattr(self.struct, name, array.ctypes.data)
        self.params = aligned_zeros(1, module.params_dtype)
        module.default_params(self.params.ctypes.data)
        self.struct.params = self.params.ctypes.data

    @staticmethod
    def _layout(module: Module, num_envs: int) -> dict[str, tuple[Any, Any]]:
        """Shape and dtype of every array."""
        spec = module.spec
        envs, rows, stats = num_envs, num_envs * spec.agents, len(spec.stats)
        action_dtype = np.float32 if spec.has_float_actions else np.int32
        action_shape = (rows,) if spec.action_kind == "discrete" else (rows, module.action_size)
        return {
            "state": (module.state_bytes(num_envs), np.uint8),
            "rng": ((envs, 4), np.uint32),
            "tick": (envs, np.int32),
            "ended": (envs, np.bool_),
            "returns": (rows, np.float32),
            "stats": ((stats, envs), np.float32),
            "actions": (action_shape, action_dtype),
            "obs": ((rows, *spec.obs_shape), spec.obs_dtype),
            "final_obs": ((rows, *spec.obs_shape), spec.obs_dtype),
            "rewards": (rows, np.float32),
            "terminated": (rows, np.bool_),
            "truncated": (rows, np.bool_),
            "done": (rows, np.bool_),
            "alive": (rows, np.bool_),
            "masks": ((rows, spec.mask_size), np.int8),
            "final_return": (rows, np.float32),
            "final_length": (rows, np.int32),
            "final_stats": ((stats, envs), np.float32),
            "episodes": (envs, np.int32),
            "sums": (num_metrics(module) * envs, np.float64),  # shoal_sum_at of core/module.c says what is where
            "lows": ((2 + stats, envs), np.float32),
            "highs": ((2 + stats, envs), np.float32),
        }

    @staticmethod
    def bytes_needed(module: Module, num_envs: int) -> int:
        """The memory of such a batch, without padding."""
        arrays = Memory._layout(module, num_envs).values()
        return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in arrays)

    def set_params(self, values: Mapping[str, Array]) -> None:
        """Checked values of shape () for all envs or (num_envs,) for each. The next step uses them."""
        if len(self.params) < self.num_envs and any(value.shape for value in values.values()):
            self._use_params(self.num_envs)
        for name, value in values.items():
            self.params[name] = value
        if len(self.params) > 1 and (self.params == self.params[0]).all():  # equal again: one for all is faster
            self._use_params(1)

    def _use_params(self, count: int) -> None:
        """Replaces the params by `count` copies of the first: 1 for all envs, or num_envs."""
        params = aligned_zeros(count, self.module.params_dtype)
        params[:] = self.params[0]
        self.params = params
        self.struct.params, self.struct.params_stride = params.ctypes.data, int(count > 1)

    def set_reset(self, seeds: Array | None, mask: Array | None) -> None:
        """The arguments of the next reset: a seed for each env (None: random streams continue), and which envs."""
        self._seeds, self._mask = seeds, mask  # keeps them alive while the struct points to them
        self.struct.seeds = None if seeds is None else seeds.ctypes.data
        self.struct.reset_mask = None if mask is None else mask.ctypes.data

    def drain(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Mean, min and max over the episodes that ended since the last call, also by agent. Clears the sums.

        Each env has its own sums, and they are added in a fixed order: the result does not depend on threads.
        """
        counts = self.arrays["episodes"]
        episodes = int(counts.sum())
        if not episodes:
            return {"episodes": 0}, {}
        has_ended = counts > 0
        first_agent = 2 + len(self.module.spec.stats)
        by_metric, by_env = np.split(self.arrays["sums"], [first_agent * self.num_envs])
        sums = ordered_sums(by_metric.reshape(first_agent, -1))
        if by_env.size:
            sums += ordered_sums(by_env.reshape(self.num_envs, -1).T)
        lows = self.arrays["lows"].min(1, where=has_ended, initial=np.inf).tolist()
        highs = self.arrays["highs"].max(1, where=has_ended, initial=-np.inf).tolist()
        counts[:] = 0
        self.arrays["sums"][:] = 0
        return describe_episodes(self.module, episodes, sums, lows, highs)


def num_metrics(module: Module) -> int:
    """SHOAL_METRICS of core/module.c: return, length, the env's stats, and with several agents those of each agent."""
    agents = module.spec.agents
    return 2 + len(module.spec.stats) + (2 * agents if agents > 1 else 0)


def ordered_sums(metrics: Array) -> list[float]:
    """The sum of each row in the order of the GPU's drain kernel (core/device.h): 256 running sums, pairwise halves."""
    count, envs = metrics.shape
    lanes = np.zeros((count, -(-envs // 256), 256), np.float64)
    lanes.reshape(count, -1)[:, :envs] = metrics
    total = np.zeros((count, 256), np.float64)
    for k in range(lanes.shape[1]):
        total += lanes[:, k]
    half = 128
    while half:
        total[:, :half] += total[:, half : 2 * half]
        half //= 2
    sums: list[float] = total[:, 0].tolist()
    return sums


def describe_episodes(
    module: Module, episodes: int, sums: Sequence[float], lows: Sequence[float], highs: Sequence[float]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result of `drain_stats`, and `agent_stats`."""
    names = ["return", "length", *(stat.name for stat in module.spec.stats)]
    columns = zip(names, sums, lows, highs)
    stats = {name: {"mean": total / episodes, "min": low, "max": high} for name, total, low, high in columns}
    agents, means = module.spec.agent_spaces.agents, [total / episodes for total in sums[len(names) :]]
    each = zip(agents, means[: len(agents)], means[len(agents) :])
    agent_stats = {agent: {"return": total, "length": length} for agent, total, length in each}
    return {"episodes": episodes, **stats}, agent_stats
