"""HostEnvCollector: envs on the CPU, one policy on a GPU.

Envs write into the host's half of the rollout, which is pinned. Each range of envs has a CUDA stream of its own, by
which its observations go to the GPU and its actions come back, while the other ranges step. What learning needs besides
(rewards, flags) follows in one piece when the rollout is full.
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
                f"{len(seats)} policies (--opponents with runs, --nn.policies per_agent, agents with different spaces) "
                "are not supported on a GPU with envs on the CPU. Use --device cpu, or a native env with "
                "--vec.backend cuda."
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
        super().__init__(vec, [Seat(seat.actor, seat.role, self.host, seat.stream)])
        self._streams: dict[int, Any] = {}
        if vec.time_limit:  # a row is truncated at most once in that many steps, and an update can be a CUDA graph
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

    def _act(self, part: EnvRange) -> None:
        began, t, rows = time.perf_counter(), part.t, self._rows(self.seats[0], part)
        host, home = self.host, self.home
        with self._stream(part):
            for mine, theirs in zip(home.obs, host.obs):
                mine[t, rows].copy_(theirs[t, rows], non_blocking=True)
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
        self._send(actions, part, began)

    def _truncated_state(self, seat: Seat, rows: torch.Tensor, part: EnvRange) -> State:
        with self._stream(part):
            return tuple(state[rows.to(state.device)] for state in self.home.state)

    def _clear_state(self, seat: Seat, keep: Array, part: EnvRange) -> None:
        if self.home.state:
            with self._stream(part):
                self.home.clear_state(self._rows(seat, part), torch.from_numpy(keep).to(self.home.device))

    def _last_values(self, seat: Seat) -> None:
        """Copies what learning needs to the GPU, and computes V of what each row saw last there."""
        home, host = self.home, self.host
        for stream in self._streams.values():
            torch.cuda.current_stream().wait_stream(stream)
        home.rewards.copy_(host.rewards, non_blocking=True)
        home.dones.copy_(host.dones, non_blocking=True)
        for mine, theirs in zip(home.obs, host.obs):
            mine[-1].copy_(theirs[-1], non_blocking=True)
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
        truncations, device = self.home.truncations, self.home.device
        if truncations.fixed_flags is None:
            truncations.clear()
            for part in self.host.truncations:
                assert isinstance(part.rows, torch.Tensor)
                last = [leaf.to(device) for leaf in part.obs]
                truncations.add(part.steps.start, part.rows.to(device), last, part.state)
            return
        self._flags.zero_()
        for part in self.host.truncations:
            self._flags[part.steps, part.rows] = True
            truncations.put(part)
        truncations.fixed_flags.copy_(self._flags)

    def _stream(self, part: EnvRange) -> Any:
        if self.home.device.type != "cuda":
            return contextlib.nullcontext()
        if part.lo not in self._streams:
            self._streams[part.lo] = torch.cuda.Stream()
            self._streams[part.lo].wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._streams[part.lo])
