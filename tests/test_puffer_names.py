"""The names of PufferLib 3 mean here what they mean there; what is not supported says so, and what to use."""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import shoal
import shoal.puffer as pufferlib
from shoal.cli import aliases
from shoal.errors import ConfigError, ShoalError, UnknownEnv
from shoal.layout import Layout, map_leaves
from shoal.puffer import PuffeRL, models, pufferl, pytorch
from shoal.puffer.vectorization import Serial


class Talking(gymnasium.Env):
    """Three steps an episode; its infos have numbers, nested numbers, text and a list."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 255, (4, 6), np.uint8)
        self.action_space = spaces.Box(-2.0, 3.0, (2,), np.float32)
        self.given = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {"reset": True}

    def step(self, action):
        self.given.append(np.array(action))
        self.steps += 1
        info = {"score": self.steps, "reward": {"goal": 0.5, "cost": -1.0}, "map": "lava", "path": object()}
        return self._look(), float(self.steps), self.steps == 3, False, info

    def _look(self):
        return np.arange(24, dtype=np.uint8).reshape(4, 6) + self.steps


class Pair:
    """A PettingZoo parallel env of two agents; b ends after two steps, a after three."""

    possible_agents = ("a", "b")

    def __init__(self):
        self.metadata = {"name": "pair"}

    def observation_space(self, agent):
        return spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None):  # no options, as some have it
        self.agents, self.steps = ["a", "b"], 0
        return self._look(), {agent: {"start": 1.0} for agent in self.agents}

    def step(self, actions):
        self.steps += 1
        acting = self.agents
        terminated = {agent: self.steps == {"a": 3, "b": 2}[agent] for agent in acting}
        obs = self._look()
        infos = {agent: {"hits": 2.0 if agent == "a" else 4.0, "name": agent} for agent in acting}
        self.agents = [agent for agent in acting if not terminated[agent]]
        return obs, dict.fromkeys(acting, 1.5), terminated, dict.fromkeys(acting, False), infos

    def _look(self):
        return {agent: np.full(1, self.steps, np.float32) for agent in self.agents}

    def render(self):
        return "frame"

    def close(self):
        pass


# ---- wrappers ----


def test_episode_stats_sum_infos_over_the_episode():
    env = pufferlib.EpisodeStats(Talking())
    assert env.reset(seed=1)[1] == {"reset": True}
    for _ in range(2):
        assert env.step(np.zeros(2))[-1] == {}
    *_, terminated, truncated, info = env.step(np.zeros(2))
    assert (terminated, truncated) == (True, False)
    sums = {"score": 6, "reward/goal": 1.5, "reward/cost": -3.0, "map": "lava"}
    assert info == {**sums, "episode_return": 6.0, "episode_length": 3}
    env.reset()
    env.step(np.zeros(2))
    env.step(np.zeros(2))
    assert env.step(np.zeros(2))[-1]["episode_return"] == 6.0  # every episode counts from 0


def test_episode_stats_reach_the_infos_of_a_vector():
    vec = Serial(lambda: pufferlib.postprocess.EpisodeStats(Talking()), num_envs=2, seed=0)
    vec.reset()
    for _ in range(3):
        *_, infos = vec.step(np.zeros((2, 2), np.float32))
    assert infos[1]["reward/goal"] == 1.5
    assert (infos[1]["episode_return"], infos[1]["episode_length"]) == (6.0, 3)


def test_multiagent_episode_stats():
    env = pufferlib.MultiagentEpisodeStats(Pair())
    env.reset(seed=1)
    actions = {"a": 0, "b": 1}
    assert env.step(actions)[-1] == {"a": {}, "b": {}}
    report = {"hits": 8.0, "name": "b", "episode_return": 3.0, "episode_length": 2}
    assert env.step(actions)[-1] == {"a": {}, "b": report}
    report = {"hits": 6.0, "name": "a", "episode_return": 4.5, "episode_length": 3}
    assert env.step({"a": 0})[-1] == {"a": report}


def test_mean_over_agents():
    env = pufferlib.MeanOverAgents(Pair())
    assert env.reset(seed=0)[1] == {"start": 1.0}
    assert env.step({"a": 0, "b": 0})[-1] == {"hits": 3.0}
    vec = Serial(lambda: pufferlib.MeanOverAgents(pufferlib.MultiagentEpisodeStats(Pair())), num_envs=2, seed=0)
    vec.reset()
    for _ in range(2):
        *_, infos = vec.step(np.zeros(4, int))
    assert (infos[0]["hits"], infos[2]["hits"]) == (8.0, 8.0)  # of each game, in the row of its first agent


def test_petting_zoo_wrapper_passes_on():
    env = pufferlib.PettingZooWrapper(Pair())
    env.reset(seed=0, options={})
    assert env.agents == ["a", "b"]
    assert env.action_space("a") == spaces.Discrete(2)
    assert (env.render(), env.metadata["name"]) == ("frame", "pair")
    assert isinstance(env.unwrapped, Pair)
    assert str(env).startswith("PettingZooWrapper<")
    assert pufferlib.PettingZooTruncatedWrapper(Pair()).reset()[1] == {"a": {}, "b": {}}
    vec = pufferlib.emulate(lambda: pufferlib.PettingZooWrapper(Pair()), num_envs=2)
    assert vec.num_agents == 4


def test_clip_action():
    inner = Talking()
    env = pufferlib.ClipAction(inner)
    env.reset()
    env.step(np.array([-7.0, 7.0], np.float32))
    assert inner.given[-1].tolist() == [-2.0, 3.0]
    assert env.action_space.contains(np.array([-7.0, 7.0], np.float32))
    with pytest.raises(pufferlib.APIUsageError, match="needs a Box"):
        pufferlib.ClipAction(gymnasium.make("CartPole-v1"))


def test_resize_observation():
    env = pufferlib.ResizeObservation(Talking(), downscale=2)
    obs, _ = env.reset()
    assert obs.tolist() == [[0, 2, 4], [12, 14, 16]]
    assert env.observation_space == spaces.Box(0, 255, (2, 3), np.uint8)
    assert env.step(np.zeros(2))[0].tolist() == [[1, 3, 5], [13, 15, 17]]
    with pytest.raises(pufferlib.APIUsageError, match="downscale=4 does not divide the 4 x 6 image"):
        pufferlib.ResizeObservation(Talking(), downscale=4)


def test_gym_to_gymnasium_knows_a_time_limit():
    class Old:
        observation_space, action_space, metadata = spaces.Box(0, 1, (1,)), spaces.Discrete(2), {}

        def reset(self, seed=None):
            return np.zeros(1, np.float32)

        def step(self, action):
            return np.ones(1, np.float32), 1.0, True, {"TimeLimit.truncated": bool(action)}

    env = pufferlib.GymToGymnasium(Old())
    assert env.reset(seed=3)[1] == {}
    assert env.step(1)[2:4] == (False, True)
    assert env.step(0)[2:4] == (True, False)


# ---- errors and helpers ----


def test_api_usage_error_is_what_mistakes_raise():
    assert issubclass(pufferlib.APIUsageError, RuntimeError)  # as in PufferLib
    assert issubclass(pufferlib.APIUsageError, ConfigError)
    for mistake in (
        lambda: pufferlib.vector.make(Talking, num_envs=2, backend="Serail"),
        lambda: PuffeRL(env=Serial(Talking, num_envs=1), learning_rat=1.0),
        lambda: type("Half", (pufferlib.PufferEnv,), {"single_action_space": spaces.Discrete(2)})(),
        lambda: pufferlib.register("", Talking),
    ):
        with pytest.raises(pufferlib.APIUsageError):
            mistake()
    with pytest.raises(pufferlib.APIUsageError, match="mine") as caught:
        raise pufferlib.APIUsageError("mine")
    assert caught.value.message == "mine"
    with pytest.raises(pufferlib.exceptions.InvalidAgentError, match="agent 'z' is not one of"):
        raise pufferlib.InvalidAgentError("z", ["a"])


def test_set_buffers():
    env = pufferlib.PufferEnv.__new__(pufferlib.PufferEnv)
    env.num_agents, env.single_observation_space = 3, spaces.Box(0, 1, (2,), np.float32)
    env.single_action_space = spaces.Discrete(4)
    pufferlib.set_buffers(env)
    assert (env.observations.shape, env.actions.dtype, env.masks.all()) == ((3, 2), np.int32, True)
    names = ("observations", "rewards", "terminals", "truncations", "masks", "actions")
    buf = {name: getattr(env, name).copy() for name in names}
    pufferlib.set_buffers(env, buf)
    assert env.observations is buf["observations"]


def test_utils(capfd):
    nested = {"a": 1, "b": {"c": 2, "d": {"e": 3}}}
    assert dict(pufferlib.utils.unroll_nested_dict(nested)) == {"a": 1, "b/c": 2, "b/d/e": 3}
    assert pufferlib.unroll_nested_dict is pufferlib.utils.unroll_nested_dict

    def warn():
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return 7

    with pytest.warns(DeprecationWarning, match="old"):
        warn()
    assert pufferlib.silence_warnings(warn)() == 7  # warnings are errors in these tests
    with pufferlib.Suppress():
        print("python")
        sys.__stderr__.write("")
        import os

        os.write(1, b"c code")
    print("after")
    assert capfd.readouterr().out == "after\n"


def test_spaces():
    joint = pufferlib.spaces.joint_space
    assert joint(spaces.Discrete(3), 2) == spaces.MultiDiscrete([3, 3])
    assert joint(spaces.Box(-1, 1, (4,)), 2).shape == (2, 4)
    many = joint(spaces.MultiDiscrete([3, 2]), 5)
    assert many.shape == (5, 2)
    assert many.contains(np.tile([2, 1], (5, 1)))
    assert isinstance(spaces.Box(0, 1), pufferlib.spaces.Box)
    assert not isinstance(spaces.Discrete(2), pufferlib.spaces.Box)
    for kind in ("Dict", "MultiBinary", "MultiDiscrete", "Tuple", "Discrete"):
        assert getattr(spaces, kind) in getattr(pufferlib.spaces, kind)
    with pytest.raises(pufferlib.APIUsageError, match="joint_space needs"):
        joint(spaces.Dict({}), 2)


# ---- Ocean: native envs ----


@pytest.mark.parametrize("name", ["breakout", "puffer_pong", "cartpole", "squared", "memory", "maze", "forage"])
def test_ocean_env_creator(name):
    env = pufferlib.ocean.env_creator(name)(num_envs=3)
    native = shoal.make(name.removeprefix("puffer_"), num_envs=3)
    assert env.num_agents == native.num_rows
    assert env.single_observation_space == native.single_observation_space
    obs, infos = env.reset(seed=5)
    theirs, _ = native.reset(seed=5)
    assert np.array_equal(obs, theirs)
    assert infos == []
    for _ in range(20):
        actions = env.action_space.sample()
        result = env.step(actions)
        for mine, other in zip(result[:4], native.step(actions)):
            assert np.array_equal(mine, other)
        assert result[0] is env.observations
    assert env.masks.shape == (env.num_agents,)
    env.close()


def test_ocean_envs_report_and_write_buffers():
    creator = pufferlib.ocean.env_creator("cartpole", log_interval=100)
    like = creator(num_envs=4)
    names = ("observations", "rewards", "terminals", "truncations", "masks")
    buf = {name: np.array(getattr(like, name)) for name in names}
    env = creator(num_envs=4, buf=buf, seed=3, max_steps=50)
    env.reset()
    assert env.observations is buf["observations"]
    infos = [info for _ in range(100) for info in env.step(np.zeros(4, int))[-1]]
    assert len(infos) == 1
    assert infos[0]["n"] > 10
    assert 8 < infos[0]["episode_length"] < 12  # pushed to one side, a pole falls in ten steps
    assert infos[0]["episode_return"] == infos[0]["episode_length"]


def test_ocean_envs_are_vectorized_and_trained():
    make_env = pufferlib.ocean.env_creator("puffer_squared")
    flat = shoal.make("squared", num_envs=8)
    flat.reset(seed=4)
    for backend in ("Serial", "Multiprocessing", "PufferEnv"):
        count = 1 if backend == "PufferEnv" else 2
        vecenv = pufferlib.vector.make(
            make_env, env_kwargs={"num_envs": 8 // count}, backend=backend, num_envs=count, num_workers="auto", seed=4
        )
        vecenv.async_reset()
        obs = np.array(vecenv.recv()[0])
        assert np.array_equal(obs, flat.reset(seed=4)[0])
        vecenv.close()
    trainer = PuffeRL(env=make_env(num_envs=8, seed=4), num_steps=8)
    assert np.isfinite(trainer.train()["value_loss"])
    with pytest.raises(UnknownEnv, match="'puffer_brakout'. Did you mean 'breakout'"):
        pufferlib.ocean.env_creator("puffer_brakout")
    with pytest.raises(UnknownEnv, match="is not a native env"):
        pufferlib.ocean.env_creator("gym-CartPole-v1")


# ---- environments: third-party libraries ----


@pytest.mark.skipif(find_spec("ale_py") is None, reason="needs ale_py")
def test_environments_atari():
    import shoal.puffer.environments.atari

    shoal.puffer.environments.atari.env_creator("PongNoFrameskip-v4")().close()  # as old gym spells it
    env = shoal.puffer.environments.atari.env_creator("pong")(frameskip=2, framestack=2)
    assert isinstance(env, pufferlib.PufferEnv)
    assert env.single_observation_space.shape == (2, 210, 160)
    env.close()


def test_environments_make_envs_by_the_names_of_pufferlib():
    for package, name, id in (
        ("classic_control", None, "CartPole-v1"),
        ("classic_control", "acrobot", "Acrobot-v1"),
        ("classic_control_continuous", None, "MountainCarContinuous-v0"),
        ("classic_control", "CartPole-v1", "CartPole-v1"),
    ):
        words = [] if name is None else [name]
        make_env = getattr(pufferlib.environments, package).env_creator(*words)
        env = make_env(buf=None, seed=1)
        assert env.single_observation_space == gymnasium.make(id).observation_space, id
        vec = pufferlib.vector.make(make_env, num_envs=2, seed=1)
        assert np.array_equal(env.reset()[0][0], vec.reset()[0][0])
        vec.close()
    with pytest.raises(UnknownEnv, match=r"'cartpol' is not an env of Gymnasium\. Did you mean"):
        pufferlib.environments.classic_control.env_creator("cartpol")


@pytest.mark.parametrize(
    ("package", "says"),
    [
        ("nmmo", "shoal env add nmmo"),
        ("microrts", "shoal env add microrts"),
        ("griddly", "shoal env add griddly"),
        ("gpudrive", "export GPUDRIVE_DIR"),
    ],
)
def test_environments_that_are_not_installed_say_how(package, says, tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("GPUDRIVE_DIR", raising=False)
    with pytest.raises(pufferlib.EnvironmentSetupError, match=says):
        getattr(pufferlib.environments, package).env_creator()


@pytest.mark.slow  # a worker under another interpreter
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("package", "names", "env"),
    [
        ("griddly", ["GDY-Clusters-v0", "clusters", None], "griddly:Spiders"),
        ("microrts", [None], "microrts:16x16/basesWorkers16x16"),
        ("nmmo", [None], "nmmo:small"),
    ],
)
def test_environments_of_another_interpreter(package, names, env):
    """`env_creator` gives one env that a worker holds. It does what the env of `shoal.make` does."""
    from shoal.integrations.framework import framework

    if problem := framework(package).problem():
        pytest.skip(problem)
    for name in names:
        one = getattr(pufferlib.environments, package).env_creator(*([] if name is None else [name]))(buf=None, seed=1)
        one.action_space.seed(1)
        first, _ = one.reset()
        first = map_leaves(np.array, first)
        results = [one.step(one.action_space.sample())[1].copy() for _ in range(5)]
        one.close()
    vec = shoal.make(env, 1)
    vec.action_space.seed(1)
    obs, _ = vec.reset(seed=1)
    layout = Layout(vec.single_observation_space)
    for expected, seen in zip(layout.leaves_of(obs), layout.leaves_of(first)):
        np.testing.assert_array_equal(expected, seen)
    for rewards in results:
        np.testing.assert_array_equal(vec.step(vec.action_space.sample())[1], rewards)
    vec.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("package", "names", "module"),
    [
        ("open_spiel", ["kuhn_poker", "connect_four", None], "pyspiel"),
        ("procgen", ["coinrun", "procgen-bigfish", None], "procgen"),
        ("nethack", [None, "NetHackScore-v0", "nethack"], "nle"),
        ("minihack", [None, "MiniHack-Room-5x5-v0"], "minihack"),
        ("crafter", [None, "CrafterReward-v1"], "crafter"),
        ("vizdoom", ["doom", "VizdoomBasic-v0"], "vizdoom"),
        ("magent", ["battle_v4", None], "magent2"),
        ("dm_control", ["walker-walk", None], "dm_control"),
    ],
)
def test_environments_of_frameworks(package, names, module):
    """`env_creator` takes PufferLib's names, and the env resets and steps."""
    pytest.importorskip(module)
    for name in names:
        words = [] if name is None else [name]
        env = getattr(pufferlib.environments, package).env_creator(*words)(buf=None, seed=1)
        env.reset()
        obs, rewards, *_ = env.step(env.action_space.sample())
        assert len(rewards) == env.num_agents
        env.close()


