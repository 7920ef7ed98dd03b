"""Envs that raise: the original exception reaches the caller, with the env, its seed, its step, its traceback."""

from __future__ import annotations

import os
import struct
import time
from contextlib import closing
from functools import partial
from multiprocessing import Pipe

import pytest

import shoal
from shoal.errors import BadOutput, ConfigError, EnvCrashed, EnvTimeout, WorkerDied
from shoal.vector.handle import WorkerHandle, limit_blocking
from tests.faults.envs import Actor, TwoArgumentsError, Unborn, UnpicklableError, WordlessError, act
from tests.faults.tools import START_METHODS, within

# a word that makes an Actor raise, what it raises, and a piece of its message
EXCEPTIONS = {
    "fail": (ValueError, "does not like this"),
    "fail_two": (TwoArgumentsError, "7: seven"),
    "fail_unpicklable": (UnpicklableError, "cannot travel"),
    "fail_wordless": (WordlessError, "cannot be read"),
    "fail_exit": (SystemExit, "3"),
}


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_constructor_that_raises_is_reported_at_once(start_method):
    """Item 1: type, message, remote traceback and env index, within 5 s, in worker 2 of 4."""
    with within(5.0), pytest.raises(EnvCrashed, match="env 4 raised in its constructor: ValueError: env 2") as caught:
        shoal.make(partial(Unborn, (2,)), 8, backend="process", num_workers=4, start_method=start_method)
    assert caught.value.env == 4
    assert type(caught.value.__cause__) is ValueError
    assert "in __init__" in str(caught.value)  # the worker's own traceback
    assert "envs.py" in str(caught.value)


@pytest.mark.parametrize("word", EXCEPTIONS)
def test_any_exception_of_a_constructor_comes_over(word):
    """Items 1 and 2: also one that cannot be pickled."""
    kind, text = EXCEPTIONS[word]
    with within(5.0), pytest.raises(EnvCrashed, match=f"env 1 raised in its constructor: {kind.__name__}") as caught:
        shoal.make(partial(Unborn, (1,), word), 2, backend="process", num_workers=2)
    assert type(caught.value.__cause__) is kind
    assert text in str(caught.value)


def test_the_first_of_two_failing_constructors_is_enough():
    """Item 1: two workers fail at once, and one that takes long is not waited for."""
    with within(5.0), pytest.raises(EnvCrashed, match="raised in its constructor: ValueError") as caught:
        shoal.make(partial(Unborn, (1, 3), slow=(0,)), 4, backend="process", num_workers=4)
    assert caught.value.env in (1, 3)


@pytest.mark.parametrize(("word", "signal"), [("kill", 9), ("crash", 11)])
def test_a_constructor_that_dies_is_reported_at_once(word, signal):
    """Items 1 and 4."""
    with within(5.0), pytest.raises(WorkerDied, match=f"signal {signal} ") as caught:
        shoal.make(partial(Unborn, (1,), word, slow=(0,)), 2, backend="process", num_workers=2)
    assert (caught.value.signal, caught.value.env) == (signal, 1)
    assert caught.value.pid is not None


@pytest.mark.parametrize("word", ["sleep", "stop"])
def test_a_constructor_that_hangs_is_reported_after_the_timeout(word):
    """Items 1 and 5."""
    with within(5.0), pytest.raises(EnvTimeout, match="worker 1 .* did not make its envs within 1 s"):
        shoal.make(partial(Unborn, (1,), word), 2, backend="process", num_workers=2, timeout_s=1.0)


def test_envs_that_do_not_fit_together_are_refused():
    """Item 1: an error of the setup, after the constructors, is told too."""
    with within(5.0), pytest.raises(BadOutput, match="env 0 in its setup: .* same-step autoreset"):
        shoal.make(lambda: shoal.make("cartpole", 2, autoreset="disabled"), 2, backend="process", num_workers=2)
    with within(5.0), pytest.raises(ConfigError, match="seed=-1"):
        shoal.make(Actor, 2, backend="process", num_workers=2, seed=-1)


@pytest.mark.parametrize("word", EXCEPTIONS)
@pytest.mark.parametrize("start_method", START_METHODS[:2])
def test_a_step_that_raises_tells_all(word, start_method):
    """Item 2: also unpicklable and two-argument exceptions; no secondary error, and the env can go on after a reset."""
    kind, text = EXCEPTIONS[word]
    with closing(shoal.make(Actor, 4, backend="process", num_workers=2, start_method=start_method)) as vec:
        vec.reset(seed=100)
        vec.step(act(4))
        with within(5.0), pytest.raises(EnvCrashed) as caught:
            vec.step(act(4, **{word: 3}))
        assert str(caught.value).startswith(f"env 3 (seed 103) raised in step 2: {kind.__name__}: ")
        assert text in str(caught.value)
        assert f"in {word}" in str(caught.value)
        assert (caught.value.env, caught.value.seed, caught.value.step) == (3, 103, 2)
        assert type(caught.value.__cause__) is kind
        assert caught.value.__context__ is None or caught.value.__suppress_context__
        with within(5.0):
            obs, _ = vec.reset(seed=0)
            assert obs[:, 2].tolist() == [0, 1, 2, 3]
            obs, *_ = vec.step(act(4))
        assert obs[:, 0].tolist() == [1, 1, 1, 1]


