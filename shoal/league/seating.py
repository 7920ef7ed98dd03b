"""Seating: which rows of the envs the learner plays, and which rows its opponents play.

A *side* is what one player plays: an agent, or a group of agents where the env declares groups of equal size. In env i
the learner plays side i % sides, so all sides are learned equally often; one opponent plays all other sides. All of it
is fixed for the whole run: a collector needs no more than two lists of rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.algos.roles import Role, assign_roles, find_groups
from shoal.errors import ConfigError
from shoal.spec import Array
from shoal.vector.base import VecEnv


class Seating:
    """The rows of the learner and of its opponents.

    Args:
        vec: the envs.
        groups: `--nn.groups`; empty: those that the env declares.

    Attributes:
        role: all agents, as one role.
        sides: (sides, agents of a side) the agents of each side.
        side: (envs) the side that the learner plays.
        own: the role of the learner's rows.
        others: the role of all other rows.
    """

    def __init__(self, vec: VecEnv, groups: Sequence[str] = ()) -> None:
        self.role = check_sides(vec, groups)
        self.num_envs, self.agents = vec.num_envs, vec.agents_per_env
        self.sides = find_sides(vec, groups)
        count, size = self.sides.shape
        if vec.num_envs % count:
            raise ConfigError(
                f"--vec.num-envs {vec.num_envs} does not divide by the {count} sides of the env, so the learner would "
                f"play some sides more often. Use {max(1, vec.num_envs // count) * count}."
            )
        envs = np.arange(vec.num_envs)
        self.side: Array = envs % count
        is_own = np.zeros((vec.num_envs, self.agents), bool)
        is_own[envs[:, None], self.sides[self.side]] = True
        # `agents` says how many agents of an env it is, `rows` which ones
        own, others = np.flatnonzero(is_own), np.flatnonzero(~is_own)
        self.own = dataclasses.replace(self.role, agents=tuple(range(size)), rows=own)
        self.others = dataclasses.replace(self.role, agents=tuple(range(self.agents - size)), rows=others)

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


def check_sides(vec: VecEnv, groups: Sequence[str] = ()) -> Role:
    """The role of all agents of an env that can have a league. Raises if it has one side, or sides that are unlike."""
    if vec.agents_per_env == 1:
        raise ConfigError(
            "a league needs an env with at least two agents; this one has 1. Leave out --league and --opponents."
        )
    roles = assign_roles(vec, "shared")
    if len(roles) > 1 or roles[0].agents is not None:
        shown = "; ".join(f"{role.name}: {_spaces(role)}" for role in roles)
        raise ConfigError(
            "a league needs sides with the same spaces, so that a policy can play each of them. This env has "
            f"{shown}. Use --opponents SEAT=WHO."
        )
    sizes = {name: len(members) for name, members in find_groups(vec, groups).items()}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise ConfigError(
            f"a league needs groups of equal size, so that a policy can play each of them: {shown}. "
            "Give others with --nn.groups, or use --opponents SEAT=WHO."
        )
    return roles[0]


def _spaces(role: Any) -> str:
    return f"{role.observation_space} and {role.action_space}"
