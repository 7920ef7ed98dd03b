"""Wide layers of layered.py by cuBLAS, with kernels for what is not a product. `own` is a Layered."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast.layered_layer import Layer
from shoal.algos.fast.tiles import Tile
from shoal.nn.launch import launch

POINTWISE = Tile(32, 128, 0, warps=4)  # of what follows a product


def _matrix(own: Any, layer: Layer) -> Tensor:
    matrix: Tensor = own._narrow(layer)[: layer.index.numel()]
    return matrix.view(layer.index.shape)


def forward(own: Any, layer: Layer, count: int) -> None:
    """The outputs of a layer for `count` rows."""
    assert layer.source is not None
    tile, inputs = POINTWISE, layer.source.view(-1, layer.constants["KP"])[:count]
    torch.mm(inputs, _matrix(own, layer).T, out=layer.out[:count])
    launch(
        own.wide_kernels.activate, (-(-count // tile.rows), layer.width // tile.columns),
        layer.out, own.weights, layer.biases, count,
        NP=layer.width, ACT=layer.act, BM=tile.rows, BN=tile.columns, num_warps=tile.warps,
    )  # fmt: skip


def backward(own: Any, layer: Layer, before: Layer, count: int) -> None:
    """From the gradient by a layer's outputs to that of the layer before."""
    tile, inputs = POINTWISE, layer.constants["KP"]
    torch.mm(layer.d_out[:count], _matrix(own, layer), out=before.d_out.view(-1, inputs)[:count])
    launch(
        own.wide_kernels.slope, (-(-own._rows(before, count) // tile.rows), inputs // tile.columns),
        before.d_out, before.out, before.d_bias, count,
        K=inputs, ACT=before.act, BM=tile.rows, BN=tile.columns, num_warps=tile.warps,
    )  # fmt: skip


def weight_grads(own: Any, layer: Layer, count: int) -> None:
    """The gradient of a layer's weights."""
    assert layer.source is not None
    grads, inputs = layer.d_out[:count].T, layer.source.view(-1, layer.constants["KP"])[:count]
    out = layer.partial.view(layer.index.shape)
    if grads.is_cuda and own.dtype == torch.bfloat16:
        torch.mm(grads, inputs, out_dtype=torch.float32, out=out)
    else:  # a CPU has no such product
        torch.mm(grads.float(), inputs.float(), out=out)
