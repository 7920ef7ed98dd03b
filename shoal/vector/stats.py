"""Statistics of the episodes of Python envs. Native envs compute theirs in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.spec import Array


class EpisodeSums:
    """Returns and lengths of the episodes since the last `drain`."""

    def __init__(self) -> None:
        self.returns: list[Array] = []
        self.lengths: list[Array] = []
        self.low, self.high = np.inf, -np.inf  # of single agents, if a game has several
        self.drained: Array = np.zeros(0)  # the returns of the episodes of the last `drain`

    def add(self, returns: Array, lengths: Array, low: float = np.inf, high: float = -np.inf) -> None:
        """Adds episodes that ended. `low` and `high`: the extreme returns of single agents."""
        self.returns.append(returns)
        self.lengths.append(lengths)
        self.low, self.high = min(self.low, low), max(self.high, high)
        if len(self.returns) > 4096:
            self.returns, self.lengths = [np.concatenate(self.returns)], [np.concatenate(self.lengths)]

    def drain(self) -> dict[str, Any]:
        """`{"episodes": n, "return": {"mean", "min", "max"}, "length": …}` since the last call."""
        if not self.returns:
            self.drained = np.zeros(0)
            return {"episodes": 0}
        columns = {"return": np.concatenate(self.returns), "length": np.concatenate(self.lengths)}
        self.returns, self.lengths, self.drained = [], [], columns["return"]
        result: dict[str, Any] = {"episodes": len(columns["return"])}
        for name, values in columns.items():
            exact = values.astype(np.float64)
            # sorted, so that the sum does not depend on the order of the workers
            mean = float(np.sort(exact).sum()) / len(exact)
            result[name] = {"mean": mean, "min": float(exact.min()), "max": float(exact.max())}
        if self.low <= self.high:
            result["return"] |= {"min": float(self.low), "max": float(self.high)}
        self.low, self.high = np.inf, -np.inf
        return result


class GameSums:
    """Statistics of games with several agents, from their rows. A game ends when all of its agents are done."""

    def __init__(self, num_envs: int, agents: int) -> None:
        self.agents = agents
        self.totals = np.zeros((num_envs, agents))  # of each agent in this game
        self.ticks = np.zeros(num_envs, np.int32)
        self.alive = np.zeros((num_envs, agents), np.bool_)  # before the step

    def add(self, sums: EpisodeSums, arrays: dict[str, Array], lo: int, hi: int, stepped: bool) -> None:
        """Adds the last step of envs [lo, hi); not `stepped`: they were reset."""
        rows = slice(lo * self.agents, hi * self.agents)
        shape = (hi - lo, self.agents)
        totals, ticks, was_alive = self.totals[lo:hi], self.ticks[lo:hi], self.alive[lo:hi]
        if stepped:
            done = arrays["done"][rows].reshape(shape)
            totals += arrays["rewards"][rows].reshape(shape)
            ticks += was_alive.any(1)
            over = (done | ~was_alive).all(1) & was_alive.any(1)
            if over.any():
                sums.add(totals[over].mean(1), ticks[over], totals[over].min(), totals[over].max())
            totals[over], ticks[over] = 0.0, 0
        else:
            totals[:], ticks[:] = 0.0, 0
        was_alive[:] = arrays["alive"][rows].reshape(shape)
