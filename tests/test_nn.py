"""Encoders, recurrent cores and policies: every space is seen, and stepping is the same as unrolling."""

from __future__ import annotations

import contextlib
import copy
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch import nn
from torch._dynamo.testing import CompileCounter

from shoal import config
from shoal.algos.actor import Actor
from shoal.errors import ConfigError
from shoal.nn import fused
from shoal.nn import policy as policies
from shoal.nn.cores import CORES as CORE_PLUGINS
from shoal.nn.distributions import ActionHead
from shoal.nn.encoders import EMBEDDING, ENCODERS, Encoder, is_numeric, leaf_spaces
from shoal.nn.layers import layer_init
from shoal.nn.policy import Net, Policy
from shoal.nn.qnet import QHead, QNet
from shoal.nn.recurrent import CORES, LSTM, MinGRU
from shoal.spec import Layout, map_leaves
from shoal.train import options_for

from .envs import DictEnv

torch.set_num_threads(1)

OBSERVATIONS = {
    "numbers": spaces.Box(-1, 1, (3,), np.float32),
    "numbers of float64": spaces.Box(-1, 1, (2, 3), np.float64),
    "one number": spaces.Box(-9, 9, (), np.float32),
    "bytes": spaces.Box(0, 255, (5,), np.uint8),
    "wide ints": spaces.Box(0, 2**16 - 1, (2,), np.uint16),
    "image, channels last": spaces.Box(0, 255, (84, 84, 3), np.uint8),
    "image, channels first": spaces.Box(0, 255, (4, 84, 84), np.uint8),
    "gray image": spaces.Box(0, 255, (64, 64), np.uint8),
    "small grid": spaces.Box(0, 1, (10, 10, 4), np.float32),
    "one pixel": spaces.Box(0, 255, (1, 1, 3), np.uint8),
    "id": spaces.Discrete(5, start=2),
    "id of many": spaces.Discrete(1000, start=-7),
    "ids": spaces.MultiDiscrete([3, 40, 5], start=[0, 9, -4]),
    "switches": spaces.MultiBinary((2, 3)),
    "dict": DictEnv().observation_space,
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"x": spaces.Box(0, 255, (8, 8, 1), np.uint8)}))),
}


def sampled(space, rows, seed=0):
    """A batch of members as torch gets to see it."""
    whole = batch_space(space, rows)
    whole.seed(seed)
    return _tensors(whole.sample())


def _tensors(value):
    if isinstance(value, dict):
        return {key: _tensors(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_tensors(part) for part in value)
    wide = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}
    return torch.from_numpy(np.ascontiguousarray(value).astype(wide.get(value.dtype.name, value.dtype)))


def actor_of(space=None, action_space=None, policy=None, seed=1, **net: Any) -> Actor:
    seen = OBSERVATIONS["numbers"] if space is None else space
    return Actor(seen, action_space or spaces.Discrete(3), Net(**{"hidden": 16, **net}), seed=seed, policy=policy)


# ---- encoders ----


@pytest.mark.parametrize("core", ["none", "lstm", "mingru"])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_every_space_can_be_seen(name, core):
    actor = actor_of(OBSERVATIONS[name], core=core)
    obs = sampled(OBSERVATIONS[name], 5)
    logits, values, state = actor.step(obs, actor.initial_state(5))
    assert logits.shape == (5, 3)
    assert values.shape == (5,)
    assert torch.isfinite(logits).all()
    assert [part.shape for part in state] == [part.shape for part in actor.initial_state(5)]
    values.sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in actor.parameters())


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_a_row_is_seen_as_if_it_were_alone(name):
    encoder = Encoder(OBSERVATIONS[name])
    obs = sampled(OBSERVATIONS[name], 4)
    whole = encoder(obs)
    assert whole.shape == (4, encoder.features)
    assert whole.dtype == torch.float32
    for row in range(4):
        alone = encoder(map_leaves(itemgetter(slice(row, row + 1)), obs))
        torch.testing.assert_close(alone, whole[row : row + 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_every_element_of_an_observation_matters(name):
    """Another member of the space gives other features: no leaf is left out."""
    encoder = Encoder(OBSERVATIONS[name])
    for seed in range(20):
        one, other = sampled(OBSERVATIONS[name], 1, seed), sampled(OBSERVATIONS[name], 1, seed + 100)
        for changed in _one_leaf_changed(one, other):
            assert not torch.equal(encoder(one), encoder(changed))


def _one_leaf_changed(one, other):
    """`one` with each leaf in turn that of `other`, where they differ."""
    if isinstance(one, (dict, tuple)):
        keys = list(one) if isinstance(one, dict) else range(len(one))
        for key in keys:
            for part in _one_leaf_changed(one[key], other[key]):
                if isinstance(one, dict):
                    yield {**one, key: part}
                else:
                    yield (*one[:key], part, *one[key + 1 :])
    elif not torch.equal(one, other):
        yield other


def test_few_ids_are_one_hot_and_many_are_embedded():
    encoder = Encoder(OBSERVATIONS["ids"])
    assert encoder.features == 3 + EMBEDDING + 5
    got = encoder(torch.tensor([[0, 9, -4], [2, 48, 0]]))
    assert got[0, :3].tolist() == [1, 0, 0]
    assert got[1, :3].tolist() == [0, 0, 1]
    assert got[0, -5:].tolist() == [1, 0, 0, 0, 0]
    assert got[1, -5:].tolist() == [0, 0, 0, 0, 1]
    table = encoder.parts[0].tables[0].weight
    assert torch.equal(got[:, 3:-5], table[[0, 39]])


def test_the_zeros_of_an_agent_that_is_out_can_be_seen():
    for name in ("id", "ids", "id of many"):
        actor = actor_of(OBSERVATIONS[name])
        zeros = torch.zeros_like(sampled(OBSERVATIONS[name], 2))
        assert torch.isfinite(actor.step(zeros, ())[0]).all()


def test_bytes_are_scaled_to_one():
    assert Encoder(OBSERVATIONS["bytes"])(torch.tensor([[0, 51, 255, 0, 0]], dtype=torch.uint8))[0].tolist() == (
        pytest.approx([0.0, 0.2, 1.0, 0.0, 0.0])
    )


LIMITS = np.iinfo(np.int64)


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(LIMITS.min, LIMITS.max, np.int64), (0, 2**31 - 1, np.int32), (0, 2**32 - 1, np.uint32), (-(10**6), 1, np.int64)],
)
@pytest.mark.parametrize("shape", [(3,), (8, 8, 1)])
def test_integers_with_loose_bounds_are_seen_unscaled(low, high, dtype, shape):
    """Bounds that only name a dtype's limits say nothing of the values: dividing by them left zeros."""
    space = spaces.Box(low, high, shape, dtype)
    encoder = Encoder(space)
    assert encoder.parts[0].scale == 1.0
    assert is_numeric(space), "so that --train.normalize-obs may scale them"
    if shape == (3,):
        assert encoder(torch.tensor([[5, -3, 0]])).tolist() == [[5.0, -3.0, 0.0]]


