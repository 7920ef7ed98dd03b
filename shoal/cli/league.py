"""`shoal league`: ratings and results of a run's league, from its checkpoint."""

from __future__ import annotations

import json as jsonlib
import shlex
from pathlib import Path
from typing import Annotated

import tyro

from shoal.cli.command import Command


def league(
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = "last",
    /,
    *,
    checkpoint: Annotated[str, tyro.conf.arg(metavar="{best,last,STEP}")] = "last",
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: no file)")] = None,
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: no file)")] = None,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
) -> int:
    """Show the ratings and results of a league run.

    The results are those of the training games: of the learner, and of its snapshots (the games since the snapshot
    before), against robots, runs and earlier snapshots. Ratings are a Bradley-Terry fit of all of them in Elo, with
    95 % intervals; the first robot has rating 0, or else the first snapshot. 'shoal match' plays new games.

    Try:
        shoal league last
        shoal league runs/connect4/20261116-120000 --html league.html

    Args:
        run: The run: its folder, its id, the name of its env (its newest run), or last.
        checkpoint: The checkpoint: last, best, or a step.
        json: Write all results to this file; - prints them, and nothing else.
        html: Write ratings and the matrix as a web page to this file.
        runs: The folder of the runs.
    """
    from shoal.cli import crosstable
    from shoal.cli.screen import console, suggest
    from shoal.league.page import write_html
    from shoal.match import read_league

    to_stdout = json is not None and str(json) == "-"
    crosstable.check_file(None if to_stdout else json, "--json", ".json")
    crosstable.check_file(html, "--html", ".html")
    report = read_league(run, checkpoint, runs)
    table, facts, folder = report.table, report.facts(), report.run.folder
    title = f"{report.run.env}, run {report.run.id}: the league at step {report.step:,}"
    anchor = table.names[table.anchor]
    lines = [
        f"{report.members} members in the pool now; {anchor} has rating 0. Results are those of the training games."
    ]
    if len(report.snapshots()) > 1:
        how = "rise" if facts["snapshots_rise"] else "do not all rise"
        lines.append(f"The ratings of the {len(report.snapshots())} snapshots {how}, within their intervals.")
    if html is not None:
        write_html(table, html, title, lines)
    if to_stdout:
        print(jsonlib.dumps(facts))
        return 0
    if json is not None:
        crosstable.write_json(json, facts)
    screen = console()
    screen.print(title, style="bold", soft_wrap=True)
    for line in lines:
        screen.print(line, style="dim", soft_wrap=True)
    screen.print()
    crosstable.show(screen, table)
    for path in (json, html):
        if path is not None:
            screen.print(f"\nwrote {path}", soft_wrap=True)
    screen.print()
    suggest(screen, {f"shoal match {shlex.quote(str(folder))} random": "play new games against others"})
    return 0


COMMAND = Command(league, order=26, examples={"shoal league last": "ratings and results of a league run"})
