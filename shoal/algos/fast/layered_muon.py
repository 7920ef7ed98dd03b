"""Muon for layered.py: the matrices, the memory and the launches of its Newton-Schulz steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast.base import KernelPPO, triton_size
from shoal.algos.fast.tiles import ALIGNED, MuonTiles, Tiles
from shoal.algos.optimizers.muon import POLYNOMIALS, muon_scale
from shoal.nn.launch import launch

MUON_TILE = 64


class MuonSteps(KernelPPO):
    """Three kernels for each Newton-Schulz step, for all matrices at once; `Tiles.muon` chooses others."""

    layer_kernels: Any
    wide_kernels: Any
    tiles: Tiles
    overlap: dict[str, Any]
    type: Any  # DTYPE of the kernels
    narrow: Tensor
    places: Tensor
    squares: Tensor

    def _allocate_muon(self, optimizer: Any) -> None:
        """Tables of the matrices that Muon updates, and the memory of their Newton-Schulz steps."""
        device, tile = self.learner.device, MUON_TILE
        matrices, squares, whole = list[list[int]](), list[list[int]](), list[list[int]]()
        x_at = square_at = 0
        for k, (start, rows, columns) in enumerate(optimizer.matrices):
            short, long = (-(-size // tile) for size in sorted((rows, columns)))
            matrices.append(
                [start, rows, columns, short * tile, long * tile, x_at, square_at, len(whole), short * long]
            )
            squares += [[k, i, j] for i in range(short) for j in range(short)]
            whole += [[k, i, j] for i in range(short) for j in range(long)]
            x_at, square_at = x_at + short * long * tile**2, square_at + short**2 * tile**2
        self._allocate_muon_planes(optimizer, matrices, x_at, square_at)
        self.square_jobs, self.whole_jobs = (
            torch.tensor(rows, dtype=torch.int32, device=device) for rows in (squares, whole)
        )

    def _allocate_wide_muon(self, optimizer: Any, tiles: MuonTiles) -> None:
        """The same for `Tiles.muon`. Rows and columns of jobs are not counted in tiles."""
        matrices, squares, whole, start = (list[list[int]]() for _ in range(4))
        x_at = square_at = 0
        for k, (at, rows, columns) in enumerate(optimizer.matrices):
            short, long = (-(-size // ALIGNED) * ALIGNED for size in sorted((rows, columns)))
            parts = [[k, i, j] for i in range(0, short, MUON_TILE) for j in range(0, long, MUON_TILE)]
            matrices.append([at, rows, columns, short, long, x_at, square_at, len(start), len(parts)])
            start += parts
            ends = range(0, short, tiles.square.rows)
            squares += [[k, i, j] for i in ends for j in ends if i <= j]
            ends, sides = range(0, short, tiles.apply.rows), range(0, long, tiles.apply.columns)
            whole += [[k, i, j] for i in ends for j in sides]
            x_at, square_at = x_at + short * long, square_at + short**2
        self._allocate_muon_planes(optimizer, matrices, x_at, square_at)
        self.start_jobs, self.square_jobs, self.whole_jobs = (
            torch.tensor(rows, dtype=torch.int32, device=self.learner.device) for rows in (start, squares, whole)
        )

    def _allocate_muon_planes(self, optimizer: Any, matrices: list[list[int]], x_at: int, square_at: int) -> None:
        device = self.learner.device
        self.muon_matrices = torch.tensor(matrices, dtype=torch.int32, device=device)
        self.muon_tiles = triton_size(max(row[8] for row in matrices))
        scales = [muon_scale(rows, columns) for _, rows, columns in optimizer.matrices]
        self.muon_scales = torch.tensor(scales, dtype=torch.float32, device=device)
        zeros = partial(torch.zeros, device=device, dtype=self.dtype)
        self.x, self.next_x = zeros(x_at), zeros(x_at)
        self.square, self.polynomial = zeros(square_at), zeros(square_at)
        self.norms = torch.zeros(sum(row[8] for row in matrices), device=device)

    def _muon(self, optimizer: Any, momentum: Tensor, limit: Tensor) -> None:
        kernels, parts = self.layer_kernels, len(self.squares)
        own = {"DTYPE": self.type, "B": MUON_TILE, "num_warps": 4}
        launch(
            kernels.muon_start, (len(self.whole_jobs),),
            self.muon_matrices, self.whole_jobs, self.weights.grad, momentum, self.squares, limit, self.x, self.norms,
            parts, MOMENTUM=optimizer.MOMENTUM, PARTS=triton_size(parts), **own,
        )  # fmt: skip
        x, after = self.x, self.next_x
        steps = POLYNOMIALS[optimizer.steps]
        for k, (a, b, c) in enumerate(steps):
            options = {"IS_FIRST": k == 0, "TILES": self.muon_tiles, **own}
            launch(
                kernels.muon_square, (len(self.square_jobs),),
                self.muon_matrices, self.square_jobs, x, self.norms, self.square, **options,
            )  # fmt: skip
            launch(
                kernels.muon_polynomial, (len(self.square_jobs),),
                self.muon_matrices, self.square_jobs, self.square, self.polynomial, b, c, **own,
            )  # fmt: skip
            launch(
                kernels.muon_apply, (len(self.whole_jobs),),
                self.muon_matrices, self.whole_jobs, x, self.polynomial, self.norms, after, self.weights, self.narrow,
                self.places, optimizer.rate, self.muon_scales, optimizer.fixed["weight_decay"], a,
                IS_LAST=k == len(steps) - 1, **options,
            )  # fmt: skip
            x, after = after, x

    def _wide_muon(self, optimizer: Any, momentum: Tensor, limit: Tensor) -> None:
        tiles, kernels, parts = self.tiles.muon, self.wide_kernels, len(self.squares)
        assert tiles is not None
        own = {"DTYPE": self.type, "OVERLAP": False, **self.overlap}
        square = {**own, "B": tiles.square.rows, "BK": tiles.square.depth, **tiles.square.compiling}
        apply = {**own, "BM": tiles.apply.rows, "BN": tiles.apply.columns, "BK": tiles.apply.depth}
        apply |= tiles.apply.compiling
        launch(
            kernels.muon_start, (len(self.start_jobs),),
            self.muon_matrices, self.start_jobs, self.weights.grad, momentum, self.squares, limit, self.x, self.norms,
            parts, MOMENTUM=optimizer.MOMENTUM, PARTS=triton_size(parts), B=MUON_TILE, **own, num_warps=8,
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
