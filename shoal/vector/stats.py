"""Statistics of the episodes of Python envs. Native envs compute theirs in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.spec import Array


class EpisodeSums:
    """Returns and lengths of the episodes since the last `drain`; in a game of several `agents` also those of each."""

    def __init__(self, agents: Sequence[str] = ()) -> None:
        self.agents = tuple(agents)
        self.returns: list[Array] = []
        self.lengths: list[Array] = []
        self.drained: Array = np.zeros(0)  # the returns of the episodes of the last `drain`
        self.agent_returns: list[Array] = []  # (games, agents)
        self.agent_lengths: list[Array] = []

    def add(self, returns: Array, lengths: Array) -> None:
        """Adds episodes that ended."""
        self.returns.append(returns)
        self.lengths.append(lengths)
        if len(self.returns) > 4096:
            for name in ("returns", "lengths", "agent_returns", "agent_lengths"):
                if parts := getattr(self, name):
                    setattr(self, name, [np.concatenate(parts)])

    def add_games(self, returns: Array, lengths: Array, ticks: Array) -> None:
        """Adds games that ended: returns and lengths of their agents, (games, agents), and their own lengths."""
        self.agent_returns.append(returns)
        self.agent_lengths.append(lengths)
        self.add(returns.mean(1), ticks)

    def drain(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The result of `drain_stats`, and `agent_stats`: of the episodes since the last call."""
        if not self.returns:
            self.drained = np.zeros(0)
            return {"episodes": 0}, {}
        returns, lengths = np.concatenate(self.returns), np.concatenate(self.lengths)
        result: dict[str, Any] = {"episodes": len(returns), "return": _describe(returns), "length": _describe(lengths)}
        self.returns, self.lengths, self.drained = [], [], returns
        agent_stats: dict[str, Any] = {}
        if self.agent_returns:
            agent_returns, agent_lengths = np.concatenate(self.agent_returns), np.concatenate(self.agent_lengths)
            self.agent_returns, self.agent_lengths = [], []
            # the extremes are those of single agents, not of the means over a game's agents
            result["return"] |= {"min": float(agent_returns.min()), "max": float(agent_returns.max())}
            agent_stats = {
                name: {"return": _mean(agent_returns[:, k]), "length": _mean(agent_lengths[:, k])}
                for k, name in enumerate(self.agents)
            }
        return result, agent_stats


def _describe(values: Array) -> dict[str, float]:
    return {"mean": _mean(values), "min": float(values.min()), "max": float(values.max())}


def _mean(values: Array) -> float:
    # sorted, so that the sum does not depend on the order of the workers
    return float(np.sort(values.astype(np.float64)).sum()) / len(values)


class GameSums:
    """Statistics of games with several agents, from their rows. A game ends when all of its agents are done."""

    def __init__(self, num_envs: int, agents: int) -> None:
        self.agents = agents
        self.totals = np.zeros((num_envs, agents))  # of each agent in this game, over all its lives
        self.lengths = np.zeros((num_envs, agents), np.int32)  # of each agent that is out; 0: it is in the game
        self.ticks = np.zeros(num_envs, np.int32)
        self.alive = np.zeros((num_envs, agents), np.bool_)  # before the step
        self.ended = np.zeros(num_envs, np.bool_)  # before the step, which is then a reset (NEXT_STEP)

    def reset(self, arrays: dict[str, Array], lo: int, hi: int, mask: Array | None = None) -> None:
        """Envs [lo, hi) were reset, or (`mask`, over them) some of these: they start new games."""
        chosen = np.ones(hi - lo, np.bool_) if mask is None else mask
        self.totals[lo:hi][chosen], self.ticks[lo:hi][chosen], self.lengths[lo:hi][chosen] = 0.0, 0, 0
        self._remember(arrays, lo, hi)

    def add(self, sums: EpisodeSums, arrays: dict[str, Array], lo: int, hi: int) -> None:
        """Adds the last step of envs [lo, hi)."""
        rows = slice(lo * self.agents, hi * self.agents)
        shape = (hi - lo, self.agents)
        totals, ticks, was_alive = self.totals[lo:hi], self.ticks[lo:hi], self.alive[lo:hi]
        lengths = self.lengths[lo:hi]
        started = self.ended[lo:hi]
        done = arrays["done"][rows].reshape(shape)
        if "final_return" in arrays:  # rewards may be scaled for the learner: the return is that of the env
            totals += np.where(done, arrays["final_return"][rows].reshape(shape), 0.0)
        else:
            totals += arrays["rewards"][rows].reshape(shape)
        ticks += was_alive.any(1) & ~started
        np.copyto(lengths, ticks[:, None], where=done)
        over = (done | ~was_alive).all(1) & was_alive.any(1) & ~started
        if over.any():
            # an agent that never joined the game, or left it without being done, has the game's length
            lasted = np.where(lengths[over] > 0, lengths[over], ticks[over, None])
            sums.add_games(totals[over], lasted, ticks[over])
        totals[over], ticks[over], lengths[over] = 0.0, 0, 0
        self._remember(arrays, lo, hi)

    def _remember(self, arrays: dict[str, Array], lo: int, hi: int) -> None:
        rows = slice(lo * self.agents, hi * self.agents)
        self.alive[lo:hi] = arrays["alive"][rows].reshape(hi - lo, self.agents)
        if "ended" in arrays:
            self.ended[lo:hi] = arrays["ended"][lo:hi]
