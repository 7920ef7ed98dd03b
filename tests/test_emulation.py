"""Any Python env behind VecEnv: its values arrive exactly, and the results are those of Gymnasium's SyncVectorEnv."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import ActionError, BadOutput, ConfigError
from shoal.spec import Layout, unflatten
from tests.envs import CounterEnv, DictEnv, ImageEnv, InfoEnv, MixedAgentsEnv
from tests.trees import assert_same, leaves

# ---- one value as one row ----

DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)


def box(dtype: str, shape: tuple[int, ...]) -> spaces.Box:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, kind.type)
    limits = np.iinfo(kind)
    return spaces.Box(limits.min, limits.max, shape, kind.type)


plain_spaces = st.one_of(
    st.builds(box, st.sampled_from(DTYPES), shapes),
    st.builds(lambda shape: spaces.Box(0, 1, shape, np.int8), shapes),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)),
    st.builds(lambda nvec: spaces.MultiDiscrete(nvec), st.lists(st.integers(1, 9), min_size=1, max_size=3)),
    st.builds(lambda shape: spaces.MultiBinary(shape), st.lists(st.integers(1, 3), min_size=1, max_size=2)),
)
any_space = st.recursive(
    plain_spaces,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abcdef"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=8,
)


def random_value(space: spaces.Space, rng: np.random.Generator) -> Any:
    """A value with any bit pattern that its dtype allows, as an env would return it."""
    if isinstance(space, spaces.Dict):
        return {key: random_value(part, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(random_value(part, rng) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start + rng.integers(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return (rng.random(space.shape) * space.nvec).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, space.shape).astype(np.int8)
    kind = np.dtype(space.dtype)
    values = np.frombuffer(rng.bytes(int(np.prod(space.shape)) * kind.itemsize), kind).reshape(space.shape)
    return np.nan_to_num(values) if kind.kind == "f" else values


@settings(deadline=None, max_examples=150)
@given(any_space, st.integers(0, 2**32 - 1))
def test_any_space_round_trips(space, seed):
    layout, rng = Layout(space), np.random.default_rng(seed)
    values = [random_value(space, rng) for _ in range(3)]
    rows = np.zeros((3, layout.row_bytes), np.uint8)
    views = layout.leaf_views(rows)
    for row, value in enumerate(values):
        layout.write(views, row, value)
    batch = unflatten(rows, space)
    for row, value in enumerate(values):
        got, expected = leaves(batch), leaves(value)
        assert len(got) == len(expected)
        for array, part in zip(got, expected):
            assert array.dtype == np.asarray(part).dtype
            assert array[row].tobytes() == np.asarray(part).tobytes()
    for array in leaves(batch):
        assert np.shares_memory(array, rows)
    batch_space = gymnasium.vector.utils.batch_space(space, 3)
    assert [array.shape for array in leaves(batch)] == [np.shape(part) for part in leaves(batch_space.sample())]
    every_other = unflatten(np.repeat(rows, 2, axis=0)[::2], space)  # rows that are not one piece of memory
    for array, strided in zip(leaves(batch), leaves(every_other)):
        assert array.tobytes() == strided.tobytes()


@settings(deadline=None, max_examples=50)
@given(any_space, st.integers(0, 2**32 - 1))
def test_any_space_round_trips_in_torch(space, seed):
    torch = pytest.importorskip("torch")
    layout = Layout(space)
    array = np.frombuffer(np.random.default_rng(seed).bytes(4 * layout.row_bytes), np.uint8).copy()
    rows = torch.from_numpy(array.reshape(4, -1))
    batch, expected = unflatten(rows, space), unflatten(rows.numpy(), space)
    for tensor, part in zip(leaves(batch), leaves(expected)):
        assert tuple(tensor.shape) == part.shape
        assert tensor.numpy().dtype == part.dtype
        assert tensor.numpy().tobytes() == part.tobytes()
        assert tensor.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
        tensor.zero_()
    assert all((part == 0).all() for part in leaves(expected)), "they share memory"


def test_rows_of_another_size_are_refused():
    with pytest.raises(ConfigError, match=r"expected \(n, 12\)"):
        unflatten(np.zeros((2, 8), np.uint8), box("float32", (3,)))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(3)),
        spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(2)),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((spaces.Text(3),))}),
        spaces.OneOf((spaces.Discrete(2), spaces.Box(0, 1))),
    ],
    ids=["text", "sequence", "graph", "nested", "one_of"],
)
def test_spaces_without_a_size_are_refused(space):
    with pytest.raises(ConfigError, match="no fixed size"):
        Layout(space)

    class Odd(CounterEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = space

    with pytest.raises(ConfigError, match="no fixed size"):
        shoal.make(Odd, 1, backend="serial")


# ---- what goes into the env and out of it ----


def serial(env: Any, count: int = 3, **options: Any) -> Any:
    return shoal.make(env, count, **{"backend": "serial", "copy": True, **options})


def test_obs_keep_structure_dtype_and_value():
    vec, alone = serial(DictEnv, 2), [DictEnv(), DictEnv()]
    obs, _ = vec.reset(seed=5)
    for number, env in enumerate(alone):
        env.action_space.seed(number)
        expected, _ = env.reset(seed=5 + number)
        assert env.observation_space.contains(expected), "the test's env itself must be right"
        for array, part in zip(leaves(obs), leaves({key: expected[key] for key in obs})):
            assert array[number].dtype == np.asarray(part).dtype
            np.testing.assert_array_equal(array[number], part)
    assert vec.observation_space.contains(obs)


def test_actions_arrive_as_their_space_has_them():
    vec = serial(DictEnv, 4)
    vec.reset(seed=0)
    vec.action_space.seed(3)
    for _ in range(30):
        actions = vec.action_space.sample()
        vec.step(actions)
        for number, taken in enumerate(vec.get_attr("given")):
            last = taken[-1]
            assert vec.single_action_space.contains(last), last
            for array, part in zip(leaves(actions), leaves({key: last[key] for key in actions})):
                assert np.asarray(part).dtype == array.dtype
                np.testing.assert_array_equal(array[number], part)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=-1),
        spaces.Discrete(4),
        spaces.MultiBinary((2, 3)),
        spaces.MultiDiscrete([2, 9]),
        spaces.Box(-1, 1, (2, 2), np.float32),
        spaces.Box(0, 255, (3,), np.uint8),
        spaces.Box(-1, 1, (), np.float32),
        spaces.Tuple((spaces.Discrete(2, start=7), spaces.Box(-1, 1, (), np.float64))),
    ],
    ids=str,
)
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_every_action_space(space, autoreset):
    class Takes(CounterEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space
            self.given: Any = None

        def step(self, action: Any) -> Any:
            self.given = action
            return super().step(0)

    vec = serial(Takes, 3, autoreset=autoreset)
    obs, _ = vec.reset(seed=0)
    vec.action_space.seed(0)
    ended = np.zeros(3, bool)
    for _ in range(20):
        actions = vec.action_space.sample()
        obs, _, terminated, truncated, _ = vec.step(actions)
        for number, taken in enumerate(vec.get_attr("given")):
            if not ended[number]:
                assert space.contains(taken), taken
                for array, part in zip(leaves(actions), leaves(taken)):
                    np.testing.assert_array_equal(array[number], part)
        ended = (terminated | truncated) if autoreset == "next_step" else ended


def test_kept_actions_and_images_do_not_change_later():
    vec = serial(DictEnv, 1)
    vec.reset(seed=0)
    vec.action_space.seed(0)
    for _ in range(5):
        vec.step(vec.action_space.sample())
    (actions,) = vec.get_attr("given")
    wheels = [action["wheel"].copy() for action in actions]
    vec.step(vec.action_space.sample())
    for before, action in zip(wheels, actions):
        np.testing.assert_array_equal(before, action["wheel"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {**a, "gear": a["gear"] + 9}, r"\['gear'\] of row 0 is"),
        (lambda a: {**a, "wheel": a["wheel"][:1]}, r"\['wheel'\] have shape"),
        (lambda a: {**a, "wheel": np.full_like(a["wheel"], np.nan)}, "not finite"),
        (lambda a: {**a, "lights": a["lights"] + 2}, r"\['lights'\] of row 0"),
        (lambda a: {**a, "arm": (a["arm"][0],)}, r"\['arm'\]\[1\] is missing"),
        (lambda a: {**a, "arm": (a["arm"][0] + 0.5, a["arm"][1])}, "dtype float64"),
        (lambda a: a["gear"], "is missing"),
    ],
)
def test_bad_actions_are_refused_before_any_write(change, message):
    vec = serial(DictEnv, 2)
    vec.reset(seed=0)
    vec.action_space.seed(0)
    vec.step(vec.action_space.sample())
    before = vec.block.arrays["actions"].copy()
    bad = change(vec.action_space.sample())
    with pytest.raises(ActionError, match=message):
        vec.step(bad)
    assert (vec.block.arrays["actions"] == before).all()
    assert all(len(given) == 1 for given in vec.get_attr("given"))


# ---- equal to Gymnasium's SyncVectorEnv ----


def without_ours(infos: dict[str, Any], is_same_step: bool) -> dict[str, Any]:
    """Infos without what Shoal adds: each ended episode's return and length, for those who do not record it."""
    infos = dict(infos)
    if "final_info" in infos:
        final = {key: value for key, value in infos["final_info"].items() if key not in ("episode", "_episode")}
        if is_same_step:
            infos["final_info"] = final
        else:
            assert not final
            del infos["final_info"], infos["_final_info"]
    return infos


