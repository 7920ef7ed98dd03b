"""The loop on a GPU that also steps the envs: a horizon is one CUDA graph, an update is another.

    graph 1   T times: policy -> sample -> env kernel, which writes rewards, flags and the next observation in place
    graph 2   advantages, then every minibatch of every epoch: loss, gradients, optimizer

The host replays the two and looks at nothing until it logs. The code inside the graphs is that of algos/ppo.py; what
differs is that all sizes are fixed: rows that a time limit cuts off are kept in `Cuts`, one place for each row and
window of steps in which it can be cut off once.

`Bridge` is for envs that the host steps: its rollouts are collected block by block, and learned from in a graph.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.algos.actor import gather
from shoal.algos.fused import Fused
from shoal.algos.rollout import Block, Collector, Cuts, Rollout, Seat, Times, Truncated, rows_of
from shoal.errors import ConfigError
from shoal.nn.fused import BLOCK
from shoal.nn.launch import has_triton, launch
from shoal.nn.recurrent import State


class DeviceCollector:
    """Plays policies on envs of the same GPU and fills their rollouts. No step of it waits for the device.

    The env's kernel writes straight into the rollout of a policy that plays every agent. Where several play, it writes
    into the envs' own memory, from which each takes its agents' rows.
    """

    def __init__(self, vec: Any, seats: Sequence[Seat], fused: Sequence[Fused | None] = ()) -> None:
        self.vec, self.seats, self.times = vec, list(seats), Times()
        self.fused = [*fused, *[None] * (len(seats) - len(fused))]
        self.agents, device = int(getattr(vec, "agents_per_env", 1)), seats[0].rollout.device
        self.envs, self.horizon = len(vec.actions) // self.agents, seats[0].rollout.horizon
        zeros = partial(torch.zeros, device=device)
        self.env_actions = zeros(vec.actions.shape, dtype=vec.actions.dtype)
        self.flags = zeros((2, len(vec.actions)), dtype=torch.bool)  # terminated, and truncated where nobody asks
        self.plays_all = seats[0].rollout.rows == len(vec.actions)
        self.places = [torch.tensor(seat.role.agents or range(self.agents), device=device) for seat in seats]
        self.taken = [self.env_actions]
        if not self.plays_all:
            self.taken = [self.env_actions.new_zeros((s.rollout.rows, *vec.actions.shape[1:])) for s in seats]
        limit = time_limit(vec)
        for seat in seats:
            if limit and seat.generator is None:  # what is not learned from needs no last observation
                seat.rollout.cuts = make_cuts(seat.rollout, limit)
        vec.struct.final_cut = 1

    def start(self, seed: int) -> None:
        """Resets the envs: the first observations are the end of an empty rollout."""
        obs, infos = self.vec.reset(seed=seed)
        self.resume(obs, infos)

    def resume(self, obs: Any, infos: dict[str, Any]) -> None:
        """Goes on from envs that are there: their observations are the end of an empty rollout."""
        for number, seat in enumerate(self.seats):
            rollout = seat.rollout
            rollout.obs[0][-1].copy_(self._of(number, obs))
            if rollout.alive is not None:
                rollout.alive[-1].copy_(self._of(number, infos["alive"]))
            if rollout.masks is not None:
                rollout.masks[-1].copy_(self._of(number, infos["action_mask"]))

    @torch.no_grad()
    def collect(self, generators: Sequence[torch.Generator | None]) -> None:
        """Fills the rollouts with `horizon` steps of every row."""
        for seat, fused, generator in zip(self.seats, self.fused, generators):
            seat.rollout.begin(generator)
            if fused is not None:
                fused.begin()
        for t in range(self.horizon):
            self._step(t)
        for seat, fused in zip(self.seats, self.fused):
            rollout = seat.rollout
            if fused is not None:
                fused.act(rollout.horizon)
            elif rollout.wants_last_value:
                rollout.values[-1].copy_(seat.actor.step(rollout.obs[0][-1], rollout.state)[1])

    def _step(self, t: int) -> None:
        states: list[State] = []
        for number, fused in enumerate(self.fused):
            self.seats[number].rollout.keep_start(t)
            states.append(self._act(number, t) if fused is None else fused.act(t, self.taken[number]))
        if self.plays_all:
            self._step_in_place(t)
        else:
            self._step_and_share(t)
        for number, seat in enumerate(self.seats):
            rollout, cuts = seat.rollout, seat.rollout.cuts
            if rollout.alive is not None:
                rollout.alive[t + 1].copy_(self._of(number, self.vec.tensors["alive"]))
            if rollout.masks is not None:
                rollout.masks[t + 1].copy_(self._of(number, self.vec.tensors["masks"]))
            for part, (old, new) in enumerate(zip(rollout.state, states[number])):
                kept = None if cuts is None else cuts.state[part][t // cuts.window]
                _carry(rollout, t, old, new, None if cuts is None else cuts.flags[t], kept)

    def _step_in_place(self, t: int) -> None:
        rollout = self.seats[0].rollout
        cuts, places = rollout.cuts, {}
        if cuts is not None:
            places = {"truncated": cuts.flags[t], "final_obs": cuts.obs[0][t // cuts.window]}
        self.vec.launch_step(
            obs=rollout.obs[0][t + 1],
            actions=self.env_actions,
            rewards=rollout.rewards[t],
            done=rollout.dones[t],
            terminated=self.flags[0],
            **({"truncated": self.flags[1]} | places),
        )

    def _step_and_share(self, t: int) -> None:
        whole = self.env_actions.view(self.envs, self.agents, -1)
        for number, actions in enumerate(self.taken):
            whole.index_copy_(1, self.places[number], actions.view(self.envs, len(self.places[number]), -1))
        self.vec.launch_step(actions=self.env_actions)
        tensors = self.vec.tensors
        for number, seat in enumerate(self.seats):
            rollout, cuts = seat.rollout, seat.rollout.cuts
            rollout.obs[0][t + 1].copy_(self._of(number, tensors["obs"]))
            rollout.rewards[t].copy_(self._of(number, tensors["rewards"]))
            rollout.dones[t].copy_(self._of(number, tensors["done"]))
            if cuts is not None:
                cut, kept = self._of(number, tensors["truncated"]), cuts.obs[0][t // cuts.window]
                cuts.flags[t].copy_(cut)
                last = self._of(number, tensors["final_obs"])
                kept.copy_(torch.where(cut.view(-1, *[1] * (kept.ndim - 1)), last, kept))

    def _of(self, number: int, whole: Tensor) -> Tensor:
        """The rows of a seat's agents."""
        if self.plays_all:
            return whole
        by_agent = whole.view(self.envs, self.agents, *whole.shape[1:])
        return by_agent.index_select(1, self.places[number]).flatten(0, 1)

    def _act(self, number: int, t: int) -> State:
        """Logits, values and actions of a seat at step t; returns its policy's next state."""
        rollout, actor = self.seats[number].rollout, self.seats[number].actor
        head = actor.head
        logits, values, state = actor.step(rollout.obs[0][t], rollout.state)
        if rollout.masks is not None:
            logits = head.mask(logits, rollout.masks[t])
        rollout.logits[t].copy_(logits)
        rollout.values[t].copy_(values)
        actions = head.sample(rollout.logits[t], rollout.noise[t])
        rollout.actions[t].copy_(actions)
        taken = self.taken[number]
        taken.copy_(head.to_device(actions).view(taken.shape))
        return state


