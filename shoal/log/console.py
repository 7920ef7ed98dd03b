"""The display of a run: a dashboard on a terminal, plain lines in files and pipes.

The dashboard is drawn between intervals by the run's thread. It limits itself: all drawing takes less than 1 % of the
run's time. frame.py makes its lines, history.py keeps the records.
"""

from __future__ import annotations

import atexit
import math
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError, did_you_mean
from shoal.log import base
from shoal.log.base import Logger, Record, RunFacts, beside, duration, exact_count, human, number, printable, short
from shoal.log.frame import frame, head
from shoal.log.history import MOST_AGENTS, PHASES, History

STYLES = ("auto", "dashboard", "lines", "off")
SHARE = 0.01  # the share of the run's time that drawing may take
FASTEST_S = 0.25  # least time between two frames
WIDEST = 160  # columns; the rest of a wider terminal stays empty
MOST_ON_A_LINE = 4  # agents and groups
DEFAULT_ROOT = Path("runs")  # runs outside it are named by their folder


def check_style(style: str) -> None:
    """Raises for an unknown style."""
    if style not in STYLES:
        raise ConfigError(f"console style '{style}'.{did_you_mean(style, STYLES)} Choices: {', '.join(STYLES)}.")


def open(facts: RunFacts, *, style: str = "auto", interval_s: float = 2.0) -> Logger:
    """The dashboard on a terminal that can show it; otherwise at most one line every `interval_s`."""
    check_style(style)
    out = _console()
    can_draw = out.is_terminal and not out.is_dumb_terminal and not out.legacy_windows and "utf" in out.encoding.lower()
    if style == "dashboard" or (style == "auto" and can_draw):
        return Dashboard(facts, out)
    return Lines(facts, out, interval_s)


class Frame:
    """The frame for rich's Live, at the current size of the terminal."""

    def __init__(self, history: History) -> None:
        from rich.style import Style

        self.history, self.done = history, False
        names = {
            "": "",
            "dim": "dim",
            "strong": "bold",
            "title": "bold dim",
            "name": "bold cyan",
            "edge": "bright_black",
            "bar": "cyan",
            "bad": "bold red",
            "hint": "yellow",
        }
        names |= PHASES | {colour: colour for colour in ("green", "blue")}
        self.styles = {name: Style.parse(text) for name, text in names.items()}

    def __rich_console__(self, console: Any, options: Any) -> Iterable[Any]:
        from rich.segment import Segment

        width = max(24, options.max_width - 1)
        height = options.size.height - 1
        for line in frame(self.history, min(width, WIDEST), height, self.done):
            for text, style in line:
                yield Segment(text, self.styles[style])
            yield Segment.line()


