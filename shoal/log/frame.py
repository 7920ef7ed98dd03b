"""One frame of the dashboard: lines of styled text that fit any terminal.

Lines are assembled here, without rich's tables, which take ten times as long.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence

from shoal.log.base import RunFacts, duration, human, number
from shoal.log.history import History, Series, hint

Span = tuple[str, str]  # text and its style
Line = list[Span]


def frame(history: History, width: int, height: int, done: bool = False) -> list[Line]:
    """The dashboard as lines of exactly `width` cells, at most `height` of them."""
    facts, inner = history.facts, width - 4
    rows = 4 if height >= 29 else 2 if height >= 25 else 1
    # (rank, lines): on a small terminal the highest rank is left out first; 0 always stays
    sections: list[tuple[int, list[Line]]] = []
    for rank, lines, has_gap in (
        (5, head(facts, inner), False),
        (0, _progress(history, inner, done), True),
        (1, _split_bar(history, inner, done), True),
        (7, _hint(history, inner, done), False),
        (2, _numbers(history, inner), True),
        (4, _agents(history, inner), True),
        (3, _league(history), True),
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
    """The line cut or padded to exactly `width` cells."""
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
    """A curve in blocks, `width` cells wide and `rows` lines high, top line first. Its bottom is the lowest value."""
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


def head(facts: RunFacts, width: int) -> list[Line]:
    """The run's envs, backend, device and folder."""
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
    cells = share * room
    full = int(cells)
    last = " ▏▎▍▌▋▊▉"[int(8 * (cells - full))].strip() if full < room else ""
    bar: Line = [("█" * full + last, "bar"), ("─" * (room - full - len(last)), "edge")]
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
        if phase := history.phase():
            facts += [("    phase ", "dim"), (phase, "strong")]
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
    """Episodes on the left, learning on the right; three columns on a wide terminal."""
    latest = history.latest
    if not history.intervals:
        return []
    columns = 3 if width >= 116 else 2
    size = (width - 3 * (columns - 1)) // columns
    learning = [_value(row.label, latest[row.name], size) for row in history.learning()]
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


def _agents(history: History, width: int) -> list[Line]:
    """The return of each group and agent, side by side, with the loss of its policy."""
    rows = history.agents()
    if not rows:
        return []
    columns = 3 if width >= 116 else 2
    size = (width - 3 * (columns - 1)) // columns
    cells: list[Line] = [
        [(f"{row.name[:14]:<14}", "dim"), (f"{number(row.mean):>9}", "strong"), (f"  {row.remark}", "dim")]
        for row in rows
    ]
    lines: list[Line] = [[("RETURN BY AGENT", "title")]]
    for first in range(0, len(cells), columns):
        line: Line = []
        for k, cell in enumerate(cells[first : first + columns]):
            line += [*([("   ", "")] if k else []), *fit(cell, size)]
        lines.append(line)
    return lines


def _league(history: History) -> list[Line]:
    """Of a league: the learner's rating, its win rate against the pool, members and games."""
    latest = history.latest
    if "league/members" not in latest:
        return []
    rating, width = latest.get("league/rating"), latest.get("league/rating_ci95", 0.0)
    wins = latest.get("league/win_rate")
    line: Line = [("LEAGUE  ", "title")]
    for name, text in (
        ("rating", "" if rating is None else f"{rating:+.0f} ± {width:.0f}"),
        ("wins", "" if wins is None else f"{100 * wins:.0f} %"),
        ("members", f"{latest['league/members']:.0f}"),
        ("games", human(latest.get("league/games", 0.0))),
    ):
        if text:
            line += [(f"{name} ", "dim"), (f"{text}   ", "strong")]
    return [line]


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
    as_text = human if name == "steps/s" else number
    low, high = as_text(min(shown)), as_text(max(shown))
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
