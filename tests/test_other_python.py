"""Workers under another interpreter: the same results, the same faults, and clear errors for a wrong interpreter."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections import OrderedDict, namedtuple
from contextlib import closing
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.errors import BadOutput, ConfigError, EnvCrashed, EnvTimeout, WorkerDied
from shoal.vector import portable, remote

ENVS = '''
"""Envs that need numpy alone, with spaces of their own classes."""
import os, sys, time
import numpy as np


class Box:
    def __init__(self, low, high, shape, dtype):
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)


class Discrete:
    n, shape, dtype = 3, (), np.dtype(np.int64)


class Dict:
    def __init__(self, **spaces):
        self.spaces = spaces


class Walk:
    """Random observations; the episode ends after `size` steps."""

    observation_space, action_space = Box(-1, 1, (3,), np.float32), Discrete()
    metadata = {}

    def __init__(self, size=4, fault="", render_mode=None):
        self.size, self.fault, self.render_mode = size, fault, render_mode

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.random = np.random.RandomState(seed)
        self.tick = 0
        return self.look(), {"start": np.float32(self.random.rand()), "options": options or {}}

    def look(self):
        return self.random.rand(3).astype(np.float32)

    def step(self, action):
        self.tick += 1
        if self.fault == "raise" and self.tick == 3:
            raise ZeroDivisionError("on purpose")
        if self.fault == "kill" and self.tick == 3:
            os.kill(os.getpid(), 9)
        if self.fault == "hang" and self.tick == 3:
            time.sleep(60)
        obs = self.look() if self.fault != "nan" else np.full(3, np.nan, np.float32)
        return obs, float(action), self.tick > self.size, False, {"squares": np.arange(3) ** 2}

    def render(self):
        return np.zeros((4, 4, 3), np.uint8)

    def modules(self):
        names = ("gymnasium", "torch", "cloudpickle", "shoal.spec")
        return [name for name in names if name in sys.modules]

    def close(self):
        pass


class Nested(Walk):
    observation_space = Dict(zone=Box(0, 9, (2,), np.int32), ahead=Box(-1, 1, (3,), np.float32))

    def look(self):
        return {"zone": self.random.randint(0, 9, 2).astype(np.int32), "ahead": Walk.look(self)}


class Pair:
    """Two agents with numbers for names; the first leaves early."""

    possible_agents, metadata = [0, 1], {}

    def observation_space(self, agent):
        return Walk.observation_space

    def action_space(self, agent):
        return Walk.action_space

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.RandomState(seed)
        self.tick, self.agents = 0, [0, 1]
        return {agent: Walk.look(self) for agent in self.agents}, {0: {}, 1: {}}

    def step(self, actions):
        self.tick += 1
        obs = {agent: Walk.look(self) for agent in self.agents}
        ends = {0: self.tick >= 2, 1: self.tick >= 4}
        self.agents = [agent for agent in (0, 1) if not ends[agent]]
        rewards = {agent: float(actions.get(agent, 0)) for agent in obs}
        return obs, rewards, ends, {0: False, 1: False}, {0: {}, 1: {}}

    def close(self):
        pass
'''


@pytest.fixture(scope="session")
def numpy_only(tmp_path_factory):
    """A virtual environment that has numpy and nothing else."""
    folder = tmp_path_factory.mktemp("other")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    packages = next((folder / "venv" / "lib").iterdir()) / "site-packages"
    installed = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    return folder / "venv" / "bin" / "python"


@pytest.fixture
def envs(tmp_path):
    (tmp_path / "walks.py").write_text(ENVS)
    return tmp_path / "walks.py"


def play(vec, steps=30):
    """All results of random play, as bytes."""
    vec.action_space.seed(0)
    obs, infos = vec.reset(seed=5)
    results = [pickle.dumps((obs, infos))]
    for _ in range(steps):
        results.append(pickle.dumps(vec.step(vec.action_space.sample())))
    return results, vec.drain_stats()


@pytest.mark.parametrize("env", ["Walk", "Nested", "Pair"])
def test_another_interpreter_gives_the_results_of_this_one(env, envs, numpy_only):
    with closing(shoal.make(f"{envs}:{env}", 4, backend="serial", copy=True)) as vec:
        expected = play(vec)
        spaces = vec.single_observation_space, vec.single_action_space, vec.agent_spaces.agents
    for options in ({"num_workers": 2}, {"backend": "serial"}):
        with closing(shoal.make(f"{envs}:{env}", 4, copy=True, python=numpy_only, **options)) as vec:
            assert (vec.single_observation_space, vec.single_action_space, vec.agent_spaces.agents) == spaces
            assert play(vec) == expected


def test_workers_there_import_numpy_alone(envs, numpy_only):
    with closing(shoal.make(f"{envs}:Walk", 2, python=numpy_only, size=7)) as vec:
        assert vec.call("modules") == ([], [])
        assert vec.get_attr("size") == (7, 7)
        vec.set_attr("size", [8, 9])
        assert vec.get_attr("size") == (8, 9)
        _, infos = vec.reset(seed=1, options={"level": 3})
        assert infos["options"]["level"].tolist() == [3, 3]
        assert vec.render()[1].shape == (4, 4, 3)


def test_gymnasium_ids_wrappers_and_distributions():
    """With an interpreter that has all packages of this one."""
    options = {"wrap": "stack=2 reward_scale=0.5", "gravity": "uniform(5, 15)", "backend": "serial", "copy": True}
    outcomes = []
    for where in ({}, {"python": sys.executable}):
        with closing(shoal.make("gymnasium:CartPole-v1", 2, **options, **where)) as vec:
            outcomes.append(play(vec, 60))
    assert outcomes[0] == outcomes[1]


OLD_GYM = '''
"""As gym 0.21: reset returns an observation alone, step four results, seeds have a method of their own."""
import sys, types
import numpy as np

__version__ = "0.21.0"


class Env:
    metadata = {}


Env.__module__ = "gym.core"


class Box:
    def __init__(self, low, high, shape, dtype):
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)


class Discrete:
    n, shape, dtype = 4, (), np.dtype(np.int64)


class Count(Env):
    """The observation is a random number and the tick; action 3 ends the episode."""

    observation_space, action_space = Box(0, 99, (2,), np.float32), Discrete()

    def __init__(self):
        self.unwrapped = self

    def seed(self, seed=None):
        self.random = np.random.RandomState(seed % 2**32)

    def reset(self):
        self.tick, self.number = 0, self.random.randint(99)
        return np.array([self.number, 0], np.float32)

    def step(self, action):
        self.tick += 1
        return np.array([self.number, self.tick], np.float32), float(action), action == 3, {"tick": self.tick}

    def render(self, mode="human"):
        return np.full((4, 4, 3), 7, np.uint8) if mode == "rgb_array" else None

    def close(self):
        pass


class TimeLimit(Env):
    __module__ = "gym.wrappers.time_limit"

    def __init__(self, env, limit):
        self.env, self._max_episode_steps, self.unwrapped = env, limit, env
        self.observation_space, self.action_space = env.observation_space, env.action_space


def make(id, **kwargs):
    assert id == "Count-v0", id
    return TimeLimit(Count(**kwargs), 5)


envs = types.SimpleNamespace(registry=types.SimpleNamespace(env_specs={"Count-v0": None}))
'''


def test_envs_of_gym_0_21_without_gymnasium(numpy_only):
    """Old results become today's, the time limit truncates, seeds and frames arrive."""
    packages = next(numpy_only.parents[1].glob("lib/*/site-packages"))
    (packages / "gym.py").write_text(OLD_GYM)
    try:
        with closing(shoal.make("gym:Count-v0", 2, num_workers=1, python=numpy_only, copy=True)) as vec:
            first, _ = vec.reset(seed=4)
            assert (first[:, 1] == 0).all()
            seen = []
            for actions in ([0, 0], [1, 3], [2, 0], [0, 0], [0, 0], [0, 0]):
                obs, rewards, terminated, truncated, _ = vec.step(np.array(actions))
                seen.append((rewards.tolist(), terminated.tolist(), truncated.tolist(), obs[:, 1].tolist()))
            assert seen[1] == ([1, 3], [False, True], [False, False], [2, 0])
            assert seen[4] == ([0, 0], [False, False], [True, False], [0, 3])
            assert (vec.reset(seed=4)[0] == first).all()
            assert vec.call("render")[0].shape == (4, 4, 3)
    finally:
        (packages / "gym.py").unlink()


