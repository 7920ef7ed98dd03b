"""Atari games stepped by ALE's own vector env, in C++ on its threads: `ale:Breakout`. No worker process is needed.

`atari:` is the reference: it draws frames, has game modes, and its first observation repeats the first frame. Here the
places before the first frame are black, and pixels are resampled by ALE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.errors import ConfigError
from shoal.integrations.atari import FRAMES_PER_GAME, Atari, check_frames, rom_of
from shoal.spec import Array
from shoal.vector.base import check_seeds
from shoal.vector.foreign import ForeignVec


class Ale(Atari):
    """The games of `atari:`, all envs at once."""

    title = "Atari 2600 games on the threads of ALE's own vector env"
    packages = {"ale_py": "ale-py>=0.11.2"}
    is_vectorized = True
    can_render = False
    vec_options = ("num_threads",)
    notes = (
        "Against `atari:` in processes, 64 envs, 3 rounds in turns on 2 busy cores: 1.5 times as fast (median). "
        "Preprocessing differs in details: `atari:` repeats the first frame of an episode, ALE has black ones before "
        "it, and resamples otherwise.",
        "Returns are of the game: rewards are clipped for the learner alone.",
        "`num_threads` is the number of its threads; default: one for each core.",
    )

    def evaluation_params(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Scores are of whole games."""
        return {"episodic_life": False} if given.get("episodic_life") else {}

    def make(self, name: str, *, render_mode: str | None = None, **params: Any) -> Any:
        """Not called: a batch is one vector env."""
        raise ConfigError("ale's envs are made all at once. Use shoal.make, or atari: for one game.")

    def params(self, name: str) -> dict[str, str] | None:
        """Those of `make_vec`."""
        return {key: str(value) for key, value in (AleVec.__init__.__kwdefaults__ or {}).items()}

    def check_params(self, name: str, given: Any) -> None:
        """Raises for a param that it does not have."""
        known = AleVec.__init__.__kwdefaults__ or {}
        if unknown := sorted(set(given) - set(known)):
            raise ConfigError(f"ale:{name} has no param {unknown[0]!r}. It has {', '.join(known)}.")

    def make_vec(
        self,
        name: str,
        num_envs: int,
        *,
        seed: int | None,
        autoreset: str,
        render_mode: str | None,
        num_threads: int = 0,
        **params: Any,
    ) -> ForeignVec:
        """`num_envs` games."""
        if autoreset != "same_step":
            raise ConfigError(
                f"autoreset={autoreset!r} is not for ale's envs, which reset in the same step. Use atari:."
            )
        if render_mode is not None:
            raise ConfigError(f"render_mode={render_mode!r}: ale's envs draw no frames. Use atari:{name}.")
        return AleVec(name, num_envs, seed, num_threads, **params)


class AleVec(ForeignVec):
    """ALE's vector env as a VecEnv. Returns are those of the game, not of clipped rewards."""

    backend = "ale"

    def __init__(
        self,
        name: str,
        num_envs: int,
        seed: int | None,
        num_threads: int,
        *,
        skip: int = 4,
        stack: int = 4,
        size: int = 84,
        noops: int = 30,
        sticky: float = 0.0,
        fire: bool = True,
        clip_reward: bool = True,
        episodic_life: bool = False,
        full_action_space: bool = False,
        max_frames: int = FRAMES_PER_GAME,
    ) -> None:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        check_frames(f"ale:{name}", skip, stack, size)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        super().__init__(
            AtariVectorEnv(
                rom_of(name),
                num_envs,
                num_threads=min(num_threads, num_envs),
                autoreset_mode="SameStep",
                frameskip=skip,
                maxpool=skip > 1,
                stack_num=stack,
                img_height=size,
                img_width=size,
                noop_max=noops,
                repeat_action_probability=sticky,
                use_fire_reset=fire,
                reward_clipping=False,
                episodic_life=episodic_life,
                full_action_space=full_action_space,
                max_num_frames_per_episode=max_frames,
            )
        )
        self._clips, self._seed = clip_reward, seed

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts episodes. The first reset has the seed of `shoal.make`, or a random one."""
        if seed is None and not self._is_started:
            seed = self._seed if self._seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
        seeds: Any = None
        if seed is not None:
            seeds = np.array([value % 2**31 for value in check_seeds(seed, self.num_envs)], np.int64)
            if options and "reset_mask" in options:
                seeds = seeds[np.asarray(options["reset_mask"], np.bool_)]
        return super().reset(seed=seeds, options=options)

    def step(self, actions: Any) -> Any:
        """One transition of every env."""
        checked: Array = np.asarray(actions)
        count = int(getattr(self.single_action_space, "n", 0))
        if checked.shape != (self.num_envs,) or checked.min() < 0 or checked.max() >= count:
            raise ConfigError(
                f"actions of shape {checked.shape}, from {checked.min()} to {checked.max()}: expected "
                f"({self.num_envs},), each from 0 to {count - 1}."
            )
        obs, rewards, *rest = super().step(checked.astype(np.int64, copy=False))
        return obs, np.sign(rewards) if self._clips else rewards, *rest


FRAMEWORK = Ale("ale")
