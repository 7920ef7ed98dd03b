"""Adapts any vector env of a PufferLib user to a VecEnv for Shoal's trainer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv

from shoal.errors import BadOutput
from shoal.puffer import adapt, core
from shoal.puffer.env import PufferEnv, Wrapper
from shoal.puffer.exceptions import APIUsageError
from shoal.puffer.ocean import OceanEnv
from shoal.puffer.vectorization import Infos
from shoal.spec import Array, Layout, structure
from shoal.vector.base import VecEnv

Info = dict[str, Any]


def vec_for(env: Any) -> tuple[Any, Any]:
    """(the VecEnv for the trainer, the seed that the env was given or None)."""
    if isinstance(env, core.Vec) and hasattr(env, "vec") and not _has_own_calls(env):
        seed = env._next_seed(None) if env._seed is not None else None
        return _for_trainer(env.vec), seed
    if isinstance(env, VecEnv):
        return _for_trainer(env), None
    if isinstance(env, GymnasiumVectorEnv):
        return env, None
    if isinstance(env, OceanEnv):
        return _for_trainer(env.vec), env.first_seed
    if isinstance(env, PufferEnv) and env.is_in_place:
        return _for_trainer(core.make_python([partial(adapt.slot, env)], "serial", {})[0]), env.first_seed
    if isinstance(env, (core.Vec, Wrapper)) or hasattr(env, "num_envs"):
        return Played(env), getattr(env, "_seed", None)
    raise APIUsageError(
        f"env is a {type(env).__name__}. Pass a vector env, such as shoal.puffer.make(name, num_envs=…) "
        "or shoal.puffer.emulate(env, num_envs=…)."
    )


def _has_own_calls(env: core.Vec) -> bool:
    """Whether a user's subclass defines its own step or reset."""
    return any(
        not getattr(type(env), name).__module__.startswith("shoal.puffer")
        for name in ("reset", "step", "send", "recv", "async_reset")
        if hasattr(type(env), name)
    )


def _for_trainer(vec: VecEnv) -> VecEnv:
    """The VecEnv itself, or Around it: for envs that reset themselves, and for batches that are not ranges."""
    resets_itself = core.resets_itself(vec)
    is_mixed = not vec.returns_ranges
    return Around(vec, resets_itself=resets_itself, in_step=is_mixed) if resets_itself or is_mixed else vec


class Around(VecEnv):
    """A VecEnv whose results are corrected for the trainer.

    Args:
        vec: the VecEnv inside.
        resets_itself: its envs reset themselves: they have no final_obs, and their masks say who is alive.
        in_step: steps all envs together, because batches of `recv` would not be ranges of envs.
    """

    def __init__(self, vec: Any, *, resets_itself: bool, in_step: bool) -> None:
        self.vec, self.resets_itself, self.in_step = vec, resets_itself, in_step
        self.backend, self.metadata = vec.backend, vec.metadata
        self.num_envs, self.num_rows, self.agents_per_env = vec.num_envs, vec.num_rows, vec.agents_per_env
        self.single_observation_space, self.single_action_space = vec.single_observation_space, vec.single_action_space
        self.agent_spaces, self.native_spec = vec.agent_spaces, vec.native_spec
        self.mask_size, self.parallelism, self.num_workers = vec.mask_size, vec.parallelism, vec.parallelism
        self.has_dead_rows = resets_itself or vec.agents_per_env > 1
        self._env_id = np.arange(self.num_envs, dtype=np.int32)
        self._result: Any = None

    @property
    def time_limit(self) -> int:
        """The wrapped env's."""
        return int(self.vec.time_limit)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """All envs with `in_step`; otherwise the wrapped env's."""
        return ((0, self.num_envs),) if self.in_step else self.vec.ranges

    def reset(self, *, seed: Any = None, options: Info | None = None) -> tuple[Any, Info]:
        """Starts episodes."""
        return self.vec.reset(seed=seed, options=options)  # type: ignore[no-any-return]

    def step(self, actions: Any) -> Any:
        """One transition of every env."""
        *rest, infos = self.vec.step(actions)
        return (*rest, self._corrected({**infos, "env_id": self._env_id}))

    def async_reset(self, *, seed: Any = None) -> None:
        """Starts episodes; `recv` then returns the first observations."""
        if not self.in_step:
            self.vec.async_reset(seed=seed)
            return
        obs, infos = self.vec.reset(seed=seed)
        zeros, flags = np.zeros(self.num_rows, np.float32), np.zeros(self.num_rows, np.bool_)
        self._result = (obs, zeros, flags, flags, self._corrected({**infos, "env_id": self._env_id}))

    def send(self, actions: Any, env_id: Array | None = None) -> None:
        """Starts a step of the envs of `env_id`; with `in_step`, makes a step of all envs."""
        if self.in_step:
            self._result = self.step(actions)
        else:
            self.vec.send(actions, env_id)

    def recv(self) -> Any:
        """The next batch."""
        if self.in_step:
            return self._result
        *rest, infos = self.vec.recv()
        return (*rest, self._corrected(infos))

    def _corrected(self, infos: Info) -> Info:
        if not self.resets_itself:
            return infos
        infos.pop("final_obs", None)  # the env has overwritten it with the first observation of the next episode
        alive, ids = core.alive_rows(self.vec), infos["env_id"]
        if alive is not None:
            infos["alive"] = alive[int(ids[0]) : int(ids[-1]) + 1]
        return infos

    def current_infos(self) -> Info:
        """The wrapped env's."""
        return self.vec.current_infos()  # type: ignore[no-any-return]

    def drain_stats(self) -> Info:
        """The wrapped env's."""
        return self.vec.drain_stats()  # type: ignore[no-any-return]

    def drain_events(self) -> list[str]:
        """The wrapped env's."""
        return self.vec.drain_events()  # type: ignore[no-any-return]

    def close(self, **kwargs: Any) -> None:
        """Closes the wrapped env."""
        self.vec.close()


