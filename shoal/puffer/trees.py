"""Values in the structure of a space: arrays or tensors in dicts and tuples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def map_leaves(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """The structure of a value with `function(leaf)` for every leaf. `others` give it more arguments, leaf by leaf."""
    if isinstance(value, dict):
        return {key: map_leaves(function, part, *(other[key] for other in others)) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map_leaves(function, *parts) for parts in zip(value, *others))
    return function(value, *others)


def leaves(value: Any) -> list[Any]:
    """The leaves, in order."""
    parts: list[Any] = []
    map_leaves(parts.append, value)
    return parts
