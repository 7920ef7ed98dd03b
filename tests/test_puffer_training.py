"""shoal.puffer trains as PufferLib's guides promise, and without the faults that PufferLib 3.0.0 had."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import nn

import shoal
import shoal.puffer as pufferlib
from shoal import checkpoint
from shoal.algos import ppo
from shoal.errors import CheckpointError, ConfigError, UsageError
from shoal.puffer import NoLogger, PuffeRL, loggers, models, pytorch, rows
from shoal.puffer.pytorch import LSTMWrapper, layer_init
from shoal.puffer.vectorization import Multiprocessing, Serial, VectorEnv
from shoal.vector.base import VecEnv
from tests.envs import UnlikeAgentsEnv

TEMPLATE = Path(__file__).parent.parent / "examples" / "train_template.py"


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


# ---- envs ----


class Echo(gymnasium.Env):
    """Pays 1 for the action that the observation names. Ends (or is cut off) after `length` steps."""

    def __init__(self, length=8, truncates=False, pay=1.0, dtype=np.float32):
        self.observation_space = spaces.Box(-1, 1, (3,), dtype)
        self.action_space = spaces.Discrete(3)
        self.length, self.truncates, self.pay, self.seeds = length, truncates, pay, []

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action):
        reward = self.pay * float(action == self.wanted)
        self.steps += 1
        over = self.steps >= self.length
        return self._look(), reward, over and not self.truncates, over and self.truncates, {}

    def _look(self):
        self.wanted = int(self.np_random.integers(3))
        return np.eye(3)[self.wanted].astype(self.observation_space.dtype)


class Reach(gymnasium.Env):
    """Keeps the actions that it was given; they go from -2 to 2."""

    def __init__(self):
        self.observation_space = spaces.Box(-1, 1, (2,), np.float64)
        self.action_space = spaces.Box(-2, 6, (1,), np.float32)
        self.given = []

    def reset(self, seed=None, options=None):
        return np.zeros(2), {}

    def step(self, action):
        self.given.append(float(action[0]))
        return np.zeros(2), 0.0, False, False, {}


class InPlace(pufferlib.PufferEnv):
    """Style (b): agents that count to 4 and are cut off; agent 0 is out of the game and shouts."""

    def __init__(self, num_agents=4, shout=0.0, terminates=False, buf=None, seed=0):
        self.single_observation_space = spaces.Box(0, 10, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.num_agents, self.shout, self.terminates = num_agents, shout, terminates
        super().__init__(buf)

    def reset(self, seed=None):
        self.count = 0
        self.observations[:] = 1.0
        self.masks[:] = True
        self.masks[0] = False
        return self.observations, []

    def step(self, actions):
        self.count += 1
        over = self.count % 4 == 0
        self.rewards[:] = actions
        self.rewards[0] = self.shout
        (self.terminals if self.terminates else self.truncations)[:] = over
        self.observations[:] = 1.0 if over else 1.0 + self.count % 4
        self.observations[0] = self.shout
        return self.observations, self.rewards, self.terminals, self.truncations, []


class Custom(VectorEnv):
    """The guide's own vectorization: its own __init__, reset and step, four values."""

    def __init__(self, env_creator, num_envs):
        super().__init__()
        self.envs = [env_creator() for _ in range(num_envs)]
        self.num_envs = num_envs

    def reset(self, seed=None):
        return np.stack([env.reset(seed=None if seed is None else seed + k)[0] for k, env in enumerate(self.envs)])

    def step(self, actions):
        found = []
        for env, action in zip(self.envs, actions):
            obs, reward, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                info = {"final_obs": obs, "TimeLimit.truncated": truncated}
                obs, _ = env.reset()
            found.append((obs, reward, terminated or truncated, info))
        obs, rewards, dones, infos = zip(*found)
        return np.stack(obs), np.array(rewards), np.array(dones), list(infos)

    def close(self):
        pass


class Monitored(VectorEnv):
    """The guide's monitoring of super().step."""

    calls = 0

    def step(self, actions):
        self.calls += 1
        return super().step(actions)


class Doubled(pufferlib.Wrapper):
    """Reward shaping around a vector."""

    def step(self, action):
        obs, rewards, dones, infos = self.env.step(action)
        return obs, 2 * rewards, dones, infos


def echo_truncated():
    return Echo(truncates=True)


# ---- policies, each written as its guide has it ----


class Basic(nn.Module):
    def __init__(self, observation_space, action_space, hidden=16):
        super().__init__()
        self.encoder = nn.Sequential(layer_init(nn.Linear(observation_space.shape[0], hidden)), nn.Tanh())
        self.actor = layer_init(nn.Linear(hidden, action_space.n), std=0.01)
        self.critic = layer_init(nn.Linear(hidden, 1), std=1.0)

    def forward(self, observations):
        features = self.encoder(observations)
        return self.actor(features), self.critic(features)

    def get_action(self, observations, deterministic=False):
        logits, value = self.forward(observations)
        if deterministic:
            return logits.argmax(dim=-1), value
        return torch.distributions.Categorical(logits=logits).sample(), value


class Split(Basic):
    """PufferLib 3: encode_observations and decode_actions, no forward."""

    forward = nn.Module.forward

    def encode_observations(self, observations, state=None):
        return self.encoder(observations)

    def decode_actions(self, hidden):
        return self.actor(hidden), self.critic(hidden)


class Listed(Basic):
    """A list of logits."""

    def forward(self, observations):
        logits, value = super().forward(observations)
        return [logits], value


class Distributed(Basic):
    def forward(self, observations):
        logits, value = super().forward(observations)
        return torch.distributions.Categorical(logits=logits), value


class Recurrent(nn.Module):
    """The guide's: torch's LSTM, whose state has layers first."""

    def __init__(self, observation_space, action_space, hidden=8):
        super().__init__()
        self.encoder = nn.Sequential(layer_init(nn.Linear(observation_space.shape[0], 8)), nn.ReLU())
        self.lstm = nn.LSTM(8, hidden, num_layers=1)
        self.actor = layer_init(nn.Linear(hidden, action_space.n), std=1.0)
        self.critic = layer_init(nn.Linear(hidden, 1), std=1.0)
        self.hidden_size = hidden

    def forward(self, observations, state=None):
        features = self.encoder(observations)
        if state is None:
            state = (torch.zeros(1, len(features), self.hidden_size), torch.zeros(1, len(features), self.hidden_size))
        out, new = self.lstm(features.unsqueeze(0), state)
        out = out.squeeze(0)
        return self.actor(out), self.critic(out), new


class Cell(nn.Module):
    """The guide's other way: encode_observations is the whole step, with an LSTMCell."""

    def __init__(self, observation_space, action_space, hidden=8):
        super().__init__()
        self.cell = nn.LSTMCell(observation_space.shape[0], hidden)
        self.actor = layer_init(nn.Linear(hidden, action_space.n), std=1.0)
        self.critic = layer_init(nn.Linear(hidden, 1), std=1.0)

    def encode_observations(self, observations, state):
        hidden, cell = self.cell(observations, state)
        return self.actor(hidden), self.critic(hidden), (hidden, cell)


