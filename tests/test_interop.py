"""Other libraries take Shoal's envs for their own: each is tried as it is, none is imitated."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import shoal
from shoal.errors import ConfigError

# made once, so that the four ways to have CartPole are named and not spelled out
CARTPOLES = {
    "native serial": partial(shoal.make, "cartpole", backend="serial"),
    "native threads": partial(shoal.make, "cartpole", backend="threads", num_threads=2),
    "python serial": partial(shoal.make, "gymnasium:CartPole-v1", backend="serial"),
    "python process": partial(shoal.make, "gymnasium:CartPole-v1", backend="process"),
}
TAXI = next(id for id in gymnasium.registry if id.startswith("Taxi-"))  # has infos: arrays and numbers
TRAINED = ("native threads", "python process")


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return torch


@pytest.fixture
def sb3(torch):
    return pytest.importorskip("stable_baselines3")


def ours(vec):
    from shoal.integrations.sb3 import ShoalVecEnv

    return ShoalVecEnv(vec)


# ---- Stable-Baselines3 ----


@pytest.mark.parametrize("name", TRAINED)
def test_sb3_ppo_runs_and_logs_episodes(sb3, name):
    venv = ours(CARTPOLES[name](8))
    model = sb3.PPO("MlpPolicy", venv, n_steps=32, batch_size=64, n_epochs=2, seed=0, device="cpu")
    model.learn(768)
    assert model.num_timesteps == 768
    assert len(model.ep_info_buffer) > 5
    assert all(8 <= info["l"] == info["r"] <= 500 and info["t"] >= 0 for info in model.ep_info_buffer)
    venv.close()


@pytest.mark.parametrize("name", TRAINED)
def test_sb3_dqn_runs_and_stores_true_transitions(sb3, name):
    venv = ours(CARTPOLES[name](4))
    model = sb3.DQN("MlpPolicy", venv, learning_starts=100, train_freq=4, buffer_size=800, seed=0, device="cpu")
    model.learn(600)
    buffer, size = model.replay_buffer, model.replay_buffer.size()
    obs, following, done = buffer.observations[:size], buffer.next_observations[:size], buffer.dones[:size] > 0
    assert done.any()
    # x moves by tau * x_dot in every transition, also the last one of an episode: no reset is taken for a next obs
    np.testing.assert_allclose(following[..., 0], obs[..., 0] + 0.02 * obs[..., 1], atol=1e-6)
    # and what follows an episode's end is another's start
    np.testing.assert_array_equal(following[:-1][~done[:-1]], obs[1:][~done[:-1]])
    assert (np.abs(obs[1:][done[:-1]]) <= 0.05).all()
    venv.close()


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize(
    ("id", "kwargs"), [("CartPole-v1", {"max_episode_steps": 20}), (TAXI, {"max_episode_steps": 40})]
)
def test_sb3_sees_what_its_own_dummy_vec_env_shows(sb3, backend, id, kwargs):
    from stable_baselines3.common.vec_env import DummyVecEnv

    mine = ours(shoal.make(f"gymnasium:{id}", 4, backend=backend, **kwargs))
    theirs = DummyVecEnv([lambda: gymnasium.make(id, **kwargs)] * 4)
    assert mine.observation_space == theirs.observation_space
    assert mine.action_space == theirs.action_space
    assert mine.seed(7) == theirs.seed(7)
    np.testing.assert_array_equal(mine.reset(), theirs.reset())
    np.testing.assert_equal(mine.reset_infos, theirs.reset_infos)
    mine.action_space.seed(0)
    ends = {True: 0, False: 0}
    for _ in range(300):
        actions = np.array([mine.action_space.sample() for _ in range(4)])
        got, wanted = mine.step(actions), theirs.step(actions)
        for array, expected in zip(got[:3], wanted[:3]):
            np.testing.assert_array_equal(array, expected)
            assert array.dtype == expected.dtype
        for info, expected in zip(got[3], wanted[3]):
            assert ("terminal_observation" in info) == ("terminal_observation" in expected)
            if "terminal_observation" in info:
                ends[info["TimeLimit.truncated"]] += 1
                np.testing.assert_array_equal(info.pop("terminal_observation"), expected.pop("terminal_observation"))
                assert sorted(info.pop("episode")) == ["l", "r", "t"]
            np.testing.assert_equal(info, expected)
        np.testing.assert_equal(mine.reset_infos, theirs.reset_infos)
    assert ends[True] > 5
    assert ends[False] > 10 or id == TAXI
    mine.close()


@pytest.mark.parametrize("name", CARTPOLES)
def test_sb3_may_keep_what_it_is_given(sb3, name):
    venv = ours(CARTPOLES[name](4, seed=3))
    kept = [venv.reset()]
    copies = [kept[0].copy()]
    for _ in range(40):
        obs, rewards, dones, infos = venv.step(np.ones(4, np.int64))
        last = [info["terminal_observation"] for info in infos if "terminal_observation" in info]
        for array in (obs, rewards, dones, *last):
            kept.append(array)
            copies.append(array.copy())
    assert len(kept) > 121
    for array, copy in zip(kept, copies):
        np.testing.assert_array_equal(array, copy)
    venv.close()


@pytest.mark.parametrize("name", CARTPOLES)
def test_sb3_wrappers_work(sb3, name):
    from stable_baselines3.common.vec_env import VecCheckNan, VecFrameStack, VecMonitor, VecNormalize

    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        monitored = VecMonitor(ours(CARTPOLES[name](4)))
    venv = VecFrameStack(VecNormalize(VecCheckNan(monitored), clip_obs=5.0), 3)
    venv.seed(0)
    assert venv.reset().shape == (4, 12)
    ended = 0
    for _ in range(60):
        obs, _rewards, dones, infos = venv.step(np.ones(4, np.int64))
        assert obs.shape == (4, 12)
        assert np.abs(obs).max() <= 5.0
        for row in np.flatnonzero(dones):
            ended += 1
            assert infos[row]["terminal_observation"].shape == (12,)
            assert infos[row]["episode"]["l"] == infos[row]["episode"]["r"]  # VecMonitor's count, the same as ours
            assert (obs[row, :8] == 0).all()  # the stack starts anew
    assert ended > 10
    venv.close()


def test_sb3_monitor_agrees_with_our_episodes(sb3):
    from stable_baselines3.common.vec_env import VecMonitor

    venv = ours(shoal.make("cartpole", 8, seed=0))
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        monitored = VecMonitor(ours(shoal.make("cartpole", 8, seed=0)))
    venv.reset(), monitored.reset()
    rng = np.random.default_rng(0)
    for _ in range(200):
        actions = rng.integers(0, 2, 8)
        infos, theirs = venv.step(actions)[3], monitored.step(actions)[3]
        for info, wanted in zip(infos, theirs):
            assert ("episode" in info) == ("episode" in wanted)
            if "episode" in info:
                assert {k: info["episode"][k] for k in "rl"} == {k: wanted["episode"][k] for k in "rl"}


def test_sb3_evaluates_without_a_monitor(sb3):
    from stable_baselines3.common.evaluation import evaluate_policy

    venv = ours(shoal.make("cartpole", 4, seed=0))
    model = sb3.PPO("MlpPolicy", venv, n_steps=16, batch_size=64, seed=0, device="cpu")
    returns, lengths = evaluate_policy(model, venv, n_eval_episodes=10, return_episode_rewards=True)
    assert returns == lengths
    assert len(returns) == 10


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_sb3_reaches_into_python_envs(sb3, backend):
    from gymnasium.wrappers import ClipReward, TimeAwareObservation
    from stable_baselines3.common.monitor import Monitor

    def make():
        return ClipReward(gymnasium.make("CartPole-v1", render_mode="rgb_array"), max_reward=0.5)

    venv = ours(shoal.make(make, 2, backend=backend))
    venv.reset()
    assert venv.get_attr("gravity") == [9.8, 9.8]
    venv.set_attr("gravity", 5.0, indices=1)
    assert venv.get_attr("gravity") == [9.8, 5.0]
    assert venv.has_attr("gravity")
    assert not venv.has_attr("levity")
    assert venv.env_method("has_wrapper_attr", "gravity", indices=[1]) == [True]
    with pytest.raises(AttributeError, match="levitate"):
        venv.env_method("levitate")
    assert venv.env_is_wrapped(ClipReward) == [True, True]
    assert venv.env_is_wrapped(TimeAwareObservation, indices=0) == [False]
    assert venv.env_is_wrapped(Monitor) == [True, True]
    assert venv.step(np.zeros(2, np.int64))[1].tolist() == [0.5, 0.5]
    venv.close()


def test_sb3_reaches_params_of_native_envs(sb3):
    venv = ours(shoal.make("cartpole", 3, seed=0))
    venv.reset()
    assert len(set(venv.get_attr("max_steps"))) == 1
    venv.set_attr("max_steps", 5, indices=[1])
    assert venv.get_attr("max_steps", indices=[0, 1]) == [500, 5]
    for _ in range(5):
        _obs, _rewards, dones, infos = venv.step(np.array([0, 1, 0]))
    assert dones[1]
    assert infos[1]["TimeLimit.truncated"] is True
    assert infos[1]["episode"]["l"] == 5
    assert not venv.has_attr("levity")
    with pytest.raises(AttributeError, match="no param 'levity'. It has "):
        venv.set_attr("levity", 1)
    venv.close()


@pytest.mark.parametrize("name", ["native serial", "native threads"])
def test_sb3_renders(sb3, name):
    venv = ours(CARTPOLES[name](4, render_mode="rgb_array"))
    venv.reset()
    images = venv.get_images()
    assert len(images) == 4
    height, width, _ = images[0].shape
    assert venv.render().shape == (2 * height, 2 * width, 3)
    venv = ours(CARTPOLES[name](4))
    with pytest.warns(UserWarning, match="render_mode='rgb_array'"):
        assert venv.get_images() == [None] * 4


def test_sb3_takes_agents_as_rows(sb3):
    vec = shoal.make("forage", 3)
    venv = ours(vec)
    agents = vec.agents_per_env
    assert venv.num_envs == 3 * agents > 3
    assert venv.seed(5) == [5] * agents + [6] * agents + [7] * agents
    twin = shoal.make("forage", 3, seed=5)
    np.testing.assert_array_equal(venv.reset(), twin.reset()[0])
    rng = np.random.default_rng(0)
    dead = 0
    for _ in range(300):
        masks = np.stack(venv.env_method("action_masks"))  # as sb3-contrib's MaskablePPO asks for them
        choices = [[rng.choice(np.flatnonzero(part)) for part in (mask[:5], mask[5:])] for mask in masks]
        actions = np.array(choices)
        obs, rewards, dones, infos = venv.step(actions)
        wanted = twin.step(actions)
        np.testing.assert_array_equal(obs, wanted[0])
        np.testing.assert_array_equal(rewards, wanted[1])
        np.testing.assert_array_equal(dones, wanted[2] | wanted[3])
        for row, info in enumerate(infos):
            assert ("terminal_observation" in info) == dones[row] == ("episode" in info)
            assert info.get("alive", True) == wanted[4]["alive"][row]
            dead += "alive" in info
    assert dead > 100
    model = sb3.PPO("MlpPolicy", ours(shoal.make("forage", 3).rows()), n_steps=16, batch_size=64, device="cpu")
    model.learn(16 * venv.num_envs)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_sb3_sees_an_agent_leave_its_game(sb3, backend):
    pettingzoo = pytest.importorskip("pettingzoo")

    class Race(pettingzoo.ParallelEnv):
        """ "fast" is out at step 2, "slow" at step 4; obs is the step, and so is the info."""

        metadata = {"name": "race"}  # noqa: RUF012
        possible_agents = ["fast", "slow"]  # noqa: RUF012

        def observation_space(self, agent):
            return gymnasium.spaces.Box(0, 9, (1,))

        def action_space(self, agent):
            return gymnasium.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            self.t, self.agents = 0, ["fast", "slow"]
            return self.of(np.zeros(1, np.float32)), self.of({"t": 0})

        def of(self, value):
            return dict.fromkeys(self.agents, value)

        def step(self, actions):
            self.t += 1
            ends = {agent: self.t == {"fast": 2, "slow": 4}[agent] for agent in self.agents}
            obs = self.of(np.full(1, self.t, np.float32))
            result = obs, self.of(1.0), ends, self.of(False), self.of({"t": self.t})
            self.agents = [agent for agent in self.agents if not ends[agent]]
            return result

    venv = ours(shoal.make(Race, 2, backend=backend))
    assert venv.num_envs == 4
    venv.reset()
    assert venv.reset_infos == [{"t": 0}] * 4
    shown = [venv.step(np.zeros(4, np.int64)) for _ in range(4)]
    assert [dones.tolist() for _, _, dones, _ in shown] == [
        [False] * 4,
        [True, False, True, False],
        [False] * 4,
        [False, True, False, True],
    ]
    assert shown[1][0].ravel().tolist() == [0, 2, 0, 2]
    out, playing, ended = shown[1][3][2], shown[2][3][3], shown[3][3][3]
    episode = out.pop("episode")
    assert (episode["r"], episode["l"]) == (2.0, 2)
    assert out == {"t": 2, "alive": False, "TimeLimit.truncated": False, "terminal_observation": [2.0]}
    assert playing == {"t": 3, "TimeLimit.truncated": False}
    assert shown[2][3][2] == {"alive": False, "TimeLimit.truncated": False}
    assert ended["t"] == 4
    assert ended["terminal_observation"] == [4.0]
    assert shown[3][3][2] == {"TimeLimit.truncated": False}  # the game began anew, and both play
    assert venv.reset_infos == [{"t": 0}] * 4
    assert venv.get_attr("t", indices=[1, 2]) == [0, 0]
    venv.close()


def test_sb3_takes_images_and_dicts(sb3):
    class Seen(gymnasium.Env):
        observation_space = gymnasium.spaces.Dict(
            {"pixels": gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8), "t": gymnasium.spaces.Box(0, 9, (1,))}
        )
        action_space = gymnasium.spaces.Box(-1, 1, (2,))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t = 0
            return self.see(), {"began": (options or {}).get("name", "")}

        def see(self):
            return {"pixels": np.full((36, 36, 1), self.t, np.uint8), "t": np.array([self.t], np.float32)}

        def step(self, action):
            self.t += 1
            return self.see(), float(action[0]), self.t == 4, False, {"t": self.t}

    venv = ours(shoal.make(Seen, 2, backend="process"))
    venv.set_options({"name": "first"})
    venv.reset()
    assert venv.reset_infos == [{"began": "first"}] * 2
    for t in range(1, 5):
        obs, _rewards, dones, infos = venv.step(np.zeros((2, 2), np.float32))
        assert [info["t"] for info in infos] == [t, t]
    assert dones.all()
    assert (obs["pixels"] == 0).all()
    assert (infos[1]["terminal_observation"]["pixels"] == 4).all()
    assert infos[1]["terminal_observation"]["t"] == [4.0]
    assert venv.reset_infos == [{"began": ""}] * 2
    venv.set_options([{"name": "one"}, {"name": "two"}])
    with pytest.raises(ConfigError, match="different options"):
        venv.reset()
    venv.set_options()
    model = sb3.PPO("MultiInputPolicy", venv, n_steps=16, batch_size=16, n_epochs=1, device="cpu")
    model.learn(64)
    venv.close()


def test_sb3_refuses_what_it_cannot_use(sb3):
    with pytest.raises(ConfigError, match="autoreset='same_step'"):
        ours(shoal.make("cartpole", 2, autoreset="next_step"))
    with pytest.raises(ConfigError, match="what shoal.make returns, not SyncVectorEnv"):
        ours(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")]))


def test_without_sb3_the_install_command_is_named():
    code = (
        "import sys; sys.modules['stable_baselines3'] = None\n"
        "try: import shoal.integrations.sb3\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ConfigError")
    assert "pip install stable-baselines3" in done.stdout


# ---- CleanRL ----


def of_gymnasium(num_envs):
    def make():
        return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))

    return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def test_cleanrl_trains_the_same_agent_on_gymnasiums_env_and_on_ours(torch):
    from tests.cleanrl_ppo import train

    settings = {"seed": 1, "total_steps": 1024, "num_steps": 64}
    steps, returns = train(of_gymnasium(4), **settings)
    assert steps == 1024
    assert len(returns) > 10
    for name in ("python serial", "python process"):
        envs = CARTPOLES[name](4)
        assert train(envs, **settings) == (steps, returns), name  # the same envs, so the same run to the bit
        envs.close()


@pytest.mark.parametrize("name", ["native serial", "native threads"])
def test_cleanrl_trains_on_native_envs(torch, name):
    from tests.cleanrl_ppo import train

    steps, returns = train(CARTPOLES[name](4), total_steps=1024, num_steps=64)
    assert steps == 1024
    assert len(returns) > 10
    assert min(returns) >= 8


# ---- TorchRL ----


@pytest.fixture
def torchrl(torch):
    pytest.importorskip("torchrl")
    import torchrl.envs

    return torchrl


def for_torchrl(vec):
    return vec


@pytest.mark.parametrize("autoreset", ["disabled", "same_step"])
@pytest.mark.parametrize("name", CARTPOLES)
def test_torchrl_collects_true_transitions(torchrl, torch, name, autoreset):
    limit = "max_steps" if name.startswith("native") else "max_episode_steps"
    vec = CARTPOLES[name](4, seed=0, copy=True, autoreset=autoreset, **{limit: 20})
    env = torchrl.envs.GymWrapper(for_torchrl(vec), categorical_action_encoding=True)
    env.set_seed(0)
    torch.manual_seed(0)
    data = env.rollout(120, break_when_any_done=False)
    assert data.shape == (4, 120)
    obs, following = data["observation"], data["next", "observation"]
    terminated, truncated = data["next", "terminated"], data["next", "truncated"]
    done = data["next", "done"].squeeze(-1)
    assert terminated.sum() > 5
    assert truncated.sum() > 2
    assert not (terminated & truncated).any()
    assert torch.equal(done, (terminated | truncated).squeeze(-1))
    assert (data["next", "reward"] == 1).all()
    # the next observation is the true one everywhere, also where an episode ended
    torch.testing.assert_close(following[..., 0], obs[..., 0] + 0.02 * obs[..., 1], atol=1e-6, rtol=0)
    assert torch.equal(following[:, :-1][~done[:, :-1]], obs[:, 1:][~done[:, :-1]])
    assert (obs[:, 1:][done[:, :-1]].abs() <= 0.05).all()
    env.close()


# ---- RLlib, as far as Gymnasium goes: what its SingleAgentEnvRunner does with a vector env ----


@pytest.mark.parametrize("name", ["native", "python"])
def test_what_rllibs_env_runner_does(name):
    from gymnasium.wrappers.vector import DictInfoToList

    if name == "native":
        options = {"vectorization_mode": "vector_entry_point", "autoreset": "next_step"}
        made = gymnasium.make_vec("shoal/Cartpole-v0", num_envs=3, **options)
    else:
        made = shoal.make("gymnasium:CartPole-v1", 3, backend="process", autoreset="next_step", copy=True)
    envs = DictInfoToList(made)
    obs, infos = envs.reset(seed=0)
    assert infos == [{}, {}, {}]
    episodes = [[row] for row in obs]
    lengths = []
    for _ in range(60):
        obs, rewards, terminated, truncated, infos = envs.step(np.ones(3, np.int64))
        assert len(infos) == 3
        for k, episode in enumerate(episodes):
            episode.append(obs[k])
            if len(episode) > 1:
                assert rewards[k] == 1
                np.testing.assert_allclose(episode[-1][0], episode[-2][0] + 0.02 * episode[-2][1], atol=1e-6)
            if terminated[k] or truncated[k]:
                lengths.append(len(episode) - 1)
                assert infos[k]["final_info"]["episode"]["l"] == lengths[-1]
                episodes[k] = []
    assert len(lengths) > 10
    assert 8 <= min(lengths) <= max(lengths) <= 11
    envs.close()


# ---- Gymnasium's vector wrappers ----


def run(envs, steps=80, seed=0):
    """What a run of constant actions shows: everything that was returned."""
    shown = [envs.reset(seed=seed)]
    shown += [envs.step(np.ones(envs.num_envs, np.int64)) for _ in range(steps)]
    envs.close()
    return shown


def both(wrap, autoreset="same_step"):
    """The same wrapper around Gymnasium's own vector env and around ours in processes."""
    mode = {"same_step": AutoresetMode.SAME_STEP, "next_step": AutoresetMode.NEXT_STEP}[autoreset]
    theirs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4, autoreset_mode=mode)
    mine = shoal.make("gymnasium:CartPole-v1", 4, backend="process", autoreset=autoreset, copy=True)
    return run(wrap(mine)), run(wrap(theirs))


