"""Trains duels in a league and in plain self-play, and lets both play each other and the env's robots.

python examples/self_play.py
python examples/self_play.py --env connect4 --robots random --steps 2M
"""

from __future__ import annotations

import argparse
from pathlib import Path

from shoal.config import parse_count
from shoal.match import play_match, read_league
from shoal.train import train


def main() -> None:
    """Two runs, their ratings and a match."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="vacuum", help="an env with two or more sides")
    parser.add_argument("--preset", default="duel-stun", help="of vacuum; other envs have their defaults")
    parser.add_argument("--robots", nargs="*", default=["random", "seek"], help="scripted robots of the env")
    parser.add_argument("--steps", type=parse_count, default=1_000_000, help="of each run")
    parser.add_argument("--envs", type=int, default=256)
    parser.add_argument("--games", type=int, default=1000, help="of each pair in the match")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    args = parser.parse_args()
    common = {
        "env": {"preset": args.preset} if args.env == "vacuum" else {},
        "train": {"total_steps": args.steps},
        "vec": {"num_envs": args.envs},
        "eval": {"episodes": 0},
        "seed": args.seed,
        "runs_folder": args.runs,
        "console": "lines",
    }
    plain = train(args.env, opponents="self", **common)
    league = train(args.env, league={"on": True, "members": args.robots, "pool": 16}, **common)

    report = read_league(league)
    print(f"the league: {report.members} members at step {report.step:,}")
    table = report.table
    for place in table.order():
        rating = table.ratings()[place]
        print(f"  {table.names[place]:>16} {rating.elo:+6.0f} ± {rating.ci95:.0f}")

    match = play_match([league, plain, *args.robots], games=args.games, seed=args.seed)
    names = ["league", "self-play", *args.robots]
    print(f"the match: {match.games:,} games of each pair")
    for place, name in enumerate(names):
        results = [match.table.result(place, other) for other in range(len(names)) if other != place]
        points = sum(result.score for result in results) / len(results)
        print(f"  {name:>16} {100 * points:5.1f} % of the points")


if __name__ == "__main__":
    main()
