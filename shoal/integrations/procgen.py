"""Procgen: `procgen:coinrun`. 16 games whose levels are generated from seeds."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.integrations.framework import Framework, Reference, import_quietly
from shoal.spec import Array

GAMES = (
    "bigfish bossfight caveflyer chaser climber coinrun dodgeball fruitbot heist jumper leaper maze miner ninja "
    "plunder starpilot"
).split()


class Procgen(Framework):
    """The games of procgen-mirror, a build of OpenAI's procgen for today's Pythons."""

    title = "16 games with generated levels"
    packages = {"procgen": "procgen-mirror>=0.10.7", "gym3": "gym3>=0.3.3", "gym": "gym>=0.26"}
    install = (
        "pip install --no-deps procgen-mirror==0.10.7 gym3==0.3.3 gym==0.26.2 gym_notices",
        "pip install moderngl glfw filelock cffi",
    )
    libraries = {  # of Qt, which draws the games
        "libGL.so.1": "apt-get install libgl1",
        "libgthread-2.0.so.0": "apt-get install libglib2.0-0",
    }
    example = "coinrun"
    pattern = "GAME"
    preprocessing = "64x64 pixels in colour, rewards as they are"
    network = "ImpalaCNN, 256"
    options = {
        "train": {
            "total_steps": 25_000_000,
            "horizon": 256,
            "epochs": 3,
            "minibatches": 8,
            "learning_rate": 5e-4,
            "gamma": 0.999,
            "clip": 0.2,
            "entropy_coef": 0.01,
            "normalize_obs": False,
            "normalize_reward": True,
        },
        "eval": {"greedy": False},  # as published scores: actions are sampled
        "vec": {"num_envs": 64},
        "nn": {"encoder": "impala", "hidden": 256, "layers": 1, "activation": "relu", "separate": False},
    }
    references = (
        Reference("coinrun", 9.8, "a person, easy, 100 episodes", "discourse.aicrowd.com/t/human-score/3677"),
        Reference("starpilot", 32.47, "PPO, easy, 25M steps, +- 11.2 over 3 seeds", "CleanRL docs, ppo_procgen.py"),
        Reference("bossfight", 9.63, "PPO, easy, 25M steps, +- 2.35 over 3 seeds", "CleanRL docs, ppo_procgen.py"),
    )
    notes = (
        "`--env.mode hard`, `--env.num-levels 200 --env.start-level 0`: as in the paper. 0 levels: all.",
        "Plain procgen has no wheel for Python 3.11. Its pins (numpy<2) are left out by --no-deps; it runs.",
        "An episode's last observation is not available: the games reset themselves.",
    )

    def names(self) -> list[str]:
        """The 16 games."""
        return GAMES

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        mode: str = "easy",
        num_levels: int = 0,
        start_level: int = 0,
        backgrounds: bool = True,
        center_agent: bool = True,
        sequential: bool = False,
    ) -> Any:
        """One game. mode: easy, hard, extreme, memory or exploration."""
        modes = ("easy", "hard", "extreme", "memory", "exploration")
        if mode not in modes:
            raise ConfigError(f"procgen:{name}: mode={mode!r} must be one of {', '.join(modes)}.")
        options = {
            "distribution_mode": mode,
            "num_levels": num_levels,
            "start_level": start_level,
            "use_backgrounds": backgrounds,
            "center_agent": center_agent,
            "use_sequential_levels": sequential,
        }
        return Game(name, render_mode, options)


class Game(gymnasium.Env[Any, Any]):
    """One game. It resets itself: after an end, the observation is the first one of the next episode."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, name: str, render_mode: str | None, options: dict[str, Any]) -> None:
        self.name, self.render_mode, self.game_options = name, render_mode, options
        self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = spaces.Discrete(15)
        self.game: Any = None
        self._is_fresh = False

    def _load(self, seed: int) -> None:
        procgen = import_quietly("procgen")
        self.close()
        self.game = procgen.ProcgenGym3Env(
            num=1,
            env_name=self.name,
            rand_seed=seed,
            num_threads=0,
            render_mode=self.render_mode,
            **self.game_options,
        )
        self._is_fresh = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """Starts an episode: the one that is shown after an end, or another if the last one has not ended."""
        super().reset(seed=seed)
        if seed is not None or self.game is None:
            self._load(int(self.np_random.integers(2**31 - 1)))
        elif not self._is_fresh:
            self.game.act(np.array([-1], np.int32))  # a reset
        self._is_fresh = False
        return self._observe()[1], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One frame."""
        self.game.act(np.array([action], np.int32))
        reward, obs, is_first = self._observe()
        self._is_fresh = is_first
        return obs, reward, is_first, False, {}

    def _observe(self) -> tuple[float, Array, bool]:
        reward, obs, first = self.game.observe()
        return float(reward[0]), obs["rgb"][0], bool(first[0])

    def render(self) -> Any:
        """The game at 512x512 pixels."""
        return self.game.get_info()[0]["rgb"] if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Frees the game."""
        if self.game is not None:
            with contextlib.suppress(Exception):
                self.game.close()
            self.game = None


FRAMEWORK = Procgen("procgen")
