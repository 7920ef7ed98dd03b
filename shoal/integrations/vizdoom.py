"""ViZDoom: `vizdoom:Basic`. First-person tasks in Doom."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.integrations.frames import shrink
from shoal.integrations.framework import Framework, newest, plain
from shoal.spec import Array

STEM = "Vizdoom"


class Vizdoom(Framework):
    """The scenarios of ViZDoom, and the maps of Doom and Freedoom."""

    title = "first-person tasks in Doom"
    packages = {"vizdoom": "vizdoom>=1.2"}
    extra = "vizdoom"
    example = "Basic"
    stem = STEM
    pattern = "SCENARIO"
    preprocessing = "screen 72x128 in colour, skip 4; the game's variables as numbers"
    network = "NatureCNN, 512"
    options = {
        "train": {"total_steps": 10_000_000, "horizon": 128, "normalize_reward": True},
        "vec": {"num_envs": 16},
        "nn": {"encoder": "nature", "hidden": 512, "layers": 1},
    }
    notes = ("Maps of Doom itself (`DoomE1M1-S1`) need the file doom.wad; Freedoom's are in the package.",)

    def names(self) -> list[str]:
        """The scenarios without `Vizdoom` and version."""
        return sorted({re.sub(r"-v\d+$", "", id).removeprefix(STEM) for id in self._ids()})

    def find(self, name: str) -> Callable[..., Any]:
        """A function that makes the env of this name. One whose game file is missing would fail in its first reset."""
        maker = super().find(name)
        if is_doom := re.match(r"doom(2?)(e\d|map)", plain(name)):
            self._check_file(name, f"doom{is_doom[1]}.wad")
        return maker

    def _check_file(self, name: str, file: str) -> None:
        import vizdoom

        folder = Path(vizdoom.__file__).parent
        if not any((place / file).is_file() for place in (folder, folder / "scenarios")):
            raise ConfigError(
                f"vizdoom:{name} needs the game file of Doom, which is not free: there is no {file} here. Use "
                f"vizdoom:Freedoom…, or copy yours: cp {file} {folder}"
            )

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        height: int = 72,
        width: int = 128,
        skip: int = 4,
        **params: Any,
    ) -> Any:
        """One scenario."""
        if skip < 1 or min(height, width) < 36:
            raise ConfigError(
                f"vizdoom:{name}: skip={skip} must be at least 1, height={height} and width={width} at least 36."
            )
        ids = [id for id in self._ids() if re.sub(r"-v\d+$", "", id) == f"{STEM}{name}"]
        env = gymnasium.make(newest(ids), render_mode=render_mode, frame_skip=skip, disable_env_checker=True, **params)
        return Scenario(env, height, width)

    def _ids(self) -> list[str]:
        import vizdoom.gymnasium_wrapper  # noqa: F401

        return [id for id in gymnasium.registry if id.startswith(STEM)]


class Scenario(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The screen, small, and the numbers; other buffers (text, sound) are left out."""

    def __init__(self, env: Any, height: int, width: int) -> None:
        super().__init__(env)
        self.size = (height, width)
        own: dict[str, Any] = {"screen": spaces.Box(0, 255, (3, height, width), np.uint8)}
        inner = env.observation_space
        if "gamevariables" in inner.spaces:
            own["gamevariables"] = spaces.Box(-np.inf, np.inf, inner["gamevariables"].shape, np.float32)
        self.observation_space = spaces.Dict(own)

    def observation(self, observation: Any) -> dict[str, Array]:
        """The parts that policies see."""
        seen: dict[str, Array] = {"screen": shrink(observation["screen"], *self.size)}
        if "gamevariables" in self.observation_space.spaces:  # type: ignore[attr-defined]
            seen["gamevariables"] = observation["gamevariables"]
        return seen


FRAMEWORK = Vizdoom("vizdoom")