def assert_final_obs_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Gymnasium has an array of objects there, Shoal one batch of observations."""
    assert ("final_obs" in ours) == ("final_obs" in theirs)
    if "final_obs" not in theirs:
        return
    final, expected = ours.pop("final_obs"), theirs.pop("final_obs")
    mask = theirs["_final_obs"]
    for number in np.flatnonzero(mask):
        for array, part in zip(leaves(final), leaves(ordered_like(expected[number], final))):
            np.testing.assert_array_equal(array[number], part)


def as_merged_there(ours: Any, theirs: Any) -> Any:
    """Infos with the losses of Gymnasium, whose array has the dtype of a key's first number: 0.5 after 1 becomes 0.

    FrozenLake's `prob` is one of them.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {key: as_merged_there(part, theirs.get(key)) for key, part in ours.items()}
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray) and ours.dtype.kind + theirs.dtype.kind == "fi":
        return ours.astype(theirs.dtype)
    return ours


def ordered_like(tree: Any, like: Any) -> Any:
    """Dicts with their keys in the order of another tree's."""
    if isinstance(like, dict):
        return {key: ordered_like(tree[key], like[key]) for key in like}
    if isinstance(like, tuple):
        return tuple(ordered_like(part, other) for part, other in zip(tree, like))
    return tree


