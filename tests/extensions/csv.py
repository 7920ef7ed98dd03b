"""The `csv` logger: one line for each record, in a file of the run's folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.config import opt
from shoal.errors import ConfigError
from shoal.log.base import Logger, LoggerType, Record, RunFacts


@dataclass(frozen=True)
class CsvOptions:
    """The options of `--csv.*` with `--log csv`."""

    file: str = opt("metrics.csv", "file in the run's folder")
    columns: tuple[str, ...] = opt(("step", "episode/return"), "metrics to write, in this order")


class Csv(Logger):
    """Writes the chosen columns; a metric that a record lacks is empty."""

    def __init__(self, facts: RunFacts, options: CsvOptions) -> None:
        self.columns = options.columns
        self.file = (facts.folder / options.file).open("a", newline="", encoding="utf-8")
        self.writer = csv.writer(self.file)
        if self.file.tell() == 0:
            self.writer.writerow(self.columns)

    def log(self, record: Record) -> None:
        """Writes one line."""
        self.writer.writerow([record.get(name, "") for name in self.columns])
        self.file.flush()

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Closes the file."""
        self.file.close()


def check(options: CsvOptions) -> None:
    """Raises before the run starts: it writes into its own folder only."""
    if "/" in options.file or not options.file:
        raise ConfigError(f"--csv.file {options.file!r} must be the name of a file. Try --csv.file metrics.csv.")


LOGGER = LoggerType(Csv, CsvOptions, check)
