"""Replay: what rows lived through, kept to be learned from many times. One piece of memory for each kind of number.

Every row has a ring of its own in each array, written in the order in which the row lived: a place holds an
observation, the action that was taken there, the reward that came of it and how it went on. What the row saw next is in
the next place, so that an observation is kept once:

    place      0        1        2        3          4        5        6
    obs        o0       o1       o2       o3         o4       o5       o6
    kind       STEP     STEP     END      STEP       CUT      LAST     (the row's head: what it sees now)
               |------ an episode ------| |- one that a time limit cut off -|

- END: the episode was over, nothing follows. CUT: a time limit ended it, and the next place has its last observation.
- LAST: only an observation; it is never drawn.
- A row whose agent is out writes nothing, and so its next episode follows its last one without a gap.
- The head has the row's newest observation, which ends the windows that reach it.

Drawing, windows of n steps and priorities have sizes that depend on nothing that was lived through, and no step of them
waits for the device: a CUDA graph can hold them. On a CPU the same is done in C (native/core/qlearn.c), row by row.
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
from shoal.algos.rollout import Rollout
from shoal.errors import CheckpointError, ConfigError
from shoal.memory import free_bytes

STEP, END, CUT, LAST = range(4)
BLOCK = 512  # places whose priorities have one sum
KEEP_FREE = 0.1  # of the memory that is free: for everything else


@dataclass
class Batch:
    """Windows of at most n steps: where they began, what they earned, where they led. (batch, ...), rows by agent."""

    index: Tensor  # places, for `reprioritize`
    obs: list[Tensor]
    actions: Tensor
    returns: Tensor
    next_obs: list[Tensor]
    discounts: Tensor  # of what follows: gamma^steps, 0 where the episode was over
    next_masks: Tensor | None
    weights: Tensor  # of the loss; 0 where a place was drawn that is no transition

    def split(self, size: int) -> Iterator[Batch]:
        """Parts of so many windows."""
        if size == len(self.index):
            yield self
            return
        for lo in range(0, len(self.index), size):
            part = slice(lo, lo + size)
            yield Batch(
                index=self.index[part],
                obs=[leaf[part] for leaf in self.obs],
                actions=self.actions[part],
                returns=self.returns[part],
                next_obs=[leaf[part] for leaf in self.next_obs],
                discounts=self.discounts[part],
                next_masks=None if self.next_masks is None else self.next_masks[part],
                weights=self.weights[part],
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
        device: Any = "cpu",
    ) -> None:
        self.rows, self.agents, self.envs = rows, agents, rows // agents
        self.capacity = size // rows
        self.priority, self.priority_beta = priority, priority_beta
        self.choices = actor.head.choices
        self.device = torch.device(device)
        least = 2 * horizon + 2  # a rollout in which every step is cut off, the head, and one to draw
        if self.capacity < least:
            raise ConfigError(
                f"--train.replay-size {size} is {self.capacity} places for each of {rows} rows; a rollout of {horizon} "
                f"steps needs {least}. Try --train.replay-size {least * rows}, or fewer envs."
            )
        self.places = rows * self.capacity
        self.nbytes = predict_nbytes(actor, size, rows, priority=bool(priority), mask_size=mask_size)
        check_room(self.nbytes, self.places, free_bytes(self.device))
        zeros = partial(torch.zeros, device=self.device)
        one_more = self.places + 1  # where rows write that have nothing to write
        self.obs = [zeros((one_more, *leaf.shape), dtype=stored_dtype(leaf.dtype)) for leaf in actor.layout.leaves]
        self.actions = zeros(one_more, dtype=action_dtype(actor.head.choices))
        self.rewards = zeros(one_more)
        self.kinds = zeros(one_more, dtype=torch.uint8)
        self.masks = zeros((one_more, mask_size), dtype=torch.int8) if mask_size else None
        # by row, in the order of agents: all envs of agent 0, then all of agent 1. So an agent's places are neighbours.
        order = torch.arange(rows, device=self.device).view(agents, self.envs)
        self.base = (order.T.reshape(-1)) * self.capacity  # (rows,) of each row, where its ring begins
        self.heads = zeros(rows, dtype=torch.int64)  # place in the ring that is written next
        self.counts = zeros(rows, dtype=torch.int64)  # places behind it that are filled
        self.stored = zeros((), dtype=torch.int64)  # transitions ever stored
        if priority:
            blocks = -(-self.envs * self.capacity // BLOCK)
            self.blocks = blocks  # of an agent
            self.priorities = zeros(agents * blocks * BLOCK + 1)  # the last one is of the place for nothing
            self.sums = zeros(agents * blocks)
            self.highest = torch.ones((), device=self.device)
        self._chance = torch.empty((0, 0), dtype=torch.float64, device=self.device)
        self.native = NativeReplay(self, Batch) if self.device.type == "cpu" else None

    # ---- saving ----

    def tensors(self) -> dict[str, Tensor]:
        """All that must be kept to go on: everything but the place for what is not written."""
        found = {f"obs.{k}": leaf[:-1] for k, leaf in enumerate(self.obs)}
        found |= {"actions": self.actions[:-1], "rewards": self.rewards[:-1], "kinds": self.kinds[:-1]}
        found |= {"heads": self.heads, "counts": self.counts, "stored": self.stored}
        if self.masks is not None:
            found["masks"] = self.masks[:-1]
        if self.priority:
            found |= {"priorities": self.priorities, "sums": self.sums, "highest": self.highest}
        return found

    def check(self) -> None:
        """Raises CheckpointError where restored tensors are not those of a replay: C uses them as indices."""
        capacity = self.capacity
        ranges = {
            "heads": (self.heads, 0, capacity - 1),
            "counts": (self.counts, 0, capacity - 1),
            "kinds": (self.kinds, STEP, LAST),
            "actions": (self.actions, 0, self.choices - 1),
            "stored": (self.stored, 0, 1 << 62),
        }
        for name, (tensor, low, high) in ranges.items():
            least, most = int(tensor.min()), int(tensor.max())
            if least < low or most > high:
                raise CheckpointError(
                    f"the checkpoint's replay is damaged: {name} has values from {least} to {most}, expected {low} to "
                    f"{high}. Resume from another checkpoint."
                )
        if self.priority and not all(bool((p >= 0).all()) and bool(p.isfinite().all()) for p in self._priority_state()):
            raise CheckpointError(
                "the checkpoint's replay is damaged: priorities are negative or not finite. Resume from another one."
            )

    def _priority_state(self) -> list[Tensor]:
        return [self.priorities, self.sums, self.highest]

    def fill(self) -> Any:
        """How full it is, 0 to 1: a number, or on a GPU a tensor."""
        counts = self.counts.sum() if self.native is None else int(self.native.counts.sum())
        return counts / (self.rows * (self.capacity - 1))

    def has_stored(self, count: int) -> bool:
        """Whether so many transitions have ever been stored. Waits for the device."""
        return bool(self.stored.item() >= count)

    # ---- writing ----

    @torch.no_grad()
    def store(self, rollout: Rollout) -> None:
        """Takes in all transitions of a rollout that count, and what every row sees now."""
        if self.native is not None and not self.priority and not rollout.truncations.is_fixed:
            self.native.store(rollout)
        else:
            self._store_by_torch(rollout)

    def _store_by_torch(self, rollout: Rollout) -> None:
        steps = rollout.horizon
        alive = torch.ones_like(rollout.dones) if rollout.alive is None else rollout.alive[:-1]
        cut = rollout.truncations.flags() & alive
        written = alive.to(torch.int64) + cut.to(torch.int64)  # places that step t takes: one, or two
        after = torch.cumsum(written, 0)
        place = self._places(self.heads + after - written)  # (steps, rows)
        at = torch.where(alive, place, self.places)
        for kept, leaf in zip(self.obs, rollout.obs):
            kept[at] = leaf[:steps]
        self.actions[at] = rollout.actions.squeeze(-1).to(self.actions.dtype)
        self.rewards[at] = rollout.rewards
        self.kinds[at] = torch.where(cut, CUT, torch.where(is_over(rollout), END, STEP)).to(torch.uint8)
        if self.masks is not None and rollout.masks is not None:
            self.masks[at] = rollout.masks[:steps]
        last = torch.where(cut, self._places(self.heads + after - 1), self.places)
        self._store_last(rollout, last)
        total = after[-1]
        self.heads.copy_((self.heads + total) % self.capacity)
        self.counts.copy_((self.counts + total).clamp(max=self.capacity - 1))
        self.stored += alive.sum()
        head = self._places(self.heads)
        # an agent that is out sees nothing: its head is overwritten when it comes back
        for kept, leaf in zip(self.obs, rollout.obs):
            kept[head] = leaf[steps]
        if self.masks is not None and rollout.masks is not None:
            self.masks[head] = rollout.masks[steps]
        if self.priority:
            self._set_priorities(at, self.highest.expand(at.shape))
            self._set_priorities(last, torch.zeros_like(rollout.rewards))
            self._set_priorities(head, torch.zeros_like(rollout.rewards[0]))
            self.sums.copy_(self.priorities[:-1].view(-1, BLOCK).sum(-1))

    @torch.no_grad()
    def truncate_all(self) -> None:
        """The envs start new episodes: every episode that is being played ends here, truncated."""
        newest, head = self._places(self.heads - 1), self._places(self.heads)
        is_open = (self.counts > 0) & (self.kinds[newest] == STEP)
        self.kinds[torch.where(is_open, newest, self.places)] = CUT
        self.kinds[torch.where(is_open, head, self.places)] = LAST
        self.heads.copy_((self.heads + is_open) % self.capacity)
        self.counts.copy_((self.counts + is_open).clamp(max=self.capacity - 1))
        if self.priority:
            self._set_priorities(self._places(self.heads), torch.zeros_like(self.heads, dtype=torch.float32))
            self.sums.copy_(self.priorities[:-1].view(-1, BLOCK).sum(-1))

    def _store_last(self, rollout: Rollout, last: Tensor) -> None:
        """Writes the last observations of what was cut off to their places: last (steps, rows)."""
        self.kinds.index_fill_(0, last.flatten(), LAST)  # a graph can hold no number of the host's in memory
        if self.masks is not None:
            self.masks.index_fill_(0, last.flatten(), 1)  # what is allowed there is not known: the env has begun anew
        for part in rollout.truncations:
            # where it was truncated: all others are the unused place, the last
            places = last[part.steps, part.rows].min(0).values
            for stored, leaf in zip(self.obs, part.obs):
                stored[places] = leaf.to(stored.dtype)

    def _places(self, slots: Tensor) -> Tensor:
        return self.base + slots % self.capacity

    # ---- drawing ----

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
        """`count` windows for each of `groups`: one group that draws from all rows, or one for each agent.

        The batch is as rows are: the windows of all groups side by side, then the next ones. Each transition is as
        likely as any other of its group, or by priority. A place that is no transition may be drawn, with weight 0.
        `reuse` is an earlier batch that may be overwritten.
        """
        if self._chance.shape != (groups, count):
            self._chance = torch.empty((groups, count), dtype=torch.float64, device=self.device)
        chance = self._chance.uniform_(generator=generator)
        if self.native is not None and not self.priority:
            batch: Batch = self.native.sample(chance, n_step, gamma, reuse)
            return batch
        index, weights = self._draw(chance)  # (count, groups)
        sample = self._windows if self.native is None else self.native.windows
        return sample(index.flatten(), weights.flatten(), n_step, gamma)

    def _windows(self, index: Tensor, weights: Tensor, n_step: int, gamma: float) -> Batch:
        """What began at some places, (batch,)."""
        row_base = index // self.capacity * self.capacity
        window = torch.arange(n_step + 1, device=self.device).unsqueeze(1)
        at = row_base + (index - row_base + window) % self.capacity  # (n + 1, batch)
        kinds = self.kinds[at[:-1]]
        stops = (kinds != STEP) | (at[1:] == self._heads_by_place()[index // self.capacity])
        returns, steps = ops.n_step(self.rewards[at[:-1]], stops, gamma)
        has_ended = kinds.gather(0, (steps - 1).unsqueeze(0)).squeeze(0) == END
        after = at.gather(0, steps.unsqueeze(0)).squeeze(0)
        discounts = torch.where(has_ended, 0.0, gamma ** steps.to(torch.float32))
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

    def _heads_by_place(self) -> Tensor:
        """Where each ring's head is, in the order of the rings."""
        return (self.base + self.heads).view(self.envs, self.agents).T.reshape(-1)

    def _draw(self, chance: Tensor) -> tuple[Tensor, Tensor]:
        """Places (count, groups), and what they count for, by chances (groups, count) from 0 to 1."""
        groups, count = chance.shape
        if self.priority:
            return self._draw_by_priority(groups, chance)
        counts = self.counts.view(self.envs, self.agents).T.reshape(groups, -1)  # as the rings lie
        ends = torch.cumsum(counts, 1)
        total = ends[:, -1:]
        number = torch.minimum((chance * total).to(torch.int64), total - 1).clamp_(min=0)
        ring = torch.searchsorted(ends, number, right=True).clamp_(max=counts.shape[1] - 1)
        age = ends.gather(1, ring) - number  # 1 is the newest
        ring = ring + torch.arange(groups, device=self.device).unsqueeze(1) * counts.shape[1]
        head = self._heads_by_place()[ring]
        start = ring * self.capacity
        index = start + (head - start - age) % self.capacity
        weights = (total > 0).to(torch.float32).expand(groups, count)
        return index.T, weights.T

    def _draw_by_priority(self, groups: int, chance: Tensor) -> tuple[Tensor, Tensor]:
        """In two levels: a block by the sums of blocks, then a place in it by the sums of its places."""
        sums = self.sums.view(groups, -1).to(torch.float64)
        ends = torch.cumsum(sums, 1)
        total = ends[:, -1:]
        goal = chance * total
        block = torch.searchsorted(ends, goal, right=True).clamp_(max=sums.shape[1] - 1)
        before = ends.gather(1, block) - sums.gather(1, block)
        block = block + torch.arange(groups, device=self.device).unsqueeze(1) * sums.shape[1]
        inside = self.priorities[:-1].view(-1, BLOCK)[block].to(torch.float64)  # (groups, count, BLOCK)
        steps = torch.cumsum(inside, -1)
        place = (steps <= (goal - before).unsqueeze(-1)).sum(-1)
        # rounding may lead past the last place of the block that has a priority
        place = torch.minimum(place, (steps < steps[..., -1:]).sum(-1))
        within = block % self.blocks * BLOCK + place
        index = block // self.blocks * (self.envs * self.capacity) + within
        chosen = inside.gather(-1, place.unsqueeze(-1)).squeeze(-1) / total
        number = self.counts.view(self.envs, self.agents).T.reshape(groups, -1).sum(1, keepdim=True)
        weights = torch.where(chosen > 0, (number * chosen) ** -self.priority_beta, 0.0)
        weights = weights / weights.amax(1, keepdim=True).clamp(min=1e-30)
        return index.clamp(max=self.places - 1).T, weights.to(torch.float32).T

    @torch.no_grad()
    def reprioritize(self, batch: Batch, errors: Tensor) -> None:
        """The larger the error was, the likelier it is drawn again. errors: (batch,)."""
        fresh = (errors.abs() + 1e-6) ** self.priority
        counted = batch.weights > 0
        self.highest.copy_(torch.maximum(self.highest, torch.where(counted, fresh, 0.0).max()))
        at = torch.where(counted, batch.index, self.places)
        self._set_priorities(at, fresh)
        block = self._priority_index(at).clamp(max=len(self.priorities) - 2) // BLOCK
        self.sums[block] = self.priorities[:-1].view(-1, BLOCK)[block].sum(-1)

    def _set_priorities(self, places: Tensor, values: Tensor) -> None:
        """A place that is given twice gets the higher value, whatever the order: so it is the same on every device."""
        at = self._priority_index(places).flatten()
        self.priorities.scatter_(0, at, torch.zeros_like(values).flatten())
        self.priorities.scatter_reduce_(0, at, values.flatten(), "amax")

    def _priority_index(self, places: Tensor) -> Tensor:
        """Where a place's priority is: an agent's begin with a block of their own."""
        each = self.envs * self.capacity
        index = places // each * (self.blocks * BLOCK) + places % each
        return torch.where(places == self.places, len(self.priorities) - 1, index)


