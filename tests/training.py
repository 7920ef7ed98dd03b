"""What the tests of training share: tiny runs, and what is in their checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from shoal.runs import Run
from shoal.train import train

torch.set_num_threads(1)
ENVS, HORIZON = 16, 8
STEPS = ENVS * HORIZON  # of one iteration with one agent
TINY: dict[str, Any] = {
    "train": {"total_steps": 6 * STEPS, "horizon": HORIZON, "minibatches": 2, "epochs": 2, "learning_rate": 0.01},
    "vec": {"num_envs": ENVS, "torch_threads": 1},
    "nn": {"hidden": 16},
    "eval": {"episodes": 0},
    "save": {"every_s": 0, "every": 1, "keep": 100},
}
FILES = ("weights.safetensors", "state.safetensors")


def tiny(**more: Any) -> dict[str, Any]:
    """The tables of a run of six iterations with a checkpoint after each; more goes over them."""
    plain = {"device": "cpu", **{key: value for key, value in more.items() if not isinstance(value, dict)}}
    return plain | {key: {**TINY.get(key, {}), **more.get(key, {})} for key in {*TINY, *more} - {*plain}}


def train_tiny(env: Any, folder: Path, /, *, policy: Any = None, console: str = "off", **more: Any) -> Run:
    """A tiny run in a folder of its own."""
    return train(env, policy=policy, runs_folder=folder, console=console, **tiny(**more))


def cut(run: Run, kept: int) -> Run:
    """The run as if it had been killed after so many checkpoints."""
    for path in run.checkpoints()[kept:]:
        shutil.rmtree(path)
    (run.folder / "summary.json").unlink()
    return Run(run.folder)


def contents(run: Run) -> dict[str, bytes]:
    """All files of all checkpoints, by name."""
    return {f"{path.name}/{file}": (path / file).read_bytes() for path in run.checkpoints() for file in FILES}
