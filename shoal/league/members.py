"""Members: whoever plays against the learner. Acts for their rows on the CPU, and hands scripted robots to the envs.

A member is a row of the bank (the latest weights, a snapshot, a run with the learner's network), a run with another
network, a Python agent, or a scripted robot, which the env plays itself: a new game takes it from the env's params
`robot_<agent>`. Members of the bank act together, one product per layer with the weights of each row's member, if the
network is made of linear layers; other members act one after another, each for its own rows. algos/fast/members.py acts
for all of them at once on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.algos.actor import Actor
from shoal.algos.fast.members import NotCovered, Segments, share_weights
from shoal.algos.rollout import Rollout, StepViews
from shoal.league.bank import Bank
from shoal.league.games import Games
from shoal.league.options import MOST_MEMBERS
from shoal.nn import policy as policies
from shoal.nn.cores import State
from shoal.spec import Array, map_leaves

LEARNER = "learner"  # the choice of `robot_<agent>` by which the env waits for an action


class Robots:
    """Sets who plays each agent of the envs' next games: a scripted robot, or whoever sends actions.

    Args:
        vec: native envs with a param `robot_<agent>` for each agent.
        games: who plays next.
        names: the names of the robots by member; they are choices of those params.
    """

    def __init__(self, vec: Any, games: Games, names: Mapping[int, str]) -> None:
        self.games, self.names, device = games, dict(names), games.device
        choices = {param.name: list(param.choices or ()) for param in vec.native_spec.params}
        params = [f"robot_{agent}" for agent in range(games.seating.agents)]
        given = vec.give_params(params)
        self.given = [torch.as_tensor(given[name]) for name in params]
        self.codes, self.is_own = [], []  # by agent: the param of each member, and the envs where the learner plays it
        for agent, param in enumerate(params):
            learner = choices[param].index(LEARNER)
            codes = torch.full((MOST_MEMBERS,), float(learner), dtype=torch.float64)
            for member, name in self.names.items():
                codes[member] = float(choices[param].index(name))
            self.codes.append(codes.to(device))
            own_side = np.array([agent in side for side in games.seating.sides.tolist()])
            self.is_own.append(torch.from_numpy(own_side[games.seating.side]).to(device))
        self.learner = [float(choices[param].index(LEARNER)) for param in params]

    def set_next(self) -> None:
        """Writes the next opponents into the params that the next games take."""
        for given, codes, is_own, learner in zip(self.given, self.codes, self.is_own, self.learner):
            given.copy_(torch.where(is_own, learner, codes[self.games.next_member]))


class Members:
    """Acts for the rows of all opponents.

    Args:
        learner: the actor whose current weights are member 0.
        bank: the weights of members that have the learner's network.
        games: who plays where.
        rollout: the opponents' rows; only observations, masks, noise, actions and recurrent state are used.
        runs: actors of members that have other networks.
        robots: scripted robots among the members; None: there are none.
    """

    def __init__(
        self,
        learner: Actor,
        bank: Bank,
        games: Games,
        rollout: Rollout,
        *,
        runs: Mapping[int, Actor] | None = None,
        robots: Robots | None = None,
    ) -> None:
        self.learner, self.bank, self.games, self.rollout = learner, bank, games, rollout
        self.runs, self.robots = dict(runs or {}), robots
        self.head = bank.actor(0).head
        rows, seating = rollout.rows, games.seating
        self.run_states: dict[int, State] = {  # of all rows: whoever does not play there has no use for his
            member: tuple(part.detach().clone() for part in actor.initial_state(rows))
            for member, actor in self.runs.items()
        }
        self._segments = Segments()
        self._shared = self._share()  # one policy with the weights of all members; None: each acts by its own
        self.alive = np.ones(seating.num_envs * seating.agents, bool)  # before the next step
        self._member: Array = games.member.numpy()

    def _share(self) -> Any:
        """The learner's policy with the weights of each row's member, if it is made of linear layers."""
        if self.rollout.initial is not None or self.learner.layout.leaves[1:]:
            return None
        self._segments.set(torch.zeros(2, dtype=torch.int64))
        try:
            shared = share_weights(self.learner.policy, self.bank, self._segments)
            with torch.no_grad():
                policies.step(shared, self.learner.blank(2), self.learner.initial_state(2))
        except NotCovered:
            return None
        return shared

    def begin(self) -> None:
        """Begins an iteration: takes the learner's weights, and draws the opponents of new games."""
        self.bank.put(0, self.learner)
        self.games.draw()
        if self.robots is not None:
            self.robots.set_next()

    def refresh(self, member: int) -> None:
        """Called after a member's weights have changed: its actor sees them already."""

    # ---- acting ----

    def act(self, views: StepViews, lo: int, hi: int) -> None:
        """Acts for the opponents' rows of the envs [lo, hi)."""
        per_env = self.games.seating.others_per_env
        by_row = np.repeat(self._member[lo:hi], per_env)
        present = np.unique(by_row).tolist()
        span = slice(lo * per_env, hi * per_env)
        for member, actor in self.runs.items():
            if getattr(actor, "has_memory", False):  # a Python agent that acts for the same rows in every call
                self._act_for_all(member, views, torch.from_numpy(by_row == member), span)
        together = []
        for member in present:
            if getattr(self.runs.get(member), "has_memory", False):
                continue
            if self.robots is not None and member in self.robots.names:
                if len(present) == 1:
                    views.actions.zero_()  # the env ignores them, but an action has to be one of its space
                else:
                    views.actions[torch.from_numpy(np.flatnonzero(by_row == member))] = 0
                continue
            if self._shared is not None and member not in self.runs:
                together.append(member)
                continue
            rows = slice(None) if len(present) == 1 else torch.from_numpy(np.flatnonzero(by_row == member))
            self._act(member, views, rows, span)
        if together:
            self._act_together(views, by_row, together)

    def _act_together(self, views: StepViews, by_row: Array, members: list[int]) -> None:
        """Members of the bank act by one policy, their rows in the order of members. The bits are those of `_act`."""
        chosen = np.flatnonzero(np.isin(by_row, members))
        rows = torch.from_numpy(chosen[np.argsort(by_row[chosen], kind="stable")])
        member = torch.from_numpy(by_row)[rows]
        self._segments.set(member)
        obs, state = views.obs[rows], tuple(part[rows] for part in views.state)
        for key in self.learner.moments:
            shape = self.learner.moments[key].mean.shape
            mean, var = (self.bank.columns(f"moments.{key}.{name}", shape) for name in ("mean", "var"))
            scale = (var + 1e-8).rsqrt().to(torch.float32)[member]
            obs = ((obs.to(torch.float32) - mean.to(torch.float32)[member]) * scale).clamp_(-10.0, 10.0)
        logits, _, new_state = policies.step(self._shared, obs, state)
        if views.mask is not None:
            logits = self.head.mask(logits, views.mask[rows])
        views.actions[rows] = self.head.sample(logits, views.noise[rows])
        for part, new in zip(views.state, new_state):
            part[rows] = new

    def _act_for_all(self, member: int, views: StepViews, plays: Tensor, span: slice) -> None:
        """A member acts for all rows of a range; its actions are used in those that it plays."""
        state = tuple(part[span] for part in self.run_states[member])
        decision = self.runs[member].act(views.obs, state, mask=views.mask)
        views.actions[plays] = decision.actions[plays]
        for part, new in zip(state, decision.state):
            part.copy_(new)

    def _act(self, member: int, views: StepViews, rows: Any, span: slice) -> None:
        """Acts for those rows of a range that a member plays."""
        actor, state = self.bank.actor(member) if member not in self.runs else self.runs[member], views.state
        if member in self.runs:
            state = tuple(part[span] for part in self.run_states[member])
        noise = views.noise[rows] if actor.head.num_noise == views.noise.shape[-1] else None
        with actor.evaluation_mode():
            decision = actor.act(
                map_leaves(lambda leaf: leaf[rows], views.obs),
                tuple(part[rows] for part in state),
                mask=None if views.mask is None else views.mask[rows],
                noise=noise,
            )
        views.actions[rows] = decision.actions
        for part, new in zip(state, decision.state):
            part[rows] = new

    # ---- games ----

    def note_alive(self, infos: Mapping[str, Any], lo: int, hi: int) -> None:
        """Takes note of which agents of the envs [lo, hi) are in the game."""
        if "alive" in infos:
            agents = self.games.seating.agents
            self.alive[lo * agents : hi * agents] = infos["alive"]

    def finish_step(self, rewards: Array, done: Array, infos: Mapping[str, Any], lo: int, hi: int) -> None:
        """Takes the results of a step of the envs [lo, hi), all of their rows."""
        agents = self.games.seating.agents
        out = done | ~self.alive[lo * agents : hi * agents]
        # a game is over once nobody is left in it; after that, an env may need a step to begin the next one
        is_over = out.reshape(-1, agents).all(1) & done.reshape(-1, agents).any(1)
        self.games.finish_step(torch.from_numpy(np.asarray(rewards, np.float32)), torch.from_numpy(is_over), lo)
        self.note_alive(infos, lo, hi)
        if is_over.any():
            self._forget(lo + np.flatnonzero(is_over))

    def forget_all(self) -> None:
        """All envs begin a game: nobody remembers anything."""
        self._forget(np.arange(self.games.seating.num_envs))

    def _forget(self, envs: Array) -> None:
        """Sets the recurrent state of the opponents' rows of some envs to that of the start of a game."""
        per_env = self.games.seating.others_per_env
        rows = torch.from_numpy((envs[:, None] * per_env + np.arange(per_env)).reshape(-1))
        for member, actor in self.runs.items():
            _set_state(self.run_states[member], rows, actor.initial_row())
        if not self.rollout.state:
            return
        by_row = np.repeat(self._member[envs], per_env)
        for member in set(by_row.tolist()) if self.rollout.initial is not None else {0}:
            own = rows if self.rollout.initial is None else rows[torch.from_numpy(by_row == member)]
            plays_here = member < self.bank.members and member not in self.runs
            _set_state(self.rollout.state, own, self.bank.actor(member).initial_row() if plays_here else None)

    def row_tensors(self) -> dict[str, Tensor]:
        """The recurrent state, for a checkpoint."""
        tensors = {f"recurrent.{k}": part for k, part in enumerate(self.rollout.state)}
        for member, state in self.run_states.items():
            tensors |= {f"run{member}.recurrent.{k}": part for k, part in enumerate(state)}
        return tensors


def _set_state(state: State, rows: Tensor, initial: State | None) -> None:
    for k, part in enumerate(state):
        part[rows] = 0.0 if initial is None else initial[k].detach()
