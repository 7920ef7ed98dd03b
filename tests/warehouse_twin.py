"""The rules of warehouse once more, on sets of cells, and scripted robots for it."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from .agent_twins import AgentTwin, F

WAYS = [(0, -1), (1, 0), (0, 1), (-1, 0)]  # north, east, south, west
WAIT, AHEAD, TURN_LEFT, TURN_RIGHT, LOAD = range(5)
Cell = tuple[int, int]


class Plan:
    """The floor of a warehouse: where shelves may stand, and the goals."""

    def __init__(self, consts: dict[str, int]) -> None:
        columns, rows, height = (consts[name] for name in ("columns", "rows", "height"))
        self.wide, self.tall = 3 * columns + 1, (height + 1) * rows + 2
        self.cells = [(x, y) for y in range(self.tall) for x in range(self.wide)]
        middle = (self.wide // 2 - 1, self.wide // 2)
        self.goals = [(x, self.tall - 1) for x in middle]
        self.places = []
        for block_row in range(rows):
            for column in range(columns):
                for k in range(height):
                    self.places += [(3 * column + side, (height + 1) * block_row + 1 + k) for side in (1, 2)]
        last = (height + 1) * (rows - 1)
        self.places = [(x, y) for x, y in self.places if not (x in middle and y > last)]
        self.places.sort(key=lambda cell: (cell[1], cell[0]))


class Warehouse(AgentTwin):
    stats = {"delivered": "sum", "loads": "sum", "carrying": "mean", "blocked": "sum"}  # noqa: RUF012

    def reset(self) -> None:
        self.plan, self.count = Plan(self.consts), self.consts["robots"]
        self.floor = dict.fromkeys(self.plan.places, False)  # shelves on the floor: whether they are wanted
        self.at: list[Cell] = []
        self.facing: list[int] = []
        self.load: list[bool | None] = [None] * self.count  # None: nothing; else whether the shelf is wanted
        for _ in range(self.count):
            number = self.rng.int(len(self.plan.cells))
            while self.plan.cells[number] in self.at:
                number = (number + 1) % len(self.plan.cells)
            self.at.append(self.plan.cells[number])
            self.facing.append(self.rng.int(4))
        self.first = 0
        for _ in range(self.consts["requests"]):
            self.request(None)

    def request(self, delivered_by: int | None) -> None:
        on_floor = [cell for cell in self.plan.cells if self.floor.get(cell) is False]
        carried = [i for i in range(self.count) if self.load[i] is False and i != delivered_by]
        pick = self.rng.int(len(on_floor) + len(carried))
        if pick < len(on_floor):
            self.floor[on_floor[pick]] = True
        else:
            self.load[carried[pick - len(on_floor)]] = True

    def advance(self, actions: Any) -> tuple[list[Any], dict[str, float]]:
        rewards, events = [F(0)] * self.count, dict.fromkeys(self.stats, 0.0)
        shaping = F(self.params["shaping"])
        for k in range(self.count):
            i = (self.first + k) % self.count
            (x, y), action, carries = self.at[i], actions[i], self.load[i] is not None
            if action == AHEAD:
                cell = (x + WAYS[self.facing[i]][0], y + WAYS[self.facing[i]][1])
                if cell not in self.plan.cells or cell in self.at or (carries and cell in self.floor):
                    events["blocked"] += 1
                else:
                    self.at[i] = cell
            elif action in (TURN_LEFT, TURN_RIGHT):
                self.facing[i] = (self.facing[i] + (1 if action == TURN_RIGHT else -1)) % 4
            elif action == LOAD and not carries and (x, y) in self.floor:
                self.load[i] = self.floor.pop((x, y))
                rewards[i] += shaping if self.load[i] else -shaping
                events["loads"] += 1
            elif action == LOAD and carries and (x, y) in self.plan.places:
                rewards[i] += -shaping if self.load[i] else shaping
                self.floor[(x, y)] = bool(self.load[i])
                self.load[i] = None
        self.first = (self.first + 1) % self.count
        events["carrying"] = sum(load is not None for load in self.load) / self.count
        for i in range(self.count):
            if self.load[i] and self.at[i] in self.plan.goals:
                self.load[i] = False
                self.request(i)
                rewards[i] += F(1)
                events["delivered"] += 1
        return rewards, events

    def observe(self, agent: int) -> Any:
        (x, y), facing, sensor = self.at[agent], self.facing[agent], self.consts["sensor"]
        (ahead_x, ahead_y), (right_x, right_y) = WAYS[facing], WAYS[(facing + 1) % 4]
        seen: list[float] = []
        for ahead in range(sensor, -sensor - 1, -1):
            for right in range(-sensor, sensor + 1):
                cell = (x + ahead * ahead_x + right * right_x, y + ahead * ahead_y + right * right_y)
                other = self.at.index(cell) if cell in self.at and cell != (x, y) else None
                turned = [other is not None and (self.facing[other] - facing) % 4 == k for k in range(4)]
                shelf = self.floor.get(cell)
                carried = None if other is None else self.load[other]
                has_shelf = shelf is not None or carried is not None
                is_wanted = bool(shelf) or bool(carried)
                seen += [other is not None, *turned, has_shelf, is_wanted, cell not in self.plan.cells]
        scale_x, scale_y = F(1) / F(self.plan.wide - 1), F(1) / F(self.plan.tall - 1)
        load = self.load[agent]
        seen += [F(x) * scale_x, F(y) * scale_y, load is not None, bool(load), *(facing == k for k in range(4))]
        seen.append((x, y) in self.plan.places and (x, y) not in self.floor)
        wanted = [cell for cell in self.plan.places if self.floor.get(cell)]
        free = [cell for cell in self.plan.places if cell not in self.floor]

        def nearest(cells: list[Cell]) -> list[Any]:
            if not cells:
                return [0.0, 0.0]
            to_x, to_y = min(cells, key=lambda cell: abs(cell[0] - x) + abs(cell[1] - y))
            dx, dy, scale = to_x - x, to_y - y, F(1) / F(max(self.plan.wide, self.plan.tall))
            return [F(dx * ahead_x + dy * ahead_y) * scale, F(dx * right_x + dy * right_y) * scale]

        goals = self.plan.goals[1:] if x >= self.plan.wide // 2 else self.plan.goals[:1]
        seen += [bool(wanted), *nearest(wanted), *nearest(goals), *nearest(free)]
        return np.array(seen, F)


def drive(warehouse: Warehouse, dice: Any) -> list[int]:
    """Scripted robots: the shortest way to the nearest wanted shelf, to a goal, to a free place; each its own shelf."""
    taken: set[Cell] = set()
    actions = []
    for i in range(warehouse.count):
        load = warehouse.load[i]
        if load is None:
            targets = {cell for cell, is_wanted in warehouse.floor.items() if is_wanted} - taken
        elif load:
            targets = set(warehouse.plan.goals)
        else:
            targets = {cell for cell in warehouse.plan.places if cell not in warehouse.floor} - taken
        action, target = _way(warehouse, i, targets)
        taken.add(target)
        actions.append(int(dice.integers(5)) if dice.random() < 0.05 else action)
    return actions


def _way(warehouse: Warehouse, robot: int, targets: set[Cell]) -> tuple[int, Cell]:
    """The first action of the shortest plan of moves and turns, and the target that it leads to."""
    for others in (set(warehouse.at) - {warehouse.at[robot]}, set()):
        start = (warehouse.at[robot], warehouse.facing[robot])
        first: dict[Any, int] = {start: LOAD}
        queue = deque([start])
        while queue:
            cell, facing = state = queue.popleft()
            if cell in targets:
                return first[state], cell
            ahead = (cell[0] + WAYS[facing][0], cell[1] + WAYS[facing][1])
            moves = [(TURN_LEFT, (cell, (facing - 1) % 4)), (TURN_RIGHT, (cell, (facing + 1) % 4))]
            is_shelf = warehouse.load[robot] is not None and ahead in warehouse.floor
            if ahead in warehouse.plan.cells and ahead not in others and not is_shelf:
                moves.append((AHEAD, (ahead, facing)))
            for action, beyond in moves:
                if beyond not in first:
                    first[beyond] = action if state == start else first[state]
                    queue.append(beyond)
    return WAIT, warehouse.at[robot]