# ---- names that are not there ----


@pytest.mark.parametrize(
    ("get", "text"),
    [
        (lambda: pufferlib.environments.bsuite, "environments.bsuite is not supported.*emulate"),
        (lambda: pufferlib.environments.atri, "has no name 'atri'. Did you mean 'atari'"),
        (lambda: pufferlib.EpisodeStat, "has no name 'EpisodeStat'. Did you mean 'EpisodeStats'"),
        (lambda: pufferlib.cleanrl, "cleanrl is not supported.*docs/interop.md"),
        (lambda: pufferlib.vector.Ray, "Ray is not supported. Use vector.Multiprocessing"),
        (lambda: pufferlib.vector.autotune, "autotune"),
        (lambda: pufferl.eval, "shoal eval"),
        (lambda: pufferl.load_confg, "Did you mean 'load_config'"),
        (lambda: pytorch.sample_logit, "Did you mean 'sample_logits'"),
        (lambda: models.Convolution, "Did you mean 'Convolutional'"),
        (lambda: models.Policy, "torch.nn.Module"),
        (lambda: pufferlib.sweep.Protien, "Did you mean 'Protein'"),
        (lambda: pufferlib.ocean.torch, "has no name 'torch'"),
        (lambda: pufferlib.utils.Profiler, "shoal profile"),
        (lambda: pufferlib.emulation.nativize, "keep their structure"),
    ],
)
def test_a_missing_name_says_what_to_use(get, text):
    with pytest.raises(pufferlib.APIUsageError, match=text):
        get()


