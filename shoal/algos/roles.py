"""Roles: which agents each policy plays. Splits a batch over all agents by role, and joins the roles' actions.

A vector env's arrays have one row for each agent of each env. A role's rows are those of its agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal import groups
from shoal.errors import ConfigError
from shoal.groups import Groups
from shoal.nn.distributions import ActionHead
from shoal.spec import Array, Layout, structure
from shoal.vector.base import VecEnv


@dataclass(frozen=True)
class Role:
    """The agents that one policy plays, and the spaces that they share."""

    agents: tuple[int, ...] | None  # None: all
    names: tuple[str, ...]  # of the agents, if they have different spaces: actions are then a dict by agent
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    name: str = ""  # in metrics and messages; empty: one policy plays all agents
    # of a native env whose groups have spaces of different sizes: rows are as wide as the largest
    obs_size: int = 0  # elements of a row that it observes, the first ones; 0: all
    mask_size: int = 0  # entries of an action mask that are its own; 0: all
    action_width: int = 0  # values of the env's action, of which it sets the first ones; 0: all
    # of a policy that plays other agents in other envs (shoal/league): its rows of the whole batch, ascending
    rows: Array | None = field(default=None, compare=False, repr=False)

    def count(self, agents_per_env: int) -> int:
        """How many agents of an env it plays."""
        return agents_per_env if self.agents is None else len(self.agents)

    def num_rows(self, num_envs: int, agents_per_env: int) -> int:
        """How many rows of `num_envs` envs it plays."""
        return num_envs * self.count(agents_per_env) if self.rows is None else len(self.rows)

    def span(self, lo: int, hi: int, agents_per_env: int) -> slice:
        """Where the rows of the envs [lo, hi) are among its own."""
        if self.rows is None:
            count = self.count(agents_per_env)
            return slice(lo * count, hi * count)
        first, last = np.searchsorted(self.rows, (lo * agents_per_env, hi * agents_per_env)).tolist()
        return slice(first, last)

    def chosen(self, lo: int, hi: int, agents_per_env: int) -> Array:
        """Its rows of the envs [lo, hi), counted from the first row of env `lo`. Only where `rows` are given."""
        assert self.rows is not None
        chosen: Array = self.rows[self.span(lo, hi, agents_per_env)] - lo * agents_per_env
        return chosen


def find_groups(vec: VecEnv, words: Sequence[str] = ()) -> Groups:
    """The groups of a vector env's agents: those of the words (`--nn.groups`), else those that the env declares."""
    agents = vec.agent_spaces.agents
    if words:
        if len(agents) == 1:
            raise ConfigError(f"--nn.groups {' '.join(words)}: the env has one agent. Leave --nn.groups out.")
        return groups.read(words, agents)
    source = 'metadata["groups"]' if vec.native_spec is None else "ENV_GROUPS"
    return groups.read(groups.as_words(dict(vec.agent_spaces.groups)), agents, source)


def groups_of(roles: Sequence[Role]) -> Groups:
    """The agents of each policy that plays several, by its name: the groups of an env that declares none."""
    return {role.name: role.agents for role in roles if role.name and role.agents and len(role.agents) > 1}


def resolve_policies(policies: str, named: Groups) -> str:
    """`auto` as one of the others: a policy for each group if there are groups, otherwise one for all agents."""
    if policies == "auto":
        return "groups" if named else "shared"
    if policies == "groups" and not named:
        raise ConfigError(
            "--nn.policies groups: the env names no groups. Give them: --nn.groups predators=0,1,2 prey=3."
        )
    return policies


