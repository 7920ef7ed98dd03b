"""NativeCollector: native envs and a policy in C (native/core/ppo.c), both on the CPU: one call of C for a rollout.

The envs are divided into blocks. A thread plays a block for all steps of the rollout, without waiting for the other
blocks: policy, env, results into the rollout (native/core/ppo_collect.h). HostCollector defines the results.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from shoal.algos.collect import Seat
from shoal.algos.collect.host import HostCollector
from shoal.algos.fast.ppo_native import NativePPO
from shoal.native import ppo
from shoal.native.batch import Memory
from shoal.spec import Array
from shoal.vector.base import VecEnv
from shoal.vector.native import range_edges

BLOCK_ROWS = 128  # of a block, at most: its observations, activations and env states stay in a core's cache
MIN_BLOCK_ROWS = 16  # with fewer the products of the forward pass are slow


def covers(vec: VecEnv, seats: Sequence[Seat], surplus_envs: int = 0) -> bool:
    """Whether C covers the envs and their policy: one policy for all agents that learns, and plain actions.

    It does not cover actions that are squashed: numpy's tanh has other bits than the C library's. Nor does it cover
    actions of both numbers and choices, and rewards of the user's own: C does not keep the last observations of
    terminated episodes.
    """
    memory, seat = vec.native_memory, seats[0]
    rollout, head = seat.rollout, seat.actor.head
    return (
        memory is not None
        and vec.autoreset_mode == AutoresetMode.SAME_STEP
        and not surplus_envs
        and len(seats) == 1
        and seat.learns
        and seat.shaper is None
        and seat.role.agents is None
        and type(rollout.acting) is NativePPO
        and rollout.acting.rollout_inputs() is not None
        and rollout.initial is None
        and head.space == vec.single_action_space
        and not (head.has_box and (head.squash or isinstance(head.space, spaces.Tuple)))
    )


class NativeCollector(HostCollector):
    """Plays one policy on native envs and fills its rollout, in C."""

    def __init__(self, vec: VecEnv, seat: Seat) -> None:
        super().__init__(vec, [seat])
        memory = vec.native_memory
        assert memory is not None
        self.acting: NativePPO = seat.rollout.acting
        edges = block_edges(vec.num_envs, self.agents, self.acting.threads.count)
        self._edges = np.array(edges, np.int32)
        self._reports = (ppo.Report * (len(edges) - 1))()
        weakref.finalize(self, self.acting.lib.free_reports, self._reports, len(self._reports)).atexit = False
        self._memory = memory
        self._constants = _box_constants(seat.actor.head)  # C holds their addresses
        self._box = np.zeros((vec.num_rows, seat.actor.head.size if self._constants else 0), np.float32)
        self._struct = self._describe()

    def _describe(self) -> ppo.Collect:
        """The envs, the rollout and the blocks for C."""
        rollout = self.seats[0].rollout
        constants = {name: part.ctypes.data for name, part in self._constants.items()}
        return ppo.Collect(
            envs=_describe_envs(self._memory, self.agents),
            act=self._describe_act(),
            horizon=rollout.horizon,
            segment=rollout.segment,
            rewards=rollout.rewards.data_ptr(),
            dones=rollout.dones.data_ptr(),
            alive=None if rollout.alive is None else rollout.alive.data_ptr(),
            **constants,
            box=self._box.ctypes.data,
            edges=self._edges.ctypes.data,
            blocks=len(self._reports),
            reports=ctypes.addressof(self._reports),
        )

    def _describe_act(self) -> ppo.Act:
        rollout = self.seats[0].rollout
        act = ppo.Act(inputs=self.acting.rollout_inputs(), rows=rollout.rows)
        for name in ("noise", "logits", "values", "actions"):
            setattr(act, name, getattr(rollout, name).data_ptr())
        act.masks = None if rollout.masks is None else rollout.masks.data_ptr()
        for k, (state, starts) in enumerate(zip(rollout.state, rollout.starts)):
            act.state[k], act.saved[k] = state.data_ptr(), starts.data_ptr()
        return act

    def _fill(self) -> None:
        if not all(self._acts_natively):
            super()._fill()
            return
        self.vec.check_idle()
        began = time.perf_counter()
        self.acting.lib.collect(self.acting.model, ctypes.addressof(self._struct))
        self._add_times(time.perf_counter() - began)
        self._check_reports()
        self._add_truncations()
        for envs in self.ranges.values():
            envs.t, envs.is_stepping = self.horizon, True

    def _add_times(self, seconds: float) -> None:
        """Divides the seconds of a rollout by what the threads measured."""
        policy, env, copy = (
            sum(getattr(report, name) for report in self._reports) for name in ("policy_ns", "env_ns", "copy_ns")
        )
        total = max(1, policy + env + copy)
        self.times.inference += seconds * policy / total
        self.times.env += seconds * env / total
        self.times.copy += seconds * copy / total

    def _check_reports(self) -> None:
        """Raises what HostCollector raises at the first action that the envs refuse."""
        if any(report.out_of_memory for report in self._reports):
            raise MemoryError("no memory for the last observations of truncated episodes.")
        bad = [(report.bad_step, report.bad_value) for report in self._reports if report.bad_step >= 0]
        if not bad:
            return
        step, value = min(bad)
        head = self.seats[0].actor.head
        env = value // head.size // self.agents
        envs = next(envs for envs in self.ranges.values() if envs.lo <= env < envs.hi)
        actions = head.to_env(envs.views[0][step].env_actions)
        self._send([actions], envs, time.perf_counter())
        raise AssertionError(f"C refused value {value} of step {step}, which send() accepts")

    def _add_truncations(self) -> None:
        """Adds the truncated rows in the order of HostCollector: by step, then by range of envs, then by row."""
        reports = [report for report in self._reports if report.count]
        if not reports:
            return
        rollout, final_obs = self.seats[0].rollout, self._memory.arrays["final_obs"]
        size = rollout.state[0].shape[1] if rollout.state else 0
        at = _joined(reports, "at", (), np.int64)
        order = np.argsort(at)
        steps, rows = np.divmod(at[order], rollout.rows)
        obs = torch.from_numpy(_joined(reports, "obs", final_obs.shape[1:], final_obs.dtype)[order])
        states = _joined(reports, "state", (len(rollout.state), size), np.float32)[order]
        state = [torch.from_numpy(np.ascontiguousarray(states[:, k])) for k in range(len(rollout.state))]
        last_rows = np.array([envs.hi * self.agents for envs in self.ranges.values()])
        batch = steps * len(last_rows) + np.searchsorted(last_rows, rows, side="right")  # rows that are added together
        edges = [0, *(np.flatnonzero(np.diff(batch)) + 1).tolist(), len(batch)]
        row_index = torch.from_numpy(rows)
        for lo, hi in pairwise(edges):
            parts = tuple(part[lo:hi] for part in state)
            rollout.truncations.add(int(steps[lo]), row_index[lo:hi], [obs[lo:hi]], parts)


def block_edges(num_envs: int, agents: int, threads: int) -> list[int]:
    """The edges of the blocks: as many blocks for every thread, of whole SIMD blocks, if there are enough envs."""
    rows = num_envs * agents
    blocks = threads * -(-rows // (BLOCK_ROWS * threads))
    return range_edges(num_envs, max(1, min(blocks, num_envs, rows // MIN_BLOCK_ROWS)))


def _describe_envs(memory: Memory, agents: int) -> ppo.Envs:
    module, arrays = memory.module, memory.arrays
    is_box = module.spec.action_kind == "box"
    take = module.take[np.dtype(np.float32 if is_box else np.int64)]
    names = ("obs", "final_obs", "rewards", "terminated", "truncated", "alive", "masks")
    return ppo.Envs(
        batch=memory.address,
        step=ctypes.cast(module.step, ctypes.c_void_p).value,
        take=ctypes.cast(take, ctypes.c_void_p).value,
        agents=agents,
        obs_bytes=arrays["obs"][0].nbytes,
        **{name: arrays[name].ctypes.data for name in names},
    )


def _box_constants(head: Any) -> dict[str, Array]:
    """Scale, center and bounds of a Box, one number for each column; empty for choices."""
    if not head.has_box:
        return {}
    constants = {"scale": head._scale, "center": head._center, "low": head.space.low, "high": head.space.high}
    return {name: np.array(np.ravel(part), np.float32) for name, part in constants.items()}


def _joined(reports: Sequence[Any], name: str, shape: tuple[int, ...], dtype: Any) -> Array:
    """(truncated rows, *shape): a copy of an array of all reports."""
    width = int(np.prod(shape)) * np.dtype(dtype).itemsize
    parts = [ctypes.string_at(getattr(report, name), report.count * width) for report in reports]
    return np.frombuffer(b"".join(parts), dtype).reshape(-1 if width else sum(r.count for r in reports), *shape)
