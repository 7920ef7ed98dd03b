"""QNet: from an observation to the value of every action, as a number or a distribution. QHead: epsilon-greedy.

Networks of several agents are one module: their weights are stacked, and a layer is one batched matrix product over
all of them.
"""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.errors import ConfigError
from shoal.nn.distributions import NEVER, ActionHead
from shoal.nn.encoders import Encoder
from shoal.nn.layers import ACTIVATIONS
from shoal.nn.policy import Net

NATIVE_ACTIVATIONS = ("relu", "tanh")  # that C computes (algos/fast/q_native.py)


class Dense(nn.Module):
    """A linear layer for each of `agents`: (agents, rows, inputs) -> (agents, rows, outputs). One: no first axis."""

    def __init__(self, agents: int, inputs: int, outputs: int, std: float, layer_norm: bool = False) -> None:
        super().__init__()
        weight = torch.empty(agents, outputs, inputs)
        for part in weight:
            nn.init.orthogonal_(part, std)
        self.weight = nn.Parameter(weight.transpose(1, 2).contiguous())
        self.bias = nn.Parameter(torch.zeros(agents, 1, outputs))
        self.gain = nn.Parameter(torch.ones(agents, 1, outputs)) if layer_norm else None
        self.shift = nn.Parameter(torch.zeros(agents, 1, outputs)) if layer_norm else None

    def forward(self, x: Tensor) -> Tensor:
        """One matrix product, and with `layer_norm` each row scaled to mean 0 and variance 1 (Ba et al. 2016)."""
        is_one = x.ndim == 2
        out = torch.addmm(self.bias[0], x, self.weight[0]) if is_one else torch.baddbmm(self.bias, x, self.weight)
        if self.gain is None or self.shift is None:
            return out
        gain, shift = (self.gain[0], self.shift[0]) if is_one else (self.gain, self.shift)
        return torch.addcmul(shift, nn.functional.layer_norm(out, out.shape[-1:]), gain)


class QNet(nn.Module):
    """Returns (Q, max Q) as policies do. `outputs` are what the loss is for: values, logits of atoms, or quantiles.

    Row r of a batch is agent r % agents of its env. `dueling` (Wang et al. 2016): separate value and advantage streams;
    the advantages of a state have mean 0. `normalized`: as in `Policy` (nn/policy.py).
    """

    atoms: Tensor

    def __init__(
        self,
        space: spaces.Space[Any],
        choices: int,
        net: Net,
        *,
        agents: int = 1,
        dueling: bool = False,
        layer_norm: bool = False,
        distribution: str = "none",
        num_atoms: int = 1,
        low: float = 0.0,
        high: float = 0.0,
        normalized: bool = False,
    ) -> None:
        super().__init__()
        options = getattr(net, "encoder_options", None)
        self.encoder = Encoder(space, net.encoder, normalized=normalized, options=options)
        if agents > 1 and any(True for _ in self.encoder.parameters()):
            raise ConfigError(
                "--train.policy per-agent supports observations of numbers and of few choices; this env's need a CNN "
                "or an embedding. Use --train.policy shared, or --nn.encoder mlp."
            )
        self.agents, self.choices, self.dueling = agents, choices, dueling
        self.distribution, self.num_atoms = distribution, num_atoms if distribution != "none" else 1
        sizes = [self.encoder.features] + [net.hidden] * net.layers
        self.layers = nn.ModuleList([Dense(agents, a, b, math.sqrt(2.0), layer_norm) for a, b in pairwise(sizes)])
        self.head = Dense(agents, sizes[-1], (choices + dueling) * self.num_atoms, 0.01)
        self.activation, self.layer_norm = net.activation, layer_norm
        self._activation = ACTIVATIONS[net.activation]
        self.register_buffer("atoms", torch.linspace(low, high, self.num_atoms))
        # one network of plain layers, and an encoder without weights: on a CPU, C can compute it (algos/fast/)
        is_one = agents == 1 and not dueling and distribution == "none" and net.activation in NATIVE_ACTIVATIONS
        self.is_plain = is_one and not any(True for _ in self.encoder.parameters())

    def of_agent(self, number: int) -> QNet:
        """One agent's network as a QNet for one agent."""
        alone = copy.deepcopy(self)
        alone.agents = 1
        for name, value in self.named_parameters():
            module = alone.get_submodule(name.rpartition(".")[0])
            setattr(module, name.rpartition(".")[2], nn.Parameter(value.detach()[number : number + 1].clone()))
        return alone

    def outputs(self, obs: Any) -> Tensor:
        """(rows, choices, num_atoms)."""
        x = self.encoder.forward(obs)
        rows = x.shape[0]
        if self.agents > 1:
            x = x.view(rows // self.agents, self.agents, -1).transpose(0, 1)
        for layer in self.layers:
            x = self._activation(layer.forward(x))
        out = self.head.forward(x)
        if self.agents > 1:
            out = out.transpose(0, 1)
        out = out.reshape(rows, self.choices + self.dueling, self.num_atoms)
        if not self.dueling:
            return out
        value, advantages = out[:, :1], out[:, 1:]
        return value + advantages - advantages.mean(1, keepdim=True)

    # ---- as a policy ----

    def expect(self, outputs: Tensor) -> Tensor:
        """(rows, choices): the mean of the distribution that `outputs` describe."""
        if self.distribution == "c51":
            return torch.softmax(outputs, -1) @ self.atoms
        return outputs.mean(-1) if self.distribution == "quantile" else outputs.squeeze(-1)

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """(Q, max Q), (rows, choices) and (rows,)."""
        values = self.expect(self.outputs(obs))
        return values, values.amax(-1)


class QHead(ActionHead):
    """Epsilon-greedy: the choice of the highest value, or with probability epsilon a random one that is allowed.

    `epsilon` is a tensor, so that a captured graph reads its current value. The noise decides which rows explore.
    """

    def __init__(self, space: spaces.Space[Any], epsilon: float = 0.05) -> None:
        super().__init__(space)
        if not self.is_one_choice:
            raise ConfigError(f"Q-learning needs one Discrete action; this env has {space}. Use --algo ppo.")
        self.num_noise = self.choices + 1  # a number for every choice, and whether the row explores
        self.epsilon = torch.tensor(epsilon)

    def to(self, device: Any) -> None:
        """Moves the tensors that acting uses."""
        super().to(device)
        self.epsilon = self.epsilon.to(device)

    def draw(self, noise: Tensor, generator: torch.Generator | None) -> None:
        """Fills (..., choices + 1): uniform numbers, and 1 where the row explores, else 0."""
        noise.uniform_(generator=generator)
        if noise.device.type == "cpu":  # numpy is faster for an array this small
            explores = noise.numpy()[..., -1]
            np.less(explores, self.epsilon.item(), out=explores)
            return
        noise[..., -1] = (noise[..., -1] < self.epsilon).to(noise.dtype)

    def sample(self, logits: Tensor, noise: Tensor) -> Tensor:
        """(rows, 1)."""
        at_random = torch.where(logits > NEVER, noise[..., :-1], -1.0)  # a masked choice never has the largest number
        return torch.where(noise[..., -1:] > 0, at_random, logits).argmax(-1, keepdim=True)
