"""Statistics of episodes of Python envs since they were last drained. Native envs keep theirs in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.spec import Array


class EpisodeSums:
    """Statistics of episodes since they were last drained, in the order in which they ended."""

    def __init__(self) -> None:
        self.returns: list[Array] = []
        self.lengths: list[Array] = []
        self.low, self.high = np.inf, -np.inf  # of single agents' returns, where games have several

    def add(self, returns: Array, lengths: Array, low: float = np.inf, high: float = -np.inf) -> None:
        """Adds episodes that ended; `low` and `high` are of single agents."""
        self.returns.append(returns)
        self.lengths.append(lengths)
        self.low, self.high = min(self.low, low), max(self.high, high)
        if len(self.returns) > 4096:
            self.returns, self.lengths = [np.concatenate(self.returns)], [np.concatenate(self.lengths)]

    def drain(self) -> dict[str, Any]:
        """`{"episodes": n, "return": {"mean", "min", "max"}, "length": …}` since the last call."""
        if not self.returns:
            return {"episodes": 0}
        columns = {"return": np.concatenate(self.returns), "length": np.concatenate(self.lengths)}
        self.returns, self.lengths = [], []
        result: dict[str, Any] = {"episodes": len(columns["return"])}
        for name, values in columns.items():
            exact = values.astype(np.float64)
            # sorted, so that the sum does not depend on which worker came first
            mean = float(np.sort(exact).sum()) / len(exact)
            result[name] = {"mean": mean, "min": float(exact.min()), "max": float(exact.max())}
        if self.low <= self.high:
            result["return"] |= {"min": float(self.low), "max": float(self.high)}
        self.low, self.high = np.inf, -np.inf
        return result


class GameSums:
    """Games of several agents, put together from their rows: a game is over when everyone who was in it is done."""

    def __init__(self, num_envs: int, agents: int) -> None:
        self.agents = agents
        self.totals = np.zeros((num_envs, agents))  # of each agent in this game
        self.ticks = np.zeros(num_envs, np.int32)
        self.alive = np.zeros((num_envs, agents), np.bool_)  # before the step

    def add(self, sums: EpisodeSums, arrays: dict[str, Array], lo: int, hi: int, stepped: bool) -> None:
        """Adds the last step of envs [lo, hi), or (not `stepped`) notes that they were reset."""
        rows = slice(lo * self.agents, hi * self.agents)
        shape = (hi - lo, self.agents)
        totals, ticks, was = self.totals[lo:hi], self.ticks[lo:hi], self.alive[lo:hi]
        if stepped:
            done = arrays["done"][rows].reshape(shape)
            totals += arrays["rewards"][rows].reshape(shape)
            ticks += was.any(1)
            over = (done | ~was).all(1) & was.any(1)
            if over.any():
                sums.add(totals[over].mean(1), ticks[over], totals[over].min(), totals[over].max())
            totals[over], ticks[over] = 0.0, 0
        else:
            totals[:], ticks[:] = 0.0, 0
        was[:] = arrays["alive"][rows].reshape(shape)
