"""Games: who plays against the learner in each env, and how the games ended.

`member[env]` plays the other sides of an env now. `next_member[env]` is drawn at the start of an iteration, and takes
over when a game ends there, never before: a game has one opponent from start to end. Everything is on the device of the
envs, and nothing waits for it. Knows nothing of policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.league.options import MOST_MEMBERS
from shoal.league.seating import Seating
from shoal.nn.launch import has_triton, launch
from shoal.seeds import stream_seed
from shoal.spec import Array

WIN, DRAW, LOSS = 0, 1, 2
REFEREE_ENVS = 128  # of a block of the kernel


class Games:
    """The opponents of all envs and the results against them.

    Args:
        seating: who plays which rows.
        seed: the seed of the run.
        margin: the difference of returns up to which a game is a draw.
        device: where the envs are.

    Attributes:
        counts: (learners, 64, sides, 3) wins, draws and losses of each learner, by member and by its own side.
        returns: (rows) rewards so far in the current game.
    """

    def __init__(self, seating: Seating, *, seed: int, margin: float, device: Any = "cpu") -> None:
        self.seating, self.margin, self.device = seating, margin, torch.device(device)
        envs, sides = seating.num_envs, len(seating.sides)
        self.member = torch.zeros(envs, dtype=torch.int64, device=self.device)
        self.next_member = torch.zeros_like(self.member)
        self.returns = torch.zeros(envs * seating.agents, device=self.device)
        self.learners = len(seating.own)
        shape = (self.learners, MOST_MEMBERS, sides, 3)
        self.counts = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self.limits = torch.zeros(shape[:2], dtype=torch.float64, device=self.device)  # see `set_probs`
        self.stream = torch.Generator(self.device).manual_seed(stream_seed(seed, "league", "members"))
        self.side = torch.from_numpy(seating.side).to(self.device)
        self.sides = torch.from_numpy(seating.sides).to(self.device)
        self.learner = torch.from_numpy(seating.learner).to(self.device)
        self._envs_of = [(self.learner == k).nonzero().squeeze(1) for k in range(self.learners)]
        self._probs: dict[int, list[float]] = {}
        for learner in range(self.learners):
            self.set_probs([1.0], learner)

    # ---- opponents ----

    def set_probs(self, probs: Sequence[float], learner: int = 0) -> None:
        """The probability of each member to play the next games against a learner: those that `draw` draws now."""
        if self._probs.get(learner) == list(probs):
            return
        self._probs[learner] = list(probs)
        limits, total, last = [], 0.0, max(k for k, share in enumerate(probs) if share > 0.0)
        for share in probs:
            total += share
            limits.append(total)
        # a number below 1 never lies beyond the last member that may play, whatever the sum was rounded to
        limits[last:] = [2.0] * (MOST_MEMBERS - last)
        self.limits[learner].copy_(torch.tensor(limits, dtype=torch.float64))

    def draw(self) -> None:
        """Draws the opponents of the games that begin in the next iteration."""
        number = torch.rand(len(self.member), dtype=torch.float64, generator=self.stream, device=self.device)
        if self.learners == 1:
            self.next_member.copy_(torch.searchsorted(self.limits[0], number, right=True))
            return
        for limits, envs in zip(self.limits, self._envs_of):
            self.next_member[envs] = torch.searchsorted(limits, number[envs], right=True)

    def begin_all(self) -> None:
        """Every env begins a game, against its next opponent."""
        self.member.copy_(self.next_member)
        self.returns.zero_()

    # ---- results ----

    def finish_step(self, rewards: Tensor, is_over: Tensor, lo: int = 0) -> None:
        """Takes the (rows) rewards of a step of envs from `lo` on, and whether a game ended in it, (envs)."""
        if self.device.type == "cuda" and has_triton():
            self._referee(rewards, is_over)
            return
        agents, hi = self.seating.agents, lo + len(is_over)
        returns = self.returns[lo * agents : hi * agents]
        returns += rewards
        if self.device.type == "cpu" and not bool(is_over.any()):
            return
        self._count(returns.view(-1, agents), is_over, slice(lo, hi))
        member = self.member[lo:hi]
        member.copy_(torch.where(is_over, self.next_member[lo:hi], member))
        returns.view(-1, agents).masked_fill_(is_over.unsqueeze(1), 0.0)

    def _count(self, returns: Tensor, is_over: Tensor, envs: slice) -> None:
        """Adds the games that ended to the counts. A game is won if the own side's mean return is the best by far."""
        totals, side = returns[:, self.sides].mean(2), self.side[envs]
        own = totals.gather(1, side.unsqueeze(1)).squeeze(1)
        best = totals.scatter(1, side.unsqueeze(1), -torch.inf).amax(1)
        lead = own - best
        outcome = torch.where(lead > self.margin, WIN, torch.where(lead < -self.margin, LOSS, DRAW))
        game = self.learner[envs] * MOST_MEMBERS + self.member[envs]
        place = (game * len(self.sides) + side) * 3 + outcome
        self.counts.view(-1).index_add_(0, place, is_over.to(torch.int64))  # whole numbers: any order, one sum

    def _referee(self, rewards: Tensor, is_over: Tensor) -> None:
        """`finish_step` of all envs in one kernel."""
        from shoal.algos.fast import member_kernels

        envs, (sides, size) = self.seating.num_envs, self.sides.shape
        launch(
            member_kernels.referee, (-(-envs // REFEREE_ENVS),),
            rewards, is_over, self.returns, self.member, self.next_member, self.learner, self.side, self.sides,
            self.counts, self.margin, envs,
            MEMBERS=MOST_MEMBERS, AGENTS=self.seating.agents, SIDES=sides, SIZE=size, BM=REFEREE_ENVS, num_warps=4,
        )  # fmt: skip

    def drain(self) -> Array:
        """The counts since the last call. Waits for the device."""
        counts: Array = self.counts.cpu().numpy().copy()
        self.counts.zero_()
        return counts

    def playing(self) -> Array:
        """(64) how many envs play against each member now. Waits for the device."""
        playing: Array = torch.bincount(self.member, minlength=MOST_MEMBERS).cpu().numpy()
        return playing

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds, besides the state of `stream`."""
        names = ("member", "next_member", "returns", "counts")
        return {name: getattr(self, name) for name in names}
