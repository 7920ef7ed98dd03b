"""The rules of harvest once more, on sets of cells, and two scripted agents for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .agent_twins import AgentTwin, F

WAYS = [(0, -1), (1, 0), (0, 1), (-1, 0)]  # north, east, south, west
STAY, AHEAD, BACK, LEFT, RIGHT, TURN_LEFT, TURN_RIGHT, ZAP = range(8)
Cell = tuple[int, int]


def near(cell: Cell) -> set[Cell]:
    """The twelve cells within a distance of 2."""
    x, y = cell
    reach = range(-2, 3)
    return {(x + i, y + j) for i in reach for j in reach if 0 < i * i + j * j <= 4}


class Harvest(AgentTwin):
    stats = {"apples": "sum", "stock": "mean", "alive": "last", "equality": "last", "zaps": "sum", "hits": "sum"}  # noqa: RUF012

    def reset(self) -> None:
        self.count, self.side = self.consts["agents"], 7 * self.consts["patches"]
        patches = range(self.consts["patches"])
        self.centres = [(3 + 7 * i, 3 + 7 * j) for j in patches for i in patches]
        self.spots = {cell for centre in self.centres for cell in near(centre) | {centre}}
        self.apples = set(self.spots)
        self.at: list[Cell | None] = [None] * self.count
        self.facing, self.out, self.eaten = [0] * self.count, [0] * self.count, [0] * self.count
        self.first = 0
        for agent in range(self.count):
            self.place(agent)

    def is_free(self, cell: Cell) -> bool:
        return cell not in self.at and cell not in self.spots

    def place(self, agent: int) -> None:
        for _ in range(16):
            number = self.rng.int(self.side**2)
            cell = (number % self.side, number // self.side)
            if self.is_free(cell):
                self.at[agent], self.facing[agent] = cell, self.rng.int(4)
                return
        cells = ((x, y) for y in range(self.side) for x in range(self.side))
        self.at[agent], self.facing[agent] = next(filter(self.is_free, cells)), 0

    def is_field(self, cell: Cell) -> bool:
        return all(0 <= value < self.side for value in cell)

    def advance(self, actions: Any) -> tuple[list[Any], dict[str, float]]:
        self.gained = [F(0)] * self.count
        self.events = {"apples": 0.0, "zaps": 0.0, "hits": 0.0}
        for k in range(self.count):
            agent = (self.first + k) % self.count
            if self.at[agent] is not None:
                self.act(agent, actions[agent])
        self.first = (self.first + 1) % self.count
        total = F(0)
        for gain in self.gained:
            total = total + gain
        for agent in range(self.count):
            if self.out[agent] > 0:
                self.out[agent] -= 1
                if self.out[agent] == 0:
                    self.place(agent)
        self.grow()
        share = F(self.params["share"])
        rewards = [(F(1) - share) * gain + share * (total / F(self.count)) for gain in self.gained]
        alive = sum(bool((near(centre) | {centre}) & self.apples) for centre in self.centres)
        stock = len(self.apples) / len(self.spots)
        return rewards, {**self.events, "stock": stock, "alive": alive, "equality": self.equality()}

    def equality(self) -> float:
        total = sum(self.eaten)
        gaps = sum(abs(a - b) for a in self.eaten for b in self.eaten)
        return 1 - gaps / (2 * self.count * total) if total else 1.0

    def act(self, agent: int, action: int) -> None:
        if action in (TURN_LEFT, TURN_RIGHT):
            self.facing[agent] = (self.facing[agent] + (1 if action == TURN_RIGHT else -1)) % 4
        if action == ZAP and self.params["zap"]:
            self.zap(agent)
        if action not in (AHEAD, BACK, LEFT, RIGHT):
            return
        turn = {AHEAD: 0, RIGHT: 1, BACK: 2, LEFT: 3}[action]
        dx, dy = WAYS[(self.facing[agent] + turn) % 4]
        x, y = self.place_of(agent)
        cell = (x + dx, y + dy)
        if not self.is_field(cell) or cell in self.at:
            return
        self.at[agent] = cell
        if cell in self.apples:
            self.apples.remove(cell)
            self.eaten[agent] += 1
            self.gained[agent] += F(1)
            self.events["apples"] += 1

    def place_of(self, agent: int) -> Cell:
        cell = self.at[agent]
        assert cell is not None
        return cell

    def zap(self, agent: int) -> None:
        x, y = self.place_of(agent)
        dx, dy = WAYS[self.facing[agent]]
        for side in (-1, 0, 1):
            for far in range(1, self.params["zap_range"] + 1):
                cell = (x + far * dx - side * dy, y + far * dy + side * dx)
                if not self.is_field(cell):
                    break
                if cell in self.at:
                    hit = self.at.index(cell)
                    self.at[hit], self.out[hit] = None, self.params["zap_time"] + 1
                    self.gained[hit] -= F(self.params["hit_cost"])
                    self.events["hits"] += 1
                    break
        self.gained[agent] -= F(self.params["zap_cost"])
        self.events["zaps"] += 1

    def grow(self) -> None:
        before = set(self.apples)
        for cell in sorted(self.spots - before, key=lambda cell: (cell[1], cell[0])):
            apples = len(near(cell) & before)
            if apples == 0:
                continue
            chance = F(self.params[f"grow_{min(apples, 3)}"])
            if self.rng.uniform(0, 1) < chance and cell not in self.at:
                self.apples.add(cell)

    def observe(self, agent: int) -> Any:
        view = self.consts["view"]
        seen = np.zeros((view, view, 3), np.uint8)
        if self.at[agent] is None:
            return seen
        (x, y), (dx, dy), middle = self.place_of(agent), WAYS[self.facing[agent]], view // 2
        for row in range(view):
            for column in range(view):
                ahead, right = middle - row, column - middle
                cell = (x + ahead * dx - right * dy, y + ahead * dy + right * dx)
                is_other = cell in self.at and cell != (x, y)
                seen[row, column] = [255 * (cell in self.apples), 255 * is_other, 255 * (not self.is_field(cell))]
        return seen


def forage(obs: Any, least: int, dice: Any) -> int:
    """A scripted agent: walks to the nearest apple in sight that has at least `least` apples near it; else it roams."""
    apples = {(int(x), int(y)) for y, x in np.argwhere(obs[:, :, 0])}
    middle = obs.shape[0] // 2
    good = [cell for cell in apples if len(near(cell) & apples) >= least]
    if not good:
        is_wall = obs[middle - 1, middle, 2] or obs[middle - 1, middle, 1]
        return TURN_RIGHT if is_wall or dice.random() < 0.1 else AHEAD if (middle, middle - 1) not in apples else RIGHT
    x, y = min(good, key=lambda cell: abs(cell[0] - middle) + abs(cell[1] - middle))
    across, along = x - middle, middle - y
    if abs(along) >= abs(across):
        return AHEAD if along > 0 else BACK
    return RIGHT if across > 0 else LEFT