def assign_roles(vec: VecEnv, policies: str = "shared", words: Sequence[str] = ()) -> list[Role]:
    """Divides a vector env's agents among policies: one for all, one for each, or one for each group.

    `words` are `--nn.groups`. Agents with different spaces never share a policy: `shared` has one for each pair of
    spaces.
    """
    agents, agent_spaces = vec.agents_per_env, vec.agent_spaces
    named = find_groups(vec, words)
    policies = resolve_policies(policies, named)
    pairs = list(zip(agent_spaces.observation_spaces, agent_spaces.action_spaces))
    if (spec := vec.native_spec) is not None and spec.own_sizes:
        pairs = [spec.spaces_of(agent) for agent in range(agents)]
    parts: Groups
    if policies == "per_agent":
        parts = {str(name): (agent,) for agent, name in enumerate(agent_spaces.agents)}
    elif policies == "groups":
        parts = named
    else:
        alike = agent_spaces.alike and all(pair == pairs[0] for pair in pairs)
        parts = {"": tuple(range(agents))} if alike else _by_spaces(pairs, agent_spaces.agents)
    return [_role(name, members, pairs, vec) for name, members in parts.items()]


def _by_spaces(pairs: list[Any], names: Sequence[Any]) -> Groups:
    """Agents with equal spaces together, by what their names have in common."""
    alike: list[list[int]] = []
    for agent, pair in enumerate(pairs):
        joined = next((members for members in alike if pairs[members[0]] == pair), None)
        if joined is None:
            alike.append([agent])
        else:
            joined.append(agent)
    found = [str(names[m[0]]) if len(m) == 1 else groups.name_by_prefix([str(names[k]) for k in m]) for m in alike]
    is_clear = all(found) and len(set(found)) == len(found)
    return {(name if is_clear else f"policy_{k}"): tuple(m) for k, (name, m) in enumerate(zip(found, alike))}


def _role(name: str, members: tuple[int, ...], pairs: list[Any], vec: VecEnv) -> Role:
    first, names = members[0], vec.agent_spaces.agents
    observation_space, action_space = pairs[first]
    for agent in members[1:]:
        if pairs[agent] != pairs[first]:
            kind, ours, theirs = next(
                (kind, a, b) for kind, a, b in zip(("observes", "acts in"), pairs[first], pairs[agent]) if a != b
            )
            raise ConfigError(
                f"group '{name}' has agents with different spaces: {names[first]} {kind} {ours}, {names[agent]} {kind} "
                f"{theirs}. Put them into different groups."
            )
    if not vec.agent_spaces.alike:
        return Role(members, tuple(names[k] for k in members), observation_space, action_space, name)
    if (spec := vec.native_spec) is not None and spec.own_sizes:
        sizes: dict[str, Any] = {
            "obs_size": spec.own_sizes[first][0],
            "mask_size": count_choices(action_space) if spec.mask_size else 0,
            "action_width": sum(spec.action_space.shape or ()),  # 0: a single choice
        }
        return Role(members, (), observation_space, action_space, name, **sizes)
    is_everyone = members == tuple(range(vec.agents_per_env))
    return Role(None if is_everyone else members, (), observation_space, action_space, name)


