"""The ops of Q-learning against slow, obvious loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algos import ops

torch.set_num_threads(1)
UNIT = st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0])
SEEDS = st.integers(0, 2**31)
many = settings(max_examples=60, deadline=None)


def slow_lambda_returns(rewards, values, dones, gamma, lam):
    """As the mixture of n-step returns that it is: sum of (1 - lam) lam^(n-1) G^(n), the last one with what is left."""
    steps, rows = rewards.shape
    out = np.zeros((steps, rows))
    for row in range(rows):
        for t in range(steps):
            reward, weight, rest = 0.0, 1.0, 1.0
            for n in range(1, steps - t + 1):
                reward += weight * rewards[t + n - 1, row]
                weight *= gamma
                done = dones[t + n - 1, row]
                full = reward + (0.0 if done else weight * values[t + n, row])
                is_last = done or t + n == steps
                out[t, row] += rest * full if is_last else rest * (1.0 - lam) * full
                rest *= lam
                if is_last:
                    break
    return out


@many
@given(st.integers(1, 9), st.integers(1, 5), UNIT, UNIT, SEEDS)
def test_lambda_returns(steps, rows, gamma, lam, seed):
    rng = np.random.default_rng(seed)
    rewards, values = rng.standard_normal((steps, rows)), rng.standard_normal((steps + 1, rows))
    dones = rng.random((steps, rows)) < 0.3
    got = ops.lambda_returns(
        *(torch.from_numpy(x).float() for x in (rewards, values)), torch.from_numpy(dones), gamma, lam
    )
    np.testing.assert_allclose(got, slow_lambda_returns(rewards, values, dones, gamma, lam), rtol=1e-4, atol=1e-5)


@many
@given(st.integers(1, 7), st.integers(1, 9), UNIT, SEEDS)
def test_n_step(n, batch, gamma, seed):
    rng = np.random.default_rng(seed)
    rewards, stops = rng.standard_normal((n, batch)), rng.random((n, batch)) < 0.3
    # what lies after a stop belongs to someone else: it may be anything
    after = np.cumsum(stops, 0) - stops > 0
    rewards[after] = math.nan
    returns, steps = ops.n_step(torch.from_numpy(rewards).float(), torch.from_numpy(stops), gamma)
    for b in range(batch):
        total, m = 0.0, 0
        for k in range(n):
            total, m = total + gamma**k * rewards[k, b], m + 1
            if stops[k, b]:
                break
        assert int(steps[b]) == m
        assert math.isclose(float(returns[b]), total, rel_tol=1e-5, abs_tol=1e-5)


def slow_projection(probs, rewards, discounts, atoms):
    """Algorithm 1 of the paper: each atom's weight goes to its two neighbours."""
    low, high, count = atoms[0], atoms[-1], len(atoms)
    gap, out = (high - low) / (count - 1), np.zeros_like(probs)
    for row in range(len(probs)):
        for i in range(count):
            at = (min(max(rewards[row] + discounts[row] * atoms[i], low), high) - low) / gap
            lower = min(math.floor(at), count - 1)
            out[row, lower] += probs[row, i] * (lower + 1 - at)
            if lower + 1 < count:
                out[row, lower + 1] += probs[row, i] * (at - lower)
    return out


@many
@given(st.integers(2, 12), st.integers(1, 5), st.sampled_from([0.1, 1.0, 30.0]), SEEDS)
def test_c51_projection(count, batch, scale, seed):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(count), batch)
    rewards, discounts = scale * rng.standard_normal(batch), rng.choice([0.0, 0.9, 1.0], batch)
    atoms = np.linspace(-3.0, 5.0, count)
    got = ops.project(*(torch.from_numpy(x) for x in (probs, rewards, discounts, atoms)))
    np.testing.assert_allclose(got, slow_projection(probs, rewards, discounts, atoms), atol=1e-9)
    np.testing.assert_allclose(got.sum(1), 1.0, atol=1e-9)


def test_c51_projection_by_hand():
    """r = 0.5 between the atoms 0 and 1: half each. A reward beyond the ends is at the end."""
    atoms = torch.tensor([-1.0, 0.0, 1.0])
    sure = torch.tensor([[0.0, 1.0, 0.0]] * 2)
    got = ops.project(sure, torch.tensor([0.5, 7.0]), torch.tensor([1.0, 1.0]), atoms)
    assert got.tolist() == [[0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]


@many
@given(st.integers(1, 6), st.integers(1, 6), SEEDS)
def test_quantile_loss(count, others, seed):
    rng = np.random.default_rng(seed)
    quantiles, targets = 2 * rng.standard_normal((3, count)), 2 * rng.standard_normal((3, others))
    got = ops.quantile_loss(torch.from_numpy(quantiles), torch.from_numpy(targets))
    for row in range(3):
        total = 0.0
        for i in range(count):
            for j in range(others):
                u = targets[row, j] - quantiles[row, i]
                huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
                total += abs((i + 0.5) / count - (u < 0)) * huber / others
        assert math.isclose(float(got[row]), total, rel_tol=1e-9)


def test_shapes_that_do_not_fit_are_told():
    with pytest.raises(ValueError, match="expected"):
        ops.n_step(torch.zeros(3, 2), torch.zeros(2, 2, dtype=torch.bool), 0.9)
    with pytest.raises(ValueError, match="atoms"):
        ops.project(torch.zeros(3, 2), torch.zeros(3), torch.zeros(3), torch.zeros(4))
