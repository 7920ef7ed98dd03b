"""Vec: a Shoal VecEnv with PufferLib's names. vectorization.py and vector.py add reset and step, in two styles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space

from shoal.cores import available_cores
from shoal.entry import make as make_native
from shoal.errors import UsageError, did_you_mean
from shoal.puffer import adapt
from shoal.puffer.env import PufferEnv
from shoal.puffer.exceptions import APIUsageError
from shoal.spec import Array
from shoal.vector.base import VecEnv, check_num_envs
from shoal.vector.process import BACKEND, ProcessVec
from shoal.vector.python import PythonSerial
from shoal.vector.slots import VectorSlot, slot_for

Info = dict[str, Any]
PROCESS_OPTIONS = BACKEND.keywords
COMMON = {"seed": None, "copy": False, "render_mode": None}
NOT_OF_ROWS = (
    "alive",
    "action_mask",
    "env_id",
    "final_obs",
    "final_info",
)  # keys of infos that do not come from an env


class Vec:
    """Many envs, with the names that both styles share. `vec` is Shoal's VecEnv.

    Results are views of the envs' memory, which the next step overwrites; `copy=True` returns copies.
    """

    vec: VecEnv
    envs: Sequence[Any] = ()
    _create: Callable[[], Any] | None = None  # the user's function that makes one env
    _driver: Any = None
    _seed: Any = None
    _is_seeded = False
    _batch_envs: int  # envs that recv returns

    # ---- sizes and spaces ----

    @property
    def num_workers(self) -> int:
        """Processes (threads for native envs) that step the envs; 1 if this process does."""
        return self.vec.parallelism

    @property
    def num_agents(self) -> int:
        """The agents of all envs: rows."""
        return int(self.vec.num_rows)

    @property
    def agents_per_batch(self) -> int:
        """Rows of one batch."""
        return self._batch_envs * self.vec.agents_per_env

    @property
    def agents(self) -> list[Any]:
        """The names of the agents of one env."""
        return list(self.vec.agent_spaces.agents)

    @property
    def single_observation_space(self) -> Any:
        """Of one agent; a Dict by agent if agents have different spaces."""
        return self.vec.single_observation_space

    @property
    def single_action_space(self) -> Any:
        """Of one agent; a Dict by agent if agents have different spaces."""
        return self.vec.single_action_space

    @cached_property
    def observation_space(self) -> Any:
        """Of a batch."""
        return self._batched(self.vec.single_observation_space)

    @cached_property
    def action_space(self) -> Any:
        """Of a batch: `step(action_space.sample())`."""
        return self._batched(self.vec.single_action_space)

    def _batched(self, space: Any) -> Any:
        return batch_space(space, self.agents_per_batch if self._is_alike else self._batch_envs)

    @property
    def _is_alike(self) -> bool:
        return self.vec.agent_spaces.alike

    @property
    def _resets_itself(self) -> bool:
        return resets_itself(self.vec)

    @property
    def driver_env(self) -> Any:
        """One env with `single_observation_space`, `single_action_space` and `num_agents`, made on first use."""
        if self._driver is None:
            self._driver = self.vec if self._create is None else as_puffer(self._create())
        return self._driver

    # ---- PufferLib 3's asynchronous calls ----

    def seed(self, seed: int | Sequence[int] | None = None) -> None:
        """For the next reset: env i gets `seed + i`, or the i-th of a list."""
        self._seed = seed

    def async_reset(self, seed: int | Sequence[int] | None = None) -> None:
        """Starts episodes without waiting."""
        self.vec.async_reset(seed=self._next_seed(seed))

    def send(self, actions: Any) -> None:
        """Starts a step of the envs last received."""
        self.vec.send(actions)

    def recv(self) -> tuple[Any, ...]:
        """(obs, rewards, terminals, truncations, infos, agent_ids, masks) of the envs that are ready first."""
        obs, rewards, terminated, truncated, infos = self.vec.recv()
        ids = self._rows(infos["env_id"])
        listed = self._listed(infos, terminated, truncated)
        return obs, rewards, terminated, truncated, listed, ids, self._masks(infos, ids)

    def close(self) -> None:
        """Closes the envs, and the driver env if there is one."""
        if isinstance(getattr(self, "vec", None), VecEnv):
            self.vec.close()
        if self._driver is not None and self._driver is not self.vec and hasattr(self._driver, "close"):
            self._driver.close()
            self._driver = None

    def render(self) -> Any:
        """A frame of every env."""
        return self.vec.render()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def as_slot(self) -> Any:
        """The slot of this vector inside another: `Multiprocessing(lambda: Serial(…), …)`."""
        return VectorSlot(self.vec)

    # ---- seeds and infos ----

    def _next_seed(self, seed: Any) -> Any:
        """The seed of a reset: the given one, or that of `seed`; for the first reset otherwise a random one."""
        if seed is None:
            seed, self._seed = self._seed, None
        if seed is None and not self._is_seeded:  # copies of one env must not play identical episodes
            seed = int(np.random.SeedSequence().generate_state(1)[0] >> 2)
        self._is_seeded = True
        return seed

    def _rows(self, env_id: Array) -> Array:
        agents = self.vec.agents_per_env
        return env_id if agents == 1 else (env_id[:, None] * agents + np.arange(agents)).reshape(-1)

    def _masks(self, infos: Info, ids: Array) -> Array:
        if "alive" in infos:
            alive: Array = infos["alive"]
            return alive
        rows = alive_rows(self.vec)
        if rows is None:
            return np.ones(len(ids), np.bool_)
        return rows if len(ids) == len(rows) else rows[ids]

    def _listed(self, infos: Info, terminated: Array, truncated: Array) -> list[Info]:
        """PufferLib 3's infos: a list of those that are not empty."""
        if self._resets_itself:
            given = infos.get(adapt.SELF_RESET, ())
            return [info for part in given if part is not None for info in part]
        return [info for info in self._by_row(infos, terminated, truncated).values() if info]

    def _by_row(self, infos: Info, terminated: Array, truncated: Array) -> dict[int, Info]:
        """A dict for each row that has infos, from Gymnasium's dict of arrays."""
        rows: dict[int, Info] = {}
        for key in infos:
            if not key.startswith("_") and key not in NOT_OF_ROWS and f"_{key}" in infos:
                for row in np.flatnonzero(infos[f"_{key}"]):
                    rows.setdefault(int(row), {})[key] = _pick(infos[key], int(row))
        for row in np.flatnonzero(terminated | truncated).tolist():
            info = rows.setdefault(row, {})
            info |= _pick(infos.get("final_info", {}), row)
            info[adapt.TIME_LIMIT] = bool(truncated[row])
            if "episode" in info:
                info["episode_return"], info["episode_length"] = info["episode"]["r"], info["episode"]["l"]
            if "final_obs" in infos and not self._resets_itself:
                info["final_obs"] = self._final_obs(infos["final_obs"], row)
        return rows

    def _final_obs(self, obs: Any, row: int) -> Any:
        if self._is_alike:
            return _pick(obs, row)
        env, agent = divmod(row, self.vec.agents_per_env)
        return _pick(obs[self.agents[agent]], env)


