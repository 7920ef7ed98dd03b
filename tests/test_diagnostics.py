"""bandit, chain, stochastic, delayed: each step against a slow twin, and the known values of known policies."""

from __future__ import annotations

import math

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError, SnapshotError

from .forging import forged, records_of
from .vacuum_twin import Rng

F = np.float32


class Twin:
    """One env, with the numbers that the header draws. A subclass has `start`, `act` and `observe`."""

    limit = 0

    def __init__(self, seed, **params):
        self.rng = Rng(seed)
        for name, value in params.items():
            setattr(self, name, value)
        self.reset()

    def u32(self):
        return self.rng.int(2**32)

    def uniform(self):
        return F(self.u32() >> 8) / F(2**24)

    def reset(self):
        self.tick = 0
        self.start()

    def step(self, action):
        reward, is_over = self.act(action)
        self.tick += 1
        is_late = not is_over and self.tick == self.limit
        if is_over or is_late:
            self.reset()
        return F(reward), is_over, is_late, self.observe()


def compare(env, twin, steps, actions, **params):
    """Plays random actions on envs and twins; all that is shown is the same. Returns how many episodes ended."""
    vec = shoal.make(env, 8, seed=40, **params)
    twins = [twin(40 + k, **params) for k in range(8)]
    obs, _ = vec.reset()
    assert obs.tolist() == [each.observe() for each in twins]
    rng, ended = np.random.default_rng(4), 0
    for _ in range(steps):
        chosen = rng.integers(0, actions, 8)
        obs, rewards, terminated, truncated, _ = vec.step(chosen)
        for k, each in enumerate(twins):
            reward, is_over, is_late, seen = each.step(int(chosen[k]))
            assert (rewards[k], terminated[k], truncated[k]) == (reward, is_over, is_late)
            assert obs[k].tolist() == seen
            ended += is_over or is_late
    vec.close()
    return ended


def returns_of(env, policy, steps, num_envs=1024, **params):
    """All returns of episodes of a policy: a function of the observation and a generator."""
    vec, rng = shoal.make(env, num_envs, seed=0, **params), np.random.default_rng(0)
    obs, _ = vec.reset()
    for _ in range(steps):
        obs, *_ = vec.step(policy(obs, rng))
    stats = vec.drain_stats()
    vec.close()
    return stats


# ---- chain ----


class Chain(Twin):
    limit, slip, small, large, states = 1000, 0.2, 2.0, 10.0, 5

    def start(self):
        self.at = 0

    def act(self, action):
        goes = action == 0
        if self.uniform() < F(self.slip):
            goes = not goes
        if not goes:
            self.at = 0
            return self.small, False
        reward = self.large if self.at == self.states - 1 else 0.0
        self.at = min(self.at + 1, self.states - 1)
        return reward, False

    def observe(self):
        return [float(self.at == k) for k in range(self.states)]


def chain_value(ahead, steps, states=5, slip=0.2, small=2.0, large=10.0):
    """The expected return of a policy that goes ahead with a probability, by counting backwards."""
    p = ahead * (1 - slip) + (1 - ahead) * slip
    value = [0.0] * states
    for _ in range(steps):
        value = [
            p * ((large if k == states - 1 else 0.0) + value[min(k + 1, states - 1)]) + (1 - p) * (small + value[0])
            for k in range(states)
        ]
    return value[0]


def test_chain_equals_the_slow_twin():
    assert compare("chain", Chain, 120, 2) == 0


def test_the_chain_has_the_values_of_its_page():
    """Strens (2000) gives 3677 for the best policy."""
    assert chain_value(1.0, 1000) == pytest.approx(3663.7, abs=0.1)
    assert chain_value(0.0, 1000) == pytest.approx(1603.2, abs=0.1)
    assert chain_value(0.5, 1000) == pytest.approx(1311.3, abs=0.1)


@pytest.mark.parametrize("ahead", [0.0, 0.5, 1.0])
def test_policies_of_the_chain_earn_what_they_should(ahead):
    policy = lambda obs, rng: (rng.random(len(obs)) >= ahead).astype(int)  # noqa: E731
    stats = returns_of("chain", policy, 100, max_steps=100)
    expected = chain_value(ahead, 100)
    assert stats["return"]["mean"] == pytest.approx(expected, rel=0.02)
    assert stats["ahead"]["mean"] == pytest.approx(ahead, abs=0.01)


def test_the_deep_chain_is_as_deep_as_it_says():
    stats = returns_of("chain", lambda obs, rng: np.zeros(len(obs), int), 100, 2, preset="deep")
    assert stats["return"]["mean"] == 100 - 19
    assert (stats["farthest"]["mean"], stats["larges"]["mean"]) == (19, 81)


# ---- stochastic ----


class Corridor(Twin):
    limit, cells = 500, 8

    def start(self):
        self.at = 0

    def act(self, action):
        goes_right = action == (0 if self.at == 1 else 1)
        self.at = self.at + 1 if goes_right else max(self.at - 1, 0)
        return -1.0, self.at == self.cells

    def observe(self):
        return [1.0]