def test_missing_names_are_attribute_errors_too():
    assert not hasattr(pufferlib, "nothing_of_the_kind")
    assert getattr(pufferlib.vector, "Ray", None) is None
    assert issubclass(pufferlib.exceptions.MissingName, (AttributeError, ShoalError))
    for name in pufferlib.__all__:
        assert getattr(pufferlib, name) is not None
    assert sorted(pufferlib.__all__) == pufferlib.__all__


# ---- pytorch and models ----


def test_sample_logits_discrete():
    torch.manual_seed(0)
    logits = torch.randn(5, 4)
    truth = torch.distributions.Categorical(logits=logits)
    action, logprob, entropy = pytorch.sample_logits(logits)
    assert (action.shape, logprob.shape, entropy.shape) == ((5,), (5,), (5,))
    assert torch.allclose(logprob, truth.log_prob(action))
    assert torch.allclose(entropy, truth.entropy())
    for given in (torch.tensor([0, 1, 2, 3, 0]), torch.tensor([[0], [1], [2], [3], [0]])):
        same, logprob, _ = pytorch.sample_logits(logits, given)
        assert same.tolist() == [0, 1, 2, 3, 0]
        assert torch.allclose(logprob, truth.log_prob(same))
    many = pytorch.sample_logits(logits[:1].expand(20000, -1))[0]
    shares = torch.bincount(many, minlength=4) / 20000
    assert torch.allclose(shares, truth.probs[0], atol=0.02)


