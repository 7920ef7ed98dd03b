"""The screen of several seeds or members: a live table while they train together, and the summary at the end.

Few of them have a row each; of many it shows quantiles. The mean return has its 95 % interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.log.base import duration, human, number
from shoal.stats import ci95, mean

STYLES = {"running": "green", "finished": "", "waiting": "dim", "interrupted": "yellow"}  # others are faults
FRAMES_PER_S = 4
MOST_ROWS = 20  # of more members the table shows quantiles
QUANTILES = {"best": 1.0, "75 %": 0.75, "median": 0.5, "25 %": 0.25, "worst": 0.0}


@dataclass
class SeedRow:
    """The progress of one seed."""

    seed: int
    status: str = "waiting"  # waiting, starting, running, finished, interrupted or failed
    step: int = 0
    total_steps: int = 0
    episode_return: float | None = None
    sps: float | None = None
    wall_s: float = 0.0
    cores: str = ""
    about: str = ""  # the options in which a member of a population differs


class SeedScreen:
    """Shows the progress of all seeds: a live table on a terminal, otherwise a line where a status changes."""

    def __init__(self, style: str, title: str, kind: str = "seed", is_together: bool = False) -> None:
        from rich.console import Console
        from rich.live import Live

        self.kind, self.is_together = kind, is_together  # together: every tenth of the run is a line, too
        self.tenths = 0
        self.console = Console(highlight=False, markup=False)
        self.title, self.is_off = title, style == "off"
        self.statuses: dict[int, str] = {}
        self.rows: Sequence[SeedRow] = ()
        self.notes: list[str] = []
        self.hint = f"Ctrl-C saves checkpoints and stops all {kind}s"
        can_draw = self.console.is_terminal and not self.console.is_dumb_terminal
        self.live: Live | None = None
        if not self.is_off and (style == "dashboard" or (style == "auto" and can_draw)):
            self.live = Live(console=self.console, auto_refresh=False)
            self.live.start()

    def show(self, rows: Sequence[SeedRow]) -> None:
        """Draws the table, or prints the seeds whose status changed."""
        self.rows = rows
        if self.live is not None:
            self.live.update(self._frame(rows), refresh=True)
            return
        for row in rows:
            if self.statuses.get(row.seed, "waiting") != row.status and not self.is_off:
                result = f", {human(row.step)} steps, return {number(row.episode_return)}" if row.step else ""
                where = f" on cores {row.cores}" if row.status == "starting" and row.cores else ""
                self.console.print(f"{self.kind} {row.seed}: {row.status}{where}{result}", soft_wrap=True)
            self.statuses[row.seed] = row.status
        tenths = int(10 * min((_share(row) for row in rows), default=0.0))
        if self.is_together and tenths > self.tenths and not self.is_off:
            self.console.print(f"{tenths * 10} %: {describe_mean(rows, self.kind)}", soft_wrap=True)
            self.tenths = tenths

    def note(self, text: str) -> None:
        """Shows an event: below the table, or as a line."""
        self.notes.append(text)
        if self.live is None and not self.is_off:
            self.console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Leaves the last table on the screen."""
        if self.live is not None:
            self.hint = ""
            self.live.update(self._frame(self.rows), refresh=True)
            self.live.stop()

    def _frame(self, rows: Sequence[SeedRow]) -> Any:
        from rich.console import Group
        from rich.text import Text

        table = _progress_table if len(rows) <= MOST_ROWS else _quantile_table
        parts: list[Any] = [Text(self.title, "bold"), table(rows, self.console.width, self.kind)]
        if line := describe_mean(rows, self.kind):
            parts.append(Text(line))
        parts += [Text(note, "dim") for note in self.notes[-3:] or filter(None, [self.hint])]
        return Group(*parts)


def describe_mean(rows: Sequence[SeedRow], kind: str = "seed") -> str:
    """The mean return with its interval: `return 420 ± 12 (95 % interval over 16 seeds)`."""
    returns = [row.episode_return for row in rows if row.episode_return is not None]
    if len(returns) < 2:
        return ""
    return f"return {number(mean(returns))} ± {number(ci95(returns))} (95 % interval over {len(returns)} {kind}s)"


def _share(row: SeedRow) -> float:
    return min(1.0, row.step / row.total_steps) if row.total_steps else 0.0


