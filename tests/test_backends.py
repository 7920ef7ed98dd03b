"""Every backend equals `serial`, for every env, batch size and number of threads; groups equal the whole."""

from __future__ import annotations

import multiprocessing
import os
import time

import numpy as np
import pytest

import shoal
from shoal.entry import OPTIONS
from shoal.errors import ConfigError, UsageError
from shoal.spec import RESERVED_PARAMS
from shoal.vector.backends import BACKENDS, Backend, names_for
from shoal.vector.play import play
from shoal.vector.serial import SerialVec
from tests.envs import InfoEnv

# `scripts/parity` runs all of it for 10,000 steps at 4096 envs; here the large batch is shorter
STEPS, LARGE_STEPS = 3000, 150


@pytest.fixture(scope="module")
def reference():
    """Digests of 4096 envs stepped serially, after LARGE_STEPS, and of the first 257 after STEPS; per env, kept."""
    kept: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def get(env: str) -> tuple[np.ndarray, np.ndarray]:
        if env not in kept:
            large, small = shoal.make(env, 4096, backend="serial"), shoal.make(env, 257, backend="serial")
            large.reset(seed=11)
            small.reset(seed=11)
            kept[env] = play(large, LARGE_STEPS), play(small, STEPS)
        return kept[env]

    return get


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_equal_serial(env, threads, reference):
    large, small = reference(env)
    for count, expected, steps in ((4096, large, LARGE_STEPS), (257, small, 1000)):
        vec = shoal.make(env, count, backend="threads", num_threads=threads)
        vec.reset(seed=11)
        if count == 4096:
            assert (play(vec, steps) == expected).all()
        else:
            twin = shoal.make(env, count, backend="serial")
            twin.reset(seed=11)
            assert (play(vec, steps) == play(twin, steps)).all()
        vec.close()


@pytest.mark.parametrize("count", [1, 255, 256])
def test_batch_size_changes_nothing(env, count, reference):
    vec = shoal.make(env, count, backend="serial")
    vec.reset(seed=11)
    assert (play(vec, STEPS) == reference(env)[1][:count]).all()


def test_large_batch_equals_small(env, reference):
    vec = shoal.make(env, 257, backend="serial")
    vec.reset(seed=11)
    assert (play(vec, LARGE_STEPS) == reference(env)[0][:257]).all()


@pytest.mark.parametrize("options", [{"backend": "serial"}, {"backend": "threads", "num_threads": 2}])
def test_groups_equal_the_whole(env, options):
    """send and recv over 3 groups show each env the same as step over all."""
    whole = shoal.make(env, 200, backend="serial")
    parts = shoal.make(env, 200, num_groups=3, **options)
    first, _ = whole.reset(seed=4)
    agents, seen = whole.agents_per_env, []
    expected = [first.copy()]
    for step in range(40):
        whole.module.sample(whole.memory.address, step, 0, 200)
        expected.append(whole.step(whole.actions)[0].copy())
        seen.append(whole.actions.copy())
    parts.async_reset(seed=4)
    counts = np.zeros(200, int)
    for _ in range(3 * 40):
        obs, rewards, terminated, truncated, infos = parts.recv()
        ids = infos["env_id"]
        step = counts[ids[0]]
        rows = slice(ids[0] * agents, (ids[-1] + 1) * agents)
        assert (obs == expected[step][rows]).all()
        assert len(obs) == len(rewards) == len(terminated) == len(truncated) == len(ids) * agents
        counts[ids] += 1
        parts.send(seen[step][rows])
    assert (counts == 40).all()
    parts.close()


def test_groups_overlap():
    """While one group is in flight, send returns at once and the other group's arrays are not touched."""
    vec = shoal.make("cartpole", 128, backend="threads", num_threads=2, num_groups=2)
    vec.async_reset(seed=0)
    first, *_, infos = vec.recv()
    kept, ids = first.copy(), infos["env_id"].copy()
    assert ids.tolist() == list(range(64))
    second, *_, infos = vec.recv()
    vec.send(np.zeros(64, np.int64), env_id=infos["env_id"])
    vec.recv()
    assert (first == kept).all()
    vec.send(np.ones(64, np.int64), env_id=ids)
    obs = vec.recv()[0]
    assert np.shares_memory(obs, first)
    assert (obs != kept).any()
    vec.close()


def test_step_after_groups_come_home():
    vec = shoal.make("cartpole", 64, num_groups=2, backend="threads", num_threads=2)
    vec.async_reset(seed=0)
    with pytest.raises(UsageError, match="in flight"):
        vec.step(np.zeros(64, np.int64))
    vec.recv()
    vec.recv()
    vec.step(np.zeros(64, np.int64))
    vec.close()


