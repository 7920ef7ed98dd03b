"""CrossTable: results between players, with intervals and ratings. `shoal match` and `shoal league` show it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.league import ratings
from shoal.league.payoff import DRAW, LOSS, WIN
from shoal.league.ratings import Rating
from shoal.spec import Array
from shoal.stats import wilson


@dataclass(frozen=True)
class Result:
    """Games of one player against another, from its own view."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """All of them."""
        return self.wins + self.draws + self.losses

    @property
    def score(self) -> float:
        """Points per game: a win is 1, a draw 0.5; not a number without games."""
        return (self.wins + 0.5 * self.draws) / self.games if self.games else math.nan

    def win_rate(self) -> tuple[float, float, float]:
        """The share of wins, and its 95 % interval (Wilson)."""
        return _rate(self.wins, self.games)

    def loss_rate(self) -> tuple[float, float, float]:
        """The share of losses, and its 95 % interval (Wilson)."""
        return _rate(self.losses, self.games)

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        counts = {"games": self.games, "wins": self.wins, "draws": self.draws, "losses": self.losses}
        if not self.games:
            return counts
        return counts | {
            "score": self.score,
            "win_rate": self.wins / self.games,
            "win_rate_ci95": list(self.win_rate()[1:]),
            "loss_rate": self.losses / self.games,
            "loss_rate_ci95": list(self.loss_rate()[1:]),
        }


def _rate(count: int, games: int) -> tuple[float, float, float]:
    return (count / games if games else math.nan, *wilson(count, games))


@dataclass(frozen=True)
class CrossTable:
    """Who won how often against whom.

    Attributes:
        names: the players.
        cells: (sides, 3) wins, draws and losses of player i against player j, by the side that i played. A pair is in
            it once, as (i, j) or as (j, i), or twice: both count.
        sides: the sides of the env.
        anchor: the player with rating 0.
        about: facts of each player for JSON, such as the step of a snapshot.
    """

    names: tuple[str, ...]
    cells: Mapping[tuple[int, int], Array]
    sides: int
    anchor: int = 0
    about: tuple[Mapping[str, Any], ...] = field(default=())

    def result(self, player: int, opponent: int, side: int | None = None) -> Result:
        """The games of a player against another, on one of its sides or on all.

        The side of a result that is known only from the opponent's view is not known where there are more than two.
        """
        total = np.zeros(3, np.int64)
        own, other = self.cells.get((player, opponent)), self.cells.get((opponent, player))
        if own is not None:
            total += own.sum(0) if side is None else own[side]
        if other is not None and player != opponent:
            seen = other.sum(0) if side is None else other[1 - side] if self.sides == 2 else np.zeros(3, np.int64)
            total += seen[[LOSS, DRAW, WIN]]
        return Result(*map(int, total))

    def points(self) -> Array:
        """(n, n) points of each player against each other, as `ratings.fit` takes them."""
        count = len(self.names)
        table = np.zeros((count, count))
        for (i, j), counts in self.cells.items():
            if i != j:
                wins, draws, losses = counts.sum(0).tolist()
                table[i, j] += wins + 0.5 * draws
                table[j, i] += losses + 0.5 * draws
        return table

    def ratings(self) -> list[Rating]:
        """The Bradley-Terry ratings of all players, in Elo above the anchor."""
        return ratings.fit(self.points(), self.anchor)

    def order(self) -> list[int]:
        """The players by rating, strongest first."""
        rated = self.ratings()
        return sorted(range(len(self.names)), key=lambda k: (-rated[k].elo, k))

    def facts(self) -> dict[str, Any]:
        """All of it as plain values for JSON."""
        rated = self.ratings()
        about = self.about or ({},) * len(self.names)
        players = [
            {"name": name, **facts, "rating": rating.elo, "rating_ci95": rating.ci95, "games": int(rating.games)}
            for name, facts, rating in zip(self.names, about, rated)
        ]
        return {"players": players, "anchor": self.names[self.anchor], "results": self._pairs()}

    def _pairs(self) -> list[dict[str, Any]]:
        pairs = []
        for i in range(len(self.names)):
            for j in range(len(self.names)):
                result = self.result(i, j)
                if i == j or not result.games:
                    continue
                by_side = [self.result(i, j, side).facts() for side in range(self.sides)]
                pairs.append({"player": self.names[i], "opponent": self.names[j], **result.facts(), "by_side": by_side})
        return pairs
