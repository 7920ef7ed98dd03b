"""`--log tensorboard`: every number as a scalar over the steps, in the folder `tensorboard/` of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.log.base import Logger, LoggerType, Record, RunFacts, need
from shoal.plugins import NoOptions


class TensorBoard(Logger):
    """Writes an event file, flushed every ten seconds."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def log(self, record: Record) -> None:
        """Writes every number except the step and the time."""
        step, time = int(record.get("step", 0)), record.get("time")
        for key, value in record.items():
            if key not in ("step", "time"):
                # TensorBoard makes a separate group for each metric that names none
                self.writer.add_scalar(key if "/" in key else f"train/{key}", value, step, walltime=time)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Flushes and closes the file."""
        self.writer.close()


def check(options: NoOptions | None = None) -> None:
    """Raises ConfigError if the package is missing."""
    need("tensorboard", "tensorboard")


def open(facts: RunFacts, options: NoOptions | None = None) -> TensorBoard:
    """Starts an event file. After a resume TensorBoard hides records later than the checkpoint."""
    check()
    from torch.utils.tensorboard import SummaryWriter

    folder = facts.folder / "tensorboard"
    purge = facts.resumed_from + 1 if facts.resumed_from else None
    writer = SummaryWriter(str(folder), purge_step=purge, flush_secs=10)
    if facts.config and not facts.resumed_from:
        rows = "".join(f"| {key} | {value} |\n" for key, value in flatten(facts.config).items())
        writer.add_text("config", f"| option | value |\n|---|---|\n{rows}")
    return TensorBoard(writer)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"train": {"epochs": 4}}` as `{"train.epochs": 4}`."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return flat


LOGGER = LoggerType(open, check=check)
