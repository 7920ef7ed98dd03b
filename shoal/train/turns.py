"""Several runs of equal shape that take turns on one trainer, a few iterations each: seeds of a group, a population.

A member is an ordinary run with a folder of its own. Between its turns it is a copy of its state (swap.py). Members
end, fail and are resumed one by one; each has the bits of the run that trains alone.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.errors import ConfigError, ShoalError
from shoal.log.seeds import SeedRow
from shoal.runs import Run
from shoal.train import swap
from shoal.train.opening import open_session
from shoal.train.session import Session
from shoal.train.signals import Stopped, handled_signals

ROUNDS = 32  # turns of a run, at least: curves of all members grow together
SHORTEST, LONGEST = 8, 64  # iterations of a turn
LARGE = 64 << 20  # bytes of a state: swapping it would take longer than a turn (a replay)
SHOW_EVERY_S = 0.25


class Member:
    """One run: its arguments of `train`, its session once it has begun, and its state between turns."""

    def __init__(self, number: int, request: Mapping[str, Any]) -> None:
        self.number, self.request = number, dict(request)
        self.session: Session | None = None
        self.snapshot: swap.Snapshot | None = None
        self.held = contextlib.ExitStack()
        self.is_done = False
        self.failure: BaseException | None = None
        self.values: dict[str, Any] = {}  # of a population: the options in which it differs
        self.row = SeedRow(number, total_steps=request["options"].train.total_steps)
        self.step = 0

    @property
    def opened(self) -> Session:
        """The session of a member that has begun."""
        assert self.session is not None
        return self.session

    def note_progress(self) -> None:
        """Puts the latest metrics into the row of the table."""
        session, row = self.opened, self.row
        metrics, self.step = session.metrics, session.trainer.step
        row.step, row.wall_s = self.step, session.trainer.wall_s
        row.total_steps = session.options.train.total_steps
        row.sps = metrics.get("sps", row.sps)
        row.episode_return = metrics.get("episode/return", row.episode_return)


class Turns:
    """Trains members by turns until all have ended.

    Args:
        env: what `shoal.make` takes.
        members: those that have not finished.
        show: called now and then with the rows of all members.
        note: called with a line of text when a signal arrives.
        ended: called with a member that has finished or failed.
        kind: the user's word for a member.
    """

    def __init__(
        self,
        env: Any,
        members: Sequence[Member],
        *,
        show: Callable[[list[SeedRow]], None] = lambda rows: None,
        note: Callable[[str], None] = lambda text: None,
        ended: Callable[[Member], None] = lambda member: None,
        kind: str = "member",
    ) -> None:
        self.kind = kind
        self.env, self.members = env, list(members)
        self.pool = swap.TrainerPool()
        self.show, self.note, self.ended = show, note, ended
        self.shown_at = 0.0
        self.signal = 0
        self.round_steps = 0  # known once the first member has begun
        self.inside: Member | None = None  # whose state the trainer has

    stops_at_once = True  # whether a signal ends a turn before its goal

    @property
    def active(self) -> list[Member]:
        """Members that have neither finished nor failed."""
        return [member for member in self.members if not member.is_done]

    def run(self) -> None:
        """Trains until every member has ended. After a signal each saves a checkpoint, and Stopped is raised."""
        try:
            with handled_signals(self._take_signal):
                while self.active and not self.signal:
                    self.play_round()
            if self.signal:
                self.stop()
        finally:
            for member in self.members:
                if member.session is not None and member.session.status == "running":  # stopped immediately
                    member.session.loggers.close(None)
                member.held.close()
            self.pool.clear()
            self._show(must=True)

    def play_round(self) -> None:
        """One turn of every member that is not ahead of the others."""
        goal = self.next_goal()
        for member in self.active:
            if self.signal and self.stops_at_once:
                return
            if member.session is None or member.step < goal:
                self.play(member, goal)
                goal = goal or self.next_goal()

    def next_goal(self) -> int:
        """The step at which this round ends; 0 while nothing is known of the members."""
        if not self.round_steps:
            return 0
        return (min(member.step for member in self.active) // self.round_steps + 1) * self.round_steps

    def play(self, member: Member, goal: int) -> None:
        """One turn: until the step `goal`, or to the end of the run. What it raises ends this member alone."""
        try:
            session = self.enter(member)
            goal = goal or self.next_goal()
            while not self._is_turn_over(session, goal) and session.advance():
                self._show_now_and_then(member)
            if session.is_over:
                self._finish(member)
            else:
                self.leave(member)
        except ConfigError as error:
            if len(self.active) == len(self.members) and member is self.members[0]:
                raise  # a mistake in the options: every member would have it
            self._fail(member, error)
        except Exception as error:
            self._fail(member, error)
        except BaseException as error:  # a second Ctrl-C
            if member.session is not None:
                member.session.fail(error)
            raise
        self._show(must=member.is_done)

    def _is_turn_over(self, session: Session, goal: int) -> bool:
        """Turns end where metrics are read, so that a run's callbacks see what they see in a lone run."""
        is_stopped = self.signal and self.stops_at_once
        return session.is_read and bool(is_stopped or session.trainer.step >= goal)

    def enter(self, member: Member) -> Session:
        """Gives the trainer to a member: begins its run, or puts its state back."""
        if member is self.inside:
            return member.opened
        if member.session is None:
            self.inside = None
            session = open_session(self.env, member.held, pool=self.pool, console="off", **member.request)
            member.session, session.handles_signals = session, False
            self.prepare(session)
            session.begin()
            member.row.status = "running"
            self._settle_rounds(member)
        else:
            assert member.snapshot is not None
            kept = self.pool.kept
            trainer = self.pool.get(self.env, member.snapshot.options) if kept is None else kept.trainer
            swap.put(trainer, member.snapshot)
            member.snapshot = None
            member.session.enter(trainer)
        self.inside = member
        member.step = member.session.trainer.step
        return member.session

    def prepare(self, session: Session) -> None:
        """Called before a run begins."""

    def leave(self, member: Member) -> None:
        """Takes the member's state out of the trainer."""
        session = member.opened
        session.leave()
        member.note_progress()
        if session.trainer._started:
            member.snapshot = swap.take(session.trainer)
            self.inside = None

    def _settle_rounds(self, member: Member) -> None:
        """Chooses the length of a turn by the first member that begins."""
        if self.round_steps:
            return
        trainer = member.opened.trainer
        steps, total = trainer.steps_per_iteration, trainer.options.train.total_steps
        iterations = -(-total // steps)
        state = sum(x.nbytes for part in trainer._tensors().values() for x in part.values())
        turn = min(LONGEST, max(SHORTEST, iterations // ROUNDS // SHORTEST * SHORTEST))
        self.round_steps = steps * (turn if state < LARGE else iterations)

    def _finish(self, member: Member) -> None:
        session = member.opened
        try:
            session.finish()
        finally:
            member.note_progress()
            self._close(member)
        member.row.status = "finished"
        self.ended(member)

    def _fail(self, member: Member, error: Exception) -> None:
        if member.session is not None and member.session.status == "running":
            member.session.fail(error)
        if not isinstance(error, ShoalError):
            self.pool.clear()  # the trainer may be broken: the others get a new one
        member.failure, member.row.status = error, "failed"
        self._close(member)
        self.ended(member)

    def _close(self, member: Member) -> None:
        member.is_done, member.snapshot, self.inside = True, None, None
        member.held.close()

    def stop(self) -> None:
        """Every member that has begun saves a checkpoint."""
        for member in sorted(self.active, key=lambda member: member is not self.inside):
            if member.session is None:
                continue
            try:
                session = self.enter(member)
                session.signal = self.signal
                session.finish()
            except Stopped:
                member.note_progress()
            self._close(member)
            member.row.status = "interrupted"
        raise Stopped(self.signal, Run("."))

    def _take_signal(self, number: int) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        again = "; press Ctrl-C again to stop immediately" if number == signal.SIGINT else ""
        self.note(f"{signal.Signals(number).name}: every {self.kind} saves a checkpoint and stops{again}")
        self.signal = number

    # ---- the screen ----

    def _show_now_and_then(self, member: Member) -> None:
        if time.monotonic() - self.shown_at >= SHOW_EVERY_S:
            member.note_progress()
            self._show()

    def _show(self, must: bool = False) -> None:
        if must or time.monotonic() - self.shown_at >= SHOW_EVERY_S:
            self.shown_at = time.monotonic()
            self.show([member.row for member in self.members])
