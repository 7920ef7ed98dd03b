"""lander: every step against a slow twin in float64, conservation in free flight, legs, crashes, landings, wind."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal import config, registry

from .first_episodes import first_returns
from .lander_twin import STATE, Ship, pilot, states
from .vacuum_twin import Rng

NOTHING, LEFT, MAIN, RIGHT = range(4)
ENVS = ["lander", "lander_continuous"]


def params_of(vec):
    return {name: float(values[0]) for name, values in vec.get_params().items()}


def as_floats(actions):
    """Discrete actions as throttles that mean the same."""
    floats = np.stack([np.where(actions == MAIN, 1.0, -1.0), np.select([actions == LEFT, actions == RIGHT], [-1, 1])])
    return floats.T.astype(np.float32)


def set_ship(vec, env=0, **fields):
    """Places a ship by hand, above level ground at height 0."""
    s = states(vec)[env]
    s["ground"], s["slip"], s["touches"], s["is_still"] = 0, 0, 0, 0
    for name in "vx vy angle spin".split():
        s[name] = 0
    for name, value in fields.items():
        s[name] = value


def fly(vec, action, steps):
    """Steps all envs with one action; returns what the last step gave."""
    for _ in range(steps):
        result = vec.step(np.full(vec.num_envs, action))
    return result


# ---- against the twin ----


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("settings", [{}, {"preset": "windy", "friction": 0.1, "roughness": 1.5, "damping": 10.0}])
def test_every_step_equals_the_slow_twin(name, settings):
    """Starts, flights, touchdowns, crashes, landings and all randomness: the twin draws the same numbers."""
    count, rng = 6, np.random.default_rng(0)
    vec = shoal.make(name, count, seed=70, **settings)
    obs, _ = vec.reset()
    ours, twins = states(vec), [Ship(params_of(vec)) for _ in range(count)]
    streams = [Rng(70 + k) for k in range(count)]
    seen = {"crashed": 0, "landed": 0, "contact": 0}

    def compare_start(k):
        twins[k].start(streams[k])
        np.testing.assert_allclose(ours["ground"][k], [point.imag for point in twins[k].ground], atol=1e-5)
        assert complex(ours["vx"][k], ours["vy"][k]) == pytest.approx(twins[k].velocity, abs=1e-5)
        assert (ours["wind_at"][k], ours["turbulence_at"][k]) == (twins[k].wind_at, twins[k].turbulence_at)
        if k < 3:  # half of the ships are flown by the pilot, from near the ground: they land soon
            ours["y"][k], ours["vy"][k] = 1.5, 0
            ours["vx"][k] /= 4

    for k in range(count):
        compare_start(k)
    for step in range(150):
        actions = np.where(np.arange(count) < 3, pilot(obs), rng.integers(0, 4, count))
        actions = actions if name == "lander" else as_floats(actions) * rng.uniform(0.3, 1, (count, 2)).astype("f")
        for k in range(count):
            twins[k].take_up(ours[k])
        obs, rewards, terminated, truncated, _ = vec.step(actions)
        for k, twin in enumerate(twins):
            reward, over = twin.step(actions[k], streams[k])
            assert terminated[k] == over, f"env {k}, step {step}"
            assert rewards[k] == pytest.approx(reward, abs=0.03), f"env {k}, step {step}"
            seen["contact"] += any(twin.touches)
            if over:
                seen["landed" if reward > 0 else "crashed"] += 1
                compare_start(k)
                continue
            s = ours[k]
            got = [complex(s["x"], s["y"]), complex(s["vx"], s["vy"]), s["angle"], s["spin"], *s["slip"]]
            expected = [twin.place, twin.velocity, twin.angle, twin.spin, *twin.slip]
            np.testing.assert_allclose(got, expected, atol=2e-4, err_msg=f"env {k}, step {step}")
            assert s["touches"].tolist() == twin.touches
            assert s["is_still"] == twin.is_still
    assert not truncated.any()
    assert seen["crashed"] >= 2
    assert seen["contact"] >= 100
    assert settings or seen["landed"] >= 2


def test_shorter_steps_change_little():
    """A touchdown in 4 short steps and in 64: the legs' forces are resolved well enough."""
    vec = shoal.make("lander", 1, seed=0, noise=0.0)
    vec.reset()
    set_ship(vec, x=0.0, y=1.2, vx=0.5, vy=-2.0, angle=0.1)
    fine = Ship(params_of(vec), sub_steps=64)
    fine.take_up(states(vec)[0])
    for _ in range(40):
        fly(vec, NOTHING, 1)
        fine.step(NOTHING, Rng(0))
    s = states(vec)[0]
    assert complex(s["x"], s["y"]) == pytest.approx(fine.place, abs=0.01)
    assert s["angle"] == pytest.approx(fine.angle, abs=0.01)


# ---- conservation, engines ----


