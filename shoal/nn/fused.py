"""Segments of the stock recurrent cores on a GPU, with manual gradients. Launches the kernels of nn/kernels.py.

The plain loops of nn/cores launch about forty kernels for each step of an LSTM, and about a hundred for a scan and its
gradient. Here a MinGRU's segment is one kernel each for forward and backward, besides its matrix products. A step of an
LSTM is one kernel and one product each, and the gradient of its recurrent weights is one product for the segment.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.nn.launch import fresh, has_triton, launch

BLOCK = 256  # units of rows that a block computes


def is_for(x: Tensor) -> bool:
    """Whether these kernels run on `x`. Under torch.compile the compiler fuses the plain loops instead."""
    return x.device.type == "cuda" and has_triton() and not torch.compiler.is_compiling()


def _kernels() -> Any:
    from shoal.nn import kernels

    return kernels


class _MinGRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, skip: Tensor, start: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        steps, rows, size = skip.shape
        hidden, out = (fresh(skip, dtype=torch.float32) for _ in range(2))
        inputs = gates.contiguous(), skip.contiguous(), start.contiguous(), resets.contiguous()
        grid = (-(-rows * size // BLOCK),)
        launch(_kernels().mingru_forward, grid, *inputs, out, hidden, steps, rows, S=size, PART=BLOCK, num_warps=4)
        ctx.save_for_backward(*inputs, hidden)
        ctx.mark_non_differentiable(hidden)
        return out, hidden

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gates, skip, start, resets, hidden = ctx.saved_tensors
        steps, rows, size = skip.shape
        d_gates, d_skip = fresh(gates), fresh(skip)
        args = gates, skip, start, resets, hidden, grads[0].contiguous(), d_gates, d_skip, steps, rows
        launch(_kernels().mingru_backward, (-(-rows * size // BLOCK),), *args, S=size, PART=BLOCK, num_warps=4)
        return d_gates, d_skip, None, None


def mingru(gates: Tensor, skip: Tensor, start: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
    """(out, hidden), both (steps, rows, size): see `MinGRU.unroll`. The start state gets no gradient."""
    out, hidden = _MinGRU.apply(gates, skip, start, resets)
    return out, hidden


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, resets: Tensor) -> Tensor:
        steps, rows, size = len(gates), gates.shape[1], weight.shape[1]
        kind, grid = gates.dtype, (-(-rows * size // BLOCK),)
        gates, resets, narrow = gates.contiguous(), resets.contiguous(), weight.detach().to(kind)
        acts = fresh(gates)
        cells, out = (fresh(gates, steps, rows, size, dtype=torch.float32) for _ in range(2))
        hidden_in = fresh(gates, steps, rows, size)  # the hidden state before each step, after resets
        hidden_in[0].copy_(hidden)
        cell = cell.contiguous()
        for t in range(steps):
            has_next = t + 1 < steps
            launch(
                _kernels().lstm_forward, grid,
                gates[t], torch.mm(hidden_in[t], narrow.t()), cells[t - 1] if t else cell,
                resets[t], resets[t + 1] if has_next else None,
                acts[t], cells[t], out[t], hidden_in[t + 1] if has_next else None, rows,
                HAS_RESETS=t > 0, HAS_NEXT=has_next, S=size, PART=BLOCK, num_warps=4,
            )  # fmt: skip
        ctx.save_for_backward(acts, narrow, cell, cells, hidden_in, resets)
        ctx.kind = weight.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        acts, weight, cell, cells, hidden_in, resets = ctx.saved_tensors
        steps, rows, size = cells.shape
        d_out, d_gates, d_cell = grads[0].contiguous(), fresh(acts), fresh(cells[0])
        d_hidden: Any = None
        for t in range(steps - 1, -1, -1):
            has_next = t + 1 < steps
            launch(
                _kernels().lstm_backward, (-(-rows * size // BLOCK),),
                acts[t], cells[t], cells[t - 1] if t else cell, resets[t], resets[t + 1] if has_next else None,
                d_out[t], d_hidden, d_cell, d_gates[t], rows,
                HAS_RESETS=t > 0, HAS_NEXT=has_next, S=size, PART=BLOCK, num_warps=4,
            )  # fmt: skip
            if t:
                d_hidden = torch.mm(d_gates[t], weight)
        d_weight = torch.mm(d_gates.flatten(0, 1).t(), hidden_in.flatten(0, 1)).to(ctx.kind)
        return d_gates, d_weight, None, None, None


def lstm(gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, resets: Tensor) -> Tensor:
    """(steps, rows, size): see `LSTM.unroll`. The start state gets no gradient."""
    out: Tensor = _LSTM.apply(gates, weight, hidden, cell, resets)
    return out


@torch.no_grad()
def lstm_step(gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """(hidden, cell) after one step of (rows, 4 size) gates: see `LSTM.forward`."""
    rows, size = cell.shape
    gates, recurrent = gates.contiguous(), torch.mm(hidden.to(gates.dtype), weight.to(gates.dtype).t())
    acts, new_cell, out = fresh(gates), fresh(cell), fresh(cell)
    launch(
        _kernels().lstm_forward, (-(-rows * size // BLOCK),),
        gates, recurrent, cell.contiguous(), None, None, acts, new_cell, out, None, rows,
        HAS_RESETS=False, HAS_NEXT=False, S=size, PART=BLOCK, num_warps=4,
    )  # fmt: skip
    return out, new_cell
