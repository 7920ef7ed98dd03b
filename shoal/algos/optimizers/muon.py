"""Muon for the hidden matrices, AdamW for the other weights. A CUDA graph cannot capture torch.optim.Muon."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algos.optimizers.adamw import AdamW


class Muon(AdamW):
    """Muon (Jordan et al. 2024) for the hidden matrices, AdamW for the other weights.

    A matrix's update is the orthogonal matrix nearest to its Nesterov momentum, scaled to about the size of AdamW's
    updates (Liu et al. 2025), so that both use the same learning rate.
    """

    MEAN = "momentum"
    MOMENTUM = 0.95

    def __init__(self, weights: Tensor, policy: nn.Module, config: Any, rate: Any) -> None:
        super().__init__(weights, policy, config, rate)
        self.matrices = hidden_matrices(policy)  # (start, rows, columns)
        ends = [0, *(edge for start, rows, columns in self.matrices for edge in (start, start + rows * columns))]
        between = zip(ends[::2], [*ends[1::2], weights.numel()])
        self._rest = [slice(lo, hi) for lo, hi in between if lo < hi]

    @torch.no_grad()
    def step(self) -> None:
        """Updates the weights from their gradient."""
        state, rate, decay, grad = self.state, self.rate, self.fixed["weight_decay"], self.weights.grad
        assert grad is not None
        state["step"] += 1
        for start, rows, columns in self.matrices:
            flat = (self.weights.detach(), grad, state[self.MEAN])
            matrix, gradient, momentum = (x[start : start + rows * columns].view(rows, columns) for x in flat)
            momentum.lerp_(gradient, 1.0 - self.MOMENTUM)
            update = orthogonal(gradient.lerp(momentum, self.MOMENTUM))
            matrix *= 1.0 - rate * decay
            matrix -= update * (rate * muon_scale(rows, columns))
        if self._rest:
            self._adam(self._rest)


def muon_scale(rows: int, columns: int) -> float:
    """The factor that scales an orthogonal update to the size of AdamW's."""
    return 0.2 * math.sqrt(max(rows, columns))


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of Jordan et al., chosen for speed over accuracy


def orthogonal(matrix: Tensor, steps: int = 5, dtype: torch.dtype | None = None) -> Tensor:
    """Approximates the orthogonal matrix nearest to a matrix, by Newton-Schulz iterations.

    Products are bfloat16 on a GPU and float32 on a CPU, where bfloat16 is up to 27 times slower: most CPUs have no
    instructions for it.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrix.to(dtype or (torch.bfloat16 if matrix.is_cuda else torch.float32))
    x = x.T if x.shape[0] > x.shape[1] else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.T if matrix.shape[0] > matrix.shape[1] else x).to(matrix.dtype)


def hidden_matrices(policy: nn.Module) -> list[tuple[int, int, int]]:
    """The matrices that Muon updates, as (start, rows, columns) in the flat weights: no heads, no embedding tables.

    A recurrent core stacks its gates in one parameter; each gate is a separate matrix (`gate_rows` of the core).
    """
    tables = {id(m.weight) for m in policy.modules() if isinstance(m, nn.Embedding)}
    cores = [m for m in policy.modules() if getattr(m, "gate_rows", None)]
    gates = {id(p): core.gate_rows for core in cores for p in core.parameters()}
    matrices, at = [], 0
    for name, p in policy.named_parameters():
        if not p.requires_grad:
            continue
        if p.ndim == 2 and not name.startswith(("actor.", "critic.")) and id(p) not in tables:
            rows, columns = gates.get(id(p), int(p.shape[0])), int(p.shape[1])
            matrices += [(at + first * columns, rows, columns) for first in range(0, int(p.shape[0]), rows)]
        at += p.numel()
    return matrices


OPTIMIZER = Muon