def test_sample_logits_multidiscrete():
    torch.manual_seed(1)
    logits = [torch.randn(6, 3), torch.randn(6, 5)]
    truths = [torch.distributions.Categorical(logits=part) for part in logits]
    action, logprob, entropy = pytorch.sample_logits(logits)
    assert (action.shape, logprob.shape, entropy.shape) == ((6, 2), (6,), (6,))
    assert (action.amax(0) < torch.tensor([3, 5])).all()
    assert torch.allclose(logprob, sum(truth.log_prob(action[:, k]) for k, truth in enumerate(truths)))
    assert torch.allclose(entropy, sum(truth.entropy() for truth in truths))
    again, same, _ = pytorch.sample_logits(tuple(logits), action)
    assert torch.equal(again, action)
    assert torch.equal(same, logprob)


def test_sample_logits_continuous():
    torch.manual_seed(2)
    normal = torch.distributions.Normal(torch.randn(6, 3), torch.rand(6, 3) + 0.1)
    action, logprob, entropy = pytorch.sample_logits(normal)
    assert (action.shape, logprob.shape, entropy.shape) == ((6, 3), (6,), (6,))
    assert torch.allclose(logprob, normal.log_prob(action).sum(1))
    assert torch.allclose(entropy, normal.entropy().sum(1))
    assert torch.equal(pytorch.sample_logits(normal, action)[1], logprob)


