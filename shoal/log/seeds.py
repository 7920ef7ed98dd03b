"""The screen of several seeds: a live table while they train side by side, and the summary at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.log.base import duration, human, number

STYLES = {"running": "green", "finished": "", "waiting": "dim", "interrupted": "yellow"}  # others are faults
FRAMES_PER_S = 4


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


class SeedScreen:
    """Shows the progress of all seeds: a live table on a terminal, otherwise a line where a status changes."""

    def __init__(self, style: str, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(highlight=False, markup=False)
        self.title, self.is_off = title, style == "off"
        self.statuses: dict[int, str] = {}
        self.rows: Sequence[SeedRow] = ()
        self.notes: list[str] = []
        self.hint = "Ctrl-C saves checkpoints and stops all seeds"
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
                self.console.print(f"seed {row.seed}: {row.status}{where}{result}", soft_wrap=True)
            self.statuses[row.seed] = row.status

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

        parts: list[Any] = [Text(self.title, "bold"), _progress_table(rows, self.console.width)]
        parts += [Text(note, "dim") for note in self.notes[-3:] or filter(None, [self.hint])]
        return Group(*parts)


def _progress_table(rows: Sequence[SeedRow], width: int) -> Any:
    """One row for each seed, with a bar if there is room."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    bar = 20 if width >= 90 else 0
    for name in ("seed", "status", *(["progress"] if bar else []), "", "steps", "return", "steps/s", "time"):
        table.add_column(name, justify="left" if name in ("status", "progress") else "right", no_wrap=True)
    for row in rows:
        share = min(1.0, row.step / row.total_steps) if row.total_steps else 0.0
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
        )
    return table


def print_summary(facts: Mapping[str, Any], folder: Path) -> None:
    """Prints the result of every seed and the mean over seeds, as seeds.json has them."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = Console(highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("seed", "status", "score", "steps", "time", "run"):
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
            out.print(Text.assemble((f"seed {row['seed']} {row['status']}: ", "bold red"), reason), soft_wrap=True)
    out.print(Text(mean_line(facts), "bold"), soft_wrap=True)
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
    cost = f"{human(facts['steps'])} steps in {duration(seconds)}"
    if facts["mean"] is None:
        return f"No seed has finished: {cost}."
    if facts["ci95"] is None:
        return f"Score {number(facts['mean'])} (1 seed: no interval), {cost}."
    of_all = "" if facts["n"] == len(facts["results"]) else f" of {len(facts['results'])}"
    interval = f"95 % interval over {facts['n']}{of_all} seeds"
    return f"Mean score {number(facts['mean'])} ± {number(facts['ci95'])} ({interval}), {cost}."
