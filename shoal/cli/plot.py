"""`shoal plot`: learning curves of runs as a picture and as a web page. shoal/plot.py draws them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from shoal.cli.command import Command


def plot(
    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")] = ("last",),
    /,
    *,
    y: Annotated[str, tyro.conf.arg(metavar="KEY")] = "episode/return",
    x: Literal["step", "wall_s"] = "step",
    smooth: float = 1.0,
    band: Literal["range", "ci95"] = "range",
    out: Annotated[
        tuple[Path, ...],
        tyro.conf.arg(metavar="FILE [FILE ...]", help_behavior_hint="(default: curves.png and curves.html)"),
    ] = (),
) -> int:
    """Draw the learning curves of runs, with the spread over their seeds.

    Runs that differ only in their seed become one line: their mean, with a band around it. Writes a picture and a web
    page, which shows values on hovering and with the arrow keys. Of a sweep it writes a page of its own: the Pareto
    front, the importance of the options, slices and parallel coordinates.

    Try:
        shoal plot last
        shoal plot runs/cartpole
        shoal plot cartpole breakout --x wall_s
        shoal plot runs/cartpole --y entropy --smooth 5 --out entropy.png
        shoal plot runs/cartpole/sweep-20261116-193741

    Args:
        runs: The runs: folders, ids from 'shoal runs', the name of an env (its newest run), a folder of runs, a
            group of seeds, a sweep, or last.
        y: The metric to draw: a key of metrics.jsonl. A * stands for any name: 'episode/return/*' is one line for each
            agent and group.
        x: The x axis: steps, or seconds of training.
        smooth: The window of the moving average, in percent of the x axis; 0 draws the logged values.
        band: The band over several seeds: from minimum to maximum, or the 95 % confidence interval of the mean.
        out: The files to write, .png or .html; default: both, in the run's folder or, for several runs, in this folder.
            A PNG needs matplotlib (pip install 'shoal[plot]'); without it the default is the page alone.
    """
    from shoal import plot
    from shoal.cli.screen import console, suggest
    from shoal.errors import ConfigError

    if not 0 <= smooth <= 100:
        raise ConfigError(f"--smooth {smooth:g} must be in 0 .. 100: it is a percentage of the x axis.")
    for path in out:
        if path.suffix not in (".png", ".html"):
            raise ConfigError(f"--out {path} must end in .png or .html.")
        if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise ConfigError(
                f"--out {path} cannot be written. Choose a file in an existing folder that you may write to."
            )
    if (sweep := find_sweep(runs)) is not None:
        return plot_sweep(sweep, out)
    chosen = find(runs)
    folder = chosen[0].folder if len(chosen) == 1 else Path()
    kinds = ("png", "html") if plot.has_matplotlib() else ("html",)
    paths = out or tuple(folder / f"curves.{kind}" for kind in kinds)
    if any(path.suffix == ".png" for path in paths):
        plot.check_matplotlib()  # before anything is written
    figure = plot.figure(chosen, y, x, smooth, band)
    screen = console()
    for path in paths:
        (plot.write_png if path.suffix == ".png" else plot.write_html)(figure, path)
        screen.print(f"wrote {path}", soft_wrap=True)
    lines, many = len(figure.curves), len(chosen)
    joined = f" in {lines} line{'s' * (lines > 1)}" if many > 1 or lines > 1 else ""
    screen.print(f"{figure.title}: {figure.y_label} of {many} run{'s' * (many > 1)}{joined}.", soft_wrap=True)
    if not out and len(paths) == 1:
        screen.print(f"A PNG beside it needs matplotlib: {plot.INSTALL}", soft_wrap=True)
    if many == 1 and len(list(chosen[0].folder.parent.glob("*/run.json"))) > 1:
        hint = "all runs of this env, the seeds as one line with a band"
        suggest(screen, {f"shoal plot {chosen[0].folder.parent}": hint})
    return 0


def find_sweep(names: Sequence[str]) -> Any:
    """The sweep that the names mean; None: they mean runs."""
    if not any("sweep" in name or (Path(name) / "sweep.json").is_file() for name in names):
        return None
    from shoal.errors import ConfigError
    from shoal.sweep.needs import check_optuna

    check_optuna()
    from shoal.sweep import store

    found = [store.find(name) for name in names]
    if found.count(None) == len(found):
        return None
    if len(found) > 1:
        raise ConfigError("one sweep at a time: its page has its own charts. Name one sweep, or runs only.")
    return found[0]


def plot_sweep(sweep: Any, out: Sequence[Path]) -> int:
    """Writes the page of a sweep."""
    from shoal.cli.screen import console
    from shoal.errors import ConfigError
    from shoal.sweep import page

    for path in out:
        if path.suffix != ".html":
            raise ConfigError(f"--out {path}: the page of a sweep is an .html file.")
    screen = console()
    for path in out or (sweep.folder / "sweep.html",):
        shown = page.write_html(sweep, path)
        screen.print(f"wrote {path}", soft_wrap=True)
    screen.print(f"{shown['title']}: {shown['note']}", soft_wrap=True)
    return 0


def find(names: Sequence[str]) -> list[Any]:
    """The runs with these names; a folder of runs and a group of seeds mean all of their runs."""
    from shoal import runs
    from shoal.seed_groups import find_group

    chosen: list[Any] = []
    for name in names or ("last",):
        inside = sorted(Path(name).glob("*/run.json")) + sorted(Path(name).glob("*/*/run.json"))
        if inside and not (Path(name) / "run.json").is_file():
            chosen += [runs.Run(path.parent) for path in inside]
        elif (group := find_group(name)) is not None:
            chosen += group.runs.values()
        else:
            chosen.append(runs.find(name))
    return list({run.folder.resolve(): run for run in chosen}.values())


COMMAND = Command(plot, order=30, examples={"shoal plot last": "draw its learning curve"})
