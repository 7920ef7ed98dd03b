"""drone: its motion against a twin of another method, its game against a slow twin, conservation, hovering, senses."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal import config, registry
from shoal.errors import ShoalError

from .drone_twin import DRONE, Body, Hall, matrix, pilot, rodrigues, states
from .first_episodes import first_returns
from .vacuum_twin import Rng

VACUUM = {"gravity": 0.0, "drag": 0.0, "spin_drag": 0.0, "thrust_ratio": 0.0, "hall": 50.0, "hall_height": 50.0}


def params_of(vec):
    return {name: float(values[0]) for name, values in vec.get_params().items()}


def set_drone(vec, env=0, drone=0, **fields):
    """A drone at rest and level in the middle of the hall, but for the fields given."""
    s = states(vec)[env, drone]
    s["at"], s["speed"], s["turn"], s["spin"], s["is_out"] = [0, 0, 3], 0, [1, 0, 0, 0], 0, 0
    for name, value in fields.items():
        s[name] = value


def hovering(vec):
    return np.zeros((vec.num_envs * states(vec).shape[1], 4), np.float32)


# ---- motion ----


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mass": 1.5, "arm": 0.3, "inertia_xy": 0.03, "inertia_z": 0.02, "rotor_drag": 0.05, "lag": 0.01, "drag": 0.8},
    ],
)
def test_flight_equals_a_twin_of_another_method(settings):
    """A step from any attitude, at up to 15 rad/s, against 40 short steps with rotation matrices."""
    count, rng = 60, np.random.default_rng(0)
    vec = shoal.make("drone", count, seed=0, drones=1, **settings)
    vec.reset()
    s = states(vec)[:, 0]
    turns = rng.normal(size=(count, 4))
    s["turn"] = turns / np.linalg.norm(turns, axis=1, keepdims=True)
    s["spin"], s["speed"] = rng.uniform(-15, 15, (count, 3)), rng.uniform(-6, 6, (count, 3))
    s["thrust"] = rng.uniform(0, 3.5, (count, 4))
    bodies, actions = [Body(params_of(vec), d.copy()) for d in s], rng.uniform(-1, 1, (count, 4)).astype(np.float32)
    vec.step(actions)
    for k, body in enumerate(bodies):
        body.fly(actions[k])
        for name, atol in (("at", 1e-4), ("speed", 1e-3), ("spin", 3e-3), ("thrust", 1e-5)):
            np.testing.assert_allclose(s[name][k], getattr(body, name), atol=atol, err_msg=f"{name} of drone {k}")
        np.testing.assert_allclose(matrix(s["turn"][k]), body.axes, atol=2e-4)


def test_spin_without_torque_conserves_energy_and_angular_momentum():
    """A tumbling drone in a vacuum, 10 s: Euler's equations turn its axis about, but no energy and no momentum."""
    vec = shoal.make("drone", 1, seed=0, drones=1, **VACUUM)
    vec.reset()
    set_drone(vec, spin=[4.0, 2.0, 5.0], speed=[0.5, 0.2, 0.3], at=[0, 0, 20], thrust=0)
    s, inertia = states(vec)[0, 0], np.array([0.007, 0.007, 0.012])

    def conserved():
        spin = s["spin"].astype(float)
        momentum = matrix(s["turn"]) @ (inertia * spin)
        return np.array([spin @ (inertia * spin) / 2, *momentum, *s["speed"]])

    before, first_spin = conserved(), s["spin"].copy()
    for _ in range(500):
        vec.step(hovering(vec))
    np.testing.assert_allclose(conserved(), before, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(s["at"], [5, 2, 23], atol=1e-3)
    assert np.linalg.norm(s["spin"] - first_spin) > 1  # the axis of rotation wanders


def test_free_fall_conserves_energy():
    vec = shoal.make("drone", 1, seed=0, drones=1, **{**VACUUM, "gravity": 9.81})
    vec.reset()
    set_drone(vec, speed=[1, -2, 8], at=[0, 0, 20], thrust=0)
    s = states(vec)[0, 0]
    for _ in range(100):
        vec.step(hovering(vec))
    np.testing.assert_allclose(s["at"], [2, -4, 20 + 16 - 9.81 * 2], atol=1e-3)
    assert 9.81 * s["at"][2] + (s["speed"] ** 2).sum() / 2 == pytest.approx(9.81 * 20 + 69 / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("action", "axis"),
    [([1, 1, -1, -1], [1, 0, 0]), ([-1, 1, 1, -1], [0, 1, 0]), ([1, -1, 1, -1], [0, 0, 1]), ([1, 1, 1, 1], None)],
)
def test_rotors_turn_the_drone_about_its_axes(action, axis):
    """Left against right rolls, rear against front pitches, one diagonal against the other yaws, all together climb."""
    vec = shoal.make("drone", 1, seed=0, drones=1)
    vec.reset()
    set_drone(vec)
    vec.step(np.array([action], np.float32))
    s = states(vec)[0, 0]
    if axis is None:
        np.testing.assert_allclose(s["spin"], 0, atol=1e-5)
        assert s["speed"][2] > 0.03
    else:
        assert s["spin"] @ np.array(axis) > 0.01
        np.testing.assert_allclose(s["spin"] * (1 - np.array(axis)), 0, atol=1e-5)


def test_the_rotors_lag():
    """After one time constant a rotor has made 63 % of the change that was asked for."""
    vec = shoal.make("drone", 1, seed=0, drones=1, lag=0.1)
    vec.reset()
    first = states(vec)["thrust"][0, 0, 0]
    for _ in range(5):
        vec.step(np.ones((1, 4), np.float32))
    most = 0.716 * 9.81 / 2
    assert (states(vec)["thrust"][0, 0, 0] - first) / (most - first) == pytest.approx(1 - np.exp(-1), rel=1e-4)


def test_a_scripted_pilot_hovers_at_its_waypoint():
    """From rest and tilted, to within 2 mm, for as long as it is asked to."""
    vec = shoal.make("drone", 16, seed=3, drones=1, goal_radius=0.0, start_tilt=0.5)
    obs, _ = vec.reset()
    for _ in range(400):
        obs, _, terminated, _, _ = vec.step(pilot(obs))
        assert not terminated.any()
    s = states(vec)[:, 0]
    assert np.linalg.norm(s["at"] - s["goals"][:, 0], axis=1).max() < 0.002
    assert np.abs(s["speed"]).max() < 0.002


# ---- the game ----


@pytest.mark.parametrize(
    "settings", [{}, {"drones": 6, "hall": 2.0, "hall_height": 4.0}, {"collide": 0, "goal_radius": 1.0}]
)
def test_the_game_equals_the_slow_twin(settings):
    """Starts, waypoints, rewards, walls and collisions through many episodes, with the same random numbers."""
    count, rng = 3, np.random.default_rng(0)
    vec = shoal.make("drone", count, seed=40, **settings)
    obs, _ = vec.reset()
    drones, seen = states(vec).shape[1], {"waypoint": 0, "out": 0, "episode": 0}
    halls = [Hall(params_of(vec), Rng(40 + k)) for k in range(count)]

    def compare_start(k):
        for d, (place, attitude, goals) in zip(states(vec)[k], halls[k].start(drones)):
            np.testing.assert_allclose(d["at"], place, atol=1e-5)
            np.testing.assert_allclose(matrix(d["turn"]), attitude, atol=1e-5)
            np.testing.assert_allclose(d["goals"], goals, atol=1e-5)

    for k in range(count):
        compare_start(k)
    for step in range(260):
        skilled = np.arange(count * drones) % drones > 0  # the first drone of each hall flies at random
        actions = np.where(skilled[:, None], pilot(obs), rng.uniform(-1, 1, (count * drones, 4))).astype(np.float32)
        before = states(vec).copy()
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        after, rewards = states(vec), rewards.reshape(count, drones)
        for k, hall in enumerate(halls):
            ends = terminated.reshape(count, drones)[k]
            is_over = (ends | (before[k]["is_out"] != 0)).all()
            if is_over:  # the state is that of the next episode: who flew last is moved by the twin
                moved = before[k].copy()
                for d, action in zip(moved, actions.reshape(count, drones, 4)[k]):
                    body = Body(hall.p, d)
                    body.fly(action)
                    d["at"] = body.at
            else:
                moved = after[k]
            expected, lost, goals = hall.move(before[k], moved)
            np.testing.assert_allclose(rewards[k], expected, atol=1e-4, err_msg=f"hall {k}, step {step}")
            assert ends.tolist() == lost, f"hall {k}, step {step}"
            seen["waypoint"] += int((expected > 0.5).sum())
            seen["out"] += sum(lost)
            if is_over:
                seen["episode"] += 1
                compare_start(k)
                continue
            for d, goal in zip(after[k], goals):
                if goal is not None:
                    np.testing.assert_allclose(d["goals"], goal, atol=1e-5)
    assert not truncated.any()
    assert seen["out"] >= 3
    assert seen["waypoint"] >= 5
    if "drones" in settings:
        assert seen["out"] >= 10


def test_drones_that_touch_are_out_together_and_others_fly_on():
    vec = shoal.make("drone", 2, seed=0, collide=np.array([1, 0]))
    vec.reset()
    for env in range(2):
        for drone, place in enumerate([(0, 0, 3), (0.4, 0, 3), (3, 3, 3), (-3, -3, 3)]):
            set_drone(vec, env, drone, at=place)
    _, rewards, terminated, _, _ = vec.step(hovering(vec))
    assert terminated.tolist() == [True, True, False, False] + [False] * 4
    assert (rewards[:2] < -0.9).all()
    assert (rewards[2:] > -0.1).all()
    stats = states(vec)["is_out"]
    assert stats.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]
    where = states(vec)["at"][0, 0].copy()
    _, rewards, terminated, _, _ = vec.step(hovering(vec))
    assert (states(vec)["at"][0, 0] == where).all()  # who is out stays
    assert rewards[0] == 0
    assert not terminated[:2].any()


