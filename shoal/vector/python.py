"""PythonVec: a batch of Python envs. What `serial` and `process` share: actions in, results and infos out.

The envs are divided into units, each a contiguous range: one worker process, or one part of the serial loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.errors import ActionError, ConfigError, UsageError
from shoal.spec import AgentSpaces, Array, map_leaves
from shoal.vector.actions import checked_actions, leaf_spaces
from shoal.vector.base import AUTORESET, Result, VecEnv, check_reset_mask, check_seeds, has_true
from shoal.vector.block import Block
from shoal.vector.slots import Info, InfoRows
from shoal.vector.stats import EpisodeSums, GameSums

ROW_KINDS = "obs final_obs rewards terminated truncated done alive final_return final_length".split()

RESET, STEP, CALL, CLOSE = range(4)  # the commands for a unit


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


class _Infos(VectorEnv[Any, Any, Any]):
    """Gymnasium's own way to merge the infos of `count` rows into one dict of arrays."""

    def __init__(self, count: int) -> None:
        self.num_envs = count

    def merge(self, infos: Info, info: Info, row: int) -> Info:
        return self._add_info(infos, info, row)


class PythonVec(VecEnv):
    """Python envs behind the VecEnv API. Subclasses define how units get their commands and how to wait for them."""

    def __init__(
        self,
        agent_spaces: AgentSpaces,
        num_envs: int,
        block: Block,
        units: Sequence[tuple[int, int]],
        *,
        seed: int | None = None,
        batch_envs: int | None = None,
        zero_copy: bool = False,
        copy: bool = False,
        autoreset: str = "same_step",
        render_mode: str | None = None,
    ) -> None:
        self.agent_spaces, self.num_envs, self.block, self.units = agent_spaces, num_envs, block, list(units)
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
        self._started, self._closing = False, False
        self._need = len(self.units)
        if batch_envs is not None:
            self._need = batch_envs * len(self.units) // num_envs
        self._in_flight: list[int] = []  # units, in the order they were sent
        self._received: list[int] = []  # units of the last recv, in its order
        self._ranges: dict[tuple[int, int], EnvRange] = {}
        self._all, self._every = self._range(0, num_envs), list(range(len(self.units)))
        space, self._plain_actions = agent_spaces.action_spaces[0], None
        if self.agents_per_env == 1 and isinstance(space, spaces.Discrete):  # the common case, without a detour
            self._plain_actions = block.leaf_views("actions")[0]
            self._lowest, self._highest = int(space.start), int(space.start + space.n - 1)
        self._stats = EpisodeSums()
        self._games = GameSums(num_envs, self.agents_per_env) if self.agents_per_env > 1 else None
        self._told: dict[int, int] = {}  # the last command of each unit
        self._known_ids: dict[tuple[str, bytes], list[int]] = {}  # units by what env_id was

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
        """Of batches that are always the same: num_groups, or a batch_size with zero_copy. Otherwise all envs."""
        size = self._need
        if size == len(self.units) or (size > 1 and not self.zero_copy):
            return ((0, self.num_envs),)
        starts = range(0, len(self.units) - size + 1, size)
        return tuple((self.units[k][0], self.units[k + size - 1][1]) for k in starts)

    # ---- what subclasses define ----

    def _post(self, units: Sequence[int], command: int) -> None:
        raise NotImplementedError

    def _wait(self, units: Sequence[int], need: int) -> list[int]:
        """Waits until `need` of the units are done and returns those that are, earliest first."""
        raise NotImplementedError

    def _fetch(self, unit: int) -> InfoRows:
        """The infos of a unit that is done. Raises what its envs raised."""
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
        units = list(range(len(self.units)))
        self._tell(units, RESET)
        mail = self._collect(self._wait(units, len(units)))
        self._started, self._received = True, units
        infos = self._infos(self._all, mail)
        return map_leaves(np.copy, self._all.obs) if self.copy else self._all.obs, infos

    def step(self, actions: Any) -> Result:
        """One transition of every env."""
        self._refuse_before("step")
        if self._in_flight:
            raise UsageError("step() while envs are in flight. Call recv() for them first.")
        units = self._every
        self._take_actions(actions, [(0, self.num_envs)])
        self._tell(units, STEP)
        mail = self._collect(self._wait(units, len(units)))
        return self._result(self._all, mail)

    def async_reset(self, *, seed: int | Sequence[int] | None = None) -> None:
        """Starts episodes without waiting."""
        self._prepare_reset(seed, None)
        units = list(range(len(self.units)))
        self._tell(units, RESET)
        self._in_flight, self._started, self._received = units, True, []

    def send(self, actions: Any, env_id: Array | None = None) -> None:
        """Steps the envs last received (or those of `env_id`, whole units in any order) and returns at once."""
        self._refuse_before("send")
        units = self._received if env_id is None else self._units_of(np.asarray(env_id))
        if not units or set(units) & set(self._in_flight):
            raise UsageError("send() to envs that do not wait for actions. Call recv() first.")
        self._take_actions(actions, [self.units[unit] for unit in units])
        self._tell(units, STEP)
        self._in_flight += units
        self._received = [unit for unit in self._received if unit not in units]

    def recv(self) -> Result:
        """The first batch of envs that is ready, first come first served. `infos["env_id"]` says which."""
        self._refuse_before("recv")
        if not self._in_flight:
            raise UsageError("recv() with nothing in flight. Call async_reset() or send() first.")
        if len(self.units) == 1:
            mail = self._collect(self._wait(self._in_flight, 1))
            self._in_flight, self._received = [], self._every
            return self._received_result(self._all, mail, self._all.env_id)
        need = min(self._need, len(self._in_flight))
        units = self._wait_block(need) if self.zero_copy else self._wait(self._in_flight, need)[:need]
        self._in_flight = [unit for unit in self._in_flight if unit not in units]
        ordered = sorted(units)
        self._received = ordered
        mail = self._collect(ordered)
        lo, hi = self.units[ordered[0]][0], self.units[ordered[-1]][1]
        if hi - lo == sum(self.units[u][1] - self.units[u][0] for u in ordered):
            envs = self._range(lo, hi)
            return self._received_result(envs, mail, envs.env_id)
        return self._gathered(ordered, mail)

    def _received_result(self, envs: EnvRange, mail: InfoRows, env_id: Array) -> Result:
        result = self._result(envs, mail)
        result[4]["env_id"] = env_id
        if self._skips_steps:
            result[4]["alive"] = self._alive_now(envs)
        return result

    def _wait_block(self, need: int) -> list[int]:
        """With zero_copy: the earliest whole block of neighbours, so that its rows are one piece of memory."""
        count = need
        while True:
            ready = {unit: place for place, unit in enumerate(self._wait(self._in_flight, count))}
            blocks = [range(start, start + need) for start in range(0, len(self.units) - need + 1, need)]
            whole = [block for block in blocks if all(unit in ready for unit in block)]
            if whole:  # first come, first served: else the lowest block could starve the others
                return list(min(whole, key=lambda block: max(ready[unit] for unit in block)))
            count = min(len(ready) + 1, len(self._in_flight))

    def render(self) -> tuple[Any, ...]:
        """A frame of every env, by its own render()."""
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
        return self._stats.drain()

    def current_infos(self) -> Info:
        """Of all rows: whether they are alive."""
        return {"alive": self._alive_now(self._all)}

    # ---- parts ----

    def _alive_now(self, envs: EnvRange) -> Array:
        """(rows,) whether a row's next step is a transition: it is in the game, and its env has not ended."""
        alive: Array = envs.alive & ~np.repeat(envs.ended, self.agents_per_env)
        return alive

    def _range(self, lo: int, hi: int) -> EnvRange:
        if (lo, hi) not in self._ranges:
            self._ranges[lo, hi] = EnvRange(self.block, lo, hi)
        return self._ranges[lo, hi]

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
        if self._in_flight:  # late answers are dropped
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

    def _collect(self, units: Sequence[int]) -> InfoRows:
        mail: InfoRows = []
        for unit in units:
            mail += self._fetch(unit)
        arrays = self.block.arrays
        if self._games is None and not has_true(arrays["done"]):  # nothing ended anywhere: the common case
            return mail
        for unit in units:
            lo, hi = self.units[unit]
            if self._games is not None:
                self._games.add(self._stats, arrays, lo, hi, self._told[unit] == STEP)
            elif (done := arrays["done"][lo:hi]).any():
                self._stats.add(arrays["final_return"][lo:hi][done], arrays["final_length"][lo:hi][done])
        return mail

    def _tell(self, units: Sequence[int], command: int) -> None:
        if self._games is not None:
            self._told |= dict.fromkeys(units, command)
        self._post(units, command)

    def _infos(self, found: EnvRange, mail: InfoRows) -> Info:
        """Gymnasium's vector infos from the dicts of single rows."""
        infos: Info = {}
        if self.agents_per_env > 1:
            infos["alive"] = found.alive.copy() if self.copy else found.alive
            infos["_alive"] = np.ones(len(found.alive), np.bool_)
        if mail:
            merger = _Infos(len(found.rewards))
            start = found.rows.start
            # by row, as Gymnasium merges them: the first to have a key says its dtype, whichever worker was first
            for row, final, info in sorted(mail, key=itemgetter(0)):
                infos = merger.merge(infos, {"final_info": info} if final else info, row - start)
        if has_true(found.done):
            done = found.done.copy()
            episode = {"r": found.final_return.copy(), "l": found.final_length.copy(), "_r": done, "_l": done}
            final_info = infos.setdefault("final_info", {})
            if "episode" not in final_info:
                final_info["episode"], final_info["_episode"] = episode, done
            infos["_final_info"] = done
            if self._same_step or self.agents_per_env > 1:  # an agent that is out early has its last obs only there
                infos["final_obs"] = map_leaves(np.copy, found.final_obs) if self.copy else found.final_obs
                infos["_final_obs"] = done
        return infos

    def _result(self, found: EnvRange, mail: InfoRows) -> Result:
        infos = self._infos(found, mail)
        if self.copy:
            flags = (found.rewards.copy(), found.terminated.copy(), found.truncated.copy())
            return (map_leaves(np.copy, found.obs), *flags, infos)
        return found.obs, found.rewards, found.terminated, found.truncated, infos

    def _gathered(self, units: list[int], mail: InfoRows) -> Result:
        """Copies units that are not neighbours into one piece."""
        count = sum(hi - lo for lo, hi in (self.units[unit] for unit in units))
        block = Block(self.agent_spaces, count)
        agents, at = self.agents_per_env, 0
        moved: dict[int, int] = {}
        for unit in units:
            lo, hi = self.units[unit]
            for name in ROW_KINDS:
                block.arrays[name][at * agents : (at + hi - lo) * agents] = self.block.arrays[name][
                    lo * agents : hi * agents
                ]
            block.arrays["ended"][at : at + hi - lo] = self.block.arrays["ended"][lo:hi]
            moved |= {lo * agents + k: at * agents + k for k in range((hi - lo) * agents)}
            at += hi - lo
        found = EnvRange(block, 0, count)
        env_id = np.concatenate([np.arange(*self.units[unit], dtype=np.int32) for unit in units])
        return self._received_result(found, [(moved[row], final, info) for row, final, info in mail], env_id)

    def _units_of(self, env_id: Array) -> list[int]:
        key = env_id.dtype.str, env_id.tobytes()
        if key not in self._known_ids:
            if len(self._known_ids) > 1000:
                self._known_ids.clear()
            self._known_ids[key] = self._find_units(env_id)
        return self._known_ids[key]

    def _find_units(self, env_id: Array) -> list[int]:
        wanted = env_id.tolist()
        units, at = [], 0
        starts = {lo: unit for unit, (lo, _hi) in enumerate(self.units)}
        while at < len(wanted):
            unit = starts.get(wanted[at])
            if unit is None or wanted[at : at + self._size(unit)] != list(range(*self.units[unit])):
                raise ConfigError("env_id must name whole units: pass infos['env_id'] of a recv().")
            units.append(unit)
            at += self._size(unit)
        return units

    def _size(self, unit: int) -> int:
        lo, hi = self.units[unit]
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
        few = actions.tolist()  # of so few, Python is quicker
        return not (min(few) < self._lowest or max(few) > self._highest)

    def _write_agent(
        self, actions: Any, agent: int | None, rows: int, ranges: list[tuple[int, int]], check_only: bool = False
    ) -> None:
        """Writes the actions of one agent, or (None) of all rows."""
        layout, space = self.agent_spaces.action_layouts[agent or 0], self.agent_spaces.action_spaces[agent or 0]
        parts = [
            checked_actions(actions, leaf, leaf_space, rows)
            for leaf, leaf_space in zip(layout.leaves, leaf_spaces(space))
        ]
        if check_only:
            return
        agents, target = self.agents_per_env, self.block.arrays["actions"]
        views = layout.leaf_views(target if agent is None else target[agent::agents])
        scale = agents if agent is None else 1
        for view, part in zip(views, parts):
            at = 0
            for lo, hi in ranges:
                view[lo * scale : hi * scale] = part[at : at + (hi - lo) * scale]
                at += (hi - lo) * scale

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the envs."""
        raise NotImplementedError


class PythonSerial(PythonVec):
    """Python envs stepped one after the other in this process: the meaning of `process`."""

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
        self._runners, units, at = [], [], 0
        for group in range(num_groups):
            part = slots[group * size : (group + 1) * size]
            runner = Runner(part, block, at, autoreset)
            self._runners.append(runner)
            units.append((runner.lo, runner.hi))
            at = runner.hi
        batch = total // num_groups if num_groups > 1 else None
        super().__init__(agent_spaces, total, block, units, batch_envs=batch, **options)
        self._mails: dict[int, InfoRows] = {}
        self._options: Info | None = None

    def _post(self, units: Sequence[int], command: int) -> None:
        from shoal.vector.faults import env_crashed

        for unit in units:
            runner = self._runners[unit]
            try:
                self._mails[unit] = runner.reset(self._options) if command == RESET else runner.step()
            except Exception as error:
                place = int(runner.place[0])
                seed = runner.seeds[place - runner.lo]
                raise env_crashed(error, place, seed, runner.steps, command == RESET, None) from error
        self._options = None

    def _wait(self, units: Sequence[int], need: int) -> list[int]:
        return list(units)

    def _fetch(self, unit: int) -> InfoRows:
        return self._mails.pop(unit, [])

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
