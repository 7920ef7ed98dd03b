"""NativeVec: a batch of native envs stepped in this process. The base class of `serial` and `threads`."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal.distributions import Distribution
from shoal.errors import ActionError, ConfigError, SnapshotError, UsageError
from shoal.memory import free_bytes
from shoal.native import lib
from shoal.native.batch import Memory
from shoal.native.lib import Module
from shoal.spec import Array
from shoal.vector.actions import as_array, choices_of, mixed_rows
from shoal.vector.base import AUTORESET, Result, check_reset_mask
from shoal.vector.native_base import NativeVecBase, check_ids, check_params
from shoal.vector.snapshot import check_records, pack_snapshot, read_snapshot
from shoal.wrappers import Wrap

DRAW_CAPACITY = 4096  # shapes
POINT_CAPACITY = 16384  # corners of all polygons


def _readonly(array: Array) -> Array:
    """A read-only view: the memory is the envs' state."""
    view: Array = array.view()
    view.flags.writeable = False
    return view


class EnvRange:
    """A range of envs [lo, hi) and views of every buffer on its rows."""

    def __init__(self, memory: Memory, lo: int, hi: int, mode: AutoresetMode) -> None:
        spec, arrays = memory.module.spec, memory.arrays
        rows = slice(lo * spec.agents, hi * spec.agents)
        self.lo, self.hi, self.waits_for_actions = lo, hi, False
        self.env_id = _readonly(np.arange(lo, hi, dtype=np.int32))
        self.action_shape = arrays["actions"][rows].shape
        self.obs, self.rewards = arrays["obs"][rows], arrays["rewards"][rows]
        self.terminated, self.truncated = arrays["terminated"][rows], arrays["truncated"][rows]
        self.done, self.final_obs = arrays["done"][rows], arrays["final_obs"][rows]
        self.final_return, self.final_length = arrays["final_return"][rows], arrays["final_length"][rows]
        self.stat_names = [stat.name for stat in spec.stats]
        self.final_stats = arrays["final_stats"][:, lo:hi]
        self.row_stats = self.final_stats  # one number per env, given to each of its agents
        if spec.agents > 1:
            self.row_stats = np.zeros((len(self.stat_names), rows.stop - rows.start), np.float32)
        self.tick, self.ended = arrays["tick"][lo:hi], arrays["ended"][lo:hi]
        self.agents, self.has_final_obs = spec.agents, mode == AutoresetMode.SAME_STEP
        self.always: dict[str, Array] = {}
        present = _readonly(np.ones(rows.stop - rows.start, np.bool_))
        self._alive = arrays["alive"][rows]
        if spec.agents > 1:
            self.always |= {"alive": _readonly(self._alive), "_alive": present}
        if spec.mask_size:
            self.always |= {"action_mask": _readonly(arrays["masks"][rows]), "_action_mask": present}

    def alive_now(self) -> Array:
        """(rows,) whether a row's next step is a transition: it is in the game, and its env has not ended."""
        alive: Array = self._alive & ~np.repeat(self.ended, self.agents)
        return alive

    def infos(self, finished: int, copy: bool) -> dict[str, Any]:
        """Gymnasium's vector infos: arrays over the rows, `_key` says for which rows a key holds."""
        infos: dict[str, Any] = {key: value.copy() for key, value in self.always.items()} if copy else {**self.always}
        if finished:
            done = self.done.copy() if copy else self.done
            length, total = self.final_length, self.final_return
            final: dict[str, Any] = {
                "episode": {
                    "r": total.copy() if copy else total,
                    "l": length.copy() if copy else length,
                    "_r": done,
                    "_l": done,
                },
                "_episode": done,
            }
            over = done  # stats belong to a game: an agent that is out before its end has none
            if self.agents > 1 and self.stat_names:
                games = np.flatnonzero(self.tick == 0 if self.has_final_obs else self.ended)
                over = np.zeros_like(done)
                over.reshape(-1, self.agents)[games] = done.reshape(-1, self.agents)[games]
                stats_by_game = self.row_stats.reshape(len(self.stat_names), -1, self.agents)
                stats_by_game[:, games] = self.final_stats[:, games, None]
            for name, values in zip(self.stat_names, self.row_stats):
                final[name] = values.copy() if copy else values
                final[f"_{name}"] = over
            infos["final_info"], infos["_final_info"] = final, done
            if self.has_final_obs or self.agents > 1:  # an agent that is out early has its last obs only in final_obs
                infos["final_obs"] = self.final_obs.copy() if copy else self.final_obs
                infos["_final_obs"] = done
        return infos

    def result(self, finished: int, copy: bool) -> Result:
        """The 5-tuple of a step."""
        infos = self.infos(finished, copy)
        if copy:
            return self.obs.copy(), self.rewards.copy(), self.terminated.copy(), self.truncated.copy(), infos
        return self.obs, self.rewards, self.terminated, self.truncated, infos


