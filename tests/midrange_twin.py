"""midrange, written a second time from the rules of the game: slow, obvious, in double precision.

`fly` is one launch against a target that flies straight or turns away; `reach` bisects it to a range. `Game` is a whole
game of two aircraft with its observations. Angles are radians, counterclockwise from the x axis; a rudder above 0 turns
left. Numbers may be arrays where no branch of the game depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

GRAVITY = 9.8
MIN_RADIUS = 1000.0  # of a turn, m: full rudder
TERMINAL_SPEED = 400.0  # m/s, of a free fall: the drag at zero lift
ZERO_LIFT_DRAG = GRAVITY / TERMINAL_SPEED**2
FIGHTER_THRUST, FIGHTER_LIFT_DRAG = 14.7, 5.0
MISSILE_THRUST, MISSILE_LIFT_DRAG, BURN_S = 147.0, 2.0, 10.0
KILL_RADIUS = 100.0
STALL_SPEED = 200.0  # a missile below it is removed
SPAWN_AHEAD = 20.0  # m before the launcher's nose
MISSILE_LIFE_S = 90.0
FAITHFUL_GAIN = 200.0 / np.pi  # rudder per rad/s of the line of sight
NAVIGATION = 4.0  # fast: the turn rate of a missile over that of its line of sight


@dataclass
class Body:
    """A point mass: place, heading and speed."""

    x: Any
    y: Any
    heading: Any
    speed: Any

    @property
    def velocity(self) -> tuple[Any, Any]:
        return self.speed * np.cos(self.heading), self.speed * np.sin(self.heading)


def wrap(angle: Any) -> Any:
    """The angle in [-pi, pi)."""
    return (angle + np.pi) % (2 * np.pi) - np.pi


def acceleration(speed: Any, rudder: Any, thrust: Any, lift_drag: float) -> Any:
    """Along the flight path: thrust less the drag at zero lift and the drag that the turn induces."""
    induced = 1 / (4 * ZERO_LIFT_DRAG * lift_drag**2)
    return thrust - (ZERO_LIFT_DRAG + induced * (rudder / MIN_RADIUS) ** 2) * speed**2


def move(body: Body, rudder: Any, thrust: Any, lift_drag: float, dt: float, faithful: bool) -> Body:
    """One step of time. Faithful: semi-implicit Euler on the velocity vector. Fast: on speed and heading."""
    along = acceleration(body.speed, rudder, thrust, lift_drag)
    if faithful:
        sideways = rudder * body.speed**2 / MIN_RADIUS
        cos, sin = np.cos(body.heading), np.sin(body.heading)
        vx = body.speed * cos + (along * cos - sideways * sin) * dt
        vy = body.speed * sin + (along * sin + sideways * cos) * dt
        return Body(body.x + vx * dt, body.y + vy * dt, np.arctan2(vy, vx), np.hypot(vx, vy))
    turn = rudder * body.speed / MIN_RADIUS
    speed = body.speed + along * dt
    middle, mean = body.heading + 0.5 * turn * dt, 0.5 * (body.speed + speed)
    x, y = body.x + mean * np.cos(middle) * dt, body.y + mean * np.sin(middle) * dt
    return Body(x, y, body.heading + turn * dt, speed)


def sight_line(missile: Body, target: Body) -> Any:
    return np.arctan2(target.y - missile.y, target.x - missile.x)


def guide(missile: Body, target: Body, last_sight: Any, dt: float, faithful: bool) -> Any:
    """The missile's rudder. `last_sight`: the line of sight one step ago, or None at launch."""
    if faithful:
        rate = 0.0 if last_sight is None else wrap(sight_line(missile, target) - last_sight) / dt
        return np.clip(FAITHFUL_GAIN * rate, -1, 1)
    dx, dy = target.x - missile.x, target.y - missile.y
    (tx, ty), (mx, my) = target.velocity, missile.velocity
    rate = (dx * (ty - my) - dy * (tx - mx)) / (dx**2 + dy**2)
    return np.clip(NAVIGATION * rate * MIN_RADIUS / missile.speed, -1, 1)


def distance_in_step(before: tuple[Body, Body], after: tuple[Body, Body], faithful: bool) -> Any:
    """How near two bodies come. Faithful: at the end of the step. Fast: anywhere in it, on straight paths."""
    bx, by = after[1].x - after[0].x, after[1].y - after[0].y
    if faithful:
        return np.hypot(bx, by)
    ax, ay = before[1].x - before[0].x, before[1].y - before[0].y
    dx, dy = bx - ax, by - ay
    when = np.clip(-(ax * dx + ay * dy) / np.maximum(dx**2 + dy**2, 1e-12), 0, 1)
    return np.hypot(ax + when * dx, ay + when * dy)


# ---- ranges ----