def pick(array: Array, role: Role, agents: int, lo: int = 0) -> Array:
    """The role's rows of an array, whose first row is the first one of env `lo`."""
    if role.rows is not None:
        own: Array = array[role.chosen(lo, lo + len(array) // agents, agents)]
        return own
    if role.agents is None:
        return array
    picked: Array = array.reshape(-1, agents, *array.shape[1:])[:, list(role.agents)]
    return picked.reshape(-1, *array.shape[1:])


def pick_obs(obs: Any, role: Role, layout: Layout, agents: int, lo: int = 0) -> list[Array]:
    """The leaves of the role's observations, of envs from `lo` on."""
    if role.names:  # a dict by agent
        by_agent = [layout.leaves_of(obs[name]) for name in role.names]
        return [np.stack(leaves, 1).reshape(-1, *leaves[0].shape[1:]) for leaves in zip(*by_agent)]
    if role.obs_size:
        return [pick(leaf, role, agents, lo)[:, : role.obs_size] for leaf in layout.leaves_of(obs)]
    return [pick(leaf, role, agents, lo) for leaf in layout.leaves_of(obs)]


def pick_masks(infos: dict[str, Any], role: Role, agents: int, lo: int = 0) -> Array | None:
    """(rows, choices): the role's action masks; None if infos have none. A row without a mask allows every action."""
    masks, present = infos.get("action_mask"), infos.get("_action_mask")
    if not isinstance(masks, np.ndarray):
        return None
    if masks.dtype == object:  # Gymnasium's form of a mask that only some rows have
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
    own = pick(masks, role, agents, lo)
    return own[:, : role.mask_size] if role.mask_size else own


def count_choices(space: spaces.Space[Any]) -> int:
    """The choices of a discrete space, over all of its parts: the entries of an action mask."""
    return int(np.sum(space.nvec)) if isinstance(space, spaces.MultiDiscrete) else int(getattr(space, "n", 0))


def mask_size(vec: VecEnv, role: Role, head: ActionHead, infos: dict[str, Any]) -> int:
    """Entries of an action mask: declared by the env, or read from the infos of its first reset; 0: no masks."""
    size = vec.mask_size and (role.mask_size or vec.mask_size)
    if not size:
        masks = pick_masks(infos, role, vec.agents_per_env)
        size = 0 if masks is None else int(np.prod(masks.shape[1:]))
    if not size:
        return 0
    if not head.choices:
        raise ConfigError(
            f"the env has action masks of {size} entries, but its actions are {head}. "
            "Action masks need discrete actions: leave `action_mask` out of the infos."
        )
    if size != head.choices:
        raise ConfigError(
            f"the env's action mask has {size} entries, but its actions have {head.choices} choices ({head}). "
            "Return one entry for each choice."
        )
    return size


def gather(
    actions: Sequence[Any], roles: Sequence[Role], heads: Sequence[ActionHead], envs: int, agents: int, lo: int = 0
) -> Any:
    """Joins the actions of all roles to one batch for `envs` envs from `lo` on. An agent without a role gets zeros."""
    if roles[0].rows is not None:
        return _gather_rows(actions, roles, heads, envs, agents, lo)
    if len(roles) == 1 and roles[0].agents is None:
        return actions[0]
    if not roles[0].names:
        layout = heads[0].layout
        by_role = [layout.leaves_of(role_actions) for role_actions in actions]
        widths = {role.action_width for role in roles} - {0}
        shapes = [(widths.pop(),) if widths else leaf.shape[1:] for leaf in by_role[0]]
        joined = [np.zeros((envs, agents, *shape), leaf.dtype) for shape, leaf in zip(shapes, by_role[0])]
        for role, leaves in zip(roles, by_role):
            for out, leaf in zip(joined, leaves):
                place = out[..., : leaf.shape[1]] if role.action_width else out
                place[:, list(role.agents or range(agents))] = leaf.reshape(envs, -1, *leaf.shape[1:])
        return structure(layout.space, iter([out.reshape(-1, *out.shape[2:]) for out in joined]))
    by_agent: dict[int, tuple[str, Any]] = {}
    for role, head, role_actions in zip(roles, heads, actions):
        leaves, count = head.layout.leaves_of(role_actions), len(role.names)
        for k, (agent, name) in enumerate(zip(role.agents or (), role.names)):
            by_agent[agent] = name, structure(head.space, iter([leaf[k::count] for leaf in leaves]))
    return dict(pair for _, pair in sorted(by_agent.items()))


def _gather_rows(
    actions: Sequence[Any], roles: Sequence[Role], heads: Sequence[ActionHead], envs: int, agents: int, lo: int
) -> Any:
    """`gather` for roles that play other agents in other envs."""
    layout = heads[0].layout
    by_role = [layout.leaves_of(role_actions) for role_actions in actions]
    joined = [np.zeros((envs * agents, *leaf.shape[1:]), leaf.dtype) for leaf in by_role[0]]
    for role, leaves in zip(roles, by_role):
        chosen = role.chosen(lo, lo + envs, agents)
        for out, leaf in zip(joined, leaves):
            out[chosen] = leaf
    return structure(layout.space, iter(joined))