def _pick(value: Any, row: int) -> Any:
    """A copy of one row of arrays in dicts and tuples. A mask `_key` says which rows have the key."""
    if isinstance(value, dict):
        return {
            key: _pick(part, row)
            for key, part in value.items()
            if not str(key).startswith("_") and (f"_{key}" not in value or value[f"_{key}"][row])
        }
    if isinstance(value, tuple):
        return tuple(_pick(part, row) for part in value)
    part = value[row]
    return part.copy() if isinstance(part, np.ndarray) else part


def resets_itself(vec: Any) -> bool:
    """Whether the envs of a vector are PufferEnvs with in-place buffers, which reset their agents inside `step`."""
    return bool(vec.agent_spaces.agents == (adapt.ROW,))


def alive_rows(vec: Any) -> Array | None:
    """Whether each row is in the game, as a view of the memory of Python envs; None for other envs."""
    memory = getattr(vec, "block", None)
    return None if memory is None else memory.arrays["alive"]


def as_puffer(env: Any) -> Any:
    """An env with PufferLib's names for its spaces and agents."""
    inner = getattr(env, "unwrapped", env)
    if isinstance(inner, (PufferEnv, Vec)) and hasattr(inner, "single_observation_space"):
        return env
    if isinstance(inner, PufferEnv):  # guide style, one agent
        env.single_observation_space, env.single_action_space = env.observation_space, env.action_space
        return env
    from shoal.puffer import emulation

    is_many = hasattr(env, "possible_agents")
    return (emulation.PettingZooPufferEnv if is_many else emulation.GymnasiumPufferEnv)(env=env)


