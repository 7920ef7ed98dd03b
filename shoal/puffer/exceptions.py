"""PufferLib's exceptions, and the error for names that shoal.puffer does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shoal.errors import ConfigError, did_you_mean

__all__ = ["APIUsageError", "EnvironmentSetupError", "InvalidAgentError", "MissingName"]


class APIUsageError(ConfigError, RuntimeError):
    """A mistake in the use of PufferLib's API. Every mistake that shoal.puffer finds raises it."""

    def __init__(self, message: str = "API usage error.") -> None:
        self.message = message
        super().__init__(message)


class EnvironmentSetupError(APIUsageError):
    """An env cannot be made, because its package is not installed."""


class InvalidAgentError(APIUsageError):
    """A name that is not one of the env's agents."""

    def __init__(self, agent_id: Any, agents: Any) -> None:
        super().__init__(f"agent {agent_id!r} is not one of {list(agents)}.")


class MissingName(APIUsageError, AttributeError):
    """A name of PufferLib that shoal.puffer does not have. Also an AttributeError, so that hasattr works."""


def missing_names(module: str, known: Iterable[str], instead: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` for names that it does not have.

    Args:
        module: its full name.
        known: the names that it has, for suggestions.
        instead: names of PufferLib that are not supported, and what to use in their place.
    """
    short = module.removeprefix("shoal.")

    def get(name: str) -> Any:
        if name.startswith("__"):  # Python looks for some, such as __path__
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if name in instead:
            raise MissingName(f"{short}.{name} is not supported. {instead[name]}")
        near = did_you_mean(name, [*known, *instead])
        raise MissingName(f"{short} has no name '{name}'.{near} docs/from-pufferlib.md lists what it has.")

    return get
