"""Whether PPO learns a game in which every agent's reward depends on what the others do, with a policy for each agent.

    python benchmarks/chase.py [--seeds 1 2 3 4 5] [--episodes 200] [--policies per_agent]

Three predators chase a faster prey (tests/chase.h, options in tests/chase.toml). Each seed is trained once; then its
policies play held-out games with sampled actions. The benchmark passes if the predators of every seed touch the prey at
least FACTOR times as often as in random play. Policies that share a random stream fail: all agents move alike, so the
distances between them do not depend on anyone's actions.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

import shoal
from shoal import evaluate
from shoal.train import load_player, train

GAME = Path(__file__).parent.parent / "tests" / "chase.h"
FACTOR = 4.0  # the predators of every seed touch the prey this many times as often as at random


def main() -> int:
    """Trains every seed, prints a table, and returns 0 if all of them pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--episodes", type=int, default=200, help="held-out games of each seed")
    parser.add_argument("--policies", choices=["per_agent", "shared"], default="per_agent")
    parser.add_argument("--steps", default=None, help="training steps, such as 3M; default: those of chase.toml")
    options = parser.parse_args()

    make = partial(shoal.make, str(GAME))
    space = make(num_envs=min(options.episodes, 128)).action_space
    at_random = measure(evaluate.play(make, evaluate.RandomPlayer(space), options.episodes))
    table = Table("player", "touches a game", "distance", "seconds", title="chase: 50 steps a game")
    table.add_row("random", f"{at_random['touches']:.2f}", f"{at_random['distance']:.2f}", "")
    passed = []
    for seed in options.seeds:
        began = time.perf_counter()
        result = play_trained(seed, options)
        passed.append(result["touches"] >= FACTOR * at_random["touches"])
        row = f"{result['touches']:.2f}", f"{result['distance']:.2f}", f"{time.perf_counter() - began:.0f}"
        table.add_row(f"seed {seed}", *row, style=None if passed[-1] else "red")
    Console().print(table)
    mark = FACTOR * at_random["touches"]
    print(f"{sum(passed)} of {len(passed)} seeds reach {mark:.1f} touches a game ({FACTOR:.0f} times random).")
    return 0 if all(passed) else 1


def play_trained(seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Trains one seed and measures its held-out games."""
    tables: dict[str, Any] = {"nn": {"policies": options.policies}, "eval": {"episodes": 0}, "device": "cpu"}
    tables["vec"] = {"torch_threads": 1}
    if options.steps is not None:
        tables["train"] = {"total_steps": options.steps}
    with tempfile.TemporaryDirectory() as folder:
        run = train(str(GAME), seed=seed, runs_folder=folder, console="off", **tables)
        player, _ = load_player(run, run.last, greedy=False)  # not the best: the mean return means nothing here
    return measure(evaluate.play(partial(shoal.make, str(GAME)), player, options.episodes, seed))


def measure(score: evaluate.Score) -> dict[str, float]:
    """Means of the games' stats."""
    return {name: mean(values) for name, values in score.stats.items()}


if __name__ == "__main__":
    sys.exit(main())
