"""Ctrl-C, and a parent that is killed: no worker speaks, none stays."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing

import pytest

import shoal
from shoal.errors import UsageError
from tests.faults.envs import Actor, act
from tests.faults.tools import START_METHODS, start_script, wait_for_end, within

SCRIPT = """
import os, signal, sys, threading, time
import shoal
from tests.faults.envs import Actor, act
def run():
    vec = shoal.make(lambda: Actor(nap_s={nap_s}), 4, backend="process", num_workers=2, start_method="{start_method}")
    vec.reset(seed=0)
    print(*vec.call("pid"), flush=True)
    try:
        {body}
    except KeyboardInterrupt:
        {caught}
{call}
"""
STEP_FOR_EVER = "while True: vec.step(act(4, nap=1))"


def start(start_method="fork", nap_s=0.005, body=STEP_FOR_EVER, caught="raise", call="run()"):
    """A script that has begun to step, and the pids of its workers."""
    fields = {"start_method": start_method, "nap_s": nap_s, "body": body, "caught": caught, "call": call}
    process = start_script(SCRIPT.format(**fields))
    pids = sorted({int(pid) for pid in process.stdout.readline().split()})
    assert len(pids) == 2, process.stderr.read()
    return process, pids


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("nap_s", [0.0001, 2.0])
def test_ctrl_c_ends_a_script_with_one_message(start_method, nap_s):
    """Item 7: to the whole process group, as a terminal does; between steps and in the middle of a long one."""
    process, pids = start(start_method, nap_s)
    with process:
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        with within(5.0):
            _out, err = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1
    assert err.count("KeyboardInterrupt") == 1
    assert "worker.py" not in err
    assert not wait_for_end(pids, 2.0)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_ctrl_c_that_is_caught_is_silent(start_method):
    """Item 7: exit 130, nothing on stderr, close() works after it."""
    process, pids = start(start_method, 0.5, caught="vec.close(); sys.exit(130)")
    with process:
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        with within(5.0):
            _out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "")
    assert not wait_for_end(pids, 2.0)


@pytest.mark.parametrize("start_method", START_METHODS[:2])
def test_ctrl_c_while_workers_start_is_one_message(start_method):
    """Item 7: before a worker knows how to ignore it."""
    script = f"""
import time, shoal
from tests.faults.envs import Unborn
print("ready", flush=True)
shoal.make(lambda: Unborn((), slow=(0,)), 4, backend="process", num_workers=4, start_method="{start_method}")
"""
    for wait_s in (0.02, 0.15, 0.5):
        with start_script(script) as process:
            process.stdout.readline()
            time.sleep(wait_s)
            os.killpg(process.pid, signal.SIGINT)
            with within(5.0):
                _out, err = process.communicate(timeout=20)
        assert process.returncode == -signal.SIGINT, err
        assert "KeyboardInterrupt" in err
        # the script's own message, which Python may chain where the interrupt meets another exception; no worker's
        assert "shoal-worker" not in err, err


@pytest.mark.parametrize("call", ["step", "recv", "reset", "call"])
def test_an_interrupted_env_goes_on(call):
    """Item 7: after a KeyboardInterrupt, reset() starts anew and close() works."""
    options = {"backend": "process", "num_workers": 2}
    with closing(shoal.make(lambda: Actor(nap_s=0.6), 4, **options)) as vec:
        vec.reset(seed=0)
        if call == "recv":
            vec.async_reset(seed=0)
            vec.recv()
            vec.send(act(4, nap=1))
        work = {
            "step": lambda: vec.step(act(4, nap=1)),
            "recv": vec.recv,
            "reset": lambda: vec.reset(options={"word": "nap", "number": 2}),
            "call": lambda: vec.call("nap"),
        }[call]
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with within(0.2 + 1.0), pytest.raises(KeyboardInterrupt):
            work()
        with pytest.raises(UsageError, match="in flight"):
            vec.step(act(4))
        with within(3.0):
            obs, _ = vec.reset(seed=10)
        assert obs[:, 2].tolist() == [10, 11, 12, 13]
        for tick in (1, 2):
            obs, *_ = vec.step(act(4))
            assert obs[:, 0].tolist() == [tick] * 4
        assert vec.get_attr("number") == (10, 11, 12, 13)


def test_an_interrupted_step_can_be_received():
    """Item 7: nothing is lost, and no env is stepped twice."""
    with closing(shoal.make(lambda: Actor(nap_s=0.6), 4, backend="process", num_workers=2)) as vec:
        vec.reset(seed=0)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            vec.step(act(4, nap=1))
        obs, rewards, _, _, _ = vec.recv()
        assert obs[:, 0].tolist() == [1, 1, 1, 1]
        assert rewards.tolist() == [1, 1, 1, 1]
        obs, *_ = vec.step(act(4))
        assert obs[:, 0].tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("word", ["idle", "sleep", "spin", "hold"])
def test_workers_go_with_a_killed_parent(start_method, word):
    """Item 8: within 5 s, idle or busy, even in native code that keeps the GIL."""
    if (start_method, word) == ("forkserver", "hold"):
        pytest.skip("no child of the parent: a thread watches, and it needs the GIL")
    body = "time.sleep(60)" if word == "idle" else f"vec.step(act(4, {word}=1))"
    process, pids = start(start_method, body=body)
    with process:
        time.sleep(0.3)
        with within(5.0):
            process.kill()
            process.wait()
            assert not wait_for_end(pids, 6.0)
        assert process.stderr.read() == ""


def test_workers_started_by_a_thread_outlive_it_and_go_with_the_parent():
    """Item 8: they belong to the process, not to the thread."""
    call = "thread = threading.Thread(target=run); thread.start(); thread.join(); time.sleep(60)"
    body = "globals()['kept'] = vec; threading.Timer(0.5, lambda: print(vec.step(act(4))[0][0, 0], flush=True)).start()"
    process, pids = start(body=body, call=call)
    with process:
        assert process.stdout.readline() == "1.0\n"
        with within(5.0):
            process.kill()
            process.wait()
            assert not wait_for_end(pids, 6.0)