class Dashboard(Logger):
    """The screen, drawn after an interval when its budget allows."""

    def __init__(self, facts: RunFacts, out: Any) -> None:
        from rich.live import Live

        self.out, self.history = out, History(facts)
        self.frame = Frame(self.history)
        self.live = Live(self.frame, console=out, auto_refresh=False, vertical_overflow="crop")
        self.live.start(refresh=True)
        atexit.register(self.live.stop)  # restores the cursor even if close() is not called
        self.began = self.drawn = base.now()
        self.spent = self.cost = 0.0  # total time spent on drawing; time per frame
        self.width = out.width

    def log(self, record: Record) -> None:
        """Adds a record, and draws when the budget allows."""
        began = base.now()
        self.history.add(record)
        if began - self.drawn >= FASTEST_S and self.spent + self.cost <= SHARE * (began - self.began):
            self._draw()
            self.drawn = base.now()
            took = self.drawn - began
            self.cost = 0.8 * self.cost + 0.2 * took if self.cost else took
        self.spent += base.now() - began

    def note(self, text: str) -> None:
        """Shows an event with the next frame."""
        self.history.notes.append(text)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Leaves the last frame on the screen and prints the result and the next commands below it."""
        self.frame.done = True
        self._draw()
        self.live.stop()
        atexit.unregister(self.live.stop)
        print_summary(self.out, self.history, summary)

    def _draw(self) -> None:
        if self.out.width < self.width:  # the old frame is wrapped: moving the cursor up would not reach its start
            self.out.clear()
        self.width = self.out.width
        self.live.refresh()


class Lines(Logger):
    """A line per interval, for files and pipes, with the name of every number."""

    def __init__(self, facts: RunFacts, out: Any, interval_s: float = 2.0) -> None:
        self.history, self.out, self.interval_s = History(facts), out, interval_s
        self.next, self.is_new = -math.inf, False
        self._print(f"{facts.env}, {facts.algo}, {human(facts.total_steps)} steps, {facts.folder}")
        self._print("".join(text for text, _ in head(facts, 0)[0]).replace(" · ", ", "))

    def log(self, record: Record) -> None:
        """Prints a line when the last one is old enough."""
        self.history.add(record)
        self.is_new |= "eval/return" not in record  # a note tells the result of an evaluation
        if self.is_new and base.now() >= self.next:
            self._line()

    def note(self, text: str) -> None:
        """Prints an event on a separate line."""
        self._print(text)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Prints the last record, then the result."""
        if self.is_new:
            self._line()
        print_summary(self.out, self.history, summary)

    def _line(self) -> None:
        self.next, self.is_new = base.now() + self.interval_s, False
        history, latest = self.history, self.history.latest
        total = history.facts.total_steps
        parts = [
            f"{human(history.step):>6} {min(1.0, history.step / total) if total else 0:4.0%}",
            f"{human(history.sps):>6}/s",
            f"return {number(latest.get('episode/return')):>8}",
            f"length {number(latest.get('episode/length')):>7}",
        ]
        parts += [f"phase {phase}"] if (phase := history.phase()) else []
        parts += [f"{row.name} {number(row.mean):>8}" for row in history.agents(MOST_ON_A_LINE)]
        if "league/rating" in latest:
            parts.append(f"rating {latest['league/rating']:+5.0f}")
        parts += [f"{row.short} {number(latest[row.name]):>7}" for row in history.learning() if row.short]
        parts.append(f"left {duration(history.left_s)}")
        self._print("  ".join(parts))

    def _print(self, text: str) -> None:
        print(printable(text, self.out.encoding), file=self.out.file, flush=True)


def print_summary(out: Any, history: History, summary: Mapping[str, Any] | None) -> None:
    """Prints the result and the next commands."""
    from rich.text import Text

    if summary is None:
        return
    facts, status = history.facts, str(summary.get("status", "finished"))
    step, wall = summary.get("step", history.step), summary.get("wall_s", history.latest.get("wall_s", math.nan))
    style = {"finished": "bold green", "failed": "bold red"}.get(status, "bold yellow")
    goal = "" if step >= facts.total_steps else f" of {human(facts.total_steps)}"
    text = Text.assemble((status.capitalize(), style), f": {human(step)}{goal} steps in {duration(wall)}")
    text.append(f", {human(step / wall)} steps/s." if step and wall > 0 else ".")  # without evaluations, as the time
    if summary.get("reason"):
        text.append(printable(f" {summary['reason']}", out.encoding))
    out.print(text, soft_wrap=True)
    if result := summary.get("eval"):
        _print_evaluation(out, result)
    elif math.isfinite(history.best):
        last = short(history.latest["episode/return"])
        out.print(f"Return {last} in the last interval, {short(history.best)} in the best.", soft_wrap=True)
    if best := summary.get("best"):
        by = f", by its {summary['selected_by']}" if summary.get("selected_by") else ""
        out.print(f"Best checkpoint: step {best['step']:,}, return {short(best['score'])}{by}.", soft_wrap=True)
    _print_diagnosis(out, summary.get("diagnosis") or ())
    has_checkpoint = any((facts.folder / "checkpoints").glob("*/meta.json")) or not facts.folder.is_dir()
    _print_hints(out, facts, status, int(step), has_checkpoint)


def _print_evaluation(out: Any, result: Mapping[str, Any]) -> None:
    """Prints the final evaluation: a line for each mode (`evaluate.Evaluation.facts`)."""
    from rich.text import Text

    modes = {mode: score for mode, score in (result.get("modes") or {}).items() if isinstance(score, Mapping)}
    for mode, score in (modes or {"": result}).items():
        interval = score.get("ci95")
        line = Text.assemble("Return ", (_rounded(score["return"], interval), "bold"))
        if interval is not None:
            line.append(printable(f" ± {_rounded(interval, interval)} (95 % confidence)", out.encoding))
        line.append(f" over {score.get('episodes', 0):,} evaluation episodes")
        if "min" in score and "max" in score:
            line.append(f", {short(score['min'])} .. {short(score['max'])}")
        out.print(line.append({"greedy": ", greedy.", "sampled": ", sampled actions."}.get(mode, ".")), soft_wrap=True)
    parts = result.get("groups") or result.get("agents") or {}
    if parts:
        shown = ", ".join(f"{name} {short(score['return'])}" for name, score in list(parts.items())[:MOST_AGENTS])
        more = f", and {len(parts) - MOST_AGENTS} more" if len(parts) > MOST_AGENTS else ""
        kind = "group" if result.get("groups") else "agent"
        which = f" ({result['mode']})" if result.get("mode") else ""
        out.print(printable(f"Return by {kind}{which}: {shown}{more}.", out.encoding), soft_wrap=True)