def corridor_value(right, cells):
    """The expected return of a policy that goes right with a probability, by the linear equations of its cells."""
    a = np.eye(cells)
    for k in range(cells):
        p = 1 - right if k == 1 else right
        a[k, max(k - 1, 0)] -= 1 - p
        if k + 1 < cells:
            a[k, k + 1] -= p
    return float(np.linalg.solve(a, -np.ones(cells))[0])


@pytest.mark.parametrize("cells", [3, 8])
def test_stochastic_equals_the_slow_twin(cells):
    assert compare("stochastic", Corridor, 400, 2, cells=cells) > 20


def test_the_corridor_has_the_values_of_its_page():
    shares = np.linspace(0.1, 0.9, 801)
    for cells, share, value, at_random in ((3, 0.586, -11.657, -12.0), (8, 0.785, -23.95, -72.0)):
        values = [corridor_value(p, cells) for p in shares]
        assert max(values) == pytest.approx(value, abs=0.01)
        assert shares[np.argmax(values)] == pytest.approx(share, abs=0.002)
        assert corridor_value(0.5, cells) == pytest.approx(at_random)
    assert corridor_value(0.6, 3) == pytest.approx(-2 * (2 - 0.6) / (0.6 * (1 - 0.6)))  # the book's formula
    assert corridor_value(0.95, 8) == pytest.approx(-49.9, abs=0.1)


@pytest.mark.parametrize(("right", "cells"), [(0.5, 3), (0.586, 3), (0.5, 8), (0.785, 8), (0.95, 8)])
def test_policies_of_the_corridor_need_the_steps_that_they_should(right, cells):
    policy = lambda obs, rng: (rng.random(len(obs)) < right).astype(int)  # noqa: E731
    stats = returns_of("stochastic", policy, 2500, 256, max_steps=0, cells=cells)
    assert stats["return"]["mean"] == pytest.approx(corridor_value(right, cells), rel=0.05)


def test_a_policy_that_never_varies_never_leaves_the_corridor():
    for action in (0, 1):
        stats = returns_of("stochastic", lambda obs, rng, a=action: np.full(len(obs), a), 500, 4)
        assert stats["return"]["mean"] == -500
        assert stats["left_it"]["mean"] == 0


# ---- delayed ----


class Delayed(Twin):
    delay, noise, cues = 30, 0.1, 4

    def start(self):
        self.cue, self.chosen, self.age = self.rng.int(self.cues), None, 0
        self.bits = self.u32() >> 30

    def act(self, action):
        drawn = self.u32()
        if self.age == 0:
            self.chosen = action
        reward, is_over = 0.0, self.age == self.delay
        if is_over:
            reward = float(self.chosen == self.cue)
        elif self.age > 0:
            reward = self.noise if drawn & 4 else -self.noise
        self.age, self.bits = self.age + 1, drawn & 3
        return reward, is_over

    def observe(self):
        seen = [float(self.cue == k) for k in range(self.cues)] + [float(self.chosen == k) for k in range(self.cues)]
        return [*seen, float(F(1) - F(self.age) / F(self.delay + 1)), float(self.bits & 1), float(self.bits >> 1)]


@pytest.mark.parametrize("params", [{}, {"delay": 1, "noise": 0.0}, {"delay": 7, "noise": 1.0}])
def test_delayed_equals_the_slow_twin(params):
    assert compare("delayed", Delayed, 100, 4, **params) >= 24


def test_only_the_first_action_counts():
    """The right one earns 1 on average, any other one 0, whatever follows."""
    for offset, expected in ((0, 1.0), (1, 0.0)):

        def policy(obs, rng, offset=offset):
            first, named = obs[:, 4:8].sum(1) == 0, (obs[:, :4].argmax(1) + offset) % 4
            return np.where(first, named, rng.integers(0, 4, len(obs)))

        stats = returns_of("delayed", policy, 31, 512)
        assert stats["right"]["mean"] == expected
        assert stats["length"]["mean"] == 31
        assert stats["return"]["mean"] == pytest.approx(expected, abs=0.1)


# ---- bandit ----


THOMPSON = 76.6  # measured here, as in the header and in bandit.toml