@pytest.mark.parametrize(
    ("wrapper", "autoreset"),
    [
        ("RecordEpisodeStatistics", "same_step"),
        ("RecordEpisodeStatistics", "next_step"),
        ("NormalizeObservation", "next_step"),
        ("NormalizeReward", "same_step"),
        ("NormalizeReward", "next_step"),
        ("FlattenObservation", "next_step"),
        ("DictInfoToList", "next_step"),
    ],
)
def test_gymnasium_wrappers_show_the_same_over_ours(wrapper, autoreset):
    mine, theirs = both(getattr(gymnasium.wrappers.vector, wrapper), autoreset)
    ended = 0
    for got, wanted in zip(mine, theirs):
        for array, expected in zip(got[:-1], wanted[:-1]):
            np.testing.assert_allclose(array, expected, atol=1e-6)
        ended += int(got[2].sum()) if len(got) == 5 else 0
        if wrapper == "RecordEpisodeStatistics" and "episode" in wanted[-1]:
            for key in "rl":
                np.testing.assert_array_equal(got[-1]["episode"][key], wanted[-1]["episode"][key])
    assert ended > 20


@pytest.mark.parametrize("name", CARTPOLES)
def test_gymnasium_transforms_observations(name):
    from gymnasium.wrappers.vector import TransformObservation

    plain = run(CARTPOLES[name](4, autoreset="next_step", copy=True))
    doubled = run(TransformObservation(CARTPOLES[name](4, autoreset="next_step", copy=True), lambda obs: 2 * obs))
    for got, wanted in zip(doubled, plain):
        np.testing.assert_array_equal(got[0], 2 * wanted[0])
