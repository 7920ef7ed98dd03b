"""`shoal runs compare`: the options in which runs differ, and their results, side by side."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import tyro

from shoal.cli.command import Command

RESULTS = ("status", "step", "return", "best", "eval", "sps", "wall_s")


def compare(
    run: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN RUN [RUN ...]")],
    /,
    *,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
    json: bool = False,
) -> int:
    """Compare runs: the options that differ, and their results, side by side.

    An option that a run does not have is shown as '-'. Equal options are not shown.

    Try:
        shoal runs compare 20250101-120000 20250101-130000
        shoal runs compare cartpole last --json

    Args:
        run: The runs: folders, ids from 'shoal runs', the name of an env (its newest run), or last.
        runs: The folder that the runs are in.
        json: Print one line of JSON.
    """
    from shoal.cli.run_rows import describe, options_of
    from shoal.cli.screen import console
    from shoal.errors import ConfigError
    from shoal.plot import NOT_COMPARED
    from shoal.runs import all_runs, find

    found = [find(text, runs) for text in run]
    if len(found) < 2:
        named = [one.folder.resolve() for one in found]
        others = [one.id for one in reversed(all_runs(runs)) if one.folder.resolve() not in named]
        words = [*run, *others][:2]
        advice = f"Name two or more: shoal runs compare {' '.join(words)}" if len(words) == 2 else "Train another one."
        raise ConfigError(f"{len(found)} run{'' if found else 's'} to compare. {advice}")
    twice = [one.id for number, one in enumerate(found) if one.folder in [other.folder for other in found[:number]]]
    if twice:
        raise ConfigError(f"run {twice[0]} is named twice. Name different runs; 'shoal runs' lists them.")
    facts = [
        {"env": one.facts.get("env", one.env), "commit": one.facts.get("commit"), **_versions(one)} for one in found
    ]
    options = [{**facts[k], **options_of(one)} for k, one in enumerate(found)]
    names = list(dict.fromkeys(name for one in options for name in one))
    values = {name: [one.get(name) for one in options] for name in names if name not in NOT_COMPARED}
    differing = {name: row for name, row in values.items() if any(value != row[0] for value in row)}
    rows = [describe(one) for one in found]
    results = {name: [row[name] for row in rows] for name in RESULTS}
    results["eval_ci95"] = [((one.summary or {}).get("eval") or {}).get("ci95") for one in found]
    if json:
        print(jsonlib.dumps({"runs": [str(one.folder) for one in found], "options": differing, "results": results}))
        return 0
    screen = console()
    screen.print(_table([one.id for one in found], differing, results))
    if not differing:
        screen.print("\nAll options are equal.")
    return 0


def _versions(run: Any) -> dict[str, Any]:
    versions = run.facts.get("versions") or {}
    return {f"version of {name}": versions[name] for name in ("shoal", "torch") if name in versions}


def _table(ids: list[str], options: dict[str, list[Any]], results: dict[str, list[Any]]) -> Any:
    """A column for each run: the options that differ, then the results."""
    from rich.table import Table
    from rich.text import Text

    from shoal.log.base import duration, human, number

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for id in ids:
        table.add_column(id, justify="right", overflow="fold")
    for name, row in options.items():
        table.add_row(Text(name, "cyan"), *(_show(value) for value in row))
    if options:
        table.add_row()
    intervals = results["eval_ci95"]
    greatest = max((value for value in results["eval"] if value is not None), default=None)
    table.add_row("status", *results["status"])
    table.add_row("steps", *(human(value or 0) for value in results["step"]))
    table.add_row("return", *map(number, results["return"]))
    table.add_row("best return", *map(number, results["best"]))
    evaluated = []
    for value, interval in zip(results["eval"], intervals):
        text = number(value) if interval is None else f"{number(value)} ± {number(interval)}"
        evaluated.append(Text(text, "bold green" if value is not None and value == greatest else ""))
    table.add_row("evaluation", *evaluated)
    table.add_row("steps/s", *(human(value) if value else "-" for value in results["sps"]))
    table.add_row("time", *(duration(value) if value is not None else "-" for value in results["wall_s"]))
    return table


def _show(value: Any) -> str:
    """A value of an option; '-' if the run does not have it."""
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value) or "''"


COMMAND = Command(compare, order=41, examples={})