def test_what_an_exception_carries_comes_over():
    """Item 2: the fields of a two-argument exception, and of an unpicklable one all but the lock."""
    with closing(shoal.make(Actor, 1, backend="process")) as vec:
        vec.reset(seed=0)
        with pytest.raises(EnvCrashed) as caught:
            vec.step(act(1, fail_two=0))
        assert (caught.value.__cause__.code, caught.value.__cause__.reason) == (7, "seven")
        with pytest.raises(EnvCrashed) as caught:
            vec.step(act(1, fail_unpicklable=0))
        assert caught.value.__cause__.args[0] == "cannot travel"
        assert "lock" in caught.value.__cause__.lock
        with pytest.raises(EnvCrashed, match="LocalError: made here") as caught:
            vec.step(act(1, fail_local=0))
        assert type(caught.value.__cause__).__name__ == "LocalError"


@pytest.mark.parametrize("word", EXCEPTIONS)
def test_a_reset_that_raises_tells_all(word):
    """Item 2."""
    kind, _text = EXCEPTIONS[word]
    with closing(shoal.make(Actor, 4, backend="process", num_workers=2)) as vec:
        vec.reset(seed=0)
        with within(5.0), pytest.raises(EnvCrashed, match=f"env 2 .seed 7. raised in reset: {kind.__name__}") as caught:
            vec.reset(seed=[5, 6, 7, 8], options={"word": word, "number": 7})
        assert type(caught.value.__cause__) is kind
        vec.reset()
        vec.step(act(4))


def test_an_autoreset_that_raises_tells_all():
    """Item 2: reset by the end of an episode."""

    class Once(Actor):
        def reset(self, *, seed=None, options=None):
            if self.episodes == 1:
                raise KeyError("no second episode")
            return super().reset(seed=seed, options=options)

    with closing(shoal.make(Once, 2, backend="process", num_workers=2)) as vec:
        vec.reset(seed=0)
        with within(5.0), pytest.raises(EnvCrashed, match="env 1 .seed 1. raised in step 1: KeyError"):
            vec.step(act(2, end=1))


def test_a_call_that_raises_tells_all():
    """Item 2: of `call`, too, and the others' answers are not mixed up with the next call's."""
    with closing(shoal.make(Actor, 4, backend="process", num_workers=4)) as vec:
        vec.reset(seed=0)
        with within(5.0), pytest.raises(EnvCrashed, match="env 0 raised in call of fail: ValueError") as caught:
            vec.call("fail")
        assert type(caught.value.__cause__) is ValueError
        with pytest.raises(EnvCrashed, match="no attribute 'missing'"):
            vec.call("missing", env_ids=[2])
        assert vec.get_attr("number") == (0, 1, 2, 3)


def test_several_envs_that_raise_in_one_step_leave_nothing_behind():
    """Item 2: mail of the others, in their pipes, does not turn up in a later step."""
    with closing(shoal.make(Actor, 4, backend="process", num_workers=4)) as vec:
        vec.reset(seed=0)
        for _ in range(3):
            with within(5.0), pytest.raises(EnvCrashed, match="env [12] "):
                vec.step(act(4, huge_info=0, fail=1, fail_two=2, big=3))
            with within(5.0):
                infos = vec.step(act(4))[4]
            assert not infos
            infos = vec.step(act(4, big=2))[4]
            assert infos["_blob"].tolist() == [False, False, True, False]


def test_an_exception_in_flight_does_not_touch_the_others():
    """Item 2, async: the batch with the env that raised reports it; the rest arrives."""
    with closing(shoal.make(Actor, 4, backend="process", num_workers=4, batch_size=1)) as vec:
        vec.async_reset(seed=0)
        for _ in range(4):
            vec.recv()
        ids = [0, 1, 2, 3]
        for env in ids:
            vec.send(act(1, **{"fail" if env == 2 else "big": 0}), [env])
        seen = []
        for _ in ids:
            try:
                infos = vec.recv()[4]
            except EnvCrashed as error:
                assert error.env == 2  # noqa: PT017
            else:
                assert infos["blob"][0].shape == (50_000,)
                seen += infos["env_id"].tolist()
        assert sorted(seen) == [0, 1, 3]


def test_an_info_that_cannot_travel_is_named():
    """Item 2: a lock in an info."""
    with closing(shoal.make(Actor, 2, backend="process", num_workers=2)) as vec:
        vec.reset(seed=0)
        with within(5.0), pytest.raises(BadOutput, match="env 1 .* an info cannot be sent to another process"):
            vec.step(act(2, bad_info=1))
        vec.step(act(2))


def test_a_message_that_stops_halfway_does_not_block():
    """Item 5: a worker stopped in the middle of what it sends."""
    hand = WorkerHandle(0, [], "fork", None, timeout_s=0.5)
    hand.process = type("Process", (), {"exitcode": None})
    hand.pipe, theirs = Pipe(duplex=True)
    limit_blocking(hand.pipe.fileno(), 0.5)
    os.write(theirs.fileno(), struct.pack("!i", 1000) + b"only a few")
    with within(2.0), pytest.raises(TimeoutError):
        hand.receive(time.monotonic() + 0.5)
    theirs.close()
    hand.pipe.close()
