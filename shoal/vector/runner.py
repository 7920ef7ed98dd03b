"""Runner: steps a range of Python envs, one after the other, and writes their results into a Block.

The `serial` backend has one runner for all envs; every worker of the `process` backend has one for its envs. So the two
agree by construction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.errors import BadOutput
from shoal.layout import Array, kind_of
from shoal.vector.block import Block
from shoal.vector.slots import (
    SAME_STEP,
    Info,
    InfoRows,
    SingleSlot,
    VectorSlot,
    batch_action_reader,
    brief,
    info_dict,
    is_number,
    is_set,
    several,
    wrong_step,
)

NO = np.False_  # numpy has one object for it
KINDS_OF_IDS = ("Discrete", "MultiDiscrete", "MultiBinary")
SMALL_OBS = 4096  # bytes: smaller observations are stacked first and written at once, which is faster


@dataclass(frozen=True)
class LeafView:
    """One array of the observations of a worker's envs: of all agents, or of one agent where they differ."""

    view: Array
    space: Any
    name: str
    rows: slice  # which of the worker's rows it holds
    per_env: int  # its rows of each env

    def env_of(self, row: int) -> int:
        """The place of a row's env among those of the worker."""
        return row // self.per_env


class IdView:
    """A LeafView of a Discrete, MultiDiscrete or MultiBinary space, and what its values may be."""

    def __init__(self, leaf: LeafView) -> None:
        self.leaf, view, space = leaf, leaf.view, leaf.space
        kind = kind_of(space)
        start: Any = 0 if kind == "MultiBinary" else getattr(space, "start", 0)
        count: Any = {"Discrete": "n", "MultiDiscrete": "nvec"}.get(kind)
        count = 2 if count is None else getattr(space, count)
        self.low, self.high = np.asarray(start), np.asarray(start) + np.asarray(count) - 1
        self.unsigned: Array | None = None  # the same memory, where a negative number is a large one: one comparison
        if view.dtype.kind in "iu" and not self.low.any():
            self.unsigned = view.view(f"u{view.dtype.itemsize}")
            self.bound: Any = self.high.astype(self.unsigned.dtype) if self.high.ndim else int(self.high)

    def is_inside(self) -> bool:
        """Whether all values are those of the space. Values of rows that do not count do here."""
        if self.unsigned is None:
            return not ((self.leaf.view < self.low) | (self.leaf.view > self.high)).any()
        if self.high.ndim:
            return not (self.unsigned > self.bound).any()
        return bool(np.maximum.reduce(self.unsigned, axis=None) <= self.bound)


class Readable:
    """The observations of a worker's envs, and whether a policy can read them: it cannot read NaN or unknown ids."""

    def __init__(self, block: Block, obs: Array) -> None:
        leaves = list(_leaf_views(block, obs))
        self.floats = [leaf for leaf in leaves if leaf.view.dtype.kind == "f"]
        self.ids = [IdView(leaf) for leaf in leaves if kind_of(leaf.space) in KINDS_OF_IDS]

    def nan(self, counted: Array | None = None) -> tuple[int, str] | None:
        """The place of an env with NaN in a row that is `counted` (None: in any), and what to say."""
        for leaf in self.floats:
            highest = np.maximum.reduce(leaf.view, axis=None)  # NaN if any element is
            if highest != highest and (at := _first(np.isnan(leaf.view), leaf, counted)) is not None:
                return leaf.env_of(at[0]), f"obs{leaf.name} contains NaN"
        return None

    def unknown_id(self, counted: Array) -> tuple[int, str] | None:
        """The same for an id outside its space. A policy looks ids up in tables and clamps them: it would pass."""
        for ids in self.ids:
            if ids.is_inside():
                continue
            leaf = ids.leaf
            if (at := _first((leaf.view < ids.low) | (leaf.view > ids.high), leaf, counted)) is not None:
                told = f"obs{leaf.name} has {leaf.view[at]}, which is outside its space {leaf.space}"
                return leaf.env_of(at[0]), told
        return None


def _first(wrong: Array, leaf: LeafView, counted: Array | None) -> tuple[int, ...] | None:
    """Where the first wrong value is in a view, in a row that is counted."""
    if counted is not None:
        wrong &= counted[leaf.rows].reshape(-1, *[1] * (wrong.ndim - 1))
    return tuple(np.argwhere(wrong)[0].tolist()) if wrong.any() else None


