"""The rules of market once more, slowly, and its best policy by backward induction.

python -m tests.market_twin    mean returns of the best policy, of Avellaneda and Stoikov's, of fixed and random quotes
"""

from __future__ import annotations

from typing import Any

import numpy as np

import shoal

from .vacuum_twin import Rng

PARAMS: dict[str, Any] = {"steps": 200, "dt": 0.005, "volatility": 2.0, "arrivals": 140.0, "depth": 1.5}
PARAMS |= {"penalty": 1.0, "max_offset": 2.0, "limit": 10}


def chance(params: dict[str, Any], offset: Any) -> Any:
    return 1 - np.exp(-params["arrivals"] * np.exp(-params["depth"] * offset) * params["dt"])


class Twin:
    """One episode, in double precision."""

    def __init__(self, seed: int, **params: Any) -> None:
        self.params, self.rng = PARAMS | params, Rng(seed)
        self.step_number = self.position = 0

    def uniform(self) -> float:
        return (self.rng.int(2**32) >> 8) / 2**24

    def step(self, bid: float, ask: float) -> tuple[list[float], float, bool]:
        """Observation, reward, whether it is over."""
        p = self.params
        buys, sells = self.uniform(), self.uniform()
        bid, ask = ((action + 1) / 2 * p["max_offset"] for action in (bid, ask))
        bought = int(buys < chance(p, bid) and self.position < p["limit"])
        sold = int(sells < chance(p, ask) and self.position > -p["limit"])
        self.position += bought - sold
        radius, angle = np.sqrt(-2 * np.log(1 - self.uniform())), np.pi * (2 * self.uniform() - 1)
        move = radius * np.cos(angle)
        reward = bought * bid + sold * ask + self.position * move * p["volatility"] * np.sqrt(p["dt"])
        reward -= p["penalty"] * self.position**2 * p["dt"]
        self.step_number += 1
        left = 1 - self.step_number / p["steps"]
        obs = [self.position / p["limit"], left, float(np.clip(move, -5, 5)), bought, sold]
        return obs, reward, self.step_number == p["steps"]


def best_policy(grid: int = 81, **params: Any) -> tuple[Any, Any]:
    """Offsets (steps, positions, 2) of the best quotes, and what they return from each position at each step.

    The price has no drift, so that a position is worth its price, and what more can be earned depends on the step and
    the position alone. Of all pairs of offsets on a grid the best is taken, from the last step back to the first.
    """
    p = PARAMS | params
    limit, offsets = p["limit"], np.linspace(0, p["max_offset"], grid)
    fills, count = chance(p, offsets), 2 * p["limit"] + 1
    cost = p["penalty"] * np.arange(-limit, limit + 1) ** 2 * p["dt"]
    value, quotes = np.zeros((p["steps"] + 1, count)), np.zeros((p["steps"], count, 2))
    for step in reversed(range(p["steps"])):
        after = value[step + 1] - cost
        for k in range(count):
            up, down = fills * (k < count - 1), fills * (k > 0)  # chances of buying, of selling
            more, less = after[min(k + 1, count - 1)], after[max(k - 1, 0)]
            both = np.outer(up, down) * (offsets[:, None] + offsets[None, :] + after[k])
            one = np.outer(up, 1 - down) * (offsets[:, None] + more) + np.outer(1 - up, down) * (
                offsets[None, :] + less
            )
            total = both + one + np.outer(1 - up, 1 - down) * after[k]
            bid, ask = np.unravel_index(total.argmax(), total.shape)
            value[step, k], quotes[step, k] = total[bid, ask], (offsets[bid], offsets[ask])
    return quotes, value


def avellaneda_stoikov(position: Any, step: int, gamma: float = 0.5) -> Any:
    """Their formula: quotes around a reservation price that leans against the position. Offsets of bid and ask."""
    p = PARAMS
    left = (p["steps"] - step) * p["dt"]
    lean = position * gamma * p["volatility"] ** 2 * left
    half = gamma * p["volatility"] ** 2 * left / 2 + np.log(1 + gamma / p["depth"]) / gamma
    return np.clip(np.stack([half + lean, half - lean], 1), 0, p["max_offset"])


def mean_return(quote: Any, episodes: int = 4000, seed: int = 0) -> float:
    """Of the policy quote(positions, step) -> offsets (episodes, 2)."""
    vec = shoal.make("market", episodes)
    obs, _ = vec.reset(seed=seed)
    total = np.zeros(episodes)
    for step in range(PARAMS["steps"]):
        offsets = quote(np.round(obs[:, 0] * PARAMS["limit"]), step)
        obs, rewards, _, _, _ = vec.step((offsets / PARAMS["max_offset"] * 2 - 1).astype(np.float32))
        total += rewards
    return float(total.mean())


def main() -> None:
    quotes, value = best_policy()
    rng = np.random.default_rng(0)
    print(f"best, computed       {value[0, PARAMS['limit']]:.2f}")
    print(f"best, played         {mean_return(lambda q, t: quotes[t, (q + PARAMS['limit']).astype(int)]):.2f}")
    print(f"Avellaneda, Stoikov  {mean_return(avellaneda_stoikov):.2f}")
    print(f"quotes of 0.75       {mean_return(lambda q, t: np.full((len(q), 2), 0.75)):.2f}")
    print(f"random quotes        {mean_return(lambda q, t: rng.uniform(0, 2, (len(q), 2))):.2f}")


if __name__ == "__main__":
    main()
