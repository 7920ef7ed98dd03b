"""The rules of asteroids once more, slowly, in float32 as in C, and a player that turns to rocks and shoots."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from .arcade_twin import ArcadeTwin, F

WIDTH, HEIGHT, STEP = F(800), F(600), F(1) / F(15)
RADIUS = {1: F(40), 2: F(20), 3: F(10)}
POINTS = {1: 20, 2: 50, 3: 100}
SPEEDS = {1: (40, 90), 2: (60, 140), 3: (80, 200)}
SHIP = F(10)
BODY = [(name, "f4") for name in ("x", "y", "vx", "vy")] + [("kind", "i4")]
LAYOUT = [
    *[("ship", BODY), ("rocks", BODY, 32), ("shots", BODY, 4), ("count", "i4"), ("heading", "i4"), ("reload", "i4")],
    *[(name, "i4") for name in ("safe", "lives", "wave", "score")],
]


def sine(x: np.float32, quarter: int) -> np.float32:
    """sin(x + quarter * pi/2) as core/math.h computes it, in float32: Cody and Waite's reduction, Moshier's series."""
    k = np.rint(x * F(0.636619772367581))
    r = F(F(x - k * F(1.5703125)) - k * F(4.837512969970703125e-4)) - k * F(7.549789954891882e-8)
    z = r * r
    if (int(k) + quarter) % 2 == 0:
        value = ((F(-1.9515295891e-4) * z + F(8.3321608736e-3)) * z - F(1.6666654611e-1)) * z * r + r
    else:
        high = (F(2.443315711809948e-5) * z - F(1.388731625493765e-3)) * z + F(4.166664568298827e-2)
        value = high * z * z - F(0.5) * z + F(1)
    return F(-value if (int(k) + quarter) % 4 >= 2 else value)


def point(heading: int) -> tuple[np.float32, np.float32]:
    """The unit vector of a heading: 256 to the turn, clockwise from the right."""
    angle = F(heading) * F(F(2) * F(math.pi) / F(256))
    return sine(angle, 1), sine(angle, 0)


def wrap(x: np.float32, size: np.float32) -> np.float32:
    return F(x + size) if x < 0 else F(x - size) if x >= size else x


def nearest(d: np.float32, size: np.float32) -> np.float32:
    return F(d - size) if d > size / 2 else F(d + size) if d < -size / 2 else d


class Body:
    def __init__(self, x: Any, y: Any, vx: Any = 0, vy: Any = 0, kind: int = 0) -> None:
        self.x, self.y, self.vx, self.vy, self.kind = F(x), F(y), F(vx), F(vy), kind

    def move(self) -> None:
        self.x = wrap(F(self.x + self.vx * STEP), WIDTH)
        self.y = wrap(F(self.y + self.vy * STEP), HEIGHT)

    def to(self, other: Body) -> tuple[np.float32, np.float32]:
        """The shorter way to another body."""
        return nearest(F(other.x - self.x), WIDTH), nearest(F(other.y - self.y), HEIGHT)

    def meets(self, rock: Body, reach: np.float32) -> np.float32 | None:
        """The part of the step at which it is nearest to a rock; None if it does not come within reach."""
        x, y = rock.to(self)
        dx, dy = F((self.vx - rock.vx) * STEP), F((self.vy - rock.vy) * STEP)
        length, t = F(dx * dx + dy * dy), F(0)
        if length > 0:
            t = min(max(F(-F(x * dx + y * dy) / length), F(0)), F(1))
        x, y = F(x + t * dx), F(y + t * dy)
        return t if F(x * x + y * y) < F(reach * reach) else None


class Twin(ArcadeTwin):
    stats: ClassVar = {"score": "sum", "hits": "sum", "shots": "sum", "deaths": "sum", "waves": "sum"}
    defaults: ClassVar = {
        "lives": 3,
        "rocks": 4,
        "turn": 7,
        "reload": 4,
        "thrust": 300.0,
        "drag": 0.03,
        "rock_speed": 1.0,
        "death": 0.0,
        "max_steps": 2000,
    }

    def start(self) -> None:
        self.lives, self.reload, self.wave = self.params["lives"], 0, 0
        self.shots: list[Body | None] = [None] * 4
        self.rocks: list[Body] = []
        self.place_ship()
        self.send_wave()

    def place_ship(self) -> None:
        self.ship, self.heading, self.safe = Body(400, 300), 192, 30

    def rock(self, size: int, x: np.float32, y: np.float32) -> Body:
        dx, dy = point(self.rng.int(256))
        speed = F(self.rng.uniform(*SPEEDS[size]) * F(self.params["rock_speed"]))
        return Body(x, y, speed * dx, speed * dy, size)

    def send_wave(self) -> None:
        for _ in range(min(self.params["rocks"] + 2 * self.wave, 8)):
            is_side, place = self.rng.int(2), self.rng.uniform(0, 1)
            x, y = (F(0), F(place * HEIGHT)) if is_side else (F(place * WIDTH), F(0))
            dx, dy = self.ship.to(Body(x, y))
            if F(dx * dx + dy * dy) < F(160 * 160):
                x, y = wrap(F(x + 400), WIDTH), wrap(F(y + 300), HEIGHT)
            self.rocks.append(self.rock(1, x, y))

    def split(self, number: int) -> None:
        rock = self.rocks[number]
        if rock.kind == 3:
            last = self.rocks.pop()  # takes the place
            if number < len(self.rocks):
                self.rocks[number] = last
            return
        self.rocks[number] = self.rock(rock.kind + 1, rock.x, rock.y)
        if len(self.rocks) < 32:
            self.rocks.append(self.rock(rock.kind + 1, rock.x, rock.y))

    def first_rock(self, body: Body, radius: np.float32) -> int | None:
        times = [body.meets(rock, F(radius + RADIUS[rock.kind])) for rock in self.rocks]
        met = [k for k, t in enumerate(times) if t is not None]
        return min(met, key=lambda k: times[k]) if met else None

    def play(self, actions: list[int]) -> None:
        action, points, ship, drag = actions[0], 0, self.ship, F(1) - F(self.params["drag"])
        self.heading = (self.heading + (0, -1, 1)[action % 3] * self.params["turn"]) % 256
        ahead_x, ahead_y = point(self.heading)
        push = F(F(self.params["thrust"]) * STEP) if action // 3 % 2 else F(0)
        ship.vx, ship.vy = F((ship.vx + push * ahead_x) * drag), F((ship.vy + push * ahead_y) * drag)
        speed = np.sqrt(F(ship.vx * ship.vx + ship.vy * ship.vy))
        if speed > 400:
            ship.vx, ship.vy = F(ship.vx * F(F(400) / speed)), F(ship.vy * F(F(400) / speed))
        self.reload, self.safe = max(self.reload - 1, 0), max(self.safe - 1, 0)
        if action >= 6 and self.reload == 0 and None in self.shots:
            x, y = wrap(F(ship.x + SHIP * ahead_x), WIDTH), wrap(F(ship.y + SHIP * ahead_y), HEIGHT)
            shot = Body(x, y, ship.vx + F(500) * ahead_x, ship.vy + F(500) * ahead_y, 14)
            self.shots[self.shots.index(None)] = shot
            self.reload = self.params["reload"]
            self.counted["shots"] = 1
        for k, shot in enumerate(self.shots):
            number = None if shot is None else self.first_rock(shot, F(0))
            if number is not None:
                points += POINTS[self.rocks[number].kind]
                self.counted["hits"] += 1
                self.shots[k] = None
                self.split(number)
        hit = None if self.safe else self.first_rock(ship, SHIP)
        if hit is not None:
            self.split(hit)
        for body in (ship, *self.shots, *self.rocks):
            if body is not None:
                body.move()
        for k, shot in enumerate(self.shots):
            if shot is not None:
                shot.kind -= 1
                self.shots[k] = shot if shot.kind else None
        reward = F(points) * F(0.01)
        if hit is not None:
            self.lives -= 1
            self.counted["deaths"] = 1
            reward = F(reward - F(self.params["death"]))
            self.place_ship()
        if not self.rocks:
            self.wave += 1
            self.counted["waves"] = 1
            self.send_wave()
        self.rewards[0], self.terminations[0] = reward, self.lives == 0
        self.counted["score"] = points

    def turned(self, x: np.float32, y: np.float32, scale: np.float32) -> list[np.float32]:
        ahead_x, ahead_y = point(self.heading)
        seen = [F((x * ahead_x + y * ahead_y) * scale), F((y * ahead_x - x * ahead_y) * scale)]
        return [min(max(number, F(-1)), F(1)) for number in seen]

    def observe(self, agent: int) -> list[Any]:
        ship, flying = self.ship, [shot for shot in self.shots if shot is not None]
        seen: list[Any] = self.turned(ship.vx, ship.vy, F(1) / F(400))
        seen += [1 - len(flying) / 4, float(self.reload <= 1), F(self.safe) / F(30), F(len(self.rocks)) / F(32)]
        ways = [(ship.to(rock), rock) for rock in self.rocks]
        ways.sort(key=lambda way: F(way[0][0] * way[0][0] + way[0][1] * way[0][1]))
        for (x, y), rock in ways[:8]:
            vx, vy = F(rock.vx - ship.vx), F(rock.vy - ship.vy)
            flight = F(np.sqrt(F(x * x + y * y)) / F(500))
            aim_x, aim_y = F(x + vx * flight), F(y + vy * flight)
            far = max(np.sqrt(F(aim_x * aim_x + aim_y * aim_y)), F(1))
            seen += [1.0, *self.turned(x, y, F(1) / F(500)), *self.turned(vx, vy, F(1) / F(300))]
            seen += [RADIUS[rock.kind] / F(40), *self.turned(aim_x, aim_y, F(F(1) / far))]
        seen += [0.0] * (70 - len(seen))
        for shot in self.shots:
            seen += [0.0] * 3 if shot is None else [1.0, *self.turned(*ship.to(shot), F(1) / F(500))]
        return seen


def player(seen: Any) -> int:
    """Turns to where the nearest rock will be when a shot gets there, and shoots; from what the agent sees."""
    best, aim = math.inf, 0.0
    for there, x, y, _, _, radius, ahead, right in np.asarray(seen[6:70], float).reshape(8, 8):
        far = 500 * math.hypot(x, y) - 40 * radius
        if there and far < best:
            best, aim = far, math.atan2(right, ahead)
    turn = 2 if aim > 0.09 else 1 if aim < -0.09 else 0
    return turn + 6 * (abs(aim) < 0.2 and best < 450)
