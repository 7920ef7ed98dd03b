"""The rules of tetris once more, slowly, on sets of cells, and a player of Dellacherie's kind.

Rotations turn the cells of a piece about the centre of its box; kicks are differences of the offsets by which the Super
Rotation System defines them. The header has tables of both.
"""

from __future__ import annotations

import functools
from typing import ClassVar

from .arcade_twin import ArcadeTwin, F

KINDS = "IJLOSTZ"
PICTURES = {"I": ".... ####", "J": "# ###", "L": "..# ###", "O": ".## .##", "S": ".## ##", "T": ".# ###", "Z": "## .##"}
BOX = {"I": 4, "O": 4}
SMALL = [[(0, 0)] * 5, [(0, 0), (1, 0), (1, -1), (0, 2), (1, 2)]]
SMALL += [[(0, 0)] * 5, [(0, 0), (-1, 0), (-1, -1), (0, 2), (-1, 2)]]
LONG = [
    [(0, 0), (-1, 0), (2, 0), (-1, 0), (2, 0)],
    [(-1, 0), (0, 0), (0, 0), (0, 1), (0, -2)],
    [(-1, 1), (1, 1), (-2, 1), (1, 0), (-2, 0)],
    [(0, 1), (0, 1), (0, 1), (0, -1), (0, 2)],
]
POINTS = [0, 100, 300, 500, 800]
STAY, LEFT, RIGHT, TURN_RIGHT, TURN_LEFT, SOFT, HARD, HOLD = range(8)
ROWS, COLUMNS, HIDDEN = 22, 10, 2
LAYOUT = [
    *[("field", "u2", 30), ("kinds", "u4", 22), ("piece", "i4"), ("turn", "i4"), ("x", "i4"), ("y", "i4")],
    *[("held", "i4"), ("may_hold", "i4"), ("timer", "i4"), ("queued", "i4"), ("queue", "i4", 14), ("score", "i4")],
]
Cells = frozenset[tuple[int, int]]  # (x, y), y down from the uppermost hidden row


@functools.cache
def shape(kind: str, turn: int) -> Cells:
    """Cells of a piece in its box."""
    rows = PICTURES[kind].split()
    cells = {(x, y) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell == "#"}
    for _ in range(turn if kind != "O" else 0):
        last = BOX.get(kind, 3) - 1
        cells = {(last - y, x) for x, y in cells}
    return frozenset(cells)


def kicks(kind: str, turn: int, to: int) -> list[tuple[int, int]]:
    """Where a turn is tried, x to the right and y down. In the box of the I the first one is no move."""
    if kind == "O":
        return [(0, 0)]
    offsets = LONG if kind == "I" else SMALL
    moves = [(a[0] - b[0], a[1] - b[1]) for a, b in zip(offsets[turn], offsets[to])]
    return [(x - moves[0][0], -(y - moves[0][1])) for x, y in moves]


def place(kind: str, turn: int, x: int, y: int) -> Cells:
    return frozenset((x + dx, y + dy) for dx, dy in shape(kind, turn))


