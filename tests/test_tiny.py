"""The whole library in a few seconds: if this passes, most things work."""

from __future__ import annotations

import gymnasium
import numpy as np

import shoal
from shoal import registry


def test_tiny():
    assert len(registry.stock_names()) >= 8
    for name in registry.stock_names():
        vec = shoal.make(name, num_envs=65, backend="threads", num_threads=2, seed=1)
        obs, _ = vec.reset()
        assert obs.shape == vec.observation_space.shape
        vec.action_space.seed(0)
        for _ in range(20):
            obs, rewards, terminated, truncated, infos = vec.step(vec.action_space.sample())
        blob = vec.snapshot()
        assert (vec.restore(blob) == obs).all()
        assert vec.frame(0).ndim == 3
        assert isinstance(vec.drain_stats()["episodes"], int)
        vec.close()
    env = gymnasium.make("shoal/Cartpole-v0")
    env.reset(seed=0)
    assert np.isfinite(env.step(1)[1])
