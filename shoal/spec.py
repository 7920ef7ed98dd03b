"""The description of an env: its spaces, agents, params, consts and statistics.

Knows Gymnasium's spaces and numpy; knows nothing of how an env is built or stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.distributions import Distribution, parse
from shoal.errors import ConfigError, did_you_mean

Array = np.ndarray[Any, np.dtype[Any]]

# names that an env may not use: the statistics that every env has, and the options of shoal.make
RESERVED_STATS = {"episode", "episodes", "length", "return"}
RESERVED_PARAMS = set(
    "env num_envs backend seed copy autoreset render_mode num_groups num_threads num_workers envs_per_worker "
    "batch_size surplus_envs zero_copy start_method timeout_s on_crash cpu_affinity max_steps preset wrap".split()
)


MOST_CHOICES = 64  # of a param that is drawn by choice()


def check_range(env: str, name: str, value: Any, low: float, high: float) -> None:
    """Raises ConfigError for a value, or an array with a value, outside low .. high."""
    array = np.asarray(value)
    if (wrong := (array < low) | (array > high)).any():
        first = array[wrong].flat[0].item()
        raise ConfigError(f"{env}: {name}={first!r} must be in {low:.10g} .. {high:.10g}.")


@dataclass(frozen=True)
class Param:
    """A run-time number of an env: one value for all envs, or one for each."""

    name: str
    kind: str  # float or int
    default: float
    help: str
    low: float = -np.inf
    high: float = np.inf
    choices: tuple[str, ...] = ()  # names for the values 0, 1, …

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its type in memory."""
        return np.dtype(np.float32 if self.kind == "float" else np.int32)

    def check(self, env: str, value: Any, num_envs: int) -> Array:
        """The value as an array of shape () or (num_envs,), or a ConfigError with the reason."""
        try:
            array = np.asarray(value)
        except ValueError:
            raise ConfigError(f"{env}: {self.name}={value!r} is not a number or an array of numbers.") from None
        if self.choices and array.dtype.kind in "UO":
            array = np.array([self.number(env, word) for word in array.ravel().tolist()]).reshape(array.shape)
        is_int = array.dtype.kind in "iu"
        if array.dtype.kind not in "iuf" or (self.kind == "int" and not is_int):
            raise ConfigError(f"{env}: {self.name}={value!r} is not {'an int' if self.kind == 'int' else 'a number'}.")
        if array.shape not in ((), (num_envs,)):
            raise ConfigError(
                f"{env}: {self.name} has shape {array.shape}. Give one number, or one for each of the {num_envs} envs."
            )
        with np.errstate(over="ignore"):
            fits = array.dtype.kind != "f" or np.isfinite(array.astype(np.float32)).all()
        if not fits:
            raise ConfigError(f"{env}: {self.name}={value!r} must be finite as a 32-bit float.")
        if self.kind == "int" and (np.any(array > 2**31 - 1) or np.any(array < -(2**31))):
            raise ConfigError(f"{env}: {self.name}={value!r} does not fit in a 32-bit int.")
        if self.name == "max_steps" and np.any(array < 0):
            raise ConfigError(f"{env}: max_steps={value!r} is negative. Use 0 for no limit.")
        if self.choices and ((wrong := (array < 0) | (array >= len(self.choices))).any()):
            first = array[wrong].flat[0].item()
            raise ConfigError(f"{env}: {self.name}={first!r} is none of its choices: {self._listed()}.")
        check_range(env, self.name, array, self.low, self.high)
        return array.astype(self.dtype)

    def check_drawn(self, env: str, value: Distribution) -> Distribution:
        """The distribution with checked numbers, or a ConfigError with the reason."""
        if value.kind in ("uniform", "loguniform", "normal") and self.kind == "int":
            raise ConfigError(f"{env}: {self.name} is an int and cannot be {value}. Use integers(…) or choice(…).")
        if len(value.values) > MOST_CHOICES:
            raise ConfigError(
                f"{env}: {self.name} has {len(value.values)} choices; at most {MOST_CHOICES} are allowed."
            )
        limited = value.values[:1] if value.kind == "normal" else value.values  # not the standard deviation
        checked = [self.check(env, number, 1).item() for number in limited]
        return Distribution(value.kind, (*checked, *map(float, value.values[len(checked) :])))

    def number(self, env: str, word: Any) -> int:
        """The number of a choice, from its name or its number."""
        if word in self.choices:
            return self.choices.index(word)
        if isinstance(word, (int, np.integer)) and not isinstance(word, bool):
            return int(word)
        near = did_you_mean(str(word), self.choices)
        raise ConfigError(f"{env}: {self.name}={word!r}.{near} Choices: {self._listed()}.")

    def check_any(self, env: str, value: Any, num_envs: int) -> Array | Distribution:
        """A checked distribution, from an object or its text, or what `check` returns."""
        drawn = parse(value) if isinstance(value, str) else value
        return self.check_drawn(env, drawn) if isinstance(drawn, Distribution) else self.check(env, value, num_envs)

    def _listed(self) -> str:
        return ", ".join(f"{word} ({number})" for number, word in enumerate(self.choices))


