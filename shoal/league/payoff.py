"""Payoff: wins, draws and losses between players. Totals for ratings, and recent results of the learner by member.

A *player* is a fixed opponent for good, with a number that is never reused: a snapshot, a robot, a run. A *member* is a
place in the pool (0 .. 63), which different players have one after another. Results are counted from the side of the
player that is named first, by the side of the env that it played: arrays of (sides, 3) with WIN, DRAW, LOSS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.spec import Array

WIN, DRAW, LOSS = 0, 1, 2


class Payoff:
    """The results of a league.

    Attributes:
        sides: the sides of the env.
        totals: (sides, 3) int64 counts by pair of players. Only pairs that played are in it.
        recent: (members, sides, 3) counts of the learner against each member, which `fade` reduces.
        since: the same since the last snapshot, not reduced.
    """

    def __init__(self, sides: int, members: int) -> None:
        self.sides = sides
        self.totals: dict[tuple[int, int], Array] = {}
        self.recent = np.zeros((members, sides, 3))
        self.since = np.zeros((members, sides, 3), np.int64)

    def add(self, player: int, opponents: Mapping[int, int], counts: Array) -> None:
        """Adds results of the learner: `counts` is (members, sides, 3). `opponents` are the players by member."""
        for member in np.flatnonzero(counts.any((1, 2))).tolist():
            self.add_pair(player, opponents[member], counts[member])
        self.recent += counts
        self.since += counts

    def add_pair(self, player: int, opponent: int, counts: Array) -> None:
        """Adds results of one player against another: `counts` is (sides, 3)."""
        if not counts.any():
            return
        if (player, opponent) not in self.totals:
            self.totals[player, opponent] = np.zeros((self.sides, 3), np.int64)
        self.totals[player, opponent] += counts

    def fade(self, share: float) -> None:
        """Keeps a share of the recent results: the learner changes, and old results say less."""
        self.recent *= share

    def clear(self, member: int) -> None:
        """Forgets the recent results against a member: another player has its place now."""
        self.recent[member] = 0.0
        self.since[member] = 0

    def rename(self, old: int, new: int) -> None:
        """Gives the results of one player to another: those of the learner become those of its snapshot."""
        for pair in [pair for pair in self.totals if old in pair]:
            renamed = tuple(new if player == old else player for player in pair)
            counts = self.totals.pop(pair)
            key = (renamed[0], renamed[1])
            self.totals[key] = self.totals[key] + counts if key in self.totals else counts

    def win_rate(self, member: int) -> float:
        """The learner's recent win rate against a member: draws are half a win, sides count alike.

        It starts from one win and one loss on each side, so that few games move it little: without games it is 0.5.
        """
        counts = self.recent[member]
        wins = counts[:, WIN] + 0.5 * counts[:, DRAW] + 1.0
        return float((wins / (counts.sum(1) + 2.0)).mean())

    def state(self) -> dict[str, Any]:
        """All results, as plain values for JSON."""
        return {
            "sides": self.sides,
            "totals": [[*pair, *counts.reshape(-1).tolist()] for pair, counts in sorted(self.totals.items())],
            "recent": self.recent.reshape(-1).tolist(),
            "since": self.since.reshape(-1).tolist(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned. The pool may have become larger."""
        shape = (-1, self.sides, 3)
        self.totals = {(a, b): np.array(counts, np.int64).reshape(self.sides, 3) for a, b, *counts in state["totals"]}
        for into, name in ((self.recent, "recent"), (self.since, "since")):
            saved = np.array(state[name]).reshape(shape)
            into[:] = 0
            into[: len(saved)] = saved