def test_sample_logits_of_masked_choices():
    logits = torch.zeros(1000, 3)
    logits[:, 1] = -torch.inf
    action, logprob, entropy = pytorch.sample_logits(logits)
    assert set(action.tolist()) == {0, 2}
    assert torch.allclose(entropy, torch.full((1000,), np.log(2.0), dtype=torch.float32))
    assert logprob.isfinite().all()


def test_layer_init_takes_pufferlibs_bias():
    layer = pytorch.layer_init(torch.nn.Linear(4, 4), std=2.0, bias_const=0.5)
    assert (layer.bias == 0.5).all()
    assert torch.allclose(layer.weight @ layer.weight.T, 4.0 * torch.eye(4), atol=1e-5)


def env_like(observation_space, action_space):
    return type("Env", (), {"single_observation_space": observation_space, "single_action_space": action_space})


ACTIONS = [spaces.Discrete(3), spaces.MultiDiscrete([2, 4]), spaces.Box(-2, 6, (2,), np.float32)]


@pytest.mark.parametrize("space", ACTIONS)
def test_logits_of_default_are_pufferlibs(space):
    """What forward returns goes into sample_logits, and its actions are in the units of the env."""
    policy = models.Default(env_like(spaces.Box(-1, 1, (3,), np.float32), space), hidden_size=8)
    logits, value = policy(torch.zeros(500, 3))
    assert value.shape == (500, 1)
    assert policy.is_multidiscrete == isinstance(logits, list)
    assert policy.is_continuous == isinstance(logits, torch.distributions.Normal)
    action, logprob, _ = pytorch.sample_logits(logits)
    assert logprob.shape == (500,)
    if isinstance(space, spaces.Box):
        assert abs(action.mean() - 2.0) < 0.5  # the middle of -2 .. 6, and a spread of half its width
        assert abs(action.std() - 4.0) < 0.5
    else:
        assert all(space.contains(row) for row in action.numpy().astype(np.int64))


