"""GameTally: counts the games of the learners, their wins and returns, on the device without waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class GameTally:
    """Games that started after the last `restart`: how many ended, how many were won, and the sum of their returns.

    A game is won if its return is above `margin`. A CUDA graph can hold `add`.
    """

    def __init__(self, rollouts: Sequence[Any], device: torch.device) -> None:
        self.rollouts = list(rollouts)
        self.margin = torch.zeros((), device=device)
        self.totals = torch.zeros(3, dtype=torch.float64, device=device)  # games, wins, sum of returns
        self.returns = [torch.zeros_like(rollout.rewards[0]) for rollout in self.rollouts]  # of running games
        self.is_new = [torch.zeros_like(rollout.dones[0]) for rollout in self.rollouts]  # rows that started a new game

    def restart(self, margin: float, *, all_new: bool = False) -> None:
        """Counts only games that start from now on. `all_new`: no game is running yet."""
        self.margin.fill_(margin)
        self.totals.zero_()
        for rows in self.is_new:
            rows.fill_(all_new)

    def add(self) -> None:
        """Adds the games that ended in the rollouts, which still hold the env's rewards."""
        for rollout, carry, is_new in zip(self.rollouts, self.returns, self.is_new):
            dones, counted = rollout.dones, rollout.counted()
            returns = rollout.running_returns(1.0, carry)
            ended_before = torch.cumsum(dones, 0, dtype=torch.int32) > dones.to(torch.int32)
            ended = dones & (ended_before | is_new)
            ended = ended if counted is None else ended & counted
            is_new |= dones.any(0)
            won = (ended & (returns > self.margin)).sum()
            total = torch.where(ended, returns, 0.0).sum(dtype=torch.float64)
            self.totals += torch.stack([ended.sum().to(torch.float64), won.to(torch.float64), total])

    def are_all_new(self) -> bool:
        """Whether every row has started a new game since the last `restart`. Waits for the device."""
        return all(bool(rows.all()) for rows in self.is_new)

    def drain(self) -> tuple[int, int, float]:
        """(games, wins, sum of returns) since the last call. Waits for the device."""
        games, wins, total = self.totals.tolist()
        self.totals.zero_()
        return int(games), int(wins), total

    def tensors(self) -> dict[str, Tensor]:
        """What a resume needs, by its names in a checkpoint."""
        rows = {f"{k}.game_return": part for k, part in enumerate(self.returns)}
        rows |= {f"{k}.game_is_new": part for k, part in enumerate(self.is_new)}
        return {**rows, "games.totals": self.totals, "games.margin": self.margin}


class LatestGames:
    """The latest games: at least `window` of them, if there were as many. They come as sums of intervals."""

    def __init__(self, window: int, intervals: Iterable[Any] = ()) -> None:
        self.window = window
        self.intervals: deque[tuple[int, int, float]] = deque()  # (games, wins, sum of returns)
        for games, wins, total in intervals:
            self.add(int(games), int(wins), float(total))

    def add(self, games: int, wins: int, total: float) -> None:
        """Adds the games of an interval, and removes intervals that are no longer needed."""
        if games > 0:
            self.intervals.append((games, wins, total))
        while self.intervals and self.games - self.intervals[0][0] >= self.window:
            self.intervals.popleft()

    @property
    def games(self) -> int:
        """How many games there are."""
        return sum(games for games, _, _ in self.intervals)

    @property
    def is_full(self) -> bool:
        """Whether there were enough games."""
        return self.games >= self.window

    @property
    def win_rate(self) -> float:
        """The share of won games; NaN without games."""
        return sum(wins for _, wins, _ in self.intervals) / self.games if self.intervals else float("nan")

    @property
    def mean_return(self) -> float:
        """The mean return; NaN without games."""
        return sum(total for _, _, total in self.intervals) / self.games if self.intervals else float("nan")
