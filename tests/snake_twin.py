"""The rules of snake once more, slowly: a snake is a list of cells. And a player that goes to food and into nothing."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

import numpy as np

from .arcade_twin import ArcadeTwin, F

STEPS = [(0, -1), (1, 0), (0, 1), (-1, 0)]  # up, right, down, left as (dx, dy)
STRAIGHT, TURN_LEFT, TURN_RIGHT = range(3)
Cell = tuple[int, int]


class Twin(ArcadeTwin):
    stats: ClassVar = {
        "eaten": "sum",
        "deaths_by_wall": "sum",
        "deaths_by_self": "sum",
        "deaths_by_other": "sum",
        "longest": "last",
    }
    defaults: ClassVar = {"food": 24, "start_length": 3, "remains": "nothing", "death": 1.0, "max_steps": 500}

    def __init__(self, params: dict[str, Any], seed: int, agents: int = 8, side: int = 24, view: int = 9) -> None:
        self.agents, self.side, self.view_side = agents, side, view
        super().__init__(params, seed)

    def start(self) -> None:
        cells = [(x, y) for y in range(self.side) for x in range(self.side)]
        self.most_food = min(self.params["food"], self.side**2 // 2)
        self.bodies: list[list[Cell]] = []  # from the head; empty: dead
        self.headings, self.last_heads = [], []
        self.food: set[Cell] = set()
        self.longest = 1
        self.growths = [self.params["start_length"] - 1] * self.agents
        for k in range(self.agents + self.most_food):
            pick = k + self.rng.int(len(cells) - k)
            cell, cells[pick] = cells[pick], cells[k]
            if k < self.agents:
                self.bodies.append([cell])
                self.headings.append(self.rng.int(4))
                self.last_heads.append(cell)
            else:
                self.food.add(cell)

    def is_wall(self, cell: Cell) -> bool:
        return not (0 <= cell[0] < self.side and 0 <= cell[1] < self.side)

    def play(self, actions: list[int]) -> None:
        living = [k for k, body in enumerate(self.bodies) if body]
        targets: dict[int, Cell] = {}
        for k in living:
            self.headings[k] = (self.headings[k] + {TURN_LEFT: -1, TURN_RIGHT: 1}.get(actions[k], 0)) % 4
            (x, y), (dx, dy) = self.bodies[k][0], STEPS[self.headings[k]]
            targets[k] = (x + dx, y + dy)
            self.growths[k] += targets[k] in self.food
        after = {k: [targets[k], *self.bodies[k]] for k in living}
        for k in living:
            if self.growths[k]:
                self.growths[k] -= 1
            else:
                after[k].pop()
        dead = []
        for k in living:
            target = targets[k]
            if self.is_wall(target):
                cause = "wall"
            elif target in after[k][1:]:
                cause = "self"
            elif any(target in after[j] for j in living if j != k):
                cause = "other"
            else:
                continue
            self.counted[f"deaths_by_{cause}"] += 1
            self.rewards[k], self.terminations[k] = F(-self.params["death"]), True
            dead.append(k)
        for k in dead:
            if self.params["remains"] == "food":
                self.food |= set(after[k][1:])
            self.bodies[k] = []
        for k in living:
            if k in dead:
                continue
            self.bodies[k] = after[k]
            self.last_heads[k] = targets[k]
            if targets[k] in self.food:
                self.food.remove(targets[k])
                self.rewards[k] = F(1)
                self.counted["eaten"] += 1
        self.longest = max(self.longest, *(len(body) for body in self.bodies))
        self.counted["longest"] = self.longest
        spot = self.rng.int(self.side**2)
        cell = (spot % self.side, spot // self.side)
        taken = cell in self.food or any(cell in body for body in self.bodies)
        if len(self.food) < self.most_food and not taken:
            self.food.add(cell)

    def observe(self, agent: int) -> np.ndarray:
        """Looks at every cell of the view: what is it?"""
        half, seen = self.view_side // 2, np.zeros((self.view_side, self.view_side, 5), np.uint8)
        (x, y), forward = self.last_heads[agent], STEPS[self.headings[agent]]
        right = STEPS[(self.headings[agent] + 1) % 4]
        own, others = set(self.bodies[agent]), [body for k, body in enumerate(self.bodies) if k != agent]
        bodies, heads = {cell for body in others for cell in body[1:]}, {body[0] for body in others if body}
        for row in range(self.view_side):
            for column in range(self.view_side):
                far, aside = half - row, column - half
                cell = (x + far * forward[0] + aside * right[0], y + far * forward[1] + aside * right[1])
                kinds = (self.is_wall(cell), cell in self.food, cell in own, cell in bodies, cell in heads)
                seen[row, column] = kinds
        return seen


def player(seen: np.ndarray) -> int:
    """The first move of the shortest way to food that is in sight; else the move with the most room ahead."""
    side = len(seen)
    half, walls, food = side // 2, seen[:, :, (0, 2, 3, 4)].any(-1), seen[:, :, 1]
    heads = np.argwhere(seen[:, :, 4])
    first = {STRAIGHT: (half - 1, half), TURN_LEFT: (half, half - 1), TURN_RIGHT: (half, half + 1)}
    risky = {action for action, (y, x) in first.items() if any(abs(y - a) + abs(x - b) == 1 for a, b in heads)}
    moves = [action for action, cell in first.items() if not walls[cell]]
    moves = [action for action in moves if action not in risky] or moves
    reached: dict[int, set[tuple[int, int]]] = {action: {first[action]} for action in moves}
    seen_by = {first[action] for action in moves}
    queue = deque((first[action], action) for action in moves)
    while queue:
        (y, x), action = queue.popleft()
        if food[y, x]:
            return action
        for cell in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            inside = 0 <= cell[0] < side and 0 <= cell[1] < side
            if inside and not walls[cell] and cell not in seen_by:
                seen_by.add(cell)
                reached[action].add(cell)
                queue.append((cell, action))
    return max(moves, key=lambda action: len(reached[action]), default=STRAIGHT)
