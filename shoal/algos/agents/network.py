"""NetworkAgent: a trained policy as an agent: a run in a seat that changes hands, or a frozen copy of the learner."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from shoal.algos.actor import Actor
from shoal.nn.cores import State
from shoal.nn.qnet import QHead
from shoal.nn.state import clear_state


class NetworkAgent:
    """Samples the actions of a policy, which does not learn.

    Args:
        actor: the policy.
        generator: the stream of its samples, on its device.
        keeps_weights: whether a checkpoint holds the weights: those of a copy of the learner are nowhere else.
    """

    capturable = True

    def __init__(self, actor: Actor, generator: torch.Generator, *, keeps_weights: bool = False) -> None:
        self.actor, self.generator, self.keeps_weights = actor, generator, keeps_weights
        self.state: State = ()
        self._initial = actor.initial_row()

    def to(self, device: Any) -> None:
        """Moves the policy."""
        self.actor.to(device)
        self.actor.head.to(device)
        self.state = tuple(part.to(device) for part in self.state)
        self._initial = self.actor.initial_row()

    def reset(self, mask: Tensor) -> None:
        """Clears the recurrent state of rows whose game starts."""
        if self.state and len(self.state[0]) == len(mask):
            for part, cleared in zip(self.state, clear_state(self.state, ~mask, self._initial)):
                part.copy_(cleared)
        else:
            self.state = tuple(part.detach().clone() for part in self.actor.initial_state(len(mask)))

    def act(self, obs: Any, mask: Tensor | None) -> Any:
        """Samples an action for every row."""
        actor, head = self.actor, self.actor.head
        rows = len(actor.layout.leaves_of(obs)[0])
        noise = torch.empty(rows, head.num_noise, device=self.generator.device)
        head.draw(noise, self.generator)
        with actor.evaluation_mode():
            decision = actor.act(obs, self.state, mask=mask, noise=noise)
        for part, new in zip(self.state, decision.state):
            part.copy_(new)
        return head.to_tensors(decision.actions)

    @torch.no_grad()
    def copy_weights(self, learner: Actor) -> None:
        """Takes the present weights of the learner, in place: a CUDA graph of its steps stays valid."""
        for own, new in zip(self.actor.state_dict().values(), learner.state_dict().values()):
            own.copy_(new)
        for part, now in zip(self._initial or (), self.actor.initial_row() or ()):
            part.copy_(now)

    def state_dict(self) -> dict[str, Tensor]:
        """The recurrent state, and the weights where no run holds them."""
        tensors = {f"recurrent.{k}": part for k, part in enumerate(self.state)}
        return tensors | (dict(self.actor.state_dict()) if self.keeps_weights else {})


def frozen_copy(learner: Actor, generator: torch.Generator) -> NetworkAgent:
    """A learner's policy as it is now, as an agent."""
    twin = copy.deepcopy(learner)
    for parameter in twin.parameters():
        parameter.requires_grad_(False)
    if isinstance(twin.head, QHead):
        twin.head.epsilon.zero_()  # no exploration
    return NetworkAgent(twin, generator, keeps_weights=True)
