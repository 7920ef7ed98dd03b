"""`shoal runs`: lists the runs with their progress and results, and the groups of seeds."""

from __future__ import annotations

import json as jsonlib
import shlex
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from shoal.cli.command import Command

Key = Literal["started", "env", "algo", "seed", "status", "step", "return", "best", "eval", "score", "sps", "wall_s"]
Status = Literal["running", "finished", "interrupted", "failed", "killed"]

STATUS_STYLES = {"running": "green", "finished": "", "interrupted": "yellow", "failed": "bold red", "killed": "red"}
ALL = "(default: all)"
LEAST_NAME = 12  # characters of an env's name


def list_runs(
    *,
    env: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint=ALL)] = None,
    status: Annotated[Status | None, tyro.conf.arg(help_behavior_hint=ALL)] = None,
    algo: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint=ALL)] = None,
    min_score: Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint=ALL)] = None,
    since: Annotated[str | None, tyro.conf.arg(metavar="{12h,7d,DATE}", help_behavior_hint=ALL)] = None,
    where: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...", help_behavior_hint=ALL)] = (),
    sort: Key = "started",
    limit: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint=ALL)] = None,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
    json: bool = False,
) -> int:
    """List the runs: env, status, steps, returns, speed.

    The newest run is last, next to the prompt. 'return' is the mean return of the last interval, 'best' that of the
    best interval, 'eval' that of the evaluation at the end. Groups of seeds ('shoal train --seeds') are listed below,
    with the mean over seeds. If the newest run did not learn, the reason is shown.

    Try:
        shoal runs
        shoal runs --env cartpole --sort eval
        shoal runs --status finished --min-score 400 --since 7d
        shoal runs --where train.learning_rate=0.001 "train.total_steps>=1M"
        shoal runs --json

    Args:
        env: List only the runs of this env.
        status: List only the runs with this status.
        algo: List only the runs of this algorithm.
        min_score: List only the runs with at least this score: 'eval', or 'return' without an evaluation.
        since: List only the runs that started in this time, such as 12h, 7d or 2w, or since a date.
        where: List only the runs with these options. The signs are = != < > <= >=.
        sort: The column to sort by, the greatest value last.
        limit: List only so many runs, the last ones.
        runs: The folder that the runs are in.
        json: Print one line of JSON per run and per group of seeds.
    """
    from shoal.cli.run_rows import Filters, select
    from shoal.cli.screen import console, suggest
    from shoal.errors import ConfigError
    from shoal.runs import ROOT

    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit} must be at least 1.")
    filters = Filters(env, status, algo, min_score, since, where=where)
    rows = select(runs, filters)
    groups = _groups(runs, rows)
    rows.sort(key=lambda row: _rank(row[sort]))
    rows = rows if limit is None else rows[-limit:]
    if json:
        for row in rows:
            print(jsonlib.dumps({**row, "folder": str(row["folder"])}))
        for group in groups:
            print(jsonlib.dumps({"kind": "seeds", **group.facts, "folder": str(group.folder)}))
        return 0
    out = console()
    if not rows:
        what = "No runs" if filters.is_empty else "No such runs"
        out.print(f"{what} in {runs}/.", soft_wrap=True)
        hints = {f"shoal train {env or 'cartpole'}": "start one"} if filters.is_empty else {"shoal runs": "list all"}
        suggest(out, hints)
        return 0
    out.print(_table(rows, out.width, sort))
    if groups:
        out.print()
        out.print(_group_table(groups, out.width))
    last = max(rows, key=lambda row: (row["started"], row["id"]))
    out.print(f"\n{len(rows)} run{'s' * (len(rows) > 1)} in {runs}/.", soft_wrap=True)
    for finding in last["diagnosis"]:
        out.print(f"Diagnosis of {last['id']}: {finding['fact']}. {finding['advice']}", soft_wrap=True)
    name = last["id"] if runs == ROOT else shlex.quote(str(last["folder"]))
    hints = {f"shoal plot {name}": "draw the newest run"}
    if not last["lost"]:  # its env, policy or reward can be found again by name
        hints[f"shoal eval {name}"] = "score it, with a video"
        hints[f"shoal watch {name}"] = "see it play in the browser"
    if last["status"] in ("interrupted", "killed") and not last["lost"]:
        group = next((group for group in groups if group.id == last.get("group")), None)
        whole = name if group is None else group.id if runs == ROOT else shlex.quote(str(group.folder))
        command = f"shoal train {last['env']} --resume {whole}" if group is None else f"shoal train --resume {whole}"
        hints = {command: f"continue the newest {'run' if group is None else 'seeds'}", **hints}
    suggest(out, hints)
    return 0


