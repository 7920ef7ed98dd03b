"""What a trainer checks before it continues from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.errors import CheckpointError
from shoal.names import shortened
from shoal.runs import Run, checkpoint_step
from shoal.train.options import Options, as_tables

# options of `train` that the shapes of weights depend on, as they do on `algo`, `nn`, `core` and `encoder`
OF_NETWORK = ("normalize_obs", "layer_norm", "dueling", "distribution", "num_atoms", "policy")
NOT_OF_NETWORK = ("log_std", "mean", "policies", "groups")  # of `nn`; `check_policies` has the last two


def check_resumable(run: Run) -> None:
    """Raises CheckpointError if the run has no checkpoint, or only weights."""
    if run.resumable():
        return
    if (last := run.last) is None:
        raise CheckpointError(f"run {run.id} has no checkpoint: there is nothing to resume. Start a new run.")
    raise CheckpointError(
        f"run {run.id} cannot be resumed: its checkpoint of step {checkpoint_step(last):,} has the weights alone. "
        f"Evaluate it: shoal eval {run.id}. Or start a new run from it: shoal train {shortened(run.env)} --init "
        f"{run.id}."
    )


def check_policies(meta: Mapping[str, Any], own: list[str]) -> None:
    """Raises CheckpointError if the checkpoint has other policies than those of these names."""
    saved = meta.get("policies")  # older checkpoints do not say
    if saved is not None and saved != own:
        theirs, ours = (", ".join(names) if any(names) else "one policy for all agents" for names in (saved, own))
        raise CheckpointError(
            f"the checkpoint has the policies: {theirs}; this run has: {ours}. Use its --nn.policies and --nn.groups."
        )


def with_options(error: CheckpointError, run: Run, options: Options) -> CheckpointError:
    """The error about weights of another policy, with the options in which the run and its resume differ."""
    old, new = run.config, as_tables(options)
    differing: list[tuple[str, Any, Any]] = [("algo", old.get("algo"), new["algo"])]
    for table in ("nn", "core", "encoder", "train"):
        for name, value in new.get(table, {}).items():
            if name in OF_NETWORK if table == "train" else name not in NOT_OF_NETWORK:
                differing.append((f"{table}.{name.replace('_', '-')}", old.get(table, {}).get(name, value), value))
    pairs = [(f"--{name}", theirs, ours) for name, theirs, ours in differing if theirs != ours]
    if not pairs:
        return error
    said = ", ".join(f"{flag} {theirs} (asked: {ours})" for flag, theirs, ours in pairs)
    flags = " ".join(f"{flag} {ours}" for flag, _, ours in pairs)
    return CheckpointError(
        f"run {run.id} has another network: {said}. Leave out {' and '.join(flag for flag, *_ in pairs)} to continue "
        f"it, or start a new run from its weights: shoal train {shortened(run.env)} --init {run.id} {flags}."
    )


def check_shards(meta: Mapping[str, Any], own: int) -> None:
    """Raises CheckpointError if the checkpoint has another number of shards. The number of processes is free."""
    if (saved := int(meta.get("shards", 1))) != own:
        raise CheckpointError(
            f"the checkpoint has {_count(saved)}, this run has {_count(own)}. Use --train.shards {saved}; it may be "
            f"resumed with any number of processes that divides {saved}."
        )


def _count(shards: int) -> str:
    return "1 shard" if shards == 1 else f"{shards} shards"


def check_streams(streams: Mapping[str, torch.Generator], state: Mapping[str, Tensor], device: torch.device) -> None:
    """Raises CheckpointError if the checkpoint's random streams are those of an old version or another device."""
    if "0.generator" in state and "0.stream.actions" not in state:
        raise CheckpointError(
            "the checkpoint is from Shoal before 0.2, which had one random stream for each policy. Its weights "
            "can be evaluated ('shoal eval'), but training cannot be resumed. Start a new run."
        )
    for name, stream in streams.items():
        if len(state[name]) != len(stream.get_state()):
            other = "cpu" if device.type == "cuda" else "cuda"
            raise CheckpointError(
                f"the checkpoint's random streams are those of {other}, not of {device.type}. "
                f"Resume with --device {other}."
            )


def put(into: Tensor, value: Tensor | None, name: str, must: bool = True) -> None:
    """Copies a tensor of the checkpoint, or raises CheckpointError if it does not fit."""
    if value is not None and value.shape == into.shape and value.dtype == into.dtype:
        into.copy_(value)
    elif must:
        what = "nothing" if value is None else f"{tuple(value.shape)} of {value.dtype}"
        raise CheckpointError(f"the checkpoint has {what} for {name}, expected {tuple(into.shape)} of {into.dtype}.")


def merge_shards(shared: Mapping[str, Tensor], parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The state of all shards as one: what they share, and a record for each."""
    return {**shared, **{f"shard{k}.{name}": value for k, part in enumerate(parts) for name, value in part.items()}}


def of_shard(state: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    """The state of one shard: the opposite of `merge_shards`."""
    prefix = f"shard{index}."
    shared = {name: value for name, value in state.items() if not name.startswith("shard")}
    return shared | {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
