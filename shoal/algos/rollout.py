"""Rollout: what one policy saw and did for `horizon` steps of its rows. Collector: fills rollouts from a vector env.

    recv envs -> copy obs, rewards, flags into the rollout -> policy -> sample -> send actions -> recv the next envs

Each observation is copied once, from the envs' memory into the rollout, where the policy reads it. While the policy
works on one block of envs, the other blocks step. A block's rows are at a time of their own, and noise is drawn for the
whole rollout beforehand, so the order in which blocks come back changes nothing.

Time comes first everywhere: `obs[t]` is what a row saw, `actions[t]` what it did, `rewards[t]` and `dones[t]` what came
of that, `obs[t + 1]` what it saw next. A transition counts where `alive[t]`: an agent that is out plays on as zeros.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from shoal.algos.actor import Actor, Role, flat, gather, kept_dtype, pick, pick_obs
from shoal.algos.quick import QuickActor, is_for_c
from shoal.errors import ConfigError
from shoal.nn.recurrent import State
from shoal.spec import Array, Layout, structure
from shoal.vector.base import VecEnv, has_true


class Rollout:
    """Preallocated (horizon, rows) tensors."""

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
        is_host_half: bool = False,
    ) -> None:
        self.space, self.layout, self.head = actor.space, actor.layout, actor.head
        self.horizon, self.rows, self.segment = horizon, rows, segment
        self.device = torch.device(device)
        head, state = actor.head, () if is_host_half else actor.initial_state(rows)
        # the host's half of a rollout on a GPU (algos/device.py): pinned, so that copies go on beside the work
        pinned = {"pin_memory": True} if is_host_half and torch.cuda.is_available() else {}
        zeros = partial(torch.zeros, device=self.device, **pinned)
        self.obs = [
            zeros((horizon + 1, rows, *leaf.shape), dtype=torch.from_numpy(np.zeros(0, kept_dtype(leaf.dtype))).dtype)
            for leaf in self.layout.leaves
        ]
        self.actions = zeros((horizon, rows, head.size), dtype=head.dtype)
        self.logits = zeros((horizon, rows, head.num_params))
        self.noise = zeros((horizon, rows, 0 if is_host_half else head.num_noise))
        self.values = zeros((horizon + 1, rows))
        self.rewards = zeros((horizon, rows))
        self.dones = zeros((horizon, rows), dtype=torch.bool)
        ones = partial(torch.ones, device=self.device, **pinned)
        self.alive = ones((horizon + 1, rows), dtype=torch.bool) if has_dead_rows else None
        self.masks = ones((horizon + 1, rows, mask_size), dtype=torch.int8) if mask_size else None
        # recurrent policies: the state now, and at the start of every segment
        self.state = tuple(torch.zeros_like(part) for part in state)
        self.starts = tuple(zeros((horizon // segment, *part.shape)) for part in state)
        self.truncated: list[Truncated] = []
        self.wants_last_value = True  # whether values[horizon] is asked for
        self.is_quick = False  # whether C may act for its rows (algos/quick.py)
        self.ready: Tensor | None = None  # rows that are full; None: all
        self.cuts: Cuts | None = None  # instead of `truncated`, where everything has a fixed size (algos/device.py)
        # on a CPU: the first and the last step of all that is carried over, for numpy
        self._ends: list[tuple[Array, Array]] = []
        if self.device.type == "cpu":
            carried = [part.numpy() for part in self._carried()]
            self._ends = [(part[0], part[-1]) for part in carried]

    def tensors(self) -> list[Tensor]:
        """All that it holds."""
        more = [part for part in (self.alive, self.masks) if part is not None]
        mine = [self.actions, self.logits, self.noise, self.values, self.rewards, self.dones]
        return [*self.obs, *mine, *more, *self.state, *self.starts]

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(part.numel() * part.element_size() for part in self.tensors())

    def begin(self, generator: torch.Generator | None) -> None:
        """The end of the last rollout becomes the start of the next, for the rows that are full."""
        if self.ready is None:
            for first, last in self._ends:
                np.copyto(first, last)
            for part in self._carried() if not self._ends else ():
                part[0] = part[-1]
            if self.noise.shape[-1]:  # the host's half of a rollout has none
                self.head.draw(self.noise, generator)
            self.truncated.clear()
            return
        for part in self._carried():
            part[0, self.ready] = part[-1, self.ready]
        fresh = torch.empty_like(self.noise[:, self.ready])
        self.head.draw(fresh, generator)
        self.noise[:, self.ready] = fresh
        self.truncated = [cut for cut in self.truncated if not self.is_ready(cut)]

    def keep_start(self, t: int, rows: slice = slice(None)) -> None:
        """Where step t begins a segment, its state is kept."""
        if t % self.segment == 0:
            for kept, part in zip(self.starts, self.state):
                kept[t // self.segment, rows] = part[rows]

    def _carried(self) -> list[Tensor]:
        return [*self.obs, *(part for part in (self.alive, self.masks) if part is not None)]

    def cut_off(self) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Rows that a time limit cut off, some at a time, with their last observations."""
        for cut in self.truncated:
            yield cut.rows, cut.obs
        if self.cuts is not None:
            for k, flags in enumerate(self.cuts.flags.split(self.cuts.window)):
                if len(rows := flags.any(0).nonzero().flatten()):
                    yield rows, [leaf[k, rows] for leaf in self.cuts.obs]

    def is_ready(self, cut: Truncated) -> bool:
        """Whether the rows that were cut off are full, and so learned from in this update."""
        return self.ready is None or bool(torch.isin(cut.rows[0], self.ready))

    def resets(self) -> Tensor:
        """(horizon, rows): whether the row's state was cleared before step t. Row 0 is false: `starts` has it right."""
        out = torch.zeros_like(self.dones)
        out[1:] = self.dones[:-1]
        if self.alive is not None:  # also where an agent comes in that was out
            out[1:] |= ~(self.alive[1:-1] & self.alive[:-2])
        return out

    def counted(self) -> Tensor | None:
        """(horizon, rows): transitions to learn from, where not all are: of full rows, with the agent in the game."""
        if self.ready is None:
            return None if self.alive is None else self.alive[:-1]
        full = torch.zeros_like(self.dones)
        full[:, self.ready] = True
        return full if self.alive is None else full & self.alive[:-1]

    def observations(self, leaves: Sequence[Tensor]) -> Any:
        """Leaves put together as the space is."""
        return structure(self.space, iter(leaves))


