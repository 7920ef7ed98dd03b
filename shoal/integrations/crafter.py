"""Crafter: `crafter:Reward`. Survival in a 2-D world with 22 achievements."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.integrations.framework import Framework, Reference
from shoal.spec import Array


class Crafter(Framework):
    """The two envs of the package: with and without its reward."""

    title = "survival in a 2-D world, 22 achievements"
    packages = {"crafter": "crafter>=1.8"}
    extra = "crafter"
    example = "Reward"
    stem = "Crafter"
    pattern = "Reward or NoReward"
    preprocessing = "64x64 pixels in colour"
    network = "NatureCNN, 512"
    options = {
        "train": {  # those of PPO in Moon et al. 2023 (arXiv 2307.03486), whose network is larger
            "total_steps": 1_000_000,
            "horizon": 256,
            "epochs": 3,
            "minibatches": 8,
            "learning_rate": 3e-4,
            "gamma": 0.95,
            "gae_lambda": 0.65,
            "clip": 0.2,
            "entropy_coef": 0.01,
            "normalize_obs": False,
            "normalize_reward": False,
        },
        "vec": {"num_envs": 16},
        "nn": {"encoder": "nature"},
        "eval": {"greedy": False},
    }
    references = (
        Reference("Reward", 4.6, "PPO, 1M steps: score in % (geometric mean of success rates)", "Hafner 2021, table 1"),
    )
    notes = (
        "The infos of an episode's last step have `achievements`, the number unlocked, and `unlocked/NAME` of each.",
        "`--env.stats FILE` appends a line of JSON for each episode, in the form of crafter.Recorder: the score is the "
        "geometric mean of success rates over the episodes of training.",
        "Stock env `craftax_classic` is the same game in C, a thousand times faster.",
    )

    def names(self) -> list[str]:
        """With and without reward."""
        return ["NoReward", "Reward"]

    def make(
        self, name: str, *, render_mode: str | None = None, size: int = 64, length: int = 10_000, stats: str = ""
    ) -> Any:
        """One world. size: pixels a side; length: the time limit in steps; stats: a file for the episodes' facts."""
        if stats and not Path(stats).parent.is_dir():
            raise ConfigError(f"crafter:{name}: stats={stats}: there is no folder {Path(stats).parent}. Make it first.")
        return World(render_mode, size, length, name == "Reward", stats)


