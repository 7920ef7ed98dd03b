"""Plays policies on vector envs and fills their rollouts. One file for each combination of CPU and GPU:

    host.py        envs and policy on the CPU
    native.py      native envs and a policy in C on the CPU: a rollout in one call
    device.py      envs and policy on the same GPU
    host_envs.py   envs on the CPU, policy on a GPU
    league.py      envs and policies on the same GPU, with a league's opponents

Knows rollouts, actors and vector envs, but nothing of learning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shoal.algos.actor import Actor
from shoal.algos.rewards.shaper import Shaper
from shoal.algos.roles import Role
from shoal.algos.rollout import Rollout, StepViews
from shoal.nn.cores import State


@dataclass
class Seat:
    """An actor, the agents that it plays, the rollout that it fills, and the random stream of its actions."""

    actor: Actor
    role: Role
    rollout: Rollout
    stream: torch.Generator
    learns: bool = True
    shaper: Shaper | None = None  # computes a reward of the user's own
    members: Any = None  # of a league's opponents (shoal/league/members.py): they act, each for its own rows


@dataclass
class Times:
    """Seconds spent in envs, in inference and in copies."""

    env: float = 0.0
    inference: float = 0.0
    copy: float = 0.0

    def drain(self) -> dict[str, float]:
        """Returns the seconds since the last call."""
        seconds = {"env": self.env, "inference": self.inference, "copy": self.copy}
        self.env = self.inference = self.copy = 0.0
        return seconds


@dataclass
class PolicyAge:
    """How old the policy of the steps was that an update learned from: in updates between acting and learning."""

    total: float = 0.0
    steps: int = 0
    highest: int = 0

    def add(self, ages: Sequence[int], envs: int) -> None:
        """Adds the steps of some envs: the age of each step, oldest first."""
        self.total += sum(ages) * envs
        self.steps += len(ages) * envs
        self.highest = max(self.highest, ages[0])

    def drain(self) -> dict[str, float]:
        """The mean and the highest age since the last call; empty if no steps were added."""
        if not self.steps:
            return {}
        result = {"policy_age": self.total / self.steps, "policy_age_max": float(self.highest)}
        self.total, self.steps, self.highest = 0.0, 0, 0
        return result


def begin(seat: Seat) -> None:
    """Begins a rollout of a seat: draws noise, and reads a learned initial state again."""
    seat.rollout.begin(seat.stream)
    if seat.rollout.initial is not None:
        seat.rollout.initial = tuple(part.detach() for part in seat.actor.initial_state(1))


@contextlib.contextmanager
def evaluation_mode(seats: Sequence[Seat]) -> Iterator[None]:
    """Turns dropout off and freezes batch statistics of the seats' policies inside."""
    with contextlib.ExitStack() as modes:
        for seat in seats:
            modes.enter_context(seat.actor.evaluation_mode())
        yield


def act_into(actor: Actor, views: StepViews) -> State:
    """Acts for the rows of some views and stores the decision in them; returns the next recurrent state."""
    decision = actor.act(views.obs, views.state, mask=views.mask, noise=views.noise)
    views.logits.copy_(decision.logits)
    views.values.copy_(decision.values)
    views.actions.copy_(decision.actions)
    return decision.state
