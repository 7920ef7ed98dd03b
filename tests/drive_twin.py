"""The rules of drive once more, in float32 and one car after another, and a scripted driver for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from .agent_twins import AgentTwin, F

WAYS = [(1, 0), (0, 1), (-1, 0), (0, -1)]  # east, north, west, south
BENDS = [1.0, 0.2, 0.0, -0.2, -1.0]
BLOCK, HALF, STEP = F(40), F(4), F(0.2)
Way = tuple[int, int]


@dataclass
class Car:
    x: Any
    y: Any
    heading_x: Any = 1.0
    heading_y: Any = 0.0
    speed: Any = 0.0
    goal: int = 0

    @property
    def way(self) -> Way:
        """The street direction nearest to its heading."""
        if abs(self.heading_x) >= abs(self.heading_y):
            return (-1, 0) if self.heading_x < 0 else (1, 0)
        return (0, -1) if self.heading_y < 0 else (0, 1)


def turned(way: Way, x: Any, y: Any) -> tuple[Any, Any]:
    """A vector as lengths ahead and to the left."""
    return x * F(way[0]) + y * F(way[1]), y * F(way[0]) - x * F(way[1])


def clip(value: Any) -> Any:
    return min(max(value, F(-1)), F(1))


class Drive(AgentTwin):
    stats = {"goals": "sum", "collisions": "sum", "left_street": "sum", "speed": "mean", "wrong_side": "mean"}  # noqa: RUF012

    def number(self, name: str) -> Any:
        return F(self.params[name])

    def reset(self) -> None:
        self.streets = self.consts["streets"]
        self.lanes = 4 * self.streets * (self.streets - 1)
        self.cars = [Car(F(-1000), F(-1000)) for _ in range(self.consts["cars"])]
        for car in self.cars:
            self.place(car)
            car.goal = self.rng.int(self.lanes)

    def lane_point(self, lane: int, along: Any) -> tuple[Any, Any]:
        (way_x, way_y), street = WAYS[lane % 4], BLOCK * F(lane // 4 % self.streets)
        place = BLOCK * F(lane // (4 * self.streets)) + along
        return (place, street - F(2) * F(way_x)) if way_x else (street + F(2) * F(way_y), place)

    def place(self, car: Car) -> None:
        for _ in range(8):
            lane = self.rng.int(self.lanes)
            car.x, car.y = self.lane_point(lane, self.rng.uniform(10, 30))
            others = [other for other in self.cars if other is not car]
            if all((other.x - car.x) ** 2 + (other.y - car.y) ** 2 > 144 for other in others):
                break
        car.heading_x, car.heading_y = (F(value) for value in WAYS[lane % 4])
        car.speed = F(0)

    def from_street(self, value: Any) -> Any:
        streets = [BLOCK * F(k) for k in range(self.streets)]
        offsets = [value - street for street in streets]
        number = min(max(int(np.floor(value * (F(1) / BLOCK) + F(0.5))), 0), self.streets - 1)
        return offsets[number]

    def is_on_street(self, car: Car) -> bool:
        last = BLOCK * F(self.streets - 1) + HALF
        is_in_town = all(-HALF <= value <= last for value in (car.x, car.y))
        return bool(is_in_town and min(abs(self.from_street(car.x)), abs(self.from_street(car.y))) <= HALF)

    def to_goal(self, car: Car) -> tuple[Any, Any]:
        x, y = self.lane_point(car.goal, F(20))
        return x - car.x, y - car.y

    def move(self, car: Car, action: int) -> None:
        bend, pedal = F(BENDS[action % 5]), action // 5
        change = [-self.number("brake"), F(0), self.number("gas")][pedal]
        car.speed = min(max(car.speed + change * STEP, F(0)), self.number("top_speed"))
        t = F(0.5) * car.speed * STEP * self.number("turn") * bend
        d = F(1) + t * t
        cos, sin = (F(1) - t * t) / d, F(2) * t / d
        x, y = car.heading_x * cos - car.heading_y * sin, car.heading_x * sin + car.heading_y * cos
        length = np.sqrt(x * x + y * y)
        car.heading_x, car.heading_y = x / length, y / length
        car.x = car.x + car.speed * STEP * car.heading_x
        car.y = car.y + car.speed * STEP * car.heading_y

    def do_touch(self, car: Car, other: Car) -> bool:
        for front in (F(-1.2), F(1.2)):
            for back in (F(-1.2), F(1.2)):
                x = (other.x - car.x) + back * other.heading_x - front * car.heading_x
                y = (other.y - car.y) + back * other.heading_y - front * car.heading_y
                if x * x + y * y < 4:
                    return True
        return False

    def advance(self, actions: Any) -> tuple[list[Any], dict[str, float]]:
        rewards, events = [], dict.fromkeys(self.stats, 0.0)
        before = [sum(map(abs, self.to_goal(car))) for car in self.cars]
        for car, action in zip(self.cars, actions):
            self.move(car, action)
        off = [not self.is_on_street(car) for car in self.cars]
        touched = [any(self.do_touch(car, other) for other in self.cars if other is not car) for car in self.cars]
        events["left_street"], events["collisions"] = sum(off), sum(touched)
        events["speed"] = sum(float(car.speed) for car in self.cars) / len(self.cars)
        for number, car in enumerate(self.cars):
            along, left = turned(car.way, self.from_street(car.x), self.from_street(car.y))
            is_wrong = left > 0 and abs(along) > HALF + F(1)
            has_crashed = off[number] or touched[number]
            dx, dy = self.to_goal(car)
            if has_crashed:
                self.place(car)
            reward = self.number("shaping") * (before[number] - sum(map(abs, self.to_goal(car))))
            if is_wrong:
                reward -= self.number("wrong_side_cost")
                events["wrong_side"] += 1 / len(self.cars)
            if has_crashed:
                reward -= self.number("crash_cost")
            elif dx * dx + dy * dy < self.number("reach") * self.number("reach"):
                reward += F(1)
                events["goals"] += 1
                car.goal = (car.goal + 1 + self.rng.int(self.lanes - 1)) % self.lanes
            rewards.append(reward)
        return rewards, events

    def observe(self, agent: int) -> Any:
        own = self.cars[agent]
        way, top = own.way, F(1) / self.number("top_speed")

        def scales(length: Any, far: float, near: float) -> list[Any]:
            return [clip(length / F(far)), clip(length / F(near))]

        def goes_on(dx: int, dy: int) -> float:
            x = round(float((own.x - self.from_street(own.x)) / BLOCK)) + dx
            y = round(float((own.y - self.from_street(own.y)) / BLOCK)) + dy
            return float(0 <= x < self.streets and 0 <= y < self.streets)

        along, left = turned(way, self.from_street(own.x), self.from_street(own.y))
        seen = [min(own.speed * top, F(1)), clip(turned(way, own.heading_x, own.heading_y)[1])]
        seen += scales(left, 20, 4) + scales(along, 20, 4)
        seen += [goes_on(*way), goes_on(-way[1], way[0]), goes_on(way[1], -way[0])]
        goal_ahead, goal_left = turned(way, *self.to_goal(own))
        seen += scales(goal_ahead, 80, 20) + scales(goal_left, 80, 20)

        def square(other: Car) -> Any:
            dx, dy = other.x - own.x, other.y - own.y
            return dx * dx + dy * dy

        near = sorted((other for other in self.cars if other is not own and square(other) < 1600), key=square)[:4]
        for other in near:
            ahead, left = turned(way, other.x - own.x, other.y - own.y)
            course = turned(way, other.heading_x, other.heading_y)
            seen += [1.0, *scales(ahead, 40, 8), *scales(left, 40, 8), *map(clip, course)]
            seen.append(min(other.speed * top, F(1)))
        return np.array(seen + [0.0] * (8 * (4 - len(near))), F)


# ---- a scripted driver ----


class Driver:
    """Follows the right lanes to the goal by the shortest way, slowly around corners, and gives way to cars ahead."""

    def __init__(self) -> None:
        self.plan: list[tuple[float, float]] = []
        self.goal: int | None = None

    def act(self, town: Drive, car: Car) -> int:
        if self.goal != car.goal or np.hypot(self.plan[0][0] - car.x, self.plan[0][1] - car.y) > 12:
            self.goal, self.plan = car.goal, route(town, car)  # a new goal, or the car was put elsewhere
        while len(self.plan) > 1 and np.hypot(self.plan[0][0] - car.x, self.plan[0][1] - car.y) < 4:
            self.plan.pop(0)
        left, square = self.aim(car, 0)
        curvature = 2 * left / max(square, 1.0) / float(town.number("turn"))
        wheel = int(np.argmin([abs(curvature - bend) for bend in BENDS]))
        is_bend = any(abs(self.aim(car, k)[0]) > 2 for k in range(min(3, len(self.plan))))
        wanted = 0.0 if must_wait(town, car) else 4.0 if is_bend or abs(curvature) > 0.4 else 9.0
        pedal = 2 if car.speed < wanted - 0.5 else 0 if car.speed > wanted + 0.3 or wanted == 0 else 1
        return wheel + 5 * pedal

    def aim(self, car: Car, number: int) -> tuple[float, float]:
        """How far a point of the plan is to the left, and the square of its distance."""
        x, y = self.plan[number][0] - float(car.x), self.plan[number][1] - float(car.y)
        return y * float(car.heading_x) - x * float(car.heading_y), x * x + y * y


def must_wait(town: Drive, car: Car) -> bool:
    """Whether another car is near ahead, or will be in two seconds as things are. The first in the list goes."""
    number = next(k for k, other in enumerate(town.cars) if other is car)
    speed = max(float(car.speed), 3.0)
    for k, other in enumerate(town.cars):
        x, y = float(other.x - car.x), float(other.y - car.y)
        ahead, left = x * car.heading_x + y * car.heading_y, y * car.heading_x - x * car.heading_y
        if other is car or np.hypot(x, y) > 25:
            continue
        if (
            0 < ahead < 5 + 0.6 * speed
            and abs(left) < 1.9
            and car.heading_x * other.heading_x + car.heading_y * other.heading_y > -0.5
        ):
            return True
        is_across = abs(car.heading_x * other.heading_x + car.heading_y * other.heading_y) < 0.8
        if not is_across or ahead < 0:
            continue
        for t in np.arange(0.2, 2.6, 0.4):
            dx = x + t * (other.speed * other.heading_x - speed * car.heading_x)
            dy = y + t * (other.speed * other.heading_y - speed * car.heading_y)
            if np.hypot(dx, dy) < 4.5 and (number > k or other.speed > car.speed + 1):
                return True
    return False


def route(town: Drive, car: Car) -> list[tuple[float, float]]:
    """Points on right lanes: 6 m before and after each crossing, the goal at the end."""
    last = town.streets - 1
    way = car.way
    x, y = float(car.x) / 40, float(car.y) / 40
    nearest = (min(max(round(x), 0), last), min(max(round(y), 0), last))
    offset = (x - nearest[0]) * way[0] + (y - nearest[1]) * way[1]
    crossing = nearest if offset < -0.1 else (nearest[0] + way[0], nearest[1] + way[1])
    crossing = (min(max(crossing[0], 0), last), min(max(crossing[1], 0), last))
    goal_way, street, block = WAYS[car.goal % 4], car.goal // 4 % town.streets, car.goal // (4 * town.streets)
    start = (block + (goal_way[0] < 0), street) if goal_way[0] else (street, block + (goal_way[1] < 0))
    other = (start[0] + goal_way[0], start[1] + goal_way[1])
    entries = {start: goal_way, other: (-goal_way[0], -goal_way[1])}  # from either end: a goal is reached in both lanes
    queue, came = deque([(crossing, way)]), {(crossing, way): None}
    end = None
    while queue:
        node = queue.popleft()
        if node[0] in entries and entries[node[0]] != (-node[1][0], -node[1][1]):
            end = node
            break
        for step in WAYS:
            beyond = (node[0][0] + step[0], node[0][1] + step[1])
            if step == (-node[1][0], -node[1][1]) or not all(0 <= value <= last for value in beyond):
                continue
            if (beyond, step) not in came:
                came[(beyond, step)] = node
                queue.append((beyond, step))
    assert end is not None
    last_way, nodes = entries[end[0]], []
    while end is not None:
        nodes.append(end)
        end = came[end]
    nodes.reverse()
    points = []

    def lane(node: tuple[int, int], step: Way, along: float) -> tuple[float, float]:
        return (40 * node[0] + along * step[0] + 2 * step[1], 40 * node[1] + along * step[1] - 2 * step[0])

    behind = lane(crossing, way, -6.0 - 4.0 * int(max(-offset, 0) * 10))
    for (node, step), following in zip(nodes, [*nodes[1:], (None, last_way)]):
        leave = following[1]
        points += between(behind, lane(node, step, -5.0))
        if step == leave:
            points += between(lane(node, step, -5.0), lane(node, step, 5.0))
        behind = lane(node, leave, 5.0)
        points.append(behind)
    return points + between(behind, lane(nodes[-1][0], last_way, 20.0))


def between(start: tuple[float, float], end: tuple[float, float]) -> list[tuple[float, float]]:
    """Points on a line, some 5 m apart, the end included."""
    parts = max(int(np.hypot(end[0] - start[0], end[1] - start[1]) / 5), 1)
    return [tuple(start[k] + (end[k] - start[k]) * n / parts for k in (0, 1)) for n in range(1, parts + 1)]  # type: ignore[misc]
