"""minatar_*: every rule against a slow twin, and the twin against recordings of the package `minatar`."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError

from . import minatar_record
from .minatar_players import PLAYERS, score
from .minatar_twin import TWINS, UP, cells_of, follow

GAMES = sorted(TWINS)
PARAMS = {  # one value for each env; None is the default
    "asterix": {
        "ramping": [1, 0, 1, 1, 1, 0, 1, 1],
        "spawn_interval": [10, 10, 3, 1, 10, 2, 2, 10],
        "move_interval": [5, 5, 5, 9, 1, 2, 3, 5],
        "ramp_interval": [100, 100, 7, 100, 20, 100, 2, 1],
        "gold": [1 / 3, 1 / 3, 1, 1, 0.5, 0.8, 0.9, 0],
    },
    "breakout": {},
    "freeway": {
        "frames": [2500, 300, 90, 10, 2500, 2500, 60, 2500],
        "chicken_interval": [3, 1, 1, 2, 1, 3, 2, 1],
        "slowest": [5, 5, 1, 2, 3, 4, 5, 5],
    },
    "invaders": {
        "ramping": [1, 0, 1, 1, 0, 1, 1, 1],
        "move_interval": [12, 12, 3, 1, 30, 7, 12, 12],
        "shot_interval": [10, 10, 1, 1000, 30, 10, 1000, 1000],
        "cooldown": [5, 5, 1, 2, 1, 1, 1, 2],
    },
    "seaquest": {
        "ramping": [1, 0, 1, 1, 0, 1, 1, 1],
        "oxygen": [200, 30, 10, 200, 333, 100, 200, 400],
        "enemy_interval": [20, 20, 5, 10, 3, 60, 100, 8],
        "diver_interval": [30, 3, 1, 2, 3, 4, 1, 2],
        "move_interval": [5, 5, 1, 3, 1, 9, 5, 2],
        "shot_interval": [10, 10, 3, 1, 2, 5, 10, 7],
        "cooldown": [5, 5, 1, 1, 2, 7, 5, 1],
        "submarines": [1 / 3, 1 / 3, 1, 0.5, 0.9, 0, 1 / 3, 0.5],
    },
}
WEIGHTS = {  # of the actions: those that make rare things happen
    "asterix": [2, 1, 1, 1, 1, 1],
    "breakout": [1, 1, 0.1, 1, 0.1, 0.1],
    "freeway": [1, 0.1, 8, 0.1, 1, 0.1],
    "invaders": [1, 2, 0.1, 2, 0.1, 6],
    "seaquest": [0.5, 1, 0.4, 1, 0.8, 3],
}


def play_both(game: str, steps: int, seed: int) -> dict[str, float]:
    """An env and a twin for each of eight settings, compared in every step. Returns the sums of the twins' stats."""
    params = {"sticky": [0.1, 0, 0.5, 0.1, 0, 0.1, 0, 0.25], "max_steps": [10000, 0, 100, 0, 0, 50, 0, 0]}
    params |= PARAMS[game]
    vec = shoal.make(f"minatar_{game}", 8, **params)
    obs, _ = vec.reset(seed=seed)
    twins = [TWINS[game]({name: values[k] for name, values in params.items()}, seed=seed + k) for k in range(8)]
    assert (obs == np.stack([twin.array() for twin in twins])).all()
    generator, ended = np.random.default_rng(seed), []
    weights = np.array(WEIGHTS[game]) / sum(WEIGHTS[game])
    for step in range(steps):
        goes_up = game == "seaquest" and step // 40 % 2 == 1  # most of the time it fills up with divers, then surfaces
        actions = np.full(8, UP) if goes_up and step % 4 else generator.choice(6, 8, p=weights)
        if game == "breakout":  # else the ball is lost too soon to see much
            meets = generator.random(8) < 0.9
            actions = np.array([PLAYERS[game](obs[k]) if meets[k] else actions[k] for k in range(8)])
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        shown = [twin.step(int(action)) for twin, action in zip(twins, actions)]
        where = f"step {step}, actions {actions.tolist()}"
        assert rewards.tolist() == [one["reward"] for one in shown], where
        assert terminated.tolist() == [one["terminated"] for one in shown], where
        assert truncated.tolist() == [one["truncated"] for one in shown], where
        assert (obs == np.stack([one["obs"] for one in shown])).all(), where
        for k, one in enumerate(shown):
            if "final" in one:
                assert (infos["final_obs"][k] == one["final_obs"]).all(), where
                ended.append(one["final"])
    stats = vec.drain_stats()
    vec.close()
    assert stats["episodes"] == len(ended)
    for name in ended[0]:
        assert stats[name]["mean"] == pytest.approx(np.mean([one[name] for one in ended])), name
    return {name: sum(one[name] for one in ended) for name in ended[0]}


