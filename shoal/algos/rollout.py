"""Rollout: `horizon` steps of one policy's rows. Data only: collect/ fills it, the algorithms learn from it.

Time is the first axis everywhere: a row observed `obs[t]` and took `actions[t]`; the env returned `rewards[t]`,
`dones[t]` and `obs[t + 1]`. A transition counts where `alive[t]` is true: an agent that is out of the game has
observations and rewards of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.algos import ops
from shoal.algos.actor import Actor, stored_dtype
from shoal.algos.frames import StackedObs, is_stored_once
from shoal.nn.cores import State
from shoal.nn.state import clear_state
from shoal.spec import Array, structure


class Rollout:
    """Preallocated (horizon, rows) tensors.

    A recurrent policy's rollout is divided into segments of `segment` steps; `starts` holds the state at the start of
    each. `staging` makes the host's copy of a rollout on a GPU (collect/host_envs.py): pinned, without noise and state.
    """

    def __init__(
        self,
        actor: Actor,
        horizon: int,
        rows: int,
        *,
        segment: int = 1,
        mask_size: int = 0,
        has_dead_rows: bool = False,
        device: Any = "cpu",
        staging: bool = False,
    ) -> None:
        self.space, self.layout, self.head = actor.space, actor.layout, actor.head
        self.horizon, self.rows, self.segment = horizon, rows, segment
        self.device = torch.device(device)
        head, state = actor.head, () if staging else actor.initial_state(rows)
        pinned = {"pin_memory": True} if staging and torch.cuda.is_available() else {}
        zeros = partial(torch.zeros, device=self.device, **pinned)
        ones = partial(torch.ones, device=self.device, **pinned)
        self.dones = zeros((horizon, rows), dtype=torch.bool)
        once = self.device.type == "cpu" and not staging  # kernels on a GPU read whole observations
        self.obs: list[Any] = [  # (horizon + 1, rows, ...) tensors, or StackedObs
            StackedObs(leaf, self.dones, zeros)
            if once and is_stored_once(leaf, has_dead_rows)
            else zeros((horizon + 1, rows, *leaf.shape), dtype=stored_dtype(leaf.dtype))
            for leaf in self.layout.leaves
        ]
        self.stacked = [leaf for leaf in self.obs if isinstance(leaf, StackedObs)]
        self.actions = zeros((horizon, rows, head.size), dtype=head.dtype)
        self.logits = zeros((horizon, rows, head.num_params))
        self.noise = zeros((horizon, rows, 0 if staging else head.num_noise))
        self.values = zeros((horizon + 1, rows))
        self.rewards = zeros((horizon, rows))
        self.alive = ones((horizon + 1, rows), dtype=torch.bool) if has_dead_rows else None
        self.masks = ones((horizon + 1, rows, mask_size), dtype=torch.int8) if mask_size else None
        self.state: State = tuple(part.detach().clone() for part in state)  # of every row, after the last step
        self.starts: State = tuple(zeros((horizon // segment, *part.shape)) for part in state)
        self.initial = actor.initial_row()  # the recurrent state that an episode starts from; None: zeros
        self.truncations = Truncations(self)
        self.needs_last_value = True  # whether collectors fill values[horizon]
        self.acting: Any = None  # acts for its rows in C (fast/); None: the actor does, in torch
        # (step, rows, last observations) of episodes that ended, for a reward of the user's own; None: not kept
        self.ends: list[tuple[int, Tensor, list[Tensor]]] | None = None
        self.ready: Tensor | None = None  # rows that have played the whole horizon; None: all
        self._ends: list[tuple[Array, Array]] = []  # on a CPU: numpy views of the first and last step of `carried`
        if self.device.type == "cpu":
            carried = [part.numpy() for part in self.carried()]
            self._ends = [(part[0], part[-1]) for part in carried]

    def tensors(self) -> list[Tensor]:
        """All of its tensors."""
        optional = [part for part in (self.alive, self.masks) if part is not None]
        required = [self.actions, self.logits, self.noise, self.values, self.rewards, self.dones]
        whole = [leaf for leaf in self.obs if isinstance(leaf, Tensor)]
        stacked = [part for leaf in self.stacked for part in leaf.tensors()]
        return [*whole, *stacked, *required, *optional, *self.state, *self.starts]

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return sum(part.numel() * part.element_size() for part in self.tensors())

    # ---- collecting ----

    def begin(self, generator: torch.Generator | None) -> None:
        """Copies the last step to the first and draws new noise, for the rows that are ready."""
        for leaf in self.stacked:
            leaf.begin(self.ready)
        if self.ready is None:
            for first, last in self._ends:
                np.copyto(first, last)
            for part in self.carried() if not self._ends else ():
                part[0] = part[-1]
            if self.noise.shape[-1]:
                self.head.draw(self.noise, generator)
            self.truncations.clear()
            return
        for part in self.carried():
            part[0, self.ready] = part[-1, self.ready]
        fresh = torch.empty_like(self.noise[:, self.ready])
        self.head.draw(fresh, generator)
        self.noise[:, self.ready] = fresh
        self.truncations.clear(self.ready)

    def step(self, t: int, rows: slice = slice(None)) -> StepViews:
        """Views of some rows at step t."""
        return StepViews(self, t, rows)

    def save_start(self, t: int, rows: slice = slice(None)) -> None:
        """Stores the recurrent state if step t starts a segment."""
        if t % self.segment == 0:
            for start, part in zip(self.starts, self.state):
                start[t // self.segment, rows] = part[rows]

    def clear_state(self, rows: slice, keep: Tensor) -> None:
        """Sets the recurrent state of rows whose episode ended to the policy's initial state. keep: (rows,) bool."""
        state = tuple(part[rows] for part in self.state)
        for part, cleared in zip(state, clear_state(state, keep, self.initial)):
            part.copy_(cleared)

    def reset_state(self) -> None:
        """Sets the recurrent state of all rows to the policy's initial state."""
        self.clear_state(slice(None), torch.zeros(self.rows, dtype=torch.bool, device=self.device))

    def carried(self) -> list[Tensor]:
        """(horizon + 1, rows, ...) tensors whose last step is the first step of the next rollout."""
        whole = [leaf for leaf in self.obs if isinstance(leaf, Tensor)]
        return [*whole, *(part for part in (self.alive, self.masks) if part is not None)]

    # ---- learning ----

    def resets(self) -> Tensor:
        """(horizon, rows): whether the recurrent state was reset before step t. False at t = 0: see `starts`."""
        out = torch.zeros_like(self.dones)
        out[1:] = self.dones[:-1]
        if self.alive is not None:  # also when an agent enters the game
            out[1:] |= ~(self.alive[1:-1] & self.alive[:-2])
        return out

    def counted(self) -> Tensor | None:
        """(horizon, rows): transitions to learn from: of ready rows, with the agent in the game. None: all."""
        if self.ready is None:
            return None if self.alive is None else self.alive[:-1]
        full = torch.zeros_like(self.dones)
        full[:, self.ready] = True
        return full if self.alive is None else full & self.alive[:-1]

    def running_returns(self, gamma: float, carry: Tensor) -> Tensor:
        """(horizon, rows): discounted sums of rewards since the start of the episode; zero for rows that are not ready.

        carry: (rows,), the sums before this rollout, updated in place.
        """
        if self.ready is None:
            return ops.running_returns(self.rewards, self.dones, gamma, carry)
        ready_carry, sums = carry[self.ready], torch.zeros_like(self.rewards)
        rewards, dones = self.rewards[:, self.ready], self.dones[:, self.ready]
        sums[:, self.ready] = ops.running_returns(rewards, dones, gamma, ready_carry)
        carry[self.ready] = ready_carry
        return sums

    def observations(self, leaves: Sequence[Tensor]) -> Any:
        """Puts leaves into the structure of the observation space."""
        return structure(self.space, iter(leaves))


