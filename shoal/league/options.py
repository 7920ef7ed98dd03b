"""The options of `--league.*`: the size of the pool, who is drawn from it, and when the learner is added to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.config import opt
from shoal.errors import ConfigError

MOST_MEMBERS = 64  # ids 0 .. 63; 0 is the learner's latest weights


@dataclass(frozen=True)
class LeagueOptions:
    """How a league is played: the options of `--league.*`. `--league` alone turns it on with these defaults."""

    on: bool = opt(False, "train in a league: against snapshots of the learner, robots and runs")
    pool: int = opt(32, "members at most, with the learner's latest weights as one of them", low=2, high=MOST_MEMBERS)
    latest: float = opt(0.5, "share of the games against the learner's latest weights", low=0.0, high=1.0)
    match: Literal["uniform", "hard", "variance"] = opt(
        "hard",
        "how other members are drawn, by the learner's win rate x against them; hard: (1 - x)^2, variance: x (1 - x)",
    )
    window: int = opt(0, "draw only from the newest N snapshots; 0: from all", low=0)
    share: float = opt(
        0.0,
        "share of the games against named members, all together; 0: they are drawn like snapshots",
        low=0.0,
        high=1.0,
    )
    members: tuple[str, ...] = opt((), "named members: scripted robots of the env, and runs", metavar="[NAME ...]")
    snapshot: int = opt(0, "steps between snapshots of the learner; 0: total_steps / pool", low=0, is_count=True)
    win_rate: float = opt(
        0.0, "a snapshot also once the learner wins this share against the pool; 0: off", low=0.0, high=1.0
    )
    decay: float = opt(
        0.9, "share of the results for matchmaking that is kept every --league.every iterations", low=0.0, high=1.0
    )
    exploiters: int = opt(
        0, "learners that train against the main one only, and then join its pool", low=0, high=MOST_MEMBERS - 2
    )
    exploiter_reset: int = opt(
        0, "steps after which an exploiter joins the pool and starts anew; 0: total_steps / 8", low=0, is_count=True
    )
    exploiter_win_rate: float = opt(
        0.7, "or as soon as it wins this share of its games; 0: only by steps", low=0.0, high=1.0
    )
    margin: float = opt(0.0, "difference of returns up to which a game is a draw", low=0.0)
    every: int = opt(8, "iterations between the moments at which results reach the matchmaking", low=1)

    def __post_init__(self) -> None:
        total = self.latest + self.share
        if total > 1.0 + 1e-9:  # sums of decimals are rounded
            raise ConfigError(
                f"--league.latest {self.latest:g} and --league.share {self.share:g} sum to {total:g}. "
                f"They are shares of all games: lower one, such as --league.share {1.0 - self.latest:g}."
            )
        named = len(set(self.members))
        if named < len(self.members):
            twice = next(name for name in self.members if self.members.count(name) > 1)
            raise ConfigError(f"--league.members names '{twice}' twice. Name each member once.")
        if named and named + 2 > self.pool:
            raise ConfigError(
                f"--league.pool {self.pool} has no place for {named} named members, the latest weights and a snapshot. "
                f"Use --league.pool {named + 2} or more, at most {MOST_MEMBERS}."
            )
