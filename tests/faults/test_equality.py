"""serial == threads == processes, to the bit."""

from __future__ import annotations

import hashlib
from contextlib import closing

import numpy as np
import pytest

import shoal

STEPS = 3000  # scripts/parity compares 10,000


def digest(vec, highest: int) -> str:
    """A hash of all that comes out of a rollout of STEPS steps."""
    random = np.random.default_rng(0)
    actions = random.integers(0, highest, (STEPS, vec.num_envs))
    found = hashlib.sha256()
    obs, _ = vec.reset(seed=7)
    found.update(np.ascontiguousarray(obs))
    for step in range(STEPS):
        obs, rewards, terminated, truncated, infos = vec.step(actions[step])
        for array in (obs, rewards, terminated, truncated):
            found.update(np.ascontiguousarray(array))
        done = terminated | truncated
        if done.any():
            found.update(np.ascontiguousarray(infos["final_obs"][done]))
            found.update(np.asarray(infos["final_info"]["episode"]["l"])[done].astype(np.int64))
            found.update(np.asarray(infos["final_info"]["episode"]["r"])[done].astype(np.float32))
    return found.hexdigest()


def hashes(vecs: dict, highest: int) -> dict[str, str]:
    found = {}
    for name, vec in vecs.items():
        with closing(vec()) as made:
            assert made.num_envs == 8
            found[name] = digest(made, highest)
    return found


@pytest.mark.timeout(120)
def test_native_envs_are_equal_everywhere():
    """Serial, threads, and inside process workers."""
    found = hashes(
        {
            "serial": lambda: shoal.make("cartpole", 8, backend="serial"),
            "threads": lambda: shoal.make("cartpole", 8, backend="threads", num_threads=2),
            "process": lambda: shoal.make(lambda: shoal.make("cartpole", 4), 2, backend="process", num_workers=2),
        },
        2,
    )
    assert len(set(found.values())) == 1, found


@pytest.mark.timeout(120)
def test_python_envs_are_equal_everywhere():
    """Serial, few workers, many workers."""
    env = "gymnasium:CartPole-v1"
    found = hashes(
        {
            "serial": lambda: shoal.make(env, 8, backend="serial"),
            "two": lambda: shoal.make(env, 8, backend="process", num_workers=2),
            "eight": lambda: shoal.make(env, 8, backend="process", num_workers=8),
        },
        2,
    )
    assert len(set(found.values())) == 1, found