class World(gymnasium.Env[Any, Any]):
    """Crafter with today's API: seeds, truncation by its time limit, and infos at the end of episodes alone."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None, size: int, length: int, has_reward: bool, stats: str) -> None:
        import crafter

        quicken_worlds()
        self.render_mode, self.stats = render_mode, stats
        self._return, self._length = 0.0, 0
        self.world = crafter.Env(size=(size, size), length=length, reward=has_reward, seed=0)
        self.world._sem_view = lambda: None  # an info that nobody reads here
        keep_order(self.world._world)
        quicken_views(self.world)
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = spaces.Discrete(len(self.world.action_names))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """Starts a life. Worlds follow from the seed and the number of the episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.world._seed, self.world._episode = seed, 0
        self._return, self._length = 0.0, 0
        return self.world.reset(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One step."""
        obs, reward, done, info = self.world.step(int(action))
        self._return, self._length = self._return + float(reward), self._length + 1
        if not done:
            return obs, float(reward), False, False, {}
        is_dead = info["discount"] == 0.0
        unlocked = {f"unlocked/{name}": float(count > 0) for name, count in info["achievements"].items()}
        infos = {"achievements": sum(unlocked.values()), **unlocked}
        if self.stats:
            counts = {f"achievement_{name}": int(count) for name, count in info["achievements"].items()}
            line = json.dumps({"length": self._length, "reward": round(self._return, 1), **counts}) + "\n"
            with open(self.stats, "ab", buffering=0) as file:  # one write: workers do not mix their lines
                file.write(line.encode())
        return obs, float(reward), is_dead, not is_dead, infos

    def render(self) -> Any:
        """The view at 400x400 pixels."""
        return self.world.render((400, 400)) if self.render_mode == "rgb_array" else None


class Bag(dict[Any, None]):
    """A set that is read in the order of its additions."""

    def add(self, item: Any) -> None:
        """Adds at the end."""
        self[item] = None

    def remove(self, item: Any) -> None:
        """Removes."""
        del self[item]


def keep_order(grid: Any) -> None:
    """Lets a seed decide which creatures vanish: Crafter draws from sets, whose order is that of memory addresses."""
    reset = grid.reset

    def reset_in_order(seed: int | None = None) -> None:
        reset(seed)
        grid._chunks = defaultdict(Bag)

    grid.reset = reset_in_order


def quicken_views(env: Any) -> None:
    """Lets Crafter draw the same frames in less time: all cells at once, and the inventory only when it changes."""
    from crafter.engine import LocalView, _draw_alpha

    grid, textures, seen, items = env._world, env._textures, env._local_view, env._item_view
    tables: dict[tuple[int, int], Array] = {}  # by the size of a cell: the texture of every material
    shown: dict[Any, Array] = {}

    def table(unit: tuple[int, int]) -> Array:
        if len(tables.get(unit, ())) != len(grid._mat_names) + 1:
            names = [grid._mat_names[k] for k in range(len(grid._mat_names))]
            cells = [textures.get(name, unit)[..., :3] for name in names]
            tables[unit] = np.stack([*cells, np.full_like(cells[0], 127)])  # the last: outside the world
        return tables[unit]

    class View(LocalView):  # type: ignore[misc]
        def __call__(self, player: Any, unit: Any) -> Array:
            width, height = int(unit[0]), int(unit[1])
            across, down = (int(value) for value in self._grid)
            corner = player.pos - self._offset
            left, top = (int(value) for value in corner)
            low, high = np.maximum(corner, 0), np.minimum(corner + self._grid, self._area)
            region = slice(low[0], high[0]), slice(low[1], high[1])
            ids = np.full((across, down), len(grid._mat_names), np.intp)
            ids[low[0] - left : high[0] - left, low[1] - top : high[1] - top] = grid._mat_map[region]
            cells = table((width, height))[ids]  # (across, down, width, height, 3)
            canvas = np.ascontiguousarray(cells.transpose(0, 2, 1, 3, 4)).reshape(across * width, down * height, 3)
            for index in grid._obj_map[region].ravel().tolist():
                if index:
                    item = grid._objects[index]
                    _draw_alpha(canvas, (item.pos - corner) * unit, textures.get(item.texture, unit))
            lit: Array = self._light(canvas, grid.daylight)
            asleep: Array = self._sleep(lit) if player.sleeping else lit
            return asleep

    def show_items(inventory: Any, unit: Any) -> Array:
        key = (*inventory.items(), int(unit[0]), int(unit[1]))
        if key not in shown:
            if len(shown) > 256:
                shown.clear()
            shown[key] = items(inventory, unit)
        return shown[key]

    env._local_view = View(grid, textures, seen._grid)
    env._item_view = show_items


def quicken_worlds() -> None:
    """Lets Crafter make the same worlds five times as fast: nine tenths of the time are noise of OpenSimplex.

    Without numba, OpenSimplex computes single numbers from NumPy arrays, which lists and tuples are faster for. Its own
    function runs on them, in a copy that has other globals; OpenSimplex itself stays as it is.
    """
    from crafter import worldgen
    from opensimplex import OpenSimplex, internals

    noise = internals._noise3
    if isinstance(worldgen.opensimplex, SimpleNamespace) or not isinstance(noise, FunctionType):
        return  # done before, or compiled by numba
    table: list[int] = internals.GRADIENTS3.tolist()
    gradients = {k: tuple(table[k : k + 3]) for k in range(0, len(table), 3)}

    def extrapolate(
        perm: Any, starts: Any, xsb: int, ysb: int, zsb: int, dx: float, dy: float, dz: float
    ) -> float:  # internals._extrapolate3
        a, b, c = gradients[starts[(perm[(perm[xsb & 0xFF] + ysb) & 0xFF] + zsb) & 0xFF]]
        return a * dx + b * dy + c * dz

    quick = FunctionType(noise.__code__, {**vars(internals), "_extrapolate3": extrapolate})

    class Simplex(OpenSimplex):  # type: ignore[misc]
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            self._lists = self._perm.tolist(), self._perm_grad_index3.tolist()

        def noise3(self, x: float, y: float, z: float) -> float:
            return float(quick(x, y, z, *self._lists))

    worldgen.opensimplex = SimpleNamespace(OpenSimplex=Simplex)


FRAMEWORK = Crafter("crafter")
