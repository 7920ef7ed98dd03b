"""shoal.puffer keeps what PufferLib's guides promise and what PufferLib 3 spells: one test for each promise."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import shoal.puffer as pufferlib
from shoal.errors import BadOutput, ConfigError, EnvCrashed, UnknownEnv, UsageError
from shoal.puffer import names
from shoal.puffer.vectorization import Multiprocessing, Serial, VectorEnv
from tests.envs import UnlikeAgentsEnv


class Count(gymnasium.Env):
    """Counts its steps; ends after `length`. The observation is (seeded number, steps)."""

    def __init__(self, length=5, offset=0.0):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.length, self.offset = length, offset

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.steps = self.np_random.random() + self.offset, 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        return self._obs(), float(action), self.steps >= self.length, False, {}

    def _obs(self):
        return np.array([self.number, self.steps], np.float32)


class Guide(pufferlib.PufferEnv):
    """Style (a): spaces after super().__init__, reset() -> obs, four values from step."""

    def __init__(self, buf=None, length=4):
        super().__init__(buf)
        self.observation_space = self.make_space({"image": (4, 4, 3), "vector": (2,), "kind": self.make_discrete(5)})
        self.action_space = self.make_discrete(4)
        self.length = length
        self.reset()

    def reset(self):
        self.step_count = 0
        return self._get_observation()

    def step(self, action):
        self.step_count += 1
        done = self.step_count >= self.length
        info = {"TimeLimit.truncated": True, "score": 7.0} if done else {}
        return self._get_observation(), 1.0, done, info

    def _get_observation(self):
        image = self.np_random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        return {"image": image, "vector": np.full(2, self.step_count, np.float32), "kind": self.step_count % 5}


class GuideTeam(pufferlib.PufferEnv):
    """Style (a) with several agents: dicts by agent, with __all__."""

    def __init__(self, num_agents=3, buf=None):
        super().__init__(buf)
        self.num_agents = num_agents
        self.single_observation_space = self.make_space({"position": (2,), "time": (1,)})
        self.single_action_space = self.make_discrete(5)
        self.reset()

    def reset(self):
        self.steps, self.agents = 0, {f"player_{k}": k for k in range(self.num_agents)}
        return {name: self._obs(name) for name in self.agents}

    def step(self, actions):
        self.steps += 1
        obs = {name: self._obs(name) for name in actions}
        rewards = {name: float(self.agents[name]) for name in actions}
        dones = {name: self.agents[name] == 0 and self.steps == 2 for name in actions}
        dones["__all__"] = self.steps == 4
        return obs, rewards, dones, {name: {} for name in actions}

    def _obs(self, name):
        return {"position": np.full(2, self.agents[name], np.float32), "time": np.full(1, self.steps, np.float32)}


class InPlace(pufferlib.PufferEnv):
    """Style (b), as PufferLib 3's tutorial writes them: buffers in place, resets itself, infos a list."""

    def __init__(self, num_agents=3, length=4, buf=None, seed=0):
        self.single_observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.num_agents, self.length = num_agents, length
        super().__init__(buf)
        self.row = self.observations[0]  # a view taken in the constructor must stay true
        self.ticks = np.zeros(num_agents, int)

    def reset(self, seed=None):
        self.rng = np.random.default_rng(seed)
        self.ticks[:] = np.arange(self.num_agents)
        self._observe()
        return self.observations, []

    def step(self, actions):
        self.ticks += 1
        self.rewards[:] = actions
        self.terminals[:] = self.ticks >= self.length
        self.truncations[:] = False
        self.masks[:] = True
        self.masks[-1] = self.ticks[-1] % 2 == 0
        self.ticks[self.terminals] = 0
        self._observe()
        infos = [{"episodes": int(self.terminals.sum())}] if self.terminals.any() else []
        return self.observations, self.rewards, self.terminals, self.truncations, infos

    def _observe(self):
        self.observations[:] = self.rng.uniform(-1, 1, self.observations.shape)
        self.row[1] = self.ticks[0] / 10


def play(envs, steps=10):
    """Everything a guide-style vector returns in some steps, copied."""
    found = [copy.deepcopy(envs.reset())]
    for k in range(steps):
        actions = np.full(envs.action_space.shape, k % 2)
        obs, rewards, dones, infos = envs.step(actions)
        found.append(copy.deepcopy((obs, rewards, dones, list(infos))))
    envs.close()
    return found


