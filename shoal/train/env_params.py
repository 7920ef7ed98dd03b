"""Env params that change: schedules, whose value is set before every rollout, and distributions of single episodes.

The env options of a run hold them in place of numbers. In a TOML file and in flags they are text: `linear(0, 3)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shoal import distributions, registry, schedules
from shoal.distributions import Distribution
from shoal.entry import evaluation_params
from shoal.errors import ConfigError, ShoalError, did_you_mean
from shoal.native import lib
from shoal.registry import is_native
from shoal.schedules import Schedule
from shoal.spec import EnvSpec

_KNOWN = (*schedules.FORMS, *distributions.KINDS)
_NUMBERS_ONLY = re.compile(r"\s*\w+\s*\([-+.,:eE\d\s]*\)?\s*")


def parse(value: Any) -> Any:
    """The schedule or the distribution that a text describes; any other value as it is."""
    if not isinstance(value, str) or not schedules.is_call(value):
        return value
    found = schedules.parse(value) or distributions.parse(value)
    if found is None and _NUMBERS_ONLY.fullmatch(value) and did_you_mean(value.partition("(")[0].strip(), _KNOWN):
        raise _unknown(value)  # a Python env would get the text, and fail where it is used
    return found or value


def parse_or_explain(text: str) -> Schedule | Distribution:
    """The schedule or the distribution that a text describes. Raises for any other text, with a suggestion."""
    value = parse(text)
    if isinstance(value, (Schedule, Distribution)):
        return value
    raise _unknown(text)


def _unknown(text: str) -> ConfigError:
    """The error for a text of the form name(...) with an unknown name."""
    return ConfigError(
        f"'{text}' is neither a number, nor a schedule, nor a distribution."
        f"{did_you_mean(text.partition('(')[0].strip(), _KNOWN)} "
        f"Schedules: {', '.join(schedules.FORMS)}; distributions: {', '.join(distributions.KINDS)}."
    )


def as_text(value: Any) -> Any:
    """A schedule or a distribution as the text that `parse` reads; any other value as it is."""
    return str(value) if isinstance(value, (Schedule, Distribution)) else value


def at(env: Any, env_options: Mapping[str, Any], done: float) -> dict[str, Any]:
    """The env options after the fraction `done` of the run: a number for each schedule.

    Distributions stay: the envs draw from them. A schedule that a
    native env does not accept raises.
    """
    scheduled, kinds = schedules_of(env_options), {}
    if scheduled and is_native(env):
        spec = lib.load(registry.find(env)).spec
        check(spec, scheduled)
        kinds = {param.name: param.kind for param in spec.params}
    numbers = {name: schedule.number(done, kinds.get(name)) for name, schedule in scheduled.items()}
    return {**env_options, **numbers}


def evaluated(env: Any, env_options: Mapping[str, Any]) -> dict[str, Any]:
    """The env options of an evaluation: schedules have their last value, and params that only help to learn are off."""
    given = at(env, env_options, 1.0)
    return {**given, **(evaluation_params(env, given) if isinstance(env, str) else {})}


def spec_of(env: Any, env_options: Mapping[str, Any]) -> EnvSpec | None:
    """The spec of a native env with the consts of these options, which may change its agents; None for others."""
    if not is_native(env):
        return None
    header = registry.find(env)
    spec = lib.load(header).spec
    chosen = {name: value for name, value in spec.expand(dict(env_options)).items() if name in spec.const_names}
    return lib.load(header, spec.split(chosen)[1]).spec if chosen else spec


def schedules_of(env_options: Mapping[str, Any]) -> dict[str, Schedule]:
    """The env options that are schedules."""
    return {name: value for name, value in env_options.items() if isinstance(value, Schedule)}


def settled(env_options: Mapping[str, Any]) -> float:
    """The fraction of the run from which on no param changes any more."""
    return max((schedule.settled for schedule in schedules_of(env_options).values()), default=0.0)


class ParamSchedules:
    """Sets the params of a run's envs by the finished fraction of the run.

    Params of native envs change by `set_params`. An option of a Python env is set as the attribute of the same name of
    every env, or of the env that it wraps.
    """

    def __init__(self, vec: Any, env_options: Mapping[str, Any], surplus_envs: int = 0) -> None:
        self.vec, self.schedules = vec, schedules_of(env_options)
        self._kinds: dict[str, str] = {}
        if not self.schedules:
            return
        name, schedule = next(iter(self.schedules.items()))
        if surplus_envs:
            raise ConfigError(
                f"{_flag(name)} {schedule} changes the envs between rollouts, but with --vec.surplus-envs "
                f"{surplus_envs} some of them still step then. Use --vec.surplus-envs 0."
            )
        if vec.native_spec is not None:
            check(vec.native_spec, self.schedules)
            self._kinds = {param.name: param.kind for param in vec.native_spec.params}
        else:
            self._check_attributes()

    def set(self, done: float) -> dict[str, float]:
        """Sets the values after the fraction `done` of the run, and returns them. The envs must be idle."""
        now = {name: schedule.number(done, self._kinds.get(name)) for name, schedule in self.schedules.items()}
        if now and self.vec.native_spec is not None:
            self.vec.set_params(**now)
        elif now:
            for name, value in now.items():
                self.vec.call("__setattr__", name, value)
        return now

    def _check_attributes(self) -> None:
        """Raises unless every env has an attribute for each schedule: setting would make one that nobody reads."""
        for name, schedule in self.schedules.items():
            try:
                self.vec.call(name)
                self.vec.call("__setattr__", name, schedule.number(0.0, None))
            except (ShoalError, AttributeError, TypeError, NotImplementedError) as error:
                raise ConfigError(
                    f"{_flag(name)} {schedule} cannot be set during the run: {str(error).rstrip('.')}. Store it in the "
                    f"env as an attribute that its steps read (self.{name}), or give a number."
                ) from None


def check(spec: EnvSpec, scheduled: Mapping[str, Schedule]) -> None:
    """Raises for a schedule with a value that a native env does not accept."""
    params = {param.name: param for param in spec.params}
    for name, schedule in scheduled.items():
        if name in spec.const_names:
            raise ConfigError(f"{_flag(name)} {schedule}: {name} is fixed when {spec.name} is compiled. Give one int.")
        if name not in params:
            spec.split({name: 0})  # raises, with a suggestion
        param = params[name]
        if param.choices:
            raise ConfigError(
                f"{_flag(name)} {schedule}: {name} is one of {', '.join(param.choices)}, which a schedule cannot "
                "change. Give one of them."
            )
        for done, _ in schedule.points:
            try:
                param.check(spec.name, schedule.number(done, param.kind), 1)
            except ConfigError as error:
                raise ConfigError(f"{_flag(name)} {schedule}, at {done:.0%} of the run: {error}") from None


def _flag(name: str) -> str:
    return f"--env.{name.replace('_', '-')}"
