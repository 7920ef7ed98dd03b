"""Domain randomization: a policy that is trained on many control rates keeps a pole up on all of them.

    python examples/domain_randomization.py
    python examples/domain_randomization.py --steps 2048 --envs 16     a short run

Trains twice on cartpole: with 0.02 seconds per step, and with a time per step that each episode draws anew. Then both
policies play with steps from short to long.
"""

from __future__ import annotations

import argparse
from functools import partial

import shoal
from shoal.evaluate import play
from shoal.train import load_player, train

TIMES = (0.005, 0.02, 0.04, 0.06, 0.08)  # seconds per step


def main() -> None:
    """Trains with and without randomization and prints a table of returns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--runs", default="runs")
    words = parser.parse_args()

    print(f"{'trained on dt':26}" + "".join(f"{dt:>8}" for dt in TIMES))
    for dt in (0.02, shoal.loguniform(0.005, 0.08)):
        run = train(
            "cartpole",
            env={"dt": dt},
            train={"total_steps": words.steps},
            vec={"num_envs": words.envs},
            eval={"episodes": 0},
            runs_folder=words.runs,
            console="off",
        )
        player, _made_with = load_player(run)
        returns = []
        for other in TIMES:
            make = partial(shoal.make, "cartpole", dt=other)
            returns.append(play(make, player, words.episodes).mean)
        print(f"{dt!s:26}" + "".join(f"{value:8.1f}" for value in returns))


if __name__ == "__main__":
    main()
