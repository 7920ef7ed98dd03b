"""HostCollector: envs and policy on the CPU.

    recv envs -> copy obs, rewards, flags into the rollout -> policy -> sample -> send actions -> recv the next envs

Each observation is copied once, from the envs' memory into the rollout, where the policy reads it. While the policy
acts for one range of envs, the other ranges step. Ranges may be at different steps. The noise of a whole rollout is
drawn before its first step, so the order in which ranges return does not change the results.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from shoal.algos.collect import PolicyAge, Seat, Times, act_into, begin, evaluation_mode
from shoal.algos.roles import gather, pick, pick_masks, pick_obs
from shoal.algos.rollout import StepViews
from shoal.errors import ConfigError
from shoal.nn.cores import State
from shoal.spec import Array, map_leaves
from shoal.vector.base import VecEnv, has_true


@dataclass
class EnvRange:
    """Envs [lo, hi) that step together, and the views of their rows by seat and step."""

    lo: int
    hi: int
    env_id: Array
    views: list[list[StepViews]] = field(default_factory=list)
    t: int = 0  # steps of the rollout that it has finished
    rollouts: list[int] = field(default_factory=list)  # by step: the number of the rollout in which it was acted
    is_stepping: bool = False

    @property
    def num_envs(self) -> int:
        """How many envs it holds."""
        return self.hi - self.lo


class HostCollector:
    """Plays the seats' policies on a vector env and fills their rollouts."""

    def __init__(self, vec: VecEnv, seats: Sequence[Seat], surplus_envs: int = 0) -> None:
        self.vec, self.seats, self.agents = vec, list(seats), vec.agents_per_env
        self.horizon = seats[0].rollout.horizon
        self.ranges: dict[int, EnvRange] = {}
        self.times = Times()
        self.surplus_envs = surplus_envs
        self.age = PolicyAge()
        self.logs_age = bool(surplus_envs) or vec.logs_policy_age
        self._rollout = 0  # the number of this rollout: the policy is updated between two
        self._roles = [seat.role for seat in seats]
        self._heads = [seat.actor.head for seat in seats]
        self._native = [seat.rollout.acting for seat in seats]
        self._acts_natively = [False] * len(seats)  # whether C acts in this rollout, by seat
        self.members = next((seat.members for seat in seats if seat.members is not None), None)

    def start(self, seed: Any) -> None:
        """Resets the envs. Their observations become the last step of an empty rollout: `collect` continues there."""
        self.vec.async_reset(seed=seed)
        started = 0
        while started < self.vec.num_envs:
            obs, *_, infos = self.vec.recv()
            envs = self._range(infos["env_id"])
            started += envs.num_envs
            for number, seat in enumerate(self.seats):
                self._take_obs(seat, envs.views[number][-1], obs, infos, envs, is_first=True)
            if self.members is not None:
                self.members.note_alive(infos, envs.lo, envs.hi)

    def resume(self, obs: Any, infos: dict[str, Any]) -> None:
        """Continues from restored envs. Their observations become the last step of an empty rollout."""
        for lo, hi in self.vec.ranges:
            envs = self._range(np.arange(lo, hi, dtype=np.int32))
            rows = slice(lo * self.agents, hi * self.agents)
            range_infos = {
                key: value[rows] for key, value in infos.items() if key.lstrip("_") in ("alive", "action_mask")
            }
            # agents with different spaces: a dict by agent, whose arrays have a row for each env
            obs_rows = rows if self.vec.agent_spaces.alike else slice(lo, hi)
            range_obs = map_leaves(operator.itemgetter(obs_rows), obs)
            for number, seat in enumerate(self.seats):
                self._take_obs(seat, envs.views[number][-1], range_obs, range_infos, envs, is_first=True)
            if self.members is not None:
                self.members.note_alive(range_infos, lo, hi)

    def collect(self) -> None:
        """Fills every rollout with `horizon` steps of every row.

        With `surplus_envs` it does not wait for the slowest ranges. It returns once all but that many envs have played
        the horizon: these are marked as ready, and the others continue in the next rollout.
        """
        self._rollout += 1
        for seat in self.seats:
            begin(seat)
        if self.members is not None:
            self.members.begin()
        self._acts_natively = [native is not None and native.begin() for native in self._native]
        with contextlib.ExitStack() as modes:
            if not all(self._acts_natively):
                modes.enter_context(torch.inference_mode())
            modes.enter_context(evaluation_mode(self.seats))
            self._fill()
            before = time.perf_counter()
            if self.surplus_envs:
                self._mark_ready()
            if self.logs_age:
                self._note_ages()
            for seat in self.seats:
                self._last_values(seat)
            self.times.inference += time.perf_counter() - before

    def _fill(self) -> None:
        clock, unfinished = time.perf_counter, self.vec.num_envs - self.surplus_envs
        for envs in self.ranges.values():
            if envs.t == self.horizon or not envs.is_stepping:
                envs.t, envs.is_stepping = 0, True
                envs.rollouts.clear()
                self._act(envs)
        while unfinished > 0:
            before = clock()
            obs, rewards, terminated, truncated, infos = self.vec.recv()
            after = clock()
            self.times.env += after - before
            envs = self.ranges[int(infos["env_id"][0])]
            for number, seat in enumerate(self.seats):
                views = envs.views[number][envs.t]
                self._take_flags(seat, views, rewards, terminated, truncated, infos, envs)
                self._take_obs(seat, views, obs, infos, envs)
            if self.members is not None:
                self.members.finish_step(rewards, terminated | truncated, infos, envs.lo, envs.hi)
            self.times.copy += clock() - after
            envs.t += 1
            if envs.t < self.horizon:
                self._act(envs)
            else:
                unfinished -= envs.num_envs

    # ---- the steps of the loop ----

    def _act(self, envs: EnvRange) -> None:
        """Acts for a range's rows, and sends the actions to the envs."""
        began, actions = time.perf_counter(), []
        for number, seat in enumerate(self.seats):
            views = envs.views[number][envs.t]
            if self._acts_natively[number]:
                self._native[number].act(views)
            elif seat.members is not None:
                seat.members.act(views, envs.lo, envs.hi)
            else:
                for start, state in zip(views.starts, views.state):
                    start.copy_(state)
                for state, new in zip(views.state, act_into(seat.actor, views)):
                    state.copy_(new)
            actions.append(seat.actor.head.to_env(views.env_actions))
        self._send(actions, envs, began)

    def _send(self, actions: list[Any], envs: EnvRange, began: float) -> None:
        """Joins the seats' actions and sends them to the envs. `began` is the time at which inference began."""
        joined = gather(actions, self._roles, self._heads, envs.num_envs, self.agents, envs.lo)
        inferred = time.perf_counter()
        self.vec.send(joined, envs.env_id)
        if self.logs_age:
            envs.rollouts.append(self._rollout)
        self.times.inference += inferred - began
        self.times.env += time.perf_counter() - inferred

    def _take_flags(
        self,
        seat: Seat,
        views: StepViews,
        rewards: Array,
        terminated: Array,
        truncated: Array,
        infos: Any,
        envs: EnvRange,
    ) -> None:
        """Copies the rewards and dones of a step, and the last observations of truncated rows."""
        role, rollout = seat.role, seat.rollout
        if role.agents is not None:
            rewards, terminated, truncated = (
                pick(x, role, self.agents, envs.lo) for x in (rewards, terminated, truncated)
            )
        np.copyto(views.rewards, rewards, casting="same_kind")
        np.logical_or(terminated, truncated, out=views.dones)
        if not has_true(views.dones):
            return
        if rollout.ends is not None:
            rollout.ends.append((envs.t, *self._last_obs(seat, np.flatnonzero(views.dones), infos, envs)))
        if truncated.any():
            ended = np.flatnonzero(truncated & ~terminated)
            if len(ended) and seat.learns:
                index, last = self._last_obs(seat, ended, infos, envs)
                mask = self._last_masks(seat, index, ended, infos, envs)
                rollout.truncations.add(envs.t, index, last, self._truncated_state(seat, index, envs), mask)
        self._clear_state(seat, ~views.dones, envs)

    def _last_obs(
        self, seat: Seat, ended: Array, infos: Any, envs: EnvRange
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The rows of the rollout that ended, of those of a range, and their last observations."""
        rows, rollout, index = self._rows(seat, envs), seat.rollout, torch.from_numpy(ended)
        if "final_obs" in infos:
            final = pick_obs(infos["final_obs"], seat.role, rollout.layout, self.agents, envs.lo)
        else:  # an env that resets itself does not return it: use the observation before the step
            final = [leaf[envs.t, rows].numpy() for leaf in rollout.obs]
        return index + rows.start, [torch.from_numpy(leaf[ended]) for leaf in final]

    def _last_masks(
        self, seat: Seat, index: torch.Tensor, ended: Array, infos: Any, envs: EnvRange
    ) -> torch.Tensor | None:
        """The action masks that belong to `_last_obs`, those of the step before in gaps; None: the env told none."""
        final, rollout = infos.get("final_info", {}), seat.rollout
        if rollout.masks is None or "_action_mask" not in final:
            return None
        if (masks := pick_masks(final, seat.role, self.agents, envs.lo)) is None:
            return None
        told = pick(final["_action_mask"], seat.role, self.agents, envs.lo)[ended]
        given = torch.from_numpy(masks[ended].reshape(len(ended), -1).astype(np.int8))
        is_mask = torch.from_numpy(told) & (given != 0).any(1)  # some envs allow nothing once an episode is over
        return torch.where(is_mask.unsqueeze(1), given, rollout.masks[envs.t, index])

    def _take_obs(
        self,
        seat: Seat,
        views: StepViews,
        obs: Any,
        infos: dict[str, Any],
        envs: EnvRange,
        is_first: bool = False,
    ) -> None:
        """Copies the next observations, action masks and alive flags. is_first: no step led to them."""
        for stored, leaf in zip(views.next_obs, pick_obs(obs, seat.role, seat.rollout.layout, self.agents, envs.lo)):
            if isinstance(stored, np.ndarray):
                np.copyto(stored, leaf, casting="unsafe")
            elif is_first:
                stored.whole(leaf)
            else:
                stored.put(leaf)
        if views.next_mask is not None:
            masks = pick_masks(infos, seat.role, self.agents, envs.lo)
            views.next_mask[...] = 1 if masks is None else masks.reshape(views.next_mask.shape)
        if views.next_alive is not None and "alive" in infos:
            views.next_alive[...] = pick(infos["alive"], seat.role, self.agents, envs.lo)
            alive = views.next_alive if views.alive is None else views.next_alive & views.alive
            if not alive.all():
                self._clear_state(seat, alive, envs)

    def _truncated_state(self, seat: Seat, rows: torch.Tensor, envs: EnvRange) -> State:
        """The recurrent state that belongs to the last observations of truncated rows."""
        return tuple(state[rows] for state in seat.rollout.state)

    def _clear_state(self, seat: Seat, keep: Array, envs: EnvRange) -> None:
        """Resets the recurrent state of a range's rows, except where `keep`."""
        if seat.rollout.state:
            seat.rollout.clear_state(self._rows(seat, envs), torch.from_numpy(keep))

    def _mark_ready(self) -> None:
        full = [envs for envs in self.ranges.values() if envs.t == self.horizon]
        for seat in self.seats:
            spans = [self._rows(seat, envs) for envs in full]
            seat.rollout.ready = torch.cat([torch.arange(span.start, span.stop) for span in spans])

    def _note_ages(self) -> None:
        """Notes by how many updates the policy of each step is older than the one that now learns from it."""
        for envs in self.ranges.values():
            if envs.t == self.horizon:
                self.age.add([self._rollout - rollout for rollout in envs.rollouts], envs.num_envs)

    def _last_values(self, seat: Seat) -> None:
        """Computes the value of each row's last observation."""
        rollout = seat.rollout
        if not rollout.needs_last_value:
            return
        if hasattr(rollout.acting, "last_values"):
            rollout.acting.last_values()
        else:
            last = rollout.observations([leaf[-1] for leaf in rollout.obs])
            rollout.values[-1] = seat.actor.step(last, rollout.state)[1]

    # ---- rows and agents ----

    def _rows(self, seat: Seat, envs: EnvRange) -> slice:
        """A seat's rows of a range."""
        return seat.role.span(envs.lo, envs.hi, self.agents)

    def _range(self, env_id: Array) -> EnvRange:
        lo, hi = int(env_id[0]), int(env_id[-1]) + 1
        if hi - lo != len(env_id):
            raise ConfigError(
                f"recv() returned {len(env_id)} envs from {lo} to {hi - 1}, which are not contiguous. "
                "Use zero_copy=True, or no batch_size."
            )
        if lo not in self.ranges:
            envs = EnvRange(lo, hi, np.array(env_id))
            for seat in self.seats:
                rows = self._rows(seat, envs)
                envs.views.append([seat.rollout.step(t, rows) for t in range(self.horizon)])
            self.ranges[lo] = envs
        return self.ranges[lo]
