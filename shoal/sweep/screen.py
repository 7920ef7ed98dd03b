"""The screen of a sweep: a live dashboard on a terminal, otherwise a line for each trial; and the results."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.log.base import duration, human, number
from shoal.sweep import report
from shoal.sweep.options import SweepOptions
from shoal.sweep.store import Sweep, Trial

SHOWN = 5  # trials in the table of the best
FRONT_ROWS, FRONT_COLUMNS = 8, 44  # of the picture of the Pareto front
STYLES = {"finished": "", "failed": "red", "running": "green"}


class SweepScreen:
    """Shows trials, the best ones, the Pareto front and the time left."""

    def __init__(self, style: str, sweep: Sweep, options: SweepOptions) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(highlight=False, markup=False)
        self.sweep, self.options, self.is_off = sweep, options, style == "off"
        self.said: set[int] = set()
        self.finals_said = 0
        self.notes: list[str] = []
        self.state: Any = None
        self.is_started = False
        can_draw = self.console.is_terminal and not self.console.is_dumb_terminal
        self.live: Live | None = None
        if not self.is_off and (style == "dashboard" or (style == "auto" and can_draw)):
            self.live = Live(console=self.console, auto_refresh=False)
            self.live.start()

    def note(self, text: str) -> None:
        """Shows an event."""
        self.notes.append(text)
        if self.live is None and not self.is_off:
            self.console.print(text, soft_wrap=True)

    def show(self, state: Any) -> None:
        """Draws the dashboard, or prints the trials that have ended since."""
        self.state = state
        if self.live is not None:
            self.live.update(self._frame(state), refresh=True)
        elif not self.is_off:
            self._print_lines(state)

    def close(self) -> None:
        """Leaves the last frame on the screen."""
        if self.live is not None:
            if self.state is not None:
                self.live.update(self._frame(self.state), refresh=True)
            self.live.stop()

    # ---- lines ----

    def _print_lines(self, state: Any) -> None:
        if not self.is_started:
            self.is_started = True
            self.said = {trial.number for trial in state.trials if trial.is_done}
            self.console.print(self._title(state), soft_wrap=True)
            if self.said:
                self.console.print(f"continues after {len(self.said)} trials", soft_wrap=True)
        for trial in state.trials:
            if trial.is_done and trial.number not in self.said:
                self.said.add(trial.number)
                best = report.ranked(state.trials)
                top = f"   best {number(best[0].score)} (trial {best[0].number})" if best else ""
                self.console.print(f"{trial_line(trial)}{top}", soft_wrap=True)
        for row in state.finals[self.finals_said :]:
            score = number(row["score"]) if row["status"] == "finished" else "failed"
            self.console.print(f"final: trial {row['trial']}, seed {row['seed']}: score {score}", soft_wrap=True)
        self.finals_said = max(self.finals_said, len(state.finals))

    def _title(self, state: Any) -> str:
        identity = self.sweep.identity
        return (
            f"sweep of {identity['env']}: {state.target} trials, {len(self.sweep.space)} options, sampler "
            f"{identity['sampler']}, {state.workers} at a time; {self.sweep.folder}"
        )

    # ---- the dashboard ----

    def _frame(self, state: Any) -> Any:
        from rich.console import Group
        from rich.text import Text

        done = sum(trial.is_done for trial in state.trials)
        failed = sum(trial.status == "failed" for trial in state.trials)
        stopped = sum(trial.is_stopped for trial in state.trials)
        parts: list[Any] = [Text(self._title(state), "bold"), Text("")]
        share = done / max(state.target, 1)
        width = max(10, min(40, self.console.width - 60))
        filled = round(min(share, 1.0) * width)
        left = state.seconds_left
        line = Text.assemble(("━" * filled, "cyan"), ("━" * (width - filled), "bright_black"))
        line.append(f"  {done} of {state.target} trials")
        line.append(f", {stopped} stopped early" if stopped else "", "dim")
        line.append(f", {failed} failed" if failed else "", "red")
        line.append(f"   {duration(state.elapsed_s)} elapsed", "dim")
        line.append(f", about {duration(left)} left" if left is not None else "", "dim")
        parts += [line, Text("")]
        if done >= state.target and state.finals:
            parts += [Text(f"finals: {len(state.finals)} of {state.finals_wanted} runs on fresh seeds"), Text("")]
        if state.running:
            parts += [self._running(state.running), Text("")]
        order = report.ranked(state.trials)
        if order:
            parts += [Text("Best", "bold"), _trial_table(order[:SHOWN], list(self.sweep.space), self.console.width)]
            front = report.pareto(state.trials)
            parts += [Text(""), Text(f"Score over seconds: {len(front)} trials on the Pareto front", "bold")]
            parts += [Text("\n".join(draw_front(order, front)))]
        parts += [Text(note, "dim") for note in self.notes[-3:]]
        if not self.notes:
            parts.append(Text("Ctrl-C saves checkpoints and stops; the same command continues", "dim"))
        return Group(*parts)

    def _running(self, running: Mapping[str, Mapping[str, Any]]) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for name in ("running", "", "return", "steps/s", "time"):
            table.add_column(name, justify="left" if name == "running" else "right", no_wrap=True)
        for name, row in running.items():
            if row.get("elsewhere"):
                table.add_row(name, Text("elsewhere", "dim"), "", "", "")
                continue
            share = min(1.0, row.get("step", 0) / max(row.get("total", 1), 1))
            filled = round(share * 20)
            bar = Text.assemble(("━" * filled, "green"), ("━" * (20 - filled), "bright_black"), f" {share:4.0%}")
            rate = human(row["sps"]) if row.get("sps") else "-"
            table.add_row(name, bar, number(row.get("return")), rate, duration(row.get("wall_s", 0.0)))
        return table


def trial_line(trial: Trial) -> str:
    """`trial 7: score 487.2, 200k steps in 3s; learning_rate 0.003, gamma 0.99`."""
    if trial.status == "failed":
        return f"trial {trial.number}: failed: {trial.reason}"
    note = ", stopped early" if trial.is_stopped else ""
    if trial.number == 0:
        note += ", the options as given"
    values = ", ".join(f"{name.rpartition('.')[2]} {show(value)}" for name, value in trial.actual.items())
    cost = f"{human(trial.steps)} steps in {duration(trial.seconds or 0.0)}"
    return f"trial {trial.number}: score {number(trial.score)}, {cost}{note}; {values}"


def show(value: Any) -> str:
    """A value in few digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _trial_table(trials: Sequence[Trial], names: Sequence[str], width: int) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    fits = max(1, (width - 30) // 15)
    columns = names[:fits]
    for name in ("trial", "score", "time", *(name.rpartition(".")[2] for name in columns)):
        table.add_column(name, justify="right", no_wrap=True)
    for trial in trials:
        values = [show(trial.actual.get(name, "-")) for name in columns]
        table.add_row(str(trial.number), number(trial.score), duration(trial.seconds or 0.0), *values)
    return table


def draw_front(trials: Sequence[Trial], front: Sequence[Trial]) -> list[str]:
    """A picture in characters: seconds to the right, score upwards, `●` on the Pareto front."""
    seconds = [trial.seconds or 0.0 for trial in trials]
    scores = [trial.score or 0.0 for trial in trials]
    low_x, high_x, low_y, high_y = min(seconds), max(seconds), min(scores), max(scores)
    grid = [[" "] * FRONT_COLUMNS for _ in range(FRONT_ROWS)]
    on_front = {trial.number for trial in front}
    for trial in sorted(trials, key=lambda trial: trial.number in on_front):  # those of the front on top
        x = ((trial.seconds or 0.0) - low_x) / max(high_x - low_x, 1e-9)
        y = ((trial.score or 0.0) - low_y) / max(high_y - low_y, 1e-9)
        column, row = round(x * (FRONT_COLUMNS - 1)), FRONT_ROWS - 1 - round(y * (FRONT_ROWS - 1))
        grid[row][column] = "●" if trial.number in on_front else "·"
    labels = [number(high_y), *[""] * (FRONT_ROWS - 2), number(low_y)]
    lines = [f"{label:>8} │{''.join(row)}" for label, row in zip(labels, grid)]
    scale = f"{'':>8} └{'─' * FRONT_COLUMNS}"
    ends = f"{duration(low_x):<{FRONT_COLUMNS // 2}}{duration(high_x):>{FRONT_COLUMNS - FRONT_COLUMNS // 2}}"
    return [*lines, scale, f"{'':>10}{ends}"]


def print_results(sweep: Sweep) -> None:
    """Prints the finals with intervals, the best values and what to do next."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    results = sweep.results
    if results is None:
        return
    out = Console(highlight=False, markup=False)
    trials = {trial.number: trial for trial in sweep.trials()}
    out.print()
    if results["finals"]:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for name in ("trial", "mean score", "95 % interval", "seeds", "time", "score in the sweep"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in results["finals"]:
            interval = f"± {number(row['ci95'])}" if row["ci95"] is not None else "-"
            cells = [number(row["mean"]), interval, str(len(row["scores"])), duration(row["seconds"] or 0.0)]
            table.add_row(str(row["trial"]), *cells, number(trials[row["trial"]].score))
        out.print(Text("The best trials on fresh seeds", "bold"))
        out.print(table)
        for row in results["finals"]:
            for reason in row["failed"]:
                out.print(Text(f"trial {row['trial']} failed: {reason}", "red"), soft_wrap=True)
        out.print()
    if results["best"] is None:
        out.print(Text("No trial has a score.", "bold red"))
        return
    given = number(results["given"]) if results["given"] is not None else "failed"
    counts = f"{results['finished']} trials finished ({results['stopped']} stopped early), {results['failed']} failed"
    cost = f"{human(results['steps'])} steps, {duration(results['seconds'])} of training"
    out.print(f"{counts}: {cost}. The options as given (trial 0): score {given}.", soft_wrap=True)
    out.print(Text(f"Best: trial {results['best']}", "bold"))
    for name, value in results["values"].items():
        out.print(f"  {name} = {show(value)}")
    env, best, folder = (
        shlex.quote(str(part)) for part in (sweep.identity["env"], sweep.folder / "best.toml", sweep.folder)
    )
    commands = {
        f"shoal train {env} --config {best}": "train with the best options",
        f"shoal plot {folder}": "front, importance, slices as a page",
    }
    for k, (line, what) in enumerate(commands.items()):
        head = "Next: " if k == 0 else "      "
        out.print(Text.assemble(head, (line, "cyan"), (f"   {what}", "dim")), soft_wrap=True)
