"""Wrappers: those of native envs equal a slow and obvious loop, those of Python envs equal those of native envs."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal import evaluate, registry
from shoal.errors import ConfigError, SnapshotError
from shoal.integrations.wrapped import WrappedEnv
from shoal.native import build, cuda, lib
from shoal.native.batch import Slide
from shoal.train import options_for, train
from shoal.train.envs import make_vec
from shoal.train.options import as_tables
from shoal.train.players import load_player
from shoal.wrappers import Wrap
from tests.envs import DictEnv, ImageEnv, TurnsEnv
from tests.fake_gpu import make_cuda_vec_on_host
from tests.training import contents, cut, train_tiny

ALL = {
    "sticky": 0.25,
    "skip": 2,
    "time_limit": 12,
    "reward_scale": 0.5,
    "reward_clip": 0.75,
    "obs_noise": 0.05,
    "stack": 3,
}
PLAIN = {name: ALL[name] for name in ("skip", "time_limit", "reward_scale", "reward_clip", "stack")}  # no chance in it


def random_actions(vec, steps, seed=0):
    rng = np.random.default_rng(seed)
    shape, space = vec.action_space.shape, vec.single_action_space
    if isinstance(space, gymnasium.spaces.Box):
        return rng.uniform(-2, 2, (steps, *shape)).astype(np.float32)
    return rng.integers(0, getattr(space, "nvec", getattr(space, "n", None)), (steps, *shape))


def play(vec, actions):
    """Everything that comes out: (observations, rewards, terminated, truncated, final observations)."""
    out = []
    for action in actions:
        obs, rewards, terminated, truncated, infos = vec.step(action)
        done = terminated | truncated
        final = np.where(done.reshape(-1, *[1] * (obs.ndim - 1)), infos.get("final_obs", obs), 0)
        out.append([part.copy() for part in (obs, rewards, terminated, truncated, final)])
    return [np.stack(parts) for parts in zip(*out)]


def assert_equal(one, other):
    for first, second in zip(one, other):
        np.testing.assert_array_equal(first, second)


# ---- native envs ----


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("env", ["breakout", "cartpole", "pendulum", "forage", "maze"])
def test_wrappers_equal_a_slow_loop(env, autoreset):
    """One plain env at a time, stepped `skip` times; frames are stacked and rewards shaped here."""
    wrap, count = Wrap.read(PLAIN), 5
    vec = shoal.make(env, count, wrap=PLAIN, autoreset=autoreset)
    got, _ = vec.reset(seed=7)
    agents, actions = vec.agents_per_env, random_actions(vec, 40)
    limit = wrap.time_limit * wrap.skip
    envs = [shoal.make(env, 1, max_steps=limit, autoreset=autoreset) for _ in range(count)]
    frames = []
    for i, one in enumerate(envs):
        first = one.reset(seed=7 + i)[0]
        frames.append([[frame.copy()] * wrap.stack for frame in first])
        assert_equal([wrap.stacked(stack) for stack in frames[i]], got[i * agents : (i + 1) * agents])
    ends = 0
    for action in actions:
        got, rewards, terminated, truncated, infos = vec.step(action)
        for i, one in enumerate(envs):
            rows = slice(i * agents, (i + 1) * agents)
            total, done, cut_off, last = (
                np.zeros(agents, np.float32),
                np.zeros(agents, bool),
                np.zeros(agents, bool),
                {},
            )
            was_ended = bool(one.ended[0])
            for _ in range(wrap.skip):
                obs, reward, term, trunc, info = one.step(action[rows])
                total = total + reward
                done, cut_off = done | term, cut_off | trunc
                for row in np.flatnonzero(term | trunc):
                    last[row] = info["final_obs"][row].copy() if "final_obs" in info else obs[row].copy()
                restarted = one.memory.arrays["tick"][0] == 0
                if restarted or one.ended[0]:
                    break
            assert not was_ended or restarted
            np.testing.assert_array_equal(rewards[rows], np.clip(total * np.float32(0.5), -0.75, 0.75))
            np.testing.assert_array_equal(terminated[rows], done)
            np.testing.assert_array_equal(truncated[rows], cut_off)
            for row in range(agents):
                at = i * agents + row
                if row in last and "final_obs" in infos:
                    ends += 1
                    np.testing.assert_array_equal(
                        infos["final_obs"][at], wrap.stacked([*frames[i][row][1:], last[row]])
                    )
                    assert infos["final_info"]["episode"]["r"][at] == info["final_info"]["episode"]["r"][row]
                    inner = info["final_info"]["episode"]["l"][row]
                    assert infos["final_info"]["episode"]["l"][at] == -(-inner // wrap.skip)
                new = obs[row].copy()
                alive = one.alive[row]
                frames[i][row] = [new] * wrap.stack if restarted else [*frames[i][row][1:], new]
                expected = wrap.stacked(frames[i][row])
                np.testing.assert_array_equal(got[at], expected if alive else np.zeros_like(expected))
    assert ends > 3 or autoreset == "next_step"


def test_stacked_frames_are_the_same_whether_all_envs_step_or_some():
    """A step of all envs moves the observations through memory, one of some envs copies them. Both may take turns."""
    every, some, mixed = (shoal.make("breakout", 6, num_groups=groups, wrap={"stack": 3}) for groups in (1, 2, 1))
    for vec in (every, mixed):
        vec.reset(seed=0)
    some.async_reset(seed=0)
    actions = random_actions(every, 2 * Slide.MOST + 9)
    for t, action in enumerate(actions):
        obs = every.step(action)[0]
        for _ in range(2):
            ids = some.recv()[4]["env_id"]
            some.send(action[ids], ids)
        if t % 7 == 3:
            mixed.send(action)
            np.testing.assert_array_equal(mixed.recv()[0], obs)
        else:
            np.testing.assert_array_equal(mixed.step(action)[0], obs)
        if t % 50 == 49:
            mixed.check_idle()
            mixed.restore(every.snapshot())
    parts = [some.recv() for _ in range(2)]
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), obs)


@pytest.mark.parametrize("env", ["breakout", "cartpole", "pendulum", "forage"])
def test_every_backend_and_every_batch_gives_the_same_bytes(env, monkeypatch):
    vec = shoal.make(env, 6, wrap=ALL)
    vec.reset(seed=3)
    actions = random_actions(vec, 40)
    expected = play(vec, actions)
    threads = shoal.make(env, 6, num_threads=2, wrap=ALL)
    threads.reset(seed=3)
    assert_equal(play(threads, actions), expected)
    agents = vec.agents_per_env
    alone = shoal.make(env, 1, wrap=ALL)
    alone.reset(seed=3 + 4)
    rows = slice(4 * agents, 5 * agents)
    assert_equal(play(alone, actions[:, rows]), [part[:, rows] for part in expected])
    gpu = make_cuda_vec_on_host(monkeypatch, lib.load(registry.find(env)), 6, wrap=Wrap.read(ALL))
    gpu.reset(seed=3)
    place = gpu.tensors["obs"].clone()  # a step may write into a rollout
    for t, action in enumerate(actions):
        gpu.actions.copy_(gpu._torch.from_numpy(action.astype(gpu.actions.numpy().dtype)))
        gpu.launch_step(obs=place)
        np.testing.assert_array_equal(place.numpy(), expected[0][t])
        np.testing.assert_array_equal(gpu.tensors["rewards"].numpy(), expected[1][t])


@pytest.mark.parametrize("env", ["squared"])
def test_the_kernels_with_wrappers_compile(env, tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings")
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    code = cuda.cubin(build.Source.env(registry.find(env)), "sm_90", cuda.EXTRAS)
    assert b"shoal_step_kernel" in code


def test_the_shape_of_a_stack():
    shapes = {name: shoal.make(name, wrap={"stack": 4}).single_observation_space.shape for name in ("breakout", "maze")}
    assert shapes == {"breakout": (472,), "maze": (15, 15, 12)}
    assert Wrap(stack=4).stacked_shape((84, 84)) == (4, 84, 84)
    space = shoal.make("cartpole", wrap={"stack": 2}).single_observation_space
    assert space.low.tolist() == 2 * shoal.make("cartpole").single_observation_space.low.tolist()


def test_sticky_actions_repeat_the_last_action_as_often_as_asked():
    vec = shoal.make("pendulum", 500, wrap={"sticky": 0.25}, max_steps=20)
    vec.reset(seed=0)
    repeats = []
    before = None
    for t in range(40):
        action = np.full((500, 1), t / 100, np.float32)
        vec.step(action)
        applied = vec.memory.arrays["applied"].copy()
        if t % 20 == 0:
            assert np.array_equal(applied, action)  # the first action of an episode
        else:
            repeated = applied != action
            assert np.array_equal(applied[repeated], before[repeated])
            repeats.append(repeated.mean())
        before = applied
    assert abs(np.mean(repeats) - 0.25) < 0.01


def test_noise_has_its_size_and_stays_within_the_bounds():
    plain, noisy = shoal.make("breakout", 200), shoal.make("breakout", 200, wrap={"obs_noise": 0.1})
    clean, seen = plain.reset(seed=0)[0], noisy.reset(seed=0)[0]
    inside = np.abs(clean) < 0.5
    assert abs((seen - clean)[inside].std() - 0.1) < 0.005
    assert noisy.single_observation_space.contains(seen[0])
    assert seen.max() <= 1.0
    pixels = shoal.make("maze", 20, wrap={"obs_noise": 3.0})
    maze = shoal.make("maze", 20).reset(seed=0)[0].astype(np.int64)
    difference = pixels.reset(seed=0)[0].astype(np.int64) - maze
    assert 1.0 < difference[maze > 0].std() < 3.5


def test_the_return_is_that_of_the_env_and_the_length_counts_steps():
    vec = shoal.make("cartpole", 16, wrap={"reward_scale": 0.01, "skip": 4}, max_steps=8)
    vec.reset(seed=0)
    for _ in range(2):
        infos = vec.step(np.tile([0, 1], 8))[4]
    episode = infos["final_info"]["episode"]
    assert episode["r"].tolist() == [8.0] * 16
    assert episode["l"].tolist() == [2] * 16
    stats = vec.drain_stats()
    assert (stats["return"]["mean"], stats["length"]["mean"]) == (8.0, 2.0)
    assert vec.time_limit == 2


def test_an_env_with_wrappers_draws_and_plays_like_the_plain_one():
    plain, wrapped = shoal.make("breakout", 2), shoal.make("breakout", 2, wrap={"stack": 2, "obs_noise": 0.1})
    plain.reset(seed=0), wrapped.reset(seed=0)
    for action in random_actions(plain, 20):
        plain.step(action), wrapped.step(action)
    assert np.array_equal(plain.frame(1), wrapped.frame(1))


# ---- snapshots ----


@pytest.mark.parametrize("env", ["breakout", "cartpole", "forage"])
def test_a_snapshot_continues_exactly(env):
    vec, other = shoal.make(env, 6, wrap=ALL), shoal.make(env, 6, num_threads=2, wrap=ALL)
    obs, _ = vec.reset(seed=0)
    actions = random_actions(vec, 60)
    play(vec, actions[:9])
    assert np.array_equal(other.restore(vec.snapshot()), vec.memory.arrays["obs"])
    assert_equal(play(vec, actions[9:]), play(other, actions[9:]))


@pytest.mark.parametrize("env", ["breakout", "pendulum"])
def test_a_snapshot_moves_between_a_cpu_and_a_gpu(env, monkeypatch):
    """The `cuda` backend with the CPU's functions: what a real GPU computes is in benchmarks/gpu.py."""
    params = {"max_steps": shoal.integers(5, 30)}
    vec, back = (shoal.make(env, 6, wrap=ALL, **params) for _ in range(2))
    gpu = make_cuda_vec_on_host(monkeypatch, lib.load(registry.find(env)), 6, wrap=Wrap.read(ALL), params=params)
    vec.reset(seed=0)
    actions = random_actions(vec, 40)
    play(vec, actions[:9])
    assert np.array_equal(gpu.restore(vec.snapshot()).numpy(), vec.memory.arrays["obs"])
    for action in actions[9:20]:
        gpu.actions.copy_(gpu._torch.from_numpy(action.astype(gpu.actions.numpy().dtype)))
        gpu.launch_step()
        assert np.array_equal(gpu.tensors["obs"].numpy(), vec.step(action)[0])
    back.restore(gpu.snapshot())
    assert np.array_equal(gpu.get_params()["max_steps"], back.get_params()["max_steps"])
    assert np.array_equal(gpu.frame(2), back.frame(2))
    assert_equal(play(vec, actions[20:]), play(back, actions[20:]))


