"""Wrap: the wrappers around every env of a vector, as options.

    envs = shoal.make("breakout", 4096, wrap={"stack": 4, "skip": 2})

Native envs apply them in C (native/core/wrap.h), Python envs in `integrations/wrapped.py`: both with this order and
meaning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError, did_you_mean
from shoal.spec import Array, EnvSpec, Stacked


@dataclass(frozen=True)
class Wrap:
    """Which wrappers are around an env. The defaults change nothing.

    Order: sticky, skip, time_limit; then reward_scale and reward_clip for rewards, obs_noise and stack for
    observations.
    """

    sticky: float = 0.0  # probability that an env step repeats the last action
    skip: int = 1  # env steps per step, with the same action; their rewards are added
    time_limit: int = 0  # steps after which an episode is truncated; 0: the env's own limit alone
    reward_scale: float = 1.0  # factor of rewards
    reward_clip: float = 0.0  # rewards are clipped to -clip .. clip, after the scale; 0: not at all
    obs_noise: float = 0.0  # standard deviation of the noise on observations
    stack: int = 1  # the last frames in one observation, oldest first

    @classmethod
    def read(cls, given: Any) -> Wrap:
        """The wrappers that a user gave: a Wrap, a mapping, `"stack=4 skip=2"`, or a list of such words."""
        if isinstance(given, Wrap):
            return given
        pairs = _pairs(given)
        known: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(cls)}
        for name, value in pairs.items():
            if name not in known:
                raise ConfigError(
                    f"there is no wrapper {name!r}.{did_you_mean(str(name), known)} There are {', '.join(known)}."
                )
            _check(name, value, type(known[name]))
        wrap = cls(**{name: type(known[name])(value) for name, value in pairs.items()})
        if wrap.time_limit * wrap.skip > 2**31 - 1:
            raise ConfigError(
                f"wrap: time_limit={wrap.time_limit} times skip={wrap.skip} is more than 2^31 - 1 env steps."
            )
        return wrap

    def __bool__(self) -> bool:
        """Whether any wrapper changes anything."""
        return self != Wrap()

    def __str__(self) -> str:
        return " ".join(self.words()) or "none"

    @property
    def changes_obs(self) -> bool:
        """Whether observations are not the env's own."""
        return self.stack > 1 or self.obs_noise > 0

    @property
    def draws(self) -> bool:
        """Whether it needs random numbers."""
        return self.sticky > 0 or self.obs_noise > 0

    def words(self) -> list[str]:
        """The wrappers as `name=value`, without those that change nothing."""
        values = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        return [f"{name}={value}" for name, (value, default) in values.items() if value != default]

    # ---- spaces ----

    def chunk(self, shape: tuple[int, ...]) -> int:
        """Neighbouring elements of one frame in a stack: the channels of an image, otherwise the whole frame."""
        return shape[-1] if len(shape) == 3 else int(np.prod(shape))

    def stacked_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(n,) becomes (stack * n,), (height, width) becomes (stack, height, width), and an image has more channels."""
        if self.stack == 1:
            return shape
        if len(shape) == 1:
            return (self.stack * shape[0],)
        return (*shape[:-1], shape[-1] * self.stack) if len(shape) == 3 else (self.stack, *shape)

    def stacked(self, frames: Sequence[Array] | Array) -> Array:
        """The observation of `stack` frames, oldest first."""
        if len(frames[0].shape) == 2 or len(frames[0].shape) > 3:
            return np.stack(list(frames))
        return np.concatenate(list(frames), axis=-1)

    def spec(self, spec: EnvSpec) -> EnvSpec:
        """The spec of a native env with these wrappers."""
        if self.stack == 1:
            return spec
        shape = self.stacked_shape(spec.obs_shape)
        if len(shape) > 4:
            raise ConfigError(
                f"{spec.name}: wrap stack={self.stack} would give observations of shape {shape}. "
                "Observations have at most 4 dimensions: leave it out."
            )
        bounds: dict[str, Any] = {
            name: bound if bound.ndim == 0 else self.stacked([bound] * self.stack)
            for name, bound in (("obs_low", spec.obs_low), ("obs_high", spec.obs_high))
        }
        return dataclasses.replace(spec, obs_shape=shape, **bounds)

    def space(self, space: spaces.Space[Any], env: str) -> spaces.Space[Any]:
        """The observation space with these wrappers. A space that they do not fit raises."""
        if not self.changes_obs:
            return space
        name = "stack" if self.stack > 1 else "obs_noise"
        if not isinstance(space, spaces.Box):
            raise ConfigError(
                f"wrap {name}={getattr(self, name):g} needs observations that are one array (a Box); those of {env} "
                f"are a {type(space).__name__}. Flatten them first: gymnasium.wrappers.FlattenObservation."
            )
        if self.stack == 1:  # noise: frames of a stack would no longer follow each other
            return spaces.Box(space.low, space.high, dtype=space.dtype.type)
        if space.shape == ():
            raise ConfigError(f"wrap stack={self.stack} needs observations with a dimension; those of {env} have none.")
        low, high = (self.stacked([bound] * self.stack) for bound in (space.low, space.high))
        axis = -1 if len(space.shape) == 3 else 0
        return Stacked(low, high, self.stack, axis, dtype=space.dtype.type)


RANGES: dict[str, tuple[float, float]] = {
    "sticky": (0.0, 0.999),
    "skip": (1, 1000),
    "time_limit": (0, 2**31 - 1),
    "reward_scale": (-1e30, 1e30),
    "reward_clip": (0.0, 1e30),
    "obs_noise": (0.0, 1e30),
    "stack": (1, 256),
}


def _pairs(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    words = given.split() if isinstance(given, str) else given
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise ConfigError(
            f"wrap={given!r} must be a mapping such as {{'stack': 4}}, or words such as 'stack=4 skip=2'."
        )
    pairs: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"wrap: {word!r} has no value. Write it as stack=4.")
        try:
            pairs[name] = float(text) if not text.lstrip("-").isdigit() else int(text)
        except ValueError:
            raise ConfigError(f"wrap: {word} has a value that is not a number. Write it as stack=4.") from None
    return pairs


def _check(name: str, value: Any, kind: type) -> None:
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole and (kind is int or not isinstance(value, (float, np.floating))):
        raise ConfigError(f"wrap: {name}={value!r} must be {'an int' if kind is int else 'a number'}.")
    low, high = RANGES[name]
    if not low <= value <= high:
        raise ConfigError(f"wrap: {name}={value} must be in {low:.10g} .. {high:.10g}.")
    if name == "reward_scale" and value == 0:
        raise ConfigError("wrap: reward_scale=0 would make all rewards 0. Use another factor.")
