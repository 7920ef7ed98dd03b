"""ForeignVec: a vector env of another library with the protocol of a VecEnv. Uses its reset and step only.

`send` steps all envs and waits; `recv` returns the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal.errors import ConfigError, UsageError
from shoal.spec import Array, Layout, map_leaves
from shoal.vector.base import VecEnv, check_reset_mask
from shoal.vector.stats import EpisodeSums


def as_vec_env(vec: Any) -> VecEnv:
    """A VecEnv unchanged; any other vector env in a ForeignVec."""
    if isinstance(vec, VecEnv):
        return vec
    needed = ("num_envs", "single_observation_space", "single_action_space", "reset", "step")
    missing = [name for name in needed if not hasattr(vec, name)]
    if missing:
        raise ConfigError(
            f"{type(vec).__name__} is not a vector env: it has no {', '.join(missing)}. "
            "Pass the result of shoal.make, or a gymnasium.vector.VectorEnv."
        )
    return ForeignVec(vec)


class ForeignVec(VecEnv):
    """A vector env of another library: one agent per env, autoreset same_step or next_step."""

    backend = "gymnasium"

    def __init__(self, vec: Any) -> None:
        self.vec, self.num_envs = vec, int(vec.num_envs)
        self.num_rows, self.agents_per_env = self.num_envs, 1
        self.single_observation_space, self.single_action_space = vec.single_observation_space, vec.single_action_space
        self.metadata = dict(getattr(vec, "metadata", None) or {})
        # for vector envs that do not declare it: Gymnasium's default
        mode = AutoresetMode(self.metadata.setdefault("autoreset_mode", AutoresetMode.NEXT_STEP))
        if mode == AutoresetMode.DISABLED:
            raise ConfigError("this vector env has autoreset disabled. Make it with same_step or next_step.")
        self.render_mode = getattr(vec, "render_mode", None)
        self._skips_steps = mode == AutoresetMode.NEXT_STEP
        self._layout = Layout(self.single_observation_space)
        self._env_id = np.arange(self.num_envs, dtype=np.int32)
        self._result: Any = None
        self._is_started, self._is_sent = False, False
        self._waits_for_reset = np.zeros(
            self.num_envs, np.bool_
        )  # whether the next step is a reset; only under next_step
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._stats = EpisodeSums()

    # ---- the Gymnasium API ----

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts episodes in all envs, or in those of `options["reset_mask"]`, if the vector env supports that."""
        self._refuse_closed()
        mask = (options or {}).get("reset_mask")
        resets = np.ones(self.num_envs, np.bool_) if mask is None else check_reset_mask(mask, self.num_envs)
        obs, infos = self.vec.reset(seed=seed, **({} if options is None else {"options": options}))
        self._returns[resets], self._lengths[resets], self._waits_for_reset[resets] = 0.0, 0, False
        self._is_started, self._is_sent = True, False
        return obs, infos

    def step(self, actions: Any) -> Any:
        """One transition of every env. `infos["final_obs"]` is a batch like obs."""
        self._refuse_before("step")
        obs, rewards, terminated, truncated, infos = self.vec.step(actions)
        done, infos = np.logical_or(terminated, truncated), dict(infos)
        if self._skips_steps:  # obs is the last of the episode, and the next step is a reset
            infos["final_obs"], infos["alive"] = obs, ~done
        elif "final_obs" in infos:
            infos["final_obs"] = self._as_batch(infos["final_obs"], obs)
        counts = ~self._waits_for_reset
        self._returns += rewards * counts
        self._lengths += counts
        if done.any():
            self._stats.add(self._returns[done], self._lengths[done])
            self._returns[done], self._lengths[done] = 0.0, 0
        if self._skips_steps:
            self._waits_for_reset = done
        return obs, np.asarray(rewards, np.float32), terminated, truncated, infos

    def async_reset(self, *, seed: int | Sequence[int] | None = None) -> None:
        """Starts episodes at once; `recv` returns them."""
        obs, infos = self.reset(seed=seed)
        zeros, flags = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.bool_)
        infos = {**infos, "env_id": self._env_id} | ({"alive": ~flags} if self._skips_steps else {})
        self._result, self._is_sent = (obs, zeros, flags, flags, infos), True

    def send(self, actions: Any, env_id: Array | None = None) -> None:
        """Steps all envs; `recv` returns the result."""
        if self._is_sent:
            raise UsageError("send() to envs that are in flight. Call recv() first.")
        *rest, infos = self.step(actions)
        self._result, self._is_sent = (*rest, {**infos, "env_id": self._env_id}), True

    def recv(self) -> Any:
        """The result of the last send or async_reset."""
        self._refuse_closed()
        if not self._is_sent:
            raise UsageError("recv() with nothing in flight. Call async_reset() or send() first.")
        self._is_sent = False
        return self._result

    def render(self) -> Any:
        """The frames of the vector env."""
        return self.vec.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the vector env."""
        self.vec.close(**kwargs)

    def __del__(self) -> None:
        """Does nothing: the wrapped vector env closes itself."""

    # ---- beyond Gymnasium ----

    def drain_stats(self) -> dict[str, Any]:
        """`{"episodes": n, "return": {"mean", "min", "max"}, "length": …}` since the last call."""
        return self._stats.drain()[0]

    def current_infos(self) -> dict[str, Any]:
        """The "alive" of all rows: whether their next step is a transition."""
        return {"alive": ~self._waits_for_reset}

    # ---- checks and conversion ----

    def _refuse_before(self, call: str) -> None:
        self._refuse_closed()
        if not self._is_started:
            raise UsageError(f"{call} before reset. Call reset() once after making the env.")

    def _as_batch(self, final_obs: Any, obs: Any) -> Any:
        """Gymnasium's final_obs, an array of objects with None where no episode ended, as a batch like obs."""
        if not isinstance(final_obs, np.ndarray) or final_obs.dtype != object:
            return final_obs
        batch = map_leaves(np.copy, obs)
        leaves = self._layout.leaves_of(batch)
        for env in (k for k, value in enumerate(final_obs) if value is not None):
            self._layout.write(leaves, env, final_obs[env])
        return batch
