"""Changes params of envs while they run: params of native envs, attributes of Python envs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.errors import ConfigError, EnvCrashed, UsageError, did_you_mean
from shoal.train.options import unsaved
from shoal.vector.base import VecEnv


def set_env_params(vec: VecEnv, values: Mapping[str, Any]) -> None:
    """Sets params of all envs. An unknown name or a wrong value raises ConfigError.

    A native env uses them as `VecEnv.set_params` says; it takes one value for all envs, or an array of one for each. A
    Python env has them as attributes, of itself or of the env that it wraps: one value for all.
    """
    if vec.native_spec is not None:
        _refuse_new_shape(vec, values)
        vec.set_params(**values)
        return
    for name, value in values.items():
        _call(vec, "__set_param__", name, value)


def get_env_param(vec: VecEnv, name: str) -> Any:
    """The value of a param in env 0. An unknown name raises ConfigError."""
    if vec.native_spec is None:
        return _call(vec, "__get_param__", name)[0]
    params = vec.get_params()
    if name not in params:
        known = did_you_mean(name, params)
        raise ConfigError(f"{vec.native_spec.name} has no param '{name}'.{known} It has {', '.join(params)}.")
    return params[name][0].item()


def check_saveable(values: Mapping[str, Any]) -> None:
    """Raises for values that a checkpoint cannot hold: a resumed run could not set them again."""
    if lost := unsaved(values):
        kind = type(values[lost[0]]).__name__
        raise ConfigError(
            f"{lost[0]} is of type {kind}, which a checkpoint cannot hold. Use numbers, text, lists or arrays."
        )


def _call(vec: Any, what: str, name: str, *value: Any) -> Any:
    """Gets or sets an attribute of Python envs."""
    if not hasattr(vec, "call"):
        raise ConfigError(f"params of a {type(vec).__name__} cannot be changed during training.")
    if not name.isidentifier() or name.startswith("_"):
        raise ConfigError(f"'{name}' is not the name of an env param.")
    try:
        return vec.call(what, name, *value)
    except UsageError:
        raise ConfigError(
            f"{name} cannot be set: with --vec.surplus-envs some envs are always in a step. Use 0."
        ) from None
    except EnvCrashed as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        raise


def _refuse_new_shape(vec: VecEnv, values: Mapping[str, Any]) -> None:
    """On a GPU, a captured graph holds the place of the params: one value for all envs cannot become one for each."""
    per_env = [name for name, value in values.items() if np.ndim(value)]
    if vec.is_on_gpu and per_env:
        raise ConfigError(f"{per_env[0]} has one value for each env. On a GPU a run can change one value for all envs.")


def of_one_env(values: Mapping[str, Any]) -> dict[str, Any]:
    """The params of env 0."""
    return {name: np.asarray(value).flat[0].item() if np.ndim(value) else value for name, value in values.items()}