@pytest.mark.parametrize("place", [(5.0, 0, 3), (-5.01, 0, 3), (0, 5.2, 3), (0, -5.0, 3), (0, 0, -0.01), (0, 0, 6.01)])
def test_walls_floor_and_ceiling(place):
    vec = shoal.make("drone", 1, seed=0, drones=1)
    vec.reset()
    set_drone(vec, at=place)
    _, rewards, terminated, _, _ = vec.step(hovering(vec))
    assert terminated[0]
    assert rewards[0] == pytest.approx(-1, abs=0.05)


# ---- what a drone sees ----


def test_observations_are_in_the_frame_of_the_drone():
    """A quarter turn to the left and a roll: what is where is worked out with a rotation matrix."""
    vec = shoal.make("drone", 1, seed=0)
    vec.reset()
    turn = np.array([np.cos(np.pi / 4) * np.cos(0.1), np.cos(np.pi / 4) * np.sin(0.1), np.sin(np.pi / 4) * np.sin(0.1)])
    turn = [*turn, np.sin(np.pi / 4) * np.cos(0.1)]  # yaw of 90 degrees, then a roll of 0.2 rad about the new x
    np.testing.assert_allclose(matrix(np.array(turn)), rodrigues([0, 0, np.pi / 2]) @ rodrigues([0.2, 0, 0]), atol=1e-9)
    goals = [[1, 2, 3], [-2, 1, 4]]
    set_drone(vec, 0, 0, at=[0, 0, 2], turn=turn, spin=[1, 2, 3], speed=[1, 0, -1], thrust=[0, 1, 2, 3], goals=goals)
    set_drone(vec, 0, 1, at=[0, 1, 2], speed=[0, 0.5, 0])
    set_drone(vec, 0, 2, at=[0, 0.5, 2], is_out=1)
    set_drone(vec, 0, 3, at=[3, 3, 3])
    before = states(vec)[0].copy()
    obs = vec.step(hovering(vec))[0][0]
    s = states(vec)[0]
    axes = matrix(s[0]["turn"])
    np.testing.assert_allclose(obs[0:3], axes.T @ (goals[0] - s[0]["at"]) / 5, atol=1e-5)
    np.testing.assert_allclose(obs[3:6], axes.T @ (goals[1] - s[0]["at"]) / 5, atol=1e-5)
    np.testing.assert_allclose(obs[6:9], axes.T @ s[0]["speed"] / 5, atol=1e-5)
    np.testing.assert_allclose(obs[9:12], axes[2], atol=1e-5)
    np.testing.assert_allclose(obs[12:15], s[0]["spin"] / 10, atol=1e-6)
    np.testing.assert_allclose(obs[15:19], s[0]["thrust"] / (0.716 * 9.81 / 2), atol=1e-6)
    way, apart = s[1]["at"] - s[0]["at"], np.linalg.norm(s[1]["at"] - s[0]["at"])
    near = 1 - apart / 2
    np.testing.assert_allclose(obs[19:22], axes.T @ way / apart * near, atol=1e-5)
    np.testing.assert_allclose(obs[22:25], axes.T @ (s[1]["speed"] - s[0]["speed"]) / 5 * near, atol=1e-5)
    assert obs[25] == pytest.approx(s[0]["at"][2] / 6)
    assert obs[0] > 0.35  # the waypoint is ahead: (1, 2) in the hall is (2, -1) for a drone that faces along y
    assert before["at"][2].tolist() == s["at"][2].tolist()
    set_drone(vec, 0, 1, at=[0, 3, 2])
    obs = vec.step(hovering(vec))[0]
    assert (obs[0][19:25] == 0).all()  # nobody is near: the drone that is out does not count


def test_the_state_is_what_the_twin_reads():
    vec = shoal.make("drone", 3, seed=0, drones=5)
    assert vec.memory.arrays["state"].nbytes == 15 * DRONE.itemsize
    with pytest.raises(ShoalError, match="drones=17 must be in 1 .. 16"):
        shoal.make("drone", 1, drones=17)


def test_the_pilot_scores_what_the_toml_says():
    score = config.toml.loads(registry.find("drone").with_suffix(".toml").read_text())["score"]
    vec = shoal.make("drone", 128, seed=0)
    assert first_returns(vec, pilot).mean() == pytest.approx(score["scripted"], abs=0.8)
    alone = shoal.make("drone", 64, seed=0, collide=0)
    assert first_returns(alone, pilot).mean() == pytest.approx(18.9, abs=0.4)