@pytest.mark.parametrize(
    ("low", "high", "dtype", "scale"),
    [
        (0, 255, np.uint8, 1 / 255),
        (-128, 127, np.int8, 1 / 127),
        (0, 65535, np.uint16, 1 / 65535),
        (0, 1000, np.int64, 1 / 1000),
        (-1000, 10, np.int64, 1 / 999),
        (0, 1, np.int64, 1.0),
    ],
)
def test_integers_with_tight_bounds_are_scaled_by_the_largest(low, high, dtype, scale):
    space = spaces.Box(low, high, (2,), dtype)
    assert Encoder(space).parts[0].scale == pytest.approx(scale)
    assert not is_numeric(space)


def test_which_leaves_are_plain_numbers():
    names = {name for name, space in OBSERVATIONS.items() if is_numeric(space)}
    assert names == {"numbers", "numbers of float64", "one number", "small grid", "one pixel"}
    layout, leaves = Layout(OBSERVATIONS["dict"]), leaf_spaces(OBSERVATIONS["dict"])
    assert [space.shape for space in leaves] == [leaf.shape for leaf in layout.leaves]
    numeric = [leaf.path for leaf, space in zip(layout.leaves, leaves) if is_numeric(space)]
    assert numeric == [("big",), ("half",), ("image",), ("pose", 0), ("pose", 1)]


@pytest.mark.parametrize("limit", [255.0, float(np.finfo(np.float32).max)])
def test_normalized_images_are_not_scaled_once_more(limit):
    space = spaces.Box(0, limit, (8, 8, 1), np.float32)
    assert Encoder(space).parts[0].scale == (1 / 255 if limit == 255 else 1.0)
    assert Encoder(space, normalized=True).parts[0].scale == 1.0
    pixels = spaces.Box(0, 255, (84, 84, 1), np.uint8)  # which no moments scale
    assert Encoder(pixels, normalized=True).parts[0].scale == 1 / 255


@pytest.mark.parametrize("shape", [(7, 7, 3), (3, 7, 9), (10, 10)])
def test_moments_scale_a_small_grid_of_kinds_of_objects(shape):
    """MiniGrid's kinds are 0 to 10 in a uint8: divided by 255, a policy can hardly see them."""
    space = spaces.Box(0, 255, shape, np.uint8)
    assert is_numeric(space)
    assert (Encoder(space).parts[0].scale, Encoder(space, normalized=True).parts[0].scale) == (1 / 255, 1.0)


@pytest.mark.parametrize("separate", [False, True])
def test_a_policy_and_a_qnet_know_that_observations_are_normalized(separate):
    space = spaces.Box(0, 255, (8, 8, 1), np.float32)
    policy = Policy(space, ActionHead(spaces.Discrete(2)), Net(hidden=8, separate=separate), normalized=True)
    qnet = QNet(space, 2, Net(hidden=8), normalized=True)
    encoders = [part for module in (policy, qnet) for part in module.modules() if isinstance(part, Encoder)]
    assert [encoder.parts[0].scale for encoder in encoders] == [1.0] * (3 if separate else 2)


def test_channels_last_and_first_are_the_same_picture():
    last, first = (Encoder(OBSERVATIONS[f"image, channels {end}"]) for end in ("last", "first"))
    first = Encoder(spaces.Box(0, 255, (3, 84, 84), np.uint8))
    first.load_state_dict(last.state_dict())
    image = sampled(OBSERVATIONS["image, channels last"], 2)
    torch.testing.assert_close(last(image), first(image.permute(0, 3, 1, 2)))


@pytest.mark.parametrize(
    ("shape", "channels"),
    [((84, 84, 3), 3), ((3, 84, 84), 3), ((10, 10, 26), 26), ((26, 10, 10), 26), ((64, 48, 3), 3), ((4, 64, 48), 4)],
)
def test_the_channels_of_an_image_are_found(shape, channels):
    encoder = Encoder(spaces.Box(0, 1, shape, np.float32), "grid")
    convolution = next(m for m in encoder.modules() if isinstance(m, nn.Conv2d))
    assert convolution.in_channels == channels


@pytest.mark.parametrize("kind", ["mlp", *ENCODERS.stock()])
def test_every_way_to_see_images_works(kind):
    space = OBSERVATIONS["image, channels last"]
    encoder = Encoder(space, kind)
    assert encoder(sampled(space, 2)).shape == (2, encoder.features)


def test_an_image_too_small_for_nature_is_reported():
    with pytest.raises(ConfigError, match="nature needs 36 pixels a side; this image has 10 x 10. Use grid."):
        Encoder(OBSERVATIONS["small grid"], "nature")


