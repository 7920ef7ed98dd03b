"""From a policy's network to the instructions and weights that native/core/policy.h runs.

Matrices become 16-bit numbers with a factor for each output; everything else stays float32: biases, means and standard
deviations of observations. (float16 has the same size and 5 to 10 times the error: its 11 bits are those of each
weight, these 16 those of the largest weight of an output.) A policy of another class than Shoal's own raises.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from shoal.algos.actor import Actor
from shoal.errors import ConfigError
from shoal.native import build
from shoal.nn.cores.lstm import LSTM
from shoal.nn.cores.mingru import MinGRU
from shoal.nn.encoders import Image, Numbers
from shoal.nn.encoders.grid import GridCNN
from shoal.nn.encoders.impala import ImpalaCNN, _Residual
from shoal.nn.encoders.nature import NatureCNN
from shoal.nn.layers import ACTIVATIONS
from shoal.nn.policy import DeepPolicy, Policy
from shoal.nn.qnet import QHead, QNet
from shoal.spec import Array

WORDS = 12  # POLICY_WORDS of native/core/policy.h, and its ops in order
OPS = (
    "input recall remember normalize scale linear activate conv pool add copy transpose lstm mingru layer_norm duel "
    "expect max"
).split()
ACTIVATION_NAMES = ["relu", "tanh", "gelu", "silu"]
LIMIT = 10  # of normalized observations, in standard deviations (RunningMoments.normalize)


@dataclass(frozen=True)
class Place:
    """Floats of the network's memory: of a weight (by its number), or from `offset` on behind all weights."""

    weight: int = -1
    offset: int = 0


@dataclass
class Features:
    """Where a layer's outputs are. `order`: where they stand among those of the torch module, if not in its order."""

    place: Place
    count: int
    order: Array | None = None


@dataclass(frozen=True)
class Network:
    """A network as data. Its memory is the matrices, `floats` and zeros, `size` floats in all."""

    code: Array  # (instructions, WORDS) int32
    matrices: list[Array]  # (inputs, outputs) int16, or float32
    scales: list[Array]  # (outputs,) float32, of each matrix; empty for matrices of float32
    floats: Array  # float32
    size: int
    logits: int  # places in the memory
    value: int
    num_logits: int
    state_size: int
    inputs: int  # elements of an observation

    def memory(self) -> Array:
        """The memory before the first run."""
        memory = np.zeros(self.size, np.float32)
        wide = [matrix * scale for matrix, scale in zip(self.matrices, self.scales)] if self.scales else self.matrices
        filled = np.concatenate([np.zeros(0, np.float32), *(matrix.reshape(-1) for matrix in wide), self.floats])
        memory[: len(filled)] = filled
        return memory


class Runner:
    """Runs a network in C on the CPU, row by row: the code of the browser, to compare it with the policy."""

    def __init__(self, network: Network) -> None:
        self.network, self.memory = network, network.memory()
        self._run = _library().shoal_policy_run

    def __call__(self, obs: Array, state: Array) -> tuple[Array, float]:
        """(logits, value) of one observation. The state (state_size float32) is changed in place."""
        net, row = self.network, np.ascontiguousarray(obs).reshape(-1)
        addresses = [array.ctypes.data for array in (net.code, self.memory, row, state)]
        self._run(addresses[0], len(net.code), addresses[1], addresses[2], int(row.dtype == np.uint8), addresses[3])
        return self.memory[net.logits : net.logits + net.num_logits].copy(), float(self.memory[net.value])


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(str(build.library(build.CORE_SOURCE, "base")))
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    library.shoal_policy_run.argtypes = [pointer, number, pointer, pointer, number, pointer]
    library.shoal_policy_run.restype = None
    return library


def narrowed(matrix: Array) -> tuple[Array, Array]:
    """A matrix as int16, and the factor of each column."""
    scale = (np.abs(matrix).max(0, initial=0.0) / 32767).astype(np.float32)
    scale[scale == 0.0] = 1.0
    return np.rint(matrix / scale).astype(np.int16), scale


