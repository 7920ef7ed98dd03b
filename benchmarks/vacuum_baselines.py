"""Scripted robots in every seat of vacuum: their returns, compared with those of the game's prototype.

    python benchmarks/vacuum_baselines.py [--episodes 4096] [--seed 0]

Every env plays exactly one episode, so that short episodes are not counted more often. A figure agrees if it is within
the stated range, plus or minus half a unit of rounding and three standard errors of a mean over 1000 episodes (it is
unknown how many the prototype played). Exits with 1 otherwise. Appends to benchmarks/results/vacuum_baselines.jsonl.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import shoal
from shoal.measure import describe_machine
from shoal.spec import Array

RESULTS = Path(__file__).parent / "results" / "vacuum_baselines.jsonl"
STATED_EPISODES = 1000

Range = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """A preset with a scripted robot in each seat; the stated return and life of each robot, and the stated stats."""

    preset: str
    robots: tuple[str, ...]
    returns: tuple[Range | None, ...]
    lives: tuple[Range | None, ...]  # steps until the robot is out, or the episode ends
    stats: dict[str, Range]


ANY: Range | None = None
WEAK: Range = (-105, -105)
ROWS = [
    Row("classic-1v3", ("random",) * 4, ((-57, -57), *[(-98.0, -97.0)] * 3), (ANY, *[(9.0, 10.0)] * 3), {}),
    Row("classic-1v3", ("safe-random",) * 4, ((454, 454), *[(-39.0, -23.0)] * 3), (ANY, *[(75.0, 86.0)] * 3), {}),
    Row(
        "classic-1v3",
        ("seek",) * 4,
        ((9840, 9840), WEAK, WEAK, (155, 155)),
        ((500, 500), *[(0.0, 21.0)] * 3),  # "dead by step 20", which is the 21st
        {"kills_0": (2, 2)},
    ),
    Row(
        "classic-1v3",
        ("seek", *["opportunistic"] * 3),
        ((9940, 9940), WEAK, WEAK, WEAK),
        ((500, 500), ANY, ANY, ANY),
        {"hits_on_charger": (0, 0), "hits_off_charger": (0, 0)},
    ),
    Row(
        "classic-1v3",
        ("hunt", *["opportunistic"] * 3),
        ((-25, -25), WEAK, (-85, -85), (983, 983)),
        (ANY,) * 4,
        {"kills_0": (0, 0)},
    ),
    Row("duel-stun", ("hunt", "seek"), (ANY, ANY), (ANY, (3, 3)), {"kills_0": (1, 1)}),
    Row("duel-stun", ("seek", "seek"), (ANY, ANY), (ANY, ANY), {"kills_0": (0, 0), "kills_1": (0, 0)}),
]


def play(row: Row, episodes: int, seed: int) -> tuple[Array, Array, dict[str, Array]]:
    """(episodes, robots) returns and lives, and (episodes,) stats."""
    seats: dict[str, Any] = {f"robot_{seat}": robot for seat, robot in enumerate(row.robots)}
    vec: Any = shoal.make("vacuum", episodes, seed=seed, preset=row.preset, **seats)
    vec.reset()
    robots = vec.agents_per_env
    returns, lives = np.full((2, episodes, robots), np.nan)
    stats = {name: np.full(episodes, np.nan) for name in row.stats}
    nothing = np.full(vec.num_rows, vec.single_action_space.n - 1)  # ignored: all seats are scripted
    while np.isnan(returns).any():
        infos = vec.step(nothing)[4]
        if "final_info" not in infos:
            continue
        final = infos["final_info"]
        first = infos["_final_info"].reshape(-1, robots) & np.isnan(returns)
        returns[first] = final["episode"]["r"].reshape(-1, robots)[first]
        lives[first] = final["episode"]["l"].reshape(-1, robots)[first]
        for name, values in stats.items():
            over = final[f"_{name}"].reshape(-1, robots).any(1) & np.isnan(values)
            values[over] = final[name].reshape(-1, robots)[over, 0]
    vec.close()
    return returns, lives, stats


def agrees(values: Array, stated: Range | None) -> bool:
    if stated is None:
        return True
    slack = 3 * values.std() / np.sqrt(STATED_EPISODES) + 0.5
    return bool(stated[0] - slack <= values.mean() <= stated[1] + slack)


def cells(values: Iterable[Array], stated: Iterable[Range | None]) -> tuple[str, str]:
    """Measured means and standard deviations, and the stated figures, one line each."""
    means, texts = [], []
    for each, range in zip(values, stated):
        means.append(f"{each.mean():.1f}" + (f" ± {each.std():.1f}" if each.std() > 0 else ""))
        text = "" if range is None else f"{range[0]:g}" + ("" if range[0] == range[1] else f" .. {range[1]:g}")
        texts.append(f"[{'green' if agrees(each, range) else 'bold red'}]{text}[/]")
    return "\n".join(means), "\n".join(texts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=4096, help="episodes of each row (default 4096)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    console = Console(width=140)
    table = Table(title=f"Mean ± spread over {options.episodes} episodes, beside what was stated", show_lines=True)
    for column in ("preset", "robots", "return", "stated", "steps it lives", "stated", "stat", "", "stated"):
        table.add_column(column, no_wrap=True)
    record: list[dict[str, Any]] = []
    wrong = 0
    for row in ROWS:
        returns, lives, stats = play(row, options.episodes, options.seed)
        pairs = [*zip(returns.T, row.returns), *zip(lives.T, row.lives)]
        pairs += [(values, row.stats[name]) for name, values in stats.items()]
        wrong += sum(not agrees(values, stated) for values, stated in pairs)
        table.add_row(
            row.preset,
            "\n".join(row.robots),
            *cells(returns.T, row.returns),
            *cells(lives.T, row.lives),
            "\n".join(stats),
            *cells(stats.values(), row.stats.values()),
        )
        record.append(
            {
                "preset": row.preset,
                "robots": row.robots,
                "returns": [[round(float(v.mean()), 3), round(float(v.std()), 3)] for v in returns.T],
                "stated_returns": row.returns,
                "lives": [[round(float(v.mean()), 3), round(float(v.std()), 3)] for v in lives.T],
                "stated_lives": row.lives,
                "stats": {name: round(float(values.mean()), 3) for name, values in stats.items()},
                "agrees": all(agrees(values, stated) for values, stated in pairs),
            }
        )
    console.print(table)
    console.print(f"{wrong} figures differ from what was stated." if wrong else "All figures agree.")
    entry = {"machine": describe_machine(), "episodes": options.episodes, "seed": options.seed, "rows": record}
    with RESULTS.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    console.print(f"appended to {RESULTS}")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
