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


class LeagueCollector(DeviceCollector):
    """Plays learners and their opponents on envs of the same GPU.

    `members` acts for the opponents (fast/members.py): it has `begin`, `act`, and `finish_step`.
    """

    def __init__(self, vec: Any, seats: Sequence[Seat], fused: Sequence[Any], members: Any) -> None:
        super().__init__(vec, seats, fused)
        device = seats[0].rollout.device
        self.members, self.rows = members, [torch.as_tensor(seat.role.rows, device=device) for seat in seats]

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
            self._take(number, tensors["obs"], rollout.obs[0][t + 1])
            self._take(number, tensors["rewards"], rollout.rewards[t])
            self._take(number, tensors["done"], rollout.dones[t])
            if truncations.fixed_flags is not None:
                truncated = truncations.fixed_flags[t]
                self._take(number, tensors["truncated"], truncated)
                self._store_truncated(truncations, t, truncated, self._rows(number, tensors["final_obs"]))
        self.members.finish_step()

    def _take(self, number: int, source: Tensor, into: Tensor) -> None:
        """Copies a seat's rows, in one kernel."""
        if source.dtype == into.dtype and source.shape[1:] == into.shape[1:]:
            torch.index_select(source, 0, self.rows[number], out=into)
        else:
            into.copy_(self._rows(number, source).view(into.shape))

    def _rows(self, number: int, tensor: Tensor) -> Tensor:
        return tensor.index_select(0, self.rows[number])
