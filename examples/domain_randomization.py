"""Domain randomization: a policy that is trained on many gravities keeps a pole up on those it has never had.

    python examples/domain_randomization.py
    python examples/domain_randomization.py --steps 2048 --envs 16     a short run

Trains twice on cartpole: with the gravity of the Earth, and with one that each episode draws anew. Then both policies
play on gravities from low to high.
"""

from __future__ import annotations

import argparse
from functools import partial

import shoal
from shoal.evaluate import play
from shoal.train import load_player, train

GRAVITIES = (1.6, 9.8, 25.0, 60.0, 100.0)


def main() -> None:
    """Trains with and without randomization and prints a table of returns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--runs", default="runs")
    words = parser.parse_args()

    print(f"{'trained on gravity':24}" + "".join(f"{gravity:>8}" for gravity in GRAVITIES))
    for gravity in (9.8, shoal.loguniform(1.0, 100.0)):
        run = train(
            "cartpole",
            env={"gravity": gravity},
            train={"total_steps": words.steps},
            vec={"num_envs": words.envs},
            eval={"episodes": 0},
            runs_folder=words.runs,
            console="off",
        )
        player, _made_with = load_player(run)
        returns = []
        for other in GRAVITIES:
            make = partial(shoal.make, "cartpole", gravity=other)
            returns.append(play(make, player, words.episodes).mean)
        print(f"{gravity!s:24}" + "".join(f"{value:8.1f}" for value in returns))


if __name__ == "__main__":
    main()
