"""A scripted player of craftax_classic: it sees what an agent sees, and walks to the nearest thing that it needs.

python -m tests.craftax_player    mean return over 100 episodes: `scripted` in craftax_classic.toml
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

import shoal

from .craftax_twin import ACTIONS, BLOCK, ITEMS, SOLID, WAYS

ACTION = {name: number for number, name in enumerate(ACTIONS)}
HERE = (3, 4)  # the player's cell in its view of 7 x 9
ZOMBIE, COW, SKELETON = 1, 2, 4


class Player:
    """One life. Needs come first, then the next thing on the list that can be had."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.heading, self.left = 1, 0  # where it explores, and for how many steps more
        self.done: set[str] = set()

    def see(self, obs: Any) -> None:
        self.blocks, self.mobs = obs[:63].reshape(7, 9).astype(int), obs[63:126].reshape(7, 9).astype(int)
        self.items = dict(zip(ITEMS, obs[126:138].astype(int)))
        self.health, self.food, self.drink, self.energy = (int(value) for value in obs[138:142])
        self.facing, self.asleep = int(obs[142]) + 1, bool(obs[144])
        self.ahead = (HERE[0] + WAYS[self.facing][0], HERE[1] + WAYS[self.facing][1])

    def act(self, obs: Any) -> int:
        self.see(obs)
        if self.asleep:
            return 0
        action = self.choose()
        if action in range(7, 17):
            self.done.add(ACTIONS[action])
        return action

    def choose(self) -> int:
        items, near = self.items, set(self.blocks[2:5, 3:6].ravel().tolist())
        table, furnace = BLOCK["table"] in near, BLOCK["furnace"] in near
        for steps, mask in ((2, ZOMBIE), (3, SKELETON)):
            fight = self.go(self.mobs & mask > 0, at_most=steps)
            if fight is not None:
                return fight
        if self.drink < 4 and (way := self.go(self.blocks == BLOCK["water"])) is not None:
            return way
        if self.food < 5:
            for target in (self.blocks == BLOCK["ripe"], self.mobs & COW > 0):
                if (way := self.go(target)) is not None:
                    return way
        if self.energy < 3 or (self.energy < 9 and "slept" not in self.done and not (self.mobs & ZOMBIE).any()):
            self.done.add("slept")
            return ACTION["sleep"]
        for tool in ("wood_pickaxe", "wood_sword", "stone_pickaxe", "stone_sword", "iron_pickaxe", "iron_sword"):
            of = tool.split("_")[0]
            costs = {"wood": ["wood"], "stone": ["wood", "stone"], "iron": ["wood", "stone", "coal", "iron"]}[of]
            if items[tool] == 0 and all(items[cost] for cost in costs):
                if table and (of != "iron" or furnace):
                    return ACTION[f"make_{tool}"]
                if not table and items["wood"] >= 2 + len(costs) // 4 + 1 and self.is_free():
                    return ACTION["place_table"]
                if of == "iron" and table and items["stone"] >= 2 and self.is_free():
                    return ACTION["place_furnace"]
        if items["stone"] and "place_stone" not in self.done and self.is_free():
            return ACTION["place_stone"]
        if items["stone"] > 1 and "place_furnace" not in self.done and table and self.is_free():
            return ACTION["place_furnace"]
        if items["sapling"] and "place_plant" not in self.done and self.blocks[self.ahead] == BLOCK["grass"]:
            return ACTION["place_plant"] if not self.mobs[self.ahead] else 0
        return self.gather()

    def gather(self) -> int:
        items = self.items
        wanted = [("diamond", items["iron_pickaxe"]), ("iron", items["stone_pickaxe"] and items["iron"] < 2)]
        wanted += [("coal", items["wood_pickaxe"] and items["coal"] < 2), ("ripe", True)]
        wanted += [("tree", items["wood"] < 7), ("stone", items["wood_pickaxe"] and items["stone"] < 5)]
        wanted += [("water", self.drink < 8)]
        for block, wants in wanted:
            if wants and (way := self.go(self.blocks == BLOCK[block])) is not None:
                return way
        if (self.food < 8 or "cow" not in self.done) and (way := self.go(self.mobs & COW > 0)) is not None:
            self.done.add("cow")
            return way
        is_grass = self.blocks[self.ahead] == BLOCK["grass"] and not self.mobs[self.ahead]
        if is_grass and not items["sapling"] and "place_plant" not in self.done:
            return ACTION["do"]
        return self.explore()

    def is_free(self) -> bool:
        return self.blocks[self.ahead] in (BLOCK["grass"], BLOCK["sand"], BLOCK["path"]) and not self.mobs[self.ahead]

    def can_walk(self, place: tuple[int, int]) -> bool:
        block = self.blocks[place]
        return block not in SOLID and block not in (BLOCK["lava"], BLOCK["beyond"]) and not self.mobs[place] & 7

    def go(self, targets: Any, at_most: int = 99) -> int | None:
        """The first step of the shortest way to a target; "do" if one is ahead; None if there is no way."""
        if targets[self.ahead]:
            return ACTION["do"]
        queue, seen = deque([(HERE, 0, 0)]), {HERE}
        while queue:
            place, first, steps = queue.popleft()
            for way in (1, 2, 3, 4):
                to = (place[0] + WAYS[way][0], place[1] + WAYS[way][1])
                if not (0 <= to[0] < 7 and 0 <= to[1] < 9) or to in seen or steps >= at_most:
                    continue
                if targets[to]:
                    return first or way
                if self.can_walk(to):
                    seen.add(to)
                    queue.append((to, first or way, steps + 1))
        return None

    def explore(self) -> int:
        """On in one direction, through stone if there is a pickaxe; another one at obstacles, and now and then."""
        self.left -= 1
        for _ in range(8):
            ahead = (HERE[0] + WAYS[self.heading][0], HERE[1] + WAYS[self.heading][1])
            if self.left > 0 and self.can_walk(ahead):
                return self.heading
            if self.left > 0 and self.blocks[ahead] == BLOCK["stone"] and self.items["wood_pickaxe"]:
                return ACTION["do"] if self.facing == self.heading else self.heading
            self.heading, self.left = int(self.rng.integers(1, 5)), int(self.rng.integers(5, 40))
        return 0


def play(episodes: int, seed: int = 0) -> Any:
    """The return of one episode in each env."""
    vec = shoal.make("craftax_classic", episodes)
    obs, _ = vec.reset(seed=seed)
    players, alive, returns = [Player(k) for k in range(episodes)], np.ones(episodes, bool), np.zeros(episodes)
    while alive.any():
        actions = np.array([player.act(row) if lives else 0 for player, row, lives in zip(players, obs, alive)])
        obs, rewards, terminated, truncated, _ = vec.step(actions)
        returns += rewards * alive
        alive &= ~(terminated | truncated)
    return returns


if __name__ == "__main__":
    scores = play(100)
    print(f"mean return {scores.mean():.2f}, best {scores.max():.2f}, worst {scores.min():.2f}")
