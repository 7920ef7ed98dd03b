"""League: decides who plays against the learner, when the learner joins the pool, and who leaves it.

The trainer asks it, in this order (all on the host, nothing waits for a GPU but `observe`):

    league.probs(learner)              before every iteration: the probability of each of the 64 members
    league.observe(counts, playing)    every `options.every` iterations, and where `is_due(step)`, with what was counted
                                       since the last call
    league.after_iteration(step)       after every iteration: snapshots, members to drop, exploiters to reset

Learner 0 is the main one. Learners 1, 2, ... are exploiters, one for each of `options.exploiters`: they play against
the latest weights of learner 0 only, join the pool, and start anew.

Every decision depends on these arguments alone, never on the time: a run repeats and resumes to the bit. `state` and
`load_state` are for checkpoints. Weights are no concern of the league: bank.py has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from shoal import checkpoint
from shoal.errors import CheckpointError
from shoal.league import matchmaking, snapshots
from shoal.league.options import MOST_MEMBERS, LeagueOptions
from shoal.league.payoff import Payoff
from shoal.league.table import CrossTable
from shoal.spec import Array

Kind = Literal["latest", "snapshot", "exploiter", "robot", "run", "python"]
NAMED: tuple[Kind, ...] = ("robot", "run", "python")
LEARNED: tuple[Kind, ...] = ("snapshot", "exploiter")
LATEST = 0  # the member, and the player, that is the learner itself
BRAIN = "league.brain"  # the tensor of a checkpoint's state
COUNTS = "league.counts"  # another one: results since the last `observe`
FORMAT = 1
MOST_RATED = 128  # players in the fit of every log: it takes a few milliseconds


@dataclass(frozen=True)
class Player:
    """Someone whose strength is rated: a learner, a snapshot of one, a robot, a run or a Python opponent."""

    number: int  # never reused; 0 is the learner
    name: str
    kind: Kind
    step: int = 0  # of a snapshot: the steps behind its weights


@dataclass(frozen=True)
class AddSnapshot:
    """Copy a learner's weights to a place in the bank. No env plays this member now."""

    member: int
    name: str
    learner: int = 0


@dataclass(frozen=True)
class ResetExploiter:
    """Give an exploiter new weights and a new optimizer. `count` says how often: each start has its own seed."""

    learner: int
    count: int


@dataclass(frozen=True)
class DropMember:
    """A member plays no new games. Games that it plays go on: its weights stay until an AddSnapshot names its place."""

    member: int


Action = AddSnapshot | DropMember | ResetExploiter


@dataclass
class Exploiter:
    """A learner that plays against the main one only.

    Its own games are not rated: its strength changes in them as much as the main learner's. Its snapshots are, by the
    games of the main learner against them.
    """

    results: Array  # (sides, 3) against the main learner since it started
    began: int = 0  # the step at which it started
    count: int = 0  # how often it started anew


