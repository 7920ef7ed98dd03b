"""Tells what a run does: one file per logger, found by its name. Knows errors; has never heard of torch or of training.

(`log/tensorboard.py`, whose event writer comes with torch, is the one exception.) The room's model file is `jsonl.py`.
"""

from __future__ import annotations

from shoal.log.base import Guarded, Logger, Loggers, RunFacts, check, names, open_all

__all__ = ["Guarded", "Logger", "Loggers", "RunFacts", "check", "names", "open_all"]
