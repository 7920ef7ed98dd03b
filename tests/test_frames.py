"""Stacked frames that are stored once: the results of whole observations, bit for bit, in a quarter of the memory."""

from __future__ import annotations

import pickle

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import shoal
from shoal.algos import frames
from shoal.algos.frames import FlatObs, StackedObs
from shoal.errors import BadOutput
from shoal.integrations.frames import Stack
from shoal.spec import Stacked
from shoal.train import Trainer, options_for

SIZE = 40


class Screens(gymnasium.Env):
    """Random screens; episodes of 1 to 9 steps that end, or are truncated after 6."""

    def __init__(self, stack: int = 4, channels: int = 1):
        self._stack = Stack(stack, (channels, SIZE, SIZE))
        self.observation_space = self._stack.space
        self.action_space = spaces.Discrete(3)

    def _frame(self):
        return self.np_random.integers(0, 256, (self._stack.channels, SIZE, SIZE), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tick, self.end = 0, int(self.np_random.integers(1, 10))
        return self._stack.fill(self._frame()), {}

    def step(self, action):
        self.tick += 1
        over = self.tick == self.end
        return self._stack.push(self._frame()), float(action), over, self.tick == 6 and not over, {}


class Pictures(gymnasium.Env):
    """Colour pictures without a stack of their own: `wrap` stacks their channels, along the last axis."""

    observation_space = spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tick = 0
        return self._look(), {}

    def _look(self):
        return self.np_random.integers(0, 256, (SIZE, SIZE, 3), np.uint8)

    def step(self, action):
        self.tick += 1
        return self._look(), float(action), self.np_random.random() < 0.2, self.tick == 7, {}


def trained(env, algo, *, once, monkeypatch, iterations=4, wrap=(), restarts=False, **train):
    """The weights after a few iterations, and the trainer's learner."""
    with monkeypatch.context() as patch:
        if not once:
            patch.setattr(frames, "SMALLEST", 10**9)
        options = options_for(
            env,
            {
                "algo": algo,
                "device": "cpu",
                "wrap": list(wrap),
                "vec": {"num_envs": 4, "backend": "serial"},
                "train": {"total_steps": 10**6, **train},
                "nn": {"hidden": 16},
                "eval": {"episodes": 0},
            },
        )
        trainer = Trainer(env, options)
        learner = trainer.learners[0]
        for _ in range(iterations):
            trainer.iterate()
        if restarts:
            learner.restart_episodes()
            trainer.collector.start(seed=5)
            for _ in range(iterations):
                trainer.iterate()
        trainer.close()
        return learner


RUNS = {
    "ppo": {"horizon": 8, "epochs": 1, "minibatches": 2},
    "pqn": {"horizon": 8, "epochs": 1, "minibatches": 2},
    "dqn": {"train_frequency": 4, "replay_size": 48, "replay_start": 16, "batch_size": 8, "n_step": 3},
}


@pytest.mark.parametrize("algo", RUNS)
@pytest.mark.parametrize(("env", "wrap"), [(Screens, ()), (Pictures, ("stack=4",))], ids=["first_axis", "last_axis"])
def test_weights_equal_those_of_whole_observations(algo, env, wrap, monkeypatch):
    iterations = 8 if algo == "dqn" else 3  # the replay's rings of 12 places are written twice
    runs = [
        trained(env, algo, once=once, monkeypatch=monkeypatch, iterations=iterations, wrap=wrap, **RUNS[algo])
        for once in (True, False)
    ]
    assert isinstance(runs[0].rollout.obs[0], StackedObs)
    assert isinstance(runs[1].rollout.obs[0], torch.Tensor)
    assert torch.equal(runs[0].weights, runs[1].weights)
    for t in range(runs[0].rollout.horizon + 1):
        assert torch.equal(runs[0].rollout.obs[0][t], runs[1].rollout.obs[0][t])


def test_priorities_sample_the_same(monkeypatch):
    """With priorities torch samples, not C."""
    run = {**RUNS["dqn"], "priority": 0.6}
    once, whole = (
        trained(Screens, "dqn", once=once, monkeypatch=monkeypatch, iterations=8, **run) for once in (True, False)
    )
    assert torch.equal(once.weights, whole.weights)
    index = torch.arange(once.replay.places)
    assert torch.equal(once.replay.obs[0][index[: once.replay.capacity]], whole.replay.obs[0][: once.replay.capacity])


def test_memory_is_a_quarter(monkeypatch):
    sizes = []
    for once in (True, False):
        run = {**RUNS["ppo"], "horizon": 128}
        rollout = trained(Screens, "ppo", once=once, monkeypatch=monkeypatch, iterations=0, **run).rollout
        run = {**RUNS["dqn"], "replay_size": 4000}
        replay = trained(Screens, "dqn", once=once, monkeypatch=monkeypatch, iterations=0, **run).replay
        sizes.append((rollout.nbytes, replay.nbytes))
    assert sizes[0][0] < 0.28 * sizes[1][0]  # the current observations are whole: 4 / 129 of them more
    assert sizes[0][1] < 0.26 * sizes[1][1]


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_runs_whose_envs_start_anew(algo, monkeypatch):
    """As in a resumed run: episodes are cut off, and the envs' first observations follow no step."""
    weights = [
        trained(Screens, algo, once=once, monkeypatch=monkeypatch, restarts=True, **RUNS[algo]).weights
        for once in (True, False)
    ]
    assert torch.equal(*weights)


def test_observations_that_no_rollout_has_seen(monkeypatch):
    """Restored envs are in the middle of episodes: all frames of their observations are taken, also into a replay."""
    learner = trained(Screens, "dqn", once=True, monkeypatch=monkeypatch, iterations=0, **RUNS["dqn"])
    obs, replay = learner.rollout.obs[0], learner.replay
    given = torch.randint(0, 256, obs.now.shape, dtype=torch.uint8)
    learner.rollout.dones.fill_(True)  # of another rollout
    obs.writer(obs.horizon - 1, slice(0, 4)).whole(given.numpy())
    learner.rollout.begin(None)
    learner.rollout.dones.zero_()
    assert torch.equal(obs[0], given)
    replay.store(learner.rollout)
    first = replay._places(replay.heads - obs.horizon)
    assert torch.equal(replay.obs[0][first], given)


def test_gather_respects_the_start_of_episodes():
    """By hand: frames 0 .. 9, an episode ends with step 3."""
    space = Stacked(np.zeros((3, 1, 1), np.uint8), np.full((3, 1, 1), 255, np.uint8), 3)
    leaf = shoal.layout.Layout(space).leaves[0]
    assert (leaf.stack, leaf.axis) == (3, 0)
    dones = torch.zeros((6, 1), dtype=torch.bool)
    obs = StackedObs(leaf, dones, torch.zeros)
    obs.frames[:, 0, 0, 0, 0] = torch.arange(9, dtype=torch.uint8)
    dones[3] = True
    seen = [obs[t].flatten().tolist() for t in range(7)]
    assert seen == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [6, 6, 6], [6, 6, 7], [6, 7, 8]]
    flat = FlatObs(obs)
    assert flat[torch.tensor([5, 0])].flatten().tolist() == [6, 6, 7, 0, 1, 2]
    assert torch.equal(flat[:2], obs[:2].flatten(0, 1))
    obs.begin(None)  # the next rollout starts with the last observation
    dones.zero_()
    assert obs[0].flatten().tolist() == [6, 7, 8]