def assert_equals_gymnasium(env: Any, mode: str, steps: int = 150, count: int = 5, **options: Any) -> None:
    modes = {"same_step": AutoresetMode.SAME_STEP, "next_step": AutoresetMode.NEXT_STEP}
    modes["disabled"] = AutoresetMode.DISABLED
    vec = serial(env, count, autoreset=mode, **options)
    twin = SyncVectorEnv([env] * count, autoreset_mode=modes[mode])
    assert vec.single_observation_space == twin.single_observation_space
    assert vec.single_action_space == twin.single_action_space
    assert vec.metadata["autoreset_mode"] == twin.metadata["autoreset_mode"]
    obs, infos = vec.reset(seed=7)
    expected, expected_infos = twin.reset(seed=7)
    vec.action_space.seed(1)
    episodes = 0
    for step in range(steps):
        assert_same(obs, expected, f"obs before step {step}")
        assert_same(as_merged_there(infos, expected_infos), expected_infos, f"infos before step {step}")
        actions = vec.action_space.sample()
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        expected, *flags, expected_infos = twin.step(actions)
        assert_same(rewards, flags[0].astype(np.float32), f"rewards of step {step}")
        assert_same(terminated, flags[1], f"terminated of step {step}")
        assert_same(truncated, flags[2], f"truncated of step {step}")
        infos = without_ours(infos, mode == "same_step")
        assert_final_obs_same(infos, expected_infos)
        done = terminated | truncated
        episodes += int(done.sum())
        if mode == "disabled" and done.any():
            assert_same(obs, expected, f"last obs of step {step}")
            assert_same(as_merged_there(infos, expected_infos), expected_infos, f"last infos of step {step}")
            obs, infos = vec.reset(options={"reset_mask": done.copy()})
            expected, expected_infos = twin.reset(options={"reset_mask": done.copy()})
    assert episodes > 0
    vec.close()
    twin.close()


