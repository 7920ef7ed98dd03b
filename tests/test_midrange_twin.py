"""midrange against a slow twin in double precision: ranges of the original, whole games in both modes, observations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import shoal

from .midrange_twin import FAITHFUL, FAST, Aircraft, Body, Game, Rules, fly, reach, seen

ASPECTS = np.radians([0.0, 45.0, 90.0, 135.0, 180.0])
# km, both aircraft at 300 m/s, launch on boresight: the ranges of the original and of mode fast
RANGES = {
    ("original", "straight"): [73.8, 34.9, 17.4, 12.7, 12.2],
    ("original", "turns away"): [16.9, 13.1, 11.5, 12.1, 12.2],
    ("fast", "straight"): [73.8, 28.7, 18.5, 13.7, 12.2],
    ("fast", "turns away"): [17.3, 15.3, 13.8, 12.9, 12.3],
}


def test_the_twin_has_the_ranges_of_the_original():
    """300 m nearer than the range a missile hits, 300 m farther it misses, at every aspect."""
    ranges = 1000 * np.array([RANGES["original", target] for target in ("straight", "turns away")])
    launches = np.stack([ranges - 300, ranges + 300])
    hits = fly(launches, ASPECTS, np.array([False, True])[None, :, None], faithful=True, dt=1 / 60)
    assert hits[0].all()
    assert not hits[1].any()


@pytest.mark.parametrize("target", ["straight", "turns away"])
def test_the_ranges_of_mode_fast(target):
    """Computed anew, with steps of 0.2 s: they do not depend on the step."""
    ranges = reach(ASPECTS, target == "turns away", faithful=False, dt=0.2)
    assert ranges / 1000 == pytest.approx(RANGES["fast", target], abs=0.3)


def test_the_original_reaches_less_far_off_boresight():
    """Head-on no-escape ranges of launches 45, 90 and 135 degrees off: 11.9 km, 6.0 km, none."""
    launches = np.array([[11600.0, 5700.0, 1000.0], [12200.0, 6300.0, 3000.0]])
    hits = fly(launches, 0.0, True, True, 1 / 60, off_boresight=np.radians([45.0, 90.0, 135.0]))
    assert hits.tolist() == [[True, True, False], [False, False, False]]


STEP_RANGES = {  # km by the length of a physics step, head-on, the target turns away: the original's, and mode fast's
    1 / 15: (14.2, 17.3),
    0.2: (6.2, 17.3),
}


@pytest.mark.parametrize("dt", STEP_RANGES)
def test_long_steps_shorten_the_originals_missiles_only(dt):
    for km, is_original in zip(STEP_RANGES[dt], (True, False)):
        hits = fly(np.array([1000 * km - 300, 1000 * km + 300]), 0.0, True, is_original, dt)
        assert hits.tolist() == [True, False]


# ---- whole games ----

MODES = {
    "fast": (FAST, {}),
    "continuous": (FAST, {}),
    "slow decisions": (dataclasses.replace(FAST, substeps=20), {"time_scale": 2.0}),
    "faithful": (
        dataclasses.replace(FAITHFUL, substeps=6),
        {
            "mode": "faithful", "channels": 6, "time_scale": 0.1, "cooldown": 0.0, "reward_win": 500.0,
            "reward_lose": -500.0, "reward_draw": -50.0, "reward_shot": 0.0, "reward_alive": 6.0,
        },
    ),
}  # fmt: skip


def start_of(obs, rules: Rules) -> Game:
    """The game that side 0 sees, in a frame in which it is at the origin and flies along x."""
    distance, bearing = 50e3 * obs[7], np.arctan2(obs[8], obs[9])
    own = Body(0.0, 0.0, 0.0, 500.0 * obs[0])
    place = distance * np.cos(bearing), distance * np.sin(bearing)
    enemy = Body(*place, np.arctan2(obs[10], obs[11]), 500.0 * obs[12])
    return Game(rules, [Aircraft(own), Aircraft(enemy)])


def held_controls(rng, old, share):
    """New rudders and throttles for a share of the rows, the others keep theirs; a trigger is pulled at random."""
    rudders, throttles = rng.uniform(-1.5, 1.5, len(old)).clip(-1, 1), rng.uniform(0.3, 1, len(old))
    new = np.stack([rudders, throttles, np.zeros(len(old))], axis=1).astype(np.float32)
    controls = np.where(rng.random((len(old), 1)) < share, new, old)
    controls[:, 2] = rng.random(len(old)) < share
    return controls


def as_actions(controls, env):
    """What an env takes, and the controls that this means."""
    if env == "midrange_continuous":
        return controls, controls
    rudder, fire = np.rint(controls[:, 0]) + 1, controls[:, 2]
    return np.stack([rudder, fire], axis=1).astype(int), np.stack([rudder - 1, np.ones(len(fire)), fire], axis=1)


@pytest.mark.parametrize("mode", MODES)
def test_games_equal_the_twins(mode):
    """Starts within the range of missiles, so that games have launches, misses, hits and ends; every number seen."""
    rules, params = MODES[mode]
    num_envs, seconds = 6, 50.0
    decision_s = rules.dt * rules.substeps
    env = "midrange_continuous" if mode == "continuous" else "midrange"
    vec = shoal.make(env, num_envs, seed=3, start_min=6.0, start_max=22.0, start_angle=1.0, **params)
    obs, _ = vec.reset(seed=3)
    games = [start_of(np.float64(obs[2 * k]), rules) for k in range(num_envs)]
    rng, held = np.random.default_rng(5), np.tile(np.float32([0, 1, 0]), (vec.num_rows, 1))
    launches = ends = 0
    for _ in range(round(seconds / decision_s)):
        held = held_controls(rng, held, min(0.2 * decision_s, 0.4))
        actions, controls = as_actions(held, env)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        assert not truncated.any()
        for k, game in enumerate(games):
            if game.over:
                continue
            before = sum(side.ammo for side in game.sides)
            earned = game.step([(rudder, throttle, fire > 0) for rudder, throttle, fire in controls[2 * k : 2 * k + 2]])
            launches += before - sum(side.ammo for side in game.sides)
            rows = slice(2 * k, 2 * k + 2)
            assert terminated[rows].tolist() == [game.over] * 2
            a_moment = 3.1 * rules.alive  # a faithful missile may hit some steps earlier or later: see weights_of
            assert rewards[rows] == pytest.approx(earned, rel=1e-5, abs=1e-5 + a_moment)
            shown = infos["final_obs"][rows] if game.over else obs[rows]
            for side in range(2 if not (game.over and rules.faithful) else 0):
                compare(game, side, shown[side])
            ends += game.over
        if all(game.over for game in games):
            break
    assert launches > num_envs
    assert ends >= num_envs // 3, "games end within a minute"


def compare(game: Game, side: int, shown) -> None:
    """All 39 numbers, to float32's accuracy after so many steps."""
    wanted = game.observe(side)
    error = weights_of(game, side, wanted) * np.abs(shown[:39] - wanted)
    worst = int(np.argmax(error))
    assert error[worst] < 2e-4, f"number {worst}: {shown[worst]} and the twin's {wanted[worst]} at {game.time:.2f} s"
    assert not shown[39:].any()


