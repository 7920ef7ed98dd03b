"""Adam and Muon for weights that are one piece of memory.

The same numbers as torch.optim's Adam and AdamW with `fused=True`, and as its Muon. Theirs import torch's compiler when
they are made, which takes a second of every run's start, and their Muon cannot be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shoal.nn.recurrent import LSTM, MinGRU


class Adam:
    """Kingma & Ba 2015; with decoupled weight decay, AdamW (Loshchilov & Hutter 2019)."""

    MEAN = "exp_avg"  # the state's name for the memory of the gradient

    def __init__(
        self,
        weights: Tensor,
        *,
        rate: Any,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        self.weights = weights
        self.rate = rate  # a float, or a tensor where a graph reads it
        self.fixed = {"beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": weight_decay}
        self.decoupled = decoupled
        step = torch.zeros((), dtype=torch.float32, device=weights.device)
        mean, square = (torch.zeros_like(weights, requires_grad=False) for _ in range(2))
        self.state: dict[str, Tensor] = {"step": step, self.MEAN: mean, "exp_avg_sq": square}

    def set_rate(self, rate: float) -> None:
        """Of learning, from the next step on. A graph holds the tensor: its value changes, not the tensor."""
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.rate = rate

    @torch.no_grad()
    def step(self) -> None:
        """Moves the weights against their gradient."""
        self.state["step"] += 1
        self._adam([slice(None)])

    def _adam(self, parts: Sequence[slice]) -> None:
        step, mean, square = self.state.values()
        grad = self.weights.grad
        assert grad is not None
        lists = [[x.detach()[p] for p in parts] for x in (self.weights, grad, mean, square)]
        more = {"amsgrad": False, "maximize": False, "grad_scale": None, "found_inf": None, **self.fixed}
        run = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        run(*lists, [], [step] * len(parts), lr=self.rate, **more)

    def fits(self, state: Mapping[str, Tensor]) -> bool:
        """Whether a state is one of this kind, for these weights."""
        mine = {name: (value.shape, value.dtype) for name, value in self.state.items()}
        return mine == {name: (value.shape, value.dtype) for name, value in state.items()}


class Muon(Adam):
    """Muon (Jordan et al. 2024) for some matrices among the weights, AdamW for the others.

    A matrix moves by the orthogonal matrix nearest to its (Nesterov) momentum, scaled so that its
    entries move about as far as AdamW would move them (Liu et al. 2025): both take the same learning rate.
    """

    MEAN = "momentum"
    MOMENTUM = 0.95

    def __init__(self, weights: Tensor, matrices: Sequence[tuple[int, int, int]], **options: Any) -> None:
        super().__init__(weights, decoupled=True, **options)
        self.matrices = list(matrices)  # (where it begins, rows, columns)
        ends = [0, *(edge for start, rows, columns in self.matrices for edge in (start, start + rows * columns))]
        between = zip(ends[::2], [*ends[1::2], weights.numel()])
        self._rest = [slice(lo, hi) for lo, hi in between if lo < hi]

    @torch.no_grad()
    def step(self) -> None:
        """Moves the weights against their gradient."""
        state, rate, decay, grad = self.state, self.rate, self.fixed["weight_decay"], self.weights.grad
        assert grad is not None
        state["step"] += 1
        for start, rows, columns in self.matrices:
            everything = (self.weights.detach(), grad, state[self.MEAN])
            matrix, gradient, momentum = (x[start : start + rows * columns].view(rows, columns) for x in everything)
            momentum.lerp_(gradient, 1.0 - self.MOMENTUM)
            move = orthogonal(gradient.lerp(momentum, self.MOMENTUM))
            matrix *= 1.0 - rate * decay
            matrix -= move * (rate * muon_scale(rows, columns))
        if self._rest:
            self._adam(self._rest)


def muon_scale(rows: int, columns: int) -> float:
    """How far Muon moves a matrix for the same learning rate as AdamW's."""
    return 0.2 * math.sqrt(max(rows, columns))


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan's: quick rather than exact


def orthogonal(matrix: Tensor, steps: int = 5, kind: Any = torch.bfloat16) -> Tensor:
    """About the orthogonal matrix nearest to a matrix, by Newton-Schulz iterations."""
    a, b, c = NEWTON_SCHULZ
    x = matrix.to(kind)
    x = x.T if x.shape[0] > x.shape[1] else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.T if matrix.shape[0] > matrix.shape[1] else x).to(matrix.dtype)


def hidden_matrices(policy: nn.Module) -> list[tuple[int, int, int]]:
    """Those that Muon takes, as (where it begins, rows, columns) in all weights: no heads, no tables.

    Gates of a recurrent core lie in one matrix, but each is one of its own.
    """
    tables = {id(m.weight) for m in policy.modules() if isinstance(m, nn.Embedding)}
    cores = [m for m in policy.modules() if isinstance(m, (LSTM, MinGRU))]
    gates = {id(p): core.size for core in cores for p in core.parameters()}
    found, at = [], 0
    for name, p in policy.named_parameters():
        if not p.requires_grad:
            continue
        if p.ndim == 2 and not name.startswith(("actor.", "critic.")) and id(p) not in tables:
            rows, columns = gates.get(id(p), int(p.shape[0])), int(p.shape[1])
            found += [(at + first * columns, rows, columns) for first in range(0, int(p.shape[0]), rows)]
        at += p.numel()
    return found
