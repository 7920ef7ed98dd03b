"""A run with a reward of the user's own: a shaper for each learner, their episode returns and their state.

Also here are the games that a curriculum counts: until the rewards are replaced, rollouts hold the env's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal import names
from shoal.algos.rewards import make_reward
from shoal.algos.rewards.shaper import Shaper
from shoal.errors import ConfigError
from shoal.train import phases
from shoal.train.games import GameTally
from shoal.train.options import Options
from shoal.train.tally import ReturnTally


class EnvReward:
    """The env's own reward, for phases of a curriculum that name no other."""

    def compute(self, before: Any, after: Any, action: Any, done: Tensor, info: dict[str, Tensor]) -> Tensor:
        """What the env returned."""
        return info["reward"]


class Shaping:
    """The shapers of all learners; none if the learners see the env's own rewards."""

    def __init__(self, reward: Any, options: Options, learners: Sequence[Any], device: torch.device) -> None:
        self.shapers: list[Shaper] = []
        self.ended = ReturnTally(device)
        found = phases.read(options.curriculum)
        self.games = GameTally([learner.rollout for learner in learners], device) if found else None
        reward = options.reward if reward is None else reward
        if isinstance(reward, str) and not reward:
            if not any(isinstance(phase.reward, str) and phase.reward for phase in found):
                return
            reward = EnvReward
        if options.vec.surplus_envs:
            raise ConfigError(
                f"--reward needs complete rollouts, which --vec.surplus-envs {options.vec.surplus_envs} does not wait "
                "for. Use 0."
            )
        own_name = getattr(reward, "__name__", type(reward).__name__)
        shown = names.shortened(reward) if isinstance(reward, str) else own_name
        for number, learner in enumerate(learners):
            made = make_reward(reward)
            # each learner has its own: a reward may have an entry for each row
            made = copy.deepcopy(made) if number and made is reward else made
            self.shapers.append(Shaper(made, learner.rollout, f"reward {shown}"))

    def shaper(self, number: int) -> Shaper | None:
        """The shaper of a learner."""
        return self.shapers[number] if self.shapers else None

    def finish(self, *, is_stepped: bool) -> None:
        """Puts the new rewards into full rollouts. `is_stepped`: the collector has computed them at each step."""
        if self.games is not None:
            self.games.add()
        for shaper in self.shapers:
            if not is_stepped:
                shaper.run()
            shaper.finish()
            rollout, counted = shaper.rollout, shaper.rollout.counted()
            returns = rollout.running_returns(1.0, shaper.returns)
            self.ended.add(returns, rollout.dones if counted is None else rollout.dones & counted)

    def drain(self) -> dict[str, float]:
        """The returns by the new reward of the episodes that ended since the last call."""
        if not self.shapers:
            return {}
        count, mean, low, high = self.ended.drain()
        name = "episode/shaped_return"
        return {name: mean, f"{name}_min": low, f"{name}_max": high} if count else {}

    # ---- checkpoints ----

    def tensors(self) -> dict[str, Tensor]:
        """What a resume needs, by its names in a checkpoint."""
        tensors = {f"{k}.shaped_return": shaper.returns for k, shaper in enumerate(self.shapers)}
        for k, shaper in enumerate(self.shapers):
            tensors |= {f"{k}.reward_state.{name}": value for name, value in shaper.state().items()}
        return tensors if self.games is None else {**tensors, **self.games.tensors()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continues from a checkpoint. A reward or a curriculum that the checkpoint does not have starts afresh."""
        for name, value in self.games.tensors().items() if self.games is not None else ():
            if name in state and state[name].shape == value.shape:
                value.copy_(state[name])
        for k, shaper in enumerate(self.shapers):
            saved = state.get(f"{k}.shaped_return")
            prefix = f"{k}.reward_state."
            own = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
            if saved is None or (shaper.state() and not own):
                continue
            shaper.restore(own)
            if saved.shape == shaper.returns.shape:
                shaper.returns.copy_(saved)

    def restart(self) -> None:
        """Called when all envs start new episodes."""
        for rows in self.games.returns if self.games is not None else ():
            rows.zero_()
        for shaper in self.shapers:
            shaper.restart()
