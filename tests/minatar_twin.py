"""The rules of the five MinAtar games once more, slowly, on lists: what the headers must agree with to the bit.

They share no idea with the headers: no bit rows, no columns. What is random is an *event* that `play` takes: drawn by
`draw` in the order of the header, or tried by `follow`, which replays a recording of the package `minatar` and asks
whether some event explains every frame. An observation is the set of its cells (y, x, channel).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from .vacuum_twin import Rng

STAY, LEFT, UP, RIGHT, DOWN, FIRE = range(6)
Cells = set[tuple[int, int, int]]


class Twin:
    """One env. A subclass has the rules of a game."""

    channels = 0
    defaults: ClassVar[dict[str, Any]] = {}
    stats: ClassVar[dict[str, str]] = {}  # how the values of the steps become one: sum or last

    def __init__(self, params: dict[str, Any] | None = None, seed: int = 0) -> None:
        self.params = {"sticky": 0.1, "ramping": 1, "max_steps": 10000, **self.defaults, **(params or {})}
        self.rng = Rng(seed)
        self.reset()

    # ---- what a subclass defines ----

    def start(self, event: Any) -> None:
        raise NotImplementedError

    def play(self, action: int, event: Any) -> int:
        """One frame. Returns the reward and sets `is_over`; `counts` are the stats of the frame."""
        raise NotImplementedError

    def see(self) -> Cells:
        raise NotImplementedError

    def draw_start(self) -> Any:
        return None

    def draw(self, action: int) -> Any:
        """The event of the next frame, by the random numbers of this env."""
        return None

    def guesses(self, action: int, seen: Cells) -> Iterator[Any]:
        """All events that could lead to what is seen after the next frame, and perhaps some that cannot."""
        yield None

    # ---- the library's part ----

    def uniform(self) -> np.float32:
        return np.float32((self.rng.int(2**32) >> 8) * 2.0**-24)

    def reset(self) -> None:
        self.last, self.tick, self.total, self.is_over = 0, 0, 0, False
        self.counts: dict[str, int] = {}
        self.sums = dict.fromkeys(self.stats, 0)
        self.start(self.draw_start())

    def step(self, action: int) -> dict[str, Any]:
        """Everything that the library shows of this env after the step; resets it if the episode has ended."""
        self.last = self.last if self.uniform() < np.float32(self.params["sticky"]) else action
        self.counts = dict.fromkeys(self.stats, 0)
        reward = self.play(self.last, self.draw(self.last))
        self.tick += 1
        self.total += reward
        for name, kind in self.stats.items():
            self.sums[name] = self.counts[name] + (self.sums[name] if kind == "sum" else 0)
        shown: dict[str, Any] = {"reward": reward, "terminated": self.is_over}
        shown["truncated"] = not self.is_over and self.tick == self.params["max_steps"]
        if shown["terminated"] or shown["truncated"]:
            shown["final"] = {"return": self.total, "length": self.tick, **self.sums}
            shown["final_obs"] = self.array()
            self.reset()
        shown["obs"] = self.array()
        return shown

    def array(self) -> np.ndarray:
        planes = np.zeros((10, 10, self.channels), np.uint8)
        for cell in self.see():
            planes[cell] = 1
        return planes


def cells_of(planes: np.ndarray) -> Cells:
    return {(int(y), int(x), int(c)) for y, x, c in np.argwhere(planes)}


def has_entered(seen: Cells, y: int, dx: int, channel: int) -> bool:
    """Whether something is in the first two cells of its way."""
    return any((y, x, channel) in seen for x in ((0, 1) if dx == 1 else (8, 9)))


def clip(x: int, low: int = 0, high: int = 9) -> int:
    return max(low, min(high, x))


def follow(twins: list[Any], action: int, reward: int, is_over: bool, seen: Cells) -> list[Any]:
    """The twins, each after some event, that show what was seen. None is left if no event explains it."""
    cases = [(twin, event) for twin in twins for event in twin.guesses(action, seen)]
    found = {}
    for number, (twin, event) in enumerate(cases):
        after = twin if len(cases) == 1 else copy.copy(twin)
        if len(cases) > 1:  # params and random numbers are shared: `play` does not change them
            changes = {name: value for name, value in vars(twin).items() if name not in ("params", "rng")}
            vars(after).update(copy.deepcopy(changes))
        if after.play(action, event) == reward and after.is_over == is_over and after.see() == seen:
            state = {name: value for name, value in vars(after).items() if name not in ("params", "rng")}
            found[repr(state) if len(cases) > 1 else number] = after
    return list(found.values())


class Breakout(Twin):
    channels = 4
    stats: ClassVar[dict[str, str]] = {"bricks": "sum", "returns": "sum", "walls": "last"}

    def draw_start(self) -> str:
        return "left" if self.rng.int(2) == 0 else "right"

    def start(self, event: str) -> None:
        self.ball = self.trail = (0, 3) if event == "left" else (9, 3)
        self.dx, self.dy = (1, 1) if event == "left" else (-1, 1)
        self.paddle, self.walls, self.was_in_brick = 4, 1, False
        self.bricks = {(x, y) for y in (1, 2, 3) for x in range(10)}

    def play(self, action: int, event: Any) -> int:
        self.paddle = clip(self.paddle + {LEFT: -1, RIGHT: 1}.get(action, 0))
        self.trail = self.ball
        x, y = self.ball[0] + self.dx, self.ball[1] + self.dy
        reward, is_in_brick = 0, False
        if x in (-1, 10):
            x = self.ball[0]
            self.dx *= -1
        if y == -1:
            y, self.dy = 0, 1
        elif (x, y) in self.bricks:
            is_in_brick = True
            if not self.was_in_brick:
                self.bricks.remove((x, y))
                reward = 1
                y = self.ball[1]
                self.dy *= -1
        elif y == 9:
            if not self.bricks:
                self.bricks = {(x, y) for y in (1, 2, 3) for x in range(10)}
                self.walls += 1
            if self.paddle == self.ball[0]:
                y, self.dy = 8, -1
                self.counts["returns"] = 1
            elif self.paddle == x:
                y, self.dy = 8, -1
                self.dx *= -1
                self.counts["returns"] = 1
            else:
                self.is_over = True
        self.was_in_brick = is_in_brick
        self.ball = (x, y)
        self.counts["bricks"], self.counts["walls"] = reward, self.walls
        return reward

    def see(self) -> Cells:
        moving = {(9, self.paddle, 0), (self.ball[1], self.ball[0], 1), (self.trail[1], self.trail[0], 2)}
        return moving | {(y, x, 3) for x, y in self.bricks}


class Asterix(Twin):
    """`rows[k]`: what is in row k + 1, [x, dx, is it gold], or None."""

    channels = 4
    defaults: ClassVar[dict[str, Any]] = {
        "spawn_interval": 10,
        "move_interval": 5,
        "ramp_interval": 100,
        "gold": np.float32(1 / 3),
    }
    stats: ClassVar[dict[str, str]] = {"collected": "sum", "ramps": "last"}

    def start(self, event: Any) -> None:
        self.x, self.y, self.ramps = 5, 5, 0
        self.rows: list[list[Any] | None] = [None] * 8
        self.spawn_every = self.until_spawn = self.params["spawn_interval"]
        self.move_every = self.until_move = self.params["move_interval"]
        self.until_ramp = self.params["ramp_interval"]

    def empty_rows(self) -> list[int]:
        return [k for k in range(8) if self.rows[k] is None]

    def draw(self, action: int) -> Any:
        empty = self.empty_rows()
        if self.until_spawn > 0 or not empty:
            return None
        row, right = empty[self.rng.int(len(empty))], self.rng.int(2)
        return row, 1 if right else -1, bool(self.uniform() < np.float32(self.params["gold"]))

    def guesses(self, action: int, seen: Cells) -> Iterator[Any]:
        empty = self.empty_rows()
        if self.until_spawn > 0 or not empty:
            yield None
            return
        for row, dx, is_gold in itertools.product(empty, (1, -1), (True, False)):
            if abs(self.y - row - 1) <= 1 or has_entered(seen, row + 1, dx, 3 if is_gold else 1):
                yield row, dx, is_gold

    def touch(self) -> int:
        thing = self.rows[self.y - 1]
        if thing is None or thing[0] != self.x:
            return 0
        if not thing[2]:
            self.is_over = True
            return 0
        self.rows[self.y - 1] = None
        return 1

    def play(self, action: int, event: Any) -> int:
        if self.until_spawn == 0:
            if event:
                row, dx, is_gold = event
                self.rows[row] = [0 if dx == 1 else 9, dx, is_gold]
            self.until_spawn = self.spawn_every
        self.x = clip(self.x + {LEFT: -1, RIGHT: 1}.get(action, 0))
        self.y = clip(self.y + {UP: -1, DOWN: 1}.get(action, 0), 1, 8)
        reward = self.touch()
        if self.until_move == 0:
            self.until_move = self.move_every
            for k, thing in enumerate(self.rows):
                if thing:
                    thing[0] += thing[1]
                    if thing[0] in (-1, 10):
                        self.rows[k] = None
            reward += self.touch()
        self.until_spawn -= 1
        self.until_move -= 1
        if self.params["ramping"] and (self.spawn_every, self.move_every) != (1, 1):
            self.until_ramp -= 1
            if self.until_ramp == -2:
                if self.ramps % 2 == 1:
                    self.move_every = max(1, self.move_every - 1)
                self.spawn_every = max(1, self.spawn_every - 1)
                self.ramps += 1
                self.until_ramp = self.params["ramp_interval"]
        self.counts["collected"], self.counts["ramps"] = reward, self.ramps
        return reward

    def see(self) -> Cells:
        cells = {(self.y, self.x, 0)}
        for k, thing in enumerate(self.rows):
            if thing:
                cells.add((k + 1, thing[0], 3 if thing[2] else 1))
                if 0 <= thing[0] - thing[1] <= 9:
                    cells.add((k + 1, thing[0] - thing[1], 2))
        return cells


class Freeway(Twin):
    """`cars[k]` is in row k + 1: [x, speed from 1 to 5, dx, frames until it moves]."""

    channels = 7
    defaults: ClassVar[dict[str, Any]] = {"frames": 2500, "chicken_interval": 3, "slowest": 5}
    stats: ClassVar[dict[str, str]] = {"crossings": "sum", "hits": "sum"}

    def draw_start(self) -> Any:
        return [(1 + self.rng.int(self.params["slowest"]), 1 if self.rng.int(2) else -1) for _ in range(8)]

    def start(self, event: Any) -> None:
        self.y, self.wait, self.left = 9, self.params["chicken_interval"], self.params["frames"]
        self.cars = [[0, speed, dx, speed] for speed, dx in event]

    def arrives(self, action: int) -> bool:
        return self.wait == 0 and action == UP and self.y == 1

    def draw(self, action: int) -> Any:
        return self.draw_start() if self.arrives(action) else None

    def guesses(self, action: int, seen: Cells) -> Iterator[Any]:
        yield speeds_of(seen) if self.arrives(action) else None

    def play(self, action: int, event: Any) -> int:
        reward, was_hit = 0, False
        if self.wait == 0 and action in (UP, DOWN):
            self.y = clip(self.y + (1 if action == DOWN else -1))
            self.wait = self.params["chicken_interval"]
        if self.y == 0:
            self.y, reward = 9, 1
            self.cars = [[car[0], speed, dx, speed] for car, (speed, dx) in zip(self.cars, event)]
        for k, car in enumerate(self.cars):
            was_hit |= (self.y, 4) == (k + 1, car[0])
            if car[3] == 0:
                car[3] = car[1]
                car[0] = (car[0] + car[2]) % 10
                was_hit |= (self.y, 4) == (k + 1, car[0])
            else:
                car[3] -= 1
        if was_hit:
            self.y = 9
        self.wait = max(0, self.wait - 1)
        self.is_over = self.left == 0
        self.left -= 1
        self.counts["crossings"], self.counts["hits"] = reward, int(was_hit)
        return reward

    def see(self) -> Cells:
        cells = {(self.y, 4, 0)}
        for k, (x, speed, dx, _) in enumerate(self.cars):
            cells |= {(k + 1, x, 1), (k + 1, (x - dx) % 10, 1 + speed)}
        return cells


def speeds_of(seen: Cells) -> list[tuple[int, int]]:
    """(speed, dx) of every car, by its trail."""
    speeds = {}
    for y, x, channel in seen:
        if channel >= 2:
            car = next(column for row, column, kind in seen if (row, kind) == (y, 1))
            speeds[y] = (channel - 1, 1 if (x + 1) % 10 == car else -1)
    return [speeds[y] for y in range(1, 9)]


class Invaders(Twin):
    """Aliens and bullets are sets of (x, y)."""

    channels = 6
    defaults: ClassVar[dict[str, Any]] = {"move_interval": 12, "shot_interval": 10, "cooldown": 5}
    stats: ClassVar[dict[str, str]] = {"shot": "sum", "bullets": "sum", "waves": "last"}

    def start(self, event: Any) -> None:
        self.x, self.dx, self.cool, self.waves = 5, -1, 0, 0
        self.aliens = {(x, y) for x in range(2, 8) for y in range(4)}
        self.mine: set[tuple[int, int]] = set()
        self.theirs: set[tuple[int, int]] = set()
        self.every = self.until_move = self.params["move_interval"]
        self.until_shot = self.params["shot_interval"]

    def play(self, action: int, event: Any) -> int:
        if action == FIRE and self.cool == 0:
            self.mine.add((self.x, 9))
            self.cool = self.params["cooldown"]
            self.counts["bullets"] = 1
        self.x = clip(self.x + {LEFT: -1, RIGHT: 1}.get(action, 0))
        self.mine = {(x, y - 1) for x, y in self.mine if y > 0}
        self.theirs = {(x, y + 1) for x, y in self.theirs if y < 9}
        cannon = (self.x, 9)
        self.is_over = cannon in self.theirs or cannon in self.aliens
        if self.until_move == 0:
            self.until_move = min(len(self.aliens), self.every)
            if any(x + self.dx in (-1, 10) for x, _ in self.aliens):
                self.is_over |= any(y == 9 for _, y in self.aliens)
                self.aliens = {(x, (y + 1) % 10) for x, y in self.aliens}
                self.dx *= -1
            else:
                self.aliens = {(x + self.dx, y) for x, y in self.aliens}
            self.is_over |= cannon in self.aliens
        if self.until_shot == 0:
            self.until_shot = self.params["shot_interval"]
            self.theirs.add(min(self.aliens, key=lambda alien: (abs(alien[0] - self.x), alien[0], -alien[1])))
        hits = self.aliens & self.mine
        self.aliens -= hits
        self.mine -= hits
        self.cool = max(0, self.cool - 1)
        self.until_move -= 1
        self.until_shot -= 1
        if not self.aliens:
            if self.params["ramping"] and self.every > 6:
                self.every -= 1
            self.waves += 1
            self.aliens = {(x, y) for x in range(2, 8) for y in range(4)}
        self.counts["shot"], self.counts["waves"] = len(hits), self.waves
        return len(hits)

    def see(self) -> Cells:
        cells = {(9, self.x, 0)} | {(y, x, 1) for x, y in self.aliens}
        cells |= {(y, x, 2 if self.dx == -1 else 3) for x, y in self.aliens}
        return cells | {(y, x, 4) for x, y in self.mine} | {(y, x, 5) for x, y in self.theirs}


class Seaquest(Twin):
    """Things are lists [x, y, dx, frames until it moves], submarines have the frames until they shoot, too."""

    channels = 10
    most = 32  # of a kind: the header's arrays. With the default params no kind has more.
    defaults: ClassVar[dict[str, Any]] = {
        "oxygen": 200,
        "enemy_interval": 20,
        "diver_interval": 30,
        "move_interval": 5,
        "shot_interval": 10,
        "cooldown": 5,
        "submarines": np.float32(1 / 3),
    }
    stats: ClassVar[dict[str, str]] = {"shot": "sum", "found": "sum", "surfaced": "sum", "rescued": "sum"}

    def start(self, event: Any) -> None:
        self.x, self.y, self.faces, self.is_up = 5, 0, -1, True
        self.oxygen, self.divers, self.cool, self.ramps = self.params["oxygen"], 0, 0, 0
        self.mine: list[list[int]] = []
        self.theirs: list[list[int]] = []
        self.fish: list[list[int]] = []
        self.submarines: list[list[int]] = []
        self.lost: list[list[int]] = []
        self.enemy_every = self.until_enemy = self.params["enemy_interval"]
        self.until_diver = self.params["diver_interval"]
        self.move_every = self.params["move_interval"]

    def is_opposed(self, y: int, dx: int) -> bool:
        return any(other[1] == y and other[2] == -dx for other in self.fish + self.submarines)

    def draw(self, action: int) -> Any:
        enemy = diver = None
        if self.until_enemy == 0:
            dx = 1 if self.rng.int(2) else -1
            kind = "submarine" if self.uniform() < np.float32(self.params["submarines"]) else "fish"
            enemy = (kind, 1 + self.rng.int(8), dx)
        if self.until_diver == 0:
            dx = 1 if self.rng.int(2) else -1
            diver = (1 + self.rng.int(8), dx)
        return enemy, diver

    def guesses(self, action: int, seen: Cells) -> Iterator[Any]:
        places = list(itertools.product(range(1, 9), (1, -1)))
        enemies: list[Any] = [None]
        divers: list[Any] = [None]
        if self.until_enemy == 0:
            dangers = {self.y - 1, self.y, self.y + 1, *(bullet[1] for bullet in self.mine)}  # it may be gone at once
            enemies = [
                (kind, y, dx)
                for kind, channel in (("fish", 5), ("submarine", 6))
                for y, dx in places
                if not self.is_opposed(y, dx) and (y in dangers or has_entered(seen, y, dx, channel))
            ]
            if any(self.is_opposed(y, dx) for y, dx in places):
                enemies.append(None)
        if self.until_diver == 0:
            divers = [(y, dx) for y, dx in places if abs(y - self.y) <= 1 or has_entered(seen, y, dx, 9)]
        yield from itertools.product(enemies, divers)

    def enter(self, event: Any) -> None:
        enemy, diver = event
        if self.until_enemy == 0:
            self.until_enemy = self.enemy_every
            if enemy and not self.is_opposed(enemy[1], enemy[2]):
                thing = [0 if enemy[2] == 1 else 9, enemy[1], enemy[2], self.move_every]
                if enemy[0] == "fish" and len(self.fish) < self.most:
                    self.fish.append(thing)
                if enemy[0] == "submarine" and len(self.submarines) < self.most:
                    self.submarines.append([*thing, self.params["shot_interval"]])
        if self.until_diver == 0:
            self.until_diver = self.params["diver_interval"]
            if len(self.lost) < self.most:
                self.lost.append([0 if diver[1] == 1 else 9, diver[0], diver[1], 5])

    def is_me(self, thing: list[int]) -> bool:
        return (thing[0], thing[1]) == (self.x, self.y)

    def move_mine(self) -> int:
        hits = 0
        for bullet in self.mine[:]:
            bullet[0] += bullet[2]
            targets = [(things, thing) for things in (self.fish, self.submarines) for thing in things]
            targets = [(things, thing) for things, thing in targets if thing[:2] == bullet[:2]]
            if targets:
                things, thing = targets[0]
                things[:] = [other for other in things if other is not thing]
                hits += 1
            if targets or bullet[0] in (-1, 10):
                self.mine = [other for other in self.mine if other is not bullet]
        return hits

    def move_divers(self) -> None:
        for diver in self.lost[:]:
            taken = self.is_me(diver) and self.divers < 6
            if not taken and diver[3] == 0:
                diver[0] += diver[2]
                diver[3] = 5
                taken = self.is_me(diver) and self.divers < 6
            elif not taken:
                diver[3] -= 1
            if taken:
                self.divers += 1
                self.counts["found"] = self.counts.get("found", 0) + 1
            if taken or diver[0] in (-1, 10):
                self.lost = [other for other in self.lost if other is not diver]

    def move_enemies(self, things: list[list[int]]) -> int:
        hits = 0
        for thing in things[:]:
            self.is_over |= self.is_me(thing)
            if thing[3] == 0:
                thing[0] += thing[2]
                thing[3] = self.move_every
                self.is_over |= self.is_me(thing)
                bullets = [bullet for bullet in self.mine if bullet[:2] == thing[:2] and not self.is_me(thing)]
                hits += bool(bullets)
                self.mine = [bullet for bullet in self.mine if not bullets or bullet is not bullets[0]]
                if bullets or thing[0] in (-1, 10):
                    things[:] = [other for other in things if other is not thing]
                    continue
            else:
                thing[3] -= 1
            if len(thing) == 5:
                if thing[4] == 0:
                    thing[4] = self.params["shot_interval"]
                    if len(self.theirs) < self.most:
                        self.theirs.append(thing[:3])
                else:
                    thing[4] -= 1
        return hits

    def play(self, action: int, event: Any) -> int:
        self.enter(event)
        if action == FIRE and self.cool == 0:
            self.mine.append([self.x, self.y, self.faces])
            self.cool = self.params["cooldown"]
        self.faces = {LEFT: -1, RIGHT: 1}.get(action, self.faces)
        self.x = clip(self.x + {LEFT: -1, RIGHT: 1}.get(action, 0))
        self.y = clip(self.y + {UP: -1, DOWN: 1}.get(action, 0), 0, 8)
        hits = self.move_mine()
        self.move_divers()
        hits += self.move_enemies(self.submarines)
        for bullet in self.theirs:
            self.is_over |= self.is_me(bullet)
            bullet[0] += bullet[2]
            self.is_over |= self.is_me(bullet)
        self.theirs = [bullet for bullet in self.theirs if 0 <= bullet[0] <= 9]
        hits += self.move_enemies(self.fish)
        self.until_enemy = max(0, self.until_enemy - 1)
        self.until_diver = max(0, self.until_diver - 1)
        self.cool = max(0, self.cool - 1)
        self.counts["shot"] = hits
        return hits + self.breathe()

    def breathe(self) -> int:
        """Oxygen and the surface. Returns the reward for a full crew."""
        if self.y > 0:
            self.oxygen -= 1
            self.is_up = False
            self.is_over |= self.oxygen < 0
            return 0
        if self.is_up:
            return 0
        if self.divers == 0:
            self.is_over = True
            return 0
        reward = self.oxygen * 10 // self.params["oxygen"] if self.divers == 6 else 0
        self.counts["surfaced"], self.counts["rescued"] = 1, int(self.divers == 6)
        self.divers = -1 if self.divers == 6 else self.divers - 1
        self.oxygen, self.is_up = self.params["oxygen"], True
        if self.params["ramping"] and (self.enemy_every > 1 or self.move_every > 2):
            if self.ramps % 2 == 1 and self.move_every > 2:
                self.move_every -= 1
            self.enemy_every = max(1, self.enemy_every - 1)
            self.ramps += 1
        return reward

    def see(self) -> Cells:
        cells = {(self.y, self.x, 0), (self.y, self.x - self.faces, 1)}
        cells |= {(9, x, 7) for x in range(self.oxygen * 10 // self.params["oxygen"])}
        cells |= {(9, 8 - k, 8) for k in range(self.divers)}
        for things, channel in ((self.mine, 2), (self.theirs, 4), (self.fish, 5), (self.submarines, 6), (self.lost, 9)):
            for x, y, dx, *wait in things:
                cells.add((y, x, channel))
                if wait and 0 <= x - dx <= 9:
                    cells.add((y, x - dx, 3))
        return cells


TWINS: dict[str, type[Twin]] = {
    "asterix": Asterix,
    "breakout": Breakout,
    "freeway": Freeway,
    "invaders": Invaders,
    "seaquest": Seaquest,
}
