"""Gym-microRTS: a small real-time strategy game, `microrts:8x8/basesWorkers8x8`. Needs Java.

It runs in an environment of its own: `shoal env add microrts`. An action chooses for every cell of the map what a unit
there does; masks leave the cells without a unit of one's own one choice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ConfigError, did_you_mean
from shoal.integrations.framework import import_quietly
from shoal.integrations.separate import Box, MultiDiscrete, Separate
from shoal.layout import Array

# win or loss, resources, workers, buildings, attacks, combat units: the weights of Huang et al. 2021
WEIGHTS = (10.0, 1.0, 1.0, 0.2, 1.0, 4.0)
COLORS = np.array([(90, 160, 90), (70, 110, 230), (220, 70, 60)], np.float64)  # of no player, the own, the other
SHADES = np.array([0.2, 0.6, 0.6, 0.7, 0.9, 1.0, 1.0, 1.0])  # nothing, resource, base, barracks, worker and fighters
CELL = 16  # pixels


class MicroRTS(Separate):
    """One player against a scripted opponent, on the maps of gym-microrts."""

    title = "a real-time strategy game on small maps, against scripted opponents"
    packages = {"gym_microrts": "gym-microrts==0.6.0", "jpype": "JPype1", "numpy": "numpy<2"}
    programs = {"java": "apt-get install openjdk-17-jre-headless"}
    install = (
        "pip install --ignore-requires-python --no-deps gym-microrts==0.6.0",
        "pip install gym==0.26.2 'numpy<2' JPype1 peewee pillow pyglet",
    )
    python = ">=3.9,<3.12"
    timeout_s = 180.0  # it starts Java
    example = "8x8/basesWorkers8x8"
    pattern = "MAP"
    preprocessing = "planes of 0 and 1; invalid actions masked; rewards weighted as in Huang et al. 2021"
    notes = (
        "gym-microrts 0.6.0 declares Python < 3.10; it runs on 3.11.",
        "Some opponents draw from Java's own random numbers: runs with the same seed can then differ.",
    )

    def listed(self) -> list[str]:
        """The maps, without `.xml`."""
        root = _maps()
        return sorted(str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.xml"))

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        opponent: str = "coacAI",
        max_steps: int = 2000,
        partial_obs: bool = False,
    ) -> Any:
        """One game."""
        import_quietly("gym")
        from gym_microrts import microrts_ai

        known = sorted(word for word, value in vars(microrts_ai).items() if callable(value))
        if opponent not in known:
            raise ConfigError(
                f"microrts has no opponent {opponent!r}.{did_you_mean(opponent, known)} It has {', '.join(known)}."
            )
        return Game(f"maps/{name}.xml", getattr(microrts_ai, opponent), max_steps, partial_obs)


def _maps() -> Path:
    import importlib.util

    spec = importlib.util.find_spec("gym_microrts")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "microrts" / "maps"


class Game:
    """One game with the API of gymnasium.Env. Java starts the next game by itself when one ends."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, map_path: str, opponent: Any, max_steps: int, partial_obs: bool) -> None:
        import_quietly("gym")
        from gym_microrts.envs.vec_env import MicroRTSGridModeVecEnv

        self.env = MicroRTSGridModeVecEnv(
            num_selfplay_envs=0,
            num_bot_envs=1,
            partial_obs=partial_obs,
            max_steps=max_steps,
            ai2s=[opponent],
            map_paths=[map_path],
            reward_weight=np.array(WEIGHTS),
        )
        height, width, planes = self.env.observation_space.shape
        self.observation_space = Box(0, 1, (planes, height, width), np.uint8)
        self.action_space = MultiDiscrete(self.env.action_space.nvec)
        dims = self.env.action_space_dims
        self._starts = np.concatenate([[0], np.cumsum(dims)[:-1]])  # of the choices of each part of a cell's action
        self.max_steps, self.tick = max_steps, 0
        self._obs: Array = np.zeros(self.observation_space.shape, np.uint8)
        self._next: Array | None = None  # the first observation of a game that Java has started

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Starts a game."""
        self.tick = 0
        self._obs = self._planes(self.env.reset()) if self._next is None or seed is not None else self._next
        self._next = None
        return self._obs, {"action_mask": self._mask()}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One transition. After the last one Java shows the next game: the last observation is the one before."""
        self.tick += 1
        obs, rewards, dones, infos = self.env.step(np.asarray(action)[None])
        done = bool(dones[0])
        is_won_or_lost = bool(infos[0]["raw_rewards"][0])
        info: dict[str, Any] = {"won": float(infos[0]["raw_rewards"][0] > 0)} if done else {}
        if done:
            self._next = self._planes(obs)
        else:
            self._obs = self._planes(obs)
            info["action_mask"] = self._mask()
        is_cut = done and not is_won_or_lost and self.tick >= self.max_steps
        return self._obs, float(rewards[0]), done and not is_cut, is_cut, info

    def _planes(self, obs: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(obs[0].astype(np.uint8), -1, 0))

    def _mask(self) -> Array:
        """(cells * choices,) bool. A part without a choice may only take its first."""
        mask: Array = self.env.get_action_mask()[0].astype(np.bool_)  # (cells, choices)
        counts = np.add.reduceat(mask, self._starts, axis=1)
        cells, parts = np.nonzero(counts == 0)
        mask[cells, self._starts[parts]] = True
        return mask.reshape(-1)

    def render(self) -> Array:
        """The map as pixels, drawn here: Java's own drawing needs a display. Units are brighter than buildings."""
        players, units = (self._plane_of(part) for part in (2, 3))
        cells = COLORS[players] * SHADES[np.minimum(units, len(SHADES) - 1)][..., None]
        return np.kron(cells, np.ones((CELL, CELL, 1))).astype(np.uint8)

    def _plane_of(self, part: int) -> Array:
        """(height, width): which plane of a part of the observation is set: 2 the owner, 3 the type of a unit."""
        starts = self.env.num_planes_prefix_sum
        plane: Array = self._obs[starts[part] : starts[part + 1]].argmax(0)
        return plane

    def close(self) -> None:
        """Does nothing: Java ends with the process, and other games share it."""


FRAMEWORK = MicroRTS("microrts")
