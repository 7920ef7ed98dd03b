"""Load what a run learned and act with it: one observation, a batch, a recurrent policy, a file for other programs.

python examples/load_and_act.py --steps 200k
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium
import numpy as np

import shoal
from shoal.export import save
from shoal.train import train

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default="200k", help="steps to train for")
    parser.add_argument("--runs", default="runs", help="folder of all runs")
    flags = parser.parse_args()
    options = {"eval": {"episodes": 0}, "console": "off", "runs_folder": flags.runs}
    train("cartpole", train={"total_steps": flags.steps}, **options)
    train("memory", train={"total_steps": flags.steps}, vec={"num_envs": 64}, nn={"core": "mingru"}, **options)

    # one env of Gymnasium
    policy = shoal.load("cartpole", runs=flags.runs)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    score, done = 0.0, False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs, greedy=True))
        score, done = score + float(reward), terminated or truncated
    print(f"CartPole-v1: return {score:g}, value of the last observation {policy.value(obs):.1f}")

    # a batch with a recurrent policy: rows whose episode ended forget
    recurrent = shoal.load("memory", runs=flags.runs)
    envs = shoal.make("memory", num_envs=256)
    rows, _ = envs.reset(seed=0)
    state, total, episodes = None, 0.0, 0
    for _ in range(100):
        actions, state = recurrent.act(rows, state)
        rows, rewards, ended, cut, _ = envs.step(actions)
        state = recurrent.clear(state, ended | cut)
        total, episodes = total + float(np.sum(rewards)), episodes + int((ended | cut).sum())
    envs.close()
    print(f"memory: return {total / max(episodes, 1):.2f} over {episodes} episodes")

    # a file that needs torch alone; `shoal export` has --onnx too
    file = Path(flags.runs) / "cartpole.pt"
    print(f"{file}: max difference {save(policy, file, 'torchscript').max_difference:.1g}")
