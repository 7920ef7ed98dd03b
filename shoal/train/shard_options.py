"""The options of one shard (algos/shards.py): its envs, its part of each batch; and what shards do not support."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from shoal.algos.algorithm import ALGORITHMS, Algorithm
from shoal.algos.shards import Shards, divide
from shoal.errors import ConfigError
from shoal.registry import is_native
from shoal.runs import Run
from shoal.train.defaults import NATIVE_ENVS, PYTHON_ENVS
from shoal.train.options import Options


def count_of(options: Options, processes: int = 1) -> int:
    """The number of shards: `--train.shards`, or one for each process."""
    given = int(getattr(options.train, "shards", 0))
    return given or processes


def with_count(options: Options, shards: int) -> Options:
    """The options with the number of shards that is used. Without shards they stay as they are."""
    if shards == 1:
        return options
    if ALGORITHMS.find(options.algo).shard is None or not hasattr(options.train, "shards"):
        raise ConfigError(
            f"--algo {options.algo} does not support shards, so one process trains it. Leave out --gpus, --processes "
            "and --train.shards, or use --algo ppo, dqn or pqn."
        )
    return dataclasses.replace(options, train=dataclasses.replace(options.train, shards=shards))


def as_begun(options: Options | None, run: Run | None) -> Options | None:
    """The options with the shards of the run that is continued: there may be fewer processes than before."""
    if options is None or run is None:
        return options
    return with_count(options, int(run.config.get("train", {}).get("shards", 0)) or 1)


def check_all(env: Any, options: Options, processes: int) -> None:
    """Raises ConfigError if a run cannot be trained in so many processes: before they are started."""
    count = count_of(options, processes)
    check_processes(count, processes)
    options = with_count(options, count)
    check_supported(options, count)
    of_one(env, options, count)


def check_processes(shards: int, processes: int) -> None:
    """Raises ConfigError unless every process has as many shards as any other."""
    if shards % processes:
        near = sorted({max(1, shards // processes) * processes, (shards // processes + 1) * processes})
        raise ConfigError(
            f"--train.shards {shards} does not divide over {processes} processes. Try --train.shards "
            f"{' or '.join(str(number) for number in near)}, or a number of processes that divides {shards}."
        )


def check(options: Options, shards: Shards | None) -> None:
    """Raises ConfigError for options that do not work with shards, or for shards without a trainer for all."""
    if shards is not None:
        check_supported(options, shards.count)
    elif (count := count_of(options)) > 1:
        raise ConfigError(
            f"--train.shards {count}: a Trainer trains one shard. Use shoal.train.make_trainer, which trains all."
        )


def check_supported(options: Options, count: int) -> None:
    """Raises ConfigError for options that do not work with several shards."""
    if count == 1:
        return
    refused = {
        "a league (--league)": options.league.on or options.opponents == "pool",
        "a curriculum (--curriculum)": bool(options.curriculum),
        f"--vec.surplus-envs {options.vec.surplus_envs}": bool(options.vec.surplus_envs),
        "--train.compile": bool(getattr(options.train, "compile", False)),
    }
    for what, is_given in refused.items():
        if is_given:
            raise ConfigError(
                f"{what} does not work with --train.shards {count}: it needs all envs in one process. Leave "
                "one of them out."
            )


def of_one(env: Any, options: Options, count: int) -> Options:
    """The options that the envs of one shard are made by. They do not depend on the number of processes."""
    total = options.vec.num_envs or (NATIVE_ENVS if is_native(env) else PYTHON_ENVS)
    num_envs = divide(total, count, "--vec.num-envs")
    # without --vec.num-workers their number depends on the cores of the process, and halves of envs on that number
    overlap = options.vec.overlap and bool(options.vec.num_workers)
    return dataclasses.replace(options, vec=dataclasses.replace(options.vec, num_envs=num_envs, overlap=overlap))


def of_learner(algorithm: Algorithm, options: Options, shards: Shards | None) -> tuple[Any, dict[str, Any]]:
    """The algorithm's options of one shard, and the further arguments of its learner."""
    if shards is None:
        return options.train, {}
    assert algorithm.shard is not None  # `with_count` has checked it
    return algorithm.shard(options.train, shards.count), {"shards": shards}


def mean_metrics(metrics: Mapping[str, Any], shards: Shards, device: torch.device) -> dict[str, Any]:
    """The mean of an update's metrics over all shards. Losses are the same in all of them already."""
    numbers = [torch.as_tensor(value, dtype=torch.float64, device=device) for value in metrics.values()]
    return dict(zip(metrics, shards.mean(torch.stack(numbers))))