MODES = ["same_step", "next_step", "disabled"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env", [CounterEnv, InfoEnv, DictEnv, ImageEnv], ids=lambda env: env.__name__)
def test_equals_sync_vector_env(env, mode):
    assert_equals_gymnasium(env, mode, steps=90 if env is ImageEnv else 150, count=2 if env is ImageEnv else 5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "FrozenLake-v1", "Taxi-v4"])
def test_gymnasium_envs_equal_sync_vector_env(name, mode):
    if name not in gymnasium.registry:
        pytest.skip(f"this Gymnasium has no {name}")
    steps = 520 if name in ("Acrobot-v1", "Pendulum-v1") else 250
    assert_equals_gymnasium(functools.partial(gymnasium.make, name), mode, steps, count=3)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_infos_of_processes_equal_sync_vector_env(backend):
    vec = shoal.make(InfoEnv, 6, backend=backend, copy=True, **({"num_workers": 3} if backend == "process" else {}))
    twin = SyncVectorEnv([InfoEnv] * 6, autoreset_mode=AutoresetMode.SAME_STEP)
    _, infos = vec.reset(seed=2)
    _, expected = twin.reset(seed=2)
    vec.action_space.seed(0)
    for step in range(100):
        assert_same(as_merged_there(infos, expected), expected, f"infos before step {step}")
        actions = vec.action_space.sample()
        *_, infos = vec.step(actions)
        *_, expected = twin.step(actions)
        infos = without_ours(infos, True)
        assert_final_obs_same(infos, expected)
    vec.close()


def test_an_episode_that_ends_reports_its_return_and_length():
    vec, totals, lengths, seen = serial(CounterEnv, 4), np.zeros(4, np.float32), np.zeros(4, int), 0
    vec.reset(seed=0)
    vec.action_space.seed(0)
    for _ in range(100):
        _, rewards, terminated, truncated, infos = vec.step(vec.action_space.sample())
        totals, lengths, done = totals + rewards, lengths + 1, terminated | truncated
        assert ("final_info" in infos) == bool(done.any())
        if done.any():
            episode = infos["final_info"]["episode"]
            np.testing.assert_array_equal(infos["_final_info"], done)
            np.testing.assert_allclose(episode["r"][done], totals[done], rtol=1e-6)
            np.testing.assert_array_equal(episode["l"][done], lengths[done])
            seen += int(done.sum())
        totals[done], lengths[done] = 0, 0
    assert vec.drain_stats()["episodes"] == seen
    assert vec.drain_stats() == {"episodes": 0}


# ---- seeds ----


def test_env_i_gets_seed_plus_i():
    vec = serial(CounterEnv, 3, seed=40)
    vec.reset()
    assert vec.get_attr("seeds") == ([40], [41], [42])
    vec.reset()
    assert vec.get_attr("seeds") == ([40, None], [41, None], [42, None])
    vec.reset(seed=[9, 5, 7])
    assert [seeds[-1] for seeds in vec.get_attr("seeds")] == [9, 5, 7]
    vec.reset(seed=1, options={"reset_mask": np.array([False, True, False])})
    assert [seeds[-1] for seeds in vec.get_attr("seeds")] == [9, 2, 7]


def test_autoreset_does_not_seed_again():
    vec = serial(CounterEnv, 2)
    vec.reset(seed=3)
    for _ in range(40):
        vec.step(np.zeros(2, int))
    for number, seeds in enumerate(vec.get_attr("seeds")):
        assert len(seeds) > 2
        assert seeds == [3 + number] + [None] * (len(seeds) - 1)


def test_reset_after_done_resets_once():
    vec = serial(CounterEnv, 1, longest=1)
    vec.reset(seed=0)
    vec.step(np.zeros(1, int))
    assert vec.get_attr("episodes") == (2,)
    vec.reset()
    assert vec.get_attr("episodes") == (3,)


def test_options_reach_the_envs():
    vec = serial(CounterEnv, 2)
    vec.reset(options={"level": 3})
    assert vec.get_attr("options") == ({"level": 3},) * 2
    vec.reset()
    assert vec.get_attr("options") == (None, None)


# ---- wrappers ----


