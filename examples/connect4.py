"""Learns Connect Four by self-play, then plays a scripted robot and shows the last game.

python examples/connect4.py [--steps 20M] [--robot one_ply] [--games 200] [--runs runs]
"""

from __future__ import annotations

import argparse

import numpy as np

import shoal
from shoal.train import train


def show(obs: np.ndarray) -> str:
    """The board of an observation: X for own stones, O for those of the other agent."""
    own, other = obs[:42].reshape(7, 6), obs[42:84].reshape(7, 6)
    cells = np.where(own, "X", np.where(other, "O", "."))
    return "\n".join(" ".join(row) for row in cells.T[::-1])


def main() -> None:
    """Trains, plays, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="20M")
    parser.add_argument("--robot", default="one_ply", help="random, one_ply or search4")
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--runs", default="runs")
    args = parser.parse_args()

    options = {"train": {"total_steps": args.steps}, "eval": {"episodes": 0}, "device": "cpu"}
    train("connect4", runs_folder=args.runs, console="off", **options)
    policy = shoal.load("connect4", checkpoint="last", runs=args.runs)

    # agent 0 is the policy, agent 1 the robot, which replies within the step; who begins is drawn
    envs = shoal.make("connect4", args.games, robot_1=args.robot)
    obs, infos = envs.reset(seed=0)
    returns, is_over = np.zeros(args.games), np.zeros(args.games, bool)
    while not is_over.all():
        actions = policy.act(obs, mask=infos["action_mask"], greedy=True)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        ended = terminated[::2] & ~is_over
        returns[ended] = rewards[::2][ended]
        is_over |= ended
        if ended.any():
            last = show(infos["final_obs"][2 * np.flatnonzero(ended)[0]])
    envs.close()
    won, drawn, lost = ((returns == value).sum() for value in (1, 0, -1))
    print(last)
    print(f"against {args.robot}: won {won}, drawn {drawn}, lost {lost} of {args.games} games")


if __name__ == "__main__":
    main()
