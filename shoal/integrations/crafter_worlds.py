"""Crafter's worlds in a tenth of the time: all noise at once in C, cells that need no random number at once in NumPy.

`generate` does what `crafter.worldgen.generate_world` does, with the same random numbers in the same order: a seed has
the same world, the same creatures and the same future.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.integrations.framework import import_quietly
from shoal.native import lib
from shoal.spec import Array


def make_env(**options: Any) -> Any:
    """A `crafter.Env` that does the same in less time. Its infos hold achievements and discount alone."""
    base: Any = import_quietly(
        "crafter"
    ).Env  # quietly: it imports gym, where that is installed, which prints a warning
    from crafter import constants, objects

    class Env(base):  # type: ignore[misc]
        def reset(self) -> Array:
            """As that of crafter.Env."""
            world = self._world
            self._episode += 1
            self._step = 0
            world.reset(seed=hash((self._seed, self._episode)) % (2**31 - 1))
            self._update_time()
            self._player = player = objects.Player(world, (world.area[0] // 2, world.area[1] // 2))
            self._last_health = self._player.health
            world.add(player)
            self._unlocked: set[str] = set()
            generate(world, player)
            frame: Array = self._obs()
            return frame

        def step(self, action: int) -> tuple[Array, float, bool, dict[str, Any]]:
            """As that of crafter.Env, which computes the distance of every creature in arrays of two numbers."""
            world, player, seen = self._world, self._player, 2 * max(self._view.tolist())
            self._step += 1
            self._update_time()
            player.action = constants.actions[action]
            for thing in world.objects:
                (x, y), (own_x, own_y) = thing.pos.tolist(), player.pos.tolist()
                if abs(x - own_x) + abs(y - own_y) < seen:
                    thing.update()
            if self._step % 10 == 0:
                for chunk, things in world.chunks.items():
                    self._balance_chunk(chunk, things)
            frame = self._obs()
            reward = (player.health - self._last_health) / 10
            self._last_health = player.health
            unlocked = {name for name, count in player.achievements.items() if count > 0} - self._unlocked
            if unlocked:
                self._unlocked |= unlocked
                reward += 1.0
            is_dead = player.health <= 0
            is_over = bool(self._length and self._step >= self._length)
            info = {"achievements": player.achievements.copy(), "discount": 1 - float(is_dead)}
            return frame, reward if self._reward else 0.0, is_dead or is_over, info

    return Env(**options)


class Noise:
    """OpenSimplex noise on a grid of cells."""

    def __init__(self, seed: int, area: tuple[int, int]) -> None:
        from opensimplex import OpenSimplex

        made = OpenSimplex(seed=seed)
        self.perm, self.starts = (
            np.ascontiguousarray(table, np.int64) for table in (made._perm, made._perm_grad_index3)
        )
        self.x, self.y = (
            np.ascontiguousarray(axis, np.float64) for axis in np.meshgrid(*map(np.arange, area), indexing="ij")
        )
        self.core = lib.load_core()

    def at(self, z: float, sizes: int | Mapping[int, float], x_scale: float = 1, y_scale: float = 1) -> Array:
        """`worldgen._simplex` of all cells, without the division by the sum of weights."""
        total: Any = 0
        for size, weight in (sizes if isinstance(sizes, Mapping) else {sizes: 1}).items():
            x, y, out = self.x * x_scale / size, self.y * y_scale / size, np.empty_like(self.x)
            addresses = [array.ctypes.data for array in (self.perm, self.starts, x, y)]
            self.core.simplex(*addresses, z, out.size, out.ctypes.data)
            total = total + weight * out
        found: Array = total
        return found


class Draws:
    """Numbers of a RandomState one by one: drawn at once, and as many as were used are taken from it."""

    def __init__(self, random: Any, most: int) -> None:
        self.random, self.state = random, random.get_state()
        self.numbers, self.used = random.random_sample(most).tolist(), 0

    def next(self) -> float:
        """As `random.uniform()`."""
        self.used += 1
        number: float = self.numbers[self.used - 1]
        return number

    def end(self) -> None:
        """Leaves the RandomState as it would be."""
        self.random.set_state(self.state)
        self.random.random_sample(self.used)


def generate(world: Any, player: Any) -> None:
    """Fills a world that has been reset with materials and creatures."""
    noise = Noise(world.random.randint(0, 2**31 - 1), world.area)
    distance = np.sqrt((noise.x - player.pos[0]) ** 2 + (noise.y - player.pos[1]) ** 2)
    tunnels = _set_materials(world, noise, distance)
    _add_creatures(world, player, tunnels, distance)


def _set_materials(world: Any, noise: Noise, distance: Array) -> Array:
    """Writes the material of every cell. Returns which cells are tunnels."""
    ids = world._mat_ids
    start = 4 - distance + 2 * noise.at(8, 3)
    start = 1 / (1 + np.exp(-start))
    water = noise.at(3, {15: 1, 5: 0.15}) + 0.1 - 2 * start
    mountain = noise.at(0, {15: 1, 5: 0.3}) / 1.3 - (4 * start + 0.3 * water)
    is_open = start <= 0.5
    is_rock = is_open & (mountain > 0.15)
    is_cave = is_rock & (noise.at(6, 7) > 0.15) & (mountain > 0.3)
    tunnels: Array = is_rock & ~is_cave & ((noise.at(7, 3, 2, 1 / 5) > 0.4) | (noise.at(7, 3, 1 / 5, 2) > 0.4))
    is_plain = is_open & ~is_rock
    is_sand = is_plain & (water > 0.25) & (water <= 0.35) & (noise.at(4, 9) > -0.2)
    is_water = is_plain & ~is_sand & (water > 0.3)
    is_grassland = is_plain & ~is_sand & ~is_water
    is_stone = is_rock & ~is_cave & ~tunnels
    found = np.full(world.area, ids["grass"], np.uint8)
    found[is_cave | tunnels] = ids["path"]
    found[is_sand], found[is_water] = ids["sand"], ids["water"]
    found[is_stone] = np.where((mountain > 0.3) & (noise.at(6, 5) > 0.35), ids["lava"], ids["stone"])[is_stone]
    # the cells that draw numbers, in order: each may become something rare
    may_be = [noise.at(1, 8) > 0, noise.at(2, 6) > 0.4, mountain > 0.18]
    coal, iron, diamond = ((is_stone & where).ravel().tolist() for where in may_be)
    tree = (is_grassland & (noise.at(5, 7) > 0)).ravel().tolist()
    draws, flat = Draws(world.random, 3 * found.size), found.reshape(-1)
    for cell in np.flatnonzero(is_stone | is_grassland).tolist():
        if tree[cell]:
            if draws.next() > 0.8:
                flat[cell] = ids["tree"]
        elif coal[cell] and draws.next() > 0.85:
            flat[cell] = ids["coal"]
        elif iron[cell] and draws.next() > 0.75:
            flat[cell] = ids["iron"]
        elif diamond[cell] and draws.next() > 0.994:
            flat[cell] = ids["diamond"]
    draws.end()
    world._mat_map[:] = found
    return tunnels


def _add_creatures(world: Any, player: Any, tunnels: Array, distance: Array) -> None:
    from crafter import constants, objects

    ids, cells = world._mat_ids, world._mat_map
    walkable = np.isin(cells, [ids[name] for name in constants.walkable])
    cow = ((cells == ids["grass"]) & (distance > 3)).ravel().tolist()
    zombie = (distance > 10).ravel().tolist()
    skeleton = ((cells == ids["path"]) & tunnels).ravel().tolist()
    draws, width = Draws(world.random, 3 * cells.size), world.area[1]
    added: list[tuple[Any, ...]] = []
    for cell in np.flatnonzero(walkable).tolist():
        if cow[cell] and draws.next() > 0.985:
            added.append((objects.Cow, cell))
        elif zombie[cell] and draws.next() > 0.993:
            added.append((objects.Zombie, cell, player))
        elif skeleton[cell] and draws.next() > 0.95:
            added.append((objects.Skeleton, cell, player))
    draws.end()
    for kind, cell, *rest in added:
        world.add(kind(world, divmod(cell, width), *rest))
