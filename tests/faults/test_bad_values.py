"""Bad values: actions are refused before anything is written, and what an env returns is looked at as it comes."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import shoal
from shoal.errors import ActionError, BadOutput, ConfigError, EnvCrashed
from tests.faults.envs import Saver
from tests.faults.tools import within

BACKENDS = {"serial": {"backend": "serial"}, "process": {"backend": "process", "num_workers": 2}}


class Echo(gymnasium.Env):
    """Remembers how often it was stepped."""

    observation_space = spaces.Box(-1e9, 1e9, (1,), np.float32)

    def __init__(self, space):
        self.action_space, self.tick = space, 0

    def reset(self, *, seed=None, options=None):
        self.tick = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.tick += 1
        return np.full(1, self.tick, np.float32), 0.0, False, False, {}


BOX, DISCRETE, MULTI = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3), spaces.MultiDiscrete([2, 3])
DICT = spaces.Dict({"move": DISCRETE, "push": BOX})
# an action space, an action of 4 envs, what the error says
ACTIONS = {
    "discrete shape": (DISCRETE, np.zeros(3, int), r"shape \(3,\), expected \(4,\)"),
    "discrete dims": (DISCRETE, np.zeros((4, 1), int), r"shape \(4, 1\), expected \(4,\)"),
    "discrete scalar": (DISCRETE, 1, r"shape \(\), expected \(4,\)"),
    "discrete dtype": (DISCRETE, np.zeros(4), "dtype float64"),
    "discrete strings": (DISCRETE, np.array(["a"] * 4), "dtype"),
    "discrete none": (DISCRETE, None, "shape"),
    "discrete high": (DISCRETE, np.array([0, 0, 3, 0]), "row 2 is 3, out of range 0 .. 2"),
    "discrete low": (DISCRETE, np.array([0, -1, 0, 0]), "row 1 is -1, out of range 0 .. 2"),
    "discrete huge": (DISCRETE, np.array([0, 0, 0, 2**63], np.uint64), "row 3 is 9223372036854775808, out of range"),
    "start": (spaces.Discrete(3, start=5), np.array([5, 6, 4, 7]), "row 2 is 4, out of range 5 .. 7"),
    "box shape": (BOX, np.zeros((4, 3), np.float32), r"shape \(4, 3\), expected \(4, 2\)"),
    "box dtype": (BOX, np.zeros((4, 2), complex), "dtype complex128"),
    "box nan": (BOX, np.array([[0, 0], [0, np.nan], [0, 0], [0, 0]], np.float32), "row 1 is not finite"),
    "box inf": (BOX, np.array([[0, 0], [0, 0], [0, 0], [np.inf, 0]]), "row 3 is not finite"),
    "multi": (MULTI, np.array([[0, 0], [1, 2], [1, 3], [0, 0]]), "row 2 is 3, out of range"),
    "binary": (spaces.MultiBinary(2), np.array([[0, 1], [2, 0], [0, 0], [0, 0]]), "row 1 is 2, out of range 0 .. 1"),
    "dict key": (DICT, {"move": np.zeros(4, int)}, "actions.*push.* is missing"),
    "dict second": (DICT, {"move": np.ones(4, int), "push": np.full((4, 2), np.nan)}, "push.* row 0 is not finite"),
    "dict none": (DICT, None, "actions.*move.* is missing"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ACTIONS)
def test_bad_actions_are_refused_before_any_write(name, backend):
    """Item 13: an ActionError, which is a ValueError; no env is stepped and no action written, by step() and send()."""
    space, bad, pattern = ACTIONS[name]
    with closing(shoal.make(partial(Echo, space), 4, **BACKENDS[backend])) as vec:
        vec.action_space.seed(0)
        good = vec.action_space.sample()
        vec.reset(seed=0)
        vec.step(good)
        before = {key: array.copy() for key, array in vec.block.arrays.items()}
        for call in (vec.step, vec.send):
            with within(1.0), pytest.raises(ActionError, match=pattern) as caught:
                call(bad)
            assert isinstance(caught.value, ValueError)
        for key, array in vec.block.arrays.items():
            np.testing.assert_array_equal(array, before[key], err_msg=key)
        obs, *_ = vec.step(good)
        assert obs[:, 0].tolist() == [2, 2, 2, 2]


PLAIN, WHOLE = spaces.Box(-9, 9, (2,), np.float32), spaces.Box(0, 255, (2,), np.uint8)
NESTED = spaces.Dict({"camera": spaces.Box(0, 255, (2, 2), np.uint8), "body": spaces.Tuple((PLAIN, DISCRETE))})
ZERO = np.zeros(2, np.float32)
GOOD = {"camera": np.zeros((2, 2), np.uint8), "body": (ZERO, 0)}
# a space, a good observation, what env 1 returns instead in step 2, what the error says
OUTPUTS = {
    "obs shape": (PLAIN, ZERO, {"obs": np.zeros(3, np.float32)}, r"obs has shape \(3,\), its space has \(2,\)"),
    "obs dtype": (WHOLE, np.zeros(2, np.uint8), {"obs": np.full(2, 0.5)}, "obs has dtype float64, its space has uint8"),
    "obs range": (
        WHOLE,
        np.zeros(2, np.uint8),
        {"obs": np.array([0, 300])},
        r"obs is of int64 in 0 \.\. 300, which its space's uint8 cannot hold",
    ),
    "obs unsigned": (WHOLE, np.zeros(2, np.uint8), {"obs": np.array([0, 300], np.uint16)}, r"0 \.\. 300, .* uint8"),
    "obs long": (
        spaces.Box(-9, 9, (2,), np.int32),
        np.zeros(2, np.int32),
        {"obs": np.array([0, 2**33])},
        r"0 \.\. 8589934592, which its space's int32 cannot hold",
    ),
    "obs strings": (PLAIN, ZERO, {"obs": np.array(["a", "b"])}, "obs has dtype"),
    "obs nan": (PLAIN, ZERO, {"obs": np.array([0, np.nan], np.float32)}, "NaN"),
    "obs none": (PLAIN, ZERO, {"obs": None}, "obs is None"),
    "last obs": (PLAIN, ZERO, {"obs": np.zeros(3), "terminated": True}, r"obs has shape \(3,\)"),
    "last obs nan": (PLAIN, ZERO, {"obs": ZERO + np.nan, "truncated": True}, "obs contains NaN"),
    "last id": (DISCRETE, 0, {"obs": 3, "truncated": True}, "obs has 3, which is outside"),
    "info none": (PLAIN, ZERO, {"info": None}, "info is None, not a dict"),
    "info text": (PLAIN, ZERO, {"info": "text"}, "info is 'text', not a dict"),
    "last info": (PLAIN, ZERO, {"info": None, "truncated": True}, "info is None, not a dict"),
    "reward none": (PLAIN, ZERO, {"reward": None}, "reward is (None|NaN)"),
    "reward nan": (PLAIN, ZERO, {"reward": float("nan")}, "the reward is NaN"),
    "reward array": (PLAIN, ZERO, {"reward": np.zeros(2)}, "the reward is array"),
    "reward text": (PLAIN, ZERO, {"reward": "much"}, "reward"),
    "reward digits": (PLAIN, ZERO, {"reward": "1"}, "the reward is '1', not a number"),
    "reward complex": (PLAIN, ZERO, {"reward": 1j}, "the reward is 1j, not a number"),
    "reward bytes": (PLAIN, ZERO, {"reward": b"1"}, "the reward is b'1', not a number"),
    "terminated none": (PLAIN, ZERO, {"terminated": None}, "terminated is None, not a bool"),
    "terminated half": (PLAIN, ZERO, {"terminated": 0.5}, "terminated is 0.5, not a bool"),
    "terminated array": (PLAIN, ZERO, {"terminated": np.zeros(2, bool)}, r"terminated is array\(.*, not a bool"),
    "truncated text": (PLAIN, ZERO, {"truncated": ""}, "truncated is '', not a bool"),
    "truncated two": (PLAIN, ZERO, {"truncated": 2}, "truncated is 2, not a bool"),
    "short": (PLAIN, ZERO, {"tuple": (ZERO, 0.0, False, {})}, "step returned four values, as in the old gym"),
    "none": (PLAIN, ZERO, {"tuple": None}, "step returned None, not five values"),
    "dict key": (NESTED, GOOD, {"obs": {"camera": GOOD["camera"]}}, "obs.*body.* is missing"),
    "dict shape": (NESTED, GOOD, {"obs": {**GOOD, "camera": np.zeros(2, np.uint8)}}, r"obs.*camera.* has shape \(2,\)"),
    "dict dtype": (NESTED, GOOD, {"obs": {**GOOD, "body": (ZERO, 0.5)}}, "obs.*body.*1.* has dtype float64"),
    "dict none": (NESTED, GOOD, {"obs": None}, "obs.* is missing; obs is None"),
    "id": (spaces.Discrete(3), 0, {"obs": 3}, r"obs has 3, which is outside its space Discrete\(3\)"),
    "id below": (spaces.Discrete(3), 0, {"obs": -1}, "obs has -1, which is outside"),
    "id start": (spaces.Discrete(3, start=5), 5, {"obs": 4}, "obs has 4, which is outside"),
    "ids": (spaces.MultiDiscrete([2, 9]), np.zeros(2, int), {"obs": np.array([2, 2])}, "obs has 2, which is outside"),
    "bits": (spaces.MultiBinary(2), np.zeros(2, np.int8), {"obs": np.array([0, 2], np.int8)}, "obs has 2, which is"),
    "dict id": (NESTED, GOOD, {"obs": {**GOOD, "body": (ZERO, 3)}}, r"obs.*body.*1.* has 3, which is outside"),
    "dict nan": (NESTED, GOOD, {"obs": {**GOOD, "body": (ZERO + np.nan, 0)}}, "body.*NaN"),
}
BAD_RESETS = {
    "only obs": ({"reset": ZERO}, r"reset returned array.*, not two values: obs, info"),
    "none": ({"reset": None}, "reset returned None, not two values"),
    "shape": ({"obs": np.zeros(3, np.float32)}, r"obs has shape \(3,\)"),
    "nan": ({"obs": ZERO + np.nan}, "NaN"),
    "info": ({"info": None}, "info is None, not a dict"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_bad_output_names_env_and_key(name, autoreset, backend):
    """Item 14: in every autoreset mode, serial and process."""
    space, good, bad, pattern = OUTPUTS[name]
    create = partial(Saver, space, good, bad)
    with closing(shoal.make(create, 4, autoreset=autoreset, **BACKENDS[backend])) as vec:
        vec.reset(seed=0)
        vec.step(np.zeros(4, int))
        with within(5.0), pytest.raises(EnvCrashed) as caught:
            vec.step(np.zeros(4, int))
        assert (caught.value.env, caught.value.seed, caught.value.step) == (1, 1, 2)
        assert str(caught.value).startswith("env 1 (seed 1) ")
        assert "step 2" in str(caught.value)
        assert isinstance(caught.value, BadOutput)
        caught.match(pattern)


def test_nobody_reads_the_last_obs_of_an_episode_that_terminated():
    """A simulation that blew up may end with NaN: no value is computed of it."""
    bad = {"obs": ZERO + np.nan, "terminated": True}
    with closing(shoal.make(partial(Saver, PLAIN, ZERO, bad), 4, backend="serial")) as vec:
        vec.reset(seed=0)
        vec.step(np.zeros(4, int))
        obs, *_, infos = vec.step(np.zeros(4, int))
        assert np.isfinite(obs).all()
        assert np.isnan(infos["final_obs"][1]).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("obs", "pattern"),
    [
        (np.full((3, 2), 300, np.uint16), r"obs is of uint16 in 300 \.\. 300, which its space's uint8 cannot hold"),
        (np.full((3, 2), 0.5), "obs has dtype float64, its space has uint8"),
        (np.zeros(2, np.uint8), r"obs has shape \(2,\), its space has \(3, 2\) for all envs"),
    ],
)
def test_observations_of_vector_envs_are_checked_too(obs, pattern, backend):
    def create():
        vec = SyncVectorEnv([partial(Saver, WHOLE, np.zeros(2, np.uint8), {})] * 3, autoreset_mode="SameStep")
        step = vec.step
        vec.step = lambda actions: (obs, *step(actions)[1:])
        return vec

    with closing(shoal.make(create, 2, **BACKENDS[backend])) as vec:
        vec.reset(seed=0)
        with within(5.0), pytest.raises(BadOutput, match=pattern):
            vec.step(np.zeros(6, int))


FLAGS = [bool, np.bool_, int, np.int8, np.float32, np.array, lambda flag: np.array([flag])]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("kind", FLAGS)
def test_flags_may_be_bools_of_any_kind(kind, autoreset):
    """They end the episode or not, and bring no info with them."""
    bad = {"terminated": kind(True), "truncated": kind(False)}
    with closing(shoal.make(partial(Saver, PLAIN, ZERO, bad), 4, autoreset=autoreset, backend="serial")) as vec:
        vec.reset(seed=0)
        vec.step(np.zeros(4, int))
        *_, terminated, truncated, _ = vec.step(np.zeros(4, int))
        assert terminated.tolist() == [False, True, False, False]
        assert not truncated.any()
    bad["terminated"] = kind(False)
    with closing(shoal.make(partial(Saver, PLAIN, ZERO, bad), 4, autoreset=autoreset, backend="serial")) as vec:
        vec.reset(seed=0)
        vec.step(np.zeros(4, int))
        *_, terminated, truncated, infos = vec.step(np.zeros(4, int))
        assert not terminated.any() | truncated.any()
        assert "final_info" not in infos


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("reward", [2, True, np.float64(2), np.array(2.0), torch.tensor(2.0)], ids=str)
def test_rewards_may_be_numbers_of_any_kind(reward, autoreset):
    create = partial(Saver, PLAIN, ZERO, {"reward": reward})
    with closing(shoal.make(create, 4, autoreset=autoreset, backend="serial")) as vec:
        vec.reset(seed=0)
        vec.step(np.zeros(4, int))
        assert vec.step(np.zeros(4, int))[1].tolist() == [1, float(reward), 1, 1]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("reward", [np.ones(1), [1.0]], ids=str)
def test_a_single_env_is_checked_as_several_are(reward, autoreset):
    create = partial(Saver, PLAIN, ZERO, {"reward": reward}, 0)
    with closing(shoal.make(create, 1, autoreset=autoreset, backend="serial")) as vec:
        vec.reset(seed=0)
        vec.step(np.zeros(1, int))
        with pytest.raises(BadOutput, match="not a number"):
            vec.step(np.zeros(1, int))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", BAD_RESETS)
def test_a_bad_reset_names_env_and_key(name, backend):
    """Item 14."""
    bad, pattern = BAD_RESETS[name]
    with closing(shoal.make(partial(Saver, PLAIN, ZERO, bad, where="reset"), 4, **BACKENDS[backend])) as vec:
        with within(5.0), pytest.raises(EnvCrashed, match=r"env 1 \(seed 1\) .*reset") as caught:
            vec.reset(seed=0)
        caught.match(pattern)


def test_ids_of_agents_out_of_the_game_are_not_checked():
    """They observe zeros, also where the space starts at 1."""

    class Game:
        possible_agents = ("a", "b")

        def observation_space(self, agent):
            return spaces.Discrete(3, start=1)

        def action_space(self, agent):
            return DISCRETE

        def reset(self, seed=None, options=None):
            self.agents = ["a", "b"]
            return {"a": 1, "b": 3}, {}

        def step(self, actions):
            self.agents = ["a"]
            ends = {"a": False, "b": True}
            return {"a": 2, "b": 3}, {"a": 0.0, "b": 0.0}, ends, {"a": False, "b": False}, {}

    with shoal.make(Game, 2, backend="serial") as vec:
        vec.reset(seed=0)
        obs, *_ = vec.step(np.zeros(4, int))
        assert obs.tolist() == [2, 0, 2, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_env_without_spaces_is_refused_by_its_name(backend):
    class Bare(gymnasium.Env):
        def reset(self, *, seed=None, options=None):
            return 0, {}

    with within(5.0), pytest.raises(ConfigError, match="Bare has no observation_space and no action_space. Set it"):
        shoal.make(Bare, 4, **BACKENDS[backend])


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_space_is_refused(backend):
    create = partial(Saver, spaces.Dict({}), {}, {})
    with within(5.0), pytest.raises(ConfigError, match="is empty"):
        shoal.make(create, 4, **BACKENDS[backend])
