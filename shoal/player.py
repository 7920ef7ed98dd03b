"""PolicyPlayer: trained actors as a player for `shoal.evaluate`. shoal/train/players.py loads them from runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shoal.algos.actor import Actor, stored_numpy_dtype
from shoal.algos.roles import Role, gather, pick, pick_masks, pick_obs
from shoal.nn.state import clear_state
from shoal.spec import Array, structure


class PolicyPlayer:
    """Actors that play their roles, with their most probable actions or with sampled ones.

    Args:
        actors: one for each role.
        roles: the agents that each actor plays.
        agents: the number of agents of an env.
        greedy: whether actors take their most probable actions: one bool for all, or one for each.
        seed: the seed of sampled actions.
        judged: agents whose returns are the player's score; None: all.
        groups: named groups of agents that have a score of their own.
    """

    def __init__(
        self,
        actors: Sequence[Actor],
        roles: Sequence[Role],
        agents: int,
        *,
        greedy: bool | Sequence[bool] = True,
        seed: int = 0,
        judged: Sequence[int] | None = None,
        groups: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.groups = dict(groups or {})
        self.judged = None if judged is None else list(judged)
        self.actors, self.roles, self.agents = [actor.as_player() for actor in actors], list(roles), agents
        self.greedy = [greedy] * len(self.actors) if isinstance(greedy, bool) else list(greedy)
        self.generator = torch.Generator().manual_seed(seed)
        self.states: list[Any] = []

    def reset(self, num_rows: int) -> None:
        """Starts an episode in all rows."""
        self.num_envs = num_rows // self.agents
        counts = [self.num_envs * role.count(self.agents) for role in self.roles]
        self.states = [actor.initial_state(count) for actor, count in zip(self.actors, counts)]

    @torch.inference_mode()
    def act(self, obs: Any, infos: dict[str, Any]) -> Any:
        """The actions of all rows."""
        actions = []
        with contextlib.ExitStack() as modes:
            for number, (actor, role) in enumerate(zip(self.actors, self.roles)):
                modes.enter_context(actor.evaluation_mode())
                leaves = [
                    torch.from_numpy(np.ascontiguousarray(leaf, stored_numpy_dtype(leaf.dtype)))
                    for leaf in pick_obs(obs, role, actor.layout, self.agents)
                ]
                decision = actor.act(
                    structure(actor.space, iter(leaves)),
                    self.states[number],
                    mask=self._mask(actor, role, infos),
                    noise=None if self.greedy[number] else self._noise(actor, len(leaves[0])),
                )
                self.states[number] = decision.state
                actions.append(actor.head.to_env(decision.actions.numpy()))
        return gather(actions, self.roles, [actor.head for actor in self.actors], self.num_envs, self.agents)

    def observe(self, done: Array) -> None:
        """Clears the recurrent state of rows whose episode ended."""
        if not done.any():
            return
        for number, (actor, role) in enumerate(zip(self.actors, self.roles)):
            keep = torch.from_numpy(~pick(np.ascontiguousarray(done), role, self.agents))
            self.states[number] = clear_state(self.states[number], keep, actor.initial_row())

    def _noise(self, actor: Actor, rows: int) -> torch.Tensor:
        noise = torch.empty(rows, actor.head.num_noise)
        actor.head.draw(noise, self.generator)
        return noise

    def _mask(self, actor: Actor, role: Role, infos: dict[str, Any]) -> torch.Tensor | None:
        masks = pick_masks(infos, role, self.agents)
        if masks is None or not actor.head.choices or masks[0].size != actor.head.choices:
            return None
        return torch.from_numpy(np.array(masks.reshape(len(masks), -1)))
