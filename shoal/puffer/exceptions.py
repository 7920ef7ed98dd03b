"""PufferLib's exceptions, and the error for names that this layer does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shoal.errors import ConfigError, did_you_mean

__all__ = ["APIUsageError", "EnvironmentSetupError", "InvalidAgentError", "MissingName"]


class APIUsageError(ConfigError, RuntimeError):
    """PufferLib's API was used in a wrong way. Every mistake that this layer finds itself raises it."""

    def __init__(self, message: str = "API usage error.") -> None:
        self.message = message
        super().__init__(message)


class EnvironmentSetupError(APIUsageError):
    """An env cannot be made, because its package is not installed."""


class InvalidAgentError(APIUsageError):
    """A name that is none of the env's agents."""

    def __init__(self, agent_id: Any, agents: Any) -> None:
        super().__init__(f"agent {agent_id!r} is none of {list(agents)}.")


class MissingName(APIUsageError, AttributeError):
    """A name of PufferLib that does not exist here. An AttributeError too, so that hasattr works."""


def missing_names(module: str, known: Iterable[str], instead: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` for names that it does not have.

    Args:
        module: its full name.
        known: the names that it has, for suggestions.
        instead: for names of PufferLib that are not supported: what to use.
    """
    short = module.removeprefix("shoal.")

    def get(name: str) -> Any:
        if name.startswith("__"):  # Python's own probes, such as __path__
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if name in instead:
            raise MissingName(f"{short}.{name} is not supported so far. {instead[name]}")
        near = did_you_mean(name, [*known, *instead])
        raise MissingName(f"{short} has no name '{name}'.{near} docs/from-pufferlib.md lists what it has.")

    return get
