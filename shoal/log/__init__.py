"""Reports what a run does: one file per logger, found by its name. Knows config and stats; knows nothing of torch.

(The exception is `log/tensorboard.py`: its event writer is a part of torch.) `jsonl.py` is the example to copy.
"""

from __future__ import annotations

from shoal.log.base import (
    LOGGERS,
    Guarded,
    Logger,
    Loggers,
    LoggerType,
    MetricRow,
    RunFacts,
    check,
    find,
    names,
    open_all,
)

__all__ = [
    "LOGGERS",
    "Guarded",
    "Logger",
    "LoggerType",
    "Loggers",
    "MetricRow",
    "RunFacts",
    "check",
    "find",
    "names",
    "open_all",
]
