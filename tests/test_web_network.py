"""The network that a page runs (native/core/policy.h) gives the logits, values and states of the policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from shoal.algos.actor import Actor
from shoal.errors import ConfigError
from shoal.nn.policy import Net
from shoal.nn.qnet import QHead, QNet
from shoal.web import instructions, network

NUMBERS = spaces.Box(-np.inf, np.inf, (7,), np.float32)
GRID = spaces.Box(0, 255, (9, 11, 3), np.uint8)
PLANES = spaces.Box(0, 255, (3, 12, 10), np.uint8)
PIXELS = spaces.Box(0, 255, (40, 44), np.uint8)
ONE = spaces.Discrete(4)
MULTI = spaces.MultiDiscrete([3, 2])
BOX = spaces.Box(-2.0, 3.0, (2,), np.float32)
MIX = spaces.Tuple([BOX, spaces.Discrete(3)])

POLICIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mlp": (NUMBERS, ONE, {"hidden": 16, "layers": 3}),
    "no layers": (NUMBERS, ONE, {"layers": 0}),
    "tanh": (NUMBERS, MULTI, {"hidden": 8, "activation": "tanh"}),
    "gelu": (NUMBERS, BOX, {"hidden": 8, "activation": "gelu"}),
    "silu": (NUMBERS, MIX, {"hidden": 8, "activation": "silu", "std": "state"}),
    "separate": (NUMBERS, BOX, {"hidden": 8, "separate": True}),
    "lstm": (NUMBERS, ONE, {"hidden": 8, "core": "lstm", "core_size": 12}),
    "separate lstm": (NUMBERS, ONE, {"hidden": 8, "core": "lstm", "separate": True}),
    "deep lstm": (NUMBERS, ONE, {"hidden": 8, "core": "lstm", "head_layers": 2, "separate": True}),
    "mingru": (NUMBERS, MULTI, {"hidden": 8, "core": "mingru"}),
    "wide mingru": (NUMBERS, ONE, {"hidden": 8, "core": "mingru", "core_size": 12, "head_layers": 1}),
    "mingru on a grid": (GRID, ONE, {"layers": 0, "core": "mingru", "core_size": 960}),
    "grid": (GRID, ONE, {"hidden": 16}),
    "planes": (PLANES, ONE, {"hidden": 16, "layers": 0}),
    "nature": (PIXELS, ONE, {"hidden": 16}),
    "impala": (GRID, ONE, {"hidden": 16, "encoder": "impala"}),
    "flat": (GRID, ONE, {"hidden": 16, "encoder": "mlp"}),
}
Q_NETS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dueling": {"dueling": True, "layer_norm": True},
    "c51": {"distribution": "c51", "num_atoms": 11, "low": -2.0, "high": 5.0},
    "quantile": {"distribution": "quantile", "num_atoms": 7, "dueling": True},
}


def random_actor(obs: Any, acts: Any, net: Net, **keywords: Any) -> Actor:
    """An actor with random weights that are not small, biases and moments included."""
    actor = Actor(obs, acts, net, seed=1, **keywords)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in actor.parameters():
            scale = 1.0 / max(1.0, float(parameter[0].numel() if parameter.ndim > 1 else 1)) ** 0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        for moments in actor.moments.values():
            moments.mean.copy_(torch.randn(moments.mean.shape, generator=generator))
            moments.var.copy_(torch.rand(moments.var.shape, generator=generator) + 0.5)
    return actor


def differences(actor: Actor, bits: int, steps: int = 5) -> tuple[float, float, float]:
    """The largest differences of logits, value and state over a few steps."""
    translated = network.translate(actor, bits=bits)
    run = instructions.Runner(translated)
    rng = np.random.default_rng(3)
    leaf, state = actor.layout.leaves[0], actor.initial_state(1)
    own = np.zeros(translated.state_size, np.float32)
    worst = [0.0, 0.0, 0.0]
    for _ in range(steps):
        obs = (rng.integers(0, 256, leaf.shape) if leaf.dtype == np.uint8 else rng.normal(size=leaf.shape) * 2).astype(
            leaf.dtype
        )
        with torch.no_grad():
            decision = actor.act(torch.from_numpy(obs)[None], state)
        state = decision.state
        logits, value = run(obs, own)
        memory = np.concatenate([np.zeros(0, np.float32), *(part.numpy().reshape(-1) for part in state)])
        found = (logits - decision.logits[0].numpy(), value - float(decision.values[0]), own - memory)
        worst = [max(old, float(np.abs(new).max(initial=0.0))) for old, new in zip(worst, found)]
    return worst[0], worst[1], worst[2]


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("normalized", [False, True])
def test_a_policy_in_c_equals_torch(kind, normalized):
    obs, acts, options = POLICIES[kind]
    actor = random_actor(obs, acts, Net(**options), normalize_obs=normalized)
    assert max(differences(actor, 32)) < 2e-5
    assert max(differences(actor, 16)) < 5e-3


@pytest.mark.parametrize("kind", Q_NETS)
def test_a_q_network_in_c_equals_torch(kind):
    net = Net(hidden=8)
    actor = random_actor(NUMBERS, ONE, net, policy=QNet(NUMBERS, 4, net, **Q_NETS[kind]), head=QHead(ONE))
    assert max(differences(actor, 32)) < 2e-5


def test_a_custom_policy_is_refused():
    class Own(torch.nn.Module):
        def forward(self, obs):
            return obs[:, :4], obs[:, 0]

    with pytest.raises(ConfigError, match="is a Own.*--onnx"):
        network.translate(Actor(NUMBERS, ONE, Net(), seed=0, policy=Own()))


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_a_matrix_of_few_bits_is_within_half_a_step_of_its_columns(bits):
    matrix = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32) * [1.0, 1e6, 1e-9, 0.0]
    small, scale = instructions.narrowed(matrix, bits)
    assert small.dtype == np.int16
    largest = 2 ** (bits - 1) - 1
    assert np.abs(small).max() == largest
    assert (np.abs(small * scale - matrix).max(0) <= 0.51 * np.abs(matrix).max(0) / largest + 1e-30).all()
