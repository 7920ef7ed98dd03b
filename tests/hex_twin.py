"""The rules of hex once more, slowly, on a dict of stones: shoal/envs/hex.h must agree with it to the bit.

The stones are kept once, as the agent that began sees them; the header keeps both views. Links and shortest ways
are found by walking over cells, not by shifting bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .board_twins import BoardTwin

Cells = set[tuple[int, int]]  # (row, column)
AROUND = [(0, 1), (1, 0), (1, -1), (0, -1), (-1, 0), (-1, 1)]  # the six neighbours, in a circle


class Hex(BoardTwin):
    robots = ("random", "ways", "path")
    stats = ("wins_0", "wins_1", "wins_first", "swaps", "plies")

    def __init__(self, params: dict[str, Any], seed: int = 0, see_more: bool = True, side: int = 11) -> None:
        self.side, self.swap = side, side * side
        self.board = {(y, x) for y in range(side) for x in range(side)}
        super().__init__({"swap": 1, **params}, seed, see_more)

    def start(self) -> None:
        self.stones: dict[tuple[int, int], int] = {}
        self.last: tuple[int, int] | None = None
        self.plies = 0

    def of(self, agent: int, viewer: int) -> Cells:
        """The stones of an agent as another one sees them."""
        cells = {cell for cell, owner in self.stones.items() if owner == agent}
        return cells if viewer == self.first else {(x, y) for y, x in cells}

    def number(self, cells: Iterable[tuple[int, int]]) -> list[int]:
        return sorted(self.side * y + x for y, x in cells)

    def beside(self, cell: tuple[int, int]) -> Cells:
        return {(cell[0] + dy, cell[1] + dx) for dy, dx in AROUND} & self.board

    def edge(self, whose: int, which: int) -> Cells:
        """The cells at the top and the bottom for own stones (0), at the left and the right for the other's (1)."""
        return {cell for cell in self.board if cell[whose] == (self.side - 1 if which else 0)}

    def connected(self, start: Cells, stones: Cells) -> Cells:
        found = start & stones
        rest = list(found)
        while rest:
            new = (self.beside(rest.pop()) & stones) - found
            found |= new
            rest += new
        return found

    def linked(self, viewer: int, whose: int, which: int) -> Cells:
        stones = self.of(viewer if whose == 0 else 1 - viewer, viewer)
        return self.connected(self.edge(whose, which), stones)

    def may_swap(self) -> bool:
        return bool(self.params["swap"] == 1 and self.plies == 1)

    def free(self) -> list[int]:
        taken = self.of(0, self.turn) | self.of(1, self.turn)
        return self.number(self.board - taken)

    def moves(self) -> list[int]:
        return [*self.free(), *([self.swap] if self.may_swap() else [])]

    def play(self, move: int) -> None:
        cell = divmod(move, self.side)
        if move == self.swap:
            [(row, column)] = self.stones
            self.stones = {(column, row): self.turn}
        else:
            self.stones[cell if self.turn == self.first else (cell[1], cell[0])] = self.turn
        self.last = next(reversed(self.stones))
        self.plies += 1
        self.turn = 1 - self.turn

    def pick(self, moves: list[int]) -> int:
        return self.swap if moves == [self.swap] else super().pick(moves)

    def open(self) -> bool:
        before = dict(self.stones), self.last, self.plies, self.turn
        self.play(self.pick(self.free()))
        if self.outcome() is None:
            return True
        self.stones, self.last, self.plies, self.turn = before
        return False

    def outcome(self) -> int | None:
        return next((agent for agent in (0, 1) if self.linked(agent, 0, 0) & self.edge(0, 1)), None)

    # ---- the robot: all in the view of the agent on turn ----

    def near_edge(self, edge: Cells, empty: Cells, bridges: bool) -> Cells:
        return {cell for cell in empty if cell in edge or (bridges and len(self.beside(cell) & edge & empty) >= 2)}

    def near(self, stones: Cells, empty: Cells, bridges: bool) -> Cells:
        found = {cell for stone in stones for cell in self.beside(stone)}
        for y, x in stones if bridges else ():
            for (ay, ax), (by, bx) in zip(AROUND, AROUND[1:] + AROUND[:1]):
                if {(y + ay, x + ax), (y + by, x + bx)} <= empty:
                    found.add((y + ay + by, x + ax + bx))
        return found & empty

    def and_chains(self, cells: Cells, stones: Cells) -> Cells:
        return cells | self.connected({near for cell in cells for near in self.beside(cell)}, stones)

    def shortest_ways(self, whose: int, bridges: bool) -> tuple[Cells, int]:
        stones = self.of(self.turn if whose == 0 else 1 - self.turn, self.turn)
        empty = self.board - self.of(0, self.turn) - self.of(1, self.turn)
        starts = [
            self.near_edge(self.edge(whose, which), empty, bridges)
            | self.near(self.linked(self.turn, whose, which), empty, bridges)
            for which in (0, 1)
        ]
        layers, seen = [starts[1]], set(starts[1])
        while not layers[-1] & starts[0] and len(layers) < 24:
            layers.append(self.near(self.and_chains(layers[-1], stones), empty, bridges) - seen)
            seen |= layers[-1]
        here, ways = starts[0], set()
        for layer in reversed(layers):
            ways |= here & layer
            here = self.near(self.and_chains(here & layer, stones), empty, bridges)
        return ways, len(layers)

    def mends(self) -> Cells:
        assert self.last is not None
        last = self.last if self.turn == self.first else (self.last[1], self.last[0])
        own, empty = self.of(self.turn, self.turn), self.board - self.of(0, self.turn) - self.of(1, self.turn)
        found = set()
        for y, x in own:
            for (ay, ax), (by, bx) in zip(AROUND, AROUND[1:] + AROUND[:1]):
                ends, between = (y + ay + by, x + ax + bx), {(y + ay, x + ax), (y + by, x + bx)}
                if ends in own and last in between:
                    found |= (between - {last}) & empty
        for which in (0, 1):
            edge = self.edge(0, which)
            if last in edge:
                loose = (self.beside(last) & own) - edge - self.linked(self.turn, 0, which)
                found |= {cell for stone in loose for cell in self.beside(stone)} & edge & empty
        return found

    def robot_moves(self, robot: str) -> list[int]:
        if robot == "random":
            return self.free()
        if self.may_swap():
            assert self.last is not None
            row = self.last[0] if self.turn != self.first else self.last[1]  # in the view of its owner
            if 1 < row < self.side - 2:
                return [self.swap]
        ways, length = self.shortest_ways(0, robot == "path")
        blocks, other_length = self.shortest_ways(1, False)
        if length == 1:
            return self.number(ways)
        mends = self.mends() if robot == "path" and self.last is not None else set()
        better = ways if length <= other_length else blocks
        return self.number(mends or ways & blocks or better) or self.free()

    # ---- what the library shows ----

    def replace(self, action: int) -> int:
        if action == self.swap:
            return self.swap if self.may_swap() else self.free()[0]
        return next((cell for cell in self.free() if cell >= action), self.free()[0])

    def count_move(self, move: int) -> None:
        super().count_move(move)
        self.totals["swaps"] += move == self.swap

    def observe(self, agent: int) -> list[float]:
        cells = sorted(self.board)
        seen = [float(cell in self.of(player, agent)) for player in (agent, 1 - agent) for cell in cells]
        seen += [float(self.turn == agent), float(self.turn == agent and self.may_swap())]
        if self.see_more:
            for whose in (0, 1):
                ends = [self.linked(agent, whose, which) for which in (0, 1)]
                seen += [float(cell in ends[0]) - float(cell in ends[1]) for cell in cells]
        return seen

    def mask(self, agent: int) -> list[int]:
        allowed = self.moves() if self.turn == agent else [self.swap]
        return [int(move in allowed) for move in range(self.swap + 1)]
