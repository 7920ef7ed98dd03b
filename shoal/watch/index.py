"""Index: every run below a folder as a row, kept up to date by the times of its files.

A scan asks for the time of each run's folder, which changes when a file in it is made or replaced, and of the metrics
of runs that have not ended. Only what changed is read, and of metrics the last 64 KB. `changes(version)` are the rows
since a version: a page asks again and again, and gets little.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal import runs
from shoal.names import shortened
from shoal.runs import Run
from shoal.seed_groups import FILE as SEEDS_FILE
from shoal.watch.files import Root, number, parse_object, plain, read_in

TAIL = 64 << 10  # bytes of metrics that are read for the newest values
REST_S = 0.5  # between two scans
BUDGET_S = 0.25  # of one scan, for folders that were not seen before
ASLEEP_S = 20.0  # a run without a summary whose files are older is asked less often whether it runs
KILLED_S = 5.0  # between two such questions
SETTLED_S = 2.0  # file systems may count time in seconds
SWEEP_FILE = "sweep.json"  # as shoal/sweep/store.py has it, which needs Optuna
LONGEST = 200  # characters of a name


@dataclass
class Entry:
    """One folder of the index: its row, and the times for which that is true."""

    path: Path
    row: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    folder_time: int = -1
    metrics_time: tuple[int, int] = (-1, -1)
    asked_s: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)


class Index:
    """The runs, groups of seeds and sweeps of a folder."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.runs: dict[str, Entry] = {}
        self.seeds: dict[str, Entry] = {}
        self.sweeps: dict[str, Entry] = {}
        self.removed: dict[str, int] = {}
        self.version, self.links, self.is_partial = 0, 0, False
        self.options = Options(root)
        self._lock = threading.Lock()
        self._scanned_s = -REST_S

    def scan(self) -> None:
        """Brings the index up to date, if the last scan is not very recent."""
        with self._lock:
            now = time.monotonic()
            if now - self._scanned_s < REST_S and not self.is_partial:
                return
            self._scan(now)
            self._scanned_s = time.monotonic()

    def refresh(self, name: str) -> None:
        """Brings one run up to date: a page that shows it does not need the others."""
        with self._lock:
            entry = self.runs.get(name)
            if entry is not None and os.path.lexists(entry.path):
                self._visit(name, entry.path, time.monotonic())
                return
        self.scan()

    def changes(self, since: int = 0) -> dict[str, Any]:
        """The rows that changed after a version, and what was removed."""
        self.scan()
        with self._lock:
            newer = {name: entry.row for name, entry in self.runs.items() if entry.version > since}
            gone = [name for name, version in self.removed.items() if version > since]
            facts: dict[str, Any] = {"version": self.version, "runs": newer, "gone": gone, "links": self.links}
            facts["partial"] = self.is_partial
            facts["seeds"] = {name: entry.row for name, entry in self.seeds.items()}
            facts["sweeps"] = {name: entry.row for name, entry in self.sweeps.items()}
            return facts

    def find(self, name: str) -> Entry | None:
        """A run by its name, `env/id`."""
        if name not in self.runs:
            self.scan()
        return self.runs.get(name)

    # ---- what is there ----

    def _scan(self, now: float) -> None:
        found: dict[str, Path] = {}
        self.links = 0
        for env in self._folders(self.root.folder):
            for folder in self._folders(env.path):
                found[f"{env.name}/{folder.name}"] = Path(folder.path)
        self.is_partial = False
        known = {**self.runs, **self.seeds, **self.sweeps}
        for name in [name for name in found if name in known]:
            self._visit(name, found[name], now)
        # the newest first, by their names: the page shows them while the others are read
        new = sorted(
            (name for name in found if name not in known), key=lambda name: name.rpartition("/")[2], reverse=True
        )
        for k, name in enumerate(new):
            if k % 20 == 0 and time.monotonic() - now > BUDGET_S:
                self.is_partial = True
                break
            self._visit(name, found[name], now)
        for kind in (self.runs, self.seeds, self.sweeps):
            for name in [name for name in kind if name not in found]:
                self._remove(kind, name)

    def _folders(self, path: str | Path) -> list[os.DirEntry[str]]:
        """The folders in a folder. Links are counted, not followed."""
        try:
            with os.scandir(path) as entries:
                listed = [entry for entry in entries if not entry.name.startswith(".") and _is_text(entry.name)]
        except OSError:
            return []
        self.links += sum(entry.is_symlink() for entry in listed)
        return [entry for entry in listed if entry.is_dir(follow_symlinks=False)]

    def _visit(self, name: str, path: Path, now: float) -> None:
        try:
            changed = os.stat(path).st_mtime_ns
        except OSError:
            return
        entry = self.runs.get(name) or self.seeds.get(name) or self.sweeps.get(name)
        if entry is None:
            entry = self._classify(name, path)
            if entry is None:
                return
        if name in self.runs:
            self._update_run(entry, changed, now)
        elif entry.folder_time != changed:
            is_sweep = name in self.sweeps
            facts = self.root.json(path / (SWEEP_FILE if is_sweep else SEEDS_FILE))
            self._replace(entry, _sweep_row(path, facts) if is_sweep else _seeds_row(path, facts))
            entry.folder_time = _settled(changed)

    def _classify(self, name: str, path: Path) -> Entry | None:
        for file, kind in (("run.json", self.runs), (SEEDS_FILE, self.seeds), (SWEEP_FILE, self.sweeps)):
            if os.path.lexists(f"{path}{os.sep}{file}"):
                kind[name] = Entry(path)
                self.removed.pop(name, None)
                return kind[name]
        return None

    def _remove(self, kind: dict[str, Entry], name: str) -> None:
        del kind[name]
        self.version += 1
        self.removed[name] = self.version

    def _replace(self, entry: Entry, row: dict[str, Any]) -> None:
        if row != entry.row:
            self.version += 1
            entry.row, entry.version = row, self.version

    def _update_run(self, entry: Entry, changed: int, now: float) -> None:
        has_new_files = entry.folder_time != changed
        if has_new_files:
            entry.facts = parse_object(read_in(str(entry.path), "run.json") or b"")
            entry.summary = parse_object(read_in(str(entry.path), "summary.json") or b"")
            entry.folder_time = _settled(changed)
        has_ended = bool(entry.summary.get("status"))
        if has_ended and not has_new_files:
            return
        try:
            status = os.stat(f"{entry.path}{os.sep}metrics.jsonl")
            metrics_time = status.st_mtime_ns, status.st_size
        except OSError:
            metrics_time = 0, 0
        is_asleep = time.time_ns() - max(changed, metrics_time[0]) > ASLEEP_S * 1e9
        if (
            not has_new_files
            and metrics_time == entry.metrics_time
            and now - entry.asked_s < (KILLED_S if is_asleep else 1.0)
        ):
            return
        entry.metrics_time, entry.asked_s = metrics_time, now
        self._replace(entry, _run_row(entry, is_running=not has_ended and self._is_running(entry)))

    def _is_running(self, entry: Entry) -> bool:
        with contextlib.suppress(OSError):
            if not stat.S_ISREG(os.lstat(entry.path / runs.LOCK).st_mode):
                return False  # a link that leads elsewhere, or a pipe that nobody writes to
        run = _Unended(entry.path)
        run.__dict__["facts"] = {key: entry.facts.get(key) for key in ("pid", "pid_began") if key in entry.facts}
        try:
            return run.is_running
        except (TypeError, ValueError):  # run.json holds something else
            return False