def test_idle_pool_uses_no_cpu():
    vec = shoal.make("cartpole", 4096, backend="threads", num_threads=4)
    vec.reset(seed=0)
    for _ in range(50):
        vec.step(np.zeros(4096, np.int64))
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1  # four threads that spin would take 0.5 s or more
    vec.close()


def test_more_threads_than_envs_and_cores():
    vec, twin = shoal.make("cartpole", 3, backend="threads", num_threads=16), shoal.make("cartpole", 3)
    vec.reset(seed=0)
    twin.reset(seed=0)
    assert (play(vec, 200) == play(twin, 200)).all()
    vec.close()


def _play_in_child(vec, queue):
    queue.put(play(vec, 50).tolist())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_steps_on_alone():
    """fork copies the pool's memory but not its threads; the caller then does the work instead of hanging."""
    vec, twin = shoal.make("cartpole", 300, backend="threads", num_threads=2), shoal.make("cartpole", 300)
    vec.reset(seed=0)
    twin.reset(seed=0)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_play_in_child, args=(vec, queue))
    child.start()
    assert queue.get(timeout=20) == play(twin, 50).tolist()
    child.join(timeout=20)
    assert child.exitcode == 0
    vec.close()


def test_create_and_close_leaves_nothing():
    def threads() -> int:
        return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0

    before = threads()
    for _ in range(50):
        vec = shoal.make("cartpole", 64, backend="threads", num_threads=3)
        vec.reset(seed=0)
        vec.close()
        vec.close()
    dropped = shoal.make("cartpole", 64, backend="threads", num_threads=3)
    dropped.reset(seed=0)
    del dropped
    assert threads() == before


# ---- backends are plugins ----

NATIVE = [name for name in names_for("native") if name != "cuda"]  # benchmarks/gpu.py compares the GPU's


@pytest.mark.parametrize("backend", NATIVE)
def test_every_native_backend_equals_serial(backend):
    """A new file in shoal/vector is compared here at once."""
    expected = shoal.make("forage", 70, backend="serial")
    vec = shoal.make("forage", 70, backend=backend)
    for envs in (expected, vec):
        envs.reset(seed=5)
    assert (play(vec, 300) == play(expected, 300)).all()
    assert vec.drain_stats() == expected.drain_stats()
    vec.close()


# tests/test_ray.py compares the actors of Ray, where it is installed
@pytest.mark.parametrize("backend", [name for name in names_for("python") if name != "ray"])
def test_every_python_backend_equals_serial(backend):
    expected, vec = (shoal.make(InfoEnv, 4, backend=name) for name in ("serial", backend))
    assert (vec.reset(seed=5)[0] == expected.reset(seed=5)[0]).all()
    vec.action_space.seed(0)
    for _ in range(60):
        actions = vec.action_space.sample()
        theirs, ours = expected.step(actions), vec.step(actions)
        for mine, other in zip(ours[:4], theirs[:4]):
            assert np.array_equal(mine, other)
    assert vec.drain_stats() == expected.drain_stats()
    for envs in (vec, expected):
        envs.close()


def test_options_of_make_are_those_of_the_backends():
    """Each default is in the signature of make, for its help, and in the backend's file: they agree."""
    options = {}
    for name in BACKENDS.stock():
        backend = BACKENDS.find(name)
        options |= backend.shared if isinstance(backend.options, type) else backend.options
    assert options == OPTIONS
    assert set(options) <= RESERVED_PARAMS


def test_a_backend_from_outside_works_by_name_with_options_of_its_own():
    seen = {}

    def make_slowly(module, num_envs, *, delay_ms=0, **options):
        seen["delay_ms"] = delay_ms
        return SerialVec(module, num_envs, **options)

    BACKENDS.register("slow", Backend("serial, after a while", native=make_slowly, options={"delay_ms": 0}))
    try:
        vec = shoal.make("cartpole", 3, backend="slow", delay_ms=7, gravity=5.0)
        assert vec.get_params()["gravity"].tolist() == [5.0] * 3
        assert seen == {"delay_ms": 7}
        assert "slow" in names_for("native")
        with pytest.raises(ConfigError, match="num_threads=2 needs backend='threads', not 'slow'"):
            shoal.make("cartpole", 3, backend="slow", num_threads=2)
        with pytest.raises(ConfigError, match=r"backend='slow'.*Python envs have process, ray, serial"):
            shoal.make(InfoEnv, 2, backend="slow")
    finally:
        del BACKENDS._registered["slow"]
