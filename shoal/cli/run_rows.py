"""Runs as rows of a table, and which rows are meant: the filters of `shoal runs`, `runs delete` and `runs prune`.

A thousand runs are listed in a second or two. So the cheap files are read first, and metrics.jsonl is searched for the
return only, not parsed.
"""

from __future__ import annotations

import json as jsonlib
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from shoal import config
from shoal.errors import ConfigError, did_you_mean
from shoal.names import shortened
from shoal.runs import Run, all_runs, folder_name

STATUSES = ("running", "finished", "interrupted", "failed", "killed")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
RETURN = re.compile(rb'"episode/return": ?(-?\d[\d.eE+-]*)')
CONDITION = re.compile(r"\s*([A-Za-z_][\w.-]*?)\s*(!=|<=|>=|=|<|>)\s*(.+?)\s*")


@dataclass(frozen=True)
class Filters:
    """Which runs are meant. None and empty: all."""

    env: str | None = None
    status: str | None = None
    algo: str | None = None
    min_score: float | None = None
    since: str | None = None
    older_than: str | None = None
    where: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        """Whether all runs are meant."""
        given = (self.env, self.status, self.algo, self.min_score, self.since, self.older_than)
        return not self.where and all(value is None for value in given)


@dataclass(frozen=True)
class Condition:
    """`train.learning_rate<0.001`: an option of a run compared with a value."""

    name: str
    sign: str
    text: str

    def holds(self, options: Mapping[str, Any]) -> bool:
        """Whether a run with these options is meant. A run without the option is not."""
        if self.name not in options:
            return False
        value = options[self.name]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            wanted = _number(self.text)
            if wanted is not None:
                return _compare(self.sign, float(value), wanted)
        return _compare(self.sign, str(value).lower(), self.text.strip("'\"").lower())


def _compare(sign: str, value: Any, wanted: Any) -> bool:
    signs: dict[str, Callable[[], bool]] = {
        "=": lambda: value == wanted,
        "!=": lambda: value != wanted,
        "<": lambda: value < wanted,
        ">": lambda: value > wanted,
        "<=": lambda: value <= wanted,
        ">=": lambda: value >= wanted,
    }
    return bool(signs[sign]())