class _Unended(Run):
    """A run whose summary.json was read before, and says nothing."""

    @property
    def summary(self) -> None:
        return None


def _settled(changed: int) -> int:
    """The time of a folder, if nothing else can happen at that time any more; otherwise -1: it is read again."""
    return changed if time.time_ns() - changed > SETTLED_S * 1e9 else -1


def _is_text(name: str) -> bool:
    """Whether a name can be written in an address: file systems allow bytes that are no text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _last_values(folder: str, keys: tuple[str, ...]) -> dict[str, float]:
    """The newest value of each metric, as far as the last part of metrics.jsonl has one."""
    found: dict[str, float] = {}
    for size in (TAIL // 16, TAIL):  # most often a few lines are enough
        data = read_in(folder, "metrics.jsonl", size, -size) or b""
        lines = data[: data.rfind(b"\n") + 1].split(b"\n")
        for line in reversed(lines[0 if len(data) < size else 1 :]):
            if not line:
                continue
            record = parse_object(line)
            for key in keys:
                if key not in found and (value := number(record.get(key))) is not None:
                    found[key] = value
            if len(found) == len(keys):
                return found
        if len(data) < size:
            break
    return found


def word(value: Any) -> str:
    """A text of a run's files as it is shown: not too long."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()  # JSON may hold halves of characters
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _run_row(entry: Entry, is_running: bool) -> dict[str, Any]:
    """A run as plain values; None if a value is unknown. `score` is that of the evaluation, else the last return."""
    facts, summary, path = entry.facts, entry.summary, entry.path
    last = _last_values(str(path), ("step", "wall_s", "episode/return", "sps"))
    evaluation = _table(summary.get("eval"))
    step = number(summary.get("step")) or last.get("step")
    wall = number(summary.get("wall_s")) or last.get("wall_s")
    evaluated = number(evaluation.get("return"))
    final = last.get("episode/return")
    status = word(summary.get("status")) or ("running" if is_running else "killed")
    sps = last.get("sps") if is_running else step / wall if step and wall else None
    seed = facts.get("seed")
    return {
        "id": path.name,
        "env": word(shortened(word(facts.get("env")) or path.parent.name)),
        "algo": word(facts.get("algo")),
        "seed": seed if isinstance(seed, int) and abs(seed) < 2**53 else None,
        "status": status,
        "step": step,
        "total": number(facts.get("total_steps")),
        "return": final,
        "eval": evaluated,
        "eval_ci95": number(evaluation.get("ci95")),
        "score": evaluated if evaluated is not None else final,
        "sps": sps,
        "wall_s": wall,
        "started": word(facts.get("started")),
        "reason": word(summary.get("reason")),
    }


