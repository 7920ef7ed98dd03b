"""Your own env, policy, logger and reward, chosen by name on the command line. In this folder:

shoal train mine:Room --nn.policy mine:Small --reward mine:Thrifty --log mine:Csv --env.outside -5
shoal eval last
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.config import opt
from shoal.log import Logger, RunFacts


class Room(gymnasium.Env[Any, Any]):
    """A room with a heater, to be kept at 20 degrees for 60 minutes. The observation: error and temperature outside."""

    def __init__(self, outside: float = 5.0, power: float = 1.5) -> None:
        self.outside, self.power = outside, power
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)  # the heater is off or on

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """The room starts between 10 and 20 degrees."""
        super().reset(seed=seed)
        self.degrees, self.minutes = float(self.np_random.uniform(10, 20)), 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        """One minute: the heater warms the room, the walls leak."""
        self.degrees += self.power * int(action) + 0.05 * (self.outside - self.degrees)
        self.minutes += 1
        error = abs(self.degrees - 20.0)
        return self._observe(), -error, False, self.minutes == 60, {}

    def _observe(self) -> Any:
        return np.array([self.degrees - 20.0, self.outside], np.float32) / 10


class Small(nn.Module):
    """One hidden layer, with an actor and a critic on top."""

    def __init__(self, observation_space: Any, action_space: Any, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observation_space.shape[0], width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, int(action_space.n)), nn.Linear(width, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Observations (rows, 2) to logits (rows, 2) and values (rows, 1)."""
        x = self.body(obs)
        return self.actor(x), self.critic(x)


class Thrifty:
    """The env's reward, less half a point for each minute of heating above 19 degrees."""

    def compute(self, before: Tensor, after: Tensor, action: Tensor, done: Tensor, info: dict[str, Tensor]) -> Tensor:
        """One number for each row."""
        is_warm = before[:, 0] > -0.1
        return info["reward"] - 0.5 * torch.where(is_warm, action.float(), 0.0)


class Thermostat:
    """An agent that heats below 20 degrees: a script to compare a policy with."""

    def act(self, obs: Tensor, mask: Tensor | None) -> Tensor:
        """The heater of every row: 1 where it is cold."""
        return (obs[:, 0] < 0).long()


@dataclass(frozen=True)
class CsvOptions:
    """The options of `--log mine:Csv`: --csv.file."""

    file: str = opt("returns.csv", "name of the file in the run's folder")


class Csv(Logger):
    """Writes the return of each log interval to a file."""

    options = CsvOptions

    def __init__(self, facts: RunFacts, options: CsvOptions) -> None:
        self.path = facts.folder / options.file

    def log(self, record: Any) -> None:
        """One line: the step, the env's return, the return by the own reward."""
        if "episode/return" in record:
            columns = (record["step"], record["episode/return"], record.get("episode/shaped_return", ""))
            with self.path.open("a") as file:
                file.write(",".join(map(str, columns)) + "\n")
