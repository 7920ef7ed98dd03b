"""The flags of `shoal train` for several processes: --gpus, --processes, --max-restarts, --rank-timeout-s."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from shoal.cli.command import value_of
from shoal.errors import ConfigError

FLAGS = ("--gpus", "--processes", "--max-restarts", "--rank-timeout-s")


def join(args: Sequence[str]) -> int | None:
    """In a process that torchrun has started: waits for the others, and compares their command lines.

    A process other than rank 0 trains until rank 0 ends the run; its exit code is returned. None: this is rank 0, or
    the only process.
    """
    if "RANK" not in os.environ or any(word in ("-h", "--help") for word in args):
        return None
    from shoal.train import ranks
    from shoal.train.ranks.sameness import check_same
    from shoal.train.sharded import follow

    if (seconds := value_of(args, "--rank-timeout-s")) is not None:
        os.environ.setdefault(ranks.world.TIMEOUT_VARIABLE, seconds)
    world = ranks.join()
    if world is None:
        return None
    check_same(world, " ".join(args))
    if world.leads:
        return None
    follow(world)
    return 0


def read(parsed: Any) -> Any:
    """The parsed flags."""
    from shoal.train.ranks.launch import Launch

    launch = Launch(parsed.gpus, parsed.processes, parsed.max_restarts, parsed.rank_timeout_s)
    launch.check()
    return launch


def launch(args: Sequence[str], request: Any, verb: Sequence[str] = ("train",)) -> int | None:
    """Starts the processes that --gpus and --processes ask for; their exit code. None: this process trains.

    The options are checked here first, so that a mistake is one message, before anything starts.
    """
    launch = request.launch
    if not launch.count:
        return None
    from shoal.train import shard_options
    from shoal.train.ranks.launch import run

    if request.seeds:
        raise ConfigError("--seeds trains each seed in one process. Leave out --gpus and --processes, or --seeds.")
    if launch.gpus and request.options.device == "cpu":
        raise ConfigError(f"--gpus {launch.gpus} with --device cpu: use --processes {launch.gpus}, or leave out one.")
    shard_options.check_all(request.env, request.options, launch.count)
    words = _without(args, FLAGS[:3])
    if launch.gpus and value_of(words, "--device") is None:
        words += ["--device", "cuda"]
    return run([*verb, *words], launch)


def _without(args: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The words without some flags and their values."""
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word in flags:
            next(words, None)
        elif word.partition("=")[0] not in flags:
            rest.append(word)
    return rest
