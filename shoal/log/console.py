"""What a person sees while a run goes on: a dashboard on a terminal, plain lines elsewhere.

The dashboard is drawn between intervals by the run's own thread, and it keeps its own budget: all its drawing together
stays under 1 % of the run's time. A frame is made of segments by hand, which is ten times cheaper than rich's tables.
"""

from __future__ import annotations

import atexit
import itertools
import math
import re
import sys
import textwrap
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError, did_you_mean
from shoal.log import base
from shoal.log.base import Logger, Record, RunFacts, duration, human, number, short

STYLES = ("auto", "dashboard", "lines", "off")
SHARE = 0.01  # of the run's time that drawing may take
FASTEST_S = 0.25  # between two frames
RECENT_S = 10.0  # what "now" means: speed and time split are taken over this long
WIDEST = 160  # columns; on a wider terminal the rest stays free
POINTS = 512  # a curve on the screen has at most this many

PHASES = {"env": "green", "inference": "cyan", "copy": "yellow", "learn": "magenta", "other": "bright_black"}
LEARNING = {
    "loss/policy": "policy loss",
    "loss/value": "value loss",
    "entropy": "entropy",
    "kl": "KL",
    "clip_fraction": "clip fraction",
    "explained_variance": "explained var",
    "loss/q": "Q loss",
    "q_played": "Q",
    "epsilon": "epsilon",
    "replay_fill": "replay fill",
    "grad_norm": "grad norm",
    "learning_rate": "learning rate",
}
# of them, on a plain line
LINES = {
    "entropy": "entropy",
    "kl": "kl",
    "loss/value": "value loss",
    "loss/q": "loss",
    "q_played": "Q",
    "epsilon": "eps",
}

Span = tuple[str, str]  # text and its style
Line = list[Span]


def check_style(style: str) -> None:
    """Raises for a style that is not there."""
    if style not in STYLES:
        raise ConfigError(f"console style '{style}'.{did_you_mean(style, STYLES)} It is one of {', '.join(STYLES)}.")


def open(facts: RunFacts, *, style: str = "auto", interval_s: float = 2.0) -> Logger:
    """The dashboard on a terminal that can show it; otherwise a line every `interval_s` at most."""
    check_style(style)
    out = _console()
    able = out.is_terminal and not out.is_dumb_terminal and not out.legacy_windows and "utf" in out.encoding.lower()
    if style == "dashboard" or (style == "auto" and able):
        return Dashboard(facts, out)
    return Lines(facts, out, interval_s)


# ---- what the screen knows ----


