"""Errors of a run and their causes: values that are not finite, too little GPU memory, a missing compiler."""

from __future__ import annotations

import contextlib
import math
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal import config
from shoal.algos.frames import StackedObs
from shoal.algos.roles import Role
from shoal.algos.rollout import Rollout
from shoal.errors import CompilerMissing, ConfigError, TrainingError
from shoal.train.envs import NATIVE_ENVS
from shoal.train.options import Options

# options of any algorithm that decide how much memory a run needs, and what to try
SMALLER = {
    "num_envs": "fewer --vec.num-envs",
    "horizon": "a shorter --train.horizon",
    "minibatches": "more --train.minibatches",
    "replay_size": "a smaller --train.replay-size",
    "batch_size": "a smaller --train.batch-size",
}


@contextlib.contextmanager
def gpu_errors_explained(options: Options) -> Iterator[None]:
    """Turns out-of-memory errors and failures of Triton's compiler into errors that say what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        given = {"num_envs": options.vec.num_envs or NATIVE_ENVS, **config.to_dict(options.train)}
        sizes = {name: given[name] for name in SMALLER if given.get(name)}
        shown, advice = ", ".join(f"{name}={size}" for name, size in sizes.items()), [SMALLER[name] for name in sizes]
        raise ConfigError(
            f"out of GPU memory ({shown}): {str(error).partition('. ')[0]}. "
            f"Try {', '.join(advice[:-1])} or {advice[-1]}."
        ) from None
    except (RuntimeError, subprocess.CalledProcessError) as error:
        if isinstance(error, subprocess.CalledProcessError):  # of gcc: its command names Triton's folders
            is_triton = "triton" in str(error.cmd)
        else:
            is_triton = str(error).startswith("Failed to find C compiler")
        if not is_triton:
            raise
        raise CompilerMissing(
            "Triton needs gcc (or clang, or CC) and Python's headers (python3-dev) to launch kernels, and could not "
            "build with them. Install them, uninstall triton to train without its kernels, or use --device cpu."
        ) from error


def check_finite(metrics: Mapping[str, Any], rollouts: Sequence[tuple[Rollout, Role]], context: Context) -> None:
    """Raises TrainingError if a metric (a number, or a tensor of one) is not finite, and names the cause."""
    watched = [value for name, value in metrics.items() if name != "explained_variance"]
    tensors = [value for value in watched if isinstance(value, Tensor)]
    numbers = [value for value in watched if not isinstance(value, Tensor)]
    if all(map(math.isfinite, numbers)) and (not tensors or bool(torch.isfinite(torch.stack(tensors)).all())):
        return
    for rollout, role in rollouts:
        if culprit := _bad_value(rollout, role, context.agents):
            raise TrainingError(f"{culprit}, seen before {context.when}.")
    names = [name for name, value in metrics.items() if not math.isfinite(float(value))]
    raise TrainingError(
        f"{', '.join(names)} became not finite at {context.when}, though observations and rewards are finite. "
        f"Try a smaller --train.learning-rate than {context.learning_rate:g}, or --train.normalize-obs True."
    )


class Context:
    """The progress of a run, for messages."""

    def __init__(self, step: int, iteration: int, learning_rate: float, agents: int) -> None:
        self.when = f"step {step:,} (iteration {iteration + 1})"
        self.learning_rate, self.agents = learning_rate, agents


def _bad_value(rollout: Rollout, role: Role, agents: int) -> str:
    """Describes the first value of an env that is not finite; empty if all are finite."""
    names = [leaf.name for leaf in rollout.layout.leaves]
    obs = [leaf.frames if isinstance(leaf, StackedObs) else leaf for leaf in rollout.obs]
    places = [(f"observation{n}", leaf) for n, leaf in zip(names, obs) if leaf.dtype.is_floating_point]
    places.append(("reward", rollout.rewards))  # obs[t] comes before rewards[t]
    for what, values in sorted(places, key=lambda place: _first_bad(place[1])):
        flat = values.reshape(len(values), rollout.rows, -1)
        if len(bad := (~torch.isfinite(flat)).nonzero()):
            t, row, element = (int(x) for x in bad[0])
            return f"the {what} of {_who(row, role, agents)} is {float(flat[t, row, element])} (element {element})"
    for truncation in rollout.truncations:
        truncated, rows = truncation.flags.any(0), truncation.rows
        if isinstance(rows, slice):
            rows = torch.arange(rollout.rows, device=truncated.device)
        for name, leaf in zip(names, truncation.obs):
            flat = leaf.reshape(len(leaf), -1)
            if len(bad := (~torch.isfinite(flat) & truncated.unsqueeze(1)).nonzero()):
                k, element = (int(x) for x in bad[0])
                who = _who(int(rows[k]), role, agents)
                return f"the last observation{name} of {who} is {float(flat[k, element])} (element {element})"
    return ""


def _first_bad(values: Tensor) -> int:
    """The first step with a value that is not finite."""
    bad = ~torch.isfinite(values.flatten(1)).all(1)
    return int(bad.nonzero()[0]) if bool(bad.any()) else len(values) + 1


def _who(row: int, role: Role, agents: int) -> str:
    if role.rows is not None:
        return "env {}, agent {}".format(*divmod(int(role.rows[row]), agents))
    env, agent = divmod(row, role.count(agents))
    number = agent if role.agents is None else role.agents[agent]
    return f"env {env}" + (f", agent {number}" if agents > 1 else "")