def test_free_flight_conserves_energy_and_momentum():
    """Without engines: energy, vx and spin keep their values; with them and no gravity, the impulse is F t."""
    vec = shoal.make("lander", 1, seed=0)
    vec.reset()
    set_ship(vec, x=-4.0, y=8.0, vx=3.0, vy=6.0, spin=2.0)
    s = states(vec)[0]

    def energy():
        return 2.5 * (float(s["vx"]) ** 2 + float(s["vy"]) ** 2) + 0.45 * float(s["spin"]) ** 2 + 50 * float(s["y"])

    before = energy()
    fly(vec, NOTHING, 60)  # 1.2 s
    assert s["y"] == pytest.approx(8 + 6 * 1.2 - 5 * 1.2**2, abs=1e-3)
    assert s["x"] == pytest.approx(-4 + 3 * 1.2, abs=1e-4)
    assert s["angle"] == pytest.approx(2.4, abs=1e-5)
    assert energy() == pytest.approx(before, rel=1e-5)


@pytest.mark.parametrize(
    ("action", "dvx", "dvy", "dspin"), [(MAIN, 0, 1.74, 0), (LEFT, -0.24, 0, 1), (RIGHT, 0.24, 0, -1)]
)
def test_an_engine_gives_its_impulse(action, dvx, dvy, dspin):
    """Momentum gained in a step is thrust times 0.02 s; a side engine's torque is thrust times its height."""
    vec = shoal.make("lander", 1, seed=0, noise=0.0, gravity=0.0)
    vec.reset()
    set_ship(vec, x=0.0, y=5.0)
    fly(vec, action, 1)
    s = states(vec)[0]
    np.testing.assert_allclose([5 * s["vx"], 5 * s["vy"]], [dvx, dvy], atol=1e-5)
    assert 0.9 * s["spin"] == pytest.approx(dspin * 12 * 0.02 * 0.46666667, abs=1e-5)
    set_ship(vec, x=0.0, y=5.0, angle=np.pi / 2)  # lying on its left side, up is to the left
    fly(vec, action, 1)
    np.testing.assert_allclose([5 * s["vx"], 5 * s["vy"]], [-dvy, dvx], atol=1e-5)


def test_engine_noise_has_its_size():
    vec = shoal.make("lander", 4096, seed=0, gravity=0.0, start_speed=0.0)
    vec.reset()
    fly(vec, MAIN, 1)
    s = states(vec)
    assert [s["vy"].min(), s["vy"].max()] == pytest.approx([0.348 / 2, 0.348 * 1.5], rel=0.01)
    assert [s["vx"].min(), s["vx"].max()] == pytest.approx([-0.348 / 4, 0.348 / 4], rel=0.01)
    assert (s["spin"] == 0).all()


def test_throttles_of_the_continuous_lander():
    """The main engine starts at half thrust above 0, the side engines at half thrust beyond 0.5."""
    main = np.array([-1, 0, 0.01, 0.5, 1, -1, -1, -1, -1], np.float32)
    side = np.array([0, 0, 0, 0, 0, 0.5, 0.75, -0.75, -1], np.float32)
    vec = shoal.make("lander_continuous", 9, seed=0, noise=0.0, gravity=0.0, start_speed=0.0)
    vec.reset()
    _, rewards, _, _, _ = vec.step(np.stack([main, side], axis=1))
    s = states(vec)
    np.testing.assert_allclose(s["vy"] / 0.348, [0, 0, 0.505, 0.75, 1, 0, 0, 0, 0], atol=1e-4)
    np.testing.assert_allclose(s["vx"] / 0.048, [0, 0, 0, 0, 0, 0, 0.75, -0.75, -1], atol=1e-4)


# ---- the ground ----


def test_a_ship_that_stands_still_has_landed():
    """It rests where the springs carry its weight; +100 after half a second of rest, 10 for each leg before."""
    vec = shoal.make("lander", 1, seed=0)
    vec.reset()
    set_ship(vec, x=1.0, y=0.66)
    total, steps, terminated = 0.0, 0, [False]
    s = states(vec)[0]
    while not terminated[0] and steps < 200:
        y = float(s["y"])
        _, rewards, terminated, _, infos = vec.step(np.array([NOTHING]))
        total, steps = total + float(rewards[0]), steps + 1
    assert rewards[0] == 100
    assert y == pytest.approx(0.65 - 5 * 10 / (2 * 400), abs=5e-3)
    assert steps > 25
    assert infos["final_obs"][0][6:].tolist() == [1, 1]
    stats = vec.drain_stats()
    assert (stats["landed"]["mean"], stats["on_pad"]["mean"], stats["crashed"]["mean"]) == (1, 1, 0)


@pytest.mark.parametrize(("speed", "crashes"), [(2.0, False), (3.5, False), (6.0, True)])
def test_legs_absorb_a_touchdown_up_to_their_strength(speed, crashes):
    vec = shoal.make("lander", 1, seed=0)
    vec.reset()
    set_ship(vec, x=0.0, y=0.7, vy=-speed)
    terminated = [False]
    lowest = 1.0
    for _ in range(120):
        _, rewards, terminated, _, _ = vec.step(np.array([NOTHING]))
        if terminated[0]:
            break
        lowest = min(lowest, float(states(vec)["y"][0]))
    assert terminated[0]
    assert rewards[0] == (-100 if crashes else 100)
    assert crashes or lowest < 0.57


