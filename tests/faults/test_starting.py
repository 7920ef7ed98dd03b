"""Every start method, every kind of creator, every kind of script: it works, or the error says how to mend it."""

from __future__ import annotations

import threading
from contextlib import closing

import gymnasium
import pytest

import shoal
from shoal.errors import ConfigError
from tests.faults.envs import Actor, act
from tests.faults.tools import ALL_START_METHODS, START_METHODS, run_script, within

# no `if __name__ == "__main__"`, and everything that is hard to pickle: of __main__, local, closed over
SCRIPT = """
import gymnasium, numpy as np, sys
import shoal

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, start=0.0):
        self.at = start
    def reset(self, *, seed=None, options=None):
        return np.array([self.at], np.float32), {}
    def step(self, action):
        if action:
            raise MyError("mine")
        return np.array([self.at + 1], np.float32), 1.0, False, False, {"note": Note(3)}

class MyError(Exception):
    pass

class Note:
    def __init__(self, value):
        self.value = value

def nested():
    class Local(Mine):
        pass
    start = 2.0
    return Local, lambda: Local(start), (lambda **kwargs: Mine(**kwargs))

local, closure, keyword = nested()
for env, params in ((Mine, {}), (lambda: Mine(), {}), (local, {}), (closure, {}), (keyword, {"start": 3.0})):
    vec = shoal.make(env, 2, backend="process", num_workers=1, start_method="METHOD", **params)
    first, _ = vec.reset(seed=0)
    first = first.copy()
    obs, _, _, _, infos = vec.step(np.array([0, 0]))
    assert (obs == first + 1).all()
    assert type(infos["note"][0]) is Note and infos["note"][0].value == 3
    try:
        vec.step(np.array([0, 1]))
    except shoal.EnvCrashed as error:
        assert type(error.__cause__) is MyError, error.__cause__
    else:
        raise AssertionError("nothing was raised")
    vec.close()
print("done")
""".replace("shoal.EnvCrashed", "__import__('shoal.errors').errors.EnvCrashed")


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("how", ["file", "-c", "-"])
def test_scripts_need_no_guard(start_method, how, tmp_path):
    """Item 11: a script, `python -c` and stdin, without `if __name__ == "__main__"`."""
    how = str(tmp_path / "script.py") if how == "file" else how
    assert run_script(SCRIPT.replace("METHOD", start_method), how) == (0, "done\n", "")


@pytest.mark.parametrize("start_method", ALL_START_METHODS)
def test_lambdas_closures_and_local_classes(start_method):
    """Item 11: in a module that is imported, as here."""
    nap_s = 0.01

    class Local(Actor):
        pass

    for env in (Actor, Local, lambda: Actor(nap_s), lambda: Local(nap_s), "gymnasium:CartPole-v1"):
        with closing(shoal.make(env, 2, backend="process", num_workers=1, start_method=start_method)) as vec:
            vec.reset(seed=0)
            vec.step(act(2))


@pytest.mark.parametrize("start_method", ALL_START_METHODS)
def test_a_creator_that_cannot_be_pickled(start_method):
    """Item 11: fork does not need to; the others say what to do."""
    lock = threading.Lock()

    def create() -> gymnasium.Env:
        with lock:
            return Actor()

    if start_method == "fork":
        with closing(shoal.make(create, 2, backend="process", num_workers=2, start_method="fork")) as vec:
            vec.reset(seed=0)
        return
    with within(5.0), pytest.raises(ConfigError, match="cannot be pickled for .*inside the function, or use .*'fork'"):
        shoal.make(create, 2, backend="process", num_workers=2, start_method=start_method)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_envs_made_by_a_thread(start_method):
    """Item 11: not only the main thread may make envs; they stay when it is gone."""
    made = []

    def make() -> None:
        made.append(shoal.make(Actor, 2, backend="process", num_workers=2, start_method=start_method))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    with closing(made.pop()) as vec:
        vec.reset(seed=0)
        assert vec.step(act(2))[0][:, 0].tolist() == [1, 1]


def test_an_unknown_start_method_is_refused():
    """Item 11."""
    with pytest.raises(ConfigError, match="start_method='thread' must be one of fork"):
        shoal.make(Actor, 2, backend="process", start_method="thread")