class League:
    """The brain of a league.

    Args:
        options: the options of `--league.*`.
        sides: the sides of the env; a result says which one the learner played.
        total_steps: the steps of the run.
        named: (name, kind) of robots, runs and Python opponents, in the order of `options.members`. They are the
            members 1, 2, ... of a new league.
        is_rated: whether `metrics` has ratings. `--opponents pool` has none.
    """

    def __init__(
        self,
        options: LeagueOptions,
        *,
        sides: int,
        total_steps: int,
        named: Sequence[tuple[str, Kind]] = (),
        is_rated: bool = True,
    ) -> None:
        # the names of exploiters, which are further runs, are not in options.members when these are checked
        self.options = replace(options, members=tuple(name for name, _ in named))
        self.sides, self.total_steps, self.is_rated = sides, total_steps, is_rated
        self.players = [Player(LATEST, "latest", "latest")]
        self.members: dict[int, Player] = {LATEST: self.players[0]}  # by place in the bank
        self.retired: set[int] = set()  # members that play no new games, but may still play old ones
        self.payoff = Payoff(sides, MOST_MEMBERS)
        self.last_snapshot = 0  # the step of the last one
        self.exploiters = [Exploiter(np.zeros((sides, 3), np.int64)) for _ in range(options.exploiters)]
        self._named = tuple(named)
        self._rated: tuple[int, dict[str, float]] = -1, {}
        self._probs: list[float] | None = None  # those of the main learner, until something changes
        for name, kind in named:
            self._join(self._free_place() or LATEST, name, kind)

    # ---- what the trainer asks ----

    def probs(self, learner: int = 0) -> list[float]:
        """The probability of each of the 64 members to play the next game against a learner.

        Empty places and retired members have 0. A member with probability 0 must not start a game from here on, also
        where an earlier draw chose it. Exploiters play against member 0, the latest weights of learner 0, only. It is
        the same list until something changes.
        """
        if learner:
            return [1.0] + [0.0] * (MOST_MEMBERS - 1)
        if self._probs is None:
            named, snaps = self._active(*NAMED), self._active(*LEARNED)
            win_rates = {member: self.payoff.win_rate(member) for member in (*named, *snaps)}
            self._probs = matchmaking.probabilities(self.options, named, snaps, win_rates)
        return self._probs

    def observe(self, counts: Any, playing: Any = None) -> None:
        """Takes note of the games that ended since the last call.

        Args:
            counts: (64, sides, 3) ints: wins, draws and losses of the learner, by member and by the learner's side.
                With exploiters (learners, 64, sides, 3), each from the view of its learner.
            playing: (64,) ints: how many envs play against each member now. A retired member's place is free once it is
                0. None: no game goes on.
        """
        results = np.asarray(counts, np.int64)
        results = results[None] if results.ndim == 3 else results
        expected = (1 + len(self.exploiters), MOST_MEMBERS, self.sides, 3)
        assert results.shape == expected, f"counts have shape {results.shape}, expected {expected}"
        self._probs = None
        self.payoff.fade(self.options.decay)
        numbers = {member: player.number for member, player in self.members.items()}
        self.payoff.add(LATEST, numbers, results[0])
        for exploiter, own in zip(self.exploiters, results[1:]):
            exploiter.results += own[LATEST]
        busy = np.zeros(MOST_MEMBERS, np.int64) if playing is None else np.asarray(playing, np.int64)
        for member in sorted(self.retired):
            if busy[member] == 0:
                self.retired.discard(member)
                del self.members[member]
                self.payoff.clear(member)

    def is_due(self, step: int) -> bool:
        """Whether the main learner becomes a member now. Its games until now belong to the snapshot: `observe` them."""
        return self._free_place() is not None and self._wants_snapshot(step)

    def _wants_snapshot(self, step: int) -> bool:
        return snapshots.is_due(self.options, self.total_steps, step, self.last_snapshot, self.payoff.since)

    def after_iteration(self, step: int) -> list[Action]:
        """What the bank has to do before the next iteration. `step`: steps taken so far."""
        actions: list[Action] = []
        if self._wants_snapshot(step):
            actions += self._add(0, f"step {step:,}", "snapshot", step)
        for learner, exploiter in enumerate(self.exploiters, 1):
            began, results = exploiter.began, exploiter.results
            if snapshots.exploiter_is_due(self.options, self.total_steps, step, began, results):
                actions += self._add(learner, f"exploiter {learner}, step {step:,}", "exploiter", step)
        return actions

    def _add(self, learner: int, name: str, kind: Kind, step: int) -> list[Action]:
        """Adds a learner's weights to the pool. Without a free place it is tried again after the next iteration."""
        place = self._free_place()
        if place is None:  # there is one as soon as a retired member has played its last game
            return [] if self.retired else self._retire(keeps_newest=False)
        player = self._join(place, name, kind, step)
        actions: list[Action] = [AddSnapshot(place, name, learner)]
        if learner == 0:
            self.payoff.rename(LATEST, player.number)  # its games since the last snapshot
            self.payoff.since[:] = 0
            self.last_snapshot = step
        else:
            exploiter = self.exploiters[learner - 1]
            exploiter.began, exploiter.count = step, exploiter.count + 1
            exploiter.results[:] = 0
            actions.append(ResetExploiter(learner, exploiter.count))
        if self._free_place() is None and not self.retired:
            actions += self._retire(keeps_newest=True)  # in time: the next snapshot needs a place that no env plays
        return actions

    def metrics(self) -> dict[str, float]:
        """Numbers for the dashboard: the learner's win rate against the pool, its rating, members and games."""
        record = {"league/members": float(len(self.members) - len(self.retired))}
        rate = snapshots.pool_win_rate(self.payoff.recent, least_games=1)
        if rate is not None:
            record["league/win_rate"] = rate
        for number, exploiter in enumerate(self.exploiters, 1):
            if exploiter.results.any():
                wins, draws, _ = (exploiter.results.sum(0) / exploiter.results.sum()).tolist()
                record[f"league/exploiter_{number}_win_rate"] = wins + 0.5 * draws
        games = int(sum(int(counts.sum()) for counts in self.payoff.totals.values()))
        record["league/games"] = float(games)
        if self.is_rated and games:
            if self._rated[0] != games:
                self._rated = games, self._rate()
            record |= self._rated[1]
        return record

    # ---- members ----

    def _join(self, place: int, name: str, kind: Kind, step: int = 0) -> Player:
        player = self.members[place] = Player(len(self.players), name, kind, step)
        self.players.append(player)
        self.payoff.clear(place)
        self._probs = None
        return player

    def _active(self, *kinds: Kind) -> list[int]:
        """The members of these kinds that play new games, oldest first."""
        found = [m for m, player in self.members.items() if player.kind in kinds and m not in self.retired]
        return sorted(found, key=lambda member: self.members[member].number)

    def _free_place(self) -> int | None:
        return next((k for k in range(1, self.options.pool) if k not in self.members), None)

    def _retire(self, keeps_newest: bool) -> list[Action]:
        """Drops one snapshot: never a robot, a run, or the anchor. Those that stay are spread over the history.

        It is one of the main learner, or of exploiters, whichever are more.
        """
        own, exploiters = self._active("snapshot"), self._active("exploiter")
        snaps = own if len(own) >= len(exploiters) else exploiters
        has_room = self.options.pool - 1 - len(self._named) >= 3  # a smaller pool has no place to spare for an anchor
        keeps_first = has_room and bool(snaps) and self.anchor() == self.members[snaps[0]]
        if len(snaps) < 1 + int(keeps_newest) + int(keeps_first):
            return []
        steps = [self.members[member].step for member in snaps]
        if not keeps_newest:  # no other place: the newest one may go, too
            steps.append(steps[-1])
        member = snaps[min(snapshots.choose_dropped(steps, keeps_first), len(snaps) - 1)]
        self.retired.add(member)
        self._probs = None
        return [DropMember(member)]

    # ---- ratings ----

    def anchor(self) -> Player:
        """The player with rating 0: the first robot, else the first snapshot, else the first run, else the learner."""
        for kind in ("robot", "snapshot", "run", "python"):
            for player in self.players:
                if player.kind == kind:
                    return player
        return self.players[LATEST]

    def table(self, most: int = 0) -> CrossTable:
        """All results and ratings, also of snapshots that left the pool. Those who played nobody else are left out.

        `most`: with more players than this, only those in the pool, the learner and the anchor are in it; 0: all.
        """
        met = {number for pair in self.payoff.totals if pair[0] != pair[1] for number in pair}
        anchor = self.anchor()
        if most and len(met) > most:
            met &= {player.number for player in self.members.values()}
        listed = [player for player in self.players if player.number in met or player == anchor]
        # the snapshots in order, then the learner, then the others
        order = {"snapshot": 0, "latest": 1, "exploiter": 2}
        listed.sort(key=lambda player: (order.get(player.kind, 3), player.number))
        places = {player.number: k for k, player in enumerate(listed)}
        cells = {
            (places[a], places[b]): counts for (a, b), counts in self.payoff.totals.items() if {a, b} <= places.keys()
        }
        current = {player.number for member, player in self.members.items() if member not in self.retired}
        about = tuple(
            {"kind": player.kind, "step": player.step, "is_member": player.number in current} for player in listed
        )
        return CrossTable(_short([player.name for player in listed]), cells, self.sides, places[anchor.number], about)

    def _rate(self) -> dict[str, float]:
        """The rating of the learner; that of its newest snapshot if it has not played since."""
        table = self.table(MOST_RATED)
        rated = dict(zip(table.names, table.ratings()))  # the names of learners are never shortened
        own = [player.name for player in self.players if player.kind in ("latest", "snapshot") and player.name in rated]
        if not own:
            return {}
        rating = rated["latest" if "latest" in own else own[-1]]
        return {"league/rating": rating.elo, "league/rating_ci95": rating.ci95}

    # ---- checkpoints ----

    def state(self) -> dict[str, Any]:
        """The league as a tensor of a checkpoint's state, by its name."""
        facts = {
            "format": FORMAT,
            "players": [asdict(player) for player in self.players],
            "members": {str(member): player.number for member, player in sorted(self.members.items())},
            "retired": sorted(self.retired),
            "last_snapshot": self.last_snapshot,
            "exploiters": [[e.began, e.count, *e.results.reshape(-1).tolist()] for e in self.exploiters],
            "payoff": self.payoff.state(),
        }
        return {BRAIN: checkpoint.from_bytes(json.dumps(facts).encode())}

    def load_state(self, state: Mapping[str, Any]) -> list[int]:
        """Restores what `state` returned, from the state of a checkpoint.

        Returns:
            The members that the checkpoint did not have: runs and robots that were named since. Their weights are to be
            loaded. A named member that is no longer named is retired.
        """
        facts = read_state(state)
        if facts["payoff"]["sides"] != self.sides:
            raise CheckpointError(
                f"the checkpoint's league is of {facts['payoff']['sides']} sides, but this env has {self.sides}. "
                "Resume with the env params of the run."
            )
        if len(facts["exploiters"]) != len(self.exploiters):
            raise CheckpointError(
                f"the checkpoint's league has {len(facts['exploiters'])} exploiters, but this run has "
                f"{len(self.exploiters)}. Resume with --league.exploiters {len(facts['exploiters'])}."
            )
        self.exploiters = [
            Exploiter(np.array(counts, np.int64).reshape(self.sides, 3), began, count)
            for began, count, *counts in facts["exploiters"]
        ]
        self.players = [Player(**player) for player in facts["players"]]
        self.members = {int(member): self.players[number] for member, number in facts["members"].items()}
        self.retired = set(facts["retired"])
        self.last_snapshot = facts["last_snapshot"]
        self.payoff.load_state(facts["payoff"])
        self._rated, self._probs = (-1, {}), None
        wanted = dict(self._named)
        for member in self._active(*NAMED):
            if self.members[member].name not in wanted:
                self.retired.add(member)
        known = {self.members[member].name for member in self._active(*NAMED)}
        added = [(name, kind) for name, kind in self._named if name not in known]
        return [self._seat_added(name, kind) for name, kind in added]

    def _seat_added(self, name: str, kind: Kind) -> int:
        place = self._free_place()
        if place is None:
            raise CheckpointError(
                f"--league.members {name}: the pool of {self.options.pool} has no free place for it. "
                f"Use a larger --league.pool, at most {MOST_MEMBERS}."
            )
        self._join(place, name, kind)
        return place


