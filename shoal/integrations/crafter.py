"""Crafter: `crafter:Reward`. Survival in a 2-D world with 22 achievements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.integrations.framework import Framework, Reference
from shoal.spec import Array


class Crafter(Framework):
    """The two envs of the package: with and without its reward."""

    title = "survival in a 2-D world, 22 achievements"
    packages = {"crafter": "crafter>=1.8"}
    extra = "crafter"
    example = "Reward"
    stem = "Crafter"
    pattern = "Reward or NoReward"
    preprocessing = "64x64 pixels in colour"
    network = "NatureCNN, 512"
    options = {
        "train": {"total_steps": 1_000_000, "normalize_obs": False, "normalize_reward": False},
        "vec": {"num_envs": 8},
        "nn": {"encoder": "nature"},
    }
    references = (
        Reference("Reward", 4.6, "PPO, 1M steps: score in % (geometric mean of success rates)", "Hafner 2021, table 1"),
    )
    notes = (
        "The infos of an episode's last step have `achievements`, the number unlocked, and `unlocked/NAME` of each.",
        "`--env.stats FILE` appends a line of JSON for each episode, in the form of crafter.Recorder: the score is the "
        "geometric mean of success rates over the episodes of training.",
        "Stock env `craftax_classic` is the same game in C, a thousand times faster.",
    )

    def names(self) -> list[str]:
        """With and without reward."""
        return ["NoReward", "Reward"]

    def make(
        self, name: str, *, render_mode: str | None = None, size: int = 64, length: int = 10_000, stats: str = ""
    ) -> Any:
        """One world. size: pixels a side; length: the time limit in steps; stats: a file for the episodes' facts."""
        if stats and not Path(stats).parent.is_dir():
            raise ConfigError(f"crafter:{name}: stats={stats}: there is no folder {Path(stats).parent}. Make it first.")
        return World(render_mode, size, length, name == "Reward", stats)


class World(gymnasium.Env[Any, Any]):
    """Crafter with today's API: seeds, truncation by its time limit, and infos at the end of episodes alone."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None, size: int, length: int, has_reward: bool, stats: str) -> None:
        import crafter

        self.render_mode, self.stats = render_mode, stats
        self._return, self._length = 0.0, 0
        self.world = crafter.Env(size=(size, size), length=length, reward=has_reward, seed=0)
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = spaces.Discrete(len(self.world.action_names))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """Starts a life. Worlds follow from the seed and the number of the episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.world._seed, self.world._episode = seed, 0
        self._return, self._length = 0.0, 0
        return self.world.reset(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One step."""
        obs, reward, done, info = self.world.step(int(action))
        self._return, self._length = self._return + float(reward), self._length + 1
        if not done:
            return obs, float(reward), False, False, {}
        is_dead = info["discount"] == 0.0
        unlocked = {f"unlocked/{name}": float(count > 0) for name, count in info["achievements"].items()}
        infos = {"achievements": sum(unlocked.values()), **unlocked}
        if self.stats:
            counts = {f"achievement_{name}": int(count) for name, count in info["achievements"].items()}
            line = json.dumps({"length": self._length, "reward": round(self._return, 1), **counts}) + "\n"
            with open(self.stats, "ab", buffering=0) as file:  # one write: workers do not mix their lines
                file.write(line.encode())
        return obs, float(reward), is_dead, not is_dead, infos

    def render(self) -> Any:
        """The view at 400x400 pixels."""
        return self.world.render((400, 400)) if self.render_mode == "rgb_array" else None


FRAMEWORK = Crafter("crafter")
