"""cartpole and pendulum equal Gymnasium's CartPole-v1 and Pendulum-v1, step for step over whole episodes."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import shoal


def test_cartpole_equals_gymnasium():
    """Each of our episodes replayed by Gymnasium from the same start: same states, same end, same truncation."""
    count, lengths, terminated_seen, truncated_seen = 16, [], 0, 0
    vec = shoal.make("cartpole", count, seed=0)
    obs, _ = vec.reset()
    theirs = [gymnasium.make("CartPole-v1") for _ in range(count)]
    for env, start in zip(theirs, obs):
        env.reset(seed=0)
        env.unwrapped.state = start.astype(np.float64)
    rng = np.random.default_rng(0)
    for step in range(2500):
        # half of the envs are balanced well enough to reach the time limit, half are played at random
        balanced = (obs[:, 2] + 0.5 * obs[:, 3] + 0.05 * obs[:, 0] + 0.1 * obs[:, 1] > 0).astype(np.int64)
        actions = np.where(np.arange(count) < 8, balanced, rng.integers(0, 2, count))
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        for i, env in enumerate(theirs):
            expected, reward, term, trunc, _ = env.step(int(actions[i]))
            over = terminated[i] or truncated[i]
            got = infos["final_obs"][i] if over else obs[i]
            np.testing.assert_allclose(got, expected, atol=1e-5, err_msg=f"env {i}, step {step}")
            assert rewards[i] == reward
            assert (terminated[i], truncated[i]) == (term, trunc and not term)
            if over:
                lengths.append(int(infos["final_info"]["episode"]["l"][i]))
                terminated_seen += int(terminated[i])
                truncated_seen += int(truncated[i])
                env.reset(seed=0)
                env.unwrapped.state = obs[i].astype(np.float64)
            else:
                # Gymnasium carries float64: taking up our float32 state keeps rounding from adding up
                env.unwrapped.state = obs[i].astype(np.float64)
    assert terminated_seen > 100
    assert truncated_seen >= 8
    assert max(lengths) == 500


def test_cartpole_whole_episodes_without_help():
    """Without taking up our state at every step, a random episode's drift stays within 1e-5 to its very end."""
    vec = shoal.make("cartpole", 64, seed=3)
    obs, _ = vec.reset()
    theirs, running = [], np.ones(64, bool)
    for start in obs:
        env = gymnasium.make("CartPole-v1").unwrapped
        env.reset(seed=0)
        env.state = start.astype(np.float64)
        theirs.append(env)
    rng = np.random.default_rng(1)
    while running.any():
        actions = rng.integers(0, 2, 64)
        obs, _, terminated, _, infos = vec.step(actions)
        for i in np.flatnonzero(running):
            expected, _, term, _, _ = theirs[i].step(int(actions[i]))
            assert terminated[i] == term
            np.testing.assert_allclose(infos["final_obs"][i] if term else obs[i], expected, atol=1e-5)
        running &= ~terminated


def test_cartpole_spaces_equal_gymnasium():
    ours, theirs = shoal.make("cartpole"), gymnasium.make("CartPole-v1")
    np.testing.assert_allclose(ours.single_observation_space.high, theirs.observation_space.high)
    assert ours.single_action_space == theirs.action_space
    pendulum = gymnasium.make("Pendulum-v1")
    assert shoal.make("pendulum").single_action_space == pendulum.action_space
    assert shoal.make("pendulum").single_observation_space == pendulum.observation_space


def test_pendulum_equals_gymnasium():
    count = 16
    vec = shoal.make("pendulum", count, seed=0)
    obs, _ = vec.reset()
    theirs = [gymnasium.make("Pendulum-v1") for _ in range(count)]
    rng = np.random.default_rng(0)

    def take_up(env, i):
        # the angle is not in the observation: read it from our state, whose first column it is
        theta = vec.memory.arrays["state"][: 4 * count].view(np.float32)[i]
        env.unwrapped.state = np.array([theta, obs[i][2]], np.float64)

    for i, env in enumerate(theirs):
        env.reset(seed=0)
        take_up(env, i)
    for step in range(600):
        actions = rng.uniform(-2.5, 2.5, (count, 1)).astype(np.float32)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        assert not terminated.any()
        for i, env in enumerate(theirs):
            expected, reward, _, trunc, _ = env.step(actions[i])
            got = infos["final_obs"][i] if trunc else obs[i]
            np.testing.assert_allclose(got, expected, atol=1e-5, err_msg=f"env {i}, step {step}")
            assert rewards[i] == pytest.approx(reward, abs=2e-5)
            assert truncated[i] == trunc == ((step + 1) % 200 == 0)
            if trunc:
                env.reset(seed=0)
            take_up(env, i)
