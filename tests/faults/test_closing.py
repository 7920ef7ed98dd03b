"""close() at any moment: within 5 s, silent, and nothing stays behind."""

from __future__ import annotations

import gc
import os
import time
from contextlib import closing
from functools import partial

import pytest

import shoal
from tests.faults.envs import Actor, act
from tests.faults.tools import START_METHODS, run_script, within

BEGIN = """
import gc, os, sys, time
import numpy as np
import shoal
from tests.faults.envs import Actor, act
vec = shoal.make(Actor, 4, backend="process", num_workers=2, start_method="{start_method}")
vec.reset(seed=0)
vec.step(act(4))
"""


@pytest.mark.parametrize("start_method", START_METHODS)
def test_close_twice(start_method):
    """Item 6: before a reset and after one; the second close does nothing."""
    for resets in (False, True):
        vec = shoal.make(Actor, 4, backend="process", num_workers=2, start_method=start_method)
        if resets:
            vec.reset(seed=0)
            vec.step(act(4))
        with within(5.0):
            vec.close()
        with within(0.1):
            vec.close()


@pytest.mark.parametrize("word", ["work", "nap", "big", "huge_info", "fail", "kill", "sleep", "stop", "hold"])
def test_close_while_pending_or_with_unread_results(word):
    """Item 6: whatever is in flight, also more than a pipe holds."""
    vec = shoal.make(Actor, 4, backend="process", num_workers=2)
    vec.async_reset(seed=0)
    vec.recv()
    vec.send(act(4, **{word: 1}))
    with within(5.0):
        vec.close()


def test_envs_that_are_busy_are_closed_too(tmp_path):
    """Item 6: a worker in the middle of a step closes its envs after it, though their close() raises."""
    vec = shoal.make(Actor, 4, backend="process", num_workers=2)
    vec.reset(seed=0, options={"closed_file": str(tmp_path / "closed")})
    vec.async_reset(seed=0)
    vec.recv()
    vec.send(act(4, nap=1))
    with within(5.0):
        vec.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["closed.0", "closed.1", "closed.2", "closed.3"]


def test_an_env_whose_close_hangs_is_not_waited_for():
    """Item 6."""
    vec = shoal.make(partial(Actor, close_s=60.0), 2, backend="process", num_workers=2)
    vec.reset(seed=0)
    with within(5.0):
        vec.close()


def test_close_by_garbage_collection():
    """Item 6: also with steps in flight, and inside a cycle."""
    for in_flight in (False, True):
        vec = shoal.make(Actor, 4, backend="process", num_workers=2)
        vec.async_reset(seed=0)
        vec.recv()
        if in_flight:
            vec.send(act(4, nap=0))
        vec.itself = vec
        with within(5.0):
            del vec
            gc.collect()


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("word", ["work", "sleep", "stop", "hold"])
def test_exit_without_close_is_silent(start_method, word):
    """Item 6: at interpreter exit, idle or with a hung worker."""
    script = BEGIN.format(start_method=start_method) + f"vec.async_reset(); vec.recv(); vec.send(act(4, {word}=2))\n"
    script += "time.sleep(0.2); print(time.monotonic())"
    code, out, err = run_script(script)
    assert (code, err) == (0, "")
    assert time.monotonic() - float(out) < 5.0


@pytest.mark.parametrize(
    "end",
    [
        "vec.close(); vec.close()",
        "del vec; gc.collect()",
        "vec.send(act(4)); vec.close()",
        "vec.async_reset(); vec.close()",
        "vec.cycle = vec; sys.vec = vec; del vec",
        "sys.exit(0)",
    ],
)
def test_every_end_is_silent(end):
    """Item 6: nothing on stderr, under -W error."""
    start = "import weakref; weakref.finalize(weakref, int)\n"  # so that weakref's exit comes after multiprocessing's
    with within(20.0):
        code, _out, err = run_script(start + BEGIN.format(start_method="fork") + end)
    assert (code, err) == (0, "")


def test_a_forked_child_of_the_user_leaves_the_workers_alone():
    """Item 6: they are not its own to close, by hand or at its exit."""
    script = (
        BEGIN.format(start_method="fork")
        + """
child = os.fork()
if not child:
    vec.close()
    del vec
    gc.collect()
    os._exit(0)
os.waitpid(child, 0)
print(vec.step(act(4))[0][:, 0].tolist())
vec.close()
"""
    )
    assert run_script(script) == (0, "[2.0, 2.0, 2.0, 2.0]\n", "")


def counts() -> tuple[int, int, int]:
    """(file descriptors, KiB of memory, names in /dev/shm)."""
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return len(os.listdir("/proc/self/fd")), int(fields["VmRSS"].split()[0]), len(os.listdir("/dev/shm"))


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_many_cycles_leave_nothing():
    """Item 9: 60 of them (`scripts/soak cycles` does 1,000): flat descriptors, memory and shared memory."""

    def cycle() -> None:
        with closing(shoal.make(Actor, 2, backend="process", num_workers=2)) as vec:
            vec.reset(seed=0)
            vec.step(act(2, big=1))

    for _ in range(20):
        cycle()
    gc.collect()
    before = counts()
    for _ in range(60):
        cycle()
    gc.collect()
    after = counts()
    assert after[0] <= before[0]
    assert after[1] - before[1] < 60 * 20  # KiB: less than 20 for each
    assert after[2] <= before[2]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("start_method", START_METHODS)
def test_cycles_make_no_warnings(start_method):
    """Item 9: none of resource_tracker, none of a file left open."""
    script = f"""
import gc, os, sys
import shoal
from tests.faults.envs import Actor, act
for _ in range(5):
    vec = shoal.make(Actor, 2, backend="process", num_workers=2, start_method="{start_method}")
    vec.reset(seed=0)
    vec.step(act(2))
    vec.close()
    del vec
gc.collect()
"""
    assert run_script(script, timeout=100) == (0, "", "")