class Continuous(nn.Module):
    """(mean, std, value), in the units of the env."""

    def __init__(self, observation_space, action_space, mean=3.0, std=1e-3):
        super().__init__()
        self.mean = nn.Parameter(torch.full((1, action_space.shape[0]), mean))
        self.log_std = nn.Parameter(torch.full((1, action_space.shape[0]), np.log(std)))
        self.critic = nn.Linear(observation_space.shape[0], 1)

    def forward(self, observations):
        return self.mean.expand(len(observations), -1), self.log_std.exp(), self.critic(observations)


class Gaussian(Continuous):
    """PufferLib 3 for Box actions: a torch Normal."""

    def forward(self, observations):
        mean, std, value = super().forward(observations)
        return torch.distributions.Normal(mean, std.expand_as(mean)), value


def spaces_of(env):
    return env.single_observation_space, env.single_action_space


def echo_trainer(policy=Basic, num_envs=4, creator=Echo, **options):
    env = Serial(creator, num_envs=num_envs)
    module = policy if isinstance(policy, nn.Module) else policy(*spaces_of(env))
    return PuffeRL(env=env, policy=module, **{"num_steps": 16, "seed": 5, **options})


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])


def rollout_of(trainer):
    return trainer.trainer.learners[0].rollout


def assert_finite(numbers):
    for name, value in numbers.items():
        assert np.isfinite(value) or name == "explained_variance", name


# ---- the guide's snippets ----


def test_the_guides_loop_runs(tmp_path):
    env = pufferlib.make("cartpole", num_envs=16, backend="serial")
    policy = Basic(env.single_observation_space, env.single_action_space)
    before = [p.clone() for p in policy.parameters()]
    trainer = pufferlib.PuffeRL(
        env=env,
        policy=policy,
        device="cpu",
        learning_rate=3e-4,
        batch_size=2048,
        n_epochs=4,
        num_steps=128,
        gamma=0.99,
        gae_lambda=0.95,
        clip_coef=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        compile=False,
        logger=NoLogger(),
    )
    best = -1.0
    for iteration in range(2):
        rollout = trainer.evaluate()
        metrics = trainer.train()
        logged = trainer.mean_and_log()
        if rollout["mean_reward"] > best:
            best = rollout["mean_reward"]
            trainer.save_checkpoint(tmp_path / "best.pt", metadata={"iteration": iteration, "best_reward": best})
    assert rollout["sps"] > 0
    assert rollout["mean_reward"] >= 1
    assert rollout["min_reward"] <= rollout["mean_reward"] <= rollout["max_reward"]
    assert {"policy_loss", "value_loss", "entropy", "explained_variance", "clipfrac"} <= set(metrics)
    assert_finite(metrics)
    named = {"sps", "episode/return", "episode/return_min", "episode/return_max", "episode/length", "loss/policy"}
    assert named | {"loss/value", "entropy", "explained_variance", "clip_fraction", "time/env"} <= set(logged)
    assert trainer.global_step == 2 * 2048 == logged["step"]
    assert all((a != b).any() for a, b in zip(before, policy.parameters()))  # the user's own module is trained
    assert trainer.load_checkpoint(tmp_path / "best.pt")["best_reward"] == best
    for rate in (1e-3, 1e-4):  # the guide's stages
        trainer.learning_rate = rate
        trainer.evaluate()
        assert trainer.train()["learning_rate"] == pytest.approx(rate)
    trainer.close()


def test_it_learns():
    trainer = echo_trainer(num_envs=16, learning_rate=5e-3, num_steps=32, ent_coef=0.0)
    for _ in range(25):
        reward = trainer.evaluate()["mean_reward"]
        trainer.train()
    assert reward > 7  # of 8; chance is 2.7
    obs = torch.eye(3)
    assert trainer.policy.get_action(obs, deterministic=True)[0].tolist() == [0, 1, 2]
    assert trainer.get_action(np.eye(3, dtype=np.float32), deterministic=True).tolist() == [0, 1, 2]


def test_train_never_learns_twice_from_one_rollout():
    trainer = echo_trainer()
    trainer.train()  # collects first
    trainer.train()
    assert (trainer.global_step, trainer.epoch) == (2 * 4 * 16, 2)


def test_mean_and_log_weighs_episodes_by_their_number():
    class Listing:
        def __init__(self):
            self.logged = []

        def log(self, metrics, step):
            self.logged.append((dict(metrics), step))

    listing = Listing()
    trainer = echo_trainer(num_steps=12, logger=listing)  # an episode has 8 steps: 4 end, then 8
    first, second = trainer.evaluate(), trainer.evaluate()
    assert (first["episodes"], second["episodes"]) == (4, 8)
    record = trainer.mean_and_log()
    assert record["episode/n"] == 12
    assert record["episode/return"] == pytest.approx((4 * first["mean_reward"] + 8 * second["mean_reward"]) / 12)
    assert record["episode/return_max"] == max(first["max_reward"], second["max_reward"])
    assert listing.logged == [(record, 2 * 4 * 12)]
    assert trainer.mean_and_log() == {}


def test_rewards_before_any_episode_ended_are_not_a_number():
    trainer = echo_trainer(num_steps=4)
    assert np.isnan(trainer.evaluate()["mean_reward"])
    assert trainer.evaluate()["mean_reward"] >= 0
    assert trainer.evaluate()["mean_reward"] >= 0  # none ended: those of the last rollout that had some


# ---- what can be trained on ----


def gym_vec(mode):
    return gymnasium.vector.SyncVectorEnv([echo_truncated] * 4, autoreset_mode=mode)


ENVS = {
    "make native": lambda: pufferlib.make("cartpole", num_envs=4, backend="serial"),
    "make gymnasium": lambda: pufferlib.make("gym-CartPole-v1", num_envs=4, backend="serial"),
    "make many agents": lambda: pufferlib.make("forage", num_envs=2, backend="serial"),
    "emulate": lambda: pufferlib.emulate(Echo, num_envs=4, backend="serial"),
    "Serial": lambda: Serial(echo_truncated, num_envs=4),
    "Multiprocessing": lambda: Multiprocessing(echo_truncated, num_envs=4, num_workers=2),
    "Multiprocessing async": lambda: Multiprocessing(Echo, num_envs=4, num_workers=4, mode="async", surplus_envs=2),
    "nested": lambda: Serial(lambda: Serial(Echo, num_envs=2), num_envs=2),
    "vector.make": lambda: pufferlib.vector.make(echo_truncated, num_envs=4),
    "vector.make in place": lambda: pufferlib.vector.make(InPlace, num_envs=2),
    "a PufferEnv": lambda: InPlace(),
    "shoal.make": lambda: shoal.make(Echo, 4, backend="serial"),
    "gymnasium next step": lambda: gym_vec(AutoresetMode.NEXT_STEP),
    "gymnasium same step": lambda: gym_vec(AutoresetMode.SAME_STEP),
    "own VectorEnv": lambda: Custom(echo_truncated, 4),
    "own step": lambda: Monitored(echo_truncated, 4, backend="serial"),
    "wrapped": lambda: Doubled(Serial(echo_truncated, num_envs=4)),
}