@dataclass(frozen=True)
class Const:
    """A compile-time integer of an env. Another value needs another library."""

    name: str
    default: int
    help: str
    low: float = -np.inf
    high: float = np.inf


@dataclass(frozen=True)
class Preset:
    """A named set of values of an env's params and consts."""

    name: str
    settings: dict[str, Any]
    help: str


@dataclass(frozen=True)
class Stat:
    """A number that an env reports for every episode."""

    name: str
    kind: str  # mean, sum or last
    help: str


@dataclass(frozen=True)
class AgentSpaces:
    """The agents of one env and their spaces."""

    agents: tuple[str, ...]
    observation_spaces: tuple[spaces.Space[Any], ...]  # one for each agent
    action_spaces: tuple[spaces.Space[Any], ...]
    groups: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # that the env declares: (name, agents), unchecked

    @classmethod
    def of_equal_agents(cls, count: int, observation: spaces.Space[Any], action: spaces.Space[Any]) -> AgentSpaces:
        """Agents `agent_0`, `agent_1`, … that all have the same spaces."""
        return cls(tuple(f"agent_{k}" for k in range(count)), (observation,) * count, (action,) * count)

    @cached_property
    def alike(self) -> bool:
        """Whether all agents have the same spaces."""
        return all(
            space is candidates[0] or space == candidates[0]
            for candidates in (self.observation_spaces, self.action_spaces)
            for space in candidates
        )

    @cached_property
    def obs_layouts(self) -> tuple[Layout, ...]:
        """One for each agent; a row is as long as the largest."""
        return tuple(Layout(space) for space in self.observation_spaces)

    @cached_property
    def action_layouts(self) -> tuple[Layout, ...]:
        """One for each agent."""
        return tuple(Layout(space) for space in self.action_spaces)


