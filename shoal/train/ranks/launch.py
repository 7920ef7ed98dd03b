"""Starts the processes of a run on this machine, by the parts that torchrun is made of, and waits for them.

    torchrun --standalone --nproc-per-node 4 --max-restarts 3 -m shoal train breakout

does the same; several machines need torchrun (docs/distributed.md). If a process fails, the others are stopped, and all
are started again up to `max_restarts` times: they continue from the last checkpoint.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shoal.errors import ConfigError
from shoal.train.ranks.watch import FOLDER_VARIABLE
from shoal.train.ranks.world import TIMEOUT_VARIABLE, is_launched

SHUTDOWN_S = 30  # for processes to save a checkpoint and end, before they are killed
MOST = 1024  # processes of one machine


@dataclass(frozen=True)
class Launch:
    """The processes of one machine: flags of `shoal train`."""

    gpus: int = 0
    processes: int = 0
    max_restarts: int = 0
    rank_timeout_s: float = 0.0  # 0: the default

    @property
    def count(self) -> int:
        """How many processes are started; 0: this one trains."""
        return self.gpus or self.processes

    def check(self) -> None:
        """Raises ConfigError for numbers that this machine does not have, or flags that contradict each other."""
        if self.gpus and self.processes:
            raise ConfigError(
                f"--gpus {self.gpus} and --processes {self.processes} are mutually exclusive: --gpus starts a process "
                "for each GPU, --processes any number, on the CPU or sharing the GPUs."
            )
        for name, value in (("--gpus", self.gpus), ("--processes", self.processes)):
            if not 0 <= value <= MOST:
                raise ConfigError(f"{name} {value} must be from 1 to {MOST}.")
        if self.count and is_launched():
            raise ConfigError(
                f"--{'gpus' if self.gpus else 'processes'} {self.count} starts processes of its own, and torchrun has "
                "started this one. Leave it out; torchrun's --nproc-per-node says how many there are."
            )
        if self.max_restarts and not self.count:
            raise ConfigError(
                f"--max-restarts {self.max_restarts} is for --gpus and --processes; torchrun has its own. Leave it out."
            )
        if self.gpus and (found := torch.cuda.device_count()) < self.gpus:
            what = "no GPU" if not found else "1 GPU" if found == 1 else f"{found} GPUs"
            instead = f"--gpus {found}" if found else f"--processes {self.gpus}"
            raise ConfigError(f"--gpus {self.gpus}: torch finds {what} on this machine. Use {instead}.")


def run(words: Sequence[str], launch: Launch) -> int:
    """Runs `shoal WORDS` in all processes; returns the exit code of the first that failed, or 0."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if launch.rank_timeout_s:
        os.environ[TIMEOUT_VARIABLE] = str(launch.rank_timeout_s)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // launch.count)))
    with tempfile.TemporaryDirectory(prefix="shoal-ranks-", ignore_cleanup_errors=True) as folder:
        os.environ[FOLDER_VARIABLE] = folder
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=launch.count,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=launch.max_restarts,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            **shutdown_options(LaunchConfig),
        )
        logging.disable(logging.ERROR)  # the processes and `_explain` say what happened
        try:
            elastic_launch(config, sys.executable)("-m", "shoal", *words)
        except ChildFailedError as error:
            return _explain(error)
        except SignalException as stop:
            return 128 + int(stop.sigval)
        finally:
            logging.disable(logging.NOTSET)
    return 0


def shutdown_options(config: type) -> dict[str, Any]:
    """How long torch waits for processes that it has told to stop. Before torch 2.12 there is no such option: 30 s."""
    names = {field.name for field in dataclasses.fields(config)}
    return {"shutdown_timeout": SHUTDOWN_S} if "shutdown_timeout" in names else {}


def _explain(error: Any) -> int:
    """Says which process failed first, unless it has said so itself; returns its exit code."""
    rank, failure = error.get_first_failure()
    code = int(failure.exitcode)
    if code < 0:
        name = signal.Signals(-code).name
        why = " The system kills processes with SIGKILL when memory is short." if name == "SIGKILL" else ""
        print(f"shoal: rank {rank} (process {failure.pid}) was killed by {name}.{why}", file=sys.stderr)
        return 1
    return code or 1