@pytest.mark.parametrize("kind", ENVS)
def test_trains_on(kind):
    trainer = PuffeRL(env=ENVS[kind](), num_steps=12)  # Shoal's own policy
    for _ in range(2):
        rollout = trainer.evaluate()
        assert_finite(trainer.train())
    rows = rollout_of(trainer).rows
    assert trainer.global_step == 2 * 12 * rows
    assert rollout["episodes"] > 0 or kind in ("make many agents",)
    trainer.close()


def collected(env, **options):
    """What a fixed policy sees in two rollouts."""
    torch.manual_seed(3)
    trainer = PuffeRL(env=env, policy=Basic(spaces.Box(-1, 1, (3,)), spaces.Discrete(3)), num_steps=12, **options)
    trainer.learning_rate = 0.0
    found = []
    for _ in range(2):
        trainer.train()
        rollout = rollout_of(trainer)
        batch = ppo.make_batch(trainer.trainer.learners[0])
        found += [rollout.obs[0].clone(), rollout.rewards.clone(), rollout.dones.clone(), batch.advantages.clone()]
    trainer.close()
    return found


def test_every_vector_gives_exactly_the_same_rollouts():
    """And the same advantages: final_obs is found wherever it is."""
    truth = collected(Serial(echo_truncated, num_envs=4))
    for env in (Custom(echo_truncated, 4), Monitored(echo_truncated, 4, backend="serial"), gym_vec("SameStep")):
        for mine, theirs in zip(truth, collected(env)):
            assert torch.equal(mine, theirs), type(env).__name__


def vectors_of_the_layer():
    """A VecEnv of each kind that rows.py makes."""
    mixed = Multiprocessing(Echo, 4, num_workers=2, batch_size=2, zero_copy=False)
    for env in (Custom(Echo, 4), InPlace(), mixed, pufferlib.Wrapper(pufferlib.make("forage", num_envs=4, seed=1))):
        yield rows.vec_for(env)[0]


def test_every_vector_has_the_protocol_of_vec_env():
    for vec in vectors_of_the_layer():
        assert isinstance(vec, VecEnv)
        agents = vec.agents_per_env
        assert vec.num_rows == vec.num_envs * agents
        assert (vec.is_on_gpu, vec.can_snapshot, str(vec.device)) == (False, False, "cpu")
        assert len(vec.agent_spaces.agents) == agents
        assert vec.agent_spaces.alike
        assert vec.ranges == ((0, vec.num_envs),)
        assert (vec.time_limit, vec.parallelism >= 1) == (0, True)
        obs, _ = vec.reset(seed=1)
        assert len(obs) == vec.num_rows
        infos = vec.current_infos()
        assert infos["alive"].shape == (vec.num_rows,)
        assert vec.mask_size == (infos["action_mask"].shape[1] if "action_mask" in infos else 0)
        assert vec.drain_stats() == {"episodes": 0}
        assert vec.rows().num_envs == vec.num_rows
        assert list(vec.agents().possible_agents) == list(vec.agent_spaces.agents)
        for call in (vec.get_params, vec.set_params, vec.snapshot, lambda vec=vec: vec.restore(b"")):
            with pytest.raises(UsageError, match="is for native envs"):
                call()
        vec.close()


def test_a_users_step_is_called():
    env = Monitored(Echo, 4, backend="serial")
    trainer = PuffeRL(env=env, num_steps=6)
    trainer.evaluate()
    assert env.calls == 6
    doubled = PuffeRL(env=Doubled(Serial(Echo, num_envs=4)), num_steps=8)
    doubled.evaluate()
    assert set(rollout_of(doubled).rewards.unique().tolist()) == {0.0, 2.0}


def test_names_and_classes_make_envs():
    trainer = PuffeRL(env="cartpole", num_envs=4, num_steps=4)
    trainer.train()
    assert trainer.env.num_envs == 4
    with pytest.raises(ConfigError, match="needs num_envs"):
        PuffeRL(env=Echo)
    with pytest.raises(ConfigError, match="Pass a vector env"):
        PuffeRL(env=Echo())
    with pytest.warns(UserWarning, match="num_workers=3 is ignored: env already has 1"):
        PuffeRL(env=Serial(Echo, num_envs=2), num_workers=3)


def test_pufferlib_3_spelling():
    vecenv = pufferlib.vector.make(Echo, num_envs=4, seed=1)
    policy = LSTMWrapper(vecenv.driver_env, models.Default(vecenv.driver_env, hidden_size=8), input_size=8)
    train = {"batch_size": "auto", "bptt_horizon": 16, "minibatch_size": 32, "update_epochs": 1, "optimizer": "muon"}
    train |= {"total_timesteps": 128, "anneal_lr": True, "device": "cpu", "use_rnn": True, "vf_clip_coef": 0.2}
    trainer = pufferlib.pufferl.PuffeRL(train, vecenv, policy, NoLogger())
    while trainer.epoch < trainer.total_epochs:
        trainer.evaluate()
        logs = trainer.train()
    assert trainer.global_step == 128 == trainer.config["total_timesteps"]
    assert logs["learning_rate"] == pytest.approx(3e-4 / 2)  # half of the way at the second of two
    trainer.close()


# ---- policies ----


@pytest.mark.parametrize("kind", [Split, Listed, Distributed])
def test_every_way_to_write_a_policy_is_the_same_policy(kind):
    found = []
    for policy in (Basic, kind):
        torch.manual_seed(1)
        trainer = echo_trainer(policy)
        trainer.train()
        found.append(weights(trainer))
    assert torch.equal(*found) if kind is not Distributed else torch.allclose(*found, atol=1e-5)


def test_several_choices_as_a_list():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.actors, self.critic = nn.ModuleList([nn.Linear(2, 3), nn.Linear(2, 5)]), nn.Linear(2, 1)

        def forward(self, observations):
            return [actor(observations) for actor in self.actors], self.critic(observations)

    env = Reach()
    env.action_space = spaces.MultiDiscrete([3, 5])
    vec = Serial(lambda: env, num_envs=1)
    trainer = PuffeRL(env=vec, policy=Two(), num_steps=64)
    trainer.train()
    actions = rollout_of(trainer).actions.view(-1, 2)
    assert actions.max(0).values.tolist() == [2, 4]


@pytest.mark.parametrize("kind", [Continuous, Gaussian])
def test_means_are_in_the_units_of_the_env(kind):
    env = Reach()
    vec = Serial(lambda: env, num_envs=1)
    trainer = PuffeRL(env=vec, policy=kind(*spaces_of(vec)), num_steps=8)
    assert_finite(trainer.train())
    assert env.given == pytest.approx([3.0] * 8, abs=0.01)
    assert trainer.policy.mean.grad is not None