class Endless(CounterEnv):
    """Ends by its time limit only."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class Same(gymnasium.Wrapper):
    """Keeps the standard wrappers inside of it where they are."""


class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return 2 * reward


def test_a_time_limit_taken_off_equals_one_left_on():
    limited = functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=7)
    stripped = serial(lambda: limited(Endless()), 2)
    whole = serial(lambda: Same(limited(Endless())), 2)
    assert type(stripped._runners[0].slots[0].env) is Endless
    assert type(whole._runners[0].slots[0].env) is Same
    results = [[vec.reset(seed=1)[0]] for vec in (stripped, whole)]
    for _ in range(30):
        for result, vec in zip(results, (stripped, whole)):
            result.append(vec.step(np.array([1, 2])))
    for a, b in zip(*results):
        assert_same(a, b)
    assert stripped.drain_stats()["length"] == {"mean": 7.0, "min": 7.0, "max": 7.0}


def test_the_tighter_of_two_time_limits_holds():
    outer = functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=9)
    inner = functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=4)
    vec = serial(lambda: outer(inner(Endless())), 1)
    vec.reset(seed=0)
    for _ in range(20):
        vec.step(np.zeros(1, int))
    assert vec.drain_stats()["length"]["max"] == 4


def test_every_env_keeps_its_own_time_limit():
    """Also after some were reset in between: each episode is exactly as long as its env's limit says."""
    limits = iter([3, 1000, 7, 4, 0])

    def make():
        limit = next(limits)
        return gymnasium.wrappers.TimeLimit(Endless(), max_episode_steps=limit) if limit else Endless()

    vec = serial(make, 5)
    vec.reset(seed=0)
    ended = []
    for step in range(1, 22):
        if step == 10:
            vec.reset(seed=0, options={"reset_mask": np.array([True, False, True, False, False])})
        truncated = vec.step(np.zeros(5, int))[3]
        ended += [(step, env) for env in np.flatnonzero(truncated).tolist()]
    wanted = [(step, 0) for step in (3, 6, 9, 12, 15, 18, 21)] + [(step, 2) for step in (7, 16)]
    assert sorted(ended) == sorted(wanted + [(step, 3) for step in (4, 8, 12, 16, 20)])


def test_max_episode_steps_of_gymnasium_make():
    vec = serial("gymnasium:Pendulum-v1", 2, max_episode_steps=5)
    vec.reset(seed=0)
    flags = [vec.step(np.zeros((2, 1), np.float32))[3].all() for _ in range(10)]
    assert flags == [False] * 4 + [True] + [False] * 4 + [True]


@pytest.mark.parametrize(
    "wrap",
    [
        gymnasium.wrappers.FlattenObservation,
        gymnasium.wrappers.NormalizeObservation,
        gymnasium.wrappers.RecordEpisodeStatistics,
        Doubled,
        lambda env: gymnasium.wrappers.FrameStackObservation(env, 3),
        lambda env: gymnasium.wrappers.TimeLimit(Doubled(gymnasium.wrappers.OrderEnforcing(env)), 6),
    ],
    ids=["flatten", "normalize", "statistics", "reward", "stack", "between"],
)
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_wrappers_are_kept(wrap, mode):
    def make() -> Any:
        return wrap(CounterEnv(longest=5))

    if wrap is gymnasium.wrappers.RecordEpisodeStatistics:  # its infos have the time that an episode took
        vec = serial(make, 2, autoreset=mode)
        vec.reset(seed=0)
        seen = []
        for _ in range(30):
            *_, infos = vec.step(np.zeros(2, int))
            found = infos.get("final_info", {}) if mode == "same_step" else infos
            seen += [found["episode"]["t"][k] for k in range(2) if "_episode" in found and found["_episode"][k]]
        assert len(seen) > 4, "the wrapper's own record is passed on"
        return
    assert_equals_gymnasium(make, mode, steps=60, count=3)


def test_gymnasium_vector_wrappers_take_it():
    vec = gymnasium.wrappers.vector.RecordEpisodeStatistics(serial(CounterEnv, 3))
    vec.reset(seed=0)
    for _ in range(20):
        *_, infos = vec.step(np.zeros(3, int))
    wrapped = gymnasium.wrappers.vector.NormalizeObservation(serial(CounterEnv, 3, autoreset="next_step"))
    wrapped.reset(seed=0)
    assert wrapped.step(np.zeros(3, int))[0].shape == (3, 3)