class Played(VecEnv):
    """A vector env with the user's own reset or step: guide style (four values) or PufferLib 3's (five).

    Its `step` is expected to reset the envs that are done. A truncated episode is bootstrapped from the `final_obs` in
    the info of its row. If there is none, or a Wrapper may have changed observations, the observation before the
    last is used.
    """

    backend = "puffer"

    def __init__(self, env: Any) -> None:
        self.env = env
        inner = getattr(env, "vec", None)
        self.agents_per_env = int(getattr(inner, "agents_per_env", 1))
        self.num_envs = int(getattr(inner, "num_envs", getattr(env, "num_envs", 0)))
        if self.num_envs < 1:
            raise APIUsageError(f"{type(env).__name__} has no num_envs: set it in __init__.")
        self.num_rows = self.num_envs * self.agents_per_env
        if inner is not None and not inner.agent_spaces.alike:
            raise APIUsageError(
                f"the agents of {type(env).__name__} have different spaces. Train on the vector inside."
            )
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = _single(env, "observation_space")
        self.single_action_space = _single(env, "action_space")
        if inner is not None:
            self.agent_spaces, self.native_spec = inner.agent_spaces, inner.native_spec
            self.mask_size, self.parallelism = inner.mask_size, inner.parallelism
        self._layout = Layout(self.single_observation_space)
        self._env_id = np.arange(self.num_envs, dtype=np.int32)
        self._returns, self._lengths = np.zeros(self.num_rows), np.zeros(self.num_rows, np.int64)
        self._ended: list[tuple[float, int]] = []
        self._before: list[Array] = []
        self._result: Any = None

    def reset(self, *, seed: int | Sequence[int] | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Starts episodes. The seed goes to the vector's reset, or to each env's `seed` if reset takes none."""
        env = self.env
        if seed is None:
            result = env.reset()
        elif adapt.takes(env.reset, "seed", by_any=True):
            result = env.reset(seed=seed)
        else:
            if hasattr(env, "seed"):
                env.seed(seed)
            for number, single in enumerate(getattr(env, "envs", ())):
                if hasattr(single, "seed"):
                    single.seed(seed + number if isinstance(seed, int) else seed[number])
            result = env.reset()
        self._returns[:], self._lengths[:] = 0.0, 0
        obs, infos = adapt.split_reset(result, self.single_observation_space)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], (list, Infos)):
            obs, infos = result[0], {}
        self._remember(obs)
        return obs, {**self.current_infos(), **self._row_infos(infos)}

    def step(self, actions: Any) -> Any:
        """One transition of every env: five values, also if the user's step returns four."""
        before = self._before
        result = self.env.step(actions)
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            raise BadOutput(f"step of {type(self.env).__name__} did not return four or five values")
        obs, rewards, infos = result[0], np.asarray(result[1], np.float32), result[-1]
        if len(result) == 5:
            terminated, truncated = (np.asarray(part, np.bool_) for part in result[2:4])
            done = terminated | truncated
        else:
            done = np.asarray(result[2], np.bool_)
            truncated = np.zeros_like(done)
            for row in np.flatnonzero(done):
                truncated[row] = bool(_info_of(infos, int(row)).get(adapt.TIME_LIMIT, False))
            terminated = done & ~truncated
        row_infos = self._row_infos(infos)
        if truncated.any():
            row_infos["final_obs"] = self._final_obs(before, infos, np.flatnonzero(truncated))
        self._count(rewards, done)
        self._remember(obs)
        return obs, rewards, terminated, truncated, row_infos

    def _final_obs(self, before: list[Array], infos: Any, rows: Array) -> Any:
        final = [leaf.copy() for leaf in before]
        for row in rows.tolist() if not isinstance(self.env, Wrapper) else ():
            given = _info_of(infos, row).get("final_obs")
            if given is not None:
                self._layout.write(final, row, given)
        return structure(self.single_observation_space, iter(final))

    def _remember(self, obs: Any) -> None:
        """Copies the observations, leaf by leaf: the next step may overwrite them."""
        leaves = []
        for leaf in self._layout.leaves:
            part = obs
            for key in leaf.path:
                part = part[key]
            leaves.append(np.array(part, leaf.dtype))
            if leaves[-1].shape != (self.num_rows, *leaf.shape):
                raise BadOutput(
                    f"observations{leaf.name} of {type(self.env).__name__} have shape {leaves[-1].shape}, "
                    f"expected {(self.num_rows, *leaf.shape)}"
                )
        self._before = leaves

    def _row_infos(self, infos: Any) -> Info:
        """The infos that the trainer reads: "alive" and "action_mask"."""
        arrays = infos.arrays if isinstance(infos, Infos) else infos if isinstance(infos, dict) else {}
        read = {key: arrays[key] for key in ("alive", "action_mask") if key in arrays}
        return {**read, "env_id": self._env_id}

    def _count(self, rewards: Array, done: Array) -> None:
        self._returns += rewards
        self._lengths += 1
        self._ended += [(float(self._returns[row]), int(self._lengths[row])) for row in np.flatnonzero(done)]
        self._returns[done], self._lengths[done] = 0.0, 0

    def async_reset(self, *, seed: Any = None) -> None:
        """Resets the envs; `recv` returns the result."""
        obs, infos = self.reset(seed=seed)
        flags = np.zeros(self.num_rows, np.bool_)
        self._result = (obs, np.zeros(self.num_rows, np.float32), flags, flags, infos)

    def send(self, actions: Any, env_id: Array | None = None) -> None:
        """Steps the envs; `recv` returns the result."""
        self._result = self.step(actions)

    def recv(self) -> Any:
        """The result of the last step or reset."""
        return self._result

    def current_infos(self) -> Info:
        """Those of the vector inside, if there is one; otherwise all rows are alive."""
        inner = getattr(self.env, "vec", None)
        return super().current_infos() if inner is None else inner.current_infos()

    def drain_stats(self) -> Info:
        """Statistics of the episodes since the last call. See `VecEnv.drain_stats`."""
        stats: Info = {"episodes": len(self._ended)}
        if self._ended:
            for name, values in zip(("return", "length"), np.array(self._ended, np.float64).T):
                stats[name] = {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}
        self._ended.clear()
        return stats

    def close(self, **kwargs: Any) -> None:
        """Closes the user's envs."""
        self.env.close()


def _info_of(infos: Any, row: int) -> Info:
    """The info of one row, of a sequence of dicts or of Gymnasium's dict of arrays."""
    if isinstance(infos, dict):
        return {key: infos[key][row] for key in ("final_obs", adapt.TIME_LIMIT) if key in infos}
    if isinstance(infos, Sequence) and row < len(infos):
        info: Info = infos[row] or {}
        return info
    return {}


def _single(env: Any, name: str) -> spaces.Space[Any]:
    """The space of one row: `single_…` of the vector, the space of its first env, or the vector's attribute."""
    for owner, attribute in (
        (env, f"single_{name}"),
        *((single, name) for single in list(getattr(env, "envs", ()))[:1]),
    ):
        try:
            space = getattr(owner, attribute)
        except AttributeError:
            continue
        if isinstance(space, spaces.Space):
            return space
    if isinstance(space := vars(env).get(name), spaces.Space):
        return space
    raise APIUsageError(f"{type(env).__name__} has no single_{name}: set self.single_{name} in __init__.")
