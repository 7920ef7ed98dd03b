"""Muon for layered.py: the matrices, the memory and the launches of its Newton-Schulz steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast.base import KernelPPO, triton_size
from shoal.algos.fast.tiles import ALIGNED, Tile
from shoal.algos.optimizers.muon import POLYNOMIALS, muon_scale
from shoal.nn.launch import launch

START = 64  # rows and columns of a tile that `muon_start` reads
SQUARE = Tile(64, 64, 128, warps=4, stages=3)  # of x x^T and of polynomials of it
APPLY = Tile(64, 64, 64, warps=4, stages=4)


class MuonSteps(KernelPPO):
    """Three kernels for each Newton-Schulz step, for all matrices at once."""

    muon_kernels: Any
    type: Any  # DTYPE of the kernels
    narrow: Tensor
    places: Tensor
    squares: Tensor

    def _allocate_muon(self, optimizer: Any) -> None:
        """Tables of the matrices that Muon updates, and the memory of their Newton-Schulz steps."""
        matrices, squares, whole, start = (list[list[int]]() for _ in range(4))
        x_at = square_at = 0
        for k, (at, rows, columns) in enumerate(optimizer.matrices):
            short, long = (-(-size // ALIGNED) * ALIGNED for size in sorted((rows, columns)))
            parts = [[k, i, j] for i in range(0, short, START) for j in range(0, long, START)]
            matrices.append([at, rows, columns, short, long, x_at, square_at, len(start), len(parts)])
            start += parts
            ends = range(0, short, SQUARE.rows)
            squares += [[k, i, j] for i in ends for j in ends if i <= j]
            whole += [[k, i, j] for i in range(0, short, APPLY.rows) for j in range(0, long, APPLY.columns)]
            x_at, square_at = x_at + short * long, square_at + short**2
        table = partial(torch.tensor, dtype=torch.int32, device=self.learner.device)
        self.muon_matrices, self.start_jobs = table(matrices), table(start)
        self.square_jobs, self.whole_jobs = table(squares), table(whole)
        self.muon_tiles = triton_size(max(row[8] for row in matrices))
        scales = [muon_scale(rows, columns) for _, rows, columns in optimizer.matrices]
        self.muon_scales = torch.tensor(scales, dtype=torch.float32, device=self.learner.device)
        zeros = partial(torch.zeros, device=self.learner.device)
        self.x, self.next_x = (zeros(x_at, dtype=self.dtype) for _ in range(2))
        self.square, self.polynomial = (zeros(square_at, dtype=self.dtype) for _ in range(2))
        self.norms = zeros(len(start))

    def _muon(self, optimizer: Any, momentum: Tensor, limit: Tensor) -> None:
        kernels, parts, own = self.muon_kernels, len(self.squares), {"DTYPE": self.type}
        square = {**own, "B": SQUARE.rows, "BK": SQUARE.depth, **SQUARE.compiling}
        apply = {**own, "BM": APPLY.rows, "BN": APPLY.columns, "BK": APPLY.depth, **APPLY.compiling}
        launch(
            kernels.muon_start, (len(self.start_jobs),),
            self.muon_matrices, self.start_jobs, self.weights.grad, momentum, self.squares, limit, self.x, self.norms,
            parts, MOMENTUM=optimizer.MOMENTUM, PARTS=triton_size(parts), B=START, **own, num_warps=8,
        )  # fmt: skip
        x, after = self.x, self.next_x
        steps = POLYNOMIALS[optimizer.steps]
        for k, (a, b, c) in enumerate(steps):
            options = {"IS_FIRST": k == 0, "TILES": self.muon_tiles}
            launch(
                kernels.muon_square, (len(self.square_jobs),),
                self.muon_matrices, self.square_jobs, x, self.norms, self.square, **options, **square,
            )  # fmt: skip
            launch(
                kernels.muon_polynomial, (len(self.square_jobs),),
                self.muon_matrices, self.square_jobs, self.square, self.polynomial, b, c, **square,
            )  # fmt: skip
            launch(
                kernels.muon_apply, (len(self.whole_jobs),),
                self.muon_matrices, self.whole_jobs, x, self.polynomial, self.norms, after, self.weights, self.narrow,
                self.places, optimizer.rate, self.muon_scales, optimizer.fixed["weight_decay"], a,
                IS_LAST=k == len(steps) - 1, **options, **apply,
            )  # fmt: skip
            x, after = after, x
