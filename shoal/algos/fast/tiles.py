"""How the layer-by-layer GPU kernels (layered.py) cut their products into tiles. Knows neither torch nor Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ALIGNED = 128  # numbers: sizes of wide layers and beginnings of planes are multiples of it


@dataclass(frozen=True)
class Tile:
    """A tile of a product: what a block computes, and how its kernel is compiled."""

    rows: int
    columns: int
    depth: int  # of a pass of the loop
    warps: int = 8
    stages: int = 3  # passes whose operands are in shared memory at a time

    @property
    def compiling(self) -> dict[str, Any]:
        """Options of a launch."""
        return {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class MuonTiles:
    """Newton-Schulz steps with half of each symmetric product, and without divisions inside products."""

    square: Tile = Tile(64, 64, 128, warps=4, stages=3)  # of x x^T and of polynomials of it
    apply: Tile = Tile(64, 64, 64, warps=4, stages=4)


@dataclass(frozen=True)
class Tiles:
    """How wide layers are computed: linear layers of at least WIDE units and inputs whose sizes are whole tiles.

    None: as all other layers are, in the tiles of layered.py.
    """

    forward: Tile | None = None  # rows of the minibatch, units, inputs of a pass
    backward: Tile | None = None  # rows of the minibatch, inputs, units of a pass
    grads: Tile | None = None  # units, inputs, rows of the minibatch of a pass; all wide layers in one launch
    resident: int = 1  # blocks of `grads` that a processor holds at a time
    expand: bool = False  # whether observations are copied as a plane first, which makes the first layer a wide one
    cublas: bool = False  # whether cuBLAS computes the products of wide layers
    muon: MuonTiles | None = None
    overlap: bool = False  # whether kernels of wide layers and Muon's begin before the one before them has ended


# What benchmarks/gpu.py compares. All fit into an H200's shared memory and registers, without spills.
CANDIDATES: dict[str, Tiles] = {
    "today": Tiles(),
    "256 columns": Tiles(
        forward=Tile(128, 256, 64, stages=4),
        backward=Tile(128, 128, 64, stages=3),
        grads=Tile(256, 128, 64, stages=4),
        expand=True,
        muon=MuonTiles(),
    ),
    "256 columns, 3 stages": Tiles(
        forward=Tile(128, 256, 64, stages=3),
        backward=Tile(128, 128, 128, stages=3),
        grads=Tile(256, 128, 64, stages=3),
        expand=True,
        muon=MuonTiles(),
        overlap=True,
    ),
    "128 columns": Tiles(
        forward=Tile(128, 128, 64, stages=3),
        backward=Tile(128, 128, 64, stages=3),
        grads=Tile(128, 128, 64, warps=4, stages=3),
        resident=2,
        expand=True,
        muon=MuonTiles(Tile(64, 64, 64, warps=4, stages=5), Tile(64, 128, 128, stages=3)),
    ),
    "short passes": Tiles(
        forward=Tile(128, 256, 32, stages=6),
        backward=Tile(128, 128, 64, stages=4),
        grads=Tile(256, 128, 32, stages=5),
        expand=True,
        muon=MuonTiles(Tile(64, 64, 128, warps=4, stages=4), Tile(64, 64, 128, warps=4, stages=3)),
    ),
    "cuBLAS": Tiles(expand=True, cublas=True, muon=MuonTiles(), overlap=True),
}
