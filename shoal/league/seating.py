"""Seating: which rows of the envs each learner plays, and which rows its opponents play.

A *side* is what one player plays: an agent, or a group of agents where the env declares groups of equal size. In env i
a learner plays side i % sides, so all sides are learned equally often; one opponent plays all other sides. With several
learners (exploiters) the envs are divided among them in turns. All of it is fixed for the whole run: a collector needs
no more than lists of rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from shoal.algos.roles import Role, assign_roles, find_groups
from shoal.errors import ConfigError
from shoal.spec import Array
from shoal.vector.base import VecEnv


class Seating:
    """The rows of every learner and of the opponents.

    Args:
        vec: the envs.
        groups: `--nn.groups`; empty: those that the env declares.
        learners: learners that share the envs. The first one plays half of them, the others share the rest.

    Attributes:
        role: all agents, as one role.
        sides: (sides, agents of a side) the agents of each side.
        side: (envs) the side that a learner plays.
        learner: (envs) the learner that plays there.
        own: the role of each learner's rows.
        others: the role of all other rows.
    """

    def __init__(self, vec: VecEnv, groups: Sequence[str] = (), learners: int = 1) -> None:
        self.role = check_sides(vec, groups)
        self.num_envs, self.agents = vec.num_envs, vec.agents_per_env
        self.sides = find_sides(vec, groups)
        (count, size), envs = self.sides.shape, np.arange(vec.num_envs)
        turns = [0] * max(1, learners - 1) + list(range(1, learners))
        if vec.num_envs % count or vec.num_envs < count * len(turns):
            least = count * len(turns)
            shown = f"{learners} learners" if learners > 1 else "the learner"
            raise ConfigError(
                f"--vec.num-envs {vec.num_envs} does not seat {shown} equally often on each of {count} sides. "
                f"Use {max(least, vec.num_envs // count * count)}."
            )
        self.side: Array = envs % count
        self.learner: Array = np.array(turns)[envs // count % len(turns)]
        is_own = np.zeros((vec.num_envs, self.agents), bool)
        is_own[envs[:, None], self.sides[self.side]] = True
        flat, by_row = is_own.reshape(-1), np.repeat(self.learner, self.agents)
        # `agents` says how many agents of an env it is, `rows` which ones
        own = dataclasses.replace(self.role, agents=tuple(range(size)))
        names = [""] if learners == 1 else ["main", *(f"exploiter_{k}" for k in range(1, learners))]
        self.own = [
            dataclasses.replace(own, rows=np.flatnonzero(flat & (by_row == k)), name=name)
            for k, name in enumerate(names)
        ]
        rest = tuple(range(self.agents - size))
        self.others = dataclasses.replace(self.role, agents=rest, rows=np.flatnonzero(~flat))

    @property
    def others_per_env(self) -> int:
        """Agents of an env that its opponent plays."""
        return int(self.agents - self.sides.shape[1])


def find_sides(vec: VecEnv, groups: Sequence[str] = ()) -> Array:
    """(sides, agents of a side): the groups if they have one size, otherwise every agent is a side."""
    named = list(find_groups(vec, groups).values())
    if len(named) > 1 and len({len(members) for members in named}) == 1:
        return np.array(named)
    return np.arange(vec.agents_per_env)[:, None]


def check_agents(vec: VecEnv) -> Role:
    """The role of all agents of an env that one policy can play. Raises if there is one agent, or unlike ones."""
    if vec.agents_per_env == 1:
        raise ConfigError(
            "self-play needs an env with at least two agents; this one has 1. Leave out --league and --opponents."
        )
    roles = assign_roles(vec, "shared")
    if len(roles) > 1 or roles[0].agents is not None:
        shown = "; ".join(f"{role.name}: {_spaces(role)}" for role in roles)
        raise ConfigError(
            "self-play needs agents with the same spaces, so that one policy can play each of them. This env has "
            f"{shown}. Use --opponents SEAT=WHO."
        )
    return roles[0]


def check_sides(vec: VecEnv, groups: Sequence[str] = ()) -> Role:
    """`check_agents` for a league. Raises also if groups have different sizes."""
    role = check_agents(vec)
    sizes = {name: len(members) for name, members in find_groups(vec, groups).items()}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise ConfigError(
            f"a league needs groups of equal size, so that a policy can play each of them: {shown}. "
            "Give others with --nn.groups, or use --opponents SEAT=WHO."
        )
    return role


def _spaces(role: Role) -> str:
    return f"{role.observation_space} and {role.action_space}"
