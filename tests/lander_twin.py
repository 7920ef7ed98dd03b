"""The rules of lander once more, slowly and plainly, in float64, for one ship. Points and vectors are complex numbers.

What shoal/envs/lander/ship.h must agree with up to float32 rounding. `sub_steps` can be raised: the motion must then
stay nearly the same, because both approximate the same physics.
"""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np

from .vacuum_twin import Rng

STATE = np.dtype(
    [
        *((name, "f4") for name in "x y vx vy angle spin".split()),
        ("slip", "f4", 2),
        ("touches", "u1", 2),
        ("is_still", "u1"),
        ("pad", "u1"),
        *((name, "f4") for name in "potential main side".split()),
        ("wind_at", "i4"),
        ("turbulence_at", "i4"),
        ("ground", "f4", 11),
    ]
)
DT, REST_STEPS = 0.02, 25
FEET = (-0.7 - 0.65j, 0.7 - 0.65j)
HULL = [corner / 30 for corner in (-14 + 17j, -17 + 0j, -17 - 10j, 17 - 10j, 17 + 0j, 14 + 17j)]


def states(vec: Any) -> np.ndarray:
    """The states of all envs, as records that can be read and written."""
    return vec.memory.arrays["state"].view(STATE)


def uniform(rng: Rng, low: float, high: float) -> float:
    return low + (high - low) * ((rng.int(2**32) >> 8) / 2**24)


def dot(a: complex, b: complex) -> float:
    return (a.conjugate() * b).real


def cross(a: complex, b: complex) -> float:
    return (a.conjugate() * b).imag


def clip(x: float, limit: float) -> float:
    return min(max(x, -limit), limit)


def throttles(action: Any) -> tuple[float, float]:
    """(main, side) of a discrete action, or of two floats."""
    if np.ndim(action) == 0:
        return float(action == 2), float(action == 3) - float(action == 1)
    main, side = (float(value) for value in action)
    return (0.5 + 0.5 * main if main > 0 else 0.0), (side if abs(side) > 0.5 else 0.0)


