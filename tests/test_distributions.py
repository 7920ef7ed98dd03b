"""ActionHead: what is drawn has the probability that is claimed, and is a member of the space."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import iterate
from scipy import stats

from shoal.errors import ConfigError
from shoal.nn.distributions import NEVER, ActionHead

torch.set_num_threads(1)

BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
SPACES = {
    "discrete": spaces.Discrete(4),
    "discrete from 3": spaces.Discrete(4, start=3),
    "multi": spaces.MultiDiscrete([3, 2, 4]),
    "multi from": spaces.MultiDiscrete([3, 2], start=[-5, 7]),
    "multi of two axes": spaces.MultiDiscrete([[3, 2], [2, 2]]),
    "binary": spaces.MultiBinary(3),
    "binary of two axes": spaces.MultiBinary((2, 2)),
    "box": BOX,
    "box without axes": spaces.Box(-1, 1, (), np.float32),
    "box of two axes": spaces.Box(-1, 1, (2, 3), np.float32),
    "box without bounds": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "box with one bound": spaces.Box(0, np.inf, (1,), np.float32),
    "box of float64": spaces.Box(np.array([-0.1, 1e-9]), np.array([0.1, 1.0 / 3.0]), dtype=np.float64),
    "box of float16": spaces.Box(-3, 3, (2,), np.float16),
    "box of one point": spaces.Box(np.array([1.0], np.float32), np.array([1.0], np.float32)),
    "dict": spaces.Dict({"gear": spaces.Discrete(3, start=-1), "wheel": BOX, "lights": spaces.MultiBinary(2)}),
    "tuple of one box twice": spaces.Tuple((BOX, spaces.Discrete(2), BOX)),
    "nested": spaces.Dict(
        {"b": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Dict({"x": BOX}))), "a": spaces.Discrete(2)}
    ),
}


@pytest.fixture(params=SPACES)
def space(request) -> spaces.Space:
    return SPACES[request.param]


def drawn(head, logits, seed=0):
    noise = torch.empty(len(logits), head.num_noise)
    head.draw(noise, torch.Generator().manual_seed(seed))
    return head.sample(logits, noise)


def some_logits(head, rows=1, seed=0, scale=1.0):
    return scale * torch.randn(rows, head.num_params, generator=torch.Generator().manual_seed(seed))


def all_choices(head):
    """Every action of a head without Box parts."""
    return torch.tensor(list(itertools.product(*(range(part.count) for part in head.parts))))


def is_finite_set(space):
    return not ActionHead(space).has_box


FINITE = [name for name, space in SPACES.items() if is_finite_set(space)]
ENDLESS = [name for name, space in SPACES.items() if not is_finite_set(space)]


# ---- probabilities ----


@pytest.mark.parametrize("name", FINITE)
def test_the_probabilities_of_all_choices_sum_to_one(name):
    head = ActionHead(SPACES[name])
    actions = all_choices(head)
    logits = some_logits(head, scale=3.0).expand(len(actions), -1)
    assert float(head.log_prob(logits, actions).double().exp().sum()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", FINITE)
def test_choices_are_drawn_as_often_as_they_should_be(name):
    """Chi-square over all joint choices: also that parts are drawn independently."""
    head, count = ActionHead(SPACES[name]), 20_000
    actions = all_choices(head)
    logits = some_logits(head, seed=1, scale=0.7)
    chances = head.log_prob(logits.expand(len(actions), -1), actions).double().exp()
    found = drawn(head, logits.expand(count, -1), seed=2)
    index = {tuple(action.tolist()): k for k, action in enumerate(actions)}
    seen = np.bincount([index[tuple(row)] for row in found.tolist()], minlength=len(actions))
    assert stats.chisquare(seen, (chances / chances.sum() * count).numpy()).pvalue > 1e-4


@pytest.mark.parametrize("std", ["free", "state"])
@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_the_density_of_a_box_integrates_to_one(std, shape):
    head = ActionHead(spaces.Box(-np.inf, np.inf, shape, np.float32), std=std)
    logits = torch.tensor([[0.3, -0.4][: head.size] + [-0.5, 0.4][: head.size]])
    line = torch.linspace(-12, 12, 401)
    grid = torch.cartesian_prod(*[line] * head.size).reshape(-1, head.size)
    density = head.log_prob(logits.expand(len(grid), -1), grid).double().exp()
    assert float(density.sum()) * (24 / 400) ** head.size == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("log_std", [-2.0, 0.0, 0.5])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-2.0, 6.0), (0.0, 0.1)])
def test_the_density_of_a_squashed_box_integrates_to_one_over_its_bounds(low, high, log_std):
    """Over the action that the env gets, not over what was drawn: the slope of the squash must be in it."""
    head = ActionHead(spaces.Box(low, high, (1,), np.float32), squash="tanh")
    logits = torch.tensor([[0.4, log_std]])
    width = (high - low) / 400_000
    unit = (torch.arange(400_000, dtype=torch.float64) + 0.5) / 200_000 - 1.0  # midpoints in -1 .. 1
    density = head.log_prob(logits.expand(400_000, -1).double(), torch.atanh(unit).unsqueeze(1)).exp()
    assert float(density.sum()) * width == pytest.approx(1.0, abs=2e-3)


def test_the_density_of_a_mixed_space_sums_and_integrates_to_one():
    head = ActionHead(spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (1,)), "c": spaces.MultiBinary(1)}))
    line = torch.linspace(-15, 15, 1501)
    grid = torch.cartesian_prod(torch.arange(3.0), line, torch.arange(2.0))
    density = head.log_prob(some_logits(head, seed=3).expand(len(grid), -1), grid).double().exp()
    assert float(density.sum()) * (30 / 1500) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("squash", ["none", "tanh"])
def test_numbers_are_drawn_from_the_density_that_is_claimed(squash):
    """Kolmogorov-Smirnov on what the env gets, against the cumulative sum of the claimed density."""
    head = ActionHead(spaces.Box(-3, 5, (1,), np.float32), squash=squash)
    logits = torch.tensor([[0.2, -1.2]])
    seen = head.to_env(drawn(head, logits.expand(20_000, -1), seed=5).numpy())[:, 0]
    inside = torch.linspace(-0.99999, 0.99999, 20_001, dtype=torch.float64)  # of the bounds, 4 units a side
    before = torch.atanh(inside) if squash == "tanh" else inside
    density = head.log_prob(logits.double().expand(len(inside), -1), before.unsqueeze(1)).exp()
    cumulative = np.cumsum(density.numpy())
    cumulative /= cumulative[-1]
    body = seen[np.abs(seen - 1) < 3.999]
    assert stats.kstest(body, lambda x: np.interp((x - 1) / 4, inside, cumulative)).pvalue > 1e-4


def test_log_prob_and_judge_agree(space):
    head = ActionHead(space)
    logits = some_logits(head, rows=50)
    actions = drawn(head, logits)
    assert torch.equal(head.log_prob(logits, actions), head.log_prob_and_entropy(logits, actions)[0])


@pytest.mark.parametrize("squash", ["none", "tanh"])
def test_entropy_is_the_mean_of_minus_log_prob(space, squash):
    if squash == "tanh" and not all(np.isfinite(part.high).all() for part in boxes(space)):
        pytest.skip("no bounds to squash into")
    head, count = ActionHead(space, squash=squash), 20_000
    logits = some_logits(head, seed=7, scale=0.5).expand(count, -1)
    log_probs, entropies = head.log_prob_and_entropy(logits, drawn(head, logits, seed=8))
    spread = float((log_probs + entropies).std()) / math.sqrt(count)
    assert float(entropies.mean()) == pytest.approx(-float(log_probs.mean()), abs=5 * spread + 1e-5)


def boxes(space):
    if isinstance(space, spaces.Box):
        return [space]
    parts = space.values() if isinstance(space, spaces.Dict) else space if isinstance(space, spaces.Tuple) else ()
    return [box for part in parts for box in boxes(part)]


def test_entropy_of_even_choices_is_the_logarithm_of_their_number():
    head = ActionHead(spaces.MultiDiscrete([3, 5]))
    entropy = head.log_prob_and_entropy(torch.zeros(1, 8), torch.zeros(1, 2, dtype=torch.int64))[1]
    assert float(entropy) == pytest.approx(math.log(15), rel=1e-6)


def test_extreme_logits_stay_finite_with_their_gradients(space):
    head = ActionHead(space, squash="tanh" if all(np.isfinite(box.high).all() for box in boxes(space)) else "none")
    for size in (1e4, -1e4):
        logits = torch.full((4, head.num_params), size)
        logits[:, ::2] *= -1
        logits.requires_grad_()
        actions = drawn(head, logits.detach())
        log_probs, entropies = head.log_prob_and_entropy(logits, actions)
        (log_probs.sum() + entropies.sum()).backward()
        assert torch.isfinite(entropies).all()
        assert torch.isfinite(log_probs).all()
        assert torch.isfinite(logits.grad).all()


# ---- masks ----


MASKS = torch.tensor(
    [[1, 0, 1, 0, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 1]],
    dtype=torch.int8,
)


def test_what_is_masked_is_never_drawn_and_has_probability_zero():
    head = ActionHead(spaces.MultiDiscrete([3, 3]))
    logits = head.mask(some_logits(head, 5, scale=10.0).repeat(4000, 1), MASKS.repeat(4000, 1))
    for found in (drawn(head, logits), head.greedy(logits)):
        columns = torch.stack([found[:, 0], 3 + found[:, 1]], 1)
        assert MASKS.repeat(4000, 1).gather(1, columns).all()
    for row in range(5):
        for column in torch.nonzero(MASKS[row] == 0).flatten().tolist():
            action = torch.zeros(1, 2, dtype=torch.int64)
            action[0, column // 3] = column % 3
            assert float(head.log_prob(logits[row : row + 1], action).exp()) == 0.0


def test_what_is_masked_changes_nothing_about_the_rest():
    """Probabilities, entropy and gradients are those of a smaller space."""
    whole, part = ActionHead(spaces.Discrete(5)), ActionHead(spaces.Discrete(3))
    kept = torch.tensor([0, 2, 3])
    allowed = torch.tensor([[1, 0, 1, 1, 0]], dtype=torch.int8)
    logits = torch.randn(1, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    small = logits.detach()[:, kept].requires_grad_()
    for choice in range(3):
        got = whole.log_prob_and_entropy(whole.mask(logits, allowed), kept[choice].reshape(1, 1))
        exact = part.log_prob_and_entropy(small, torch.tensor([[choice]]))
        torch.testing.assert_close(got, exact)
        (mine,) = torch.autograd.grad(sum(got).sum(), logits)
        (theirs,) = torch.autograd.grad(sum(exact).sum(), small)
        torch.testing.assert_close(mine[:, kept], theirs)
        assert mine[0, 1] == mine[0, 4] == 0.0


@pytest.mark.parametrize("allowed", [[1, 0, 0], [0, 0, 1], [0, 0, 0]])
def test_one_choice_or_none_left_keeps_everything_finite(allowed):
    head = ActionHead(spaces.Discrete(3))
    logits = torch.tensor([[5.0, -5.0, 100.0]], requires_grad=True)
    masked = head.mask(logits, torch.tensor([allowed], dtype=torch.int8))
    log_probs, entropies = head.log_prob_and_entropy(masked, torch.tensor([[max(range(3), key=allowed.__getitem__)]]))
    (log_probs + entropies).sum().backward()
    assert torch.isfinite(log_probs).all()
    assert torch.isfinite(entropies).all()
    assert torch.isfinite(logits.grad).all()
    if any(allowed):
        assert float(entropies.detach()) == 0.0
        assert float(log_probs.detach()) == 0.0


def test_no_noise_lifts_a_masked_choice():
    """The largest Gumbel number that can be drawn, against the logit of a masked choice."""
    head = ActionHead(spaces.Discrete(2))
    noise = torch.empty(2_000_000, 2)
    head.draw(noise, torch.Generator().manual_seed(0))
    assert torch.isfinite(noise).all()
    assert float(noise.max()) - float(noise.min()) < 200 < -NEVER


# ---- out to the env ----


@pytest.mark.parametrize("squash", ["none", "tanh"])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_every_action_is_a_member_of_its_space(space, squash, scale):
    if squash == "tanh" and not all(np.isfinite(part.high).all() for part in boxes(space)):
        with pytest.raises(ConfigError, match="finite bounds"):
            ActionHead(space, squash=squash)
        return
    head = ActionHead(space, squash=squash)
    logits = some_logits(head, rows=64, seed=4, scale=scale)
    for actions in (drawn(head, logits), head.greedy(logits)):
        assert actions.shape == (64, head.size)
        assert actions.dtype == head.dtype
        batch = head.to_env(actions.numpy())
        for action in iterate(space_of_batch(space, 64), batch):
            assert space.contains(as_member(space, action)), action


def space_of_batch(space, rows):
    from gymnasium.vector.utils import batch_space

    return batch_space(space, rows)


def as_member(space, action):
    """Gymnasium's Discrete and Box take numpy scalars and arrays of their own dtype."""
    if isinstance(space, spaces.Dict):
        return {key: as_member(part, action[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_member(part, action[key]) for key, part in enumerate(space.spaces))
    assert np.asarray(action).dtype == space.dtype
    return np.asarray(action) if isinstance(space, spaces.Box) else action


def test_every_choice_reaches_the_env_as_itself():
    assert ActionHead(SPACES["discrete from 3"]).to_env(np.array([[0], [3]])).tolist() == [3, 6]
    assert ActionHead(SPACES["multi from"]).to_env(np.array([[0, 1], [2, 0]])).tolist() == [[-5, 8], [-3, 7]]
    lights = ActionHead(SPACES["binary of two axes"]).to_env(np.array([[0, 1, 1, 0]]))
    assert lights.tolist() == [[[0, 1], [1, 0]]]


def test_the_middle_and_the_ends_of_what_is_drawn_are_those_of_the_bounds():
    drawn_numbers = np.array([[0.0, 0.0], [1.0, 1.0], [-1.0, -1.0], [7.0, -7.0]], np.float32)
    clipped = ActionHead(BOX).to_env(drawn_numbers)
    assert clipped.tolist() == [[0, 5], [2, 10], [-2, 0], [2, 0]]
    squashed = ActionHead(BOX, squash="tanh").to_env(drawn_numbers)
    np.testing.assert_allclose(squashed, [2, 5] * np.tanh(drawn_numbers) + [0, 5], atol=1e-6)


def test_a_box_without_bounds_is_left_as_it_was_drawn():
    numbers = np.array([[1e6, -3.0]], np.float32)
    assert ActionHead(SPACES["box without bounds"]).to_env(numbers).tolist() == numbers.tolist()


def test_leaves_of_a_mixed_space_keep_their_own_columns():
    head = ActionHead(SPACES["tuple of one box twice"])
    first, choice, second = head.to_env(np.array([[0.5, -0.5, 1.0, -0.25, 0.25]], np.float32))
    assert first.tolist() == [[1.0, 2.5]]
    assert choice.tolist() == [1]
    assert second.tolist() == [[-0.5, 6.25]]


def test_greedy_is_the_most_probable_action(space):
    head = ActionHead(space)
    logits = some_logits(head, rows=8, seed=11)
    best = head.log_prob(logits, head.greedy(logits))
    for seed in range(50):
        assert (head.log_prob(logits, drawn(head, logits, seed)) <= best + 1e-6).all()


def test_spreads_of_many_boxes_lie_behind_all_means():
    """Dict(a=Discrete(2), b=Box(1)) and a second Box: l l m m  s s, as the module says."""
    head = ActionHead(spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,)))))
    logits = torch.tensor([[0.0, 0.0, 5.0, -5.0, -18.0, 3.0]]).expand(500, -1)
    found = drawn(head, logits)
    assert float(found[:, 1].std()) < 1e-6
    assert float(found[:, 2].std()) == pytest.approx(math.exp(3.0), rel=0.2)
    assert float(found[:, 1].mean()) == pytest.approx(5.0)


def test_spaces_without_a_distribution_are_refused():
    with pytest.raises(ConfigError, match="int16"):
        ActionHead(spaces.Box(0, 9, (1,), np.int16))
    with pytest.raises(ConfigError, match="Text"):
        ActionHead(spaces.Text(4))
