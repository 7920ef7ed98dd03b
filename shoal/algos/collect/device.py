"""DeviceCollector: envs and policy on the same GPU. It never waits for the device, so a CUDA graph can hold it.

    horizon times: policy -> sample -> env kernel, which writes rewards, flags and the next observation in place

All sizes are fixed. A row has one entry for its last observation in each window of steps in which it can be truncated
once (`Truncations.reserve`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.algos.collect import PolicyAge, Seat, Times, act_into, begin, evaluation_mode
from shoal.algos.rollout import Rollout, Truncations
from shoal.nn.cores import State
from shoal.nn.fused import BLOCK
from shoal.nn.launch import has_triton, launch


class DeviceCollector:
    """Plays policies on envs of the same GPU and fills their rollouts.

    If one policy plays every agent, the env's kernel writes directly into its rollout. With several policies it writes
    into the envs' memory, and each policy copies the rows of its agents.
    """

    def __init__(self, vec: Any, seats: Sequence[Seat], fused: Sequence[Any] = ()) -> None:
        self.vec, self.seats, self.times = vec, list(seats), Times()
        self.age = PolicyAge()  # stays empty: no step waits on the device
        self.fused = [*fused, *[None] * (len(seats) - len(fused))]
        self.agents, device = vec.agents_per_env, seats[0].rollout.device
        self.envs, self.horizon = len(vec.actions) // self.agents, seats[0].rollout.horizon
        zeros = partial(torch.zeros, device=device)
        self.env_actions = zeros(vec.actions.shape, dtype=vec.actions.dtype)
        self.flags = zeros((2, len(vec.actions)), dtype=torch.bool)  # terminated; truncated, if there is no time limit
        first = seats[0]
        self.plays_all = first.rollout.rows == len(vec.actions) and not (first.role.obs_size or first.role.action_width)
        self.agent_index = [torch.tensor(seat.role.agents or range(self.agents), device=device) for seat in seats]
        self.actions = [self.env_actions]  # by seat
        if not self.plays_all:
            self.actions = [self.env_actions.new_zeros((s.rollout.rows, *vec.actions.shape[1:])) for s in seats]
        for seat in seats:
            if vec.time_limit and seat.learns:
                seat.rollout.truncations.reserve(vec.time_limit)
        # a reward of the user's own needs the last observation of every episode
        self.shapes = any(seat.shaper is not None for seat in seats)
        vec.struct.final_cut = int(not self.shapes)  # 1: final_obs is written only where an episode was truncated

    def start(self, seed: int) -> None:
        """Resets the envs. Their observations become the last step of an empty rollout: `collect` continues there."""
        obs, infos = self.vec.reset(seed=seed)
        self.resume(obs, infos)

    def resume(self, obs: Any, infos: dict[str, Any]) -> None:
        """Continues from restored envs. Their observations become the last step of an empty rollout."""
        for number, seat in enumerate(self.seats):
            rollout = seat.rollout
            rollout.obs[0][-1].copy_(self._obs(number, obs))
            if rollout.alive is not None:
                rollout.alive[-1].copy_(self._rows(number, infos["alive"]))
            if rollout.masks is not None:
                rollout.masks[-1].copy_(self._masks(number, infos["action_mask"]))

    @torch.no_grad()
    def collect(self) -> None:
        """Fills the rollouts with `horizon` steps of every row."""
        for seat, fused in zip(self.seats, self.fused):
            if fused is not None:
                fused.begin()
            begin(seat)
        with evaluation_mode(self.seats):
            for t in range(self.horizon):
                self._step(t)
            for seat, fused in zip(self.seats, self.fused):
                rollout = seat.rollout
                if fused is not None:
                    fused.act(rollout.horizon)
                elif rollout.needs_last_value:
                    rollout.values[-1].copy_(seat.actor.step(rollout.obs[0][-1], rollout.state)[1])

    def _step(self, t: int) -> None:
        states: list[State] = []
        for number, (seat, fused) in enumerate(zip(self.seats, self.fused)):
            seat.rollout.save_start(t)
            states.append(self._act(number, t) if fused is None else fused.act(t, self.actions[number]))
        if self.plays_all:
            self._step_in_place(t)
        else:
            self._step_and_copy(t)
        for number, seat in enumerate(self.seats):
            self._take_flags(number, t)
            for part, new in enumerate(states[number]):
                _carry(seat.rollout, t, part, new)
            if seat.shaper is not None:
                self._shape(number, t)

    def _take_flags(self, number: int, t: int) -> None:
        """Copies who is alive after step t, and the action masks."""
        rollout = self.seats[number].rollout
        if rollout.alive is not None:
            rollout.alive[t + 1].copy_(self._rows(number, self.vec.tensors["alive"]))
        if rollout.masks is not None:
            rollout.masks[t + 1].copy_(self._masks(number, self.vec.tensors["masks"]))

    def _shape(self, number: int, t: int) -> None:
        """Computes a reward of the user's own for step t."""
        seat = self.seats[number]
        assert seat.shaper is not None
        rollout, flags = seat.rollout, seat.rollout.truncations.fixed_flags
        last, obs, done = self._rows(number, self.vec.tensors["final_obs"]), rollout.obs[0][t + 1], rollout.dones[t]
        after = torch.where(done.view(-1, *[1] * (obs.ndim - 1)), last.view_as(obs), obs)
        seat.shaper.step(t, [after], torch.zeros_like(done) if flags is None else flags[t])

    def _act(self, number: int, t: int) -> State:
        """Acts for a seat at step t; returns the next recurrent state of its policy."""
        seat, actions = self.seats[number], self.actions[number]
        views = seat.rollout.step(t)
        state = act_into(seat.actor, views)
        chosen = seat.actor.head.to_device(views.actions)
        if seat.role.action_width:
            actions[:, : chosen.shape[1]].copy_(chosen)
        else:
            actions.copy_(chosen.view(actions.shape))
        return state

    def _step_in_place(self, t: int) -> None:
        rollout, outputs = self.seats[0].rollout, {"truncated": self.flags[1]}
        truncations = rollout.truncations
        if truncations.fixed_flags is not None:
            last = truncations.obs[0][t // truncations.window]
            outputs = {"truncated": truncations.fixed_flags[t], "final_obs": last}
        if self.shapes:
            outputs.pop("final_obs", None)  # into the env's own memory: that of terminated episodes is needed too
        self.vec.launch_step(
            obs=rollout.obs[0][t + 1],
            actions=self.env_actions,
            rewards=rollout.rewards[t],
            done=rollout.dones[t],
            terminated=self.flags[0],
            **outputs,
        )
        if self.shapes and truncations.fixed_flags is not None:
            self._store_truncated(truncations, t, truncations.fixed_flags[t], self.vec.tensors["final_obs"])

    @staticmethod
    def _store_truncated(truncations: Truncations, t: int, truncated: Tensor, last: Tensor) -> None:
        """Keeps the last observations of rows that were truncated at step t."""
        stored = truncations.obs[0][t // truncations.window]
        stored.copy_(torch.where(truncated.view(-1, *[1] * (stored.ndim - 1)), last.view_as(stored), stored))

    def _step_and_copy(self, t: int) -> None:
        by_agent = self.env_actions.view(self.envs, self.agents, -1)
        for index, actions in zip(self.agent_index, self.actions):
            by_agent.index_copy_(1, index, actions.view(self.envs, len(index), -1))
        self.vec.launch_step(actions=self.env_actions)
        tensors = self.vec.tensors
        for number, seat in enumerate(self.seats):
            rollout, truncations = seat.rollout, seat.rollout.truncations
            rollout.obs[0][t + 1].copy_(self._obs(number, tensors["obs"]))
            rollout.rewards[t].copy_(self._rows(number, tensors["rewards"]))
            rollout.dones[t].copy_(self._rows(number, tensors["done"]))
            if truncations.fixed_flags is not None:
                truncated, last = self._rows(number, tensors["truncated"]), self._obs(number, tensors["final_obs"])
                truncations.fixed_flags[t].copy_(truncated)
                self._store_truncated(truncations, t, truncated, last)

    def _obs(self, number: int, tensor: Tensor) -> Tensor:
        """A seat's observations: of a group that observes less, the first elements of its rows."""
        rows, size = self._rows(number, tensor), self.seats[number].role.obs_size
        return rows[:, :size] if size else rows

    def _masks(self, number: int, tensor: Tensor) -> Tensor:
        """A seat's action masks: of a group with fewer choices, the first entries of its rows."""
        rows, size = self._rows(number, tensor), self.seats[number].role.mask_size
        return rows[:, :size] if size else rows

    def _rows(self, number: int, tensor: Tensor) -> Tensor:
        """The rows of a seat's agents, from a tensor over all rows."""
        if self.plays_all:
            return tensor
        by_agent = tensor.view(self.envs, self.agents, *tensor.shape[1:])
        return by_agent.index_select(1, self.agent_index[number]).flatten(0, 1)


def _carry(rollout: Rollout, t: int, part: int, new: Tensor) -> None:
    """Sets part number `part` of the recurrent state to `new`, or to the initial state where an episode ended.

    The new state of truncated rows is stored with their last observations.
    """
    state, alive, truncations = rollout.state[part], rollout.alive, rollout.truncations
    truncated = stored = None
    if truncations.fixed_flags is not None:
        truncated, stored = truncations.fixed_flags[t], truncations.state[part][t // truncations.window]
    if has_triton() and rollout.initial is None and state.is_contiguous() and new.is_contiguous():
        from shoal.algos.fast import kernels

        size = state[0].numel()
        is_alive, next_alive = (None, None) if alive is None else (alive[t], alive[t + 1])
        launch(
            kernels.carry, (-(-state.numel() // BLOCK),),
            new, state, rollout.dones[t], is_alive, next_alive, truncated, stored, len(state),
            TRUNCATES=truncated is not None, ALIVE=alive is not None, S=size, PART=BLOCK, num_warps=4,
        )  # fmt: skip
        return
    shape = (-1, *[1] * (state.ndim - 1))
    if truncated is not None and stored is not None:
        stored.copy_(torch.where(truncated.view(shape), new, stored))
    keep = ~rollout.dones[t]
    if alive is not None:
        keep = keep & alive[t] & alive[t + 1]
    initial = 0.0 if rollout.initial is None else rollout.initial[part]
    state.copy_(torch.where(keep.view(shape), new, initial))
