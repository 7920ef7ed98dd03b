"""Edges: exit, fork, interrupts and resets while groups are in flight."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import shoal


def run(code: str, *paths: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*paths, os.getcwd()])
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60, env=env
    )


IN_FLIGHT = """
import {first}, signal
signal.alarm(15)
holder = {{}}
{register}
import shoal
holder["v"] = v = shoal.make("breakout", 65536, backend="threads", num_threads=2, num_groups=2)
v.async_reset(seed=0)
"""


def test_closing_in_an_atexit_function():
    """Registered before the first make, so it runs after weakref.finalize has freed the pool."""
    done = run(IN_FLIGHT.format(first="atexit", register="atexit.register(lambda: holder['v'].close())"))
    assert done.returncode == 0, done


def test_a_gymnasium_that_closes_in_del():
    """gymnasium 1.1 to 1.2.3 have VectorEnv.__del__; at exit it runs after the pool was freed."""
    code = IN_FLIGHT.format(
        first="gymnasium.vector",
        register="exec('def d(self): self.closed or self.close()', names := {})\n"  # its globals must not keep v alive
        "gymnasium.vector.VectorEnv.__del__ = names['d']",
    )
    assert run(code).returncode == 0


def test_init_that_raises_can_be_closed():
    """With gymnasium 1.1 to 1.2.3, __del__ closes an env whose __init__ raised."""
    from shoal.vector.threads import ThreadsVec

    vec = ThreadsVec.__new__(ThreadsVec)
    vec.close()


def test_exit_while_a_daemon_thread_steps():
    code = """
import threading, time, shoal, numpy as np
v = shoal.make("breakout", 65536, backend="threads", num_threads=2)
v.reset(seed=0)
a = np.zeros(65536, np.int64)
def loop():
    while True: v.step(a)
threading.Thread(target=loop, daemon=True).start()
time.sleep(0.3)
"""
    assert [run(code).returncode for _ in range(4)] == [0] * 4


FORK = """
import os, signal, time, shoal, numpy as np
{make}
for k in range({times}):
    {before}
    pid = os.fork()
    if pid == 0:
        signal.alarm(3)
        {child}
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, f"child {{k}} hung"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_forked_while_workers_go_to_sleep():
    code = FORK.format(
        make='v = shoal.make("squared", 64, backend="threads", num_threads=32); v.reset(seed=0); a = np.zeros(64, int)',
        times=60,
        before="v.step(a)",
        child="v.step(a)",
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_forked_in_flight():
    code = FORK.format(
        make='v = shoal.make("forage", 65536, backend="threads", num_threads=2, num_groups=2)',
        times=2,
        before="v.async_reset(seed=0); time.sleep(0.01)",
        child="v.recv(); v.recv()",
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_an_interrupted_recv_loses_no_group():
    vec = interrupted_in_recv(32768)
    assert vec.recv()[4]["env_id"][0] == 0
    assert vec.recv()[4]["env_id"][0] == 16384
    vec.close()


def interrupted_in_recv(num_envs):
    """A vec whose first recv() was interrupted. A signal that comes before or after recv() is ignored."""

    def interrupt(_, frame):
        while frame is not None and frame.f_code.co_name != "recv":
            frame = frame.f_back
        if frame is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(20):  # recv() may return before the first signal
            vec = shoal.make("forage", num_envs, backend="threads", num_threads=2, num_groups=2)
            vec.async_reset(seed=0)
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            try:
                vec.recv()
            except KeyboardInterrupt:
                return vec
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            vec.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    raise AssertionError("recv() was never interrupted")


def test_a_masked_reset_waits_for_the_resets_in_flight():
    """It gave them its own mask: envs outside it were never reset and are all zero bytes."""
    vec = shoal.make("breakout", 16384, backend="threads", num_threads=2, num_groups=2)
    expected, _ = shoal.make("breakout", 16384, backend="serial").reset(seed=0)
    vec.async_reset(seed=0)
    mask = np.zeros(16384, bool)
    mask[-1] = True
    obs, _ = vec.reset(options={"reset_mask": mask})
    assert (obs[:-1] == expected[:-1]).all()
    vec.close()


def test_a_masked_reset_leaves_groups_that_can_be_sent():
    vec = shoal.make("cartpole", 128, num_groups=2)
    vec.async_reset(seed=0)
    vec.reset(options={"reset_mask": np.arange(128) == 0})
    vec.send(np.zeros(64, np.int64), env_id=np.arange(64))
    assert len(vec.recv()[0]) == 64


def test_reset_with_a_seed_while_next_step_resets_are_in_flight():
    """step_env writes b->seeds from many threads; it put the old pointer back over the new one (and it dangles)."""
    count, differ = 4096, 0
    expected, _ = shoal.make("forage", count, backend="serial", max_steps=1).reset(seed=5)
    actions = np.zeros((count * 2, 2), np.int64)
    for _ in range(20):
        vec = shoal.make(
            "forage", count, backend="threads", num_threads=2, num_groups=2, autoreset="next_step", max_steps=1
        )
        vec.async_reset(seed=0)
        for _ in range(2):
            for _ in range(2):
                vec.recv()
            for group in (0, 1):
                vec.send(actions, env_id=np.arange(count // 2) + group * count // 2)
        obs, _ = vec.reset(seed=5)
        differ += bool((obs != expected).any())
        vec.close()
    assert differ == 0
