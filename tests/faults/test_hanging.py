"""Envs that hang: a timeout names them, what they say later is dropped, and close() does not wait for them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing

import pytest

import shoal
from shoal.errors import EnvTimeout, UsageError
from tests.faults.envs import Actor, act, step_for_ever
from tests.faults.tools import START_METHODS, within

TIMEOUT_S = 0.5


@pytest.mark.parametrize("word", ["sleep", "stop", "spin", "hold"])
def test_a_step_that_hangs_is_named(word):
    """Item 5: which env, its seed, its step; close within 5 s."""
    with closing(shoal.make(Actor, 4, backend="process", num_workers=2, timeout_s=TIMEOUT_S)) as vec:
        vec.reset(seed=10)
        vec.step(act(4))
        pattern = r"env 3 \(seed 13\) did not answer within 0.5 s in step 2 \(worker 1, pid"
        with within(TIMEOUT_S + 1.5), pytest.raises(EnvTimeout, match=pattern) as caught:
            vec.step(act(4, **{word: 3}))
        assert (caught.value.env, caught.value.seed, caught.value.step) == (3, 13, 2)
        with pytest.raises(UsageError, match="broken by an earlier fault"):
            vec.step(act(4))
        with within(5.0):
            vec.close()


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_stopped_worker_is_named_and_closed(start_method):
    """Item 5: SIGSTOP from outside."""
    options = {"backend": "process", "num_workers": 2, "start_method": start_method, "timeout_s": 3.0}
    with closing(shoal.make(Actor, 2, **options)) as vec:
        vec.reset(seed=0)
        os.kill(vec.call("pid")[1], signal.SIGSTOP)
        with within(3.0 + 1.5), pytest.raises(EnvTimeout, match=r"env 1 \(seed 1\)"):
            vec.step(act(2))
        with within(5.0):
            vec.close()


def test_a_reset_and_a_call_that_hang_are_named():
    """Item 5."""
    with closing(shoal.make(Actor, 2, backend="process", num_workers=2, timeout_s=TIMEOUT_S)) as vec:
        vec.reset(seed=0)
        with within(2.0), pytest.raises(EnvTimeout, match=r"env 1 .seed 1. did not answer within 0.5 s in reset"):
            vec.reset(options={"word": "sleep", "number": 1})
    with closing(shoal.make(Actor, 2, backend="process", num_workers=2, timeout_s=TIMEOUT_S)) as vec:
        vec.reset(seed=0)
        with within(2.0), pytest.raises(EnvTimeout, match=r"env 1 .* in a call"):
            vec.call("sleep", env_ids=[1])


def test_a_hang_among_surplus_envs_is_named():
    """Item 5: although a batch of the others is always there."""
    options = {"backend": "process", "num_workers": 4, "surplus_envs": 1, "timeout_s": TIMEOUT_S}
    with closing(shoal.make(Actor, 4, **options)) as vec:
        vec.async_reset(seed=0)
        ids = vec.recv()[4]["env_id"].tolist()
        vec.send(act(3, sleep=1))
        with within(2.5), pytest.raises(EnvTimeout, match=f"env {ids[1]} "):
            step_for_ever(vec, 3)


def test_slow_is_not_hanging():
    """Item 5: a policy that thinks for longer than timeout_s is no fault of the envs, nor are many short steps."""
    options = {"backend": "process", "num_workers": 2, "timeout_s": 0.4}
    with closing(shoal.make(lambda: Actor(nap_s=0.2), 2, **options)) as vec:
        vec.async_reset(seed=0)
        time.sleep(0.8)
        vec.recv()
        for _ in range(4):
            vec.send(act(2, nap=0))
            time.sleep(0.01)
            vec.recv()


@pytest.mark.parametrize("word", ["sleep", "stop"])
def test_restart_drops_what_a_hung_env_says_late(word):
    """Item 5: the old worker is gone before the new one writes, so nothing comes late."""
    options = {"backend": "process", "num_workers": 2, "timeout_s": TIMEOUT_S, "on_crash": "restart"}
    with closing(shoal.make(Actor, 4, **options)) as vec:
        vec.reset(seed=0)
        old = vec.call("pid")[2]
        with within(TIMEOUT_S + 2.0):
            obs, _, _, truncated, infos = vec.step(act(4, **{word: 2}))
        assert obs.tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 2], [0, 1, 3]]
        assert truncated.tolist() == [False, False, True, True]
        assert "did not answer" in infos["final_info"]["fault"][2]
        assert not os.path.exists(f"/proc/{old}") or vec.call("pid")[2] != old
        for tick in range(1, 5):
            obs, *_ = vec.step(act(4))
            assert obs[:, 0].tolist() == [1 + tick, 1 + tick, tick, tick]
        with within(5.0):
            vec.close()


def test_reset_drops_what_is_in_flight():
    """Item 5: late replies belong to the past."""
    options = {"backend": "process", "num_workers": 4, "batch_size": 2}
    with closing(shoal.make(lambda: Actor(nap_s=0.4), 4, **options)) as vec:
        vec.async_reset(seed=0)
        first = vec.recv()[4]["env_id"].copy()
        second = vec.recv()[4]["env_id"].copy()
        vec.send(act(2, nap=0, end_late=1), first)
        vec.send(act(2, huge_info=0), second)
        with within(2.0):
            obs, infos = vec.reset(seed=20)
        assert obs[:, 2].tolist() == [20, 21, 22, 23]
        assert (obs[:, 0] == 0).all()
        assert "blob" not in infos
        obs, _, terminated, truncated, infos = vec.step(act(4))
        assert (obs[:, 0] == 1).all()
        assert not (terminated | truncated).any()
        assert "blob" not in infos
