"""An explicit reset after the end of an episode resets once: no second time by itself."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

import shoal
from tests.faults.envs import Actor, act

BACKENDS = {"serial": {"backend": "serial"}, "process": {"backend": "process", "num_workers": 2}}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_an_explicit_reset_after_the_end_is_the_only_one(autoreset, backend):
    """Item 16: obs[:, 1] counts how often an env was reset."""
    with closing(shoal.make(Actor, 4, autoreset=autoreset, **BACKENDS[backend])) as vec:
        obs, _ = vec.reset(seed=0)
        assert obs[:, 1].tolist() == [1, 1, 1, 1]
        obs, _, terminated, _, _ = vec.step(act(4, end=2))
        own = int(autoreset == "same_step")  # which has reset env 2 already, in that very step
        assert obs[:, 1].tolist() == [1, 1, 1 + own, 1]
        assert terminated.tolist() == [False, False, True, False]
        obs, _ = vec.reset(seed=10)
        assert obs.tolist() == [[0, 2, 10], [0, 2, 11], [0, 2 + own, 12], [0, 2, 13]]
        for tick in (1, 2):
            obs, rewards, terminated, truncated, _ = vec.step(act(4))
            assert obs[:, 1].tolist() == [2, 2, 2 + own, 2]
            assert obs[:, 0].tolist() == [tick] * 4
            assert rewards.tolist() == [1, 1, 1, 1]
            assert not (terminated | truncated).any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("autoreset", ["next_step", "disabled"])
def test_a_masked_reset_after_the_end_is_the_only_one(autoreset, backend):
    """Item 16: and the envs that it leaves out go on."""
    with closing(shoal.make(Actor, 4, autoreset=autoreset, **BACKENDS[backend])) as vec:
        vec.reset(seed=0)
        _, _, terminated, truncated, _ = vec.step(act(4, end=2))
        obs, _ = vec.reset(options={"reset_mask": np.array(terminated | truncated)})
        assert obs[:, 1].tolist() == [1, 1, 2, 1]
        obs, *_ = vec.step(act(4))
        assert obs[:, 1].tolist() == [1, 1, 2, 1]
        assert obs[:, 0].tolist() == [2, 2, 1, 2]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_reset_with_the_end_in_flight_is_the_only_one(autoreset):
    """Item 16, async: the end of an episode is on its way when reset() is called."""
    with closing(shoal.make(Actor, 4, autoreset=autoreset, backend="process", num_workers=4, batch_size=2)) as vec:
        vec.async_reset(seed=0)
        ids = vec.recv()[4]["env_id"].copy()
        vec.send(act(2, end=0), ids)
        obs, _ = vec.reset(seed=0)
        resets = obs[:, 1].copy()
        own = np.zeros(4, int)
        own[ids[0]] = autoreset == "same_step"
        assert resets.tolist() == (2 + own).tolist()
        obs, *_ = vec.step(act(4))
        assert obs[:, 1].tolist() == resets.tolist()