@dataclass
class Truncated:
    """Rows that were cut off by a time limit at step t: their last observations and the state that they came with."""

    t: int
    rows: Tensor
    obs: list[Tensor]
    state: State


@dataclass
class Cuts:
    """As `Truncated`, in fixed sizes: row r was cut off at step t where flags[t, r], at most once in `window` steps.

    Its last observation is obs[leaf][t // window, r], and its state state[part][t // window, r].
    """

    flags: Tensor  # (horizon, rows)
    window: int
    obs: list[Tensor]
    state: State


@dataclass
class Seat:
    """An actor, the agents that it plays, and the rollout that they fill."""

    actor: Actor
    role: Role
    rollout: Rollout
    generator: torch.Generator | None = None  # of one that does not learn


@dataclass
class Times:
    """Seconds spent, by kind."""

    env: float = 0.0
    inference: float = 0.0
    copy: float = 0.0

    def drain(self) -> dict[str, float]:
        """The seconds since the last call."""
        found = {"env": self.env, "inference": self.inference, "copy": self.copy}
        self.env = self.inference = self.copy = 0.0
        return found


class Cell:
    """Views of a rollout on one block's rows at one step, made once: nothing is sliced in the loop."""

    def __init__(self, rollout: Rollout, t: int, rows: slice) -> None:
        self.obs = rollout.observations([leaf[t, rows] for leaf in rollout.obs])
        self.actions, self.logits = rollout.actions[t, rows], rollout.logits[t, rows]
        self.noise, self.values = rollout.noise[t, rows], rollout.values[t, rows]
        self.mask = None if rollout.masks is None else rollout.masks[t, rows]
        self.quick: Any = None  # how C sees it (algos/quick.py)
        self.starts: State = ()
        if t % rollout.segment == 0:
            self.starts = tuple(part[t // rollout.segment, rows] for part in rollout.starts)
        # the same memory for numpy: what the env's answer to this step is copied into
        self.rewards, self.dones = rollout.rewards[t, rows].numpy(), rollout.dones[t, rows].numpy()
        self.chosen = self.actions.numpy()
        self.next_obs = [leaf[t + 1, rows].numpy() for leaf in rollout.obs]
        self.alive = None if rollout.alive is None else rollout.alive[t, rows].numpy()
        self.next_alive = None if rollout.alive is None else rollout.alive[t + 1, rows].numpy()
        self.next_mask = None if rollout.masks is None else rollout.masks[t + 1, rows].numpy()


@dataclass
class Block:
    """Envs [lo, hi) that step together, and their cells by seat and step."""

    lo: int
    hi: int
    env_id: Array
    cells: list[list[Cell]] = field(default_factory=list)
    t: int = 0  # steps of the rollout that are done
    is_under_way: bool = False


class Collector:
    """Plays the seats' policies on a vector env and fills their rollouts."""

    def __init__(self, vec: Any, seats: Sequence[Seat], surplus_envs: int = 0) -> None:
        self.vec: Any = vec if isinstance(vec, VecEnv) else Stepped(vec)
        self.seats, self.agents = list(seats), int(getattr(vec, "agents_per_env", 1))
        self.horizon = seats[0].rollout.horizon
        self.blocks: dict[int, Block] = {}
        self.times = Times()
        self.surplus_envs = surplus_envs
        self._roles = [seat.role for seat in seats]
        self._heads = [seat.actor.head for seat in seats]
        self._quick = [QuickActor(seat.actor, seat.rollout.rows) if can_be_quick(seat) else None for seat in seats]
        self._by_c = [False] * len(seats)  # whether C acts for a seat in this rollout

    def start(self, seed: Any) -> None:
        """Resets the envs: the first observations are the end of an empty rollout."""
        self.vec.async_reset(seed=seed)
        games = 0
        while games < self.vec.num_envs:
            obs, *_, infos = self.vec.recv()
            block = self._block(infos["env_id"])
            games += block.hi - block.lo
            for number, seat in enumerate(self.seats):
                self._take_obs(seat, block.cells[number][-1], obs, infos, block)

    def resume(self, obs: Any, infos: dict[str, Any]) -> None:
        """Goes on from a restored env: its observations are the end of an empty rollout."""
        for block in self._whole_blocks():
            part = slice(block.lo * self.agents, block.hi * self.agents)
            here = _map(operator.itemgetter(part), obs)
            some = {key: value[part] for key, value in infos.items() if key in ("alive", "action_mask")}
            for number, seat in enumerate(self.seats):
                self._take_obs(seat, block.cells[number][-1], here, some, block)

    def collect(self, generators: Sequence[torch.Generator | None]) -> None:
        """Fills every rollout with `horizon` steps of every row.

        With surplus envs it does not wait for the slowest blocks: when all but so many envs are full, those are learned
        from, and the others go on in the next rollout from where they are.
        """
        for seat, generator in zip(self.seats, generators):
            seat.rollout.begin(generator)
        self._by_c = [quick is not None and quick.begin() for quick in self._quick]
        with contextlib.nullcontext() if all(self._by_c) else torch.inference_mode():
            left = self.vec.num_envs - self.surplus_envs
            for block in self.blocks.values():
                if block.t == self.horizon or not block.is_under_way:
                    block.t, block.is_under_way = 0, True
                    self._act(block)
            clock = time.perf_counter
            while left > 0:
                before = clock()
                obs, rewards, terminated, truncated, infos = self.vec.recv()
                after = clock()
                self.times.env += after - before
                block = self.blocks[int(infos["env_id"][0])]
                for number, seat in enumerate(self.seats):
                    cell = block.cells[number][block.t]
                    self._take_flags(seat, cell, rewards, terminated, truncated, infos, block)
                    self._take_obs(seat, cell, obs, infos, block)
                self.times.copy += clock() - after
                block.t += 1
                if block.t < self.horizon:
                    self._act(block)
                else:
                    left -= block.hi - block.lo
            before = clock()
            if self.surplus_envs:
                self._mark_ready()
            for seat in self.seats:
                self._last_values(seat)
            self.times.inference += clock() - before

    # ---- the steps of the loop ----

    def _act(self, block: Block) -> None:
        """One inference for a block's rows, and their actions on the way to the envs."""
        clock = time.perf_counter
        before = clock()
        found = []
        for number, seat in enumerate(self.seats):
            cell, rollout, quick = block.cells[number][block.t], seat.rollout, self._quick[number]
            if quick is not None and self._by_c[number]:
                quick.act(cell)
                found.append(rollout.head.to_env(cell.chosen))
                continue
            state = tuple(part[rows_of(seat, block, self.agents)] for part in rollout.state)
            for kept, part in zip(cell.starts, state):
                kept.copy_(part)
            logits, values, new_state = seat.actor.step(cell.obs, state)
            if cell.mask is not None:
                logits = rollout.head.mask(logits, cell.mask)
            cell.logits.copy_(logits)
            cell.values.copy_(values)
            cell.actions.copy_(rollout.head.sample(cell.logits, cell.noise))
            for part, new in zip(state, new_state):
                part.copy_(new)
            found.append(rollout.head.to_env(cell.chosen))
        actions = gather(found, self._roles, self._heads, block.hi - block.lo, self.agents)
        middle = clock()
        self.vec.send(actions, block.env_id)
        self.times.inference += middle - before
        self.times.env += clock() - middle

    def _take_flags(
        self, seat: Seat, cell: Cell, rewards: Array, terminated: Array, truncated: Array, infos: Any, block: Block
    ) -> None:
        if seat.role.agents is not None:
            rewards, terminated, truncated = (
                pick(part, seat.role, self.agents) for part in (rewards, terminated, truncated)
            )
        np.copyto(cell.rewards, rewards, casting="same_kind")
        np.logical_or(terminated, truncated, out=cell.dones)
        if not has_true(cell.dones):
            return
        rollout, rows = seat.rollout, rows_of(seat, block, self.agents)
        if truncated.any():
            cut = np.flatnonzero(truncated & ~terminated)
            if len(cut):
                ids = torch.from_numpy(cut)
                if "final_obs" in infos:
                    final = pick_obs(infos["final_obs"], seat.role, rollout.layout, self.agents)
                else:  # an env that resets itself has lost it: the observation before stands in for it
                    final = [leaf[block.t, rows].numpy() for leaf in rollout.obs]
                last = [torch.from_numpy(leaf[cut]) for leaf in final]
                state = tuple(part[rows][ids] for part in rollout.state)
                rollout.truncated.append(Truncated(block.t, ids + rows.start, last, state))
        if rollout.state:
            keep = torch.from_numpy(~cell.dones)
            for part in rollout.state:
                part[rows].mul_(keep.view(-1, *[1] * (part.ndim - 1)))

    def _take_obs(self, seat: Seat, cell: Cell, obs: Any, infos: dict[str, Any], block: Block) -> None:
        for kept, leaf in zip(cell.next_obs, pick_obs(obs, seat.role, seat.rollout.layout, self.agents)):
            np.copyto(kept, leaf, casting="unsafe")
        if cell.next_mask is not None and "action_mask" in infos:
            cell.next_mask[...] = pick(infos["action_mask"], seat.role, self.agents).reshape(cell.next_mask.shape)
        if cell.next_alive is not None and "alive" in infos:
            cell.next_alive[...] = pick(infos["alive"], seat.role, self.agents)
            alive = cell.next_alive if cell.alive is None else cell.next_alive & cell.alive
            if seat.rollout.state and not alive.all():
                keep = torch.from_numpy(alive)
                for part in seat.rollout.state:
                    part[rows_of(seat, block, self.agents)].mul_(keep.view(-1, *[1] * (part.ndim - 1)))

    def _mark_ready(self) -> None:
        full = [block for block in self.blocks.values() if block.t == self.horizon]
        for seat in self.seats:
            ranges = [rows_of(seat, block, self.agents) for block in full]
            seat.rollout.ready = torch.cat([torch.arange(rows.start, rows.stop) for rows in ranges])

    def _last_values(self, seat: Seat) -> None:
        """V of what each row saw last."""
        rollout = seat.rollout
        if not rollout.wants_last_value:
            return
        last = rollout.observations([leaf[-1] for leaf in rollout.obs])
        rollout.values[-1] = seat.actor.step(last, rollout.state)[1]

    # ---- rows and agents ----

    def _block(self, env_id: Array) -> Block:
        lo, hi = int(env_id[0]), int(env_id[-1]) + 1
        if hi - lo != len(env_id):
            raise ConfigError("recv() returned envs that are not neighbours. Use zero_copy=True, or no batch_size.")
        if lo not in self.blocks:
            block = Block(lo, hi, np.array(env_id))
            for seat in self.seats:
                rows = rows_of(seat, block, self.agents)
                block.cells.append([Cell(seat.rollout, t, rows) for t in range(self.horizon)])
            self.blocks[lo] = block
        return self.blocks[lo]

    def _whole_blocks(self) -> list[Block]:
        """The blocks that recv will return, known without a reset."""
        sizes = getattr(self.vec, "_groups", None)
        ranges = [(group.lo, group.hi) for group in sizes] if sizes else [(0, self.vec.num_envs)]
        return [self._block(np.arange(lo, hi, dtype=np.int32)) for lo, hi in ranges]


def can_be_quick(seat: Seat) -> bool:
    """Whether C acts for a seat: it keeps no state, and its network and rows are of the kind that C takes."""
    rollout = seat.rollout
    return rollout.is_quick and not rollout.state and is_for_c(seat.actor, rollout.rows)


def rows_of(seat: Seat, block: Block, agents: int) -> slice:
    """Of a seat's rollout, the rows of a block."""
    count = seat.role.count(agents)
    return slice(block.lo * count, block.hi * count)


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _map(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_map(function, part) for part in value)
    return function(value)


class Stepped:
    """Any other Gymnasium vector env, by its reset and step alone, in the words that the Collector uses."""

    backend = "gymnasium"

    def __init__(self, vec: Any) -> None:
        self.vec, self.num_envs = vec, int(vec.num_envs)
        self.single_action_space = vec.single_action_space
        mode = vec.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if mode == AutoresetMode.DISABLED:
            raise ConfigError("this vector env has autoreset disabled. Make it with same_step or next_step.")
        self._next_step = mode == AutoresetMode.NEXT_STEP
        self._env_id = np.arange(self.num_envs, dtype=np.int32)
        self._result: Any = None
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._ended: list[tuple[float, int]] = []

    @property
    def may_skip(self) -> bool:
        """Whether some steps are resets, which count for nothing."""
        return bool(self._next_step)

    def async_reset(self, *, seed: int | None = None) -> None:
        """As VecEnv.async_reset, but done at once."""
        obs, infos = self.vec.reset(seed=seed)
        zeros = np.zeros(self.num_envs, np.float32)
        flags = np.zeros(self.num_envs, np.bool_)
        self._returns[:], self._lengths[:] = 0.0, 0
        self._begins = np.zeros(self.num_envs, np.bool_)
        self._result = (obs, zeros, flags, flags, {**infos, "env_id": self._env_id})

    def send(self, actions: Any, env_id: Array | None = None) -> None:
        """As VecEnv.send, but done at once."""
        obs, rewards, terminated, truncated, infos = self.vec.step(actions)
        done = np.logical_or(terminated, truncated)
        infos = {**infos, "env_id": self._env_id}
        if self._next_step:  # the obs of the last step is here, and the step after it is a reset
            infos["final_obs"], infos["alive"] = obs, ~done
        elif "final_obs" in infos:
            infos["final_obs"] = self._as_batch(infos["final_obs"], obs)
        self._returns += rewards * ~self._begins
        self._lengths += ~self._begins
        for env in np.flatnonzero(done):
            self._ended.append((float(self._returns[env]), int(self._lengths[env])))
        self._returns[done], self._lengths[done] = 0.0, 0
        self._begins = done if self._next_step else np.zeros(self.num_envs, np.bool_)
        self._result = (obs, np.asarray(rewards, np.float32), terminated, truncated, infos)

    def _as_batch(self, last: Any, obs: Any) -> Any:
        """Gymnasium's final_obs, an array of objects with None where no episode ended, as a batch like obs."""
        if not isinstance(last, np.ndarray) or last.dtype != object:
            return last
        batch = _map(np.copy, obs)
        layout = Layout(self.vec.single_observation_space)
        leaves = flat(batch, layout)
        for env in (k for k, value in enumerate(last) if value is not None):
            layout.write(leaves, env, last[env])
        return batch

    def recv(self) -> Any:
        """What the last step or reset gave."""
        return self._result

    def drain_stats(self) -> dict[str, Any]:
        """As NativeVec.drain_stats."""
        found: dict[str, Any] = {"episodes": len(self._ended)}
        if self._ended:
            for name, values in zip(("return", "length"), np.array(self._ended, np.float64).T):
                found[name] = {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}
        self._ended.clear()
        return found

    def close(self) -> None:
        """Closes the envs."""
        self.vec.close()
