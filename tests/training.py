"""What the tests of training share: the factory of trainers, tiny runs, and what is in their checkpoints."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from shoal.runs import Run
from shoal.train import Trainer, options_for, train

torch.set_num_threads(1)
ENVS, HORIZON = 16, 8
STEPS = ENVS * HORIZON  # of one iteration with one agent
ITERATIONS = 6
_PLAIN_Q = {"schedule": "constant", "normalize_obs": False, "layer_norm": False, "gamma": 0.99}  # over tuned values
TINY_TRAIN: dict[str, dict[str, Any]] = {
    "ppo": {"total_steps": ITERATIONS * STEPS, "horizon": HORIZON, "minibatches": 2, "epochs": 2},
    "pqn": {"total_steps": ITERATIONS * 4 * ENVS, "horizon": 4, "minibatches": 2, "epochs": 2, **_PLAIN_Q},
    "dqn": {
        "total_steps": ITERATIONS * 4 * ENVS,
        "train_frequency": 4,
        "replay_start": 64,
        "replay_size": 3200,
        "batch_size": 32,
        "gradient_steps": 2,
        "target_tau": 0.0,
        "n_step": 1,
        "epsilon_end": 0.05,
        "epsilon_fraction": 0.5,
        "reward_scale": 1.0,
        **_PLAIN_Q,
    },
}
TINY: dict[str, Any] = {
    "vec": {"num_envs": ENVS, "torch_threads": 1},
    "nn": {"hidden": 16},
    "eval": {"episodes": 0},
    "save": {"every_s": 0, "every": 1, "keep": 100},
}
SERIAL: dict[str, Any] = {"vec": {"num_envs": ENVS, "backend": "serial"}}  # for a Python env in this process
FILES = ("weights.safetensors", "state.safetensors")


def make_trainer(
    env: Any, /, *, tuned: str = "", name: str = "test", policy: Any = None, reward: Any = None, **tables: Any
) -> Trainer:
    """The one factory of trainers: on the CPU, with one thread of torch. The caller closes it.

    `env` is what `shoal.make` takes, or a vector env called `name`. `tuned` names the env whose tuned values lie below
    `tables`.
    """
    tables = {"device": "cpu", **tables, "vec": {"torch_threads": 1, **tables.get("vec", {})}}
    is_vector = hasattr(env, "num_envs")
    vec = env if is_vector else None
    return Trainer(name if is_vector else env, options_for(tuned, tables), vec=vec, policy=policy, reward=reward)


@contextlib.contextmanager
def training(env: Any, /, **options: Any) -> Iterator[Trainer]:
    """`make_trainer`, closed at the end."""
    with contextlib.closing(make_trainer(env, **options)) as trainer:
        yield trainer


def tiny(*, agents: int = 1, **tables: Any) -> dict[str, Any]:
    """The tables of a run of six iterations with a checkpoint after each; `tables` override them."""
    own = {"learning_rate": 0.01, **TINY_TRAIN[tables.get("algo", "ppo")]}
    own["total_steps"] *= agents
    defaults = {**TINY, "train": own}
    single = {"device": "cpu", **{key: value for key, value in tables.items() if not isinstance(value, dict)}}
    return single | {key: {**defaults.get(key, {}), **tables.get(key, {})} for key in {*defaults, *tables} - {*single}}


def tiny_trainer(env: Any, /, **tables: Any) -> Trainer:
    """The trainer of a tiny run of an env, over its tuned values."""
    return make_trainer(env, tuned=env if isinstance(env, str) else "", **tiny(**tables))


def train_tiny(env: Any, folder: Path, /, *, policy: Any = None, console: str = "off", **tables: Any) -> Run:
    """A tiny run in a folder of its own."""
    return train(env, policy=policy, runs_folder=folder, console=console, **tiny(**tables))


def vacuum_tables(*, algo: str = "dqn", train: Any = (), **more: Any) -> dict[str, Any]:
    """Options of a tiny run of vacuum's classic game of four robots."""
    own = {"replay_size": 6400} if algo == "dqn" else {"horizon": 4}
    own |= {"total_steps": 400, **dict(train)}
    return {"algo": algo, "env": {"preset": "classic-1v3"}, "train": own, **more}


def vacuum_trainer(**more: Any) -> Trainer:
    """The trainer of such a run."""
    return tiny_trainer("vacuum", **vacuum_tables(**more))


def summary(run: Run) -> dict[str, Any]:
    """The summary of a run that ended."""
    assert run.summary is not None
    return run.summary


def cut(run: Run, count: int) -> Run:
    """The run as if it had been killed after `count` checkpoints."""
    for path in run.checkpoints()[count:]:
        shutil.rmtree(path)
    (run.folder / "summary.json").unlink()
    return Run(run.folder)


def contents(run: Run) -> dict[str, bytes]:
    """All files of all checkpoints, by name."""
    return {f"{path.name}/{file}": (path / file).read_bytes() for path in run.checkpoints() for file in FILES}
