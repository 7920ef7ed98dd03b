"""cartpole, pendulum, acrobot and both mountain cars equal Gymnasium's envs, step for step over whole episodes."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import shoal
from shoal import config, registry

from .first_episodes import first_returns


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
    for step in range(600):
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


# ---- acrobot and the mountain cars: our params beside attributes of Gymnasium's env ----


def column(vec, k):
    """A field of the state, for every env: columns are float32, one after the other, padded to 64 bytes."""
    start = k * 16 * -(-vec.num_envs // 16)
    return vec.memory.arrays["state"].view(np.float32)[start : start + vec.num_envs]


def replay(vec, theirs, fields, choose, steps, atol):
    """Plays our env and Gymnasium's side by side; theirs takes up our state, its first `fields`, after every step.

    Returns how many episodes ended and how many were cut.
    """
    seen, obs = {"terminated": 0, "truncated": 0}, vec.reset()[0].copy()
    for env in theirs:
        env.reset(seed=0)

    def take_up(i):
        theirs[i].unwrapped.state = np.array([column(vec, k)[i] for k in range(fields)], np.float64)

    for i in range(len(theirs)):
        take_up(i)
    for step in range(steps):
        actions = choose(obs)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        obs = obs.copy()
        for i, env in enumerate(theirs):
            expected, reward, term, trunc, _ = env.step(actions[i])
            over = bool(terminated[i] or truncated[i])
            got = infos["final_obs"][i] if over else obs[i]
            np.testing.assert_allclose(got, expected, atol=atol, err_msg=f"env {i}, step {step}")
            assert rewards[i] == pytest.approx(reward, abs=1e-5)
            assert (terminated[i], truncated[i]) == (term, trunc and not term), f"env {i}, step {step}"
            if over:
                seen["terminated"] += int(terminated[i])
                seen["truncated"] += int(truncated[i])
                env.reset(seed=0)
            take_up(i)
    return seen


def pump(obs):
    """Swings the acrobot up: the motor pushes against the way in which the first link moves."""
    return np.where(obs[:, 4] > 0, 0, 2)


@pytest.mark.parametrize(("dynamics", "steps"), [("book", 505), ("nips", 100)])
def test_acrobot_equals_gymnasium(dynamics, steps):
    rng = np.random.default_rng(0)
    vec = shoal.make("acrobot", 4, seed=0, dynamics=dynamics)
    theirs = [gymnasium.make("Acrobot-v1") for _ in range(4)]
    for env in theirs:
        env.unwrapped.book_or_nips = dynamics

    def choose(obs):  # three are pumped up, one is played at random until the time limit
        return np.where(np.arange(4) < 3, pump(obs), rng.integers(0, 3, 4))

    seen = replay(vec, theirs, 4, choose, steps, 3e-5)
    if dynamics == "book":
        assert seen["terminated"] > 12
        assert seen["truncated"] == 1


def test_acrobot_wraps_angles_and_clips_velocities_like_gymnasium():
    """From states that play rarely reaches: fast, and with angles near pi. One step each."""
    count, rng = 400, np.random.default_rng(2)
    vec = shoal.make("acrobot", count, seed=0)
    vec.reset()
    bounds = np.array([np.pi, np.pi, 4 * np.pi, 9 * np.pi])
    states = (rng.uniform(-1, 1, (count, 4)) * bounds).astype(np.float32)
    for k in range(4):
        column(vec, k)[:] = states[:, k]
    actions, env = rng.integers(0, 3, count), gymnasium.make("Acrobot-v1").unwrapped
    obs, _, terminated, _, infos = vec.step(actions)
    clipped = 0
    for i in range(count):
        env.reset(seed=0)
        env.state = states[i].astype(np.float64)
        expected, _, term, _, _ = env.step(actions[i])
        got = infos["final_obs"][i] if terminated[i] else obs[i]
        # Runge-Kutta over 0.2 s of so fast a motion multiplies rounding by about a thousand
        np.testing.assert_allclose(got, expected, atol=2e-3, err_msg=f"state {states[i]}")
        assert terminated[i] == term
        clipped += int(abs(expected[4]) == np.float32(4 * np.pi)) + int(abs(expected[5]) == np.float32(9 * np.pi))
    assert clipped > 10
    assert 20 < terminated.sum() < 380
    assert np.abs(column(vec, 0)).max() <= np.float32(np.pi)


def test_acrobot_params():
    """Every param is that of Gymnasium's attribute of the same meaning; torque noise changes the torque alone."""
    env = gymnasium.make("Acrobot-v1")
    names = ["LINK_LENGTH_1", "LINK_MASS_1", "LINK_MASS_2", "LINK_COM_POS_1", "LINK_COM_POS_2", "LINK_MOI", "dt"]
    ours = ["length_1", "mass_1", "mass_2", "center_1", "center_2", "inertia", "dt"]
    for name, our_name, value in zip(names, ours, [0.7, 1.4, 0.8, 0.3, 0.6, 1.3, 0.1]):
        vec = shoal.make("acrobot", 1, seed=5, goal=1.7, **{our_name: value})
        env = gymnasium.make("Acrobot-v1")
        setattr(env.unwrapped, name, value)
        replay(vec, [env], 4, pump, 20, 3e-5)
    noisy = shoal.make("acrobot", 256, seed=0, torque_noise=0.5)
    noisy.reset()
    noisy.step(np.full(256, 2))
    torque = column(noisy, 4)
    assert 0.5 <= torque.min() < 0.55
    assert 1.45 < torque.max() <= 1.5