def test_faults_are_reported_as_usual(envs, numpy_only):
    name = f"{envs}:Walk"
    with closing(shoal.make(name, 4, num_workers=2, python=numpy_only, fault="raise")) as vec:
        with pytest.raises(EnvCrashed, match=r"env [02] \(seed [57]\) raised in step 3: ZeroDiv.*: on purpose") as info:
            play(vec)
        assert isinstance(info.value.__cause__, ZeroDivisionError)
    with (
        closing(shoal.make(name, 2, python=numpy_only, fault="nan")) as vec,
        pytest.raises(BadOutput, match="contains NaN"),
    ):
        play(vec)
    for fault, error, says in (
        ("kill", WorkerDied, "SIGKILL"),
        ("hang", EnvTimeout, "did not answer within 1 s in step 3"),
    ):
        vec = shoal.make(name, 2, num_workers=1, python=numpy_only, fault=fault)
        vec.timeout_s = 1.0  # from now on: the interpreter may take longer to start
        with closing(vec), pytest.raises(error, match=says):
            play(vec)
    with pytest.raises(EnvCrashed, match="got an unexpected keyword argument 'color'"):
        shoal.make(name, 2, python=numpy_only, color=3)


def test_a_worker_that_died_is_replaced(envs, numpy_only):
    with closing(shoal.make(f"{envs}:Walk", 2, num_workers=2, python=numpy_only, on_crash="restart", size=50)) as vec:
        vec.reset(seed=0)
        os.kill(vec._handles[1].process.pid, 9)
        for _ in range(3):
            _, _, _, truncated, _ = vec.step(np.zeros(2, np.int64))
            if truncated.any():
                break
        assert truncated.tolist() == [False, True]
        assert "was restarted" in vec.drain_events()[0]