class Series:
    """A curve of at most POINTS values: when it is full, neighbours are averaged."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.per_point, self.sum, self.count = 1, 0.0, 0

    def add(self, value: float) -> None:
        """One more value; what is no number leaves no trace in the curve."""
        if not math.isfinite(value):
            return
        self.sum, self.count = self.sum + value, self.count + 1
        if self.count == self.per_point:
            self.values.append(self.sum / self.count)
            self.sum, self.count = 0.0, 0
        if len(self.values) == POINTS:
            self.values = [(a + b) / 2 for a, b in zip(self.values[::2], self.values[1::2])]
            self.per_point *= 2


class History:
    """The records so far, in as little as the screen needs."""

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        self.latest: dict[str, float] = {"step": facts.resumed_from}
        self.returns, self.speeds = Series(), Series()
        self.notes: deque[str] = deque(maxlen=5)
        self.intervals: deque[tuple[float, float, list[float]]] = deque()  # step, wall_s and phases of the recent ones
        self.recent, self.whole = [0.0] * len(PHASES), [0.0] * len(PHASES)
        self.best = -math.inf
        self.began: tuple[float, float] | None = None  # step and wall_s where the first interval began

    def add(self, record: Record) -> None:
        """Takes one record; null is what JSON makes of NaN."""
        numbers = {key: math.nan if value is None else float(value) for key, value in record.items()}
        self.latest.update(numbers)
        if "episode/return" in numbers:
            self.returns.add(numbers["episode/return"])
            self.best = max(self.best, numbers["episode/return"])  # NaN is never more
        if "sps" in numbers:
            self.speeds.add(numbers["sps"])
        phases = [max(0.0, numbers.get(f"time/{phase}", 0.0)) for phase in PHASES]
        wall = numbers.get("wall_s", math.nan)
        if not self.intervals:  # where the first interval began
            self.began = self.facts.resumed_from, wall - numbers.get("time/total", sum(phases))
            self.intervals.append((*self.began, []))
        self.intervals.append((numbers.get("step", math.nan), wall, phases))
        for k, seconds in enumerate(phases):
            self.recent[k] += seconds
            self.whole[k] += seconds
        while len(self.intervals) > 2 and self.intervals[1][1] < wall - RECENT_S:
            self.intervals.popleft()
            self.recent = [have - gone for have, gone in zip(self.recent, self.intervals[0][2])]

    @property
    def step(self) -> float:
        """How far the run is."""
        return self.latest["step"]

    def speed(self, whole: bool = False) -> float:
        """Steps per second of the last seconds, or of the whole run, by the step counter itself."""
        if self.began and self.intervals:
            first, began = self.began if whole else self.intervals[0][:2]
            last, ended = self.intervals[-1][:2]
            if ended > began:
                return (last - first) / (ended - began)
        return self.latest.get("sps", math.nan)

    @property
    def sps(self) -> float:
        """Steps per second of the last seconds."""
        return self.speed()

    @property
    def left_s(self) -> float:
        """Time to the end at this speed."""
        return max(0.0, self.facts.total_steps - self.step) / self.sps if self.sps > 0 else math.nan

    def split(self, whole: bool = False) -> dict[str, float]:
        """The share of each phase, of the last seconds or of the whole run; empty before the first record."""
        seconds = self.whole if whole else self.recent
        total = sum(seconds)
        return {phase: max(0.0, s) / total for phase, s in zip(PHASES, seconds)} if total > 0 else {}

    def stats(self) -> list[str]:
        """The env's own numbers: `episode/<stat>`, its range aside."""
        keys = [key for key in self.latest if key.startswith("episode/")]
        known = {"episode/n", "episode/return", "episode/length"}
        ranges = {f"{key}{end}" for key in keys for end in ("_min", "_max")}
        return [key for key in keys if key not in known and key not in ranges]


def hint(facts: RunFacts, split: Mapping[str, float], seconds: float) -> str:
    """What to try when one phase takes most of the time; nothing when none does, or when it is too early to say."""
    if not split or seconds < 3.0:
        return ""
    phase, share = max(split.items(), key=lambda item: item[1])
    on_cpu = facts.device.startswith("cpu")
    if phase == "env" and share >= 0.6:
        if facts.backend in ("process", "ray"):
            return f"env takes {share:.0%} of the time: try 'shoal tune {facts.env}', or more --vec.num-workers"
        return f"env takes {share:.0%} of the time: try 'shoal tune {facts.env}'"
    if phase == "learn" and share >= 0.7:
        gpu = ", or a GPU: --device cuda" if on_cpu else ""
        return f"learning takes {share:.0%} of the time: fewer --train.epochs, a smaller --nn.hidden{gpu}"
    if phase == "inference" and share >= 0.5:
        if facts.num_rows < 512:
            return f"inference takes {share:.0%} of the time: more --vec.num-envs make larger, cheaper batches"
        gpu = ", or a GPU: --device cuda" if on_cpu else ""
        return f"inference takes {share:.0%} of the time: a smaller --nn.hidden{gpu}"
    if phase == "copy" and share >= 0.3 and not on_cpu:
        return f"copying takes {share:.0%} of the time: more --vec.num-envs move more in each copy"
    if phase == "other" and share >= 0.3:
        return f"{share:.0%} of the time goes to neither env nor learning: log, save and evaluate less often"
    return ""


# ---- one frame ----