def is_over(rollout: Rollout) -> Tensor:
    """(horizon, rows): steps after which nothing follows. An agent that is out though nobody said so is out too."""
    if rollout.alive is None:
        return rollout.dones
    return rollout.dones | (rollout.alive[:-1] & ~rollout.alive[1:])


# ---- memory ----


def predict_nbytes(actor: Actor, size: int, rows: int, *, priority: bool = False, mask_size: int = 0) -> int:
    """Memory that a replay takes, known before it is made."""
    capacity = size // rows
    obs = sum(int(np.prod(leaf.shape)) * stored_dtype(leaf.dtype).itemsize for leaf in actor.layout.leaves)
    each = obs + mask_size + torch.zeros(0, dtype=action_dtype(actor.head.choices)).element_size() + 4 + 1
    agents = max(1, actor.agents)
    blocks = -(-rows // agents * capacity // BLOCK) * agents if priority else 0
    return (rows * capacity + 1) * int(each) + 24 * rows + 8 + 4 * blocks * (BLOCK + 1) + (8 if priority else 0)


def check_room(nbytes: int, places: int, free: int | None) -> None:
    """Raises where a replay does not fit into free memory; None: unknown."""
    if free is None:
        return
    room = int(free * (1.0 - KEEP_FREE))
    if nbytes > room:
        each = nbytes / places
        raise ConfigError(
            f"a replay of {places:,} transitions takes {nbytes / 1e9:.2f} GB ({each:,.0f} bytes each), and "
            f"{free / 1e9:.2f} GB of memory are free. Try --train.replay-size {max(1, int(room / each))}."
        )


def action_dtype(choices: int) -> torch.dtype:
    """The smallest that holds one of so many choices."""
    return torch.uint8 if choices <= 256 else torch.int32
