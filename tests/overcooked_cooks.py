"""Two scripted cooks for overcooked, on a plain description of the kitchen. They know nothing of the library.

record_overcooked.py plays them in the Overcooked-AI package, test_overcooked.py in the env: both describe what they see
as a `Kitchen`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

NORTH, SOUTH, EAST, WEST, STAY, INTERACT = range(6)
WAYS = [(0, -1), (0, 1), (1, 0), (-1, 0)]
Cell = tuple[int, int]


@dataclass
class Kitchen:
    """What both cooks see. Things are 'onion', 'dish', 'soup' and ''."""

    rows: list[str]  # with blanks where the cooks start
    at: list[Cell]
    facing: list[int]
    held: list[str]
    things: dict[Cell, str]  # on counters
    pots: dict[Cell, tuple[int, bool, bool]]  # onions, whether it was started, whether it is done

    def tiles(self, kind: str) -> list[Cell]:
        return [(x, y) for y, row in enumerate(self.rows) for x, tile in enumerate(row) if tile == kind]

    def is_floor(self, cell: Cell) -> bool:
        x, y = cell
        return 0 <= y < len(self.rows) and 0 <= x < len(self.rows[y]) and self.rows[y][x] == " "


def walk(kitchen: Kitchen, start: Cell, blocked: Cell | None) -> dict[Cell, int]:
    """The first move towards each cell that can be reached; the start itself has STAY."""
    first = {start: STAY}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        for way, (dx, dy) in enumerate(WAYS):
            beyond = (cell[0] + dx, cell[1] + dy)
            if beyond in first or beyond == blocked or not kitchen.is_floor(beyond):
                continue
            first[beyond] = way if cell == start else first[cell]
            queue.append(beyond)
    return first


def touches(kitchen: Kitchen, start: Cell, blocked: Cell | None) -> dict[Cell, tuple[int, int, int]]:
    """For each tile that can be touched: steps of the walk, the first move, and the way to face it at the end."""
    order = list(walk(kitchen, start, blocked).items())
    found: dict[Cell, tuple[int, int, int]] = {}
    for steps, (cell, move) in enumerate(order):
        for way, (dx, dy) in enumerate(WAYS):
            tile = (cell[0] + dx, cell[1] + dy)
            if not kitchen.is_floor(tile) and tile not in found:
                found[tile] = (steps, move, way)
    return found


def go(kitchen: Kitchen, cook: int, targets: list[Cell]) -> int | None:
    """The action that brings a cook to the nearest of the targets and uses it there. None if none can be touched."""
    for blocked in (kitchen.at[1 - cook], None):
        reach = touches(kitchen, kitchen.at[cook], blocked)
        near = min((target for target in targets if target in reach), key=lambda target: reach[target][0], default=None)
        if near is not None:
            _, move, way = reach[near]
            if move != STAY:
                return move
            return INTERACT if kitchen.facing[cook] == way else way
    return None


def play(kitchen: Kitchen, cook: int) -> int:
    """What a sensible cook does next. Cook 0 prefers onions, cook 1 prefers dishes."""
    held, other = kitchen.held[cook], kitchen.held[1 - cook]
    reach, reach_of_other = (touches(kitchen, kitchen.at[who], None) for who in (cook, 1 - cook))
    pots = {pot: facts for pot, facts in kitchen.pots.items() if pot in reach}
    lacking = [pot for pot, (onions, started, _) in kitchen.pots.items() if not started and onions < 3]
    fullest = sorted(lacking, key=lambda pot: -kitchen.pots[pot][0])[:1]
    shared = [cell for cell in kitchen.tiles("X") if cell in reach and cell in reach_of_other]
    free = [cell for cell in shared if cell not in kitchen.things]
    lying = {
        thing: [cell for cell, what in kitchen.things.items() if what == thing] for thing in ("onion", "dish", "soup")
    }
    action: int | None = None
    if held == "soup":
        action = go(kitchen, cook, kitchen.tiles("S"))
    elif held == "onion":
        action = go(kitchen, cook, fullest) if fullest else None
        if action is None and (not pots or not fullest):
            action = go(kitchen, cook, free) if not pots or other != "dish" else None
    elif held == "dish":
        busy = [pot for pot, (_, started, _) in pots.items() if started]
        done = [pot for pot in busy if pots[pot][2]]
        action = go(kitchen, cook, done or busy) if busy else None
        if action == INTERACT and not done:
            action = STAY
        if action is None and not pots:
            action = go(kitchen, cook, free)
    else:
        full = [pot for pot, (onions, started, _) in pots.items() if onions == 3 and not started]
        started = [pot for pot, facts in kitchen.pots.items() if facts[1]]
        dishes = len(lying["dish"]) + (other == "dish")
        if full:
            action = go(kitchen, cook, full)
        elif lying["soup"]:
            action = go(kitchen, cook, lying["soup"])
        elif started and (len(started) > (other == "dish")) and (pots or dishes < len(started)):
            action = go(kitchen, cook, (lying["dish"] or kitchen.tiles("D")))
        if action is None and lacking and (pots or len(lying["onion"]) < 2):
            action = go(kitchen, cook, (lying["onion"] if pots and lying["onion"] else kitchen.tiles("O")))
        if action is None and not started and pots == {} and not lying["dish"]:
            action = go(kitchen, cook, kitchen.tiles("D"))
    return STAY if action is None else action
