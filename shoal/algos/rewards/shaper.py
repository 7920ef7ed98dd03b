"""Shaper: computes a reward of the user's own for every step of a rollout.

On a CPU, and where the CPU steps the envs, it runs when a rollout is full (`run`): collectors keep the last observation
of every episode in `Rollout.ends`. DeviceCollector calls `step` after each step of the envs instead, so that a CUDA
graph holds it. Either way the env's rewards stay in the rollout until `finish`.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from shoal.algos.rollout import Rollout
from shoal.algos.user_state import check_saved, tensors_of
from shoal.errors import ConfigError, TrainingError


class Shaper:
    """A reward and the rollout that it is computed for. `returns` are the sums of the running episodes."""

    def __init__(self, reward: Any, rollout: Rollout, shown: str) -> None:
        self.reward, self.rollout, self.shown = reward, rollout, shown
        self.rewards = torch.zeros_like(rollout.rewards)
        self.returns = torch.zeros_like(rollout.rewards[0])
        self._nobody = torch.zeros_like(rollout.dones[0])
        rollout.ends = []
        self.reward = self._moved(reward)
        self._try()
        self.restart()

    def replace(self, reward: Any) -> None:
        """Computes another reward from now on. A reward with a state starts it afresh."""
        self.reward = self._moved(reward)
        if hasattr(self.reward, "reset"):
            with torch.no_grad():
                self.reward.reset(~self._nobody)

    def check(self, reward: Any, shown: str) -> None:
        """Raises if another reward cannot be computed, as `Shaper` does for its own."""
        own, self.reward = self.reward, self._moved(reward)
        name, self.shown = self.shown, shown
        try:
            self._try()
        finally:
            self.reward, self.shown = own, name

    def _moved(self, reward: Any) -> Any:
        if not hasattr(reward, "to"):
            return reward
        moved = reward.to(self.rollout.device)
        return reward if moved is None else moved

    def _try(self) -> None:
        """Computes the reward of blank observations with a copy of it: mistakes show before the run starts."""
        try:
            twin = copy.deepcopy(self.reward)
        except Exception:  # it holds something that cannot be copied
            return
        before = self.rollout.observations([leaf[0] for leaf in self.rollout.obs])
        try:
            if hasattr(twin, "reset"):
                twin.reset(~self._nobody)
            value = twin.compute(before, before, self._actions(0), self._nobody, self._info(0, self._nobody))
        except ConfigError:  # the reward itself says what is wrong
            raise
        except Exception as error:
            raise ConfigError(f"{self.shown} raised {type(error).__name__} for blank observations: {error}.") from error
        self._checked(value)

    # ---- computing ----

    @torch.no_grad()
    def run(self) -> None:
        """Computes the rewards of a full rollout from its observations and the last ones of its episodes."""
        rollout, truncated = self.rollout, self.rollout.truncations.flags()
        ends: dict[int, list[tuple[Tensor, list[Tensor]]]] = {}
        for t, rows, last in rollout.ends or ():
            ends.setdefault(t, []).append((rows, last))
        for t in range(rollout.horizon):
            after = [leaf[t + 1] for leaf in rollout.obs]
            if t in ends:
                after = [leaf.clone() for leaf in after]
                for rows, last in ends[t]:
                    for leaf, final in zip(after, last):
                        leaf[rows] = final.to(leaf.dtype)
            self.step(t, after, truncated[t])
        rollout.ends = []

    @torch.no_grad()
    def step(self, t: int, after: list[Tensor], truncated: Tensor) -> None:
        """Computes the rewards of step t. `after` are the leaves of the observations that the step led to."""
        rollout = self.rollout
        done, alive = rollout.dones[t], rollout.alive
        before = rollout.observations([leaf[t] for leaf in rollout.obs])
        info = self._info(t, truncated)
        value = self.reward.compute(before, rollout.observations(after), self._actions(t), done, info)
        value = self._checked(value)
        if value.device.type == "cpu" and not bool(torch.isfinite(value).all()):
            row = int((~torch.isfinite(value)).nonzero()[0])
            raise TrainingError(f"{self.shown} computed {float(value[row])} for row {row} at step {t} of a rollout.")
        # an agent that is out of the game has no reward
        self.rewards[t].copy_(value if alive is None else torch.where(alive[t], value, 0.0))
        if hasattr(self.reward, "reset"):
            self.reward.reset(done if alive is None else done | (alive[t + 1] & ~alive[t]))

    def finish(self) -> None:
        """Puts the new rewards into the rollout."""
        self.rollout.rewards.copy_(self.rewards)

    def _actions(self, t: int) -> Any:
        return self.rollout.head.to_tensors(self.rollout.actions[t])

    def _info(self, t: int, truncated: Tensor) -> dict[str, Tensor]:
        rollout = self.rollout
        info = {"reward": rollout.rewards[t], "terminated": rollout.dones[t] & ~truncated, "truncated": truncated}
        return info if rollout.alive is None else {**info, "alive": rollout.alive[t]}

    def _checked(self, value: Any) -> Tensor:
        """The result of `compute` as float32, or an error that says what it must be."""
        rows, device = self.rollout.rows, self.rollout.device
        needed = f"one number for each of the {rows} rows: a tensor of shape ({rows},)"
        if not isinstance(value, Tensor):
            raise ConfigError(f"{self.shown} computed {type(value).__name__} {value!r}. Return {needed}.")
        if tuple(value.shape) != (rows,):
            raise ConfigError(f"{self.shown} computed a tensor of shape {tuple(value.shape)}. Return {needed}.")
        if value.device.type != device.type:
            raise ConfigError(
                f"{self.shown} computed a tensor on {value.device}, but the run is on {device}. Move what it holds "
                "there in a method to(device)."
            )
        if value.is_complex():
            raise ConfigError(f"{self.shown} computed a tensor of {value.dtype}. Return {needed}, of floats.")
        return value.detach().to(torch.float32)

    # ---- checkpoints ----

    def restart(self) -> None:
        """Called when all envs start new episodes."""
        self.returns.zero_()
        if hasattr(self.reward, "reset"):
            with torch.no_grad():
                self.reward.reset(~self._nobody)

    def state(self) -> dict[str, Tensor]:
        """The tensors of the reward's `state_dict`; empty if it has none."""
        return tensors_of(self.reward, self.shown)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Sets the reward's state to one that `state` returned."""
        own = self.state()
        check_saved(own, tensors, self.shown)
        if not own:
            return
        if hasattr(self.reward, "load_state_dict"):
            self.reward.load_state_dict({name: tensors[name].to(self.rollout.device) for name in own})
        else:
            for name, value in own.items():
                value.copy_(tensors[name])
