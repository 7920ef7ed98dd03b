"""`param_schedule`: moves an env param from one value to another during a run."""

from __future__ import annotations

from typing import Any

from shoal.errors import ConfigError, did_you_mean
from shoal.train.callbacks.base import Callback, Context
from shoal.train.callbacks.checks import check_number


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
        """A native env must have the param, with both values in its range. (Attributes are checked when set.)"""
        spec = trainer.vec.native_spec
        if spec is None:
            return
        params = {param.name: param for param in spec.params}
        if self.name not in params:
            raise ConfigError(
                f"param_schedule: {spec.name} has no param '{self.name}'.{did_you_mean(self.name, params)} "
                f"It has {', '.join(params)}."
            )
        param = params[self.name]
        self.is_int = param.kind == "int"
        for value in (self.start, self.end):
            if self.is_int and value != int(value):
                raise ConfigError(f"param_schedule: {self.name} is an int; {value:g} is not.")
            param.check(spec.name, int(value) if self.is_int else value, 1)

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