def test_contact_takes_energy_and_never_gives_it():
    """A hard, tilted, sliding touchdown: kinetic, potential and spring energy together only fall."""
    vec = shoal.make("lander", 1, seed=0)
    vec.reset()
    set_ship(vec, x=-1.0, y=0.8, vx=1.5, vy=-1.5, angle=0.2)
    s, energies = states(vec)[0], []
    for _ in range(100):
        _, _, terminated, _, _ = vec.step(np.array([NOTHING]))
        if terminated[0]:
            break
        energy = 2.5 * (s["vx"] ** 2 + s["vy"] ** 2) + 0.45 * s["spin"] ** 2 + 50 * s["y"]
        for side, slip in zip((-0.7, 0.7), s["slip"]):
            foot = s["y"] + np.sin(s["angle"]) * side - 0.65 * np.cos(s["angle"])
            energy += 200 * (max(-foot, 0) ** 2 + slip**2)
        energies.append(float(energy))
    assert len(energies) > 60
    assert np.diff(energies).max() < 0.15  # of 40 to 56 J: a foot that touches down between short steps
    assert energies[-1] < energies[0] - 10


def test_friction_holds_a_ship_on_a_slope_up_to_its_angle():
    """With a coefficient of 0.5 a slope of 0.3 holds; one of 0.3 on ice does not."""
    vec = shoal.make("lander", 2, seed=0, friction=np.array([0.5, 0.05]))
    vec.reset()
    for env in range(2):
        set_ship(vec, env, x=-5.0, y=0.3 * 5 + 0.7, angle=np.arctan(-0.3))
        states(vec)["ground"][env] = -0.3 * np.linspace(-10, 10, 11)
    fly(vec, NOTHING, 60)
    x = states(vec)["x"]
    assert x[0] == pytest.approx(-5.0, abs=0.15)
    assert x[1] > -4.0


@pytest.mark.parametrize(
    ("fields", "ground"),
    [
        ({"x": 5.0, "y": 0.3}, None),  # the hull's bottom below the ground
        ({"x": 5.0, "y": 0.5, "angle": 3.1}, None),  # on its back
        ({"x": 0.0, "y": 1.3}, {5: 1.2}),  # a peak between the legs
        ({"x": 9.99, "y": 9.0, "vx": 5.0}, None),  # out at the side
        ({"x": 0.0, "y": 16.6, "vy": 9.0}, None),  # out at the top
    ],
)
def test_ways_to_crash(fields, ground):
    vec = shoal.make("lander", 1, seed=0)
    vec.reset()
    set_ship(vec, **fields)
    for point, height in (ground or {}).items():
        states(vec)["ground"][0][point] = height
    _, rewards, terminated, _, _ = vec.step(np.array([NOTHING]))
    assert terminated[0]
    assert rewards[0] == -100


def test_wind_blows_only_in_flight():
    vec = shoal.make("lander", 2, seed=0, wind=15.0, turbulence=1.5, gravity=0.0, noise=0.0)
    vec.reset()
    set_ship(vec, 0, x=0.0, y=5.0, wind_at=50, turbulence_at=-50)
    set_ship(vec, 1, x=0.0, y=0.649, wind_at=50, turbulence_at=-50, touches=1)
    fly(vec, NOTHING, 1)
    s, gust = states(vec), np.tanh(np.sin(1.0) + np.sin(np.pi / 2))
    assert s["vx"][0] == pytest.approx(0.02 * 15 * gust / 5, rel=1e-4)
    assert s["spin"][0] == pytest.approx(-0.02 * 1.5 * gust / 0.9, rel=1e-4)
    assert abs(s["vx"][1]) < 1e-3


def test_the_pad_is_level_and_the_ground_is_new_in_every_episode():
    vec = shoal.make("lander", 64, seed=0)
    vec.reset()
    ground = states(vec)["ground"]
    assert STATE.itemsize * 64 == vec.memory.arrays["state"].nbytes
    assert (ground[:, 4:7] == 0).all()
    assert np.unique(ground[:, 0]).size == 64
    assert 1.5 < np.abs(ground).max() < 3.4
    assert (states(shoal.make("lander", 4, seed=0, roughness=0.0))["ground"] == 0).all()


# ---- scores ----


def test_the_pilot_scores_what_the_toml_says():
    score = config.toml.loads(registry.find("lander").with_suffix(".toml").read_text())["score"]
    vec = shoal.make("lander", 512, seed=0)
    assert first_returns(vec, pilot).mean() == pytest.approx(score["scripted"], abs=4)
    assert vec.drain_stats()["on_pad"]["mean"] > 0.9
    continuous = shoal.make("lander_continuous", 512, seed=0)
    assert first_returns(continuous, lambda obs: as_floats(pilot(obs))).mean() == pytest.approx(
        score["scripted"], abs=4
    )
