"""Random play that depends on (key, env, step) only, with a digest of all results for each env.

Two ways of stepping agree if their digests do. Tests, golden hashes and `shoal check` are based on this.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoal.spec import Array
from shoal.vector.native import NativeVec


def play(vec: NativeVec, steps: int, *, start: int = 0, watch: Callable[[int], None] | None = None) -> Array:
    """Steps `steps` times with random actions and returns a (num_envs,) digest of every byte of the results.

    `start` is the number of the first step, so that play can be continued; `watch(step)` is called after each step.
    """
    digests = np.zeros(vec.num_envs, np.uint64)
    address, module = vec.memory.address, vec.module
    for step in range(start, start + steps):
        module.sample(address, step, 0, vec.num_envs)
        vec.step(vec.actions)
        module.digest(address, digests.ctypes.data, 0, vec.num_envs)
        if watch:
            watch(step)
    return digests


def golden(vec: NativeVec) -> str:
    """A short hash of 1,000 steps from seed 0. It changes if the env's behaviour does."""
    vec.reset(seed=0)
    digests = play(vec, 1000)
    return f"{np.bitwise_xor.reduce(digests * (2 * np.arange(len(digests), dtype=np.uint64) + 1)):016x}"
