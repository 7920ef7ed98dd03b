"""PuffeRL's options: translates the names of guides and of PufferLib 3 to Shoal's, and checks them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import torch

from shoal.algos.ppo import PPO
from shoal.errors import did_you_mean
from shoal.puffer.exceptions import APIUsageError

# PufferLib's names of options of Shoal's PPO
NAMES = {
    "update_epochs": "epochs",
    "clip_coef": "clip",
    "ent_coef": "entropy_coef",
    "vf_coef": "value_coef",
    "vf_clip_coef": "value_clip",
    "total_timesteps": "total_steps",
    "prio_alpha": "priority",
    "prio_beta0": "priority_beta",
    "vtrace_rho_clip": "vtrace_rho",
    "vtrace_c_clip": "vtrace_c",
    "bptt_horizon": "horizon",
}
OF_GUIDES = {"n_epochs": "epochs"}
# keys of PufferLib 3's [train] that this trainer ignores: it neither makes envs nor saves by itself
UNUSED = (
    "env name project tag use_rnn torch_deterministic cpu_offload data_dir checkpoint_interval max_minibatch_size "
    "compile_mode compile_fullgraph precision min_lr_ratio env_name policy_name rnn_name no_model_upload"
).split()
SIZES = ("batch_size", "num_steps", "minibatch_size", "anneal_lr", "seed", "device")
NUM_STEPS = 128


def used(config: Mapping[str, Any]) -> dict[str, Any]:
    """PufferLib 3's [train] table without the keys that this trainer ignores."""
    if config.get("precision", "float32") != "float32":
        raise APIUsageError(f"precision={config['precision']!r}: training is in float32. Leave it out.")
    unused = {*UNUSED}
    if config.get("minibatch_size", "auto") != "auto":
        unused.add("minibatches")  # Shoal's own, which `load_config` has: PufferLib 3 has none, and sets the size
    return {key: value for key, value in config.items() if key not in unused}


def translated(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with Shoal's names. An unknown one raises, with a suggestion."""
    known = {field.name for field in dataclasses.fields(PPO)}
    table: dict[str, Any] = {}
    for name, value in options.items():
        own_name = {**NAMES, **OF_GUIDES}.get(name, name)
        if own_name not in known:
            near = did_you_mean(name, sorted({*known, *NAMES, *OF_GUIDES, *SIZES}))
            raise APIUsageError(f"PuffeRL has no option '{name}'.{near}")
        is_count = isinstance(value, float) and value == int(value) and own_name in ("total_steps", "epochs")
        table[own_name] = int(value) if is_count else value
    return table


def number(value: Any) -> int | None:
    """A size; PufferLib 3's `auto` is None."""
    if value is None or value == "auto":
        return None
    if isinstance(value, bool) or int(value) != value:
        raise APIUsageError(f"{value!r} is not a number of steps.")
    return int(value)


def sizes(
    rows: int,
    batch_size: int | None,
    num_steps: int | None,
    minibatch_size: int | None,
    minibatches: int | None = None,
    bptt_horizon: int | None = None,
) -> tuple[int, int, int]:
    """(steps per row of a rollout, minibatches, steps of a segment) from the given sizes; a segment of 0: the default.

    With `bptt_horizon`, PufferLib 3's name of num_steps, a batch may hold several segments of every row.
    """
    segment = 0
    if bptt_horizon is not None:
        num_steps, segment = _segments(rows, batch_size, bptt_horizon, minibatch_size)
    if batch_size is not None and num_steps is not None and batch_size != rows * num_steps:
        steps = batch_size // rows
        raise APIUsageError(
            f"batch_size={batch_size} is not num_steps={num_steps} of {rows} rows, {rows * num_steps}. "
            + (f"Leave out num_steps for rollouts of {steps} steps, or " if steps and batch_size % rows == 0 else "")
            + f"leave out batch_size for {rows * num_steps}. (minibatch_size divides a batch.)"
        )
    if num_steps is None and batch_size is not None:
        if batch_size < rows or batch_size % rows:
            near = max(1, round(batch_size / rows)) * rows
            raise APIUsageError(f"batch_size={batch_size} is not a multiple of the {rows} rows of env. Try {near}.")
        num_steps = batch_size // rows
    num_steps = NUM_STEPS if num_steps is None else num_steps
    if num_steps < 1:
        raise APIUsageError(f"num_steps={num_steps} must be at least 1.")
    batch = rows * num_steps
    if minibatch_size is None:
        parts = min(4, batch // max(1, segment)) if minibatches is None else minibatches
        return num_steps, parts, segment
    if minibatches is not None:
        raise APIUsageError(f"minibatch_size={minibatch_size} and minibatches={minibatches} are mutually exclusive.")
    if not 1 <= minibatch_size <= batch or batch % minibatch_size:
        count = max(1, round(batch / max(1, minibatch_size)))
        near = next(k for k in (*range(count, 0, -1), 1) if batch % k == 0)
        raise APIUsageError(
            f"minibatch_size={minibatch_size} does not divide the batch of {batch}. Try {batch // near}."
        )
    return num_steps, batch // minibatch_size, segment


def _segments(rows: int, batch_size: int | None, horizon: int, minibatch_size: int | None) -> tuple[int, int]:
    """(steps per row of a rollout, steps of a segment): several segments of every row are one long rollout."""
    if horizon < 1:
        raise APIUsageError(f"bptt_horizon={horizon} must be at least 1.")
    least = rows * horizon
    if batch_size is None or batch_size == least:
        return horizon, 0
    if batch_size < least or batch_size % least:
        near = max(1, round(batch_size / least)) * least
        raise APIUsageError(
            f"batch_size={batch_size} is not a multiple of bptt_horizon={horizon} steps of {rows} rows, {least}. Try "
            f"batch_size={near}, or leave out bptt_horizon."
        )
    if minibatch_size is not None and minibatch_size % horizon:
        near = max(1, round(minibatch_size / horizon)) * horizon
        raise APIUsageError(
            f"minibatch_size={minibatch_size} is not a multiple of bptt_horizon={horizon}: it holds whole segments. "
            f"Try {near}."
        )
    return batch_size // rows, horizon


def refuse_ranks() -> None:
    """Raises under torchrun with several processes: each would train a separate policy."""
    count = int(os.environ.get("WORLD_SIZE", "1") or 1)
    if count > 1:
        raise APIUsageError(
            f"WORLD_SIZE={count}: training over several processes or GPUs is not supported yet. Each of the {count} "
            "processes would train a separate policy. Run one process, without torchrun: python train.py."
        )


def check_device(device: Any) -> None:
    """Raises for a device that cannot train."""
    kind = str(device).partition(":")[0]
    if kind in ("cpu", "auto"):
        return
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise APIUsageError(f"device='{device}': torch finds no GPU on this machine. Use device='cpu'.")
        raise APIUsageError(
            f"device='{device}': PuffeRL does not train on a GPU yet. Use 'shoal train --device cuda', or 'cpu'."
        )
    raise APIUsageError(f"device={device!r}.{did_you_mean(kind, ('cpu', 'cuda'))} Use device='cpu'.")
