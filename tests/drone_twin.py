"""The rules of drone once more, slowly and plainly, in float64, and a scripted pilot.

The twin's motion is another than that of shoal/envs/drone.h: the attitude is a rotation matrix, turned by Rodrigues'
formula in many short steps, not a quaternion integrated by Runge-Kutta. Both must agree where both are exact enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .vacuum_twin import Rng

DRONE = np.dtype(
    [
        ("at", "f4", 3),
        ("speed", "f4", 3),
        ("turn", "f4", 4),
        ("spin", "f4", 3),
        ("thrust", "f4", 4),
        ("goals", "f4", (2, 3)),
        ("count", "i4"),
        ("is_out", "i4"),
    ]
)
DT = 0.02
ROTORS = np.array([(1, 1, 0), (-1, 1, 0), (-1, -1, 0), (1, -1, 0)]) / np.sqrt(2)  # places on the arms
SENSES = np.array([1, -1, 1, -1])  # which way the drag of each rotor turns the drone
UP = np.array([0.0, 0.0, 1.0])


def states(vec: Any) -> np.ndarray:
    """(envs, drones) records that can be read and written."""
    return vec.memory.arrays["state"].view(DRONE).reshape(vec.num_envs, -1)


def matrix(q: np.ndarray) -> np.ndarray:
    """The rotation of a quaternion (w, x, y, z): v + 2 w (u x v) + 2 u x (u x v) for each axis v."""
    w, u = float(q[0]), np.asarray(q[1:], float)
    return np.stack([v + 2 * w * np.cross(u, v) + 2 * np.cross(u, np.cross(u, v)) for v in np.eye(3)], axis=1)


def rodrigues(turn: np.ndarray) -> np.ndarray:
    """The rotation about an axis by its length."""
    x, y, z = turn
    cross, angle = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]), float(np.linalg.norm(turn))
    if angle < 1e-12:
        return np.eye(3) + cross
    return np.eye(3) + np.sin(angle) / angle * cross + (1 - np.cos(angle)) / angle**2 * cross @ cross


class Body:
    """One drone in flight."""

    def __init__(self, params: dict[str, float], state: np.void) -> None:
        self.p = params
        self.at, self.speed, self.spin = (state[name].astype(float) for name in ("at", "speed", "spin"))
        self.thrust, self.axes = state["thrust"].astype(float), matrix(state["turn"])

    def fly(self, action: np.ndarray, short_steps: int = 40) -> None:
        p, dt = self.p, DT / short_steps
        most = p["thrust_ratio"] * p["mass"] * 9.81 / 4
        self.thrust += (1 - np.exp(-DT / p["lag"])) * (most * (np.asarray(action, float) + 1) / 2 - self.thrust)
        torque = sum(np.cross(p["arm"] * place, force * UP) for place, force in zip(ROTORS, self.thrust))
        torque = torque + p["rotor_drag"] * float(SENSES @ self.thrust) * UP
        inertia = np.array([p["inertia_xy"], p["inertia_xy"], p["inertia_z"]])

        def spin_rate(w):
            return (torque - np.cross(w, inertia * w) - p["spin_drag"] * w) / inertia

        def speed_rate(v, axes):
            return (self.thrust.sum() * axes[:, 2] - p["drag"] * v) / p["mass"] - p["gravity"] * UP

        for _ in range(short_steps):  # the midpoint rule
            spin = self.spin + dt / 2 * spin_rate(self.spin)
            axes = self.axes @ rodrigues(dt / 2 * self.spin)
            speed = self.speed + dt / 2 * speed_rate(self.speed, self.axes)
            self.at = self.at + dt * speed
            self.speed = self.speed + dt * speed_rate(speed, axes)
            self.axes = self.axes @ rodrigues(dt * spin)
            self.spin = self.spin + dt * spin_rate(spin)


class Hall:
    """The game: waypoints, walls, collisions. Motion is given: `move` sees the states before and after a step."""

    def __init__(self, params: dict[str, float], rng: Rng) -> None:
        self.p, self.rng = params, rng

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * ((self.rng.int(2**32) >> 8) / 2**24)

    def place(self) -> list[float]:
        wide, high = self.p["hall"] - 1, self.p["hall_height"] - 1
        return [self.uniform(-wide, wide), self.uniform(-wide, wide), self.uniform(1.0, high)]

    def start(self, count: int) -> list[tuple[list[float], np.ndarray, list[list[float]]]]:
        """(place, attitude, goals) of each drone."""
        places: list[list[float]] = []
        drones = []
        for _ in range(count):
            for _ in range(8):
                place = self.place()
                if all(np.linalg.norm(np.subtract(place, other)) > 4 * self.p["size"] for other in places):
                    break
            places.append(place)
            yaw, axis = self.uniform(-np.pi, np.pi), self.uniform(-np.pi, np.pi)
            tilt = self.uniform(0, self.p["start_tilt"])
            level = np.array([np.cos(axis), np.sin(axis), 0.0])
            attitude = rodrigues(tilt * level) @ rodrigues(yaw * UP)  # turned about the vertical, then tilted
            drones.append((place, attitude, [self.place(), self.place()]))
        return drones

    def move(self, before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, list[bool], list[Any]]:
        """(rewards, who got out, goals) of a step."""
        rewards, lost, goals = np.zeros(len(before)), [False] * len(before), [None] * len(before)
        for i, (old, new) in enumerate(zip(before, after)):
            if old["is_out"]:
                continue
            ways = [np.linalg.norm(d["at"].astype(float) - old["goals"][0]) for d in (old, new)]
            x, y, z = new["at"]
            lost[i] = not (max(abs(x), abs(y)) < self.p["hall"] and 0 < z < self.p["hall_height"])
            goals[i] = old["goals"].tolist()
            if ways[1] < self.p["goal_radius"]:
                rewards[i] += 1
                goals[i] = [goals[i][1], self.place()]
            rewards[i] += 0.1 * (ways[0] - ways[1]) - lost[i]
        flying = [not old["is_out"] and not lost[i] for i, old in enumerate(before)]
        hit = set()
        for i in range(len(before)):
            for k in range(i):
                apart = np.linalg.norm(after[i]["at"].astype(float) - after[k]["at"])
                if self.p["collide"] and flying[i] and flying[k] and apart < 2 * self.p["size"]:
                    hit |= {i, k}
        for i in hit:
            rewards[i] -= 1
            lost[i] = True
        return rewards, lost, goals


def pilot(obs: np.ndarray) -> np.ndarray:
    """A scripted pilot, for the default params: proportional-derivative loops for place and attitude.

    It asks for an acceleration towards the waypoint, tilts the rotors' axis to it, and mixes the thrusts. Everything
    is in the drone's frame, as it is observed.
    """
    way, speed, up, spin = 5 * obs[:, 0:3], 5 * obs[:, 6:9], obs[:, 9:12], 10 * obs[:, 12:15]
    length = np.linalg.norm(way, axis=1, keepdims=True)
    wanted = 1.5 * way * np.minimum(1.0, 4.7 / np.maximum(length, 1e-6))  # a velocity of at most 7 m/s
    push = 3.0 * (wanted - speed)
    push *= np.minimum(1.0, 10.0 / np.maximum(np.linalg.norm(push, axis=1, keepdims=True), 1e-6))
    push = push + 9.81 * up
    lift = np.maximum(push[:, 2], 2.0)  # m/s^2, along the rotors' axis
    axis = push / np.maximum(np.linalg.norm(push, axis=1, keepdims=True), 1e-6)  # a drone that is out sees zeros
    roll = 60.0 * -axis[:, 1] - 13.0 * spin[:, 0]  # rad/s^2
    pitch = 60.0 * axis[:, 0] - 13.0 * spin[:, 1]
    yaw = -2.0 * spin[:, 2]
    lever, weight = 0.17 / np.sqrt(2), 0.716 * 9.81
    level = 0.716 * lift / 4
    x, y, z = 0.007 * roll / (4 * lever), 0.007 * pitch / (4 * lever), 0.012 * yaw / (4 * 0.016)
    thrust = np.stack([level + x - y + z, level + x + y - z, level - x + y + z, level - x - y - z], axis=1)
    return np.clip(2 * thrust / (2 * weight / 4) - 1, -1, 1).astype(np.float32)
