"""AgentActor: an agent of the user's own in the place of a policy, for collectors and players.

Its recurrent state is one number for each row: 0 where a game starts. Collectors and players clear the state of rows
whose game ends, so every one of them tells an agent its starts.

Several agents may hold the place at a time, one after the other (`change`): a row gets the new one when its next game
starts, never within a game.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.algos.actor import Actor, Decision
from shoal.algos.user_state import check_saved, tensors_of
from shoal.errors import ConfigError
from shoal.nn.cores import State
from shoal.nn.distributions import ActionHead
from shoal.spec import Layout, map_leaves


class GivenActions(ActionHead):
    """Actions that are already those of the env: nothing is sampled, scaled or squashed."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__(space)
        self.num_noise = self.num_params = self.num_free = self.num_outputs = 0
        self._center, self._scale = np.zeros_like(self._center), np.ones_like(self._scale)

    def draw(self, noise: Tensor, generator: torch.Generator | None) -> None:
        """No random numbers are needed."""

    def to_columns(self, actions: Any, rows: int, device: torch.device, shown: str) -> Tensor:
        """(rows, size): what an agent returned, checked. Out of range on a GPU, a choice becomes the nearest."""
        try:
            leaves = self.layout.leaves_of(actions)
        except (KeyError, IndexError, TypeError):
            raise ConfigError(f"{shown} returned {_kind(actions)}. Return actions of {self.space}.") from None
        columns = []
        for (at, space), leaf, about in zip(self._leaves, leaves, self.layout.leaves):
            wanted = (rows, *about.shape)
            needed = f"an action of {space} for each of the {rows} rows: a tensor of shape {wanted}"
            if not isinstance(leaf, Tensor):
                raise ConfigError(f"{shown} returned {_kind(leaf)}. Return {needed}.")
            if tuple(leaf.shape) != wanted and leaf.numel() != rows * int(np.prod(about.shape)):
                raise ConfigError(f"{shown} returned a tensor of shape {tuple(leaf.shape)}. Return {needed}.")
            if leaf.device.type != device.type:
                raise ConfigError(
                    f"{shown} returned a tensor on {leaf.device}, but plays on {device}. Move what it holds there in a "
                    "method to(device)."
                )
            is_choice = not isinstance(space, spaces.Box)
            if leaf.is_complex() or (is_choice and leaf.is_floating_point()):
                raise ConfigError(f"{shown} returned a tensor of {leaf.dtype}. Return {needed}, of whole numbers.")
            flat = leaf.reshape(rows, -1)
            columns.append(self._choices(flat.long(), at, space, shown) if is_choice else flat.float())
        return torch.cat([part.to(self.dtype) for part in columns], 1)

    def _choices(self, columns: Tensor, at: slice, space: Any, shown: str) -> Tensor:
        """Choices counted from 0. `at`: the columns of their space."""
        counts = [part.count for part in self.parts if at.start <= part.actions.start < at.stop]
        starts = np.broadcast_to(np.ravel(getattr(space, "start", 0)), len(counts)).tolist()
        parts = []
        for k, (start, count) in enumerate(zip(starts, counts)):
            part = columns[:, k] - start if start else columns[:, k]
            if columns.device.type != "cpu":
                part = part.clamp(0, count - 1)
            elif bool(((part < 0) | (part >= count)).any()):
                row = int(((part < 0) | (part >= count)).nonzero()[0])
                raise ConfigError(
                    f"{shown} returned {int(columns[row, k])} for row {row}. The choices of {space} are {start} to "
                    f"{start + count - 1}."
                )
            parts.append(part)
        return torch.stack(parts, 1)


