"""`shoal check`: its flags. The checks and what is printed are in check.py."""

from __future__ import annotations

from typing import Annotated

import tyro

from shoal.cli.command import Command


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
    from shoal.cli.check import run

    return run(path, quick, json, preset)


COMMAND = Command(check, order=100, examples={"shoal check ./my_env.h": "find mistakes in it"})