def test_convolutional():
    env = env_like(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6))
    policy = models.Convolutional(env, framestack=4, flat_size=64 * 7 * 7, hidden_size=32)
    images = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    logits, value = policy(images)
    assert (logits.shape, value.shape, policy.encode_observations(images).shape) == ((2, 6), (2, 1), (2, 32))
    with torch.no_grad():  # bytes are scaled to 0 .. 1
        direct = torch.relu(policy.layer(policy.network(images.float() / 255.0)))
    assert torch.allclose(policy.encode_observations(images), direct)
    last = env_like(spaces.Box(0, 255, (84, 96, 1), np.uint8), spaces.Discrete(6))
    small = models.Convolutional(last, framestack=1, channels_last=True, downsample=2, hidden_size=16)
    assert small(torch.zeros(3, 84, 96, 1, dtype=torch.uint8))[0].shape == (3, 6)
    for given, text in (
        ({"framestack": 3}, r"framestack=3, but an image of shape \(4, 84, 84\) has 4 channels"),
        ({"framestack": 4, "flat_size": 7}, "flat_size=7, but the convolutions give 3136"),
        ({"framestack": 4, "downsample": 4}, "needs 36 pixels a side; the image has 21 x 21"),
    ):
        with pytest.raises(pufferlib.APIUsageError, match=text):
            models.Convolutional(env, **given)


def test_convolutional_trains():
    class Pixels(Talking):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Box(0, 255, (36, 36), np.uint8)

        def _look(self):
            return np.full((36, 36), self.steps, np.uint8)

    env = Serial(Pixels, num_envs=4)
    policy = pytorch.LSTMWrapper(env, models.Convolutional(env, framestack=1, hidden_size=16), hidden_size=16)
    assert np.isfinite(PuffeRL(env=env, policy=policy, num_steps=4).train()["policy_loss"])