class Bandit(Twin):
    """All kinds but gaussian, whose numbers need the header's own logarithm."""

    kind, pulls, drift, arms, tallies = "bernoulli", 100, 0.05, 10, 1

    def start(self):
        good, self.means = self.rng.int(self.arms), []
        for k in range(self.arms):
            uniform, _, _ = self.uniform(), self.u32(), self.u32()  # two for a normal number
            fixed = F(k + 1) / F(self.arms + 1)
            self.means.append({"one_good": F(0.9 if k == good else 0.1), "fixed": fixed}.get(self.kind, uniform))
        self.paid = [[] for _ in range(self.arms)]
        self.last, self.reward, self.done = None, 0.0, 0

    def act(self, action):
        _, _ = self.u32(), self.u32()
        self.reward = float(self.uniform() < self.means[action])
        self.paid[action].append(self.reward)
        self.last, self.done = action, self.done + 1
        if self.kind == "drifting":
            bits = self.u32()
            for k in range(self.arms):
                mean = self.means[k] + (F(self.drift) if bits >> k & 1 else -F(self.drift))
                self.means[k] = -mean if mean < 0 else F(2) - mean if mean > 1 else mean
        return self.reward, self.done >= self.pulls

    def observe(self):
        seen = [float(F(1) - F(self.done) / F(self.pulls)), self.reward]
        if not self.tallies:
            return seen + [float(self.last == k) for k in range(self.arms)]
        seen += [float(F(sum(paid)) / F(max(len(paid), 1))) for paid in self.paid]
        return seen + [float(F(1) / F(1 + len(paid))) for paid in self.paid]


@pytest.mark.parametrize("kind", ["bernoulli", "one_good", "drifting", "fixed"])
def test_bandit_equals_the_slow_twin(kind):
    assert compare("bandit", Bandit, 90, 10, kind=kind, pulls=40) == 16
    assert compare("bandit", Bandit, 45, 10, kind=kind, pulls=40, tallies=0) == 8


def random_arm(obs, rng):
    return rng.integers(0, 10, len(obs))


def thompson(obs, rng):
    """Beta posteriors from the tallies: pull the arm whose draw is highest (Thompson 1933)."""
    pulled = np.round(1 / obs[:, 12:22] - 1)
    won = obs[:, 2:12] * pulled
    return rng.beta(1 + won, 1 + pulled - won).argmax(1)


def test_policies_of_the_bandit_earn_what_they_should():
    """Random play 50, the best arm 100 * 10 / 11 in expectation, Thompson sampling between them."""
    guess = returns_of("bandit", random_arm, 100, 2000)
    assert guess["return"]["mean"] == pytest.approx(50, abs=1)
    assert guess["paid"]["mean"] + guess["regret"]["mean"] == pytest.approx(1000 / 11, abs=1)
    assert guess["best"]["mean"] == pytest.approx(0.1, abs=0.01)
    scripted = returns_of("bandit", thompson, 100, 2000)
    assert scripted["return"]["mean"] == pytest.approx(THOMPSON, abs=1.0)
    assert scripted["paid"]["mean"] + scripted["regret"]["mean"] == pytest.approx(1000 / 11, abs=1)


def test_kinds_of_arms_pay_as_they_say():
    last = lambda obs, rng: np.full(len(obs), 9)  # noqa: E731
    assert returns_of("bandit", last, 100, 500, kind="fixed")["return"]["mean"] == pytest.approx(1000 / 11, abs=1)
    assert returns_of("bandit", last, 100, 500, kind="fixed")["regret"]["mean"] == 0
    one_good = returns_of("bandit", random_arm, 100, 500, kind="one_good")
    assert one_good["return"]["mean"] == pytest.approx(18, abs=1)
    assert one_good["regret"]["mean"] == pytest.approx(72, abs=1)
    gaussian = returns_of("bandit", random_arm, 100, 2000, kind="gaussian")
    assert gaussian["return"]["mean"] == pytest.approx(0, abs=3.5)
    vec = shoal.make("bandit", 4000, kind="gaussian")
    vec.reset(seed=0)
    first, second = (vec.step(np.zeros(4000, int))[1].copy() for _ in range(2))
    assert np.std(first) == pytest.approx(math.sqrt(2), rel=0.05)  # 1 of the arms, 1 of each pull
    assert np.std(first - second) == pytest.approx(math.sqrt(2), rel=0.05)
    assert gaussian["regret"]["mean"] == pytest.approx(153.9, rel=0.03)  # the largest of ten normals: 1.539


def test_a_damaged_bandit_is_refused():
    vec = shoal.make("bandit", 1)
    vec.reset(seed=0)
    blob = vec.snapshot()
    records = records_of(vec, blob)
    missing = np.frombuffer(np.array([-1], np.int32).tobytes(), np.uint8)
    at = records[0].tobytes().index(missing.tobytes())  # `last`: no arm yet
    records[0, at : at + 4] = np.frombuffer(np.array([10], np.int32).tobytes(), np.uint8)
    with pytest.raises(SnapshotError):
        vec.restore(forged(blob, records))


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("bandit", {"kind": "gausian"}, "Did you mean 'gaussian'"),
        ("bandit", {"arms": 1}, "arms"),
        ("bandit", {"pulls": 0}, "pulls"),
        ("chain", {"slip": 1.5}, "slip"),
        ("chain", {"states": 1}, "states"),
        ("delayed", {"delay": 0}, "delay"),
        ("delayed", {"noise": -1}, "noise"),
    ],
)
def test_bad_params_are_named(env, options, said):
    with pytest.raises(ConfigError, match=said):
        shoal.make(env, 1, **options)
