"""Vectorization as in PufferLib's guides: `reset() -> obs`, `step -> (obs, rewards, dones, infos)`.

`shoal.puffer.vector` is PufferLib 3's version. Users may subclass `VectorEnv`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from shoal.errors import ActionError
from shoal.puffer import adapt, core
from shoal.puffer.exceptions import APIUsageError
from shoal.spec import map_leaves
from shoal.vector.base import VecEnv, check_num_envs
from shoal.vector.views import interleaved

__all__ = ["Infos", "Multiprocessing", "Serial", "VectorEnv"]


class Infos(Sequence[dict[str, Any]]):
    """A dict for every row. `arrays` holds the same as Gymnasium's vector infos: a dict of arrays over rows.

    A row whose episode ended has `episode`, `final_obs` and `TimeLimit.truncated` besides the env's infos.
    """

    def __init__(self, arrays: dict[str, Any], rows: dict[int, dict[str, Any]], count: int) -> None:
        self.arrays, self._rows, self._count = arrays, rows, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[k] for k in range(*row.indices(self._count))]
        row = row + self._count if row < 0 else row
        if not 0 <= row < self._count:
            raise IndexError(row)
        return self._rows.setdefault(int(row), {})  # most rows have no infos

    def __repr__(self) -> str:
        return f"Infos({self._count} rows, {len(self._rows)} of them not empty)"


class VectorEnv(core.Vec):
    """`num_envs` envs in guide style. Subclasses may define their own `__init__`, `reset` and `step`.

    Args:
        env_creator: makes one env: of Gymnasium, PettingZoo, old gym or Puffer, or a vector env of several.
        num_envs: how many times it is called.
        backend: `serial` or `process`; default: by the number of envs and cores.
        **options: of `shoal.make`: num_workers, envs_per_worker, batch_size, surplus_envs, zero_copy, seed, copy,
            start_method, timeout_s, on_crash, cpu_affinity.
    """

    is_async = False

    def __init__(
        self,
        env_creator: Callable[[], Any] | None = None,
        num_envs: int = 1,
        backend: str | None = None,
        **options: Any,
    ) -> None:
        if env_creator is None:  # a subclass makes its own envs
            return
        if not callable(env_creator):
            raise APIUsageError(f"env_creator is {env_creator!r}. Pass a function or class that makes an env.")
        self._create, self._seed = env_creator, options.pop("seed", None)
        builders = [core.builder(env_creator)] * check_num_envs(num_envs)
        self._set_vec(*core.make_python(builders, backend, options))

    def _set_vec(self, vec: VecEnv, batch_envs: int) -> None:
        self.vec, self._batch_envs, self.num_envs = vec, batch_envs, int(vec.num_envs)

    @classmethod
    def over(cls, vec: VecEnv, seed: int | None = None) -> VectorEnv:
        """A VecEnv of Shoal in guide style."""
        env = cls()
        env._seed = seed
        env._set_vec(vec, vec.num_envs)
        return env

    def reset(self, seed: int | Sequence[int] | None = None) -> Any:
        """Starts episodes and returns the first observations. The seed may also be set before, by `seed(42)`."""
        if not hasattr(self, "vec"):
            core.refuse_shell(self)
        if self.is_async:
            self.async_reset(seed)
            obs, *_ = self.vec.recv()
            return obs
        return self.vec.reset(seed=self._next_seed(seed))[0]

    def step(self, actions: Any) -> Any:
        """One transition: (obs, rewards, dones, infos). With `{agent: actions}`, dicts by agent and the infos.

        In async mode, the actions are for the envs last returned, and the result has the envs that are ready first
        (`infos.arrays["env_id"]`).
        """
        if not hasattr(self, "vec"):
            core.refuse_shell(self)
        by_agent = isinstance(actions, dict) and self._is_alike and self._names_agents(actions)
        if by_agent:
            actions = self._joined(actions)
        if self.is_async:
            self.vec.send(actions)
            obs, rewards, terminated, truncated, arrays = self.vec.recv()
        else:
            obs, rewards, terminated, truncated, arrays = self.vec.step(actions)
        dones = terminated | truncated
        rows = self._by_row(arrays, terminated, truncated)
        for info in rows.values():
            for part in info.pop(adapt.SELF_RESET, []):
                info |= part
        infos = Infos(arrays, rows, len(dones))
        if by_agent or not self._is_alike:
            return self.split(obs), self.split(rewards), self.split(dones), infos
        return obs, rewards, dones, infos

    # ---- several agents, as dicts ----

    def split(self, rows: Any) -> Any:
        """`{agent: batch}`: views of an array over rows that `reset` or `step` returned."""
        count, names = self.vec.agents_per_env, self.agents
        if isinstance(rows, dict) and not self._is_alike:
            return rows  # observations of agents with different spaces are already by agent
        return {name: map_leaves(itemgetter(slice(k, None, count)), rows) for k, name in enumerate(names)}

    def _names_agents(self, actions: dict[Any, Any]) -> bool:
        return self.vec.agents_per_env > 1 and set(actions) <= set(self.agents)

    def _joined(self, actions: dict[Any, Any]) -> Any:
        missing = [name for name in self.agents if name not in actions]
        if missing:
            raise ActionError(f"actions are for {sorted(actions)}; {missing} are missing.")
        return interleaved([actions[name] for name in self.agents])


class Serial(VectorEnv):
    """All envs in this process, one after the other: for debugging, and for very fast envs."""

    def __init__(self, env_creator: Callable[[], Any], num_envs: int = 1, **options: Any) -> None:
        super().__init__(env_creator, num_envs, "serial", **options)


class Multiprocessing(VectorEnv):
    """Envs in worker processes, over one block of shared memory.

    Args:
        env_creator: makes one env.
        num_envs: how many times it is called.
        num_workers: processes; default: the number of cores, or fewer so that they divide num_envs.
        envs_per_worker: given in place of num_workers.
        mode: `sync` waits for all envs in every step; `async` returns those that are ready first.
        surplus_envs: async: the number of envs that a step does not wait for, a multiple of a worker's.
        **options: see `VectorEnv`.
    """

    def __init__(
        self,
        env_creator: Callable[[], Any],
        num_envs: int = 1,
        num_workers: int | None = None,
        envs_per_worker: int | None = None,
        mode: str = "sync",
        surplus_envs: int = 0,
        **options: Any,
    ) -> None:
        if mode not in ("sync", "async"):
            raise APIUsageError(f"mode={mode!r} must be 'sync' or 'async'.")
        self.is_async = mode == "async"
        if surplus_envs and not self.is_async:
            raise APIUsageError(
                f"surplus_envs={surplus_envs} needs mode='async': in sync mode a step waits for all envs."
            )
        workers = {"num_workers": num_workers, "envs_per_worker": envs_per_worker, "surplus_envs": surplus_envs}
        super().__init__(env_creator, num_envs, "process", **workers, **options)
