"""CallbackGroup: all callbacks of a run. Calls them, and saves and restores their states."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from shoal import checkpoint
from shoal.errors import CheckpointError, ConfigError
from shoal.train.callbacks.base import EVENTS, Context
from shoal.train.callbacks.specs import name_of, overrides
from shoal.train.options import decode, encode, unsaved

KEY = "callbacks"  # of the states, among the tensors of a checkpoint


class CallbackGroup:
    """Callbacks in the order in which they are called."""

    def __init__(self, callbacks: Sequence[Any] = ()) -> None:
        self.callbacks = list(callbacks)
        self.names = _unique([name_of(callback) for callback in self.callbacks])
        self.fault = ""  # which callback raised, and what
        self._methods: dict[str, list[tuple[str, Callable[[Context], object]]]] = {
            event: [(name, getattr(x, event)) for name, x in zip(self.names, self.callbacks) if overrides(x, event)]
            for event in EVENTS
        }

    def __bool__(self) -> bool:
        return bool(self.callbacks)

    def check(self, trainer: Any) -> None:
        """Gives every callback the chance to refuse the run, and checks that its state can be saved."""
        for callback in self.callbacks:
            if callable(check := getattr(callback, "check", None)):
                check(trainer)
        self.states()

    def call(self, event: str, context: Context) -> None:
        """Calls one method of all callbacks. `fault` names the one that raises."""
        for name, method in self._methods[event]:
            self._call(f"{name}.{event}", method, context)

    def end(self, context: Context) -> None:
        """Calls on_end of all callbacks, also if one raises. The first error is raised at the end."""
        first: Exception | None = None
        for name, method in self._methods["on_end"]:
            try:
                self._call(f"{name}.on_end", method, context)
            except Exception as error:
                first = first or error
        if first is not None:
            raise first

    def _call(self, name: str, method: Callable[[Context], object], context: Context) -> None:
        try:
            method(context)
        except BaseException as error:
            self.fault = self.fault or f"callback {name} raised {type(error).__name__}: {error}"
            with contextlib.suppress(Exception):
                error.callback = name  # type: ignore[attr-defined]
            raise

    # ---- states ----

    def states(self) -> dict[str, Any]:
        """The states of all callbacks by name, in a form that JSON can hold."""
        states: dict[str, Any] = {}
        for name, callback in zip(self.names, self.callbacks):
            if not hasattr(callback, "state_dict"):
                continue
            state = callback.state_dict()
            if not isinstance(state, Mapping):
                raise ConfigError(f"callback {name}: state_dict() returned {type(state).__name__}, not a dict.")
            states[name] = {}
            for key, value in state.items():
                if not isinstance(key, str):
                    raise ConfigError(f"callback {name}: state_dict() has the key {key!r}. Keys are text.")
                try:
                    states[name][key] = encode(value)
                except TypeError as error:
                    raise ConfigError(
                        f"callback {name}: '{key}' of state_dict() is or holds {error}, which a checkpoint cannot "
                        "hold. Use numbers, text, lists, dicts and NumPy arrays."
                    ) from None
        return states

    def save(self, env_params: Mapping[str, Any]) -> dict[str, Tensor]:
        """What a checkpoint holds of the callbacks, and the env params that they have set; empty if nothing."""
        if not self.callbacks and not env_params:
            return {}
        lost = unsaved(env_params)
        params = {name: encode(value) for name, value in env_params.items() if name not in lost}
        kept = {"states": self.states(), "env_params": params}
        return {KEY: checkpoint.from_bytes(json.dumps(kept).encode())}

    def load(self, states: Mapping[str, Any]) -> list[str]:
        """Restores the states of a checkpoint, and returns the names of callbacks that this run does not have."""
        for name, callback in zip(self.names, self.callbacks):
            if name not in states or not hasattr(callback, "load_state_dict"):
                continue
            try:
                callback.load_state_dict({key: decode(value) for key, value in states[name].items()})
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise CheckpointError(
                    f"the checkpoint's state of callback {name} does not fit: {type(error).__name__}: {error}."
                ) from error
        return [name for name in states if name not in self.names]


def read_saved(state: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(states by name, env params) of a checkpoint."""
    if KEY not in state:
        return {}, {}
    try:
        kept = json.loads(checkpoint.to_bytes(state[KEY]))
        states, env_params = dict(kept["states"]), dict(kept["env_params"])
        if not all(isinstance(own, dict) for own in states.values()):
            raise TypeError
        return states, {name: decode(value) for name, value in env_params.items()}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError("the checkpoint's states of callbacks cannot be read: they are damaged.") from None


def _unique(names: Sequence[str]) -> list[str]:
    """The names, numbered where one occurs again: StopAt, StopAt 2."""
    seen: dict[str, int] = {}
    numbered = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        numbered.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return numbered
