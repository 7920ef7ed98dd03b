"""`shoal tune`: finds the fastest way to step an env on this machine. shoal/tune.py does the measuring."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import tyro

from shoal.cli.command import Command

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]


def tune(env: Name, /, *, num_envs: int = 64, seconds: float = 1.0, repeats: int = 5, json: bool = False) -> int:
    """Find the fastest way to step an env on this machine.

    Measures the serial backend and several numbers of workers (native envs: threads) and batch sizes, in turns.
    Prints the fastest call and the reason.

    Try:
        shoal tune gymnasium:CartPole-v1
        shoal tune pettingzoo:butterfly/pistonball_v6 --num-envs 16
        shoal tune breakout --num-envs 4096

    Args:
        env: The env: a name from 'shoal envs', the path of a header, or an id such as gymnasium:CartPole-v1.
        num_envs: The number of envs.
        seconds: Measuring time of each setting, over all its repeats.
        repeats: Measurements per setting. The settings take turns.
        json: Print one line of JSON instead of the table.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    from shoal.cli.screen import console
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
    for column in ("setting", "steps/s", "min .. max", "of the best"):
        table.add_column(column, justify="left" if column == "setting" else "right")
    for setting in tuning.settings:
        rates = setting.sample.steps_per_s
        share = setting.steps_per_s / tuning.best.steps_per_s
        table.add_row(
            setting.name, f"{setting.steps_per_s:,.0f}", f"{min(rates):,.0f} .. {max(rates):,.0f}", f"{share:.0%}"
        )
    screen.print(table)
    screen.print(f"\n{tuning.why[0].upper()}{tuning.why[1:]}.")
    screen.print("\nThe fastest call:", highlight=False)
    screen.print(f"    {tuning.call}", highlight=False, soft_wrap=True)
    return 0


def _check(seconds: float, repeats: int) -> None:
    from shoal.errors import ConfigError

    if not seconds > 0:
        raise ConfigError(f"--seconds {seconds:g} must be above 0.")
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats} must be at least 1.")


COMMAND = Command(tune, order=80, examples={"shoal tune gymnasium:CartPole-v1": "the fastest way to step a Python env"})
