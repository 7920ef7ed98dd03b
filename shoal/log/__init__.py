"""Reports what a run does: one file per logger, found by its name. Knows config; has never heard of torch or training.

(`log/tensorboard.py`, whose event writer comes with torch, is the one exception.) The room's model file is `jsonl.py`.
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
