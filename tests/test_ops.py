"""Every op against a slow, obvious loop in float64, over random shapes, ends of episodes and extreme numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algos import ops
from shoal.nn.recurrent import scan
from tests.slow_ops import slow_gae

torch.set_num_threads(1)

ROWS = st.sampled_from([1, 2, 3, 7, 8, 9, 255, 256, 257])
STEPS = st.sampled_from([1, 2, 3, 5, 16])
UNIT = st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0])
SCALE = st.sampled_from([0.0, 1e-6, 1.0, 1e4, 1e10])
many = settings(max_examples=40, deadline=None)


def segments(steps, rows, scale, seed, ends=0.3):
    """rewards, values, dones and ratios, in float64."""
    rng = np.random.default_rng(seed)
    rewards, values = scale * rng.standard_normal((steps, rows)), scale * rng.standard_normal((steps + 1, rows))
    dones, ratios = rng.random((steps, rows)) < ends, np.exp(rng.standard_normal((steps, rows)))
    return [torch.from_numpy(x) for x in (rewards, values, dones, ratios)]


def near(got, exact, scale=1.0, rtol=2e-5):
    """Float32 against float64: to rounding, where numbers of this scale may have cancelled."""
    np.testing.assert_allclose(got.double(), exact, rtol=rtol, atol=rtol * scale)


def slow_vtrace_targets(rewards, values, dones, ratios, gamma, lam, rho_max, c_max):
    """Espeholt et al. 2018, equation 1: v_s = V_s + sum over t of gamma^(t-s) (prod of c_i, i < t) rho_t d_t."""
    steps, rows = rewards.shape
    out = values[:-1].clone()
    for row in range(rows):
        for s in range(steps):
            product = 1.0
            for t in range(s, steps):
                bootstrap = 0.0 if dones[t, row] else gamma * float(values[t + 1, row])
                delta = float(rewards[t, row]) + bootstrap - float(values[t, row])
                out[s, row] += product * min(rho_max, float(ratios[t, row])) * delta
                if dones[t, row]:
                    break
                product *= gamma * lam * min(c_max, float(ratios[t, row]))
    return out


# ---- advantages ----


def test_gae_of_an_example_worked_by_hand():
    """gamma = lam = 1/2. Column 0 goes on to V = 8; column 1 ends its episode at step 1."""
    rewards = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    values = torch.tensor([[4.0, 4.0], [2.0, 2.0], [6.0, 6.0], [8.0, 8.0]])
    dones = torch.tensor([[False, False], [False, True], [False, False]])
    # deltas: 1 + 2/2 - 4 = -2;  2 + 6/2 - 2 = 3, or 2 - 2 = 0 at the end of the episode;  3 + 8/2 - 6 = 1
    # sums:   A_2 = 1;  A_1 = 3 + 1/4 = 3.25 or 0;  A_0 = -2 + 3.25/4 = -1.1875 or -2
    expected = torch.tensor([[-1.1875, -2.0], [3.25, 0.0], [1.0, 1.0]])
    assert torch.equal(ops.gae(rewards, values, dones, 0.5, 0.5), expected)


@many
@given(STEPS, ROWS, UNIT, UNIT, SCALE, st.integers(0, 99), st.sampled_from([0.0, 0.3, 1.0]))
def test_gae_equals_its_definition(steps, rows, gamma, lam, scale, seed, ends):
    rewards, values, dones, _ = segments(steps, min(rows, 9), scale, seed, ends)
    exact = slow_gae(rewards, values, dones, gamma, lam)
    near(ops.gae(rewards, values, dones, gamma, lam), exact, scale, 1e-12)
    near(ops.gae(rewards.float(), values.float(), dones, gamma, lam), exact, scale * steps)


@many
@given(STEPS, ROWS, UNIT, UNIT, SCALE, st.integers(0, 99))
def test_the_c_kernel_equals_the_torch_path(steps, rows, gamma, lam, scale, seed):
    data = segments(steps, rows, scale, seed)
    rewards, values, dones, ratios = (x if x.dtype == torch.bool else x.float() for x in data)
    wide = [x if x.dtype == torch.bool else x.double() for x in (rewards, values, dones, ratios)]
    near(ops.gae(rewards, values, dones, gamma, lam), ops.gae(*wide[:3], gamma, lam), scale * steps)
    for got, exact in zip(ops.vtrace(rewards, values, dones, ratios, gamma, lam), ops.vtrace(*wide, gamma, lam)):
        near(got, exact, scale * steps)
    carry = torch.linspace(-scale, scale, rows)
    wide_carry = carry.double()
    sums = ops.running_returns(rewards, dones, gamma, carry)
    near(sums, ops.running_returns(wide[0], dones, gamma, wide_carry), scale * steps)
    near(carry, wide_carry, scale * steps)


@many
@given(STEPS, UNIT, UNIT, st.sampled_from([0.0, 0.7, 1.0, 3.0]), st.sampled_from([0.0, 1.0, 2.0]), st.integers(0, 99))
def test_vtrace_equals_its_definition(steps, gamma, lam, rho_max, c_max, seed):
    rewards, values, dones, ratios = data = segments(steps, 4, 1.0, seed)
    exact = slow_vtrace_targets(*data, gamma, lam, rho_max, c_max)
    targets, advantages = ops.vtrace(*data, gamma, lam, rho_max, c_max)
    near(targets, exact, 1.0, 1e-10)
    later = torch.cat([lam * exact[1:] + (1 - lam) * values[1:-1], values[-1:]])
    near(advantages, rewards + gamma * torch.where(dones, 0.0, later) - values[:-1], 1.0, 1e-10)
    size = float(exact.abs().max()) + 1.0
    near(ops.vtrace(*(x if x is dones else x.float() for x in data), gamma, lam, rho_max, c_max)[0], exact, size)


@many
@given(STEPS, ROWS, UNIT, UNIT, st.integers(0, 99))
def test_vtrace_of_the_policy_itself_is_gae(steps, rows, gamma, lam, seed):
    rewards, values, dones, ratios = segments(steps, rows, 1.0, seed)
    targets, advantages = ops.vtrace(rewards, values, dones, torch.ones_like(ratios), gamma, lam)
    exact = ops.gae(rewards, values, dones, gamma, lam)
    near(advantages, exact, 1.0, 1e-12)
    near(targets, exact + values[:-1], 1.0, 1e-12)


def test_a_row_does_not_depend_on_its_neighbours():
    rewards, values, dones, _ = segments(9, 257, 1.0, 0)
    whole = ops.gae(rewards.float(), values.float(), dones, 0.99, 0.95)
    for row in (0, 1, 128, 255, 256):
        alone = ops.gae(*(x[:, row : row + 1].float() for x in (rewards, values)), dones[:, row : row + 1], 0.99, 0.95)
        assert torch.equal(alone[:, 0], whole[:, row])


def test_nothing_flows_back_over_the_end_of_an_episode():
    rewards, values, dones, _ = (x if x.dtype == torch.bool else x.float() for x in segments(6, 3, 1.0, 1, 0.0))
    dones[2] = True
    before = ops.gae(rewards, values, dones, 0.99, 0.95)
    rewards[3:], values[3:] = 1e30, -1e30
    assert torch.equal(ops.gae(rewards, values, dones, 0.99, 0.95)[:3], before[:3])


@pytest.mark.parametrize("layout", ["transposed", "every second"])
def test_tensors_need_not_be_contiguous(layout):
    data = segments(6, 10, 1.0, 2)
    rewards, values, dones, ratios = (x if x.dtype == torch.bool else x.float() for x in data)

    def spread(x):
        if layout == "transposed":
            return x.t().contiguous().t()
        return torch.stack([x, x], -1).flatten(1)[:, ::2]

    odd = [spread(x) for x in (rewards, values, dones, ratios)]
    assert not odd[0].is_contiguous()
    assert torch.equal(ops.gae(*odd[:3], 0.9, 0.8), ops.gae(rewards, values, dones, 0.9, 0.8))
    assert torch.equal(ops.vtrace(*odd, 0.9)[0], ops.vtrace(rewards, values, dones, ratios, 0.9)[0])
    carry, carry2 = torch.ones(10), torch.ones(20)[::2]
    assert torch.equal(
        ops.running_returns(odd[0], odd[2], 0.9, carry2), ops.running_returns(rewards, dones, 0.9, carry)
    )
    assert torch.equal(carry, carry2)


def test_shapes_that_do_not_fit_raise():
    rewards, values, dones, ratios = (x if x.dtype == torch.bool else x.float() for x in segments(4, 3, 1.0, 0))
    for bad in ((rewards, values[:-1], dones), (rewards, values[:, :2], dones), (rewards, values, dones[:2])):
        with pytest.raises(ValueError, match=r"expected \(steps, rows\), \(steps \+ 1, rows\)"):
            ops.gae(*bad, 0.9, 0.9)
    for bad_ratios in (ratios[:2], ratios[:, :1], torch.ones(())):
        with pytest.raises(ValueError, match="ratios"):
            ops.vtrace(rewards, values, dones, bad_ratios, 0.9)
    with pytest.raises(ValueError, match="carry"):
        ops.running_returns(rewards, dones, 0.9, torch.zeros(2))
    with pytest.raises(ValueError, match="dones"):
        ops.running_returns(rewards, dones[:3], 0.9, torch.zeros(3))


def test_dtypes_that_the_kernel_cannot_read_do_not_become_garbage():
    rewards, values, dones, ratios = segments(4, 3, 1.0, 0)
    exact = ops.gae(rewards, values, dones, 0.9, 0.9)
    near(ops.gae(rewards.float(), values, dones, 0.9, 0.9), exact)
    near(ops.gae(rewards, values.float(), dones, 0.9, 0.9), exact)
    mixed = ops.vtrace(rewards.float(), values.float(), dones, ratios, 0.9)[0]
    near(mixed, ops.vtrace(rewards, values, dones, ratios, 0.9)[0])
    with pytest.raises(TypeError):
        ops.gae(rewards.float(), values.float(), dones.float(), 0.9, 0.9)


# ---- running sums and moments ----


@many
@given(STEPS, ROWS, UNIT, SCALE, st.integers(0, 99))
def test_running_returns_equal_a_loop_and_carry_over(steps, rows, gamma, scale, seed):
    rewards, _, dones, _ = segments(steps, rows, scale, seed)
    sums, before = torch.zeros(steps, rows, dtype=torch.float64), [0.5 * scale] * rows
    for row in range(rows):
        for t in range(steps):
            sums[t, row] = float(rewards[t, row]) + gamma * before[row]
            before[row] = 0.0 if dones[t, row] else float(sums[t, row])
    carry = torch.full((rows,), 0.5 * scale)
    got = [
        ops.running_returns(part.float(), flags, gamma, carry)
        for part, flags in zip(rewards.split(2), dones.split(2))  # two steps at a time
    ]
    near(torch.cat(got), sums, scale * steps)
    near(carry, torch.tensor(before, dtype=torch.float64), scale * steps)


@many
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.sampled_from([(), (3,), (2, 2)]), st.integers(0, 99))
def test_running_moments_are_those_of_everything_seen(sizes, shape, seed):
    rng = np.random.default_rng(seed)
    batches = [3.0 + 5.0 * rng.standard_normal((size, *shape)) for size in sizes]
    moments = ops.RunningMoments(shape)
    for batch in batches:
        moments.update(torch.from_numpy(batch))
    seen = np.concatenate(batches)
    assert float(moments.count) == len(seen)
    if len(seen):
        np.testing.assert_allclose(moments.mean, seen.mean(0), atol=1e-10)
        np.testing.assert_allclose(moments.var, seen.var(0), atol=1e-9)
        scaled = np.clip((batches[0] - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8), -10, 10)
        np.testing.assert_allclose(moments.normalize(torch.from_numpy(batches[0])), scaled, atol=1e-4)


def test_running_moments_of_nothing_leave_numbers_as_they_are():
    moments = ops.RunningMoments((2,))
    moments.update(torch.zeros(0, 2))
    batch = torch.tensor([[1.0, -2.0]])
    torch.testing.assert_close(moments.normalize(batch), batch)


def test_running_moments_survive_a_large_mean():
    """A naive sum of squares would lose the variance: 1e8 squared has no room for it, in float64."""
    moments = ops.RunningMoments()
    for _ in range(50):
        moments.update(torch.tensor([1e8 - 1.0, 1e8, 1e8 + 1.0], dtype=torch.float64))
    assert float(moments.var) == pytest.approx(2.0 / 3.0, rel=1e-6)


def test_normalized_numbers_are_clipped():
    moments = ops.RunningMoments()
    moments.update(torch.tensor([-1.0, 1.0]))
    assert moments.normalize(torch.tensor([1e9, -1e9, 0.5])).tolist() == pytest.approx([10.0, -10.0, 0.5])
    assert moments.normalize(torch.tensor([1e9]), limit=3.0).tolist() == [3.0]


@many
@given(st.integers(2, 50), st.integers(0, 99))
def test_explained_variance_equals_numpy(count, seed):
    rng = np.random.default_rng(seed)
    values, returns = rng.standard_normal(count), rng.standard_normal(count)
    exact = 1.0 - np.var(returns - values) / np.var(returns)
    assert float(ops.explained_variance(*map(torch.from_numpy, (values, returns)))) == pytest.approx(exact)


def test_explained_variance_of_a_perfect_critic_of_the_mean_and_of_nothing_to_explain():
    returns = torch.tensor([1.0, 2.0, 6.0])
    assert float(ops.explained_variance(returns, returns)) == 1.0
    assert float(ops.explained_variance(torch.full((3,), 3.0), returns)) == 0.0
    assert math.isnan(float(ops.explained_variance(returns, torch.ones(3))))
    assert math.isnan(float(ops.explained_variance(torch.ones(0), torch.ones(0))))  # and warns nobody


@many
@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.booleans()), min_size=1, max_size=30))
def test_masked_mean_is_the_mean_of_what_counts(pairs):
    values, counts = torch.tensor([v for v, _ in pairs], dtype=torch.float64), torch.tensor([k for _, k in pairs])
    kept = [v for v, k in pairs if k]
    exact = sum(kept) / len(kept) if kept else 0.0
    assert float(ops.masked_mean(values, counts.double())) == pytest.approx(exact, abs=1e-9)
    assert float(ops.masked_mean(values, None)) == pytest.approx(sum(v for v, _ in pairs) / len(pairs), abs=1e-9)


# ---- the scan of MinGRU ----


@many
@given(st.sampled_from([1, 2, 3, 4, 5, 8, 31, 32, 33]), st.integers(1, 5), st.integers(0, 99))
def test_scan_equals_a_loop_and_so_do_its_gradients(steps, rows, seed):
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(steps, rows, 3, generator=generator, dtype=torch.float64)
    a = torch.where(torch.rand(a.shape, generator=generator) < 0.2, 0.0, a)  # cleared states
    b, weight = (torch.randn(steps, rows, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    start = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    fast, slow = ([x.clone().requires_grad_() for x in (a, b, start)] for _ in range(2))
    got = scan(*fast)
    state, states = slow[2], []
    for t in range(steps):
        state = slow[0][t] * state + slow[1][t]
        states.append(state)
    exact = torch.stack(states)
    torch.testing.assert_close(got, exact)
    (got * weight).sum().backward()
    (exact * weight).sum().backward()
    for mine, theirs in zip(fast, slow):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_cleared_state_leaves_nothing_behind_in_the_scan():
    a, b = torch.full((8, 1, 1), 0.9), torch.ones(8, 1, 1)
    a[5] = 0.0
    huge = scan(a, torch.cat([torch.full((5, 1, 1), 1e30), b[5:]]), torch.full((1, 1), 1e30))
    fresh = scan(a[5:], b[5:], torch.zeros(1, 1))
    assert torch.equal(huge[5:], fresh)