class Twin(ArcadeTwin):
    stats: ClassVar = {"score": "sum", "rows": "sum", "tetrises": "sum", "pieces": "sum", "height": "last"}
    defaults: ClassVar = {"gravity": 6, "hold": 1, "max_steps": 2000, "preview": 3}

    def start(self) -> None:
        self.locked: set[tuple[int, int]] = set()
        self.held: str | None = None
        self.may_hold, self.queue = True, self.bag()
        self.appear(self.draw())

    def bag(self) -> list[str]:
        left, drawn = list(KINDS), []
        for k in range(6):  # the header swaps the drawn one with the first of the rest
            pick = self.rng.int(7 - k)
            left[0], left[pick] = left[pick], left[0]
            drawn.append(left.pop(0))
        return drawn + left

    def draw(self) -> str:
        if len(self.queue) <= 7:
            self.queue += self.bag()
        return self.queue.pop(0)

    def appear(self, kind: str) -> None:
        self.kind, self.turn, self.x, self.y, self.timer = kind, 0, 3, 0, 0

    def fits(self, turn: int, x: int, y: int) -> bool:
        cells = place(self.kind, turn, x, y)
        return all(0 <= cx < COLUMNS and 0 <= cy < ROWS for cx, cy in cells) and not cells & self.locked

    def drop(self) -> int:
        rows = 0
        while self.fits(self.turn, self.x, self.y + rows + 1):
            rows += 1
        return rows

    def lock(self) -> int:
        cells = place(self.kind, self.turn, self.x, self.y)
        self.locked |= cells
        full = [y for y in range(ROWS) if all((x, y) in self.locked for x in range(COLUMNS))]
        for row in full:
            self.locked = {(x, y + (y < row)) for x, y in self.locked if y != row}
        self.may_hold = True
        self.appear(self.draw())
        self.counted |= {"rows": len(full), "tetrises": len(full) == 4, "pieces": 1}
        self.terminations[0] = all(y < HIDDEN for _, y in cells) or not self.fits(0, self.x, self.y)
        return POINTS[len(full)]

    def rotate(self, to: int) -> None:
        for dx, dy in kicks(self.kind, self.turn, to):
            if self.fits(to, self.x + dx, self.y + dy):
                self.turn, self.x, self.y = to, self.x + dx, self.y + dy
                return

    def play(self, actions: list[int]) -> None:
        action, points = actions[0], 0
        aside = {LEFT: -1, RIGHT: 1}.get(action, 0)
        if self.fits(self.turn, self.x + aside, self.y):
            self.x += aside
        if action in (TURN_RIGHT, TURN_LEFT):
            self.rotate((self.turn + (1 if action == TURN_RIGHT else -1)) % 4)
        if action == HOLD and self.may_hold and self.params["hold"]:
            self.held, kind = self.kind, self.held
            self.appear(kind or self.draw())
            self.may_hold = False
            self.terminations[0] = not self.fits(0, self.x, self.y)
        if action == HARD:
            rows = self.drop()
            self.y += rows
            points = 2 * rows + self.lock()
        elif not self.terminations[0]:
            self.timer += 1
            if self.timer >= self.params["gravity"] or action == SOFT:
                self.timer = 0
                if self.fits(self.turn, self.x, self.y + 1):
                    self.y += 1
                    points = int(action == SOFT)
                else:
                    points = self.lock()
        self.rewards[0] = F(points) * F(0.01)
        self.counted["score"] = points
        self.counted["height"] = ROWS - min((y for _, y in self.locked), default=ROWS)

    def observe(self, agent: int) -> list[float]:
        seen = [float((x, y) in self.locked) for y in range(HIDDEN, ROWS) for x in range(COLUMNS)]
        tops = [min((y for x, y in self.locked if x == column), default=ROWS) for column in range(COLUMNS)]
        seen += [F(ROWS - top) / F(ROWS) for top in tops]
        cells = place(self.kind, self.turn, self.x, self.y)
        seen += [sum(x == column for x, _ in cells) / 4 for column in range(COLUMNS)]
        seen += one_hot(self.kind)
        seen += [float(turn == self.turn) for turn in range(4)]
        seen += [F(n) / F(ROWS) for n in (self.x + 2, self.y + 2, self.drop())]
        seen += one_hot(self.held)
        seen += [float(self.may_hold and self.params["hold"]), F(self.timer) / F(self.params["gravity"])]
        seen += self.foresee()
        for kind in self.queue[: self.params["preview"]]:
            seen += one_hot(kind)
        return seen

    def foresee(self) -> list[float]:
        """What a hard drop would do: rows that it fills / 4, and empty cells that it covers / 16."""
        piece = place(self.kind, self.turn, self.x, self.y + self.drop())
        after = self.locked | piece
        full = [y for y in {y for _, y in piece} if all((x, y) in after for x in range(COLUMNS))]
        covered = 0
        for column in {x for x, _ in piece}:
            bottom = max(y for x, y in piece if x == column)
            top = min((y for x, y in self.locked if x == column), default=ROWS)
            covered += len(range(bottom + 1, top))
        return [len(full) / 4, min(covered, 16) / 16]


def one_hot(kind: str | None) -> list[float]:
    return [float(kind == other) for other in KINDS]


# ---- a player ----


@functools.cache
def plan(field: Cells, kind: str) -> tuple[int, int]:
    """(turn, x) of the drop after which the field is worth most.

    Features of Dellacherie's player with the weights of El-Tetris (Islam El-Ashi 2011).
    """
    best, chosen = -1e9, (0, 3)
    for turn in range(1 if kind == "O" else 2 if kind in "ISZ" else 4):
        cells = shape(kind, turn)
        for x in range(-min(dx for dx, _ in cells), COLUMNS - max(dx for dx, _ in cells)):
            y = 0
            while all(cy + y + 1 < ROWS and (cx + x, cy + y + 1) not in field for cx, cy in cells):
                y += 1
            value = worth(field, frozenset((cx + x, cy + y) for cx, cy in cells))
            if value > best:
                best, chosen = value, (turn, x)
    return chosen


def worth(field: Cells, piece: Cells) -> float:
    rows = [sum(1 << x for x, cy in field | piece if cy == y) for y in range(ROWS)]
    height = ROWS - (min(y for _, y in piece) + max(y for _, y in piece)) / 2
    full = sum(row == 1023 for row in rows)
    rows = [0] * full + [row for row in rows if row != 1023]
    row_changes = sum(((row << 1 | 1) ^ (row | 1024)).bit_count() for row in rows if row)
    column_changes = sum((a ^ b).bit_count() for a, b in zip(rows, [*rows[1:], 1023]))
    holes, above = 0, 0
    for row in rows:
        holes += (above & ~row).bit_count()
        above |= row
    wells, depth = 0, [0] * COLUMNS
    for row in rows:
        walled = row << 1 | 1 | 1 << 11
        for x in range(COLUMNS):
            is_well = not row >> x & 1 and walled >> x & 1 and walled >> (x + 2) & 1
            depth[x] = depth[x] + 1 if is_well else 0
            wells += depth[x]
    weights = (-4.500158825082766, 3.4181268101392694, -3.2178882868487753)
    others = (-9.348695305445199, -7.899265427351652, -3.3855972247263626)
    features = (height, full, row_changes, column_changes, holes, wells)
    return sum(w * f for w, f in zip((*weights, *others), features))


def player(field: Cells, kind: str, turn: int, x: int) -> int:
    """The next key on the way to the planned drop."""
    to_turn, to_x = plan(field, kind)
    if turn != to_turn:
        return TURN_LEFT if (to_turn - turn) % 4 == 3 else TURN_RIGHT
    return RIGHT if x < to_x else LEFT if x > to_x else HARD
