"""`shoal tune` and `shoal profile`: the fastest way to step an env on this machine, and where a step's time goes."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import tyro

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]


def command(env: Name, /, *, num_envs: int = 64, seconds: float = 1.0, repeats: int = 5, json: bool = False) -> int:
    """Find the fastest way to step an env on this machine.

    Measures serial and several numbers of workers (or threads, for native envs) and batch sizes in turns, and prints
    the call to make and why.

    Try:
        shoal tune gymnasium:CartPole-v1
        shoal tune pettingzoo:butterfly/pistonball_v6 --num-envs 16
        shoal tune breakout --num-envs 4096

    Args:
        env: The env: a name that 'shoal envs' lists, a header, or an id such as gymnasium:CartPole-v1.
        num_envs: How many games.
        seconds: Time spent on each setting, all its repeats together.
        repeats: Into how many turns that time is divided.
        json: Print one line of JSON instead of the table.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    from shoal.cli.main import console
    from shoal.tune import autotune

    _check(seconds, repeats)
    screen = console(stderr=json)
    with Progress(TextColumn("measuring"), BarColumn(), TimeRemainingColumn(), console=screen, transient=True) as bar:
        task = bar.add_task("measuring", total=1.0)

        def progress(samples: Any, done: float) -> None:
            bar.update(task, completed=done)

        tuning = autotune(env, num_envs, seconds=seconds, repeats=repeats, progress=progress)
    if json:
        rows = [{**s.options, "steps_per_s": [round(rate) for rate in s.sample.steps_per_s]} for s in tuning.settings]
        print(
            jsonlib.dumps({"env": env, "num_envs": num_envs, "call": tuning.call, "why": tuning.why, "settings": rows})
        )
        return 0
    table = Table(box=None, header_style="bold")
    for column in ("setting", "steps/s", "min .. max", "against the best"):
        table.add_column(column, justify="left" if column == "setting" else "right")
    for setting in tuning.settings:
        rates = setting.sample.steps_per_s
        share = setting.steps_per_s / tuning.best.steps_per_s
        table.add_row(
            setting.name, f"{setting.steps_per_s:,.0f}", f"{min(rates):,.0f} .. {max(rates):,.0f}", f"{share:.0%}"
        )
    screen.print(table)
    screen.print(f"\n{tuning.why[0].upper()}{tuning.why[1:]}.")
    screen.print("\nMake it so:", highlight=False)
    screen.print(f"    {tuning.call}", highlight=False, soft_wrap=True)
    return 0


def profile(env: Name, /, *, num_envs: int = 64, num_workers: int | None = None, json: bool = False) -> int:
    """Show where the time of a step goes: the env, copying, Python, waiting.

    For Python envs stepped in processes. A large share of 'env' is good: nothing but a faster env would help. A large
    'wait' means that steps are short, or uneven: try more envs per worker, or async batches ('shoal tune').

    Try:
        shoal profile gymnasium:CartPole-v1
        shoal profile gymnasium:LunarLander-v3 --num-envs 32 --num-workers 2

    Args:
        env: The env: an id such as gymnasium:CartPole-v1.
        num_envs: How many games.
        num_workers: How many processes; default: one for each core.
        json: Print one line of JSON instead of the table.
    """
    from rich.table import Table

    from shoal.cli.main import console
    from shoal.tune import profile as take_apart

    screen = console(stderr=json)
    with screen.status("measuring"):
        parts = take_apart(env, num_envs, num_workers=num_workers)
    if json:
        print(jsonlib.dumps({"env": env, "num_envs": num_envs, "parts": [vars(part) for part in parts]}))
        return 0
    table = Table(box=None, header_style="bold")
    for column in ("part", "us per env step", "share", "", "what it is"):
        table.add_column(column, justify="right" if column in ("us per env step", "share") else "left")
    for part in parts:
        table.add_row(part.name, f"{part.us:.2f}", f"{part.share:.0%}", "█" * round(20 * part.share), part.meaning)
    total = sum(part.us for part in parts)
    table.add_row("whole", f"{total:.2f}", "100%", "", f"{1e6 / total:,.0f} steps/s")
    screen.print(table)
    largest = max(parts, key=lambda part: part.share)
    hints = {
        "env": "Most of it is the env itself: only a faster env, or more cores, would help.",
        "copy": "Much of it is copying: smaller observations or fewer parts (Dict entries) would help.",
        "python": "Much of it is the parent's Python: fewer infos per step, or more envs per call, would help.",
        "wait": "Much of it is waiting: more envs per worker, or async batches, would help. Try 'shoal tune'.",
    }
    screen.print(f"\n{hints[largest.name]}")
    return 0


def _check(seconds: float, repeats: int) -> None:
    from shoal.errors import ConfigError

    if not seconds > 0:
        raise ConfigError(f"--seconds {seconds:g} must be above 0.")
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats} must be at least 1.")
