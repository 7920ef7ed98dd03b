"""A linear recurrence over time as a parallel scan, for cores whose gates do not depend on their state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, start: Tensor) -> Tensor:
        h = _doubling(a, _with_start(a, b, start))
        ctx.save_for_backward(a, h, start)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, h, start = ctx.saved_tensors
        # dL/db_t = g_t = dL/dh_t + a_{t+1} g_{t+1}: the same scan, from the end
        later = torch.cat([torch.zeros_like(a[:1]), a[1:].flip(0)])
        g = _doubling(later, grads[0].flip(0)).flip(0)
        before = torch.cat([start.unsqueeze(0), h[:-1]])
        return g * before, g, g[0] * a[0]


def scan(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + b_t with h_{-1} = start, for a, b of shape (steps, rows, size), in log2(steps) passes.

    Hillis & Steele 1986. It uses no division and no logarithm, so a_t = 0, a cleared state, is exact.
    """
    if torch.compiler.is_compiling():  # the compiler derives the gradient itself
        return _doubling(a, _with_start(a, b, start))
    out: Tensor = _Scan.apply(a, b, start)
    return out


def _with_start(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """b, with a_0 start added to its first step."""
    return torch.cat([(b[0] + a[0] * start).unsqueeze(0), b[1:]])


def _doubling(a: Tensor, b: Tensor) -> Tensor:
    distance, steps = 1, len(a)
    while distance < steps:
        b = torch.cat([b[:distance], torch.addcmul(b[distance:], a[distance:], b[:-distance])])
        if 2 * distance < steps:
            a = torch.cat([a[:distance], a[distance:] * a[:-distance]])
        distance *= 2
    return b
