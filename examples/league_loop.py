"""A league in a loop of your own: who played against the learner, and how those games ended.

    python examples/league_loop.py

The learner of connect4 plays its own snapshots and the env's random robot, on both sides.
"""

from __future__ import annotations

import argparse

from shoal.train import Trainer, options_for


def main() -> None:
    """Trains, and prints who played."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--envs", type=int, default=256)
    args = parser.parse_args()

    options = options_for(
        "connect4",
        {
            "device": "cpu",
            "vec": {"num_envs": args.envs},
            "train": {"total_steps": args.steps},
            "league": {"on": True, "pool": 8, "members": ("random",), "every": 1},
        },
    )
    trainer = Trainer("connect4", options)
    while not trainer.is_done:
        trainer.iterate()
        record = trainer.drain()
        if "league/win_rate" in record:
            print(f"step {trainer.step:,}: wins {record['league/win_rate']:.0%} against the pool")

    league = trainer.league.league
    for member, player in sorted(league.members.items()):
        wins, draws, losses = league.payoff.recent[member].sum(0)
        print(f"{player.name}: {wins:.0f} won, {draws:.0f} drawn, {losses:.0f} lost of the latest games")
    trainer.close()


if __name__ == "__main__":
    main()
