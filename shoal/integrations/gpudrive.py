"""GPUDrive: driving among recorded traffic, `gpudrive:DATA_FOLDER`. Its simulator must be built by the user.

The wheel on PyPI holds only the Python files. Shoal uses a build by its folder: $GPUDRIVE_DIR, a clone of the
repository in which `build/` holds the compiled module `madrona_gpudrive`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError, UnknownEnv
from shoal.integrations.framework import Framework

VARIABLE, MODULE = "GPUDRIVE_DIR", "madrona_gpudrive"
BUILD = (
    "git clone --recursive https://github.com/Emerge-Lab/gpudrive && cd gpudrive && mkdir build && cd build && "
    "cmake .. -DCMAKE_BUILD_TYPE=Release && make -j && cd .. && pip install -e ."
)


class GPUDrive(Framework):
    """One world of many cars, as GPUDrive's own Gymnasium wrapper makes it."""

    title = "driving among recorded traffic, on a GPU"
    packages = {"gpudrive": "gpudrive"}
    install = (BUILD, f"export {VARIABLE}=$PWD")
    example = "data/processed/examples"
    pattern = "DATA_FOLDER"
    preprocessing = "GPUDrive's own"
    notes = ("The wheel on PyPI lacks the simulator: build it from source. Not tried here: it needs a build.",)

    def problem(self) -> str:
        """Why no env can be made here; the compiled simulator is what is missing most often."""
        _add_build()
        if importlib.util.find_spec(MODULE) is None:
            where = os.environ.get(VARIABLE)
            looked = f"{VARIABLE}={where} has no build/ with it" if where else f"{VARIABLE} is not set"
            has_wheel = importlib.util.find_spec("gpudrive") is not None
            wheel = "the package gpudrive is installed, but " if has_wheel else ""
            return (
                f"{wheel}its compiled simulator, the module {MODULE}, is missing ({looked}). The wheel on PyPI "
                f"does not have it. Build it: {BUILD}; then: export {VARIABLE}=FOLDER of that clone"
            )
        return super().problem()

    def names(self) -> list[str]:
        """The folders of scenes in the clone."""
        root = Path(os.environ.get(VARIABLE, ".")) / "data" / "processed"
        return sorted(f"data/processed/{path.name}" for path in root.glob("*") if path.is_dir())

    def canonical(self, name: str) -> str:
        """A folder of scenes: in the clone, or any path."""
        for folder in (Path(name).expanduser(), Path(os.environ.get(VARIABLE, ".")) / name):
            if folder.is_dir():
                return str(folder.resolve())
        raise UnknownEnv(f"'gpudrive:{name}': no such folder of scenes, here or in ${VARIABLE}.")

    def make(self, name: str, *, render_mode: str | None = None, max_agents: int = 64, device: str = "cpu") -> Any:
        """One world."""
        _add_build()
        from gpudrive.env.config import EnvConfig
        from gpudrive.env.dataset import SceneDataLoader
        from gpudrive.env.env_torch import GPUDriveTorchEnv

        try:
            loader = SceneDataLoader(root=name, batch_size=1, dataset_size=1)
            return GPUDriveTorchEnv(EnvConfig(), loader, max_cont_agents=max_agents, device=device)
        except (TypeError, ImportError) as error:
            raise ConfigError(f"gpudrive: this build of GPUDrive has another API than Shoal knows: {error}") from error


def _add_build() -> None:
    """Makes the modules of the user's build importable."""
    if where := os.environ.get(VARIABLE):
        for folder in (Path(where).expanduser(), Path(where).expanduser() / "build"):
            if folder.is_dir() and str(folder) not in sys.path:
                sys.path.append(str(folder))


FRAMEWORK = GPUDrive("gpudrive")
