"""The rules of 2048 once more, slowly, on lists of rows, and a player that keeps its largest tiles in a corner."""

from __future__ import annotations

import functools
from typing import ClassVar

from .arcade_twin import ArcadeTwin, F

UP, RIGHT, DOWN, LEFT = range(4)
LAYOUT = [("tiles", "u1", 16), ("newest", "i4"), ("score", "i4"), ("legal", "i4")]
Board = list[list[int]]  # values of the tiles, 0 for an empty cell; rows from the top


@functools.cache
def slide_row(row: tuple[int, ...]) -> tuple[list[int], int]:
    """A row after a move to the left, and the points."""
    left, slid, points = [tile for tile in row if tile], [], 0
    while left:
        tile = left.pop(0)
        if left and left[0] == tile and tile < 131072:
            left.pop(0)
            tile *= 2
            points += tile
        slid.append(tile)
    return slid + [0] * (4 - len(slid)), points


def slide(board: Board, action: int) -> tuple[Board, int]:
    """Turns the board until the move is one to the left, and back."""
    turns = {LEFT: 0, UP: 1, RIGHT: 2, DOWN: 3}[action]
    for _ in range(turns):  # counter-clockwise
        board = [[board[y][x] for y in range(4)] for x in reversed(range(4))]
    rows = [slide_row(tuple(row)) for row in board]
    board = [list(row) for row, _ in rows]
    for _ in range((4 - turns) % 4):
        board = [[board[y][x] for y in range(4)] for x in reversed(range(4))]
    return board, sum(points for _, points in rows)


class Twin(ArcadeTwin):
    stats: ClassVar = {"score": "sum", "largest": "last", "made_2048": "sum", "wasted": "sum"}
    defaults: ClassVar = {"four_share": 0.1, "max_steps": 20000}

    def start(self) -> None:
        self.board: Board = [[0] * 4 for _ in range(4)]
        self.add_tile()
        self.add_tile()

    def add_tile(self) -> None:
        empty = [(y, x) for y in range(4) for x in range(4) if self.board[y][x] == 0]
        y, x = empty[self.rng.int(len(empty))]
        self.board[y][x] = 4 if self.rng.uniform(0, 1) < F(self.params["four_share"]) else 2

    def legal(self) -> list[int]:
        return [action for action in range(4) if slide(self.board, action)[0] != self.board]

    def largest(self) -> int:
        return max(max(row) for row in self.board)

    def play(self, actions: list[int]) -> None:
        before, old = self.largest(), self.board
        self.board, points = slide(self.board, actions[0])
        if self.board != old:
            self.add_tile()
        self.rewards[0], self.terminations[0] = F(points), not self.legal()
        self.counted["score"] = points
        self.counted["largest"] = self.largest()
        self.counted["made_2048"] = float(before < 2048 <= self.largest())
        self.counted["wasted"] = float(self.board == old)

    def observe(self, agent: int) -> list[int]:
        seen = []
        for tile in (tile for row in self.board for tile in row):
            seen += [int(tile == 2**k or (k == 16 and tile == 2**17)) for k in range(1, 17)]
        return seen

    def mask(self, agent: int) -> list[int]:
        legal = self.legal() or range(4)
        return [int(action in legal) for action in range(4)]


# The largest tile belongs into the corner, the next ones beside it, along a snake.
WEIGHTS = [2.0**-k for k in (0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11, 15, 14, 13, 12)]


def order(board: Board) -> float:
    tiles = [tile for row in board for tile in row]
    return sum(weight * tile for weight, tile in zip(WEIGHTS, tiles))


def best_order(board: Board) -> float:
    """Of the boards that one move makes; 0 if the game is over."""
    boards = [after for after, _ in (slide(board, action) for action in range(4)) if after != board]
    return max((order(after) for after in boards), default=0.0)


def corner_player(board: Board) -> int:
    """Expectimax of depth 1: the move after which, on average over the places of a new 2, the next move orders best."""
    best, chosen = -1.0, UP
    for action in range(4):
        after, _ = slide(board, action)
        if after == board:
            continue
        values = []
        for y, x in ((y, x) for y in range(4) for x in range(4) if after[y][x] == 0):
            after[y][x] = 2
            values.append(best_order(after))
            after[y][x] = 0
        if sum(values) / len(values) > best:
            best, chosen = sum(values) / len(values), action
    return chosen
