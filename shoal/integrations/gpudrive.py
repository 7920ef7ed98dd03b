"""GPUDrive: driving among recorded traffic, `gpudrive:DATA_FOLDER`. Its simulator must be built by the user.

The wheel on PyPI (0.1.0) holds only the Python files, the package `pygpudrive`. Shoal uses a build by its folder:
$GPUDRIVE_DIR, a clone of the repository in which `build/` holds the compiled module `gpudrive`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import UnknownEnv
from shoal.integrations.framework import Framework
from shoal.spec import Array

VARIABLE, MODULE, PACKAGE = "GPUDRIVE_DIR", "gpudrive", "pygpudrive"
BUILD = (
    "git clone --recursive https://github.com/Emerge-Lab/gpudrive && cd gpudrive && mkdir build && cd build && "
    "cmake .. -DCMAKE_BUILD_TYPE=Release && make -j && cd .. && pip install -e ."
)


class GPUDrive(Framework):
    """One scene of many cars, through GPUDrive's own class for torch."""

    title = "driving among recorded traffic (its simulator must be built from source)"
    packages = {PACKAGE: "gpudrive"}
    install = (f"{BUILD} && export {VARIABLE}=$PWD",)
    example = "example_data"
    pattern = "DATA_FOLDER"
    preprocessing = "GPUDrive's own; an action is an index of acceleration and steering"
    notes = (
        "The wheel on PyPI lacks the simulator. The adapter follows the Python files of 0.1.0 and was "
        "never run with a build.",
    )

    def problem(self) -> str:
        """Why no env can be made here; the compiled simulator is what is missing most often."""
        _add_build()
        if importlib.util.find_spec(MODULE) is None:
            where = os.environ.get(VARIABLE)
            looked = f"{VARIABLE}={where} has no build/ with it" if where else f"{VARIABLE} is not set"
            wheel = "the package is installed, but " if importlib.util.find_spec(PACKAGE) is not None else ""
            return (
                f"{wheel}its compiled simulator, the module {MODULE}, is missing ({looked}). The wheel on PyPI does "
                f"not have it. Build it: {BUILD}; then: export {VARIABLE}=FOLDER of that clone"
            )
        return super().problem()

    def names(self) -> list[str]:
        """The folders of scenes in the clone."""
        root = Path(os.environ.get(VARIABLE, ".")).expanduser()
        return sorted(path.name for path in root.glob("*data*") if path.is_dir())

    def canonical(self, name: str) -> str:
        """A folder of scenes: any path, or one in the clone."""
        for folder in (Path(name).expanduser(), Path(os.environ.get(VARIABLE, ".")).expanduser() / name):
            if folder.is_dir():
                return str(folder.resolve())
        raise UnknownEnv(f"'gpudrive:{name}': no such folder of scenes, here or in ${VARIABLE}.")

    def make(self, name: str, *, render_mode: str | None = None, cars: int = 32, device: str = "cpu") -> Any:
        """One scene with the API of pettingzoo.ParallelEnv."""
        _add_build()
        from pygpudrive.env.config import EnvConfig, SceneConfig
        from pygpudrive.env.env_torch import GPUDriveTorchEnv

        scene = SceneConfig(name, 1)
        return Scene(GPUDriveTorchEnv(EnvConfig(), scene, max_cont_agents=cars, device=device))


def _add_build() -> None:
    """Makes the modules of the user's build importable."""
    if where := os.environ.get(VARIABLE):
        for folder in (Path(where).expanduser(), Path(where).expanduser() / "build"):
            if folder.is_dir() and str(folder) not in sys.path:
                sys.path.append(str(folder))


class Scene:
    """One world. Cars that arrive or crash leave it."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, world: Any) -> None:
        self.env = world
        controlled = np.flatnonzero(np.asarray(world.cont_agent_mask.cpu())[0])
        self.numbers = {f"car_{number}": int(number) for number in controlled}
        self.possible_agents = list(self.numbers)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        """Of one car."""
        return self.env.observation_space

    def action_space(self, agent: str) -> Any:
        """Of one car."""
        return self.env.action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Starts the scene, which is always the same."""
        obs = _numpy(self.env.reset())[0]
        self.agents = list(self.possible_agents)
        return self._own(obs), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """One transition of all cars."""
        import torch

        chosen = torch.zeros((1, self.env.max_agent_count))
        for agent in self.agents:
            chosen[0, self.numbers[agent]] = float(actions[agent])
        self.env.step_dynamics(chosen)
        obs, rewards, done = (
            _numpy(part)[0] for part in (self.env.get_obs(), self.env.get_rewards(), self.env.get_dones())
        )
        playing = self.agents
        ended = {agent: bool(done[self.numbers[agent]]) for agent in playing}
        self.agents = [agent for agent in playing if not ended[agent]]
        own = {agent: float(rewards[self.numbers[agent]]) for agent in playing}
        seen = {agent: part for agent, part in self._own(obs).items() if agent in ended}
        return seen, own, ended, dict.fromkeys(playing, False), {agent: {} for agent in playing}

    def _own(self, obs: Array) -> dict[str, Array]:
        return {agent: obs[number].astype(np.float32) for agent, number in self.numbers.items()}

    def render(self) -> Any:
        """The scene as pixels."""
        return self.env.render(0)

    def close(self) -> None:
        """Does nothing: it holds no resources."""


def _numpy(tensor: Any) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array


FRAMEWORK = GPUDrive("gpudrive")
