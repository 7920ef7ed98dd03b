"""The rules of pacman once more, slowly, on sets of cells, and a player that looks for pellets around the ghosts."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from .arcade_twin import ArcadeTwin, F

MAZE = """
###################
#o.......#.......o#
#.##.###.#.###.##.#
#.................#
#.##.#.#####.#.##.#
#....#...#...#....#
####.###.#.###.####
####.#       #.####
####.# ##-## #.####
    .  #hhh#  .    
####.# ##### #.####
####.#       #.####
#......#####......#
#.##.#...#...#.##.#
#.##.###.#.###.##.#
#o....... .......o#
#.##.#.#####.#.##.#
#.##.#...#...#.##.#
#.##.###.#.###.##.#
#.................#
###################
""".strip("\n").split("\n")  # noqa: W291
Cell = tuple[int, int]
CELLS = {(x, y): cell for y, row in enumerate(MAZE) for x, cell in enumerate(row)}
OPEN = {cell for cell, kind in CELLS.items() if kind in ".o "}
POWER = [(1, 1), (17, 1), (1, 15), (17, 15)]
WAYS = {"up": (0, -1), "right": (1, 0), "down": (0, 1), "left": (-1, 0)}
NAMES = [*WAYS]
BACK = {"up": "down", "down": "up", "left": "right", "right": "left"}
GHOSTS = ("red", "pink", "cyan", "orange")
CORNERS = {"red": (17, -1), "pink": (1, -1), "cyan": (17, 21), "orange": (1, 21)}
HOMES = {"red": (9, 9), "pink": (9, 9), "cyan": (8, 9), "orange": (10, 9)}
MODES = ("roams", "flees", "eaten", "home")
DOOR = (9, 7)
GHOST = [(name, "i4") for name in ("x", "y", "heading", "mode", "wait", "progress")]
LAYOUT = [
    *[("pellets", "u4", 21), ("x", "i4"), ("y", "i4"), ("heading", "i4"), ("ghosts", GHOST, 4), ("phase", "i4")],
    *[(name, "i4") for name in ("phase_steps", "fright", "combo", "left", "lives", "level", "score")],
]


def beside(cell: Cell, way: str) -> Cell:
    return ((cell[0] + WAYS[way][0]) % 19, cell[1] + WAYS[way][1])


def square(a: Cell, b: Cell) -> int:
    return (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2


class Ghost:
    def __init__(self, name: str, release_steps: int) -> None:
        self.name, self.way, self.progress = name, "left", 0
        self.at = DOOR if name == "red" else HOMES[name]
        self.mode = "roams" if name == "red" else "home"
        self.wait = 0 if name == "red" else 10 + (GHOSTS.index(name) - 1) * release_steps


class Twin(ArcadeTwin):
    stats: ClassVar = {"score": "sum", "pellets": "sum", "ghosts": "sum", "deaths": "sum", "cleared": "sum"}
    defaults: ClassVar = {
        "lives": 3,
        "levels": 1,
        "ghost_speed": 15,
        "slow_speed": 8,
        "fright_steps": 60,
        "scatter_steps": 70,
        "chase_steps": 200,
        "release_steps": 40,
        "death": 0.0,
        "max_steps": 3000,
    }

    def start(self) -> None:
        self.lives, self.level = self.params["lives"], 0
        self.fill()
        self.take_places()

    def fill(self) -> None:
        self.pellets = {cell for cell, kind in CELLS.items() if kind in ".o"}

    def take_places(self) -> None:
        self.at, self.way = (9, 15), "left"
        self.phase, self.phase_steps, self.fright, self.combo = 0, 0, 0, 0
        self.ghosts = {name: Ghost(name, self.params["release_steps"]) for name in GHOSTS}

    def turn_back(self) -> None:
        for ghost in self.ghosts.values():
            if ghost.mode in ("roams", "flees"):
                ghost.way = BACK[ghost.way]

    def meet(self, ghost: Ghost) -> bool:
        if ghost.at != self.at or ghost.mode == "home":
            return False
        if ghost.mode == "flees":
            ghost.mode = "eaten"
            self.points += (200, 400, 800, 1600)[min(self.combo, 3)]
            self.combo += 1
            self.counted["ghosts"] += 1
        return ghost.mode == "roams"

    def target(self, ghost: Ghost) -> Cell:
        if ghost.mode == "eaten":
            return DOOR
        (x, y), (dx, dy) = self.at, WAYS[self.way]
        is_shy = ghost.name == "orange" and square(self.at, ghost.at) <= 64
        if self.phase % 2 == 0 or is_shy:
            return CORNERS[ghost.name]
        if ghost.name == "pink":
            return (x + 4 * dx, y + 4 * dy)
        if ghost.name == "cyan":
            red = self.ghosts["red"].at
            return (2 * (x + 2 * dx) - red[0], 2 * (y + 2 * dy) - red[1])
        return self.at

    def choose(self, ghost: Ghost) -> str:
        ways = [way for way in NAMES if beside(ghost.at, way) in OPEN and way != BACK[ghost.way]]
        if ghost.mode == "flees":
            first = self.rng.int(4)
            order = [NAMES[(first + k) % 4] for k in range(4)]
            return next(way for way in order if way in ways)
        order = [way for way in ("up", "left", "down", "right") if way in ways]
        return min(order, key=lambda way: square(beside(ghost.at, way), self.target(ghost)))

    def move(self, ghost: Ghost) -> bool:
        """A ghost's part of a step. Whether the player dies."""
        if ghost.mode == "home":
            ghost.wait -= 1
            if ghost.wait > 0:
                return False
            ghost.mode, ghost.at, ghost.way, ghost.progress, ghost.wait = "roams", DOOR, "left", 0, 0
            return self.meet(ghost)
        in_tunnel = ghost.at[1] == 9 and not 4 <= ghost.at[0] <= 14
        is_slow = ghost.mode == "flees" or in_tunnel
        speed = 32 if ghost.mode == "eaten" else self.params["slow_speed" if is_slow else "ghost_speed"]
        ghost.progress += speed
        while ghost.progress >= 16:
            ghost.progress -= 16
            ghost.way = self.choose(ghost)
            ghost.at = beside(ghost.at, ghost.way)
            if ghost.mode == "eaten" and ghost.at == DOOR:
                ghost.mode, ghost.at, ghost.wait, ghost.progress = "home", HOMES[ghost.name], 10, 0
            elif self.meet(ghost):
                return True
        return False

    def pass_time(self) -> None:
        if self.fright:
            self.fright -= 1
            for ghost in self.ghosts.values():
                if self.fright == 0 and ghost.mode == "flees":
                    ghost.mode = "roams"
            return
        if self.phase == 7:
            return
        scatter, chase = self.params["scatter_steps"], self.params["chase_steps"]
        self.phase_steps += 1
        if self.phase_steps >= [scatter, chase, scatter, chase, scatter * 5 // 7, chase, scatter * 5 // 7][self.phase]:
            self.phase, self.phase_steps = self.phase + 1, 0
            self.turn_back()

    def play(self, actions: list[int]) -> None:
        self.points = 0
        if beside(self.at, NAMES[actions[0]]) in OPEN:
            self.way = NAMES[actions[0]]
        if beside(self.at, self.way) in OPEN:
            self.at = beside(self.at, self.way)
        if self.at in self.pellets:
            self.pellets.remove(self.at)
            self.counted["pellets"] += 1
            self.points += 10
            if self.at in POWER:
                self.points += 40
                self.fright, self.combo = self.params["fright_steps"], 0
                self.turn_back()
                for ghost in self.ghosts.values():
                    ghost.mode = "flees" if ghost.mode == "roams" else ghost.mode
        dies = sum([self.meet(ghost) for ghost in self.ghosts.values()]) > 0
        for ghost in self.ghosts.values():
            if not dies and self.pellets:
                dies = self.move(ghost)
        self.pass_time()
        reward = F(self.points) * F(0.1)
        self.lives -= dies
        is_clear = not self.pellets
        self.level += is_clear
        self.rewards[0] = F(reward - F(self.params["death"])) if dies else reward
        self.counted |= {"score": self.points, "deaths": dies, "cleared": is_clear}
        self.terminations[0] = self.lives == 0 or self.level >= self.params["levels"]
        if not self.terminations[0]:
            if is_clear:
                self.fill()
            if dies or is_clear:
                self.take_places()

    def observe(self, agent: int) -> list[float]:
        x, y = self.at
        seen = [float(x == k) for k in range(19)] + [float(y == k) for k in range(21)]
        seen += [float(beside(self.at, way) in OPEN) for way in NAMES] + [float(way == self.way) for way in NAMES]
        seen += [float((x + dx, y + dy) in self.pellets) for dy in range(-6, 7) for dx in range(-6, 7)]
        for cell in POWER:
            where = [1.0, F(cell[0] - x) / F(19), F(cell[1] - y) / F(21)]
            seen += where if cell in self.pellets else [0.0, 0.0, 0.0]
        for ghost in self.ghosts.values():
            seen += [F(ghost.at[0] - x) / F(19), F(ghost.at[1] - y) / F(21)]
            seen += [float(ghost.mode == mode) for mode in MODES] + [float(ghost.way == way) for way in NAMES]
        sides = [sum(cell[1] < y for cell in self.pellets), sum(cell[0] > x for cell in self.pellets)]
        sides += [sum(cell[1] > y for cell in self.pellets), sum(cell[0] < x for cell in self.pellets)]
        seen += [F(count) / F(max(len(self.pellets), 1)) for count in sides]
        seen += [F(self.fright) / F(self.params["fright_steps"]), float(self.phase % 2 == 0)]
        return [*seen, F(self.lives) / F(self.params["lives"]), F(len(self.pellets)) / F(156)]


# ---- a player ----


def distances(start: Cell, walls: set[Cell]) -> dict[Cell, tuple[int, str]]:
    """Steps to every cell that can be reached, and the first way of a shortest path."""
    found: dict[Cell, tuple[int, str]] = {start: (0, "up")}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        for way in NAMES:
            to = beside(cell, way)
            if to in OPEN and to not in walls and to not in found:
                found[to] = (found[cell][0] + 1, found[cell][1] if cell != start else way)
                queue.append(to)
    return found


def player(twin: Twin) -> int:
    """To the nearest pellet or frightened ghost, by cells that no dangerous ghost is near to; else away from them."""
    dangers = [ghost.at for ghost in twin.ghosts.values() if ghost.mode == "roams"]
    prey = {ghost.at for ghost in twin.ghosts.values() if ghost.mode == "flees"}
    near: dict[Cell, int] = {}
    for danger in dangers:
        for cell, (steps, _) in distances(danger, set()).items():
            near[cell] = min(near.get(cell, 99), steps)
    for margin in (4, 3, 2):
        walls = {cell for cell in OPEN if near.get(cell, 99) < margin} - {twin.at}
        ways = distances(twin.at, walls)
        goals = [cell for cell in ways if (cell in prey and ways[cell][0] < 12) or cell in twin.pellets]
        goals = [cell for cell in goals if cell != twin.at]
        if goals:
            best = min(goals, key=lambda cell: ways[cell][0] - 8 * (cell in prey))
            return NAMES.index(ways[best][1])
    return NAMES.index(
        max(NAMES, key=lambda way: near.get(beside(twin.at, way), 0) if beside(twin.at, way) in OPEN else -1)
    )
