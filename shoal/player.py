"""PolicyPlayer: trained actors as a player that `shoal.evaluate` can seat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from shoal.algos.actor import Actor, Role, gather, kept_dtype, pick, pick_obs
from shoal.spec import Array, structure


class PolicyPlayer:
    """Actors that play their roles, by their likeliest actions or by drawing from their distributions."""

    def __init__(
        self,
        actors: Sequence[Actor],
        roles: Sequence[Role],
        agents: int,
        *,
        greedy: bool = True,
        seed: int = 0,
        judged: Sequence[int] | None = None,
    ) -> None:
        self.judged = None if judged is None else list(judged)  # agents whose returns are its score; None: all
        self.actors, self.roles, self.agents, self.greedy = list(actors), list(roles), agents, greedy
        self.generator = torch.Generator().manual_seed(seed)
        self.states: list[Any] = []

    def reset(self, num_rows: int) -> None:
        """Forgets everything."""
        self.games = num_rows // self.agents
        counts = [self.games * role.count(self.agents) for role in self.roles]
        self.states = [actor.initial_state(count) for actor, count in zip(self.actors, counts)]

    @torch.inference_mode()
    def act(self, obs: Any, infos: dict[str, Any]) -> Any:
        """The actions of all rows."""
        found = []
        for number, (actor, role) in enumerate(zip(self.actors, self.roles)):
            leaves = [
                torch.from_numpy(np.ascontiguousarray(leaf, kept_dtype(leaf.dtype)))
                for leaf in pick_obs(obs, role, actor.layout, self.agents)
            ]
            seen = structure(actor.space, iter(leaves))
            logits, _, self.states[number] = actor.step(seen, self.states[number])
            mask = infos.get("action_mask")
            if mask is not None and actor.head.choices and mask.shape[-1] == actor.head.choices:
                logits = actor.head.mask(logits, torch.from_numpy(np.array(pick(mask, role, self.agents))))
            if self.greedy:
                actions = actor.head.greedy(logits)
            else:
                noise = torch.empty(len(logits), actor.head.num_noise)
                actor.head.draw(noise, self.generator)
                actions = actor.head.sample(logits, noise)
            found.append(actor.head.to_env(actions.numpy()))
        return gather(found, self.roles, [actor.head for actor in self.actors], self.games, self.agents)

    def observe(self, done: Array) -> None:
        """Clears the memory of rows whose episode ended."""
        if not done.any():
            return
        for number, role in enumerate(self.roles):
            keep = torch.from_numpy(~pick(np.ascontiguousarray(done), role, self.agents))
            self.states[number] = tuple(
                part * keep.view(-1, *[1] * (part.ndim - 1)).to(part.dtype) for part in self.states[number]
            )
