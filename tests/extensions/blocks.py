"""The `blocks` backend: native envs on the calling thread, a block at a time, the last block first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.config import opt
from shoal.native.lib import Module
from shoal.vector.backends import Backend
from shoal.vector.native import EnvRange, NativeVec


@dataclass(frozen=True)
class BlockOptions:
    """The options of `--backend.*` with `--vec.backend blocks`, and keyword arguments of `shoal.make`."""

    block_size: int = opt(256, "envs of a block", low=1)


class BlockVec(NativeVec):
    """Runs a range function over blocks of envs."""

    backend = "blocks"

    def __init__(self, module: Module, num_envs: int, *, block_size: int = 256, **options: Any) -> None:
        super().__init__(module, num_envs, **options)
        self.block_size = block_size
        self.results: dict[int, int] = {}

    def _run_blocks(self, function: Any, lo: int, hi: int) -> int:
        """The sum of the results over [lo, hi)."""
        starts = reversed(range(lo, hi, self.block_size))
        return sum(int(function(self._address, start, min(start + self.block_size, hi))) for start in starts)

    def _run(self, function: Any) -> int:
        return self._run_blocks(function, 0, self.num_envs)

    def _submit(self, index: int, group: EnvRange, function: Any) -> None:
        self.results[index] = self._run_blocks(function, group.lo, group.hi)

    def _wait(self, index: int) -> int:
        return self.results[index]


BACKEND = Backend("one loop over blocks of envs, the last one first", native=BlockVec, options=BlockOptions)
