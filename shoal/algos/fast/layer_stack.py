"""What layered.py (PPO) and layered_q.py (DQN, PQN) share: layers with a GPU kernel each, their memory, their launches.

Activations go through memory once, in bfloat16 (in planes: a row of numbers for each transition or pixel). A
convolution is a layer whose rows are pixels and whose inputs are the patches around them; its kernels gather these
themselves.

On Hopper cards wide layers are computed in larger tiles (tiles.py): observations are then copied in bfloat16 first, as
images are, one launch computes the gradients of all wide layers' weights, and the kernels that compute the gradients of
outputs also add up those of biases.

The kernels see the weights in an order of their own (`narrow`): each matrix padded to whole tiles, and its columns in
the order of the plane that it multiplies: pixels before channels. Two tables translate: `places` from a weight to its
place in `narrow`, and `inverse` back.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algos.fast.base import ACTIVATION_IDS, activation_id, has_small_shared_memory, triton_size
from shoal.algos.fast.layered_layer import Layer
from shoal.algos.fast.tiles import ALIGNED, HOPPER, Tile, Tiles
from shoal.nn.encoders import Image, Numbers
from shoal.nn.encoders.grid import GridCNN
from shoal.nn.encoders.nature import NatureCNN
from shoal.nn.launch import launch

WIDEST = 512  # units of a layer
NUMBERS = 2048  # of an observation without convolutions
OUTPUTS = 255  # Q-values, or logits and means: with PPO's value they are at most 256 columns
LAYERS = 4
MEMORY = 1 << 31  # bytes of the planes: a larger minibatch is computed in parts
PROCESSORS = 132  # multiprocessors of a large GPU
PARTIAL = 1 << 22  # numbers of all parts of a layer's gradient
REDUCE_PART, ADAM_PART = 128, 256  # weights of one block; four times as many for a large network
LARGE = 1 << 17  # weights
RELU = ACTIVATION_IDS["relu"]
NO_ACTIVATION = 2
EXPAND_PART = 1024  # numbers of one block
GRADIENT_ROWS = 64  # of a step of `weight_grads`
WIDE = 256  # units and inputs of a layer that `tiles` are for
# constants of a layer that is no convolution
NO_CONVOLUTION: dict[str, Any] = {"PIXELS": 1, "IS_CONV": False}
NO_CONVOLUTION |= dict.fromkeys(("OW", "IH", "IW", "IC", "SY", "SX", "SC", "SIDE", "STRIDE", "PAD"), 1)


def network_not_covered(part: Any, widths: list[int]) -> str:
    """Why these kernels do not cover layers of `widths` units after an encoder's part; empty if they do."""
    if not 1 <= len(widths) <= LAYERS or max(widths) > WIDEST:
        return f"--nn.layers other than 1 to {LAYERS}, or --nn.hidden above {WIDEST}"
    if type(part) is Image:
        if type(part.cnn) not in (GridCNN, NatureCNN):
            return "--nn.encoder other than mlp, grid and nature"
    elif type(part) is not Numbers or part.features > NUMBERS:
        return f"observations other than images and up to {NUMBERS} numbers"
    return ""


