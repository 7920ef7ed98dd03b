"""The description of an env: its spaces, agents, params, consts and statistics.

Knows Gymnasium's spaces and numpy; knows nothing of how an env is built or stepped. How values of spaces are stored
is in layout.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.distributions import Distribution, parse
from shoal.errors import ConfigError, did_you_mean
from shoal.layout import AgentSpaces as AgentSpaces
from shoal.layout import Array as Array
from shoal.layout import Layout as Layout
from shoal.layout import Leaf as Leaf
from shoal.layout import map_leaves as map_leaves
from shoal.layout import structure as structure
from shoal.layout import unflatten as unflatten

# names that an env may not use: the statistics that every env has, and the options of shoal.make
RESERVED_STATS = {"episode", "episodes", "length", "return"}
RESERVED_PARAMS = set(
    "env num_envs backend seed copy autoreset render_mode num_groups num_threads num_workers envs_per_worker "
    "batch_size surplus_envs zero_copy start_method timeout_s on_crash cpu_affinity python max_steps preset "
    "wrap".split()
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


class Stacked(spaces.Box):
    """A Box of `num_frames` frames, the oldest first, along `frames_axis`.

    It promises how observations follow each other: the first frame of an episode is in all places, and each step moves
    frames by one place. Whatever changes observations besides must declare a plain Box.
    """

    def __init__(self, low: Any, high: Any, num_frames: int, frames_axis: int = 0, dtype: Any = np.uint8) -> None:
        super().__init__(low, high, dtype=dtype)
        self.num_frames, self.frames_axis = num_frames, frames_axis % len(self.shape)
        assert self.shape[self.frames_axis] % num_frames == 0
