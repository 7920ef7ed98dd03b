"""Your own policy: any nn.Module that returns (logits, value).

python examples/custom_policy.py --steps 2M
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn

from shoal.train import train


class Residual(nn.Module):
    """Residual blocks, with an actor and a critic on top."""

    def __init__(self, observation_space: Any, action_space: Any, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(observation_space.shape[0], width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU()) for _ in range(2)
        )
        self.actor = nn.Linear(width, int(action_space.n))
        self.critic = nn.Linear(width, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Observations (rows, ...) to logits (rows, actions) and values (rows, 1)."""
        x = torch.relu(self.first(obs))
        for block in self.blocks:
            x = x + block(x)
        return self.actor(x), self.critic(x)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default="2M", help="steps to train for")
    parser.add_argument("--envs", type=int, default=1024, help="number of envs")
    parser.add_argument("--runs", default="runs", help="folder of all runs")
    flags = parser.parse_args()
    run = train(
        "breakout",
        policy=Residual,  # a class or a function of the two spaces, or a module
        train={"total_steps": flags.steps},
        vec={"num_envs": flags.envs},
        eval={"episodes": 20},
        runs_folder=flags.runs,
    )
    print(f"return {run.summary['eval']['return']:.1f}; weights in {run.last}")
