"""Every VecEnv has all of the protocol of vector/base.py, so that no caller asks for a concrete class."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import UsageError
from tests.envs import CounterEnv

KINDS = {
    "native serial": lambda **options: shoal.make("cartpole", 6, backend="serial", **options),
    "native threads": lambda **options: shoal.make("cartpole", 6, backend="threads", num_threads=2, **options),
    "native agents": lambda **options: shoal.make("forage", 6, backend="serial", **options),
    "python serial": lambda **options: shoal.make(CounterEnv, 6, backend="serial", **options),
    "process": lambda **options: shoal.make(CounterEnv, 6, num_workers=2, **options),
}


@pytest.fixture(params=KINDS)
def vec(request):
    made = KINDS[request.param]()
    yield made
    made.close()


def test_every_backend_has_the_whole_protocol(vec):
    agents = vec.agents_per_env
    assert (vec.num_envs, vec.num_rows) == (6, 6 * agents)
    assert (str(vec.device), vec.is_on_gpu, vec.copy) == ("cpu", False, False)
    assert vec.parallelism == (2 if vec.backend in ("threads", "process") else 1)
    assert len(vec.agent_spaces.agents) == agents
    assert vec.agent_spaces.alike
    assert vec.agent_spaces.observation_spaces[0] == vec.single_observation_space
    assert vec.ranges == ((0, 6),)  # before any reset
    assert vec.has_dead_rows == (agents > 1)
    vec.reset(seed=0)
    assert vec.current_infos()["alive"].tolist() == [True] * vec.num_rows
    assert vec.drain_stats() == {"episodes": 0}
    assert vec.rows().num_envs == vec.num_rows
    assert list(vec.agents().possible_agents) == list(vec.agent_spaces.agents)


def test_native_envs_have_a_spec_params_and_snapshots(vec):
    is_native = vec.native_spec is not None
    assert vec.can_snapshot == is_native
    vec.reset(seed=0)
    if is_native:
        assert vec.mask_size == vec.native_spec.mask_size
        assert vec.time_limit == int(vec.get_params()["max_steps"][0])
        vec.restore(vec.snapshot())
        return
    assert (vec.mask_size, vec.time_limit) == (0, 0)
    for call in (vec.snapshot, lambda: vec.restore(b"")):
        with pytest.raises(UsageError, match="for native envs"):
            call()
    for call in (vec.get_params, lambda: vec.set_params(gravity=1.0)):
        with pytest.raises(UsageError, match="Python envs take constructor arguments"):
            call()


def test_time_limit_is_the_shortest_of_all_envs():
    vec = shoal.make("cartpole", 3)
    vec.set_params(max_steps=np.array([0, 40, 30]))
    assert vec.time_limit == 30
    vec.set_params(max_steps=0)
    assert vec.time_limit == 0


@pytest.mark.parametrize("options", [{"backend": "serial"}, {"backend": "threads", "num_threads": 2}])
def test_ranges_of_groups_are_what_recv_returns(options):
    vec = shoal.make("cartpole", 10, num_groups=3, **options)
    expected = vec.ranges
    assert (expected[0][0], expected[-1][1], len(expected)) == (0, 10, 3)
    assert received(vec, 3) == set(expected)
    vec.close()


def test_ranges_of_python_envs_are_what_recv_returns():
    for options in ({"num_workers": 4, "batch_size": 4, "zero_copy": True}, {"num_workers": 4, "batch_size": 2}):
        vec = shoal.make(CounterEnv, 8, **options)
        expected = vec.ranges
        assert received(vec, len(expected)) == set(expected)
        assert len(expected) == 8 // options["batch_size"]
        vec.close()
    mixed = shoal.make(CounterEnv, 8, num_workers=4, batch_size=4)  # the first that are ready: not always the same
    assert mixed.ranges == ((0, 8),)
    mixed.close()


def received(vec, count):
    vec.async_reset(seed=0)
    batches = set()
    for _ in range(count):
        ids = vec.recv()[4]["env_id"]
        batches.add((int(ids[0]), int(ids[-1]) + 1))
    return batches


@pytest.mark.parametrize("kind", ["native serial", "native agents", "python serial", "process"])
def test_next_step_marks_rows_whose_next_step_is_a_reset(kind):
    vec = KINDS[kind](autoreset="next_step")
    assert vec.has_dead_rows
    vec.async_reset(seed=0)
    assert vec.recv()[4]["alive"].all()
    actions = vec.action_space.sample()
    ended = np.zeros(vec.num_envs, bool)
    for _ in range(300):
        vec.send(actions)
        *_, infos = vec.recv()
        expected = np.repeat(~vec.ended, vec.agents_per_env)
        assert not (infos["alive"] & ~expected).any()
        assert (infos["alive"] == vec.current_infos()["alive"]).all()
        ended |= vec.ended
        if vec.agents_per_env == 1:
            assert (infos["alive"] == expected).all()
    assert ended.any()
    vec.close()


@pytest.mark.parametrize(("old", "new"), [("spec_env", "native_spec"), ("face", "agent_spaces")])
def test_old_names_warn_with_the_new_one(vec, old, new):
    with pytest.warns(DeprecationWarning, match=f"VecEnv.{old} is deprecated: use {new}"):
        assert getattr(vec, old) is getattr(vec, new)