class Ship:
    def __init__(self, params: dict[str, float], sub_steps: int = 4) -> None:
        self.p, self.sub_steps = params, sub_steps

    def start(self, rng: Rng) -> None:
        height = self.p["roughness"] * 10 / 3
        raw = [uniform(rng, -height, height) for _ in range(13)]
        raw[4:9] = [0.0] * 5  # the pad and one more point on each side
        self.ground = [complex(2 * k - 10, sum(raw[k : k + 3]) / 3) for k in range(11)]
        self.place, self.angle, self.spin = 10j, 0.0, 0.0
        speed = self.p["start_speed"]
        self.velocity = complex(uniform(rng, -speed, speed), uniform(rng, -speed, speed))
        self.wind_at, self.turbulence_at = rng.int(20000) - 10000, rng.int(20000) - 10000
        self.slip, self.touches, self.is_still = [0.0, 0.0], [False, False], 0
        self.potential = self.measure()

    def take_up(self, s: np.void) -> None:
        self.place, self.velocity = complex(s["x"], s["y"]), complex(s["vx"], s["vy"])
        self.angle, self.spin, self.potential = float(s["angle"]), float(s["spin"]), float(s["potential"])
        self.slip, self.touches = s["slip"].tolist(), [bool(value) for value in s["touches"]]
        self.ground = [complex(2 * k - 10, height) for k, height in enumerate(s["ground"].tolist())]
        self.is_still, self.wind_at, self.turbulence_at = (int(s[k]) for k in ("is_still", "wind_at", "turbulence_at"))

    def piece(self, x: float) -> tuple[complex, complex]:
        """The ends of the piece of ground below x; the first and the last one go on beyond the world."""
        k = min(max(math.floor((x + 10) / 2), 0), 9)
        return self.ground[k], self.ground[k + 1]

    def depth(self, point: complex) -> float:
        """How far a point is below the ground, at right angles to it; negative above it."""
        left, right = self.piece(point.real)
        return cross(point - left, right - left) / abs(right - left)

    def measure(self) -> float:
        place = complex(self.place.real / 10, (self.place.imag - 0.6) / (20 / 3))
        velocity = complex(self.velocity.real * 10 / 50, self.velocity.imag * (20 / 3) / 50)
        return -100 * (abs(place) + abs(velocity) + abs(self.angle)) + 10 * sum(self.touches)

    def push(self, main: float, side: float, rng: Rng) -> None:
        p, noise = self.p, [self.p["noise"] * uniform(rng, -1, 1) for _ in range(2)]
        main_force = p["main_thrust"] * main * complex(noise[1] / 4, 1 + noise[0] / 2)
        side_force = p["side_thrust"] * complex(side + abs(side) * noise[1] / 4, abs(side) * noise[0] / 12)
        torque = cross(1j * p["side_height"], side_force)
        force = (main_force + side_force) * cmath.exp(1j * self.angle)
        if (p["wind"] or p["turbulence"]) and not any(self.touches):
            gusts = [math.tanh(math.sin(0.02 * at) + math.sin(math.pi * 0.01 * at)) for at in self.weather()]
            force += p["wind"] * gusts[0]
            torque += p["turbulence"] * gusts[1]
        self.velocity += DT * force / p["mass"]
        self.spin += DT * torque / p["inertia"]

    def weather(self) -> tuple[int, int]:
        """The times of wind and turbulence, which go on."""
        now = self.wind_at, self.turbulence_at
        self.wind_at, self.turbulence_at = now[0] + 1, now[1] + 1
        return now

    def press(self, k: int, dt: float) -> tuple[complex, float]:
        """(force, torque) of the ground on a foot."""
        p, arm = self.p, FEET[k] * cmath.exp(1j * self.angle)
        depth = self.depth(self.place + arm)
        self.touches[k] = depth > 0
        if not self.touches[k]:
            self.slip[k] = 0.0
            return 0j, 0.0
        left, right = self.piece((self.place + arm).real)
        along = (right - left) / abs(right - left)
        velocity = self.velocity + 1j * self.spin * arm
        pressure = max(p["stiffness"] * depth - p["damping"] * dot(velocity, 1j * along), 0.0)
        limit = p["friction"] * pressure
        slip = self.slip[k] + dt * dot(velocity, along)
        drag = clip(-p["stiffness"] * slip - p["damping"] * dot(velocity, along), limit)
        self.slip[k] = clip(slip, limit / p["stiffness"])
        force = (drag + 1j * pressure) * along
        return force, cross(arm, force)

    def hull_touches(self) -> bool:
        corners = [self.place + corner * cmath.exp(1j * self.angle) for corner in HULL]
        if any(self.depth(corner) > 0 for corner in corners):
            return True
        edges = list(zip(corners, corners[1:] + corners[:1]))
        return any(all(cross(b - a, point - a) > 0 for a, b in edges) for point in self.ground)

    def step(self, action: Any, rng: Rng) -> tuple[float, bool]:
        """(reward, terminated). Short steps everywhere, where the header makes one long step in free flight."""
        main, side = throttles(action)
        self.push(main, side, rng)
        self.touches, crashed, dt, gravity = [False, False], False, DT / self.sub_steps, -1j * self.p["gravity"]
        for _ in range(self.sub_steps):
            (force_0, torque_0), (force_1, torque_1) = self.press(0, dt), self.press(1, dt)
            self.velocity += dt * (force_0 + force_1) / self.p["mass"]
            self.spin += dt * (torque_0 + torque_1) / self.p["inertia"]
            self.place += dt * self.velocity + dt**2 / 2 * gravity
            self.angle += dt * self.spin
            self.velocity += dt * gravity
            if self.hull_touches():
                crashed = True
                break
        crashed |= abs(self.place.real) >= 10 or abs(self.place.imag) >= 2.5 * 20 / 3
        moving = abs(self.velocity.real) + abs(self.velocity.imag) + abs(self.spin)
        self.is_still = self.is_still + 1 if all(self.touches) and moving < 0.05 else 0
        landed = self.is_still >= REST_STEPS and not crashed
        before, self.potential = self.potential, self.measure()
        reward = self.potential - before - 0.3 * main - 0.03 * abs(side)
        return (-100.0 if crashed else 100.0 if landed else reward), crashed or landed


def pilot(obs: np.ndarray) -> np.ndarray:
    """A scripted pilot: tilts against the drift, and keeps a height that shrinks with the distance from the pad."""
    x, y, vx, vy, angle, spin, left, right = obs.T
    tilt = np.clip(0.6 * x + 1.1 * vx, -0.35, 0.35)
    turn = np.where(left + right > 0, 0.0, tilt - angle - 1.8 * spin)
    lift = np.where(left + right > 0, -vy, 0.6 * np.abs(x) - y - 0.95 * vy)
    is_side = np.abs(turn) > np.maximum(lift, 0.08)
    return np.where(is_side, np.where(turn > 0, 1, 3), np.where(lift > 0.08, 2, 0))
