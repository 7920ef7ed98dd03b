"""Curves: the metrics of runs as columns, read once and then only what was added.

A curve has at most 2 * POINTS points: when it is full, neighbours are averaged. Of a file above WHOLE bytes, lines at
even distances are read. So a page gets the same little data of a run of a minute and of a month. A page that has a
curve already gets its new points alone.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path
from typing import Any

from shoal.watch.files import Root, complete_lines, number, parse_object
from shoal.watch.index import LONGEST

POINTS = 512
WHOLE = 12 << 20  # bytes of metrics that are read whole
LONGEST_LINE = 64 << 10
MOST_METRICS = 400
MOST_RUNS = 256  # whose curves stay in memory
AXES = ("step", "wall_s", "time")


class Curve:
    """One metric over the steps: averages of `per_point` records."""

    def __init__(self) -> None:
        self.step, self.wall, self.value = array("d"), array("d"), array("d")
        self.versions = array("q")  # of the run, when each point was complete
        self.halved = 0  # the version when neighbours were averaged last
        self.per_point, self.count = 1, 0
        self.sums = [0.0, 0.0, 0.0]

    def add(self, step: float, wall: float, value: float, version: int) -> None:
        """Adds a record, with which the run has a new version."""
        self.sums = [total + part for total, part in zip(self.sums, (step, wall, value))]
        self.count += 1
        if self.count < self.per_point:
            return
        for column, total in zip(self.columns, self.sums):
            column.append(total / self.count)
        self.versions.append(version)
        self.sums, self.count = [0.0, 0.0, 0.0], 0
        if len(self.value) >= 2 * POINTS:
            self.step, self.wall, self.value = (
                array("d", [(a + b) / 2 for a, b in zip(column[::2], column[1::2])]) for column in self.columns
            )
            self.versions, self.halved = self.versions[1::2], version
            self.per_point *= 2

    @property
    def columns(self) -> tuple[array[float], array[float], array[float]]:
        """Step, seconds and value of each point."""
        return self.step, self.wall, self.value

    def facts(self, most: int = 2 * POINTS, since: int = -1) -> dict[str, Any]:
        """The points as JSON, about `most` of them; those of a page that has version `since` are kept up to `from`.

        The newest records, not yet a point, are one more.
        """
        rest = [[total / self.count] if self.count else [] for total in self.sums]
        stride = max(1, -(-len(self.value) // most))
        first = bisect_right(self.versions, since) if stride == 1 and since >= self.halved else 0
        points = [[*column[first::stride].tolist(), *more] for column, more in zip(self.columns, rest)]
        return {"from": first, "points": points}


class RunCurves:
    """The curves of one run."""

    def __init__(self, root: Root, folder: Path) -> None:
        self.root, self.path = root, folder / "metrics.jsonl"
        self.lock = threading.Lock()
        self.version = int(1000 * time.time())  # later than all versions of this run that pages may know
        self.clear()

    def clear(self) -> None:
        """Forgets everything: a resumed run has other records from its checkpoint on."""
        self.curves: dict[str, Curve] = {}
        self.offset, self.identity = 0, (0, 0)
        self.version += 1
        self.cleared = self.version

    def update(self) -> None:
        """Reads what was added."""
        try:
            status = self.path.stat()
        except OSError:
            return self.clear() if self.offset else None
        if status.st_size < self.offset or self.identity != (status.st_dev, status.st_ino):
            self.clear()  # a resume replaces the file
            self.identity = status.st_dev, status.st_ino
        if status.st_size == self.offset:
            return None
        if status.st_size - self.offset > WHOLE:
            self._sample(status.st_size)
        data = self.root.read(self.path, WHOLE, self.offset) or b""
        for line in complete_lines(data):
            self._add(line)
        self.offset += data.rfind(b"\n") + 1
        if b"\n" not in data and len(data) > LONGEST_LINE:  # no record is that long
            self.offset += len(data)
        return None

    def _sample(self, size: int) -> None:
        """Reads a line at each of POINTS places, and leaves the end to be read whole."""
        end = size - WHOLE // 4
        for k in range(POINTS):
            place = self.offset + (end - self.offset) * k // POINTS
            lines = (self.root.read(self.path, LONGEST_LINE, place) or b"").split(b"\n", 2)
            first = 0 if place == 0 else 1  # the first one is incomplete
            if len(lines) > first + 1:
                self._add(lines[first])
        block = self.root.read(self.path, LONGEST_LINE, end) or b""
        self.offset = end + block.find(b"\n") + 1

    def _add(self, line: bytes) -> None:
        record = parse_object(line)
        step, wall = number(record.get("step")), number(record.get("wall_s"))
        if step is None:
            return
        self.version += 1
        for key, value in record.items():
            found = number(value)
            if found is None or key in AXES or len(key) > LONGEST:
                continue
            if key not in self.curves:
                if len(self.curves) >= MOST_METRICS:
                    continue
                self.curves[key] = Curve()
            self.curves[key].add(step, wall or 0.0, found, self.version)


class Curves:
    """The curves of the runs that pages look at."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._runs: OrderedDict[Path, RunCurves] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, folder: Path, keys: list[str], version: int = -1, most: int = 2 * POINTS) -> dict[str, Any]:
        """The curves of a run by name, from the points on that are new since `version`, and the names of all.

        If nothing is new: the number of the version alone.
        """
        with self._lock:
            run = self._runs.setdefault(folder, RunCurves(self.root, folder))
            self._runs.move_to_end(folder)
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)
        with run.lock:
            run.update()
            if run.version == version:
                return {"version": version}
            since = version if run.cleared <= version < run.version else -1
            curves = {key: run.curves[key].facts(most, since) for key in keys if key in run.curves}
            return {"version": run.version, "keys": list(run.curves), "curves": curves}
