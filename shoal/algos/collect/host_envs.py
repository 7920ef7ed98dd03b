"""HostEnvCollector: envs on the CPU, one policy on a GPU.

The rollout exists twice: `host` in pinned memory, which the envs fill, and `home` on the GPU, which the policy reads.
Each range of envs has its own CUDA stream: its observations go to the GPU and its actions come back while other ranges
step. Rewards and flags are copied once, when the rollout is full.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import torch

from shoal.algos.collect import Seat, act_into, begin
from shoal.algos.collect.host import EnvRange, HostCollector
from shoal.algos.rollout import Rollout
from shoal.errors import ConfigError
from shoal.nn.cores import State
from shoal.spec import Array
from shoal.vector.base import VecEnv


class HostEnvCollector(HostCollector):
    """Plays one policy, on a GPU, on envs that the CPU steps."""

    def __init__(self, vec: VecEnv, seats: Sequence[Seat], fused: Any = None) -> None:
        if len(seats) != 1:
            raise ConfigError(
                f"{len(seats)} policies (--opponents with runs, --nn.policies per_agent or groups, agents with "
                "different spaces) are not supported on a GPU with envs on the CPU. Use --device cpu, or a native env "
                "with --vec.backend cuda."
            )
        seat = seats[0]
        self.learning, self.home, self.actor, self.fused = seat, seat.rollout, seat.actor, fused
        home = self.home
        self.host = Rollout(
            seat.actor,
            home.horizon,
            home.rows,
            segment=home.segment,
            mask_size=0 if home.masks is None else home.masks.shape[-1],
            has_dead_rows=home.alive is not None,
            staging=True,
        )
        self.host.ends = home.ends if home.ends is None else []
        super().__init__(vec, [Seat(seat.actor, seat.role, self.host, seat.stream)])
        self._streams: dict[int, Any] = {}
        if vec.time_limit:  # fixed sizes, so that an update can be a CUDA graph
            home.truncations.reserve(vec.time_limit)
            self._flags = torch.zeros((home.horizon, home.rows), dtype=torch.bool)

    def collect(self) -> None:
        """Fills the rollout with `horizon` steps of every row."""
        begin(self.learning)
        if self.fused is not None:
            self.fused.begin()
        for stream in self._streams.values():
            stream.wait_stream(torch.cuda.current_stream())
        super().collect()

    def _act(self, envs: EnvRange) -> None:
        began, t, rows = time.perf_counter(), envs.t, self._rows(self.seats[0], envs)
        host, home = self.host, self.home
        with self._stream(envs):
            for device_leaf, host_leaf in zip(home.obs, host.obs):
                device_leaf[t, rows].copy_(host_leaf[t, rows], non_blocking=True)
            if home.masks is not None and host.masks is not None:
                home.masks[t, rows].copy_(host.masks[t, rows], non_blocking=True)
            home.save_start(t, rows)
            if self.fused is None:
                new_state = act_into(self.actor, home.step(t, rows))
            else:
                new_state = self.fused.act(t, rows=rows)
            for state, new in zip(home.state, new_state):
                state[rows].copy_(new)
            host.actions[t, rows].copy_(home.actions[t, rows], non_blocking=True)
            if home.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
        actions = [self.actor.head.to_env(host.actions[t, rows].numpy())]
        self._send(actions, envs, began)

    def _truncated_state(self, seat: Seat, rows: torch.Tensor, envs: EnvRange) -> State:
        with self._stream(envs):
            return tuple(state[rows.to(state.device)] for state in self.home.state)

    def _clear_state(self, seat: Seat, keep: Array, envs: EnvRange) -> None:
        if self.home.state:
            with self._stream(envs):
                self.home.clear_state(self._rows(seat, envs), torch.from_numpy(keep).to(self.home.device))

    def _last_values(self, seat: Seat) -> None:
        """Copies rewards, flags and last observations to the GPU, and computes the values of the latter there."""
        home, host = self.home, self.host
        for stream in self._streams.values():
            torch.cuda.current_stream().wait_stream(stream)
        home.rewards.copy_(host.rewards, non_blocking=True)
        home.dones.copy_(host.dones, non_blocking=True)
        for device_leaf, host_leaf in zip(home.obs, host.obs):
            device_leaf[-1].copy_(host_leaf[-1], non_blocking=True)
        if home.alive is not None and host.alive is not None:
            home.alive.copy_(host.alive, non_blocking=True)
        if home.masks is not None and host.masks is not None:
            home.masks[-1].copy_(host.masks[-1], non_blocking=True)
        self._take_truncations()
        if self.fused is not None:
            self.fused.act(home.horizon)
        elif home.needs_last_value:
            last = home.observations([leaf[-1] for leaf in home.obs])
            home.values[-1].copy_(self.actor.step(last, home.state)[1])

    def _take_truncations(self) -> None:
        """Copies the truncations of the host's rollout to the GPU's."""
        truncations, device = self.home.truncations, self.home.device
        if self.host.ends is not None:  # for a reward of the user's own
            self.home.ends = [(t, rows.to(device), [x.to(device) for x in last]) for t, rows, last in self.host.ends]
            self.host.ends = []
        if truncations.fixed_flags is None:
            truncations.clear()
            for truncation in self.host.truncations:
                assert isinstance(truncation.rows, torch.Tensor)
                last = [leaf.to(device) for leaf in truncation.obs]
                mask = None if truncation.mask is None else truncation.mask.to(device)
                truncations.add(truncation.steps.start, truncation.rows.to(device), last, truncation.state, mask)
            return
        self._flags.zero_()
        for truncation in self.host.truncations:
            self._flags[truncation.steps, truncation.rows] = True
            truncations.put(truncation)
        truncations.fixed_flags.copy_(self._flags)

    def _stream(self, envs: EnvRange) -> Any:
        """A context in which the GPU works on the range's stream."""
        if self.home.device.type != "cuda":
            return contextlib.nullcontext()
        if envs.lo not in self._streams:
            self._streams[envs.lo] = torch.cuda.Stream()
            self._streams[envs.lo].wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._streams[envs.lo])
