"""Envs of known cost: one takes no time, one sleeps."""

from __future__ import annotations

import time

import gymnasium
import numpy as np


class Instant(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    obs = np.zeros(4, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.obs, {}

    def step(self, action):
        return self.obs, 0.0, False, False, {}


class Sleepy(Instant):
    def step(self, action):
        time.sleep(0.001)
        return super().step(action)
