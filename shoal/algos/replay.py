"""Replay: a ring buffer of past transitions for each row, sampled uniformly or by priority. Learning is in dqn.py.

There is one array for observations, one for actions, and so on. Each row has a ring of `capacity` places in them and
writes its transitions in the order of time. A place holds an observation, the action taken there, the reward that
followed and a kind. The next observation is in the next place, so each observation is stored once:

    place      0        1        2        3          4          5        6
    obs        o0       o1       o2       o3         o4         o5       o6
    kind       STEP     STEP     END      STEP       TRUNCATED  LAST     (the head: the row's current observation)
               |----- an episode ------|  |---- a truncated episode ----|

- END: the episode terminated. TRUNCATED: a time limit ended it, and the next place has its last observation.
- LAST: an observation without an action. It is never sampled.
- A row whose agent is out of the game writes nothing: its next episode follows its last one without a gap.
- The head holds the row's current observation. A window of n steps ends when it reaches the head.

Sampling, windows and priorities use tensors of fixed sizes and never wait for the device, so a CUDA graph can hold
them. On a CPU, C does the same row by row (fast/replay_native.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.algos import ops
from shoal.algos.actor import Actor, stored_dtype
from shoal.algos.fast.replay_native import NativeReplay
from shoal.algos.frames import is_stored_once
from shoal.algos.replay_frames import ReplayFrames, frames_nbytes
from shoal.algos.rollout import Rollout
from shoal.errors import CheckpointError, ConfigError
from shoal.memory import free_bytes

STEP, END, TRUNCATED, LAST = range(4)
BLOCK = 512  # places whose priorities are summed together
KEEP_FREE = 0.1  # fraction of the free memory that a replay must leave


@dataclass
class Batch:
    """Windows of at most n steps: their first and last observations, and the return between. (batch, ...) tensors."""

    index: Tensor  # the places of the first observations, for `reprioritize`
    obs: list[Tensor]
    actions: Tensor
    returns: Tensor
    next_obs: list[Tensor]
    discounts: Tensor  # of the bootstrap value: gamma^steps, 0 where the episode terminated
    next_masks: Tensor | None
    weights: Tensor  # of the loss; 0 where the sampled place is not a transition

    def split(self, size: int) -> Iterator[Batch]:
        """Batches of `size` windows each."""
        if size == len(self.index):
            yield self
            return
        for lo in range(0, len(self.index), size):
            span = slice(lo, lo + size)
            yield Batch(
                index=self.index[span],
                obs=[leaf[span] for leaf in self.obs],
                actions=self.actions[span],
                returns=self.returns[span],
                next_obs=[leaf[span] for leaf in self.next_obs],
                discounts=self.discounts[span],
                next_masks=None if self.next_masks is None else self.next_masks[span],
                weights=self.weights[span],
            )


class Replay:
    """`capacity` places for each of `rows` rows; row r is agent r % agents of its env."""

    def __init__(
        self,
        actor: Actor,
        size: int,
        rows: int,
        *,
        horizon: int,
        agents: int = 1,
        priority: float = 0.0,
        priority_beta: float = 0.0,
        mask_size: int = 0,
        has_dead_rows: bool = False,
        device: Any = "cpu",
    ) -> None:
        self.rows, self.agents, self.envs = rows, agents, rows // agents
        self.capacity = size // rows
        self.priority, self.priority_beta = priority, priority_beta
        self.choices = actor.head.choices
        self.device = torch.device(device)
        needed = 2 * horizon + 2  # a rollout in which every step is truncated, the head, and one to sample
        if self.capacity < needed:
            raise ConfigError(
                f"--train.replay-size {size} is {self.capacity} places for each of {rows} rows; a rollout of {horizon} "
                f"steps needs {needed}. Try --train.replay-size {needed * rows}, or fewer envs."
            )
        self.places = rows * self.capacity
        self.nbytes = predict_nbytes(
            actor, size, rows, priority=bool(priority), mask_size=mask_size, has_dead_rows=has_dead_rows
        )
        check_room(self.nbytes, self.places, free_bytes(self.device))
        zeros = partial(torch.zeros, device=self.device)
        one_more = self.places + 1  # the last is a scratch place, written where a row has nothing to store
        # rings are ordered by agent: all envs of agent 0, then all of agent 1. An agent's places are contiguous.
        order = torch.arange(rows, device=self.device).view(agents, self.envs)
        self.base = (order.T.reshape(-1)) * self.capacity  # (rows,): the first place of each row's ring
        self.obs: list[Any] = [  # (places, ...) tensors, or ReplayFrames
            ReplayFrames(leaf, rows, self.capacity, self.base)
            if is_stored_once(leaf, has_dead_rows)
            else zeros((one_more, *leaf.shape), dtype=stored_dtype(leaf.dtype))
            for leaf in actor.layout.leaves
        ]
        self.stacked = {k: leaf for k, leaf in enumerate(self.obs) if isinstance(leaf, ReplayFrames)}
        self.actions = zeros(one_more, dtype=action_dtype(actor.head.choices))
        self.rewards = zeros(one_more)
        self.kinds = zeros(one_more, dtype=torch.uint8)
        self.masks = zeros((one_more, mask_size), dtype=torch.int8) if mask_size else None
        self.heads = zeros(rows, dtype=torch.int64)  # the place in the ring that is written next
        self.counts = zeros(rows, dtype=torch.int64)  # filled places before the head
        self.stored = zeros((), dtype=torch.int64)  # transitions ever stored
        if priority:
            blocks = -(-self.envs * self.capacity // BLOCK)
            self.blocks = blocks  # of each agent
            self.priorities = zeros(agents * blocks * BLOCK + 1)  # the last is the scratch place's
            self.sums = zeros(agents * blocks)
            self.highest = torch.ones((), device=self.device)  # the priority of new transitions
        self._chance = torch.empty((0, 0), dtype=torch.float64, device=self.device)
        self.native = NativeReplay(self, Batch) if self.device.type == "cpu" else None

    # ---- saving ----

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint saves: all tensors without the scratch place."""
        tensors = {f"obs.{k}": leaf[:-1] for k, leaf in self.whole(self.obs)}
        tensors |= {
            f"obs.{k}.{name}": part for k, leaf in self.stacked.items() for name, part in leaf.tensors().items()
        }
        tensors |= {"actions": self.actions[:-1], "rewards": self.rewards[:-1], "kinds": self.kinds[:-1]}
        tensors |= {"heads": self.heads, "counts": self.counts, "stored": self.stored}
        if self.masks is not None:
            tensors["masks"] = self.masks[:-1]
        if self.priority:
            tensors |= {"priorities": self.priorities, "sums": self.sums, "highest": self.highest}
        return tensors

    def whole(self, leaves: list[Any]) -> list[tuple[int, Any]]:
        """Of leaves of observations: those that are stored whole, with their numbers."""
        return [(k, leaf) for k, leaf in enumerate(leaves) if k not in self.stacked]

    def check(self) -> None:
        """Raises CheckpointError if restored tensors hold impossible values: C uses them as indices."""
        for leaf in self.stacked.values():
            leaf.check()
        capacity = self.capacity
        ranges = {
            "heads": (self.heads, 0, capacity - 1),
            "counts": (self.counts, 0, capacity - 1),
            "kinds": (self.kinds, STEP, LAST),
            "actions": (self.actions, 0, self.choices - 1),
            "stored": (self.stored, 0, 1 << 62),
        }
        for name, (tensor, low, high) in ranges.items():
            lowest, highest = int(tensor.min()), int(tensor.max())
            if lowest < low or highest > high:
                raise CheckpointError(
                    f"the checkpoint's replay is damaged: {name} has values from {lowest} to {highest}, expected "
                    f"{low} to {high}. Resume from another checkpoint."
                )
        priorities = [self.priorities, self.sums, self.highest] if self.priority else []
        if not all(bool((p >= 0).all()) and bool(p.isfinite().all()) for p in priorities):
            raise CheckpointError(
                "the checkpoint's replay is damaged: priorities are negative or not finite. Resume from another "
                "checkpoint."
            )

    def fill(self) -> Any:
        """The filled fraction, 0 to 1: a number, on a GPU a tensor."""
        counts = self.counts.sum() if self.native is None else int(self.native.counts.sum())
        return counts / (self.rows * (self.capacity - 1))

    def has_stored(self, count: int) -> bool:
        """Whether at least `count` transitions were ever stored. Waits for the device."""
        return bool(self.stored.item() >= count)

    # ---- writing ----

    @torch.no_grad()
    def store(self, rollout: Rollout) -> None:
        """Stores the transitions of a rollout that count, and the current observation of every row."""
        if self.stacked:
            self._store_frames(rollout)
        if self.native is not None and not self.priority and not rollout.truncations.is_fixed:
            self.native.store(rollout)
        else:
            self._store_with_torch(rollout)

    def _store_frames(self, rollout: Rollout) -> None:
        """Stores the frames of stacked observations. The heads are those before the rollout. All rows are alive."""
        truncated = rollout.truncations.flags()
        written = 1 + truncated.to(torch.int64)
        after = torch.cumsum(written, 0)
        places = self._places(self.heads + after - written)
        last = torch.where(truncated, self._places(self.heads + after - 1), self.places)
        head = self._places(self.heads + after[-1])
        for k, leaf in self.stacked.items():
            leaf.store(rollout, k, places, last, head, rollout.dones)

    def _store_with_torch(self, rollout: Rollout) -> None:
        steps = rollout.horizon
        alive = torch.ones_like(rollout.dones) if rollout.alive is None else rollout.alive[:-1]
        truncated = rollout.truncations.flags() & alive
        written = alive.to(torch.int64) + truncated.to(torch.int64)  # places that step t fills: one, or two
        after = torch.cumsum(written, 0)
        place = self._places(self.heads + after - written)  # (steps, rows)
        at = torch.where(alive, place, self.places)
        for k, stored in self.whole(self.obs):
            stored[at] = rollout.obs[k][:steps]
        self.actions[at] = rollout.actions.squeeze(-1).to(self.actions.dtype)
        self.rewards[at] = rollout.rewards
        self.kinds[at] = torch.where(truncated, TRUNCATED, torch.where(has_ended(rollout), END, STEP)).to(torch.uint8)
        if self.masks is not None and rollout.masks is not None:
            self.masks[at] = rollout.masks[:steps]
        last = torch.where(truncated, self._places(self.heads + after - 1), self.places)
        self._store_last(rollout, last)
        total = after[-1]
        self.heads.copy_((self.heads + total) % self.capacity)
        self.counts.copy_((self.counts + total).clamp(max=self.capacity - 1))
        self.stored += alive.sum()
        head = self._places(self.heads)
        # the head of an agent that is out of the game is overwritten when the agent comes back
        for k, stored in self.whole(self.obs):
            stored[head] = rollout.obs[k][steps]
        if self.masks is not None and rollout.masks is not None:
            self.masks[head] = rollout.masks[steps]
        if self.priority:
            self._set_priorities(at, self.highest.expand(at.shape))
            self._set_priorities(last, torch.zeros_like(rollout.rewards))
            self._set_priorities(head, torch.zeros_like(rollout.rewards[0]))
            self.sums.copy_(self.priorities[:-1].view(-1, BLOCK).sum(-1))

    @torch.no_grad()
    def truncate_all(self) -> None:
        """Truncates every unfinished episode: the envs start new ones."""
        newest, head = self._places(self.heads - 1), self._places(self.heads)
        is_open = (self.counts > 0) & (self.kinds[newest] == STEP)
        self.kinds[torch.where(is_open, newest, self.places)] = TRUNCATED
        self.kinds[torch.where(is_open, head, self.places)] = LAST
        for leaf in self.stacked.values():
            leaf.restart(is_open)
        self.heads.copy_((self.heads + is_open) % self.capacity)
        self.counts.copy_((self.counts + is_open).clamp(max=self.capacity - 1))
        if self.priority:
            self._set_priorities(self._places(self.heads), torch.zeros_like(self.heads, dtype=torch.float32))
            self.sums.copy_(self.priorities[:-1].view(-1, BLOCK).sum(-1))

    def _store_last(self, rollout: Rollout, last: Tensor) -> None:
        """Writes the last observations of truncated episodes to the places `last` (steps, rows)."""
        self.kinds.index_fill_(0, last.flatten(), LAST)  # a fill: a graph cannot copy a number from the host
        for truncation in rollout.truncations:
            # the minimum over the steps is the truncated one: the others have the scratch place, the highest index
            places = last[truncation.steps, truncation.rows].min(0).values
            for k, stored in self.whole(self.obs):
                stored[places] = truncation.obs[k].to(stored.dtype)
            if self.masks is not None and (masks := rollout.truncations.masks_of(truncation)) is not None:
                self.masks[places] = masks

    def _places(self, slots: Tensor) -> Tensor:
        """The places of positions in each row's ring; `slots` may exceed the capacity."""
        return self.base + slots % self.capacity

    # ---- sampling ----

    @torch.no_grad()
    def sample(
        self,
        groups: int,
        count: int,
        n_step: int,
        gamma: float,
        generator: torch.Generator | None,
        reuse: Batch | None = None,
    ) -> Batch:
        """`count` windows from each of `groups`: one group of all rows, or one for each agent.

        Windows are ordered as rows are: the first of every group, then the second of every group, and so on. Within a
        group, transitions are sampled uniformly or by priority. A sampled place that is not a transition has weight 0.
        `reuse` is an earlier batch whose memory may be overwritten.
        """
        if self._chance.shape != (groups, count):
            self._chance = torch.empty((groups, count), dtype=torch.float64, device=self.device)
        chance = self._chance.uniform_(generator=generator)
        if self.native is not None and not self.priority:
            batch: Batch = self.native.sample(chance, n_step, gamma, reuse)
            return batch
        index, weights = self._sample_places(chance)  # (count, groups)
        windows = self._windows if self.native is None else self.native.windows
        return windows(index.flatten(), weights.flatten(), n_step, gamma)

    def _windows(self, index: Tensor, weights: Tensor, n_step: int, gamma: float) -> Batch:
        """The windows that start at the places `index` (batch,)."""
        at, kinds, stops = self._ahead(index, n_step)
        returns, steps = ops.n_step(self.rewards[at[:-1]], stops, gamma)
        is_end = kinds.gather(0, (steps - 1).unsqueeze(0)).squeeze(0) == END
        after = at.gather(0, steps.unsqueeze(0)).squeeze(0)
        discounts = torch.where(is_end, 0.0, gamma ** steps.to(torch.float32))
        return Batch(
            index=index,
            obs=[leaf[index] for leaf in self.obs],
            actions=self.actions[index].to(torch.int64),
            returns=returns,
            next_obs=[leaf[after] for leaf in self.obs],
            discounts=discounts,
            next_masks=None if self.masks is None else self.masks[after],
            weights=torch.where(self.kinds[index] == LAST, 0.0, weights),
        )

    def _ahead(self, index: Tensor, n_step: int) -> tuple[Tensor, Tensor, Tensor]:
        """The places of windows that start at `index` (n + 1, batch), their kinds, and whether a window stops there."""
        row_base = index // self.capacity * self.capacity
        window = torch.arange(n_step + 1, device=self.device).unsqueeze(1)
        at = row_base + (index - row_base + window) % self.capacity
        kinds = self.kinds[at[:-1]]
        return at, kinds, (kinds != STEP) | (at[1:] == self._heads_by_place()[index // self.capacity])

    def after(self, index: Tensor, n_step: int) -> Tensor:
        """The places at which windows that start at `index` (batch,) end."""
        at, _, stops = self._ahead(index, n_step)
        _, steps = ops.n_step(torch.zeros_like(stops, dtype=torch.float32), stops, 1.0)
        return at.gather(0, steps.unsqueeze(0)).squeeze(0)

    def _heads_by_place(self) -> Tensor:
        """The place of each ring's head, in the order of the rings."""
        return (self.base + self.heads).view(self.envs, self.agents).T.reshape(-1)

    def _sample_places(self, chance: Tensor) -> tuple[Tensor, Tensor]:
        """Places (count, groups) and their weights, from uniform random numbers `chance` (groups, count) in [0, 1)."""
        groups, count = chance.shape
        if self.priority:
            return self._sample_by_priority(groups, chance)
        counts = self.counts.view(self.envs, self.agents).T.reshape(groups, -1)  # in the order of the rings
        ends = torch.cumsum(counts, 1)
        total = ends[:, -1:]
        number = torch.minimum((chance * total).to(torch.int64), total - 1).clamp_(min=0)
        ring = torch.searchsorted(ends, number, right=True).clamp_(max=counts.shape[1] - 1)
        age = ends.gather(1, ring) - number  # 1: the newest
        ring = ring + torch.arange(groups, device=self.device).unsqueeze(1) * counts.shape[1]
        head = self._heads_by_place()[ring]
        start = ring * self.capacity
        index = start + (head - start - age) % self.capacity
        weights = (total > 0).to(torch.float32).expand(groups, count)
        return index.T, weights.T

    def _sample_by_priority(self, groups: int, chance: Tensor) -> tuple[Tensor, Tensor]:
        """In two levels: first a block by the sums of the blocks, then a place in it."""
        sums = self.sums.view(groups, -1).to(torch.float64)
        ends = torch.cumsum(sums, 1)
        total = ends[:, -1:]
        threshold = chance * total
        block = torch.searchsorted(ends, threshold, right=True).clamp_(max=sums.shape[1] - 1)
        before = ends.gather(1, block) - sums.gather(1, block)
        block = block + torch.arange(groups, device=self.device).unsqueeze(1) * sums.shape[1]
        inside = self.priorities[:-1].view(-1, BLOCK)[block].to(torch.float64)  # (groups, count, BLOCK)
        cumulative = torch.cumsum(inside, -1)
        place = (cumulative <= (threshold - before).unsqueeze(-1)).sum(-1)
        # rounding may lead past the block's last place with a priority
        place = torch.minimum(place, (cumulative < cumulative[..., -1:]).sum(-1))
        within = block % self.blocks * BLOCK + place
        index = block // self.blocks * (self.envs * self.capacity) + within
        probs = inside.gather(-1, place.unsqueeze(-1)).squeeze(-1) / total
        number = self.counts.view(self.envs, self.agents).T.reshape(groups, -1).sum(1, keepdim=True)
        weights = torch.where(probs > 0, (number * probs) ** -self.priority_beta, 0.0)
        weights = weights / weights.amax(1, keepdim=True).clamp(min=1e-30)
        return index.clamp(max=self.places - 1).T, weights.to(torch.float32).T

    @torch.no_grad()
    def reprioritize(self, batch: Batch, errors: Tensor) -> None:
        """Sets the priorities of a batch's transitions to |error|^priority. errors: (batch,)."""
        priorities = (errors.abs() + 1e-6) ** self.priority
        counted = batch.weights > 0
        self.highest.copy_(torch.maximum(self.highest, torch.where(counted, priorities, 0.0).max()))
        at = torch.where(counted, batch.index, self.places)
        self._set_priorities(at, priorities)
        block = self._priority_index(at).clamp(max=len(self.priorities) - 2) // BLOCK
        self.sums[block] = self.priorities[:-1].view(-1, BLOCK)[block].sum(-1)

    def _set_priorities(self, places: Tensor, values: Tensor) -> None:
        """A place that is given twice gets the higher value: the result does not depend on the order or the device."""
        at = self._priority_index(places).flatten()
        self.priorities.scatter_(0, at, torch.zeros_like(values).flatten())
        self.priorities.scatter_reduce_(0, at, values.flatten(), "amax")

    def _priority_index(self, places: Tensor) -> Tensor:
        """The index of a place's priority: each agent's priorities start with a new block."""
        per_agent = self.envs * self.capacity
        index = places // per_agent * (self.blocks * BLOCK) + places % per_agent
        return torch.where(places == self.places, len(self.priorities) - 1, index)


def has_ended(rollout: Rollout) -> Tensor:
    """(horizon, rows): steps that ended the row's episode, also by leaving the game without a flag."""
    if rollout.alive is None:
        return rollout.dones
    return rollout.dones | (rollout.alive[:-1] & ~rollout.alive[1:])


# ---- memory ----


def predict_nbytes(
    actor: Actor,
    size: int,
    rows: int,
    *,
    priority: bool = False,
    mask_size: int = 0,
    has_dead_rows: bool = False,
) -> int:
    """The memory of a replay in bytes, before it is allocated."""
    capacity = size // rows
    leaves = actor.layout.leaves
    once = [leaf for leaf in leaves if is_stored_once(leaf, has_dead_rows)]
    whole = [leaf for leaf in leaves if leaf not in once]
    obs = sum(int(np.prod(leaf.shape)) * stored_dtype(leaf.dtype).itemsize for leaf in whole)
    place = obs + mask_size + action_dtype(actor.head.choices).itemsize + 4 + 1
    agents = max(1, actor.agents)
    blocks = -(-rows // agents * capacity // BLOCK) * agents if priority else 0
    frames = sum(frames_nbytes(leaf, rows, capacity) for leaf in once)
    rest = 24 * rows + 8 + 4 * blocks * (BLOCK + 1) + (8 if priority else 0)
    return (rows * capacity + 1) * int(place) + frames + rest


def check_room(nbytes: int, places: int, free: int | None) -> None:
    """Raises if a replay does not fit into the free memory (None: unknown)."""
    if free is None:
        return
    available = int(free * (1.0 - KEEP_FREE))
    if nbytes > available:
        per_place = nbytes / places
        raise ConfigError(
            f"a replay of {places:,} transitions takes {nbytes / 1e9:.2f} GB ({per_place:,.0f} bytes each), but only "
            f"{free / 1e9:.2f} GB of memory are free. Try --train.replay-size {max(1, int(available / per_place))}."
        )


def action_dtype(choices: int) -> torch.dtype:
    """The smallest dtype that holds one of `choices` choices."""
    return torch.uint8 if choices <= 256 else torch.int32