def _short(names: Sequence[str]) -> tuple[str, ...]:
    """Names without the folders of files, where they stay different."""
    short = [name.rpartition("/")[2] or name for name in names]
    return tuple(one if short.count(one) == 1 else name for one, name in zip(short, names))


def read_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """What `League.state` wrote, from the state of a checkpoint. A checkpoint without a league raises."""
    if BRAIN not in state:
        raise CheckpointError("the checkpoint has no league. Train with --league.")
    try:
        facts = json.loads(checkpoint.to_bytes(state[BRAIN]))
        written = facts["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError("the checkpoint's league cannot be read: it is damaged.") from None
    if written != FORMAT:
        raise CheckpointError(f"the checkpoint's league has format {written}; this Shoal reads format {FORMAT}.")
    return dict(facts)


def table_of(state: Mapping[str, Any]) -> CrossTable:
    """The results and ratings in the state of a checkpoint, with the games that the league has not seen yet."""
    facts = read_state(state)
    options = LeagueOptions(pool=MOST_MEMBERS, exploiters=len(facts["exploiters"]))
    league = League(options, sides=facts["payoff"]["sides"], total_steps=1)
    named = [Player(**player) for player in facts["players"]]
    league._named = tuple((player.name, player.kind) for player in named if player.kind in NAMED)
    league.load_state(state)
    if COUNTS in state:
        league.observe(state[COUNTS].numpy())
    return league.table()


def blank_counts(sides: int) -> Array:
    """Results of no games, in the form that `League.observe` takes."""
    return np.zeros((MOST_MEMBERS, sides, 3), np.int64)