def test_a_snapshot_of_other_wrappers_is_refused():
    vec, plain = shoal.make("cartpole", 2, wrap={"stack": 2}), shoal.make("cartpole", 2)
    vec.reset(seed=0), plain.reset(seed=0)
    with pytest.raises(SnapshotError, match="with the wrappers stack=2, not none. Make the envs with the same wrap"):
        plain.restore(vec.snapshot())
    with pytest.raises(SnapshotError, match="with the wrappers none, not stack=2"):
        vec.restore(plain.snapshot())


def test_a_forged_action_is_refused():
    vec = shoal.make("cartpole", 2, wrap={"sticky": 0.5})
    vec.reset(seed=0)
    vec.step(np.zeros(2, np.int64))
    vec.memory.arrays["applied"][1] = 1_000_000  # as forged bytes could hold
    with pytest.raises(SnapshotError, match="an action that is out of range"):
        vec.restore(vec.snapshot())


# ---- mistakes ----


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        ({"stak": 4}, "no wrapper 'stak'. Did you mean 'stack'"),
        ({"stack": 0}, "stack=0 must be in 1 .. 256"),
        ({"skip": 1.5}, "skip=1.5 must be an int"),
        ({"sticky": 1.0}, r"sticky=1.0 must be in 0 .. 0.999"),
        ({"reward_scale": 0.0}, "would make all rewards 0"),
        ({"obs_noise": "much"}, "obs_noise='much' must be a number"),
        ({"time_limit": 2**30, "skip": 4}, "more than 2\\^31 - 1 env steps"),
        ("stack", "'stack' has no value. Write it as stack=4"),
        ("stack=x", "not a number"),
        (4, "must be a mapping"),
    ],
)
def test_a_wrong_wrapper_is_told(wrap, message):
    with pytest.raises(ConfigError, match=message):
        shoal.make("cartpole", 2, wrap=wrap)
    with pytest.raises(ConfigError, match=message):
        options_for("cartpole", {"wrap": wrap})