def test_lstm_wrapper_trains_on_segments_as_it_steps():
    """PufferLib 3's forward on (rows, steps, …) equals forward_eval step by step."""
    env = env_like(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4))
    policy = models.LSTMWrapper(env, models.Default(env, 8), 8, 8)
    observations = torch.randn(5, 7, 3)
    logits, values = policy(observations, {"lstm_h": None, "lstm_c": None})
    assert (logits.shape, values.shape) == ((35, 4), (5, 7))
    state = {}
    for step in range(7):
        one, value = policy.forward_eval(observations[:, step], state)
        assert torch.allclose(one, logits.view(5, 7, 4)[:, step], atol=1e-6)
        assert torch.allclose(value.flatten(), values[:, step], atol=1e-6)


# ---- load_config and what it makes ----


INI = """
[base]
package = mine
env_name = gym-CartPole-v1 other-env
policy_name = Policy
rnn_name = Recurrent

[vec]
num_envs = 4
backend = Serial

[policy]
hidden_size = 16

[rnn]
input_size = 16
hidden_size = 16

[train]
total_timesteps = 512
learning_rate = 0.015
bptt_horizon = 32
minibatch_size = 64
update_epochs = 1
name = pufferai
checkpoint_interval = 200
anneal_lr = False

[sweep]
method = Protein

[sweep.train.learning_rate]
distribution = log_normal
min = 0.00001
"""


@pytest.fixture
def config_folder(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "default.ini").write_text("[train]\ngamma = 0.9\nseed = 7\n[vec]\nseed = 9\n")
    (tmp_path / "config" / "mine.ini").write_text(INI)
    return tmp_path / "config"


def test_load_config_reads_ini_files(config_folder):
    args = pufferl.load_config("gym-CartPole-v1", [], config_folder)
    assert (args["package"], args["env_name"], args["rnn_name"]) == ("mine", "gym-CartPole-v1", "Recurrent")
    assert args["train"]["gamma"] == 0.9  # of default.ini
    assert args["train"]["learning_rate"] == 0.015
    assert args["train"]["gae_lambda"] == 0.95  # Shoal's own
    assert args["train"]["use_rnn"] is True
    assert args["train"]["anneal_lr"] is False
    assert args["vec"] | {"num_envs": 4, "backend": "Serial", "seed": 9} == args["vec"]
    assert args["sweep"] == {
        "method": "Protein",
        "train": {"learning_rate": {"distribution": "log_normal", "min": 1e-5}},
    }
    by_path = pufferl.load_config(str(config_folder / "mine.ini"), [], config_folder)
    assert by_path == args
    assert pufferl.load_config("other-env", [], config_folder)["env_name"] == "other-env"
    assert pufferl.load_config("default", [], config_folder)["train"]["seed"] == 7


def test_load_config_reads_flags(config_folder, monkeypatch):
    words = ["--train.learning-rate", "3e-4", "--train.anneal_lr=True", "--wandb", "--tag", "first run"]
    args = pufferl.load_config(
        "gym-CartPole-v1", [*words, "--policy.hidden-size=8", "--vec.zero-copy", "False"], config_folder
    )
    assert args["train"]["learning_rate"] == 3e-4
    assert (args["train"]["anneal_lr"], args["wandb"], args["tag"]) == (True, True, "first run")
    assert (args["policy"]["hidden_size"], args["vec"]["zero_copy"]) == (8, False)
    monkeypatch.setattr(sys, "argv", ["train.py", "--sweep.train.learning-rate.min", "0.1"])
    assert pufferl.load_config("gym-CartPole-v1", folder=config_folder)["sweep"]["train"]["learning_rate"]["min"] == 0.1
    with pytest.raises(
        pufferlib.APIUsageError, match=r"'--train\.learning-rat'\. Did you mean '--train\.learning-rate'"
    ):
        pufferl.load_config("gym-CartPole-v1", ["--train.learning-rat", "1"], config_folder)
    with pytest.raises(UnknownEnv, match="Did you mean"):
        pufferl.load_config("puffer_brakout", [], config_folder)
    with pytest.raises(pufferlib.APIUsageError, match="no such file"):
        pufferl.load_config("nothing.ini", [])
    (config_folder / "mine.ini").write_text("learning_rate = 1")
    with pytest.raises(pufferlib.APIUsageError, match=r"mine\.ini cannot be read"):
        pufferl.load_config(str(config_folder / "mine.ini"), [])