def test_large_images_are_seen_in_bf16_on_cpus_that_have_it(monkeypatch):
    """Outputs are float32 and nearly the same; small grids and numbers stay as they are, and so do evaluations."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    for name in ("image, channels first", "image, channels last", "small grid", "numbers"):
        space = OBSERVATIONS[name]
        actor = Actor(space, spaces.Discrete(3), Net(hidden=64, layers=1), seed=1)
        obs = sampled(space, 8)
        logits, values, _ = actor.step(obs, ())
        assert policies.use_bf16(actor.policy) == name.startswith("image")
        rounded, rounded_values, _ = actor.step(obs, ())
        assert rounded.dtype == rounded_values.dtype == torch.float32
        assert torch.allclose(values, rounded_values, atol=0.02, rtol=0.02)
        assert torch.equal(logits, rounded) != name.startswith("image")
        with actor.evaluation_mode():
            assert torch.equal(logits, actor.step(obs, ())[0])
        assert torch.equal(rounded, actor.step(obs, ())[0])
        (rounded.sum() + rounded_values.sum()).backward()
        assert all(part.grad.dtype == torch.float32 for part in actor.policy.parameters() if part.grad is not None)
    policy = Actor(OBSERVATIONS["gray image"], spaces.Discrete(3), Net(), seed=1).policy
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")  # ATEN_CPU_CAPABILITY=avx2
    assert not policies.use_bf16(policy)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert not policies.use_bf16(policy)


def test_a_space_without_an_encoder_is_reported():
    with pytest.raises(ConfigError, match="Text"):
        Encoder(spaces.Text(3))


def test_layer_init_is_orthogonal_with_the_given_gain():
    layer = layer_init(nn.Linear(8, 4), 0.5, 0.25)
    torch.testing.assert_close(layer.weight @ layer.weight.t(), 0.25 * torch.eye(4))
    assert torch.equal(layer.bias, torch.full((4,), 0.25))


# ---- recurrent cores ----


class OwnMemory(nn.Module):
    """A user's recurrent policy: state of two parts of different ranks, no unroll of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.logits, self.value = nn.Linear(3 + 4, 4), nn.Linear(4 + 2, 3), nn.Linear(4, 1)

    def initial_state(self, rows: int) -> Any:
        return torch.zeros(rows, 4), torch.zeros(rows, 2, 1)

    def forward(self, obs: Any, state: Any) -> Any:
        hidden = torch.tanh(self.mix(torch.cat([obs, state[0]], 1)))
        sums = state[1] + hidden[:, :2].unsqueeze(-1)
        return self.logits(torch.cat([hidden, sums.squeeze(-1)], 1)), self.value(hidden), (hidden, sums)


class OwnNested(OwnMemory):
    """The same with a nested state that does not start at zero, and is returned in another order of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(4))

    def initial_state(self, rows: int) -> Any:
        return {"hidden": self.start.expand(rows, -1), "sums": [(torch.full((rows, 2, 1), 0.5),), torch.ones(rows)]}

    def forward(self, obs: Any, state: Any) -> Any:
        assert list(state) == ["hidden", "sums"]
        assert isinstance(state["sums"], list)
        (sums,), count = state["sums"]
        logits, value, (hidden, sums) = super().forward(obs, (state["hidden"], sums))
        return logits * count.unsqueeze(1), value, {"sums": [(sums,), count + 1], "hidden": hidden}


class OwnGRU(nn.Module):
    """A user's recurrent policy whose state is one tensor that does not start at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.heads = nn.GRUCell(3, 4), nn.Linear(4, 4)

    def initial_state(self, rows: int) -> Any:
        return torch.full((rows, 4), 0.5)

    def forward(self, obs: Any, state: Any) -> Any:
        hidden = self.cell(obs, state)
        out = self.heads(hidden)
        return out[:, :3], out[:, 3], hidden


RECURRENT = {
    "lstm": lambda: actor_of(core="lstm"),
    "lstm of its own width": lambda: actor_of(core="lstm", core_size=5),
    "mingru": lambda: actor_of(core="mingru"),
    "mingru of its own width": lambda: actor_of(core="mingru", core_size=5),
    "lstm, separate": lambda: actor_of(core="lstm", separate=True),
    "mingru, separate": lambda: actor_of(core="mingru", core_size=5, separate=True),
    "lstm, head layers": lambda: actor_of(core="lstm", head_layers=1),
    "mingru, separate, head layers": lambda: actor_of(core="mingru", core_size=5, separate=True, head_layers=2),
    "own": lambda: actor_of(policy=OwnMemory()),
    "own, one tensor": lambda: actor_of(policy=OwnGRU()),
    "own, nested": lambda: actor_of(policy=OwnNested()),
}


@pytest.fixture(params=RECURRENT)
def recurrent(request) -> Actor:
    torch.manual_seed(0)
    actor = RECURRENT[request.param]()
    for p in actor.parameters():
        nn.init.normal_(p, std=0.7)  # gates that are neither shut nor open
    return actor


def stepped(actor, obs, state, resets):
    """The slow way: a step at a time, as in play."""
    steps, rows = resets.shape
    logits, values = [], []
    start = actor.initial_state(rows)
    for t in range(steps):
        for row in range(rows if t else 0):
            if resets[t, row]:
                state = tuple(torch.cat([s[:row], s0[row : row + 1], s[row + 1 :]]) for s, s0 in zip(state, start))
        out = actor.step(obs[t * rows : (t + 1) * rows], state)
        logits.append(out[0])
        values.append(out[1])
        state = out[2]
    return torch.cat(logits), torch.cat(values)


@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (2, 3), (17, 5), (32, 2)])
def test_unrolling_a_segment_equals_stepping_through_it(recurrent, steps, rows):
    generator = torch.Generator().manual_seed(steps)
    obs = torch.randn(steps * rows, 3, generator=generator)
    resets = torch.rand(steps, rows, generator=generator) < 0.25
    state = tuple(torch.randn(part.shape, generator=generator) for part in recurrent.initial_state(rows))
    for got, exact in zip(recurrent.unroll(obs, state, resets), stepped(recurrent, obs, state, resets)):
        torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-5)