def _seeds_row(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    seeds = [seed for seed in facts.get("seeds") or () if isinstance(seed, int)][:1000]
    prefix = path.name.removesuffix("-seeds")
    return {
        "id": path.name,
        "env": word(facts.get("env")) or path.parent.name,
        "runs": [f"{path.parent.name}/{prefix}-seed{seed}" for seed in seeds],
        "mean": number(facts.get("mean")),
        "ci95": number(facts.get("ci95")),
        "started": word(facts.get("started")),
    }


def _sweep_row(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    identity, space = _table(facts.get("identity")), _table(facts.get("space"))
    return {
        "id": path.name,
        "env": word(identity.get("env")) or path.parent.name,
        "trials": number(facts.get("trials")),
        "options": [word(name) for name in space][:50],
        "has_journal": (path / "journal.log").is_file(),
    }


class Options:
    """The options of runs by their full names, `train.learning_rate`; read when asked for, once."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._known: dict[Path, tuple[int, dict[str, Any]]] = {}

    def of(self, path: Path) -> dict[str, Any]:
        """All options of a run; empty if config.toml cannot be read."""
        file = path / "config.toml"
        try:
            changed = file.stat().st_mtime_ns
        except OSError:
            return {}
        known = self._known.get(path)
        if known is None or known[0] != changed:
            known = self._known[path] = changed, flatten(self.tables(path))
        return known[1]

    def tables(self, path: Path) -> dict[str, Any]:
        """The tables of config.toml, with plain values."""
        from shoal.config import parse_toml

        text = (self.root.read(path / "config.toml") or b"").decode(errors="replace")
        try:
            tables: dict[str, Any] = plain(parse_toml(text))
        except (ValueError, RecursionError):
            return {}
        return tables


def flatten(tables: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables in tables as one, with dotted names. Lists become text."""
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{word(name)}.")
        else:
            flat[f"{prefix}{word(name)}"] = word(value) if isinstance(value, (str, list)) else value
    return flat
