"""The dashboard's panels of a run as data: those of the terminal (shoal/log), from the last records of its metrics.

The end of metrics.jsonl is read once, and then only what was added.
"""

from __future__ import annotations

import dataclasses
import math
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from shoal.log.base import RunFacts
from shoal.log.history import History, hint
from shoal.runs import Run
from shoal.watch.files import Root, complete_lines, number, parse_object
from shoal.watch.index import SETTLED_S, TAIL, Entry, word

MOST_RUNS = 64  # whose last records stay in memory
MOST_KEYS = 4000  # metrics of a run that are remembered: beyond, only those of the last records
LISTED_S = 10.0  # after which checkpoints are listed again in any case: folders may be copied file by file
COUNTS = ("num_envs", "num_rows", "num_threads", "num_params", "horizon", "total_steps")


def run_facts(entry: Entry) -> RunFacts:
    """What loggers know of a run, from its run.json. Values of other types are left out."""
    facts, more = entry.facts, {}
    for name in COUNTS:
        if (value := number(facts.get(name))) is not None:
            more[name] = int(value)
    names = facts.get("agents")
    agents = tuple(map(word, names)) if isinstance(names, list) else ()
    groups = {}
    for name, members in (facts.get("groups") or {}).items() if isinstance(facts.get("groups"), dict) else ():
        if isinstance(members, list) and members and all(isinstance(k, int) and 0 <= k < len(agents) for k in members):
            groups[word(name)] = tuple(members)
    return RunFacts(
        folder=entry.path,
        id=entry.path.name,
        env=str(entry.row.get("env", "")),
        algo=str(entry.row.get("algo", "")),
        backend=word(facts.get("backend")),
        device=word(facts.get("device")) or "cpu",
        seed=int(entry.row.get("seed") or 0),
        agents=agents,
        groups=groups,
        **more,  # type: ignore[arg-type]
    )


class Records:
    """The last records of one run, as its history."""

    def __init__(self, root: Root, path: Path) -> None:
        self.root, self.path = root, path / "metrics.jsonl"
        self.lock = threading.Lock()
        self.history: History | None = None
        self.facts: RunFacts | None = None
        self.identity, self.offset = (0, 0), 0

    def update(self, facts: RunFacts) -> History:
        """The history up to now."""
        try:
            status = os.stat(self.path)
        except OSError:
            return History(facts)
        identity = status.st_dev, status.st_ino
        known = self.history
        is_new = known is None or len(known.latest) > MOST_KEYS or identity != self.identity or facts != self.facts
        if is_new or not 0 <= status.st_size - self.offset <= TAIL:
            self.identity, self.facts, self.offset = identity, facts, max(0, status.st_size - TAIL)
            self.history = self._begin(facts)
        assert self.history is not None
        for record in self._read():
            self.history.add(_values(record))
        return self.history

    def _begin(self, facts: RunFacts) -> History:
        """A history that starts at `offset`: at the second whole record, if that is not the start of the file."""
        if self.offset:
            data = self.root.read(self.path, TAIL, self.offset) or b""
            lines = data.split(b"\n", 2)
            if len(lines) == 3 and (step := number(parse_object(lines[1]).get("step"))) is not None:
                self.offset += len(lines[0]) + len(lines[1]) + 2
                facts = dataclasses.replace(facts, resumed_from=int(step))
        return History(facts)

    def _read(self) -> list[dict[str, Any]]:
        data = self.root.read(self.path, TAIL, self.offset) or b""
        self.offset += data.rfind(b"\n") + 1
        return [record for line in complete_lines(data) if (record := parse_object(line))]


class Panels:
    """The panels of the runs that pages look at."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._records: OrderedDict[Path, Records] = OrderedDict()
        self._steps: dict[Path, tuple[int, float, list[int]]] = {}
        self._lock = threading.Lock()

    def of(self, entry: Entry) -> dict[str, Any]:
        """Progress, time, episodes, learning, agents, league and machine of a run."""
        with self._lock:
            records = self._records.setdefault(entry.path, Records(self.root, entry.path))
            self._records.move_to_end(entry.path)
            while len(self._records) > MOST_RUNS:
                self._records.popitem(last=False)
        with records.lock:
            return shown(records.update(run_facts(entry)), entry)

    def checkpoints(self, folder: Path) -> list[int]:
        """The steps of the complete checkpoints, oldest first. They are listed again when their folder has changed."""
        try:
            changed = os.stat(folder / "checkpoints").st_mtime_ns
        except OSError:
            return []
        known, now = self._steps.get(folder), time.monotonic()
        if known is None or known[0] != changed or now - known[1] > LISTED_S:
            is_settled = time.time_ns() - changed > SETTLED_S * 1e9
            known = changed if is_settled else -1, now, checkpoints(self.root, folder)
            if len(self._steps) >= MOST_RUNS:
                self._steps.clear()
            self._steps[folder] = known
        return known[2]


def shown(history: History, entry: Entry) -> dict[str, Any]:
    """A history as data."""
    latest, split = history.latest, history.split()
    step = number(latest.get("step")) or 0.0
    facts = history.facts
    return {
        "facts": {name: getattr(facts, name) for name in (*COUNTS, "backend", "device", "seed", "algo")},
        "step": step,
        "total": facts.total_steps,
        "wall_s": number(latest.get("wall_s")),
        "sps": number(history.speed()),
        "left_s": number(history.left_s) if entry.row.get("status") == "running" else None,
        "update": number(latest.get("iteration")),
        "phase": history.phase(),
        "split": {name: round(share, 4) for name, share in split.items()},
        "hint": hint(facts, split, number(latest.get("wall_s")) or 0.0),
        "episodes": [_ranged(history, key) for key in ["episode/return", "episode/length", *history.stats()]]
        + ([_ranged(history, "eval/return")] if "eval/return" in latest else []),
        "learning": [
            {"key": row.name, "label": row.label, "value": number(latest[row.name])} for row in history.learning()
        ],
        "agents": [{"label": row.name, "value": number(row.mean), "remark": row.remark} for row in history.agents()],
        "league": {
            name: number(latest.get(f"league/{name}"))
            for name in ("rating", "rating_ci95", "win_rate", "members", "games")
        }
        if "league/members" in latest
        else None,
        "machine": {name: number(latest.get(name)) for name in ("cpu_percent", "memory_mb") if name in latest},
        "is_bad": [row.name for row in history.learning() if not math.isfinite(latest[row.name])],
    }


def _values(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record; None, as JSON has NaN, is NaN again."""
    return {
        key: math.nan if value is None else value
        for key, value in record.items()
        if value is None or number(value) is not None
    }


def _ranged(history: History, key: str) -> dict[str, Any]:
    latest = history.latest
    label = key.removeprefix("episode/").replace("eval/return", "evaluated").replace("_", " ")
    low, high = (number(latest.get(f"{key}{end}")) for end in ("_min", "_max"))
    return {"key": key, "label": label, "value": number(latest.get(key)), "low": low, "high": high}


def checkpoints(root: Root, folder: Path) -> list[int]:
    """The steps of the complete checkpoints, oldest first."""
    inside = folder / "checkpoints"
    return [int(path.name) for path in Run(folder).checkpoints() if root.holds(path)] if root.holds(inside) else []
