"""LeagueCollector: `DeviceCollector` for a league: learners play some rows of each env, and members all other rows.

The env's kernel writes into the envs' memory. The members read their rows there and write their actions there, so they
need no rollout. Each learner's rows are copied into its rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.algos.collect import Seat
from shoal.algos.collect.device import DeviceCollector
from shoal.nn.launch import has_triton, launch

TAKEN = 32  # rows that a block copies


class LeagueCollector(DeviceCollector):
    """Plays learners and their opponents on envs of the same GPU.

    `members` acts for the opponents (fast/members.py): it has `begin`, `act`, and `finish_step`.
    """

    def __init__(self, vec: Any, seats: Sequence[Seat], fused: Sequence[Any], members: Any) -> None:
        super().__init__(vec, seats, fused)
        device = seats[0].rollout.device
        self.members, self.rows = members, [torch.as_tensor(seat.role.rows, device=device) for seat in seats]
        same = all(vec.tensors["obs"].dtype == seat.rollout.obs[0].dtype for seat in seats)
        self.uses_kernels = device.type == "cuda" and has_triton() and same

    def collect(self) -> None:
        """Fills the rollouts with `horizon` steps of every row."""
        self.members.begin()
        super().collect()

    def _step_and_copy(self, t: int) -> None:
        self.members.act(t, self.env_actions)
        for rows, actions in zip(self.rows, self.actions):
            self.env_actions.index_copy_(0, rows, actions)
        self.vec.launch_step(actions=self.env_actions)
        tensors = self.vec.tensors
        for number, seat in enumerate(self.seats):
            rollout, truncations = seat.rollout, seat.rollout.truncations
            if self.uses_kernels:
                self._take_all(number, t)
                continue
            self._take(number, tensors["obs"], rollout.obs[0][t + 1])
            self._take(number, tensors["rewards"], rollout.rewards[t])
            self._take(number, tensors["done"], rollout.dones[t])
            if truncations.fixed_flags is not None:
                truncated = truncations.fixed_flags[t]
                self._take(number, tensors["truncated"], truncated)
                self._store_truncated(truncations, t, truncated, self._rows(number, tensors["final_obs"]))
        self.members.finish_step()

    def _take_all(self, number: int, t: int) -> None:
        """Copies the results of a seat's rows in one kernel: also who is alive, and the action masks."""
        from shoal.algos.fast import member_kernels

        tensors, rollout = self.vec.tensors, self.seats[number].rollout
        truncations, alive, masks = rollout.truncations, rollout.alive, rollout.masks
        flags = truncations.fixed_flags
        last = None if flags is None else truncations.obs[0][t // truncations.window]
        launch(
            member_kernels.take, (-(-rollout.rows // TAKEN),),
            tensors["obs"], tensors["rewards"], _bytes(tensors["done"]), _bytes(tensors["truncated"]),
            tensors["final_obs"], _bytes(tensors["alive"]), None if masks is None else tensors["masks"],
            self.rows[number],
            rollout.obs[0][t + 1], rollout.rewards[t], _bytes(rollout.dones[t]),
            None if flags is None else _bytes(flags[t]), last,
            None if alive is None else _bytes(alive[t + 1]), None if masks is None else masks[t + 1],
            rollout.rows, rollout.obs[0][0, 0].numel(),
            TRUNCATES=flags is not None, ALIVE=alive is not None, MASKS=0 if masks is None else masks.shape[-1],
            BM=TAKEN, PART=64, num_warps=4,
        )  # fmt: skip

    def _take_flags(self, number: int, t: int) -> None:
        if not self.uses_kernels:
            super()._take_flags(number, t)

    def _take(self, number: int, source: Tensor, into: Tensor) -> None:
        """Copies a seat's rows, in one kernel."""
        if source.dtype == into.dtype and source.shape[1:] == into.shape[1:]:
            torch.index_select(source, 0, self.rows[number], out=into)
        else:
            into.copy_(self._rows(number, source).view(into.shape))

    def _rows(self, number: int, tensor: Tensor) -> Tensor:
        return tensor.index_select(0, self.rows[number])


def _bytes(flags: Tensor) -> Tensor:
    """The same memory as bytes: Triton's booleans have one bit."""
    return flags.view(torch.uint8)