def test_gradients_of_unrolling_equal_those_of_stepping(recurrent):
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(9 * 3, 3, generator=generator)
    resets = torch.rand(9, 3, generator=generator) < 0.25
    state = tuple(torch.randn(part.shape, generator=generator) for part in recurrent.initial_state(3))
    weight = torch.randn(27, 3, generator=generator)
    grads = []
    resets[4, 1] = True  # a learned initial state gets its gradient from resets
    for logits, values in (recurrent.unroll(obs, state, resets), stepped(recurrent, obs, state, resets)):
        grads.append(torch.autograd.grad((logits * weight).sum() + values.square().sum(), list(recurrent.parameters())))
    for got, exact in zip(*grads):
        torch.testing.assert_close(got, exact, rtol=1e-4, atol=1e-4)


def test_a_row_that_is_reset_has_forgotten_everything(recurrent):
    """From the step of the reset on, its outputs are those of a fresh row, whatever it has seen before."""
    obs = torch.randn(8 * 2, 3, generator=torch.Generator().manual_seed(3))
    resets = torch.zeros(8, 2, dtype=torch.bool)
    resets[3, 0] = True
    state = tuple(torch.randn(part.shape) for part in recurrent.initial_state(2))
    logits, values = (part.view(8, 2, -1) for part in recurrent.unroll(obs, state, resets))
    fresh = recurrent.unroll(
        obs.view(8, 2, 3)[3:, :1].flatten(0, 1), recurrent.initial_state(1), torch.zeros(5, 1, dtype=torch.bool)
    )
    torch.testing.assert_close(logits[3:, 0], fresh[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(values[3:, 0, 0], fresh[1], rtol=1e-5, atol=1e-5)
    other = tuple(part + 1.0 for part in state)
    again = recurrent.unroll(obs, other, resets)[0].view(8, 2, -1)
    assert torch.equal(again[3:, 0], logits[3:, 0])  # to the bit
    assert not torch.equal(again[3:, 1], logits[3:, 1])  # the row beside it remembers
    assert not torch.equal(again[:3, 0], logits[:3, 0])


def test_a_reset_of_the_first_step_leaves_the_stored_state_as_it_is(recurrent):
    """The start state of a segment was stored after the reset: it must not be cleared a second time."""
    obs = torch.randn(4 * 2, 3, generator=torch.Generator().manual_seed(3))
    state = tuple(torch.ones_like(part) for part in recurrent.initial_state(2))
    resets = torch.zeros(4, 2, dtype=torch.bool)
    without = recurrent.unroll(obs, state, resets)[0]
    resets[0] = True
    assert torch.equal(recurrent.unroll(obs, state, resets)[0], without)


def test_lstm_equals_torch():
    torch.manual_seed(0)
    mine, theirs = LSTM(6, 5), nn.LSTMCell(6, 5)
    with torch.no_grad():
        nn.init.normal_(mine.input.bias)
        theirs.weight_ih.copy_(mine.input.weight)
        theirs.weight_hh.copy_(mine.hidden.weight)
        theirs.bias_ih.copy_(mine.input.bias)
        theirs.bias_hh.zero_()
    state = theirs_state = torch.randn(3, 5), torch.randn(3, 5)
    x = torch.randn(7, 3, 6)
    outputs = mine.unroll(x, state, torch.zeros(7, 3, dtype=torch.bool))
    for t in range(7):
        hidden, state = mine(x[t], state)
        theirs_state = theirs(x[t], theirs_state)
        torch.testing.assert_close(hidden, theirs_state[0])
        torch.testing.assert_close(state[1], theirs_state[1])
        torch.testing.assert_close(outputs[t], theirs_state[0])


def test_mingru_equals_its_equation():
    torch.manual_seed(0)
    core = MinGRU(4, 4)
    x, before = torch.randn(3, 4), torch.randn(3, 4)
    out, (after,) = core(x, (before,))
    w_z, w_h, w_g = (x @ w.t() + b for w, b in zip(core.gates.weight.chunk(3), core.gates.bias.chunk(3)))
    z, candidate = torch.sigmoid(w_z), torch.where(w_h >= 0, w_h + 0.5, torch.sigmoid(w_h))
    hidden = (1 - z) * before + z * candidate
    torch.testing.assert_close(after, hidden)
    torch.testing.assert_close(out, (1 - torch.sigmoid(w_g)) * x + torch.sigmoid(w_g) * hidden)


@pytest.mark.parametrize("kind", CORES)
def test_a_core_remembers(kind):
    """What was seen 20 steps ago changes what is said now."""
    torch.manual_seed(0)
    core, x = CORES[kind](3, 8), torch.randn(20, 1, 3)
    resets = torch.zeros(20, 1, dtype=torch.bool)
    x2 = x.clone()
    x2[0] += 1.0
    one, other = (core.unroll(part, core.initial_state(1), resets) for part in (x, x2))
    assert not torch.equal(one[-1], other[-1])


@pytest.mark.parametrize("kind", CORE_PLUGINS.stock())
def test_only_a_stock_core_runs_the_fused_kernels(kind, monkeypatch):
    """A subclass may compute something else, so it takes the plain path."""
    stock = CORE_PLUGINS.find(kind)

    class Subclass(stock):
        pass

    monkeypatch.setattr(fused, "is_for", lambda x: True)
    for name in ("lstm", "lstm_step", "mingru"):
        monkeypatch.setattr(fused, name, _refuse)
    x, resets = torch.randn(4, 2, 3), torch.zeros(4, 2, dtype=torch.bool)
    with torch.no_grad():
        for core, is_fused in ((stock(3, 8), True), (Subclass(3, 8), False)):
            state = core.initial_state(2)
            for call in (lambda: core(x[0], state), lambda: core.unroll(x, state, resets)):  # noqa: B023
                with pytest.raises(RuntimeError, match="fused") if is_fused else contextlib.nullcontext():
                    call()


def _refuse(*args):
    raise RuntimeError("a fused kernel was called")


@pytest.mark.parametrize("kind", CORE_PLUGINS.stock())
@pytest.mark.parametrize("inputs", [5, 8])
def test_the_gates_of_a_core_are_stacks_of_matrices(kind, inputs):
    """`gate_rows` is what Muon cuts the 2-D parameters by."""
    core = CORE_PLUGINS.find(kind)(inputs, 8)
    assert core.gate_rows == 8
    assert all(p.shape[0] % core.gate_rows == 0 for p in core.parameters() if p.ndim == 2)


# ---- plugins ----


class Decay(nn.Module):
    """A core of another package: an average that decays. Its features are not its size."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size, self.features = size, size + 1
        self.mix = nn.Linear(inputs, size)

    def initial_state(self, rows: int) -> Any:
        return (torch.ones(rows, self.size),)

    def forward(self, x: Any, state: Any) -> Any:
        average = 0.9 * state[0] + 0.1 * self.mix(x)
        return torch.cat([average, average[:, :1]], 1), (average,)

    def unroll(self, x: Any, state: Any, resets: Any) -> Any:
        outputs = []
        for t in range(len(x)):
            if t:
                state = policies.clear_state(state, ~resets[t], self.initial_state(1))
            features, state = self(x[t], state)
            outputs.append(features)
        return torch.stack(outputs)


class Pixels(nn.Module):
    """An image encoder of another package: every pixel is a feature."""

    min_side = 4

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.features = int(np.prod(shape))

    def forward(self, image: Any) -> Any:
        return image.flatten(1)


@pytest.fixture
def plugins(monkeypatch):
    for registry in (CORE_PLUGINS, ENCODERS):
        monkeypatch.setattr(registry, "_registered", {})
    CORE_PLUGINS.register("decay", Decay)
    ENCODERS.register("pixels", Pixels)


def test_a_registered_core_and_encoder_are_choices_of_their_options(plugins):
    net = config.from_dict(Net, {"core": "decay", "encoder": "pixels"}, "nn")
    assert (net.core, net.encoder) == ("decay", "pixels")
    with pytest.raises(
        ConfigError, match=r"nn.core = 'decai'. Did you mean 'decay'\? Choices: none, lstm, mingru, decay"
    ):
        config.from_dict(Net, {"core": "decai"}, "nn")
    with pytest.raises(ConfigError, match="Choices: auto, mlp, grid, impala, nature, pixels"):
        config.from_dict(Net, {"encoder": "vit"}, "nn")


def test_a_registered_core_and_encoder_make_a_policy(plugins):
    space = spaces.Box(0, 255, (6, 6, 3), np.uint8)
    actor = actor_of(space, core="decay", encoder="pixels", core_size=5)
    assert isinstance(actor.policy.body.encoder.parts[0].cnn, Pixels)
    obs, resets = sampled(space, 6), torch.tensor([[False, False], [True, False], [False, True]])
    for got, exact in zip(
        actor.unroll(obs, actor.initial_state(2), resets), stepped(actor, obs, actor.initial_state(2), resets)
    ):
        torch.testing.assert_close(got, exact)
    with pytest.raises(ConfigError, match="pixels needs 4 pixels a side; this image has 3 x 6"):
        actor_of(spaces.Box(0, 255, (3, 6, 3), np.uint8), encoder="pixels")


def test_an_unknown_core_or_encoder_is_a_suggestion():
    with pytest.raises(ConfigError, match="no core 'lstn'. Did you mean 'lstm'"):
        actor_of(core="lstn")
    with pytest.raises(ConfigError, match="no encoder 'natur'. Did you mean 'nature'"):
        actor_of(OBSERVATIONS["gray image"], encoder="natur")


# ---- policies ----


def _keys(*names: str) -> list[str]:
    return [f"{name}.{kind}" for name in names for kind in ("weight", "bias")]


HEADS = _keys("body.layers.layers.0", "actor", "critic")
CNN = "body.encoder.parts.0.cnn.layers"
# the keys of state dicts before cores and encoders became plugins (commit 167f0e7)
STATE_DICTS = {
    "none": HEADS,
    "lstm": [*HEADS[:2], *_keys("core.input"), "core.hidden.weight", *HEADS[2:]],
    "mingru": [*HEADS[:2], *_keys("core.gates"), "core.skip.weight", *HEADS[2:]],
    "grid": _keys(*(f"{CNN}.{k}" for k in (0, 2))) + HEADS,
    "nature": _keys(*(f"{CNN}.{k}" for k in (0, 2, 4))) + HEADS,
    "impala": _keys(
        *(
            f"{CNN}.{part}"
            for k in (0, 4, 8)
            for part in (k, *(f"{k + block}.layers.{layer}" for block in (2, 3) for layer in (1, 3)))
        )
    )
    + HEADS,
}


@pytest.mark.parametrize("kind", STATE_DICTS)
def test_the_names_of_weights_are_those_of_old_checkpoints(kind):
    is_image = kind in ENCODERS.stock()
    space = spaces.Box(0, 255, (40, 40, 3), np.uint8) if is_image else OBSERVATIONS["numbers"]
    net = Net(hidden=8, layers=1, **({"encoder": kind} if is_image else {"core": kind, "core_size": 5}))
    assert list(Policy(space, ActionHead(spaces.Discrete(3)), net).state_dict()) == STATE_DICTS[kind]


def test_the_same_seed_makes_the_same_policy_and_leaves_torch_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = actor_of(seed=3), actor_of(seed=3), actor_of(seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters()))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


@pytest.mark.parametrize("std", ["free", "state"])
def test_a_fresh_policy_draws_box_actions_with_the_asked_spread(std):
    space = spaces.Box(-1, 1, (2,), np.float32)
    actor = actor_of(action_space=space, std=std, log_std=-1.0)
    logits, _, _ = actor.step(sampled(OBSERVATIONS["numbers"], 6), ())
    assert logits.shape == (6, 4)
    torch.testing.assert_close(logits[:, 2:], torch.full((6, 2), -1.0), rtol=0, atol=0.05)


@pytest.mark.parametrize("std", ["free", "state"])
def test_a_fresh_policy_draws_box_actions_around_the_asked_means(std):
    box = spaces.Box(-1, 1, (3,), np.float32)
    numbers = sampled(OBSERVATIONS["numbers"], 6)
    logits, _, _ = actor_of(action_space=box, std=std, mean=(0.0, 2.0, -0.5), log_std=-1.0).step(numbers, ())
    torch.testing.assert_close(logits[:, :3], torch.tensor([[0.0, 2.0, -0.5]]).expand(6, 3), rtol=0, atol=0.05)
    torch.testing.assert_close(logits[:, 3:], torch.full((6, 3), -1.0), rtol=0, atol=0.05)
    mixed = spaces.Dict(a=spaces.Discrete(2), b=box)  # choices keep their even odds; one mean is for all numbers
    logits, _, _ = actor_of(action_space=mixed, std=std, mean=(0.7,)).step(numbers, ())
    torch.testing.assert_close(logits[:, :5], torch.tensor([[0.0, 0.0, 0.7, 0.7, 0.7]]).expand(6, 5), rtol=0, atol=0.05)


def test_without_means_a_policy_is_the_same_as_ever():
    box = spaces.Box(-1, 1, (3,), np.float32)
    for ours, theirs in zip(
        actor_of(action_space=box).parameters(), actor_of(action_space=box, mean=(0.0,)).parameters()
    ):
        assert torch.equal(ours, theirs)


def test_means_that_do_not_fit_the_actions_are_refused():
    with pytest.raises(ConfigError, match="--nn.mean 1 2: 2 means, and the actions have 3 numbers of a Box"):
        actor_of(action_space=spaces.Box(-1, 1, (3,), np.float32), mean=(1.0, 2.0))
    with pytest.raises(ConfigError, match="--nn.mean 1 2: the actions have no numbers"):
        actor_of(mean=(1.0, 2.0))
    assert options_for("no/tuned:env", {"nn": {"mean": 0.5}}).nn.mean == (0.5,)
    for mean, message in ((101.0, "--nn.mean 101.0 is above 100"), (float("nan"), "is not a number")):
        with pytest.raises(ConfigError, match=message):
            options_for("no/tuned:env", {"nn": {"mean": [0.0, mean]}})


def test_layers_after_the_core_make_a_policy_that_fast_implementations_do_not_cover():
    """They cover exactly Policy."""
    deep = actor_of(core="lstm", head_layers=2, hidden=8).policy
    assert type(deep) is not Policy
    assert [layer.weight.shape for layer in deep.head_body.layers] == [(8, 8), (8, 8)]
    assert type(actor_of(core="lstm").policy) is type(actor_of(separate=True).policy) is Policy
    with pytest.raises(ConfigError, match="--nn.head-layers 1 needs a --nn.core"):
        actor_of(head_layers=1)


@pytest.mark.parametrize(("core", "head_layers"), [("none", 0), ("lstm", 0), ("mingru", 0), ("mingru", 1)])
def test_separate_networks_share_no_weight(core, head_layers):
    actor = actor_of(separate=True, core=core, head_layers=head_layers)
    logits, values, _ = actor.step(sampled(OBSERVATIONS["numbers"], 4), actor.initial_state(4))
    of_logits = torch.autograd.grad(logits.sum(), list(actor.parameters()), allow_unused=True, retain_graph=True)
    of_values = torch.autograd.grad(values.sum(), list(actor.parameters()), allow_unused=True)
    assert all((a is None) != (b is None) for a, b in zip(of_logits, of_values))


@pytest.mark.parametrize("core", ["lstm", "mingru"])
def test_separate_cores_equal_two_policies_side_by_side(core):
    """The state is the actor core's tensors, then the critic core's. Each half is a policy of its own."""
    torch.manual_seed(0)
    both = actor_of(separate=True, core=core).policy
    for p in both.parameters():
        nn.init.normal_(p, std=0.7)
    for_actor, for_critic = (actor_of(core=core).policy for _ in range(2))
    for half, body, memory in ((for_actor, both.body, both.core), (for_critic, both.critic_body, both.critic_core)):
        half.body.load_state_dict(body.state_dict())
        half.core.load_state_dict(memory.state_dict())
        half.actor.load_state_dict(both.actor.state_dict())
        half.critic.load_state_dict(both.critic.state_dict())
    state = both.initial_state(3)
    assert type(both.core) is type(both.critic_core)
    assert len(state) == 2 * len(for_actor.initial_state(3))
    state = tuple(torch.randn_like(part) for part in state)
    obs, half = torch.randn(3, 3), len(state) // 2
    logits, values, after = both(obs, state)
    one_logits, _, one_after = for_actor(obs, state[:half])
    _, other_values, other_after = for_critic(obs, state[half:])
    assert torch.equal(logits, one_logits)
    assert torch.equal(values, other_values)
    assert all(torch.equal(a, b) for a, b in zip(after, (*one_after, *other_after), strict=True))
    obs, resets = torch.randn(5 * 3, 3), torch.rand(5, 3) < 0.3
    logits, values = both.unroll(obs, state, resets)
    assert torch.equal(logits, for_actor.unroll(obs, state[:half], resets)[0])
    assert torch.equal(values, for_critic.unroll(obs, state[half:], resets)[1])


def test_one_network_for_both_heads_has_the_same_first_weights_as_before():
    """The order in which weights are drawn and flattened is part of every checkpoint and of the GPU's kernels."""
    for options in ({"core": "lstm"}, {"separate": True}, {"core": "lstm", "separate": True}):
        names = [name.split(".")[0] for name, _ in actor_of(**options).policy.named_parameters()]
        wanted = ["body", "critic_body", "core", "critic_core", "actor", "critic"]
        assert list(dict.fromkeys(names)) == [name for name in wanted if name in names]


def test_no_layers_is_a_linear_policy():
    actor = actor_of(layers=0)
    assert sorted(name for name, _ in actor.policy.named_parameters()) == [
        f"{part}.{kind}" for part in ("actor", "critic") for kind in ("bias", "weight")
    ]


class Plain(nn.Module):
    """A user's policy that returns what its test gives it."""

    def __init__(self, outputs: Any, state: Any = None) -> None:
        super().__init__()
        self.outputs, self.weight = outputs, nn.Parameter(torch.zeros(()))
        if state is not None:
            self.initial_state = state

    def forward(self, obs: Any, *state: Any) -> Any:
        return self.outputs(len(obs))


def zeros(*shape):
    return torch.zeros(*shape)


@pytest.mark.parametrize(
    "outputs",
    [lambda n: (zeros(n, 3), zeros(n)), lambda n: (zeros(n, 3), zeros(n, 1)), lambda n: [zeros(n, 3), zeros(n)]],
)
def test_a_users_policy_is_taken_as_it_is(outputs):
    actor = actor_of(policy=Plain(outputs))
    logits, values, state = actor.step(zeros(5, 3), ())
    assert (logits.shape, values.shape, state) == ((5, 3), (5,), ())
    logits, values = actor.unroll(zeros(10, 3), (), torch.zeros(0, dtype=torch.bool))
    assert (logits.shape, values.shape) == ((10, 3), (10,))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Plain(lambda n: zeros(n, 3)), r"returned a Tensor; it must return \(logits, value\)"),
        (Plain(lambda n: (zeros(n, 3),)), "returned 1 values"),
        (Plain(lambda n: (zeros(n, 4), zeros(n))), r"logits have shape \(2, 4\), expected \(2, 3\): 3 logits"),
        (Plain(lambda n: (zeros(3), zeros(n))), r"logits have shape \(3,\)"),
        (Plain(lambda n: (zeros(n, 3), zeros(n, 3))), r"value has shape \(2, 3\), expected \(2,\)"),
        (Plain(lambda n: (zeros(n, 3), zeros(n), zeros(n, 4))), r"no initial_state\(rows\)"),
        (Plain(lambda n: (zeros(n, 3), zeros(n)), lambda n: zeros(n, 4)), "state"),
        (Plain(lambda n: (zeros(n, 3), zeros(n), zeros(n, 5)), lambda n: zeros(n, 4)), "state"),
        (Plain(lambda n: (zeros(n, 3), zeros(n), (zeros(n, 4), zeros(n, 4))), lambda n: zeros(n, 4)), "state"),
        (Plain(lambda n: (zeros(n, 3), zeros(n), zeros(1, n, 4)), lambda n: zeros(1, n, 4)), "rows"),
    ],
)
def test_a_users_policy_that_does_not_fit_is_reported(policy, message):
    with pytest.raises(ConfigError, match=message):
        actor_of(policy=policy)


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize("count", [1, 2])
def test_a_state_comes_back_as_the_policy_returned_it(kind, count):
    """A tuple of one tensor is not that tensor, and a list is not a tuple."""
    states = []

    class Recorder(nn.Module):
        def initial_state(self, rows: int) -> Any:
            return kind(zeros(rows, k + 1) for k in range(count))

        def forward(self, obs: Any, state: Any) -> Any:
            states.append(state)
            return zeros(len(obs), 3), zeros(len(obs)), kind(part + 1 for part in state)

    actor = actor_of(policy=Recorder())
    state = actor.step(zeros(4, 3), actor.initial_state(4))[2]
    assert type(state) is tuple
    actor.step(zeros(4, 3), state)
    actor.unroll(zeros(8, 3), state, torch.zeros(2, 4, dtype=torch.bool))
    assert all(type(state) is kind and len(state) == count for state in states)
    assert states[-1][0].tolist() == [[2.0]] * 4


