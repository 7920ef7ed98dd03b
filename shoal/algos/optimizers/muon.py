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
        self.steps: int = getattr(config, "muon_steps", 5)
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
            update = orthogonal(gradient.lerp(momentum, self.MOMENTUM), self.steps)
            matrix *= 1.0 - rate * decay
            matrix -= update * (rate * muon_scale(rows, columns))
        if self._rest:
            self._adam(self._rest)


def muon_scale(rows: int, columns: int) -> float:
    """The factor that scales an orthogonal update to the size of AdamW's."""
    return 0.2 * math.sqrt(max(rows, columns))


# A step replaces x by a x + b (x x^T) x + c (x x^T)^2 x. By the number of steps: (a, b, c) of each. Five steps have
# the coefficients of Jordan et al. for all. Fewer have those that bring singular values of at least 0.003, 0.01 or 0.03
# of the matrix's norm nearest to 1: to within 0.20, 0.27 or 0.38 (as Amsel et al. 2025; Jordan's: 0.32).
POLYNOMIALS: dict[int, list[tuple[float, float, float]]] = {
    2: [(7.3625, -20.7434, 15.1606), (2.9175, -2.1824, 0.4755)],
    3: [(8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526)],
    4: [(8.3837, -24.7659, 18.3571), (4.0434, -3.0114, 0.5695), (3.5056, -2.6267, 0.5257), (2.4901, -1.8343, 0.4368)],
    5: [(3.4445, -4.7750, 2.0315)] * 5,
}


def orthogonal(matrix: Tensor, steps: int = 5, dtype: torch.dtype | None = None) -> Tensor:
    """Approximates the orthogonal matrix nearest to a matrix, by Newton-Schulz iterations.

    Products are bfloat16 on a GPU and float32 on a CPU, where bfloat16 is up to 27 times slower: most CPUs have no
    instructions for it.
    """
    x = matrix.to(dtype or (torch.bfloat16 if matrix.is_cuda else torch.float32))
    x = x.T if x.shape[0] > x.shape[1] else x
    x = x / x.norm().clamp(min=1e-7)
    for a, b, c in POLYNOMIALS[steps]:
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
