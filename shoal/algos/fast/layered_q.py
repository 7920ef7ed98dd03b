"""DQN and PQN for networks that do not fit into one block: one GPU kernel for each layer.

    act       each layer: gather -> product -> activation; then Q-values -> epsilon-greedy -> store
    targets   DQN: the layers of both networks on next observations
    learn     the layers forward; Q-values -> loss -> gradients; the layers backward; the gradients of the weights
    reduce    adds up the parts of the gradients, in a fixed order, and sums their squares
    adam      clips the gradient and updates the weights

It covers one to four layers of up to 512 units, observations of up to 2,048 numbers or grids and images before the
convolutions of encoders/grid.py and nature.py, and up to 255 choices. Most kernels are PPO's (layered_kernels.py,
explained in layered.py). Layer normalization needs whole rows: a kernel of its own follows a layer's
product, and one that of its gradient (layered_q_kernels.py). What it normalizes goes through memory in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algos.fast.base import activation_id, has_small_shared_memory, triton_size
from shoal.algos.fast.layered import (
    ADAM_PART,
    EXPAND_PART,
    GRADIENT_ROWS,
    LARGE,
    LAYERS,
    MEMORY,
    NO_ACTIVATION,
    NO_CONVOLUTION,
    NUMBERS,
    OUTPUTS,
    PARTIAL,
    PROCESSORS,
    REDUCE_PART,
    WIDE,
    WIDEST,
    Layered,
    _padded,
    _starts,
    tiles_for,
)
from shoal.algos.fast.layered_layer import Layer
from shoal.algos.fast.q_base import KernelQ, never_covered
from shoal.algos.fast.tiles import ALIGNED, Tile, Tiles
from shoal.nn.encoders import Image, Numbers
from shoal.nn.encoders.grid import GridCNN
from shoal.nn.encoders.nature import NatureCNN
from shoal.nn.launch import launch
from shoal.nn.qnet import Dense

NORM_TILE = 4096  # numbers of a tile of rows that are normalized


def not_covered(learner: Any) -> str:
    """Why a learner takes the plain path, if fused_q.py does not cover it; empty if these kernels do."""
    if reason := never_covered(learner):
        return reason
    policy, head = learner.actor.policy, learner.actor.head
    if head.choices > OUTPUTS:
        return f"more than {OUTPUTS} choices"
    widths = [layer.weight.shape[2] for layer in policy.layers]
    if not 1 <= len(widths) <= LAYERS or max(widths) > WIDEST:
        return f"--nn.layers other than 1 to {LAYERS}, or --nn.hidden above {WIDEST}"
    part = policy.encoder.parts[0]
    if type(part) is Image:
        if type(part.cnn) not in (GridCNN, NatureCNN):
            return "--nn.encoder other than mlp, grid and nature"
    elif type(part) is not Numbers or part.features > NUMBERS:
        return f"observations other than images and up to {NUMBERS} numbers"
    return ""


@dataclass(eq=False)
class QLayer(Layer):
    """A layer that may have layer normalization before its activation."""

    units: int = 0  # of `width` numbers of a row
    gain: int = -1  # where its gains begin in the weights, followed by its shifts; -1: it has none
    z: Tensor = field(default_factory=lambda: torch.empty(0))  # the plane before normalization
    norm_sums: Tensor = field(default_factory=lambda: torch.empty(0))  # see `norm_backward`

    @property
    def is_normalized(self) -> bool:
        """Whether it has layer normalization."""
        return self.gain >= 0

    @property
    def room(self) -> int:
        """Numbers in `narrow`: weights, biases, gains and shifts."""
        return self.size + 2 * self.width * self.is_normalized

    @property
    def norm_parts(self) -> int:
        """Blocks of `norm_backward`."""
        return len(self.norm_sums) // (3 * self.width)

    @property
    def norm_tile(self) -> dict[str, int]:
        """Sizes of the kernels of its normalization."""
        columns = 1 << (self.width - 1).bit_length()
        return {"N": self.units, "NP": self.width, "W": columns, "BM": max(1, min(64, NORM_TILE // columns))}


class LayeredQ(KernelQ):
    """DQN or PQN with one kernel for each layer."""

    def __init__(
        self,
        learner: Any,
        minibatches: list[int],
        rows: int = 0,
        columns: int = 0,
        exact: bool = False,
        tiles: Tiles | None = None,
    ) -> None:
        """`rows` and `columns` are the sizes of tiles; 0: chosen for a GPU. `tiles` are those of wide layers."""
        from shoal.algos.fast import layered_q_kernels

        super().__init__(learner, minibatches, exact)
        self.own, device, policy = layered_q_kernels, learner.device, learner.actor.policy
        self.tiles = tiles or tiles_for(device)
        self.tile_rows = rows or (64 if has_small_shared_memory(device) else 128)
        self.tile_columns = columns or 128
        self.starts_of = _starts(policy)
        self.expansion: dict[str, Any] = {}  # constants of `expand`; empty if observations are not copied
        self.layers = self._make_layers(policy)
        self.heads = self._make_heads(policy)
        self.matrices: list[Any] = [*self.layers, self.heads]
        inverse, at = list[Tensor](), 0
        for layer in self.matrices:
            layer.start, at = at, at + layer.room
            inverse += [layer.index.flatten(), layer.bias_index]
            if layer.is_normalized:
                norms = torch.full((2, layer.width), -1)
                norms[:, : layer.units] = layer.gain + torch.arange(2 * layer.units).view(2, -1)
                inverse.append(norms.flatten())
        self.narrow, self.target_narrow = (torch.zeros(at, dtype=self.dtype, device=device) for _ in range(2))
        index = torch.cat(inverse)
        places = torch.full((self.size,), -1, dtype=torch.int64)
        places[index[index >= 0]] = torch.nonzero(index >= 0)[:, 0]
        assert (places >= 0).all()
        assert int((index >= 0).sum()) == self.size
        self.places, self.inverse = (x.to(torch.int32).to(device) for x in (places, index))
        self._allocate()

    # ---- the network ----

    def _make_layers(self, policy: Any) -> list[QLayer]:
        part, tiles, layers = policy.encoder.parts[0], self.tiles, list[Any]()
        obs = self.learner.rollout.obs[0][0, 0]
        own = {"UNIT": part.scale, "NORM": self.moments is not None}
        order = torch.arange(obs.numel())  # for each number of a row of the source: the column that torch has
        if isinstance(part, Image):
            convolutions = [layer for layer in part.cnn.layers if isinstance(layer, nn.Conv2d)]
            for layer in convolutions:
                layers.append(self._convolution(layer, part, obs, layers[-1] if layers else None, own))
            last, channels = layers[-1], convolutions[-1].out_channels
            columns = torch.full((last.pixels, last.width), -1)
            columns[:, :channels] = torch.arange(channels * last.pixels).view(channels, last.pixels).T
            order = columns.flatten()
        elif tiles is not None and obs.numel() >= WIDE:
            numbers, places = obs.numel(), -(-obs.numel() // ALIGNED) * ALIGNED
            self.expansion = {"ROW": numbers, "IH": 1, "IW": 1, "C": numbers, "IC": places, "SY": 0, "SX": 0, "SC": 1}
            self.expansion |= own
            order = torch.where(torch.arange(places) < numbers, torch.arange(places), -1)
        act = activation_id(policy.activation, self.dtype, self.learner.device)
        for layer in policy.layers:
            made = self._dense(layer, order, act, own, is_first=not layers and not self.expansion)
            made.is_wide = _is_wide(made, tiles, has_before=bool(layers))
            layers.append(made)
            order = torch.where(torch.arange(made.width) < made.units, torch.arange(made.width), -1)
        return layers

    def _dense(self, layer: Dense, order: Tensor, act: int, own: dict[str, Any], *, is_first: bool) -> QLayer:
        """A layer of a Q-network. `order`: for each number of a row of its source, its row of weights (-1: none)."""
        width, (_, inputs, outputs) = len(order), layer.weight.shape
        weights = self.starts_of[id(layer.weight)] + torch.arange(inputs * outputs).view(inputs, outputs).T
        index = torch.where(order >= 0, weights[:, order.clamp(min=0)], -1)
        constants = {"K": width, "ROW": width, **NO_CONVOLUTION}
        made = self._layer(layer, index, constants, act, own, is_first=is_first)
        if layer.gain is not None:
            made.gain = self.starts_of[id(layer.gain)]
            assert self.starts_of[id(layer.shift)] == made.gain + outputs
        return made

    _convolution: Any = Layered._convolution

    def _layer(
        self, layer: Any, index: Tensor, constants: dict[str, Any], act: int, own: Any, *, is_first: bool
    ) -> QLayer:
        """Pads the index of the weights to whole tiles."""
        outputs, width = index.shape
        tile = min(triton_size(width), 64)
        rows, columns = _padded(outputs), -(-width // tile) * tile
        padded, biases = torch.full((rows, columns), -1), torch.full((rows,), -1)
        padded[:outputs, :width] = index
        biases[:outputs] = self.starts_of[id(layer.bias)] + torch.arange(outputs)
        constants = {"NP": rows, "KP": columns, "H": 0, **constants, "IS_OBS": is_first, "DTYPE": self.type, "BK": tile}
        constants |= own if is_first else {"UNIT": 1.0, "NORM": False}
        return QLayer(constants, padded, biases, act, units=outputs)

    def _make_heads(self, policy: Any) -> QLayer:
        """The Q-values: a row for each choice, padded to a power of two."""
        last, columns = self.layers[-1], triton_size(policy.choices)
        order = torch.where(torch.arange(last.width) < last.units, torch.arange(last.width), -1)
        made = self._dense(policy.head, order, NO_ACTIVATION, {}, is_first=False)
        assert made.width == columns
        assert made.constants["KP"] == last.width
        self.head_constants = {"A": policy.choices, "OP": columns, "K": last.width, "KP": last.width}
        self.head_constants["BK"] = made.constants["BK"]
        self.head_rows, self.head_warps = 64 if columns <= 64 else 32, 4 if columns <= 128 else 8
        return made

    # ---- memory ----

    def _allocate(self) -> None:
        device, rollout = self.learner.device, self.learner.rollout
        image_size = self.expansion["IH"] * self.expansion["IW"] * self.expansion["IC"] if self.expansion else 0
        widths = [layer.pixels * layer.width for layer in self.layers for _ in range(2 + layer.is_normalized)]
        bytes_of_row = (image_size + sum(widths)) * self.narrow.element_size()
        most = max(64, MEMORY // bytes_of_row // 64 * 64)
        self.chunk = min(max(*self.counts, rollout.rows), most)  # transitions that are computed at a time
        zeros = partial(torch.zeros, device=device)
        sizes = [-(-self.chunk * size // ALIGNED) * ALIGNED for size in [image_size, *widths]]
        self.planes = zeros(sum(sizes), dtype=self.dtype)
        planes = iter(self.planes.split(sizes))
        self.images = before = next(planes)[: self.chunk * image_size].view(self.chunk, image_size)
        for number, layer in enumerate(self.layers):
            shape = self.chunk * layer.pixels, layer.width
            layer.source = before if number or self.expansion else None
            layer.out, layer.d_out = (next(planes)[: shape[0] * shape[1]].view(shape) for _ in "ab")
            if layer.is_normalized:
                layer.z = next(planes)[: shape[0] * shape[1]].view(shape)
            before = layer.out
        self.heads.source, self.heads.d_out = before, zeros((self.chunk, self.heads.width), dtype=self.dtype)
        self._allocate_parts()
        self.sums = zeros((-(-self.chunk // self.head_rows), 8))
        self.squares = zeros(len(self.jobs))
        self.best = zeros(max(self.counts), dtype=torch.int32)  # DQN: the online network's next actions

    def _allocate_parts(self) -> None:
        """The parts of gradients, and what `reduce` adds: a job for each block of weights."""
        jobs, spans, base, tiles = list[list[int]](), list[tuple[QLayer, str, int, int]](), 0, self.tiles
        self.block = REDUCE_PART if self.narrow.numel() <= LARGE else 4 * REDUCE_PART
        self.block_parts = 64 if self.block == REDUCE_PART else 16  # loaded at once
        self.most_rows = min(self.chunk, max(self.counts))  # of a launch for a gradient
        self.wide = [layer for layer in self.layers if layer.is_wide]

        def add(layer: QLayer, name: str, to: int, numbers: int, parts: int, taken: slice = slice(None)) -> None:
            """`parts` rows of `numbers`, whose columns `taken` are added to `narrow` from `to` on."""
            nonlocal base
            first, last, _ = taken.indices(numbers)
            for at in range(first, last, self.block):
                length = min(self.block, last - at)
                jobs.append([layer.start + to + at - first, length, base + at, numbers, parts])
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
            layer.biases = layer.bias_index.to(torch.int32).to(self.inverse.device)
            if layer.is_wide:
                add(layer, "partial", 0, layer.index.numel(), self.grad_parts)
                continue
            blocks = layer.width // layer.tile * (layer.constants["KP"] // layer.constants["BK"])
            passes = -(-self.chunk // GRADIENT_ROWS) * layer.pixels
            layer.parts = max(1, min(4 * PROCESSORS // blocks, passes // 4, PARTIAL // layer.size))
            # the biases of normalized layers are summed with their gains
            own = slice(layer.index.numel()) if layer.is_normalized else slice(None)
            add(layer, "partial", 0, layer.size, layer.parts, own)
        self.partial = torch.zeros(base, device=self.inverse.device)
        for layer, name, first, length in spans:
            setattr(layer, name, self.partial[first : first + length])
        self.jobs = torch.tensor(jobs, dtype=torch.int32, device=self.inverse.device)
        if tiles is not None and self.wide:
            wide = [job for layer in self.wide for job in self._grad_jobs(layer, tiles.grads)]
            self.wide_jobs = torch.tensor(wide, dtype=torch.int32, device=self.inverse.device)

    def _rows_of_sums(self, layer: QLayer) -> int:
        """Rows of a block of the kernel that writes the gradients of a wide layer's outputs."""
        if layer is self.layers[-1]:
            return self.head_rows
        return self._backward_tile(self.layers[self.layers.index(layer) + 1]).rows

    def _grad_jobs(self, layer: QLayer, tile: Tile) -> list[list[int]]:
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

    def _forward(self, obs: Tensor, order: Tensor | None, weights: Tensor, narrow: Tensor) -> None:
        """The outputs of all layers of the network of `weights` for observations: all, or those that `order` names."""
        count = len(obs if order is None else order)
        if self.expansion:
            launch(
                self.layered.expand, (-(-count * self.images.shape[1] // EXPAND_PART),),
                obs, order, self.mean, self.scale, self.images, count,
                **self.expansion, ORDERED=order is not None, PART=EXPAND_PART, num_warps=4,
            )  # fmt: skip
        for layer in self.layers:
            is_ordered, tile = order is not None and layer.source is None, self._forward_tile(layer)
            out, act = (layer.z, NO_ACTIVATION) if layer.is_normalized else (layer.out, layer.act)
            launch(
                self.layered.forward, (-(-count // tile.rows) * layer.pixels, layer.width // tile.columns),
                obs if layer.source is None else layer.source, order if is_ordered else None, self.mean, self.scale,
                weights, narrow[layer.start :], layer.biases, out, 0, count,
                **{**layer.constants, "BK": tile.depth}, ORDERED=is_ordered, ACT=act, BM=tile.rows, BN=tile.columns,
                EARLY=layer.is_wide, **tile.compiling,
            )  # fmt: skip
            if layer.is_normalized:
                sizes = layer.norm_tile
                launch(
                    self.own.norm, (-(-count // sizes["BM"]),),
                    layer.z, weights, layer.out, layer.gain, count, **sizes, ACT=layer.act, num_warps=4,
                )  # fmt: skip

    def _forward_tile(self, layer: QLayer) -> Tile:
        """Rows, outputs, inputs of a pass."""
        if layer.is_wide and self.tiles is not None:
            return self.tiles.forward
        columns = min(layer.width, self.tile_columns)
        return Tile(self.tile_rows, columns, layer.constants["BK"], warps=8 if columns > 64 else 4)

    def _backward_tile(self, layer: QLayer) -> Tile:
        """Rows, inputs, outputs of a pass."""
        if layer.is_wide and self.tiles is not None:
            return self.tiles.backward
        return Tile(self.tile_rows, layer.constants["BK"], min(layer.width, 64), warps=4)

    def _head_arguments(self, weights: Tensor, narrow: Tensor) -> tuple[Tensor, ...]:
        return self.layers[-1].out, weights, narrow[self.heads.start :], self.heads.biases

    def _act(self, obs: Tensor, noise: Tensor, masks: Tensor | None, *outputs: Tensor) -> None:
        for lo in range(0, len(obs), self.chunk):
            own = slice(lo, lo + self.chunk)
            count = len(obs[own])
            self._forward(obs[own], None, self.weights, self.narrow)
            launch(
                self.own.act_heads, (-(-count // self.head_rows),),
                *self._head_arguments(self.weights, self.narrow), noise[own], None if masks is None else masks[own],
                *(x[own] for x in outputs), count,
                **self.head_constants, MASKED=masks is not None, BM=self.head_rows, num_warps=self.head_warps,
            )  # fmt: skip

    def target_values(self, batch: Any) -> None:
        """As `KernelQ.target_values`."""
        next_obs, target = batch.next_obs[0], self.learner.target.detach()
        self._copy(target, self.target_narrow)
        is_masked = batch.next_masks is not None
        constants = {**self.head_constants, "MASKED": is_masked, "BM": self.head_rows, "num_warps": self.head_warps}
        for lo in range(0, len(next_obs), self.chunk):
            own = slice(lo, lo + self.chunk)
            count, masks, best = len(next_obs[own]), batch.next_masks[own] if is_masked else None, None
            grid = (-(-count // self.head_rows),)
            if self.learner.config.double:
                best = self.best[own]
                self._forward(next_obs[own], None, self.weights, self.narrow)
                heads = self._head_arguments(self.weights, self.narrow)
                launch(self.own.best_actions, grid, *heads, masks, best, count, **constants)
            self._forward(next_obs[own], None, target, self.target_narrow)
            launch(
                self.own.targets, grid,
                *self._head_arguments(target, self.target_narrow), masks, best, batch.returns[own],
                batch.discounts[own], self.next_values[own], count, **constants,
            )  # fmt: skip

    # ---- learning ----

    def improve(
        self,
        k: int,
        obs: Tensor,
        actions: Tensor,
        targets: Tensor,
        share: Tensor,
        factors: Tensor | None = None,
        order: Tensor | None = None,
    ) -> None:
        """As `KernelQ.improve`."""
        count = self.counts[k]
        for lo in range(0, count, self.chunk):
            size = min(self.chunk, count - lo)
            own = slice(lo, lo + size)
            taken = None if order is None else order[own]
            if order is None:
                rows, parts = obs[own], (actions[own], targets[own], None if factors is None else factors[own])
            else:
                rows, parts = obs, (actions, targets, factors)
            self._forward(rows, taken, self.weights, self.narrow)
            self._loss(taken, *parts, share, size)
            self._backward(size)
            self._weight_grads(rows, taken, size)
            launch(
                self.layered.reduce, (len(self.jobs),),
                self.partial, self.jobs, self.inverse, self.sums, self.weights.grad, self.squares, self.metrics,
                self.learner.optimizer.state["step"], -(-size // self.head_rows),
                BEGIN=lo == 0, END=lo + size == count, BLOCKS=self.block_parts, PART=self.block, num_warps=8,
            )  # fmt: skip
        self._optimize()

    def _loss(
        self, order: Tensor | None, actions: Tensor, targets: Tensor, factors: Tensor | None, share: Tensor, count: int
    ) -> None:
        last = self.layers[-1]
        launch(
            self.own.learn_heads, (-(-self._rows(last, count) // self.head_rows),),
            *self._head_arguments(self.weights, self.narrow), order, actions, targets, factors, share,
            self.heads.d_out, last.d_out, last.d_bias, self.sums, count,
            **self.head_constants, HUBER=self.learner.config.loss == "huber", ACT=last.act, DTYPE=self.type,
            BM=self.head_rows, num_warps=self.head_warps,
        )  # fmt: skip

    def _backward(self, count: int) -> None:
        """From the gradient by the last layer to those by all others."""
        self._norm_backward(self.layers[-1], count)
        for before, layer in zip(self.layers[-2::-1], self.layers[:0:-1]):
            if layer.constants["IS_CONV"]:
                names = ["NP", "KP", "PIXELS", "OW", "IH", "IW", "IC", "SIDE", "STRIDE", "PAD", "DTYPE"]
                launch(
                    self.layered.conv_backward, (-(-count // self.tile_rows) * before.pixels,),
                    layer.d_out, self.narrow[layer.start :], before.out, before.d_out, count,
                    **{name: layer.constants[name] for name in names}, ACT=before.act, BM=self.tile_rows, num_warps=4,
                )  # fmt: skip
                continue
            tile = self._backward_tile(layer)
            constants = {name: layer.constants[name] for name in ("NP", "KP", "K", "H", "DTYPE")}
            rows = -(-self._rows(before, count) // tile.rows)
            launch(
                self.layered.backward, (rows, constants["KP"] // tile.columns),
                layer.d_out, self.narrow[layer.start :], before.out, None, before.d_out, before.d_bias, 0, count,
                **constants, BK=tile.columns, ACT=before.act, BM=tile.rows, BN=tile.depth, **tile.compiling,
            )  # fmt: skip
            self._norm_backward(before, count)

    def _norm_backward(self, layer: QLayer, count: int) -> None:
        if not layer.is_normalized:
            return
        sizes = layer.norm_tile
        rows = -(-count // (sizes["BM"] * layer.norm_parts)) * sizes["BM"]
        launch(
            self.own.norm_backward, (layer.norm_parts,),
            layer.d_out, layer.z, self.weights, layer.norm_sums, layer.gain, count, rows, **sizes, num_warps=8,
        )  # fmt: skip

    def _rows(self, layer: QLayer, count: int) -> int:
        """Rows of a launch that writes the gradients of a layer's outputs: all blocks write sums, if only zeros."""
        return count if layer.d_bias is None else self.most_rows

    def _weight_grads(self, obs: Tensor, order: Tensor | None, count: int) -> None:
        if self.tiles is not None and self.wide:
            tile = self.tiles.grads
            launch(
                self.layered.wide_weight_grads, (len(self.wide_jobs), self.grad_parts),
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
                self.layered.weight_grads, (tiles, layer.parts),
                layer.d_out, obs if is_first else layer.source, order if is_first else None, self.mean, self.scale,
                layer.partial, 0, count, part_size,
                **layer.constants, ORDERED=is_first and order is not None, BM=GRADIENT_ROWS, BN=tile_rows, num_warps=4,
            )  # fmt: skip

    def _optimize(self) -> None:
        """Clips the gradient and updates the weights and their copy."""
        optimizer, parts = self.learner.optimizer, len(self.squares)
        step, mean, square = optimizer.state.values()
        fixed, part = optimizer.fixed, ADAM_PART if self.size <= LARGE else 4 * ADAM_PART
        launch(
            self.layered.adam, (-(-self.size // part),),
            self.weights, self.narrow, self.places, self.weights.grad, mean, square, self.squares, self.metrics, step,
            optimizer.rate, self.limit, self.size, parts,
            fixed["beta1"], fixed["beta2"], fixed["eps"], fixed["weight_decay"],
            DECOUPLED=False, PARTS=triton_size(parts), PART=part, num_warps=4,
        )  # fmt: skip


def _is_wide(layer: QLayer, tiles: Tiles | None, *, has_before: bool) -> bool:
    """Whether `tiles` are for a layer: whether it is large, and whole tiles."""
    units, inputs = layer.width, layer.constants["KP"]
    if tiles is None or min(units, inputs) < WIDE or layer.constants["ROW"] != inputs or layer.constants["IS_OBS"]:
        return False
    of_units = (ALIGNED, tiles.forward.columns, tiles.grads.rows, tiles.backward.depth if has_before else 1)
    of_inputs = (ALIGNED, tiles.forward.depth, tiles.grads.columns, tiles.backward.columns if has_before else 1)
    return not any(units % size for size in of_units) and not any(inputs % size for size in of_inputs)