def _groups(root: Path, rows: Sequence[dict[str, Any]]) -> list[Any]:
    """The groups of seeds of which a run is listed. Each such row gets the id of its group."""
    from shoal.names import shortened
    from shoal.seed_groups import all_groups

    by_folder = {(row["env"], row["id"]): row for row in rows}
    listed = []
    for group in all_groups(root):
        env = shortened(str(group.facts.get("env", group.env)))
        members = [row for seed in group.seeds if (row := by_folder.get((env, group.run_id(seed)))) is not None]
        for row in members:
            row["group"] = group.id
        listed += [group] if members else []
    return listed


def _group_table(groups: Sequence[Any], width: int) -> Any:
    """One row for each group of seeds."""
    from rich.text import Text

    from shoal.log.base import human, number
    from shoal.names import shortened

    rows: list[list[Any]] = []
    for group in groups:
        facts = group.facts
        status = str(facts.get("status", ""))
        if status == "running" and not group.is_running:
            status = "killed"
        interval = facts.get("ci95")
        cells = [number(facts.get("mean")), "-" if interval is None else f"± {number(interval)}"]
        cells += [number(facts.get("min")), number(facts.get("max")), human(facts.get("steps") or 0)]
        count = f"{facts.get('n', 0)}/{len(group.seeds)}"
        style = Text(status, STATUS_STYLES.get(status, ""))
        rows.append([Text(group.id, "cyan"), shortened(str(facts.get("env", group.env))), style, count, *cells])
    names = ("seeds", "env", "status", "n", "mean", "95 %", "min", "max", "steps")
    columns = {name: [row[k] for row in rows] for k, name in enumerate(names)}
    return _fitted(columns, width, ("steps", "max", "min"))


def _table(rows: list[dict[str, Any]], width: int, sort: str) -> Any:
    """One row for each run."""
    from rich.text import Text

    from shoal.log.base import duration, human, number

    cells = {
        "id": [Text(row["id"], "cyan") for row in rows],
        "env": [row["env"] for row in rows],
        "algo": [str(row["algo"] or "") for row in rows],
        "seed": [str(row["seed"] if row["seed"] is not None else "") for row in rows],
        "status": [Text(row["status"], STATUS_STYLES.get(row["status"], "")) for row in rows],
        "steps": [human(row["step"] or 0) for row in rows],
        "return": [number(row["return"]) for row in rows],
        "best": [number(row["best"]) for row in rows],
        "eval": [Text(number(row["eval"]), "bold") for row in rows],
        "steps/s": [human(row["sps"]) if row["sps"] else "-" for row in rows],
        "time": [duration(row["wall_s"]) if row["wall_s"] is not None else "-" for row in rows],
        "age": [_age(row["started"]) for row in rows],
    }
    if all(row["eval"] is None for row in rows):
        del cells["eval"]
    sorted_by = {"sps": "steps/s", "wall_s": "time"}.get(sort, sort)
    extras = [name for name in ("algo", "age", "time", "seed", "steps/s", "best") if name != sorted_by]
    return _fitted(cells, width, extras)


def _fitted(cells: dict[str, list[Any]], width: int, extras: Sequence[str]) -> Any:
    """A table that fits on the terminal: extras are left out, the first ones first, then long names of envs are cut."""
    from rich.table import Table

    def too_wide() -> int:
        return sum(2 + max(map(len, (name, *column))) for name, column in cells.items()) - 2 - width

    for extra in extras:
        if too_wide() <= 0:
            break
        del cells[extra]
    if (over := too_wide()) > 0:
        room = max(max(map(len, cells["env"])) - over, LEAST_NAME)
        cells["env"] = [name if len(name) <= room else f"…{name[1 - room :]}" for name in cells["env"]]
    left = ("id", "seeds", "env", "algo", "status")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in cells:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for row in zip(*cells.values()):
        table.add_row(*row)
    return table


def _age(started: str) -> str:
    from shoal.log.base import duration

    try:
        return duration(max(0.0, time.time() - datetime.fromisoformat(started.replace("Z", "+00:00")).timestamp()))
    except ValueError:
        return "-"


def _rank(value: Any) -> tuple[bool, Any]:
    """Unknown values come first."""
    return (value is not None, value if value is not None else 0)


COMMAND = Command(list_runs, order=40, examples={})
