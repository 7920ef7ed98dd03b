"""Recurrent state: nested as the policy returns it, a flat tuple everywhere else.

A custom policy may return its state as one tensor, or as nested tuples, lists and dicts of tensors, and gets it back in
the same structure. Collectors, rollouts and checkpoints use a `State`: a tuple of (rows, ...) tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from shoal.errors import ConfigError
from shoal.nn.cores import State


def clear_state(state: State, keep: Tensor, initial: State | None = None) -> State:
    """The state where `keep` (rows,) is true, and the initial state elsewhere.

    `initial` holds (1, ...) or (rows, ...) tensors; None stands for zeros. Replaced values may be nan. No argument is
    changed.
    """
    cleared = []
    for number, part in enumerate(state):
        mask = keep.view(-1, *[1] * (part.ndim - 1))
        cleared.append(part.masked_fill(~mask, 0) if initial is None else torch.where(mask, part, initial[number]))
    return tuple(cleared)


class StateStructure:
    """How a policy nests its state. `example` is any of its states."""

    def __init__(self, example: Any) -> None:
        self._nested = _shape_of(example)
        self.is_flat = type(self._nested) is tuple and all(part is None for part in self._nested)

    def flatten(self, state: Any) -> State:
        """The tensors of a nested state, in the structure's order. Raises if the state has another structure."""
        if state is None:
            state = ()
        if self.is_flat and type(state) is tuple and len(state) == len(self._nested):
            return state
        return tuple(_leaves(self._nested, state))

    def nest(self, state: State) -> Any:
        """The state in the policy's own structure."""
        return state if self.is_flat else _nest(self._nested, iter(state))


def state_structure(policy: Any) -> StateStructure:
    """How a policy nests its state. Found once, from its initial state for one row, and cached on the policy."""
    structure: StateStructure | None = getattr(policy, "_state_structure", None)
    if structure is None:
        structure = StateStructure(policy.initial_state(1) if hasattr(policy, "initial_state") else ())
        policy._state_structure = structure
    return structure


def initial_state(policy: Any, rows: int) -> State:
    """The policy's state at the start of an episode; empty if it has none."""
    if not hasattr(policy, "initial_state"):
        return ()
    return state_structure(policy).flatten(policy.initial_state(rows))


def initial_row(policy: Any) -> State | None:
    """What `clear_state` takes as `initial` for this policy: its initial state for one row, or None for zeros.

    A learned initial state is never None and changes with every update: call this after each. Call it outside of
    torch.inference_mode, in which no tensor requires a gradient.
    """
    with torch.enable_grad():
        state = initial_state(policy, 1)
    is_zero = not any(part.requires_grad or bool(part.any()) for part in state)
    return None if is_zero else tuple(part.detach() for part in state)


# ---- nesting ----
#
# A structure has None where the state has a tensor. spec.map_leaves is not enough here: states may also be lists and
# named tuples, and a state of another structure must be reported.


def _shape_of(state: Any) -> Any:
    if state is None:
        return ()
    if isinstance(state, Tensor):
        return None
    if isinstance(state, dict):
        return {key: _shape_of(part) for key, part in state.items()}
    if isinstance(state, (tuple, list)):
        return _like(state, [_shape_of(part) for part in state])
    raise ConfigError(
        f"the policy's state holds a {type(state).__name__}. "
        "A state is a tensor, or nested tuples, lists and dicts of tensors."
    )


def _leaves(nested: Any, state: Any) -> Iterator[Tensor]:
    if nested is None:
        if not isinstance(state, Tensor):
            raise ConfigError(f"the policy's state has a {type(state).__name__} where its initial_state has a tensor.")
        yield state
        return
    if isinstance(nested, dict):
        if not isinstance(state, dict) or set(state) != set(nested):
            keys = f"the keys {sorted(map(str, state))}" if isinstance(state, dict) else f"a {type(state).__name__}"
            raise ConfigError(f"the policy's state has {keys} where its initial_state has {sorted(map(str, nested))}.")
        pairs: Any = ((part, state[key]) for key, part in nested.items())
    else:
        if not isinstance(state, (tuple, list)) or len(state) != len(nested):
            parts = f"{len(state)} parts" if isinstance(state, (tuple, list)) else f"a {type(state).__name__}"
            raise ConfigError(f"the policy's state has {parts} where its initial_state has {len(nested)} parts.")
        pairs = zip(nested, state)
    for part, inner in pairs:
        yield from _leaves(part, inner)


def _nest(nested: Any, leaves: Iterator[Tensor]) -> Any:
    if nested is None:
        return next(leaves)
    if isinstance(nested, dict):
        return {key: _nest(part, leaves) for key, part in nested.items()}
    return _like(nested, [_nest(part, leaves) for part in nested])


def _like(example: Any, parts: list[Any]) -> Any:
    """The parts as a list, a tuple or a named tuple, whichever the example is."""
    if isinstance(example, list):
        return parts
    return type(example)(*parts) if hasattr(example, "_fields") else tuple(parts)
