"""DeepMind's control suite: `dm_control:cheetah-run`. MuJoCo bodies, actions in -1 .. 1, rewards in 0 .. 1."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.integrations.frames import Stack
from shoal.integrations.framework import Framework, Reference, choose_gl
from shoal.spec import Array


class DmControl(Framework):
    """The tasks of the suite."""

    title = "continuous control in MuJoCo: the DeepMind suite"
    packages = {"dm_control": "dm-control>=1.0.20", "mujoco": "mujoco<4"}
    extra = "dm-control"
    example = "cheetah-run"
    pattern = "DOMAIN-TASK"
    preprocessing = "observations as one vector; `--env.pixels true`: 84x84 pixels in colour, stack 3"
    options = {"train": {"total_steps": 5_000_000}}
    references = (
        Reference("cheetah-run", 432.6, "PPO, +- 83 between runs", "CleanRL docs, ppo_continuous_action.py"),
        Reference("walker-walk", 392.5, "PPO, +- 56 between runs", "CleanRL docs, ppo_continuous_action.py"),
    )
    notes = (
        "dm-control needs mujoco>=3.17,<4. gymnasium-robotics and robosuite need older ones: another environment.",
        "Rendering without a display uses EGL; MUJOCO_GL=osmesa draws in software.",
        "Returns are at most 1000: 1000 steps of a reward of at most 1.",
    )

    def names(self) -> list[str]:
        """`domain-task`."""
        choose_gl()
        from dm_control import suite

        return sorted(f"{domain}-{task}" for domain, task in suite.ALL_TASKS)

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        pixels: bool = False,
        size: int = 84,
        stack: int = 3,
        skip: int = 1,
        camera: int = 0,
    ) -> Any:
        """One task. skip: control steps with one action, whose rewards are added."""
        domain, _, task = name.partition("-")
        if skip < 1 or stack < 1 or size < 8:
            raise ConfigError(f"dm_control:{name}: skip={skip} and stack={stack} must be at least 1, size={size} 8.")
        return Task(domain, task, render_mode, pixels, size, stack, skip, camera)


class Task(gymnasium.Env[Any, Any]):
    """One task of the suite as a Gymnasium env."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(
        self,
        domain: str,
        task: str,
        render_mode: str | None,
        pixels: bool,
        size: int,
        stack: int,
        skip: int,
        camera: int,
    ) -> None:
        choose_gl()
        from dm_control import suite

        self.suite_env: Any = suite.load(domain, task, task_kwargs={"random": 0})
        self.render_mode, self.skip, self.camera, self.size = render_mode, skip, camera, size
        spec = self.suite_env.action_spec()
        low, high = (np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum))
        self.action_space = spaces.Box(low.astype(np.float32), high.astype(np.float32))
        self._stack = Stack(stack, (3, size, size)) if pixels else None
        width = sum(int(np.prod(part.shape)) for part in self.suite_env.observation_spec().values())
        self.observation_space = self._stack.space if self._stack else spaces.Box(-np.inf, np.inf, (width,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """Starts an episode. A seed restarts the task's random stream."""
        super().reset(seed=seed)
        if seed is not None:
            self.suite_env.task._random = np.random.RandomState(seed % 2**32)
        first = self.suite_env.reset()
        return (self._stack.fill(self._picture()) if self._stack else _vector(first.observation)), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """`skip` control steps."""
        total = 0.0
        for _ in range(self.skip):
            now = self.suite_env.step(action)
            total += now.reward or 0.0
            if now.last():
                break
        obs = self._stack.push(self._picture()) if self._stack else _vector(now.observation)
        terminated = now.last() and now.discount == 0.0  # at a time limit the discount is 1
        return obs, total, bool(terminated), bool(now.last() and not terminated), {}

    def _picture(self) -> Array:
        picture: Array = self.suite_env.physics.render(self.size, self.size, camera_id=self.camera)
        channels_first: Array = picture.transpose(2, 0, 1)
        return channels_first

    def render(self) -> Any:
        """The scene at 320x240 pixels."""
        if self.render_mode != "rgb_array":
            return None
        return self.suite_env.physics.render(240, 320, camera_id=self.camera)

    def close(self) -> None:
        """Frees MuJoCo's memory."""
        self.suite_env.close()


def _vector(parts: Any) -> Array:
    return np.concatenate([np.ravel(part) for part in parts.values()]).astype(np.float32)


FRAMEWORK = DmControl("dm_control")
