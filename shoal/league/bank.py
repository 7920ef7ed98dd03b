"""Bank: frozen policies of one shape as one tensor of weights, a row for each member, on the device of the learner.

A member's actor has no weights of its own: its parameters are views of its row. So copying a learner's weights into a
row changes how the member plays, and one kernel can act for all members (algos/fast/members.py).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from shoal import memory
from shoal.algos.actor import Actor
from shoal.errors import ConfigError
from shoal.nn.qnet import QHead


class Bank:
    """The weights of up to `members` policies, with the mean and variance of their observations.

    `parts` has a (members, size) tensor for each dtype: float32 for weights, float64 for moments. A row begins with
    the policy's parameters, in their order.
    """

    def __init__(self, actor: Actor, members: int, device: Any = "cpu") -> None:
        self.template, self.members, self.device = actor, members, torch.device(device)
        self.places: dict[str, tuple[torch.dtype, int]] = {}  # by name: dtype and start in a row
        sizes: dict[torch.dtype, int] = {}
        for name, value in _entries(actor).items():
            self.places[name] = value.dtype, sizes.get(value.dtype, 0)
            sizes[value.dtype] = sizes.get(value.dtype, 0) + value.numel()
        _check_memory(sizes, members, self.device)
        self.parts = {
            dtype: torch.zeros((members, size), dtype=dtype, device=self.device) for dtype, size in sizes.items()
        }
        self._actors: dict[int, Actor] = {}

    @property
    def weights(self) -> Tensor:
        """(members, size) the float32 part."""
        return self.parts[torch.float32]

    def put(self, member: int, actor: Actor) -> None:
        """Copies an actor's weights into a row."""
        for name, value in _entries(actor).items():
            self.row(member, name, value.shape).copy_(value.detach())

    def row(self, member: int, name: str, shape: Any) -> Tensor:
        """A view of one entry of a member: a parameter or buffer of the actor, by its name in the state dict."""
        dtype, start = self.places[name]
        size = int(torch.Size(shape).numel())
        return self.parts[dtype][member, start : start + size].view(shape)

    def columns(self, name: str, shape: Any) -> Tensor:
        """(members, *shape): a view of one entry of all members."""
        dtype, start = self.places[name]
        size = int(torch.Size(shape).numel())
        return self.parts[dtype][:, start : start + size].view(self.members, *shape)

    def actor(self, member: int) -> Actor:
        """The actor of a row. It plays without exploration."""
        if member not in self._actors:
            with torch.inference_mode(False):  # a collector asks for it inside of that mode
                self._actors[member] = self._make_actor(member)
        return self._actors[member]

    def _make_actor(self, member: int) -> Actor:
        twin = copy.deepcopy(self.template)
        twin._run = [twin.policy]  # not compiled: the rows of a member are another number in every step
        for name, parameter in twin.named_parameters():
            parameter.requires_grad_(False)
            parameter.data = self.row(member, name, parameter.shape)
        for path, module in twin.named_modules():
            for name, buffer in module._buffers.items():
                full = f"{path}.{name}" if path else name
                if full in self.places and buffer is not None:
                    module._buffers[name] = self.row(member, full, buffer.shape)
        if isinstance(twin.head, QHead):
            twin.head.epsilon.zero_()
        return twin

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return {str(dtype).removeprefix("torch."): part for dtype, part in self.parts.items()}


def _entries(actor: Actor) -> dict[str, Tensor]:
    """The parameters and buffers of an actor by name: first the policy's parameters, in the order of `flatten`."""
    parameters = {f"policy.{name}": value for name, value in actor.policy.named_parameters()}
    return parameters | {name: value for name, value in actor.state_dict().items() if name not in parameters}


def _check_memory(sizes: dict[torch.dtype, int], members: int, device: torch.device) -> None:
    """Raises if a bank does not fit into the free memory of its device."""
    each = sum(size * torch.empty(0, dtype=dtype).element_size() for dtype, size in sizes.items())
    free = memory.free_bytes(device)
    if free is not None and members * each > free:
        kind = "GPU memory" if device.type == "cuda" else "memory"
        raise ConfigError(
            f"--league.pool {members} of a policy of {each:,} bytes needs {members * each:,} bytes of {kind}, "
            f"{free:,} are free. Use --league.pool {max(2, free // (2 * each))}, or a smaller network."
        )