def _rounded(value: float, interval: float | None) -> str:
    """A mean, or its interval, to two digits of the interval."""
    return short(round(value, max(1 - math.floor(math.log10(interval)), 1)) if interval else value)


def _print_diagnosis(out: Any, findings: Iterable[Mapping[str, str]]) -> None:
    """Prints why the run did not learn (`train.diagnosis.facts`)."""
    from rich.text import Text

    for k, finding in enumerate(findings):
        line = Text.assemble("           " if k else ("Diagnosis: ", "bold yellow"), finding["fact"], ". ")
        out.print(line.append(finding["advice"], "dim"), soft_wrap=True)


def _print_hints(out: Any, facts: RunFacts, status: str, step: int, has_checkpoint: bool) -> None:
    from rich.text import Text

    run = run_argument(facts)
    resume = f"shoal train {facts.env_argument or facts.env} --resume {run}"
    if facts.lost or facts.lost_to_resume:
        _print_what_is_lost(out, facts, has_checkpoint)
        return
    hints = {f"shoal eval {run}": "score it, with a video"} if has_checkpoint else {}
    if has_checkpoint:
        hints[f"shoal watch {run}"] = "see it play in the browser"
    if step:
        hints[f"shoal plot {run}"] = "draw the learning curve"
    if status == "finished" and has_checkpoint:
        hints[f"{resume} --train.total-steps {exact_count(2 * max(step, facts.total_steps))}"] = "train longer"
    elif has_checkpoint:
        hints = {resume: "continue from the last checkpoint", **hints}
    if not hints:
        return
    for k, (command, what) in enumerate(beside(hints, out.width)):
        line = Text.assemble("      " if k else "Next: ", (command, "cyan"))
        out.print(line.append(what, "dim"), soft_wrap=True)


def _print_what_is_lost(out: Any, facts: RunFacts, has_checkpoint: bool) -> None:
    """Prints what can be done with a run that no command can load: its env, policy or reward has no name."""
    from rich.text import Text

    verbs = ["plot"] if facts.lost or not has_checkpoint else ["eval", "plot"]
    for k, verb in enumerate(verbs):
        line = Text.assemble("      " if k else "Next: ", (f"shoal {verb} {run_argument(facts)}", "cyan"))
        out.print(line, soft_wrap=True)
    if has_checkpoint:
        call = f"train(..., resume={str(facts.folder)!r})"
        out.print(Text.assemble("      in Python, with the same arguments: ", (call, "cyan")), soft_wrap=True)
    for reason in facts.lost:
        out.print(Text(f"'shoal eval' and '--resume' cannot load it: {reason}.", "dim"), soft_wrap=True)
    for reason in facts.lost_to_resume:
        out.print(Text(f"'--resume' cannot continue it: {reason}.", "dim"), soft_wrap=True)


def run_argument(facts: RunFacts) -> str:
    """The run's name on a command line: its id if it is in the default folder, otherwise its folder."""
    is_default = facts.folder.parent.parent.resolve() == DEFAULT_ROOT.resolve()
    return facts.id if is_default else shlex.quote(str(facts.folder))


# ---- a picture ----


def screenshot(
    path: Path,
    facts: RunFacts,
    records: Iterable[Record],
    notes: Sequence[str] = (),
    *,
    width: int = 110,
    height: int = 30,
    done: bool = False,
) -> None:
    """Writes the dashboard after these records to an SVG file, without links to other files."""
    import io

    from rich.console import Console

    history = History(facts)
    for record in records:
        history.add(record)
    history.notes.extend(notes)
    out = Console(
        file=io.StringIO(), record=True, width=width, height=height, force_terminal=True, legacy_windows=False
    )
    picture = Frame(history)
    picture.done = done
    out.print(picture, end="")
    svg = out.export_svg(title=f"shoal train {facts.env}")
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))  # no fonts from the internet


def _console() -> Any:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
