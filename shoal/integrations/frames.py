"""Frames: what envs with a screen share. Skips frames, makes them small, and stacks them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.spec import Array, Stacked


def shrink(screen: Array, height: int, width: int) -> Array:
    """(channels, height, width) of a screen, grey (h, w) or colour (h, w, 3). Pixels are means of what they cover."""
    from PIL import Image

    small = np.asarray(Image.fromarray(screen).resize((width, height), Image.Resampling.BOX))
    return small[None] if small.ndim == 2 else small.transpose(2, 0, 1)


def grey(screen: Array) -> Array:
    """(h, w) luminance of a colour screen (h, w, 3), with the weights of ITU-R 601."""
    return (screen @ np.array([77, 150, 29], np.uint32) >> 8).astype(np.uint8)


class Stack:
    """The last frames as one array (stack * channels, height, width), oldest first. Each push writes one frame."""

    def __init__(self, stack: int, shape: tuple[int, int, int]) -> None:
        self.channels = shape[0]
        self.array: Array = np.zeros((stack * shape[0], *shape[1:]), np.uint8)
        low, high = np.zeros_like(self.array), np.full_like(self.array, 255)
        self.space: Any = Stacked(low, high, stack) if stack > 1 else spaces.Box(low, high, dtype=np.uint8)

    def fill(self, frame: Array) -> Array:
        """All places hold this frame: the first one of an episode."""
        self.array.reshape(-1, *frame.shape)[:] = frame
        return self.array

    def push(self, frame: Array) -> Array:
        """Frames move by one place. The same array is returned each time."""
        self.array[: -self.channels] = self.array[self.channels :]
        self.array[-self.channels :] = frame
        return self.array


class Frames(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env with colour screens (h, w, 3) as observations: repeated actions, small frames, stacked."""

    def __init__(
        self,
        env: Any,
        *,
        height: int,
        width: int,
        skip: int = 1,
        stack: int = 1,
        grey: bool = False,
        clip: bool = False,
    ) -> None:
        super().__init__(env)
        if skip < 1 or stack < 1 or min(height, width) < 8:
            raise ConfigError(
                f"skip={skip} and stack={stack} must be at least 1, and frames of {height} x {width} pixels at least 8."
            )
        self.skip, self.clip, self.is_grey, self.size = skip, clip, grey, (height, width)
        self._stack = Stack(stack, (1 if grey else 3, height, width))
        self.observation_space = self._stack.space
        self.unshaped_return = 0.0  # of the episode, not clipped: the runner reports it

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.unshaped_return = 0.0
        return self._stack.fill(self._frame(obs)), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Up to `skip` steps with one action."""
        total: Any = 0.0
        for _ in range(self.skip):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward
            if terminated or truncated:
                break
        self.unshaped_return += total
        shaped = float(np.sign(total)) if self.clip else float(total)
        return self._stack.push(self._frame(obs)), shaped, terminated, truncated, info

    def _frame(self, screen: Array) -> Array:
        return shrink(grey(screen) if self.is_grey else screen, *self.size)