def _leaf_views(block: Block, obs: Array) -> Iterator[LeafView]:
    agents, alike = len(block.agent_spaces.agents), block.agent_spaces.alike
    for agent in range(1 if alike else agents):
        layout = block.agent_spaces.obs_layouts[agent]
        rows = slice(agent, None, 1 if alike else agents)
        for leaf, space, view in zip(layout.leaves, layout.leaf_spaces, layout.leaf_views(obs[rows])):
            if view.size:
                yield LeafView(view, space, leaf.name, rows, agents if alike else 1)


class Runner:
    """Slots for envs [lo, hi), stepped one after the other."""

    def __init__(self, slots: Sequence[Any], block: Block, lo: int, autoreset: str) -> None:
        self.slots, self.lo = list(slots), lo
        self.block, self.arrays = block, block.arrays
        self.starts = []
        at = lo
        for slot in self.slots:
            slot.bind(block, at, autoreset)
            self.starts.append(at)
            at += slot.envs
        self.hi = at
        agents = len(block.agent_spaces.agents)
        self.rows = slice(lo * agents, self.hi * agents)
        self.seeds: list[int | None] = [None] * (self.hi - lo)
        # the env being stepped; a worker process puts it in shared memory
        self.place: Any = memoryview(np.array([lo], np.int32).data)
        self.steps = 0
        self.obs, self.final_obs = (Readable(block, self.arrays[name][self.rows]) for name in ("obs", "final_obs"))
        self.flags = [self.arrays[name][self.rows] for name in ("terminated", "truncated", "done")]
        self.alive, self.truncated = self.arrays["alive"][self.rows], self.flags[1]
        self.rewards = self.arrays["rewards"][self.rows]
        self.is_simple = autoreset == SAME_STEP and all(isinstance(slot, SingleSlot) for slot in self.slots)
        if self.is_simple:
            self.env_steps = [slot.env.step for slot in self.slots]
            self.limits = np.array([slot.limit for slot in self.slots], np.int64)
            self.steps_to_limit = 0  # steps in which no env can reach its time limit
            self.ticks, self.totals = np.zeros(len(self.slots), np.int64), np.zeros(len(self.slots))
            self.read_actions = batch_action_reader(block, lo, self.hi)
            self.obs_writer = self.slots[0].obs
            self.obs_view = self.obs_writer.view[lo : self.hi]
            self.writes_at_once = self.obs_writer.is_plain and len(self.slots) > 2
            self.writes_at_once &= self.obs_view[0].nbytes <= SMALL_OBS

    def reset(self, options: Info | None = None) -> InfoRows:
        """Starts episodes, with the seeds and the mask in the block."""
        info_rows: InfoRows = []
        has_seeds, has_mask, _has_options = self.arrays["reset_with"].tolist()
        seeds = self.arrays["seeds"][self.lo : self.hi].tolist() if has_seeds else None
        mask = self.arrays["reset_mask"][self.lo : self.hi] if has_mask else None
        for slot, start in zip(self.slots, self.starts):
            envs = slice(start - self.lo, start - self.lo + slot.envs)
            if mask is not None and not mask[envs].any():
                continue
            self.place[0] = start
            seed: Any = None
            if seeds is not None:
                self.seeds[envs] = seeds[envs]
                seed = seeds[envs] if isinstance(slot, VectorSlot) else seeds[envs.start]
            if isinstance(slot, VectorSlot) and mask is not None and not mask[envs].all():
                slot.reset(seed, {**(options or {}), "reset_mask": mask[envs].copy()}, info_rows)
            else:
                slot.reset(seed, options, info_rows)
            if self.is_simple:
                self.ticks[envs], self.totals[envs] = 0, 0.0
        for flag in self.flags:
            flag[:] = False
        self.rewards[:] = 0.0
        self._refuse_unreadable()
        return info_rows

    def step(self) -> InfoRows:
        """One transition of every env."""
        info_rows: InfoRows = []
        for flag in self.flags:
            flag.fill(False)
        self.steps += 1
        if self.is_simple:
            self._step_simple(info_rows)
            self._refuse_unreadable()
            return info_rows
        place, current = self.place, self.lo
        for slot in self.slots:
            place[0] = current
            slot.step(info_rows)
            current += slot.envs
        self._refuse_unreadable()
        return info_rows

    def _step_simple(self, info_rows: InfoRows) -> None:
        """`SingleSlot.step` for many slots, written for speed: most Python envs are stepped here."""
        place, lo = self.place, self.lo
        self.ticks += 1
        timeouts = self._timeouts() if self.steps_to_limit == 0 else None
        self.steps_to_limit = max(self.steps_to_limit - 1, 0)
        rewards: list[float] = []
        observations: list[Any] = []
        events: list[tuple[int, Any, bool, bool, Info]] = []  # rows that ended or have infos
        row = lo
        for env_step, action in zip(self.env_steps, self.read_actions()):
            place[0] = row
            result = env_step(action)
            try:
                obs, reward, terminated, truncated, info = result
            except (TypeError, ValueError):
                raise BadOutput(wrong_step(result)) from None
            rewards.append(reward)
            observations.append(obs)
            goes_on = (terminated is False or terminated is NO) and (truncated is False or truncated is NO)
            if not goes_on or info or info is None or (timeouts and timeouts[row - lo]):
                ends = is_set(terminated, "terminated"), is_set(truncated, "truncated")
                events.append((row, obs, *ends, info))
            row += 1
        self._take_obs(observations)
        self._take_rewards(rewards)
        self.totals += self.rewards
        for row, obs, terminated, truncated, info in events:
            place[0], number = row, row - lo
            if not (terminated or truncated or (timeouts and timeouts[number])):
                if info or info is None:
                    info_rows.append((row, False, info_dict(info)))
                continue
            self.slots[number].end(
                obs, terminated, info, int(self.ticks[number]), float(self.totals[number]), info_rows
            )
            self.ticks[number], self.totals[number] = 0, 0.0

    def _timeouts(self) -> list[bool] | None:
        """Which envs reach their time limit in this step; None: none. Sets for how many steps none can."""
        left = np.where(self.limits > 0, self.limits - self.ticks, 1 << 30)
        self.steps_to_limit = max(int(left.min()), 1)
        return (left == 0).tolist() if self.steps_to_limit == 1 and not left.all() else None

    def _take_obs(self, observations: list[Any]) -> None:
        """Writes every env's observation. A reset overwrites that of an env that has ended."""
        writer, view = self.obs_writer, self.obs_view
        if self.writes_at_once:
            try:
                stacked = np.array(observations)
            except ValueError:  # of different shapes
                stacked = None
            if stacked is not None and stacked.dtype is writer.dtype and stacked.shape == view.shape:
                view[:] = stacked
                return
        row = self.lo
        for obs in observations:
            self.place[0] = row
            writer.write(row, obs)
            row += 1

    def _take_rewards(self, rewards: list[Any]) -> None:
        try:
            array = np.asarray(rewards)
        except (TypeError, ValueError):  # of different shapes, or what numpy cannot read
            array = np.zeros((), object)
        # numpy would make numbers of "1", None and 1j, and of the array of one env
        if array.dtype.kind not in "biuf" or array.shape != self.rewards.shape:
            for number, reward in enumerate(rewards):
                if not is_number(reward):
                    self.place[0] = self.lo + number
                    raise BadOutput(f"the reward is {brief(reward)}, not a number{several(reward)}")
            self.rewards[:] = rewards
        else:
            self.rewards[:] = array

    def _refuse_unreadable(self) -> None:
        problem = self.obs.nan() or self._bad_reward() or self.obs.unknown_id(self.alive)
        if problem is None and b"\x01" in self.truncated.tobytes():  # only these rows' last observations are read
            problem = self.final_obs.nan(self.truncated) or self.final_obs.unknown_id(self.truncated)
        if problem is not None:
            place, told = problem
            self.place[0] = self.lo + place
            raise BadOutput(told)

    def _bad_reward(self) -> tuple[int, str] | None:
        highest = np.maximum.reduce(self.rewards)
        if highest == highest:
            return None
        agents = len(self.block.agent_spaces.agents)
        return int(np.isnan(self.rewards).argmax()) // agents, "the reward is NaN or None"

    def env(self, number: int) -> Any:
        """The env object with that number."""
        for slot, start in zip(self.slots, self.starts):
            if start <= number < start + slot.envs:
                return slot.env
        raise IndexError(number)

    def close(self) -> None:
        """Closes every env. Exceptions are ignored."""
        for slot in self.slots:
            with contextlib.suppress(Exception):
                slot.env.close()