def fly(ranges: Any, aspects: Any, turns_away: Any, faithful: bool, dt: float, off_boresight: Any = 0.0) -> Any:
    """Whether missiles launched at 300 m/s hit targets at 300 m/s with full throttle, for arrays of launches.

    aspect: 0 where the target flies toward the shooter, pi where it flies away. `turns_away`: with full rudder, until
    it flies directly away from the missile.
    """
    ranges, aspects, off = np.broadcast_arrays(ranges, aspects, off_boresight)
    cos, sin = np.cos(off), np.sin(off)
    missile = Body(SPAWN_AHEAD * cos, -SPAWN_AHEAD * sin, -off, np.full(ranges.shape, 300.0))
    target = Body(ranges * 1.0, 0.0 * ranges, np.pi - aspects, np.full(ranges.shape, 300.0))
    flies, hit, last_sight = np.ones(ranges.shape, bool), np.zeros(ranges.shape, bool), None
    for tick in range(round(MISSILE_LIFE_S / dt)):
        sight = sight_line(missile, target)
        rudder = guide(missile, target, last_sight, dt, faithful)
        away = wrap(sight - target.heading)
        evasion = turns_away * np.clip(away * MIN_RADIUS / (target.speed * dt), -1, 1)
        burns = tick * dt < BURN_S - 1e-9
        moved = move(missile, rudder, MISSILE_THRUST * burns, MISSILE_LIFT_DRAG, dt, faithful)
        fled = move(target, evasion, FIGHTER_THRUST, FIGHTER_LIFT_DRAG, dt, faithful)
        hit |= flies & (distance_in_step((missile, target), (moved, fled), faithful) < KILL_RADIUS)
        missile, target, last_sight = moved, fled, sight
        flies &= ~hit & (burns | (missile.speed >= STALL_SPEED))
        if not flies.any():
            break
    return hit


def reach(aspects: Any, turns_away: bool, faithful: bool, dt: float, **launch: Any) -> Any:
    """The longest range from which a launch hits, in m, to 20 m: a grid of 500 m, then bisection."""
    aspects = np.asarray(aspects, float)
    grid = np.arange(500.0, 85000.0, 500.0)
    hits = fly(grid[:, None], aspects[None], turns_away, faithful, dt, **launch)
    last = np.where(hits.any(0), len(grid) - 1 - np.argmax(hits[::-1], axis=0), -1)
    low, high = np.where(last < 0, 0.0, grid[last]), np.where(last < 0, 500.0, grid[last] + 500.0)
    while (high - low).max() > 20.0:
        middle = 0.5 * (low + high)
        hit = fly(middle, aspects, turns_away, faithful, dt, **launch)
        low, high = np.where(hit, middle, low), np.where(hit, high, middle)
    return low


# ---- a game ----


@dataclass
class Missile:
    """A missile in flight. `last_sight` is of the step before; `nearest` is how near it has come to its target."""

    body: Body
    age: float = 0.0
    last_sight: float | None = None
    nearest: float = np.inf

    @property
    def burns(self) -> bool:
        return self.age < BURN_S - 1e-6


@dataclass
class Aircraft:
    """One side: its aircraft, what it has left, and its missiles in flight, the oldest first."""

    body: Body
    ammo: int = 6
    rudder: float = 0.0
    throttle: float = 1.0
    cooldown: float = 0.0
    alive: bool = True
    missiles: list[Missile] = field(default_factory=list)


@dataclass(frozen=True)
class Rules:
    """What differs between the modes, and the options that the tests vary."""

    faithful: bool = False
    dt: float = 0.1
    substeps: int = 5
    channels: int = 2
    cooldown_s: float = 1.0
    limit_s: float = 240.0
    win: float = 1.0
    lose: float = -1.0
    draw: float = -0.1
    shot: float = -0.01
    alive: float = 0.0  # for each physics step


FAST = Rules()
_ORIGINAL_REWARDS = {"win": 500.0, "lose": -500.0, "draw": -50.0, "shot": 0.0, "alive": 0.1}
FAITHFUL = replace(FAST, faithful=True, dt=1 / 60, substeps=1, channels=6, cooldown_s=0.0, **_ORIGINAL_REWARDS)


