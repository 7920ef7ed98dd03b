"""Times the exchanges of a world alone, while no process computes: their latency and their rate.

The seconds of an exchange in training also contain the wait for the slowest process. `shoal bench train` prints both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shoal.train.ranks.world import World

SIZES = (64, 1 << 16, 1 << 20)  # numbers of a sum: a metric, a small network, a large one
REPEATS = 15


@dataclass(frozen=True)
class ExchangeTime:
    """One size of a sum."""

    bytes: float  # that a process receives
    seconds: float  # median


def time_sums(world: World, device: torch.device, sizes: Sequence[int] = SIZES) -> list[ExchangeTime]:
    """Sums of several sizes over all processes. Every process calls it."""
    times = []
    for size in sizes:
        own, seconds, before = torch.ones((1, size), device=device), [], world.received
        for number in range(REPEATS + 1):
            world.gather(own[:, :1])  # so that all begin together
            _wait(device)
            before, began = world.received, time.perf_counter()
            world.sum(own)
            _wait(device)
            if number:  # the first one makes connections
                seconds.append(time.perf_counter() - began)
        times.append(ExchangeTime(float(world.received - before), sorted(seconds)[len(seconds) // 2]))
    world.received = 0
    return times


def fit(times: Sequence[ExchangeTime]) -> tuple[float, float]:
    """Seconds of an exchange of nothing, and bytes per second: seconds = latency + bytes / rate."""
    small, large = times[0], times[-1]
    slope = (large.seconds - small.seconds) / (large.bytes - small.bytes)
    slope = max(slope, 1e-15)  # noise
    return max(0.0, small.seconds - slope * small.bytes), 1.0 / slope


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
