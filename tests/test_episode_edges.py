"""Edges: episode modes, several agents, snapshots, params and seeds."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError, ShoalError, SnapshotError, UsageError


def test_stats_are_shown_only_of_games_that_ended():
    """An agent that dies before its game ends has `_deaths` True, but the value is of an earlier game, or 0."""
    vec = shoal.make("forage", 64, seed=0, hunger=0.05)
    vec.reset()
    vec.action_space.seed(0)
    for _ in range(60):
        infos = vec.step(vec.action_space.sample())[4]
        if "final_info" in infos:
            over = np.repeat(vec.memory.arrays["tick"] == 0, 4)
            assert not (infos["final_info"]["_deaths"] & ~over).any()


def test_send_refuses_an_ended_env_as_step_does():
    vec = shoal.make("cartpole", 4, autoreset="disabled", seed=0)
    vec.reset()
    zeros = np.zeros(4, np.int64)
    while not vec.memory.arrays["ended"].any():
        vec.step(zeros)
    with pytest.raises(UsageError, match="has ended"):
        vec.send(zeros)


def test_a_snapshot_of_an_ended_env_in_same_step():
    """The SIMD path ignores `ended` and steps the dead env; the plain path resets it: other bytes, and wrong stats."""
    zeros = np.zeros(4, np.int64)
    source = shoal.make("cartpole", 4, autoreset="disabled", seed=0)
    source.reset()
    while not source.memory.arrays["ended"].any():
        source.step(zeros)
    ended = source.memory.arrays["ended"].copy()
    shared, each = shoal.make("cartpole", 4), shoal.make("cartpole", 4, gravity=[9.8] * 4)
    for vec in (shared, each):
        vec.restore(source.snapshot())
    first, second = (vec.step(zeros) for vec in (shared, each))
    assert (first[2] == second[2]).all()
    assert (first[0] == second[0]).all()
    assert not first[2][ended].any(), "the ended episode was stepped on"


def test_the_advice_for_disabled_can_be_followed_with_several_agents():
    """The error says reset_mask = terminated | truncated, which is over rows and lacks those that died before."""
    vec = shoal.make("forage", 8, autoreset="disabled", seed=0, hunger=0.05)
    vec.reset()
    vec.action_space.seed(0)
    while not vec.memory.arrays["ended"].any():
        vec.step(vec.action_space.sample())
    with pytest.raises(UsageError) as caught:
        vec.step(vec.action_space.sample())
    assert "terminated | truncated" not in str(caught.value)


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
def test_the_last_obs_of_an_agent_that_dies_early(mode):
    vec = shoal.make("forage", 32, autoreset=mode, seed=0, hunger=0.05)
    vec.reset()
    vec.action_space.seed(0)
    for _ in range(16):
        obs, _, terminated, _, infos = vec.step(vec.action_space.sample())
    row = int(terminated.argmax())
    assert terminated[row]
    assert obs[row].any() or infos["final_obs"][row].any()


def test_a_damaged_snapshot_is_refused():
    """Today its bytes are believed: forage indexes with them, and the process dies with SIGSEGV."""
    vec = shoal.make("forage", 4, seed=0)
    vec.reset()
    blob = bytearray(vec.snapshot())
    blob[-40] ^= 0xFF
    with pytest.raises(SnapshotError):
        vec.restore(bytes(blob))


def test_a_param_that_overflows_float32():
    with pytest.raises(ConfigError, match="finite"):
        shoal.make("cartpole", gravity=1e300)


def test_a_float_param_may_be_a_large_int():
    assert shoal.make("cartpole", gravity=10**10).get_params()["gravity"][0] == np.float32(1e10)


@pytest.mark.parametrize("seed", [np.int8(100), np.uint8(200), np.int64(2**63 - 1)])
def test_seeds_of_small_numpy_types(seed):
    obs, _ = shoal.make("cartpole", 4096, backend="serial").reset(seed=seed)
    assert (obs == shoal.make("cartpole", 4096, backend="serial").reset(seed=int(seed))[0]).all()


def test_other_bad_input_is_a_shoal_error():
    vec = shoal.make("cartpole", 4, seed=0)
    vec.reset()
    agents = shoal.make("forage", 2, seed=0).agents()
    agents.reset()
    uneven = {f"agent_{k}": np.zeros((2 + (k == 3), 2), int) for k in range(4)}
    for call in (
        lambda: vec.step([[1], [2, 3], 1, 1]),
        lambda: vec.set_params(gravity=[[1], [2, 3]]),
        lambda: vec.reset(seed={1: 2, 3: 4, 5: 6, 7: 8}),
        lambda: vec.reset(options="x"),
        lambda: vec.frame(1.0),
        lambda: vec.frame(0, 100.5),
        lambda: agents.step(uneven),
    ):
        with pytest.raises(ShoalError):
            call()


def test_one_value_for_all_is_fast_again():
    """After per-env params, giving every param one value still leaves the slow path (4 times slower cartpole)."""
    vec = shoal.make("cartpole", 256, backend="serial", gravity=np.full(256, 9.8))
    vec.set_params(gravity=9.8)
    assert vec.memory.struct.params_stride == 0