@pytest.mark.parametrize("kind", [Recurrent, Cell, lambda seen, done: LSTMWrapper(None, Split(seen, done), 16)])
def test_recurrent_state_is_reset_at_ends_and_kept_over_rollouts(kind):
    """What the policy said in two rollouts is what it says when it is played by hand, and what training computes."""
    torch.manual_seed(2)
    trainer = echo_trainer(kind, creator=lambda: Echo(length=5), num_steps=8, learning_rate=0.0)
    policy, state = trainer.trainer.actors[0], trainer.trainer.actors[0].initial_state(4)
    for _ in range(2):
        trainer.evaluate()
        rollout = rollout_of(trainer)
        learner = trainer.trainer.learners[0]
        logits, _ = policy.unroll(
            rollout.obs[0][:-1].flatten(0, 1), tuple(part[0] for part in rollout.starts), rollout.resets()
        )
        assert torch.allclose(logits.view_as(rollout.logits), rollout.logits, atol=1e-6)
        for t in range(8):
            with torch.no_grad():
                said, _, state = policy.step(rollout.obs[0][t], state)
            assert torch.allclose(said, rollout.logits[t], atol=1e-6)
            state = tuple(part * (~rollout.dones[t]).view(-1, *[1] * (part.ndim - 1)) for part in state)
        assert rollout.dones.any()
        assert all(part.abs().sum() > 0 for part in rollout.state)
        ppo.update(learner)


def test_a_recurrent_policy_remembers():
    """`memory` shows a symbol once and asks for it later: chance without memory, solved with."""
    env = pufferlib.make("memory", num_envs=64, backend="serial", seed=1)
    policy = LSTMWrapper(env, models.Default(env, hidden_size=32), hidden_size=32)
    trainer = PuffeRL(env=env, policy=policy, num_steps=32, learning_rate=5e-3, minibatch_size=512, n_epochs=2)
    for _ in range(100):
        reward = trainer.evaluate()["mean_reward"]
        if reward > 0.5:
            break
        trainer.train()
    trainer.close()
    assert reward > 0.5  # chance is 0.25


def test_lstm_wrapper_keeps_the_weights():
    policy = Split(spaces.Box(-1, 1, (3,)), spaces.Discrete(3))
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    wrapped = LSTMWrapper(None, policy, input_size=16, hidden_size=16)
    assert all(torch.equal(value, before[name]) for name, value in wrapped.policy.state_dict().items())


def test_lstm_wrapper_takes_pufferlib_3s_state():
    wrapped = LSTMWrapper(None, Split(spaces.Box(-1, 1, (3,)), spaces.Discrete(3)), 16)
    obs, state = torch.randn(4, 3), {"lstm_h": None, "lstm_c": None}
    first, _ = wrapped.forward_eval(obs, state)
    second, _ = wrapped.forward_eval(obs, state)
    truth, _, state = wrapped(obs)
    assert torch.equal(first, truth)
    assert torch.equal(second, wrapped(obs, state)[0])
    with pytest.raises(ConfigError, match="Basic has no encode_observations"):
        LSTMWrapper(None, Basic(spaces.Box(-1, 1, (3,)), spaces.Discrete(3)))
    with pytest.raises(ConfigError, match="returned 16 features, expected input_size=5"):
        LSTMWrapper(None, Split(spaces.Box(-1, 1, (3,)), spaces.Discrete(3)), 5)(obs)


def test_doubles_are_seen_as_floats():
    trainer = echo_trainer(creator=lambda: Echo(dtype=np.float64))
    assert_finite(trainer.train())


def test_observations_unflatten():
    space = spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "speed": spaces.Box(-1, 1, (3,), np.float32)})
    flat = torch.arange(14.0).view(2, 7)
    found = pytorch.unflatten_observations(flat, space)
    assert found["image"].tolist() == [[[0, 1], [2, 3]], [[7, 8], [9, 10]]]
    assert found["speed"].tolist() == [[4, 5, 6], [11, 12, 13]]
    assert pytorch.unflatten_observations(found, space) is found
    layout = pytorch.nativize_dtype(space)
    rows = np.zeros((2, layout.row_bytes), np.uint8)
    layout.views(rows)["speed"][:] = 0.5
    native = pytorch.nativize_tensor(torch.from_numpy(rows), layout)
    assert native["speed"].tolist() == [[0.5] * 3] * 2
    assert pytorch.nativize_tensor(found, pytorch.nativize_dtype(True)) is found
    with pytest.raises(ConfigError, match=r"expected \(rows, 7\)"):
        pytorch.unflatten_observations(torch.zeros(2, 6), space)


def test_layer_init_is_orthogonal():
    layer = layer_init(nn.Linear(8, 4), std=0.5)
    assert torch.allclose(layer.weight @ layer.weight.T, 0.25 * torch.eye(4), atol=1e-6)
    assert not layer.bias.any()


def test_default_plays_any_actions():
    for space in (spaces.Discrete(3), spaces.MultiDiscrete([2, 4]), spaces.Box(-2, 6, (2,), np.float32)):
        env = type("Env", (), {"single_observation_space": spaces.Box(-1, 1, (3,)), "single_action_space": space})
        actions, value = models.Default(env, 8).get_action(torch.zeros(5, 3))
        assert all(space.contains(action) for action in np.asarray(actions)), space
        assert value.shape == (5, 1)
        greedy, _ = models.Default(env, 8).get_action(torch.zeros(5, 3), deterministic=True)
        assert (np.asarray(greedy) == np.asarray(greedy)[0]).all()


# ---- the faults of PufferLib 3.0.0 ----


class Judge(nn.Module):
    """Values the first element of an observation; acts evenly."""

    def __init__(self, choices=2):
        super().__init__()
        self.bias, self.choices = nn.Parameter(torch.zeros(1)), choices

    def forward(self, observations):
        return observations[:, :1].expand(-1, self.choices) * 0 + self.bias, observations[:, 0] + self.bias


def test_the_last_step_of_a_rollout_has_an_advantage():
    trainer = echo_trainer(Judge(3), creator=lambda: Echo(length=100), num_steps=4, gamma=0.9)
    trainer.evaluate()
    rollout = rollout_of(trainer)
    batch = ppo.make_batch(trainer.trainer.learners[0])
    last = rollout.rewards[-1] + 0.9 * rollout.obs[0][-1, :, 0] - rollout.obs[0][-2, :, 0]
    assert torch.allclose(batch.advantages.view(4, 4)[-1], last)
    assert last.any()


def test_truncations_are_bootstrapped():
    """From the last observation; where an env that resets itself has lost it, from the one before."""
    trainer = echo_trainer(Judge(3), creator=lambda: Echo(length=4, truncates=True), num_steps=4, gamma=0.5)
    trainer.evaluate()
    batch, rollout = ppo.make_batch(trainer.trainer.learners[0]), rollout_of(trainer)
    final = rollout.truncations.added[0].obs[0][:, 0]
    truth = rollout.rewards[-1] + 0.5 * final - rollout.obs[0][-2, :, 0]
    assert torch.allclose(batch.advantages.view(4, 4)[-1], truth)
    for terminates, worth in ((False, 0.5 * 4.0), (True, 0.0)):
        trainer = PuffeRL(env=InPlace(terminates=terminates), policy=Judge(), num_steps=4, gamma=0.5)
        trainer.evaluate()
        batch, rollout = ppo.make_batch(trainer.trainer.learners[0]), rollout_of(trainer)
        truth = rollout.rewards[-1] + worth - 4.0
        assert torch.allclose(batch.advantages.view(4, 4)[-1, 1:], truth[1:])