@dataclass
class Truncation:
    """Truncated episodes: where `flags[t, k]`, row `rows[k]` was truncated after it observed `obs[leaf][k]`."""

    steps: slice
    rows: Tensor | slice
    flags: Tensor  # (steps, rows)
    obs: list[Tensor]  # (rows, ...)
    state: State  # (rows, ...): the recurrent state that belongs to obs
    mask: Tensor | None = None  # (rows, choices): the action masks that belong to obs; None: not known


class Truncations:
    """The truncated episodes of a rollout, with their last observations, which `Rollout.obs` does not hold.

    They are a list that grows as episodes end (`add`). A CUDA graph needs fixed sizes instead: after `reserve` each row
    has one entry for each window of `time_limit` steps, in which it can be truncated at most once.
    """

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout
        self.added: list[Truncation] = []
        self.window = 0  # steps; 0: no fixed sizes
        self.fixed_flags: Tensor | None = None  # (horizon, rows)
        self.obs: list[Tensor] = []  # (windows, rows, ...)
        self.state: State = ()

    @property
    def is_fixed(self) -> bool:
        """Whether sizes are fixed."""
        return self.window > 0

    def reserve(self, time_limit: int) -> None:
        """Switches to fixed sizes: a row is truncated at most once in `time_limit` steps."""
        rollout = self.rollout
        windows, self.window = -(-rollout.horizon // time_limit), time_limit
        zeros = partial(torch.zeros, device=rollout.device)
        self.fixed_flags = zeros((rollout.horizon, rollout.rows), dtype=torch.bool)
        self.obs = [zeros((windows, *leaf.shape[1:]), dtype=leaf.dtype) for leaf in rollout.obs]
        self.state = tuple(zeros((windows, *part.shape)) for part in rollout.state)

    def add(self, t: int, rows: Tensor, obs: list[Tensor], state: State, mask: Tensor | None = None) -> None:
        """Adds rows that were truncated at step t, with their last observations. Not for fixed sizes."""
        flags = torch.ones((1, len(rows)), dtype=torch.bool, device=rows.device)
        self.added.append(Truncation(slice(t, t + 1), rows, flags, obs, state, mask))

    def masks_of(self, truncation: Truncation) -> Tensor | None:
        """(rows, choices): the action masks of the last observations; None: there are no masks.

        Where the env did not tell them, those of the step before stand in: a Q-value of a choice that is never allowed
        is never learned, and must not be bootstrapped from.
        """
        masks = self.rollout.masks
        if masks is None or truncation.mask is not None:
            return truncation.mask
        if not isinstance(truncation.rows, slice):
            return masks[truncation.steps.start, truncation.rows]
        flags = truncation.flags.unsqueeze(-1)
        return torch.where(flags.any(0), (masks[:-1][truncation.steps] * flags).amax(0), 1)

    def put(self, truncation: Truncation) -> None:
        """Copies the observations and state, not the flags, of another rollout's truncation into fixed entries."""
        window, rows = truncation.steps.start // self.window, truncation.rows
        assert isinstance(rows, Tensor)
        index = rows.to(self.rollout.device)
        for fixed, leaf in zip((*self.obs, *self.state), (*truncation.obs, *truncation.state)):
            fixed[window].index_copy_(0, index, leaf.to(fixed.device).to(fixed.dtype))

    def clear(self, ready: Tensor | None = None) -> None:
        """Removes all, or those of the rows that are ready. Collecting overwrites fixed entries."""
        self.added = [] if ready is None else [one for one in self.added if not self._is_ready(one, ready)]

    def __iter__(self) -> Iterator[Truncation]:
        """The truncations that this update learns from: of rows that are ready."""
        ready = self.rollout.ready
        yield from (one for one in self.added if ready is None or self._is_ready(one, ready))
        if self.fixed_flags is not None:
            for k in range(len(self.obs[0])):
                steps = slice(k * self.window, (k + 1) * self.window)
                state = tuple(part[k] for part in self.state)
                yield Truncation(steps, slice(None), self.fixed_flags[steps], [leaf[k] for leaf in self.obs], state)

    def flags(self) -> Tensor:
        """(horizon, rows): whether a time limit ended the episode at step t."""
        if self.fixed_flags is not None:
            return self.fixed_flags
        flags = torch.zeros_like(self.rollout.dones)
        for truncation in self.added:
            flags[truncation.steps, truncation.rows] = True
        return flags

    def bootstrap(self, rewards: Tensor, gamma: float, value: Callable[[Truncation], Tensor]) -> None:
        """Adds gamma V(last observation) to the rewards of truncated steps; value(truncation) gives (rows,)."""
        for truncation in self:
            values = gamma * value(truncation)
            if isinstance(truncation.rows, slice):
                rewards[truncation.steps] += torch.where(truncation.flags, values, 0.0)
            else:
                rewards[truncation.steps.start, truncation.rows] += values

    @staticmethod
    def _is_ready(truncation: Truncation, ready: Tensor) -> bool:
        # rows that were added together step together: either all of them are ready, or none
        return isinstance(truncation.rows, Tensor) and bool(torch.isin(truncation.rows[0], ready))


class StepViews:
    """Views of some rows of a rollout at one step, made once: a collector's loop slices nothing."""

    def __init__(self, rollout: Rollout, t: int, rows: slice) -> None:
        self.obs = rollout.observations(
            [leaf.now[rows] if isinstance(leaf, StackedObs) else leaf[t, rows] for leaf in rollout.obs]
        )
        self.actions, self.logits = rollout.actions[t, rows], rollout.logits[t, rows]
        self.noise, self.values = rollout.noise[t, rows], rollout.values[t, rows]
        self.mask = None if rollout.masks is None else rollout.masks[t, rows]
        self.state: State = tuple(part[rows] for part in rollout.state)
        self.starts: State = ()
        if t % rollout.segment == 0:
            self.starts = tuple(part[t // rollout.segment, rows] for part in rollout.starts)
        self.native: Any = None  # the C struct of these views (fast/)
        if rollout.device.type != "cpu":
            return
        # numpy views of the same memory: the collector copies the env's results of this step into them
        self.rewards, self.dones = rollout.rewards[t, rows].numpy(), rollout.dones[t, rows].numpy()
        self.env_actions = self.actions.numpy()
        self.next_obs: list[Any] = [
            leaf.writer(t, rows) if isinstance(leaf, StackedObs) else leaf[t + 1, rows].numpy() for leaf in rollout.obs
        ]
        self.alive = None if rollout.alive is None else rollout.alive[t, rows].numpy()
        self.next_alive = None if rollout.alive is None else rollout.alive[t + 1, rows].numpy()
        self.next_mask = None if rollout.masks is None else rollout.masks[t + 1, rows].numpy()