@dataclass(frozen=True)
class EnvSpec:
    """The description of a native env."""

    name: str
    version: int
    agents: int
    max_steps: int
    obs_dtype: np.dtype[Any]
    obs_shape: tuple[int, ...]
    obs_low: Array
    obs_high: Array
    action_kind: str  # discrete, multi, box or mix
    action_dims: tuple[int, ...]  # choices per sub-action; (n,) for a box of n floats; (n, *choices) for a mix
    action_low: Array
    action_high: Array
    mask_size: int  # 0: no action masks
    has_draw: bool
    params: tuple[Param, ...]
    consts: tuple[Const, ...]
    stats: tuple[Stat, ...]
    presets: tuple[Preset, ...] = ()
    groups: tuple[tuple[str, tuple[int, ...]], ...] = ()  # (name, agents)
    own_sizes: tuple[tuple[int, int], ...] = ()  # by agent: elements of its observation and action; 0, or none: all

    @cached_property
    def observation_space(self) -> spaces.Box:
        """Of one agent."""
        low = np.broadcast_to(self.obs_low.astype(self.obs_dtype), self.obs_shape)
        high = np.broadcast_to(self.obs_high.astype(self.obs_dtype), self.obs_shape)
        return spaces.Box(low, high, self.obs_shape, self.obs_dtype.type)

    @cached_property
    def action_space(self) -> spaces.Space[Any]:
        """Of one agent. A mix is a Tuple of a Box, and of a Discrete or a MultiDiscrete."""
        if self.action_kind == "discrete":
            return spaces.Discrete(self.action_dims[0])
        if self.action_kind == "multi":
            return spaces.MultiDiscrete(list(self.action_dims))
        shape, choices = self.action_dims[:1], self.action_dims[1:]
        low, high = np.broadcast_to(self.action_low, shape), np.broadcast_to(self.action_high, shape)
        box = spaces.Box(low, high, shape, np.float32)
        if self.action_kind == "box":
            return box
        chosen = spaces.Discrete(choices[0]) if len(choices) == 1 else spaces.MultiDiscrete(list(choices))
        return spaces.Tuple((box, chosen))

    @property
    def has_float_actions(self) -> bool:
        """Whether a row of actions is an array of floats. The choices of a mix are whole numbers in it."""
        return self.action_kind in ("box", "mix")

    def spaces_of(self, agent: int) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """What one agent observes and how it acts: the first elements of a row, where its group has fewer."""
        obs, actions = self.own_sizes[agent] if self.own_sizes else (0, 0)
        whole: Any = self.observation_space
        seen = spaces.Box(whole.low[:obs], whole.high[:obs], (obs,), whole.dtype.type) if obs else whole
        acts: Any = self.action_space
        if not actions:
            return seen, acts
        if self.action_kind == "discrete":
            return seen, spaces.Discrete(actions)
        if self.action_kind == "multi":
            return seen, spaces.MultiDiscrete(list(self.action_dims[:actions]))
        return seen, spaces.Box(acts.low[:actions], acts.high[:actions], (actions,), np.float32)

    @cached_property
    def agent_spaces(self) -> AgentSpaces:
        """Of all agents, which have equal spaces in a native env. The agents of a group have its name."""
        equal = AgentSpaces.of_equal_agents(self.agents, self.observation_space, self.action_space)
        names = list(equal.agents)
        for group, agents in self.groups:
            for number, agent in enumerate(agents):
                names[agent] = group if len(agents) == 1 else f"{group}_{number}"
        return replace(equal, agents=tuple(names), groups=self.groups)

    @property
    def param_names(self) -> list[str]:
        """In the header's order."""
        return [param.name for param in self.params]

    @property
    def const_names(self) -> list[str]:
        """In the header's order."""
        return [const.name for const in self.consts]

    def choices(self, param: str) -> dict[str, int]:
        """The names of an int param's values and their numbers, if it has any: `spec.choices("robot_0")["seek"]`."""
        return {word: number for p in self.params if p.name == param for number, word in enumerate(p.choices)}

    def expand(self, options: dict[str, Any]) -> dict[str, Any]:
        """Keyword options completed by the values of the preset that they name, if any."""
        name = options.get("preset")
        own = {key: value for key, value in options.items() if key != "preset"}
        if name is None:
            return own
        known = {preset.name: preset for preset in self.presets}
        if not known:
            raise ConfigError(f"{self.name} has no presets. Leave out preset={name!r}.")
        if name not in known:
            raise ConfigError(
                f"{self.name} has no preset {name!r}.{did_you_mean(str(name), known)} It has {', '.join(known)}."
            )
        return {**known[name].settings, **own}

    def split(self, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Keyword options as (params, consts). An unknown name raises, with a suggestion."""
        options = self.expand(options)
        param_names, const_names = self.param_names, self.const_names
        for name, value in options.items():
            if name not in param_names + const_names:
                known = sorted(param_names + const_names)
                near = did_you_mean(name, known) or did_you_mean(name, RESERVED_PARAMS)
                raise ConfigError(
                    f"{self.name} has no param '{name}'.{near} 'shoal envs {self.name}' lists its {len(known)} params."
                )
            if name in const_names and (isinstance(value, bool) or not isinstance(value, (int, np.integer))):
                raise ConfigError(f"{self.name}: {name}={value!r} is a compile-time const. Give one int.")
        for const in self.consts:
            if const.name in options:
                check_range(self.name, const.name, options[const.name], const.low, const.high)
        return (
            {name: value for name, value in options.items() if name in param_names},
            {name: int(value) for name, value in options.items() if name in const_names},
        )


# ---- a value of any space as a row of bytes ----


@dataclass(frozen=True)
class Leaf:
    """A part of a space that is one array: its path in the space and its offset in the row."""

    path: tuple[str | int, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def name(self) -> str:
        """Its path for messages: `['camera'][0]`; empty for a space that is one array."""
        return "".join(f"[{key!r}]" for key in self.path)

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return int(np.prod(self.shape)) * self.dtype.itemsize


class Layout:
    """How a value of a space is stored in a row of bytes, and a batch of them in a (rows, row_bytes) uint8 array.

    A space that is one array has no padding: a batch of it is one contiguous array of the space's dtype.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space = space
        leaves: list[Leaf] = []
        end = 0
        for path, leaf_space in _leaves(space, ()):
            dtype, shape = _array_of(leaf_space, path)
            offset = -(-end // dtype.itemsize) * dtype.itemsize
            leaves.append(Leaf(path, dtype, shape, offset))
            end = offset + leaves[-1].nbytes
        self.leaves = tuple(leaves)
        self.is_one_array = len(leaves) == 1 and not leaves[0].path
        self.row_bytes = end if self.is_one_array else -(-end // 8) * 8

    def views(self, rows: Array) -> Any:
        """Views of the batch, in the structure of the space."""
        return structure(self.space, iter([_view(rows, leaf) for leaf in self.leaves]))

    def write(self, views: list[Array], row: int, value: Any) -> None:
        """Writes one value into a row of the leaf views that `leaf_views` returned."""
        for leaf, view in zip(self.leaves, views):
            part = value
            for key in leaf.path:
                part = part[key]
            view[row] = part

    def leaves_of(self, batch: Any) -> list[Any]:
        """The arrays of a batch that has the structure of the space, in the order of `leaves`."""
        arrays = []
        for leaf in self.leaves:
            part = batch
            for key in leaf.path:
                part = part[key]
            arrays.append(part)
        return arrays

    def leaf_views(self, rows: Array) -> list[Array]:
        """One array per leaf, in order."""
        return [_view(rows, leaf) for leaf in self.leaves]


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """A structure of dicts and tuples with every leaf replaced by `function(leaf)`."""
    if isinstance(value, dict):
        return {key: map_leaves(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map_leaves(function, part) for part in value)
    return function(value)


def unflatten(rows: Any, space: spaces.Space[Any] | Layout) -> Any:
    """Views of a (rows, row_bytes) uint8 array or torch tensor in the structure of the space, without a copy.

    >>> from gymnasium.spaces import Box, Dict, Discrete
    >>> space = Dict({"camera": Box(0, 255, (2, 2), np.uint8), "gear": Discrete(5)})
    >>> rows = np.zeros((3, Layout(space).row_bytes), np.uint8)
    >>> unflatten(rows, space)["camera"].shape
    (3, 2, 2)
    """
    layout = space if isinstance(space, Layout) else Layout(space)
    if tuple(rows.shape[1:]) != (layout.row_bytes,):
        raise ConfigError(f"rows have shape {tuple(rows.shape)}, expected (n, {layout.row_bytes}) for this space.")
    if isinstance(rows, np.ndarray):
        return layout.views(rows)
    return structure(layout.space, iter([_torch_view(rows, leaf) for leaf in layout.leaves]))


def _leaves(space: spaces.Space[Any], path: tuple[str | int, ...]) -> Iterator[tuple[Any, spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, index))
    else:
        yield path, space


def _array_of(space: spaces.Space[Any], path: tuple[str | int, ...]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Discrete)):
        return np.dtype(space.dtype), tuple(space.shape or ())
    where = f" at {path}" if path else ""
    raise ConfigError(
        f"{type(space).__name__}{where} has no fixed size and cannot be stored in shared memory. "
        "Use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."
    )


def structure(space: spaces.Space[Any], parts: Iterator[Any]) -> Any:
    """One part per leaf, in the structure of the space."""
    if isinstance(space, spaces.Dict):
        return {key: structure(part, parts) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(structure(part, parts) for part in space.spaces)
    return next(parts)


def _strides(leaf: Leaf) -> tuple[int, ...]:
    """Strides of one row of the leaf, in elements."""
    return tuple(int(np.prod(leaf.shape[k + 1 :])) for k in range(len(leaf.shape)))


def _view(rows: Array, leaf: Leaf) -> Array:
    strides = (rows.strides[0], *(step * leaf.dtype.itemsize for step in _strides(leaf)))
    shape = (len(rows), *leaf.shape)
    if 0 in shape:
        return np.zeros(shape, leaf.dtype)
    part = rows[:, leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype)
    view: Array = np.lib.stride_tricks.as_strided(part, shape, strides)
    return view


def _torch_view(rows: Any, leaf: Leaf) -> Any:
    import torch

    dtype = torch.from_numpy(np.zeros(0, leaf.dtype)).dtype
    typed = rows.view(dtype)
    size = leaf.dtype.itemsize
    offset = typed.storage_offset() + leaf.offset // size
    return torch.as_strided(typed, (len(rows), *leaf.shape), (typed.stride(0), *_strides(leaf)), offset)