# ---- agents with different spaces ----


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_agents_with_different_spaces(mode):
    vec, alone = serial(MixedAgentsEnv, 3, autoreset=mode), [MixedAgentsEnv() for _ in range(3)]
    obs, _ = vec.reset(seed=4)
    expected = [env.reset(seed=4 + k)[0] for k, env in enumerate(alone)]
    vec.action_space.seed(0)
    ended, episodes = np.zeros(3, bool), 0
    assert vec.num_rows == 6
    for _ in range(60):
        assert vec.observation_space.contains(obs)
        for k in range(3):
            assert obs["speaker"][k] == expected[k]["speaker"]
            assert obs["listener"]["word"][k] == expected[k]["listener"]["word"]
            np.testing.assert_array_equal(obs["listener"]["place"][k], expected[k]["listener"]["place"])
        actions = vec.action_space.sample()
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        for k, env in enumerate(alone):
            if ended[k]:
                expected[k], ended[k] = env.reset()[0], False
                assert (rewards[2 * k : 2 * k + 2] == 0).all()
                continue
            given = {"speaker": actions["speaker"][k], "listener": actions["listener"][k]}
            expected[k], paid, over, _, _ = env.step(given)
            np.testing.assert_array_equal(rewards[2 * k : 2 * k + 2], np.float32([paid[a] for a in paid]))
            np.testing.assert_array_equal(terminated[2 * k : 2 * k + 2], [over[a] for a in over])
            if over["speaker"]:
                episodes += 1
                if mode == "same_step":
                    final = infos["final_obs"]["listener"]["place"][k]
                    np.testing.assert_array_equal(final, expected[k]["listener"]["place"])
                    expected[k] = env.reset()[0]
                ended[k] = mode == "next_step"
        assert not truncated.any()
        games = terminated.reshape(3, 2).all(1)
        if mode == "disabled" and games.any():
            obs, _ = vec.reset(options={"reset_mask": games})
            for k in np.flatnonzero(games):
                expected[k] = alone[k].reset()[0]
    assert episodes > 10
    with pytest.raises(ConfigError, match=r"agents\(\)"):
        vec.rows()
    with pytest.raises(ActionError, match="expected a dict by agent"):
        vec.step(np.zeros(6))
    before = vec.block.arrays["actions"].copy()
    with pytest.raises(ActionError, match="out of range"):
        vec.step({**actions, "listener": actions["listener"] / 2, "speaker": actions["speaker"] + 9})
    assert (vec.block.arrays["actions"] == before).all(), "checked whole, then written"


def test_dict_view_of_agents_with_different_spaces():
    vec, twin = serial(MixedAgentsEnv, 3), serial(MixedAgentsEnv, 3)
    face = vec.agents()
    assert face.possible_agents == ["speaker", "listener"]
    for agent in face.possible_agents:
        assert face.observation_space(agent) == MixedAgentsEnv().observation_space(agent)
        assert face.action_space(agent) == MixedAgentsEnv().action_space(agent)
    assert_same(face.reset(seed=1)[0], twin.reset(seed=1)[0])
    vec.action_space.seed(0)
    for _ in range(30):
        actions = vec.action_space.sample()
        obs, rewards, terminated, truncated, _ = face.step(actions)
        expected, paid, over, cut, _ = twin.step(actions)
        assert_same(obs, expected)
        for k, agent in enumerate(face.possible_agents):
            np.testing.assert_array_equal(rewards[agent], paid[k::2])
            np.testing.assert_array_equal(terminated[agent], over[k::2])
            np.testing.assert_array_equal(truncated[agent], cut[k::2])
    with pytest.raises(ActionError, match="expected"):
        face.step({"speaker": actions["speaker"]})


class TwinsEnv(MixedAgentsEnv):
    """Two agents with the same nested spaces."""

    def observation_space(self, agent: str) -> Any:
        return super().observation_space("listener")

    def action_space(self, agent: str) -> Any:
        return spaces.Dict({"word": spaces.Discrete(4), "move": spaces.Box(-1, 1, (2,), np.float32)})

    def _obs(self) -> Any:
        heard = super()._obs()["listener"]
        return {"speaker": {**heard, "word": (heard["word"] + 1) % 4}, "listener": heard}

    def step(self, actions: dict[str, Any]) -> Any:
        return super().step({"speaker": actions["speaker"]["word"], "listener": actions["listener"]["move"]})


