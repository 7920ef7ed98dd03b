"""A sweep's folder: what is searched, the journal of its trials, their runs, and the result.

    runs/<env>/sweep-<name>/
      sweep.json            the options and ranges, which all processes that join must share
      journal.log           Optuna's journal: every trial with its values and results; optuna-dashboard opens it
      trials/<env>/<n>/     the ordinary run of each trial
      finals/<env>/<n>-seed<k>/   reruns of the best trials on fresh seeds; beside them their outcomes
      best.toml             the best options, for `shoal train ENV --config`
      results.json          the best trials with intervals, when the sweep has ended
      sweep.html            the page of `shoal plot`

A trial enters the journal with all its values in one line, or not at all. A process that works on a trial holds a lock
of the operating system on claims/<trial>: a kill releases it, and the next process continues the trial.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study, create_study
from optuna.trial import FrozenTrial, TrialState

from shoal.errors import ConfigError, did_you_mean
from shoal.runs import ROOT, Run, RunFolder, check_name, fcntl, folder_name, make_folder, timestamp, write_atomic
from shoal.sweep.needs import quiet
from shoal.sweep.ranges import Range
from shoal.sweep.space import Space

FILE, JOURNAL, PREFIX = "sweep.json", "journal.log", "sweep-"
OBJECTIVES = ("score", "seconds")


@dataclass
class Trial:
    """One trial: the options that it tries, and its result."""

    number: int
    status: str  # running, finished, failed
    values: dict[str, Any]
    score: float | None = None
    seconds: float | None = None
    steps: int = 0
    seed: int = 0
    is_stopped: bool = False  # by the early stop
    reason: str = ""
    attempts: int = 1
    curve: list[list[float]] = field(default_factory=list)  # [step, seconds, return]
    outside: dict[str, Any] = field(default_factory=dict)  # values of trial 0 that lie outside their ranges
    id: int = 0  # in the journal

    @property
    def is_done(self) -> bool:
        """Whether it has a result: a score, or a failure."""
        return self.status != "running"

    @property
    def actual(self) -> dict[str, Any]:
        """The values that the run had, also those outside the ranges."""
        return {**self.values, **self.outside}


class Sweep(RunFolder):
    """One sweep."""

    facts_file = FILE

    @property
    def identity(self) -> dict[str, Any]:
        """What all processes of this sweep share: env, options, ranges, sampler, seed."""
        return dict(self.facts.get("identity", {}))

    @property
    def target(self) -> int:
        """The number of trials that were asked for."""
        return int(self.facts.get("trials", 0))

    @property
    def results(self) -> dict[str, Any] | None:
        """The best trials with their intervals; None before the end."""
        try:
            data = json.loads((self.folder / "results.json").read_text())
        except (OSError, ValueError):
            return None
        return data if isinstance(data, dict) else None

    @property
    def is_finished(self) -> bool:
        """Whether all trials that were asked for have ended, and the finals."""
        results = self.results or {}
        settings = self.facts.get("settings", {})
        wanted = [settings.get("finals"), settings.get("final_seeds")]
        return results.get("trials", 0) >= self.target and results.get("wanted") == wanted

    @cached_property
    def space(self) -> Space:
        """The ranges."""
        found = {}
        for name, part in self.facts.get("space", {}).items():
            choices = tuple(part["choices"])
            found[name] = Range(part["kind"], part["low"], part["high"], choices, part["is_int"])
        return Space(found)

    # ---- trials ----

    @cached_property
    def study(self) -> Study:
        """Optuna's study, in the journal."""
        path = self.folder / JOURNAL
        lock = _JournalLock(path.with_suffix(".lock"))
        if path.exists():
            _repair(path, lock)
        directions = ["maximize", "minimize"]
        with quiet():
            storage = JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
            study = create_study(storage=storage, study_name=self.id, directions=directions, load_if_exists=True)
            if study.metric_names is None:
                study.set_metric_names(list(OBJECTIVES))
        return study

    def trials(self) -> list[Trial]:
        """All trials, in the order of their numbers."""
        return [_read_trial(frozen) for frozen in self.study.get_trials(deepcopy=False)]

    def add_trial(self, values: Mapping[str, Any], attrs: Mapping[str, Any]) -> Trial:
        """Adds a trial that runs: one line of the journal. Values may lack options that are no numbers."""
        frozen = FrozenTrial(
            number=-1,
            trial_id=-1,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=datetime.datetime.now(),
            datetime_complete=None,
            params=dict(values),
            distributions={name: self.space.ranges[name].outer() for name in values},
            user_attrs=dict(attrs),
            system_attrs={},
            intermediate_values={},
        )
        id = self.study._storage.create_new_trial(self.study._study_id, template_trial=frozen)
        return _read_trial(self.study._storage.get_trial(id))

    def finish_trial(self, trial: Trial, values: tuple[float, float] | None, attrs: Mapping[str, Any]) -> None:
        """Writes a trial's result: (score, seconds), or None for a failure. The last line makes it count."""
        storage = self.study._storage
        for name, value in attrs.items():
            storage.set_trial_user_attr(trial.id, name, value)
        state = TrialState.FAIL if values is None else TrialState.COMPLETE
        storage.set_trial_state_values(trial.id, state, None if values is None else list(values))

    def set_attribute(self, trial: Trial, name: str, value: Any) -> None:
        """Writes a fact about a trial into the journal."""
        self.study._storage.set_trial_user_attr(trial.id, name, value)

    def trial_run(self, number: int) -> Run:
        """The run of a trial."""
        return Run(self.folder / "trials" / folder_name(self.identity["env"]) / f"{number:04d}")

    # ---- locks ----

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the sweep, so that two processes do not choose the same trial."""
        lock = _JournalLock(self.folder / "claims" / "sweep")
        lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def claim(self, name: str) -> IO[str] | None:
        """Claims a piece of work for this process, until the file is closed; None: another process has it."""
        path = self.folder / "claims" / name
        path.parent.mkdir(exist_ok=True)
        file = path.open("a")
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return None
            except OSError:  # a file system without locks
                pass
        return file

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """Writes a JSON file, completely or not at all."""
        write_atomic(self.folder / name, json.dumps(data, indent=1).encode())
        if name == FILE:
            self.__dict__.pop("facts", None)


class _JournalLock:
    """A lock of the operating system. (Optuna's own is a file, which a kill leaves behind for 30 s.)"""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: IO[str] | None = None
        path.parent.mkdir(parents=True, exist_ok=True)

    def acquire(self) -> bool:
        self.file = self.path.open("a")
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self.file, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


def _repair(path: Path, lock: _JournalLock) -> None:
    """Removes a last line that a crash of the machine left incomplete."""
    lock.acquire()
    try:
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)
                os.fsync(file.fileno())
    finally:
        lock.release()