LIMIT = {"TimeLimit.truncated": True}
# how a game of agents a and b ends at its time limit, in all spellings in use: (flags, infos) of step's result
TIME_LIMITS = {
    "dones of agents": ([{"a": True, "b": True}], {"a": LIMIT, "b": LIMIT}),
    "__all__, infos of agents": ([{"a": False, "b": False, "__all__": True}], {"a": LIMIT, "b": LIMIT}),
    "__all__ alone, infos of agents": ([{"__all__": True}], {"a": LIMIT, "b": LIMIT}),
    "__all__, infos of __all__": ([{"a": False, "b": False, "__all__": True}], {"a": {}, "b": {}, "__all__": LIMIT}),
    "all dones, infos of __all__": ([{"a": True, "b": True, "__all__": True}], {"a": {}, "b": {}, "__all__": LIMIT}),
    "__all__, infos of __common__": ([{"__all__": True}], {"__common__": LIMIT}),
    "__all__, infos of the game": ([{"__all__": True}], LIMIT),
    "truncated __all__": ([{"a": False, "b": False}, {"__all__": True}], {}),
    "terminated __all__ of truncated agents": ([{"__all__": True}, {"a": True, "b": True, "__all__": False}], {}),
    "both __all__ of truncated agents": ([{"__all__": True}, {"a": True, "b": True, "__all__": True}], {}),
}
ENDS = {
    "dones": ([{"a": True, "b": True, "__all__": True}], {"a": {}, "b": {}}),
    "__all__": ([{"a": False, "b": False, "__all__": True}], {}),
    "__all__, infos say no": ([{"__all__": True}], {"__all__": {"TimeLimit.truncated": False}}),
    "terminated __all__": ([{"__all__": True}, {"__all__": False}], {}),
    "terminated, all truncated": ([{"a": True, "b": True}, {"__all__": True}], {}),
}


class Team(pufferlib.PufferEnv):
    """Agents a and b see the steps so far plus 1, and end after 4 steps with the given flags and infos."""

    def __init__(self, flags=(), infos=None, buf=None):
        super().__init__(buf)
        self.num_agents = 2
        self.single_observation_space = self.make_space((1,))
        self.single_action_space = self.make_discrete(2)
        self.flags, self.infos = flags, infos

    def reset(self):
        self.steps = 0
        return self._look()

    def step(self, actions):
        self.steps += 1
        is_over = self.steps == 4
        none = [dict.fromkeys(("a", "b", "__all__"), False) for _ in self.flags]
        return self._look(), dict.fromkeys("ab", 1.0), *(self.flags if is_over else none), self.infos if is_over else {}

    def _look(self):
        return {name: np.full(1, self.steps + 1.0, np.float32) for name in "ab"}


@pytest.mark.parametrize("spelling", [*TIME_LIMITS, *ENDS])
def test_a_time_limit_of_a_game_is_bootstrapped(spelling):
    """V(final_obs) is 5, gamma 0.5: the last reward is worth 1 + 2.5 where the time limit ended the game, else 1."""
    flags, infos = {**TIME_LIMITS, **ENDS}[spelling]
    is_limit = spelling in TIME_LIMITS
    env = Serial(lambda: Team(flags, infos), num_envs=2)
    trainer = PuffeRL(env=env, policy=Judge(), num_steps=4, gamma=0.5)
    trainer.evaluate()
    batch, rollout = ppo.make_batch(trainer.trainer.learners[0]), rollout_of(trainer)
    assert rollout.dones[-1].all()
    assert not rollout.dones[:-1].any()
    truth = 1.0 + (2.5 if is_limit else 0.0) - 4.0
    assert torch.allclose(batch.advantages.view(4, 4)[-1], torch.tensor(truth))


def test_an_agent_that_ends_by_itself_is_not_cut_off_with_the_others():
    flags = [{"a": True, "b": False, "__all__": True}]
    vec = Serial(lambda: Team(flags, {"__all__": LIMIT}), num_envs=1)
    vec.reset()
    for _ in range(4):
        *_, dones, infos = vec.step(np.zeros(2, int))
    assert dones.all()
    assert [info["TimeLimit.truncated"] for info in infos] == [False, True]


@pytest.mark.parametrize("kind", ["alone", "vector"])
def test_masked_agents_teach_nothing(kind):
    found = []
    for shout in (0.0, 1e3):
        torch.manual_seed(4)
        make = lambda buf=None, seed=0, shout=shout: InPlace(shout=shout, buf=buf)  # noqa: E731
        env = make() if kind == "alone" else pufferlib.vector.make(make, num_envs=1)
        trainer = PuffeRL(env=env, policy=Basic(*spaces_of(env)), num_steps=8)
        for _ in range(2):
            trainer.train()
        rows = rollout_of(trainer).counted()
        assert not rows[:, 0].any()
        assert rows[:, 1:].all()
        found.append(weights(trainer))
    assert torch.equal(*found)


def test_action_masks_are_respected_through_wrappers():
    found = []
    for wrap in (lambda vec: vec, pufferlib.Wrapper):
        env = wrap(pufferlib.make("forage", num_envs=4, backend="serial", seed=3))
        trainer = PuffeRL(env=env, num_steps=32)
        trainer.train()
        trainer.evaluate()
        rollout = rollout_of(trainer)
        logp = rollout.head.log_prob(rollout.logits.flatten(0, 1), rollout.actions.flatten(0, 1))
        assert (logp > -50).all()  # nothing that was masked out has been done
        assert not rollout.masks.all()
        found.append((rollout.obs[0].clone(), rollout.masks.clone(), rollout.alive.clone()))
    assert all(torch.equal(*pair) for pair in zip(*found))


def test_rewards_are_not_clamped():
    trainer = echo_trainer(creator=lambda: Echo(pay=50.0))
    assert trainer.evaluate()["max_reward"] > 50
    assert rollout_of(trainer).rewards.max() == 50
    assert ppo.make_batch(trainer.trainer.learners[0]).returns.max() > 40


def test_seeds_are_used():
    """make(seed=777) resets env i with 777 + i; without one, the trainer's own seed does it."""
    made = []

    def creator():
        made.append(Echo())
        return made[-1]

    env = Serial(creator, num_envs=3, seed=777)
    PuffeRL(env=env, num_steps=2).evaluate()
    assert [one.seeds[0] for one in made] == [777, 778, 779]
    found = {}
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        trainer = echo_trainer(seed=seed)
        trainer.train()
        found.setdefault(seed, []).append(weights(trainer))
    assert torch.equal(*found[1])
    assert not torch.equal(found[1][0], found[2][0])