class Game:
    """Two aircraft and their missiles, from a given start."""

    def __init__(self, rules: Rules, sides: list[Aircraft]) -> None:
        self.rules, self.sides, self.time = rules, sides, 0.0
        self.over = False

    def step(self, actions: list[tuple[float, float, bool]]) -> list[float]:
        """One decision of both sides: (rudder, throttle, fire). Returns their rewards."""
        rules, rewards = self.rules, [0.0, 0.0]
        for number, (side, (rudder, throttle, fire)) in enumerate(zip(self.sides, actions)):
            side.rudder, side.throttle = rudder, throttle
            if fire and self.may_fire(side):
                self.fire(side)
                rewards[number] += rules.shot
        for _ in range(rules.substeps):
            rewards = [reward + rules.alive for reward in rewards]
            self.substep()
            if not all(side.alive for side in self.sides):
                break
        self.time += rules.substeps * rules.dt  # the clock counts decisions, also the one in which a game ends
        return [earned + gained for earned, gained in zip(rewards, self.outcome())]

    def outcome(self) -> list[float]:
        """Ends the game if it is decided. Returns the rewards of its end."""
        rules = self.rules
        alive = [side.alive for side in self.sides]
        spent = all(side.ammo == 0 and not side.missiles for side in self.sides)
        late = self.time > rules.limit_s - 1e-6
        self.over = not all(alive) or spent or late
        if alive[0] != alive[1]:
            return [rules.win if is_alive else rules.lose for is_alive in alive]
        return [rules.draw] * 2 if self.over else [0.0] * 2

    def may_fire(self, side: Aircraft) -> bool:
        return side.ammo > 0 and len(side.missiles) < self.rules.channels and side.cooldown <= 1e-6

    def fire(self, side: Aircraft) -> None:
        body = side.body
        x, y = body.x + SPAWN_AHEAD * np.cos(body.heading), body.y + SPAWN_AHEAD * np.sin(body.heading)
        side.missiles.append(Missile(Body(x, y, body.heading, body.speed)))
        side.ammo -= 1
        side.cooldown = self.rules.cooldown_s

    def substep(self) -> None:
        """Moves everything at once; then looks for hits; then removes missiles that hit or are spent."""
        dt, faithful = self.rules.dt, self.rules.faithful
        before = [side.body for side in self.sides]
        after = [
            move(side.body, side.rudder, FIGHTER_THRUST * side.throttle, FIGHTER_LIFT_DRAG, dt, faithful)
            for side in self.sides
        ]
        killed = [False, False]
        for number, side in enumerate(self.sides):
            enemy, left = 1 - number, []
            for missile in side.missiles:
                was = missile.body
                rudder = guide(was, before[enemy], missile.last_sight, dt, faithful)
                missile.last_sight = sight_line(was, before[enemy])
                missile.body = move(was, rudder, MISSILE_THRUST * missile.burns, MISSILE_LIFT_DRAG, dt, faithful)
                missile.age += dt
                near = distance_in_step((was, before[enemy]), (missile.body, after[enemy]), faithful)
                missile.nearest = min(missile.nearest, near)
                if near < KILL_RADIUS:
                    killed[enemy] = True
                elif (missile.burns or missile.body.speed >= STALL_SPEED) and missile.age <= MISSILE_LIFE_S + 1e-6:
                    left.append(missile)
            side.missiles = left
        for side, body, is_dead in zip(self.sides, after, killed):
            side.body, side.alive = body, not is_dead
            side.cooldown = max(side.cooldown - dt, 0.0)

    # ---- what a side sees ----

    def observe(self, number: int) -> Any:
        """The first 39 numbers of the observation: all but those of the space-time graph."""
        own, enemy = self.sides[number], self.sides[1 - number]
        obs = [own.body.speed / 500, own.rudder, own.throttle, own.ammo / 6]
        obs += [own.cooldown, len(own.missiles) / self.rules.channels, 1 - self.time / self.rules.limit_s]
        distance, bearing, closing = seen(own.body, enemy.body)
        course = enemy.body.heading - own.body.heading
        obs += [distance / 50e3, np.sin(bearing), np.cos(bearing), np.sin(course), np.cos(course)]
        obs += [enemy.body.speed / 500, -closing / 1500, 1.0]
        for missile in self.nearest_missiles(1 - number):
            obs += [0.0] * 7 if missile is None else self.see_incoming(own.body, missile)
        for missile in self.nearest_missiles(number):
            obs += [0.0] * 5 if missile is None else self.see_own(missile, enemy.body)
        return np.array(obs, float)

    def nearest_missiles(self, number: int) -> list[Missile | None]:
        """The two missiles of a side that are the nearest to its enemy, or None."""
        target = self.sides[1 - number].body
        flying = sorted(self.sides[number].missiles, key=lambda missile: seen(target, missile.body)[0])
        return [*flying, None, None][:2]

    def see_incoming(self, own: Body, missile: Missile) -> list[float]:
        distance, bearing, closing = seen(own, missile.body)
        place = [1.0, distance / 30e3, np.sin(bearing), np.cos(bearing), missile.body.speed / 1500]
        return [*place, closing / 2000, time_to_go(distance, closing) / 40]

    def see_own(self, missile: Missile, enemy: Body) -> list[float]:
        distance, _, closing = seen(missile.body, enemy)
        flight = [1.0, distance / 30e3, missile.body.speed / 1500, float(missile.burns)]
        return [*flight, time_to_go(distance, closing) / 40]


def seen(viewer: Body, other: Body) -> tuple[float, float, float]:
    """Distance, bearing from the viewer's nose (left: above 0), and closing speed."""
    dx, dy = other.x - viewer.x, other.y - viewer.y
    (ox, oy), (vx, vy) = other.velocity, viewer.velocity
    distance = np.hypot(dx, dy)
    closing = -(dx * (ox - vx) + dy * (oy - vy)) / max(distance, 1.0)
    return distance, wrap(np.arctan2(dy, dx) - viewer.heading), closing


def time_to_go(distance: float, closing: float) -> float:
    """At the present closing speed, at most 40 s."""
    return 40.0 if closing <= 1.0 else min(distance / closing, 40.0)