def _read_trial(frozen: FrozenTrial) -> Trial:
    attrs = frozen.user_attrs
    status = {TrialState.COMPLETE: "finished", TrialState.FAIL: "failed"}.get(frozen.state, "running")
    score, seconds = frozen.values if frozen.state == TrialState.COMPLETE else (None, None)
    return Trial(
        number=frozen.number,
        status=status,
        values=dict(frozen.params),
        score=score,
        seconds=seconds,
        steps=int(attrs.get("steps") or 0),
        seed=int(attrs.get("seed", 0)),
        is_stopped=bool(attrs.get("stopped", False)),
        reason=str(attrs.get("reason", "")),
        attempts=int(attrs.get("attempts", 1)),
        curve=list(attrs.get("curve", ())),
        outside=dict(attrs.get("outside", {})),
        id=frozen._trial_id,
    )


# ---- making and finding ----


def create(env: str, root: str | Path, name: str, facts: Mapping[str, Any], space: Space) -> Sweep:
    """Makes the folder of a new sweep, named `name` or by the time."""
    if name:
        check_name("--name", name)
    parts = {key: {**vars(part), "choices": list(part.choices)} for key, part in space.ranges.items()}
    sweep = Sweep(make_folder(Path(root) / folder_name(env), name or timestamp(), PREFIX + "{}"))
    (sweep.folder / "claims").mkdir()
    started = {"started": time.strftime("%Y-%m-%dT%H:%M:%S"), "started_s": time.time()}
    sweep.write(FILE, {**started, **facts, "space": parts})
    return sweep


def all_sweeps(root: str | Path = ROOT) -> list[Sweep]:
    """Every sweep under a folder, newest last."""
    found = [Sweep(path.parent) for path in Path(root).glob(f"*/{PREFIX}*/{FILE}")]
    return sorted(found, key=lambda sweep: (float(sweep.facts.get("started_s", 0.0)), sweep.id))


def newest(env: str, root: str | Path, name: str = "") -> Sweep | None:
    """The newest sweep of an env, or the one with this name; None: there is none."""
    for sweep in reversed(all_sweeps(root)):
        if sweep.env == folder_name(env) and (not name or sweep.id == f"{PREFIX}{name}"):
            return sweep
    return None


def find(text: str | Path, root: str | Path = ROOT) -> Sweep | None:
    """The sweep of a folder, `sweep-NAME` or `ENV/sweep-NAME`; None: the text names none."""
    path = Path(text)
    if (path / FILE).is_file():
        return Sweep(path)
    name = str(text).strip("/").removeprefix(f"{root}/")
    found = all_sweeps(root)
    for sweep in reversed(found):
        if name in (sweep.id, f"{sweep.env}/{sweep.id}"):
            return sweep
    if Path(name).name.startswith(PREFIX) and not path.exists():
        near = did_you_mean(name, [sweep.id for sweep in found])
        raise ConfigError(f"no sweep '{text}' in {root}/.{near}")
    return None