def test_custom_vectors_get_seeds_too():
    class Unseeded(Custom):
        def reset(self):
            return np.stack([env.reset() for env in self.envs])

    class Old:
        observation_space, action_space = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)
        seeds = ()

        def seed(self, seed):
            self.seeds = (*self.seeds, seed)

        def reset(self):
            return np.zeros(3, np.float32)

        def step(self, action):
            return np.zeros(3, np.float32), 0.0, False, False, {}

    env = Unseeded(Old, 2)
    PuffeRL(env=env, num_steps=2, seed=1).evaluate()
    assert env.envs[1].seeds[0] == env.envs[0].seeds[0] + 1


def native_trainer(recurrent=False):
    torch.manual_seed(6)
    env = pufferlib.make("cartpole", num_envs=8, backend="serial", seed=11)
    policy = models.Default(env, hidden_size=8)
    if recurrent:
        policy = LSTMWrapper(env, policy, hidden_size=8)
    return PuffeRL(env=env, policy=policy, num_steps=16, learning_rate=1e-2)


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_resume_is_exact(tmp_path, recurrent):
    whole = native_trainer(recurrent)
    for k in range(6):
        whole.learning_rate = 1e-2 / (k + 1)
        whole.train()
    half = native_trainer(recurrent)
    for k in range(3):
        half.learning_rate = 1e-2 / (k + 1)
        half.train()
    half.save_checkpoint(tmp_path / "half.pt")
    torch.manual_seed(99)
    again = native_trainer(recurrent)
    for parameter in again.policy.parameters():
        parameter.data.add_(1.0)
    again.load_checkpoint(tmp_path / "half.pt")
    assert (again.epoch, again.global_step, again.exact) == (3, 3 * 8 * 16, True)
    assert again.learning_rate == 1e-2 / 3
    for k in range(3, 6):
        again.learning_rate = 1e-2 / (k + 1)
        again.train()
    assert torch.equal(weights(whole), weights(again))


def test_a_resume_between_evaluate_and_train_is_exact(tmp_path):
    """The guide saves its best right after evaluate: the rollout that was not learned from is saved with it."""
    whole, again = native_trainer(True), native_trainer(True)
    whole.train()
    whole.evaluate()
    whole.save_checkpoint(tmp_path / "best.pt")
    again.load_checkpoint(tmp_path / "best.pt")
    for trainer in (whole, again):
        trainer.train()
        trainer.train()
    assert whole.global_step == again.global_step
    assert torch.equal(weights(whole), weights(again))


def test_truncations_that_were_not_learned_from_are_saved(tmp_path):
    """A Python env starts a new episode, but the collected rollout is learned from unchanged."""
    found = []
    trainer = echo_trainer(creator=echo_truncated, num_steps=8)
    trainer.evaluate()
    trainer.save_checkpoint(tmp_path / "x")
    trainer.train()
    found.append(weights(trainer))
    other = echo_trainer(creator=echo_truncated, num_steps=8)
    with pytest.warns(UserWarning, match="start new episodes"):
        other.load_checkpoint(tmp_path / "x")
    assert not other.exact
    assert len(rollout_of(other).truncations.added) > 0
    other.train()
    assert torch.equal(found[0], weights(other))


def test_a_checkpoint_replaces_the_one_at_its_path(tmp_path):
    trainer = native_trainer()
    for _ in range(2):
        trainer.train()
    trainer.save_checkpoint(tmp_path / "x.pt", metadata={"which": 2})
    early = native_trainer()
    early.train()
    early.save_checkpoint(tmp_path / "x.pt", metadata={"which": 1})  # fewer steps, but newer
    assert len([path for path in (tmp_path / "x.pt").iterdir() if path.is_dir()]) == 1
    assert trainer.load_checkpoint(str(tmp_path / "x.pt")) == {"which": 1}
    assert trainer.epoch == 1
    saved = next(path for path in (tmp_path / "x.pt").iterdir() if path.is_dir())
    shutil.copytree(saved, saved.with_name("9" * 12))  # as a kill before it was removed would leave it
    (saved.with_name("9" * 12) / "meta.json").write_text((saved / "meta.json").read_text().replace("which", "stale"))
    assert trainer.load_checkpoint(tmp_path / "x.pt") == {"which": 1}
    (tmp_path / "f").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        trainer.save_checkpoint(tmp_path / "f")
    with pytest.raises(ConfigError, match="written as JSON"):
        trainer.save_checkpoint(tmp_path / "y", metadata={"policy": trainer.policy})
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        trainer.load_checkpoint(tmp_path / "nowhere")
    files = [path.suffix for path in (tmp_path / "x.pt").rglob("*") if path.is_file()]
    assert set(files) == {".json", ".safetensors"}  # no pickle


# ---- checkpoints beside the user's own files ----


def test_saving_removes_only_what_it_wrote(tmp_path):
    path = tmp_path / "results"
    mine = path / "202401311200"  # a date, and twelve digits
    mine.mkdir(parents=True)
    (mine / "notes.txt").write_text("mine")
    trainer = native_trainer()
    saved = []
    for _ in range(3):
        trainer.train()
        trainer.save_checkpoint(path, metadata={"step": trainer.global_step})
        saved.append(path / f"{trainer.global_step:012d}")
        if len(saved) == 1:
            (saved[0] / "notes.txt").write_text("mine, too")  # beside the checkpoint's own files
    assert (mine / "notes.txt").read_text() == "mine"
    assert [entry.name for entry in saved[0].iterdir()] == ["notes.txt"]
    assert not saved[1].exists()
    assert saved[2].is_dir()
    assert trainer.load_checkpoint(path) == {"step": trainer.global_step}


def test_a_checkpoint_of_another_program_stays(tmp_path):
    """`shoal train` writes the same format into folders of the same names: those are not PuffeRL's to remove."""
    trainer = native_trainer()
    trainer.train()
    files = trainer.trainer.state()
    other = checkpoint.save(tmp_path, 7, files, trainer.trainer.counters(), keep=0)
    trainer.save_checkpoint(tmp_path)
    trainer.train()
    trainer.save_checkpoint(tmp_path)
    assert checkpoint.load(other)


def test_a_folder_in_the_way_of_a_checkpoint_is_left_alone(tmp_path):
    trainer = native_trainer()
    trainer.train()
    taken = tmp_path / f"{trainer.global_step:012d}"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="was not written by PuffeRL"):
        trainer.save_checkpoint(tmp_path)
    assert (taken / "notes.txt").read_text() == "mine"


# ---- get_action ----


def test_actions_are_drawn_from_one_stream():
    def actions(seed, count=20):
        trainer = echo_trainer(Judge(3), seed=seed)
        return [trainer.get_action(np.ones((8, 3), np.float32)).tolist() for _ in range(count)]

    drawn = actions(1)
    assert len({tuple(batch) for batch in drawn}) > 15
    assert {choice for batch in drawn for choice in batch} == {0, 1, 2}
    assert drawn == actions(1)
    assert drawn != actions(2)


