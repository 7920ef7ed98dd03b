"""flappy: every rule against a slow twin, the edges of a gap, and a scripted player."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError
from shoal.train import options_for

from .vacuum_twin import Rng

F = np.float32
DEFAULTS = {"gap": 100, "spacing": 144, "pace": 4, "gravity": 1, "flap": 9, "fastest": 10, "max_steps": 3600}


class Flappy:
    """The pipes are a list of [left side, upper edge of the gap] that moves; the bird stays at 57 px."""

    def __init__(self, params: dict[str, Any], seed: int) -> None:
        self.params, self.rng = {**DEFAULTS, **params}, Rng(seed)
        self.reset()

    def draw(self) -> F:
        low, high = F(0.2) * F(404), max(F(0.8) * F(404) - F(self.params["gap"]), F(0.2) * F(404))
        return F(low + F(high - low) * F((self.rng.int(2**32) >> 8) * 2.0**-24))

    def reset(self) -> None:
        self.y, self.speed, self.tick, self.total = F(190), F(0), 0, 0
        self.gaps = [self.draw() for _ in range(3)]
        self.right = F(288 + 52 - 57)  # of the pipes ahead, from the bird's left side
        self.flaps = 0

    def step(self, action: int) -> dict[str, Any]:
        p, new_gap = {name: F(value) for name, value in self.params.items()}, self.draw()
        self.speed = -p["flap"] if action else min(self.speed + p["gravity"], p["fastest"])
        y = self.y + self.speed
        if y < 0:
            y = self.speed = F(0)
        self.y = min(y, F(380))
        self.right -= p["pace"]
        reward = 0
        if self.right <= 0:
            reward = 1
            self.gaps = [*self.gaps[1:], new_gap]
            self.right += p["spacing"]
        is_between = self.right - F(52) < F(34)
        crashes = is_between and (self.y < self.gaps[0] or self.y + F(24) > self.gaps[0] + p["gap"])
        self.tick += 1
        self.total += reward
        self.flaps += action
        shown: dict[str, Any] = {"reward": reward, "terminated": bool(crashes or y >= 380)}
        shown["truncated"] = not shown["terminated"] and self.tick == self.params["max_steps"]
        if shown["terminated"] or shown["truncated"]:
            shown["final"] = {"return": self.total, "length": self.tick, "flaps": self.flaps, "crashes": int(crashes)}
            shown["final_obs"] = self.observe()
            self.reset()
        shown["obs"] = self.observe()
        return shown

    def observe(self) -> np.ndarray:
        gap, middle = F(self.params["gap"]), self.y + F(12)
        numbers = [F(1) - F(2) * self.y / F(380), F(-0.1) * self.speed, self.right / F(200)]
        numbers += [(middle - upper - F(0.5) * gap) / F(200) for upper in self.gaps]
        numbers += [gap / F(200), F(self.params["pace"]) / F(10)]
        return np.clip(np.array(numbers, np.float32), -1, 1)


def play_scripted(obs: np.ndarray) -> np.ndarray:
    """Flaps as late as the lower pipe allows."""
    fall = np.minimum(1 - 10 * obs[:, 1], 10)
    return (200 * obs[:, 3] + fall > 36).astype(np.int64)


def test_every_rule_equals_the_slow_twin():
    params = {
        "gap": [100, 200, 120, 240, 60, 100],
        "spacing": [144, 200, 100, 90, 333, 144],
        "pace": [4, 3, 7, 5.5, 2, 4],
        "gravity": [1, 0.5, 2, 1, 0.3, 1],
        "flap": [9, 6, 12, 9, 5, 40],
        "fastest": [10, 8, 20, 5, 10, 10],
        "max_steps": [3600, 0, 100, 40, 0, 3600],
    }
    vec = shoal.make("flappy", 6, **params)
    obs, _ = vec.reset(seed=3)
    twins = [Flappy({name: values[k] for name, values in params.items()}, seed=3 + k) for k in range(6)]
    assert (obs == np.stack([twin.observe() for twin in twins])).all()
    generator, ended = np.random.default_rng(0), []
    for step in range(1500):
        wild = generator.random(6) < np.array([0, 0.05, 0, 0.1, 0.02, 0.3])
        actions = np.where(wild, generator.integers(0, 2, 6), play_scripted(obs))
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        shown = [twin.step(int(action)) for twin, action in zip(twins, actions)]
        assert rewards.tolist() == [one["reward"] for one in shown], step
        assert terminated.tolist() == [one["terminated"] for one in shown], step
        assert truncated.tolist() == [one["truncated"] for one in shown], step
        assert (obs == np.stack([one["obs"] for one in shown])).all(), step
        for k, one in enumerate(shown):
            if "final" in one:
                assert (infos["final_obs"][k] == one["final_obs"]).all()
                ended.append(one["final"])
    stats = vec.drain_stats()
    assert stats["episodes"] == len(ended)
    assert sum(one["return"] for one in ended) > 20
    for name in ended[0]:
        assert stats[name]["mean"] == pytest.approx(np.mean([one[name] for one in ended])), name


def test_gliding_ends_on_the_ground_and_flapping_at_the_first_pipe():
    """190 px above the ground: 10 frames of gravity make 55 px, then 10 px a frame. The top of the sky is no end."""
    vec = shoal.make("flappy", 2)
    vec.reset(seed=0)
    lengths = {}
    for step in range(1, 80):
        _, _, terminated, _, _ = vec.step(np.array([0, 1]))
        for k in np.flatnonzero(terminated):
            lengths.setdefault(int(k), step)
    assert lengths == {0: 24, 1: 50}  # 283 - 4 n < 86 px from the 50th frame on


def test_a_scripted_player_passes_dozens():
    vec = shoal.make("flappy", 100, seed=0)
    obs, _ = vec.reset()
    for _ in range(3600):
        obs, *_ = vec.step(play_scripted(obs))
    stats = vec.drain_stats()
    assert 40 < stats["return"]["mean"] < 70
    assert stats["return"]["max"] == 99  # as many as there are in 3,600 frames


def test_random_play_passes_pipes_at_the_start_of_training_and_evaluations_have_the_games_own_flap():
    """Without a reward there is nothing to learn from: with a flap of 9, random play stays at the top of the sky."""
    flap = options_for("flappy", {"device": "cpu"}).env["flap"]
    generator, passed = np.random.default_rng(0), {}
    for strength in (flap.at(0.0), 9.0):
        vec = shoal.make("flappy", 500, seed=0, flap=strength)
        vec.reset()
        for _ in range(300):
            vec.step(generator.integers(0, 2, 500))
        passed[strength] = vec.drain_stats()["passed"]["mean"]
    assert passed[flap.at(0.0)] > 0.1
    assert passed[9.0] == 0
    assert flap.at(1.0) == DEFAULTS["flap"]


@pytest.mark.parametrize("options", [{"gap": 10}, {"spacing": 50}, {"pace": 0}, {"gravity": -1}, {"flap": 100}])
def test_bad_params_are_named(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        shoal.make("flappy", 1, **options)
