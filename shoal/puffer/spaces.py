"""PufferLib's `spaces`: tuples of types for isinstance, and the space of a batch.

`isinstance(space, spaces.Box)` is true for a Box of Gymnasium and, if old gym is imported, of old gym.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
from gymnasium.vector.utils import batch_space

from shoal.puffer.exceptions import APIUsageError, missing_names

KINDS = ("Box", "Dict", "Discrete", "MultiBinary", "MultiDiscrete", "Tuple")

__all__ = ["Box", "Dict", "Discrete", "MultiBinary", "MultiDiscrete", "Tuple", "joint_space"]  # noqa: F822

_missing = missing_names(__name__, __all__, {})


def __getattr__(name: str) -> Any:
    if name not in KINDS:
        return _missing(name)
    libraries = [gymnasium, *([sys.modules["gym"]] if "gym" in sys.modules else [])]
    return tuple(getattr(library.spaces, name) for library in libraries)


def joint_space(space: Any, n: int) -> gymnasium.spaces.Space[Any]:
    """The space of n agents with equal spaces: `joint_space(Discrete(3), 2)` is `MultiDiscrete([3, 3])`."""
    if not isinstance(space, (gymnasium.spaces.Box, gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete)):
        raise APIUsageError(f"joint_space needs a Box, Discrete or MultiDiscrete of Gymnasium, not {space}.")
    return batch_space(space, n)
