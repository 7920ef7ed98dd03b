"""All memory of a batch of native envs: one contiguous numpy array per kind, and the C struct that points to them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.distributions import Distribution
from shoal.errors import SnapshotError
from shoal.native.lib import Batch, Module
from shoal.native.params import PARAM_STREAM, ParamTable, aligned_zeros, side_streams
from shoal.spec import Array
from shoal.wrappers import Wrap


class Memory:
    """The arrays of `Batch` in core/module.c, under the same names. `address` is the argument of the C functions."""

    def __init__(
        self, module: Module, num_envs: int, autoreset: int = 0, poison: int = 0, wrap: Wrap | None = None
    ) -> None:
        self.module, self.num_envs, self.num_rows = module, num_envs, num_envs * module.spec.agents
        self.wrap = wrap or Wrap()
        layout = self._layout(module, num_envs, self.wrap)
        self.arrays = {name: aligned_zeros(shape, dtype) for name, (shape, dtype) in layout.items()}
        self.slide = Slide(module, num_envs, self.wrap) if slides(module, self.wrap) else None
        if self.slide is not None:
            self.arrays["obs"] = self.slide.window()
        self.struct = Batch(num_envs=num_envs, autoreset=autoreset, poison=poison)
        self.address = ctypes.addressof(self.struct)
        set_wrap(self.struct, module, self.wrap)
        for name, array in self.arrays.items():
            setattr(self.struct, name, array.ctypes.data)
        if self.wrap.changes_obs:
            self.struct.history = self.arrays["obs"].ctypes.data
        self.table = ParamTable(module, num_envs)
        self._use_params()

    @property
    def params(self) -> Array:
        """The params: one for all envs, or one for each."""
        return self.table.values

    @staticmethod
    def _layout(module: Module, num_envs: int, wrap: Wrap | None = None) -> dict[str, tuple[Any, Any]]:
        """Shape and dtype of every array."""
        spec, wrap = module.spec, wrap or Wrap()
        obs_shape = wrap.stacked_shape(spec.obs_shape)
        envs, rows, stats = num_envs, num_envs * spec.agents, len(spec.stats)
        action_dtype = np.float32 if spec.has_float_actions else np.int32
        action_shape = (rows,) if spec.action_kind == "discrete" else (rows, module.action_size)
        wrappers: dict[str, tuple[Any, Any]] = {}
        if wrap.draws:
            wrappers["wrap_rng"] = ((num_envs, 4), np.uint32)
        if wrap.sticky > 0:
            wrappers["applied"] = (action_shape, action_dtype)
        if wrap.changes_obs:
            wrappers |= dict.fromkeys(("frames", "final_frames"), ((rows, *spec.obs_shape), spec.obs_dtype))
        return wrappers | {
            "state": (module.state_bytes(num_envs), np.uint8),
            "rng": ((envs, 4), np.uint32),
            "tick": (envs, np.int32),
            "ended": (envs, np.bool_),
            "returns": (rows, np.float32),
            "stats": ((stats, envs), np.float32),
            "actions": (action_shape, action_dtype),
            "obs": ((rows, *obs_shape), spec.obs_dtype),
            "final_obs": ((rows, *obs_shape), spec.obs_dtype),
            "rewards": (rows, np.float32),
            "terminated": (rows, np.bool_),
            "truncated": (rows, np.bool_),
            "done": (rows, np.bool_),
            "alive": (rows, np.bool_),
            "masks": ((rows, spec.mask_size), np.int8),
            "final_return": (rows, np.float32),
            "final_length": (rows, np.int32),
            "final_stats": ((stats, envs), np.float32),
            "episodes": (envs, np.int32),
            "sums": (num_metrics(module) * envs, np.float64),  # shoal_sum_at of core/module.c says what is where
            "lows": ((2 + stats, envs), np.float32),
            "highs": ((2 + stats, envs), np.float32),
        }

    @staticmethod
    def bytes_needed(module: Module, num_envs: int, wrap: Wrap | None = None) -> int:
        """The memory of such a batch, without padding."""
        arrays = Memory._layout(module, num_envs, wrap).values()
        return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in arrays)

    def move_obs(self, is_step: bool) -> bool:
        """Moves the observations on by a frame, before a step of all envs, or back to the start of their memory.

        Returns whether `arrays["obs"]` is another array now.
        """
        if self.slide is None or not (is_step or self.slide.offset):
            return False
        self.arrays["obs"] = self.slide.advance() if is_step else self.slide.rewind()
        self.struct.obs = self.struct.history = self.slide.address + self.slide.offset * self.slide.frame_bytes
        return True

    def set_params(self, values: Mapping[str, Array | Distribution]) -> None:
        """Checked values of shape () for all envs or (num_envs,) for each: the next step uses them.

        A distribution is drawn from at the start of each episode.
        """
        self.table.set(values)
        self.table.collapse()
        self._use_params()

    def give_params(self, names: Sequence[str]) -> dict[str, Array]:
        """Arrays of an entry for each env, from which every new episode takes these params."""
        given = self.table.give(names)
        self._use_params()
        return given

    def put_params(self, ids: Array, values: Array, distributions: Mapping[str, Distribution]) -> None:
        """The params of some envs, and the distributions of all, from a snapshot."""
        self.table.put(ids, values, distributions)
        self._use_params()

    def set_table(self, *state: Any) -> None:
        """Restores what `ParamTable.state` returned."""
        self.table.set_state(*state)
        self._use_params()

    def derive_streams(self, ids: Array) -> None:
        """Starts the streams of some envs' params from their own: for a snapshot that has none."""
        if "param_rng" in self.arrays:
            self.arrays["param_rng"][ids] = side_streams(self.arrays["rng"][ids], PARAM_STREAM)

    # ---- what a snapshot holds besides the records ----

    def extras(self, ids: Array) -> dict[str, Array]:
        """(envs, bytes) of each array, of some envs: see vector/snapshot.py."""
        extras = {name: self._by_env(name)[ids].copy() for name in extra_names(self.wrap, self.table)}
        return extras | self.table.extras(ids)

    def put_extras(self, ids: Array, extras: Mapping[str, Array]) -> None:
        """Puts the arrays of a snapshot into some envs."""
        own = {name: self._by_env(name) for name in extra_names(self.wrap, self.table)}
        check_sizes(extras, own)
        for name, by_env in own.items():
            if name in extras:
                by_env[ids] = extras[name]

    def _by_env(self, name: str) -> Array:
        """(envs, bytes) view of an array. On a CPU the last observations are `obs` itself."""
        array = self.arrays["obs" if name == "history" else name]
        return array.reshape(self.num_envs, -1).view(np.uint8)

    def _use_params(self) -> None:
        """Points the struct to the params, and to the rules by which some are drawn."""
        table, struct = self.table, self.struct
        struct.params, struct.params_stride = table.values.ctypes.data, int(table.is_per_env)
        struct.rules, struct.rule_values = table.rules.ctypes.data, table.rule_values.ctypes.data
        struct.num_rules = len(table.rules) if table.is_drawn else 0
        if table.distributions and "param_rng" not in self.arrays:  # a reset with seeds starts it anew
            self.arrays["param_rng"] = aligned_zeros((self.num_envs, 4), np.uint32)
            self.arrays["param_rng"][:] = side_streams(self.arrays["rng"], PARAM_STREAM)
            struct.param_rng = self.arrays["param_rng"].ctypes.data

    def set_reset(self, seeds: Array | None, mask: Array | None) -> None:
        """The arguments of the next reset: a seed for each env (None: random streams continue), and which envs."""
        self._seeds, self._mask = seeds, mask  # keeps them alive while the struct points to them
        self.struct.seeds = None if seeds is None else seeds.ctypes.data
        self.struct.reset_mask = None if mask is None else mask.ctypes.data

    def drain(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Mean, min and max over the episodes that ended since the last call, also by agent. Clears the sums.

        Each env has its own sums, and they are added in a fixed order: the result does not depend on threads.
        """
        counts = self.arrays["episodes"]
        episodes = int(counts.sum())
        if not episodes:
            return {"episodes": 0}, {}
        has_ended = counts > 0
        first_agent = 2 + len(self.module.spec.stats)
        by_metric, by_env = np.split(self.arrays["sums"], [first_agent * self.num_envs])
        sums = ordered_sums(by_metric.reshape(first_agent, -1))
        if by_env.size:
            sums += ordered_sums(by_env.reshape(self.num_envs, -1).T)
        lows = self.arrays["lows"].min(1, where=has_ended, initial=np.inf).tolist()
        highs = self.arrays["highs"].max(1, where=has_ended, initial=-np.inf).tolist()
        counts[:] = 0
        self.arrays["sums"][:] = 0
        return describe_episodes(self.module, episodes, sums, lows, highs)


def slides(module: Module, wrap: Wrap) -> bool:
    """Whether stacked observations can move through memory: see Slide. The conditions are those of wrap.h."""
    spec = module.spec
    is_whole = wrap.chunk(spec.obs_shape) == int(np.prod(spec.obs_shape))
    return wrap.stack > 1 and wrap.obs_noise == 0 and is_whole and spec.agents == 1 and not module.is_columns


class Slide:
    """Stacked observations that move through memory by one frame per step, so that no older frame is copied.

    With rows A and B and a stack of 3, the batch of a step and of the next one:

        A1 A2 A3 B1 B2 B3 ..        the last frame of A takes the place of B1, which is too old
        .. A2 A3 A4 B2 B3 B4        A4 and B4 are new; the others have not moved

    After MOST steps the batch is copied back to the start. A step of all envs is needed: `Memory.move_obs` is called
    before it. Steps of some envs copy the older frames instead (wrap.h).
    """

    MOST = 128

    def __init__(self, module: Module, num_envs: int, wrap: Wrap) -> None:
        self.shape = (num_envs, *wrap.stacked_shape(module.spec.obs_shape))
        self.frame, self.count = int(np.prod(module.spec.obs_shape)), int(np.prod(self.shape))
        self.buffer = aligned_zeros(self.count + self.MOST * self.frame, module.spec.obs_dtype)
        self.address, self.frame_bytes = self.buffer.ctypes.data, self.frame * self.buffer.itemsize
        self.offset = 0  # frames since the start
        self.windows: dict[int, Array] = {}

    def window(self) -> Array:
        """The observations."""
        if self.offset not in self.windows:
            start = self.offset * self.frame
            self.windows[self.offset] = self.buffer[start : start + self.count].reshape(self.shape)
        return self.windows[self.offset]

    def advance(self) -> Array:
        """Moves on by one frame. The last frame of each row is not yet written."""
        if self.offset == self.MOST:
            self.rewind()
        self.offset += 1
        return self.window()

    def rewind(self) -> Array:
        """Copies the observations to the start."""
        now = self.window()
        self.offset = 0
        start = self.window()
        start[...] = now  # numpy copies arrays that overlap correctly
        return start


def extra_names(wrap: Wrap, table: ParamTable) -> list[str]:
    """The arrays that a snapshot holds besides the records and the params."""
    needed = {"wrap_rng": wrap.draws, "applied": wrap.sticky > 0, "history": wrap.changes_obs}
    return [name for name, is_needed in (needed | {"param_rng": bool(table.distributions)}).items() if is_needed]


def check_sizes(extras: Mapping[str, Array], own: Mapping[str, Any]) -> None:
    """Raises for arrays of a snapshot that have other sizes than those of the envs, each (envs, bytes)."""
    for name, by_env in own.items():
        if name in extras and extras[name].shape[1] != by_env.shape[1]:
            raise SnapshotError(f"this snapshot is damaged: its {name} has {extras[name].shape[1]} bytes per env.")


def set_wrap(struct: Batch, module: Module, wrap: Wrap) -> None:
    """Writes the settings of wrappers into the struct."""
    struct.wraps, struct.stack, struct.skip = int(bool(wrap)), wrap.stack, wrap.skip
    struct.chunk, struct.frame_limit = wrap.chunk(module.spec.obs_shape), wrap.time_limit * wrap.skip
    for name in ("sticky", "obs_noise", "reward_scale", "reward_clip"):
        setattr(struct, name, getattr(wrap, name))


def num_metrics(module: Module) -> int:
    """SHOAL_METRICS of core/module.c: return, length, the env's stats, and with several agents those of each agent."""
    agents = module.spec.agents
    return 2 + len(module.spec.stats) + (2 * agents if agents > 1 else 0)


def ordered_sums(metrics: Array) -> list[float]:
    """The sum of each row in the order of the GPU's drain kernel (core/device.h): 256 running sums, pairwise halves."""
    count, envs = metrics.shape
    lanes = np.zeros((count, -(-envs // 256), 256), np.float64)
    lanes.reshape(count, -1)[:, :envs] = metrics
    total = np.zeros((count, 256), np.float64)
    for k in range(lanes.shape[1]):
        total += lanes[:, k]
    half = 128
    while half:
        total[:, :half] += total[:, half : 2 * half]
        half //= 2
    sums: list[float] = total[:, 0].tolist()
    return sums


def describe_episodes(
    module: Module, episodes: int, sums: Sequence[float], lows: Sequence[float], highs: Sequence[float]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result of `drain_stats`, and `agent_stats`."""
    names = ["return", "length", *(stat.name for stat in module.spec.stats)]
    columns = zip(names, sums, lows, highs)
    stats = {name: {"mean": total / episodes, "min": low, "max": high} for name, total, low, high in columns}
    agents, means = module.spec.agent_spaces.agents, [total / episodes for total in sums[len(names) :]]
    each = zip(agents, means[: len(agents)], means[len(agents) :])
    agent_stats = {agent: {"return": total, "length": length} for agent, total, length in each}
    return {"episodes": episodes, **stats}, agent_stats