def _quantile_table(rows: Sequence[SeedRow], width: int, kind: str) -> Any:
    """How many members are how far, and the quantiles of their returns."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("return", "", kind, "steps", "options"):
        table.add_column(name, justify="left" if name in ("return", "options") else "right", no_wrap=True)
    ranked = sorted((row for row in rows if row.episode_return is not None), key=lambda row: row.episode_return or 0.0)
    for name, share in QUANTILES.items() if ranked else ():
        row = ranked[round(share * (len(ranked) - 1))]
        table.add_row(name, number(row.episode_return), str(row.seed), human(row.step), row.about)
    statuses = [row.status for row in rows]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    done = sum(_share(row) for row in rows) / len(rows)
    table.add_row("all", f"{done:.0%}", str(len(rows)), human(sum(row.step for row in rows)), counts)
    return table


def _progress_table(rows: Sequence[SeedRow], width: int, kind: str = "seed") -> Any:
    """One row for each seed, with a bar if there is room."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    bar = 20 if width >= 90 else 0
    names = [kind, "status", *(["progress"] if bar else []), "", "steps", "return", "steps/s", "time"]
    names += ["options"] if any(row.about for row in rows) else []
    for name in names:
        table.add_column(name, justify="left" if name in ("status", "progress", "options") else "right", no_wrap=True)
    for row in rows:
        share = _share(row)
        filled = round(share * bar)
        table.add_row(
            str(row.seed),
            Text(row.status, STYLES.get(row.status, "bold red" if row.status in ("failed", "killed") else "")),
            *([Text("━" * filled, "cyan") + Text("━" * (bar - filled), "bright_black")] if bar else []),
            f"{share:.0%}",
            human(row.step),
            number(row.episode_return),
            human(row.sps) if row.sps else "-",
            duration(row.wall_s),
            *([row.about] if "options" in names else []),
        )
    return table


def print_summary(facts: Mapping[str, Any], folder: Path) -> None:
    """Prints the result of every seed and the mean over seeds, as seeds.json has them."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = Console(highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    kind = facts.get("called", "seed")
    for name in (kind, "status", "score", "steps", "time", "run"):
        table.add_column(name, justify="left" if name in ("status", "run") else "right", no_wrap=name != "run")
    for row in facts["results"]:
        status = Text(row["status"], STYLES.get(row["status"], "bold red"))
        cells = [number(row["score"]), human(row["step"]), duration(row["wall_s"]), row["run"] or "-"]
        table.add_row(str(row["seed"]), status, *cells)
    out.print()
    out.print(table)
    out.print()
    for row in facts["results"]:
        if row["status"] in ("failed", "killed"):
            reason = row["reason"] or "its process was killed"
            out.print(Text.assemble((f"{kind} {row['seed']} {row['status']}: ", "bold red"), reason), soft_wrap=True)
    out.print(Text(mean_line(facts), "bold"), soft_wrap=True)
    if facts.get("best") is not None:
        values = ", ".join(f"{name} {value:.4g}" for name, value in facts["values"][str(facts["best"])].items())
        out.print(f"Best: {kind} {facts['best']}, {values}", soft_wrap=True)
    if facts.get("score_by"):
        out.print(
            Text(f"The score is the {facts['score_by']}. Summary: {folder / 'seeds.json'}", "dim"), soft_wrap=True
        )
    if facts["n"]:
        out.print(
            Text.assemble("Next: ", (f"shoal plot {folder}", "cyan"), ("   draw the mean", "dim")), soft_wrap=True
        )


def mean_line(facts: Mapping[str, Any]) -> str:
    """`Mean score 487.2 ± 14.1 (95 % interval over 3 seeds), 600k steps in 12s.`"""
    seconds = facts.get("elapsed_s") or facts["wall_s"]
    cost, kind = f"{human(facts['steps'])} steps in {duration(seconds)}", facts.get("called", "seed")
    if facts["mean"] is None:
        return f"No {kind} has finished: {cost}."
    if facts["ci95"] is None:
        return f"Score {number(facts['mean'])} (1 {kind}: no interval), {cost}."
    of_all = "" if facts["n"] == len(facts["results"]) else f" of {len(facts['results'])}"
    interval = f"95 % interval over {facts['n']}{of_all} {kind}s"
    return f"Mean score {number(facts['mean'])} ± {number(facts['ci95'])} ({interval}), {cost}."
