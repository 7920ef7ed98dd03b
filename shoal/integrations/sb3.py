"""Shoal's envs in Stable-Baselines3: `ShoalVecEnv(shoal.make(…))` is a VecEnv for its algorithms and wrappers.

    model = stable_baselines3.PPO("MlpPolicy", ShoalVecEnv(shoal.make("cartpole", 64)))

The info of a row whose episode ended has `terminal_observation`, `TimeLimit.truncated` and `episode`, so VecMonitor is
not needed. Only one line of Python runs for every env in a step: the one that makes SB3's list of infos.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from shoal.errors import ConfigError, ShoalError
from shoal.spec import Array, map_leaves
from shoal.vector.base import VecEnv as ShoalVec
from shoal.vector.views import RowsEnv

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env.base_vec_env import VecEnv
except ImportError as error:
    raise ConfigError(
        f"shoal.integrations.sb3 needs Stable-Baselines3: {error}. Install it: pip install stable-baselines3"
    ) from error


class ShoalVecEnv(VecEnv):  # type: ignore[misc]
    """A Shoal VecEnv as SB3's. With several agents per env, every agent is one env of SB3's batch (a row).

    SB3 does not know agents that are out before their game ends: such a row is zeros, with `alive` False in its info,
    until its next game starts.
    """

    vec: Any
    reset_infos: list[dict[str, Any]]
    _seeds: list[Any]

    def __init__(self, vec: Any) -> None:
        vec = vec.vec if isinstance(vec, RowsEnv) else vec
        if not isinstance(vec, ShoalVec):
            raise ConfigError(f"ShoalVecEnv takes what shoal.make returns, not {type(vec).__name__}.")
        mode = vec.metadata["autoreset_mode"]
        if mode.name != "SAME_STEP":
            raise ConfigError(
                f"SB3 needs autoreset='same_step', not '{mode.value}'. Leave out autoreset: it is the default."
            )
        if vec.agents_per_env > 1:
            vec.rows()  # raises if agents have different spaces
        self.vec = vec
        self.agents, self._is_native = vec.agents_per_env, vec.native_spec is not None
        # infos that are handled separately; all others come from the env
        self._handled = {"final_obs", "final_info"}
        self._handled |= {"alive"} if self.agents > 1 else set()
        self._handled |= {"action_mask"} if self._is_native else set()
        self._is_copy = vec.copy
        self._actions: Any = None
        self._mask: Array | None = None  # of the last observations of native envs
        self._was_alive = np.ones(vec.num_rows, np.bool_)
        self._start = time.monotonic()
        super().__init__(vec.num_rows, vec.single_observation_space, vec.single_action_space)

    # ---- stepping ----

    def reset(self) -> Any:
        """Starts episodes, with the seeds and options that were set since the last reset."""
        options = self._options[0]
        if any(other != options for other in self._options):
            raise ConfigError(
                "set_options got different options for different envs. All envs of Shoal get the same ones."
            )
        seeds = None if self._seeds[0] is None else self._seeds[:: self.agents]
        obs, infos = self.vec.reset(seed=seeds, options=options or None)
        self._reset_seeds()
        self._reset_options()
        self._mask = infos.get("action_mask") if self._is_native else None
        if self.agents > 1:
            self._was_alive = infos["alive"].copy()
        self.reset_infos = [{} for _ in range(self.num_envs)]
        self._spread(infos, self.reset_infos)
        return self._copied(obs)

    def step_async(self, actions: Array) -> None:
        """Stores the actions. SB3 does nothing between this and `step_wait`, so `step_wait` does the whole step."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        """One transition of every env: (obs, rewards, dones, infos)."""
        obs, rewards, terminated, truncated, infos = self.vec.step(self._actions)
        rows: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        done = terminated | truncated
        self._mask = infos.get("action_mask") if self._is_native else None
        if infos:
            self._fill(rows, infos, done, truncated)
        return self._copied(obs), rewards if self._is_copy else rewards.copy(), done, rows

    def _fill(self, rows: list[dict[str, Any]], infos: dict[str, Any], done: Array, truncated: Array) -> None:
        """Copies Gymnasium's arrays into the dicts of their rows."""
        ended = begun = np.flatnonzero(done).tolist()
        if self.agents > 1:
            alive = infos["alive"]
            begun = np.flatnonzero(alive & (done | ~self._was_alive)).tolist()
            self._was_alive = alive.copy()
            for row in np.flatnonzero(~alive).tolist():
                rows[row]["alive"] = False
        targets = rows
        if begun:  # these infos belong to the reset; those of the last step are in final_info
            targets = rows.copy()
            for row in begun:
                self.reset_infos[row] = targets[row] = {}
        self._spread(infos, targets)
        if not ended:
            return
        last, elapsed = _taken(infos["final_obs"], ended), round(time.monotonic() - self._start, 6)
        for place, (row, final) in enumerate(zip(ended, _rows(infos["final_info"], ended))):
            if episode := final.get("episode"):
                final["episode"] = {"t": elapsed, **episode, "r": float(episode["r"]), "l": int(episode["l"])}
            final["TimeLimit.truncated"] = bool(truncated[row])
            final["terminal_observation"] = _part(last, place)
            rows[row] |= final

    def _spread(self, infos: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        """Adds every key that the envs report to the dicts of its rows."""
        for key, values in infos.items():
            mask = infos.get(f"_{key}")
            if key in self._handled or mask is None:
                continue
            reported = np.flatnonzero(mask).tolist()
            parts = _rows(values, reported) if isinstance(values, dict) else values[reported]
            for row, part in zip(reported, parts):
                rows[row][key] = part

    def _copied(self, obs: Any) -> Any:
        """A copy, unless it is one already: SB3 stores an observation after the next step, which overwrites views."""
        return obs if self._is_copy else _taken(obs, slice(None))

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """For the next reset: game i gets seed + i, for all of its agents."""
        super().seed(seed)
        first = self._seeds[0]
        self._seeds = [first + row // self.agents for row in range(self.num_envs)]
        return self._seeds

    def close(self) -> None:
        """Closes the envs."""
        self.vec.close()

    # ---- single envs ----

    def get_images(self) -> Sequence[Array | None]:
        """A frame for every row."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"render_mode is {self.render_mode!r}: make the env with render_mode='rgb_array' to get images.",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return [frame for frame in self.vec.render() for _ in range(self.agents)]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of every Python env; of native envs a param or a method of `env_method`."""
        rows = list(self._get_indices(indices))
        if attr_name == "render_mode":
            return [self.vec.render_mode] * len(rows)
        if not self._is_native:
            return self._call(rows, attr_name)
        params = self.vec.get_params()
        if attr_name in params:
            return [params[attr_name][row // self.agents].item() for row in rows]
        return self.env_method(attr_name, indices=rows)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets an attribute of Python envs, or a param of native envs. The agents of a game share it."""
        games = sorted({row // self.agents for row in self._get_indices(indices)})
        if not self._is_native:
            self.vec.set_attr(attr_name, [value] * len(games), games)
            return
        params = self.vec.get_params()
        if attr_name not in params:
            raise AttributeError(f"{self.vec.native_spec.name} has no param {attr_name!r}. It has {', '.join(params)}.")
        params[attr_name][games] = value
        self.vec.set_params(**{attr_name: params[attr_name]})

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Calls a method of Python envs. Native envs have `render` and, with action masks, `action_masks`."""
        rows = list(self._get_indices(indices))
        if method_name == "action_masks" and self._mask is not None:  # called by sb3-contrib's MaskablePPO
            return list(self._mask[rows].astype(np.bool_))
        if not self._is_native:
            return self._call(rows, method_name, *method_args, **method_kwargs)
        if method_name == "render":
            return [self.vec.frame(row // self.agents) for row in rows]
        raise AttributeError(f"{self.vec.native_spec.name} is a native env and has no {method_name!r}.")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Whether envs have a wrapper of that name. True for SB3's Monitor, whose work Shoal does."""
        rows = list(self._get_indices(indices))
        if wrapper_class is Monitor:
            return [True] * len(rows)
        if self._is_native:
            return [False] * len(rows)
        return [wrapper_class.__name__ in re.findall(r"<(\w+)", text) for text in self._call(rows, "__str__")]

    def _call(self, rows: Iterable[int], name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Calls Python envs, each game once, and returns the result for each of the given rows."""
        games = [row // self.agents for row in rows]
        unique = sorted(set(games))
        try:
            answers = dict(zip(unique, self.vec.call(name, *args, env_ids=unique, **kwargs)))
        except ShoalError as error:
            if f"has no attribute {name!r}" in str(error):  # SB3's has_attr expects AttributeError
                raise AttributeError(f"the envs have no attribute {name!r}.") from error
            raise
        return [answers[game] for game in games]


# ---- single rows of Gymnasium's dict of arrays; `_key` is the mask of rows that have `key` ----


def _rows(infos: dict[str, Any], rows: list[int]) -> list[dict[str, Any]]:
    """Some rows of infos as dicts. Reads column by column: one NumPy index per key, not per key and row."""
    dicts: list[dict[str, Any]] = [{} for _ in rows]
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None:
            continue
        parts = _rows(values, rows) if isinstance(values, dict) else values[rows]
        for info, part, holds in zip(dicts, parts, mask[rows].tolist()):
            if holds:
                info[key] = part
    return dicts


def _taken(obs: Any, rows: Any) -> Any:
    """A copy of some rows of an observation of any structure."""
    return map_leaves(lambda part: part[rows].copy() if isinstance(rows, slice) else part[rows], obs)


def _part(obs: Any, row: int) -> Any:
    """One row of an observation of any structure."""
    return map_leaves(itemgetter(row), obs)