def test_frames_that_do_not_move_are_an_error():
    class Odd(Screens):
        def step(self, action):
            obs, *rest = super().step(action)
            return obs ^ np.uint8(1), *rest

    options = options_for(
        Odd, {"vec": {"num_envs": 2, "backend": "serial"}, "train": RUNS["ppo"], "device": "cpu", "nn": {"hidden": 16}}
    )
    trainer = Trainer(Odd, options)
    with pytest.raises(BadOutput, match="holds 4 frames which move by one place in each step, but they did not"):
        trainer.iterate()
    trainer.close()


def test_noise_ends_the_promise_of_the_space():
    """Noise changes every frame anew in each step: the space is then a plain Box."""
    space = shoal.make(Screens, 1, backend="serial", wrap={"obs_noise": 0.1}).single_observation_space
    assert not isinstance(space, Stacked)
    space = shoal.make(Pictures, 1, backend="serial", wrap={"stack": 2}).single_observation_space
    other = pickle.loads(pickle.dumps(space))  # as it comes from a worker process
    assert (other.num_frames, other.frames_axis) == (space.num_frames, space.frames_axis) == (2, 2)


def test_the_next_rollout_can_be_kept_apart(monkeypatch):
    """As puffer's trainer does, which restores a rollout that it has not learned from after its envs started anew."""
    from shoal.puffer.saving import copy_back, episode_starts

    learner = trained(Screens, "ppo", once=True, monkeypatch=monkeypatch, iterations=1, **RUNS["ppo"])
    obs = learner.rollout.obs[0]
    saved = [part.clone() for part in learner.rollout.tensors()]
    given = torch.randint(0, 256, obs.now.shape, dtype=torch.uint8)
    obs.writer(obs.horizon - 1, slice(0, 4)).whole(given.numpy())
    starts = episode_starts([learner])
    for part, old in zip(learner.rollout.tensors(), saved):
        part.copy_(old)
    copy_back(starts)
    learner.rollout.begin(None)
    learner.rollout.dones.zero_()
    assert torch.equal(obs[0], given)
    assert torch.equal(obs.now, given)
