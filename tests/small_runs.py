"""Runs of every kind of policy, as small as they can be: for tests that load what a run learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.runs import Run
from tests.envs import Masked, MixedAgentsEnv
from tests.training import train_tiny

CHASE = str(Path(__file__).parent / "chase.h")


class Nested(gymnasium.Env):
    """Observations and actions of all kinds."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (6, 6, 3), np.uint8),
            "pose": spaces.Tuple((spaces.Box(-np.inf, np.inf, (), np.float64), spaces.Discrete(7, start=3))),
            "counts": spaces.Box(0, 60000, (2,), np.uint16),
            "switches": spaces.MultiBinary((2, 2)),
            "cards": spaces.MultiDiscrete([3, 40], dtype=np.int32),
        }
    )
    action_space = spaces.Dict(
        {
            "gear": spaces.Discrete(5, start=-2),
            "wheel": spaces.Box(np.array([-1, 0], np.float32), np.array([3, 9], np.float32)),
            "lights": spaces.MultiBinary(3),
            "arm": spaces.Tuple((spaces.MultiDiscrete([4, 2], start=[1, 0]), spaces.Box(0, 9, (1, 2), np.float64))),
        }
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.count += 1
        return self.observation_space.sample(), 1.0, self.count == 5, False, {}


RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "discrete": ("cartpole", {"train": {"normalize_obs": True}}),
    "box": ("pendulum", {"train": {"normalize_obs": True}}),
    "squash": ("pendulum", {"nn": {"squash": "tanh", "std": "state"}}),
    "lstm": ("memory", {"nn": {"core": "lstm"}}),
    "q": ("squared", {"algo": "dqn", "train": {"epsilon_end": 0.25}}),
    "dict": (Nested, {"train": {"normalize_obs": True}}),
    "masked": (Masked, {}),
    "team": (CHASE, {"nn": {"policies": "per_agent"}}),
    "shared": (CHASE, {"nn": {"core": "mingru"}}),
    "q team": ("vacuum", {"algo": "dqn", "train": {"policy": "per-agent"}, "env": {"preset": "duel-stun"}}),
    "unlike": (MixedAgentsEnv, {"nn": {"core": "mingru"}}),
}


class SmallRuns:
    """Call it with a name of RUNS: each run is trained once, with one checkpoint, when it is first asked for."""

    def __init__(self, folders: Any) -> None:
        self.folders = folders
        self.made: dict[str, Run] = {}

    def __call__(self, name: str) -> Run:
        if name not in self.made:
            env, tables = RUNS[name]
            is_python = env in (Nested, Masked, MixedAgentsEnv)
            options: dict[str, Any] = {"vec": {"num_envs": 4, "backend": "serial" if is_python else "threads"}}
            options |= {"save": {"every": 0}, "nn": {"hidden": 8}}
            options["train"] = {"total_steps": 256 if "algo" in tables else 64}
            options["vec"]["torch_threads"] = 1
            options = {key: {**options.get(key, {}), **tables.get(key, {})} for key in {*options, *tables} - {"algo"}}
            single = {"algo": tables["algo"]} if "algo" in tables else {}
            self.made[name] = train_tiny(env, self.folders.mktemp("runs"), **options, **single)
        return self.made[name]
