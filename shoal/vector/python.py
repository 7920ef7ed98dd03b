"""PythonVec: a batch of Python envs. What `serial` and `process` share: actions in, results and infos out.

Each worker has a contiguous range of envs. In `process` a worker is a process, in `serial` a part of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from shoal.errors import ActionError, ConfigError, UsageError
from shoal.space_json import from_json, to_json
from shoal.spec import AgentSpaces, Array, map_leaves
from shoal.vector.actions import checked_actions, leaf_spaces
from shoal.vector.base import AUTORESET, Result, VecEnv, check_reset_mask, check_seeds, has_true
from shoal.vector.block import Block
from shoal.vector.infos import Merger
from shoal.vector.serve import RESET, STEP
from shoal.vector.slots import Info, InfoRows
from shoal.vector.stats import EpisodeSums, GameSums

ROW_KINDS = "obs final_obs rewards terminated truncated done alive final_return final_length".split()


class EnvRange:
    """Envs [lo, hi) and views of every buffer on them, in the structure of the spaces."""

    def __init__(self, block: Block, lo: int, hi: int) -> None:
        agent_spaces, agents = block.agent_spaces, len(block.agent_spaces.agents)
        self.lo, self.hi = lo, hi
        self.rows = slice(lo * agents, hi * agents)
        self.env_id = np.arange(lo, hi, dtype=np.int32)
        if agent_spaces.alike:
            self.obs, self.final_obs = block.row_views("obs", lo, hi), block.row_views("final_obs", lo, hi)
        else:
            names = enumerate(agent_spaces.agents)
            self.obs, self.final_obs = {}, {}
            for k, name in names:
                self.obs[name] = block.views("obs", k, lo, hi)
                self.final_obs[name] = block.views("final_obs", k, lo, hi)
        for name in ("rewards", "terminated", "truncated", "done", "alive", "final_return", "final_length"):
            setattr(self, name, block.arrays[name][self.rows])
        self.ended = block.arrays["ended"][lo:hi]

    rewards: Array
    terminated: Array
    truncated: Array
    done: Array
    alive: Array
    final_return: Array
    final_length: Array


class PythonVec(VecEnv):
    """Python envs behind the VecEnv API. Subclasses define how commands reach workers and how to wait for them."""

    def __init__(
        self,
        agent_spaces: AgentSpaces,
        num_envs: int,
        block: Block,
        ranges: Sequence[tuple[int, int]],
        *,
        seed: int | None = None,
        batch_envs: int | None = None,
        zero_copy: bool = False,
        copy: bool = False,
        autoreset: str = "same_step",
        render_mode: str | None = None,
    ) -> None:
        agent_spaces = _with_gymnasium_spaces(agent_spaces)
        self.agent_spaces, self.num_envs, self.block, self.worker_ranges = agent_spaces, num_envs, block, list(ranges)
        self.agents_per_env, self.num_rows = len(agent_spaces.agents), num_envs * len(agent_spaces.agents)
        self.copy, self.render_mode, self.zero_copy = copy, render_mode, zero_copy
        if agent_spaces.alike:
            self.single_observation_space = agent_spaces.observation_spaces[0]
            self.single_action_space = agent_spaces.action_spaces[0]
        else:  # one dict by agent: of spaces, of observations, of actions
            self.single_observation_space = spaces.Dict(dict(zip(agent_spaces.agents, agent_spaces.observation_spaces)))
            self.single_action_space = spaces.Dict(dict(zip(agent_spaces.agents, agent_spaces.action_spaces)))
        self.metadata = {"autoreset_mode": AUTORESET[autoreset], "render_modes": ["rgb_array"]}
        self._same_step, self._disabled = autoreset == "same_step", autoreset == "disabled"
        self._skips_steps = autoreset == "next_step"
        self._next_seeds = None if seed is None else check_seeds(seed, num_envs)
        self.seeds: Array | None = None  # of the last seeded reset, one per env
        self._started = False
        self._need = len(self.worker_ranges)  # workers that a batch of recv holds
        if batch_envs is not None:
            self._need = batch_envs * len(self.worker_ranges) // num_envs
        self._in_flight: list[int] = []  # workers in the order of send
        self._received: list[int] = []  # workers of the last recv
        self._env_ranges: dict[tuple[int, int], EnvRange] = {}
        self._all, self._all_workers = self._range(0, num_envs), list(range(len(self.worker_ranges)))
        space, self._plain_actions = agent_spaces.action_spaces[0], None
        if self.agents_per_env == 1 and isinstance(space, spaces.Discrete):  # the common case has a short path
            self._plain_actions = block.leaf_views("actions")[0]
            self._lowest, self._highest = int(space.start), int(space.start + space.n - 1)
        self._stats = EpisodeSums(tuple(map(str, agent_spaces.agents)))
        self._games = GameSums(num_envs, self.agents_per_env) if self.agents_per_env > 1 else None
        self._last_command: dict[int, int] = {}  # by worker; only for several agents
        self._known_ids: dict[tuple[str, bytes], list[int]] = {}  # workers by the bytes of env_id

    @cached_property
    def observation_space(self) -> spaces.Space[Any]:  # type: ignore[override]
        """Of all rows; by agent, and then of all envs, where agents differ."""
        return batch_space(self.single_observation_space, self.num_rows if self.agent_spaces.alike else self.num_envs)

    @cached_property
    def action_space(self) -> spaces.Space[Any]:  # type: ignore[override]
        """Of all rows; by agent, and then of all envs, where agents differ."""
        return batch_space(self.single_action_space, self.num_rows if self.agent_spaces.alike else self.num_envs)

    @property
    def ended(self) -> Array:
        """(num_envs,) envs that wait for a reset; none ever do under same_step."""
        return self.block.arrays["ended"]

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of batches that never change: num_groups, or batch_size with zero_copy. Otherwise all envs."""
        size = self._need
        if size == len(self.worker_ranges) or (size > 1 and not self.zero_copy):
            return ((0, self.num_envs),)
        starts = range(0, len(self.worker_ranges) - size + 1, size)
        return tuple((self.worker_ranges[k][0], self.worker_ranges[k + size - 1][1]) for k in starts)

    @property
    def returns_ranges(self) -> bool:
        """Whether every batch of `recv` is one of `ranges`; otherwise it holds the envs that are ready first."""
        return self.zero_copy or self._need >= len(self.worker_ranges)

    # ---- what subclasses define ----

    def _post(self, workers: Sequence[int], command: int) -> None:
        raise NotImplementedError

    def _wait(self, workers: Sequence[int], need: int) -> list[int]:
        """Waits until `need` of the workers have finished and returns those that have, earliest first."""
        raise NotImplementedError

    def _fetch(self, worker: int) -> InfoRows:
        """The infos of a worker that has finished. Raises what its envs raised."""
        raise NotImplementedError

    def call_envs(self, name: str, env_ids: Sequence[int] | None, args: tuple[Any, ...], kwargs: Info) -> list[Any]:
        """Calls a method of chosen envs, or reads an attribute, and returns the results in order."""
        raise NotImplementedError

    def _send_options(self, options: Info) -> None:
        raise NotImplementedError

    # ---- the Gymnasium API ----

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts episodes in all envs, or in those of `options["reset_mask"]`; other options go to the envs."""
        self._prepare_reset(seed, options)
        workers = list(range(len(self.worker_ranges)))
        self._start(workers, RESET)
        info_rows = self._collect(self._wait(workers, len(workers)))
        self._started, self._received = True, workers
        infos = self._infos(self._all, info_rows)
        return map_leaves(np.copy, self._all.obs) if self.copy else self._all.obs, infos

    def step(self, actions: Any) -> Result:
        """One transition of every env."""
        self._refuse_before("step")
        if self._in_flight:
            raise UsageError("step() while envs are in flight. Call recv() for them first.")
        workers = self._all_workers
        self._take_actions(actions, [(0, self.num_envs)])
        self._start(workers, STEP)
        info_rows = self._collect(self._wait(workers, len(workers)))
        return self._result(self._all, info_rows)

    def async_reset(self, *, seed: int | Sequence[int] | None = None) -> None:
        """Starts episodes without waiting."""
        self._prepare_reset(seed, None)
        workers = list(range(len(self.worker_ranges)))
        self._start(workers, RESET)
        self._in_flight, self._started, self._received = workers, True, []

    def send(self, actions: Any, env_id: Array | None = None) -> None:
        """Steps the envs last received (or those of `env_id`: all envs of some workers) and returns at once."""
        self._refuse_before("send")
        workers = self._received if env_id is None else self._workers_of(np.asarray(env_id))
        if not workers or set(workers) & set(self._in_flight):
            raise UsageError("send() to envs that do not wait for actions. Call recv() first.")
        self._take_actions(actions, [self.worker_ranges[worker] for worker in workers])
        self._start(workers, STEP)
        self._in_flight += workers
        self._received = [worker for worker in self._received if worker not in workers]

    def recv(self) -> Result:
        """The first batch of envs that is ready, first come first served. `infos["env_id"]` says which."""
        self._refuse_before("recv")
        if not self._in_flight:
            raise UsageError("recv() with nothing in flight. Call async_reset() or send() first.")
        if len(self.worker_ranges) == 1:
            info_rows = self._collect(self._wait(self._in_flight, 1))
            self._in_flight, self._received = [], self._all_workers
            return self._received_result(self._all, info_rows, self._all.env_id)
        need = min(self._need, len(self._in_flight))
        workers = self._wait_range() if self.zero_copy else self._wait(self._in_flight, need)[:need]
        self._in_flight = [worker for worker in self._in_flight if worker not in workers]
        ordered = sorted(workers)
        self._received = ordered
        info_rows = self._collect(ordered)
        lo, hi = self.worker_ranges[ordered[0]][0], self.worker_ranges[ordered[-1]][1]
        if hi - lo == sum(self.worker_ranges[u][1] - self.worker_ranges[u][0] for u in ordered):
            envs = self._range(lo, hi)
            return self._received_result(envs, info_rows, envs.env_id)
        return self._gathered(ordered, info_rows)

    def _received_result(self, envs: EnvRange, info_rows: InfoRows, env_id: Array) -> Result:
        result = self._result(envs, info_rows)
        result[4]["env_id"] = env_id
        if self._skips_steps:
            result[4]["alive"] = self._alive_now(envs)
        return result

    def _wait_range(self) -> list[int]:
        """With zero_copy: the workers in flight of the first of `ranges` whose workers in flight have all finished."""
        size, in_flight = self._need, set(self._in_flight)
        members = ([*range(start, start + size)] for start in range(0, len(self.worker_ranges), size))
        sent = ([worker for worker in batch if worker in in_flight] for batch in members)
        batches = [batch for batch in sent if batch]
        count = min(map(len, batches))
        while True:
            order = {worker: place for place, worker in enumerate(self._wait(self._in_flight, count))}
            complete = [batch for batch in batches if all(worker in order for worker in batch)]
            if complete:  # the one that finished first: the lowest numbers would starve the others
                return min(complete, key=lambda batch: max(order[worker] for worker in batch))
            count = len(order) + 1

    def render(self) -> tuple[Any, ...]:
        """A frame of every env, from its render()."""
        return tuple(self.call("render"))

    def call(self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every env (or of those in env_ids), or reads an attribute of that name."""
        self._refuse_closed()
        if self._in_flight:
            raise UsageError("call() while envs are in flight. Call recv() for them first.")
        for number in env_ids if env_ids is not None else ():
            if not 0 <= number < self.num_envs:
                raise ConfigError(f"env_ids names env {number}; there are envs 0 .. {self.num_envs - 1}.")
        return tuple(self.call_envs(name, env_ids, args, kwargs))

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """An attribute of every env, or of those in env_ids."""
        return self.call(name, env_ids=env_ids)

    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        """Sets an attribute: one value for all, or a list of one for each env."""
        ids = list(range(self.num_envs)) if env_ids is None else list(env_ids)
        if not isinstance(values, (list, tuple)):
            values = [values] * len(ids)
        if len(values) != len(ids):
            raise ConfigError(f"set_attr got {len(values)} values for {len(ids)} envs.")
        for number, value in zip(ids, values):
            self.call("__setattr__", name, value, env_ids=[number])

    def drain_stats(self) -> dict[str, Any]:
        """`{"episodes": n, "return": {"mean", "min", "max"}, "length": …}` since the last call."""
        stats, self.agent_stats = self._stats.drain()
        return stats

    @property
    def drained_returns(self) -> Array:
        """The returns of the single episodes of the last `drain_stats`."""
        return self._stats.drained

    def current_infos(self) -> Info:
        """The "alive" of all rows."""
        return {"alive": self._alive_now(self._all)}

    # ---- results and infos ----

    def _alive_now(self, envs: EnvRange) -> Array:
        """(rows,) whether a row's next step is a transition: it is in the game, and its env has not ended."""
        alive: Array = envs.alive & ~np.repeat(envs.ended, self.agents_per_env)
        return alive

    def _range(self, lo: int, hi: int) -> EnvRange:
        if (lo, hi) not in self._env_ranges:
            self._env_ranges[lo, hi] = EnvRange(self.block, lo, hi)
        return self._env_ranges[lo, hi]

    def _refuse_before(self, call: str) -> None:
        self._refuse_closed()
        if not self._started:
            raise UsageError(f"{call} before reset. Call reset() once after making the env.")
        if self._disabled and call != "recv" and self.block.arrays["ended"].any():
            env = int(self.block.arrays["ended"].argmax())
            raise UsageError(
                f"env {env} has ended and autoreset is disabled. "
                "Reset the ended envs first: reset(options={'reset_mask': envs.ended.copy()})."
            )

    def _prepare_reset(self, seed: Any, options: Info | None) -> None:
        self._refuse_closed()
        if options is not None and not isinstance(options, dict):
            raise ConfigError(f"options={options!r} must be a dict.")
        arrays, rest = self.block.arrays, dict(options or {})
        mask = rest.pop("reset_mask", None)
        if mask is not None:
            mask = check_reset_mask(mask, self.num_envs)
            if not self._started:
                raise UsageError(
                    "reset(options={'reset_mask': …}) before a full reset(): the other envs have no state."
                )
        seeds = self._next_seeds if seed is None else check_seeds(seed, self.num_envs)
        self._next_seeds = None
        if self._in_flight:  # their results are dropped
            self._collect(self._wait(self._in_flight, len(self._in_flight)))
            self._in_flight = []
        if seeds is not None:
            arrays["seeds"][:] = seeds
            self.seeds = seeds if self.seeds is None or mask is None else np.where(mask, seeds, self.seeds)
        if mask is not None:
            arrays["reset_mask"][:] = mask
        arrays["reset_with"][:] = (seeds is not None, mask is not None, bool(rest))
        if rest:
            self._send_options(rest)

    def _collect(self, workers: Sequence[int]) -> InfoRows:
        info_rows: InfoRows = []
        for worker in workers:
            info_rows += self._fetch(worker)
        arrays = self.block.arrays
        if self._games is None and not has_true(arrays["done"]):  # no episode ended: the common case
            return info_rows
        for worker in workers:
            lo, hi = self.worker_ranges[worker]
            if self._games is not None and self._last_command[worker] == STEP:
                self._games.add(self._stats, arrays, lo, hi)
            elif self._games is not None:
                self._games.reset(arrays, lo, hi, arrays["reset_mask"][lo:hi] if arrays["reset_with"][1] else None)
            elif (done := arrays["done"][lo:hi]).any():
                self._stats.add(arrays["final_return"][lo:hi][done], arrays["final_length"][lo:hi][done])
        return info_rows

    def _start(self, workers: Sequence[int], command: int) -> None:
        if self._games is not None:
            self._last_command |= dict.fromkeys(workers, command)
        self._post(workers, command)

    def _infos(self, envs: EnvRange, info_rows: InfoRows) -> Info:
        """Gymnasium's vector infos from the dicts of single rows."""
        infos: Info = {}
        if self.agents_per_env > 1:
            infos["alive"] = envs.alive.copy() if self.copy else envs.alive
            infos["_alive"] = np.ones(len(envs.alive), np.bool_)
        if info_rows:
            merger = Merger(len(envs.rewards))
            start = envs.rows.start
            # in the order of rows, as in Gymnasium: the first row with a key sets its dtype, whichever worker was first
            for row, final, info in sorted(info_rows, key=itemgetter(0)):
                infos = merger.merge(infos, {"final_info": info} if final else info, row - start)
        if has_true(envs.done):
            done = envs.done.copy()
            known = done & (envs.final_length > 0)  # the return of an episode that a crash ended is lost
            episode = {"r": envs.final_return.copy(), "l": envs.final_length.copy(), "_r": known, "_l": known}
            final_info = infos.setdefault("final_info", {})
            if "episode" not in final_info:
                final_info["episode"], final_info["_episode"] = episode, known
            infos["_final_info"] = done
            if (
                self._same_step or self.agents_per_env > 1
            ):  # an agent that is out early has its last obs only in final_obs
                infos["final_obs"] = map_leaves(np.copy, envs.final_obs) if self.copy else envs.final_obs
                infos["_final_obs"] = done
        return infos

    def _result(self, envs: EnvRange, info_rows: InfoRows) -> Result:
        infos = self._infos(envs, info_rows)
        if self.copy:
            flags = (envs.rewards.copy(), envs.terminated.copy(), envs.truncated.copy())
            return (map_leaves(np.copy, envs.obs), *flags, infos)
        return envs.obs, envs.rewards, envs.terminated, envs.truncated, infos

    def _gathered(self, workers: list[int], info_rows: InfoRows) -> Result:
        """The result of workers that are not neighbours, copied into one contiguous block."""
        count = sum(hi - lo for lo, hi in (self.worker_ranges[worker] for worker in workers))
        block = Block(self.agent_spaces, count)
        agents, at = self.agents_per_env, 0
        moved: dict[int, int] = {}
        for worker in workers:
            lo, hi = self.worker_ranges[worker]
            for name in ROW_KINDS:
                block.arrays[name][at * agents : (at + hi - lo) * agents] = self.block.arrays[name][
                    lo * agents : hi * agents
                ]
            block.arrays["ended"][at : at + hi - lo] = self.block.arrays["ended"][lo:hi]
            moved |= {lo * agents + k: at * agents + k for k in range((hi - lo) * agents)}
            at += hi - lo
        envs = EnvRange(block, 0, count)
        env_id = np.concatenate([np.arange(*self.worker_ranges[worker], dtype=np.int32) for worker in workers])
        return self._received_result(envs, [(moved[row], final, info) for row, final, info in info_rows], env_id)

    def _workers_of(self, env_id: Array) -> list[int]:
        key = env_id.dtype.str, env_id.tobytes()
        if key not in self._known_ids:
            if len(self._known_ids) > 1000:
                self._known_ids.clear()
            self._known_ids[key] = self._find_workers(env_id)
        return self._known_ids[key]

    def _find_workers(self, env_id: Array) -> list[int]:
        wanted = env_id.tolist()
        workers, at = [], 0
        starts = {lo: worker for worker, (lo, _hi) in enumerate(self.worker_ranges)}
        while at < len(wanted):
            worker = starts.get(wanted[at])
            if worker is None or wanted[at : at + self._size(worker)] != list(range(*self.worker_ranges[worker])):
                raise ConfigError("env_id must name all envs of a worker: pass infos['env_id'] of a recv().")
            workers.append(worker)
            at += self._size(worker)
        return workers

    def _size(self, worker: int) -> int:
        lo, hi = self.worker_ranges[worker]
        return hi - lo

    # ---- actions: checked whole, then written ----

    def _take_actions(self, actions: Any, ranges: list[tuple[int, int]]) -> None:
        if (
            self._plain_actions is not None
            and type(actions) is np.ndarray
            and actions.dtype.kind in "iu"
            and len(ranges) == 1
            and actions.shape == (ranges[0][1] - ranges[0][0],)
            and self._all_allowed(actions)
        ):
            self._plain_actions[ranges[0][0] : ranges[0][1]] = actions
            return
        count = sum(hi - lo for lo, hi in ranges)
        if self.agent_spaces.alike:
            self._write_agent(actions, None, count * self.agents_per_env, ranges)
            return
        if not isinstance(actions, dict) or sorted(actions) != sorted(self.agent_spaces.agents):
            got = sorted(actions) if isinstance(actions, dict) else type(actions).__name__
            raise ActionError(f"actions are for {got}, expected a dict by agent: {list(self.agent_spaces.agents)}.")
        for check_only in (True, False):
            for agent, name in enumerate(self.agent_spaces.agents):
                self._write_agent(actions[name], agent, count, ranges, check_only)

    def _all_allowed(self, actions: Array) -> bool:
        if len(actions) > 64:
            return not (actions.min() < self._lowest or actions.max() > self._highest)
        values = actions.tolist()  # for few actions Python is faster than numpy
        return not (min(values) < self._lowest or max(values) > self._highest)

    def _write_agent(
        self, actions: Any, agent: int | None, rows: int, ranges: list[tuple[int, int]], check_only: bool = False
    ) -> None:
        """Writes the actions of one agent, or (None) of all rows."""
        layout, space = self.agent_spaces.action_layouts[agent or 0], self.agent_spaces.action_spaces[agent or 0]
        leaves = [
            checked_actions(actions, leaf, leaf_space, rows)
            for leaf, leaf_space in zip(layout.leaves, leaf_spaces(space))
        ]
        if check_only:
            return
        agents, target = self.agents_per_env, self.block.arrays["actions"]
        views = layout.leaf_views(target if agent is None else target[agent::agents])
        scale = agents if agent is None else 1
        for view, values in zip(views, leaves):
            at = 0
            for lo, hi in ranges:
                view[lo * scale : hi * scale] = values[at : at + (hi - lo) * scale]
                at += (hi - lo) * scale

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the envs."""
        raise NotImplementedError


def _with_gymnasium_spaces(given: AgentSpaces) -> AgentSpaces:
    """The same agents with Gymnasium's spaces; some envs have classes of their own that look like them."""
    if all(isinstance(space, spaces.Space) for space in (*given.observation_spaces, *given.action_spaces)):
        return given
    observations, actions = (
        tuple(space if isinstance(space, spaces.Space) else from_json(to_json(space)) for space in each)
        for each in (given.observation_spaces, given.action_spaces)
    )
    return replace(given, observation_spaces=observations, action_spaces=actions)