def test_load_config_of_a_native_env_has_its_tuned_values(tmp_path):
    args = pufferl.load_config("puffer_breakout", [], tmp_path)
    tuned = shoal.train.options_for("breakout", {"device": "cpu"})
    assert args["package"] == "ocean"
    assert args["env"]["num_envs"] == tuned.vec.num_envs
    assert args["train"]["ent_coef"] == tuned.train.entropy_coef
    vecenv = pufferl.load_env("puffer_breakout", args | {"env": {"num_envs": 16}})
    trainer = PuffeRL(dict(**args["train"], env="puffer_breakout"), vecenv, pufferl.load_policy(args, vecenv))
    assert trainer.trainer.options.train.learning_rate == tuned.train.learning_rate
    assert trainer.trainer.options.train.minibatches == tuned.train.minibatches
    assert trainer.trainer.options.train.horizon == tuned.train.horizon
    trainer.close()


def test_train_by_config(config_folder):
    args = pufferl.load_config("gym-CartPole-v1", [], config_folder)
    logged = []
    logger = type("Logger", (), {"log": lambda self, metrics, step: logged.append(step)})()
    records = pufferl.train("gym-CartPole-v1", args, logger=logger)
    assert [record["step"] for record in records] == [128, 256, 384, 512] == logged
    policy = pufferl.load_policy(args, pufferl.load_env("gym-CartPole-v1", args))
    assert isinstance(policy, models.LSTMWrapper)
    for change, text in (
        ({"policy_name": "Convolution"}, "Did you mean 'Convolutional'"),
        ({"rnn_name": "GRU"}, "rnn_name='GRU' must be None or one of"),
        ({"load_model_path": "model.pt"}, "does not load pickled weights"),
    ):
        with pytest.raises(pufferlib.APIUsageError, match=text):
            pufferl.load_policy({**args, **change}, None)


def test_a_given_size_takes_the_place_of_a_default(config_folder):
    args = pufferl.load_config("gym-CartPole-v1", [], config_folder)
    assert "minibatches" not in args["train"]
    args = pufferl.load_config("puffer_squared", ["--train.batch-size", "1024", "--env.num-envs", "64"], config_folder)
    vecenv = pufferl.load_env("puffer_squared", args)
    trainer = PuffeRL(args["train"], vecenv, pufferl.load_policy(args, vecenv))
    assert trainer.trainer.options.train.horizon == 16


def test_pufferlib_3_takes_config_vecenv_policy_in_any_spelling():
    vecenv = Serial(Talking, num_envs=2)
    config = {"bptt_horizon": 4}
    policy = models.Default(vecenv, 8)
    for trainer in (
        PuffeRL(config, vecenv, policy),
        PuffeRL(config=config, vecenv=vecenv, policy=policy),
        PuffeRL(config, vecenv=vecenv, policy=policy),
    ):
        assert trainer.policy is policy
    assert PuffeRL(config, vecenv).policy is not vecenv  # without a policy: Shoal's own


def test_a_size_that_is_set_after_load_config_counts():
    """As scripts for PufferLib 3 do."""
    args = pufferl.load_config("puffer_breakout", [])
    args["train"] |= {"bptt_horizon": 16, "minibatch_size": 8}
    trainer = PuffeRL(args["train"], Serial(Talking, num_envs=2))
    assert trainer.trainer.options.train.minibatches == 4


def test_sizes_by_the_names_of_ppo_count():
    trainer = PuffeRL(env=Serial(Talking, num_envs=2), horizon=16, minibatches=8)
    assert (trainer.trainer.options.train.horizon, trainer.trainer.options.train.minibatches) == (16, 8)
    with pytest.raises(pufferlib.APIUsageError, match="mutually exclusive"):
        PuffeRL(env=Serial(Talking, num_envs=2), minibatches=8, minibatch_size=16)


@pytest.mark.parametrize(
    ("words", "translated"),
    [
        (["procgen-coinrun", "--train.ent-coef", "0.01"], ["procgen:coinrun", "--train.entropy-coef", "0.01"]),
        (["pettingzoo-knights-archers-zombies"], ["pettingzoo:knights-archers-zombies"]),
        (["gym-CartPole-v1", "--train.device=cpu"], ["gymnasium:CartPole-v1", "--device=cpu"]),
        (["puffer_breakout"], ["breakout"]),
        (["minigrid_doorkey"], ["minigrid_doorkey"]),
        (["atari-"], ["atari-"]),
    ],
)
def test_command_lines_of_pufferlib_are_translated(words, translated):
    assert aliases.translate(words) == translated
