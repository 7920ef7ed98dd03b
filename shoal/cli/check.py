"""`shoal check`: runs every check of an env header and explains the failures."""

from __future__ import annotations

import json as jsonlib
import time
from typing import TYPE_CHECKING, Annotated

import tyro

from shoal.cli.command import Command

if TYPE_CHECKING:
    from rich.table import Table

    from shoal.conformance import Outcome

MARKS = {
    "passed": ("ok", "green"),
    "warned": ("slow", "yellow"),
    "failed": ("FAIL", "bold red"),
    "skipped": ("skip", "yellow"),
}


def check(
    path: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")],
    /,
    *,
    quick: bool = False,
    json: bool = False,
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: none)")] = None,
) -> int:
    """Check that an env header is correct: it builds, repeats with a seed, stays in its spaces.

    Compiles the header with all warnings, repeats episodes by their seeds, and plays at random within the declared
    spaces. Exits with 1 if any check fails.

    Try:
        shoal check ./my_env.h
        shoal check cartpole --quick

    Args:
        path: The env header to check, or the name of a known env.
        quick: Play fewer steps in each check.
        json: Print the results as JSON.
        preset: Check the env with the values of one of its presets.
    """
    from rich.console import Console
    from rich.markup import escape

    from shoal.conformance import CHECKS, run_checks

    console = Console(highlight=False)
    start = time.perf_counter()
    outcomes: list[Outcome] = []
    checks = run_checks(path, steps=400 if quick else 2000, preset=preset)
    if json:
        outcomes = list(checks)
        print(jsonlib.dumps({"env": path, "checks": [vars(outcome) for outcome in outcomes]}))
        return _code(outcomes)
    with console.status("") as status:
        titles = [(check.__doc__ or "").strip() for check in CHECKS]
        status.update(f"1/{len(titles)} {titles[0]}")
        for outcome in checks:
            outcomes.append(outcome)
            console.print(_line(outcome))
            if len(outcomes) < len(titles):
                status.update(f"{len(outcomes) + 1}/{len(titles)} {titles[len(outcomes)]}")
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    left = len(CHECKS) - len(outcomes)
    seconds = time.perf_counter() - start
    if failed:
        waiting = f" {left} checks were not run: they need the ones that failed." if left else ""
        console.print(f"\n[bold red]{len(failed)} of {len(outcomes)} checks failed[/] in {seconds:.0f} s.{waiting}")
    else:
        console.print(f"\n[bold green]{escape(path)} passes[/] all {len(outcomes)} checks ({seconds:.0f} s).")
        console.print(f"Next: shoal bench env {escape(path)}")
    return _code(outcomes)


def _code(outcomes: list[Outcome]) -> int:
    return int(any(outcome.status == "failed" for outcome in outcomes))


def _line(outcome: Outcome) -> Table:
    from rich.table import Table
    from rich.text import Text

    mark, style = MARKS[outcome.status]
    body = Text(outcome.name)
    if outcome.text:
        is_long = outcome.status in ("failed", "warned")
        body.append(f"\n{outcome.text}" if is_long else f"  {outcome.text}", "default" if is_long else "dim")
    line = Table.grid(padding=(0, 1))
    line.add_column(width=4, justify="right")
    line.add_column()
    line.add_row(Text(mark, style), body)
    return line


COMMAND = Command(check, order=100, examples={"shoal check ./my_env.h": "find mistakes in it"})