def rock(obs):
    """Drives a mountain car the way it rolls, which reaches the flag."""
    return np.where(obs[:, 1] >= 0, 2, 0)


def test_mountain_car_equals_gymnasium():
    rng = np.random.default_rng(0)
    vec = shoal.make("mountain_car", 6, seed=0)

    def choose(obs):  # four reach the flag, one pushes left into the wall, one is played at random
        return np.where(np.arange(6) < 4, rock(obs), np.where(np.arange(6) < 5, 0, rng.integers(0, 3, 6)))

    seen = replay(vec, [gymnasium.make("MountainCar-v0") for _ in range(6)], 2, choose, 410, 1e-6)
    assert seen["terminated"] >= 12
    assert seen["truncated"] == 4


def test_mountain_car_continuous_equals_gymnasium():
    rng = np.random.default_rng(0)
    vec = shoal.make("mountain_car_continuous", 3, seed=0)

    def choose(obs):  # two reach the flag, one is played at random until the time limit
        effort = rng.uniform(0.5, 1.0, 3) * np.where(obs[:, 1] >= 0, 1, -1)
        return np.where(np.arange(3) < 2, effort, rng.uniform(-1, 1, 3))[:, None].astype(np.float32)

    seen = replay(vec, [gymnasium.make("MountainCarContinuous-v0") for _ in range(3)], 2, choose, 1005, 1e-6)
    assert seen["terminated"] > 10
    assert seen["truncated"] == 1


@pytest.mark.parametrize("name", ["mountain_car", "mountain_car_continuous"])
def test_the_wall_stops_the_car_and_the_flag_asks_for_its_speed(name):
    """Both ends of the road, and goal_velocity, from states set by hand."""
    vec = shoal.make(name, 3, seed=0, goal_velocity=0.03)
    vec.reset()
    column(vec, 0)[:] = [-1.19, 0.44, 0.44]  # at the wall; below the flag, slow; below the flag, fast
    column(vec, 1)[:] = [-0.06, 0.02, 0.069]
    idle = np.ones(3, np.int64) if name == "mountain_car" else np.zeros((3, 1), np.float32)
    obs, _, terminated, _, _ = vec.step(idle)
    assert obs[0].tolist() == [np.float32(-1.2), 0.0]
    assert terminated.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("acrobot", "Acrobot-v1"),
        ("mountain_car", "MountainCar-v0"),
        ("mountain_car_continuous", "MountainCarContinuous-v0"),
    ],
)
def test_spaces_starts_and_time_limits_equal_gymnasium(name, theirs):
    vec, env = shoal.make(name, 512, seed=0), gymnasium.make(theirs)
    assert vec.single_action_space == env.action_space
    np.testing.assert_allclose(vec.single_observation_space.high, env.observation_space.high)
    np.testing.assert_allclose(vec.single_observation_space.low, env.observation_space.low)
    assert vec.get_params()["max_steps"][0] == env.spec.max_episode_steps
    obs, _ = vec.reset()
    starts = np.array([env.reset(seed=k)[0] for k in range(512)])
    np.testing.assert_allclose(obs.mean(0), starts.mean(0), atol=0.01)
    np.testing.assert_allclose(obs.min(0), starts.min(0), atol=0.01)
    np.testing.assert_allclose(obs.max(0), starts.max(0), atol=0.01)


def rock_gently(obs):
    """The same with a throttle."""
    return np.where(obs[:, 1:] >= 0, 0.7, -0.7).astype(np.float32)


SCRIPTED = {"acrobot": pump, "mountain_car": rock, "mountain_car_continuous": rock_gently}


@pytest.mark.parametrize("name", SCRIPTED)
def test_scripted_players_score_what_the_toml_says(name):
    score = config.toml.loads(registry.find(name).with_suffix(".toml").read_text())["score"]
    returns = first_returns(shoal.make(name, 1024, seed=0), SCRIPTED[name])
    assert returns.mean() == pytest.approx(score["scripted"], rel=0.01)
