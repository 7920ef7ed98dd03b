"""A perfect Connect Four player: tests/native/connect4_solver.c, compiled on first use.

solver = Solver()
solver.score(Board.of("4444"))        the exact value for the one on turn; columns are numbered from 1
solver.move_scores(Board.of("4444"))  {column from 0: the value of moving there}
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
from pathlib import Path
from typing import NamedTuple

from shoal.native import build

SOURCE = Path(__file__).parent / "native" / "connect4_solver.c"
COLUMNS, ROWS = 7, 6
HIGHEST = 18  # score


class Board(NamedTuple):
    """The stones of the one on turn and all stones, as bits 7 * column + row, row 0 at the bottom."""

    own: int = 0
    all: int = 0

    @classmethod
    def of(cls, moves: str) -> Board:
        """The board after some moves, given as columns from 1."""
        board = cls()
        for column in moves:
            board = board.play(int(column) - 1)
        return board

    @property
    def stones(self) -> int:
        """How many there are."""
        return bin(self.all).count("1")

    def legal(self) -> list[int]:
        """The columns that are not full."""
        return [column for column in range(COLUMNS) if not self.all >> (7 * column + ROWS - 1) & 1]

    def cell(self, column: int) -> int:
        """The bit of the cell that a stone in a column falls to."""
        return (self.all + (1 << 7 * column)) & (63 << 7 * column)

    def play(self, column: int) -> Board:
        """The board after a move, seen by the other one."""
        return Board(self.own ^ self.all, self.all | self.cell(column))

    def wins(self, column: int) -> bool:
        """Whether a move makes four."""
        stones = self.own | self.cell(column)
        return any(stones & stones >> d & stones >> 2 * d & stones >> 3 * d for d in (1, 6, 7, 8))


def compile_solver() -> Path:
    """The library, in the cache of compiled envs; its name holds a hash of the source."""
    flags = ["-O3", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    flags += ["-mpopcnt"] if platform.machine() in ("x86_64", "AMD64") else []
    text = f"{platform.system()} {platform.machine()} {flags}".encode() + SOURCE.read_bytes()
    path = build.cache_dir() / f"connect4_solver-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        subprocess.run([*build.find_compiler(), *flags, str(SOURCE), "-o", str(unfinished)], check=True)
        unfinished.replace(path)
    return path


class Solver:
    """Remembers what it has searched, in 2 ** log2_buckets * 16 bytes. Boards of few stones take longest."""

    def __init__(self, log2_buckets: int = 21) -> None:
        self._lib = ctypes.CDLL(str(compile_solver()))
        self._lib.solver_new.restype = ctypes.c_void_p
        self._lib.solver_nodes.restype = ctypes.c_uint64
        self._handle = ctypes.c_void_p(self._lib.solver_new(log2_buckets))
        if not self._handle:
            raise MemoryError(f"a table of 2^{log2_buckets} buckets of 16 bytes does not fit into memory.")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.solver_free(self._handle)

    @property
    def nodes(self) -> int:
        """Boards searched so far."""
        return int(self._lib.solver_nodes(self._handle))

    def score(self, board: Board, *, low: int = -HIGHEST, high: int = HIGHEST) -> int:
        """The value for the one on turn, as the C file defines it, clamped to low .. high.

        A narrow range is found faster: -1 .. 1 gives the sign. Threads may call it at the same time.
        """
        words = ctypes.c_uint64(board.own), ctypes.c_uint64(board.all)
        return int(self._lib.solver_score(self._handle, *words, low, high))

    def move_score(self, board: Board, column: int, *, low: int = -HIGHEST, high: int = HIGHEST) -> int:
        """The value of a legal move for the one who makes it, clamped to low .. high."""
        if board.wins(column):
            return min((43 - board.stones) // 2, high)
        return -self.score(board.play(column), low=-high, high=-low)

    def move_scores(self, board: Board, *, low: int = -HIGHEST, high: int = HIGHEST) -> dict[int, int]:
        """The value of every legal move, clamped to low .. high."""
        return {column: self.move_score(board, column, low=low, high=high) for column in board.legal()}