class NativeVec(NativeVecBase):
    """Native envs stepped in this process. Subclasses define how a range function is run over the envs."""

    def __init__(
        self,
        module: Module,
        num_envs: int,
        *,
        seed: int | None = None,
        num_groups: int = 1,
        copy: bool = False,
        autoreset: str = "same_step",
        render_mode: str | None = None,
        params: dict[str, Any] | None = None,
        wrap: Wrap | None = None,
    ) -> None:
        super().__init__(
            module, num_envs, seed=seed, copy=copy, autoreset=autoreset, render_mode=render_mode, wrap=wrap
        )
        if isinstance(num_groups, bool) or not isinstance(num_groups, int) or not 1 <= num_groups <= min(num_envs, 64):
            raise ConfigError(f"num_groups={num_groups!r} must be an int in 1 .. {min(num_envs, 64)}.")
        checked = self._check_params(params or {})
        _refuse_beyond_memory(Memory.bytes_needed(module, self.num_envs, self.wrap), self.num_envs)
        self.memory = Memory(module, self.num_envs, autoreset=list(AUTORESET).index(autoreset), wrap=self.wrap)
        self.memory.set_params(checked)
        self.memory.table.made = self.memory.table.fingerprint()
        self.actions = self.memory.arrays["actions"]
        self.alive = self.memory.arrays["alive"]
        self.ended = self.memory.arrays["ended"]  # (num_envs,) whether an env waits for a reset; never under same_step
        self._steps_all = False  # step() may be called: started, not closed, nothing in flight
        self._disabled, self._skips_steps = autoreset == "disabled", autoreset == "next_step"
        mode = AUTORESET[autoreset]
        self._all = EnvRange(self.memory, 0, self.num_envs, mode)
        edges = range_edges(self.num_envs, num_groups)
        self._ranges = [EnvRange(self.memory, lo, hi, mode) for lo, hi in pairwise(edges)]
        self._in_flight: deque[EnvRange] = deque()
        self._last_received: EnvRange | None = None
        self._address, self._take = self.memory.address, module.take
        self._action_shape = self.actions.shape

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of envs that `recv` returns one at a time."""
        return tuple((envs.lo, envs.hi) for envs in self._ranges)

    @property
    def native_memory(self) -> Memory | None:
        """Its memory; None if a subclass or the object itself defines `step`, `send` or `recv` in another way."""
        names = ("step", "send", "recv")
        is_own = any(name in vars(self) or getattr(type(self), name) is not getattr(NativeVec, name) for name in names)
        if is_own:
            return None
        if not self._in_flight:
            self._move_obs(False)  # a collector keeps the addresses of all arrays
        return self.memory

    def check_idle(self) -> None:
        """Raises unless all envs wait for actions. Afterwards `arrays["obs"]` stays the same until the next step."""
        if not self._steps_all:
            self._refuse_step()
        self._move_obs(False)

    def _move_obs(self, is_step: bool) -> None:
        """`Memory.move_obs`, with the views of all ranges."""
        if self.memory.move_obs(is_step):
            obs = self.memory.arrays["obs"]
            self._all.obs = obs
            for envs in self._ranges:
                envs.obs = obs[envs.lo : envs.hi]  # an env has one row where observations move

    # ---- how a range function is run: what subclasses define ----

    def _run(self, function: Any) -> int:
        """Runs a range function over all envs and returns the sum of its results."""
        raise NotImplementedError

    def _submit(self, index: int, envs: EnvRange, function: Any) -> None:
        """Starts a range function over a range of envs."""
        raise NotImplementedError

    def _wait(self, index: int) -> int:
        """Waits for the function submitted for a range and returns the sum of its results."""
        raise NotImplementedError

    # ---- the Gymnasium API ----

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Starts episodes in all envs, or in those of `options["reset_mask"]`. See `VecEnv.reset`."""
        self._prepare_reset(seed, options)
        self._run(self.module.reset)
        self.memory.set_reset(None, None)
        self._started = self._steps_all = True
        for envs in self._ranges:  # every env has a state now, and nothing is in flight
            envs.waits_for_actions = True
        everything = self._all
        return (everything.obs.copy() if self.copy else everything.obs), everything.infos(0, self.copy)

    def step(self, actions: Any) -> Result:
        """One transition of every env. See `VecEnv`."""
        if not self._steps_all:
            self._refuse_step()
        self._refuse_ended(self._all)
        self._take_actions(actions, self._all)
        if self.memory.slide is None:
            return self._all.result(self._run(self.module.step), self.copy)
        self._move_obs(True)
        self.memory.struct.slides = 1
        try:
            finished = self._run(self.module.step)
        finally:
            self.memory.struct.slides = 0
        return self._all.result(finished, self.copy)

    def async_reset(self, *, seed: int | Sequence[int] | None = None) -> None:
        """Starts episodes in every range; `recv` returns the ranges in order."""
        self._prepare_reset(seed, None)
        self._started, self._steps_all = True, False
        for index, envs in enumerate(self._ranges):
            envs.waits_for_actions = False
            self._submit(index, envs, self.module.reset)
            self._in_flight.append(envs)

    def send(self, actions: Any, env_id: Array | None = None) -> None:
        """Starts a step of one range of envs and returns at once."""
        if self.closed or not self._started:
            self._refuse_step()
        envs = self._range_for(env_id)
        self._refuse_ended(envs)
        self._take_actions(actions, envs)
        envs.waits_for_actions, self._steps_all = False, False
        self._in_flight.append(envs)
        self._submit(self._ranges.index(envs), envs, self.module.step)

    def recv(self) -> Result:
        """Waits for the range that was sent first. `infos["env_id"]` says which envs it holds."""
        if self.closed:
            self._refuse_step()
        if not self._in_flight:
            raise UsageError("recv() with nothing in flight. Call async_reset() or send() first.")
        envs = self._in_flight[0]
        finished = self._wait(self._ranges.index(envs))  # after an interrupt here recv() can be called again
        self._in_flight.popleft()
        envs.waits_for_actions, self._last_received = True, envs
        self._steps_all = not self._in_flight and self._started
        result = envs.result(finished, self.copy)
        result[4]["env_id"] = envs.env_id.copy() if self.copy else envs.env_id
        if self._skips_steps:
            result[4]["alive"] = envs.alive_now()
        return result

    def render(self) -> tuple[Array, ...]:
        """A frame of every env. `frame(env)` draws one."""
        return tuple(self.frame(env) for env in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Called once by `close`."""
        self._steps_all = False

    # ---- beyond Gymnasium ----

    def drain_stats(self) -> dict[str, Any]:
        """`{"episodes": n, "return": {"mean", "min", "max"}, "length": …, <stat>: …}` since the last call."""
        self._refuse_in_flight("drain_stats")
        stats, self.agent_stats = self.memory.drain()
        return stats

    def set_params(self, **params: Any) -> None:
        """Changes params from the next step on: one value for all envs, or one for each.

        A distribution such as `shoal.uniform(1, 2)` is drawn from at the start of each episode.
        """
        self._refuse_in_flight("set_params")
        self.memory.set_params(self._check_params(params))
        self.memory.table.is_changed = True

    def give_params(self, names: Sequence[str]) -> dict[str, Array]:
        """Arrays of an entry for each env, from which every new episode takes these params. Write into them."""
        self._refuse_in_flight("give_params")
        return self.memory.give_params(names)

    def get_params(self) -> dict[str, Array]:
        """Every param as an array of one value for each env; of a distribution, the value that was drawn last."""
        self._refuse_in_flight("get_params")
        return self.memory.table.read()

    def snapshot(self, env_ids: Sequence[int] | Array | None = None) -> bytes:
        """The whole state of some envs (default: all) as bytes. `restore` continues from there to the bit."""
        if not self._started:
            raise UsageError("snapshot() before reset(): the envs have no state.")
        self._refuse_in_flight("snapshot")
        ids = self._check_ids(env_ids)
        records = np.zeros((len(ids), self.module.record_bytes), np.uint8)
        self.module.save(self._address, ids.ctypes.data, len(ids), records.ctypes.data)
        return pack_snapshot(self.module, records, self.wrap, self.memory.table, self.memory.extras(ids))

    def restore(self, blob: bytes, env_ids: Sequence[int] | Array | None = None) -> Array:
        """Puts a snapshot's envs into the envs `env_ids` (default: all), in order, and returns the observations.

        Flags and rewards of those rows become zero: they belong to the step before the snapshot.
        """
        if self.closed:
            self._refuse_step()
        self._refuse_in_flight("restore")
        ids = self._check_ids(env_ids)
        if not self._started and len(ids) < self.num_envs:
            raise UsageError("restore() of some envs before reset(): the other envs have no state.")
        saved = read_snapshot(self.module, blob, len(ids), self.wrap)
        memory, records = self.memory, saved.records
        before = memory.table.state()
        if saved.params is not None and saved.has_params_for(memory.table):
            memory.put_params(ids, saved.params, saved.distributions)
        try:
            check_records(self.module, records, ids, self._address)
            memory.put_extras(ids, saved.extras)
        except SnapshotError:
            memory.set_table(*before)
            raise
        if not self._started:
            self._started = self._steps_all = True
            for envs in self._ranges:
                envs.waits_for_actions = True
        self.module.load(self._address, ids.ctypes.data, len(ids), records.ctypes.data)
        if "param_rng" not in saved.extras:
            memory.derive_streams(ids)
        return self._all.obs.copy() if self.copy else self._all.obs

    def current_infos(self) -> dict[str, Any]:
        """The "alive" and "action_mask" of all rows."""
        self._refuse_in_flight("current_infos")
        infos = {"alive": self._all.alive_now()}
        if self.mask_size:
            infos["action_mask"] = self.memory.arrays["masks"].copy()
        return infos

    def draw(self, env: int = 0) -> dict[str, Any]:
        """A picture of an env as a display list: `{"view": (left, top, right, bottom), "background", "items"}`."""
        drawn, items = self._draw(env)
        return {
            "view": (drawn.left, drawn.top, drawn.right, drawn.bottom),
            "background": f"#{drawn.background:06x}",
            "items": [_shape(item, drawn) for item in items[: min(drawn.count, DRAW_CAPACITY)]],
        }

    def frame(self, env: int = 0, width: int = 480) -> Array:
        """A picture of an env as (height, width, 3) uint8 pixels, in the env's proportions."""
        if not isinstance(width, (int, np.integer)) or not 16 <= width <= 8192:
            raise ConfigError(f"width={width!r} must be an int in 16 .. 8192.")
        drawn, _items = self._draw(env)
        if (
            drawn.left == drawn.right
            or not 1 / 64 <= abs((drawn.bottom - drawn.top) / (drawn.right - drawn.left)) <= 64
        ):
            view = (drawn.left, drawn.top, drawn.right, drawn.bottom)
            raise ConfigError(
                f"{self.native_spec.name}: draw_view got {view}. Its height must be 1/64 to 64 times its width."
            )
        height = round(width * abs((drawn.bottom - drawn.top) / (drawn.right - drawn.left)))
        height = max(16, height + height % 2)  # even: video codecs require it
        pixels = np.empty((height, width, 3), np.uint8)
        lib.load_core().raster(ctypes.byref(drawn), pixels.ctypes.data, width, height)
        return pixels

    def curves(self, env: int = 0, agent: int = 0) -> dict[str, Array]:
        """The curves that an env's header exports for viewers, each (curves, points, 4): x, y, time, value."""
        shapes = self.module.curve_shapes
        if not shapes:
            raise ConfigError(f"{self.native_spec.name} has no curves. A header exports them with ENV_CURVES.")
        self._check_picture(env)
        if not isinstance(agent, (int, np.integer)) or not 0 <= agent < self.agents_per_env:
            raise ConfigError(f"agent={agent} must be one of 0 .. {self.agents_per_env - 1}.")
        points = np.empty((sum(count * points for count, points, _ in shapes.values()), 4), np.float32)
        self.module.curves(self._address, env, agent, points.ctypes.data)
        edges = np.cumsum([count * points for count, points, _ in shapes.values()])[:-1]
        parts = np.split(points, edges)
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts)}

    # ---- checks ----

    def _check_params(self, params: dict[str, Any]) -> dict[str, Array | Distribution]:
        return check_params(self.native_spec, params, self.num_envs)

    def _check_ids(self, env_ids: Sequence[int] | Array | None) -> Array:
        return check_ids(env_ids, self.num_envs)

    def _prepare_reset(self, seed: Any, options: dict[str, Any] | None) -> None:
        if self.closed:
            self._refuse_step()
        mask = None
        if options is not None and not isinstance(options, dict):
            raise ConfigError(f"options={options!r} must be a dict.")
        for key, value in (options or {}).items():
            if key != "reset_mask":
                raise ConfigError(f"options has '{key}'; the only option of reset is 'reset_mask'.")
            mask = check_reset_mask(value, self.num_envs)
        if mask is not None and not self._started:
            raise UsageError("reset(options={'reset_mask': …}) before a full reset(): the other envs have no state.")
        seeds = self._seeds_for_reset(seed)
        self._finish_in_flight()  # they read the old seeds and mask
        self._next_seeds = None
        self.memory.set_reset(seeds, mask)

    def _take_actions(self, actions: Any, envs: EnvRange) -> None:
        """Checks the actions and copies them in. A bad one raises before any env is stepped."""
        if type(actions) is not np.ndarray:
            actions = mixed_rows(actions) if self.native_spec.action_kind == "mix" else as_array(actions)
        take = self._take.get(actions.dtype)
        if take is None or actions.shape != envs.action_shape or not actions.flags.carray:
            take, actions = self._coerce_actions(actions, envs)
        bad = self._run_take(take, ctypes.addressof(ctypes.c_char.from_buffer(actions)), envs)
        if bad >= 0:
            self._refuse_action(actions, bad, envs)

    def _run_take(self, take: Any, address: int, envs: EnvRange) -> int:
        """Checks and copies in the actions at an address. Returns the index of the first bad value, or -1."""
        return int(take(self._address, address, envs.lo, envs.hi))

    def _coerce_actions(self, actions: Array, envs: EnvRange) -> tuple[Any, Array]:
        if actions.shape != envs.action_shape:
            raise ActionError(f"actions have shape {actions.shape}, expected {envs.action_shape}.")
        kind, allowed = actions.dtype.kind, "iuf" if self.native_spec.has_float_actions else "iu"
        if kind not in allowed:
            wanted = "float32" if self.native_spec.has_float_actions else "int64 or int32"
            raise ActionError(f"actions have dtype {actions.dtype}, expected {wanted}.")
        dtype = np.dtype(np.float32 if self.native_spec.has_float_actions else np.int64)
        if actions.dtype == np.uint64 and actions.size and int(actions.max()) >= 2**63:
            raise ActionError(f"actions hold {actions.max()}, which is out of range.")
        return self._take[dtype], np.array(actions, dtype, order="C")

    def _refuse_action(self, actions: Array, bad: int, envs: EnvRange) -> None:
        spec, value = self.native_spec, actions.reshape(-1)[bad]
        row, element = divmod(int(bad), self.module.action_size)
        env, agent = divmod(row, spec.agents)
        where = f"env {envs.lo + env}" + (f", agent {agent}" if spec.agents > 1 else "")
        where += f", element {element}" if self.module.action_size > 1 else ""
        if spec.has_float_actions and not np.isfinite(value):
            raise ActionError(
                f"action {value} of {where} is not finite. Is the policy's output NaN? Nothing was stepped."
            )
        choices = choices_of(spec, element, agent)
        raise ActionError(f"action {value} of {where} is out of range 0 .. {choices - 1}. Nothing was stepped.")

    def _refuse_step(self) -> None:
        self._refuse_closed()
        if not self._started:
            raise UsageError("step before reset. Call reset() once after making the env.")
        raise UsageError("step() while envs are in flight. Call recv() for them first.")

    def _refuse_ended(self, envs: EnvRange) -> None:
        if self._disabled and (ended := self.memory.arrays["ended"][envs.lo : envs.hi]).any():
            raise UsageError(
                f"env {envs.lo + int(ended.argmax())} has ended and autoreset is disabled. "
                "Reset the ended envs first: reset(options={'reset_mask': envs.ended.copy()})."
            )

    def _refuse_in_flight(self, call: str) -> None:
        if self._in_flight:
            raise UsageError(f"{call}() while envs are in flight. Call recv() {len(self._in_flight)} times first.")

    def _finish_in_flight(self) -> None:
        while self._in_flight:
            self._wait(self._ranges.index(self._in_flight[0]))
            self._in_flight.popleft()

    def _range_for(self, env_id: Array | None) -> EnvRange:
        if env_id is None:
            envs = self._last_received
            if envs is None and len(self._ranges) == 1:
                envs = self._ranges[0]
            if envs is None or not envs.waits_for_actions:
                raise UsageError("send() with no envs that wait for actions. Call recv() first, or pass env_id.")
            return envs
        ids = np.asarray(env_id)
        for envs in self._ranges:
            if np.array_equal(ids, envs.env_id):
                if not envs.waits_for_actions:
                    raise UsageError(f"envs {envs.lo} .. {envs.hi - 1} are in flight. Call recv() first.")
                return envs
        edges = ", ".join(f"{envs.lo}..{envs.hi - 1}" for envs in self._ranges[:8])
        raise ConfigError(f"env_id must be one of the ranges {edges}: pass infos['env_id'] of a recv().")

    def _draw(self, env: int) -> tuple[lib.Draw, Any]:
        if not self.native_spec.has_draw:
            raise ConfigError(f"{self.native_spec.name} has no env_draw: it cannot be rendered.")
        self._check_picture(env)
        items = (lib.DrawItem * DRAW_CAPACITY)()
        points = (ctypes.c_float * (2 * POINT_CAPACITY))()
        drawn = lib.Draw(
            right=1.0, bottom=1.0, capacity=DRAW_CAPACITY, items=items, points=points, point_capacity=POINT_CAPACITY
        )
        self.module.draw(self._address, env, ctypes.byref(drawn))
        return drawn, items

    def _check_picture(self, env: int) -> None:
        self._refuse_in_flight("render")
        if not isinstance(env, (int, np.integer)) or not 0 <= env < self.num_envs:
            raise ConfigError(f"env={env} must be one of 0 .. {self.num_envs - 1}.")
        if not self._started:
            raise UsageError("render before reset: the envs have no state.")


