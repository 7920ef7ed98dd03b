"""`shoal runs`: lists the runs with their progress and results."""

from __future__ import annotations

import json as jsonlib
import math
import shlex
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from shoal.cli.command import Command

Key = Literal["started", "env", "status", "step", "return", "best", "eval", "sps", "wall_s"]

STATUS_STYLES = {"running": "green", "finished": "", "interrupted": "yellow", "failed": "bold red", "killed": "red"}


def list_runs(
    *,
    env: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: all)")] = None,
    sort: Key = "started",
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
    json: bool = False,
) -> int:
    """List the runs: env, status, steps, returns, speed.

    The newest run is last, next to the prompt. 'return' is the mean return of the last interval, 'best' that of the
    best interval, 'eval' that of the evaluation at the end. If the newest run did not learn, the reason is shown below.

    Try:
        shoal runs
        shoal runs --env cartpole --sort eval
        shoal runs --json

    Args:
        env: List only the runs of this env.
        sort: The column to sort by, the greatest value last.
        runs: The folder that the runs are in.
        json: Print one line of JSON per run.
    """
    from shoal.cli.screen import console, suggest
    from shoal.errors import ConfigError, did_you_mean
    from shoal.runs import ROOT, all_runs, folder_name

    rows = [describe(run) for run in all_runs(runs)]
    names = {row["env"] for row in rows}
    if env is not None:
        wanted = (env, folder_name(env))
        matching = [row for row in rows if row["env"] in wanted or row["folder"].parent.name in wanted]
        if rows and not matching:
            raise ConfigError(
                f"no runs of '{env}'.{did_you_mean(env, names)} There are runs of {', '.join(sorted(names))}."
            )
        rows = matching
    rows.sort(key=lambda row: _rank(row[sort]))
    if json:
        for row in rows:
            print(jsonlib.dumps({**row, "folder": str(row["folder"])}))
        return 0
    out = console()
    if not rows:
        out.print(f"No runs in {runs}/.", soft_wrap=True)
        suggest(out, {f"shoal train {env or 'cartpole'}": "start one"})
        return 0
    out.print(_table(rows, out.width, sort))
    last = max(rows, key=lambda row: (row["started"], row["id"]))
    out.print(f"\n{len(rows)} run{'s' * (len(rows) > 1)} in {runs}/.", soft_wrap=True)
    for finding in last["diagnosis"]:
        out.print(f"Diagnosis of {last['id']}: {finding['fact']}. {finding['advice']}", soft_wrap=True)
    name = last["id"] if runs == ROOT else shlex.quote(str(last["folder"]))
    hints = {f"shoal plot {name}": "draw the newest run"}
    if not last["lost"]:  # its env, policy or reward can be found again by name
        hints[f"shoal eval {name}"] = "watch it play"
    if last["status"] in ("interrupted", "killed") and not last["lost"]:
        hints = {f"shoal train {last['env']} --resume {name}": "continue the newest run", **hints}
    suggest(out, hints)
    return 0


def describe(run: Any) -> dict[str, Any]:
    """One run as plain values; None if a value is unknown."""
    from shoal.names import shortened

    records, facts, summary = run.metrics(), run.facts, run.summary or {}
    last = records[-1] if records else {}
    returns = [record["episode/return"] for record in records if _is_number(record.get("episode/return"))]
    evaluation = summary.get("eval") or {}
    step, wall = summary.get("step", last.get("step", 0)), summary.get("wall_s", last.get("wall_s"))
    sps = summary.get("sps") or (step / wall if wall else None)
    return {
        "id": run.id,
        "env": shortened(str(facts.get("env", run.env))),
        "algo": facts.get("algo"),
        "seed": facts.get("seed"),
        "status": summary.get("status") or ("running" if run.is_running else "killed"),
        "step": step,
        "return": returns[-1] if returns else None,
        "best": max(returns) if returns else None,
        "eval": evaluation.get("return") if _is_number(evaluation.get("return")) else None,
        "diagnosis": summary.get("diagnosis") or [],
        "lost": facts.get("lost") or [],
        "sps": sps,
        "wall_s": wall,
        "started": str(facts.get("started", "")),
        "folder": run.folder,
    }


def _table(rows: list[dict[str, Any]], width: int, sort: str) -> Any:
    """The columns that fit on the terminal; the least important are left out first."""
    from rich.table import Table
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
    for extra in ("algo", "age", "time", "seed", "steps/s", "best"):
        if sum(2 + max(len(name), *(len(cell) for cell in column)) for name, column in cells.items()) <= width:
            break
        if extra != {"sps": "steps/s", "wall_s": "time"}.get(sort, sort):
            del cells[extra]
    left = ("id", "env", "algo", "status")
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


COMMAND = Command(list_runs, order=40, examples={})
