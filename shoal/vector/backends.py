"""Backends: the ways to step many envs. Each is one file of this folder that assigns BACKEND.

    BACKEND = Backend("one loop on the calling thread", native=SerialVec, options={"num_groups": 1})

`shoal.make(env, backend="serial")` finds it by the name of the file. Other packages add backends with the entry point
group `shoal.backends`, scripts with `BACKENDS.register(name, backend)`. tests/test_backends.py compares each to serial.

`options` lists keyword arguments of `shoal.make`; those of the stock backends are flags of `--vec.*`. A backend of
another package, or `ray`, gives a dataclass of `config.opt` fields instead: they are also its flags, `--backend.*`. It
names those of `--vec.*` that it takes in `shared`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from shoal.errors import ConfigError, did_you_mean
from shoal.plugins import Plugins
from shoal.vector.base import VecEnv

BACKENDS = Plugins("backend", package="shoal.vector", marker="BACKEND")


@dataclass(frozen=True)
class Backend:
    """One way to step envs. Both factories also take seed, copy, autoreset and render_mode, and the options by name."""

    help: str  # one line
    native: Callable[..., VecEnv] | None = None  # (module, num_envs, *, params, …): steps compiled headers
    python: Callable[..., VecEnv] | None = None  # (create, num_envs, *, …): steps what create() returns
    # keyword arguments of shoal.make and their defaults, or a dataclass of them
    options: Mapping[str, Any] | type[Any] = field(default_factory=dict)
    # with a dataclass: the options of `--vec.*` that it takes besides
    shared: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keywords(self) -> Mapping[str, Any]:
        """The keyword arguments of shoal.make that it takes, and their defaults."""
        if isinstance(self.options, type):
            return {**self.shared, **{option.name: option.default for option in fields(self.options)}}
        return self.options

    def factory(self, kind: str) -> Callable[..., VecEnv] | None:
        """The function that makes a VecEnv of native or python envs; None if the backend cannot step them."""
        return self.native if kind == "native" else self.python


def names_for(kind: str) -> list[str]:
    """The backends that step native or python envs. One of another package that cannot be loaded is left out."""
    names = []
    for name in BACKENDS.names():
        with contextlib.suppress(ConfigError):
            if BACKENDS.find(name).factory(kind) is not None:
                names.append(name)
    return names


def find(name: str, kind: str) -> Backend:
    """The backend with this name, for native or python envs. Raises ConfigError with the known names."""
    if not isinstance(name, str) or name not in BACKENDS.names() or BACKENDS.find(name).factory(kind) is None:
        known = names_for(kind)
        raise ConfigError(
            f"backend={name!r}.{did_you_mean(str(name), known)} {kind.capitalize()} envs have {', '.join(known)}."
        )
    backend: Backend = BACKENDS.find(name)
    return backend


def refuse_options(name: str, kind: str, given: Mapping[str, Any]) -> None:
    """Raises ConfigError for options that the backend does not have, and names the backends that do."""
    for option, value in given.items():
        if option in find(name, kind).keywords:
            continue
        others = [other for other in names_for(kind) if option in BACKENDS.find(other).keywords]
        if others:
            raise ConfigError(f"{option}={value!r} needs backend={' or '.join(map(repr, others))}, not {name!r}.")
        own = sorted({key for other in names_for(kind) for key in BACKENDS.find(other).keywords})
        raise ConfigError(f"{option}={value!r} is not an option of {kind} envs. They have {', '.join(own)}.")
