"""Envs that start processes and threads, write to stdout, or are vector envs of processes themselves."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

import shoal
from tests.faults.envs import Actor, act
from tests.faults.tools import START_METHODS, run_script, within


def square(pipe) -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # what an env starts is the env's to end, also when its worker is killed
        if pipe.poll(0.05):
            if (number := pipe.recv()) is None:
                return
            pipe.send(number**2)


class WithProcess(Actor):
    """Has a child of multiprocessing, and runs one of subprocess in each step."""

    def __init__(self, daemon: bool = True) -> None:
        super().__init__()
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=square, args=(theirs,), daemon=daemon)
        self.process.start()

    def step(self, action):
        self.pipe.send(self.tick)
        result = super().step(action)
        told = int(subprocess.run([sys.executable, "-c", "print(7)"], stdout=subprocess.PIPE, check=True).stdout)
        return (*result[:4], {"square": self.pipe.recv(), "told": told})

    def close(self) -> None:
        self.pipe.send(None)
        self.process.join()


@pytest.mark.parametrize("start_method", START_METHODS)
def test_envs_may_have_processes(start_method):
    """A worker is no daemon to its env."""
    with closing(shoal.make(WithProcess, 2, backend="process", num_workers=2, start_method=start_method)) as vec:
        vec.reset(seed=0)
        for tick in range(3):
            infos = vec.step(act(2))[4]
            assert infos["square"].tolist() == [tick**2] * 2
            assert infos["told"].tolist() == [7, 7]
        with within(5.0):
            vec.close()


def test_a_child_of_an_env_does_not_hold_up_close():
    """Item 6: it may inherit every descriptor of its worker, and outlive it."""

    class Forgetful(WithProcess):
        def close(self) -> None:
            threading.Timer(1.0, self.pipe.send, (None,)).start()  # so that this test leaves nothing behind
            time.sleep(0.2)

    vec = shoal.make(lambda: Forgetful(daemon=False), 2, backend="process", num_workers=2)
    vec.reset(seed=0)
    with within(5.0):
        vec.close()


def test_a_dead_worker_whose_child_lives_is_noticed():
    """Item 3: the child holds the worker's pipes open, yet the death is told within 2 s."""
    with closing(shoal.make(WithProcess, 2, backend="process", num_workers=2)) as vec:
        vec.reset(seed=0)
        with within(2.0), pytest.raises(shoal.errors.WorkerDied, match="signal 9"):
            vec.step(act(2, kill=1))


def test_envs_may_have_threads():
    """One that never ends does not hold up close()."""

    class WithThread(Actor):
        def __init__(self) -> None:
            super().__init__()
            threading.Thread(target=time.sleep, args=(60,)).start()

    vec = shoal.make(WithThread, 2, backend="process", num_workers=2)
    vec.reset(seed=0)
    vec.step(act(2))
    with within(5.0):
        vec.close()


@pytest.mark.parametrize("start_method", START_METHODS)
def test_envs_may_be_process_envs(start_method):
    """Processes in processes."""

    def inner():
        return shoal.make(Actor, 2, backend="process", num_workers=2, start_method=start_method)

    options = {"backend": "process", "num_workers": 2, "start_method": start_method}
    with closing(shoal.make(inner, 2, **options)) as vec:
        assert vec.num_envs == 4
        vec.reset(seed=0)
        obs, *_ = vec.step(act(4))
        assert obs[:, 2].tolist() == [0, 1, 2, 3]
        with within(5.0):
            vec.close()


@pytest.mark.parametrize("start_method", START_METHODS)
def test_envs_may_write_to_stdout(start_method):
    """It comes out once, and breaks nothing."""
    script = f"""
import shoal
from tests.faults.envs import Actor, act
print("before")
vec = shoal.make(Actor, 2, backend="process", num_workers=2, start_method="{start_method}")
vec.reset(seed=0)
vec.step(act(2, write=1))
vec.close()
print("after")
"""
    assert run_script(script) == (0, "before\nan env talks\nafter\n", "")
