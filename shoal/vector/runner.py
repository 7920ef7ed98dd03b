"""Runner: steps a range of Python envs, one after the other, and writes what they return into a Block.

The `serial` backend runs one over all envs; every worker of the `process` backend runs one over its own. So the two
agree by construction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.errors import BadOutput
from shoal.spec import Array
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
)

SMALL_OBS = 4096  # bytes: smaller observations are faster stacked first and written at once


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
        self.place: Any = memoryview(
            np.array([lo], np.int32).data
        )  # the env being stepped; a worker puts it in shared memory
        self.steps = 0
        self.float_views: list[tuple[Array, int, str]] = []  # (view, rows per env, which part of obs)
        for agent in range(1 if block.agent_spaces.alike else agents):
            layout = block.agent_spaces.obs_layouts[agent]
            mine = self.arrays["obs"][self.rows]
            step = 1 if block.agent_spaces.alike else agents
            for leaf, view in zip(layout.leaves, layout.leaf_views(mine[agent::step])):
                if leaf.dtype.kind == "f" and view.size:
                    self.float_views.append((view, agents if block.agent_spaces.alike else 1, leaf.name))
        self.flags = [self.arrays[name][self.rows] for name in ("terminated", "truncated", "done")]
        self.rewards = self.arrays["rewards"][self.rows]
        self.is_simple = autoreset == SAME_STEP and all(isinstance(slot, SingleSlot) for slot in self.slots)
        if self.is_simple:
            self.env_steps = [slot.env.step for slot in self.slots]
            self.limits = np.array([slot.limit for slot in self.slots], np.int64)
            self.calm = 0  # steps in which no env can reach its limit
            self.ticks, self.totals = np.zeros(len(self.slots), np.int64), np.zeros(len(self.slots))
            self.read_actions = batch_action_reader(block, lo, self.hi)
            self.obs_writer = self.slots[0].obs
            self.obs_view = self.obs_writer.view[lo : self.hi]
            self.writes_at_once = self.obs_writer.is_plain and len(self.slots) > 2
            self.writes_at_once &= self.obs_view[0].nbytes <= SMALL_OBS

    def reset(self, options: Info | None = None) -> InfoRows:
        """Starts episodes, with the seeds and the mask that lie in the block."""
        mail: InfoRows = []
        has_seeds, has_mask, _has_options = self.arrays["reset_with"].tolist()
        seeds = self.arrays["seeds"][self.lo : self.hi].tolist() if has_seeds else None
        mask = self.arrays["reset_mask"][self.lo : self.hi] if has_mask else None
        for slot, start in zip(self.slots, self.starts):
            here = slice(start - self.lo, start - self.lo + slot.envs)
            if mask is not None and not mask[here].any():
                continue
            self.place[0] = start
            seed: Any = None
            if seeds is not None:
                self.seeds[here] = seeds[here]
                seed = seeds[here] if isinstance(slot, VectorSlot) else seeds[here.start]
            if isinstance(slot, VectorSlot) and mask is not None and not mask[here].all():
                slot.reset(seed, {**(options or {}), "reset_mask": mask[here].copy()}, mail)
            else:
                slot.reset(seed, options, mail)
            if self.is_simple:
                self.ticks[here], self.totals[here] = 0, 0.0
        for flag in self.flags:
            flag[:] = False
        self.rewards[:] = 0.0
        self._refuse_nan()
        return mail

    def step(self) -> InfoRows:
        """One transition of every env."""
        mail: InfoRows = []
        for flag in self.flags:
            flag.fill(False)
        self.steps += 1
        if self.is_simple:
            self._step_simple(mail)
            self._refuse_nan()
            return mail
        place, current = self.place, self.lo
        for slot in self.slots:
            place[0] = current
            slot.step(mail)
            current += slot.envs
        self._refuse_nan()
        return mail

    def _step_simple(self, mail: InfoRows) -> None:
        """What `SingleSlot.step` does, for many of them: most Python envs come here, so it counts every microsecond."""
        place, lo = self.place, self.lo
        self.ticks += 1
        timeouts = self._timeouts() if self.calm == 0 else None
        self.calm = max(self.calm - 1, 0)
        rewards: list[float] = []
        seen: list[Any] = []
        noted: list[tuple[int, Any, bool, bool, Info]] = []  # where there is more to do than to write numbers
        row = lo
        for env_step, action in zip(self.env_steps, self.read_actions()):
            place[0] = row
            obs, reward, terminated, truncated, info = env_step(action)
            rewards.append(reward)
            seen.append(obs)
            if terminated or truncated or info or info is None or (timeouts and timeouts[row - lo]):
                noted.append((row, obs, bool(terminated), bool(truncated), info))
            row += 1
        self._take_obs(seen)
        self._take_rewards(rewards)
        self.totals += self.rewards
        for row, obs, terminated, truncated, info in noted:
            place[0], number = row, row - lo
            if not (terminated or truncated or (timeouts and timeouts[number])):
                mail.append((row, False, info_dict(info)))
                continue
            self.slots[number].end(obs, terminated, info, int(self.ticks[number]), float(self.totals[number]), mail)
            self.ticks[number], self.totals[number] = 0, 0.0

    def _timeouts(self) -> list[bool] | None:
        """Which envs are at their limit, if any; and for how long none will be, whatever ends before."""
        left = np.where(self.limits > 0, self.limits - self.ticks, 1 << 30)
        self.calm = max(int(left.min()), 1)
        return (left == 0).tolist() if self.calm == 1 and not left.all() else None

    def _take_obs(self, seen: list[Any]) -> None:
        """Writes every env's observation. That of one that has ended is written over when it is reset."""
        writer, view = self.obs_writer, self.obs_view
        if self.writes_at_once:
            try:
                whole = np.array(seen)
            except ValueError:  # not all of one shape
                whole = None
            if whole is not None and whole.dtype is writer.dtype and whole.shape == view.shape:
                view[:] = whole
                return
        row = self.lo
        for obs in seen:
            self.place[0] = row
            writer.write(row, obs)
            row += 1

    def _take_rewards(self, rewards: list[Any]) -> None:
        try:
            self.rewards[:] = rewards
        except (TypeError, ValueError):
            for number, reward in enumerate(rewards):
                if not is_number(reward):
                    self.place[0] = self.lo + number
                    raise BadOutput(f"the reward is {brief(reward)}, not a number") from None
            raise

    def _refuse_nan(self) -> None:
        for view, per_env, name in self.float_views:
            most = np.maximum.reduce(view, axis=None)  # NaN if there is one
            if most != most:
                self.place[0] = self.lo + int(np.argwhere(np.isnan(view))[0][0]) // per_env
                raise BadOutput(f"obs{name} has NaN in it")
        most = np.maximum.reduce(self.rewards)
        if most != most:
            agents = len(self.block.agent_spaces.agents)
            self.place[0] = self.lo + int(np.isnan(self.rewards).argmax()) // agents
            raise BadOutput("the reward is NaN")

    def env(self, number: int) -> Any:
        """The env object with that number."""
        for slot, start in zip(self.slots, self.starts):
            if start <= number < start + slot.envs:
                return slot.env
        raise IndexError(number)

    def close(self) -> None:
        """Closes every env, whatever each of them raises."""
        for slot in self.slots:
            with contextlib.suppress(Exception):
                slot.env.close()