def weights_of(game: Game, side: int, wanted):
    """How well each number is defined: bearings of what is near, and the time to what hardly closes, are not.

    The original's guidance is a switch, nearly: it saturates at 0.9 degrees/s. A missile that passes its target turns
    hard, a step earlier or later, and is another missile from then on.
    """
    weights = np.ones(len(wanted))
    weights[[8, 9, 13]] = min(50e3 * wanted[7] / 3e3, 1.0) ** 2
    groups = zip((15, 22, 29, 34), (7, 7, 5, 5), game.nearest_missiles(1 - side) + game.nearest_missiles(side))
    for first, size, missile in groups:
        if missile is None:
            continue
        distance = 30e3 * wanted[first + 1]
        weights[first + size - 1] = 0.02 if distance > 500 else 0.0
        weights[first + 2 : first + size - 1] = min(distance / 3e3, 1.0) ** 2
        if game.rules.faithful and missile.nearest < 2e3:
            weights[first + 1 : first + size] = 0.0
    return weights


def test_the_twin_sees_what_a_pilot_sees():
    """By hand: an enemy 10 km to the left that flies toward us."""
    own, enemy = Body(0.0, 0.0, 0.0, 300.0), Body(0.0, 10e3, -np.pi / 2, 400.0)
    distance, bearing, closing = seen(own, enemy)
    assert (distance, bearing, closing) == pytest.approx((10e3, np.pi / 2, 400.0))