def test_wrappers_that_do_not_fit_are_told():
    with pytest.raises(ConfigError, match=r"stack=2 needs observations that are one array.*DictEnv are a Dict"):
        shoal.make(DictEnv, 1, backend="serial", wrap={"stack": 2})
    with pytest.raises(ConfigError, match="take turns"):
        shoal.make(TurnsEnv, 1, backend="serial", wrap={"skip": 2})
    with pytest.raises(ConfigError, match="makes a vector env"):
        shoal.make(lambda: shoal.make("cartpole", 2), 1, backend="serial", wrap={"skip": 2})


# ---- Python envs ----


def test_python_envs_have_the_same_wrappers():
    """Gymnasium's CartPole from the starts of ours, with the same actions: same steps, ends and observations."""
    vec, count = shoal.make("cartpole", 8, wrap=PLAIN), 8
    obs, _ = vec.reset(seed=2)
    theirs = [WrappedEnv(gymnasium.make("CartPole-v1").unwrapped, Wrap.read(PLAIN), 500) for _ in range(count)]

    def take_up(env, newest):
        newest = newest.copy()
        env.reset(seed=0)
        env.unwrapped.state = newest.astype(np.float64)
        env._frames = [newest] * 3

    for i, env in enumerate(theirs):
        take_up(env, obs[i, -4:])
    ends = set()
    for action in random_actions(vec, 60):
        obs, rewards, terminated, truncated, infos = vec.step(action)
        for i, env in enumerate(theirs):
            seen, reward, term, trunc, _ = env.step(int(action[i]))
            over = terminated[i] or truncated[i]
            np.testing.assert_allclose(infos["final_obs"][i] if over else obs[i], seen, atol=1e-5)
            assert (rewards[i], terminated[i], truncated[i]) == (reward, term, trunc)
            if over:
                assert infos["final_info"]["episode"]["r"][i] == env.unshaped_return
                ends.add((bool(term), bool(trunc)))
                take_up(env, obs[i, -4:])
    assert ends == {(True, False), (False, True)}