@pytest.mark.parametrize("game", GAMES)
def test_every_rule_equals_the_slow_twin(game):
    """Odd params, sticky actions, time limits: observations, rewards, ends and stats are the same."""
    sums = play_both(game, 700, seed=5)
    missing = {name for name, value in sums.items() if value == 0}
    assert not missing, "random play did not reach everything that the stats count"


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_long_play_equals_the_slow_twin(game):
    for seed in (100, 200):
        play_both(game, 4000, seed)


# ---- the twins against the package `minatar` ----


def test_twins_explain_every_recorded_frame():
    """Observations, rewards and ends of the package: some event (what enters, which speeds) leads to each of them."""
    frames, returns, levels, crews = dict.fromkeys(GAMES, 0), dict.fromkeys(GAMES, 0), [], set()
    for game, episode, ramping, is_over, actions, rewards, planes in minatar_record.replay():
        twins = [minatar_record.first_twin(game, planes[0], ramping)]
        assert twins[0].see() == cells_of(planes[0])
        for frame, (action, reward) in enumerate(zip(actions.tolist(), rewards.tolist())):
            ends = is_over and frame == len(actions) - 1
            twins = follow(twins, action, reward, ends, cells_of(planes[frame + 1]))
            assert twins, f"{game}, episode {episode}, frame {frame}"
            crews.add(getattr(twins[0], "divers", 0))
        frames[game] += len(actions)
        returns[game] += int(rewards.sum())
        levels += [(game, getattr(twins[0], name)) for name in ("ramps", "walls", "waves") if hasattr(twins[0], name)]
    assert min(frames.values()) > 1000
    assert min(returns.values()) > 10
    assert crews >= set(range(-1, 7))  # -1: it has surfaced with six
    assert {level for level in levels if level[1] > 1} >= {("breakout", 3), ("asterix", 6), ("invaders", 2)}


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_twins_explain_the_package_live(game):
    pytest.importorskip("minatar", reason="GPL-3: not a dependency of Shoal, not even for tests")
    for episode in range(50, 55):
        minatar_record.record(game, episode, 300)  # it raises where no twin is left


def test_a_wrong_rule_does_not_explain_the_recording():
    """The replay can fail: an alien that shoots a frame later is noticed."""
    game, _, ramping, _, actions, rewards, planes = next(one for one in minatar_record.replay() if one[0] == "invaders")
    twin = minatar_record.first_twin(game, planes[0], ramping)
    twin.until_shot += 1
    twins = [twin]
    for frame in range(40):
        twins = follow(twins, int(actions[frame]), int(rewards[frame]), False, cells_of(planes[frame + 1]))
    assert not twins


# ---- scores and options ----


@pytest.mark.parametrize("game", GAMES)
def test_scripted_players_beat_random_play(game):
    """By far, already in the first 500 frames."""
    by_chance, _ = score(game, None, 64, 500)
    by_script, _ = score(game, PLAYERS[game], 4, 500)
    assert by_script > 4 * by_chance + 2


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("asterix", {"sticky": 1.5}),
        ("asterix", {"spawn_interval": 0}),
        ("breakout", {"sticky": -0.1}),
        ("freeway", {"slowest": 6}),
        ("invaders", {"ramping": 2}),
        ("seaquest", {"oxygen": 5}),
        ("seaquest", {"submarines": 2}),
    ],
)
def test_bad_params_are_named(game, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        shoal.make(f"minatar_{game}", 1, **options)


@pytest.mark.parametrize("sticky", [0.0, 0.5, 1.0])
def test_actions_stick_as_often_as_they_should(sticky):
    """The paddle is told to go left, then right. Before the first action, the last one was 0."""
    vec = shoal.make("minatar_breakout", 4000, sticky=sticky)
    vec.reset(seed=0)
    vec.step(np.full(4000, 1))
    obs, *_ = vec.step(np.full(4000, 3))
    paddle = obs[:, 9, :, 0].argmax(1) - 4
    shares = [np.mean(paddle == value) for value in (0, -2, 1)]
    one_sticks = sticky * (1 - sticky)  # the second: left, left; or the first: stay, right
    assert shares == pytest.approx([1 - 2 * one_sticks, one_sticks, one_sticks], abs=0.03)
