"""How the layer-by-layer GPU kernels (layer_stack.py) cut their products into tiles. Knows neither torch nor Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ALIGNED = 128  # numbers: sizes of wide layers and of Muon's matrices, and beginnings of planes, are multiples of it


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
class Tiles:
    """How wide layers are computed: linear layers of at least WIDE units and inputs whose sizes are whole tiles."""

    forward: Tile  # rows of the minibatch, units, inputs of a pass
    backward: Tile  # rows of the minibatch, inputs, units of a pass
    grads: Tile  # units, inputs, rows of the minibatch of a pass; all wide layers in one launch


# For the matrix units and the shared memory of a Hopper card: the fastest of those that docs/LOG.md compares.
HOPPER = Tiles(
    forward=Tile(128, 256, 64, stages=4), backward=Tile(128, 128, 64, stages=3), grads=Tile(256, 128, 64, stages=4)
)
