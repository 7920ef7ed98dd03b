"""Numbers of several intervals as one: the return of the latest episodes, and a record of many small ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

LATEST, LEAST = 100, 5  # episodes
DIGITS = 9  # of a mean

Record = dict[str, float]


class LatestReturns:
    """The mean return of the latest episodes: `window` of them, or all if there were fewer.

    Episodes come as counts and means of intervals. An interval is never split, so the mean may cover more episodes.
    Those that `joins` adds to the latest interval come as if all of it were added at once, but for rounding.
    With `least`, intervals from before the last tenth of all steps are left out while `least` episodes remain: in a
    short run with long episodes, 100 episodes would reach back to its start.
    """

    def __init__(self, window: int = LATEST, least: int | None = None, intervals: Iterable[Any] = ()) -> None:
        self.window, self.least, self.count = window, window if least is None else least, 0
        self.intervals: deque[tuple[int, float, int]] = deque()  # (episodes, mean return, step at its end)
        for count, mean, step in intervals:
            self.add(int(count), float(mean), int(step))

    def add(self, count: int, mean: float, step: int = 0, joins: bool = False) -> None:
        """Adds the episodes of an interval that ended at a step, and removes intervals that are no longer needed."""
        if count <= 0:
            return
        if joins and self.intervals:
            before, mean_before, _ = self.intervals.pop()
            self.count -= before
            count, mean = count + before, (count * mean + before * mean_before) / (count + before)
        self.intervals.append((count, mean, step))
        self.count += count
        while self.count - self.intervals[0][0] >= (self.least if self.intervals[0][2] < 0.9 * step else self.window):
            self.count -= self.intervals.popleft()[0]

    def add_record(self, record: Record) -> None:
        """Adds the episodes of a training record."""
        if count := int(record.get("episode/n", 0)):
            self.add(count, record["episode/return"], int(record.get("step", 0)))

    @property
    def is_full(self) -> bool:
        """Whether there were `window` episodes."""
        return self.count >= self.window

    @property
    def mean(self) -> float:
        """The mean return; NaN without episodes. Digits that depend on how often metrics were read are cut off."""
        if not self.count:
            return float("nan")
        return float(f"{sum(count * mean for count, mean, _ in self.intervals) / self.count:.{DIGITS}g}")


class MergedRecord:
    """One record of several that follow each other (`Trainer.drain`). That of a single one is the record itself."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, Record]] = []  # (updates, record)

    def add(self, record: Record, updates: int) -> None:
        """Adds the record of some updates."""
        self.parts.append((updates, record))

    def drain(self) -> Record:
        """Means weighted by episodes or updates, sums of times and counts, extremes, and the latest counters."""
        parts, self.parts = self.parts, []
        if len(parts) < 2:
            return parts[0][1] if parts else {}
        names = dict.fromkeys(name for _, record in parts for name in record)
        return {name: self._merged(name, parts) for name in names}

    @staticmethod
    def _merged(name: str, parts: list[tuple[int, Record]]) -> float:
        having = [(updates, record) for updates, record in parts if name in record]
        values = [record[name] for _, record in having]
        if name in ("iteration", "step", "wall_s"):
            return values[-1]
        if name == "episode/n" or name.startswith("time/"):
            return sum(values)
        weights: list[float] = [updates for updates, _ in having]
        if name.startswith("episode/"):
            if name.endswith("_min"):
                return min(values)
            if name.endswith("_max"):
                return max(values)
            weights = [record.get("episode/n", 0) for _, record in having]
        total = sum(weights)
        return sum(w * value for w, value in zip(weights, values)) / total if total else values[-1]