# ---- making ----


def split_options(options: Info) -> tuple[Info, Info]:
    """(options of processes, options of every backend). An unknown option raises APIUsageError."""
    known = {*PROCESS_OPTIONS, *COMMON}
    for name in options:
        if name not in known:
            raise APIUsageError(
                f"unknown option {name!r}.{did_you_mean(name, known)} Known: {', '.join(sorted(known))}."
            )
    processes = {name: value for name, value in options.items() if name in PROCESS_OPTIONS}
    return processes, {name: value for name, value in options.items() if name in COMMON}


def make_python(builders: Sequence[Callable[[], Any]], backend: str | None, options: Info) -> tuple[VecEnv, int]:
    """A VecEnv of Python envs, one for each builder, and the number of envs that its recv returns."""
    count = check_num_envs(len(builders))
    processes, common = split_options(options)
    per_worker = processes.pop("envs_per_worker", None)
    if per_worker is not None:
        workers = processes.get("num_workers")
        if per_worker < 1 or count % per_worker or (workers is not None and workers * per_worker != count):
            given = "" if workers is None else f" and num_workers={workers}"
            raise APIUsageError(f"envs_per_worker={per_worker}{given} do not give num_envs={count}.")
        processes["num_workers"] = count // per_worker
    if backend is None:
        has_options = any(value != PROCESS_OPTIONS[name] for name, value in processes.items())
        backend = "process" if has_options or (count > 1 and available_cores() > 1) else "serial"
    if backend == "process":
        batch, surplus = processes.get("batch_size"), processes.get("surplus_envs", 0)
        vec: Any = ProcessVec(builders, **processes, **common)
        return vec, vec.num_envs - surplus if batch is None else batch
    slots = [slot_for(builder()) for builder in builders]
    total = sum(slot.envs for slot in slots)
    batch = processes.get("batch_size") or total - processes.get("surplus_envs", 0)
    if total % batch or count % (total // batch):
        raise APIUsageError(f"a batch of {batch} envs does not divide the {total} envs of {count} creators evenly.")
    return PythonSerial(slots, num_groups=total // batch, **common), batch


def make_threads(name: str, num_envs: int, backend: str | None, options: Info, params: Info) -> VecEnv:
    """A VecEnv of native envs: workers are threads."""
    processes, common = split_options(options)
    workers, per_worker = processes.pop("num_workers", None), processes.pop("envs_per_worker", None)
    if per_worker is not None:
        workers = max(1, num_envs // per_worker)
    for option, value in processes.items():
        if value != PROCESS_OPTIONS[option]:
            raise APIUsageError(
                f"{option}={value!r} is an option of worker processes; '{name}' is a native env, stepped by threads."
            )
    return make_native(name, num_envs, backend=backend, num_threads=workers, **common, **params)


def builder(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """A function without arguments that makes an env's slot. It can be pickled if `make` can."""
    return partial(adapt.build, make, args, kwargs)


def refuse_shell(env: Any) -> None:
    """Raises for a subclass of VectorEnv that has neither envs nor its own reset and step."""
    raise UsageError(
        f"{type(env).__name__} has no envs. Pass env_creator and num_envs to super().__init__, "
        "or define reset and step."
    )
