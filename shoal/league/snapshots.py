"""Snapshots: when the learner is added to the pool, and which member leaves a full one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.league.options import LeagueOptions
from shoal.league.payoff import DRAW, WIN
from shoal.spec import Array

LEAST_GAMES = 200  # since the last snapshot, before a win rate counts


def interval(options: LeagueOptions, total_steps: int) -> int:
    """Steps between snapshots."""
    return options.snapshot or max(1, total_steps // options.pool)


def is_due(options: LeagueOptions, total_steps: int, step: int, last: int, since: Array) -> bool:
    """Whether the learner becomes a member now.

    Args:
        options: the rules.
        total_steps: of the run.
        step: steps taken.
        last: the step of the last snapshot; 0: none.
        since: (members, sides, 3) results since then; member 0 is the latest weights, which does not count.
    """
    if step - last >= interval(options, total_steps):
        return True
    if not options.win_rate:
        return False
    rate = pool_win_rate(since)
    return rate is not None and rate >= options.win_rate


def exploiter_is_due(options: LeagueOptions, total_steps: int, step: int, began: int, results: Array) -> bool:
    """Whether an exploiter joins the pool and starts anew: its steps are over, or it beats the learner often enough.

    Args:
        options: the rules.
        total_steps: of the run.
        step: steps taken.
        began: the step at which the exploiter started.
        results: (sides, 3) its results against the learner since then.
    """
    if step - began >= (options.exploiter_reset or max(1, total_steps // 8)):
        return True
    wins, draws, games = (int(n) for n in (results[:, WIN].sum(), results[:, DRAW].sum(), results.sum()))
    if not options.exploiter_win_rate or games < LEAST_GAMES:
        return False
    return (wins + 0.5 * draws) / games >= options.exploiter_win_rate


def pool_win_rate(since: Array, least_games: int = LEAST_GAMES) -> float | None:
    """The mean of the learner's win rates against the members that it met; None: too few games.

    The mean over members, not over games: matchmaking prefers some members, and they would count more.
    """
    counts = since[1:].sum(1)  # (members, 3)
    games = counts.sum(1)
    if games.sum() < max(1, least_games):
        return None
    met = games > 0
    return float(((counts[met, WIN] + 0.5 * counts[met, DRAW]) / games[met]).mean())


def choose_dropped(steps: Sequence[int], keeps_first: bool) -> int:
    """The place of the snapshot to drop, of those with these steps, in order.

    It is the one whose neighbours are nearest to each other, so that those that stay are spread over the whole history;
    of equal ones the oldest. The newest one stays, and the first one if `keeps_first`: it is the anchor of the ratings.

    >>> choose_dropped([10, 20, 30, 80], keeps_first=True)
    1
    """
    first, last = int(keeps_first), len(steps) - 1
    if last <= first:
        return first
    gaps = [steps[k + 1] - (steps[k - 1] if k else 0) for k in range(first, last)]
    return first + int(np.argmin(gaps))