def translate(actor: Actor, *, bits: int = 16) -> Network:
    """The network of an actor with one network (`Actor.of_agent` gives one of several)."""
    if type(actor.policy) not in (Policy, DeepPolicy, QNet) or len(actor.layout.leaves) != 1:
        raise ConfigError(
            f"the policy is a {type(actor.policy).__name__}, and a page runs Shoal's own networks on observations of "
            "one array. Export it with --onnx or --torchscript."
        )
    writer = _Writer()
    count = int(np.prod(actor.layout.leaves[0].shape))
    obs = Features(writer.room(count), count)
    writer.emit("input", obs.place, count)
    for moments in actor.moments.values():
        mean, scale = moments.mean.float(), (moments.var + 1e-8).rsqrt().float()
        writer.emit("normalize", obs.place, count, writer.full(mean), writer.full(scale), LIMIT)
    if isinstance(actor.policy, QNet):
        logits, value, size = writer.q_net(actor.policy, obs)
    else:
        logits, value, size = writer.policy(actor.policy, obs, actor.head.num_params)
    return writer.network(logits, value, size, count, bits)


@dataclass
class _Writer:
    """Collects instructions and weights."""

    code: list[list[Any]] = field(default_factory=list)
    weights: list[tuple[Array, bool]] = field(default_factory=list)  # values, and whether 16 bits are enough
    used: int = 0  # floats behind the weights
    states: int = 0  # floats of the recurrent state

    # ---- memory ----

    def room(self, count: int) -> Place:
        place = Place(offset=self.used)
        self.used += count
        return place

    def full(self, tensor: Any) -> Place:
        """A weight in float32."""
        self.weights.append((_numpy(tensor).reshape(-1), False))
        return Place(len(self.weights) - 1)

    def matrix(self, tensor: Any) -> Place:
        """A weight whose last axis is the outputs, in 16 bits."""
        array = _numpy(tensor)
        self.weights.append((array.reshape(-1, array.shape[-1]), True))
        return Place(len(self.weights) - 1)

    def emit(self, op: str, *operands: Place | int) -> None:
        self.code.append([OPS.index(op), *operands])

    def network(self, logits: Place, value: Place, num_logits: int, inputs: int, bits: int) -> Network:
        """Orders the weights, matrices first, and turns places into numbers."""
        order = sorted(range(len(self.weights)), key=lambda k: not self.weights[k][1])
        starts, at = {}, 0
        for k in order:
            starts[k] = at
            at += self.weights[k][0].size

        def number(operand: Place | int) -> int:
            if isinstance(operand, int):
                return operand
            return starts[operand.weight] if operand.weight >= 0 else at + operand.offset

        code = np.zeros((len(self.code), WORDS), np.int32)
        for row, words in zip(code, self.code):
            row[: len(words)] = [number(word) for word in words]
        matrices = [array for array, is_matrix in self.weights if is_matrix]
        floats = np.concatenate(
            [np.zeros(0, np.float32), *(array for array, is_matrix in self.weights if not is_matrix)]
        )
        scales: list[Array] = []
        if bits == 16:
            pairs = [narrowed(matrix) for matrix in matrices]
            matrices, scales = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        places = (number(logits), number(value))
        return Network(code, matrices, scales, floats, at + self.used, *places, num_logits, self.states, inputs)

    # ---- layers ----

    def linear(self, x: Features, weight: Any, bias: Any, to: Place | None = None, *, adds: bool = False) -> Features:
        """`weight` is (outputs, inputs), as in nn.Linear."""
        matrix = _numpy(weight)
        if x.order is not None:
            matrix = matrix[:, x.order]
        outputs = matrix.shape[0]
        place = self.room(outputs) if to is None else to
        biases: Place | int = -1 if bias is None else self.full(bias)
        self.emit("linear", place, x.place, outputs, x.count, self.matrix(matrix.T), biases, int(adds))
        return Features(place, outputs)

    def activate(self, x: Features, activation: Any) -> None:
        name = next(name for name, function in ACTIVATIONS.items() if function is activation)
        self.emit("activate", x.place, x.count, ACTIVATION_NAMES.index(name))

    def mlp(self, x: Features, mlp: Any) -> Features:
        for layer in mlp.layers:
            x = self.linear(x, layer.weight, layer.bias)
            self.activate(x, mlp._activation)
        return x

    def encode(self, x: Features, encoder: Any) -> Features:
        part = encoder.parts[0]
        if type(part) not in (Numbers, Image):
            raise ConfigError(f"the encoder {type(part).__name__} has no code for the browser. Export with --onnx.")
        if part.scale != 1.0:
            copy = Features(self.room(x.count), x.count)
            self.emit("copy", copy.place, x.place, x.count)
            self.emit("scale", copy.place, x.count, self.full([part.scale]))
            x = copy
        return x if isinstance(part, Numbers) else self.image(x, part)

    def image(self, x: Features, part: Any) -> Features:
        """Images are (height, width, channels) here. The features of torch's modules are (channels, height, width)."""
        if type(part.cnn) not in (GridCNN, NatureCNN, ImpalaCNN):
            name = type(part.cnn).__name__
            raise ConfigError(f"the encoder {name} has no code for the browser: grid, nature and impala have.")
        channels, height, width = part.shape
        place = x.place
        if not part.channels_last and channels > 1:
            place = self.room(x.count)
            self.emit("transpose", place, x.place, channels, height * width)
        place, shape = self.convolve(part.cnn.layers, place, (height, width, channels))
        height, width, channels = shape
        order = np.arange(channels * height * width).reshape(channels, height, width).transpose(1, 2, 0).reshape(-1)
        return Features(place, len(order), order)

    def convolve(self, layers: Any, place: Place, shape: tuple[int, int, int]) -> tuple[Place, tuple[int, int, int]]:
        for layer in layers:
            height, width, channels = shape
            count = height * width * channels
            if isinstance(layer, nn.Flatten):
                continue
            if isinstance(layer, nn.ReLU):  # in a copy: a residual block needs its input again
                before, place = place, self.room(count)
                self.emit("copy", place, before, count)
                self.emit("activate", place, count, ACTIVATION_NAMES.index("relu"))
                continue
            if isinstance(layer, _Residual):
                inner, _ = self.convolve(layer.layers, place, shape)
                self.emit("add", inner, place, count)
                place = inner
                continue
            side, stride, padding = (_one(getattr(layer, name)) for name in ("kernel_size", "stride", "padding"))
            after = layer.out_channels if isinstance(layer, nn.Conv2d) else channels
            rows, columns = ((size + 2 * padding - side) // stride + 1 for size in (height, width))
            to = self.room(rows * columns * after)
            if isinstance(layer, nn.Conv2d):
                weights = self.matrix(_numpy(layer.weight).transpose(2, 3, 1, 0))
                sizes = (after, channels, height, width, side, stride, padding)
                self.emit("conv", to, place, *sizes, weights, self.full(layer.bias))
            else:
                self.emit("pool", to, place, channels, height, width, side, stride, padding)
            place, shape = to, (rows, columns, after)
        return place, shape

    # ---- cores ----

    def core(self, x: Features, core: Any) -> Features:
        if type(core) is LSTM:
            return self.lstm(x, core)
        if type(core) is MinGRU:
            return self.mingru(x, core)
        raise ConfigError(f"the core {type(core).__name__} has no code for the browser: lstm and mingru have.")

    def recall(self, count: int) -> tuple[Features, int]:
        """A part of the recurrent state, and where it is in it."""
        part, at = Features(self.room(count), count), self.states
        self.states += count
        self.emit("recall", part.place, count, at)
        return part, at

    def lstm(self, x: Features, core: LSTM) -> Features:
        (hidden, hidden_at), (cell, cell_at) = self.recall(core.size), self.recall(core.size)
        gates = self.linear(x, core.input.weight, core.input.bias)
        self.linear(hidden, core.hidden.weight, None, gates.place, adds=True)
        self.emit("lstm", gates.place, cell.place, hidden.place, core.size)
        self.emit("remember", hidden.place, core.size, hidden_at)
        self.emit("remember", cell.place, core.size, cell_at)
        return hidden

    def mingru(self, x: Features, core: MinGRU) -> Features:
        hidden, at = self.recall(core.size)
        gates = self.linear(x, core.gates.weight, core.gates.bias)
        if isinstance(core.skip, nn.Identity):
            skip = x if x.order is None else self.linear(x, _identity(x.count), None)
        else:
            skip = self.linear(x, core.skip.weight, None)
        out = Features(self.room(core.size), core.size)
        self.emit("mingru", gates.place, skip.place, hidden.place, out.place, core.size)
        self.emit("remember", hidden.place, core.size, at)
        return out

    # ---- whole networks ----

    def policy(self, policy: Any, obs: Features, num_params: int) -> tuple[Place, Place, int]:
        for_actor = self.mlp(self.encode(obs, policy.body.encoder), policy.body.layers)
        for_critic = for_actor
        if policy.critic_body is not None:
            for_critic = self.mlp(self.encode(obs, policy.critic_body.encoder), policy.critic_body.layers)
        if policy.core is not None:
            for_actor = self.core(for_actor, policy.core)
            for_critic = for_actor if policy.critic_core is None else self.core(for_critic, policy.critic_core)
        if isinstance(policy, DeepPolicy):
            before, for_actor = for_critic, self.mlp(for_actor, policy.head_body)
            layers = policy.critic_head_body
            for_critic = for_actor if layers is None else self.mlp(before, layers)
        logits = self.room(num_params)
        self.linear(for_actor, policy.actor.weight, policy.actor.bias, logits)
        if policy.log_std is not None:
            free = len(policy.log_std)
            stds = Place(offset=logits.offset + num_params - free)
            self.emit("copy", stds, self.full(policy.log_std), free)
        value = self.linear(for_critic, policy.critic.weight, policy.critic.bias)
        return logits, value.place, num_params

    def q_net(self, net: Any, obs: Features) -> tuple[Place, Place, int]:
        if net.agents > 1:
            raise ConfigError("the Q-network has a network for each agent: translate Actor.of_agent(k).")
        x = self.encode(obs, net.encoder)
        for layer in net.layers:
            x = self.dense(x, layer)
            self.activate(x, net._activation)
        out = self.dense(x, net.head)
        choices, atoms, place = net.choices, net.num_atoms, out.place
        if net.dueling:
            place = self.room(choices * atoms)
            self.emit("duel", place, out.place, choices, atoms)
        if net.distribution != "none":
            before, place = place, self.room(choices)
            atoms_at: Place | int = self.full(net.atoms) if net.distribution == "c51" else -1
            self.emit("expect", place, before, choices, atoms, atoms_at)
        value = self.room(1)
        self.emit("max", value, place, choices)
        return place, value, choices

    def dense(self, x: Features, layer: Any) -> Features:
        out = self.linear(x, layer.weight[0].T, layer.bias[0, 0])
        if layer.gain is not None:
            self.emit("layer_norm", out.place, out.count, self.full(layer.gain), self.full(layer.shift))
        return out


def _numpy(tensor: Any) -> Array:
    array = tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
    return array.astype(np.float32)


def _identity(count: int) -> Any:
    import torch

    return torch.eye(count)


def _one(value: Any) -> int:
    """`kernel_size` and its like: one number for both axes."""
    numbers = (value, value) if isinstance(value, int) else tuple(value)
    if numbers[0] != numbers[1]:
        raise ConfigError(f"a convolution of {numbers} has no code for the browser: use equal sides.")
    return int(numbers[0])


def head_facts(actor: Actor) -> dict[str, Any]:
    """How the page turns logits into actions: see shoal/nn/distributions.py."""
    head = actor.head
    parts = [
        {"count": part.count, "logits": part.logits.start, "column": part.actions.start, "stds": part.log_stds.start}
        | ({} if part.count else {"size": part.logits.stop - part.logits.start})
        for part in head.parts
    ]
    facts: dict[str, Any] = {"parts": parts, "size": head.size, "choices": head.choices, "stds": head.num_noise}
    if isinstance(head, QHead):
        facts |= {"epsilon": float(head.epsilon)}
    if head.has_box:
        largest = float(np.finfo(np.float32).max)  # JSON has no infinity
        numbers = [constant.clamp(-largest, largest).tolist() for constant in head._constants]
        facts |= {"squash": head.squash, **dict(zip(("scale", "center", "low", "high"), numbers))}
    return facts
