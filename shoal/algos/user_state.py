"""The state of a part of the user's own (a reward, an agent) in checkpoints: the tensors of its `state_dict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from shoal.errors import CheckpointError


def tensors_of(part: Any, shown: str) -> dict[str, Tensor]:
    """The tensors of its `state_dict`; empty if it has none. `shown`: its name in messages."""
    tensors = part.state_dict() if hasattr(part, "state_dict") else {}
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise CheckpointError(f"{shown}: state_dict()['{name}'] is {kind}. Checkpoints hold tensors only.")
    return dict(tensors)


def check_saved(own: Mapping[str, Tensor], saved: Mapping[str, Tensor], shown: str) -> None:
    """Raises unless a checkpoint has a tensor of the same shape for each of `own`."""
    for name, value in own.items():
        found = saved.get(name)
        if found is None or found.shape != value.shape:
            what = "nothing" if found is None else f"a tensor of shape {tuple(found.shape)}"
            needed = tuple(value.shape)
            raise CheckpointError(f"{shown}: the checkpoint has {what} for its '{name}', expected {needed}.")
