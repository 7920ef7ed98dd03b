"""Shared memory: refused with the bytes it needs, and good for as long as the contract says."""

from __future__ import annotations

import os
from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.errors import ConfigError, EnvCrashed
from shoal.vector import shared
from tests.faults.envs import Actor, act
from tests.faults.tools import ROOT, run_script, within


class Vast(gymnasium.Env):
    """Whose observations nobody can hold."""

    observation_space = spaces.MultiBinary(1 << 45)
    action_space = spaces.Discrete(2)


class Large(gymnasium.Env):
    """64 MiB for each observation."""

    observation_space = spaces.MultiBinary(1 << 26)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.ones(1 << 26, np.int8), {}

    def step(self, action):
        return np.ones(1 << 26, np.int8), 0.0, False, False, {}


def test_too_little_memory_is_told_in_bytes(monkeypatch):
    """Item 10: 64 MB, as a container's /dev/shm has."""
    monkeypatch.setattr(shared, "free_bytes", lambda: 64 << 20)
    with (
        within(5.0),
        pytest.raises(ConfigError, match=r"need 268,\d{3},\d{3} bytes .* 67,108,864 are free"),
    ):
        shoal.make(Large, 2, backend="process", num_workers=2)


def test_an_absurd_size_is_refused():
    """Item 10: before anything is reserved."""
    with within(5.0), pytest.raises(ConfigError, match=r"140,737,\d{3},\d{3},\d{3} bytes of shared memory"):
        shoal.make(Vast, 2, backend="process", num_workers=2)


def test_what_no_file_can_hold_is_refused(monkeypatch):
    """Item 10. (Never try a size that the kernel takes: reserving its pages brings the machine down.)"""
    size = 1 << 70
    monkeypatch.setattr(shared, "free_bytes", lambda: None)
    with within(5.0), pytest.raises(ConfigError, match=f"the system refused {size:,} bytes of shared memory"):
        shared.allocate(size)


@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_AS"])
def test_a_limit_of_the_system_is_told_in_bytes(limit):
    """Item 10: a real refusal, at the file and at the mapping; never SIGBUS."""
    script = f"""
import resource
import shoal
from tests.faults.test_memory import Large
size = 1 << 20
if "{limit}" == "RLIMIT_AS":
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize() + (100 << 20)
resource.setrlimit(resource.{limit}, (size, size))
try:
    shoal.make(Large, 2, backend="process", num_workers=2)
except shoal.ConfigError as error:
    print(error)
"""
    code, out, err = run_script(script.replace("shoal.ConfigError", "__import__('shoal.errors').errors.ConfigError"))
    assert (code, err) == (0, "")
    assert out.startswith("the system refused 268,")


def test_memory_of_a_refused_env_is_given_back(monkeypatch):
    """Item 10: a refusal in a worker's mapping, after the parent's, is told as well."""
    attach, parent = shared.attach, os.getpid()

    def limited(fd, size):
        if os.getpid() == parent:
            return attach(fd, size)
        raise shared._refused(size, OSError(12, "Cannot allocate memory"))

    monkeypatch.setattr(shared, "attach", limited)
    with (
        within(5.0),
        pytest.raises(EnvCrashed, match="env 0 raised in its setup: .*: Cannot allocate") as caught,
    ):
        shoal.make(Actor, 2, backend="process", num_workers=2, start_method="fork")
    assert type(caught.value.__cause__) is ConfigError


def test_copies_are_yours():
    """Item 18: with copy=True an array is never touched again, and mutating it touches no env."""
    with closing(shoal.make(Actor, 4, backend="process", num_workers=2, copy=True)) as vec:
        kept, _ = vec.reset(seed=0)
        kept[:] = -7
        results = [vec.step(act(4, end=2)) for _ in range(3)]
        for tick, (obs, rewards, terminated, truncated, infos) in enumerate(results, 1):
            assert obs[:, 0].tolist() == [tick, tick, 0, tick]
            assert terminated.tolist() == [False, False, True, False]
            assert infos["final_obs"][2].tolist() == [1, tick, 2]
            for array in (obs, rewards, terminated, truncated, infos["final_obs"], infos["final_info"]["episode"]["r"]):
                array[:] = 1
        obs, *_ = vec.step(act(4))
        assert obs[:, 0].tolist() == [4, 4, 1, 4]
        assert (kept == -7).all()


def test_views_hold_until_the_next_step_of_the_same_envs():
    """Item 18: what docs/design/memory.md says of arrays without a copy."""
    text = (ROOT / "docs" / "design" / "memory.md").read_text()
    assert "The next call that steps or resets the same envs overwrites it" in text.replace("\n", " ")
    with closing(shoal.make(Actor, 4, backend="process", num_workers=2)) as vec:
        first, _ = vec.reset(seed=0)
        second, *_ = vec.step(act(4))
        assert np.shares_memory(first, second)
        assert first[:, 0].tolist() == [1, 1, 1, 1]
        second[:] = -7  # a mutation reaches no env, and is gone after the next step
        obs, *_ = vec.step(act(4))
        assert obs[:, 0].tolist() == [2, 2, 2, 2]
        vec.close()
        assert obs[:, 0].tolist() == [2, 2, 2, 2]  # readable after close()


def test_views_of_envs_in_flight_are_apart():
    """Item 18: an env's rows stay while others step."""
    with closing(shoal.make(Actor, 4, backend="process", num_workers=2, batch_size=2)) as vec:
        vec.async_reset(seed=0)
        held, _, _, _, infos = vec.recv()
        ids = infos["env_id"].copy()
        other = vec.recv()[4]["env_id"].copy()
        for tick in range(1, 4):
            vec.send(act(2), other)
            obs, _, _, _, infos = vec.recv()
            assert infos["env_id"].tolist() == other.tolist()
            assert obs[:, 0].tolist() == [tick, tick]
        assert held[:, 0].tolist() == [0, 0]
        assert held[:, 2].tolist() == ids.tolist()


def test_a_kept_action_array_is_not_read_later():
    """Item 18: actions are copied in by send()."""
    with closing(shoal.make(lambda: Actor(nap_s=0.2), 2, backend="process", num_workers=1)) as vec:
        vec.async_reset(seed=0)
        vec.recv()
        actions = act(2, nap=0)
        vec.send(actions)
        actions[:] = Actor.WORDS.index("end")
        assert not vec.recv()[2].any()
