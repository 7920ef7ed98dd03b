"""A network as the instructions and weights that native/core/policy.h runs. Knows arrays and names, not torch.

    write(design, weights)      weights: arrays by their names in a checkpoint, design: what they do not say

Matrices become numbers of at most 16 bits with a factor for each output; everything else stays float32: biases, means
and standard deviations of observations. (float16 has the size of 16 bits and 5 to 10 times the error: its 11 bits are
those of each weight, these 16 those of the largest weight of an output.)
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.errors import ConfigError
from shoal.native import build
from shoal.nn.action_parts import ActionParts
from shoal.nn.looks import Look
from shoal.spec import Array

WORDS = 12  # POLICY_WORDS of native/core/policy.h, and its ops in order
OPS = (
    "input recall remember normalize scale linear activate conv pool add copy transpose lstm mingru layer_norm duel "
    "expect max"
).split()
ACTIVATION_NAMES = ["relu", "tanh", "gelu", "silu"]
LIMIT = 10  # of normalized observations, in standard deviations (RunningMoments.normalize)


ENCODERS = ("numbers", "grid", "nature", "impala")
CORES = ("none", "lstm", "mingru")
NOT_COMPUTED_WITH = {"moments.0.count", "policy.atoms"}  # the atoms of a distribution by quantiles are not used


@dataclass(frozen=True)
class QDesign:
    """What a Q-network has besides."""

    choices: int
    dueling: bool
    distribution: str = "none"
    num_atoms: int = 1
    networks: int = 1  # 1, or one for each agent


@dataclass(frozen=True)
class Design:
    """What the weights of a network do not say."""

    inputs: int  # elements of an observation
    look: Look
    activation: str
    num_logits: int
    core: str = "none"
    q: QDesign | None = None  # None: a policy with actor and critic

    def __post_init__(self) -> None:
        for what, name, known in (("encoder", self.look.encoder, ENCODERS), ("core", self.core, CORES)):
            if name not in known:
                has = ", ".join(known[1:])
                raise ConfigError(f"the {what} {name} has no code for the browser: {has} have. Export with --onnx.")


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


def narrowed(matrix: Array, bits: int = 16) -> tuple[Array, Array]:
    """A matrix as int16, of which `bits` are used, and the factor of each column."""
    scale = (np.abs(matrix).max(0, initial=0.0) / (2 ** (bits - 1) - 1)).astype(np.float32)
    scale[scale == 0.0] = 1.0
    return np.rint(matrix / scale).astype(np.int16), scale


def write(design: Design, weights: Mapping[str, Array], *, bits: int = 16, agent: int = 0) -> Network:
    """The network of an actor, from the arrays of its state dict. `agent`: whose, if every agent has one."""
    writer = _Writer(weights)
    obs = Features(writer.room(design.inputs), design.inputs)
    writer.emit("input", obs.place, obs.count)
    if "moments.0.mean" in weights:
        mean, var = (fitting(writer.take(f"moments.0.{name}").reshape(-1), (obs.count,)) for name in ("mean", "var"))
        writer.emit("normalize", obs.place, obs.count, writer.full(mean), writer.full(1 / np.sqrt(var + 1e-8)), LIMIT)
    make = writer.policy if design.q is None else functools.partial(writer.q_net, q=design.q, agent=agent)
    logits, value = make(design, obs)
    writer.check_all_used()
    return writer.network(logits, value, design.num_logits, design.inputs, bits)


@dataclass
class _Writer:
    """Collects instructions and weights."""

    given: Mapping[str, Array]
    taken: set[str] = field(default_factory=set)
    code: list[list[Any]] = field(default_factory=list)
    weights: list[tuple[Array, bool]] = field(default_factory=list)  # values, and whether few bits are enough
    used: int = 0  # floats behind the weights
    states: int = 0  # floats of the recurrent state

    # ---- memory ----

    def room(self, count: int) -> Place:
        place = Place(offset=self.used)
        self.used += count
        return place

    def full(self, array: Any) -> Place:
        """A weight in float32."""
        self.weights.append((_floats(array).reshape(-1), False))
        return Place(len(self.weights) - 1)

    def matrix(self, array: Array) -> Place:
        """A weight whose last axis is the outputs, in few bits."""
        array = _floats(array)
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
        if bits <= 16:
            pairs = [narrowed(matrix, bits) for matrix in matrices]
            matrices, scales = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        places = (number(logits), number(value))
        return Network(code, matrices, scales, floats, at + self.used, *places, num_logits, self.states, inputs)

    # ---- the weights that are given ----

    def take(self, name: str, *shape: int) -> Array:
        """A weight by its name. One that is missing or has another shape raises."""
        array = self.given.get(name)
        if array is None:
            raise ConfigError(f"the checkpoint has no {name}, which the run's options ask for.")
        self.taken.add(name)
        return fitting(array, shape, name) if shape else array

    def check_all_used(self) -> None:
        if left := self.given.keys() - self.taken - NOT_COMPUTED_WITH:
            raise ConfigError(f"the checkpoint has {min(left)}, which the run's options do not ask for.")

    # ---- layers ----

    def has(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self.given)

    def linear(
        self, x: Features, name: str, to: Place | None = None, *, has_bias: bool = True, adds: bool = False
    ) -> Features:
        """A layer of nn.Linear: its weight is (outputs, inputs)."""
        bias = self.take(f"{name}.bias") if has_bias else None
        return self.product(x, self.take(f"{name}.weight"), bias, to, adds=adds)

    def product(
        self, x: Features, matrix: Array, bias: Array | None, to: Place | None = None, *, adds: bool = False
    ) -> Features:
        """`matrix` is (outputs, inputs)."""
        outputs = len(matrix)
        matrix = fitting(matrix, (outputs, x.count))
        if x.order is not None:
            matrix = matrix[:, x.order]
        place = self.room(outputs) if to is None else to
        biases: Place | int = -1 if bias is None else self.full(fitting(bias, (outputs,)))
        self.emit("linear", place, x.place, outputs, x.count, self.matrix(matrix.T), biases, int(adds))
        return Features(place, outputs)

    def activate(self, x: Features, activation: str) -> None:
        self.emit("activate", x.place, x.count, ACTIVATION_NAMES.index(activation))

    def mlp(self, x: Features, name: str, activation: str) -> Features:
        for layer in self.layers(name):
            x = self.linear(x, layer)
            self.activate(x, activation)
        return x

    def layers(self, name: str) -> Iterator[str]:
        """The names of a list of layers with weights."""
        numbered = (f"{name}.{k}" for k in itertools.count())
        return itertools.takewhile(lambda layer: f"{layer}.weight" in self.given, numbered)

    def encode(self, x: Features, name: str, look: Look) -> Features:
        if look.scale != 1.0:
            copy = Features(self.room(x.count), x.count)
            self.emit("copy", copy.place, x.place, x.count)
            self.emit("scale", copy.place, x.count, self.full([look.scale]))
            x = copy
        return self.image(x, f"{name}.encoder.parts.0.cnn", look) if look.shape else x

    def image(self, x: Features, name: str, look: Look) -> Features:
        """Images are (height, width, channels) here. The features of torch's modules are (channels, height, width)."""
        channels, height, width = look.shape
        place = x.place
        if not look.channels_last and channels > 1:
            place = self.room(x.count)
            self.emit("transpose", place, x.place, channels, height * width)
        layers = IMAGE_LAYERS[look.encoder](look.shape)
        place, shape = self.convolve(layers, f"{name}.layers", place, (height, width, channels))
        height, width, channels = shape
        order = np.arange(channels * height * width).reshape(channels, height, width).transpose(1, 2, 0).reshape(-1)
        return Features(place, len(order), order)

    def convolve(
        self, layers: list[Any], name: str, place: Place, shape: tuple[int, int, int]
    ) -> tuple[Place, tuple[int, int, int]]:
        for k, layer in enumerate(layers):
            height, width, channels = shape
            count = height * width * channels
            if layer == "relu":  # in a copy: a residual block needs its input again
                before, place = place, self.room(count)
                self.emit("copy", place, before, count)
                self.activate(Features(place, count), "relu")
                continue
            if isinstance(layer, list):  # a residual block
                inner, _ = self.convolve(layer, f"{name}.{k}.layers", place, shape)
                self.emit("add", inner, place, count)
                place = inner
                continue
            kind, side, stride, padding = layer
            rows, columns = ((size + 2 * padding - side) // stride + 1 for size in (height, width))
            if kind == "conv":
                after = len(self.take(f"{name}.{k}.weight"))
                kernel = self.take(f"{name}.{k}.weight", after, channels, side, side)
                to = self.room(rows * columns * after)
                weights = self.matrix(kernel.transpose(2, 3, 1, 0))
                bias = self.full(self.take(f"{name}.{k}.bias", after))
                self.emit("conv", to, place, after, channels, height, width, side, stride, padding, weights, bias)
            else:
                after, to = channels, self.room(rows * columns * channels)
                self.emit("pool", to, place, channels, height, width, side, stride, padding)
            place, shape = to, (rows, columns, after)
        return place, shape

    # ---- cores ----

    def core(self, x: Features, name: str, kind: str) -> Features:
        return self.lstm(x, name) if kind == "lstm" else self.mingru(x, name)

    def recall(self, count: int) -> tuple[Features, int]:
        """A part of the recurrent state, and where it is in it."""
        part, at = Features(self.room(count), count), self.states
        self.states += count
        self.emit("recall", part.place, count, at)
        return part, at

    def lstm(self, x: Features, name: str) -> Features:
        size = self.take(f"{name}.hidden.weight").shape[1]
        (hidden, hidden_at), (cell, cell_at) = self.recall(size), self.recall(size)
        gates = self.linear(x, f"{name}.input")
        self.take(f"{name}.hidden.weight", gates.count, size)
        self.take(f"{name}.input.bias", 4 * size)
        self.linear(hidden, f"{name}.hidden", gates.place, has_bias=False, adds=True)
        self.emit("lstm", gates.place, cell.place, hidden.place, size)
        self.emit("remember", hidden.place, size, hidden_at)
        self.emit("remember", cell.place, size, cell_at)
        return hidden

    def mingru(self, x: Features, name: str) -> Features:
        size = len(self.take(f"{name}.gates.weight")) // 3
        hidden, at = self.recall(size)
        gates = self.linear(x, f"{name}.gates")
        self.take(f"{name}.gates.bias", 3 * size)
        if self.has(f"{name}.skip."):
            skip = self.linear(x, f"{name}.skip", has_bias=False)
        else:
            skip = x if x.order is None else self.product(x, np.eye(x.count), None)
        if skip.count != size:
            raise ConfigError(f"{name} has {size} units and {skip.count} inputs, and no weights between them.")
        out = Features(self.room(size), size)
        self.emit("mingru", gates.place, skip.place, hidden.place, out.place, size)
        self.emit("remember", hidden.place, size, at)
        return out

    # ---- whole networks ----

    def body(self, x: Features, name: str, design: Design) -> Features:
        return self.mlp(self.encode(x, name, design.look), f"{name}.layers.layers", design.activation)

    def policy(self, design: Design, obs: Features) -> tuple[Place, Place]:
        for_actor = for_critic = self.body(obs, "policy.body", design)
        if self.has("policy.critic_body."):
            for_critic = self.body(obs, "policy.critic_body", design)
        if design.core != "none":
            for_actor = self.core(for_actor, "policy.core", design.core)
            is_one = not self.has("policy.critic_core.")
            for_critic = for_actor if is_one else self.core(for_critic, "policy.critic_core", design.core)
        if self.has("policy.head_body."):
            before, for_actor = for_critic, self.mlp(for_actor, "policy.head_body.layers", design.activation)
            is_one = not self.has("policy.critic_head_body.")
            name = "policy.critic_head_body.layers"
            for_critic = for_actor if is_one else self.mlp(before, name, design.activation)
        logits = self.room(design.num_logits)
        outputs = self.linear(for_actor, "policy.actor", logits).count
        if (free := design.num_logits - outputs) != 0:  # standard deviations that do not depend on the observation
            stds = Place(offset=logits.offset + outputs)
            self.emit("copy", stds, self.full(self.take("policy.log_std", free)), free)
        return logits, self.linear(for_critic, "policy.critic").place

    def q_net(self, design: Design, obs: Features, q: QDesign, agent: int) -> tuple[Place, Place]:
        x = self.encode(obs, "policy", design.look)
        for name in self.layers("policy.layers"):
            x = self.dense(x, name, agent)
            self.activate(x, design.activation)
        place = self.dense(x, "policy.head", agent).place
        self.take("policy.head.bias", q.networks, 1, (q.choices + q.dueling) * q.num_atoms)
        if q.dueling:
            before, place = place, self.room(q.choices * q.num_atoms)
            self.emit("duel", place, before, q.choices, q.num_atoms)
        if q.distribution != "none":
            before, place = place, self.room(q.choices)
            atoms: Place | int = self.full(self.take("policy.atoms", q.num_atoms)) if q.distribution == "c51" else -1
            self.emit("expect", place, before, q.choices, q.num_atoms, atoms)
        value = self.room(1)
        self.emit("max", value, place, q.choices)
        return place, value

    def dense(self, x: Features, name: str, agent: int) -> Features:
        """A layer with a weight (inputs, outputs) for each agent that has a network of its own."""
        out = self.product(x, self.take(f"{name}.weight")[agent].T, self.take(f"{name}.bias")[agent, 0])
        if f"{name}.gain" in self.given:
            own = [fitting(self.take(f"{name}.{part}")[agent], (1, out.count)) for part in ("gain", "shift")]
            self.emit("layer_norm", out.place, out.count, *map(self.full, own))
        return out


def fitting(array: Array, shape: tuple[int, ...], name: str = "a weight") -> Array:
    """The array. Raises if it has another shape than its place in the network asks for."""
    if array.shape != shape:
        raise ConfigError(f"{name} of the checkpoint has the shape {array.shape}; the run's options ask for {shape}.")
    return array


def _floats(array: Any) -> Array:
    return np.asarray(array).astype(np.float32)


# ---- the layers of image encoders (shoal/nn/encoders): (kind, side, stride, padding), relu, or a residual block ----


def _grid(shape: tuple[int, ...]) -> list[Any]:
    return [("conv", 3, 1, 1), "relu", ("conv", 3, 2 if min(shape[1:]) > 8 else 1, 1), "relu"]


def _nature(shape: tuple[int, ...]) -> list[Any]:
    return [("conv", 8, 4, 0), "relu", ("conv", 4, 2, 0), "relu", ("conv", 3, 1, 0), "relu"]


def _impala(shape: tuple[int, ...]) -> list[Any]:
    residual = ["relu", ("conv", 3, 1, 1), "relu", ("conv", 3, 1, 1)]
    return [*[("conv", 3, 1, 1), ("pool", 3, 2, 1), residual, residual] * 3, "relu"]


IMAGE_LAYERS = {"grid": _grid, "nature": _nature, "impala": _impala}


def head_facts(head: ActionParts, epsilon: float | None = None) -> dict[str, Any]:
    """How the page turns logits into actions: see shoal/nn/distributions.py. `epsilon`: of a Q-network."""
    parts = [
        {"count": part.count, "logits": part.logits.start, "column": part.actions.start, "stds": part.log_stds.start}
        | ({} if part.count else {"size": part.logits.stop - part.logits.start})
        for part in head.parts
    ]
    facts: dict[str, Any] = {"parts": parts, "size": head.size, "choices": head.choices, "stds": head.num_noise}
    if epsilon is not None:
        facts |= {"epsilon": epsilon}
    if head.has_box:
        largest = float(np.finfo(np.float32).max)  # JSON has no infinity
        numbers = [constant.clip(-largest, largest).tolist() for constant in head.constants()]
        facts |= {"squash": head.squash, **dict(zip(("scale", "center", "low", "high"), numbers))}
    return facts