def frame(history: History, width: int, height: int, done: bool = False) -> list[Line]:
    """The dashboard as lines of exactly `width` cells, at most `height` of them."""
    facts, inner = history.facts, width - 4
    rows = 4 if height >= 29 else 2 if height >= 25 else 1
    # (what goes first when the terminal is small, lines); 0 always stays
    sections: list[tuple[int, list[Line]]] = []
    for rank, lines, has_gap in (
        (5, _head(facts, inner), False),
        (0, _progress(history, inner, done), True),
        (1, _split_bar(history, inner, done), True),
        (7, _hint(history, inner, done), False),
        (2, _numbers(history, inner), True),
        (3, _curve("return", history.returns, inner, rows, "green"), True),
        (6, _curve("steps/s", history.speeds, inner, 1, "blue", floor=0.0), False),
        (4, _machine(history, inner), False),
    ):
        sections += [(8, [[]])] if has_gap and lines else []
        sections += [(rank, lines)] if lines else []
    notes = [_note(text) for text in history.notes]
    while notes and _height(sections) + len(notes) > max(height - 3, 1) and len(notes) > 1:
        notes.pop(0)
    sections += [(9, [[]]), (5, notes)] if notes else []
    while _height(sections) > height - 2 and any(rank for rank, _ in sections):
        sections.remove(max(sections, key=lambda section: section[0]))
    body = [line for _, lines in sections for line in lines]
    if height < 4:
        return [fit(line, width) for line in body[: max(height, 1)]]
    top = _edge("╭", f" {facts.env} ", f" shoal {facts.algo} ", "╮", width)
    framed = [[("│ ", "edge"), *fit(line, inner), (" │", "edge")] for line in body[: height - 2]]
    return [top, *framed, [("╰" + "─" * (width - 2) + "╯", "edge")]]


def fit(line: Iterable[Span], width: int) -> Line:
    """Cut or padded to exactly `width` cells."""
    from rich.cells import cell_len, set_cell_size

    out, left = [], width
    for text, style in line:
        size = len(text) if text.isascii() else cell_len(text)
        if size > left:
            out.append((set_cell_size(text, max(0, left - 1)) + ("…" if left else ""), style))
            left = 0
            break
        out.append((text, style))
        left -= size
    if left:
        out.append((" " * left, ""))
    return out


def chart(values: Sequence[float], width: int, rows: int = 1, floor: float = math.inf) -> list[str]:
    """A curve in blocks, `width` cells wide and `rows` lines high, the top line first. It begins at the least value."""
    shown = _resample(values, width)
    if not shown:
        return [""] * rows
    low, high = min(floor, *shown), max(shown)
    span, steps = high - low, 8 * rows - 1
    levels = [1 + round(steps * (value - low) / span) if span > 0 else 4 for value in shown]
    return ["".join(" ▁▂▃▄▅▆▇█"[max(0, min(8, level - 8 * row))] for level in levels) for row in reversed(range(rows))]