def test_python_envs_in_a_vector():
    vec = shoal.make("gymnasium:CartPole-v1", 4, backend="serial", wrap="stack=2 skip=2 reward_scale=0.1 time_limit=6")
    again = shoal.make(
        "gymnasium:CartPole-v1",
        4,
        backend="process",
        num_workers=2,
        wrap="stack=2 skip=2 reward_scale=0.1 time_limit=6",
    )
    with contextlib.closing(again):
        first, _ = vec.reset(seed=0)
        assert first.shape == (4, 8)
        assert np.array_equal(first, again.reset(seed=0)[0])
        for t in range(12):
            one, other = vec.step(np.array([0, 1, t % 2, 1])), again.step(np.array([0, 1, t % 2, 1]))
            assert_equal(one[:4], other[:4])
            if t == 5:
                assert one[3].tolist() == [False, False, True, False] or one[2].any()
                assert one[4]["final_info"]["episode"]["r"][2] == 12.0  # of the env: 6 steps of 2 rewards
                assert one[4]["final_info"]["episode"]["l"][2] == 6


def test_gymnasium_makes_native_envs_with_wrappers():
    env = gymnasium.make("shoal/Breakout-v0", wrap={"stack": 2})
    first, _ = env.reset(seed=0)
    assert env.observation_space.shape == first.shape == (236,)
    assert env.observation_space.contains(env.step(0)[0])


