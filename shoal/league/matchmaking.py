"""Matchmaking: the probability with which each member plays the next game against the learner.

The latest weights have a share of the games, and so have named members if they are given one. The rest is drawn by the
learner's win rate x against each member: uniform; hard, (1 - x)^2, those that it loses to; variance, x (1 - x), those
that are as strong as it is. The last two are AlphaStar's prioritized fictitious self-play (PFSP).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shoal.league.options import MOST_MEMBERS, LeagueOptions

WEIGHTS: dict[str, Callable[[float], float]] = {
    "uniform": lambda x: 1.0,
    "hard": lambda x: (1.0 - x) ** 2,
    "variance": lambda x: x * (1.0 - x),
}


def probabilities(
    options: LeagueOptions, named: Sequence[int], snapshots: Sequence[int], win_rates: Mapping[int, float]
) -> list[float]:
    """The probability of each of the 64 members. Their sum is 1.

    Args:
        options: the shares and the rule.
        named: members that are robots and runs.
        snapshots: members that are snapshots, oldest first.
        win_rates: the learner's win rate against each of them.
    """
    probs = [0.0] * MOST_MEMBERS
    drawn = list(snapshots[-options.window :] if options.window else snapshots)
    share = options.share if named else 0.0
    if not options.share:
        drawn = [*named, *drawn]
    rest = max(0.0, 1.0 - options.latest - share)  # 1 - 0.9 - 0.1 is below 0
    if share:
        _divide(probs, share, named, options.match, win_rates)
    if drawn:
        _divide(probs, rest, drawn, options.match, win_rates)
    probs[0] = max(0.0, 1.0 - sum(probs[1:]))  # before the first snapshot the latest weights have the rest, too
    return probs


def _divide(
    probs: list[float], share: float, members: Sequence[int], match: str, win_rates: Mapping[int, float]
) -> None:
    """Divides a share of the games among members."""
    weights = [WEIGHTS[match](win_rates[member]) for member in members]
    total = sum(weights)
    for member, weight in zip(members, weights):
        probs[member] = share * (weight / total if total > 0.0 else 1.0 / len(members))
