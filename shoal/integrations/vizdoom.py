"""ViZDoom: `vizdoom:Basic`. First-person tasks in Doom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError, did_you_mean
from shoal.integrations.frames import shrink
from shoal.integrations.framework import Framework, Reference, newest
from shoal.names import arguments
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
    references = (
        Reference(
            "Basic", 77, "APPO of Sample Factory: 0.77 with rewards times 0.01", "model edbeeching/doom_basic_3333"
        ),
    )
    notes = ("Maps of Doom itself (`DoomE1M1-S1`) need the file doom.wad; Freedoom's are in the package.",)

    def names(self) -> list[str]:
        """The scenarios without `Vizdoom` and version; those of Doom itself where its file is there."""
        return [name for name in self.known() if not _missing_file(name)]

    def known(self) -> list[str]:
        """Also those whose file is not there."""
        return sorted({re.sub(r"-v\d+$", "", id).removeprefix(STEM) for id in self._ids()})

    def check_params(self, name: str, given: Mapping[str, Any]) -> None:
        """Raises for a param that is no argument here and no setting of the game: ViZDoom would only print it."""
        import vizdoom
        from vizdoom.gymnasium_wrapper.base_gymnasium_env import VizdoomEnv

        own = [*arguments(partial(self.make, name)), *arguments(VizdoomEnv)]
        settings = [method.removeprefix("set_") for method in dir(vizdoom.DoomGame) if method.startswith("set_")]
        for key in given:
            if key not in own and key not in settings:
                raise ConfigError(
                    f"vizdoom:{name} has no param '{key}'.{did_you_mean(key, [*own, *settings])} It has "
                    f"{', '.join(dict.fromkeys(own))}, and the settings of ViZDoom's configuration files."
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
        if file := _missing_file(name):
            raise ConfigError(
                f"vizdoom:{name} needs the file {file} of Doom, which is not free. Put it into {_folders()[0]}, or use "
                "vizdoom:Freedoom…, whose file is in the package."
            )
        env = gymnasium.make(newest(ids), render_mode=render_mode, frame_skip=skip, disable_env_checker=True, **params)
        return Scenario(env, height, width)

    def _ids(self) -> list[str]:
        import vizdoom.gymnasium_wrapper  # noqa: F401

        return [id for id in gymnasium.registry if id.startswith(STEM)]


def _folders() -> list[Path]:
    """Where ViZDoom looks for the files of games."""
    import vizdoom

    package = Path(vizdoom.__file__).parent
    return [package, package / "scenarios"]


def _missing_file(name: str) -> str:
    """The file of Doom that a map needs and that is not there; empty for others."""
    match = re.match(r"(Doom2?)(?:E\d|MAP\d)", name)
    file = f"{match[1].lower()}.wad" if match else ""
    return "" if not file or any((folder / file).is_file() for folder in _folders()) else file


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
