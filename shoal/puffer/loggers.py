"""Loggers with PufferLib's names. PuffeRL accepts any object with `log(metrics, step)`; `close()` is optional."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.log import Guarded, RunFacts
from shoal.log import wandb as wandb_log
from shoal.puffer.exceptions import APIUsageError

__all__ = ["NeptuneLogger", "NoLogger", "WandbLogger"]


class NoLogger:
    """Logs nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.run_id = run_id()

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Does nothing."""

    def close(self, model_path: Any = None) -> None:
        """Does nothing."""


class WandbLogger:
    """Weights & Biases, on a separate thread: a failure or a slow network does not stop training. Only rank 0 logs.

    Args:
        project: the project of W&B.
        entity: user or team.
        name: name of the run.
        config: saved with the run.
        mode: `online`, `offline` (`wandb sync` uploads later) or `disabled`; default: WANDB_MODE, or online.
    """

    def __init__(
        self,
        project: str = "shoal",
        entity: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        mode: str | None = None,
    ) -> None:
        self.run_id = run_id()
        self._guarded: Guarded | None = None
        if rank() != 0:
            return
        mode = mode or os.environ.get("WANDB_MODE", "online")
        options = {"project": project, "entity": entity, "name": name, "mode": mode}
        wandb_log.check(**options)  # type: ignore[arg-type]
        facts = RunFacts(folder=Path.cwd(), id=self.run_id, env=project, config=dict(config or {}))
        self._guarded = Guarded("wandb", lambda: wandb_log.open(facts, **options), _warn)  # type: ignore[arg-type]

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Queues the metrics and returns at once."""
        if self._guarded is not None:
            self._guarded.log({**metrics, **({} if step is None else {"step": step})})

    def close(self, model_path: Any = None) -> None:
        """Waits a few seconds until everything is written."""
        if self._guarded is not None:
            self._guarded.close({"status": "finished"})
            self._guarded = None


class NeptuneLogger:
    """Raises: the service has closed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise APIUsageError(
            "NeptuneLogger: neptune.ai has closed its service. "
            "Use WandbLogger(project=…, name=…), NoLogger(), or any object with log(metrics, step), such as one around "
            "torch.utils.tensorboard.SummaryWriter."
        )


def rank() -> int:
    """The rank of this process under torchrun; otherwise 0."""
    return int(os.environ.get("RANK", "0") or 0)


def run_id() -> str:
    """A unique name for a run."""
    return time.strftime("%Y%m%d-%H%M%S-") + os.urandom(3).hex()


def _warn(text: str) -> None:
    fact = text.partition("; metrics.jsonl")[0]  # PuffeRL writes no such file
    print(f"warning: {fact}; training continues", file=sys.stderr, flush=True)