def _carry(rollout: Rollout, t: int, state: Tensor, new: Tensor, cut: Tensor | None, kept: Tensor | None) -> None:
    """A step's new recurrent state becomes the state, or zero where a game ended; `kept` takes those cut off."""
    alive = rollout.alive
    if has_triton() and state.is_contiguous() and new.is_contiguous():
        from shoal.algos import kernels

        size = state[0].numel()
        now, later = (None, None) if alive is None else (alive[t], alive[t + 1])
        launch(
            kernels.carry, (-(-state.numel() // BLOCK),),
            new, state, rollout.dones[t], now, later, cut, kept, len(state),
            CUT=cut is not None, ALIVE=alive is not None, S=size, PART=BLOCK, num_warps=4,
        )  # fmt: skip
        return
    shape = (-1, *[1] * (state.ndim - 1))
    if cut is not None and kept is not None:
        kept.copy_(torch.where(cut.view(shape), new, kept))
    keep = ~rollout.dones[t]
    if alive is not None:
        keep = keep & alive[t] & alive[t + 1]
    state.copy_(new * keep.view(shape))


class Bridge(Collector):
    """Plays one policy, on a GPU, on envs that the host steps.

    Envs write into the host's half of the rollout, which is pinned. Each block of envs has a stream of its own, by
    which its observations go to the GPU and its actions come back, while the other blocks step. What learning needs
    besides (rewards, flags) follows in one piece when the rollout is full.
    """

    def __init__(self, vec: Any, seats: Sequence[Seat], fused: Fused | None = None) -> None:
        if len(seats) != 1:
            raise ConfigError(
                f"{len(seats)} policies (--opponents with runs, --nn.policies per_agent, agents of several kinds) on "
                "envs that the CPU steps are for --device cpu yet. Use that, or a native env with --vec.backend cuda."
            )
        seat = seats[0]
        self.home, self.actor, self.fused = seat.rollout, seat.actor, fused
        home = self.home
        self.host = Rollout(
            seat.actor,
            home.horizon,
            home.rows,
            segment=home.segment,
            mask_size=0 if home.masks is None else home.masks.shape[-1],
            has_dead_rows=home.alive is not None,
            is_host_half=True,
        )
        super().__init__(vec, [Seat(seat.actor, seat.role, self.host)])
        self._streams: dict[int, Any] = {}
        limit = time_limit(vec)
        if limit:  # native envs: a row is cut off at most once in so many steps, and an update can be a graph
            home.cuts = make_cuts(home, limit)
            self._flags = torch.zeros(home.cuts.flags.shape, dtype=torch.bool)

    def collect(self, generators: Sequence[torch.Generator | None]) -> None:
        """Fills the rollout with `horizon` steps of every row."""
        self.home.begin(generators[0])
        if self.fused is not None:
            self.fused.begin()
        for stream in self._streams.values():
            stream.wait_stream(torch.cuda.current_stream())
        super().collect([None])

    def _act(self, block: Block) -> None:
        clock = time.perf_counter
        before, t, rows = clock(), block.t, rows_of(self.seats[0], block, self.agents)
        host, home = self.host, self.home
        with self._stream(block):
            for mine, theirs in zip(home.obs, host.obs):
                mine[t, rows].copy_(theirs[t, rows], non_blocking=True)
            if home.masks is not None and host.masks is not None:
                home.masks[t, rows].copy_(host.masks[t, rows], non_blocking=True)
            home.keep_start(t, rows)
            new_state = self._infer(t, rows) if self.fused is None else self.fused.act(t, rows=rows)
            for part, new in zip(home.state, new_state):
                part[rows].copy_(new)
            host.actions[t, rows].copy_(home.actions[t, rows], non_blocking=True)
            if home.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
        found = [host.head.to_env(host.actions[t, rows].numpy())]
        actions = gather(found, self._roles, self._heads, block.hi - block.lo, self.agents)
        middle = clock()
        self.vec.send(actions, block.env_id)
        self.times.inference += middle - before
        self.times.env += clock() - middle

    def _infer(self, t: int, rows: slice) -> State:
        home, head = self.home, self.actor.head
        obs = home.observations([leaf[t, rows] for leaf in home.obs])
        logits, values, new_state = self.actor.step(obs, tuple(part[rows] for part in home.state))
        if home.masks is not None:
            logits = head.mask(logits, home.masks[t, rows])
        home.logits[t, rows].copy_(logits)
        home.values[t, rows].copy_(values)
        home.actions[t, rows].copy_(head.sample(home.logits[t, rows], home.noise[t, rows]))
        return new_state

    def _take_flags(self, seat: Seat, cell: Any, *numbers: Any) -> None:
        block: Block = numbers[-1]
        cuts_before = len(self.host.truncated)
        super()._take_flags(seat, cell, *numbers)
        if not self.home.state:
            return
        with self._stream(block):
            for cut in self.host.truncated[cuts_before:]:
                cut.state = tuple(part[cut.rows.to(part.device)] for part in self.home.state)
            self._clear(rows_of(seat, block, self.agents), cell.dones)

    def _take_obs(self, seat: Seat, cell: Any, obs: Any, infos: dict[str, Any], block: Block) -> None:
        super()._take_obs(seat, cell, obs, infos, block)
        if self.home.state and cell.next_alive is not None:
            alive = cell.next_alive if cell.alive is None else cell.next_alive & cell.alive
            with self._stream(block):
                self._clear(rows_of(seat, block, self.agents), ~alive)

    def _clear(self, rows: slice, where: Any) -> None:
        if where.any():
            keep = torch.from_numpy(~where).to(self.home.device)
            for part in self.home.state:
                part[rows].mul_(keep.view(-1, *[1] * (part.ndim - 1)))

    def _last_values(self, seat: Seat) -> None:
        """What learning needs goes to the GPU, and V of what each row saw last is found there."""
        home, host = self.home, self.host
        for stream in self._streams.values():
            torch.cuda.current_stream().wait_stream(stream)
        home.rewards.copy_(host.rewards, non_blocking=True)
        home.dones.copy_(host.dones, non_blocking=True)
        for mine, theirs in zip(home.obs, host.obs):
            mine[-1].copy_(theirs[-1], non_blocking=True)
        if home.alive is not None and host.alive is not None:
            home.alive.copy_(host.alive, non_blocking=True)
        if home.masks is not None and host.masks is not None:
            home.masks[-1].copy_(host.masks[-1], non_blocking=True)
        self._take_cuts()
        if self.fused is not None:
            self.fused.act(home.horizon)
        elif home.wants_last_value:
            last = home.observations([leaf[-1] for leaf in home.obs])
            home.values[-1].copy_(self.actor.step(last, home.state)[1])

    def _take_cuts(self) -> None:
        home, cuts, device = self.home, self.home.cuts, self.home.device
        if cuts is None:
            home.truncated = [
                Truncated(cut.t, cut.rows.to(device), [leaf.to(device) for leaf in cut.obs], cut.state)
                for cut in self.host.truncated
            ]
            return
        self._flags.zero_()
        for cut in self.host.truncated:
            self._flags[cut.t, cut.rows] = True
            rows, window = cut.rows.to(device), cut.t // cuts.window
            for kept, leaf in zip(cuts.obs, cut.obs):
                kept[window].index_copy_(0, rows, leaf.to(device).to(kept.dtype))
            for kept, part in zip(cuts.state, cut.state):
                kept[window].index_copy_(0, rows, part)
        cuts.flags.copy_(self._flags)

    def _stream(self, block: Block) -> Any:
        if self.home.device.type != "cuda":
            return contextlib.nullcontext()
        if block.lo not in self._streams:
            self._streams[block.lo] = torch.cuda.Stream()
            self._streams[block.lo].wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._streams[block.lo])


def time_limit(vec: Any) -> int:
    """The fewest steps after which any env cuts a game off; 0 where that is not known, or never happens."""
    spec = getattr(vec, "spec_env", None)
    if spec is None:
        return 0
    params = vec.get_params()
    limits = [int(limit) for limit in params.get("max_steps", [spec.max_steps]) if limit > 0]
    return min(limits, default=0)


def make_cuts(rollout: Rollout, limit: int) -> Cuts:
    """Room for what a time limit cuts off."""
    windows = -(-rollout.horizon // limit)
    zeros = partial(torch.zeros, device=rollout.device)
    state = tuple(zeros((windows, *part.shape)) for part in rollout.state)
    obs = [zeros((windows, *leaf.shape[1:]), dtype=leaf.dtype) for leaf in rollout.obs]
    return Cuts(zeros((rollout.horizon, rollout.rows), dtype=torch.bool), limit, obs, state)


class Graph:
    """A function without arguments, captured once and then replayed. What it returns is overwritten by each replay."""

    def __init__(self, function: Callable[[], Any], generators: Sequence[torch.Generator]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph):
            self.result = function()

    def __call__(self) -> Any:
        """Replays it on the current stream."""
        self.graph.replay()
        return self.result


def warm_up(function: Callable[[], Any], times: int = 2) -> None:
    """Runs a function on a stream of its own, as capture wants it: libraries pick their kernels and workspaces."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


class Tally:
    """Sums of an update's metrics, kept where they are made: a graph adds to them, and nothing waits."""

    MOST = 32

    def __init__(self, device: torch.device) -> None:
        self.names: list[str] = []
        self.totals = torch.zeros(self.MOST, device=device)

    def add(self, metrics: dict[str, Any]) -> None:
        """Those of one update: the same names each time."""
        self.names, whole = list(metrics), self.totals[: len(metrics)]
        whole += torch.stack([torch.as_tensor(x, dtype=whole.dtype, device=whole.device) for x in metrics.values()])

    def drain(self) -> dict[str, float]:
        """The sums since the last call."""
        found = dict(zip(self.names, self.totals.tolist()))
        self.totals.zero_()
        return found


class Pace:
    """Lets the host be one iteration ahead of the GPU, and no further."""

    def __init__(self) -> None:
        self._last: Any = None

    def step(self) -> None:
        """An iteration was asked for: waits for the one before."""
        before, self._last = self._last, torch.cuda.Event()
        self._last.record()
        if before is not None:
            before.synchronize()


def copy_into(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Puts values into tensors that graphs hold. One without a value was not there at the start: it becomes zero."""
    for name, tensor in targets.items():
        if name in values:
            tensor.copy_(values[name])
        else:
            tensor.zero_()
