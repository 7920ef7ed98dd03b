"""Cross tables and ratings in the terminal, for `shoal match` and `shoal league`; and the files that both write."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError

CELL = 7  # columns of one cell of the cross table
WIDE = 110  # columns of a terminal that has room for the points by side
PAIR_NUMBERS = 66  # columns that the numbers of a pair take
MOST_PAIRS = 12  # pairs that are listed with intervals; the files have all


def check_file(path: Path | None, flag: str, suffix: str) -> None:
    """Raises if a file cannot be written: before anything is played."""
    if path is None:
        return
    if path.suffix != suffix:
        raise ConfigError(f"{flag} {path} must end in {suffix}.")
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(
            f"{flag} {path} cannot be written. Choose a file in an existing folder that you may write to."
        )


def write_json(path: Path, facts: dict[str, Any]) -> None:
    """Writes facts as one JSON file."""
    path.write_text(json.dumps(facts, indent=1) + "\n")


def show(screen: Any, table: Any) -> None:
    """Prints ratings, the cross table and the pairs with their intervals."""
    order, rated = table.order(), table.ratings()
    screen.print(_ratings(table, rated, order))
    if len(order) > 2:
        screen.print()
        _show_cross(screen, table, order)
    screen.print()
    _show_pairs(screen, table, order)


def _grid(*justify: str) -> Any:
    """A table without lines."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for side in justify:
        grid.add_column(justify=side, no_wrap=True)  # type: ignore[arg-type]
    return grid


def _ratings(table: Any, rated: Sequence[Any], order: Sequence[int]) -> Any:
    grid = _grid("right", "left", "right", "left", "right", "right")
    grid.add_row("", "player", "rating", "95 %", "points", "games", style="bold")
    points = table.points()
    for place, k in enumerate(order, 1):
        rating, games = rated[k], rated[k].games
        score = f"{100.0 * points[k].sum() / games:.1f} %" if games else ""
        is_anchor = k == table.anchor
        elo, width = ("0", "anchor") if is_anchor else (f"{rating.elo:+.0f}", f"± {rating.ci95:.0f}")
        style = "bold cyan" if place == 1 else ""
        grid.add_row(str(place), table.names[k], elo, width, score, f"{games:,.0f}", style=style)
    return grid


def _show_cross(screen: Any, table: Any, order: Sequence[int]) -> None:
    """Points in percent of the row's player against the column's; the first columns where not all fit."""
    names = max(len(table.names[k]) for k in order)
    room = max(2, (screen.width - names - 6) // CELL)
    columns = list(order[:room])
    grid = _grid("right", "left", *["right"] * len(columns))
    grid.add_row("", "points in %", *map(str, range(1, len(columns) + 1)), style="bold")
    for place, i in enumerate(order, 1):
        cells = []
        for j in columns:
            result = table.result(i, j)
            cells.append("·" if i == j else f"{100.0 * result.score:.1f}" if result.games else "")
        grid.add_row(str(place), table.names[i], *cells)
    screen.print(grid)
    if len(columns) < len(order):
        screen.print(f"{len(order) - len(columns)} more columns do not fit here; --html FILE has all.", style="dim")


def _show_pairs(screen: Any, table: Any, order: Sequence[int]) -> None:
    pairs = [(i, j) for place, i in enumerate(order) for j in order[place + 1 :] if table.result(i, j).games]
    is_wide = screen.width >= WIDE
    titles = {(i, j): f"{table.names[i]} - {table.names[j]}" for i, j in pairs}
    if max(map(len, titles.values()), default=0) + PAIR_NUMBERS > screen.width:  # places, as in the tables above
        titles = {(i, j): f"{order.index(i) + 1} - {order.index(j) + 1}" for i, j in pairs}
    grid = _grid("left", "right", "right", "right", "left", "left", *["left"] * is_wide)
    heads = ["", "won", "drawn", "lost", "wins, 95 %", "losses, 95 %", *["points by side"] * is_wide]
    grid.add_row(*heads, style="bold")
    for i, j in pairs[:MOST_PAIRS]:
        result = table.result(i, j)
        by_side = [table.result(i, j, side) for side in range(table.sides)]
        scores = " / ".join(f"{100.0 * part.score:.1f}" if part.games else "-" for part in by_side)
        counts = [f"{count:,}" for count in (result.wins, result.draws, result.losses)]
        rates = [interval(result.win_rate()), interval(result.loss_rate())]
        grid.add_row(titles[i, j], *counts, *rates, *[scores] * is_wide)
    screen.print(grid)
    if len(pairs) > MOST_PAIRS:
        screen.print(f"{len(pairs) - MOST_PAIRS} more pairs; --html FILE and --json FILE have all.", style="dim")


def interval(rate: tuple[float, float, float]) -> str:
    """A share and its interval in percent: `97.1 % (96.4-97.7)`."""
    return f"{100.0 * rate[0]:.1f} % ({100.0 * rate[1]:.1f}-{100.0 * rate[2]:.1f})"