class AgentActor(Actor):
    """Agents that hold a place, oldest first. `which` plays the game of each row; `current` plays new games.

    Args:
        make: makes a new agent.
        observation_space: what it observes.
        action_space: what it chooses from.
        shown: its name in messages.
        has_memory: whether it must act for the same rows in every call.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        shown: str,
        has_memory: bool,
    ) -> None:
        nn.Module.__init__(self)
        self.space, self.layout = observation_space, Layout(observation_space)
        self.head = self.given = GivenActions(action_space)
        self.agents, self.policy, self.moments = 1, nn.Identity(), nn.ModuleDict()
        self._is_bf16, self._run = False, [self.policy]
        self._make, self.shown, self.has_memory = make, shown, has_memory
        self.device = torch.device("cpu")
        self.head.to(self.device)
        self.held = [self._new(make)]
        self.rows = 0  # rows of every call; 0: not known yet
        self.is_seated = False  # whether it trains with these rows, or plays with any number
        self.which = torch.zeros(0, dtype=torch.int64)
        self.current = torch.zeros((), dtype=torch.int64)

    # ---- as an actor ----

    def to(self, device: Any) -> AgentActor:
        """Moves the agents."""
        self.device = torch.device(device)
        self.head.to(self.device)
        self.which, self.current = self.which.to(self.device), self.current.to(self.device)
        self.held = [_moved(agent, self.device) for agent in self.held]
        return self

    def as_player(self) -> AgentActor:
        """A new agent that plays on the CPU: the one that trains keeps its memory."""
        return AgentActor(self._make, self.space, self.head.space, shown=self.shown, has_memory=self.has_memory)

    def on_cpu(self) -> AgentActor:
        """The same as `as_player`."""
        return self.as_player()

    def initial_state(self, rows: int) -> State:
        """(rows, 1) zeros: every row starts a game."""
        return (torch.zeros(rows, 1, device=self.device),)

    def initial_row(self) -> State | None:
        """Zeros."""
        return None

    def step(self, obs: Any, state: State) -> tuple[Tensor, Tensor, State]:
        """No logits and no values: only `act` asks an agent."""
        rows = len(state[0])
        return torch.zeros(rows, 0, device=self.device), torch.zeros(rows, device=self.device), state

    def act(self, obs: Any, state: State, *, mask: Tensor | None = None, noise: Tensor | None = None) -> Decision:
        """The actions of the agents, told which rows start a game."""
        (played,) = state
        rows = len(played)
        # memory that is made here must stay changeable outside, where a checkpoint restores it
        with torch.inference_mode(False), torch.no_grad():
            starts = (played == 0).view(-1)
            self._use(rows)
            self._start(starts)
            actions = self._columns(obs, mask, rows)
        logits, values, _ = self.step(obs, state)
        return Decision(logits, values, actions, (torch.ones_like(played),))

    def evaluation_mode(self) -> contextlib.AbstractContextManager[None]:
        """Agents have no mode."""
        return contextlib.nullcontext()

    @property
    def is_capturable(self) -> bool:
        """Whether a CUDA graph can hold the agents: they say `capturable = True`.

        Capturing runs them and then puts their memory back, so one with a memory also needs `state_dict`.
        """
        return all(
            bool(getattr(agent, "capturable", False)) and (hasattr(agent, "state_dict") or not hasattr(agent, "reset"))
            for agent in self.held
        )

    def _use(self, rows: int) -> None:
        """Makes a new agent for another number of rows; a seat in training has always the same."""
        if rows == self.rows or (not self.has_memory and len(self.held) == 1):
            return
        if self.is_seated:
            raise ConfigError(
                f"{self.shown} acts for all {self.rows} rows at once, but the envs step in groups: it was given "
                f"{rows}. Use --vec.num-groups 1, and --vec.overlap False for Python envs."
            )
        self.held = [self._new(self._make)]
        self.rows, self.which = rows, torch.zeros(rows, dtype=torch.int64, device=self.device)

    def _start(self, starts: Tensor) -> None:
        if starts.device.type == "cpu" and not bool(starts.any()):
            return
        if len(self.which) == len(starts):
            self.which.copy_(torch.where(starts, self.current, self.which))
        for agent in self.held:
            if hasattr(agent, "reset"):
                agent.reset(starts)

    def _columns(self, obs: Any, mask: Tensor | None, rows: int) -> Tensor:
        first, *others = (
            self.given.to_columns(agent.act(obs, mask), rows, self.device, self.shown) for agent in self.held
        )
        for number, columns in enumerate(others, 1):
            first = torch.where((self.which == number).view(-1, 1), columns, first)
        return first

    def _new(self, make: Callable[[], Any]) -> Any:
        return _moved(make(), self.device)

    # ---- in training ----

    def seat(self, rows: int, mask_size: int = 0) -> None:
        """Takes a seat in training with these rows. Mistakes of the agent show here, on blank observations."""
        self.rows, self.is_seated = rows, True
        self.which = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self._try(self._new(self._make), mask_size)
        for agent in self.held:
            _reset_all(agent, rows, self.device)

    def change(self, agents: list[Any], *, at_once: bool = False) -> None:
        """Other agents take the place: games that start from now on have the first of them. `at_once`: all games."""
        for agent in (new := [_moved(agent, self.device) for agent in agents]):
            _reset_all(agent, self.rows, self.device)
        if at_once:
            self.held = []
            self.which.zero_()
        self.held = [*self.held, *new]
        self.current.fill_(len(self.held) - len(new))

    def unused(self, keep: int) -> list[int]:
        """The numbers of agents that play no game any more, except the newest `keep`. Waits for the device."""
        playing = {*self.which.unique().tolist(), *range(len(self.held) - keep, len(self.held))}
        return [number for number in range(len(self.held)) if number not in playing]

    def drop(self, numbers: list[int]) -> None:
        """Removes agents that play no game."""
        kept = [number for number in range(len(self.held)) if number not in numbers]
        place = torch.full((len(self.held),), -1, dtype=torch.int64)
        place[kept] = torch.arange(len(kept))
        place = place.to(self.device)
        self.which.copy_(place[self.which])
        self.current.copy_(place[self.current])
        self.held = [self.held[number] for number in kept]

    @torch.no_grad()
    def _try(self, agent: Any, mask_size: int) -> None:
        """Lets an agent act on blank observations."""
        mask = torch.ones(self.rows, mask_size, dtype=torch.int8, device=self.device) if mask_size else None
        try:
            _reset_all(agent, self.rows, self.device)
            actions = agent.act(self._blank(), mask)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{self.shown} raised {type(error).__name__} for blank observations: {error}.") from error
        self.given.to_columns(actions, self.rows, self.device, self.shown)

    def _blank(self) -> Any:
        return map_leaves(lambda leaf: leaf.to(self.device), self.blank(self.rows))

    # ---- checkpoints ----

    def memory(self) -> dict[str, Tensor]:
        """What a resume needs: whose game each row plays, and the `state_dict` of each agent."""
        tensors = {"which": self.which, "current": self.current}
        for number, agent in enumerate(self.held):
            tensors |= {f"{number}.{name}": value for name, value in tensors_of(agent, self.shown).items()}
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Sets what `memory` returned."""
        own = self.memory()
        check_saved(own, tensors, self.shown)
        for name in ("which", "current"):
            own[name].copy_(tensors[name])
        for number, agent in enumerate(self.held):
            prefix = f"{number}."
            state = {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
            if state and hasattr(agent, "load_state_dict"):
                agent.load_state_dict({name: value.to(self.device) for name, value in state.items()})
            elif state:
                for name, value in agent.state_dict().items():
                    value.copy_(state[name])


def _moved(agent: Any, device: torch.device) -> Any:
    if not hasattr(agent, "to"):
        return agent
    moved = agent.to(device)
    return agent if moved is None else moved


def _reset_all(agent: Any, rows: int, device: torch.device) -> None:
    if hasattr(agent, "reset"):
        with torch.no_grad():
            agent.reset(torch.ones(rows, dtype=torch.bool, device=device))


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.60}"