def _number(text: str) -> float | None:
    """`0.001`, `1e-3` or `20M` as a number; None if it is none."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(config.parse_count(text))
    except ConfigError:
        return None


def parse_condition(text: str) -> Condition:
    """A condition of --where, as the user wrote it."""
    found = CONDITION.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"--where '{text}' is not NAME=VALUE. Write --where train.learning_rate=0.001. Signs: = != < > <= >=."
        )
    return Condition(found[1].replace("-", "_"), found[2], found[3])


def parse_time(text: str, flag: str) -> float:
    """An age such as `12h`, `7d`, `2w`, or a date such as `2026-11-01`, as seconds since 1970."""
    age = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if age is not None:
        return time.time() - float(age[1]) * UNITS_S[age[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        raise ConfigError(
            f"{flag} {text} is neither an age nor a date. Write 30m, 12h, 7d or 2w, or a date: 2026-11-01."
        ) from None


def select(root: str | Path, filters: Filters, among: Sequence[Run] | None = None) -> list[dict[str, Any]]:
    """The rows of the runs that the filters mean, oldest first; `among` those given instead of all.

    A name that fits no run at all is an error, with a suggestion.
    """
    conditions = [parse_condition(text) for text in filters.where]
    after = None if filters.since is None else parse_time(filters.since, "--since")
    before = None if filters.older_than is None else parse_time(filters.older_than, "--older-than")
    if filters.status is not None and filters.status not in STATUSES:
        near = did_you_mean(filters.status, STATUSES)
        raise ConfigError(f"--status {filters.status}.{near} Choices: {', '.join(STATUSES)}.")
    runs = all_runs(root) if among is None else list(among)
    runs = _by_fact(runs, filters.env, "env", _names_of_env, "runs of")
    runs = _by_fact(runs, filters.algo, "algo", lambda run: {str(run.facts.get("algo"))}, "runs with --algo")
    if after is not None:
        runs = [run for run in runs if began(run) >= after]
    if before is not None:
        runs = [run for run in runs if began(run) < before]
    if conditions:
        runs = _by_options(runs, conditions)
    if filters.status is not None:
        runs = [run for run in runs if status_of(run) == filters.status]
    rows = [describe(run) for run in runs]
    if filters.min_score is not None:
        rows = [row for row in rows if row["score"] is not None and row["score"] >= filters.min_score]
    return rows


def _by_fact(runs: list[Run], wanted: str | None, fact: str, names: Callable[[Run], set[str]], what: str) -> list[Run]:
    """The runs with a name in run.json."""
    if wanted is None or not runs:
        return runs
    matching = [run for run in runs if names(run) & {wanted, folder_name(wanted)}]
    if not matching:
        known = {str(run.facts.get(fact, run.env if fact == "env" else "")) for run in runs}
        raise ConfigError(
            f"no {what} '{wanted}'.{did_you_mean(wanted, known)} There are {what} {', '.join(sorted(known))}."
        )
    return matching


def _names_of_env(run: Run) -> set[str]:
    return {str(run.facts.get("env", run.env)), run.env}


def _by_options(runs: list[Run], conditions: Sequence[Condition]) -> list[Run]:
    """The runs whose options meet all conditions. An option that no run has raises."""
    options = {run: options_of(run) for run in runs}
    known = {name for flat in options.values() for name in flat}
    for condition in conditions:
        if runs and condition.name not in known:
            near = did_you_mean(condition.name, known)
            raise ConfigError(f"--where {condition.name}: no run has that option.{near} config.toml of a run has all.")
    return [run for run in runs if all(condition.holds(options[run]) for condition in conditions)]


def options_of(run: Run) -> dict[str, Any]:
    """All options of a run by their full names, `train.learning_rate`; empty if config.toml cannot be read."""
    try:
        return dict(_flat(run.config, ""))
    except ConfigError:
        return {}


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def began(run: Run) -> float:
    """When a run started, in seconds since 1970; 0 if unknown."""
    try:
        return datetime.fromisoformat(str(run.facts.get("started", "")).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def status_of(run: Run) -> str:
    """One of STATUSES."""
    status = (run.summary or {}).get("status")
    return str(status) if status else "running" if run.is_running else "killed"


def describe(run: Run) -> dict[str, Any]:
    """One run as plain values; None if a value is unknown. `score` is that of the evaluation, else the last return."""
    facts, summary = run.facts, run.summary or {}
    returns, last = _returns(run)
    evaluation = summary.get("eval") or {}
    step, wall = summary.get("step", last.get("step", 0)), summary.get("wall_s", last.get("wall_s"))
    sps = step / wall if step and wall else None
    final = returns[-1] if returns else None
    evaluated = evaluation.get("return") if _is_number(evaluation.get("return")) else None
    return {
        "id": run.id,
        "env": shortened(str(facts.get("env", run.env))),
        "algo": facts.get("algo"),
        "seed": facts.get("seed"),
        "status": summary.get("status") or ("running" if run.is_running else "killed"),
        "step": step,
        "return": final,
        "best": max(returns) if returns else None,
        "eval": evaluated,
        "score": evaluated if evaluated is not None else final,
        "diagnosis": summary.get("diagnosis") or [],
        "lost": facts.get("lost") or [],
        "sps": sps,
        "wall_s": wall,
        "started": str(facts.get("started", "")),
        "folder": run.folder,
    }


def _returns(run: Run) -> tuple[list[float], dict[str, Any]]:
    """The mean returns of all intervals, and the last record of metrics.jsonl."""
    try:
        data = (run.folder / "metrics.jsonl").read_bytes()
    except OSError:
        return [], {}
    data = data[: data.rfind(b"\n") + 1]  # without a line that a kill left incomplete
    returns = [float(text) for text in RETURN.findall(data)]
    last: Any = {}
    for line in reversed(data[-65536:].splitlines()):
        try:
            last = jsonlib.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(last, dict):
            break
    return [value for value in returns if math.isfinite(value)], last if isinstance(last, dict) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def find_named(texts: Sequence[str], root: str | Path) -> list[Run]:
    """Runs by folder, id, env/id, the id of a group of seeds, or `last`, each once. The name of an env is refused.

    `shoal eval cartpole` means the newest run of cartpole. To delete runs, that would be a guess.
    """
    from shoal.runs import find
    from shoal.seed_groups import find_group

    named: dict[Path, Run] = {}
    for text in texts:
        group = find_group(text, root)
        found = list(group.runs.values()) if group is not None else [find(text, root)]
        for run in found:
            is_env = group is None and text.strip("/").removeprefix(f"{root}/") in (run.env, str(run.facts.get("env")))
            if is_env and not (Path(text) / "run.json").is_file():
                raise ConfigError(
                    f"'{text}' is an env. Name runs by their ids, or mean all its runs with --env {text}."
                )
            named[run.folder.resolve()] = run
    return list(named.values())


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder. Links are not followed."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if not path.is_dir() or path.is_symlink() else 0
        except OSError:  # it was removed meanwhile
            continue
    return total


def show_bytes(count: float) -> str:
    """`1.5 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def confirm(question: str, yes: bool) -> bool:
    """Asks on the terminal. Without a terminal, --yes is needed."""
    import sys

    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal to ask on. Add --yes.")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
