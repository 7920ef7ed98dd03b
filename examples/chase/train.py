"""Train predators and prey against each other, a policy for each group, and print the returns of both.

    python examples/chase/train.py [--steps 2M] [--envs 128] [--runs FOLDER]

chase.h declares the groups: `#define ENV_GROUPS(X) X("predators", 0, 2) X("prey", 3, 3)`. Every metric of a policy and
every return is logged by group: `shoal plot last --y 'episode/return/*'` draws them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from shoal.train import train

CHASE = Path(__file__).parent / "chase.h"


def main() -> None:
    """Trains both groups, then prints how each of them plays held-out games."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="2M")
    parser.add_argument("--envs", type=int, default=128)
    parser.add_argument("--runs", default="runs")
    words = parser.parse_args()
    run = train(
        str(CHASE),
        runs_folder=words.runs,
        vec={"num_envs": words.envs},
        train={"total_steps": words.steps, "horizon": 25, "learning_rate": 1e-3, "gamma": 0.95},
        nn={"hidden": 64, "activation": "tanh", "log_std": -0.5},
        eval={"greedy": False},
        save={"every_s": 0},
    )
    last = [record for record in run.metrics() if "loss/value/prey" in record][-1]
    for group, score in run.summary["eval"]["groups"].items():
        print(f"{group}: return {score['return']:.2f}, value loss {last[f'loss/value/{group}']:.3f}")


if __name__ == "__main__":
    main()
