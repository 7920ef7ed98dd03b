"""`shoal runs prune`: deletes the checkpoints of runs besides the best and the last one."""

from __future__ import annotations

import json as jsonlib
import shutil
from pathlib import Path
from typing import Annotated

import tyro

from shoal.cli.command import Command
from shoal.cli.runs import Status
from shoal.cli.runs_delete import NONE


def prune(
    run: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")] = (),
    /,
    *,
    env: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint=NONE)] = None,
    status: Annotated[Status | None, tyro.conf.arg(help_behavior_hint=NONE)] = None,
    older_than: Annotated[str | None, tyro.conf.arg(metavar="{12h,7d,DATE}", help_behavior_hint=NONE)] = None,
    yes: bool = False,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
    json: bool = False,
) -> int:
    """Delete all checkpoints of runs but the best and the last, after a question.

    Without names and filters, all runs are meant. A run can still be evaluated and resumed. Runs that are being trained
    are left alone.

    Try:
        shoal runs prune
        shoal runs prune 20250101-120000 --yes
        shoal runs prune --env breakout --older-than 7d

    Args:
        run: The runs: folders, ids from 'shoal runs', or last. The id of a group of seeds means all its runs.
        env: Only the runs of this env.
        status: Only the runs with this status.
        older_than: Only the runs that started before this time, such as 12h, 7d or 2w ago, or before a date.
        yes: Delete without a question.
        runs: The folder that the runs are in.
        json: Print one line of JSON.
    """
    from shoal.cli.run_rows import Filters, confirm, find_named, select, show_bytes, size_of
    from shoal.cli.screen import console
    from shoal.runs import Run

    filters = Filters(env, status, older_than=older_than)
    found = [Run(row["folder"]) for row in select(runs, filters, find_named(run, runs) if run else None)]
    spare: list[Path] = []
    for one in found:
        if not one.is_running:
            kept = (one.best, one.last, *one.resumable()[-1:])
            spare += [path for path in one.checkpoints() if path not in kept]
    size = sum(map(size_of, spare))
    count = f"{len(spare)} checkpoint{'s' * (len(spare) != 1)} of {len({path.parent for path in spare})} runs"
    screen = console(stderr=json)
    if not spare:
        screen.print("No checkpoints to delete: every run has its best and its last one only.", soft_wrap=True)
    elif not confirm(f"Delete {count} and free {show_bytes(size)}?", yes):
        screen.print("Nothing was deleted.")
        return 1
    for path in spare:
        shutil.rmtree(path)
    if json:
        print(jsonlib.dumps({"deleted": [str(path) for path in spare], "bytes": size}))
    elif spare:
        screen.print(f"Deleted {count}: {show_bytes(size)} are free.", soft_wrap=True)
    return 0


COMMAND = Command(prune, order=43, examples={})
