"""A cross table and ratings as one web page: a file without scripts and without anything to fetch."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from shoal import html_page
from shoal.league.ratings import Rating
from shoal.league.table import CrossTable

WIDTH, ROW, LABEL = 760, 26, 190  # px of the chart of ratings
MOST_IN_MATRIX = 80  # players, the strongest ones: a page of more is slow


def write_html(table: CrossTable, path: Path, title: str, facts: Sequence[str] = ()) -> None:
    """Writes the page. `facts` are sentences below the title."""
    path.write_text(html_of(table, title, facts))


def html_of(table: CrossTable, title: str, facts: Sequence[str] = ()) -> str:
    """The page as text."""
    rated, order = table.ratings(), table.order()
    shown = order[:MOST_IN_MATRIX]
    if len(shown) < len(order):
        facts = [*facts, f"Cross table and pairs are of the {len(shown)} strongest of {len(order)} players."]
    parts = {
        "facts": "".join(f"<p>{html.escape(fact)}</p>\n" for fact in facts),
        "ratings": _ratings(table, rated, order),
        "chart": _chart(table, rated, order),
        "cross": _cross(table, shown),
        "seats": _seats(table, shown),
    }
    return html_page.fill(Path(__file__).parent / "page.html", title, **parts)


def _ratings(table: CrossTable, rated: Sequence[Rating], order: Sequence[int]) -> str:
    rows = []
    for place, k in enumerate(order, 1):
        rating = rated[k]
        width = "anchor" if k == table.anchor else f"± {rating.ci95:.0f}"
        cells = [
            place,
            table.names[k],
            f"{rating.elo:+.0f}" if k != table.anchor else "0",
            width,
            f"{rating.games:,.0f}",
        ]
        rows.append("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>")
    return "\n".join(rows)


def _chart(table: CrossTable, rated: Sequence[Rating], order: Sequence[int]) -> str:
    """The ratings as points with intervals, in SVG."""
    low = min((rating.low for rating in rated), default=0.0)
    high = max((rating.high for rating in rated), default=0.0)
    scale = (WIDTH - LABEL - 20) / max(high - low, 1.0)

    def x(elo: float) -> float:
        return LABEL + (elo - low) * scale

    height = ROW * len(order) + 10
    zero = x(0.0)
    parts = [f'<line class="zero" x1="{zero:.1f}" x2="{zero:.1f}" y1="0" y2="{height}"/>']
    for place, k in enumerate(order):
        rating, y = rated[k], ROW * place + ROW / 2 + 5
        name = table.names[k] if len(table.names[k]) <= 26 else table.names[k][:25] + "…"
        about = html.escape(f"{table.names[k]}: {rating.elo:+.0f} ± {rating.ci95:.0f}")
        parts.append(f'<text x="{LABEL - 10}" y="{y + 4:.1f}" text-anchor="end">{html.escape(name)}</text>')
        parts.append(
            f'<g><title>{about}</title><line x1="{x(rating.low):.1f}" x2="{x(rating.high):.1f}" y1="{y:.1f}" '
            f'y2="{y:.1f}"/><circle cx="{x(rating.elo):.1f}" cy="{y:.1f}" r="4"/></g>'
        )
    label = "Ratings with their 95 % intervals"
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _cross(table: CrossTable, order: Sequence[int]) -> str:
    """The points of the row's player against the column's, in percent."""
    head = "".join(f'<th title="{html.escape(table.names[k])}">{place}</th>' for place, k in enumerate(order, 1))
    rows = [f"<tr><th></th><th>player</th>{head}</tr>"]
    for place, i in enumerate(order, 1):
        cells = []
        for j in order:
            result = table.result(i, j)
            if i == j or not result.games:
                cells.append('<td class="none"></td>')
                continue
            win, loss = result.win_rate(), result.loss_rate()
            about = (
                f"{table.names[i]} - {table.names[j]}: {result.wins:,} wins, {result.draws:,} draws, "
                f"{result.losses:,} losses; wins {win[0]:.1%} ({win[1]:.1%} to {win[2]:.1%}), "
                f"losses {loss[0]:.1%} ({loss[1]:.1%} to {loss[2]:.1%})"
            )
            share = f"--share: {100.0 * result.score:.0f}%"
            cells.append(f'<td style="{share}" title="{html.escape(about)}">{100.0 * result.score:.1f}</td>')
        name = html.escape(table.names[i])
        rows.append(f"<tr><th>{place}</th><th>{name}</th>{''.join(cells)}</tr>")
    return "\n".join(rows)


def _seats(table: CrossTable, order: Sequence[int]) -> str:
    """Every pair once, with both rates and their intervals, in all seats and in each."""
    rows = []
    for place, i in enumerate(order):
        for j in order[place + 1 :]:
            result = table.result(i, j)
            if not result.games:
                continue
            by_side = [table.result(i, j, side) for side in range(table.sides)]
            scores = " / ".join(f"{100.0 * part.score:.1f}" if part.games else "-" for part in by_side)
            win, loss = result.win_rate(), result.loss_rate()
            cells = [
                f"{table.names[i]} - {table.names[j]}",
                f"{result.games:,}",
                f"{result.wins:,}",
                f"{result.draws:,}",
                f"{result.losses:,}",
                f"{win[0]:.1%} ({win[1]:.1%} to {win[2]:.1%})",
                f"{loss[0]:.1%} ({loss[1]:.1%} to {loss[2]:.1%})",
                scores,
            ]
            rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return "\n".join(rows)
