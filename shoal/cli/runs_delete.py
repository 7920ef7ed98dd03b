"""`shoal runs delete`: deletes runs, after a question. Runs that are being trained are never deleted."""

from __future__ import annotations

import json as jsonlib
import shutil
from pathlib import Path
from typing import Annotated, Any

import tyro

from shoal.cli.command import Command
from shoal.cli.runs import Status

NONE = "(default: none)"
LAST = ("train.lock", "summary.json", "run.json")  # files that are deleted last
SHOWN = 20  # runs that are listed before the question


def delete(
    run: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")] = (),
    /,
    *,
    env: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint=NONE)] = None,
    status: Annotated[Status | None, tyro.conf.arg(help_behavior_hint=NONE)] = None,
    algo: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint=NONE)] = None,
    older_than: Annotated[str | None, tyro.conf.arg(metavar="{12h,7d,DATE}", help_behavior_hint=NONE)] = None,
    where: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...", help_behavior_hint=NONE)] = (),
    yes: bool = False,
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
    json: bool = False,
) -> int:
    """Delete runs with all their checkpoints, after a question.

    Name the runs, or choose them by filters; a run must meet all of them. The runs and the space that is freed are
    shown first. A run that is being trained is never deleted.

    Try:
        shoal runs delete 20250101-120000
        shoal runs delete --status failed --older-than 7d
        shoal runs delete --env cartpole --where train.learning_rate=0.1 --yes

    Args:
        run: The runs: folders, ids from 'shoal runs', or last. The id of a group of seeds means all its runs.
        env: Delete only the runs of this env.
        status: Delete only the runs with this status.
        algo: Delete only the runs of this algorithm.
        older_than: Delete only the runs that started before this time, such as 12h, 7d or 2w ago, or before a date.
        where: Delete only the runs with these options. The signs are = != < > <= >=.
        yes: Delete without a question.
        runs: The folder that the runs are in.
        json: Print one line of JSON.
    """
    from shoal.cli.run_rows import Filters, confirm, find_named, select, show_bytes, size_of
    from shoal.cli.screen import console
    from shoal.errors import ConfigError
    from shoal.runs import Run

    filters = Filters(env, status, algo, older_than=older_than, where=where)
    if not run and filters.is_empty:
        raise ConfigError("no runs are named. Name them by their ids, or choose them: --env, --status, --older-than.")
    chosen = select(runs, filters, find_named(run, runs) if run else None)
    busy = [row for row in chosen if Run(row["folder"]).is_running]
    if busy and run:
        raise ConfigError(f"run {busy[0]['id']} is being trained. Stop it first: nothing was deleted.")
    chosen = [row for row in chosen if row not in busy]
    screen = console(stderr=json)
    for row in busy:
        screen.print(f"{row['id']} is being trained: it is kept.", soft_wrap=True)
    if not chosen:
        screen.print(f"No runs to delete in {runs}/.", soft_wrap=True)
        if json:
            print(jsonlib.dumps({"deleted": [], "kept": [str(row["folder"]) for row in busy], "bytes": 0}))
        return 0
    sizes = [size_of(row["folder"]) for row in chosen]
    if not yes:
        _show(screen, chosen, sizes)
    count = f"{len(chosen)} run{'s' * (len(chosen) > 1)}"
    if not confirm(f"Delete {count} and free {show_bytes(sum(sizes))}?", yes):
        screen.print("Nothing was deleted.")
        return 1
    freed = [size for row, size in zip(chosen, sizes) if _remove(row["folder"], screen)]
    _remove_empty_groups(runs)
    gone = [row for row in chosen if not row["folder"].exists()]
    if json:
        kept = [str(row["folder"]) for row in (*busy, *(row for row in chosen if row not in gone))]
        print(jsonlib.dumps({"deleted": [str(row["folder"]) for row in gone], "kept": kept, "bytes": sum(freed)}))
    else:
        count = f"{len(gone)} run{'s' * (len(gone) != 1)}"
        screen.print(f"Deleted {count}: {show_bytes(sum(freed))} are free.", soft_wrap=True)
    return 0 if len(gone) == len(chosen) else 1


def _show(screen: Any, rows: list[dict[str, Any]], sizes: list[int]) -> None:
    """Lists the runs that would be deleted."""
    from rich.table import Table

    from shoal.cli.run_rows import show_bytes
    from shoal.log.base import human, number

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("id", "env", "status", "steps", "score", "size"):
        table.add_column(name, justify="left" if name in ("id", "env", "status") else "right", no_wrap=True)
    for row, size in list(zip(rows, sizes))[:SHOWN]:
        cells = [human(row["step"] or 0), number(row["score"]), show_bytes(size)]
        table.add_row(row["id"], row["env"], row["status"], *cells)
    screen.print(table)
    if len(rows) > SHOWN:
        screen.print(f"and {len(rows) - SHOWN} more")
    screen.print()


def _remove(folder: Path, screen: Any) -> bool:
    """Deletes a run. It holds the run's lock meanwhile, so that no training starts in it.

    The files that say what it is go last: if the deletion is cut short, the rest is listed and can be deleted again.
    """
    from shoal.errors import ConfigError
    from shoal.runs import Run

    if folder.is_symlink():
        screen.print(f"{folder} is a link: it is kept. Delete it yourself.", soft_wrap=True)
        return False
    try:
        with Run(folder).lock():
            for path in sorted(folder.iterdir(), key=lambda path: LAST.index(path.name) if path.name in LAST else -1):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            folder.rmdir()
    except ConfigError as error:  # a training has started meanwhile
        screen.print(str(error), soft_wrap=True)
        return False
    except OSError as error:
        screen.print(f"{folder} cannot be deleted: {error.strerror}.", soft_wrap=True)
        return False
    return True


def _remove_empty_groups(root: Path) -> None:
    """Deletes groups of seeds whose runs are all deleted."""
    from shoal.seed_groups import all_groups

    for group in all_groups(root):
        if group.seeds and not group.runs and not group.is_running:
            shutil.rmtree(group.folder, ignore_errors=True)


COMMAND = Command(delete, order=42, examples={})
