"""The rules of tag and tag_continuous once more, in float32 and one agent after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .agent_twins import AgentTwin, F

ROBOTS = ["learner", "random", "chase", "flee"]
PUSHES = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]  # nothing, left, right, down, up
STEP = F(0.1)


def zeros() -> Any:
    return np.zeros(2, F)


@dataclass
class Body:
    kind: str  # 'predator' or 'prey'
    at: Any = field(default_factory=zeros)
    velocity: Any = field(default_factory=zeros)


def square(a: Any, b: Any) -> Any:
    dx, dy = a[0] - b[0], a[1] - b[1]
    return dx * dx + dy * dy


class Tag(AgentTwin):
    stats = {"catches": "sum", "distance": "mean"}  # noqa: RUF012

    def number(self, name: str) -> Any:
        return F(self.params[name])

    def draw_place(self, reach: float) -> Any:
        x = self.rng.uniform(-reach, reach)
        return np.array([x, self.rng.uniform(-reach, reach)], F)

    def reset(self) -> None:
        kinds = ["predator"] * self.consts["predators"] + ["prey"] * self.consts["prey"]
        self.pillars = [self.draw_place(0.7) for _ in range(self.consts["pillars"])]
        self.bodies = [Body(kind) for kind in kinds]
        for body in self.bodies:
            body.at = self.draw_place(1.0)
            self.settle(body)
        for body in self.bodies:
            if body.kind == "prey":
                self.place(body)

    def others(self, body: Body) -> list[Body]:
        return [other for other in self.bodies if other.kind != body.kind]

    def nearest_square(self, body: Body, place: Any) -> Any:
        return min(square(other.at, place) for other in self.others(body))

    def place(self, body: Body) -> None:
        places = [self.draw_place(1.0) for _ in range(4)]
        body.at = max(places, key=lambda place: self.nearest_square(body, place)).copy()
        body.velocity = zeros()
        self.settle(body)

    def settle(self, body: Body) -> None:
        reach = self.number("pillar_size") + self.number(f"{body.kind}_size")
        for pillar in self.pillars:
            way = body.at - pillar
            near = way[0] * way[0] + way[1] * way[1]
            if near >= reach * reach:
                continue
            distance = np.sqrt(near)
            normal = way / distance if distance > F(1e-6) else np.array([1, 0], F)
            body.at = pillar + normal * reach
            inward = body.velocity[0] * normal[0] + body.velocity[1] * normal[1]
            if inward < 0:
                body.velocity = body.velocity - inward * normal
        for axis in (0, 1):
            if abs(body.at[axis]) > 1:
                body.at[axis] = np.sign(body.at[axis])
                body.velocity[axis] = 0

    def push_of(self, number: int, action: Any) -> Any:
        robot = ROBOTS[self.params[f"robot_{number}"]]
        body = self.bodies[number]
        if robot == "random":
            return np.array(PUSHES[self.rng.int(5)], F)
        if robot in ("chase", "flee"):
            ahead = F(0.4) if robot == "flee" else F(0.1)
            tries = [np.clip(body.at + ahead * np.array(push, F), F(-1), F(1)) for push in PUSHES]
            values = [self.nearest_square(body, place) for place in tries]
            best = max(values) if robot == "flee" else min(values)
            return np.array(PUSHES[values.index(best)], F)
        if isinstance(action, int):
            return np.array(PUSHES[action], F)
        push = np.array(action, F)
        length = np.sqrt(push[0] * push[0] + push[1] * push[1])
        return push / max(length, F(1))

    def advance(self, actions: Any) -> tuple[list[Any], dict[str, float]]:
        pushes = [self.push_of(number, action) for number, action in enumerate(actions)]
        for body, push in zip(self.bodies, pushes):
            strength, top = self.number(f"{body.kind}_push"), self.number(f"{body.kind}_speed")
            velocity = body.velocity * (F(1) - self.number("damping")) + strength * push * STEP
            speed = np.sqrt(velocity[0] * velocity[0] + velocity[1] * velocity[1])
            body.velocity = velocity * (top / speed) if speed > top else velocity
            body.at = body.at + body.velocity * STEP
            self.settle(body)
        reach = self.number("predator_size") + self.number("prey_size")
        near = [self.nearest_square(body, body.at) for body in self.bodies]
        caught = [body.kind == "prey" and value < reach * reach for body, value in zip(self.bodies, near)]
        rewards = []
        for body, value, is_caught in zip(self.bodies, near, caught):
            sign = F(1) if body.kind == "prey" else F(-1)
            reward = sign * self.number("shaping") * np.sqrt(value) - F(is_caught)
            rewards.append(reward + F(sum(caught)) if body.kind == "predator" else reward)
        distances = [float(np.sqrt(value)) for body, value in zip(self.bodies, near) if body.kind == "prey"]
        for body, is_caught in zip(self.bodies, caught):
            if is_caught:
                self.place(body)
        return rewards, {"catches": sum(caught), "distance": sum(distances) / len(distances)}

    def observe(self, agent: int) -> Any:
        own = self.bodies[agent]
        seen = [float(own.kind == "prey"), *self.share(own), *own.at]
        for pillar in self.pillars:
            seen += [*(pillar - own.at)]
        others = self.others(own) + [body for body in self.bodies if body.kind == own.kind and body is not own]
        for body in others:
            seen += [*(body.at - own.at), *self.share(body)]
        return np.array(seen, F)

    def share(self, body: Body) -> Any:
        return np.clip(body.velocity / self.number(f"{body.kind}_speed"), F(-1), F(1))
