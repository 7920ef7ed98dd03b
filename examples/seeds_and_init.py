"""Trains several seeds, evaluates the best under other params, and trains on from its weights.

    python examples/seeds_and_init.py
    python examples/seeds_and_init.py --seeds 5 --parallel 2

A policy for a cartpole on Earth is tried on a planet with three times the gravity, and fine-tuned there.
"""

from __future__ import annotations

import argparse

from shoal.train import evaluate_run, train, train_seeds

HEAVY = {"gravity": 29.4}


def main() -> None:
    """Trains, evaluates under more gravity, trains there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--parallel", type=int, default=1, help="seeds that train at the same time")
    parser.add_argument("--steps", default="200k", help="steps of each run")
    parser.add_argument("--runs", default="runs", help="folder of the runs")
    args = parser.parse_args()
    common = {"train": {"total_steps": args.steps}, "runs_folder": args.runs, "console": "off"}

    group = train_seeds("cartpole", args.seeds, parallel=args.parallel, **common)
    for seed, score in group.scores.items():
        print(f"seed {seed}: {score:.1f}")
    interval = "" if group.ci95 is None else f" ± {group.ci95:.1f} (95 % interval over {args.seeds} seeds)"
    print(f"mean: {group.mean:.1f}{interval}")

    best = group.runs[max(group.scores, key=group.scores.__getitem__)]
    there = evaluate_run(best, env=HEAVY, episodes=100, seed=7)
    print(f"under {there.params[0]}: {there.score.mean:.1f}")

    tuned = train("cartpole", init=best, env=HEAVY, **common)
    print(f"loaded {len(tuned.facts['init']['loaded'])} tensors of {best.id}")
    print(f"after training there: {evaluate_run(tuned, episodes=100, seed=7).score.mean:.1f}")


if __name__ == "__main__":
    main()
