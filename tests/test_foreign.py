"""ForeignVec: vector envs of other libraries have the protocol of a VecEnv, and step as they do by themselves."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import shoal
from shoal.errors import ConfigError, UsageError
from shoal.vector.foreign import ForeignVec, as_vec_env
from tests.envs import CounterEnv, DictEnv


def vector(mode, count=3, env=CounterEnv):
    return SyncVectorEnv([env] * count, autoreset_mode=mode)


def test_a_vec_env_is_returned_unchanged():
    vec = shoal.make("cartpole", 2)
    assert as_vec_env(vec) is vec


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_it_has_the_whole_protocol(mode):
    vec = as_vec_env(vector(mode))
    assert isinstance(vec, ForeignVec)
    assert (vec.backend, vec.num_envs, vec.num_rows, vec.agents_per_env) == ("gymnasium", 3, 3, 1)
    assert (vec.native_spec, vec.mask_size, vec.time_limit, vec.ranges) == (None, 0, 0, ((0, 3),))
    assert (str(vec.device), vec.is_on_gpu, vec.parallelism, vec.can_snapshot) == ("cpu", False, 1, False)
    assert vec.has_dead_rows == (mode == AutoresetMode.NEXT_STEP)
    assert vec.agent_spaces.agents == ("agent_0",)
    with pytest.raises(UsageError, match="step before reset"):
        vec.step(vec.action_space.sample())
    with pytest.raises(UsageError, match="nothing in flight"):
        vec.recv()
    vec.reset(seed=0)
    assert vec.current_infos()["alive"].all()
    with pytest.raises(UsageError, match="for native envs"):
        vec.snapshot()
    vec.close()
    with pytest.raises(UsageError, match="closed"):
        vec.reset()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("env", [CounterEnv, DictEnv])
def test_send_and_recv_show_what_step_shows(mode, env):
    plain, vec = vector(mode, env=env), as_vec_env(vector(mode, env=env))
    first, _ = plain.reset(seed=5)
    vec.async_reset(seed=5)
    obs, rewards, terminated, truncated, infos = vec.recv()
    assert_equal(obs, first)
    assert not rewards.any()
    plain.action_space.seed(1)
    returns, lengths, ended = np.zeros(3), np.zeros(3, int), []
    skips = np.zeros(3, bool)
    for _ in range(60):
        actions = plain.action_space.sample()
        expected = plain.step(actions)
        vec.send(actions)
        obs, rewards, terminated, truncated, infos = vec.recv()
        assert_equal(obs, expected[0])
        assert_equal((rewards, terminated, truncated), (expected[1].astype(np.float32), *expected[2:4]))
        done = terminated | truncated
        returns, lengths = returns + rewards * ~skips, lengths + ~skips
        ended += [(returns[k], lengths[k]) for k in np.flatnonzero(done)]
        returns[done], lengths[done] = 0.0, 0
        if mode == AutoresetMode.NEXT_STEP:
            assert (infos["alive"] == ~done).all()
            assert_equal(infos["final_obs"], obs)
            skips = done
        for row in np.flatnonzero(done) if mode == AutoresetMode.SAME_STEP else ():
            assert_equal(row_of(infos["final_obs"], row), expected[4]["final_obs"][row])
    stats = vec.drain_stats()
    assert stats["episodes"] == len(ended) > 0
    assert stats["return"]["mean"] == pytest.approx(np.mean([total for total, _ in ended]))
    assert stats["length"] == {
        "mean": pytest.approx(np.mean([length for _, length in ended])),
        "min": min(length for _, length in ended),
        "max": max(length for _, length in ended),
    }
    assert vec.drain_stats() == {"episodes": 0}
    vec.close()


def test_what_is_no_vector_env_is_refused():
    with pytest.raises(ConfigError, match="CounterEnv is not a vector env: it has no num_envs"):
        as_vec_env(CounterEnv())
    with pytest.raises(ConfigError, match="autoreset disabled"):
        as_vec_env(vector(AutoresetMode.DISABLED))


def row_of(batch, row):
    if isinstance(batch, dict):
        return {key: row_of(part, row) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(row_of(part, row) for part in batch)
    return batch[row]


def assert_equal(left, right):
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_equal(left[key], right[key])
    elif isinstance(left, tuple):
        for mine, theirs in zip(left, right, strict=True):
            assert_equal(mine, theirs)
    else:
        assert np.array_equal(left, right)
