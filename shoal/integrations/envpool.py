"""EnvPool's envs: `envpool:Pong-v5`. EnvPool steps all of them on threads of its own: no worker process is needed."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from shoal.errors import ConfigError, did_you_mean
from shoal.integrations.framework import Framework, Reference, can_load
from shoal.spec import Layout
from shoal.vector.actions import checked_actions, leaf_spaces
from shoal.vector.base import check_seeds
from shoal.vector.foreign import ForeignVec

NOT_INFOS = ("env_id", "players", "reward", "terminated", "ram")  # that are no infos of one env, or large
QT = "apt-get install libqt5core5a libqt5gui5"


class EnvPool(Framework):
    """All ids of the envpool package. A batch is one pool."""

    title = "EnvPool's C++ envs: Atari, MuJoCo, Procgen, MiniGrid, ViZDoom, board games, on its own threads"
    packages = {"envpool": "envpool>=1.2"}
    extra = "envpool"
    example = "CartPole-v1"
    pattern = "ID"
    preprocessing = "EnvPool's own: Atari has 84x84 grey, skip 4, stack 4, up to 30 no-ops"
    is_vectorized = True
    can_render = False
    vec_options = ("num_threads",)
    options = {"vec": {"num_envs": 64}}
    references = (
        Reference("Pong-v5", 20.45, "PPO, 10M steps, 3 seeds", "CleanRL docs, ppo_atari_envpool.py"),
        Reference("Breakout-v5", 211.2, "PPO, 10M steps, +- 152 over 3 seeds", "CleanRL docs, ppo_atari_envpool.py"),
    )
    notes = (
        "A step after the end of an episode is its reset (Gymnasium's NEXT_STEP): such rows are not learned from.",
        "Seeds are given to EnvPool when the envs are made, so a seeded reset makes them anew.",
        f"Procgen's envs need Qt: {QT}.",
        "Params are the settings of `envpool.make`: `--env.frame-skip 1`; `num_threads` is the number of its threads.",
    )

    def names(self) -> list[str]:
        """Every id that can be made here, with one player."""
        return [id for id in self.known() if not unfit(id)]

    def known(self) -> list[str]:
        """Every id."""
        import envpool

        return sorted(envpool.list_all_envs())

    def params(self, name: str) -> dict[str, str] | None:
        """Those of `envpool.make`, which differ by env: they are known when it is made."""
        return None

    def check_params(self, name: str, given: Any) -> None:
        """EnvPool checks them when the env is made."""

    def make(self, name: str, **params: Any) -> Any:
        """Not called: a batch is one pool."""
        raise ConfigError("envpool's envs are made all at once. Use shoal.make.")

    def make_vec(
        self, name: str, num_envs: int, *, seed: int | None, autoreset: str, render_mode: str | None, **params: Any
    ) -> ForeignVec:
        """`num_envs` envs as one pool."""
        if problem := unfit(name):
            raise ConfigError(f"envpool:{name} {problem}.")
        if autoreset == "disabled" and num_envs > 1:
            raise ConfigError("autoreset='disabled' is not for envpool's envs: they reset with the next step.")
        return PoolVec(Pool(name, num_envs, seed, {**params, "render_mode": render_mode} if render_mode else params))


def unfit(id: str) -> str:
    """Why no env of an id can be made here, and what to do; empty if nothing is wrong."""
    import envpool
    from envpool.registration import registry

    family = str(registry.specs[id][0])
    if family == "envpool.vizdoom" and re.match("VizdoomCustom|Cig|Multi", id):  # the last two end the process
        return "needs a scenario of yours, or other players. Use vizdoom:"
    if family == "envpool.procgen" and not can_load("libQt5Core.so.5"):
        return f"needs Qt. Install it: {QT}"
    if family in ("envpool.pgx", "envpool.highway"):  # those that have games of several players
        players = int(envpool.make_spec(id).config.max_num_players)
        if players > 1:
            return f"has {players} players; only ids of one are supported. Games of several: openspiel:, jax:pgx/"
    puzzles = {"Sudoku-v0": "10000_mixed_puzzles.npy", "Sudoku-very-easy-v0": "1000_very_easy_puzzles.npy"}
    file = puzzles.get(id.removeprefix("Jumanji/"))
    spec = importlib.util.find_spec("envpool_assets") if file else None
    if file and spec is not None:
        folder = Path(next(iter(spec.submodule_search_locations or ())), "jumanji", "assets", "sudoku")
        if not (folder / file).is_file():
            return f"needs {file}, which the package envpool_assets does not have. Put it into {folder}"
    return ""


def mend(space: Any) -> Any:
    """A space whose bounds are infinite where EnvPool gives the smallest and the largest number of a type."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: mend(part) for key, part in space.spaces.items()})
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return space
    limits = np.finfo(space.dtype)
    low = np.where((space.low == limits.tiny) | (space.low == limits.min), -np.inf, space.low).astype(space.dtype)
    high = np.where(space.high == limits.max, np.inf, space.high).astype(space.dtype)
    return spaces.Box(low, high, space.shape, space.dtype.type)