def test_action_streams_outlive_updates_and_checkpoints(tmp_path):
    obs = np.ones((8, 3), np.float32)
    first, second = (echo_trainer(Judge(3), seed=4) for _ in range(2))
    for _ in range(2):
        first.get_action(obs)
    first.train()
    first.save_checkpoint(tmp_path / "x")
    with pytest.warns(UserWarning, match="start new episodes"):
        second.load_checkpoint(tmp_path / "x")
    third = echo_trainer(Judge(3), seed=4)
    third.train()
    next_actions = first.get_action(obs).tolist()
    assert next_actions == second.get_action(obs).tolist()
    assert next_actions != third.get_action(obs).tolist()  # an update does not rewind the stream


def test_actions_respect_masks():
    trainer = echo_trainer(Judge(3))
    obs, mask = np.ones((200, 3), np.float32), np.ones((200, 3), np.int8)
    mask[:, 1] = 0
    for given in ({"mask": mask}, {"mask": mask.astype(bool)}, {"infos": {"action_mask": mask}}):
        assert set(trainer.get_action(obs, **given).tolist()) == {0, 2}
    mask[:, 0] = 0
    assert set(trainer.get_action(obs, True, mask=mask).tolist()) == {2}
    with pytest.raises(ConfigError, match=r"mask has shape \(200, 2\), expected \(200, 3\)"):
        trainer.get_action(obs, mask=mask[:, :2])
    box = PuffeRL(env=Serial(Reach, num_envs=2), num_steps=4)
    with pytest.raises(ConfigError, match="no choices to mask"):
        box.get_action(np.zeros((2, 2)), mask=np.ones((2, 1)))


def test_actions_of_agents_that_differ():
    trainer = PuffeRL(env=Serial(UnlikeAgentsEnv, num_envs=3), num_steps=4)
    trainer.train()
    actions = trainer.get_action({"big": np.zeros((3, 4), np.float32), "small": np.zeros((3, 2), np.float32)})
    assert {name: len(batch) for name, batch in actions.items()} == {"big": 3, "small": 3}


# ---- Python envs start new episodes when a checkpoint is loaded ----


class Stamped(gymnasium.Env):
    """Observes (episode, step) and remembers the actions that it was given."""

    observation_space, action_space = spaces.Box(-1, 100, (2,), np.float32), spaces.Discrete(3)
    episode = 0

    def reset(self, seed=None, options=None):
        self.episode, self.steps = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.array([self.episode, self.steps], np.float32), 1.0, self.steps == 50, False, {}


@pytest.mark.parametrize("calls", [["train"], ["evaluate"], ["save", "train"]])
@pytest.mark.parametrize("policy", [Basic, Recurrent])
def test_a_loaded_rollout_does_not_join_two_episodes(tmp_path, calls, policy):
    options = {"creator": Stamped, "num_steps": 8}
    trainer = echo_trainer(policy, **options)
    trainer.evaluate()
    trainer.save_checkpoint(tmp_path / "x")
    again = echo_trainer(policy, **options)
    again.evaluate()  # its envs are in their first episode, 8 steps in
    with pytest.warns(UserWarning, match="start new episodes"):
        again.load_checkpoint(tmp_path / "x")
    rollout = rollout_of(again)
    assert rollout.obs[0][-1, :, 1].tolist() == [8.0] * 4  # what train learns from is what was collected
    for call in calls:
        if call == "save":
            again.save_checkpoint(tmp_path / "y")
        else:
            getattr(again, call)()
    if calls[-1] == "train":
        trainer.train()
        assert torch.equal(weights(trainer), weights(again))
        again.evaluate()
    assert rollout.obs[0][:, 0, 0].tolist() == [2.0] * 9  # all of the second episode of the env
    assert rollout.obs[0][:, 0, 1].tolist() == list(range(9))
    for part in rollout.starts:
        assert not part[0].any()  # which began without a memory of the first


def test_a_loaded_rollout_of_other_sizes_is_not_learned_from(tmp_path):
    trainer = echo_trainer(creator=Stamped)
    trainer.evaluate()
    trainer.save_checkpoint(tmp_path / "x")
    again = echo_trainer(creator=Stamped, num_envs=2)
    with pytest.warns(UserWarning, match="start new episodes"):
        again.load_checkpoint(tmp_path / "x")
    assert_finite(again.train())
    assert rollout_of(again).obs[0][:, 0, 1].tolist() == list(range(17))


def test_nothing_is_cast_for_cuda_on_a_cpu():
    class Watching(Basic):
        def forward(self, observations):
            assert not torch.is_autocast_enabled("cuda")
            assert not torch.is_autocast_enabled("cpu")
            assert observations.dtype == torch.float32
            return super().forward(observations)

    assert_finite(echo_trainer(Watching).train())


def test_importing_changes_nothing(tmp_path):
    code = (
        "import os, sys, threading; out = sys.stdout; import shoal.puffer as pufferlib;"
        "assert 'torch' not in sys.modules; assert sys.stdout is out; assert threading.active_count() == 1;"
        "assert os.listdir('.') == []; pufferlib.NoLogger(); assert 'torch' not in sys.modules;"
        "from shoal.puffer import PuffeRL; assert pufferlib.pytorch.layer_init;"
        "assert os.listdir('.') == []; assert sys.stdout is out; assert 'wandb' not in sys.modules"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(shoal.__file__).parent.parent)}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path, env=env)


# ---- ranks and devices ----


def test_several_ranks_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="WORLD_SIZE=4: training over several processes"):
        echo_trainer()


def test_only_rank_0_logs(monkeypatch):
    class Failing:
        def log(self, metrics, step):
            raise AssertionError("logged")

    opened = []
    monkeypatch.setattr(loggers.wandb_log, "check", lambda **options: opened.append(options))
    trainer = echo_trainer(logger=Failing())
    trainer.train()
    monkeypatch.setenv("RANK", "1")
    trainer.mean_and_log()
    assert trainer._is_logging
    loggers.WandbLogger(project="x").log({"a": 1.0}, 3)
    assert opened == []


