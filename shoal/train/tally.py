"""Sums over an interval of training, accumulated on the device without waiting for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

MAX_LISTED = 16  # agents or policies that have metrics of their own


class Tally:
    """Sums of the metrics of updates: numbers on the host, tensors on their device. A CUDA graph can hold `add`."""

    MAX_METRICS = 32

    def __init__(self, device: torch.device) -> None:
        self.names: list[str] = []
        self.totals = torch.zeros(self.MAX_METRICS, device=device)
        self.numbers: dict[str, float] = {}

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Adds the metrics of one update. They have the same names each time."""
        tensors = {name: value for name, value in metrics.items() if isinstance(value, Tensor)}
        for name, value in metrics.items():
            if name not in tensors:
                self.numbers[name] = self.numbers.get(name, 0.0) + value
        if tensors:
            self.names, totals = list(tensors), self.totals[: len(tensors)]
            totals += torch.stack([x.to(totals.dtype) for x in tensors.values()])

    def drain(self) -> dict[str, float]:
        """The sums since the last call."""
        sums = self.numbers | (dict(zip(self.names, self.totals.tolist())) if self.names else {})
        self.totals.zero_()
        self.numbers = {}
        return sums


class ReturnTally:
    """Count, sum, minimum and maximum of episode returns, accumulated on the device without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self.totals = torch.zeros(2, dtype=torch.float64, device=device)  # count, sum
        self.extremes = torch.zeros(2, device=device)  # minimum, maximum
        self.clear()

    def clear(self) -> None:
        """Removes all episodes."""
        self.totals.zero_()
        self.extremes[0], self.extremes[1] = torch.inf, -torch.inf

    def add(self, returns: Tensor, ended: Tensor) -> None:
        """Adds the returns of episodes, (steps, rows), where they ended."""
        total = torch.where(ended, returns, 0.0).sum(dtype=torch.float64)
        self.totals += torch.stack([ended.sum().to(torch.float64), total])
        self.extremes[0] = torch.minimum(self.extremes[0], torch.where(ended, returns, torch.inf).min())
        self.extremes[1] = torch.maximum(self.extremes[1], torch.where(ended, returns, -torch.inf).max())

    def drain(self) -> tuple[int, float, float, float]:
        """(count, mean, minimum, maximum) since the last call."""
        (count, total), (low, high) = self.totals.tolist(), self.extremes.tolist()
        self.clear()
        return int(count), total / max(count, 1.0), low, high


class AgentTally:
    """The returns and lengths of single agents and of groups, from the statistics of the envs, as metrics."""

    def __init__(self) -> None:
        self.has_early_ends = False  # whether an agent has ever left a game before its end

    def record(self, stats: Mapping[str, Any], groups: Mapping[str, Sequence[int]]) -> dict[str, float]:
        """`episode/return/<name>` of each group and agent; `episode/length/<name>` if agents leave games early.

        stats: those of each agent (`VecEnv.drain_stats`). Of more than MAX_LISTED agents, only the lowest and the
        highest are recorded.
        """
        record: dict[str, float] = {}
        for kind in ("return", "length"):
            means = {name: float(numbers[kind]) for name, numbers in stats.items()}
            values = list(means.values())
            if kind == "length":
                self.has_early_ends |= len(set(values)) > 1
                if not self.has_early_ends:
                    break
            by_group = {name: sum(values[k] for k in agents) / len(agents) for name, agents in groups.items() if values}
            if len(means) > MAX_LISTED:
                means = {"lowest_agent": min(values), "highest_agent": max(values)}
            if len(groups) > MAX_LISTED:
                by_group = {}
            record |= {f"episode/{kind}/{name}": mean for name, mean in (by_group | means).items()}
        return record
