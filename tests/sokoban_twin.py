"""The rules of sokoban once more, on sets of cells, and a solver. It shares no idea with the header: no bitboards."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

UP, DOWN, LEFT, RIGHT = range(4)
WAYS = ((0, -1), (0, 1), (-1, 0), (1, 0))
Cell = tuple[int, int]


@dataclass(frozen=True)
class Level:
    """Cells are (x, y), the outer walls included."""

    side: int
    walls: frozenset[Cell]
    targets: frozenset[Cell]
    boxes: frozenset[Cell]
    keeper: Cell

    @classmethod
    def of(cls, obs: Any) -> Level:
        """From an observation (side, side, 4)."""
        planes = [frozenset((int(x), int(y)) for y, x in np.argwhere(obs[:, :, k])) for k in range(4)]
        (keeper,) = planes[3]
        return cls(len(obs), planes[0], planes[1], planes[2], keeper)

    @classmethod
    def drawn(cls, text: str) -> Level:
        """From the usual letters: # wall, . target, $ box, * box on a target, @ keeper, + keeper on a target."""
        rows = [row for row in text.splitlines() if row.strip()]
        cells = {(x, y): letter for y, row in enumerate(rows) for x, letter in enumerate(row)}

        def find(letters: str) -> frozenset[Cell]:
            return frozenset(cell for cell, letter in cells.items() if letter in letters)

        (keeper,) = find("@+")
        return cls(len(rows), find("#"), find(".*+"), find("$*"), keeper)

    def observe(self) -> Any:
        obs = np.zeros((self.side, self.side, 4), np.uint8)
        for k, plane in enumerate((self.walls, self.targets, self.boxes, {self.keeper})):
            for x, y in plane:
                obs[y, x, k] = 1
        return obs

    @property
    def is_solved(self) -> bool:
        return self.boxes == self.targets

    def step(self, way: int) -> tuple[Level, float, bool]:
        """(next level, reward with the default params, whether a box was pushed)."""
        dx, dy = WAYS[way]
        x, y = self.keeper
        ahead, beyond = (x + dx, y + dy), (x + 2 * dx, y + 2 * dy)
        after, pushed = self, False
        if ahead in self.boxes:
            if beyond not in self.walls and beyond not in self.boxes:
                after, pushed = replace(self, keeper=ahead, boxes=self.boxes - {ahead} | {beyond}), True
        elif ahead not in self.walls:
            after = replace(self, keeper=ahead)
        placed = len(after.boxes & after.targets) - len(self.boxes & self.targets)
        return after, placed - 0.1 + (10 if after.is_solved else 0), pushed

    def record(self) -> tuple[int, int, int, int]:
        """Walls, targets, boxes and keeper as the State has them: bits of the 8 x 8 cells within the outer walls."""

        def board(cells: frozenset[Cell]) -> int:
            return sum(1 << 8 * (y - 1) + x - 1 for x, y in cells if 0 < x < self.side - 1 and 0 < y < self.side - 1)

        floor = {(x, y) for x in range(self.side) for y in range(self.side)} - self.walls
        walls = (1 << 64) - 1 - board(frozenset(floor))
        return walls, board(self.targets), board(self.boxes), 8 * (self.keeper[1] - 1) + self.keeper[0] - 1


def dead_cells(level: Level) -> frozenset[Cell]:
    """Cells from which no box can be pushed to any target: those that no box can be pulled to from a target."""
    alive = set(level.targets)
    queue = deque(alive)
    while queue:
        x, y = queue.popleft()
        for dx, dy in WAYS:
            box, keeper = (x + dx, y + dy), (x + 2 * dx, y + 2 * dy)
            if box not in level.walls and keeper not in level.walls and box not in alive:
                alive.add(box)
                queue.append(box)
    return frozenset((x, y) for x in range(level.side) for y in range(level.side)) - frozenset(alive)


def solve(level: Level, most: int = 200_000) -> list[int] | None:
    """The shortest solution, by breadth-first search; None if there is none within `most` positions."""
    dead = dead_cells(level)
    came: dict[tuple[Cell, frozenset[Cell]], Any] = {(level.keeper, level.boxes): None}
    queue = deque(came)
    while queue and len(came) < most:
        node = queue.popleft()
        here = replace(level, keeper=node[0], boxes=node[1])
        for way in range(4):
            after, _, pushed = here.step(way)
            key = (after.keeper, after.boxes)
            if key in came or (pushed and after.boxes & dead):
                continue
            came[key] = (node, way)
            if after.is_solved:
                actions = []
                while came[key] is not None:
                    key, way = came[key]
                    actions.append(way)
                return actions[::-1]
            queue.append(key)
    return None


def is_solvable(level: Level, most: int = 200_000) -> bool:
    """Whether some solution exists: best-first search, nearest boxes first. It finds one in large levels too."""
    dead = dead_cells(level)

    def far(boxes: frozenset[Cell]) -> int:
        return sum(min(abs(x - tx) + abs(y - ty) for tx, ty in level.targets) for x, y in boxes - level.targets)

    seen = {(level.keeper, level.boxes)}
    heap = [(far(level.boxes), 0, 0, level)]
    while heap and len(seen) < most:
        _, _, steps, here = heapq.heappop(heap)
        for way in range(4):
            after, _, pushed = here.step(way)
            key = (after.keeper, after.boxes)
            if key in seen or (pushed and after.boxes & dead):
                continue
            if after.is_solved:
                return True
            seen.add(key)
            heapq.heappush(heap, (3 * far(after.boxes) + steps // 4, len(seen), steps + 1, after))
    return False