def test_noise_and_sticky_actions_of_python_envs_are_seeded():
    def observations():
        vec = shoal.make(ImageEnv, 2, backend="serial", wrap={"obs_noise": 4.0, "sticky": 0.5, "stack": 2})
        first, _ = vec.reset(seed=5)
        assert vec.single_observation_space.contains(first[0])
        return first.copy(), play(vec, random_actions(vec, 6))

    (first, rest), (again, rest_again) = observations(), observations()
    assert np.array_equal(first, again)
    assert_equal(rest, rest_again)
    assert not np.array_equal(first, shoal.make(ImageEnv, 2, backend="serial", wrap="stack=2").reset(seed=5)[0])


class Duel:
    """A parallel env: agent b dies in step 3, and a ends the game in step 7. obs: (step, last action)."""

    possible_agents = ("a", "b")

    def observation_space(self, agent):
        return gymnasium.spaces.Box(0, 99, (2,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(5)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = ["a", "b"], 0
        return {name: np.zeros(2, np.float32) for name in self.agents}, {}

    def step(self, actions):
        self.steps += 1
        names = self.agents
        ends = {name: self.steps == (7 if name == "a" else 3) for name in names}
        self.agents = [name for name in names if not ends[name]]
        obs = {name: np.array([self.steps, actions[name]], np.float32) for name in names}
        return obs, dict.fromkeys(names, 1.0 + self.steps), ends, dict.fromkeys(names, False), {}

    def close(self):
        pass


def test_pettingzoo_envs_have_wrappers():
    vec = shoal.make(Duel, 1, backend="serial", wrap={"skip": 2, "stack": 2, "reward_scale": 0.5, "reward_clip": 3.0})
    vec.reset(seed=0)
    obs, rewards, terminated, _, _ = vec.step(np.array([1, 2]))
    assert obs.tolist() == [[0, 0, 2, 1], [0, 0, 2, 2]]
    assert rewards.tolist() == [2.5, 2.5]
    obs, rewards, terminated, _, infos = vec.step(np.array([3, 4]))
    assert terminated.tolist() == [False, True]
    assert obs.tolist() == [[2, 1, 4, 3], [0, 0, 0, 0]]
    assert infos["final_obs"][1].tolist() == [2, 2, 3, 4]
    assert rewards.tolist() == [3.0, 2.0]
    assert infos["final_info"]["episode"]["r"][1] == 9.0
    vec.step(np.array([0, 0]))
    _, rewards, terminated, _, infos = vec.step(np.array([0, 0]))
    assert terminated[0]
    assert infos["final_info"]["episode"]["r"][0] == sum(range(2, 9))
    assert infos["final_info"]["episode"]["l"][0] == 4
    limited = shoal.make(Duel, 1, backend="serial", wrap={"time_limit": 2})
    limited.reset(seed=0)
    limited.step(np.array([0, 0]))
    assert limited.step(np.array([0, 0]))[3].all()


# ---- training ----


def test_a_run_with_stacked_frames_resumes_exactly(tmp_path):
    whole = train_tiny("breakout", tmp_path / "a", wrap=["stack=3", "skip=2"])
    part = cut(train_tiny("breakout", tmp_path / "b", wrap=["stack=3", "skip=2"]), 2)
    assert contents(train("breakout", resume=part, runs_folder=tmp_path / "b", console="off")) == contents(whole)


def test_a_run_keeps_its_wrappers_and_resumes_exactly(tmp_path):
    wrap = ["sticky=0.1", "obs_noise=0.05", "stack=2"]
    options = options_for("cartpole", {"wrap": {"stack": 2, "obs_noise": 0.05, "sticky": 0.1}})
    assert sorted(as_tables(options)["wrap"]) == sorted(wrap)
    vec = make_vec("cartpole", options_for("cartpole", {"wrap": wrap, "vec": {"num_envs": 4}}))
    assert vec.single_observation_space.shape == (8,)
    env = {"gravity": shoal.uniform(5, 15)}
    whole = train_tiny("cartpole", tmp_path / "a", wrap=wrap, env=env)
    part = cut(train_tiny("cartpole", tmp_path / "b", wrap=wrap, env=env), 3)
    resumed = train("cartpole", resume=part, runs_folder=tmp_path / "b", console="off")
    assert contents(resumed) == contents(whole)
    _player, made_with = load_player(whole)
    assert (sorted(made_with["wrap"]), made_with["gravity"]) == (sorted(wrap), shoal.uniform(5, 15))


class TwoPlayers:
    """Five steps; agent a earns 10 in each, agent b 20, and b leaves after three."""

    possible_agents = ("a", "b")

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2,))

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.tick = ["a", "b"], 0
        return dict.fromkeys(self.agents, np.zeros(2, np.float32)), {}

    def step(self, actions):
        self.tick += 1
        acted, ends = self.agents, {"a": self.tick == 5, "b": self.tick == 3}
        self.agents = [agent for agent in acted if not ends[agent]]
        rewards = {agent: {"a": 10.0, "b": 20.0}[agent] for agent in acted}
        obs = dict.fromkeys(acted, np.zeros(2, np.float32))
        return obs, rewards, {agent: ends[agent] for agent in acted}, dict.fromkeys(acted, False), {}