def test_workers_end_with_their_parent(envs, numpy_only):
    code = (
        "import os, shoal, sys\n"
        "vec = shoal.make(sys.argv[1], 2, num_workers=2, python=sys.argv[2])\n"
        "print(*[handle.process.pid for handle in vec._handles], flush=True)\n"
        "os._exit(0)"
    )
    command = [sys.executable, "-c", code, f"{envs}:Walk", str(numpy_only)]
    pids = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    until = time.monotonic() + 10
    while time.monotonic() < until and any(_is_running(pid) for pid in pids):
        time.sleep(0.05)
    assert not any(_is_running(pid) for pid in pids)


def _is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def script(folder, text):
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_a_wrong_interpreter_is_a_clear_error(envs, tmp_path, numpy_only):
    name = f"{envs}:Walk"
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    old = script(tmp_path, """echo '{"version": [3, 8, 2], "numpy": "1.20.0"}'""")
    wrong = [
        ("/nowhere/python", "no such file or command"),
        (tmp_path, "a folder without bin/python"),
        (envs, "a file that cannot be executed"),
        (old, "it is Python 3.8.2. Workers need Python 3.9 or newer"),
        (bare, f"it has no numpy .* Install it: {bare}/bin/python -m pip install numpy"),
    ]
    for python, says in wrong:
        with pytest.raises(ConfigError, match=says):
            shoal.make(name, 2, python=python)
    script(tmp_path, "exit 3")
    remote._problem.cache_clear()
    with pytest.raises(ConfigError, match="it ended with code 3"):
        shoal.make(name, 2, python=old)


def test_what_cannot_be_sent_is_a_clear_error(envs, numpy_only):
    with pytest.raises(ConfigError, match="is for Python envs, and cartpole is compiled"):
        shoal.make("cartpole", 2, python=numpy_only)
    with pytest.raises(ConfigError, match="cannot be found by another Python interpreter: it is a lambda"):
        shoal.make(lambda: None, 2, python=numpy_only)
    with pytest.raises(ConfigError, match="size=<object .* cannot be sent"):
        shoal.make(f"{envs}:Walk", 2, python=numpy_only, size=object())
    with pytest.raises(ConfigError, match="start_method='fork' is not for workers under"):
        shoal.make(f"{envs}:Walk", 2, python=numpy_only, start_method="fork")
    with pytest.raises(ConfigError, match="wrap=stack=2 needs Gymnasium where the env runs"):
        shoal.make(f"{envs}:Walk", 2, python=numpy_only, wrap="stack=2")


class Color(IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


def test_messages_hold_plain_values_alone():
    value = {
        "number": np.float32(1.5),
        "array": np.arange(6).reshape(2, 3),
        "words": np.array(["a", "bc"]),
        "ordered": OrderedDict(a=1),
        "color": Color.RED,
        "point": Point(1, np.bool_(True)),
        "class": Color,
        "objects": np.array([None, 1], object),
        "set": {1, 2},
    }
    data = portable.dumps(value)
    assert b"numpy" not in data
    assert b"test_other_python" not in data.replace(repr(Color).encode(), b"").replace(str(Color).encode(), b"")
    read = pickle.loads(data)
    assert type(read["number"]) is np.float32
    assert read["array"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read["array"].flags.writeable
    assert read["words"].tolist() == ["a", "bc"]
    assert type(read["ordered"]) is dict
    assert type(read["color"]) is int
    assert read["point"] == (1, True)
    assert read["class"] == str(Color)
    assert read["objects"] == [None, 1]
    assert read["set"] == {1, 2}
