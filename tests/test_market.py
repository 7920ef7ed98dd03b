"""market: the header against a slow twin, the best policy by backward induction, limits, ends, stats."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError

from .market_twin import PARAMS, Twin, avellaneda_stoikov, best_policy, mean_return


@pytest.mark.parametrize(
    "params",
    [{}, {"limit": 1, "steps": 30}, {"arrivals": 900.0, "depth": 0.4, "dt": 0.02}, {"volatility": 0.0, "penalty": 5.0}],
)
def test_every_rule_equals_the_slow_twin(params):
    vec, rng = shoal.make("market", 6, **params), np.random.default_rng(3)
    vec.reset(seed=40)
    twins, episodes = [Twin(40 + k, **params) for k in range(6)], 0
    for _ in range(80):
        actions = rng.uniform(-1, 1, (6, 2)).astype(np.float32)
        obs, rewards, terminated, _, _ = vec.step(actions)
        for k, twin in enumerate(twins):
            expected, reward, over = twin.step(*actions[k].astype(float))
            assert rewards[k] == pytest.approx(reward, abs=1e-4)
            assert bool(terminated[k]) == over
            if over:
                twin.step_number = twin.position = 0
                expected = [0.0, 1.0, 0.0, 0, 0]
            assert obs[k] == pytest.approx(expected, abs=1e-4)
            episodes += over
    assert episodes == (12 if params.get("steps") == 30 else 0)


def test_the_best_policy_returns_what_was_computed():
    """Backward induction in Python and play in C: the same mean, within four standard errors."""
    quotes, value = best_policy(grid=41)
    start = value[0, PARAMS["limit"]]
    played = mean_return(lambda q, t: quotes[t, (q + PARAMS["limit"]).astype(int)], episodes=2000)
    assert played == pytest.approx(start, abs=0.6)
    assert played > mean_return(avellaneda_stoikov, episodes=2000) > mean_return(fixed, episodes=2000)
    flat = quotes[100, PARAMS["limit"]]
    assert flat[0] == flat[1]
    assert quotes[100, PARAMS["limit"] + 3, 0] > flat[0] > quotes[100, PARAMS["limit"] + 3, 1]  # long: it wants to sell


def fixed(position, step):
    return np.full((len(position), 2), 0.75)


def test_the_position_stays_within_its_limit():
    vec = shoal.make("market", 50, limit=3, arrivals=5000.0, steps=100000)
    vec.reset(seed=0)
    seen = set()
    for way in (1, -1):
        for _ in range(60):
            obs = vec.step(np.tile(np.array([[-way, way]], np.float32), (50, 1)))[0]
            seen |= set(np.round(3 * obs[:, 0]).astype(int).tolist())
    assert seen == {-3, -2, -1, 0, 1, 2, 3}


def test_stats():
    """profit is the return without the penalty; a quote at the mid price earns nothing."""
    vec = shoal.make("market", 20, penalty=0.0, steps=50, volatility=0.0)
    vec.reset(seed=1)
    total = np.zeros(20)
    for _ in range(50):
        total += vec.step(np.zeros((20, 2), np.float32))[1]
    stats = vec.drain_stats()
    assert stats["profit"]["mean"] == pytest.approx(total.mean(), rel=1e-5)
    assert stats["earned"]["mean"] == pytest.approx(stats["fills"]["mean"], rel=1e-5)  # each at an offset of 1
    assert stats["spread"]["mean"] == pytest.approx(2.0)
    vec.reset(seed=1)
    for _ in range(50):
        assert (vec.step(np.full((20, 2), -1, np.float32))[1] == 0).all()
    assert vec.drain_stats()["fills"]["mean"] > 40


def test_bad_params():
    for params in ({"steps": 0}, {"dt": 0.0}, {"limit": 0}, {"volatility": -1.0}, {"arrivals": float("nan")}):
        with pytest.raises(ConfigError):
            shoal.make("market", 1, **params)