@pytest.mark.parametrize(
    ("initial", "returned", "message"),
    [
        (lambda n: {"a": zeros(n, 4)}, lambda n: {"b": zeros(n, 4)}, r"the keys \['b'\] where .* has \['a'\]"),
        (lambda n: (zeros(n), zeros(n)), lambda n: zeros(n), "has a Tensor where its initial_state has 2 parts"),
        (lambda n: (zeros(n), zeros(n)), lambda n: (zeros(n),), "has 1 parts where its initial_state has 2 parts"),
        (lambda n: [(zeros(n),)], lambda n: [(None,)], "has a NoneType where its initial_state has a tensor"),
        (lambda n: (zeros(n), 0), None, "holds a int"),
    ],
)
def test_a_state_of_another_structure_is_refused(initial, returned, message):
    with pytest.raises(ConfigError, match=message):
        actor_of(policy=Plain(lambda n: (zeros(n, 3), zeros(n), returned(n)), initial))


@pytest.mark.parametrize("initial", ["zeros", "one row", "all rows"])
def test_clear_state_equals_a_loop_over_rows(initial):
    generator = torch.Generator().manual_seed(0)
    state = torch.randn(5, 3, generator=generator), torch.arange(10).view(5, 2, 1), torch.randn(5, generator=generator)
    state[0][1] = float("nan")
    rows = {"zeros": 0, "one row": 1, "all rows": 5}[initial]
    start = tuple(torch.ones(rows, *part.shape[1:], dtype=part.dtype) for part in state)
    keep = torch.tensor([True, False, True, False, True])
    exact = [part.clone() for part in state]
    for part, first in zip(exact, start):
        for row in range(5):
            if not keep[row]:
                part[row] = 0 if initial == "zeros" else first[row if rows == 5 else 0]
    before = [part.clone() for part in state]
    cleared = policies.clear_state(state, keep, None if initial == "zeros" else start)
    for got, expected, part, old in zip(cleared, exact, state, before):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)
        torch.testing.assert_close(part, old, equal_nan=True, rtol=0, atol=0)


