"""Other trainers learn CartPole through Shoal: Stable-Baselines3's PPO and CleanRL's PPO.

    pip install stable-baselines3
    python benchmarks/interop_learning.py [--seeds 1 2 3] [--only sb3]

Each trainer runs on Shoal's native env, on Gymnasium's env in Shoal's processes, and on Gymnasium's env without Shoal.
A run stops when its last 100 episodes have a mean return of 475, at which CartPole counts as solved, or after its last
step. Each run of this file appends machine, commit and every row to benchmarks/results/interop_learning.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch
from rich.console import Console
from rich.table import Table

import shoal
from shoal.measure import describe_machine

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "interop_learning.jsonl"
MARK = 475.0
NUM_ENVS = {"sb3": 8, "cleanrl": 4}  # as in Zoo and CleanRL
Reached = tuple[int, float]  # env steps, mean return of the last 100 episodes


def sb3_ppo(make: Callable[[], Any], seed: int) -> Reached:
    """With RL Baselines3 Zoo's settings for CartPole."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    # repeated in train_speed.py, so that each benchmark is one file to read
    def mean_return(model: Any) -> float:
        returns: list[float] = [info["r"] for info in model.ep_info_buffer]
        return sum(returns) / max(1, len(returns))

    class Solved(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            return len(self.model.ep_info_buffer) < 100 or mean_return(self.model) < MARK

    envs = make()
    settings: dict[str, Any] = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98}
    settings |= {"learning_rate": lambda left: left * 1e-3, "clip_range": lambda left: left * 0.2, "ent_coef": 0.0}
    model = PPO("MlpPolicy", envs, seed=seed, device="cpu", **settings)
    model.learn(200_000, callback=Solved())
    envs.close()
    return model.num_timesteps, mean_return(model)


def cleanrl_ppo(make: Callable[[], Any], seed: int) -> Reached:
    """With the settings of CleanRL's ppo.py."""
    sys.path.insert(0, str(ROOT))
    from tests.cleanrl_ppo import train

    envs = make()
    steps, returns = train(envs, seed=seed, total_steps=500_000, solved_at=MARK)
    envs.close()
    last = returns[-100:]
    return steps, sum(last) / max(1, len(last))


def for_sb3(**options: Any) -> Any:
    from shoal.integrations.sb3 import ShoalVecEnv

    return ShoalVecEnv(shoal.make(num_envs=NUM_ENVS["sb3"], **options))


def dummy_vec_env() -> Any:
    from stable_baselines3.common.env_util import make_vec_env

    return make_vec_env("CartPole-v1", NUM_ENVS["sb3"])


def sync_vector_env() -> Any:
    def make() -> Any:
        return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))

    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return gymnasium.vector.SyncVectorEnv([make] * NUM_ENVS["cleanrl"], autoreset_mode=mode)


NATIVE: dict[str, Any] = {"env": "cartpole"}
PYTHON: dict[str, Any] = {"env": "gymnasium:CartPole-v1", "backend": "process"}
RUNS: list[tuple[str, str, Callable[[Callable[[], Any], int], Reached], Callable[[], Any]]] = [
    ("sb3", "shoal native", sb3_ppo, partial(for_sb3, **NATIVE)),
    ("sb3", "shoal process", sb3_ppo, partial(for_sb3, **PYTHON)),
    ("sb3", "its DummyVecEnv", sb3_ppo, dummy_vec_env),
    ("cleanrl", "shoal native", cleanrl_ppo, partial(shoal.make, num_envs=NUM_ENVS["cleanrl"], **NATIVE)),
    ("cleanrl", "shoal process", cleanrl_ppo, partial(shoal.make, num_envs=NUM_ENVS["cleanrl"], **PYTHON)),
    ("cleanrl", "gymnasium SyncVectorEnv", cleanrl_ppo, sync_vector_env),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--only", choices=["sb3", "cleanrl"], help="run only this trainer")
    args = parser.parse_args()
    torch.set_num_threads(1)
    console, rows = Console(), []
    for seed in args.seeds:
        for trainer, envs, train, make in RUNS:
            if args.only not in (None, trainer):
                continue
            start = time.perf_counter()
            steps, mean = train(make, seed)
            row = {"trainer": trainer, "envs": envs, "seed": seed, "steps": steps}
            row |= {"seconds": round(time.perf_counter() - start, 1), "mean_return_100": round(mean, 1)}
            rows.append(row)
            console.print(" ".join(f"{key}={value}" for key, value in row.items()))
    table = Table(title=f"CartPole: PPO until a mean return of {MARK:g} over 100 episodes")
    for column in ("trainer", "envs", "seed", "steps", "seconds", "final mean return"):
        table.add_column(column, justify="left" if column in ("trainer", "envs") else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    console.print(table)
    with RESULTS.open("a") as file:
        file.write(json.dumps({"machine": describe_machine(), "mark": MARK, "num_envs": NUM_ENVS, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
