"""`shoal profile`: what the time of a step of Python envs is spent on. shoal/tune.py does the measuring."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import tyro

from shoal.cli.command import Command

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]


def profile(env: Name, /, *, num_envs: int = 64, num_workers: int | None = None, json: bool = False) -> int:
    """Show what the time of a step is spent on: the env, copying, Python, waiting.

    For Python envs in worker processes. A large share of 'env' is good: only a faster env would help. A large share of
    'wait' means that steps are short or uneven: try more envs per worker, or async batches ('shoal tune'). 'shoal bench
    train' does the same for training.

    Try:
        shoal profile gymnasium:CartPole-v1
        shoal profile gymnasium:LunarLander-v3 --num-envs 32 --num-workers 2

    Args:
        env: The env: an id such as gymnasium:CartPole-v1.
        num_envs: The number of envs.
        num_workers: The number of worker processes; by default one per core.
        json: Print one line of JSON instead of the table.
    """
    from rich.table import Table

    from shoal.cli.screen import console
    from shoal.tune import profile as measure_parts

    screen = console(stderr=json)
    with screen.status("measuring"):
        parts = measure_parts(env, num_envs, num_workers=num_workers)
    if json:
        print(jsonlib.dumps({"env": env, "num_envs": num_envs, "parts": [vars(part) for part in parts]}))
        return 0
    table = Table(box=None, header_style="bold")
    for column in ("part", "us per env step", "share", "", "meaning"):
        table.add_column(column, justify="right" if column in ("us per env step", "share") else "left")
    for part in parts:
        table.add_row(part.name, f"{part.us:.2f}", f"{part.share:.0%}", "█" * round(20 * part.share), part.meaning)
    total = sum(part.us for part in parts)
    table.add_row("all", f"{total:.2f}", "100%", "", f"{1e6 / total:,.0f} steps/s")
    screen.print(table)
    largest = max(parts, key=lambda part: part.share)
    hints = {
        "env": "Most of the time is the env itself: only a faster env or more cores would help.",
        "copy": "Copying takes the largest share: smaller observations or fewer Dict entries would help.",
        "python": "The parent's Python takes the largest share: fewer infos or more envs per call would help.",
        "wait": "Waiting takes the largest share: more envs per worker or async batches would help. Try 'shoal tune'.",
    }
    screen.print(f"\n{hints[largest.name]}")
    return 0


COMMAND = Command(profile, order=85)
