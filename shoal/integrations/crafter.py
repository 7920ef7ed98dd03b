"""Crafter: `crafter:Reward`. Survival in a 2-D world with 22 achievements."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.integrations.crafter_worlds import make_env
from shoal.integrations.framework import Framework, Reference
from shoal.spec import Array

NIGHT = np.array((0, 16, 64))  # a dark blue


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
        "Stock env `craftax_classic` has nearly the same rules, in C, and shows symbols in place of pixels.",
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
        self.render_mode, self.stats = render_mode, stats
        self._return, self._length = 0.0, 0
        self.world = make_env(size=(size, size), length=length, reward=has_reward, seed=0)
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


def by_day_and_night(cell: Array) -> Array:
    """(2, width, height, 3) floats: a picture, and what Crafter's `_light` mixes it with at night."""
    from PIL import Image, ImageEnhance

    grey = np.array(ImageEnhance.Color(Image.fromarray(cell)).enhance(0.4))
    return np.stack([cell.astype(np.float64), (1 - 0.5) * grey + 0.5 * NIGHT])


def quicken_views(env: Any) -> None:
    """Lets Crafter draw the same frames in less time: all cells at once, and the inventory only when it changes.

    At night the view is greyer and bluer. As long as there is no noise in it, that is a property of each cell.
    """
    from crafter.engine import LocalView, _draw_alpha

    grid, textures, seen, items = env._world, env._textures, env._local_view, env._item_view
    tables: dict[tuple[int, int], Array] = {}  # by the size of a cell: every material by day and by night
    drawn: dict[Any, Array] = {}  # the same of a creature on a material
    shown: dict[Any, Array] = {}

    def table(unit: tuple[int, int]) -> Array:
        if len(tables.get(unit, ())) != len(grid._mat_names) + 1:
            names = [grid._mat_names[k] for k in range(len(grid._mat_names))]
            cells = [textures.get(name, unit)[..., :3] for name in names]
            cells.append(np.full_like(cells[0], 127))  # outside the world
            tables[unit] = np.stack([by_day_and_night(cell) for cell in cells])
        return tables[unit]

    def creature(texture: str, material: int, unit: tuple[int, int]) -> Array:
        key = texture, material, unit
        if key not in drawn:
            cell = table(unit)[material, 0].astype(np.uint8)
            _draw_alpha(cell, (0, 0), textures.get(texture, np.array(unit)))
            drawn[key] = by_day_and_night(cell)
        return drawn[key]

    class View(LocalView):  # type: ignore[misc]
        def __call__(self, player: Any, unit: Any) -> Array:
            width, height = size = int(unit[0]), int(unit[1])
            across, down = (int(value) for value in self._grid)
            left, top = (player.pos - self._offset).tolist()
            first, last = max(left, 0), min(left + across, grid.area[0])
            upper, lower = max(top, 0), min(top + down, grid.area[1])
            region = slice(first, last), slice(upper, lower)
            ids = np.full((across, down), len(grid._mat_names), np.intp)
            ids[first - left : last - left, upper - top : lower - top] = grid._mat_map[region]
            cells = table(size)[ids]  # (across, down, 2, width, height, 3)
            here = grid._obj_map[region]
            for x, y in zip(*(axis.tolist() for axis in here.nonzero())):
                item = grid._objects[here[x, y]]
                place = x + first - left, y + upper - top
                cells[place] = creature(item.texture, int(ids[place]), size)
            shape = 2, across * width, down * height, 3
            canvas, night = np.ascontiguousarray(cells.transpose(2, 0, 3, 1, 4, 5)).reshape(shape)
            daylight = float(grid.daylight)
            if daylight < 0.5:
                lit: Array = self._light(canvas.astype(np.uint8), daylight)
            else:
                lit = daylight * canvas + (1 - daylight) * night
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


FRAMEWORK = Crafter("crafter")