class PythonSerial(PythonVec):
    """Python envs stepped one after the other in this process: the reference for `process`."""

    backend = "serial"

    def __init__(self, slots: Sequence[Any], *, num_groups: int = 1, **options: Any) -> None:
        from shoal.vector.runner import Runner

        agent_spaces = slots[0].agent_spaces
        total = sum(slot.envs for slot in slots)
        if len(slots) % num_groups:
            raise ConfigError(f"num_groups={num_groups} does not divide the {len(slots)} envs.")
        block = Block(agent_spaces, total)
        size = len(slots) // num_groups
        autoreset = options.get("autoreset", "same_step")
        self._runners, lo = [], 0
        for k in range(num_groups):
            runner = Runner(slots[k * size : (k + 1) * size], block, lo, autoreset)
            self._runners.append(runner)
            lo = runner.hi
        ranges = [(runner.lo, runner.hi) for runner in self._runners]
        batch = total // num_groups if num_groups > 1 else None
        super().__init__(agent_spaces, total, block, ranges, batch_envs=batch, **options)
        self._info_rows: dict[int, InfoRows] = {}
        self._options: Info | None = None

    def _post(self, workers: Sequence[int], command: int) -> None:
        from shoal.vector.faults import env_crashed

        for worker in workers:
            runner = self._runners[worker]
            try:
                self._info_rows[worker] = runner.reset(self._options) if command == RESET else runner.step()
            except Exception as error:
                place = int(runner.place[0])
                seed = runner.seeds[place - runner.lo]
                raise env_crashed(error, place, seed, runner.steps, command == RESET, None) from error
        self._options = None

    def _wait(self, workers: Sequence[int], need: int) -> list[int]:
        return list(workers)

    def _fetch(self, worker: int) -> InfoRows:
        return self._info_rows.pop(worker, [])

    def _send_options(self, options: Info) -> None:
        self._options = options

    def call_envs(self, name: str, env_ids: Sequence[int] | None, args: tuple[Any, ...], kwargs: Info) -> list[Any]:
        """Calls a method of chosen envs, or reads an attribute."""
        from shoal.vector.faults import call_env

        ids = range(self.num_envs) if env_ids is None else env_ids
        envs = [next(r for r in self._runners if r.lo <= number < r.hi).env(number) for number in ids]
        return [call_env(env, name, args, kwargs) for env in envs]

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the envs."""
        for runner in self._runners:
            runner.close()