def test_dict_view_of_agents_with_nested_spaces():
    vec, twin = serial(TwinsEnv, 3), serial(TwinsEnv, 3)
    face = vec.agents()
    obs, _ = face.reset(seed=1)
    rows, _ = twin.reset(seed=1)
    twin.action_space.seed(0)
    for _ in range(30):
        for k, agent in enumerate(face.possible_agents):
            np.testing.assert_array_equal(obs[agent]["word"], rows["word"][k::2])
            np.testing.assert_array_equal(obs[agent]["place"], rows["place"][k::2])
        actions = twin.action_space.sample()
        by_agent = {
            agent: {key: part[k::2] for key, part in actions.items()} for k, agent in enumerate(face.possible_agents)
        }
        obs, rewards, *_ = face.step(by_agent)
        rows, paid, *_ = twin.step(actions)
        np.testing.assert_array_equal(rewards["listener"], paid[1::2])
    with pytest.raises(ActionError, match="differ in structure or shape"):
        face.step({**by_agent, "listener": {"word": by_agent["listener"]["word"]}})


# ---- what an env must not return ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda obs: {**obs, "image": obs["image"][:2]}, r"obs\['image'\] has shape \(2, 2\), its space has \(3, 2\)"),
        (lambda obs: {**obs, "image": obs["image"] / 2}, r"obs\['image'\] has dtype float64"),
        (lambda obs: {**obs, "pose": obs["pose"][:2]}, r"obs\['pose'\]\[2\] is missing"),
        (lambda obs: {key: obs[key] for key in obs if key != "half"}, r"obs\['half'\] is missing"),
        (lambda obs: {**obs, "half": None}, r"obs\['half'\] is None"),
        (lambda obs: {**obs, "pose": (np.float32([0, np.nan]), *obs["pose"][1:])}, "NaN"),
        (lambda obs: {**obs, "cards": np.array([2**40, 0]) * 1.0}, r"obs\['cards'\] has dtype"),
    ],
)
def test_bad_output_names_env_and_key(change, message):
    class Broken(DictEnv):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return (change(obs) if self.count == 2 and self.np_random_seed == 6 else obs, *rest)

    vec = serial(Broken, 3)
    vec.reset(seed=5)
    vec.action_space.seed(0)
    vec.step(vec.action_space.sample())
    with pytest.raises(BadOutput, match=message) as caught:
        vec.step(vec.action_space.sample())
    assert (caught.value.env, caught.value.seed, caught.value.step) == (1, 6, 2)
    assert "env 1 (seed 6) in step 2" in str(caught.value)


class Numbers(gymnasium.Env[Any, Any]):
    observation_space, action_space = spaces.Box(-9, 9, (4,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.arange(4, dtype=np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("num_envs", [2, 5])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda obs: obs[:3], r"obs has shape \(3,\), its space has \(4,\)"),
        (lambda obs: obs[:1], r"obs has shape \(1,\), its space has \(4,\)"),
        (lambda obs: None, "obs is None"),
        (lambda obs: obs + 1j, "obs has dtype complex"),
        (lambda obs: obs * np.nan, "NaN"),
    ],
)
def test_bad_numbers_name_their_env_however_many_there_are(num_envs, change, message):
    class Broken(Numbers):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return (change(obs) if self.np_random_seed == 6 else obs, *rest)

    vec = serial(Broken, num_envs)
    vec.reset(seed=5)
    with pytest.raises(BadOutput, match=message) as caught:
        vec.step(np.zeros(num_envs, int))
    assert (caught.value.env, caught.value.seed) == (1, 6)


def test_numbers_of_another_kind_are_taken_as_before():
    """Lists, doubles and integers, in one env of several."""

    class Odd(Numbers):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            odd = {5: obs.astype(np.float64), 6: obs.tolist(), 7: obs.astype(np.int32)}
            return (odd.get(self.np_random_seed, obs), *rest)

    vec = serial(Odd, 5)
    vec.reset(seed=5)
    obs = vec.step(np.zeros(5, int))[0]
    assert obs.dtype == np.float32
    np.testing.assert_array_equal(obs, np.tile(np.arange(4), (5, 1)))