class Pool:
    """A pool with the methods of a gymnasium.vector.VectorEnv."""

    def __init__(self, name: str, num_envs: int, seed: int | None, params: dict[str, Any]) -> None:
        self.name, self.num_envs, self.params = name, num_envs, params
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = params.get("render_mode")
        self._seed: Any = seed
        self._is_new = True
        self._make()
        with warnings.catch_warnings():  # on bounds that it gives as 64-bit numbers
            warnings.simplefilter("ignore")
            self.single_observation_space = mend(self.pool.observation_space)
            self.single_action_space = mend(self.pool.action_space)
        self._layout = Layout(self.single_action_space)
        self._spaces = leaf_spaces(self.single_action_space)
        self._dtype = np.int32 if self.single_action_space.dtype is not None and self._is_discrete() else None

    def _is_discrete(self) -> bool:
        return bool(self._layout.is_one_array and np.dtype(self._layout.leaves[0].dtype).kind in "iu")

    def _make(self) -> None:
        import envpool

        seeds: dict[str, Any] = {}
        if self._seed is not None:
            seeds["env_seed"] = [int(value % 2**31) for value in check_seeds(self._seed, self.num_envs)]
        else:
            seeds["seed"] = int(np.random.SeedSequence().generate_state(1)[0] % 2**31)
        try:
            self.pool = envpool.make_gymnasium(self.name, num_envs=self.num_envs, **seeds, **self.params)
        except (TypeError, ValueError, AssertionError, RuntimeError, ImportError) as error:
            if refused := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
                known = envpool.make_spec(self.name).config._fields
                own = sorted(set(known) - {"num_envs", "seed", "env_seed", "batch_size", "gym_reset_return_info"})
                raise ConfigError(
                    f"envpool:{self.name} has no param '{refused[1]}'.{did_you_mean(refused[1], own)} It has "
                    f"{', '.join(own)}."
                ) from error
            raise ConfigError(f"envpool:{self.name} cannot be made: {error}") from error
        self._is_new = True

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts episodes in all envs. A seed makes the pool anew: EnvPool takes seeds only then."""
        if options and "reset_mask" in options:
            raise ConfigError("options['reset_mask'] is not for envpool's envs: a pool resets all of them.")
        is_same = self._is_new and np.array_equal(np.asarray(seed), np.asarray(self._seed))
        if seed is not None and not is_same:
            self._seed = seed
            self.pool.close()
            self._make()
        self._is_new = False
        obs, infos = self.pool.reset()
        return obs, self._infos(infos)

    def step(self, actions: Any) -> Any:
        """One transition of every env; where an episode ended before, its reset."""
        leaves = [
            checked_actions(actions, leaf, space, self.num_envs)
            for leaf, space in zip(self._layout.leaves, self._spaces)
        ]
        checked = np.ascontiguousarray(leaves[0], self._dtype or self._layout.leaves[0].dtype)
        obs, rewards, terminated, truncated, infos = self.pool.step(checked)
        return obs, rewards, terminated, truncated & ~terminated, self._infos(infos)

    def _infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        present = np.ones(self.num_envs, np.bool_)
        rest = {k: v for k, v in infos.items() if isinstance(v, np.ndarray) and k not in NOT_INFOS}
        return {**rest, **{f"_{key}": present for key in rest}}

    def render(self) -> Any:
        """Frames of all envs."""
        return self.pool.render(env_ids=list(range(self.num_envs)))

    def close(self, **kwargs: Any) -> None:
        """Ends the pool's threads."""
        self.pool.close()


class PoolVec(ForeignVec):
    """A pool as a VecEnv."""

    backend = "envpool"


FRAMEWORK = EnvPool("envpool")