def _shape(item: lib.DrawItem, drawn: lib.Draw) -> dict[str, Any]:
    """One shape of a display list as plain data."""
    kind = lib.DRAW_KINDS[item.kind]
    head = {"kind": kind, "color": f"#{item.color:06x}"}
    if kind == "polygon":
        first = 2 * int(item.a)
        numbers = drawn.points[first : first + 2 * int(item.b)]
        return {**head, "points": [[x, y] for x, y in zip(numbers[::2], numbers[1::2])]}
    text = {"text": item.text.decode("latin-1")} if kind == "text" else {}
    return {**head, **{name: getattr(item, name) for name in "xyabc"}, **text}


def _refuse_beyond_memory(needed: int, num_envs: int) -> None:
    free = free_bytes()
    if free is not None and needed > free:
        raise ConfigError(f"num_envs={num_envs} needs {needed:,} bytes of memory, {free:,} are free. Use fewer envs.")


def range_edges(num_envs: int, num_groups: int) -> list[int]:
    """Edges of `num_groups` ranges of nearly equal size, on multiples of 64 envs (a SIMD block) if there are enough."""
    block = 64 if num_envs >= 64 * num_groups else 1
    blocks = -(-num_envs // block)
    return [min(num_envs, block * (blocks * k // num_groups)) for k in range(num_groups)] + [num_envs]
