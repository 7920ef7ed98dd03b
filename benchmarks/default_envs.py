"""Public envs with small changes, for benchmarks/defaults.py: `shoal train gymnasium:default_envs:PendulumNoVel-v1`.

    PendulumNoVel-v1 and others           without velocities: the policy must remember
    NoText-Empty-8x8-v0 and others        MiniGrid without the text of the mission: a Dict of image and direction
    ReacherChoices-v5                     MuJoCo's Reacher with 7 choices for each of its two torques (MultiDiscrete)
    Boxing-v5                             Atari: 84 x 84 grey frames, the last 4 of them, one step in 4 frames

The folder of this file must be on PYTHONPATH.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import DiscretizeAction


class Keep(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Only some numbers of an observation."""

    def __init__(self, env: gymnasium.Env[Any, Any], numbers: list[int]) -> None:
        super().__init__(env)
        self.numbers, box = numbers, env.observation_space
        assert isinstance(box, spaces.Box)
        self.observation_space = spaces.Box(box.low[numbers], box.high[numbers], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[self.numbers].astype(np.float32)


class WithoutMission(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Drops the text from MiniGrid's observations."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        parts = env.observation_space
        assert isinstance(parts, spaces.Dict)
        self.observation_space = spaces.Dict({name: parts[name] for name in ("image", "direction")})

    def observation(self, observation: Any) -> Any:
        return {"image": observation["image"], "direction": observation["direction"]}


class Atari(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The last 4 frames, each reduced to 84 x 84, as in Mnih et al. 2015."""

    SIDE, FRAMES = 84, 4

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, 255, (self.FRAMES, self.SIDE, self.SIDE), np.uint8)
        self.frames: deque[Any] = deque(maxlen=self.FRAMES)

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        self.frames.extend([self._small(obs)] * self.FRAMES)
        return np.stack(self.frames), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        self.frames.append(self._small(obs))
        return (np.stack(self.frames), *rest)

    def _small(self, frame: Any) -> Any:
        from PIL import Image

        return np.asarray(Image.fromarray(frame).resize((self.SIDE, self.SIDE), Image.Resampling.BOX))


def no_velocities(name: str, numbers: list[int], **options: Any) -> Any:
    return Keep(gymnasium.make(name, disable_env_checker=True, **options), numbers)


def minigrid(name: str, **options: Any) -> Any:
    return WithoutMission(
        gymnasium.make(f"minigrid:{name}", disable_env_checker=True, **options)
    )  # importing minigrid registers its ids


def choices(name: str, bins: int, **options: Any) -> Any:
    return DiscretizeAction(gymnasium.make(name, disable_env_checker=True, **options), bins, multidiscrete=True)


def atari(name: str, **options: Any) -> Any:
    import ale_py

    gymnasium.register_envs(ale_py)
    game: dict[str, Any] = {"obs_type": "grayscale", "frameskip": 4, "repeat_action_probability": 0.0}
    return Atari(gymnasium.make(f"ALE/{name}", disable_env_checker=True, **game, **options))


def register(id: str, make: Any, **options: Any) -> None:
    with contextlib.suppress(gymnasium.error.Error):
        gymnasium.register(id, make, kwargs=options)


register("PendulumNoVel-v1", no_velocities, name="Pendulum-v1", numbers=[0, 1])
register("CartPoleNoVel-v1", no_velocities, name="CartPole-v1", numbers=[0, 2])
register("AcrobotNoVel-v1", no_velocities, name="Acrobot-v1", numbers=[0, 1, 2, 3])
register("ReacherChoices-v5", choices, name="Reacher-v5", bins=7)
register("Boxing-v5", atari, name="Boxing-v5")
for task in ("Empty-8x8", "FourRooms", "Unlock"):
    register(f"NoText-{task}-v0", minigrid, name=f"MiniGrid-{task}-v0")
