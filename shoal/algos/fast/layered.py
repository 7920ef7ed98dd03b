"""PPO for networks that do not fit into one block: one GPU kernel for each layer (layered_kernels.py).

    act       each layer: gather -> patches -> product -> activation; then heads -> sample -> store
    learn     the layers forward; heads -> loss -> gradients; the layers backward; the gradients of each layer's weights
    reduce    adds up the parts of the gradients, in a fixed order, and sums their squares
    muon      three kernels for each of five Newton-Schulz steps, for all matrices at once
    adam      clips the gradient and updates the weights

It covers one to four layers of up to 512 units, observations of up to 2,048 numbers or grids and images before the
convolutions of encoders/grid.py and nature.py, and actions of up to 255 choices and numbers. A convolution is a layer
whose rows are pixels and whose inputs are the patches around them; its kernels gather these themselves. Activations go
through memory once, in bfloat16, and the plain path launches ten times as many kernels.

On Hopper cards wide layers are computed in larger tiles (tiles.py): observations are then copied in bfloat16 first, as
images are, one launch computes the gradients of all wide layers' weights, and the kernels that compute the gradients of
outputs also add up those of biases.

The kernels see the weights in an order of their own (`narrow`): each matrix padded to whole tiles, and its columns in
the order of the plane that it multiplies: pixels before channels. Two tables translate: `places` from a weight to its
place in `narrow`, and `inverse` back.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algos.fast.base import (
    ACTIVATION_IDS,
    CORES,
    activation_id,
    activation_of,
    has_small_shared_memory,
    large_lstm_not_covered,
    never_covered,
    triton_size,
    width_of,
)
from shoal.algos.fast.layered_layer import Layer
from shoal.algos.fast.layered_muon import MuonSteps
from shoal.algos.fast.tiles import ALIGNED, HOPPER, Tile, Tiles
from shoal.algos.learner import is_on
from shoal.algos.optimizers.muon import Muon
from shoal.nn.encoders import Image, Numbers
from shoal.nn.encoders.grid import GridCNN
from shoal.nn.encoders.nature import NatureCNN
from shoal.nn.launch import launch
from shoal.nn.recurrent import State

WIDEST = 512  # units of a layer
NUMBERS = 2048  # of an observation without convolutions
OUTPUTS = 255  # logits, means and the value are at most 256 columns
LAYERS = 4
MEMORY = 1 << 31  # bytes of the planes: a larger minibatch is computed in parts
PROCESSORS = 132  # multiprocessors of a large GPU
PARTIAL = 1 << 22  # numbers of all parts of a layer's gradient
REDUCE_PART, ADAM_PART = 128, 256  # weights of one block; four times as many for a large network
LARGE = 1 << 17  # weights
RELU = ACTIVATION_IDS["relu"]
EXPAND_PART = 1024  # numbers of one block
GRADIENT_ROWS = 64  # of a step of `weight_grads`
WIDE = 256  # units and inputs of a layer that `tiles` are for
# constants of a layer that is no convolution
NO_CONVOLUTION: dict[str, Any] = {"PIXELS": 1, "IS_CONV": False}
NO_ACTIVATION = 2
NO_CONVOLUTION |= dict.fromkeys(("OW", "IH", "IW", "IC", "SY", "SX", "SC", "SIDE", "STRIDE", "PAD"), 1)


def not_covered(learner: Any) -> str:
    """Why a learner takes the plain path; empty if these kernels cover it."""
    if reason := never_covered(learner):
        return reason
    policy, head = learner.actor.policy, learner.actor.head
    if policy.core is not None and (reason := core_not_covered(learner)):
        return reason
    if head.num_noise > OUTPUTS:
        return f"actions of more than {OUTPUTS} choices and numbers"
    widths = [layer.out_features for layer in policy.body.layers.layers]
    if not 1 <= len(widths) <= LAYERS or max(widths) > WIDEST:
        return f"--nn.layers other than 1 to {LAYERS}, or --nn.hidden above {WIDEST}"
    part = policy.body.encoder.parts[0]
    if type(part) is Image:
        if type(part.cnn) not in (GridCNN, NatureCNN):
            return "--nn.encoder other than mlp, grid and nature"
    elif type(part) is not Numbers or part.features > NUMBERS:
        return f"observations other than images and up to {NUMBERS} numbers"
    return ""


def core_not_covered(learner: Any) -> str:
    """Why layered_core.py does not cover the recurrent core of a learner."""
    core, features = learner.actor.policy.core, learner.actor.policy.body.features
    if type(core) not in CORES:
        return "--nn.core other than lstm and mingru"
    if core.size != features or core.size not in (16, 32, 64, 128):
        return "--nn.core-size other than --nn.hidden, or other than 16, 32, 64 or 128"
    return large_lstm_not_covered(learner)


class Layered(MuonSteps):
    """PPO with one kernel for each layer."""

    def __init__(
        self, learner: Any, rows: int = 0, columns: int = 0, exact: bool = False, tiles: Tiles | None = None
    ) -> None:
        """`rows` and `columns` are the sizes of tiles; 0: chosen for a GPU. `tiles` are those of wide layers."""
        from shoal.algos.fast import layered_kernels, muon_kernels

        super().__init__(learner, triton_size(learner.actor.head.num_noise + 1), exact)
        self.layer_kernels, device, policy = layered_kernels, learner.device, learner.actor.policy
        self.muon_kernels, self.tiles = muon_kernels, tiles or tiles_for(device)
        self.tile_rows = rows or (64 if has_small_shared_memory(device) else 128)
        self.tile_columns = columns or 128
        self.type = self.kernels.FLOAT32 if exact else self.kernels.BFLOAT16
        self.starts_of = _starts(policy)
        self.expansion: dict[str, Any] = {}  # constants of `expand`; empty without convolutions
        self.layers = self._make_layers(policy)
        self.plane = 0  # numbers of a plane of a core
        self.core_layers, self.last = self._make_core(policy)
        self.heads = self._make_heads(policy, self.last)
        self.matrices = [*self.layers, *self.core_layers, self.heads]
        at = 0
        for layer in self.matrices:
            layer.start, at = at, at + layer.size
        self.narrow = torch.zeros(at, dtype=self.dtype, device=device)
        inverse = torch.cat([x.flatten() for layer in self.matrices for x in (layer.index, layer.bias_index)])
        self.places = torch.full((self.size,), -1, dtype=torch.int64)
        self.places[inverse[inverse >= 0]] = torch.nonzero(inverse >= 0)[:, 0]
        assert (self.places >= 0).all()
        assert int((inverse >= 0).sum()) == self.size
        self.adam_places, is_muon = self.places.clone(), isinstance(learner.optimizer, Muon)
        for start, height, width in learner.optimizer.matrices if is_muon else ():
            self.adam_places[start : start + height * width] = -1
        self.places, self.adam_places, self.inverse = (
            x.to(torch.int32).to(device) for x in (self.places, self.adam_places, inverse)
        )
        self.taken, self.is_padding = self.inverse.clamp(min=0), self.inverse < 0
        self._allocate()
        if is_muon:
            self._allocate_muon(learner.optimizer)

    # ---- the network ----

    def _make_layers(self, policy: Any) -> list[Layer]:
        part, body, layers = policy.body.encoder.parts[0], policy.body, list[Layer]()
        obs = self.learner.rollout.obs[0][0, 0]
        own = {"UNIT": part.scale, "NORM": self.moments is not None}
        order = torch.arange(obs.numel()).view(-1, 1)  # (pixels, channels) of the source: the column that torch has
        if isinstance(part, Image):
            convolutions = [layer for layer in part.cnn.layers if isinstance(layer, nn.Conv2d)]
            for layer in convolutions:
                layers.append(self._convolution(layer, part, obs, layers[-1] if layers else None, own))
            last = layers[-1]
            channels = convolutions[-1].out_channels
            order = torch.full((last.pixels, last.width), -1)
            order[:, :channels] = torch.arange(channels * last.pixels).view(channels, last.pixels).T
        elif self.tiles is not None and obs.numel() >= WIDE:
            numbers, places = obs.numel(), -(-obs.numel() // ALIGNED) * ALIGNED
            self.expansion = {"ROW": numbers, "IH": 1, "IW": 1, "C": numbers, "IC": places, "SY": 0, "SX": 0, "SC": 1}
            self.expansion |= own
            order = torch.where(torch.arange(places) < numbers, torch.arange(places), -1)
        act = activation_id(activation_of(policy), self.dtype, self.learner.device)
        for layer in body.layers.layers:
            if layers and layer is not body.layers.layers[0]:
                order = torch.full((1, layers[-1].width), -1)
                order[0, : layer.in_features] = torch.arange(layer.in_features)
            is_first = not layers and not self.expansion
            layers.append(self._linear(layer, order.flatten(), act, own, is_first=is_first))
            layers[-1].is_wide = self._is_wide(layers[-1], has_before=len(layers) > 1)
        return layers

    def _is_wide(self, layer: Layer, *, has_before: bool) -> bool:
        """Whether `tiles` are for a linear layer: whether it is large, and whole tiles."""
        tiles, units, inputs = self.tiles, layer.width, layer.constants["KP"]
        if tiles is None or min(units, inputs) < WIDE or layer.constants["ROW"] != inputs or layer.constants["IS_OBS"]:
            return False
        of_units = [ALIGNED, tiles.forward.columns, tiles.grads.rows]
        of_inputs = [ALIGNED, tiles.forward.depth, tiles.grads.columns]
        if has_before:
            of_units, of_inputs = [*of_units, tiles.backward.depth], [*of_inputs, tiles.backward.columns]
        return all(units % size == 0 for size in of_units) and all(inputs % size == 0 for size in of_inputs)

    def _linear(self, layer: nn.Linear, order: Tensor, act: int, own: dict[str, Any], *, is_first: bool) -> Layer:
        """A linear layer. `order`: for each number of a row of its source, the column of its weights (-1: none)."""
        width, outputs = len(order), layer.out_features
        weights = self.starts_of[id(layer.weight)] + torch.arange(outputs * layer.in_features).view(outputs, -1)
        index = torch.where(order >= 0, weights[:, order.clamp(min=0)], -1)
        return self._layer(layer, index, {"K": width, "ROW": width, **NO_CONVOLUTION}, act, own, is_first=is_first)

    def _convolution(self, layer: nn.Conv2d, part: Image, obs: Tensor, before: Layer | None, own: Any) -> Layer:
        """A convolution over images: of the observations, or of the layer before."""
        channels, side, stride, pad = layer.in_channels, layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
        if before is None:
            shape = tuple(obs.shape) if obs.ndim == 3 else (1, *obs.shape)
            height, width, _ = shape if part.channels_last else (*shape[1:], channels)
            places = 1 << (channels - 1).bit_length()
            distances = (width * channels, channels, 1) if part.channels_last else (width, 1, height * width)
            self.expansion = {"ROW": obs.numel(), "IH": height, "IW": width, "C": channels, "IC": places}
            self.expansion |= {**dict(zip(("SY", "SX", "SC"), distances)), **own}
        else:
            height, width, places = *before.images, before.width
        out = tuple((length + 2 * pad - side) // stride + 1 for length in (height, width))
        outputs, size = layer.out_channels, side * side
        index = torch.full((outputs, size, places), -1)
        weights = torch.arange(layer.weight.numel()).view(outputs, channels, size) + self.starts_of[id(layer.weight)]
        index[:, :, :channels] = weights.transpose(1, 2)
        constants = {"K": size * places, "ROW": height * width * places, "PIXELS": out[0] * out[1], "OW": out[1]}
        constants |= {"IH": height, "IW": width, "IC": places, "SY": width * places, "SX": places, "SC": 1}
        constants |= {"SIDE": side, "STRIDE": stride, "PAD": pad, "IS_CONV": True}
        made = self._layer(layer, index.flatten(1), constants, RELU, own, is_first=False)
        made.images = (out[0], out[1])
        return made

    def _layer(
        self, layer: Any, index: Tensor, constants: dict[str, Any], act: int, own: Any, *, is_first: bool
    ) -> Layer:
        """Pads the index of the weights to whole tiles."""
        outputs, width = index.shape
        tile = min(triton_size(width), 64)
        rows, columns = _padded(outputs), -(-width // tile) * tile
        padded, biases = torch.full((rows, columns), -1), torch.full((rows,), -1)
        padded[:outputs, :width] = index
        biases[:outputs] = self.starts_of[id(layer.bias)] + torch.arange(outputs)
        constants = {"NP": rows, "KP": columns, "H": 0, **constants, "IS_OBS": is_first, "DTYPE": self.type, "BK": tile}
        constants |= own if is_first else {"UNIT": 1.0, "NORM": False}
        return Layer(constants, padded, biases, act)

    def _make_core(self, policy: Any) -> tuple[list[Layer], Layer]:
        """The matrices of a recurrent core, and the layer before the heads."""
        return [], self.layers[-1]

    def _make_heads(self, policy: Any, last: Layer) -> Layer:
        """Actor and critic as one matrix: a row for each column of `o`, and for numbers one for each of `s`."""
        head, columns = self.learner.actor.head, triton_size(self.learner.actor.head.num_noise + 1)
        noise, features = head.num_noise, policy.actor.in_features
        width, tile = last.width, min(last.width, 64)
        rows = columns * (2 if self.head.numbers else 1)
        index, biases = torch.full((rows, -(-width // tile) * tile), -1), torch.full((rows,), -1)
        actor, critic = (self.starts_of[id(x.weight)] for x in (policy.actor, policy.critic))
        own = torch.arange(features)
        index[:noise, :features] = actor + torch.arange(noise).view(-1, 1) * features + own
        index[noise, :features] = critic + own
        biases[:noise], biases[noise] = self.starts_of[id(policy.actor.bias)] + torch.arange(noise), critic + features
        for k, column in enumerate(self.head.std_columns):
            if head.num_free:
                biases[columns + column] = self.starts_of[id(policy.log_std)] + k
            else:
                index[columns + column, :features] = actor + (noise + k) * features + own
                biases[columns + column] = self.starts_of[id(policy.actor.bias)] + noise + k
        constants = {"NP": rows, "KP": index.shape[1], "H": 0, "K": width, "ROW": width, "BK": tile, **NO_CONVOLUTION}
        constants |= {"IS_OBS": False, "UNIT": 1.0, "NORM": False, "DTYPE": self.type}
        self.head_constants = {**self.head.constants, "STATE": bool(self.head.numbers and not head.num_free)}
        self.head_constants |= {"MASKED": self.learner.rollout.masks is not None, "OP": columns, "K": width}
        self.head_constants |= {"KP": index.shape[1], "BK": tile}
        return Layer(constants, index, biases, last.act)

    # ---- memory ----

    def _allocate(self) -> None:
        device, rollout = self.learner.device, self.learner.rollout
        image_size = self.expansion["IH"] * self.expansion["IW"] * self.expansion["IC"] if self.expansion else 0
        numbers_of_row = image_size + sum(2 * layer.pixels * layer.width for layer in self.layers)
        bytes_of_row = numbers_of_row * self.narrow.element_size()
        most = max(64, MEMORY // bytes_of_row // 64 * 64)
        most = max(1, most // rollout.segment) * rollout.segment
        self.chunk = min(max(*self.counts, rollout.rows), most)  # transitions that are computed at a time
        zeros = partial(torch.zeros, device=device)
        block = REDUCE_PART if self.narrow.numel() <= LARGE else 4 * REDUCE_PART
        before: Tensor | None = None
        sizes = [self.chunk * layer.pixels * layer.width for layer in self.layers for _ in "ab"]
        sizes = [-(-size // ALIGNED) * ALIGNED for size in [self.chunk * image_size, *sizes]]
        self.planes = zeros(sum(sizes), dtype=self.dtype)
        planes = list(self.planes.split(sizes))
        if self.expansion:
            self.images = before = planes[0][: self.chunk * image_size].view(self.chunk, image_size)
        for k, layer in enumerate(self.layers):
            shape = self.chunk * layer.pixels, layer.width
            layer.out, layer.d_out = (x[: shape[0] * shape[1]].view(shape) for x in planes[2 * k + 1 : 2 * k + 3])
            layer.source, before = before, layer.out
        self._allocate_core()
        self.heads.source = self.last.out
        self.heads.d_out = zeros((self.chunk, self.heads.width), dtype=self.dtype)
        self.head_rows = 64 if self.head_constants["OP"] <= 64 else 32
        self._allocate_parts(block)
        self.block, self.block_parts = block, 64 if block == REDUCE_PART else 16  # loaded at once
        self.sums = zeros((-(-self.chunk // self.head_rows), 8))
        self.squares = zeros(len(self.jobs))

    def _allocate_parts(self, block: int) -> None:
        """The parts of gradients, and what `reduce` adds: a job for each block of weights."""
        jobs, spans, base, device = list[list[int]](), list[tuple[Layer, str, int, int]](), 0, self.learner.device
        tiles = self.tiles
        self.most_rows = min(self.chunk, max(self.counts))  # of a launch for a gradient
        self.wide = [layer for layer in self.layers if layer.is_wide]

        def add(layer: Layer, name: str, first: int, length: int, parts: int) -> None:
            nonlocal base
            for at in range(0, length, block):
                jobs.append([layer.start + first + at, min(block, length - at), base + at, length, parts])
            spans.append((layer, name, base, parts * length))
            base += parts * length

        for layer in self.wide:  # few numbers and many parts: they begin first
            add(layer, "d_bias", layer.index.numel(), layer.width, -(-self.most_rows // self._rows_of_sums(layer)))
        self.grad_parts = 1  # of the rows in the gradients of wide layers
        if tiles is not None and self.wide:
            blocks = sum(layer.index.numel() for layer in self.wide) // (tiles.grads.rows * tiles.grads.columns)
            self.grad_parts = max(1, min(PROCESSORS // blocks, self.most_rows // (4 * tiles.grads.depth)))
        for layer in self.matrices:
            layer.biases = layer.bias_index.to(torch.int32).to(device)
            if layer.is_wide:
                add(layer, "partial", 0, layer.index.numel(), self.grad_parts)
                continue
            blocks = layer.width // layer.tile * (layer.constants["KP"] // layer.constants["BK"])
            passes = -(-self.chunk // GRADIENT_ROWS) * layer.pixels
            layer.parts = max(1, min(4 * PROCESSORS // blocks, passes // 4, PARTIAL // layer.size))
            add(layer, "partial", 0, layer.size, layer.parts)
        self.partial = torch.zeros(base, device=device)
        for layer, name, first, length in spans:
            setattr(layer, name, self.partial[first : first + length])
        self.jobs = torch.tensor(jobs, dtype=torch.int32, device=device)
        if tiles is not None and self.wide:
            wide = [job for layer in self.wide for job in self._grad_jobs(layer, tiles.grads)]
            self.wide_jobs = torch.tensor(wide, dtype=torch.int32, device=device)

    def _rows_of_sums(self, layer: Layer) -> int:
        """Rows of a block of the kernel that writes the gradients of a wide layer's outputs."""
        if layer is self.last:
            return self.head_rows
        after = [*self.layers, *self.core_layers][self.layers.index(layer) + 1]
        return self._backward_tile(after).rows

    def _grad_jobs(self, layer: Layer, tile: Tile) -> list[list[int]]:
        """What `wide_weight_grads` computes for a layer: its tiles."""
        assert layer.source is not None
        width, inputs, size = layer.width, layer.constants["KP"], self.planes.element_size()
        g, x = ((plane.data_ptr() - self.planes.data_ptr()) // size for plane in (layer.d_out, layer.source))
        out = (layer.partial.data_ptr() - self.partial.data_ptr()) // self.partial.element_size()
        return [
            [g + n, width, x + k, inputs, out + n * inputs + k, layer.index.numel()]
            for n in range(0, width, tile.rows)
            for k in range(0, inputs, tile.columns)
        ]

    def _allocate_core(self) -> None:
        """Allocates what a recurrent core needs."""

    def _copy_weights(self) -> None:
        taken = self.weights.detach().index_select(0, self.taken)
        self.narrow.copy_(taken.masked_fill_(self.is_padding, 0.0))

    # ---- acting ----

    def act(self, t: int, env_actions: Tensor | None = None, rows: slice = slice(None)) -> State:
        """As `KernelPPO.act`."""
        self._act(*self._step_tensors(t, env_actions, rows), rows)
        return self._new_state(rows)

    def _act(self, inputs_of_step: list[Any], outputs: list[Tensor], rows: slice) -> None:
        obs, noise, masks = inputs_of_step
        for lo in range(0, len(obs), self.chunk):
            own = slice(lo, lo + self.chunk)
            count = len(obs[own])
            self._forward(obs[own], None, count)
            to, inputs, constants = [x[own] for x in outputs], self._act_core(rows, lo, count), self.head_constants
            if inputs.dtype != self.dtype:  # an LSTM's state: one pass, because of its conversion (`finished`)
                constants = {**constants, "BK": constants["KP"]}
            launch(
                self.layer_kernels.act_heads, (-(-count // self.head_rows),),
                inputs, self.weights, self._narrow(self.heads), self.heads.biases, noise[own],
                None if masks is None else masks[own], *to, self.head.table, self.head.bounds, count,
                **constants, WIDTH=width_of(to[-1]), BM=self.head_rows, num_warps=4,
            )  # fmt: skip

    def _last_values(self, truncation: Any, out: Tensor) -> None:
        if truncation.state:
            super()._last_values(truncation, out)
            return
        (_, noise, masks), _ = self._step_tensors(0, None, slice(None))
        outputs = [self.unused[0], out, self.unused[1], self.unused_env_actions]
        self._act([truncation.obs[0], noise, masks], outputs, slice(None))

    def _act_core(self, rows: slice, first: int, count: int) -> Tensor:
        """The heads' inputs for `count` rows from the `first` of `rows` on."""
        return self.layers[-1].out

    def _new_state(self, rows: slice) -> State:
        return ()

    def _narrow(self, layer: Layer) -> Tensor:
        return self.narrow[layer.start :]

    def _forward(self, obs: Tensor, order: Tensor | None, count: int) -> None:
        """The outputs of all layers."""
        if self.expansion:
            launch(
                self.layer_kernels.expand, (-(-count * self.images.shape[1] // EXPAND_PART),),
                obs, order, self.mean, self.scale, self.images, count,
                **self.expansion, ORDERED=order is not None, PART=EXPAND_PART, num_warps=4,
            )  # fmt: skip
        for layer in [*self.layers, *self.core_layers[:1]]:
            is_ordered, tile = order is not None and layer.source is None, self._forward_tile(layer)
            launch(
                self.layer_kernels.forward, (-(-count // tile.rows) * layer.pixels, layer.width // tile.columns),
                obs if layer.source is None else layer.source, order if is_ordered else None, self.mean, self.scale,
                self.weights, self._narrow(layer), layer.biases, layer.out, self.plane, count,
                **{**layer.constants, "BK": tile.depth}, ORDERED=is_ordered, ACT=layer.act, BM=tile.rows,
                BN=tile.columns, EARLY=layer.is_wide, **tile.compiling,
            )  # fmt: skip

    def _forward_tile(self, layer: Layer) -> Tile:
        """Rows, outputs, inputs of a pass."""
        if layer.is_wide and self.tiles is not None:
            return self.tiles.forward
        columns = min(layer.constants["H"] or layer.width, layer.width, self.tile_columns)
        return Tile(self.tile_rows, columns, layer.constants["BK"], warps=8 if columns > 64 else 4)

    def _backward_tile(self, layer: Layer) -> Tile:
        """Rows, inputs, outputs of a pass."""
        if layer.is_wide and self.tiles is not None:
            return self.tiles.backward
        depth = min(layer.constants["H"] or layer.width, layer.width, 64)
        return Tile(self.tile_rows, layer.constants["BK"], depth, warps=4)

    # ---- learning ----

    def _gradient(self, batch: Any, order: Tensor, first: int, count: int, stats: Tensor) -> None:
        for lo in range(0, count, self.chunk):
            size = min(self.chunk, count - lo)
            own = order[first + lo :]
            self._forward(batch.obs[0], own, size)
            self._run_core(batch, own, first + lo, size)
            self._loss(batch, own, size, stats)
            self._backward_core(first + lo, size)
            self._backward(size)
            self._weight_grads(batch.obs[0], own, size)
            self._reduce(size, is_first=lo == 0, is_last=lo + size == count)

    def _reduce(self, count: int, *, is_first: bool = True, is_last: bool = True) -> None:
        launch(
            self.layer_kernels.reduce, (len(self.jobs),),
            self.partial, self.jobs, self.inverse, self.sums, self.weights.grad, self.squares, self.metrics,
            self.learner.optimizer.state["step"], -(-count // self.head_rows),
            BEGIN=is_first, END=is_last, BLOCKS=self.block_parts, PART=self.block, num_warps=8,
        )  # fmt: skip

    def _run_core(self, batch: Any, order: Tensor, first: int, count: int) -> None:
        """A recurrent core over `count` transitions, the `first` of the epoch."""

    def _backward_core(self, first: int, count: int) -> None:
        """From the gradient by a core's outputs to that by the last layer."""

    def _loss(self, batch: Any, order: Tensor, count: int, stats: Tensor) -> None:
        last, heads = self.last, self.heads
        launch(
            self.layer_kernels.learn_heads, (-(-self._rows(last, count) // self.head_rows),),
            last.out, self.weights, self._narrow(heads), heads.biases, batch.masks, order, batch.actions,
            batch.logprobs, batch.values, batch.advantages, batch.returns, batch.counts, stats,
            heads.d_out, last.d_out, last.d_bias, self.sums, self.coefs, self.head.table, self.head.bounds, count,
            **self.head_constants, COUNTED=batch.counts is not None,
            CLIPPED=is_on(self.learner.config.value_clip), ACT=last.act, DTYPE=self.type, BM=self.head_rows,
            num_warps=4,
        )  # fmt: skip

    def _backward(self, count: int) -> None:
        """From the gradient by the last layer to those by all others."""
        for before, layer in zip(self.layers[-2::-1], self.layers[:0:-1]):
            if layer.constants["IS_CONV"]:
                names = ["NP", "KP", "PIXELS", "OW", "IH", "IW", "IC", "SIDE", "STRIDE", "PAD", "DTYPE"]
                launch(
                    self.layer_kernels.conv_backward, (-(-count // self.tile_rows) * before.pixels,),
                    layer.d_out, self._narrow(layer), before.out, before.d_out, count,
                    **{name: layer.constants[name] for name in names}, ACT=before.act, BM=self.tile_rows, num_warps=4,
                )  # fmt: skip
                continue
            self._linear_backward(layer, before, count)

    def _linear_backward(self, layer: Layer, before: Layer, count: int, skip: Tensor | None = None) -> None:
        tile = self._backward_tile(layer)
        constants = {name: layer.constants[name] for name in ("NP", "KP", "K", "H", "DTYPE")}
        launch(
            self.layer_kernels.backward, (-(-self._rows(before, count) // tile.rows), constants["KP"] // tile.columns),
            layer.d_out, self._narrow(layer), before.out, skip, before.d_out, before.d_bias, self.plane, count,
            **constants, BK=tile.columns, ACT=before.act, BM=tile.rows, BN=tile.depth, **tile.compiling,
        )  # fmt: skip

    def _rows(self, layer: Layer, count: int) -> int:
        """Rows of a launch that writes the gradients of a layer's outputs: all blocks write sums, if only zeros."""
        return count if layer.d_bias is None else self.most_rows

    def _weight_grads(self, obs: Tensor, order: Tensor, count: int) -> None:
        if self.tiles is not None and self.wide:
            tile = self.tiles.grads
            launch(
                self.layer_kernels.wide_weight_grads, (len(self.wide_jobs), self.grad_parts),
                self.planes, self.wide_jobs, self.partial, count, -(-count // (tile.depth * self.grad_parts)),
                BM=tile.depth, BN=tile.rows, BK=tile.columns, **tile.compiling,
            )  # fmt: skip
        for layer in self.matrices:
            if layer.is_wide:
                continue
            blocks, tile_rows = -(-count // GRADIENT_ROWS) * layer.pixels, layer.tile
            part_size = -(-blocks // layer.parts)
            is_first = layer.source is None
            tiles = layer.width // tile_rows * (layer.constants["KP"] // layer.constants["BK"])
            launch(
                self.layer_kernels.weight_grads, (tiles, layer.parts),
                layer.d_out, obs if is_first else layer.source, order if is_first else None, self.mean, self.scale,
                layer.partial, self.plane, count, part_size,
                **layer.constants, ORDERED=is_first, BM=GRADIENT_ROWS, BN=tile_rows, num_warps=4,
            )  # fmt: skip

    # ---- the optimizer ----

    def _optimize(self) -> None:
        if isinstance(self.learner.optimizer, Muon):
            self._update_matrices()
        self._update_others()

    def _update_matrices(self) -> None:
        optimizer, limit = self.learner.optimizer, self.coefs[-1:]
        _, momentum, _ = optimizer.state.values()
        self._muon(optimizer, momentum, limit)

    def _update_others(self) -> None:
        """The weights that Muon does not update."""
        optimizer, limit, parts = self.learner.optimizer, self.coefs[-1:], len(self.squares)
        step, mean, square = optimizer.state.values()
        fixed, part = optimizer.fixed, ADAM_PART if self.size <= LARGE else 4 * ADAM_PART
        launch(
            self.layer_kernels.adam, (-(-self.size // part),),
            self.weights, self.narrow, self.adam_places, self.weights.grad, mean, square, self.squares, self.metrics,
            step, optimizer.rate, limit, self.size, parts,
            fixed["beta1"], fixed["beta2"], fixed["eps"], fixed["weight_decay"],
            DECOUPLED=optimizer.decoupled, PARTS=triton_size(parts), PART=part, num_warps=4,
        )  # fmt: skip


def tiles_for(device: torch.device) -> Tiles | None:
    """What wide layers are computed in; None: as all other layers are."""
    is_hopper = device.type != "cuda" or torch.cuda.get_device_capability(device)[0] == 9
    return HOPPER if is_hopper else None


def _padded(units: int) -> int:
    """Rows of a matrix: a power of two of at least 16, above 128 a multiple of 128."""
    return triton_size(units) if units <= 128 else -(-units // 128) * 128


def _starts(policy: Any) -> dict[int, int]:
    """Where each parameter begins in the flat weights, by its id."""
    starts, at = {}, 0
    for p in policy.parameters():
        if p.requires_grad:
            starts[id(p)], at = at, at + p.numel()
    return starts
