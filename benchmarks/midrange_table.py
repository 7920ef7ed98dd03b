"""Scripted robots of midrange against each other: wins, draws and losses with 95 % intervals.

    python benchmarks/midrange_table.py [--games 10000] [--seed 0] [--robots crank,nez]

Half of the games are played with changed seats. Every env plays the same number of games, so that short games are not
counted more often. Beside each pair is what the game's prototype measured over 1,000 games; its robots are known in
outline only. Appends to benchmarks/results/midrange_table.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import shoal
from shoal.measure import describe_machine

RESULTS = Path(__file__).parent / "results" / "midrange_table.jsonl"
ROBOTS = ("drone", "shooter", "weaver", "random", "pursuit", "crank", "nez")
GAMES_PER_ENV = 5

Outcomes = tuple[int, int, int]  # games that the first robot won, drew and lost

# wins and losses of the row in % of 1,000 games of the prototype
PROTOTYPE = {
    ("random", "drone"): (91, 0),
    ("pursuit", "drone"): (100, 0),
    ("crank", "drone"): (100, 0),
    ("nez", "drone"): (100, 0),
    ("random", "random"): (45, 43),
    ("pursuit", "random"): (52, 38),
    ("crank", "random"): (49, 0),
    ("nez", "random"): (97, 3),
    ("pursuit", "pursuit"): (16, 18),
    ("crank", "pursuit"): (100, 0),
    ("nez", "pursuit"): (100, 0),
    ("crank", "crank"): (31, 37),
    ("nez", "crank"): (3, 94),
    ("nez", "nez"): (0, 0),
}


def play(first: str, second: str, games: int, seed: int, **params: Any) -> Outcomes:
    """The outcomes of `games` games of one robot against another, for the first."""
    num_envs = 2 * math.ceil(games / (2 * GAMES_PER_ENV))
    seats = [[first, second], [second, first]]
    robots: dict[str, Any] = {f"robot_{seat}": [seats[env % 2][seat] for env in range(num_envs)] for seat in (0, 1)}
    vec: Any = shoal.make("midrange", num_envs, seed=seed, **robots, **params)
    vec.reset()
    actions = np.zeros((vec.num_rows, 2), np.int64)
    quota = np.full(num_envs, games // num_envs) + (np.arange(num_envs) < games % num_envs)
    counts = np.zeros(3, np.int64)
    while quota.any():
        _, _, terminated, _, infos = vec.step(actions)
        ended = np.flatnonzero(terminated[::2] & (quota > 0))
        if len(ended) == 0:
            continue
        won = np.stack([infos["final_info"][f"wins_{seat}"][2 * ended] for seat in (0, 1)])
        own = np.where(ended % 2 == 0, won[0] - won[1], won[1] - won[0])
        counts += [int((own == outcome).sum()) for outcome in (1, 0, -1)]
        quota[ended] -= 1
    vec.close()
    return int(counts[0]), int(counts[1]), int(counts[2])


def cross_table(pairs: Sequence[tuple[str, str]], games: int, seed: int) -> dict[tuple[str, str], Outcomes]:
    """The outcomes of every pair, for its first robot."""
    return {(first, second): play(first, second, games, seed) for first, second in pairs}


def interval(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> [round(bound, 3) for bound in interval(0, 100)]
    [0.0, 0.037]
    """
    z = 1.96
    share, spread = successes / trials, z * z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def main() -> None:
    """Plays every pair and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=10_000, help="games of each pair")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--robots", default=",".join(ROBOTS), help="the robots to compare")
    options = parser.parse_args()
    names = options.robots.split(",")
    table = Table(
        "pair", "wins %", "95 %", "draws %", "losses %", "95 %", "prototype", title=f"{options.games} games each"
    )
    rows = []
    for place, first in enumerate(names):
        for second in names[: place + 1]:
            won, drawn, lost = play(first, second, options.games, options.seed)
            shares = [100 * count / options.games for count in (won, drawn, lost)]
            bounds = [[100 * bound for bound in interval(count, options.games)] for count in (won, lost)]
            stated = PROTOTYPE.get((first, second))
            rows.append({"pair": [first, second], "won": won, "drawn": drawn, "lost": lost, "prototype": stated})
            table.add_row(
                f"{first} - {second}",
                f"{shares[0]:.1f}",
                f"{bounds[0][0]:.1f} to {bounds[0][1]:.1f}",
                f"{shares[1]:.1f}",
                f"{shares[2]:.1f}",
                f"{bounds[1][0]:.1f} to {bounds[1][1]:.1f}",
                "" if stated is None else f"{stated[0]}/{stated[1]}",
            )
    Console().print(table)
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        record = {"machine": describe_machine(), "games": options.games, "seed": options.seed, "pairs": rows}
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
