"""`param_schedule`: moves an env param from one value to another during a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.errors import ConfigError
from shoal.train.callbacks.base import Callback, Context
from shoal.train.callbacks.checks import check_number
from shoal.train.param_changes import get_env_param


class ParamSchedule(Callback):
    """Sets an env param to values from `start` to `end`, linearly in the first `fraction` of the steps.

    A native env has it as a param, a Python env as an attribute. An int is rounded. The value is logged as env/NAME.
    """

    def __init__(self, name: str, start: float, end: float, fraction: float = 1.0) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ConfigError(f"param_schedule: name={name!r} must be the name of an env param: 'gravity'.")
        self.name = name
        self.start = check_number("param_schedule", "start", start)
        self.end = check_number("param_schedule", "end", end)
        self.fraction = check_number("param_schedule", "fraction", fraction, low=1e-9, high=1.0)
        self.is_int = isinstance(start, int) and isinstance(end, int)
        self.value: float | None = None

    def check(self, trainer: Any) -> None:
        """The env must have the param, and both values must fit it."""
        vec, surplus = trainer.vec, trainer.options.vec.surplus_envs
        if surplus:
            raise ConfigError(f"param_schedule: --vec.surplus-envs {surplus} keeps some envs always in a step. Use 0.")
        value = get_env_param(vec, self.name)
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise ConfigError(f"param_schedule: {self.name} is {value!r}, not a number.")
        if vec.native_spec is None:
            return
        spec = vec.native_spec
        param = next(param for param in spec.params if param.name == self.name)
        self.is_int = param.kind == "int"
        for end in (self.start, self.end):
            if self.is_int and end != int(end):
                raise ConfigError(f"param_schedule: {self.name} is an int; {end:g} is not.")
            param.check(spec.name, int(end) if self.is_int else end, 1)

    def on_start(self, context: Context) -> None:
        """The value at the start, also of a resumed run."""
        self.on_iteration(context)

    def on_iteration(self, context: Context) -> None:
        """The value for the next iteration."""
        done = min(1.0, context.progress / self.fraction)
        value = self.end if done == 1.0 else self.start + done * (self.end - self.start)
        value = round(value) if self.is_int else value
        if value != self.value:
            context.set_env_params(**{self.name: value})
            self.value = value
        context.log(f"env/{self.name}", value)


CALLBACK = ParamSchedule
