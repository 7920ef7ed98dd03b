"""Your own env in Python: a Gymnasium class, stepped in worker processes and trained on.

python examples/custom_env.py --steps 200k

In C it would be a hundred times as fast: `shoal new my_env` writes a header to start from (docs/add-an-env.md).
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.train import train


class Chase(gymnasium.Env[Any, Any]):
    """Walk on a line of 21 places to the target, which moves when it is reached."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, max_steps: int = 50) -> None:
        self.max_steps = max_steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """A new game."""
        super().reset(seed=seed)
        self.at, self.target, self.steps = 10, int(self.np_random.integers(21)), 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One move. Only the time limit ends the game: that is a truncation, not a termination."""
        self.at = min(20, max(0, self.at + int(action) - 1))
        self.steps += 1
        reward = float(self.at == self.target)
        if reward:
            self.target = int(self.np_random.integers(21))
        return self.observe(), reward, False, self.steps >= self.max_steps, {}

    def observe(self) -> Any:
        """Where it is and where the target is, from -1 to 1."""
        return np.array([self.at / 10 - 1, self.target / 10 - 1], np.float32)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default="200k", help="steps to train for")
    parser.add_argument("--runs", default="runs", help="folder of all runs")
    flags = parser.parse_args()
    options = {"total_steps": flags.steps, "horizon": 64, "learning_rate": 1e-3}
    vec = {"num_envs": 8, "num_workers": 2}
    run = train(Chase, env={"max_steps": 50}, train=options, vec=vec, eval={"episodes": 20}, runs_folder=flags.runs)
    print(f"reached {run.summary['eval']['return']:.1f} targets a game")