def equal(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(equal(a, b) for a, b in zip(left, right))
    return np.array_equal(left, right)


# ---- 1. making envs ----


def test_make_a_vector_by_name():
    with pufferlib.make("gym-CartPole-v1", num_envs=4, num_workers=2) as env:
        assert (env.num_envs, env.num_workers) == (4, 2)
        obs = env.reset()
        assert env.observation_space.contains(obs)
        obs, rewards, dones, infos = env.step(env.action_space.sample())
        assert obs.shape == (4, 4)
        assert rewards.tolist() == [1.0] * 4
        assert dones.dtype == bool
        assert len(infos) == 4
    with pufferlib.make("gym-CartPole-v1", num_envs=4, num_workers=2, envs_per_worker=2) as env:
        assert env.num_workers == 2
    with pytest.raises(ConfigError, match="envs_per_worker=3 and num_workers=2"):
        pufferlib.make("gym-CartPole-v1", num_envs=4, num_workers=2, envs_per_worker=3)


def test_make_takes_kwargs_of_the_env():
    with pufferlib.make("gym-Pendulum-v1", num_envs=2, backend="serial", g=0.0, seed=3) as env:
        env.reset()
        assert env.vec.get_attr("g") == (0.0, 0.0)


def test_make_atari():
    pytest.importorskip("ale_py")
    with pufferlib.make("atari-pong", num_envs=2, frameskip=4, framestack=4, num_workers=1) as env:
        assert env.reset().shape == (2, 4, 210, 160)
        obs, *_ = env.step(env.action_space.sample())
        assert obs.dtype == np.uint8
    with pufferlib.make("atari-space-invaders", num_envs=1, obs_type="rgb", backend="serial") as env:
        assert env.reset().shape == (1, 210, 160, 3)
    with pytest.raises(UnknownEnv, match="Did you mean 'atari-pong'"):
        pufferlib.make("atari-pongg", num_envs=1)


@pytest.mark.skipif(find_spec("cv2") is not None, reason="OpenCV is installed")
def test_atari_resized_names_what_it_needs():
    pytest.importorskip("ale_py")
    with pytest.raises(ConfigError, match="pip install opencv-python-headless"):
        pufferlib.make("atari-pong", num_envs=1, screen_size=84, backend="serial")


@pytest.mark.parametrize("name", ["minigrid-empty-8x8", "minigrid-doorkey-8x8", "minigrid-multiroom"])
def test_make_minigrid(name):
    pytest.importorskip("minigrid")
    with pufferlib.make(name, num_envs=2, max_steps=3, backend="serial") as env:
        obs = env.reset()
        assert obs["image"].shape == (2, 7, 7, 3)
        for _ in range(3):
            obs, _, dones, _ = env.step(np.zeros(2, int))
        assert dones.all()


def test_make_pettingzoo_batches_agents():
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    name = "pettingzoo-knights-archers-zombies"
    with pufferlib.make(name, num_envs=2, num_agents=4, backend="serial", seed=0) as env:
        obs = env.reset()
        assert env.agents == ["archer_0", "archer_1", "knight_0", "knight_1"]
        assert (env.num_envs, env.num_agents) == (2, 8)
        assert len(obs) == 8
        batches = env.split(obs)  # {agent_id: [batch]}
        assert len(batches["knight_0"]) == 2
        actions = {agent: np.zeros(2, int) for agent in env.agents}
        obs, rewards, dones, infos = env.step(actions)
        assert set(obs) == set(rewards) == set(dones) == set(actions)
        assert len(rewards["archer_1"]) == 2
    with pytest.raises(UnknownEnv, match="pettingzoo-pistonball"):
        pufferlib.make("pettingzoo-pistonbal", num_envs=1)


def test_make_pistonball():
    pytest.importorskip("pymunk")
    with pufferlib.make("pettingzoo-pistonball", num_envs=1, num_agents=5, continuous=False, backend="serial") as env:
        assert len(env.reset()) == 5
        assert len(env.step(env.action_space.sample())[1]) == 5
    with pytest.raises(ConfigError, match="num_agents=7"):
        pufferlib.make("pettingzoo-tictactoe", num_envs=1, num_agents=7, backend="serial")


@pytest.mark.parametrize("name", ["puffer_breakout", "breakout"])
def test_make_native(name):
    with pufferlib.make(name, num_envs=8, num_workers=2, max_steps=9) as env:
        assert env.num_workers == 2
        env.seed(1)
        obs = env.reset()
        assert env.observation_space.contains(obs)
        for _ in range(9):
            _, _, dones, infos = env.step(env.action_space.sample())
        assert dones.all()
        assert infos[3]["TimeLimit.truncated"]
        assert infos[3]["episode"]["l"] == 9
        assert infos[-1]["final_obs"].shape == obs[0].shape


def test_make_any_gymnasium_id_and_shoals_own_names():
    with pufferlib.make("CartPole-v1", num_envs=2, backend="serial") as env:
        assert env.reset().shape == (2, 4)
    with pufferlib.make("gymnasium:CartPole-v1", num_envs=2, backend="serial") as env:
        assert env.reset().shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "install"),
    [
        ("atari-pong", "pip install ale-py==0.12.1"),
        ("minigrid-empty-8x8", "pip install minigrid==3.2.0"),
        ("pettingzoo-pistonball", "pip install 'pettingzoo[butterfly,classic,sisl]==1.27.0' mpe2==1.1.1"),
        ("procgen-coinrun", "procgen-mirror==0.10.7"),
        ("minihack-room-5x5", "pip install cffi 'setuptools<81'"),
        ("nethack", "nle==1.3.0"),
        ("crafter", 'pip install "shoal[crafter]"'),
        ("open_spiel-kuhn_poker", 'pip install "shoal[openspiel]"'),
        ("griddly-clusters", "shoal env add griddly"),
        ("neuralmmo", "shoal env add nmmo"),
        ("microrts", "shoal env add microrts"),
        ("gpudrive", "export GPUDRIVE_DIR"),
    ],
)
def test_a_framework_that_is_not_installed_is_named_with_its_command(name, install, tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(names.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError) as caught:
        pufferlib.make(name, num_envs=2)
    assert install in str(caught.value)


def test_an_unknown_name_suggests():
    with pytest.raises(UnknownEnv, match="Did you mean 'breakout'"):
        pufferlib.make("puffer_brekout", num_envs=2)


def test_emulate_an_env():
    env = pufferlib.emulate(gymnasium.make("CartPole-v1"), num_envs=4, backend="serial")
    obs = env.reset()
    assert len(np.unique(obs[:, 0])) == 4  # copies do not play the same game
    env.close()


def test_emulate_a_class_and_a_factory():
    for made in (Count, lambda: Count(offset=1.0)):
        assert pufferlib.emulate(made, num_envs=3, num_workers=1).reset().shape == (3, 2)


def test_emulate_matches_the_original():
    gym_env = gymnasium.make("CartPole-v1")
    puffer_env = pufferlib.emulate(lambda: gymnasium.make("CartPole-v1"), num_envs=1)
    gym_env.reset(seed=42)
    puffer_env.seed(42)
    puffer_obs = puffer_env.reset()
    for action in [0, 1] * 5:
        gym_obs, gym_reward, gym_done, _, _ = gym_env.step(action)
        puffer_obs, puffer_reward, puffer_done, _ = puffer_env.step(np.array([action]))
        assert np.array_equal(gym_obs, puffer_obs[0])
        assert gym_reward == puffer_reward[0]
        assert gym_done == puffer_done[0]


def test_emulate_pettingzoo_parallel_and_aec():
    pytest.importorskip("pettingzoo")
    pistonball = pytest.importorskip("pettingzoo.butterfly.pistonball_v6")
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    for parallel in (pistonball.parallel_env(n_pistons=4), lambda: pistonball.parallel_env(n_pistons=4)):
        with pufferlib.emulate(parallel, num_envs=1, backend="serial") as env:
            assert len(env.reset()) == 4
            env.step(env.action_space.sample())
    with pufferlib.emulate(tictactoe.env(), num_envs=3, backend="serial") as env:
        obs = env.reset()
        assert env.agents == ["player_1", "player_2"]
        assert len(obs["action_mask"]) == 6
        actions = np.argmax(obs["action_mask"], axis=1)
        assert len(env.step(actions)[1]) == 6


@pytest.mark.filterwarnings("ignore")
def test_emulate_old_gym():
    gym = pytest.importorskip("gym")

    class Legacy(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 1, (2,)), gym.spaces.Discrete(2)

        def reset(self):
            return self.np_random.random(2).astype(np.float32)

        def step(self, action):
            return np.zeros(2, np.float32), 1.0, True, {"TimeLimit.truncated": True}

    found = []
    for _ in range(2):
        with pufferlib.emulate(Legacy, num_envs=2, backend="serial") as env:
            env.seed(3)
            found.append(env.reset().copy())
            assert env.step(np.zeros(2, int))[3][0]["TimeLimit.truncated"]
    assert np.array_equal(*found)


@pytest.mark.parametrize("env", [Guide, GuideTeam, InPlace])
def test_emulate_a_puffer_env_class(env):
    with pufferlib.emulate(env, num_envs=2, backend="serial") as envs:
        envs.reset()
        _, rewards, _, _ = envs.step(envs.action_space.sample())
        assert len(rewards) == envs.num_agents


def test_emulate_what_cannot_be_copied_says_what_to_do():
    env = Count()
    env.handle = open(os.devnull)  # noqa: SIM115
    with pytest.raises(ConfigError, match="cannot be copied.*lambda"):
        pufferlib.emulate(env, num_envs=2, backend="serial")
    env.handle.close()


def test_register_then_make():
    pufferlib.register(id="my-custom-env", entry_point=Count, kwargs={"length": 2})
    pufferlib.register(id="my-other-env", entry_point="tests.test_puffer:Count", kwargs={"offset": 10.0})
    with pufferlib.make("my-custom-env", num_envs=2, backend="serial") as env:
        env.reset()
        env.step(np.zeros(2, int))
        assert env.step(np.zeros(2, int))[2].all()
    with pufferlib.make("my-other-env", num_envs=2, backend="serial", length=3) as env:
        assert (env.reset()[:, 0] >= 10).all()
    with pytest.raises(ConfigError, match="entry_point"):
        pufferlib.register("bad", "nothing")
    pufferlib.register("lost", "no_such_module:Env")
    with pytest.raises(ConfigError, match="no_such_module"):
        pufferlib.make("lost")


def test_puffer_env_makes_spaces():
    env = Guide()
    assert env.observation_space["image"].shape == (4, 4, 3)
    assert env.observation_space["kind"] == spaces.Discrete(5)
    assert env.make_multi_discrete([3, 5, 2]) == spaces.MultiDiscrete([3, 5, 2])
    assert env.make_space((3,)).shape == (3,)
    assert env.observation_space.contains(env.reset())
    assert env.num_agents == 1


def test_puffer_env_in_guide_style_runs():
    found = play(Serial(Guide, num_envs=2), 4)
    obs, rewards, dones, infos = found[4]
    assert obs["vector"].tolist() == [[0, 0], [0, 0]]  # the next episode's first
    assert rewards.tolist() == [1, 1]
    assert dones.all()
    assert infos[0]["TimeLimit.truncated"]
    assert infos[0]["score"] == 7.0
    assert infos[0]["final_obs"]["vector"].tolist() == [4, 4]


def test_puffer_env_in_guide_style_has_agents():
    env = Serial(GuideTeam, num_envs=2)
    obs = env.reset()
    assert env.agents == ["player_0", "player_1", "player_2"]
    assert obs["position"][:, 0].tolist() == [0, 1, 2, 0, 1, 2]
    actions = {name: np.zeros(2, int) for name in env.agents}
    ended = []
    for _ in range(4):
        obs, rewards, dones, infos = env.step(actions)
        ended.append([int(dones[name][0]) for name in env.agents])
    assert ended == [[0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert rewards["player_2"].tolist() == [2, 2]
    assert obs["player_2"]["time"].tolist() == [[0], [0]]


def test_puffer_env_in_place_runs_alone():
    env = InPlace(num_agents=3)
    obs, infos = env.reset(seed=1)
    assert obs is env.observations
    assert infos == []
    obs, rewards, terminals, truncations, infos = env.step(np.array([1, 0, 1]))
    assert rewards is env.rewards
    assert rewards.tolist() == [1, 0, 1]
    assert env.action_space.contains(np.array([0, 1, 0]))
    env.async_reset(1)
    assert np.array_equal(env.recv()[0], InPlace().reset(seed=1)[0])
    env.send(np.zeros(3, int))
    assert len(env.recv()) == 7
    env.close()


def test_puffer_env_says_what_is_missing():
    class Half(pufferlib.PufferEnv):
        def __init__(self):
            self.single_observation_space = spaces.Box(0, 1, (2,))
            super().__init__()

    with pytest.raises(ConfigError, match="single_action_space.*before super"):
        Half()


def test_puffer_env_writes_into_the_shared_buffer():
    made = []

    def creator(buf=None, seed=0):
        made.append(InPlace(buf=buf, seed=seed))
        return made[-1]

    env = pufferlib.vector.make(creator, num_envs=2)
    for one in made[1:]:  # the first is the driver
        assert np.shares_memory(one.observations, env.vec.block.arrays["obs"])
        assert np.shares_memory(one.rewards, env.vec.block.arrays["rewards"])
        assert np.shares_memory(one.masks, env.vec.block.arrays["alive"])
    assert len(made) == 3
    obs, _ = env.reset(seed=0)
    assert np.shares_memory(obs, made[1].observations)


class Scaled(pufferlib.Wrapper):
    """Reward shaping, as the guide writes it."""

    def __init__(self, env, scale):
        super().__init__(env)
        self.scale = scale

    def step(self, action):
        obs, reward, done, info = self.env.step(action)
        return obs, reward * self.scale, done, info


class Stack(pufferlib.Wrapper):
    """Frame stacking, as the guide writes it, with the space that it makes."""

    def __init__(self, env, num_stack=4):
        super().__init__(env)
        self.num_stack = num_stack
        space = env.observation_space
        self.observation_space = spaces.Box(-np.inf, np.inf, (num_stack, *space.shape), space.dtype)

    def reset(self):
        self.frames = np.repeat(self.env.reset()[np.newaxis], self.num_stack, axis=0)
        return self.frames

    def step(self, action):
        obs, reward, done, info = self.env.step(action)
        self.frames = np.roll(self.frames, shift=-1, axis=0)
        self.frames[-1] = obs
        return self.frames, reward, done, info


class Repeat(pufferlib.Wrapper):
    """Action repeat, as the guide writes it."""

    def step(self, action):
        total = 0.0
        for _ in range(2):
            obs, reward, done, info = self.env.step(action)
            total += reward
            if done:
                break
        return obs, total, done, info


class Normalize(pufferlib.Wrapper):
    """Normalized observations, as the guide writes it."""

    def __init__(self, env):
        super().__init__(env)
        self.obs_mean, self.obs_std = np.zeros(env.observation_space.shape), np.ones(env.observation_space.shape)
        self.count = 0

    def reset(self):
        return self._normalize(self.env.reset())

    def step(self, action):
        obs, reward, done, info = self.env.step(action)
        return self._normalize(obs), reward, done, info

    def _normalize(self, obs):
        self.count += 1
        delta = obs - self.obs_mean
        self.obs_mean += delta / self.count
        variance = ((self.count - 1) * self.obs_std**2 + delta * (obs - self.obs_mean)) / self.count
        self.obs_std = np.sqrt(np.maximum(variance, 0))
        return (obs - self.obs_mean) / (self.obs_std + 1e-8)


class Walk(pufferlib.PufferEnv):
    """A guide-style env with a plain observation, for wrappers."""

    def __init__(self, buf=None):
        super().__init__(buf)
        self.observation_space, self.action_space = self.make_space((2,)), self.make_discrete(3)

    def reset(self):
        self.place = np.zeros(2, np.float32)
        return self.place.copy()

    def step(self, action):
        self.place[0] += action
        return self.place.copy(), 1.0, bool(self.place[0] >= 6), {}


def test_wrapper_around_a_vector():
    env = Normalize(Scaled(pufferlib.emulate(Walk, num_envs=3, backend="serial"), 10.0))
    env.seed(0)
    assert env.reset().shape == (3, 2)
    obs, reward, done, info = env.step(env.action_space.sample())
    assert reward.tolist() == [10.0] * 3
    assert env.num_envs == 3
    assert isinstance(env.unwrapped, VectorEnv)
    env.close()


def test_wrapper_around_one_env():
    env = Repeat(Walk())
    env.reset()
    assert env.step(1)[1] == 2.0
    with pufferlib.emulate(lambda: Stack(Repeat(Walk())), num_envs=2, backend="serial") as envs:
        assert envs.reset().shape == (2, 4, 2)
        obs, rewards, dones, infos = envs.step(np.array([1, 3 - 1]))
        assert obs[:, -1, 0].tolist() == [2, 4]
        assert rewards.tolist() == [2, 2]
        obs, rewards, dones, infos = envs.step(np.array([1, 2]))
        assert dones.tolist() == [False, True]
        assert infos[1]["final_obs"][-1, 0] == 6


# ---- 2. vectorization ----


@pytest.mark.parametrize("env", [Count, Guide, GuideTeam, InPlace])
def test_multiprocessing_is_serial(env):
    serial, parallel = Serial(env, num_envs=4), Multiprocessing(env, num_envs=4, num_workers=2)
    serial.seed(42)
    parallel.seed(42)
    assert equal(play(serial), play(parallel))


def test_seed_then_reset_is_the_same_in_both():
    serial_env, vec_env = Serial(Count, num_envs=4), Multiprocessing(Count, num_envs=4, num_workers=2)
    serial_env.seed(42)
    vec_env.seed(42)
    assert np.allclose(serial_env.reset(), vec_env.reset())
    first = serial_env.reset(seed=7).copy()
    assert np.array_equal(first, vec_env.reset(seed=7))
    assert not np.array_equal(first, serial_env.reset())
    vec_env.close()


def test_seeds_are_not_dropped():
    for kwargs in ({"backend": "Serial"}, {"backend": "Multiprocessing", "num_workers": 2}):
        env = pufferlib.vector.make(Count, num_envs=3 if kwargs["backend"] == "Serial" else 4, seed=777, **kwargs)
        obs, _ = env.reset()
        for k in range(3):
            assert np.array_equal(obs[k], Count().reset(seed=777 + k)[0])
        env.close()


def test_attributes_of_a_vector():
    env = Multiprocessing(Count, num_envs=4, num_workers=2, envs_per_worker=2)
    assert (env.num_envs, env.num_workers, env.num_envs // env.num_workers) == (4, 2, 2)
    assert env.action_space.contains(env.action_space.sample())
    assert env.observation_space.shape == (4, 2)
    assert env.single_observation_space.shape == (2,)
    env.close()
    assert Serial(Count, num_envs=4).num_workers == 1


class Sleepy(Count):
    """The env of its number sleeps in every step."""

    def __init__(self, slow=False):
        super().__init__(length=1000)
        self.slow = slow

    def step(self, action):
        time.sleep(0.3 if self.slow else 0.0)
        return super().step(action)


def test_async_mode_returns_what_is_ready_first():
    env = Multiprocessing(Count, num_envs=6, num_workers=3, mode="async", surplus_envs=2)
    obs = env.reset()
    assert obs.shape == (4, 2)
    for _ in range(5):
        obs, rewards, dones, infos = env.step(env.action_space.sample())
        assert env.observation_space.contains(obs)
        assert len(infos.arrays["env_id"]) == len(rewards) == 4
    env.close()
    with pytest.raises(ConfigError, match="mode='async'"):
        Multiprocessing(Count, num_envs=6, num_workers=3, surplus_envs=2)


def test_out_of_order_async_is_reached():
    """A slow env does not hold up the others: batches of them come while it sleeps."""
    env = pufferlib.vector.make(
        [Sleepy] * 3,
        env_kwargs=[{"slow": k == 0} for k in range(3)],
        backend=pufferlib.vector.Multiprocessing,
        num_envs=3,
        num_workers=3,
        batch_size=1,
        zero_copy=False,
    )
    env.async_reset(seed=0)
    seen = []
    while seen.count(0) < 3 and len(seen) < 100_000:
        *_, agent_ids, _ = env.recv()
        seen.append(int(agent_ids[0]))
        env.send(np.zeros(1, int))
    first, second = [k for k, env_id in enumerate(seen) if env_id == 0][1:]
    assert second - first > 4  # the others went on while it slept
    assert {1, 2} <= set(seen)
    env.close()


@pytest.mark.parametrize("backend", [pufferlib.vector.Serial, pufferlib.vector.Multiprocessing])
def test_three_style(backend):
    workers = {"num_workers": 2} if backend is pufferlib.vector.Multiprocessing else {}
    env = pufferlib.vector.make(Count, env_args=[3], env_kwargs={"offset": 5.0}, backend=backend, num_envs=4, **workers)
    assert env.driver_env.single_action_space == spaces.Discrete(3)
    assert env.single_observation_space.shape == (2,)
    assert (env.num_agents, env.agents_per_batch) == (4, 4)
    env.async_reset(seed=3)
    obs, rewards, terminals, truncations, infos, agent_ids, masks = env.recv()
    assert (obs[:, 0] >= 5).all()
    assert infos == []
    assert agent_ids.tolist() == [0, 1, 2, 3]
    assert masks.all()
    for _ in range(3):
        env.send(np.array([0, 1, 2, 0]))
        obs, rewards, terminals, truncations, infos, agent_ids, masks = env.recv()
    assert rewards.tolist() == [0, 1, 2, 0]
    assert terminals.all()
    assert len(infos) == 4
    assert infos[2]["episode_return"] == 6.0
    assert infos[2]["final_obs"][1] == 3
    obs, infos = env.reset()
    assert len(env.step(env.action_space.sample())) == 5
    env.close()


def test_three_style_batches():
    for backend, more in (("Serial", {}), ("Multiprocessing", {"num_workers": 2})):
        env = pufferlib.vector.make(Count, backend=backend, num_envs=4, batch_size=2, seed=0, **more)
        assert (env.agents_per_batch, env.num_agents) == (2, 4)
        obs, _ = env.reset()
        assert obs.shape == (2, 2)
        seen, until = set(), time.monotonic() + 60.0
        while seen != {0, 1, 2, 3}:  # on a busy machine one worker may answer many times before the other runs at all
            assert time.monotonic() < until, seen
            env.send(env.action_space.sample())
            seen |= set(env.recv()[5].tolist())
        env.close()
    with pytest.raises(ConfigError, match="zero_copy"):
        pufferlib.vector.make(Count, backend="Multiprocessing", num_envs=3, num_workers=3, batch_size=2)


def test_three_style_in_place_env():
    found = []
    for backend, more in ((pufferlib.vector.Serial, {}), (pufferlib.vector.Multiprocessing, {"num_workers": 2})):
        env = pufferlib.vector.make(InPlace, env_kwargs={"num_agents": 3}, backend=backend, num_envs=4, seed=5, **more)
        assert env.driver_env.num_agents == 3
        assert (env.num_agents, env.agents_per_batch) == (12, 12)
        obs, infos = env.reset()
        steps = [obs.copy()]
        for k in range(9):
            env.send(np.full(12, k % 2))
            steps.append(copy.deepcopy(env.recv()))
        found.append(steps)
        env.close()
    assert equal(*found)
    alone = InPlace(num_agents=3)
    assert np.array_equal(alone.reset(seed=5)[0], found[0][0][:3])
    for step in found[0][1:]:
        wanted = alone.step(np.full(3, step[1][0]).astype(int))
        for ours, theirs in zip(step[:4], wanted):
            assert np.array_equal(ours[:3], theirs)
        assert np.array_equal(step[6][:3], alone.masks)  # masks are not ignored
        assert step[4] == wanted[4] * 4


def test_three_style_puffer_env_backend():
    env = pufferlib.vector.make(InPlace, env_kwargs={"num_agents": 2}, backend=pufferlib.vector.PufferEnv, seed=9)
    assert isinstance(env, InPlace)
    env.async_reset()
    assert np.array_equal(env.recv()[0], InPlace(num_agents=2).reset(seed=9)[0])
    with pytest.raises(ConfigError, match="in-place"):
        pufferlib.vector.make(Count, backend="PufferEnv")


def test_three_style_by_name_and_unknown_options():
    env = pufferlib.vector.make("gym-CartPole-v1", num_envs=2)
    assert env.reset()[0].shape == (2, 4)
    with pytest.raises(ConfigError, match="unknown option 'num_wokers'.*num_workers"):
        pufferlib.vector.make(Count, num_envs=2, num_wokers=2)
    with pytest.raises(ConfigError, match="Multiprocessing"):
        pufferlib.vector.make(Count, num_envs=2, backend="Multiprocesing")


@pytest.mark.parametrize("make", [pufferlib.emulation.GymnasiumPufferEnv])
def test_gymnasium_puffer_env(make):
    env = make(env=Count(length=2))
    obs, infos = env.reset(seed=4)
    assert np.array_equal(obs[0], Count().reset(seed=4)[0])
    obs, rewards, terminals, truncations, infos = env.step([1])
    assert (rewards.tolist(), terminals.tolist()) == ([1.0], [False])
    obs, rewards, terminals, truncations, infos = env.step(np.array([2]))
    assert terminals.tolist() == [True]
    assert obs[0, 1] == 0  # it has reset itself
    assert infos[0]["final_obs"][1] == 2
    assert (env.num_agents, env.single_action_space) == (1, spaces.Discrete(3))

    def creator(buf=None, seed=0):
        return make(env_creator=Count, env_kwargs={"length": 2}, buf=buf, seed=seed)

    for backend in (pufferlib.vector.Serial, pufferlib.vector.Multiprocessing):
        envs = pufferlib.vector.make(creator, backend=backend, num_envs=2, seed=4)
        assert np.array_equal(envs.reset()[0][0], Count().reset(seed=4)[0])
        assert isinstance(envs.driver_env, make)
        envs.step(envs.action_space.sample())
        envs.close()


def test_petting_zoo_puffer_env():
    pytest.importorskip("pettingzoo")
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    env = pufferlib.emulation.PettingZooPufferEnv(env_creator=tictactoe.env)
    obs, infos = env.reset(seed=0)
    assert obs["observation"].shape == (2, 3, 3, 2)
    obs, rewards, terminals, truncations, infos = env.step({"player_1": 0, "player_2": 0})
    assert env.masks.all()
    env.step(np.array([1, 1]))
    envs = pufferlib.vector.make(lambda: pufferlib.emulation.PettingZooPufferEnv(env=tictactoe.env()), num_envs=2)
    assert envs.num_agents == 4
    envs.reset()
    envs.close()


def test_nesting():
    outer = Multiprocessing(env_creator=lambda: Serial(lambda: Count(), num_envs=4), num_envs=2, num_workers=2)
    assert (outer.num_envs, outer.num_workers) == (8, 2)
    flat = Serial(Count, num_envs=8)
    outer.seed(1)
    flat.seed(1)
    nested, plain = play(outer), play(flat)
    for left, right in zip(nested[1:], plain[1:]):
        assert equal(left[:3], right[:3])


def test_agents_keep_their_own_spaces():
    env = Serial(UnlikeAgentsEnv, num_envs=2)
    obs = env.reset()
    assert (obs["big"].shape, obs["small"].shape) == ((2, 4), (2, 2))
    for _ in range(3):
        obs, rewards, dones, infos = env.step({"big": np.array([4, 3]), "small": np.array([1, 0])})
    assert rewards["big"].tolist() == [4, 3]
    assert dones["small"].all()
    assert infos[1]["final_obs"].tolist() == [3, 3]  # env 0's small
    assert env.action_space["big"].shape == (2,)
    one = pufferlib.emulation.PettingZooPufferEnv(env=UnlikeAgentsEnv())
    assert one.single_action_space["small"] == spaces.Discrete(2)
    one.reset()
    assert one.step({"big": 4, "small": 1})[1].tolist() == [4, 1]


class Custom(VectorEnv):
    """The guide's own vectorization."""

    def __init__(self, env_creator, num_envs, **kwargs):
        super().__init__()
        self.envs = [env_creator() for _ in range(num_envs)]
        self.num_envs = num_envs

    def reset(self):
        return np.stack([env.reset() for env in self.envs], axis=0)

    def step(self, actions):
        obs, rewards, dones, infos = zip(*(env.step(action) for env, action in zip(self.envs, actions)))
        return np.stack(obs), np.array(rewards), np.array(dones), list(infos)


class Monitored(VectorEnv):
    """The guide's monitoring of super().step."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.step_times = []

    def step(self, actions):
        start = time.perf_counter()
        result = super().step(actions)
        self.step_times.append(time.perf_counter() - start)
        return result


def test_users_subclass_vector_env():
    env = Custom(Walk, num_envs=3)
    assert env.reset().shape == (3, 2)
    obs, rewards, dones, infos = env.step(np.array([0, 1, 2]))
    assert obs[:, 0].tolist() == [0, 1, 2]
    env.close()
    env = Monitored(Walk, 3, backend="serial")
    env.reset()
    env.step(env.action_space.sample())
    assert len(env.step_times) == 1
    with pytest.raises(UsageError, match="has no envs"):
        VectorEnv().reset()


def test_profiling_loops():
    for vec_env in (Serial(Count, num_envs=4), pufferlib.make("squared", num_envs=64)):
        start = time.time()
        vec_env.reset()
        for _ in range(20):
            vec_env.step(vec_env.action_space.sample())
        assert 20 * vec_env.num_envs / (time.time() - start) > 0
        vec_env.close()


def test_an_env_that_raises_is_named():
    class Broken(Guide):
        def step(self, action):
            raise ZeroDivisionError("by zero")

    env = Serial(Broken, num_envs=2)
    env.seed(5)
    env.reset()
    with pytest.raises(EnvCrashed, match=r"env 0 \(seed 5\) raised in step 1: ZeroDivisionError"):
        env.step(np.zeros(2, int))

    def creator(buf=None):
        if buf is not None:
            raise ValueError("no such map")
        return InPlace()

    with pytest.raises((EnvCrashed, ValueError), match="no such map"):
        pufferlib.vector.make(creator, backend="Multiprocessing", num_envs=2, num_workers=2)


def test_in_place_env_without_buf_is_copied_and_right():
    found = []
    for creator in (InPlace, lambda: InPlace()):
        env = pufferlib.vector.make(creator, num_envs=2, seed=3)
        steps = [env.reset()[0].copy()] + [copy.deepcopy(env.step(np.ones(6, int))) for _ in range(6)]
        found.append(steps)
    assert equal(*found)


def test_workers_may_be_spawned():
    env = pufferlib.vector.make(
        InPlace, backend="Multiprocessing", num_envs=2, num_workers=1, seed=3, start_method="forkserver"
    )
    assert np.array_equal(env.reset()[0][:3], InPlace().reset(seed=3)[0])
    env.close()


def test_infos_that_are_no_list_are_refused():
    class Wrong(InPlace):
        def step(self, actions):
            return (*super().step(actions)[:4], "oops")

    env = Serial(Wrong, num_envs=1)
    env.reset()
    with pytest.raises(BadOutput, match="infos is a str"):
        env.step(np.zeros(3, int))


def test_importing_is_light_and_has_no_side_effects(tmp_path):
    code = (
        "import sys, os; out = sys.stdout; import shoal.puffer;"
        "assert sys.stdout is out; assert not os.listdir('.');"
        "heavy = {'torch', 'pettingzoo', 'ale_py', 'minigrid', 'rich', 'tyro', 'pygame'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