class LayerStack:
    """The layers of a network. A class adds to it how their weights are stored, the heads, acting and learning."""

    # set before `_make_network`
    learner: Any
    dtype: torch.dtype  # of matrix products
    type: Any  # DTYPE of the kernels
    weights: Tensor
    size: int  # how many
    moments: Any
    mean: Tensor
    scale: Tensor
    counts: list[int]  # transitions of the minibatches
    metrics: Tensor
    # set by `_make_heads`
    head_constants: dict[str, Any]  # OP: the columns
    # set by `_make_network`
    squares: Tensor  # of the gradient: the sum of each job of `reduce`

    def _make_network(
        self, part: Any, linear: Iterable[Any], activation: str, rows: int, columns: int, tiles: Tiles | None
    ) -> None:
        """The layers: convolutions of an encoder's part, `linear` ones, a core, heads. Then `narrow` and all memory."""
        from shoal.algos.fast import layered_kernels

        self.layer_kernels, device = layered_kernels, self.learner.device
        self.tiles = tiles or tiles_for(device)
        self.tile_rows = rows or (64 if has_small_shared_memory(device) else 128)
        self.tile_columns = columns or 128
        self.starts_of = _starts(self.learner.actor.policy)
        self.plane = 0  # numbers of a plane of a core
        self.expansion: dict[str, Any] = {}  # constants of `expand`; empty if observations are not copied
        self.of_obs = {"UNIT": part.scale, "NORM": self.moments is not None}  # constants of a layer that reads them
        self.layers = self._make_layers(part, linear, activation_id(activation, self.dtype, device))
        self.core_layers, self.last = self._make_core()
        self.heads = self._make_heads()
        self.matrices = [*self.layers, *self.core_layers, self.heads]
        contents, at = [layer.contents for layer in self.matrices], 0
        for layer, own in zip(self.matrices, contents):
            layer.start, at = at, at + len(own)
        self.narrow = torch.zeros(at, dtype=self.dtype, device=device)
        inverse, places = torch.cat(contents), torch.full((self.size,), -1, dtype=torch.int64)
        places[inverse[inverse >= 0]] = torch.nonzero(inverse >= 0)[:, 0]
        assert (places >= 0).all()
        assert int((inverse >= 0).sum()) == self.size
        self.places, self.inverse = (x.to(torch.int32).to(device) for x in (places, inverse))
        self._allocate()

    # ---- what differs ----

    def _weights_of(self, layer: Any) -> Tensor:
        """The place of each weight of a linear layer in `weights`: (outputs, inputs)."""
        raise NotImplementedError

    def _make_heads(self) -> Layer:
        """The matrix after `last`."""
        raise NotImplementedError

    def _make_core(self) -> tuple[list[Layer], Layer]:
        """The matrices of a recurrent core, and the layer before the heads."""
        return [], self.layers[-1]

    def _allocate_core(self) -> None:
        """Allocates what a recurrent core needs."""

    def _normalize(self, layer: Layer, weights: Tensor, count: int) -> None:
        """From `z` to `out` of a layer that has layer normalization."""
        raise NotImplementedError

    def _normalize_backward(self, layer: Layer, count: int) -> None:
        """From the gradient by its normalized rows, in `d_out`, to that by `z`, in place."""
        raise NotImplementedError

    # ---- the network ----

    def _make_layers(self, part: Any, linear: Iterable[Any], act: int) -> list[Layer]:
        layers, obs = list[Layer](), self.learner.rollout.obs[0][0, 0]
        order = torch.arange(obs.numel())  # for each number of a row of the source: the column that torch has
        if isinstance(part, Image):
            for layer in part.cnn.layers:
                if isinstance(layer, nn.Conv2d):
                    layers.append(self._convolution(layer, part, obs, layers[-1] if layers else None))
            order = layers[-1].order
        elif self.tiles is not None and obs.numel() >= WIDE:
            numbers, places = obs.numel(), -(-obs.numel() // ALIGNED) * ALIGNED
            self.expansion = {"ROW": numbers, "IH": 1, "IW": 1, "C": numbers, "IC": places, "SY": 0, "SX": 0, "SC": 1}
            self.expansion |= self.of_obs
            order = torch.where(torch.arange(places) < numbers, torch.arange(places), -1)
        for layer in linear:
            made = self._linear(layer, order, act, is_first=not layers and not self.expansion)
            made.is_wide = self._is_wide(made, has_before=bool(layers))
            layers.append(made)
            order = made.order
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

    def _linear(self, layer: Any, order: Tensor, act: int, *, is_first: bool) -> Layer:
        """A linear layer. `order`: for each number of a row of its source, the column of its weights (-1: none)."""
        index = torch.where(order >= 0, self._weights_of(layer)[:, order.clamp(min=0)], -1)
        constants = {"K": len(order), "ROW": len(order), **NO_CONVOLUTION}
        return self._layer(layer, index, constants, act, is_first=is_first)

    def _convolution(self, layer: nn.Conv2d, part: Image, obs: Tensor, before: Layer | None) -> Layer:
        """A convolution over images: of the observations, or of the layer before."""
        channels, side, stride, pad = layer.in_channels, layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
        if before is None:
            shape = tuple(obs.shape) if obs.ndim == 3 else (1, *obs.shape)
            height, width, _ = shape if part.channels_last else (*shape[1:], channels)
            places = 1 << (channels - 1).bit_length()
            distances = (width * channels, channels, 1) if part.channels_last else (width, 1, height * width)
            self.expansion = {"ROW": obs.numel(), "IH": height, "IW": width, "C": channels, "IC": places}
            self.expansion |= {**dict(zip(("SY", "SX", "SC"), distances)), **self.of_obs}
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
        made = self._layer(layer, index.flatten(1), constants, RELU, is_first=False)
        made.images = (out[0], out[1])
        return made

    def _layer(self, layer: Any, index: Tensor, constants: dict[str, Any], act: int, *, is_first: bool) -> Layer:
        """Pads the index of the weights to whole tiles."""
        outputs, width = index.shape
        tile = min(triton_size(width), 64)
        rows, columns = _padded(outputs), -(-width // tile) * tile
        padded, biases = torch.full((rows, columns), -1), torch.full((rows,), -1)
        padded[:outputs, :width] = index
        biases[:outputs] = self.starts_of[id(layer.bias)] + torch.arange(outputs)
        constants = {"NP": rows, "KP": columns, "H": 0, **constants, "IS_OBS": is_first, "DTYPE": self.type, "BK": tile}
        constants |= self.of_obs if is_first else {"UNIT": 1.0, "NORM": False}
        return Layer(constants, padded, biases, act, outputs)

    # ---- memory ----

    def _allocate(self) -> None:
        device, rollout = self.learner.device, self.learner.rollout
        image_size = self.expansion["IH"] * self.expansion["IW"] * self.expansion["IC"] if self.expansion else 0
        widths = [layer.pixels * layer.width for layer in self.layers for _ in range(2 + layer.is_normalized)]
        bytes_of_row = (image_size + sum(widths)) * self.narrow.element_size()
        most = max(64, MEMORY // bytes_of_row // 64 * 64)
        most = max(1, most // rollout.segment) * rollout.segment
        self.chunk = min(max(*self.counts, rollout.rows), most)  # transitions that are computed at a time
        zeros = partial(torch.zeros, device=device)
        sizes = [-(-self.chunk * size // ALIGNED) * ALIGNED for size in [image_size, *widths]]
        self.planes = zeros(sum(sizes), dtype=self.dtype)
        planes = iter(self.planes.split(sizes))
        self.images = next(planes)[: self.chunk * image_size].view(self.chunk, image_size)
        before = self.images if self.expansion else None
        for layer in self.layers:
            shape = self.chunk * layer.pixels, layer.width
            layer.source = before
            layer.out, layer.d_out = (next(planes)[: shape[0] * shape[1]].view(shape) for _ in "ab")
            if layer.is_normalized:
                layer.z = next(planes)[: shape[0] * shape[1]].view(shape)
            before = layer.out
        self._allocate_core()
        self.heads.source = self.last.out
        self.heads.d_out = zeros((self.chunk, self.heads.width), dtype=self.dtype)
        self.head_rows = 64 if self.head_constants["OP"] <= 64 else 32
        self._allocate_parts()
        self.sums = zeros((-(-self.chunk // self.head_rows), 8))
        self.squares = zeros(len(self.jobs))

    def _allocate_parts(self) -> None:
        """The parts of gradients, and what `reduce` adds: a job for each block of weights."""
        jobs, spans, base, device = list[list[int]](), list[tuple[Layer, str, int, int]](), 0, self.learner.device
        tiles = self.tiles
        self.block = REDUCE_PART if self.narrow.numel() <= LARGE else 4 * REDUCE_PART
        self.block_parts = 64 if self.block == REDUCE_PART else 16  # loaded at once
        self.most_rows = min(self.chunk, max(self.counts))  # of a launch for a gradient
        self.wide = [layer for layer in self.layers if layer.is_wide]

        def add(layer: Layer, name: str, to: int, numbers: int, parts: int, taken: int | None = None) -> None:
            """`parts` rows of `numbers`. The first of them (`taken`, or all) are added to `narrow` from `to` on."""
            nonlocal base
            end = numbers if taken is None else taken
            for at in range(0, end, self.block):
                jobs.append([layer.start + to + at, min(self.block, end - at), base + at, numbers, parts])
            spans.append((layer, name, base, parts * numbers))
            base += parts * numbers

        for layer in self.layers:  # few numbers and many parts: they begin first
            if layer.is_normalized:  # sums of biases, gains and shifts, which follow the matrix in this order
                norm_parts = min(2 * PROCESSORS, -(-self.most_rows // (4 * layer.norm_tile["BM"])))
                add(layer, "norm_sums", layer.index.numel(), 3 * layer.width, norm_parts)
            elif layer.is_wide:
                blocks = -(-self.most_rows // self._rows_of_sums(layer))
                add(layer, "d_bias", layer.index.numel(), layer.width, blocks)
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
            # the biases of normalized layers are summed with their gains
            taken = layer.index.numel() if layer.is_normalized else layer.size
            add(layer, "partial", 0, layer.size, layer.parts, taken)
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

    # ---- forward ----

    def _forward(self, obs: Tensor, order: Tensor | None, count: int, weights: Tensor, narrow: Tensor) -> None:
        """The outputs of all layers, with `weights` and their copy, for the first `count` of `obs` or of `order`."""
        if self.expansion:
            launch(
                self.layer_kernels.expand, (-(-count * self.images.shape[1] // EXPAND_PART),),
                obs, order, self.mean, self.scale, self.images, count,
                **self.expansion, ORDERED=order is not None, PART=EXPAND_PART, num_warps=4,
            )  # fmt: skip
        for layer in [*self.layers, *self.core_layers[:1]]:
            is_ordered, tile = order is not None and layer.source is None, self._forward_tile(layer)
            out, act = (layer.z, NO_ACTIVATION) if layer.is_normalized else (layer.out, layer.act)
            launch(
                self.layer_kernels.forward, (-(-count // tile.rows) * layer.pixels, layer.width // tile.columns),
                obs if layer.source is None else layer.source, order if is_ordered else None, self.mean, self.scale,
                weights, narrow[layer.start :], layer.biases, out, self.plane, count,
                **{**layer.constants, "BK": tile.depth}, ORDERED=is_ordered, ACT=act, BM=tile.rows, BN=tile.columns,
                EARLY=layer.is_wide, **tile.compiling,
            )  # fmt: skip
            if layer.is_normalized:
                self._normalize(layer, weights, count)

    def _forward_tile(self, layer: Layer) -> Tile:
        """Rows, outputs, inputs of a pass."""
        if layer.is_wide and self.tiles is not None:
            return self.tiles.forward
        columns = min(layer.constants["H"] or layer.width, layer.width, self.tile_columns)
        return Tile(self.tile_rows, columns, layer.constants["BK"], warps=8 if columns > 64 else 4)

    # ---- backward ----

    def _backward(self, count: int) -> None:
        """From the gradient by the last layer to those by all others."""
        if self.layers[-1].is_normalized:
            self._normalize_backward(self.layers[-1], count)
        for before, layer in zip(self.layers[-2::-1], self.layers[:0:-1]):
            if layer.constants["IS_CONV"]:
                names = ["NP", "KP", "PIXELS", "OW", "IH", "IW", "IC", "SIDE", "STRIDE", "PAD", "DTYPE"]
                launch(
                    self.layer_kernels.conv_backward, (-(-count // self.tile_rows) * before.pixels,),
                    layer.d_out, self.narrow[layer.start :], before.out, before.d_out, count,
                    **{name: layer.constants[name] for name in names}, ACT=before.act, BM=self.tile_rows, num_warps=4,
                )  # fmt: skip
                continue
            self._linear_backward(layer, before, count)
            if before.is_normalized:
                self._normalize_backward(before, count)

    def _linear_backward(self, layer: Layer, before: Layer, count: int, skip: Tensor | None = None) -> None:
        tile = self._backward_tile(layer)
        constants = {name: layer.constants[name] for name in ("NP", "KP", "K", "H", "DTYPE")}
        launch(
            self.layer_kernels.backward, (-(-self._rows(before, count) // tile.rows), constants["KP"] // tile.columns),
            layer.d_out, self.narrow[layer.start :], before.out, skip, before.d_out, before.d_bias, self.plane, count,
            **constants, BK=tile.columns, ACT=before.act, BM=tile.rows, BN=tile.depth, **tile.compiling,
        )  # fmt: skip

    def _backward_tile(self, layer: Layer) -> Tile:
        """Rows, inputs, outputs of a pass."""
        if layer.is_wide and self.tiles is not None:
            return self.tiles.backward
        depth = min(layer.constants["H"] or layer.width, layer.width, 64)
        return Tile(self.tile_rows, layer.constants["BK"], depth, warps=4)

    def _rows(self, layer: Layer, count: int) -> int:
        """Rows of a launch that writes the gradients of a layer's outputs: all blocks write sums, if only zeros."""
        return count if layer.d_bias is None else self.most_rows

    def _weight_grads(self, obs: Tensor, order: Tensor | None, count: int) -> None:
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
            is_first, tile_rows = layer.source is None, layer.tile
            part_size = -(-(-(-count // GRADIENT_ROWS) * layer.pixels) // layer.parts)
            tiles = layer.width // tile_rows * (layer.constants["KP"] // layer.constants["BK"])
            launch(
                self.layer_kernels.weight_grads, (tiles, layer.parts),
                layer.d_out, obs if is_first else layer.source, order if is_first else None, self.mean, self.scale,
                layer.partial, self.plane, count, part_size,
                **layer.constants, ORDERED=is_first and order is not None, BM=GRADIENT_ROWS, BN=tile_rows, num_warps=4,
            )  # fmt: skip

    def _reduce(self, count: int, *, is_first: bool = True, is_last: bool = True) -> None:
        """Adds the gradients of `count` transitions, the first or the last of a minibatch, to the weights'."""
        launch(
            self.layer_kernels.reduce, (len(self.jobs),),
            self.partial, self.jobs, self.inverse, self.sums, self.weights.grad, self.squares, self.metrics,
            self.learner.optimizer.state["step"], -(-count // self.head_rows),
            BEGIN=is_first, END=is_last, BLOCKS=self.block_parts, PART=self.block, num_warps=8,
        )  # fmt: skip

    # ---- the optimizer ----

    def _adam(self, places: Tensor, limit: Tensor) -> None:
        """Clips the gradient at norm `limit`, and updates the weights that have `places` in `narrow`, and `narrow`."""
        optimizer, parts = self.learner.optimizer, len(self.squares)
        step, mean, square = optimizer.state.values()
        fixed, part = optimizer.fixed, ADAM_PART if self.size <= LARGE else 4 * ADAM_PART
        launch(
            self.layer_kernels.adam, (-(-self.size // part),),
            self.weights, self.narrow, places, self.weights.grad, mean, square, self.squares, self.metrics, step,
            optimizer.rate, limit, self.size, parts,
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
