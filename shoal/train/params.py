"""Env params of an evaluation that differ from those of training: checked, and named with both values."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal import registry
from shoal.entry import make
from shoal.errors import ConfigError, EnvCrashed
from shoal.native import lib
from shoal.train.options import encode, unsaved
from shoal.vector.base import VecEnv


@dataclass(frozen=True)
class ParamChange:
    """A param whose value in the evaluation is not that of training. None: the default of a Python env."""

    name: str
    training: Any
    evaluation: Any

    def __str__(self) -> str:
        trained = "its default" if self.training is None else self.training
        chosen = "its default" if self.evaluation is None else self.evaluation
        return f"{self.name} {chosen} (training: {trained})"


def override(env: Any, trained: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The env options of training with other values. A preset of a native env is a complete set: it replaces all.

    Raises ConfigError for a param that the env does not have, for a value out of range, and where the env then has
    other spaces than the policy was trained for.
    """
    is_native = registry.is_native(env)
    options = {**({} if is_native and "preset" in given else trained), **given}
    if not given:
        return options
    flags = " ".join(f"--env.{name.replace('_', '-')} {value}" for name, value in given.items())
    with (
        contextlib.closing(_make_one(env, trained, "the params of training")) as before,
        contextlib.closing(_make_one(env, options, flags)) as after,
    ):
        _check_agents(env, flags, before, after)
    return options


def _make_one(env: Any, options: Mapping[str, Any], flags: str) -> VecEnv:
    """One env with these options. A constructor that refuses them raises ConfigError."""
    try:
        return make(env, 1, **{**options, "backend": "serial"})
    except (TypeError, EnvCrashed) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[-1]
        raise ConfigError(f"{env} cannot be made with {flags}: {reason}") from error


def _check_agents(env: Any, flags: str, before: VecEnv, after: VecEnv) -> None:
    """Raises unless the agents observe and act as in training."""
    if before.agents_per_env != after.agents_per_env:
        raise ConfigError(
            f"{flags} gives {env} {after.agents_per_env} agents; the run was trained with {before.agents_per_env}. "
            "Leave it out, or train a run with it."
        )
    for number, (old, new) in enumerate(zip(_spaces(before), _spaces(after))):
        for what, trained, now, is_same in (
            ("observation", old[0], new[0], _has_same_form(old[0], new[0])),
            ("action", old[1], new[1], old[1] == new[1]),
        ):
            if not is_same:
                agent = f" of agent {number}" if before.agents_per_env > 1 else ""
                raise ConfigError(
                    f"{flags} changes the {what} space{agent} of {env} to {now}; the run was trained with {trained}. "
                    "Leave it out, or train a run with it."
                )


def _spaces(vec: VecEnv) -> list[tuple[Any, Any]]:
    """The (observation, action) spaces of every agent of one env."""
    agents = vec.agent_spaces
    return list(zip(agents.observation_spaces, agents.action_spaces))


def _has_same_form(trained: Any, now: Any) -> bool:
    """Whether a policy can read both spaces: structure, shapes and types are equal. The bounds of a Box may differ."""
    if isinstance(trained, spaces.Box) and isinstance(now, spaces.Box):
        return bool(trained.shape == now.shape and trained.dtype == now.dtype)
    if isinstance(trained, spaces.Dict) and isinstance(now, spaces.Dict):
        return list(trained) == list(now) and all(_has_same_form(trained[key], now[key]) for key in trained)
    if isinstance(trained, spaces.Tuple) and isinstance(now, spaces.Tuple):
        return len(trained.spaces) == len(now.spaces) and all(map(_has_same_form, trained.spaces, now.spaces))
    return bool(trained == now)


def changes(env: Any, trained: Mapping[str, Any], now: Mapping[str, Any]) -> list[ParamChange]:
    """The params whose values differ. A native env's defaults count as values."""
    before, after = _values(env, trained), _values(env, now)
    names = [*before, *(name for name in after if name not in before)]
    return [
        ParamChange(name, before.get(name), after.get(name))
        for name in names
        if not np.array_equal(np.asarray(before.get(name), object), np.asarray(after.get(name), object))
    ]


def _values(env: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Every param and const of a native env with its value; for a Python env the options that were given."""
    plain = {name: repr(value) if unsaved({name: value}) else encode(value) for name, value in options.items()}
    if not registry.is_native(env):
        return plain
    spec = lib.load(registry.find(env)).spec
    given = spec.expand(plain)
    values: dict[str, Any] = {}
    for param in spec.params:
        value = given.get(param.name, float(f"{param.default:.7g}") if param.kind == "float" else int(param.default))
        if param.choices and isinstance(value, int) and 0 <= value < len(param.choices):
            value = param.choices[value]
        values[param.name] = value
    return values | {const.name: given.get(const.name, const.default) for const in spec.consts}