def test_the_initial_row_is_none_where_it_is_zero_for_good():
    assert policies.initial_row(actor_of(core="lstm").policy) is None
    assert policies.initial_row(actor_of().policy) is None
    assert torch.equal(policies.initial_row(OwnGRU())[0], torch.full((1, 4), 0.5))
    learned = OwnNested()
    nn.init.zeros_(learned.start)
    with torch.no_grad():
        row = policies.initial_row(learned)
    assert row is not None, "training changes it"
    assert [tuple(part.shape) for part in row] == [(1, 4), (1, 2, 1), (1,)]


class Noisy(nn.Module):
    """A user's policy with dropout and batch normalization, one part of which is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.frozen = nn.BatchNorm1d(3), nn.Dropout(0.5).eval()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 4))

    def forward(self, obs: Any) -> Any:
        out = self.layers(self.frozen(self.norm(obs)))
        return out[:, :3], out[:, 3]


def test_evaluation_mode_turns_dropout_off_and_gives_every_module_its_mode_back():
    actor, obs = actor_of(policy=Noisy()), torch.randn(6, 3) + 5.0
    modes = [part.training for part in actor.modules()]
    moments = actor.policy.norm.running_mean.clone()
    with policies.evaluation_mode(actor):
        assert not any(part.training for part in actor.modules())
        assert torch.equal(actor.step(obs, ())[0], actor.step(obs, ())[0])
    assert torch.equal(actor.policy.norm.running_mean, moments)
    assert [part.training for part in actor.modules()] == modes
    assert not torch.equal(actor.step(obs, ())[0], actor.step(obs, ())[0])
    assert not torch.equal(actor.policy.norm.running_mean, moments)
    with pytest.raises(RuntimeError), policies.evaluation_mode(actor, OwnGRU()):
        raise RuntimeError
    assert [part.training for part in actor.modules()] == modes


def test_trying_a_users_policy_changes_nothing_in_it():
    torch.manual_seed(0)
    policy = Noisy()
    before, numbers = {name: part.clone() for name, part in policy.state_dict().items()}, torch.get_rng_state()
    actor_of(policy=policy)
    assert all(torch.equal(part, before[name]) for name, part in policy.state_dict().items())
    assert torch.equal(torch.get_rng_state(), numbers)


@pytest.mark.parametrize("name", ["none", "lstm", "mingru", "own"])
def test_compiled_policies_are_compiled_for_acting_and_for_learning(name):
    """torch.compile(policy) alone compiles the call: `unroll` ran as if there were no compiler."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    policy = OwnGRU() if name == "own" else actor_of(core=name).policy
    counter = CompileCounter()
    both = policies.compiled(policy, backend=counter)
    obs, state, resets = torch.randn(6, 3), policies.initial_state(policy, 2), torch.zeros(3, 2, dtype=torch.bool)
    resets[1, 0] = True
    with torch.no_grad():
        acted = policies.step(both, obs[:2], state)
    acting = counter.frame_count
    assert acting >= 1
    for got, exact in zip(acted, policies.step(policy, obs[:2], state)):
        torch.testing.assert_close(got, exact)
    learned = policies.unroll(both, obs, state, resets)
    assert counter.frame_count > acting
    torch.testing.assert_close(learned, policies.unroll(policy, obs, state, resets))
    sum(part.sum() for part in learned).backward()
    assert all(p.grad is not None for p in policy.parameters())