def test_a_missing_gpu_is_reported(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU on this machine. Use device='cpu'"):
        echo_trainer(device="cuda")
    with pytest.raises(ConfigError, match=r"'cpux'\. Did you mean 'cpu'\?"):
        echo_trainer(device="cpux")


# ---- loggers ----


def test_a_logger_that_fails_never_stops_training(capsys):
    class Bad:
        calls = 0

        def log(self, metrics, step):
            self.calls += 1
            raise OSError("the disk is full")

        def close(self):
            raise OSError("still full")

    bad = Bad()
    trainer = echo_trainer(logger=bad)
    for _ in range(2):
        trainer.train()
        assert trainer.mean_and_log()["step"] > 0
    trainer.close()
    assert bad.calls == 1
    assert "Bad failed: OSError: the disk is full. It is switched off" in capsys.readouterr().err


def test_wandb_gets_what_is_logged(monkeypatch):
    logged = []

    class Fake:
        def log(self, record):
            logged.append(record)

        def close(self, summary):
            logged.append(summary)

    def fake_open(facts, **options):
        logged.append((facts.config, options))
        return Fake()

    monkeypatch.setattr(loggers.wandb_log, "check", lambda **options: None)
    monkeypatch.setattr(loggers.wandb_log, "open", fake_open)
    logger = pufferlib.WandbLogger(project="my_project", entity="my_team", name="run", config={"a": 1}, mode="offline")
    trainer = echo_trainer(logger=logger)
    trainer.train()
    record = trainer.mean_and_log()
    trainer.close()
    options = {"project": "my_project", "entity": "my_team", "name": "run", "mode": "offline"}
    assert logged == [({"a": 1}, options), {**record, "step": trainer.global_step}, {"status": "finished"}]


def test_neptune_is_gone():
    with pytest.raises(ConfigError, match="closed its service.*WandbLogger"):
        pufferlib.NeptuneLogger(project="team/project", name="x", api_token="y")


# ---- sizes and options ----


@pytest.mark.parametrize(
    ("given", "steps", "parts"),
    [
        ({}, 128, 4),
        ({"num_steps": 8}, 8, 4),
        ({"batch_size": 64}, 16, 4),
        ({"batch_size": 64, "num_steps": 16}, 16, 4),
        ({"batch_size": 64, "minibatch_size": 32}, 16, 2),
        ({"num_steps": 1, "minibatch_size": 4}, 1, 1),
    ],
)
def test_a_batch_is_the_steps_of_all_rows(given, steps, parts):
    options = echo_trainer(**{"num_steps": None, **given}).trainer.options.train
    assert (options.horizon, options.minibatches) == (steps, parts)


@pytest.mark.parametrize("minibatch_size", [None, 32])
def test_a_batch_may_hold_several_segments_of_every_row(minibatch_size):
    """PufferLib 3: batch_size is any number of segments of bptt_horizon steps."""
    trainer = echo_trainer(num_steps=None, batch_size=192, bptt_horizon=16, minibatch_size=minibatch_size)
    options = trainer.trainer.options.train
    assert (options.horizon, options.segment, options.minibatches) == (48, 16, 6 if minibatch_size else 4)
    trainer.evaluate()
    trainer.train()
    assert trainer.global_step == trainer.config["batch_size"] == 192


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"batch_size": 32768, "num_steps": 128}, "is not num_steps=128 of 4 rows, 512.*rollouts of 8192 steps"),
        (
            {"batch_size": 100, "bptt_horizon": 16},
            "multiple of bptt_horizon=16 steps of 4 rows, 64. Try batch_size=128",
        ),
        ({"batch_size": 32, "bptt_horizon": 16}, "multiple of bptt_horizon=16 steps of 4 rows, 64. Try batch_size=64"),
        ({"batch_size": 128, "bptt_horizon": 16, "minibatch_size": 8}, "multiple of bptt_horizon=16.*Try 16"),
        ({"bptt_horizon": 0}, "bptt_horizon=0 must be at least 1"),
        ({"batch_size": 66, "num_steps": None}, "not a multiple of the 4 rows of env. Try 64"),
        ({"batch_size": 2, "num_steps": None}, "not a multiple of the 4 rows of env. Try 4"),
        ({"minibatch_size": 33}, "does not divide the batch of 64. Try 32"),
        ({"minibatch_size": 128}, "does not divide the batch of 64. Try 64"),
        ({"num_steps": 0}, "num_steps=0 must be at least 1"),
        ({"batch_size": 6.5, "num_steps": None}, "6.5 is not a number of steps"),
        ({"learning_rat": 1.0}, "has no option 'learning_rat'. Did you mean 'learning_rate'"),
        ({"gamma": 2.0}, "gamma 2.0 is above 1"),
        ({"anneal_lr": True}, "needs total_timesteps"),
        ({"policy": 3}, "policy is a int"),
    ],
)
def test_wrong_options_are_reported_before_any_work(given, text):
    with pytest.raises(ConfigError, match=text):
        PuffeRL(**{"env": Serial(Echo, num_envs=4), "num_steps": 16, **given})


def test_a_policy_of_wrong_shapes_is_reported_before_any_work():
    env = Serial(Echo, num_envs=4)
    with pytest.raises(ConfigError, match=r"Basic failed on .*float32 \(2, 3\).*env.single_observation_space"):
        PuffeRL(env=env, policy=Basic(env.observation_space, env.single_action_space))  # the spaces of the batch
    with pytest.raises(ConfigError, match=r"logits have shape \(2, 5\), expected \(2, 3\)"):
        PuffeRL(env=env, policy=Basic(env.single_observation_space, spaces.Discrete(5)))
    with pytest.raises(ConfigError, match="no forward"):
        PuffeRL(env=env, policy=nn.Module())
    with pytest.raises(ConfigError, match=r"returned a tensor of shape \(2, 3\)"):
        PuffeRL(env=env, policy=nn.Linear(3, 3))
    box = Serial(Reach, num_envs=1)
    with pytest.raises(ConfigError, match=r"returns \(mean, std, value\)"):
        PuffeRL(env=box, policy=Basic(box.single_observation_space, spaces.Discrete(1)))


# ---- the guides' script ----


@pytest.fixture
def template():
    spec = importlib.util.spec_from_file_location("train_template", TEMPLATE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("env", ["gym-CartPole-v1", "puffer_breakout", "pendulum"])
def test_the_template_trains(template, tmp_path, capsys, env):
    words = ["--env-name", env, "--num-envs", "4", "--num-workers", "2", "--num-steps", "32", "--log-freq", "1"]
    words += ["--checkpoint-dir", str(tmp_path), "--num-iterations", "2", "--save-freq", "1", "--train.device", "cpu"]
    template.train(template.parse([*words, "--train.learning-rate", "1e-3", "--batch-size", "128"]))
    out = capsys.readouterr().out
    assert "iteration 2/2  reward" in out
    assert json.loads(next((tmp_path / "checkpoint_2.pt").glob("*/meta.json")).read_text())["step"] == 2 * 128
    if env == "puffer_breakout":
        more = ["--num-iterations", "3", "--resume", str(tmp_path / "final_model.pt")]
        template.train(template.parse([*words, *more]))
        assert "iteration 3/3" in capsys.readouterr().out


def test_the_templates_flags_mean_what_they_say(template):
    assert template.parse(["--compile", "False"]).compile is False
    assert template.parse(["--compile"]).compile is True
    assert template.parse(["--wandb", "true"]).wandb is True
    assert template.parse(["--env", "x"]).env_name == "x"
    with pytest.raises(SystemExit):
        template.parse(["--compile", "maybe"])


def test_the_template_as_a_command_says_what_to_change(template, tmp_path, monkeypatch, capsys):
    env = {**os.environ, "PYTHONPATH": str(TEMPLATE.parent.parent), "WORLD_SIZE": "2", "RANK": "0"}
    command = [str(TEMPLATE), "--env-name", "cartpole", "--num-envs", "4"]
    run = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stderr.startswith("error: WORLD_SIZE=2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(sys, "argv", command)
    assert template.main() == 2
    assert capsys.readouterr() == ("", "")  # rank 0 has said it
