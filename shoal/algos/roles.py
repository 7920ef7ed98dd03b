"""Roles: which agents each policy plays, and how a batch over all agents is divided among policies and put together.

A vector env's arrays have a row for each agent of each env. A role's rows are those of its agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.nn.distributions import ActionHead
from shoal.spec import Array, Layout, structure
from shoal.vector.base import VecEnv


@dataclass(frozen=True)
class Role:
    """The agents that one policy plays, and the spaces that they share."""

    agents: tuple[int, ...] | None  # None: all
    names: tuple[str, ...]  # where agents have different spaces, and actions are a dict by agent
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def count(self, agents_per_env: int) -> int:
        """How many agents it plays."""
        return agents_per_env if self.agents is None else len(self.agents)


def assign_roles(vec: VecEnv, policies: str) -> list[Role]:
    """Divides a vector env's agents among policies: one for all, one for each, or one for each kind of spaces."""
    agents, agent_spaces = vec.agents_per_env, vec.agent_spaces
    if not agent_spaces.alike:
        seen, done = agent_spaces.observation_spaces, agent_spaces.action_spaces
        groups: list[list[int]] = []
        for agent in range(agents):
            alike = (g for g in groups if (seen[g[0]], done[g[0]]) == (seen[agent], done[agent]))
            group = None if policies == "per_agent" else next(alike, None)
            group.append(agent) if group is not None else groups.append([agent])
        return [Role(tuple(g), tuple(agent_spaces.agents[k] for k in g), seen[g[0]], done[g[0]]) for g in groups]
    observation_space, action_space = vec.single_observation_space, vec.single_action_space
    if policies == "per_agent" and agents > 1:
        return [Role((agent,), (), observation_space, action_space) for agent in range(agents)]
    return [Role(None, (), observation_space, action_space)]


def pick(array: Array, role: Role, agents: int) -> Array:
    """The role's rows of an array."""
    if role.agents is None:
        return array
    picked: Array = array.reshape(-1, agents, *array.shape[1:])[:, list(role.agents)]
    return picked.reshape(-1, *array.shape[1:])


def pick_obs(obs: Any, role: Role, layout: Layout, agents: int) -> list[Array]:
    """The leaves of the role's observations."""
    if role.names:  # a dict by agent
        by_agent = [layout.leaves_of(obs[name]) for name in role.names]
        return [np.stack(leaves, 1).reshape(-1, *leaves[0].shape[1:]) for leaves in zip(*by_agent)]
    return [pick(leaf, role, agents) for leaf in layout.leaves_of(obs)]


def pick_masks(infos: dict[str, Any], role: Role, agents: int) -> Array | None:
    """(rows, choices): the role's action masks; None where infos have none. A row without a mask allows everything."""
    masks, present = infos.get("action_mask"), infos.get("_action_mask")
    if not isinstance(masks, np.ndarray):
        return None
    if masks.dtype == object:  # a mask for some rows only, as Gymnasium merges infos
        given = [row for row in masks if row is not None]
        filled = np.ones((len(masks), *np.shape(given[0])), np.int8) if given else None
        if filled is None:
            return None
        for k, row in enumerate(masks):
            if row is not None:
                filled[k] = row
        masks = filled
    if present is not None and not np.all(present):
        masks = np.where(np.reshape(present, (-1, *[1] * (masks.ndim - 1))), masks, 1)
    return pick(masks, role, agents)


def mask_size(vec: VecEnv, role: Role, head: ActionHead, infos: dict[str, Any]) -> int:
    """Entries of an action mask: what the env declares, or what the infos of its first reset have; 0: no masks."""
    size = vec.mask_size
    if not size:
        masks = pick_masks(infos, role, vec.agents_per_env)
        size = 0 if masks is None else int(np.prod(masks.shape[1:]))
    if not size:
        return 0
    if not head.choices:
        raise ConfigError(
            f"the env has action masks of {size} entries, but its actions are {head}. Masks are for choices."
        )
    if size != head.choices:
        raise ConfigError(
            f"the env's action mask has {size} entries, but its actions have {head.choices} choices ({head}). "
            "Give one entry for each choice."
        )
    return size


def gather(actions: Sequence[Any], roles: Sequence[Role], heads: Sequence[ActionHead], games: int, agents: int) -> Any:
    """One batch of actions for the env from those of every role. An agent without a role gets zeros."""
    if len(roles) == 1 and roles[0].agents is None:
        return actions[0]
    if not roles[0].names:
        layout = heads[0].layout
        by_role = [layout.leaves_of(part) for part in actions]
        whole = [np.zeros((games, agents, *leaf.shape[1:]), leaf.dtype) for leaf in by_role[0]]
        for role, leaves in zip(roles, by_role):
            for out, leaf in zip(whole, leaves):
                out[:, list(role.agents or range(agents))] = leaf.reshape(games, -1, *leaf.shape[1:])
        return structure(layout.space, iter([out.reshape(-1, *out.shape[2:]) for out in whole]))
    by_agent: dict[int, tuple[str, Any]] = {}
    for role, head, part in zip(roles, heads, actions):
        leaves, count = head.layout.leaves_of(part), len(role.names)
        for k, (agent, name) in enumerate(zip(role.agents or (), role.names)):
            by_agent[agent] = name, structure(head.space, iter([leaf[k::count] for leaf in leaves]))
    return dict(pair for _, pair in sorted(by_agent.items()))