def test_a_copy_of_a_compiled_policy_runs_the_copied_weights():
    torch._dynamo.reset()
    policy = actor_of(core="mingru").policy
    original, twin = copy.deepcopy([policies.compiled(policy, backend="eager"), policy]), None
    original, twin = original
    assert original.policy is twin
    nn.init.zeros_(twin.actor.weight)
    obs, state = torch.randn(2, 3), policies.initial_state(policy, 2)
    assert not policies.step(original, obs, state)[0].any()
    assert policies.step(policy, obs, state)[0].any()


def test_logits_of_a_box_are_named_in_the_message():
    with pytest.raises(ConfigError, match="2 means \\+ 2 log stds"):
        actor_of(action_space=spaces.Box(-1, 1, (2,)), policy=Plain(lambda n: (zeros(n, 2), zeros(n))))


def test_observations_are_scaled_before_any_policy_sees_them():
    space = spaces.Dict({"x": spaces.Box(-9, 9, (2,), np.float32), "k": spaces.Discrete(3)})
    actor = Actor(space, spaces.Discrete(2), Net(hidden=8), seed=0, normalize_obs=True)
    assert list(actor.moments) == ["1"]  # the leaves are k, x; ids are not scaled
    actor.moments["1"].update(torch.tensor([[0.0, 10.0], [2.0, 30.0]]))
    seen = actor.normalize({"x": torch.tensor([[3.0, 20.0]]), "k": torch.tensor([2])})
    torch.testing.assert_close(seen["x"], torch.tensor([[2.0, 0.0]]))
    assert seen["k"].tolist() == [2]


def test_state_and_policy_come_back_from_a_state_dict():
    one, other = actor_of(core="lstm", seed=1), actor_of(core="lstm", seed=2)
    other.load_state_dict(one.state_dict())
    obs = sampled(OBSERVATIONS["numbers"], 3)
    assert torch.equal(one.step(obs, one.initial_state(3))[0], other.step(obs, other.initial_state(3))[0])


def test_policy_is_a_plain_module_without_an_actor():
    head = ActionHead(spaces.Discrete(3))
    logits, values = Policy(OBSERVATIONS["numbers"], head, Net(hidden=8))(sampled(OBSERVATIONS["numbers"], 2))
    assert (logits.shape, values.shape) == ((2, 3), (2,))


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Box(-1, 1, (0,)), r"obs has no elements: its space is Box"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (2, 0))), r"obs\['b'\] has no elements"),
    ],
)
def test_an_observation_without_elements_is_refused_by_its_name(space, says):
    with pytest.raises(ConfigError, match=says):
        Encoder(space)


def test_q_learning_names_the_action_space_that_it_cannot_use():
    with pytest.raises(ConfigError, match=r"this env has MultiDiscrete\(\[5 2\]\). Use --algo ppo"):
        QHead(spaces.MultiDiscrete([5, 2]))