def _resample(values: Sequence[float], width: int) -> list[float]:
    """Exactly `width` values: means of neighbours, or points between them."""
    if not values or len(values) == 1:
        return list(values) * width
    if len(values) < width:
        places = [k * (len(values) - 1) / max(1, width - 1) for k in range(width)]
        left = [min(int(place), len(values) - 2) for place in places]
        return [values[a] + (place - a) * (values[a + 1] - values[a]) for a, place in zip(left, places)]
    edges = [k * len(values) // width for k in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def _height(sections: Iterable[tuple[int, list[Line]]]) -> int:
    return sum(len(lines) for _, lines in sections)


def _edge(left: str, title: str, end: str, right: str, width: int) -> Line:
    from rich.cells import cell_len, set_cell_size

    title = title if cell_len(title) <= width - 8 else set_cell_size(title, max(0, width - 8))
    fill = width - 4 - cell_len(title) - len(end)
    if fill < 0:
        end, fill = "", width - 4 - cell_len(title)
    return [(f"{left}─", "edge"), (title, "name"), ("─" * fill, "edge"), (end, "dim"), (f"─{right}", "edge")]


def _head(facts: RunFacts, width: int) -> list[Line]:
    agents = facts.num_rows // max(1, facts.num_envs)
    parts = [
        f"{facts.num_envs:,} envs" + (f" x {agents} agents" if agents > 1 else ""),
        f"{facts.backend} x{facts.num_threads}" if facts.backend else f"{facts.num_threads} threads",
        facts.device,
        f"{human(facts.num_params)} params",
        f"horizon {facts.horizon}",
        f"seed {facts.seed}",
    ]
    if facts.resumed_from:
        parts.append(f"resumed at {human(facts.resumed_from)}")
    text = " · ".join(parts)
    folder = str(facts.folder)
    if len(text) + len(folder) + 3 <= width:
        return [[(text, ""), (" " * (width - len(text) - len(folder)), ""), (folder, "dim")]]
    return [[(text, "")], [(folder, "dim")]]


def _progress(history: History, width: int, done: bool) -> list[Line]:
    step, total = history.step, history.facts.total_steps
    share = min(1.0, step / total) if total > 0 else 0.0
    text = f"{human(step)} / {human(total)}"
    room = max(8, width - 23)
    full = share * room
    whole = int(full)
    part = " ▏▎▍▌▋▊▉"[int(8 * (full - whole))].strip() if whole < room else ""
    bar: Line = [("█" * whole + part, "bar"), ("─" * (room - whole - len(part)), "edge")]
    head: Line = [*bar, (f" {share:4.0%} ", "strong"), (f"{text:>17}", "")]
    wall, speed = history.latest.get("wall_s", 0.0), history.speed(whole=done)
    facts: Line = [
        (human(speed) if math.isfinite(speed) else "-", "strong"),
        (" steps/s", "dim"),
        ("    elapsed ", "dim"),
        (duration(wall), "strong"),
    ]
    if not done:
        facts += [("    left ", "dim"), (duration(history.left_s), "strong")]
    if "iteration" in history.latest:
        facts += [("    update ", "dim"), (f"{history.latest['iteration']:,.0f}", "")]
    elif not history.intervals:
        facts = [("waiting for the first update", "dim")]
    return [head, facts]


def _split_bar(history: History, width: int, done: bool) -> list[Line]:
    split = history.split(whole=done)
    if not split:
        return []
    bar: Line = []
    legend: Line = []
    begin, reached = 0, 0.0
    for phase, share in split.items():
        reached += share
        end = round(reached * width)
        bar.append(("█" * (end - begin), phase))
        legend += [("■ ", phase), (phase, "dim"), (f" {100 * share:.0f} %   ", "")]
        begin = end
    return [bar, legend]


def _hint(history: History, width: int, done: bool) -> list[Line]:
    text = hint(history.facts, history.split(whole=done), history.latest.get("wall_s", 0.0))
    return [[("  " if k else "→ ", "hint"), (part, "hint")] for k, part in enumerate(textwrap.wrap(text, width - 2))]


def _numbers(history: History, width: int) -> list[Line]:
    """Episodes at the left, learning at the right, in three columns where there is room."""
    latest = history.latest
    if not history.intervals:
        return []
    columns = 3 if width >= 116 else 2
    size = (width - 3 * (columns - 1)) // columns
    learning = [_value(name, latest.get(key), size) for key, name in LEARNING.items() if key in latest]
    episodes = [_ranged("return", history, "episode/return", size), _ranged("length", history, "episode/length", size)]
    episodes += [_ranged(key.removeprefix("episode/"), history, key, size) for key in history.stats()]
    tail = [_ranged("evaluated", history, "eval/return", size)] if "eval/return" in latest else []
    tail.append(_value("episodes", latest.get("episode/n"), size, "in the last interval"))
    episodes = episodes[: 8 - len(tail)] + tail
    if columns == 2:
        blocks = [("EPISODES", episodes), ("LEARNING", learning)]
    else:
        half = (len(learning) + 1) // 2
        blocks = [("EPISODES", episodes), ("LEARNING", learning[:half]), ("", learning[half:])]
    lines: list[Line] = []
    for row in range(-1, max(len(cells) for _, cells in blocks)):
        line: Line = []
        for k, (title, cells) in enumerate(blocks):
            cell: Line = [(title, "title")] if row < 0 else cells[row] if row < len(cells) else []
            line += [*([("   ", "")] if k else []), *fit(cell, size)]
        lines.append(line)
    return lines


def _value(name: str, value: float | None, width: int, remark: str = "") -> Line:
    bad = value is not None and not math.isfinite(value)
    line: Line = [(f"{name[:14]:<14}", "dim"), (f"{number(value):>9}", "bad" if bad else "strong")]
    return [*line, (f"  {remark}", "dim")] if remark and width >= 24 + len(remark) else line


def _ranged(name: str, history: History, key: str, width: int) -> Line:
    low, high = history.latest.get(f"{key}_min"), history.latest.get(f"{key}_max")
    remark = "" if low is None or high is None else f"{number(low)} .. {number(high)}"
    line = _value(name, history.latest.get(key), width)
    return [*line, (f"  {remark}", "dim")] if remark else line


def _curve(name: str, series: Series, width: int, rows: int, style: str, floor: float = math.inf) -> list[Line]:
    values = series.values
    if len(values) < 2:
        return []
    room = width - 18
    drawn = chart(values, room, rows, floor)
    shown = _resample(values, room)
    say = human if name == "steps/s" else number
    low, high = say(min(shown)), say(max(shown))
    lines: list[Line] = [[(" " * 8, ""), (" " * 9, ""), (" ", ""), (text, style)] for text in drawn]
    if rows == 1:
        lines[0][1] = (f"{high:>9}", "dim")
    else:
        lines[0][1], lines[-1][1] = (f"{high:>9}", "dim"), (f"{low:>9}", "dim")
    lines[0][0] = (f"{name:<8}", "title")
    return lines


def _machine(history: History, width: int) -> list[Line]:
    latest = history.latest
    line: Line = []
    for name, text in (
        ("cpu", f"{latest.get('cpu_percent', 0):.0f} %" if "cpu_percent" in latest else ""),
        ("memory", _bytes(latest["memory_mb"]) if "memory_mb" in latest else ""),
        ("gpu", f"{latest.get('gpu_percent', 0):.0f} %" if "gpu_percent" in latest else ""),
        ("gpu memory", _bytes(latest["gpu_memory_mb"]) if "gpu_memory_mb" in latest else ""),
    ):
        if text:
            line += [(f"{name} ", "dim"), (f"{text}    ", "")]
    return [line] if line else []


def _bytes(megabytes: float) -> str:
    return f"{megabytes:.0f} MB" if megabytes < 1000 else f"{megabytes / 1000:.1f} GB"


def _note(text: str) -> Line:
    first = " ".join(text.split())
    return (
        [("! ", "bad"), (first.removeprefix("warning: "), "hint")] if text.startswith("warning:") else [(first, "dim")]
    )


# ---- drawing it ----


class Frame:
    """Lines as rich's Live wants them, at whatever size the terminal has now."""

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


class Dashboard:
    """The screen: drawn again after an interval when its budget allows."""

    def __init__(self, facts: RunFacts, out: Any) -> None:
        from rich.live import Live

        self.out, self.history = out, History(facts)
        self.frame = Frame(self.history)
        self.live = Live(self.frame, console=out, auto_refresh=False, vertical_overflow="crop")
        self.live.start(refresh=True)
        atexit.register(self.live.stop)  # gives the cursor back even when nobody closes
        self.began = self.drawn = base.now()
        self.spent = self.cost = 0.0  # all time in here; that of a frame
        self.width = out.width

    def log(self, record: Record) -> None:
        """Takes a record in, and draws when it is time."""
        began = base.now()
        self.history.add(record)
        if began - self.drawn >= FASTEST_S and self.spent + self.cost <= SHARE * (began - self.began):
            self._draw()
            self.drawn = base.now()
            took = self.drawn - began
            self.cost = 0.8 * self.cost + 0.2 * took if self.cost else took
        self.spent += base.now() - began

    def note(self, text: str) -> None:
        """Shown with the next frame."""
        self.history.notes.append(text)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """The last frame stays; below it, what was reached and what to try next."""
        self.frame.done = True
        self._draw()
        self.live.stop()
        atexit.unregister(self.live.stop)
        print_summary(self.out, self.history, summary)

    def _draw(self) -> None:
        if self.out.width < self.width:  # the old frame is wrapped now: no cursor movement would find its begin
            self.out.clear()
        self.width = self.out.width
        self.live.refresh()


class Lines:
    """A line per interval, for files and pipes: every number with its name."""

    def __init__(self, facts: RunFacts, out: Any, interval_s: float = 2.0) -> None:
        self.history, self.out, self.interval_s = History(facts), out, interval_s
        self.next, self.is_new = -math.inf, False
        self._print(f"{facts.env}, {facts.algo}, {human(facts.total_steps)} steps, {facts.folder}")
        self._print("".join(text for text, _ in _head(facts, 0)[0]).replace(" · ", ", "))

    def log(self, record: Record) -> None:
        """Prints when the last line is old enough."""
        self.history.add(record)
        self.is_new = True
        if base.now() >= self.next:
            self._line()

    def note(self, text: str) -> None:
        """A line of its own."""
        self._print(text)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """The last record's line, whatever the interval; then what was reached."""
        if self.is_new:
            self._line()
        print_summary(self.out, self.history, summary)

    def _line(self) -> None:
        self.next, self.is_new = base.now() + self.interval_s, False
        have, latest = self.history, self.history.latest
        total = have.facts.total_steps
        parts = [
            f"{human(have.step):>6} {have.step / total if total else 0:4.0%}",
            f"{human(have.sps):>6}/s",
            f"return {number(latest.get('episode/return')):>8}",
            f"length {number(latest.get('episode/length')):>7}",
        ]
        for key, name in LINES.items():
            if key in latest:
                parts.append(f"{name} {number(latest[key]):>7}")
        parts.append(f"left {duration(have.left_s)}")
        self._print("  ".join(parts))

    def _print(self, text: str) -> None:
        print(text.encode("ascii", "replace").decode(), file=self.out.file, flush=True)


def print_summary(out: Any, history: History, summary: Mapping[str, Any] | None) -> None:
    """What was reached, and what to try next."""
    from rich.text import Text

    if summary is None:
        return
    facts, status = history.facts, str(summary.get("status", "finished"))
    step, wall = summary.get("step", history.step), summary.get("wall_s", history.latest.get("wall_s", math.nan))
    sps = summary.get("sps") or (step / wall if wall else math.nan)
    style = {"finished": "bold green", "failed": "bold red"}.get(status, "bold yellow")
    far = "" if step >= facts.total_steps else f" of {human(facts.total_steps)}"
    text = Text.assemble((status.capitalize(), style), f": {human(step)}{far} steps in {duration(wall)}")
    text.append(f", {human(sps)} steps/s.")
    if summary.get("reason"):
        text.append(f" {summary['reason']}")
    out.print(text, soft_wrap=True)
    result = summary.get("eval")
    if result:
        line = Text.assemble("Return ", (short(result["return"]), "bold"))
        if result.get("ci95") is not None:
            line.append(f" +- {short(result['ci95'])} (95 % confidence)")
        line.append(f" over {result.get('episodes', 0):,} evaluation episodes")
        if "min" in result and "max" in result:
            line.append(f", {short(result['min'])} .. {short(result['max'])}")
        out.print(line.append("."), soft_wrap=True)
    elif math.isfinite(history.best):
        last = short(history.latest["episode/return"])
        out.print(f"Return {last} in the last interval, {short(history.best)} in the best.", soft_wrap=True)
    resume = f"shoal train {facts.env} --resume {facts.id}"
    hints = {f"shoal eval {facts.id}": "watch it play", f"shoal plot {facts.id}": "draw the learning curve"}
    if status == "finished":
        hints[f"{resume} --train.total-steps {_count(2 * int(max(step, facts.total_steps)))}"] = "train it further"
    else:
        hints = {resume: "go on from the last checkpoint", **hints}
    indent = max(map(len, hints)) + 3
    roomy = 6 + indent + max(map(len, hints.values())) <= out.width
    for k, (command, what) in enumerate(hints.items()):
        head = "      " if k else "Next: "
        line = Text.assemble(head, (f"{command:<{indent}}" if roomy else command, "cyan"))
        out.print(line.append(what, "dim") if roomy else line, soft_wrap=True)


def _count(steps: int) -> str:
    """Exact, and as short as a person would type it: 40M."""
    return next(
        (f"{steps // size}{unit}" for unit, size in (("M", 10**6), ("k", 1000)) if steps % size == 0), str(steps)
    )


# ---- a picture of it ----


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
    """Writes the dashboard, as it would stand after these records, to an SVG file that needs nothing else."""
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
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))  # no fonts from elsewhere


def _console() -> Any:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
