"""What the slow twins of the arcade games share: random numbers, the library's part of an episode, the comparison.

A twin draws random numbers in the order in which its header does, and must agree with it to the bit. `poke` puts an env
into a state of one's choice: rules that random play meets rarely are tested from there.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from . import vacuum_twin

F = np.float32


class Rng(vacuum_twin.Rng):
    def uniform(self, low: float, high: float) -> np.float32:
        unit = F(self.int(2**24)) * F(1 / 2**24)
        return F(F(low) + F(F(high) - F(low)) * unit)


class ArcadeTwin:
    """One env. A subclass has the rules: `start` and `play`, what is seen, and what is counted."""

    agents = 1
    stats: ClassVar[dict[str, str]] = {}  # name: how a step's values become one of the episode (sum, mean or last)
    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, params: dict[str, Any] | None = None, seed: int = 0) -> None:
        self.params, self.rng = {"max_steps": 0, **self.defaults, **(params or {})}, Rng(seed)
        self.reset()

    # ---- what a subclass defines ----

    def start(self) -> None:
        raise NotImplementedError

    def play(self, actions: list[int]) -> None:
        """A step: sets `rewards` and `terminations`, and counts in `counted`; all are zero beforehand."""
        raise NotImplementedError

    def observe(self, agent: int) -> Any:
        raise NotImplementedError

    def mask(self, agent: int) -> list[int] | None:
        return None

    # ---- episodes ----

    def reset(self) -> None:
        self.tick, self.alive = 0, [True] * self.agents
        self.returns, self.totals = [F(0)] * self.agents, dict.fromkeys(self.stats, F(0))
        self.start()

    def step(self, actions: list[int]) -> dict[str, Any]:
        """All that the library shows after a step. Starts the next episode if this one is over."""
        self.rewards, self.terminations = [F(0)] * self.agents, [False] * self.agents
        self.counted: dict[str, Any] = dict.fromkeys(self.stats, F(0))
        self.play(actions)
        self.tick += 1
        rewards = [F(reward) if alive else F(0) for reward, alive in zip(self.rewards, self.alive)]
        terminated = [bool(out) and alive for out, alive in zip(self.terminations, self.alive)]
        left = [alive and not out for alive, out in zip(self.alive, terminated)]
        is_late = any(left) and self.tick == self.params["max_steps"]
        self.returns = [F(total + reward) for total, reward in zip(self.returns, rewards)]
        for name, kind in self.stats.items():
            self.totals[name] = F(self.counted[name]) if kind == "last" else F(self.totals[name] + self.counted[name])
        truncated = [is_late and alive for alive in left]
        shown = {"rewards": rewards, "terminated": terminated, "truncated": truncated, "final": {}, "stats": None}
        for agent in range(self.agents):
            if terminated[agent] or truncated[agent]:
                shown["final"][agent] = (self.observe(agent), self.returns[agent], self.tick)
        self.alive = left
        if is_late or not any(left):
            means = {name: F(self.totals[name] / F(self.tick)) for name, kind in self.stats.items() if kind == "mean"}
            shown["stats"] = {**self.totals, **means}
            self.reset()
        return {**shown, **self.view()}

    def view(self) -> dict[str, Any]:
        agents = range(self.agents)
        obs = [self.observe(k) if self.alive[k] else np.zeros_like(self.observe(k)) for k in agents]
        return {"obs": obs, "masks": [self.mask(k) for k in agents], "alive": self.alive}


def compare(twins: list[Any], vec: Any, steps: int, seed: int, act: Any = None, start: bool = True) -> int:
    """Plays random actions, or those of `act`, and asserts that all that is shown is the same. Returns the episodes.

    `act(twin, agent)` returns an action, or None for a random one. `start=False` goes on from where both are.
    """
    rng, ended, names = np.random.default_rng(seed), 0, [stat.name for stat in vec.native_spec.stats]
    count = twins[0].agents
    if start:
        obs, infos = vec.reset(seed=seed)
        for k, twin in enumerate(twins):
            _same_view(twin.view(), obs, infos, k * count)
    for _ in range(steps):
        actions = rng.integers(0, vec.single_action_space.n, vec.num_rows)
        if act is not None:
            chosen = [act(twin, agent) for twin in twins for agent in range(count)]
            actions = np.array([b if a is None else a for a, b in zip(chosen, actions.tolist())])
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        for k, twin in enumerate(twins):
            rows = slice(k * count, (k + 1) * count)
            shown = twin.step(actions[rows].tolist())
            _same_view(shown, obs, infos, k * count)
            assert rewards[rows].tolist() == shown["rewards"]
            assert terminated[rows].tolist() == shown["terminated"]
            assert truncated[rows].tolist() == shown["truncated"]
            for agent, (final_obs, total, length) in shown["final"].items():
                row = k * count + agent
                assert infos["final_obs"][row].tobytes() == _bytes(final_obs, obs.dtype)
                assert infos["final_info"]["episode"]["r"][row] == total
                assert infos["final_info"]["episode"]["l"][row] == length
            if shown["stats"] is not None:
                ended += 1
                found = {name: vec.memory.arrays["final_stats"][number, k] for number, name in enumerate(names)}
                assert found == shown["stats"]
    return ended


def _bytes(seen: Any, dtype: Any) -> bytes:
    return np.asarray(seen).astype(dtype).tobytes()


def _same_view(shown: dict[str, Any], obs: Any, infos: Any, first: int) -> None:
    for agent, seen in enumerate(shown["obs"]):
        row = first + agent
        if obs[row].tobytes() != _bytes(seen, obs.dtype):  # named, because a wall of bytes says nothing
            wrong = np.flatnonzero(obs[row].ravel() != np.asarray(seen).astype(obs.dtype).ravel())
            here, there = obs[row].ravel()[wrong[:8]], np.asarray(seen).ravel()[wrong[:8]]
            raise AssertionError(f"row {row}: elements {wrong[:8]} are {here}, the twin says {there}")
        if shown["masks"][agent] is not None:
            assert infos["action_mask"][row].tolist() == shown["masks"][agent]
        if len(shown["alive"]) > 1:
            assert bool(infos["alive"][row]) == shown["alive"][agent]


def poke(vec: Any, layout: DTypeLike) -> Any:
    """The states of a vec's envs as an array of records, to be read and written: `layout` mirrors the C struct."""
    dtype = np.dtype(layout, align=True)
    bytes_of_all = vec.memory.arrays["state"]
    return bytes_of_all[: vec.num_envs * dtype.itemsize].view(dtype)