@pytest.mark.parametrize("wrap", [None, "reward_scale=0.1", "reward_clip=1.0"])
def test_returns_of_several_python_agents_are_those_of_the_env(wrap):
    """In the statistics of training and in an evaluation, whatever the rewards that a policy learns from."""
    make = partial(shoal.make, TwoPlayers, backend="serial", wrap=wrap)
    with make(num_envs=3) as vec:
        vec.reset(seed=0)
        for _ in range(11):
            vec.step(np.zeros(6, int))
        stats = vec.drain_stats()
        assert (stats["episodes"], stats["return"]) == (6, {"mean": 55.0, "min": 50.0, "max": 60.0})
        assert {name: stats["return"] for name, stats in vec.agent_stats.items()} == {"a": 50.0, "b": 60.0}
    score = evaluate.play(make, evaluate.ScriptedPlayer(lambda obs: np.zeros(len(obs), int)), 4, num_envs=2)
    assert score.returns == (55.0,) * 4
    assert {name: agent.returns for name, agent in score.agents.items()} == {"a": (50.0,) * 4, "b": (60.0,) * 4}


@pytest.mark.parametrize("wrap", [None, "sticky=0.25", "reward_scale=0.5", "time_limit=4"])
def test_an_env_that_clips_its_rewards_itself_keeps_the_returns_of_the_game(wrap):
    """As Atari games do, with any wrapper around them."""

    class Clips(gymnasium.Env):
        observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.unshaped_return = 0.0
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.unshaped_return += 10.0
            return np.zeros(2, np.float32), 1.0, self.unshaped_return == 40.0, False, {}

    with shoal.make(Clips, 2, backend="serial", wrap=wrap) as vec:
        vec.reset(seed=0)
        for _ in range(8):
            vec.step(np.zeros(2, int))
        assert vec.drain_stats()["return"] == {"mean": 40.0, "min": 40.0, "max": 40.0}


