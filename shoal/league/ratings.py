"""Ratings: a Bradley-Terry fit of all results at once, in Elo, with 95 % intervals.

P(i beats j) = 1 / (1 + exp(r_j - r_i)). A draw counts as half a win. The fit is the most likely r under the results and
a wide normal prior, by which also a player that never lost has a finite rating. Unlike a running Elo, it does not
depend on the order of the games. Standard errors come from the Fisher information of the fit; they are those of the
difference to the anchor, whose rating is 0. (Draws make them a little too wide: a draw is less random than half a win.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.spec import Array

ELO = 400.0 / math.log(10.0)  # Elo points of one unit of r
PRIOR_ELO = 1000.0  # standard deviation of the prior
Z_975 = 1.959963984540054
STEPS = 100  # of Newton's method; about 10 are needed


@dataclass(frozen=True)
class Rating:
    """The strength of one player, in Elo points above the anchor."""

    elo: float
    ci95: float  # half the width of the interval; 0 for the anchor
    games: float

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.elo - self.ci95

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.elo + self.ci95


def fit(points: Array, anchor: int = 0) -> list[Rating]:
    """The ratings of n players.

    Args:
        points: (n, n) points of each player against each other: a win is 1, a draw 0.5. The diagonal is not used.
        anchor: the player with rating 0.
    """
    points = np.array(points, np.float64)
    np.fill_diagonal(points, 0.0)
    games = points + points.T
    rating, covariance = _maximize(points, games)
    variance = np.diag(covariance) + covariance[anchor, anchor] - 2.0 * covariance[anchor]
    errors = np.sqrt(np.maximum(variance, 0.0))
    errors[anchor] = 0.0
    elo = ELO * (rating - rating[anchor])
    return [
        Rating(float(value), float(ELO * Z_975 * error), float(count))
        for value, error, count in zip(elo, errors, games.sum(1))
    ]


def _maximize(points: Array, games: Array) -> tuple[Array, Array]:
    """The most likely r, and the inverse of the Fisher information there, by Newton's method with shorter steps."""
    count, precision = len(points), (ELO / PRIOR_ELO) ** 2
    rating = np.zeros(count)
    information = np.eye(count)
    for _ in range(STEPS):
        expected = _sigmoid(rating[:, None] - rating[None, :])
        gradient = (points - games * expected).sum(1) - precision * rating
        weight = games * expected * (1.0 - expected)
        information = np.diag(weight.sum(1) + precision) - weight
        step = np.linalg.solve(information, gradient)
        longest = float(np.abs(step).max(initial=0.0))
        rating = rating + step * min(1.0, 1.0 / max(longest, 1e-300))  # at most one unit, 174 Elo
        if longest < 1e-10:
            break
    return rating, np.linalg.inv(information)


def _sigmoid(x: Array) -> Array:
    result: Array = 0.5 * (1.0 + np.tanh(0.5 * x))  # no overflow
    return result


def expected_score(elo: float, other: float) -> float:
    """The points per game that a player is expected to get against another.

    >>> round(expected_score(200, 0), 2)
    0.76
    """
    return 1.0 / (1.0 + math.exp((other - elo) / ELO))


def rises(ratings: Sequence[Rating]) -> bool:
    """Whether no rating in a sequence is below an earlier one by more than both intervals allow."""
    return all(later.high >= earlier.low for k, earlier in enumerate(ratings) for later in ratings[k + 1 :])
