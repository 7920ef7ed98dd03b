"""The library's part of an env with several agents, slowly, for one env: time limit, autoreset, returns, stats.

A subclass has the rules of a game, written plainly and with nothing taken from its header. `compare` plays twins and
the env side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .vacuum_twin import Rng as Integers

F = np.float32


class Rng(Integers):
    """The random stream of an env, with floats."""

    def uniform(self, low: Any, high: Any) -> Any:
        return F(low) + (F(high) - F(low)) * F(F(self.int(2**32) >> 8) * F(1 / 16777216))


class AgentTwin:
    """One env in which no agent ever terminates: only the time limit ends an episode."""

    stats: dict[str, str] = {}  # noqa: RUF012  the name of each stat, and its kind

    def __init__(self, consts: dict[str, int], params: dict[str, Any], seed: int) -> None:
        self.consts, self.params, self.rng = consts, params, Rng(seed)
        self.begin()

    def reset(self) -> None:
        raise NotImplementedError

    def advance(self, actions: Any) -> tuple[list[Any], dict[str, float]]:
        """One step: the rewards of the agents, and the step's stats."""
        raise NotImplementedError

    def observe(self, agent: int) -> Any:
        raise NotImplementedError

    def begin(self) -> None:
        self.reset()
        self.tick, self.totals = 0, dict.fromkeys(self.stats, 0.0)

    def step(self, actions: Any) -> tuple[list[Any], bool, dict[str, float] | None]:
        """Rewards, whether the episode ended, and its stats if it did. Then the next one has begun."""
        rewards, stats = self.advance(actions)
        self.tick += 1
        for name, kind in self.stats.items():
            self.totals[name] = stats.get(name, 0.0) + (0.0 if kind == "last" else self.totals[name])
        if self.tick != self.params["max_steps"]:
            return rewards, False, None
        length = self.tick
        ended = {name: total / (length if self.stats[name] == "mean" else 1) for name, total in self.totals.items()}
        self.begin()
        return rewards, True, ended


def compare(twins: Any, vec: Any, steps: int, seed: int, actions: Any = None) -> int:
    """Plays random actions on twins and envs, compares all they show, and returns the number of episodes that ended."""
    agents, names = vec.agents_per_env, [stat.name for stat in vec.native_spec.stats]
    assert {stat.name: stat.kind for stat in vec.native_spec.stats} == twins[0].stats
    obs, _ = vec.reset(seed=seed)
    vec.action_space.seed(seed)
    ended = 0
    for step in range(steps + 1):
        for k, twin in enumerate(twins):
            for agent in range(agents):
                seen, expected = (
                    obs[k * agents + agent],
                    np.asarray(twin.observe(agent), obs.dtype).reshape(obs.shape[1:]),
                )
                assert seen.tobytes() == expected.tobytes(), (step, k, agent, np.argwhere(seen != expected).tolist())
        if step == steps:
            break
        moves = vec.action_space.sample() if actions is None else actions(step, obs)
        obs, rewards, terminated, truncated, _ = vec.step(moves)
        assert not terminated.any()
        for k, twin in enumerate(twins):
            rows = slice(k * agents, (k + 1) * agents)
            expected, is_over, stats = twin.step(moves[rows].tolist())
            assert np.array_equal(rewards[rows], np.array(expected, F)), (step, k, rewards[rows], expected)
            assert truncated[rows].tolist() == [is_over] * agents
            if stats is not None:
                ended += 1
                found = {name: vec.memory.arrays["final_stats"][number, k] for number, name in enumerate(names)}
                np.testing.assert_allclose([found[name] for name in names], [stats[name] for name in names], rtol=1e-5)
    return ended