def test_an_evaluation_of_several_native_agents_has_the_returns_of_the_env():
    scores = []
    for wrap in (None, "reward_scale=0.1", "reward_clip=0.5"):
        make = partial(shoal.make, "vacuum", wrap=wrap)
        scores.append(evaluate.play(make, evaluate.ScriptedPlayer(lambda obs: np.zeros(len(obs), int)), 6))
    assert scores[0].returns[0] < -100.0
    for score in scores[1:]:
        assert score.returns == pytest.approx(scores[0].returns, rel=1e-5)
        for name, agent in score.agents.items():
            assert agent.returns == pytest.approx(scores[0].agents[name].returns, rel=1e-5)


def test_an_agent_that_joins_again_starts_anew():
    """Its stack holds no frame of its life before, and its first action does not stick to that of the other life."""

    class Back(TwoPlayers):
        """Agent b leaves in step 1 and is back from step 2 on; an observation is the number of the step."""

        got: ClassVar[list] = []

        def reset(self, seed=None, options=None):
            super().reset()
            return dict.fromkeys(self.agents, np.zeros(2, np.float32)), {}

        def step(self, actions):
            self.got.append(actions)
            self.tick += 1
            ends = {"a": False, "b": self.tick == 1}
            acted = self.agents
            self.agents = ["a"] if self.tick == 1 else ["a", "b"]
            obs = dict.fromkeys(["a", "b"], np.full(2, self.tick, np.float32))
            return obs, dict.fromkeys(acted, 1.0), ends, dict.fromkeys(acted, False), {}

    with shoal.make(Back, 1, backend="serial", wrap="stack=2 sticky=0.999 reward_scale=0.5") as vec:
        vec.reset(seed=0)
        vec.step(np.zeros(2, int))
        obs, *_ = vec.step(np.ones(2, int))
        assert obs[1].tolist() == [2, 2, 2, 2]
        vec.step(np.ones(2, int))
    assert [int(actions["b"]) for actions in Back.got if "b" in actions] == [0, 1]
